"""The notebook is executed by a real kernel, from the file as it is."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import jupytext
import nbclient
import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.py"


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make the running interpreter known as a kernel, to this test only."""
    name = "aiomailbox-test"
    folder = tmp_path / "jupyter" / "kernels" / name
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (folder / "kernel.json").write_text(
        json.dumps({"argv": command, "display_name": name, "language": "python"})
    )
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    for variable in ("DATA", "CONFIG", "RUNTIME"):
        monkeypatch.setenv(f"JUPYTER_{variable}_DIR", str(tmp_path / variable.lower()))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    return name


def printed(cell: Any) -> str:
    return "".join(
        output["text"] for output in cell.get("outputs", ()) if "text" in output
    )


@pytest.mark.spark
async def test_every_cell_runs_in_a_kernel(kernel: str, tmp_path: Path) -> None:
    notebook = jupytext.read(NOTEBOOK)
    client = nbclient.NotebookClient(
        notebook,
        timeout=120,
        kernel_name=kernel,
        resources={"metadata": {"path": str(tmp_path)}},
    )
    await client.async_execute()
    text = "\n".join(printed(cell) for cell in notebook.cells)
    assert "Word(text='be', times=2)" in text
    assert "write `await ...` instead" in text
    assert "the first job has finished and the ticks are complete" in text
    shown = "".join(
        output["data"].get("text/html", "")
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "data" in output
    )
    assert "<th>text</th><th>times</th>" in shown
    assert '<svg xmlns="http://www.w3.org/2000/svg"' in shown
    # It is kept up to date in a notebook that somebody looks at.
    assert "<div><code>ticks " in shown
    assert "|      6|      50.25|" in text
    assert "cancelled; Spark jobs still running: 0" in text
    assert len(asyncio.all_tasks()) == 1
