"""A job that fails says so at once: one line in the log, and the body of its block."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.api.job import Body

Env = am.StreamExecutionEnvironment


def fail_on_three(number: int) -> int:
    if number == 3:
        raise ValueError("three")
    return number


LINE = f"{__file__}:{inspect.getsourcelines(fail_on_three)[1] + 2}"


async def ticks() -> AsyncIterator[int]:
    for number in range(10**6):
        yield number
        await asyncio.sleep(1)


async def fail_on_three_async(number: int) -> int:
    return fail_on_three(number)


def failing(env: Env, function: Any = fail_on_three) -> None:
    stream = env.from_async_iterable(ticks)
    verb = stream.map_async if function is fail_on_three_async else stream.map
    verb(function).name("check").uid("check-1").sink_to(lambda n: None)


def errors(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(r) for r in caplog.records if r.levelno == logging.ERROR]


@pytest.mark.parametrize("function", [fail_on_three, fail_on_three_async])
async def test_one_error_names_operator_line_and_record_at_the_time_of_the_failure(
    env: Env, caplog: pytest.LogCaptureFixture, function: Any
) -> None:
    failing(env, function)
    with pytest.raises(am.JobFailedError, match="three"):
        async with env.start("orders", on_failure="log"):
            await asyncio.sleep(2.5)
            assert errors(caplog) == []
            await asyncio.sleep(1)
            (record,) = errors(caplog)
            assert record["event"] == "the job failed"
            assert (record["job"], record["operator"]) == ("orders", "check")
            assert (record["uid"], record["line"]) == ("check-1", LINE)
            assert (record["record"], record["name"]) == ("3", "aiomailbox")
            assert 'raise ValueError("three")' in record["traceback"]
    assert len(errors(caplog)) == 1


async def test_a_restart_is_a_warning_and_only_giving_up_is_an_error(
    env: Env, caplog: pytest.LogCaptureFixture
) -> None:
    env.configure(restart=am.restart.fixed_delay(2, 1.0))
    failing(env)
    with pytest.raises(am.JobFailedError):
        await env.execute()
    levels = [r.levelno for r in caplog.records if "the job failed" in r.message]
    assert levels == [logging.WARNING, logging.WARNING, logging.ERROR]


async def test_a_job_that_ends_well_or_is_cancelled_logs_no_error(
    env: Env, caplog: pytest.LogCaptureFixture
) -> None:
    await env.from_collection([1]).collect()
    failing(env)
    async with env.start():
        await asyncio.sleep(1)
    assert errors(caplog) == []


async def test_a_failure_cancels_the_body_of_the_block(env: Env) -> None:
    failing(env)
    loop = asyncio.get_running_loop()
    begin = loop.time()
    was_cancelled = False
    with pytest.raises(am.JobFailedError, match="three"):
        async with env.start():
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                was_cancelled = True
                raise
    assert was_cancelled
    assert loop.time() - begin < 4
    await assert_not_cancelled()


async def assert_not_cancelled() -> None:
    """Whoever has left the block can go on waiting."""
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(1)


async def test_a_body_is_cancelled_once(env: Env) -> None:
    failing(env)
    steps: list[str] = []
    with pytest.raises(am.JobFailedError):
        async with env.start():
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                steps.append("cancelled")
            await asyncio.sleep(100)
            steps.append("went on")
    assert steps == ["cancelled", "went on"]
    await assert_not_cancelled()


async def test_a_body_can_go_on_without_the_job(env: Env) -> None:
    failing(env)
    with pytest.raises(am.JobFailedError):
        async with env.start(on_failure="log") as job:
            await asyncio.sleep(100)
            assert job.state is am.JobState.FAILED
            done = True
    assert done


async def test_a_body_that_waits_for_the_result_gets_the_failure_itself(
    env: Env,
) -> None:
    failing(env)
    with pytest.raises(am.JobFailedError):
        async with env.start() as job:
            with pytest.raises(am.JobFailedError, match="three"):
                await job.result()
            # It knows, and goes on.
            await asyncio.sleep(100)
            done = True
    assert done
    await assert_not_cancelled()


async def test_a_body_that_stopped_waiting_for_the_result_is_cancelled(
    env: Env,
) -> None:
    failing(env)
    with pytest.raises(am.JobFailedError):
        async with env.start() as job:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(2):
                    await job.result()
            await asyncio.Event().wait()
    await assert_not_cancelled()


@pytest.mark.parametrize("fails", ["outer", "inner", "both"])
async def test_nested_blocks_each_raise_their_own_failure(fails: str) -> None:
    outer_env, inner_env = Env(), Env()
    failing(outer_env, fail_on_three if fails != "inner" else lambda n: n)
    failing(inner_env, fail_on_three if fails != "outer" else lambda n: n)
    with pytest.raises(am.JobFailedError) as caught:
        async with outer_env.start("outer"), inner_env.start("inner"):
            await asyncio.Event().wait()
    if fails != "both":
        assert caught.value.job == fails
    await assert_not_cancelled()


async def test_an_error_of_the_body_while_it_is_cancelled_goes_on(env: Env) -> None:
    failing(env)
    with pytest.raises(KeyError, match="mine"):
        async with env.start():
            try:
                await asyncio.Event().wait()
            finally:
                raise KeyError("mine")
    await assert_not_cancelled()


async def test_a_body_that_leaves_at_the_moment_of_the_failure_is_not_hit_later(
    env: Env,
) -> None:
    """The cancellation is under way, and the body never awaits again."""
    failing(env)
    with pytest.raises(am.JobFailedError):
        async with env.start() as job:
            await asyncio.sleep(1)
            job._job.fail_attempt(ValueError("now"))
    await assert_not_cancelled()


async def test_a_block_that_somebody_else_cancels_stays_cancelled(env: Env) -> None:
    failing(env)

    async def block() -> None:
        async with env.start():
            try:
                await asyncio.Event().wait()
            finally:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(block())


async def test_another_word_for_on_failure_is_refused(env: Env) -> None:
    failing(env)
    with pytest.raises(am.InvalidArgumentError, match=r'on_failure.*"log"'):
        async with env.start(on_failure="ignore"):  # type: ignore[arg-type]
            pass


async def test_a_cancellation_that_nobody_met_in_the_block_ends_with_it() -> None:
    """As where the job is over when its body leaves, and nothing is awaited any more."""
    body = Body(is_cancelled=True)
    body.on_failed()
    assert await body.leave()
    await assert_not_cancelled()
