"""The notebook is executed by a real kernel, from the file as it is."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jupytext
import nbclient
import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.py"


@pytest.fixture
def kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[AsyncKernelManager]:
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
    # A free port may be somebody's by the time that the kernel has started.
    with tempfile.TemporaryDirectory(prefix="am-") as sockets:
        yield AsyncKernelManager(
            kernel_name=name, transport="ipc", ip=f"{sockets}/kernel"
        )


def printed(cell: Any) -> str:
    return "".join(
        output["text"] for output in cell.get("outputs", ()) if "text" in output
    )


FAILING = [
    """def price(order):
    return order["amount"] / order["count"]
orders = [{"amount": 1, "count": 0}]
import aiomailbox as am
def prices():
    return am.StreamExecutionEnvironment().from_collection(orders).map(price)
await prices().collect()""",
    "async for one in prices():\n    print(one)",
    """env = am.StreamExecutionEnvironment()
env.from_collection(orders).map(price).sink_to(print)
async with env.start() as job:
    await job.result()""",
    "env.from_collection([1]).map(3)",
]


@pytest.mark.real_time
async def test_a_failure_is_short_in_a_notebook_and_begins_with_the_users_frames(
    kernel: AsyncKernelManager,
) -> None:
    cells = [nbformat.v4.new_code_cell(source) for source in FAILING]
    notebook = nbformat.v4.new_notebook(cells=cells)
    await nbclient.NotebookClient(
        notebook, km=kernel, timeout=120, allow_errors=True
    ).async_execute(cleanup_kc=True)
    for cell in notebook.cells:
        (error,) = (one for one in cell.outputs if one.output_type == "error")
        text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))
        lines = text.splitlines()
        assert len(lines) < 30, text
        assert lines[2].startswith("Cell In"), text
        assert "File " not in text
        if cell is not notebook.cells[-1]:
            assert text.index("in price(order)") < text.index("UserFunctionError")
            assert "the record: {'amount': 1, 'count': 0}" in text


@pytest.mark.spark
async def test_every_cell_runs_in_a_kernel(
    kernel: AsyncKernelManager, tmp_path: Path
) -> None:
    notebook = jupytext.read(NOTEBOOK)
    client = nbclient.NotebookClient(
        notebook,
        km=kernel,
        # Of a cell: a busy machine takes minutes to start Spark.
        timeout=280,
        resources={"metadata": {"path": str(tmp_path)}},
    )
    await client.async_execute(cleanup_kc=True)
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
