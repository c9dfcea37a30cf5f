"""Jobs that are ended well: what they have read goes all the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import aiomailbox as am

Env = am.StreamExecutionEnvironment
NothingLeft = Callable[[], None]


async def seconds() -> AsyncIterator[int]:
    """Numbers for ever, ten a second."""
    number = 0
    while True:
        yield number
        number += 1
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("drain", [True, False])
async def test_windows_fire_if_the_job_is_drained(
    env: Env,
    assert_nothing_left: NothingLeft,
    drain: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    timed: am.WatermarkStrategy[int] = (
        am.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
            lambda number: number * 100
        )
    )
    seen: list[int] = []
    stream = env.from_async_iterable(seconds, timed)
    window = stream.window_all(am.TumblingEventTimeWindows.of(am.seconds(1)))
    window.reduce(lambda a, b: a + b).sink_to(seen.append)
    async with env.start() as job:
        await asyncio.sleep(2.55)
        # As in Flink, it is not drained unless that is asked for.
        assert await (job.stop(drain=True) if drain else job.stop())
        assert job.state is am.JobState.FINISHED
        # Stopping a job that has ended changes nothing.
        assert (await job.stop()).name == "job"
    whole = [sum(range(10)), sum(range(10, 20))]
    assert seen == ([*whole, sum(range(20, 26))] if drain else whole)
    texts = [record.getMessage() for record in caplog.records]
    dropped = [text for text in texts if "operators drop what they hold" in text]
    assert len(dropped) == (not drain)
    assert all("'window reduce': 'open windows'" in text for text in dropped)
    assert_nothing_left()


async def test_a_stop_tells_of_windows_that_no_draining_would_fire(
    env: Env, caplog: pytest.LogCaptureFixture
) -> None:
    windows = env.from_async_iterable(seconds).key_by(lambda _: 0).count_window(100)
    windows.reduce(lambda a, b: a + b).sink_to(print)
    async with env.start() as job:
        await asyncio.sleep(0.55)
        await job.stop()
    (told,) = [one.getMessage() for one in caplog.records if "drop" in one.msg]
    assert "'open windows, which only their trigger fires'" in told


@pytest.mark.parametrize("drain", [True, False])
async def test_calls_on_their_way_are_finished(
    env: Env, assert_nothing_left: NothingLeft, drain: bool
) -> None:
    called: list[int] = []

    async def call(number: int) -> int:
        called.append(number)
        await asyncio.sleep(5)
        return number

    seen: list[int] = []
    stream = env.from_async_iterable(seconds).map_async(call, concurrency=100)
    stream.sink_to(seen.append)
    async with env.start() as job:
        await asyncio.sleep(2.05)
        assert seen == []
        await job.stop(drain=drain)
    assert seen == called == list(range(21))
    assert_nothing_left()


@pytest.mark.parametrize("drain", [True, False])
async def test_sinks_commit(env: Env, tmp_path: Path, drain: bool) -> None:
    rows = env.from_async_iterable(seconds).map(lambda number: {"number": number})
    rows.sink_to(am.ParquetSink(tmp_path / "rows"))
    async with env.start() as job:
        await asyncio.sleep(1.05)
        await job.stop(drain=drain)
    table = pq.read_table(tmp_path / "rows")
    assert table.column("number").to_pylist() == list(range(11))


async def test_what_was_taken_from_an_iterable_is_not_lost(env: Env) -> None:
    """The reader is ahead of a slow pipeline."""
    taken: list[int] = []
    closed: list[str] = []

    async def queue() -> AsyncIterator[int]:
        try:
            for number in range(10**6):
                taken.append(number)
                yield number
                await asyncio.sleep(0.01)
        finally:
            closed.append("queue")

    async def slowly(number: int) -> int:
        await asyncio.sleep(0.5)
        return number

    seen: list[int] = []
    env.from_async_iterable(queue).map(slowly).sink_to(seen.append)
    async with env.start() as job:
        await asyncio.sleep(2)
        assert len(taken) > 2 * len(seen)
        stopping = asyncio.ensure_future(job.stop())
        # It is told between two records.
        await asyncio.sleep(1)
        assert closed == ["queue"]
        count = len(taken)
        await stopping
    assert seen == taken == list(range(count))


async def test_a_job_that_has_not_begun_stops_as_soon_as_it_has(env: Env) -> None:
    seen: list[int] = []
    env.from_async_iterable(seconds).sink_to(seen.append)
    async with env.start() as job:
        assert job.state is am.JobState.CREATED
        await job.stop()
        assert job.state is am.JobState.FINISHED
    assert len(seen) <= 1


async def test_a_job_that_fails_on_its_last_way_says_so(env: Env) -> None:
    def late(number: int) -> int:
        raise ValueError("last words")

    class Last(am.ProcessFunction):
        def process_element(self, value: int, context: Any, out: Any) -> None: ...

        def finish(self, out: Any) -> None:
            out.collect(1)

    env.from_async_iterable(seconds).process(Last()).map(late).sink_to(print)
    with pytest.raises(am.JobFailedError, match="last words"):
        async with env.start() as job:
            await asyncio.sleep(1)
            await job.stop(drain=True)


async def test_stopping_can_be_given_up_and_the_job_cancelled(env: Env) -> None:
    async def for_ever(number: int) -> int:
        await asyncio.sleep(10**6)
        return number

    env.from_async_iterable(seconds).map(for_ever).sink_to(print)
    async with env.start() as job:
        await asyncio.sleep(1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await job.stop()
        assert job.state is am.JobState.RUNNING
    assert job.state is am.JobState.CANCELED


async def test_a_generator_that_never_gives_way_ends_the_job_as_a_cancel_would() -> (
    None
):
    told = []

    async def stubborn() -> AsyncIterator[int]:
        yield 1
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                told.append(1)

    env = am.StreamExecutionEnvironment(
        config=am.JobConfig(cancel_timeout=am.seconds(12.0))
    )
    env.from_async_iterable(stubborn).sink_to(lambda number: None)
    loop = asyncio.get_running_loop()
    before = loop.time()
    with pytest.raises(am.JobFailedError, match="that was stopped took longer"):
        async with env.start() as job:
            await asyncio.sleep(1)
            await job.stop()
    # Once until it fails the job, and once until it is left behind.
    assert loop.time() - before <= 2 * 12.0 + 2
    assert len(told) > 2


@pytest.mark.parametrize("call", ["stop", "cancel", "result"])
@pytest.mark.parametrize("place", ["map", "map_async", "sink"])
async def test_a_function_that_waits_for_its_own_job_is_refused(
    env: Env, call: str, place: str
) -> None:
    jobs: list[am.JobClient] = []

    async def ends_all(number: int) -> int:
        await getattr(jobs[0], call)()
        return number

    stream = env.from_async_iterable(seconds)
    if place == "sink":
        stream.sink_to(ends_all)
    else:
        getattr(stream, place)(ends_all).sink_to(print)
    with pytest.raises(am.JobFailedError, match=r"asyncio\.create_task") as failed:
        async with env.start("itself", on_failure="log") as job:
            jobs.append(job)
            await job.result()
    assert Path(__file__).name in str(failed.value.location)


@pytest.mark.parametrize("call", ["trigger_savepoint", "trigger_checkpoint"])
@pytest.mark.parametrize(
    "place", ["map", "process", "timer", "sink", "map_async", "process_async"]
)
@pytest.mark.timeout(60)
async def test_a_function_that_a_checkpoint_waits_for_may_not_wait_for_one(
    env: Env, call: str, place: str, tmp_path: Path
) -> None:
    """A call of an async operator may: checkpoints hold its record."""
    jobs: list[am.JobClient] = []
    taken: list[Any] = []

    async def takes(*_: Any) -> None:
        where = [tmp_path / str(len(taken))] if call == "trigger_savepoint" else []
        taken.append(await getattr(jobs[0], call)(*where))

    class AtTimer(am.KeyedProcessFunction):
        def process_element(self, value: Any, context: Any, out: Any) -> None:
            context.timer_service.register_processing_time_timer(after=am.millis(1))

        on_timer = takes

    class AtRecord(am.KeyedProcessFunction):
        process_element = takes

    env.enable_checkpointing(None, mode=am.CheckpointingMode.AT_LEAST_ONCE)
    stream = env.from_async_iterable(seconds)
    ends: dict[str, Any] = {
        "map": lambda: stream.map(takes),
        "process": lambda: stream.key_by(str).process(AtRecord()),
        "timer": lambda: stream.key_by(str).process(AtTimer()),
        "sink": lambda: stream,
        "map_async": lambda: stream.map_async(takes),
        "process_async": lambda: stream.key_by(str).process_async(takes),
    }
    ends[place]().sink_to(takes if place == "sink" else lambda value: None)
    if place in {"map_async", "process_async"}:
        async with env.start("itself") as job:
            jobs.append(job)
            while not taken:
                await asyncio.sleep(1)
            await job.cancel()
        return
    with pytest.raises(am.JobFailedError, match=r"asyncio\.create_task") as failed:
        async with env.start("itself", on_failure="log") as job:
            jobs.append(job)
            await job.result()
    assert Path(__file__).name in str(failed.value.location)
    assert not taken


async def test_a_function_ends_its_job_in_a_task_of_its_own(env: Env) -> None:
    jobs: list[am.JobClient] = []
    ending: list[asyncio.Task[Any]] = []
    seen: list[int] = []

    async def ends_all(number: int) -> None:
        seen.append(number)
        if number == 3:
            ending.append(asyncio.create_task(jobs[0].stop()))

    env.from_async_iterable(seconds).sink_to(ends_all)
    async with env.start("itself") as job:
        jobs.append(job)
        await job.result()
    await ending[0]
    assert job.state is am.JobState.FINISHED
    assert seen == [0, 1, 2, 3]


async def test_a_function_waits_for_another_job(env: Env) -> None:
    async def runs_another(number: int) -> int:
        inner = am.StreamExecutionEnvironment()
        inner.from_collection([number]).sink_to(lambda value: None)
        async with inner.start(f"inner {number}") as job:
            await job.result()
        return number

    outer = env.from_collection([1, 2]).map_async(runs_another)
    assert await outer.collect() == [1, 2]
