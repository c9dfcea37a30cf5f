"""The flights as columns: equal to rows, and no function asks for rows."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

import aiomailbox as am

Load = Callable[[str], ModuleType]


@pytest.mark.real_time
async def test_columns_give_the_days_that_rows_give(
    load_example: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = load_example("columnar_flights")
    days = await demo.main()
    printed = capsys.readouterr().out
    assert "equal" in printed
    assert sum(day.flights for day in days) == 328_521
    assert any(day.temp is not None for day in days)


async def test_no_function_asks_for_rows_but_that_which_gets_the_results(
    load_example: Load,
) -> None:
    demo = load_example("columnar_flights")
    env = am.StreamExecutionEnvironment()
    table = demo.read_flights().slice(0, 100)
    days = demo.daily(demo.flights_of(env, table, as_rows=False))
    demo.with_weather(days).sink_to(lambda day: None)
    forms = [line for line in env.explain().splitlines() if line.startswith("    - ")]
    *others, last = forms
    assert last.endswith("asks for them")
    assert all(line.endswith("; columns") for line in others), forms
    assert any("- map_async" in line for line in others)
