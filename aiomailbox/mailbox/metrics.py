"""The measurements of a mailbox loop, as plain numbers."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from aiomailbox.clock import Clock
from aiomailbox.errors import (
    IllegalStateError,
    InvalidArgumentError,
    MailboxClosedError,
)
from aiomailbox.mailbox.mail import MIN_PRIORITY, Mail
from aiomailbox.mailbox.task_mailbox import TaskMailbox
from aiomailbox.metrics.catalogue import Histogram

# How long something lasted: in all, and within the last seconds.
#
# Theory of operation: time is divided into buckets of 0.5 s. A period is added to the
# buckets that it touches when it ends, so that the clock is read only where a period
# begins or ends, and no timer is needed. A reader adds up the buckets of the window.


# How far back "per second" looks. Flink looks back a minute; here people watch.
RATE_WINDOW_S: Final = 5.0
_BUCKET_S: Final = 0.5
# The bucket of the present comes on top of those of the window.
_BUCKETS: Final = int(RATE_WINDOW_S / _BUCKET_S) + 1


def window_start(now_s: float) -> float:
    """Return where the window that ends now begins: at a bucket's begin.

    Example:
        >>> window_start(100.0), window_start(100.4)
        (95.0, 95.0)
    """
    return (now_s // _BUCKET_S - (_BUCKETS - 1)) * _BUCKET_S


class PeriodMeter:
    """Adds up the time between marks; a `PeriodTimer`.

    Args:
        clock: Read at the marks only, and by readers while it measures.

    Example:
        >>> from aiomailbox.clock import SystemClock
        >>> meter = PeriodMeter(SystemClock())
        >>> meter.mark_start()
        >>> meter.total_ms() >= 0
        True
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: float | None = None
        self._total_s = 0.0
        # Invariant: bucket number n is at index n % _BUCKETS, for the newest ones.
        self._buckets = [0.0] * _BUCKETS
        self._newest = 0
        # Where the newest bucket begins and ends; empty before the first period.
        self._begin_s = self._end_s = 0.0

    def mark_start(self) -> None:
        """Start measuring; again is a no-op."""
        if self._since is None:
            self._since = self._clock.monotonic()

    def mark_end(self) -> None:
        """Stop measuring; again is a no-op."""
        since = self._since
        if since is None:
            return
        self._since = None
        self.add(since, self._clock.monotonic())

    def add(self, since: float, now: float) -> None:
        """Add a period that was measured elsewhere, with the times of the meter's clock.

        Args:
            since: When it began, seconds.
            now: When it ended, not before those that were added.
        """
        lasted = now - since
        self._total_s += lasted
        # Most waits are shorter than a bucket and end in the newest one.
        if self._begin_s <= since and now < self._end_s:
            self._buckets[self._newest % _BUCKETS] += lasted
        else:
            self._spread(since, now)

    @property
    def is_running(self) -> bool:
        """Whether it measures now."""
        return self._since is not None

    @property
    def running_s(self) -> float | None:
        """Seconds that the current piece has lasted; None while it does not measure."""
        since = self._since
        return None if since is None else self._clock.monotonic() - since

    def total_ms(self) -> float:
        """Return the milliseconds measured so far, the current piece included."""
        running = 0.0 if self._since is None else self._clock.monotonic() - self._since
        return (self._total_s + running) * 1000

    def within_s(self, now_s: float) -> float:
        """Return the seconds measured since `window_start`, the current piece included.

        Args:
            now_s: The time of the meter's clock.
        """
        newest = int(now_s // _BUCKET_S)
        oldest = max(newest, self._newest) - (_BUCKETS - 1)
        known = sum(
            self._buckets[number % _BUCKETS]
            for number in range(oldest, self._newest + 1)
        )
        if self._since is None:
            return known
        return known + max(0.0, now_s - max(self._since, window_start(now_s)))

    def _spread(self, start: float, end: float) -> None:
        """Add a period to the buckets that it touches; the last one is the newest."""
        newest = int(end // _BUCKET_S)
        if newest != self._newest:
            self._advance(newest)
        begin = self._begin_s = newest * _BUCKET_S
        self._end_s = begin + _BUCKET_S
        for number in range(
            max(newest - _BUCKETS + 1, int(start // _BUCKET_S)), newest
        ):
            piece = (number + 1) * _BUCKET_S - max(start, number * _BUCKET_S)
            self._buckets[number % _BUCKETS] += piece
        self._buckets[newest % _BUCKETS] += end - max(start, begin)

    def _advance(self, newest: int) -> None:
        for number in range(max(self._newest + 1, newest - _BUCKETS + 1), newest + 1):
            self._buckets[number % _BUCKETS] = 0.0
        self._newest = newest


class TimeShares(NamedTuple):
    """How a task spent its time lately, in milliseconds per second.

    Attributes:
        busy: Processing, or awaiting something inside of it.
        idle: Waiting for input.
        soft_backpressured: Waiting for room in the outputs, between two pieces of work.
        hard_backpressured: Waiting for room in the middle of a piece of work.

    Invariants:
        They sum to 1000 while the task runs, and are all 0 before and after.

    Concept:
        Flink, ``busyTimeMsPerSecond`` and its siblings.
    """

    busy: float = 0.0
    idle: float = 0.0
    soft_backpressured: float = 0.0
    hard_backpressured: float = 0.0

    @property
    def backpressured(self) -> float:
        """Waiting for room, soft and hard."""
        return self.soft_backpressured + self.hard_backpressured


def share_time(
    elapsed_s: float, idle_s: float, soft_s: float, hard_s: float
) -> TimeShares:
    """Return the shares of a stretch of time; what was not waiting is busy.

    Example:
        >>> share_time(4.0, 1.0, 1.0, 0.0)
        TimeShares(busy=500.0, idle=250.0, soft_backpressured=250.0, hard_backpressured=0.0)
    """
    if elapsed_s <= 0:
        return TimeShares()
    waiting_s = idle_s + soft_s + hard_s
    # Rounding may let the pieces exceed the whole by a hair.
    whole_s = max(elapsed_s, waiting_s)
    idle, soft, hard = (part / whole_s * 1000 for part in (idle_s, soft_s, hard_s))
    return TimeShares(max(0.0, 1000.0 - (idle + soft + hard)), idle, soft, hard)


class LatencyProbe:
    """Measures how long ordinary mail waits, by sending itself one now and then.

    Started by the first mail of another sender: even one periodic mail would cost a
    task that otherwise has none. A sample is due ``interval_ms`` after the one before
    was *taken*, so a slow mailbox is not measured more than it can bear.

    Attributes:
        started: Whether it has been started.
        waited_ms: How long its mail has waited, milliseconds.

    Concept:
        Flink, ``MailboxMetricsController``.
    """

    def __init__(self, mailbox: TaskMailbox, clock: Clock, interval_ms: float) -> None:
        if interval_ms <= 0:
            raise InvalidArgumentError(
                "interval_ms", f"{interval_ms} is not positive", "Use milliseconds > 0."
            )
        self._mailbox = mailbox
        self._clock = clock
        self._interval_s = interval_ms / 1000
        self._handle: asyncio.TimerHandle | None = None
        self.started: bool = False
        self.waited_ms: Histogram = Histogram()

    def start(self) -> None:
        """Send the first probe.

        Raises:
            IllegalStateError: If it has been started.
        """
        if self.started:
            raise IllegalStateError("latency measurement has been started already")
        self.started = True
        self._send()

    def stop(self) -> None:
        """Send no more."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _send(self) -> None:
        mail = Mail(
            self._take_sample,
            self._clock.monotonic(),
            priority=MIN_PRIORITY,
            description="measure mailbox latency",
        )
        try:
            self._mailbox.put(mail)
        except MailboxClosedError:
            self._handle = None

    def _take_sample(self, sent_at: float) -> None:
        self.waited_ms.observe((self._clock.monotonic() - sent_at) * 1000)
        loop = asyncio.get_running_loop()
        self._handle = loop.call_later(self._interval_s, self._send)


class MailboxMetrics:
    """The numbers of one mailbox loop.

    Attributes:
        mails_processed: Mails run, those run inside yields included.
        mails_disregarded: Those of them that changed nothing that a snapshot holds.
        resumed: How often something went on behind mail that it had yielded to.
        changes: How often something changed beside mail what a snapshot holds.
        idle: Time without input, for the task's suspensions to use as their timer.
        backpressured: Time without room in the outputs, likewise.
        hard_backpressured: Time without room in the middle of a step of work.
        ran: Time in which the loop had the event loop. In the remaining time, which is
            none of these, it awaited something in the middle of its work, or its turn.
        latency: The probe, or None until `set_up_latency`.

    Concept:
        Flink, ``MailboxMetricsController`` and ``TaskIOMetricGroup``.
    """

    def __init__(self, mailbox: TaskMailbox, clock: Clock) -> None:
        self._mailbox = mailbox
        self._clock = clock
        self.mails_processed: int = 0
        self.mails_disregarded: int = 0
        self.resumed: int = 0
        self.changes: int = 0
        self.idle: PeriodMeter = PeriodMeter(clock)
        self.backpressured: PeriodMeter = PeriodMeter(clock)
        self.hard_backpressured: PeriodMeter = PeriodMeter(clock)
        self.ran: PeriodMeter = PeriodMeter(clock)
        self._started_s: float | None = None
        self.latency: LatencyProbe | None = None

    @property
    def steps(self) -> int:
        """How often mail has begun, or gone on with, what may change a state."""
        mails = self.mails_processed + self.resumed - self.mails_disregarded
        return mails + self.changes

    def start(self) -> None:
        """Let the time of the loop count from now on; again is a no-op."""
        if self._started_s is None:
            self._started_s = self._clock.monotonic()

    def time_shares(self) -> TimeShares:
        """Return what the loop did with the last seconds; zeros unless it runs."""
        now = self._clock.monotonic()
        return share_time(
            self.elapsed_s(now),
            self.idle.within_s(now),
            self.backpressured.within_s(now),
            self.hard_backpressured.within_s(now),
        )

    def elapsed_s(self, now: float) -> float:
        """Return how much of the last seconds the loop has run; 0 unless it does.

        Args:
            now: The time of the loop's clock, seconds.
        """
        started = self._started_s
        return 0.0 if started is None else now - max(started, window_start(now))

    def now_s(self) -> float:
        """Return the time of the loop's clock, seconds."""
        return self._clock.monotonic()

    def set_up_latency(self, interval_ms: float) -> None:
        """Arm the probe; the first mail that is run starts it.

        Raises:
            IllegalStateError: If it was set up before.
        """
        if self.latency is not None:
            raise IllegalStateError("latency measurement has been set up already")
        self.latency = LatencyProbe(self._mailbox, self._clock, interval_ms)

    def on_mail_run(self, *, last: bool) -> None:
        """Start the probe if this was the first mail and not the last one."""
        latency = self.latency
        if latency is not None and not latency.started and not last:
            latency.start()

    def stop(self) -> None:
        """Let no timer of the metrics outlive the loop, and no time count any more."""
        for meter in (self.idle, self.backpressured, self.hard_backpressured):
            meter.mark_end()
        self._started_s = None
        if self.latency is not None:
            self.latency.stop()
