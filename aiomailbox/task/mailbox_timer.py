"""What becomes of a processing-time timer of an operator: mail, then a callback."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from aiomailbox.errors import RejectedMailError, StopTask
from aiomailbox.eventtime.processing_time import (
    Pending,
    ProcessingTimeCallback,
    TimerHandle,
)
from aiomailbox.mailbox.executor import MailboxExecutor

__all__ = ["FixedDelayTimer", "FixedRateTimer", "MailboxTimer", "TimerOwner"]


class TimerOwner(Protocol):
    """What a timer needs of the service that it was registered with."""

    mailbox: MailboxExecutor
    on_error: Callable[[BaseException], None]
    is_quiesced: bool

    def arm(self, timer: MailboxTimer, delay_ms: int) -> None:
        """Let the timer put its mail after a delay."""
        ...


class MailboxTimer:
    """A one-shot timer whose callback runs as mail.

    Cancelling it also stops a callback whose mail waits in the mailbox already.

    Attributes:
        trigger: The registration that puts the mail, or None if there will be none.
        done: Whether the callback will not start again.
        cancelled: Whether it was cancelled.
    """

    __slots__ = ("_callback", "_owner", "cancelled", "done", "trigger")

    def __init__(self, owner: TimerOwner, callback: ProcessingTimeCallback) -> None:
        self._owner = owner
        self._callback = callback
        self.trigger: TimerHandle | None = None
        self.done: bool = False
        self.cancelled: bool = False

    def cancel(self) -> bool:
        """Make sure that the callback does not start (again)."""
        if self.done:
            return False
        self.done = self.cancelled = True
        if self.trigger is not None:
            self.trigger.cancel()
        return True

    def enqueue(self, timestamp_ms: int) -> None:
        """Put the mail that calls the callback with ``timestamp_ms``."""
        # One that was armed before `quiesce` may still fire, and is dropped in silence.
        if self.done or self._owner.is_quiesced:
            return
        try:
            self._owner.mailbox.execute(
                self.run,
                timestamp_ms,
                description="processing-time timer at %d",
                description_args=(timestamp_ms,),
            )
        except RejectedMailError:
            self.cancel()  # the task has ended, and its timers with it

    def run(self, timestamp_ms: int) -> Pending:
        """Run the callback and what comes after it; called by the mail."""
        if self.done:
            return None
        self._before()
        try:
            pending = self._callback(timestamp_ms)
        except StopTask:
            raise
        except Exception as error:  # noqa: BLE001 -- handed to its owner
            # As in Flink a timer that fails ends the task from outside and not by its
            # mail: the mail behind it runs until then.
            self._owner.on_error(error)
            pending = None
        if pending is not None:
            return self._finish(pending)
        self._after()
        return None

    async def _finish(self, pending: Awaitable[None]) -> None:
        try:
            await pending
        except StopTask:
            raise
        except Exception as error:  # noqa: BLE001 -- handed to its owner
            self._owner.on_error(error)
        self._after()

    def _before(self) -> None:
        self.done = True

    def _after(self) -> None:
        """Do what remains to be done when the callback has ended: nothing."""


class FixedRateTimer(MailboxTimer):
    """A timer that runs again and again, with nominal times.

    Invariants:
        At most one mail of it is in the mailbox. A period that ends while that waits
        is owed, and gets its mail when the one before has run.
    """

    __slots__ = ("_owed", "_period_ms", "_timestamp_ms", "_waits")

    def __init__(
        self, owner: TimerOwner, callback: ProcessingTimeCallback, period_ms: int
    ) -> None:
        super().__init__(owner, callback)
        self._period_ms = period_ms
        self._timestamp_ms = 0
        self._owed = 0
        self._waits = False

    def enqueue(self, timestamp_ms: int) -> None:
        """Put the mail, or remember that one more is owed."""
        if self._waits:
            self._owed += 1
            return
        self._waits = True
        self._timestamp_ms = timestamp_ms
        super().enqueue(timestamp_ms)

    def _before(self) -> None:
        """Stay registered."""

    def _after(self) -> None:
        self._waits = False
        if self._owed:
            self._owed -= 1
            self.enqueue(self._timestamp_ms + self._period_ms)


class FixedDelayTimer(MailboxTimer):
    """A timer that runs again some time after it has ended."""

    __slots__ = ("_delay_ms",)

    def __init__(
        self, owner: TimerOwner, callback: ProcessingTimeCallback, delay_ms: int
    ) -> None:
        super().__init__(owner, callback)
        self._delay_ms = delay_ms

    def _before(self) -> None:
        """Stay registered."""

    def _after(self) -> None:
        if not self.done:
            self._owner.arm(self, self._delay_ms)
