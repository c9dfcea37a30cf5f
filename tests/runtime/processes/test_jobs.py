"""The same pipeline in one process and in several gives the same."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow.parquet as pq
import pytest

import aiomailbox as am
from aiomailbox.policies.rate_limit import RateWindow

# A busy machine takes seconds to start an interpreter.
pytestmark = [pytest.mark.real_time, pytest.mark.timeout(180)]

WORDS = ["to", "be", "or", "not", "to", "be", "that", "is", "the", "question"] * 40


def timed() -> am.WatermarkStrategy[Any]:
    return am.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda record: record[1]
    )


def keyed_sums(env: am.StreamExecutionEnvironment) -> am.DataStream[Any]:
    return (
        env.from_collection(range(2000))
        .filter(lambda number: number % 3 == 0)
        .map(lambda number: (number % 7, number))
        .key_by(lambda pair: pair[0])
        .reduce(lambda left, right: (left[0], left[1] + right[1]))
    )


def window_counts(env: am.StreamExecutionEnvironment) -> am.DataStream[Any]:
    return (
        env.from_collection([(word, 10 * n) for n, word in enumerate(WORDS)], timed())
        .key_by(lambda record: record[0])
        .window(am.TumblingEventTimeWindows.of(am.seconds(1.0)))
        .aggregate(am.aggregates(word_count=am.count()))
        .map(tuple)
    )


def many_ways(env: am.StreamExecutionEnvironment) -> am.DataStream[Any]:
    numbers = env.from_collection(list(range(300)))
    return (
        numbers.rebalance()
        .map(str)
        .union(numbers.broadcast().map(lambda n: -n), numbers.global_().map(float))
        .shuffle()
        .flat_map(lambda value: [value, [value]])
    )


def place_of(value: Any) -> Any:
    return value, os.getpid()


def text(values: list[Any]) -> Counter[str]:
    return Counter(map(repr, values))


@pytest.mark.suite("tests")
@pytest.mark.parametrize("pipeline", [window_counts, many_ways])
async def test_results_equal_those_of_one_process(
    env: am.StreamExecutionEnvironment, pipeline: Callable[..., Any]
) -> None:
    alone = am.StreamExecutionEnvironment(parallelism=2)
    expected = await pipeline(alone).collect()
    assert expected
    assert text(await pipeline(env).collect()) == text(expected)


@dataclass(frozen=True)
class Flight:
    origin: str
    number: int


class Leg(NamedTuple):
    flight: Flight
    kind: Kind
    times: tuple[int, ...]


class Kind(Enum):
    CARGO = "cargo"


class Seat(msgspec.Struct, frozen=True):
    row: int
    taken: frozenset[str]


def leg(number: int) -> Leg:
    return Leg(Flight("JFK", number), Kind.CARGO, (number, 2**70))


def seat(one: Leg) -> Any:
    return one, Seat(one.flight.number, frozenset({"a", "b"}))


@pytest.mark.suite("tests")
async def test_records_of_the_users_classes_travel(
    env: am.StreamExecutionEnvironment,
) -> None:
    """Classes of this module, of the function, and those that operators make."""

    @dataclass
    class Local:
        seat: Any

    dead = am.OutputTag("dead")
    checked = (
        env.from_collection(range(20))
        .map(leg)
        .rebalance()
        .map(seat)
        .key_by(lambda pair: pair[0].flight.number % 4)
        .map(lambda pair: Local(pair[1]) if pair[1].row else 1 // 0,
             on_error=am.dead_letter(dead))
    )  # fmt: skip
    found = await checked.collect()
    assert {type(local) for local in found} == {Local}
    assert sorted(local.seat.row for local in found) == list(range(1, 20))
    assert {type(local.seat) for local in found} == {Seat}
    assert {local.seat.taken for local in found} == {frozenset({"a", "b"})}
    (letter,) = await checked.get_side_output(dead).collect()
    assert isinstance(letter, am.DeadLetter)
    assert letter.record == seat(leg(0))
    assert letter.record[0].kind is Kind.CARGO
    windows = (
        env.from_collection(range(8), timed_by_itself())
        .key_by(lambda n: 0)
        .window(am.TumblingEventTimeWindows.of(am.seconds(0.004)))
        .aggregate(am.aggregates(many=am.count()))
    )
    assert sorted((r.key, r.many) for r in await windows.collect()) == [(0, 4), (0, 4)]


async def test_sums_by_key_equal_those_of_one_process(
    env: am.StreamExecutionEnvironment,
) -> None:
    alone = am.StreamExecutionEnvironment(parallelism=2)
    expected, found = [await keyed_sums(each).collect() for each in (alone, env)]
    # Two sources race; the last sum of a key does not depend on who came first.
    assert len(found) == len(expected)
    assert dict(map(max_of_key, expected)) == dict(map(max_of_key, found))
    assert {max(s for k, s in found if k == key) for key in range(7)} == {
        max(s for k, s in expected if k == key) for key in range(7)
    }


def max_of_key(pair: tuple[int, int]) -> tuple[int, int]:
    return pair[0], 0


@pytest.mark.suite("tests")
async def test_subtasks_really_run_elsewhere_and_apart(
    env: am.StreamExecutionEnvironment,
) -> None:
    found = await env.from_collection(range(100)).map(place_of).collect()
    assert sorted(value for value, _ in found) == list(range(100))
    places = {pid for _, pid in found}
    assert len(places) == 2
    assert os.getpid() not in places


@pytest.mark.suite("tests")
async def test_what_belongs_to_the_caller_runs_with_the_caller(
    env: am.StreamExecutionEnvironment,
) -> None:
    results: list[Any] = []

    async def numbers() -> Any:
        for number in range(20):
            yield number, os.getpid()
            await asyncio.sleep(0)

    def keep(value: Any) -> None:
        results.append((*value, os.getpid()))

    env.from_async_iterable(numbers()).map(place_of).sink_to(keep)
    env.from_collection(iter(range(5))).map(lambda n: ((n, 0), 0)).sink_to(keep)
    await env.execute()
    mine = os.getpid()
    by_async = [value for value in results if value[1]]
    assert sorted(value[0][0] for value in by_async) == list(range(20))
    assert {value[0][1] for value in by_async} == {mine}
    assert mine not in {value[1] for value in by_async}
    assert {value[2] for value in results} == {mine}
    assert len(results) == 25


async def test_every_verb_that_runs_a_stream_goes_there(
    env: am.StreamExecutionEnvironment, capsys: Any
) -> None:
    stream = env.from_collection(range(4000)).map(place_of)
    mine = os.getpid()
    assert {pid == mine for _, pid in await stream.take(3)} == {False}
    seen = 0
    async for _, pid in stream:
        assert pid != mine
        seen += 1
    assert seen == await stream.count() == 4000


async def test_tcp_of_this_machine_does_as_well(
    env: am.StreamExecutionEnvironment,
) -> None:
    env.configure(deployment=am.Processes(2, transport="tcp"))
    total = (
        await env.from_collection(range(100))
        .key_by(lambda n: n % 5)
        .reduce(max)
        .collect()
    )
    assert max(total) == 99


async def test_two_jobs_at_once_do_not_meet(
    env: am.StreamExecutionEnvironment,
) -> None:
    first = env.from_collection(range(500)).rebalance().map(lambda n: ("a", n))
    second = env.from_collection(range(700)).rebalance().map(lambda n: ("b", n))
    results = await asyncio.gather(first.collect(), second.collect())
    assert sorted(results[0]) == [("a", n) for n in range(500)]
    assert sorted(results[1]) == [("b", n) for n in range(700)]


async def test_no_more_processes_than_subtasks_and_none_without_need(
    env: am.StreamExecutionEnvironment, traces: Any
) -> None:
    env.configure(deployment=am.Processes(5))
    counts = []
    stream = env.from_collection(range(10)).map(lambda n: n)
    async for _ in stream:
        counts.append(len(traces.workers()))
    assert max(counts) == 2
    counts.clear()
    async for _ in env.from_collection(iter(range(10))):
        counts.append(len(traces.workers()))
    assert counts == [0] * 10


async def test_metrics_and_the_await_tree_tell_of_tasks_elsewhere(
    env: am.StreamExecutionEnvironment,
) -> None:
    async def wait(number: int) -> int:
        await asyncio.sleep(0 if number else 3600)
        return number

    env.from_collection(range(100), timed_by_itself()).map(lambda n: n).map_async(
        wait, concurrency=100
    ).name("look-up").sink_to(lambda n: None)
    async with env.start() as job:
        async with asyncio.timeout(50):
            while job.metrics().operators.get("map", {}).get("num_records_out") != 100:
                await asyncio.sleep(0.05)
        metrics = job.metrics()
        assert metrics.operators["collection"]["num_records_out"] == 100
        assert {name for name in metrics.tasks if "look-up (1/2)" in name}
        assert [name.rpartition(" ")[2] for name in metrics.tasks] == [
            "(1/2)", "(2/2)", "(1/2)", "(2/2)",
        ]  # fmt: skip
        assert "look-up" in job.watermarks()
        assert "in StreamTask._run" in job.await_tree().partition("look-up (1/2)")[2]
        async with asyncio.timeout(50):
            while "attempt 1 for 0 waits" not in job.await_tree():
                await asyncio.sleep(0.05)
        line = wait.__code__.co_firstlineno + 1
        assert f"for its function at {__file__}:{line}" in job.await_tree()


def timed_by_itself() -> am.WatermarkStrategy[Any]:
    return am.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda number: number
    )


async def test_parquet_files_appear_all_at_once(
    env: am.StreamExecutionEnvironment, tmp_path: Path
) -> None:
    target = tmp_path / "numbers"
    env.from_collection(range(1000)).map(lambda n: {"n": n}).sink_to(
        am.ParquetSink(target)
    )
    await env.execute()
    assert (target / "_SUCCESS").exists()
    files = sorted(target.glob("*.parquet"))
    assert len(files) == 2
    assert sorted(pq.read_table(target).column("n").to_pylist()) == list(range(1000))
    assert [path.name for path in tmp_path.iterdir()] == ["numbers"]


async def test_no_parquet_file_appears_if_one_worker_fails(
    env: am.StreamExecutionEnvironment, tmp_path: Path
) -> None:
    def fail_late(number: int) -> Any:
        if number == 999:
            raise ValueError("the last one")
        return {"n": number}

    env.from_collection(range(1000)).map(fail_late).sink_to(
        am.ParquetSink(tmp_path / "numbers", row_group_rows=10)
    )
    with pytest.raises(am.JobFailedError, match="the last one"):
        await env.execute()
    assert list(tmp_path.iterdir()) == []


async def test_one_rate_limit_holds_for_all_workers(
    env: am.StreamExecutionEnvironment, monkeypatch: Any
) -> None:
    async def where(number: int) -> tuple[int, int]:
        return place_of(number)

    # Where they are counted: workers report several uses at once, each after it was.
    times: list[float] = []
    use = RateWindow.use

    def noted(window: RateWindow, weight: float, now_s: float) -> None:
        times.extend([now_s] * int(weight))
        use(window, weight, now_s)

    monkeypatch.setattr(RateWindow, "use", noted)
    limit = am.RateLimit(20, per=0.5)
    found = (
        await env.from_collection(range(80))
        .map_async(where, concurrency=50, limit=limit)
        .collect()
    )
    assert sorted(number for number, _ in found) == list(range(80))
    assert len({pid for _, pid in found}) == 2
    assert len(times) == 80
    for first, last in zip(times, times[20:], strict=False):
        assert last - first >= 0.5


async def test_sources_of_several_workers_wait_for_each_other(
    env: am.StreamExecutionEnvironment,
) -> None:
    strategy = timed_by_itself().with_watermark_alignment(
        "numbers", am.seconds(1), am.millis(50)
    )
    numbers = await env.from_collection(range(0, 20_000, 10), strategy).collect()
    assert sorted(numbers) == list(range(0, 20_000, 10))


async def test_a_generator_of_large_records_waits_for_the_other_process():
    """What it makes is far more than may be lent beyond the buffers of its task."""
    env = am.StreamExecutionEnvironment(parallelism=2)
    env.configure(deployment=am.Processes(2))

    def pages(number: int) -> Any:
        for page in range(400):
            yield page, bytes(1_000_000)

    # Half of them stay in the process of the source, whichever that is.
    found = await (
        env.from_collection([0])
        .flat_map(pages)
        .partition_custom(lambda page, count: page % count, lambda record: record[0])
        .map(lambda record: (record[0], len(record[1])))
        .collect()
    )
    assert sorted(found) == [(page, 1_000_000) for page in range(400)]


async def test_workers_agree_about_the_hash_of_a_text() -> None:
    env = am.StreamExecutionEnvironment(parallelism=2)
    env.configure(deployment=am.Processes(2))
    seen = env.from_collection(list(range(8))).rebalance()
    found = await seen.map(lambda _: (os.getpid(), hash("tea"))).collect()
    assert len({pid for pid, _ in found}) == 2
    assert len({number for _, number in found}) == 1
