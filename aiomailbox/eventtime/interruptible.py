"""Advancing event time in pieces, so that urgent mail need not wait for all timers.

Theory of operation: after each timer the mailbox is looked at; if urgent mail waits,
one deferrable mail is put that goes on later, and the watermark is passed on only when
the last timer has fired. Deferrable mail is hidden from yields inside operators, but
not from the finish of a task, so the watermark is not lost behind the end of the data.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from aiomailbox.eventtime.processing_time import Pending
from aiomailbox.eventtime.timers import InternalTimerService
from aiomailbox.mailbox import MailboxExecutor, MailOptions
from aiomailbox.records import MIN_TIMESTAMP

__all__ = ["InterruptibleWatermarks"]


class InterruptibleWatermarks:
    """Fires the event-time timers of an operator, and pauses for urgent mail.

    Args:
        mailbox: The mailbox at the operator's priority.
        services: The operator's timer services, in the order in which they fire.
        emit: Passes a watermark on, once per advance.

    Invariants:
        At most one mail to go on is in the mailbox. Watermarks passed on only grow.

    Concept:
        Flink, ``MailboxWatermarkProcessor``.
    """

    __slots__ = ("_emit", "_emitted", "_mailbox", "_services", "_target", "_waits")

    def __init__(
        self,
        mailbox: MailboxExecutor,
        services: Sequence[InternalTimerService],
        emit: Callable[[int], Pending],
    ) -> None:
        self._mailbox = mailbox
        self._services = services
        self._emit = emit
        self._target = MIN_TIMESTAMP
        self._emitted = MIN_TIMESTAMP
        self._waits = False

    def advance(self, timestamp_ms: int) -> Pending:
        """Advance to a watermark, now or, after urgent mail, later.

        Returns:
            None, or an awaitable that finishes what can be done now.
        """
        self._target = max(self._target, timestamp_ms)
        if self._waits:
            return None  # the mail that goes on will go on to the new target
        return self._go_on(0)

    def _go_on(self, first: int) -> Pending:
        for index in range(first, len(self._services)):
            done = self._services[index].try_advance(
                self._target, self._mailbox.should_interrupt
            )
            if not isinstance(done, bool):
                return self._go_on_after(done, index)
            if not done:
                return self._wait()
        if self._target <= self._emitted:
            return None
        self._emitted = self._target
        return self._emit(self._target)

    async def _go_on_after(self, done: Awaitable[bool], index: int) -> None:
        pending = self._go_on(index + 1) if await done else self._wait()
        if pending is not None:
            await pending

    def _wait(self) -> Pending:
        self._waits = True
        self._mailbox.execute(
            self._resume,
            description="fire the rest of the timers",
            options=MailOptions.DEFERRABLE,
        )
        return None

    def _resume(self) -> Pending:
        self._waits = False
        return self._go_on(0)
