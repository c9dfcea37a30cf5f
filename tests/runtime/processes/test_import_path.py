"""Where workers find modules: where their parent does, and nowhere else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.processes.programs import SCRIPT, start

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(180)]

TOTAL = """
from helper import double
print(sum(am.run(env.from_collection(range(10)).map(double).collect())))
"""


@pytest.mark.parametrize("name", ["random", "msgspec"])
def test_no_module_of_the_current_directory_runs_in_a_worker(
    traces: Any, tmp_path: Path, name: str
) -> None:
    here, elsewhere = tmp_path / "program", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    (here / "helper.py").write_text("def double(number):\n    return 2 * number\n")
    (elsewhere / f"{name}.py").write_text(
        "import pathlib, os\n"
        f"pathlib.Path({str(elsewhere)!r}, f'ran-{{os.getpid()}}').touch()\n"
        "raise SystemExit(1)\n"
    )
    program = start(here, SCRIPT + TOTAL, cwd=elsewhere)
    out, errors = program.communicate(timeout=150)
    assert out.split() == ["loaded", "90"], errors
    assert [path.name for path in elsewhere.iterdir()] == [f"{name}.py"]


def test_a_module_that_shadows_another_one_in_the_parent_does_so_in_workers(
    traces: Any, tmp_path: Path
) -> None:
    """The order of the path is the parent's, not only what is in it."""
    first, second = tmp_path / "first", tmp_path / "second"
    for directory, factor in ((first, 2), (second, 3)):
        directory.mkdir()
        (directory / "helper.py").write_text(
            f"def double(number):\n    return {factor} * number\n"
        )
    path = f"import sys; sys.path[1:1] = [{str(first)!r}, {str(second)!r}]\n"
    program = start(tmp_path, path + SCRIPT + TOTAL)
    out, errors = program.communicate(timeout=150)
    assert out.split() == ["loaded", "90"], errors


def test_a_program_in_a_directory_whose_name_is_no_text(
    traces: Any, tmp_path: Path
) -> None:
    here = tmp_path / os.fsdecode(b"na\xefve")
    try:
        here.mkdir()
    except OSError:
        pytest.skip("names have to be text here")
    (here / "helper.py").write_text("def double(number):\n    return 2 * number\n")
    program = start(here, SCRIPT + TOTAL)
    out, errors = program.communicate(timeout=150)
    assert out.split() == ["loaded", "90"], errors
