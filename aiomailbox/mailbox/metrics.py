"""What a mailbox loop measures about itself, as plain numbers."""

from __future__ import annotations

import asyncio

from aiomailbox.clock import Clock
from aiomailbox.errors import (
    IllegalStateError,
    InvalidArgumentError,
    MailboxClosedError,
)
from aiomailbox.mailbox.mail import MIN_PRIORITY, Mail
from aiomailbox.mailbox.period_meter import (
    PeriodMeter,
    TimeShares,
    share_time,
    window_start,
)
from aiomailbox.mailbox.task_mailbox import TaskMailbox
from aiomailbox.metrics.histogram import Histogram

__all__ = ["LatencyProbe", "MailboxMetrics"]


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

    __slots__ = (
        "_clock",
        "_handle",
        "_interval_s",
        "_mailbox",
        "started",
        "waited_ms",
    )

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
        idle: Time without input, for the task's suspensions to use as their timer.
        backpressured: Time without room in the outputs, likewise.
        hard_backpressured: Time without room in the middle of a step of work.
        latency: The probe, or None until `set_up_latency`.

    Concept:
        Flink, ``MailboxMetricsController`` and ``TaskIOMetricGroup``.
    """

    __slots__ = (
        "_clock",
        "_mailbox",
        "_started_s",
        "backpressured",
        "hard_backpressured",
        "idle",
        "latency",
        "mails_processed",
    )

    def __init__(self, mailbox: TaskMailbox, clock: Clock) -> None:
        self._mailbox = mailbox
        self._clock = clock
        self.mails_processed: int = 0
        self.idle: PeriodMeter = PeriodMeter(clock)
        self.backpressured: PeriodMeter = PeriodMeter(clock)
        self.hard_backpressured: PeriodMeter = PeriodMeter(clock)
        self._started_s: float | None = None
        self.latency: LatencyProbe | None = None

    @property
    def queue_size(self) -> int:
        """How many mails wait; racy from other threads."""
        return self._mailbox.size()

    def start(self) -> None:
        """Let the time of the loop count from now on; again is a no-op."""
        if self._started_s is None:
            self._started_s = self._clock.monotonic()

    def time_shares(self) -> TimeShares:
        """Return what the loop did with the last seconds; zeros unless it runs."""
        started = self._started_s
        if started is None:
            return TimeShares()
        now = self._clock.monotonic()
        return share_time(
            now - max(started, window_start(now)),
            self.idle.within_s(now),
            self.backpressured.within_s(now),
            self.hard_backpressured.within_s(now),
        )

    def set_up_latency(self, interval_ms: float) -> None:
        """Arm the probe; the first mail that is run starts it.

        Raises:
            IllegalStateError: If it was set up before.
        """
        if self.latency is not None:
            raise IllegalStateError("latency measurement has been set up already")
        self.latency = LatencyProbe(self._mailbox, self._clock, interval_ms)

    def start_latency(self) -> None:
        """Start the probe now.

        Raises:
            IllegalStateError: If it was not set up, or has been started.
        """
        if self.latency is None:
            raise IllegalStateError("set up latency measurement before starting it")
        self.latency.start()

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
