"""Finds patterns in the records of each key, in event time."""

from __future__ import annotations

from typing import Any, Final

from aiomailbox.durations import event_datetime
from aiomailbox.errors import TimestampError, WrongTypeError
from aiomailbox.eventtime.timer_queue import Timer
from aiomailbox.operators.core.contract import Pending, then
from aiomailbox.operators.core.failures import RecordFailures
from aiomailbox.operators.core.grown import grown, values_of
from aiomailbox.operators.core.on_error import (
    USER_ERRORS,
    OnError,
    check_on_error,
    fail,
)
from aiomailbox.operators.core.repeated import LateRecords
from aiomailbox.operators.core.selectors import field_or_function
from aiomailbox.operators.core.watched import collector_for
from aiomailbox.operators.keyed.key_reader import KeyReader
from aiomailbox.operators.keyed.operators import KeySelector
from aiomailbox.operators.keyed.stateful import StatefulOperator
from aiomailbox.operators.useful.pattern import (
    Match,
    Partial,
    Pattern,
    advance,
    unexpired,
)
from aiomailbox.policies.arguments import check_count
from aiomailbox.records.elements import MIN_TIMESTAMP
from aiomailbox.records.run import Run
from aiomailbox.state.descriptors import MapStateDescriptor, ValueStateDescriptor

__all__ = ["MatchOperator"]

# The names are in snapshots.
_RECORDS: Final = "records"
_EXPIRY: Final = "expiry"


class MatchOperator(StatefulOperator):
    """Emits a `Match` for records of a key that match a pattern.

    Theory of operation: a record waits until the watermark has reached it; then the
    records of a key are taken by event time, those of one time as they came. Of the
    matches that have begun, those for which the time is up are forgotten when the
    watermark says so. A record that is not younger than the watermark comes too late:
    it is dropped and counted.

    Args:
        key: A field's name or a function of a record.
        pattern: The pattern.
        partials_max: Beginnings of matches that are kept per key; beyond it the
            earliest is forgotten and counted.
        on_error: What to do with a record for which a step's ``where`` raises; it is
            part of no match.

    Raises:
        WrongTypeError: If an argument is of another type.
        InvalidArgumentError: If ``partials_max`` is below 1.

    Concept:
        Flink CEP, ``CepOperator``.

    Example:
        >>> from aiomailbox.operators.useful.pattern import pattern
        >>> from aiomailbox.testing import OneInputHarness
        >>> rising = pattern("low", where=str.islower).next("high", where=str.isupper)
        >>> operator = MatchOperator(str.lower, rising)
        >>> with OneInputHarness(operator, keyed=True) as harness:
        ...     harness.process_run(["A", "a"], [2, 1])
        ...     harness.process_watermark(2)
        ...     harness.values
        [Match(key='a', events={'low': 'a', 'high': 'A'}, start=datetime.datetime(...), end=datetime.datetime(...))]
    """

    def __init__(
        self,
        key: KeySelector,
        pattern: Pattern,
        *,
        partials_max: int = 1000,
        on_error: OnError = fail,
    ) -> None:
        super().__init__()
        self._key = field_or_function(key, "key")
        if not isinstance(pattern, Pattern):
            raise WrongTypeError(
                "pattern",
                f"{pattern!r} is not a Pattern",
                "Write am.pattern('first', where=...).followed_by('second').",
            )
        self._pattern = pattern
        self._partials_max = check_count(partials_max, "partials_max")
        self.on_error: OnError = check_on_error(on_error)

    def open(self) -> Pending:
        """Bind state and timers."""
        store, metrics = self.context.keyed_state, self.context.metrics
        self._keys = KeyReader(self._key, self)
        self._records = store.get_map(MapStateDescriptor("records"))
        partials = ValueStateDescriptor[tuple[Partial, ...]]("partials", default=())
        self._partials = store.get_value(partials)
        self._collector = collector_for(self.context, self.output)
        self._timers = self.timer_service("timers", self, self._collector)
        wheres = (step.where for step in self._pattern.steps if step.where is not None)
        self._failures = RecordFailures(
            self.on_error, next(wheres, advance), self.context, self.output
        )
        self._late = LateRecords(self.context.metrics, self.context.repeated)
        self._forgotten = metrics.counter("partial_matches_dropped")
        return None

    def process_run(self, run: Run) -> Pending:
        """Keep records until their time comes."""
        values, stamps = run.values, run.timestamps
        watermark = self._timers.current_watermark
        for index, key in enumerate(self._keys.read(values)):
            stamp = MIN_TIMESTAMP if stamps is None else stamps[index]
            if stamp == MIN_TIMESTAMP:
                raise self._no_time(values[index])
            if stamp <= watermark:
                self._late.drop(stamp, watermark)
                continue
            self.context.keyed_state.set_current_key(key)
            # What is kept in a map is replaced, never changed: snapshots share it.
            kept = self._records.get(stamp, ())
            self._records.put(stamp, grown(kept, values[index]))
            if not kept:
                self._timers.register_event_time_timer(key, _RECORDS, stamp)
        return None

    def on_event_time(self, timer: Timer) -> Pending:
        """Take the records of this time, or forget what has expired."""
        if timer.namespace == _EXPIRY:
            partials = unexpired(self._pattern, self._kept(), timer.timestamp)
        else:
            # Only when time has passed it: all records of this time are here, in their
            # order.
            partials = self._take(timer.key, timer.timestamp)
        self._partials.update(partials or None)
        return None

    def on_processing_time(self, timer: Timer) -> Pending:
        """Do nothing: there are no timers in processing time."""
        return None

    def close(self) -> Pending:
        """Forget what could not be passed on, and disarm the timers."""
        collector = getattr(self, "_collector", None)
        if collector is not None:
            collector.discard()
        return super().close()

    def emit_collected(self) -> Pending:
        """Pass on the matches, and what failed."""
        reported = self._failures.report() if self._failures.waiting else None
        return then(reported, self._collector.emit)

    def _take(self, key: Any, stamp: int) -> tuple[Partial, ...]:
        """Match the records of one time; return what has begun then."""
        records = values_of(self._records.get(stamp, ()))
        self._records.remove(stamp)
        partials = self._kept()
        self._collector.timestamp = stamp
        for record in records:
            try:
                partials, matches = advance(self._pattern, partials, record, stamp)
            except USER_ERRORS as error:
                self._failures.take(record, stamp, error)
                continue
            for match in matches:
                self._collector.collect(self._match(key, match, stamp))
            excess = len(partials) - self._partials_max
            if excess > 0:
                self._forgotten.value += excess
                partials = partials[excess:]
        within = self._pattern.within_ms
        # One timer for all that began at this time, and none if nothing did.
        if within is not None and any(one.start == stamp for one in partials):
            self._timers.register_event_time_timer(key, _EXPIRY, stamp + within)
        return partials

    def _kept(self) -> tuple[Partial, ...]:
        kept: tuple[Partial, ...] = self._partials.value()
        return kept

    def _match(self, key: Any, match: Partial, end: int) -> Match:
        steps = self._pattern.steps
        events: dict[str, Any] = {}
        for step, event in zip(steps, values_of(match.events), strict=True):
            events.setdefault(step.name, []).append(event)
        for name, several in events.items():
            if len(several) == 1:
                events[name] = several[0]
        start = event_datetime(match.start)
        return Match(key, events, start, event_datetime(end))

    def _no_time(self, value: Any) -> TimestampError:
        return TimestampError(
            f"the record {value!r} of operator {self.context.operator_name!r} has no "
            "event time, by which it is to be matched. Give the source a watermark "
            "strategy with a timestamp assigner."
        )
