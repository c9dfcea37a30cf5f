"""A job's snapshot: complete from the start on, declared, one schema wherever it runs."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import itertools
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.errors import CorruptStreamError
from aiomailbox.metrics.catalogue import DECLARED
from aiomailbox.runtime.job_snapshot import JobSnapshot


def pipeline(env: am.StreamExecutionEnvironment, rows: int = 2_000) -> None:
    stream = env.from_collection(range(rows), name="rows").rebalance()
    keyed = stream.map(lambda row: row + 1).name("add").key_by(lambda row: row % 7)
    keyed.reduce(max).name("largest").set_parallelism(2).sink_to(lambda row: None)


async def test_it_is_complete_from_the_first_moment() -> None:
    env = am.StreamExecutionEnvironment()
    pipeline(env)
    async with env.start("all") as job:
        first = job.snapshot()
        await job.result()
        last = job.snapshot()
    assert [one.name for one in first.operators] == [one.name for one in last.operators]
    assert (first.state, first.tasks) == ("created", [])
    assert first.operator("largest").metrics["num_records_in"] == 0
    assert last.state == "finished"
    assert last.operator("rows").is_source
    assert last.operator("FunctionSink").is_sink
    assert last.operator("largest").metrics["num_records_in"] == 2_000
    assert last.operator("largest").parallelism == 2
    with pytest.raises(KeyError):
        last.operator("nothing")


async def test_each_edge_is_there_and_says_what_waits() -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection(range(5_000), name="rows").rebalance()

    async def slow(row: int) -> int:
        await asyncio.sleep(1)
        return row

    stream.map(slow).name("slow").sink_to(lambda row: None)
    async with env.start() as job:
        await asyncio.sleep(10)
        edges = {(one.source, one.target): one for one in job.snapshot().edges}
    waiting = edges["rows", "slow"]
    assert waiting.partitioner == "REBALANCE"
    assert waiting.queued_records > 0
    assert waiting.queued_bytes > 0
    assert not waiting.is_chained
    # Tasks of one loop announce no credit.
    assert (waiting.credits, waiting.backlog) == (None, None)
    assert edges["slow", "FunctionSink"].is_chained


async def test_rates_are_those_of_the_last_seconds() -> None:
    env = am.StreamExecutionEnvironment()

    async def ticks() -> Any:
        for number in range(1_000):
            yield number
            await asyncio.sleep(0.1 if number < 100 else 0.01)

    env.from_async_iterable(ticks, name="ticks").sink_to(lambda number: None)
    async with env.start() as job:
        assert job.snapshot().operator("ticks").num_records_out_per_second == 0
        await asyncio.sleep(5)
        slow = job.snapshot().operator("ticks").num_records_out_per_second
        await asyncio.sleep(6)
        job.snapshot()
        await asyncio.sleep(2)
        fast = job.snapshot().operator("ticks").num_records_out_per_second
    assert slow == pytest.approx(10, rel=0.1)
    assert fast > 30


async def test_failures_are_kept_with_operator_line_and_record() -> None:
    restart = am.restart.fixed_delay(2, 1.0)
    env = am.StreamExecutionEnvironment(config=am.JobConfig(restart=restart))

    def divide(number: int) -> float:
        return 1 / number

    env.from_collection([2, 1, 0]).map(divide).name("divide").sink_to(print)
    with pytest.raises(am.JobFailedError):
        async with env.start(on_failure="log") as job:
            await asyncio.sleep(60)
            seen = job.snapshot()
    assert [one.restarts for one in seen.failures] == [0, 1, 2]
    last = seen.failures[-1]
    assert (last.operator, last.record) == ("divide", "0")
    assert "ZeroDivisionError" in last.error
    line = divide.__code__.co_firstlineno + 1
    assert last.line == f"{__file__}:{line}"
    assert seen.state == "failed"


async def never(*arguments: Any) -> Any:
    await asyncio.Event().wait()


async def refused(*arguments: Any) -> Any:
    raise TimeoutError


HOUR = dt.timedelta(hours=1)
LATER = am.Retry(attempts=2, initial=HOUR, maximum=HOUR)
SOME = am.RateLimit(2, per=HOUR)
# A call's form, and the metric that shows what waits in it.
CALLS: list[tuple[str, Any]] = [
    ("waiting_for_slot", lambda rows: rows.map_async(never, concurrency=2)),
    (
        "waiting_for_slot",
        lambda rows: rows.map_async(never, concurrency=2, ordered=False),
    ),
    (
        "waiting_for_key",
        lambda rows: rows.map_async(
            never, concurrency=2, ordered="key", key=lambda row: row % 2
        ),
    ),
    (
        "waiting_for_limit",
        lambda rows: rows.map_async(never, concurrency=4, limit=SOME),
    ),
    (
        "waiting_for_retry",
        lambda rows: rows.map_async(refused, concurrency=2, retry=LATER),
    ),
    (
        "waiting_for_key",
        lambda rows: rows.key_by(lambda row: row % 2).process_async(never),
    ),
]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(("waits", "call"), CALLS)
async def test_after_the_end_nothing_is_shown_as_waiting(
    waits: str, call: Any, fails: bool
) -> None:
    env = am.StreamExecutionEnvironment()
    let_fail = asyncio.Event()

    async def failing() -> Any:
        await let_fail.wait()
        raise OSError
        yield

    env.from_async_iterable(failing, name="failing").sink_to(print)
    calls = call(env.from_collection(range(50), name="rows"))
    calls.name("calls").sink_to(print)
    with pytest.raises(am.JobFailedError) if fails else contextlib.nullcontext():
        async with env.start(on_failure="log") as job:
            await asyncio.sleep(10)
            before = job.snapshot().operator("calls").metrics
            assert all(before[name] for name in (waits, "buffered"))
            if fails:
                let_fail.set()
                await job.result()
            await job.cancel()
    seen = job.snapshot().operator("calls")
    shown = {
        name: value
        for name, value in seen.metrics.items()
        if name.startswith("waiting_for_") or name in {"in_flight", "buffered"}
    }
    assert waits in shown
    assert set(shown.values()) == {0}
    assert seen.metrics["buffer_max"] == before["buffer_max"]
    assert seen.calls is not None
    assert (seen.calls.count, seen.calls.waiting_for_slot) == (0, 0)


async def test_a_job_that_is_over_lags_behind_no_clock() -> None:
    env = am.StreamExecutionEnvironment()
    rows = env.from_async_iterable(ticking, name="rows")
    times: Any = am.WatermarkStrategy.for_monotonous_timestamps()
    times = times.with_timestamp_assigner(lambda row: row)
    timed = rows.assign_timestamps_and_watermarks(times)
    timed.key_by(lambda row: row % 2).reduce(max).name("largest").sink_to(print)
    async with env.start() as job:
        await asyncio.sleep(10)
        lag = job.snapshot().operator("largest").metrics["watermark_lag"]
        assert isinstance(lag, int)
        await job.cancel()
        await asyncio.sleep(10)
        assert job.snapshot().operator("largest").metrics["watermark_lag"] is None
        # How far it came stays.
        assert job.watermarks()["largest"] is not None


async def ticking() -> Any:
    for row in itertools.count(1):
        yield row
        await asyncio.sleep(1)


async def test_a_snapshot_is_written_and_read_again() -> None:
    env = am.StreamExecutionEnvironment().enable_checkpointing(None)
    pipeline(env)
    async with env.start() as job:
        await job.result()
        seen = job.snapshot()
    assert seen.checkpoints[-1].checkpoint_id == 1
    assert seen.checkpoint_metrics["number_of_completed_checkpoints"] == 1
    assert JobSnapshot.from_json(seen.to_json()) == seen
    later = seen.to_json().replace(b'"version":1', b'"version":99')
    with pytest.raises(CorruptStreamError, match="version 99"):
        JobSnapshot.from_json(later)
    with pytest.raises(CorruptStreamError, match="not a snapshot"):
        JobSnapshot.from_json(b"[]")


async def count(row: int) -> int:
    return row


class Counting(am.ProcessFunction[int, int]):
    """Has metrics of its own."""

    def open(self, context: Any) -> None:
        self.seen = context.metrics.counter("seen", unit="rows", text="Rows seen.")
        self.sizes = context.metrics.histogram("sizes", unit="bytes")
        context.metrics.gauge("latest", lambda: self.seen.value, merge=am.Merge.MAX)

    def process_element(self, value: int, context: Any, out: Any) -> None:
        self.seen.add()
        self.sizes.observe(value)
        out.collect(value)


@pytest.mark.real_time
@pytest.mark.parametrize("workers", [0, 2])
async def test_it_is_the_same_embedded_and_in_processes(workers: int) -> None:
    env = am.StreamExecutionEnvironment(parallelism=2)
    stream = env.from_collection(range(1, 101), name="rows").rebalance()
    counted = stream.process(Counting()).name("count").map_async(count, concurrency=4)
    counted.sink_to(lambda row: None)
    deployment = am.Processes(workers) if workers else None
    async with env.start(deployment=deployment) as job:
        await job.result()
        seen = job.snapshot()
    operator = seen.operator("count")
    assert operator.metrics["num_records_in"] == 100
    # Merged as the function declares it, also where a worker said so.
    assert operator.metrics["seen"] == 100
    assert 40 <= operator.metrics["latest"] <= 60  # type: ignore[operator]
    declared = seen.metric("seen")
    assert declared is not None
    assert (declared.unit, declared.text) == ("rows", "Rows seen.")
    sizes = operator.metrics["sizes"]
    assert isinstance(sizes, am.HistogramValue)
    assert (sizes.count, sizes.maximum) == (100, 100)
    assert sizes.p50 == pytest.approx(50, rel=0.05)
    names = [
        *(name for one in seen.operators for name in one.metrics),
        *(name for one in seen.tasks for name in one.metrics),
        *seen.checkpoint_metrics,
    ]
    own = {metric.name for metric in seen.declared}
    assert [name for name in names if name not in DECLARED and name not in own] == []
    edge = next(one for one in seen.edges if one.source == "rows")
    assert edge.num_records_per_second >= 0
