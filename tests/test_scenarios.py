"""The numbered scenarios are counted, and what is counted exists."""

from __future__ import annotations

from pathlib import Path

from tests.scenarios import CHAPTERS, Coverage, collect, report, scenarios


def test_no_test_names_a_scenario_that_does_not_exist() -> None:
    assert collect().unknown == []


def test_each_scenario_of_memory_records_and_partitions_has_a_test() -> None:
    """Those of channels, credit and connections are counted, not demanded here."""
    coverage = collect()
    missing = coverage.missing("NET", 1, 113) + coverage.missing("NET", 184, 189)
    assert missing == []


def test_the_chapters_of_a_family_leave_no_gap() -> None:
    for chapters in CHAPTERS.values():
        numbers = [
            n for first, last in chapters.values() for n in range(first, last + 1)
        ]
        assert numbers == list(range(1, len(numbers) + 1))
    assert len(list(scenarios())) == len(set(scenarios())) == 132 + 4 + 189 + 260


def test_names_and_docstrings_of_tests_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "exchange"
    folder.mkdir()
    (folder / "test_some.py").write_text(
        "def test_net_07_sem_8_both():\n    '''MB-09, MB-D2: also NET-07.'''\n"
        "class TestMany:\n    '''NET-11.'''\n"
        "def helper():\n    '''NET-12.'''\n"
        "def test_late():\n    '''NET-900.'''\n"
    )
    coverage = collect(tmp_path)
    assert coverage.tests == {
        "NET-7": ["exchange/test_some.py::test_net_07_sem_8_both"],
        "SEM-8": ["exchange/test_some.py::test_net_07_sem_8_both"],
        "MB-9": ["exchange/test_some.py::test_net_07_sem_8_both"],
        "MB-D2": ["exchange/test_some.py::test_net_07_sem_8_both"],
        "NET-11": ["exchange/test_some.py::TestMany"],
        "NET-900": ["exchange/test_some.py::test_late"],
    }
    assert coverage.unknown == ["NET-900"]


def test_the_report_counts_and_says_what_is_missing() -> None:
    coverage = Coverage()
    for number in (1, 2, 4, 9):
        coverage.add(f"NET-{number}", "here")
    text = report(coverage)
    assert "NET     4 of 189 scenarios have a test" in text
    assert "4 of 9   without: 3, 5-8" in text
