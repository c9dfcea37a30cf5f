"""Verbs that nobody should have to write again, through the whole engine."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest

import aiomailbox as am

TIME = am.WatermarkStrategy.for_bounded_out_of_orderness(am.millis(50))


def first(row: Any) -> Any:
    return row[0]


def second(row: Any) -> Any:
    return row[1]


def is_odd(row: Any) -> bool:
    return row[1] // 10 % 2 == 1


def is_even(row: Any) -> bool:
    return not is_odd(row)


@pytest.mark.parametrize("parallelism", [1, 3])
async def test_duplicates_are_dropped_in_every_subtask(parallelism: int) -> None:
    env = am.StreamExecutionEnvironment(parallelism=parallelism)
    rows = [(number % 20, number) for number in range(500)]
    found = await env.from_collection(rows).key_by(first).deduplicate().collect()
    assert sorted(first(row) for row in found) == list(range(20))


async def test_a_list_goes_out_in_time_although_the_source_waits() -> None:
    async def slow() -> AsyncIterator[int]:
        for number in range(3):
            yield number
            await asyncio.sleep(10)

    env = am.StreamExecutionEnvironment()
    stream = env.from_async_iterable(slow).batch(100, within=am.seconds(1))
    assert await stream.collect() == [[0], [1], [2]]


async def test_a_rate_limit_makes_records_wait_and_keeps_them_all() -> None:
    loop = asyncio.get_running_loop()
    times: list[float] = []
    env = am.StreamExecutionEnvironment()
    limited = env.from_collection(range(10)).rate_limit(am.RateLimit(2, per=1.0))
    limited.sink_to(lambda _: times.append(loop.time()))
    await env.execute()
    assert len(times) == 10
    for earlier, later in zip(times, times[2:], strict=False):
        assert later - earlier >= 0.999


async def add(number: int, latest: int) -> int:
    await asyncio.sleep(0.001)
    return number + latest


@pytest.mark.parametrize("function", [add, lambda number, latest: number + latest])
async def test_the_latest_record_reaches_every_subtask(function: Any) -> None:
    async def late() -> AsyncIterator[int]:
        await asyncio.sleep(1)
        for number in range(9):
            yield number

    env = am.StreamExecutionEnvironment(parallelism=3)
    latest = env.from_collection([5, 100])
    numbers = env.from_async_iterable(late).rebalance()
    found = await numbers.with_latest_from(latest, function).collect()
    assert sorted(found) == list(range(100, 109))


async def test_sessions_have_their_records_and_the_times_of_first_and_last() -> None:
    env = am.StreamExecutionEnvironment(parallelism=2)
    rows = [("a", 0), ("b", 10), ("a", 40), ("a", 200), ("b", 110)]
    stream = env.from_collection(rows, TIME.with_timestamp_assigner(second))
    found = await stream.key_by(first).sessionise(am.millis(100)).collect()
    assert sorted(found, key=lambda one: (one.key, one.start)) == [
        am.Session("a", at(0), at(40), [("a", 0), ("a", 40)]),
        am.Session("a", at(200), at(200), [("a", 200)]),
        am.Session("b", at(10), at(110), [("b", 10), ("b", 110)]),
    ]


def at(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


async def test_the_largest_and_the_median_of_windows_and_so_far() -> None:
    env = am.StreamExecutionEnvironment()
    rows = [("a", number) for number in (5, 3, 9, 7, 1)]
    stream = env.from_collection(rows, TIME.with_timestamp_assigner(second))
    both = am.aggregates(
        best=am.top_n(2, by=second), median=am.quantile(0.5, second, accuracy=0.01)
    )
    windows = am.TumblingEventTimeWindows.of(am.seconds(1))
    (found,) = await stream.key_by(first).window(windows).aggregate(both).collect()
    assert found.best == [("a", 9), ("a", 7)]
    assert found.median == pytest.approx(5, rel=0.01)
    rolling = env.from_collection(rows).key_by(first).aggregate(am.top_n(1, by=second))
    assert [row[0][1] for row in await rolling.collect()] == [5, 5, 9, 9, 9]


@pytest.mark.parametrize("parallelism", [1, 3])
async def test_patterns_are_found_in_records_out_of_order(parallelism: int) -> None:
    env = am.StreamExecutionEnvironment(parallelism=parallelism)
    rows = [(key, time) for time in (10, 0, 30, 20) for key in "abc"]
    pair = (
        am.pattern("even", where=is_even)
        .next("odd", where=is_odd)
        .within(am.seconds(1))
    )
    stream = env.from_collection(rows, TIME.with_timestamp_assigner(second))
    found = await stream.key_by(first).match(pair).collect()
    assert sorted((one.key, one.start, one.end) for one in found) == [
        (key, at(start), at(start + 10)) for key in "abc" for start in (0, 20)
    ]


def test_state_without_end_is_named_by_explain() -> None:
    env = am.StreamExecutionEnvironment()
    keyed = env.from_collection([(1, 1)]).key_by(first)
    keyed.deduplicate().sink_to(print)
    assert "no TTL" in env.explain()
    other = am.StreamExecutionEnvironment()
    keyed = other.from_collection([(1, 1)]).key_by(first)
    keyed.deduplicate(ttl=am.hours(1)).sink_to(print)
    assert "no TTL" not in other.explain()


def test_wrong_arguments_fail_where_they_are_written() -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection([(1, 1)])
    with pytest.raises(am.UsageError, match="limit"):
        stream.rate_limit(5)  # type: ignore[arg-type]
    with pytest.raises(am.UsageError, match="size"):
        stream.batch(0)
    with pytest.raises(am.UsageError, match="fraction"):
        stream.sample(2)
    with pytest.raises(am.UsageError, match="function"):
        stream.with_latest_from(stream, len)
    with pytest.raises(am.UsageError, match="gap"):
        stream.key_by(first).sessionise(0)
    with pytest.raises(am.UsageError, match="pattern"):
        stream.key_by(first).match("a")  # type: ignore[arg-type]


def test_the_operators_can_be_sent_elsewhere() -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection([(1, 1)])
    pair = am.pattern("even", where=is_even).next("odd", where=is_odd)
    made = [
        stream.batch(2, 1.0),
        stream.sample(0.5),
        stream.with_latest_from(stream),
        stream.rate_limit(am.RateLimit(1)),
        stream.key_by(first).deduplicate(),
        stream.key_by(first).sessionise(am.seconds(1)),
        stream.key_by(first).match(pair),
        stream.key_by(first).aggregate(am.quantile(0.5, second)),
    ]
    for one in made:
        assert pickle.loads(pickle.dumps(one._operator.factory))()


async def test_a_buffer_parts_a_fast_source_from_a_slow_consumer() -> None:
    loop = asyncio.get_running_loop()
    ended: list[float] = []

    async def ticks() -> AsyncIterator[int]:
        for number in range(5_000):
            await asyncio.sleep(0.001)
            yield number
        ended.append(loop.time())

    async def slow(number: int) -> int:
        await asyncio.sleep(1)
        return number

    env = am.StreamExecutionEnvironment()
    began = loop.time()
    found = await env.from_async_iterable(ticks).buffer(3).map(slow).collect()
    assert ended[0] - began < 6
    assert len(found) < 5_000
    assert found == sorted(set(found))
    assert found[-1] == 4_999


async def test_with_small_buffers_the_consumer_sees_what_is_new() -> None:
    async def ticks() -> AsyncIterator[int]:
        for number in range(1000):
            await asyncio.sleep(0.01)
            yield number

    async def slow(number: int) -> int:
        await asyncio.sleep(1)
        return number

    config = am.JobConfig(
        buffers_per_channel=1, floating_buffers=0, buffer_size_bytes=100
    )
    env = am.StreamExecutionEnvironment(config=config)
    stream = env.from_async_iterable(ticks).buffer(1, "latest").map(slow)
    found = await stream.collect()
    assert found[-1] == 999
    assert len(found) < 40


async def test_a_buffer_that_may_drop_nothing_fails_the_job() -> None:
    async def slow(number: int) -> None:
        await asyncio.sleep(1)

    env = am.StreamExecutionEnvironment()
    stream = env.from_collection(range(50_000)).buffer(10, "error").map(slow)
    with pytest.raises(am.JobFailedError) as failed:
        await stream.collect()
    assert "of 10 records is full" in str(failed.value)


async def test_a_job_with_a_seed_takes_the_same_sample_again() -> None:
    async def sample(seed: int) -> list[int]:
        env = am.StreamExecutionEnvironment(config=am.JobConfig(seed=seed))
        return await env.from_collection(range(1000)).sample(0.1).collect()

    assert await sample(1) == await sample(1)
    assert await sample(1) != await sample(2)


class Named(NamedTuple):
    number: int


async def test_a_buffer_of_records_whose_fields_are_known() -> None:
    env = am.StreamExecutionEnvironment()
    records = [Named(1), Named(2)]
    assert await env.from_collection(records).buffer(10).collect() == records
