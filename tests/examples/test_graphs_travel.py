"""Graphs hold nothing live: each example's is run by another process as well."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

import aiomailbox as am

ROOT = Path(__file__).parents[2]
Load = Callable[[str], ModuleType]
RunElsewhere = Callable[..., Awaitable[list[str]]]

# Two have no graph: they are about the layers below. The third's functions are turned
# up and down by the program around the job, so that it is nothing to be run elsewhere.
WITHOUT_A_GRAPH = {
    "mailbox_actor",
    "channel_pair",
    "backpressure",
    "crash_and_resume",
    "dataframe_over_http",
    # They are about the service, the server, or the session of Spark, around the job.
    "nats_jetstream",
    "fastapi_ask",
    "server_sent_events",
    "spark_llm_enrichment",
    "spark_stream_service",
    # It is run at a pace of its own, and asked meanwhile.
    "slow_pipeline",
    # Its graph is tried against that of the rows.
    "columnar_flights",
}


class Departure(NamedTuple):
    origin: str
    time_hour: datetime
    scheduled: datetime
    dep_delay: float | None
    arr_delay: float | None


def departures() -> list[Departure]:
    """Return a flight an hour for three days from two airports, some never left."""
    return [
        Departure(
            origin,
            hour := datetime(2013, 1, day, of_day, tzinfo=UTC),
            hour.replace(minute=30),
            None if of_day == 7 else float(of_day),
            None if of_day == 8 else 2.0 * of_day,
        )
        for day in (1, 2, 3)
        for of_day in range(24)
        for origin in ("EWR", "JFK")
    ]


def quick_tour(example: ModuleType, env: Any) -> am.DataStream[Any]:
    return env.from_collection(example.READINGS).through(example.warmest)


def fastapi_service(example: ModuleType, env: Any) -> am.DataStream[Any]:
    readings = [
        example.Reading(sensor=sensor, value=value)
        for sensor, value in [("a", 1.0), ("b", 5.0), ("a", 3.0)]
    ]
    return env.from_collection(readings).through(example.running_totals)


def aiostream_pipes(example: ModuleType, env: Any) -> am.DataStream[Any]:
    visits = [example.Visit("Ada", page) for page in ("home", "news", "home")]
    return env.from_collection(visits).through(example.counted)


def flight_delays(example: ModuleType, env: Any) -> am.DataStream[Any]:
    flights = env.from_collection(departures(), example.strategy())
    return flights.through(example.daily_delays)


def keyed_async_state(example: ModuleType, env: Any) -> am.DataStream[Any]:
    return env.from_collection(example.payments(2)).through(example.check)


GRAPHS = {
    graph.__name__: graph
    for graph in (
        quick_tour,
        fastapi_service,
        aiostream_pipes,
        flight_delays,
        keyed_async_state,
    )
}


@pytest.mark.real_time
@pytest.mark.parametrize("name", GRAPHS)
async def test_the_graph_of_an_example_runs_elsewhere(
    load_example: Load, run_elsewhere: RunElsewhere, name: str
) -> None:
    example = load_example(name)
    stream = GRAPHS[name](example, am.StreamExecutionEnvironment())
    there = await run_elsewhere(stream, example)
    assert there == sorted(map(repr, await stream.collect()))
    assert len(there) >= 2


@pytest.mark.real_time
async def test_the_enrichment_runs_elsewhere_against_the_same_server(
    load_example: Load, run_elsewhere: RunElsewhere
) -> None:
    example = load_example("async_enrichment")
    example.OVERLOADED_AT_CALL = -1
    orders = [example.Order(number, number) for number in range(10, 16)]
    async with example.PriceServer() as server:
        env = am.StreamExecutionEnvironment()
        priced, failed = example.enrich(env.from_collection(orders), server.url)
        records = failed.map(lambda letter: letter.record)
        there = await run_elsewhere(priced.union(records), example)
        calls = len(server.log)
    assert calls == 6
    assert there == [
        "Order(number=13, article=13)",
        *(f"PricedOrder(number={n}, price={100 + n})" for n in (10, 11, 12, 14, 15)),
    ]


@pytest.mark.real_time
async def test_the_graphs_of_the_notebook_run_elsewhere(
    run_elsewhere: RunElsewhere,
) -> None:
    cells = (ROOT / "examples" / "notebook.py").read_text("utf-8").split("# %%")
    # The cells that describe: those that await, or need Spark, run something.
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells:
        if "\nawait " not in cell and " = await " not in cell and "spark." not in cell:
            exec(compile(f"#{cell}", "notebook.py", "exec"), names)

    words = names["words"]
    assert await run_elsewhere(words) == sorted(map(repr, await words.collect()))

    class Row(NamedTuple):
        id: int

    rows = names["env"].from_collection([Row(7), Row(8)])
    assert await run_elsewhere(rows.through(names["rated"])) == [
        "Rated(id=7, weekday=0, rating=3.5)",
        "Rated(id=8, weekday=1, rating=4.0)",
    ]


def test_the_graph_of_every_example_is_tried() -> None:
    examples = {path.stem for path in (ROOT / "examples").glob("*.py")}
    tried = {*GRAPHS, "async_enrichment", "notebook"}
    assert examples == tried | WITHOUT_A_GRAPH
