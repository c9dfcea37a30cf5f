"""The runner itself: what it counts, what it refuses, and what it leaves pending."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.pytests import Pytests, pytests

__all__ = ["pytests"]

ROOT = Path(__file__).parents[2]
HEADER = {"flink_version": "2.3.0", "total_cases": 400}

SQUARES = """
FILE = "squares"
{extra}

def run_case(case):
    assert case["input"] ** 2 == case["result"]
"""

ASYNC_SQUARES = """
import asyncio
FILE = "squares"

async def run_case(case):
    await asyncio.sleep(3600)
    assert case["input"] ** 2 == case["result"]
"""


class Project:
    """A copy of the runner, with adapters and vector files of the test's own."""

    def __init__(self, folder: Path, pytests: Pytests) -> None:
        self.folder = folder
        self._pytests = pytests
        runner = folder / "tests" / "conformance"
        (runner / "cases").mkdir(parents=True)
        self.cases = runner / "cases"
        self.vectors = folder / "recorded"
        self.vectors.mkdir()
        shutil.copy(ROOT / "pyproject.toml", folder)
        shutil.copy(ROOT / "tests" / "conftest.py", folder / "tests")
        for name in ("conftest.py", "test_conformance.py"):
            shutil.copy(ROOT / "tests" / "conformance" / name, runner)

    def record(self, name: str, results: list[int]) -> None:
        cases = [{"i": i, "input": i, "result": r} for i, r in enumerate(results)]
        text = json.dumps({"header": HEADER, "cases": cases})
        (self.vectors / f"{name}.json").write_text(text)

    def decide(self, record: str) -> None:
        (self.folder / "docs" / "decisions").mkdir(parents=True)
        (self.folder / "docs" / "decisions" / f"{record}.md").write_text("")

    def run(self, *arguments: str) -> tuple[int, dict[str, list[int]], str]:
        options = ["-q", "tests/conformance", "--vectors", str(self.vectors)]
        code, said = self._pytests.run(self.folder, *options, *arguments)
        lines = re.findall(r"^(\w[\w ]*?) +((?: *\d+){4})", said, re.MULTILINE)
        counts = {name: [int(n) for n in numbers.split()] for name, numbers in lines}
        return code, counts, said


@pytest.fixture
def project(tmp_path: Path, pytests: Pytests) -> Project:
    return Project(tmp_path, pytests)


def squares(extra: str = "") -> str:
    return SQUARES.format(extra=extra)


def test_each_case_of_a_given_directory_is_run_and_counted(project: Any) -> None:
    project.record("squares", [0, 1, 4])
    (project.cases / "squares.py").write_text(squares())
    code, counts, _ = project.run()
    assert (code, counts["squares"]) == (0, [3, 0, 0, 0])


def test_a_case_that_differs_fails_the_run(project: Any) -> None:
    project.record("squares", [0, 1, 5])
    (project.cases / "squares.py").write_text(squares())
    code, counts, text = project.run()
    assert (code, counts["squares"]) == (1, [3, 1, 0, 0])
    assert "squares-2" in text


def test_what_two_workers_ran_is_added_up(project: Any) -> None:
    project.record("squares", [i * i + (i in {7, 8}) for i in range(100)])
    project.record("newly_recorded", [0, 1])
    project.decide("0009-sevens")
    (project.cases / "squares.py").write_text(squares('DELIBERATE = {7: "0009"}'))
    code, counts, text = project.run("-n", "2", "--dist", "loadfile")
    assert code == 1
    assert counts["squares"] == [100, 1, 1, 0]
    assert counts["newly_recorded"] == [0, 0, 0, 2]
    assert counts["all files"] == [100, 1, 1, 2]
    assert text.count("case 7 differs: 0009") == 1


def test_a_coroutine_is_run_in_virtual_time(project: Any) -> None:
    project.record("squares", [0, 1, 5])
    (project.cases / "squares.py").write_text(ASYNC_SQUARES)
    code, counts, _ = project.run()
    assert (code, counts["squares"]) == (1, [3, 1, 0, 0])


def test_a_file_that_nobody_knows_is_pending(project: Any) -> None:
    project.record("newly_recorded", [0, 1])
    code, counts, _ = project.run()
    assert (code, counts["newly_recorded"]) == (0, [0, 0, 0, 2])


def test_a_file_whose_module_is_still_to_come_is_pending(project: Any) -> None:
    project.record("squares", [0, 1])
    module = "aiomailbox.squares"
    adapter = f'MODULE = "{module}"\nfrom {module} import square\n'
    (project.cases / "squares.py").write_text(adapter)
    code, counts, text = project.run()
    assert (code, counts["squares"]) == (0, [0, 0, 0, 2])
    assert "aiomailbox.squares is still to come" in text


def test_a_file_whose_module_is_there_must_have_an_adapter(project: Any) -> None:
    project.record("mathutils_hash", [0])
    code, _, text = project.run()
    assert code == 1
    assert "aiomailbox.keygroups exists" in text


def test_an_adapter_that_cannot_be_imported_fails(project: Any) -> None:
    project.record("squares", [0])
    (project.cases / "squares.py").write_text(squares("import nothing_like_it"))
    code, _, text = project.run()
    assert code == 1
    assert "cannot be imported" in text


def test_a_deliberate_difference_is_counted_and_explained(project: Any) -> None:
    project.record("squares", [i * i + (i == 7) for i in range(100)])
    project.decide("0009-sevens")
    (project.cases / "squares.py").write_text(
        squares('DELIBERATE = {7: "seven is special, decision 0009"}')
    )
    code, counts, text = project.run()
    assert (code, counts["squares"]) == (0, [100, 0, 1, 0])
    assert "seven is special" in text


@pytest.mark.parametrize(
    ("differing", "listed", "record", "complaint"),
    [
        ({7}, {7: "no reason"}, "0009-a", "names no record"),
        ({7}, {7: "decision 0008"}, "0009-a", "names no record"),
        ({7, 8}, {7: "decision 0009", 8: "0009"}, "0009-a", "more than 1 %"),
        (set(), {7: "decision 0009"}, "0009-a", "DID NOT RAISE"),
    ],
    ids=["no record", "another record", "too many", "does not differ any more"],
)
def test_a_deliberate_difference_must_be_true_rare_and_decided(
    project: Any,
    differing: set[int],
    listed: dict[int, str],
    record: str,
    complaint: str,
) -> None:
    project.record("squares", [i * i + (i in differing) for i in range(100)])
    project.decide(record)
    (project.cases / "squares.py").write_text(squares(f"DELIBERATE = {listed!r}"))
    code, _, text = project.run()
    assert code == 1
    assert complaint in text


def test_a_file_that_is_not_in_the_format_fails(project: Any) -> None:
    (project.vectors / "broken.json").write_text("{")
    code, _, text = project.run()
    assert code == 1
    assert "not a vector file" in text


def test_a_directory_without_files_is_refused(project: Any) -> None:
    code, _, text = project.run()
    assert code != 0
    assert "there is no *.json" in text
