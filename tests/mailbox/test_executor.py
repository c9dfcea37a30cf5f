"""The door to a mailbox: sending work and asking how things stand."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable

import pytest

from aiomailbox.errors import (
    IllegalStateError,
    InvalidArgumentError,
    MailboxClosedError,
    MailFailedError,
    RejectedMailError,
    WrongTaskError,
)
from aiomailbox.mailbox.control import MailboxController
from aiomailbox.mailbox.mail import MailOptions
from aiomailbox.mailbox.processor import MailboxProcessor

From = Callable[[Callable[[], object]], Awaitable[None]]


def idle(controller: MailboxController) -> None:
    controller.suspend_default_action()


async def owned() -> MailboxProcessor:
    """Make a processor that belongs to the running task."""
    processor = MailboxProcessor(idle)
    processor.mailbox.bind_owner()
    return processor


class TestExecute:
    async def test_work_from_anywhere_runs_in_the_mailboxs_task(
        self, from_origin: From
    ) -> None:
        """MB-32."""
        processor = await owned()
        ran_in: list[object] = []
        await from_origin(
            lambda: processor.main_executor.execute(
                lambda: ran_in.append(asyncio.current_task())
            )
        )
        mail = await processor.mailbox.take()
        mail.run()
        assert ran_in == [asyncio.current_task()]

    async def test_deferrable_work_runs_in_the_main_loop_only(self) -> None:
        """MB-33."""
        processor = await owned()
        log: list[str] = []
        executor = processor.executor(42)
        executor.execute(log.append, "late", options=MailOptions.DEFERRABLE)
        assert not await executor.try_yield_to_mail()
        assert not await processor.executor(0).try_yield_to_mail()
        assert log == []
        await processor.run_mailbox_step()
        assert log == ["late"]

    async def test_finishing_operators_run_deferrable_work_by_its_own_priority(
        self,
    ) -> None:
        """MB-34."""
        processor = await owned()
        log: list[str] = []
        executor = processor.executor(42)
        executor.execute(log.append, "late", options=MailOptions.DEFERRABLE)
        higher = processor.executor(43)
        assert not await higher.try_yield_to_mail(ignore_deferrable=True)
        assert not await executor.try_yield_to_mail()
        assert await executor.try_yield_to_mail(ignore_deferrable=True)
        assert log == ["late"]

    @pytest.mark.parametrize("operation", ["execute", "submit"])
    async def test_is_rejected_after_close(
        self, from_origin: From, operation: str
    ) -> None:
        processor = await owned()
        processor.close()
        with pytest.raises(RejectedMailError, match=f"cannot {operation}"):
            await from_origin(lambda: getattr(processor.main_executor, operation)(int))

    def test_a_priority_out_of_range_is_refused(self) -> None:
        with pytest.raises(InvalidArgumentError, match="priority"):
            MailboxProcessor(idle).executor(-2)


class TestClose:
    async def test_cancels_what_was_submitted_and_refuses_yields(self) -> None:
        """MB-35, MB-D3."""
        processor = await owned()
        executor = processor.main_executor
        ran: list[object] = []
        executor.execute(lambda: ran.append(asyncio.current_task()))
        future = executor.submit(int)
        assert await executor.try_yield_to_mail()
        assert ran == [asyncio.current_task()]
        processor.close()
        assert future.cancelled()
        with pytest.raises(MailboxClosedError):
            await executor.try_yield_to_mail()
        with pytest.raises(MailboxClosedError):
            await executor.yield_to_mail()


class TestSubmit:
    @pytest.mark.real_time
    async def test_a_thread_waits_for_the_result(self) -> None:
        processor = MailboxProcessor(idle)

        def ask() -> int:
            answer = processor.main_executor.submit(lambda: 42).result(60)
            processor.all_actions_completed()
            return answer

        loop_task = asyncio.create_task(processor.run_mailbox_loop())
        assert await asyncio.to_thread(ask) == 42
        await loop_task

    async def test_another_task_awaits_the_result_of_a_coroutine(self) -> None:
        processor = MailboxProcessor(idle)
        task = asyncio.create_task(processor.run_mailbox_loop())
        assert await processor.main_executor.submit(asyncio.sleep, 3, "woke") == "woke"
        processor.all_actions_completed()
        await task

    async def test_the_owner_waits_for_it_with_yield_until(self) -> None:
        processor = await owned()
        executor = processor.executor(3)
        assert await executor.yield_until(executor.submit(lambda: "mine")) == "mine"

    async def test_a_failure_is_stored_and_the_loop_goes_on(self) -> None:
        processor = await owned()

        def fail() -> None:
            raise ValueError("stored")

        future = processor.main_executor.submit(fail)
        assert await processor.run_mailbox_step()
        with pytest.raises(ValueError, match="stored"):
            future.result()
        assert isinstance(future.exception(), ValueError)

    async def test_a_failure_of_a_coroutine_is_stored(self) -> None:
        processor = await owned()

        async def fail() -> None:
            raise KeyError("stored")

        future = processor.main_executor.submit(fail)
        await processor.run_mailbox_step()
        with pytest.raises(KeyError):
            await future

    async def test_what_cannot_cross_an_await_is_wrapped(self) -> None:
        processor = await owned()
        cancelled = asyncio.get_running_loop().create_future()
        cancelled.cancel()

        async def wait() -> None:
            await cancelled

        stopped = processor.main_executor.submit(lambda: next(iter(())))
        foreign = processor.main_executor.submit(wait)
        while await processor.run_mailbox_step():
            pass
        for future in (stopped, foreign):
            with pytest.raises(MailFailedError):
                await future

    async def test_one_that_is_withdrawn_in_time_does_not_run(self) -> None:
        processor = await owned()
        ran: list[int] = []
        future = processor.main_executor.submit(ran.append, 1)
        assert future.cancel()
        await processor.run_mailbox_step()
        assert ran == []

    async def test_cancelling_the_awaiting_task_withdraws_the_work(self) -> None:
        processor = await owned()
        ran: list[int] = []

        async def ask() -> None:
            await processor.main_executor.submit(ran.append, 1)

        task = asyncio.create_task(ask())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await processor.run_mailbox_step()
        assert ran == []

    async def test_waiting_by_blocking_the_event_loop_is_refused(self) -> None:
        processor = await owned()
        future = processor.main_executor.submit(int)
        with pytest.raises(IllegalStateError, match="await the future"):
            future.result()
        with pytest.raises(IllegalStateError, match="await the future"):
            future.exception()

    async def test_a_failure_that_nobody_looked_at_is_logged(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        processor = await owned()

        def fail() -> None:
            raise ValueError("unseen")

        processor.main_executor.submit(fail)
        await processor.run_mailbox_step()
        gc.collect()
        assert "unseen" in caplog.text

    async def test_the_cancel_of_the_running_task_is_stored_and_passed_on(self) -> None:
        processor = MailboxProcessor(idle)
        future = processor.main_executor.submit(asyncio.sleep, 100)
        task = asyncio.create_task(processor.run_mailbox_loop())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(MailFailedError):
            await future


class TestState:
    async def test_idle_is_suspended_with_an_open_and_empty_mailbox(self) -> None:
        """MB-31."""
        processor = await owned()
        executor = processor.executor(0)
        assert not executor.is_idle()
        await processor.run_mailbox_step()
        assert executor.is_idle()
        executor.execute(int)
        assert not executor.is_idle()
        await processor.drain()
        assert executor.is_idle()
        processor.prepare_close()
        assert not executor.is_idle()

    async def test_long_work_pauses_for_urgent_mail_only_unless_told(self) -> None:
        processor = await owned()
        executor = processor.executor(0)
        executor.execute(int)
        assert not executor.should_interrupt()
        assert executor.should_interrupt(any_mail=True)
        executor.execute(int, options=MailOptions.URGENT)
        assert executor.should_interrupt()

    async def test_repr_says_which_mailbox(self) -> None:
        assert "priority=3 of <TaskMailbox 'task'" in repr(
            MailboxProcessor(idle).executor(3)
        )


class TestYield:
    async def test_runs_the_mail_that_is_there_and_says_whether(
        self, from_outside: From
    ) -> None:
        """MB-36."""
        processor = await owned()
        executor = processor.main_executor
        ran: list[object] = []
        await from_outside(
            lambda: executor.execute(lambda: ran.append(threading.get_ident()))
        )
        assert await executor.try_yield_to_mail()
        assert not await executor.try_yield_to_mail()
        assert ran == [threading.get_ident()]

    @pytest.mark.real_time
    async def test_waits_for_mail_of_another_thread(self) -> None:
        """MB-37."""
        processor = await owned()
        ran: list[object] = []
        thread = threading.Timer(
            0.01,
            processor.main_executor.execute,
            args=(lambda: ran.append(asyncio.current_task()),),
        )
        thread.start()
        await processor.main_executor.yield_to_mail()
        assert ran == [asyncio.current_task()]

    async def test_is_refused_to_other_tasks(self) -> None:
        processor = await owned()
        executor = processor.main_executor
        future = asyncio.get_running_loop().create_future()
        for doing in (
            executor.yield_to_mail,
            executor.try_yield_to_mail,
            lambda: executor.yield_until(future),
        ):
            with pytest.raises(WrongTaskError):
                await asyncio.create_task(doing())

    async def test_of_a_quiesced_empty_mailbox_raises_instead_of_hanging(self) -> None:
        processor = await owned()
        processor.main_executor.execute(int)
        processor.prepare_close()
        await processor.main_executor.yield_to_mail()
        with pytest.raises(MailboxClosedError, match="quiesced"):
            await processor.main_executor.yield_to_mail()

    async def test_hides_mail_of_lower_priority(self) -> None:
        processor = await owned()
        log: list[str] = []
        processor.executor(1).execute(log.append, "upstream")
        processor.executor(5).execute(log.append, "downstream")
        await processor.executor(3).yield_to_mail()
        assert log == ["downstream"]
