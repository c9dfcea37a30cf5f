from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest


@pytest.mark.suite("tests")
async def test_the_three_verbs_give_the_same_results(
    load_example: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    tour = load_example("quick_tour")
    await tour.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("all: [Reading(room='attic', degrees=70.7), ")
    assert lines[1:4] == ["attic: 70.7 °F", "cellar: 51.8 °F", "attic: 73.4 °F"]
    assert [line.partition("(")[0] for line in lines[4:7]] == [
        "to the sink: Reading"
    ] * 3
    assert lines[7] == "rows written: 3"
