"""When a stream has been quiet for so long that it must not hold event time back."""

from __future__ import annotations

from aiomailbox.clock import Clock
from aiomailbox.errors import InvalidArgumentError
from aiomailbox.eventtime.generators import WatermarkGenerator
from aiomailbox.eventtime.output import WatermarkOutput

__all__ = ["RelativeClock", "WithIdleness"]


class RelativeClock:
    """A stopwatch that stands still while the stream is not allowed to flow.

    Time spent blocked by backpressure or by watermark alignment is not quiet time.
    Each `pause` needs an `unpause`; it runs when there are as many of both.

    Args:
        clock: Its monotonic time is read.

    Raises:
        InvalidArgumentError: By `unpause`, if the clock is not paused.

    Concept:
        Flink, ``PausableRelativeClock``.

    Example:
        >>> from aiomailbox.clock import SystemClock
        >>> clock = RelativeClock(SystemClock())
        >>> clock.pause()
        >>> clock.now_s() == clock.now_s()
        True
    """

    __slots__ = ("_clock", "_lost", "_paused_at", "_pauses")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lost = 0.0
        self._pauses = 0
        self._paused_at = 0.0

    def now_s(self) -> float:
        """Return the seconds that have counted, from any origin."""
        now = self._paused_at if self._pauses else self._clock.monotonic()
        return now - self._lost

    def pause(self) -> None:
        """Stop counting."""
        if not self._pauses:
            self._paused_at = self._clock.monotonic()
        self._pauses += 1

    def unpause(self) -> None:
        """Count again, once every pause has ended."""
        if not self._pauses:
            raise InvalidArgumentError("unpause", "the clock is not paused")
        self._pauses -= 1
        if not self._pauses:
            self._lost += self._clock.monotonic() - self._paused_at


class WithIdleness:
    """A generator that marks its output idle when no record comes for a while.

    Looked at only in `on_periodic_emit`: the countdown begins with the first call that
    finds no record since the call before, and ends when *more* than the timeout has
    passed. The next record ends idleness as far as this generator is concerned; its
    output becomes active when a watermark advances.

    Args:
        generator: Makes the watermarks.
        timeout_s: Seconds, more than zero.
        clock: Pausable, so that only time in which records could have come counts.

    Raises:
        InvalidArgumentError: If the timeout is zero or negative.

    Concept:
        Flink, ``WatermarksWithIdleness``.
    """

    __slots__ = (
        "_clock",
        "_generator",
        "_is_announced",
        "_quiet_since",
        "_saw_record",
        "_timeout_s",
    )

    def __init__(
        self, generator: WatermarkGenerator, timeout_s: float, clock: RelativeClock
    ) -> None:
        if timeout_s <= 0:
            raise InvalidArgumentError(
                "timeout", f"{timeout_s} s is not positive", "Use more than zero."
            )
        self._generator = generator
        self._timeout_s = timeout_s
        self._clock = clock
        # A stream that never had a record is quiet from its second tick on.
        self._saw_record = False
        self._quiet_since: float | None = None
        self._is_announced = False

    @property
    def only_latest(self) -> bool:
        """Whether the latest event time of a run is all that is looked at."""
        return getattr(self._generator, "only_latest", False)

    def on_run(self, timestamps: list[int], output: WatermarkOutput) -> None:
        """Be notified that the stream flows."""
        if timestamps:
            self._saw_record = True
            self._is_announced = False
            self._generator.on_run(timestamps, output)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Mark the output idle, or let the generator emit."""
        if not self._is_idle():
            self._generator.on_periodic_emit(output)
        elif not self._is_announced:
            # Once: its receiver looks only for changes.
            self._is_announced = True
            output.mark_idle()

    def _is_idle(self) -> bool:
        if self._saw_record:
            self._saw_record = False
            self._quiet_since = None
            return False
        if self._quiet_since is None:
            self._quiet_since = self._clock.now_s()
            return False
        # More than the timeout, as in Flink: it ends one tick later than one might
        # think.
        return self._clock.now_s() - self._quiet_since > self._timeout_s
