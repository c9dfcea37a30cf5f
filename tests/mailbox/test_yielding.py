"""Mail inside mail: nesting, scopes, failures, depth and cancellation."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aiomailbox.errors import (
    MailFailedError,
    StopTask,
    WrongTaskError,
    YieldDepthError,
)
from aiomailbox.mailbox.control import MailboxController, Suspension
from aiomailbox.mailbox.mail import MailOptions
from aiomailbox.mailbox.processor import MailboxProcessor

From = Callable[[Callable[[], object]], Awaitable[None]]


def idle(controller: MailboxController) -> None:
    controller.suspend_default_action()


class Run:
    """An idle processor with a log, and the executors of an operator and the next."""

    def __init__(self, **options: Any) -> None:
        self.log: list[str] = []
        self.processor = MailboxProcessor(idle, **options)
        self.main = self.processor.main_executor
        self.executor = self.processor.executor(3)
        self.downstream = self.processor.executor(5)

    async def outer(self) -> None:
        """Yield to one mail, between two entries of the log."""
        self.log.append("outer begins")
        await self.executor.yield_to_mail()
        self.log.append("outer ends")

    def finish(self) -> None:
        self.main.execute(self.processor.all_actions_completed)

    async def loop(self) -> None:
        await self.processor.run_mailbox_loop()


async def test_the_outer_mail_goes_on_when_the_inner_one_is_done() -> None:
    run = Run()

    async def inner() -> None:
        run.log.append("inner begins")
        await asyncio.sleep(10)
        run.log.append("inner ends")

    run.executor.execute(run.outer)
    run.downstream.execute(inner)
    run.finish()
    await run.loop()
    assert run.log == ["outer begins", "inner begins", "inner ends", "outer ends"]
    assert run.processor.metrics.mails_processed >= 3


async def test_what_goes_on_behind_a_yield_is_a_step_of_its_own() -> None:
    """What has seen the mailbox in between does not know what came of the rest."""
    run = Run()
    metrics, seen = run.processor.metrics, list[int]()

    async def outer() -> None:
        await run.executor.yield_to_mail()
        seen.append(metrics.steps)

    run.executor.execute(outer)
    run.downstream.execute(lambda: seen.append(metrics.steps))
    run.finish()
    await run.loop()
    inner, after = seen
    assert after == inner + 1


async def test_mail_that_changes_nothing_is_no_step() -> None:
    run = Run()
    seen = list[int]()
    run.executor.execute(run.executor.disregard)
    run.executor.execute(lambda: seen.append(run.processor.metrics.steps))
    run.finish()
    await run.loop()
    assert seen == [1]


async def test_an_inner_coroutine_may_yield_and_take_as_the_owner() -> None:
    run = Run()

    async def inner() -> None:
        run.downstream.execute(run.log.append, "innermost")
        await run.downstream.yield_to_mail()

    run.executor.execute(run.outer)
    run.downstream.execute(inner)
    run.finish()
    await run.loop()
    assert run.log == ["outer begins", "innermost", "outer ends"]


async def test_a_task_that_a_mail_starts_is_not_the_owner() -> None:
    run = Run()

    async def outer() -> None:
        await asyncio.create_task(run.executor.try_yield_to_mail())

    run.executor.execute(outer)
    with pytest.raises(WrongTaskError):
        await run.loop()


async def test_a_timeout_of_the_outer_mail_does_not_hit_the_inner_one() -> None:
    run = Run()
    loop = asyncio.get_running_loop()

    async def outer() -> None:
        began = loop.time()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await run.executor.yield_to_mail()
        run.log.append(f"timed out after {loop.time() - began:.0f} s")

    async def inner() -> None:
        await asyncio.sleep(10)
        run.log.append("inner ends")

    run.executor.execute(outer)
    run.downstream.execute(inner)
    run.finish()
    await run.loop()
    assert run.log == ["inner ends", "timed out after 10 s"]


async def test_a_timeout_while_parked_hits_the_outer_mail_at_once() -> None:
    run = Run()

    async def outer() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await run.executor.yield_to_mail()
        run.log.append("timed out")

    run.executor.execute(outer)
    run.finish()
    await run.loop()
    assert run.log == ["timed out"]


async def test_context_variables_of_an_inner_coroutine_stay_with_it() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    run = Run()

    async def outer() -> None:
        variable.set("outer")
        await run.executor.yield_to_mail()
        run.log.append(variable.get())

    async def inner() -> None:
        variable.set("inner")

    run.executor.execute(outer)
    run.downstream.execute(inner)
    run.finish()
    await run.loop()
    assert run.log == ["outer"]


class TestFailures:
    @pytest.mark.parametrize("coroutine", [False, True])
    async def test_one_that_the_outer_mail_swallows_still_ends_the_loop(
        self, coroutine: bool
    ) -> None:
        run = Run()
        error = ValueError("inner")

        async def outer() -> None:
            try:
                await run.executor.yield_to_mail()
            except Exception:
                run.log.append("swallowed")

        def fail() -> None:
            raise error

        async def fail_later() -> None:
            await asyncio.sleep(1)
            raise error

        run.executor.execute(outer)
        run.downstream.execute(fail_later if coroutine else fail)
        run.main.execute(run.log.append, "never")
        with pytest.raises(ValueError, match="inner") as caught:
            await run.loop()
        assert caught.value is error
        assert run.log == ["swallowed"]
        with pytest.raises(ValueError, match="inner"):
            await run.loop()

    async def test_the_first_one_wins_and_the_later_one_is_a_note(self) -> None:
        run = Run()

        async def outer() -> None:
            try:
                await run.executor.yield_to_mail()
            except ValueError:
                raise KeyError("outer") from None

        def fail() -> None:
            raise ValueError("inner")

        run.executor.execute(outer)
        run.downstream.execute(fail)
        with pytest.raises(ValueError, match="inner") as caught:
            await run.loop()
        assert "KeyError" in caught.value.__notes__[0]

    async def test_an_inner_mail_that_others_cancelled_has_failed(self) -> None:
        run = Run()
        future = asyncio.get_running_loop().create_future()
        future.cancel()

        async def inner() -> None:
            await future

        run.executor.execute(run.outer)
        run.downstream.execute(inner, description="inner %d", description_args=(7,))
        with pytest.raises(MailFailedError, match="inner 7"):
            await run.loop()
        assert run.log == ["outer begins"]

    async def test_one_of_the_inner_mail_survives_the_outer_timeout(self) -> None:
        run = Run()

        async def outer() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(5):
                    await run.executor.yield_to_mail()

        async def inner() -> None:
            await asyncio.sleep(10)
            raise ValueError("inner")

        run.executor.execute(outer)
        run.downstream.execute(inner)
        with pytest.raises(ValueError, match="inner"):
            await run.loop()


class TestDepth:
    async def test_has_a_limit_that_loses_no_mail(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        run = Run(max_yield_depth=40)
        deepest = 0

        async def nest(depth: int) -> None:
            nonlocal deepest
            deepest = depth
            run.executor.execute(nest, depth + 1)
            await run.executor.yield_to_mail()

        run.executor.execute(nest, 0)
        with (
            caplog.at_level(logging.WARNING),
            pytest.raises(YieldDepthError, match="40 deep"),
        ):
            await run.loop()
        assert deepest == 40
        assert run.processor.mailbox.size() == 1
        assert "32 deep" in caplog.text

    async def test_is_left_again_after_each_yield(self) -> None:
        run = Run(max_yield_depth=1)

        async def outer() -> None:
            for number in range(5):
                run.downstream.execute(run.log.append, str(number))
                await run.executor.yield_to_mail()

        run.executor.execute(outer)
        run.finish()
        await run.loop()
        assert run.log == list("01234")


class TestYieldUntil:
    async def test_runs_mail_until_the_future_is_done(self) -> None:
        run = Run()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()

        async def outer() -> None:
            run.log.append(f"got {await run.executor.yield_until(future)}")

        run.executor.execute(outer)
        loop.call_later(1, run.downstream.execute, run.log.append, "downstream")
        loop.call_later(2, run.main.execute, run.log.append, "hidden")
        loop.call_later(3, future.set_result, 9)
        loop.call_later(4, run.finish)
        await run.loop()
        assert run.log == ["downstream", "got 9", "hidden"]

    async def test_of_a_done_future_runs_nothing(self) -> None:
        run = Run()
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.set_result(1)
        run.processor.mailbox.bind_owner()
        run.downstream.execute(run.log.append, "not yet")
        assert await run.executor.yield_until(future) == 1
        assert run.log == []

    async def test_raises_what_the_future_holds(self) -> None:
        run = Run()
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.set_exception(ValueError("held"))
        run.processor.mailbox.bind_owner()
        with pytest.raises(ValueError, match="held"):
            await run.executor.yield_until(future)

    async def test_of_a_quiesced_mailbox_still_waits_for_the_future(self) -> None:
        run = Run()
        loop = asyncio.get_running_loop()
        run.processor.mailbox.bind_owner()
        run.processor.prepare_close()
        future: asyncio.Future[int] = loop.create_future()
        loop.call_later(1, future.set_result, 3)
        assert await run.executor.yield_until(future) == 3

    async def test_can_see_deferrable_mail(self) -> None:
        run = Run()
        run.processor.mailbox.bind_owner()
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        run.executor.execute(future.set_result, 4, options=MailOptions.DEFERRABLE)
        assert await run.executor.yield_until(future, ignore_deferrable=True) == 4

    async def test_cancelling_it_leaves_the_future_and_the_mail(self) -> None:
        run = Run()
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        run.executor.execute(run.executor.yield_until, future)
        task = asyncio.create_task(run.loop())
        await asyncio.sleep(1)
        run.downstream.execute(int)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not future.done()
        assert run.processor.mailbox.size() == 1


class TestCancel:
    @pytest.mark.parametrize("quiesced", [False, True])
    async def test_frees_a_loop_that_yields_until_a_condition(
        self, from_outside: From, quiesced: bool
    ) -> None:
        run = Run()
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def outer() -> None:
            if quiesced:
                run.processor.prepare_close()
            await run.executor.yield_until(never)

        run.executor.execute(outer)
        task = asyncio.create_task(run.loop())
        await asyncio.sleep(1)
        await from_outside(run.processor.cancel)
        with pytest.raises(StopTask):
            await task
        assert run.processor.is_cancelled
        assert not run.processor.is_running

    async def test_makes_a_yield_loop_raise_although_it_swallowed_the_poison(
        self,
    ) -> None:
        run = Run()

        async def outer() -> None:
            while True:
                await run.executor.yield_to_mail()
                run.log.append("yielded")

        run.executor.execute(outer)
        task = asyncio.create_task(run.loop())
        await asyncio.sleep(1)
        run.downstream.execute(int)
        await asyncio.sleep(1)
        run.processor.cancel()
        with pytest.raises(StopTask):
            await task
        assert run.log == ["yielded"]

    async def test_ends_a_parked_and_a_busy_loop(self, from_outside: From) -> None:
        for action in (idle, lambda _: None):
            processor = MailboxProcessor(action)
            task = asyncio.create_task(processor.run_mailbox_loop())
            await asyncio.sleep(0)
            await from_outside(processor.cancel)
            await task

    async def test_and_an_interrupt_reach_the_innermost_mail_at_once(self) -> None:
        run = Run()

        async def outer() -> None:
            try:
                await run.executor.yield_to_mail()
            finally:
                run.log.append("outer cleaned up")

        async def inner() -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                run.log.append("inner cleaned up")

        run.executor.execute(outer)
        run.downstream.execute(inner)
        task = asyncio.create_task(run.loop())
        await asyncio.sleep(1)
        run.processor.cancel()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert run.log == ["inner cleaned up", "outer cleaned up"]
        assert asyncio.get_running_loop().time() < 100

    async def test_a_second_interrupt_reaches_the_innermost_mail(self) -> None:
        run = Run()

        async def inner() -> None:
            await asyncio.sleep(1000)

        run.executor.execute(run.outer)
        run.downstream.execute(inner)
        task = asyncio.create_task(run.loop())
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.sleep(1)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.get_running_loop().time() < 100

    async def test_a_poison_run_inside_a_yield_ends_the_loop_after_the_outer_mail(
        self,
    ) -> None:
        run = Run()

        async def outer() -> None:
            run.processor.suspend()
            await run.executor.yield_to_mail()
            run.log.append("outer ends")

        run.executor.execute(outer)
        run.executor.execute(run.log.append, "next run")
        await run.loop()
        assert run.log == ["outer ends"]
        run.finish()
        await run.loop()
        assert run.log == ["outer ends", "next run"]


async def test_yielded_mail_is_counted_and_stops_the_timer(timer: Any) -> None:
    tokens: list[Suspension] = []
    count = 0

    def action(controller: MailboxController) -> Awaitable[None] | None:
        tokens.append(controller.suspend_default_action(timer))
        executor.execute(timer.marks.append, "mail")
        return executor.yield_to_mail()

    processor = MailboxProcessor(action)
    executor = processor.executor(1)
    await processor.run_mailbox_step()
    assert timer.marks == ["start", "end", "mail", "start"]
    assert processor.metrics.mails_processed == count + 1


@pytest.mark.real_time
@pytest.mark.skipif(
    not hasattr(asyncio, "eager_task_factory"), reason="eager tasks came with 3.12"
)
async def test_an_eagerly_started_inner_mail_owns_the_mailbox_too() -> None:
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    run = Run()

    async def inner() -> None:
        assert not await run.downstream.try_yield_to_mail()

    run.executor.execute(run.outer)
    run.downstream.execute(inner)
    run.finish()
    await run.loop()
    assert run.log == ["outer begins", "outer ends"]
