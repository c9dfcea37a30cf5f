"""From the event times of records to watermarks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from aiomailbox.clock import Clock
from aiomailbox.errors import InvalidArgumentError, TimestampError
from aiomailbox.logs import library_log
from aiomailbox.records.events import (
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    Watermark,
    WatermarkStatus,
)
from aiomailbox.records.run import Run

# Where watermark generators put what they find out.


class WatermarkOutput(Protocol):
    """Takes watermarks and statuses from a generator.

    Concept:
        Flink, ``WatermarkOutput``.
    """

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Take a watermark; the stream is active from then on if it advances."""

    def mark_idle(self) -> None:
        """Be notified that the stream will be quiet."""

    def mark_active(self) -> None:
        """Be notified that the stream is no longer quiet."""


class OutputGuard:
    """Lets through only watermarks that advance and statuses that change.

    A watermark that does not advance is dropped before the status is looked at: an
    idle stream that resumes with old times stays idle until event time moves.

    Attributes:
        watermark: The last one let through, `MIN_TIMESTAMP` before the first.
        is_idle: Whether the status let through last is idle.

    Concept:
        Flink, ``WatermarkToDataOutput``.

    Example:
        >>> guard = OutputGuard()
        >>> guard.mark_idle()
        >>> guard.emit_watermark(7)
        >>> guard.take()
        [<WatermarkStatus.IDLE: 'idle'>, <WatermarkStatus.ACTIVE: 'active'>,
         Watermark(timestamp_ms=7)]
        >>> guard.take()
        []
    """

    def __init__(self) -> None:
        self.watermark: int = MIN_TIMESTAMP
        self.is_idle: bool = False
        self._outputs: list[Watermark | WatermarkStatus] = []

    def repeat(self) -> None:
        """Let once more through where the stream is: its readers may be new."""
        if self.watermark > MIN_TIMESTAMP:
            self._outputs.append(Watermark(self.watermark))
        if self.is_idle:
            self._outputs.append(WatermarkStatus.IDLE)

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Let the watermark through if it advances, after ACTIVE if it was idle."""
        # Before the status is looked at: an idle stream that resumes with old times
        # stays idle.
        if timestamp_ms <= self.watermark:
            return
        self.watermark = timestamp_ms
        self.mark_active()
        self._outputs.append(Watermark(timestamp_ms))

    def mark_idle(self) -> None:
        """Let IDLE through, once."""
        if not self.is_idle:
            self.is_idle = True
            self._outputs.append(WatermarkStatus.IDLE)

    def mark_active(self) -> None:
        """Let ACTIVE through if the stream was idle."""
        if self.is_idle:
            self.is_idle = False
            self._outputs.append(WatermarkStatus.ACTIVE)

    def take(self) -> list[Watermark | WatermarkStatus]:
        """Return what was let through since the last call, in order."""
        if not self._outputs:
            return []
        outputs, self._outputs = self._outputs, []
        return outputs


def check_before_end_of_time(timestamp_ms: int) -> None:
    """Refuse an event time that only the last watermark of all may reach.

    Raises:
        TimestampError: If it is `MAX_TIMESTAMP` or more.
    """
    if timestamp_ms >= MAX_TIMESTAMP:
        raise TimestampError(
            f"the event time {timestamp_ms} ms is out of range. Event times are "
            "milliseconds since the epoch, below 2**63 - 1."
        )


class WatermarkGenerator(Protocol):
    """Follows the event times of one stream, or of one split of it.

    Concept:
        Flink, ``WatermarkGenerator``.
    """

    def on_run(self, timestamps: list[int], output: WatermarkOutput, /) -> None:
        """Look at the event times of a run, milliseconds, shape ``(n,)``."""

    def on_periodic_emit(self, output: WatermarkOutput, /) -> None:
        """Emit what is known; called at the end of a run, and every 200 ms."""


# March 1973: event times before it are those of tests.
_TODAY_MS: Final = 10**11


def warn_of_watermark(latest_ms: int, watermark_ms: int, **by: object) -> None:
    """Warn of a watermark in seconds behind records whose times are in milliseconds.

    Args:
        latest_ms: The event time of a record before it.
        watermark_ms: The watermark.
        **by: Whose it is.
    """
    if latest_ms >= _TODAY_MS and 500 * watermark_ms < latest_ms < 2000 * watermark_ms:
        library_log().warning(
            "a watermark looks like seconds since the epoch; milliseconds are expected",
            watermark_ms=watermark_ms,
            event_time_ms=latest_ms,
            **by,
            remedy="emit the highest event time, less a bound in milliseconds",
        )


class OwnGenerator:
    """A generator of the user's, whose first watermark is looked at.

    Args:
        generator: The generator.
    """

    def __init__(self, generator: WatermarkGenerator) -> None:
        self._generator = generator
        self._latest_ms = MIN_TIMESTAMP
        self._output: WatermarkOutput | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)

    def on_run(self, timestamps: list[int], output: WatermarkOutput) -> None:
        """Let it look at the event times of a run."""
        self._latest_ms = timestamps[-1]
        self._output = output
        self._generator.on_run(timestamps, self)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Let it emit what is known."""
        self._output = output
        self._generator.on_periodic_emit(self)

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Look at its first watermark behind a record, pass it on, and step aside."""
        output = self._output
        assert output is not None, "it emits when it is called"
        if timestamp_ms > 0 and self._latest_ms > MIN_TIMESTAMP:
            kind = type(self._generator).__qualname__
            warn_of_watermark(self._latest_ms, timestamp_ms, generator=kind)
            own: Any = self
            own.on_run = self._generator.on_run
            own.on_periodic_emit = self._generator.on_periodic_emit
        output.emit_watermark(timestamp_ms)

    def mark_idle(self) -> None:
        """Pass it on."""
        assert self._output is not None, "it is called first"
        self._output.mark_idle()

    def mark_active(self) -> None:
        """Pass it on."""
        assert self._output is not None, "it is called first"
        self._output.mark_active()


def follow_run(
    generator: WatermarkGenerator, run: Run, output: WatermarkOutput
) -> None:
    """Let a generator look at the event times of a run, if it has any.

    One that says ``only_latest`` gets no more than the latest of columns.
    """
    # To ask for a protocol would cost as much as a hundred records.
    highest_ms = getattr(run, "highest_ms", None)
    if highest_ms is not None and getattr(generator, "only_latest", False):
        highest = highest_ms()
        if highest is not None:
            generator.on_run([highest], output)
    elif run.timestamps is not None:
        generator.on_run(run.timestamps, output)


class BoundedOutOfOrderness:
    """Records come at most a bound after a record with a later event time.

    The watermark is the highest event time minus the bound, minus one: it promises
    that no record at it or before it follows.

    Args:
        bound_ms: Milliseconds, zero or more; zero means in order.

    Raises:
        InvalidArgumentError: If the bound is negative.

    Concept:
        Flink, ``BoundedOutOfOrdernessWatermarks``.

    Example:
        >>> from aiomailbox.eventtime.generators import OutputGuard
        >>> generator, guard = BoundedOutOfOrderness(7), OutputGuard()
        >>> generator.on_run([100, 90, 120], guard)
        >>> generator.on_periodic_emit(guard)
        >>> guard.watermark
        112
    """

    only_latest: Final = True

    def __init__(self, bound_ms: int) -> None:
        if bound_ms < 0:
            raise InvalidArgumentError(
                "bound_ms", f"{bound_ms} is negative", "Use zero or more milliseconds."
            )
        self._behind = bound_ms + 1
        # Such that the first watermark is the least of all, without a test per run.
        self._highest = MIN_TIMESTAMP + self._behind

    def on_run(self, timestamps: list[int], output: WatermarkOutput) -> None:
        """Remember the highest event time.

        Raises:
            TimestampError: If it does not fit into 64 bits.
        """
        if timestamps:
            highest = max(timestamps)
            if highest > self._highest:
                check_before_end_of_time(highest)
                self._highest = highest

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit the watermark; nothing that counts before the first record."""
        output.emit_watermark(self._highest - self._behind)


class NoWatermarks:
    """Event time never moves until the stream ends.

    Concept:
        Flink, ``NoWatermarksGenerator``.
    """

    only_latest: Final = True

    def on_run(self, timestamps: list[int], output: WatermarkOutput) -> None:
        """Ignore the run."""

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit nothing."""


# One watermark and status out of several: of splits, or of an operator's inputs.


class PartialWatermark:
    """The watermark and status of one part.

    Attributes:
        watermark: The highest so far, `MIN_TIMESTAMP` before the first.
        is_idle: Whether the part is left out of the minimum.
    """

    def __init__(self) -> None:
        self.watermark: int = MIN_TIMESTAMP
        self.is_idle: bool = False

    def advance(self, timestamp_ms: int) -> bool:
        """Take a watermark, which ends idleness; says whether it is higher."""
        self.is_idle = False
        if timestamp_ms <= self.watermark:
            return False
        self.watermark = timestamp_ms
        return True


class CombinedWatermark:
    """The minimum over the parts that are not idle; it never goes back.

    When all parts are idle it is the maximum, for none of them will be late any more.
    Without parts nothing changes.

    Attributes:
        parts: The parts; add and remove at will, nothing happens before `update`.
        watermark: The combined watermark as of the last `update`.
        is_idle: Whether all parts were idle then.

    Concept:
        Flink, ``CombinedWatermarkStatus``.
    """

    def __init__(self) -> None:
        self.parts: list[PartialWatermark] = []
        self.watermark: int = MIN_TIMESTAMP
        self.is_idle: bool = False

    @property
    def are_all_idle(self) -> bool:
        """Whether there are parts, and all of them are idle now."""
        return bool(self.parts) and all(part.is_idle for part in self.parts)

    def update(self) -> bool:
        """Look at all parts again; says whether the watermark has advanced."""
        active = [part.watermark for part in self.parts if not part.is_idle]
        self.is_idle = bool(self.parts) and not active
        if not self.parts:
            return False
        # All idle: the maximum, for the lowest would hold event time back for ever, for
        # records that are not coming (FLINK-38454).
        combined = min(active) if active else max(part.watermark for part in self.parts)
        if combined <= self.watermark:
            return False
        self.watermark = combined
        return True


class InputWatermarks(CombinedWatermark):
    """The watermark and status of an operator with several inputs.

    Each method returns what the operator has to handle, in order; mostly nothing.

    Args:
        inputs: How many inputs, at least one.

    Concept:
        Flink, ``IndexedCombinedWatermarkStatus``.

    Example:
        >>> inputs = InputWatermarks(2)
        >>> inputs.input_watermark(5, 0)
        ()
        >>> inputs.input_watermark(3, 1)
        (Watermark(timestamp_ms=3),)
    """

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.parts.extend(PartialWatermark() for _ in range(inputs))

    def input_watermark(
        self, timestamp_ms: int, index: int
    ) -> tuple[Watermark | WatermarkStatus, ...]:
        """Take the watermark of an input."""
        part = self.parts[index]
        was_idle = part.is_idle
        # Not higher, but a part that was idle counts again: that may hold the others
        # back.
        if not part.advance(timestamp_ms) and not was_idle:
            return ()
        return self._updated()

    def input_status(
        self, status: WatermarkStatus, index: int
    ) -> tuple[Watermark | WatermarkStatus, ...]:
        """Take the status of an input."""
        self.parts[index].is_idle = status is WatermarkStatus.IDLE
        return self._updated()

    def snapshot(self) -> tuple[int, tuple[tuple[int, bool], ...]]:
        """Return the watermark, and per input its watermark and whether it is idle."""
        parts = tuple((part.watermark, part.is_idle) for part in self.parts)
        return self.watermark, parts

    def restore(
        self, snapshots: Sequence[tuple[int, Sequence[tuple[int, bool]]]]
    ) -> None:
        """Take over what was returned by `snapshot`, here or in several subtasks.

        Of several, an input is where the subtask was that was behind, and idle if it
        was idle everywhere.
        """
        if not snapshots:
            return
        # The least of what earlier subtasks had reached: records of the one behind must
        # not be late.
        self.watermark: int = min(watermark for watermark, _ in snapshots)
        for index, part in enumerate(self.parts):
            facts = [parts[index] for _, parts in snapshots]
            part.watermark = min(watermark for watermark, _ in facts)
            part.is_idle = all(is_idle for _, is_idle in facts)
        self.is_idle: bool = self.are_all_idle

    def _updated(self) -> tuple[Watermark | WatermarkStatus, ...]:
        was_idle = self.is_idle
        outputs: tuple[Watermark | WatermarkStatus, ...] = ()
        if self.update():
            outputs = (Watermark(self.watermark),)
        if was_idle is self.is_idle:
            return outputs
        # Downstream drops watermarks of an idle stream: active first, idle last.
        if was_idle:
            return (WatermarkStatus.ACTIVE, *outputs)
        return (*outputs, WatermarkStatus.IDLE)


# When a stream has been quiet for so long that it must not hold event time back.


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
