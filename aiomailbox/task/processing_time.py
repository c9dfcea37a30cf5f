"""Processing time on the running loop, and as mail of an operator.

Theory of operation: one service per task keeps the loop's timers. It thinks in
wall-clock milliseconds, the loop in monotonic seconds, so every point in time is turned
into a delay when it is scheduled. Operators get a service of their own on top of it,
which turns each firing into mail of the operator's priority; the callback itself runs
between the operator's other work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from aiomailbox.clock import Clock
from aiomailbox.errors import (
    IllegalStateError,
    InvalidArgumentError,
    RejectedMailError,
    StopTask,
)
from aiomailbox.eventtime.processing_time import (
    Pending,
    ProcessingTimeCallback,
    TimerHandle,
)
from aiomailbox.mailbox.executor import MailboxExecutor

# What becomes of a processing-time timer of an operator: mail, then a callback.


class MailboxTimer:
    """A one-shot timer whose callback runs as mail.

    Cancelling it also stops a callback whose mail waits in the mailbox already.

    Attributes:
        trigger: The registration that puts the mail, or None if there will be none.
        done: Whether the callback will not start again.
        cancelled: Whether it was cancelled.
    """

    __slots__ = ("_callback", "_owner", "cancelled", "done", "trigger")

    def __init__(
        self, owner: MailboxProcessingTimeService, callback: ProcessingTimeCallback
    ) -> None:
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
        self,
        owner: MailboxProcessingTimeService,
        callback: ProcessingTimeCallback,
        period_ms: int,
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
        self,
        owner: MailboxProcessingTimeService,
        callback: ProcessingTimeCallback,
        delay_ms: int,
    ) -> None:
        super().__init__(owner, callback)
        self._delay_ms = delay_ms

    def _before(self) -> None:
        """Stay registered."""

    def _after(self) -> None:
        if not self.done:
            self._owner.arm(self, self._delay_ms)


class ServiceState(Enum):
    """The states of a processing-time service.

    Attributes:
        ALIVE: Timers are registered and fire.
        QUIESCED: Registrations are accepted and never fire.
        SHUTDOWN: Registrations are refused.
    """

    ALIVE = "alive"
    QUIESCED = "quiesced"
    SHUTDOWN = "shutdown"


_NEXT: Final = {
    ServiceState.ALIVE: frozenset({ServiceState.QUIESCED, ServiceState.SHUTDOWN}),
    ServiceState.QUIESCED: frozenset({ServiceState.SHUTDOWN}),
    ServiceState.SHUTDOWN: frozenset[ServiceState](),
}


@dataclass(slots=True, eq=False)
class SystemTimer:
    """A registration with a `SystemProcessingTimeService`."""

    _service: SystemProcessingTimeService
    callback: Callable[[int], object]
    timestamp_ms: int
    period_ms: int = 0
    due_s: float = 0.0
    done: bool = False
    cancelled: bool = False
    _loop_handle: asyncio.TimerHandle | None = None

    def cancel(self) -> bool:
        """Make sure that the callback does not start (again)."""
        if self.done:
            return False
        self.done = self.cancelled = True
        if self._loop_handle is not None:
            self._loop_handle.cancel()
        self._service.forget(self)
        return True

    def schedule(self, due_s: float, fire: Callable[[SystemTimer], None]) -> None:
        """Ask the running loop to call ``fire`` at a time of its own clock."""
        self.due_s = due_s
        loop = asyncio.get_running_loop()
        self._loop_handle = loop.call_at(due_s, fire, self)


class SystemProcessingTimeService:
    """Timers of a task on the running loop.

    Bound to the loop that runs when the first timer is registered; all methods belong
    to that loop. Callbacks are plain functions that the loop calls, and the loop's
    handler is told what they raise; the schedule goes on.

    A timer for a millisecond fires when that millisecond has passed, so that nothing
    that happens within it comes too late.

    Args:
        clock: Wall-clock time, and the loop's own time.

    Attributes:
        state: What the service allows.

    Concept:
        Flink, ``SystemProcessingTimeService``.

    Example:
        >>> from aiomailbox.clock import SystemClock
        >>> async def main() -> None:
        ...     service = SystemProcessingTimeService(SystemClock())
        ...     now_ms = service.current_processing_time()
        ...     service.register_timer(now_ms, lambda t: print("that was", t - now_ms))
        ...     await asyncio.sleep(0.01)
        ...     service.shutdown()
        >>> asyncio.run(main())
        that was 0
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # As a set that keeps their order.
        self._timers: dict[SystemTimer, None] = {}
        self.state: ServiceState = ServiceState.ALIVE

    def current_processing_time(self) -> int:
        """Return wall-clock time, integer milliseconds since the epoch."""
        return self._clock.now_ms()

    def register_timer(
        self, timestamp_ms: int, callback: Callable[[int], object]
    ) -> SystemTimer:
        """Call ``callback(timestamp_ms)`` once that millisecond has passed.

        Raises:
            IllegalStateError: After `shutdown`.
        """
        now_ms = self._clock.now_ms()
        delay_ms = timestamp_ms - now_ms + 1 if timestamp_ms >= now_ms else 0
        return self._start(SystemTimer(self, callback, timestamp_ms), delay_ms)

    def schedule_at_fixed_rate(
        self, callback: Callable[[int], object], initial_delay_ms: int, period_ms: int
    ) -> SystemTimer:
        """Call ``callback`` with nominal times that are ``period_ms`` apart.

        Raises:
            IllegalStateError: After `shutdown`.
            InvalidArgumentError: If the period is not positive.
        """
        check_period(period_ms)
        due_ms = self._clock.now_ms() + initial_delay_ms
        timer = SystemTimer(self, callback, due_ms, period_ms)
        return self._start(timer, initial_delay_ms)

    def quiesce(self) -> None:
        """Cancel what is scheduled and start nothing more; idempotent."""
        self._advance(ServiceState.QUIESCED)

    def shutdown(self) -> None:
        """Cancel what is scheduled and refuse everything from now on; idempotent."""
        self._advance(ServiceState.SHUTDOWN)

    def forget(self, timer: SystemTimer) -> None:
        """Drop a timer that was cancelled."""
        self._timers.pop(timer, None)

    def _advance(self, target: ServiceState) -> None:
        if target in _NEXT[self.state]:
            self.state = target
        for timer in list(self._timers):
            timer.cancel()

    def _start(self, timer: SystemTimer, delay_ms: int) -> SystemTimer:
        if self.state is ServiceState.SHUTDOWN:
            raise IllegalStateError(
                "the processing-time service is shut down: its task has ended. "
                "Register timers while the task runs."
            )
        if self.state is ServiceState.ALIVE:
            self._timers[timer] = None
            timer.schedule(self._clock.monotonic() + delay_ms / 1000, self._fire)
        return timer

    def _fire(self, timer: SystemTimer) -> None:
        if not timer.period_ms:
            timer.done = True
            self._timers.pop(timer, None)
        try:
            timer.callback(timer.timestamp_ms)
        finally:
            # Asked afterwards: the callback may have cancelled its own timer.
            if not timer.done:
                timer.timestamp_ms += timer.period_ms
                # From when it was due and not from now, or a fixed rate would drift.
                timer.schedule(timer.due_s + timer.period_ms / 1000, self._fire)


class MailboxProcessingTimeService:
    """The processing time of one operator: timers that fire as its mail.

    Callbacks may return an awaitable; the task awaits it before its next mail. A
    periodic callback has at most one mail in the mailbox, however far it is behind.

    Args:
        system: The task's service.
        mailbox: The mailbox at the operator's priority.
        on_error: Told what a callback raised; the schedule goes on.

    Attributes:
        is_quiesced: Whether `quiesce` was called.

    Concept:
        Flink, ``ProcessingTimeServiceImpl``.

    Example:
        ``MailboxProcessingTimeService(system, processor.executor(0), task.fail)``
    """

    def __init__(
        self,
        system: SystemProcessingTimeService,
        mailbox: MailboxExecutor,
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._system = system
        self.mailbox = mailbox
        self.on_error = on_error
        self.is_quiesced: bool = False

    def current_processing_time(self) -> int:
        """Return wall-clock time, integer milliseconds since the epoch."""
        return self._system.current_processing_time()

    def register_timer(
        self, timestamp_ms: int, callback: ProcessingTimeCallback
    ) -> MailboxTimer:
        """Call ``callback(timestamp_ms)`` as mail once that millisecond has passed.

        Raises:
            IllegalStateError: If the task has ended without `quiesce`.
        """
        timer = MailboxTimer(self, callback)
        if not self.is_quiesced:
            timer.trigger = self._system.register_timer(timestamp_ms, timer.enqueue)
        return timer

    def schedule_at_fixed_rate(
        self, callback: ProcessingTimeCallback, initial_delay_ms: int, period_ms: int
    ) -> MailboxTimer:
        """Call ``callback`` as mail with nominal times ``period_ms`` apart.

        Raises:
            InvalidArgumentError: If the period is not positive.
        """
        check_period(period_ms)
        timer = FixedRateTimer(self, callback, period_ms)
        if not self.is_quiesced:
            timer.trigger = self._system.schedule_at_fixed_rate(
                timer.enqueue, initial_delay_ms, period_ms
            )
        return timer

    def schedule_with_fixed_delay(
        self, callback: ProcessingTimeCallback, initial_delay_ms: int, delay_ms: int
    ) -> MailboxTimer:
        """Call ``callback`` as mail ``delay_ms`` after each time it has ended.

        Raises:
            InvalidArgumentError: If the delay is not positive.
        """
        check_period(delay_ms)
        timer = FixedDelayTimer(self, callback, delay_ms)
        self.arm(timer, initial_delay_ms)
        return timer

    async def quiesce(self) -> None:
        """Put no more mail into the mailbox, at once; what is in there still runs."""
        self.is_quiesced = True

    def arm(self, timer: MailboxTimer, delay_ms: int) -> None:
        """Let a timer put its mail after a delay, unless that is over."""
        if not self.is_quiesced:
            now_ms = self._system.current_processing_time()
            timer.trigger = self._system.register_timer(
                now_ms + delay_ms, timer.enqueue
            )


def check_period(period_ms: int) -> None:
    """Check that a period is one.

    Raises:
        InvalidArgumentError: If it is zero or negative.
    """
    if period_ms <= 0:
        raise InvalidArgumentError(
            "period_ms", f"{period_ms} ms is too short", "Use 1 ms or more."
        )
