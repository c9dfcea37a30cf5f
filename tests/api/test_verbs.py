"""The three verbs, in a running loop and from a script."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.testing import virtual_time_loop_factory

NothingLeft = Callable[[], None]
Env = am.StreamExecutionEnvironment


async def ticks() -> AsyncIterator[int]:
    """Yield numbers for ever, ten a second."""
    number = 0
    while True:
        yield number
        number += 1
        await asyncio.sleep(0.1)


async def test_collect_returns_all_records_in_order(env: Env) -> None:
    numbers = list(range(5_000))
    assert await env.from_collection(numbers).map(lambda n: -n).collect() == [
        -n for n in numbers
    ]


async def test_results_of_one_subtask_keep_their_order_in_a_wider_environment() -> None:
    async def numbers() -> AsyncIterator[int]:
        for number in range(5_000):
            yield number

    env = Env(parallelism=3)
    one = env.from_async_iterable(numbers).map(str).set_parallelism(1)
    expected = list(map(str, range(5_000)))
    assert await one.collect() == expected
    assert await one.take(3_000) == expected[:3_000]
    async with aclosing(aiter(one)) as iterated:
        assert [each async for each in iterated] == expected
    assert await env.from_async_iterable(numbers).collect() == list(range(5_000))


async def test_a_program_in_virtual_time_waits_hours_for_its_sources_in_silence(
    env: Env, caplog: pytest.LogCaptureFixture
) -> None:
    async def hours() -> AsyncIterator[int]:
        for hour in range(23):
            yield hour
            await asyncio.sleep(3600)

    numbers = env.from_async_iterable(hours)
    assert len(await numbers.collect()) == await numbers.count() == 23
    assert not caplog.records


async def test_execute_runs_every_sink_to_its_end(env: Env) -> None:
    evens: list[int] = []
    doubled: list[int] = []
    numbers = env.from_collection([1, 2, 3, 4])
    numbers.filter(lambda n: n % 2 == 0).sink_to(evens.append)
    numbers.map(lambda n: 2 * n).sink_to(doubled.append)
    result = await env.execute("two sinks")
    assert (evens, doubled) == ([2, 4], [2, 4, 6, 8])
    assert result.name == "two sinks"


async def test_executing_again_runs_what_is_new(env: Env) -> None:
    """As in Flink: what has been executed is done with."""
    seen: list[int] = []
    numbers = env.from_collection([1])
    numbers.sink_to(seen.append)
    await env.execute()
    numbers.map(lambda number: number + 1).sink_to(seen.append)
    await env.execute()
    assert seen == [1, 2]
    with pytest.raises(am.UsageError, match="nothing to run"):
        await env.execute()


async def test_starting_is_executing(env: Env) -> None:
    seen: list[int] = []
    env.from_collection([1]).sink_to(seen.append)
    async with env.start() as job:
        await job.result()
    with pytest.raises(am.UsageError, match="nothing to run"):
        async with env.start():
            pass
    assert seen == [1]


async def test_a_graph_that_cannot_be_is_forgotten_so_that_it_can_be_written_again(
    env: Env,
) -> None:
    seen: list[int] = []
    texts = env.from_collection([1]).map(str).forward()
    texts.map(int).set_parallelism(2).sink_to(seen.append)
    with pytest.raises(am.InvalidArgumentError) as caught:
        await env.execute()
    assert not hasattr(caught.value, "__notes__")
    with pytest.raises(am.UsageError, match="were refused when they were to run"):
        await env.execute()
    texts.map(int).sink_to(seen.append)
    await env.execute("good")
    assert seen == [1]
    with pytest.raises(am.UsageError, match="job 'good' took all streams"):
        await env.execute()


async def test_results_can_be_iterated_over(
    env: Env, assert_nothing_left: NothingLeft
) -> None:
    stream = env.from_collection([1, 2, 3])
    assert [n async for n in stream] == [1, 2, 3]
    assert [n async for n in stream] == [1, 2, 3]
    assert_nothing_left()


async def test_the_consumers_pace_is_the_jobs(env: Env) -> None:
    made = 0

    async def numbers() -> AsyncIterator[int]:
        nonlocal made
        while True:
            made += 1
            yield made

    async with aclosing(aiter(env.from_async_iterable(numbers))) as results:
        await anext(results)
        await asyncio.sleep(10)
        after_a_while = made
        await asyncio.sleep(100)
        assert made == after_a_while, "nobody asked for more"


async def test_a_service_runs_until_its_block_ends(
    env: Env, assert_nothing_left: NothingLeft
) -> None:
    seen: list[int] = []
    env.from_async_iterable(ticks).sink_to(seen.append)
    async with env.start("ticks") as job:
        await asyncio.sleep(1)
        assert job.name == "ticks"
        assert job.state is am.JobState.RUNNING
    assert job.state is am.JobState.CANCELED
    assert seen[:5] == [0, 1, 2, 3, 4]
    assert_nothing_left()


def test_everything_works_under_asyncio_run(env: Env) -> None:
    stream = env.from_collection([1, 2]).map(lambda n: n + 1)
    seen: list[int] = []

    async def main() -> list[int]:
        stream.sink_to(seen.append)
        async with env.start() as job:
            await job.result()
        pulled = [n async for n in stream]
        return pulled + await stream.collect()

    assert asyncio.run(main()) == [2, 3, 2, 3]
    assert seen == [2, 3]


def test_a_stream_can_be_run_on_one_loop_after_another(env: Env) -> None:
    counts = env.from_collection(["a", "b", "a"]).key_by(str).aggregate(am.count())
    assert asyncio.run(counts.collect()) == [1, 1, 2]
    with asyncio.Runner(loop_factory=virtual_time_loop_factory()) as runner:
        assert runner.run(counts.collect()) == [1, 1, 2]


def test_the_blocking_door_runs_a_coroutine_to_its_end(env: Env) -> None:
    assert am.run(env.from_collection([3]).collect()) == [3]


def test_the_blocking_door_passes_failures_on(env: Env) -> None:
    with pytest.raises(am.JobFailedError, match="division"):
        am.run(env.from_collection([0]).map(lambda n: 1 / n).collect())


async def test_the_blocking_door_says_await_where_a_loop_runs(env: Env) -> None:
    with pytest.raises(am.UsageError, match="await"):
        am.run(env.from_collection([1]).collect())


async def test_count_and_take(env: Env) -> None:
    numbers = env.from_collection(list(range(3_000)))
    assert await numbers.count() == 3_000
    assert await numbers.take(3) == [0, 1, 2]
    assert await numbers.take(10_000) == list(range(3_000))


async def test_an_empty_stream_has_results_too(env: Env) -> None:
    nothing = env.from_collection([])
    assert await nothing.collect() == []
    assert await nothing.take(1) == []
    assert await nothing.count() == 0
    assert [n async for n in nothing] == []


async def test_take_leaves_nothing_running(
    env: Env, assert_nothing_left: NothingLeft
) -> None:
    closed = asyncio.Event()

    async def numbers() -> AsyncIterator[int]:
        try:
            async for number in ticks():
                yield number
        finally:
            closed.set()

    assert await env.from_async_iterable(numbers).take(2) == [0, 1]
    assert closed.is_set()
    assert_nothing_left()


async def test_a_cancelled_count_leaves_nothing_running(
    env: Env, assert_nothing_left: NothingLeft
) -> None:
    counting = asyncio.create_task(env.from_async_iterable(ticks).count())
    await asyncio.sleep(5)
    counting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await counting
    assert_nothing_left()


async def test_leaving_a_loop_with_aclosing_leaves_nothing_running(
    env: Env, assert_nothing_left: NothingLeft
) -> None:
    async with aclosing(aiter(env.from_async_iterable(ticks))) as results:
        async for number in results:
            if number == 3:
                break
    assert_nothing_left()


async def test_leaving_a_loop_early_cancels_the_job(
    env: Env, assert_nothing_left: NothingLeft
) -> None:
    closed = asyncio.Event()

    async def numbers() -> AsyncIterator[int]:
        try:
            async for number in ticks():
                yield number
        finally:
            closed.set()

    async for number in env.from_async_iterable(numbers):
        if number == 3:
            break
    await asyncio.wait_for(closed.wait(), 5)
    await asyncio.sleep(1)
    assert_nothing_left()


@pytest.mark.real_time
@pytest.mark.parametrize("how", ["break", "raise", "anext"])
def test_a_program_that_ends_after_it_left_a_loop_ends_in_silence(
    env: Env, how: str, caplog: pytest.LogCaptureFixture, recwarn: Any
) -> None:
    # What tests before this one have left is theirs.
    gc.collect()
    recwarn.clear()
    stream = env.from_collection(range(1_000_000)).rebalance().map(lambda n: n)

    async def main() -> None:
        if how == "anext":
            await anext(aiter(stream))
            return
        async for number in stream:
            if number == 5_000:
                if how == "raise":
                    raise KeyError(number)
                break

    with contextlib.suppress(KeyError):
        asyncio.run(main())
    gc.collect()
    assert caplog.text == ""
    assert [str(each.message) for each in recwarn] == []


async def test_there_must_be_something_to_run(env: Env) -> None:
    env.from_collection([1])
    with pytest.raises(am.UsageError, match="sink_to"):
        await env.execute()
    with pytest.raises(am.UsageError, match="sink_to"):
        async with env.start():
            pytest.fail("there is nothing to run")
    with pytest.raises(am.UsageError, match="sink_to"):
        env.explain()


async def test_an_async_function_is_awaited_record_by_record(env: Env) -> None:
    running = most = 0

    async def slow(n: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.1)
        running -= 1
        return n * n

    numbers = env.from_collection([1, 2, 3])
    assert await numbers.map(slow).collect() == [1, 4, 9]
    assert most == 1
    assert await numbers.map_async(slow, concurrency=3).collect() == [1, 4, 9]
    assert most == 3


async def test_parallel_subtasks_lose_and_double_nothing() -> None:
    env = am.StreamExecutionEnvironment(parallelism=3)
    numbers = list(range(1_000))
    pairs = (
        env.from_collection(numbers)
        .map(lambda n: (n % 7, n))
        .key_by(lambda pair: pair[0])
        .reduce(lambda a, b: (a[0], a[1] + b[1]))
    )
    last = dict(await pairs.collect())
    expected = {rest: sum(n for n in numbers if n % 7 == rest) for rest in range(7)}
    # Sums only grow, and of one key they come in order.
    assert last == expected
