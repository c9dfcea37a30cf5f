"""From the event times of records to watermarks."""

from __future__ import annotations

from typing import Final, Protocol

from aiomailbox.errors import InvalidArgumentError, TimestampError
from aiomailbox.eventtime.output import WatermarkOutput
from aiomailbox.records.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from aiomailbox.records.run import Run

__all__ = [
    "BoundedOutOfOrderness",
    "NoWatermarks",
    "WatermarkGenerator",
    "check_before_end_of_time",
    "follow_run",
]


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
        ...

    def on_periodic_emit(self, output: WatermarkOutput, /) -> None:
        """Emit what is known; called by a periodic timer, and at the end of a run."""
        ...


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
        >>> from aiomailbox.eventtime.output import OutputGuard
        >>> generator, guard = BoundedOutOfOrderness(7), OutputGuard()
        >>> generator.on_run([100, 90, 120], guard)
        >>> generator.on_periodic_emit(guard)
        >>> guard.watermark
        112
    """

    __slots__ = ("_behind", "_highest")
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

    __slots__ = ()
    only_latest: Final = True

    def on_run(self, timestamps: list[int], output: WatermarkOutput) -> None:
        """Ignore the run."""

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit nothing."""
