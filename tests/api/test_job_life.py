"""How jobs end: by themselves, by cancellation, by failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.errors import StopTask

NothingLeft = Callable[[], None]
Env = am.StreamExecutionEnvironment


class Source:
    """Numbers for ever, ten a second; knows whether it was closed."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.closed = 0

    async def __call__(self) -> AsyncIterator[int]:
        self.started.set()
        number = 0
        try:
            while True:
                yield number
                number += 1
                await asyncio.sleep(0.1)
        finally:
            self.closed += 1


def _collect(stream: am.DataStream[Any]) -> Any:
    return stream.collect()


def _count(stream: am.DataStream[Any]) -> Any:
    return stream.count()


async def _iterate(stream: am.DataStream[Any]) -> None:
    async for _ in stream:
        pass


@pytest.mark.parametrize("verb", [_collect, _count, _iterate])
async def test_cancelling_who_awaits_a_stream_cancels_its_job(
    env: Env, assert_nothing_left: NothingLeft, verb: Callable[..., Any]
) -> None:
    source = Source()
    stream = env.from_async_iterable(source.__call__).map(lambda n: n)
    task = asyncio.ensure_future(verb(stream))
    await source.started.wait()
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    if verb is not _iterate:
        # An abandoned `async for` is closed by the event loop, a moment later.
        assert source.closed == 1
    await asyncio.sleep(1)
    assert source.closed == 1
    assert_nothing_left()


async def test_cancelling_who_awaits_execute_cancels_the_job(
    env: Env, assert_nothing_left: NothingLeft
) -> None:
    source = Source()
    env.from_async_iterable(source.__call__).sink_to(lambda n: None)
    task = asyncio.ensure_future(env.execute())
    await source.started.wait()
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert source.closed == 1
    assert_nothing_left()


async def test_a_timeout_around_a_verb_cancels_the_job(
    env: Env, assert_nothing_left: NothingLeft
) -> None:
    source = Source()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3):
            await env.from_async_iterable(source.__call__).collect()
    assert source.closed == 1
    assert_nothing_left()


async def test_calls_that_are_being_made_are_cancelled_with_the_job(
    env: Env, assert_nothing_left: NothingLeft
) -> None:
    cancelled = 0

    async def for_ever(n: int) -> int:
        nonlocal cancelled
        try:
            await asyncio.sleep(10**6)
        except asyncio.CancelledError:
            cancelled += 1
            raise
        return n

    stream = env.from_collection([1, 2, 3]).map_async(for_ever, concurrency=3)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await stream.collect()
    assert cancelled == 3
    assert_nothing_left()


async def test_cancelling_who_waits_for_a_result_leaves_the_job_alone(
    env: Env,
) -> None:
    source = Source()
    env.from_async_iterable(source.__call__).sink_to(lambda n: None)
    async with env.start() as job:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await job.result()
        assert job.state is am.JobState.RUNNING


async def test_cancel_waits_until_all_of_the_job_is_gone(
    env: Env, assert_nothing_left: NothingLeft
) -> None:
    source = Source()
    env.from_async_iterable(source.__call__).sink_to(lambda n: None)
    async with env.start("ticks") as job:
        await asyncio.sleep(1)
        await job.cancel()
        assert job.state is am.JobState.CANCELED
        assert source.closed == 1
        assert_nothing_left()
        await job.cancel()
        with pytest.raises(am.JobCancelledError, match="ticks"):
            await job.result()


async def test_a_job_can_be_cancelled_before_it_began(
    env: Env, assert_nothing_left: NothingLeft
) -> None:
    env.from_collection([1]).sink_to(lambda n: None)
    async with env.start() as job:
        assert job.state is am.JobState.CREATED
        await job.cancel()
        assert job.state is am.JobState.CANCELED
    assert_nothing_left()


async def test_an_error_in_the_block_cancels_the_job_and_goes_on(
    env: Env, assert_nothing_left: NothingLeft
) -> None:
    source = Source()
    env.from_async_iterable(source.__call__).sink_to(lambda n: None)
    with pytest.raises(KeyError, match="mine"):
        async with env.start() as job:
            await asyncio.sleep(1)
            raise KeyError("mine")
    assert job.state is am.JobState.CANCELED
    assert source.closed == 1
    assert_nothing_left()


async def test_a_job_that_fails_while_nobody_looks_fails_the_block(
    env: Env, assert_nothing_left: NothingLeft
) -> None:
    env.from_collection([0]).map(lambda n: 1 / n).sink_to(lambda n: None)
    with pytest.raises(am.JobFailedError, match="division by zero"):
        async with env.start() as job:
            await asyncio.sleep(5)
            assert job.state is am.JobState.FAILED
    assert_nothing_left()


async def test_a_failure_that_was_seen_is_raised_as_it_is(env: Env) -> None:
    env.from_collection([0]).map(lambda n: 1 / n).sink_to(lambda n: None)
    with pytest.raises(am.JobFailedError) as caught:
        async with env.start() as job:
            await job.result()
    assert caught.value.__cause__ is not None


async def test_when_a_task_fails_every_other_task_is_closed(
    env: Env, assert_nothing_left: NothingLeft
) -> None:
    quiet = Source()
    closed: list[str] = []

    class Watcher(am.ProcessFunction):
        def process_element(self, value: int, context: Any, out: Any) -> None:
            out.collect(value)

        def close(self) -> None:
            closed.append("watcher")

    env.from_async_iterable(quiet.__call__).process(Watcher()).sink_to(lambda n: None)
    env.from_collection([0]).map(lambda n: 1 / n).sink_to(lambda n: None)
    with pytest.raises(am.JobFailedError, match="division"):
        await env.execute()
    assert quiet.closed == 1
    assert closed == ["watcher"]
    assert_nothing_left()


async def test_the_first_error_counts(env: Env) -> None:
    def fail_first(n: int) -> int:
        raise ValueError("first")

    async def fail_later(n: int) -> int:
        await asyncio.sleep(1)
        raise KeyError("later")

    env.from_collection([1]).map(fail_later).sink_to(lambda n: None)
    env.from_collection([1]).map(fail_first).sink_to(lambda n: None)
    with pytest.raises(am.JobFailedError, match="first"):
        await env.execute()


async def test_stopping_a_task_from_a_function_ends_the_job_as_cancelled(
    env: Env,
) -> None:
    def stop(n: int) -> int:
        raise StopTask

    env.from_collection([1]).map(stop).sink_to(lambda n: None)
    with pytest.raises(am.JobCancelledError):
        await env.execute()


def enough(*arguments: Any) -> Any:
    raise StopTask


async def enough_later(*arguments: Any) -> Any:
    raise StopTask


def timed(rows: Any, time: Any = lambda row: row) -> Any:
    times: Any = am.WatermarkStrategy.for_monotonous_timestamps()
    return rows.assign_timestamps_and_watermarks(times.with_timestamp_assigner(time))


TUMBLING = am.TumblingEventTimeWindows.of(am.seconds(1.0))
SLIDING = am.SlidingEventTimeWindows.of(am.seconds(2.0), am.seconds(1.0))
ENDINGS: dict[str, Any] = {
    "filter": lambda rows: rows.filter(enough),
    "flat_map": lambda rows: rows.flat_map(enough),
    "map_async": lambda rows: rows.map_async(enough_later, concurrency=2),
    "key of calls": lambda rows: rows.map_async(
        enough_later, concurrency=2, ordered="key", key=enough
    ),
    "process_async": lambda rows: rows.key_by(abs).process_async(enough_later),
    "key of a reduce": lambda rows: rows.key_by(enough).reduce(max),
    "key of an aggregate": lambda rows: rows.key_by(enough).aggregate(am.count()),
    "reduce": lambda rows: rows.key_by(lambda row: 0).reduce(enough),
    "aggregate": lambda rows: rows.key_by(abs).aggregate(am.sum_(enough)),
    "event time": lambda rows: timed(rows, enough),
    "key of windows": lambda rows: (
        timed(rows).key_by(enough).window(TUMBLING).aggregate(am.count())
    ),
    "key of panes": lambda rows: (
        timed(rows).key_by(enough).window(SLIDING).aggregate(am.count())
    ),
    "windows": lambda rows: timed(rows).key_by(abs).window(TUMBLING).apply(enough),
    "key of a join": lambda rows: (
        timed(rows)
        .join(timed(rows))
        .where(enough)
        .equal_to(abs)
        .window(TUMBLING)
        .apply(max)
    ),
    "exchange": lambda rows: (
        rows.partition_custom(enough, abs).map(abs).set_parallelism(2)
    ),
    "key of an exchange": lambda rows: (
        rows.partition_custom(max, enough).map(abs).set_parallelism(2)
    ),
    "map_batches": lambda rows: rows.map(lambda row: {"n": row}).map_batches(enough),
    "async map_batches": lambda rows: rows.map(lambda row: {"n": row}).map_batches(
        enough_later
    ),
}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
async def test_whatever_function_stops_its_task_the_job_ends_as_cancelled(
    env: Env, ending: Any
) -> None:
    ending(env.from_collection([1, 2])).sink_to(lambda row: None)
    with pytest.raises(am.JobCancelledError):
        await env.execute()


async def test_a_sink_that_stops_its_task_ends_the_job_as_cancelled(env: Env) -> None:
    env.from_collection([1]).sink_to(enough)
    with pytest.raises(am.JobCancelledError):
        await env.execute()


async def test_what_was_handed_over_before_a_failure_is_there(env: Env) -> None:
    env.configure(buffer_timeout=am.millis(0))

    async def numbers() -> AsyncIterator[int]:
        yield 1
        await asyncio.sleep(1)
        yield 0

    seen = []
    with pytest.raises(am.JobFailedError, match="division"):
        async for value in env.from_async_iterable(numbers).map(lambda n: 1 / n):
            seen.append(value)
    assert seen == [1.0]


@pytest.mark.parametrize("cancels", [2, 3])
async def test_who_cancels_again_waits_until_the_job_is_gone(
    env: Env, assert_nothing_left: NothingLeft, cancels: int
) -> None:
    closed: list[str] = []

    class Slow(am.ProcessFunction):
        def process_element(self, value: int, context: Any, out: Any) -> None:
            out.collect(value)

        async def close(self) -> None:
            await asyncio.sleep(2)
            closed.append("slow")

    source = Source()
    env.from_async_iterable(source.__call__).process(Slow()).sink_to(lambda n: None)
    for verb in (env.execute(), env.from_async_iterable(Source()).collect()):
        task = asyncio.ensure_future(verb)
        await asyncio.sleep(1)
        for _ in range(cancels):
            task.cancel()
            await asyncio.sleep(0.1)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert_nothing_left()
    assert closed == ["slow"]


async def test_a_job_whose_function_swallows_its_cancellation_ends_all_the_same(
    env: Env, assert_nothing_left: NothingLeft
) -> None:
    async def swallow(number: int) -> int:
        while True:
            try:
                await asyncio.sleep(10**6)
            except asyncio.CancelledError:
                continue

    line = swallow.__code__.co_firstlineno + 3
    stream = env.from_collection([1]).map(swallow).name("stubborn").uid("s-1")
    stream.sink_to(lambda n: None)
    with pytest.raises(am.JobFailedError) as caught:
        async with env.start() as job:
            await asyncio.sleep(1)
            start = asyncio.get_running_loop().time()
            await job.cancel()
            assert asyncio.get_running_loop().time() - start < 32
    assert f"'stubborn' (uid 's-1') at {__file__}:{line}" in str(caught.value)
    assert_nothing_left()


@pytest.mark.parametrize("moment", ["at once", "later", "while it is closed"])
@pytest.mark.parametrize(
    "kind",
    [asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit, "group"],
)
async def test_an_iterable_that_raises_what_is_no_exception_fails_the_job(
    env: Env, assert_nothing_left: NothingLeft, kind: Any, moment: str
) -> None:
    """Because something that it awaited was cancelled, for example."""

    class Items:
        def __init__(self) -> None:
            self.left = 0 if moment == "at once" else 3
            self.closed = 0

        def __aiter__(self) -> Items:
            return self

        def fail(self) -> None:
            if kind == "group":
                raise BaseExceptionGroup("several", [asyncio.CancelledError()])
            raise kind

        async def __anext__(self) -> int:
            if self.left:
                self.left -= 1
                return self.left
            if moment == "while it is closed":
                raise StopAsyncIteration
            await asyncio.sleep(0.1)
            self.fail()
            raise AssertionError

        async def aclose(self) -> None:
            self.closed += 1
            if moment == "while it is closed":
                self.fail()

    items = Items()
    raised: list[BaseException] = []

    async def run() -> None:
        try:
            stream = env.from_async_iterable(items, name="items")
            async with asyncio.timeout(100):
                await stream.collect()
        except BaseException as error:
            raised.append(error)

    await asyncio.ensure_future(run())
    (error,) = raised
    if kind is KeyboardInterrupt:
        assert isinstance(error, kind)
        told = "\n".join(error.__notes__)
    else:
        assert isinstance(error, am.JobFailedError)
        told = str(error)
    assert "operator 'items'" in told
    assert f"{__file__}:" in told
    assert items.closed == 1
    assert_nothing_left()


async def test_who_cancels_the_task_of_an_iterable_fails_the_job(env: Env) -> None:
    async def forever() -> AsyncIterator[int]:
        yield 1
        await asyncio.sleep(10**6)

    env.from_async_iterable(forever, name="items").sink_to(lambda n: None)
    with pytest.raises(am.JobFailedError, match=r"'items'.*CancelledError"):
        async with env.start() as job:
            await asyncio.sleep(1)
            for task in asyncio.all_tasks():
                if task.get_name().endswith("/async iterable"):
                    task.cancel()
            await asyncio.wait_for(job.result(), 100)


async def test_a_generator_that_never_gives_way_is_left_behind_and_named(
    env: Env, assert_nothing_left: NothingLeft
) -> None:
    async def stubborn() -> AsyncIterator[int]:
        while True:
            try:
                await asyncio.sleep(10**6)
                yield 1
            except BaseException:
                continue

    line = stubborn.__code__.co_firstlineno + 3
    stream = env.from_async_iterable(stubborn, name="stubborn")
    stream.sink_to(lambda n: None)
    with pytest.raises(am.JobFailedError) as caught:
        async with env.start() as job:
            await asyncio.sleep(1)
            start = asyncio.get_running_loop().time()
            await job.cancel()
    assert asyncio.get_running_loop().time() - start < 32
    places = str(caught.value).partition("it stood ")[2]
    assert places == f"in operator 'stubborn' at {__file__}:{line}"
    assert_nothing_left()


class _NoNotesError(ValueError):
    def add_note(self, note: str) -> None:
        raise SystemExit(note)


class _OwnNotesError(ValueError):
    @property
    def __notes__(self) -> Any:
        raise SystemExit


class _Unlucky:
    """Something of the user's whose frames are looked at for operators."""

    def __getattr__(self, name: str) -> Any:
        raise SystemExit

    def map(self, number: int) -> int:
        raise KeyboardInterrupt if number else ValueError(number)


@pytest.mark.parametrize("moment", ["map", "open", "close"])
@pytest.mark.parametrize("kind", [_NoNotesError, _OwnNotesError])
async def test_an_error_that_takes_no_notes_ends_the_job_all_the_same(
    env: Env, assert_nothing_left: NothingLeft, kind: Any, moment: str
) -> None:
    class Failing(am.ProcessFunction):
        def open(self, context: Any) -> None:
            self.fail("open")

        def process_element(self, value: int, context: Any, out: Any) -> None:
            self.fail("map")

        def close(self) -> None:
            self.fail("close")

        def fail(self, at: str) -> None:
            if at in {moment, "close"}:
                raise kind(at)

    stream = env.from_collection([1]).process(Failing())
    stream.sink_to(lambda n: None)
    with pytest.raises(am.JobFailedError, match=moment):
        await asyncio.wait_for(env.execute(), 100)
    assert_nothing_left()


@pytest.mark.parametrize("number", [0, 1])
async def test_looking_for_the_operator_of_an_error_never_keeps_the_task_from_its_end(
    env: Env, assert_nothing_left: NothingLeft, number: int
) -> None:
    env.from_collection([number]).map(_Unlucky().map).sink_to(lambda n: None)
    ended = []

    async def run() -> None:
        try:
            async with asyncio.timeout(100):
                await env.execute()
        except BaseException as error:
            ended.append(type(error))

    await asyncio.ensure_future(run())
    assert ended == [KeyboardInterrupt if number else am.JobFailedError]
    assert_nothing_left()


class _CancelsItself:
    """A sink and its writer, which cancels the task that it runs in."""

    def create_writer(self, context: Any) -> Any:
        return self

    def create_committer(self, context: Any) -> None:
        return None

    def write_run(self, run: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    def flush(self, *, end_of_input: bool) -> None: ...
    def prepare_commit(self) -> list[Any]:
        return []

    def snapshot(self) -> list[Any]:
        return []

    def restore(self, elements: list[Any]) -> None: ...
    def close(self) -> None: ...


@pytest.mark.parametrize("count", [3, 5_000])
async def test_code_that_cancels_its_task_fails_a_job_that_ends_at_once(
    count: int,
) -> None:
    env = am.StreamExecutionEnvironment()
    env.from_collection(range(count)).sink_to(_CancelsItself())
    with pytest.raises(am.JobFailedError):
        await env.execute()
