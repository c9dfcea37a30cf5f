"""What steers a mailbox loop: the first failure, and mailboxes that end meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from aiomailbox.mailbox.control import (
    LoopControl,
    MailboxController,
    attach_later_error,
)
from aiomailbox.mailbox.processor import MailboxProcessor
from aiomailbox.mailbox.task_mailbox import TaskMailbox


def test_the_first_failure_is_kept_and_the_later_one_noted() -> None:
    control = LoopControl(TaskMailbox())
    first, later = ValueError("first"), KeyError("later")
    control.record_failure(first)
    control.record_failure(first)
    control.record_failure(later)
    assert control.failure is first
    assert control.leave
    assert first.__notes__ == ["afterwards also failed: KeyError: 'later'"]


def test_an_error_is_not_noted_on_itself() -> None:
    error = ValueError("alone")
    assert attach_later_error(error, error) is error
    assert not hasattr(error, "__notes__")


async def test_a_failed_cancellation_behind_a_failed_drain_is_a_note() -> None:
    def idle(controller: MailboxController) -> None:
        controller.suspend_default_action()

    def fail() -> None:
        raise ValueError("drained")

    processor = MailboxProcessor(idle)
    processor.main_executor.execute(fail)
    future = processor.main_executor.submit(int)
    # A submission that is already over cannot be cancelled; that is no error.
    future.set_result(1)
    with pytest.raises(ValueError, match="drained") as caught:
        await processor.drain()
    assert not hasattr(caught.value, "__notes__")


def test_steering_a_loop_whose_event_loop_is_closed_is_dropped() -> None:
    mailbox = TaskMailbox()
    control = LoopControl(mailbox)
    loop = asyncio.new_event_loop()
    task = loop.create_task(mailbox.take())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    control.suspend()
    control.all_actions_completed()
    assert mailbox.size() == 0
    control.cancel()
    assert not control.may_run
    task.get_coro().close()  # type: ignore[union-attr]
    task._log_destroy_pending = False  # type: ignore[attr-defined]
