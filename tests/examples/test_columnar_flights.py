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


async def test_the_only_function_that_asks_for_rows_is_the_service(
    load_example: Load,
) -> None:
    demo = load_example("columnar_flights")
    env = am.StreamExecutionEnvironment()
    table = demo.read_flights().slice(0, 100)
    days = demo.daily(demo.flights_of(env, table, as_rows=False))
    days.map_async(demo.WeatherService()).sink_to(lambda day: None)
    asking = [line for line in env.explain().splitlines() if "asks for them" in line]
    assert len(asking) == 1
    assert "WeatherService" in asking[0]
