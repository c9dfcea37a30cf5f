"""Results of windows with their key, as running aggregates give them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import aiomailbox as am

SECOND = am.seconds(1)
WINDOWS = {
    "tumbling": am.TumblingEventTimeWindows.of(SECOND),
    "sliding": am.SlidingEventTimeWindows.of(am.seconds(3), SECOND),
    "session": am.EventTimeSessionWindows.with_gap(SECOND),
    "global": am.GlobalWindows.create_with_end_of_stream_trigger(),
}


class AsyncSum(am.AggregateFunction[tuple[str, int, int], int, int]):
    """A sum whose methods are awaited."""

    def create_accumulator(self) -> int:
        return 0

    async def add(self, value: tuple[str, int, int], accumulator: int) -> int:
        return accumulator + value[2]

    async def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, first: int, second: int) -> int:
        return first + second


def windows(kind: str) -> Any:
    env = am.StreamExecutionEnvironment(parallelism=2)
    records = [("ab"[n % 2], 400 * n, n) for n in range(20)]
    strategy: Any = am.WatermarkStrategy.for_monotonous_timestamps()
    timed = env.from_collection(
        records, strategy.with_timestamp_assigner(lambda record: record[1])
    )
    return timed.key_by(lambda record: record[0]).window(WINDOWS[kind])


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("how", ["sum", "own", "evictor", "lateness"])
async def test_results_are_those_of_a_function_that_returns_the_key(
    kind: str, how: str
) -> None:
    found = []
    for keyed in (True, False):
        windowed = windows(kind)
        aggregate: Any = (
            AsyncSum() if how == "own" else am.sum_(lambda record: record[2])
        )
        if how == "evictor":
            windowed = windowed.evictor(am.CountEvictor.of(2))
        if how == "lateness" and kind != "global":
            windowed = windowed.allowed_lateness(timedelta(seconds=1))
        results = (
            windowed.aggregate(aggregate, include_key=True)
            if keyed
            else windowed.aggregate(aggregate, lambda key, _, sums: [(key, *sums)])
        )
        found.append(sorted(await results.collect()))
    assert found[0] == found[1]
    assert {key for key, _ in found[0]} == {"a", "b"}


async def test_several_aggregates_have_the_key_in_any_case() -> None:
    sums = am.aggregates(n=am.count())
    with_key = await windows("tumbling").aggregate(sums, include_key=True).collect()
    assert with_key == await windows("tumbling").aggregate(sums).collect()


@pytest.mark.parametrize("kind", ["tumbling", "sliding", "session"])
@pytest.mark.parametrize("keys", [("k",), ("k", "part")])
async def test_one_aggregate_with_its_key_leaves_columns_columns(
    kind: str, keys: tuple[str, ...]
) -> None:
    table = pa.table(
        {"k": ["a", "b", "a"], "part": [1, 1, 1], "t": [1, 2, 3], "n": [10, 20, 30]}
    )
    env = am.StreamExecutionEnvironment(parallelism=1)
    strategy: Any = am.WatermarkStrategy.for_monotonous_timestamps()
    rows = env.from_arrow(table, strategy.with_timestamp_assigner("t"))
    windowed = rows.key_by(*keys).window(WINDOWS[kind])
    results = windowed.aggregate(am.sum_("n"), include_key=True)
    found: list[Any] = []
    large: list[Any] = []
    results.sink_to(found.append)
    results.filter(pc.field("value") > 25).sink_to(large.append)
    assert "; rows" not in env.explain().replace("; rows: list.append asks", "")
    await env.execute()
    named = (
        [("a", 40), ("b", 20)] if len(keys) == 1 else [(("a", 1), 40), (("b", 1), 20)]
    )
    assert set(found) == set(named)
    assert set(large) == {named[0]}
    assert {type(pair) for pair in (*found, *large)} == {tuple}


def test_where_there_is_no_key_to_include_it_is_refused() -> None:
    windowed = windows("tumbling")
    with pytest.raises(am.InvalidArgumentError, match="window_function is given"):
        windowed.aggregate(am.count(), lambda key, _, n: [(key, n)], include_key=True)
    stream = am.StreamExecutionEnvironment().from_collection([1])
    with pytest.raises(
        am.InvalidArgumentError, match="include_key: the windows are of"
    ):
        stream.window_all(WINDOWS["tumbling"]).aggregate(am.count(), include_key=True)
