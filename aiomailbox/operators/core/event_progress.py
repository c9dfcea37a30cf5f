"""The base of operators that make watermarks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from aiomailbox.errors import TimestampError, add_note
from aiomailbox.eventtime.generators import RelativeClock
from aiomailbox.eventtime.processing_time import TimerHandle
from aiomailbox.eventtime.strategy import TimestampAssigner, WatermarkStrategy
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.failures import USER_ERRORS, raise_as
from aiomailbox.operators.core.operator import Operator, Output, Pending, then
from aiomailbox.operators.core.user_code import describe, line_of
from aiomailbox.records.events import Watermark, WatermarkStatus
from aiomailbox.records.run import Run

# Flink's default of pipeline.auto-watermark-interval.
WATERMARK_INTERVAL_MS: Final = 200
_LOOKS_PER_TIMEOUT: Final = 20
# Event times from September 2001 to May 2033 in other units, and how to convert them. As
# milliseconds, the first are two weeks of January 1970, the others after year 33,000.
_OTHER_UNITS: Final = {
    "event times look like seconds since the epoch; milliseconds are expected": (
        range(10**9, 2 * 10**9),
        "multiply them by 1000, or return an aware datetime",
    ),
    "event times look like microseconds since the epoch; milliseconds are expected": (
        range(10**15, 2 * 10**15),
        "divide them by 1000 with //, or return an aware datetime",
    ),
    "event times look like nanoseconds since the epoch; milliseconds are expected": (
        range(10**18, 2 * 10**18),
        "divide them by 1_000_000 with //, or return an aware datetime",
    ),
}


def rows_for_times(strategy: WatermarkStrategy) -> str:
    """Return the timestamp assigner that needs rows; "" if event times are a field."""
    assigner = strategy.assigner
    return describe(assigner) if callable(assigner) else ""


def emit_progress(
    output: Output, progress: Iterable[Watermark | WatermarkStatus]
) -> Pending:
    """Emit watermarks and statuses, in order."""
    pending: Pending = None
    for element in progress:
        if isinstance(element, Watermark):
            pending = then(pending, output.emit_watermark, element.timestamp_ms)
        else:
            pending = then(pending, output.emit_status, element)
    return pending


def assign_timestamps(
    operator: Operator, assigner: TimestampAssigner | None, run: Run
) -> Run:
    """Return the run with the event times that the assigner finds.

    Raises:
        TimestampError: If a record has none; a note names the operator.
        UserFunctionError: If the user's assigner raises something else.
    """
    if assigner is None:
        return run
    try:
        timed = assigner.timed(run)
    except TimestampError as error:
        add_note(error, f"in {operator.place}")
        if assigner.function is not None:
            found: Any = error
            found.location = line_of(assigner.function)
        raise
    except USER_ERRORS as error:
        raise_as(operator.user_error(error), error)
    if assigner.is_new:
        assigner.is_new = False
        warn_of_units(operator.context, timed)
    return timed


def warn_of_units(context: RuntimeContext, run: Run) -> None:
    """Warn if all event times of a run look like another unit than milliseconds."""
    times = run.timestamps
    if not times:
        return
    earliest, latest = min(times), max(times)
    for event, (plausible, remedy) in _OTHER_UNITS.items():
        if earliest in plausible and latest in plausible:
            context.log.warning(event, event_time_ms=times[0], remedy=remedy)


class IdleTicks:
    """Looks now and then whether a stream has become idle.

    Does nothing unless the strategy has an idle timeout: watermarks themselves follow
    the runs. Time in which the output took nothing does not count as quiet.

    Args:
        strategy: May have an idle timeout.
        interval_ms: How often to look, and no oftener than 20 times per timeout.
        context: The operator's context.
        output: The operator's output.
        on_tick: Called each time, unless the output takes nothing.

    Attributes:
        clock: Measures quiet time.
    """

    def __init__(
        self,
        strategy: WatermarkStrategy,
        interval_ms: int,
        context: RuntimeContext,
        output: Output,
        on_tick: Callable[[], Pending],
    ) -> None:
        self.clock: RelativeClock = RelativeClock(context.clock)
        self._output = output
        self._on_tick = on_tick
        self._blocked = False
        self._handle: TimerHandle | None = None
        if strategy.idleness_ms is not None:
            # A long timeout need not be known to the fifth of a second.
            interval_ms = max(interval_ms, strategy.idleness_ms // _LOOKS_PER_TIMEOUT)
            self._handle = context.processing_time.schedule_at_fixed_rate(
                self._tick, interval_ms, interval_ms
            )

    def stop(self) -> None:
        """Look no more."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _tick(self, _: int) -> Pending:
        blocked = not self._output.availability.available
        if blocked is not self._blocked:
            self._blocked = blocked
            if blocked:
                self.clock.pause()
            else:
                self.clock.unpause()
        return None if blocked else self._on_tick()
