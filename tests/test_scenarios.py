"""The numbered scenarios are counted, and what is counted exists."""

from __future__ import annotations

from pathlib import Path

from tests.scenarios import (
    CHAPTERS,
    Coverage,
    Untested,
    collect,
    load_untested,
    report,
    scenarios,
)


def test_no_test_names_a_scenario_that_does_not_exist() -> None:
    assert collect().unknown == []


def test_each_scenario_has_a_test_or_a_reason_and_not_both() -> None:
    coverage, untested = collect(), load_untested()
    names = set(scenarios())
    explained = {*untested.different, *untested.waiting}
    assert explained <= names
    assert untested.twice == []
    assert sorted(explained & set(coverage.tests)) == []
    assert sorted(names - explained - set(coverage.tests)) == []


def test_reasons_are_a_few_words() -> None:
    untested = load_untested()
    for reason in {*untested.different.values(), *untested.waiting.values()}:
        assert 2 <= len(reason.split()) <= 15


def test_a_scenario_with_two_reasons_is_found(tmp_path: Path) -> None:
    path = tmp_path / "untested.toml"
    path.write_text(
        '[[different]]\nscenarios = "NET-1-3"\nreason = "no such thing"\n'
        '[[waiting]]\nscenarios = "MB-D1, NET-2"\nreason = "the other part"\n'
    )
    untested = load_untested(path)
    assert untested.twice == ["NET-2"]
    assert list(untested.different) == ["NET-1", "NET-2", "NET-3"]
    assert list(untested.waiting) == ["MB-D1", "NET-2"]


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
    untested = Untested(
        different={"NET-3": "no such thing"},
        waiting=dict.fromkeys(
            ["NET-10", "NET-11", "NET-13", "MB-D2"], "the other part"
        ),
    )
    lines = [" ".join(line.split()) for line in report(coverage, untested).split("\n")]
    assert "NET 4 of 189 tested 1 different 3 to come" in lines
    chapter = "Availability, segments, buffers"
    assert f"{chapter} 4 of 9 tested 1 different 0 to come missing: 5-8" in lines
    assert "NET 3 no such thing" in lines
    assert "NET 10-11, 13 the other part" in lines
    assert "MB-D 2 the other part" in lines
