"""The loop of a task: batches, suspension, steps, ends and failures."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aiomailbox.errors import (
    IllegalStateError,
    InvalidArgumentError,
    MailboxClosedError,
    MailFailedError,
    RejectedMailError,
    WrongTaskError,
)
from aiomailbox.mailbox.control import MailboxController, Suspension
from aiomailbox.mailbox.mail import MIN_PRIORITY, Mail
from aiomailbox.mailbox.processor import MailboxProcessor
from aiomailbox.mailbox.task_mailbox import MailboxState, TaskMailbox

From = Callable[[Callable[[], object]], Awaitable[None]]


class Steps:
    """A default action that counts, and does something at one of its calls."""

    def __init__(self, **at: Callable[[MailboxController], object]) -> None:
        self.count = 0
        self._at = {int(key.removeprefix("call")): do for key, do in at.items()}

    def __call__(self, controller: MailboxController) -> None:
        self.count += 1
        if self.count in self._at:
            self._at[self.count](controller)


def complete(controller: MailboxController) -> None:
    controller.all_actions_completed()


def idle(controller: MailboxController) -> None:
    controller.suspend_default_action()


class TestDefaultAction:
    async def test_runs_until_it_completes_all_actions(self) -> None:
        """MB-23."""
        steps = Steps(call3=complete)
        processor = MailboxProcessor(steps)
        await processor.run_mailbox_loop()
        assert steps.count == 3
        assert not processor.is_running

    async def test_runs_between_mails(self) -> None:
        """MB-22."""
        stop = False

        def action(controller: MailboxController) -> None:
            if stop:
                controller.all_actions_completed()

        def set_stop() -> None:
            nonlocal stop
            stop = True

        processor = MailboxProcessor(action)
        processor.main_executor.execute(set_stop)
        await processor.run_mailbox_loop()
        assert processor.metrics.mails_processed == 2

    async def test_is_not_run_while_suspended(self, from_outside: From) -> None:
        """MB-24."""
        tokens: list[Suspension] = []
        steps = Steps(
            call3=lambda c: tokens.append(c.suspend_default_action()), call6=complete
        )
        processor = MailboxProcessor(steps)
        looks: list[tuple[int, bool]] = []

        async def resume_later() -> None:
            await asyncio.sleep(5)
            looks.append((steps.count, processor.is_default_action_available))
            await from_outside(tokens[0].resume)

        task = asyncio.create_task(resume_later())
        await processor.run_mailbox_loop()
        await task
        assert looks == [(3, False)]
        assert steps.count == 6

    async def test_may_be_a_coroutine_that_waits(self) -> None:
        count = 0

        async def step(controller: MailboxController) -> None:
            nonlocal count
            await asyncio.sleep(1)
            count += 1
            if count == 2:
                controller.all_actions_completed()

        await MailboxProcessor(step).run_mailbox_loop()
        assert count == 2

    @pytest.mark.real_time
    async def test_survives_many_rounds_of_suspend_and_resume_from_a_thread(
        self,
    ) -> None:
        """MB-25."""
        rounds = 2_000
        suspended = threading.Semaphore(0)
        tokens: list[Suspension] = []
        ran_while_suspended = False
        current: Suspension | None = None
        count = 0

        def action(controller: MailboxController) -> None:
            nonlocal count, current, ran_while_suspended
            ran_while_suspended |= current is not None
            count += 1
            if count == rounds:
                controller.all_actions_completed()
                return
            current = controller.suspend_default_action()
            tokens.append(current)
            suspended.release()

        processor = MailboxProcessor(action)

        def resume(token: Suspension) -> None:
            nonlocal current
            current = None
            token.resume()

        def ping() -> None:
            for _ in range(rounds - 1):
                suspended.acquire()
                token = tokens.pop()
                processor.main_executor.execute(int)
                processor.main_executor.execute(resume, token)

        thread = threading.Thread(target=ping)
        thread.start()
        await processor.run_mailbox_loop()
        thread.join()
        assert count == rounds
        assert not ran_while_suspended


class TestLoop:
    async def test_mail_that_sends_itself_again_does_not_starve_the_action(
        self,
    ) -> None:
        """MB-27."""
        steps = Steps(call3=complete)
        processor = MailboxProcessor(steps)
        sent = 0

        def again() -> None:
            nonlocal sent
            sent += 1
            processor.main_executor.execute(again)

        again()
        sent = 0
        await processor.run_mailbox_loop()
        assert (steps.count, sent) == (3, 3)

    async def test_suspend_ends_this_run_and_the_next_one_goes_on(
        self, from_outside: From
    ) -> None:
        """MB-28."""
        steps = Steps()
        processor = MailboxProcessor(steps)
        stopped: list[int] = []

        def stop() -> None:
            stopped.append(steps.count)
            processor.all_actions_completed()

        async def outside() -> None:
            def both() -> None:
                processor.suspend()
                processor.main_executor.execute(stop)

            await from_outside(both)

        task = asyncio.create_task(outside())
        await processor.run_mailbox_loop()
        await task
        assert stopped == []
        first = steps.count
        await processor.run_mailbox_loop()
        assert stopped == [first]

    async def test_what_was_left_of_a_batch_runs_first_in_the_next_run(self) -> None:
        log: list[str] = []
        processor = MailboxProcessor(lambda _: log.append("action"))
        processor.main_executor.execute(processor.suspend)
        processor.main_executor.execute(log.append, "left")
        await processor.run_mailbox_loop()
        assert log == []
        processor.main_executor.execute(processor.all_actions_completed)
        await processor.run_mailbox_loop()
        assert log[:2] == ["left", "action"]

    async def test_completed_before_it_starts_runs_nothing_for_ever(self) -> None:
        """MB-29."""
        steps = Steps()
        processor = MailboxProcessor(steps)
        processor.all_actions_completed()
        await processor.run_mailbox_loop()
        await processor.run_mailbox_loop()
        assert steps.count == 0
        assert not processor.is_running

    async def test_suspended_before_it_starts_it_runs_at_the_second_time(self) -> None:
        """MB-30."""
        steps = Steps(call1=complete)
        processor = MailboxProcessor(steps)
        processor.suspend()
        await processor.run_mailbox_loop()
        assert steps.count == 0
        assert processor.is_running
        await processor.run_mailbox_loop()
        assert steps.count == 1

    async def test_needs_an_open_mailbox(self) -> None:
        processor = MailboxProcessor(idle)
        processor.prepare_close()
        with pytest.raises(MailboxClosedError, match="run the mailbox loop"):
            await processor.run_mailbox_loop()

    async def test_belongs_to_one_task(self) -> None:
        processor = MailboxProcessor(Steps(call1=complete))
        await processor.run_mailbox_loop()
        with pytest.raises(WrongTaskError):
            await asyncio.create_task(processor.run_mailbox_loop())

    def test_touches_no_event_loop_until_it_runs(self) -> None:
        steps = Steps(call2=complete)
        processor = MailboxProcessor(steps, mailbox=TaskMailbox())
        processor.main_executor.execute(int)
        processor.suspend()
        asyncio.run(processor.run_mailbox_loop())
        assert "MailboxProcessor 'task' running, action available" in repr(processor)

    @pytest.mark.parametrize("argument", ["slice_ms", "max_yield_depth"])
    def test_a_limit_that_cannot_work_is_refused_by_name(self, argument: str) -> None:
        limits: dict[str, Any] = {argument: 0}
        with pytest.raises(InvalidArgumentError, match=argument):
            MailboxProcessor(idle, **limits)

    async def test_the_action_waits_while_a_mail_is_suspended_and_puts_arrive(
        self, from_outside: From
    ) -> None:
        log: list[str] = []

        def action(controller: MailboxController) -> None:
            log.append("action")
            controller.all_actions_completed()

        processor = MailboxProcessor(action)

        async def slow() -> None:
            log.append("slow begins")
            await asyncio.sleep(10)
            log.append("slow ends")

        async def outside() -> None:
            await asyncio.sleep(5)
            assert [str(mail) for mail in processor.suspended_mails] == ["slow mail"]
            await from_outside(
                lambda: processor.main_executor.execute(log.append, "late")
            )
            processor.executor(7).execute(log.append, "late too")

        processor.main_executor.execute(slow, description="slow mail")
        task = asyncio.create_task(outside())
        await processor.run_mailbox_loop()
        await task
        assert log == ["slow begins", "slow ends", "action"]
        await processor.drain()
        assert log[3:] == ["late", "late too"]


class TestSteps:
    async def test_a_step_is_one_mail_or_one_action(self) -> None:
        log: list[str] = []

        def action(controller: MailboxController) -> None:
            log.append("action")
            controller.suspend_default_action()

        processor = MailboxProcessor(action)
        processor.main_executor.execute(log.append, "one")
        processor.main_executor.execute(log.append, "two")
        results = [await processor.run_mailbox_step() for _ in range(4)]
        assert results == [True, True, True, False]
        assert log == ["one", "two", "action"]

    async def test_a_single_turn_is_one_mail_then_one_action(self) -> None:
        log: list[str] = []
        processor = MailboxProcessor(lambda _: log.append("action"))
        processor.main_executor.execute(log.append, "one")
        processor.main_executor.execute(log.append, "two")
        assert await processor.run_single_mailbox_loop()
        assert log == ["one", "action"]
        processor.all_actions_completed()
        assert not await processor.run_single_mailbox_loop()
        assert not await processor.run_mailbox_step()


class TestFailures:
    async def test_a_failing_mail_ends_the_loop_with_its_own_error(
        self, from_outside: From
    ) -> None:
        """MB-20."""
        error = ValueError("mine")
        processor = MailboxProcessor(lambda _: None)

        def fail() -> None:
            raise error

        async def outside() -> None:
            await from_outside(lambda: processor.main_executor.execute(fail))

        task = asyncio.create_task(outside())
        with pytest.raises(ValueError, match="mine") as caught:
            await processor.run_mailbox_loop()
        await task
        assert caught.value is error

    async def test_a_reported_error_surfaces_bare(self, from_outside: From) -> None:
        error = KeyError("reported")
        processor = MailboxProcessor(idle)
        await from_outside(lambda: processor.report_throwable(error))
        with pytest.raises(KeyError) as caught:
            await processor.run_mailbox_loop()
        assert caught.value is error

    async def test_an_error_reported_too_late_is_logged_and_dropped(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        processor = MailboxProcessor(idle)
        processor.close()
        with caplog.at_level(logging.WARNING):
            processor.report_throwable(ValueError("too late"))
        assert "too late" in caplog.text

    async def test_a_cancellation_by_others_is_a_failure_of_the_mail(self) -> None:
        processor = MailboxProcessor(idle)
        future = asyncio.get_running_loop().create_future()
        future.cancel()

        async def wait() -> None:
            await future

        processor.main_executor.execute(wait, description="wait for the peer")
        with pytest.raises(MailFailedError, match="wait for the peer") as caught:
            await processor.run_mailbox_loop()
        assert isinstance(caught.value.__cause__, asyncio.CancelledError)

    async def test_a_cancellation_by_others_is_a_failure_of_the_action(self) -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        processor = MailboxProcessor(lambda _: future, name="map-0")
        with pytest.raises(MailFailedError, match="map-0"):
            await processor.run_mailbox_loop()

    async def test_cancelling_the_task_is_a_clean_cancel(self) -> None:
        processor = MailboxProcessor(idle)

        async def wait() -> None:
            await asyncio.sleep(100)

        processor.main_executor.execute(wait)
        task = asyncio.create_task(processor.run_mailbox_loop())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def test_stop_iteration_of_the_action_is_wrapped(self) -> None:
        processor = MailboxProcessor(lambda _: next(iter(())))
        with pytest.raises(MailFailedError, match="default action"):
            await processor.run_mailbox_loop()


class TestDrain:
    async def test_runs_what_is_inside_and_leaves_what_it_sends(self) -> None:
        processor = MailboxProcessor(idle)
        log: list[str] = []

        async def slow() -> None:
            await asyncio.sleep(1)
            log.append("slow")
            processor.main_executor.execute(log.append, "sent meanwhile")

        processor.main_executor.execute(slow)
        processor.executor(3).execute(log.append, "after")
        await processor.drain()
        assert log == ["slow", "after"]
        assert processor.mailbox.size() == 1

    async def test_a_failure_cancels_what_is_behind_it(self) -> None:
        processor = MailboxProcessor(idle)

        def fail() -> None:
            raise ValueError("drained")

        before = processor.main_executor.submit(int)
        processor.main_executor.execute(fail)
        behind = processor.main_executor.submit(int)
        with pytest.raises(ValueError, match="drained"):
            await processor.drain()
        assert before.result() == 0
        assert behind.cancelled()


class TestClose:
    async def test_prepare_close_refuses_and_close_cancels(self) -> None:
        """MB-19, MB-21."""
        processor = MailboxProcessor(idle)
        future = processor.main_executor.submit(int)
        processor.prepare_close()
        with pytest.raises(RejectedMailError):
            processor.main_executor.execute(int)
        assert not future.done()
        processor.close()
        assert future.cancelled()

    async def test_after_close_steering_is_dropped_quietly(self) -> None:
        """MB-26."""
        processor = MailboxProcessor(idle)
        processor.close()
        processor.close()
        for steer in (
            processor.all_actions_completed,
            processor.suspend,
            processor.cancel,
        ):
            steer()
            assert not processor.mailbox.has_mail
            assert processor.mailbox.state is MailboxState.CLOSED

    async def test_attempts_every_cancellation_and_raises_the_first_error(self) -> None:
        processor = MailboxProcessor(idle)
        attempts: list[int] = []

        def cancel(number: int) -> None:
            attempts.append(number)
            if number != 1:
                raise ValueError(f"number {number}")

        for number in range(3):
            on_cancel = lambda number=number: cancel(number)  # noqa: E731
            processor.mailbox.put(Mail(int, on_cancel=on_cancel))
        with pytest.raises(ValueError, match="number 0") as caught:
            processor.close()
        assert attempts == [0, 1, 2]
        assert "number 2" in caught.value.__notes__[0]


class TestSuspension:
    async def test_twice_at_once_is_refused(self) -> None:
        def action(controller: MailboxController) -> None:
            controller.suspend_default_action()
            controller.suspend_default_action()

        with pytest.raises(IllegalStateError, match="suspended already"):
            await MailboxProcessor(action).run_mailbox_loop()

    async def test_a_stale_token_resumes_nothing(self, from_outside: From) -> None:
        tokens: list[Suspension] = []
        processor = MailboxProcessor(
            lambda c: tokens.append(c.suspend_default_action())
        )
        await processor.run_mailbox_step()
        tokens[0].resume()
        tokens[0].resume()
        await processor.run_mailbox_step()
        await from_outside(tokens[0].resume)
        await processor.run_mailbox_step()
        assert not processor.is_default_action_available
        tokens[1].resume()
        assert processor.is_default_action_available

    async def test_resume_of_another_task_takes_effect_at_once(self) -> None:
        tokens: list[Suspension] = []
        processor = MailboxProcessor(
            lambda c: tokens.append(c.suspend_default_action())
        )
        await processor.run_mailbox_step()

        async def resume() -> None:
            tokens[0].resume()
            assert processor.is_default_action_available

        await asyncio.create_task(resume())
        assert processor.mailbox.size() == 0

    async def test_resume_of_another_thread_is_urgent_mail(self) -> None:
        tokens: list[Suspension] = []
        processor = MailboxProcessor(
            lambda c: tokens.append(c.suspend_default_action())
        )
        await processor.run_mailbox_step()
        await asyncio.to_thread(tokens[0].resume)
        assert not processor.is_default_action_available
        assert processor.mailbox.has_urgent_mail
        await processor.run_mailbox_step()
        assert processor.is_default_action_available

    async def test_a_stale_token_sends_no_mail(self) -> None:
        tokens: list[Suspension] = []
        processor = MailboxProcessor(
            lambda c: tokens.append(c.suspend_default_action())
        )
        await processor.run_mailbox_step()
        tokens[0].resume()
        await asyncio.to_thread(tokens[0].resume)
        assert processor.mailbox.size() == 0

    async def test_a_resume_that_became_stale_on_its_way_resumes_nothing(self) -> None:
        tokens: list[Suspension] = []
        processor = MailboxProcessor(
            lambda c: tokens.append(c.suspend_default_action())
        )
        await processor.run_mailbox_step()
        await asyncio.to_thread(tokens[0].resume)
        await asyncio.to_thread(tokens[0].resume)
        await processor.run_single_mailbox_loop()
        assert len(tokens) == 2
        await processor.run_mailbox_step()
        assert not processor.is_default_action_available

    async def test_resume_after_close_is_ignored(self, from_outside: From) -> None:
        tokens: list[Suspension] = []
        processor = MailboxProcessor(
            lambda c: tokens.append(c.suspend_default_action())
        )
        await processor.run_mailbox_step()
        processor.close()
        await from_outside(tokens[0].resume)
        assert not processor.mailbox.has_mail

    async def test_only_the_task_itself_suspends(self) -> None:
        held: list[MailboxController] = []
        processor = MailboxProcessor(held.append)
        await processor.run_mailbox_step()

        async def foreign() -> None:
            held[0].suspend_default_action()

        with pytest.raises(WrongTaskError):
            await asyncio.create_task(foreign())

    async def test_the_timer_stands_still_while_mail_runs(self, timer: Any) -> None:
        tokens: list[Suspension] = []

        def action(controller: MailboxController) -> None:
            if tokens:
                controller.all_actions_completed()
            else:
                tokens.append(controller.suspend_default_action(timer))

        processor = MailboxProcessor(action)
        loop = asyncio.get_running_loop()
        note = timer.marks.append
        loop.call_later(1, processor.main_executor.execute, note, "mail")
        loop.call_later(3, lambda: tokens[0].resume())
        await processor.run_mailbox_loop()
        assert timer.marks == ["start", "end", "mail", "start", "end"]

    async def test_the_timer_is_not_started_again_after_a_mail_that_resumes(
        self, timer: Any
    ) -> None:
        tokens: list[Suspension] = []
        processor = MailboxProcessor(
            lambda c: tokens.append(c.suspend_default_action(timer))
        )
        await processor.run_mailbox_step()
        processor.main_executor.execute(tokens[0].resume)
        await processor.run_mailbox_step()
        assert timer.marks == ["start", "end"]


class TestFairness:
    async def test_two_loops_that_always_have_work_share_an_event_loop(self) -> None:
        order: list[str] = []

        def action_of(name: str, steps: int) -> Callable[[MailboxController], None]:
            done = 0

            def action(controller: MailboxController) -> None:
                nonlocal done
                done += 1
                order.append(name)
                if done == steps:
                    controller.all_actions_completed()

            return action

        async with asyncio.TaskGroup() as group:
            for name in "ab":
                processor = MailboxProcessor(action_of(name, 10_000), name=name)
                group.create_task(processor.run_mailbox_loop())
        turns = sum(before != after for before, after in itertools.pairwise(order))
        assert turns >= 10

    async def test_a_slice_ends_by_time(self, clock: Any) -> None:
        seen: list[int] = []
        count = 0

        def action(controller: MailboxController) -> None:
            nonlocal count
            count += 1
            clock.seconds += 0.0004
            if count == 100:
                controller.all_actions_completed()

        async def watch() -> None:
            while count < 100:
                seen.append(count)
                await asyncio.sleep(0)

        task = asyncio.create_task(watch())
        await MailboxProcessor(action, clock=clock).run_mailbox_loop()
        await task
        gaps = [after - before for before, after in itertools.pairwise(seen)]
        # Three steps of 0.4 ms fill a slice of 1 ms.
        assert max(gaps) <= 3

    async def test_a_timer_that_becomes_due_in_a_slice_runs_before_the_next_one(
        self,
    ) -> None:
        loop = asyncio.get_running_loop()
        fired: list[bool] = []

        def action(controller: MailboxController) -> None:
            if fired:
                controller.all_actions_completed()

        loop.call_later(0, fired.append, True)
        await MailboxProcessor(action).run_mailbox_loop()
        assert fired == [True]

    async def test_mail_that_never_ends_lets_go_too(self) -> None:
        processor = MailboxProcessor(idle)

        def again() -> None:
            processor.main_executor.execute(again)

        again()
        asyncio.get_running_loop().call_later(0.001, processor.all_actions_completed)

        async def advance() -> None:
            await asyncio.sleep(0)
            processor.all_actions_completed()

        task = asyncio.create_task(advance())
        await processor.run_mailbox_loop()
        assert task.done()


@pytest.mark.real_time
async def test_no_wake_up_is_lost_when_threads_put_while_the_loop_falls_asleep() -> (
    None
):
    processor = MailboxProcessor(idle)
    rounds, seen = 3_000, 0
    go = threading.Semaphore(1)

    def on_mail() -> None:
        nonlocal seen
        seen += 1
        go.release()
        if seen == 2 * rounds:
            processor.all_actions_completed()

    def put() -> None:
        for _ in range(rounds):
            go.acquire()
            processor.main_executor.execute(on_mail)

    threads = [threading.Thread(target=put) for _ in range(2)]
    for thread in threads:
        thread.start()
    await asyncio.wait_for(processor.run_mailbox_loop(), timeout=100)
    for thread in threads:
        thread.join()
    assert seen == 2 * rounds
    assert processor.main_executor.priority == MIN_PRIORITY


async def running(processor: MailboxProcessor) -> asyncio.Task[None]:
    """Start its loop in a task of its own."""
    task = asyncio.create_task(processor.run_mailbox_loop())
    await asyncio.sleep(1)
    return task


def fail() -> None:
    raise ValueError("mine")


class TestEnd:
    """Whoever waits for a loop that has ended is told so."""

    @pytest.mark.parametrize("way", ["complete", "fail", "cancel", "cancel the task"])
    async def test_what_was_submitted_and_not_run_fails(self, way: str) -> None:
        processor = MailboxProcessor()
        task = await running(processor)
        held = asyncio.Event()
        processor.execute(held.wait)
        await asyncio.sleep(1)
        # The last mail sees the end before those behind it.
        if way == "complete":
            processor.all_actions_completed()
        elif way == "cancel":
            processor.cancel()
        elif way == "fail":
            processor.execute(fail)
        waiting = asyncio.create_task(wait_for(processor.submit(int)))
        await asyncio.sleep(1)
        if way == "cancel the task":
            task.cancel()
        held.set()
        with pytest.raises(MailboxClosedError, match="cannot run int") as caught:
            await waiting
        causes = {"fail": ValueError, "cancel the task": asyncio.CancelledError}
        assert isinstance(caught.value.__cause__, causes.get(way, type(None)))
        await asyncio.wait([task])
        with pytest.raises(RejectedMailError):
            processor.submit(int)
        assert processor.mailbox.state is MailboxState.CLOSED

    @pytest.mark.real_time
    async def test_a_thread_that_waits_is_told(self) -> None:
        processor = MailboxProcessor()
        future = processor.submit(int)
        waiting = asyncio.create_task(asyncio.to_thread(future.result, 30))
        processor.report_throwable(ValueError("mine"))
        with pytest.raises(ValueError, match="mine"):
            await processor.run_mailbox_loop()
        with pytest.raises(MailboxClosedError):
            await waiting

    async def test_it_is_told_too_where_the_task_of_the_loop_lives_on(self) -> None:
        processor = MailboxProcessor()
        processor.execute(fail)
        future = processor.submit(int)
        with pytest.raises(ValueError, match="mine"):
            await processor.run_mailbox_loop()
        with pytest.raises(MailboxClosedError):
            await future
        assert isinstance(future.exception(), MailboxClosedError)

    async def test_one_that_is_cancelled_itself_is_told_that(self) -> None:
        processor = MailboxProcessor()
        waiting = asyncio.create_task(wait_for(processor.submit(int)))
        await asyncio.sleep(1)
        waiting.cancel()
        processor.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    async def test_another_mailbox_that_yields_until_it_is_told(self) -> None:
        other = MailboxProcessor()
        future = other.submit(int)
        async with MailboxProcessor() as mailbox:
            executor = mailbox.main_executor
            yielding = mailbox.submit(executor.yield_until, future)
            await asyncio.sleep(1)
            other.close()
            with pytest.raises(MailboxClosedError):
                await yielding

    async def test_what_is_left_can_be_run_before_it_is_closed(self) -> None:
        processor = MailboxProcessor(complete)
        future = processor.submit(int)
        processor.all_actions_completed()
        await processor.run_mailbox_loop()
        processor.prepare_close()
        await processor.drain()
        await asyncio.sleep(1)
        assert await future == 0

    async def test_a_loop_that_was_suspended_stays_open(self) -> None:
        processor = MailboxProcessor()
        processor.suspend()
        future = processor.submit(int)
        await processor.run_mailbox_loop()
        await asyncio.sleep(1)
        assert not future.done()
        processor.executor(0).execute(processor.all_actions_completed)
        await processor.run_mailbox_loop()
        assert await future == 0


async def wait_for(future: Any) -> Any:
    return await future


class TestBlock:
    async def test_it_runs_what_was_sent_and_closes(self) -> None:
        log: list[str] = []
        async with MailboxProcessor(name="adder") as mailbox:
            assert await mailbox.submit(lambda a, b: a + b, 2, 3) == 5
            mailbox.execute(log.append, "first")
            last = mailbox.submit(asyncio.sleep, 5, "last")
        assert log == ["first"]
        assert await last == "last"
        assert mailbox.mailbox.state is MailboxState.CLOSED
        with pytest.raises(RejectedMailError):
            mailbox.execute(int)
        with pytest.raises(IllegalStateError, match="entered before"):
            async with mailbox:
                pass

    async def test_it_raises_what_made_the_loop_fail(self) -> None:
        with pytest.raises(ValueError, match="mine"):
            async with MailboxProcessor() as mailbox:
                mailbox.execute(fail)
                # What the block sees of it is only a consequence.
                await mailbox.submit(int)
        with pytest.raises(ValueError, match="mine"):
            async with MailboxProcessor() as mailbox:
                mailbox.execute(fail)
        with pytest.raises(KeyError) as caught:
            async with MailboxProcessor() as mailbox:
                mailbox.execute(fail)
                await asyncio.sleep(1)
                raise KeyError
        assert "mine" in caught.value.__notes__[0]

    async def test_a_block_that_fails_or_is_cancelled_waits_for_nothing(self) -> None:
        begun = asyncio.get_running_loop().time()
        with pytest.raises(KeyError):
            async with MailboxProcessor() as mailbox:
                hanging = mailbox.submit(asyncio.sleep, 100)
                behind = mailbox.submit(int)
                await asyncio.sleep(1)
                raise KeyError
        with pytest.raises(MailFailedError):
            await hanging
        with pytest.raises(MailboxClosedError):
            await behind

        async def block() -> None:
            async with MailboxProcessor() as mailbox:
                await mailbox.submit(asyncio.sleep, 100)

        task = asyncio.create_task(block())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.get_running_loop().time() - begun < 3


class TestActionThatDoesNothing:
    @pytest.mark.parametrize(
        "action",
        [
            lambda controller: controller.suspend_default_action(),
            lambda controller: 7,
            None,
        ],
    )
    async def test_what_it_returns_is_awaited_only_if_it_can_be(
        self, action: Any
    ) -> None:
        async with MailboxProcessor(action) as mailbox:
            assert await mailbox.submit(int) == 0

    async def test_a_step_ignores_what_cannot_be_awaited(self) -> None:
        processor = MailboxProcessor(lambda _: 7)
        assert await processor.run_mailbox_step()

    @pytest.mark.parametrize("is_async", [False, True])
    # A call that does nothing takes longer on a slow machine.
    @pytest.mark.parametrize("call_us", [0, 0.3, 1, 2, 3.5])
    async def test_it_does_not_spin(
        self, is_async: bool, call_us: float, clock: Any
    ) -> None:
        calls = 0

        def nothing(_: MailboxController) -> None:
            nonlocal calls
            calls += 1
            clock.seconds += call_us / 1e6

        async def nothing_later(controller: MailboxController) -> None:
            nothing(controller)

        action = nothing_later if is_async else nothing
        async with MailboxProcessor(action, clock=clock) as mailbox:
            began = calls
            await asyncio.sleep(1)
            # Rests of 1, 2, 4 and then 8 ms, and at most 1,024 calls before each.
            assert 0 < calls - began <= 1024 * 130
            # Mail does not wait for the end of the rest.
            assert await mailbox.submit(int) == 0

    async def test_time_goes_on_beside_it(self) -> None:
        """Where time stands still while there is something to run."""
        async with MailboxProcessor(lambda _: None):
            await asyncio.sleep(5)

    async def test_an_action_that_works_does_not_rest(self, clock: Any) -> None:
        steps = 0

        def work(controller: MailboxController) -> None:
            nonlocal steps
            steps += 1
            clock.seconds += 0.00001
            if steps == 10_000:
                controller.all_actions_completed()

        before = asyncio.get_running_loop().time()
        await MailboxProcessor(work, clock=clock).run_mailbox_loop()
        assert asyncio.get_running_loop().time() == before
