"""Whoever waits for a call in a thread outlasts it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from typing import Any, NoReturn

import anyio
import pytest

from aiomailbox.supervision import LoopThread, ThreadTurns, run_in_thread

pytestmark = pytest.mark.real_time


def fail(error: BaseException) -> NoReturn:
    raise error


async def test_what_the_function_returns_or_raises_arrives() -> None:
    assert await run_in_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(KeyError, match="gone"):
        await run_in_thread(fail, KeyError("gone"))


async def test_a_stop_iteration_is_an_error_and_ends_the_wait() -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        await run_in_thread(fail, StopIteration())


async def test_the_function_sees_the_context_of_its_caller() -> None:
    job: contextvars.ContextVar[str] = contextvars.ContextVar("job")
    job.set("delays")
    assert await run_in_thread(job.get) == "delays"


@pytest.mark.parametrize("result", ["value", "error"])
async def test_a_cancelled_waiter_goes_on_only_when_the_thread_has_ended(
    result: str,
) -> None:
    entered, may_end, ended = (threading.Event() for _ in range(3))

    def work() -> None:
        entered.set()
        assert may_end.wait(10)
        ended.set()
        if result == "error":
            raise ValueError("nobody hears this")

    waiter = asyncio.create_task(run_in_thread(work))
    while not entered.is_set():
        await asyncio.sleep(0.001)
    for _ in range(5):
        waiter.cancel()
        await asyncio.sleep(0.002)
        assert not waiter.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert ended.is_set()


async def test_a_cancel_scope_does_not_wake_the_waiter_again_and_again() -> None:
    loop = asyncio.get_running_loop()
    soon = loop.call_soon
    calls = 0

    def counted(*args: Any, **options: Any) -> asyncio.Handle:
        nonlocal calls
        calls += 1
        return soon(*args, **options)

    may_end = threading.Event()
    loop.call_soon = counted  # type: ignore[method-assign]
    try:
        loop.call_later(0.1, may_end.set)
        with anyio.move_on_after(0.01) as scope:
            await run_in_thread(may_end.wait, 10)
            await asyncio.sleep(10)
    finally:
        loop.call_soon = soon  # type: ignore[method-assign]
    assert scope.cancelled_caught
    assert calls < 50


async def test_a_turn_waits_for_the_one_before_whose_waiter_was_closed_by_force() -> (
    None
):
    turns = ThreadTurns()
    entered, may_end = threading.Event(), threading.Event()
    log: list[str] = []

    def first() -> None:
        entered.set()
        assert may_end.wait(10)
        log.append("first")

    async def given_up() -> None:
        await turns.run(first)

    waiter = given_up()
    waiter.send(None)
    while not entered.is_set():
        await asyncio.sleep(0.001)
    with contextlib.suppress(RuntimeError):
        waiter.close()
    second = asyncio.create_task(turns.run(log.append, "second"))
    await asyncio.sleep(0.02)
    assert (log, second.done()) == ([], False)
    may_end.set()
    await second
    assert log == ["first", "second"]


class TestLoopThread:
    def test_who_waits_gets_what_the_coroutine_returned_or_raised(self) -> None:
        async def divide(by: int) -> tuple[str, float]:
            return threading.current_thread().name, 6 / by

        thread: LoopThread[Any] = LoopThread("divider")
        ended = thread.start(lambda: divide(2))
        assert ended.result(10) == ("divider", 3)
        assert thread.loop.is_closed()
        # Too late, and without harm.
        thread.call(ended.cancel)
        thread.cancel()
        assert thread.wait(0)
        failing: LoopThread[Any] = LoopThread("divider")
        with pytest.raises(ZeroDivisionError):
            failing.start(lambda: divide(0)).result(10)

    def test_what_is_cancelled_ends_and_cleans_up(self) -> None:
        begun, log = threading.Event(), list[str]()

        async def work() -> None:
            try:
                begun.set()
                await asyncio.sleep(3600)
            finally:
                await asyncio.sleep(0)
                log.append("cleaned up")

        thread: LoopThread[None] = LoopThread("worker")
        thread.start(work)
        assert begun.wait(10)
        assert not thread.wait(0)
        thread.call(log.append, "called")
        thread.cancel()
        assert thread.wait(10)
        assert log == ["called", "cleaned up"]

    def test_what_is_cancelled_before_it_has_begun_never_begins(self) -> None:
        async def work() -> None:
            raise AssertionError("it has begun")

        thread: LoopThread[None] = LoopThread("worker")
        thread.cancel()
        assert isinstance(thread.start(work).exception(10), asyncio.CancelledError)
