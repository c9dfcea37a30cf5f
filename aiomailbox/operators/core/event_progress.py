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
# Times from September 2001 to May 2033 in other units, and how to convert them. As
# milliseconds, the first are two weeks of January 1970, the others after year 33,000.
_OTHER_UNITS: Final = {
    "seconds": (range(10**9, 2 * 10**9), "multiply by 1000"),
    "microseconds": (range(10**15, 2 * 10**15), "divide by 1000 with //"),
    "nanoseconds": (range(10**18, 2 * 10**18), "divide by 1_000_000 with //"),
}
_EXPECTED: Final = "milliseconds are expected"
# March 1973: what comes before it is no time of today, but may be a number of seconds.
_LONG_AGO_MS: Final = 10**11


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
    for unit, (plausible, remedy) in _OTHER_UNITS.items():
        if earliest in plausible and latest in plausible:
            event = f"event times look like {unit} since the epoch; {_EXPECTED}"
            context.log.warning(
                event,
                event_time_ms=times[0],
                remedy=f"{remedy}, or return an aware datetime",
            )


def warn_of_timer(context: RuntimeContext, at_ms: int, now_ms: int | None) -> None:
    """Warn if the time of a timer looks like another unit, or like a while from now.

    Args:
        context: The operator's context.
        at_ms: The time that the user gave.
        now_ms: The time of its domain; None if it is not known.
    """
    for unit, (plausible, remedy) in _OTHER_UNITS.items():
        if at_ms in plausible:
            context.repeated.timer(
                f"a timer looks like {unit} since the epoch; {_EXPECTED}",
                at_ms,
                context.line,
                f"{remedy}, or give an aware datetime, or after=am.seconds(5)",
            )
            return
    # At 0 it may be meant to fire at once.
    if now_ms is not None and now_ms >= _LONG_AGO_MS and 0 < at_ms < _LONG_AGO_MS:
        context.repeated.timer(
            "a timer is set for a time before 1974: it fires at once",
            at_ms,
            context.line,
            "the time counts from the epoch; for a while from now, write "
            "after=am.seconds(5)",
        )


class WatermarkTicks:
    """Lets a stream's generator look at the time now and then.

    Does nothing unless the strategy has an idle timeout, or a generator of the user's:
    the watermarks of others follow the runs. Time in which the output took nothing does
    not count as quiet.

    Args:
        strategy: May have an idle timeout, or a generator of the user's.
        interval_ms: How often to look; for idleness alone no oftener than 20 times per
            timeout.
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
        is_own = strategy.has_own_generator
        if strategy.idleness_ms is not None and not is_own:
            # A long timeout need not be known to the fifth of a second.
            interval_ms = max(interval_ms, strategy.idleness_ms // _LOOKS_PER_TIMEOUT)
        if strategy.idleness_ms is not None or is_own:
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
