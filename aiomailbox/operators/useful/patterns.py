"""Patterns of events: how they are described, and how they are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal, NamedTuple

from aiomailbox.durations import above_zero, event_datetime, pipeline_ms
from aiomailbox.errors import InvalidArgumentError, TimestampError, WrongTypeError
from aiomailbox.eventtime.timers import Timer
from aiomailbox.operators.core.context import LateRecords
from aiomailbox.operators.core.failures import USER_ERRORS, RecordFailures
from aiomailbox.operators.core.fields import field_or_function
from aiomailbox.operators.core.operator import Pending
from aiomailbox.operators.core.slices import Grown, grown, values_of
from aiomailbox.operators.core.user_code import (
    OnError,
    check_on_error,
    check_sync_function,
    fail,
)
from aiomailbox.operators.core.watched import collector_for
from aiomailbox.operators.keyed.operators import (
    KeyReader,
    KeySelector,
    StatefulOperator,
)
from aiomailbox.records.events import MIN_TIMESTAMP
from aiomailbox.records.run import Run
from aiomailbox.signatures import check_choice, check_count, check_type
from aiomailbox.state.descriptors import MapStateDescriptor, ValueStateDescriptor
from aiomailbox.state.serializers import kept_in_state

# Patterns of records, and the plain arithmetic of matching them.


Skip = Literal["past_last_event", "none"]


@dataclass(frozen=True, slots=True)
class Match:
    """Records of a key that together match a pattern.

    Attributes:
        key: The key.
        events: The records, by the name of their step; a list of a step that is
            repeated.
        start: Event time of the first record, with time zone.
        end: Event time of the last record.
    """

    key: Any
    events: dict[str, Any]
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a pattern.

    Attributes:
        name: Its name, unique in the pattern.
        where: Which records fit; None for all.
        is_strict: Whether it has to be the very next record of the key.
    """

    name: str
    where: Callable[[Any], Any] | None
    is_strict: bool


@kept_in_state("Partial")
class Partial(NamedTuple):
    """The beginning of a match: event time of its first record, and its records.

    Attributes:
        start: Event time of the first record, milliseconds.
        step: How many steps have their record.
        events: The records of these steps.
    """

    start: int
    step: int
    events: Grown


@dataclass(frozen=True, slots=True)
class Pattern:
    """A sequence of records of a key; made by `pattern`.

    Concept:
        Flink CEP, ``Pattern``.

    Example:
        >>> def is_small(payment):
        ...     return payment < 1
        >>> def is_large(payment):
        ...     return payment > 500
        >>> fraud = pattern("small", where=is_small).next("large", where=is_large)
        >>> fraud = fraud.within(timedelta(seconds=60))
        >>> [step.name for step in fraud.steps], fraud.within_ms
        (['small', 'large'], 60000)
    """

    steps: tuple[Step, ...]
    within_ms: int | None = None
    skip: Skip = "past_last_event"
    # The last step that has to be the very next record, -1 if none has.
    last_strict: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        strict = [index for index, step in enumerate(self.steps) if step.is_strict]
        object.__setattr__(self, "last_strict", max(strict, default=-1))

    def followed_by(
        self, name: str, where: Callable[[Any], Any] | None = None
    ) -> Pattern:
        """Add a step: the first record later on that fits; others may lie between.

        Args:
            name: The step's name, unique in the pattern.
            where: Which records fit, a sync function; None for all.

        Raises:
            InvalidArgumentError: If the name is taken or empty.
            WrongTypeError: If an argument has the wrong type.
        """
        return self._with_step(name, where, is_strict=False)

    def next(self, name: str, where: Callable[[Any], Any] | None = None) -> Pattern:
        """Add a step: the very next record of the key has to fit.

        Arguments and errors are those of `followed_by`.
        """
        return self._with_step(name, where, is_strict=True)

    def times(self, n: int) -> Pattern:
        """Let the last step take ``n`` records that fit; others may lie between.

        `Match.events` has a list of them. The first record of a step that `next` added
        comes directly after the previous step.

        Args:
            n: How many, 2 or more.

        Raises:
            InvalidArgumentError: If it is below 2, or the step is repeated already.
            WrongTypeError: If it is not an int.

        Concept:
            Flink CEP, ``Pattern.times``.

        Example:
            >>> thrice = pattern("wrong", where=str.islower).times(3)
            >>> [step.name for step in thrice.steps]
            ['wrong', 'wrong', 'wrong']
        """
        last = self.steps[-1]
        if check_count(n, "n") < 2:
            raise InvalidArgumentError("n", f"{n} is too small", "Use 2 or more.")
        if len(self.steps) > 1 and self.steps[-2].name == last.name:
            raise InvalidArgumentError(
                "n", f"step {last.name!r} is repeated already", "Call times once."
            )
        more = (replace(last, is_strict=False),) * (n - 1)
        return replace(self, steps=(*self.steps, *more))

    def within(self, duration: timedelta) -> Pattern:
        """Let only less than ``duration`` pass between first and last record.

        Args:
            duration: In event time: a timedelta.

        Raises:
            InvalidArgumentError: If it is not above zero.
        """
        within_ms = above_zero(pipeline_ms(duration, "duration"), "duration")
        return replace(self, within_ms=within_ms)

    def skipping(self, skip: Skip) -> Pattern:
        """Say what a record of a match may still be part of.

        Args:
            skip: ``"past_last_event"``, the default: a match ends all others that have
                begun, and the next one begins after it. ``"none"``: all matches.

        Raises:
            InvalidArgumentError: If it is another word.
        """
        check_choice(skip, "skip", "past_last_event", "none")
        return replace(self, skip=skip)

    def _with_step(
        self, name: str, where: Callable[[Any], Any] | None, *, is_strict: bool
    ) -> Pattern:
        if any(step.name == name for step in self.steps):
            raise InvalidArgumentError(
                "name", f"two steps are called {name!r}", "Rename one."
            )
        step = _step(name, where, is_strict=is_strict)
        return replace(self, steps=(*self.steps, step))


def pattern(name: str, where: Callable[[Any], Any] | None = None) -> Pattern:
    """Begin a pattern with its first step; see `KeyedStream.match`.

    Args:
        name: The step's name.
        where: Which records fit, a sync function; None for all.

    Raises:
        InvalidArgumentError: If the name is empty.
        WrongTypeError: If an argument has the wrong type.

    Concept:
        Flink CEP, ``Pattern.begin``.

    Example:
        >>> len(pattern("a", where=str.isupper).followed_by("b").steps)
        2
    """
    return Pattern((_step(name, where, is_strict=False),))


def advance(
    pattern: Pattern, partials: tuple[Partial, ...], value: Any, stamp: int
) -> tuple[tuple[Partial, ...], list[Partial]]:
    """Return the partial matches after a record, and the matches that it completes.

    A step's condition is asked only if there is a beginning that waits for the step.

    Args:
        pattern: The pattern.
        partials: Beginnings of matches, the earliest first.
        value: The record, not earlier than those before.
        stamp: Its event time, milliseconds.
    """
    steps = pattern.steps
    fits: dict[int, bool] = {}
    alive: list[Partial] = []
    done: list[Partial] = []
    for partial in (*unexpired(pattern, partials, stamp), Partial(stamp, 0, ())):
        index = partial.step
        if index not in fits:
            where = steps[index].where
            fits[index] = where is None or bool(where(value))
        if fits[index]:
            further = Partial(partial.start, index + 1, grown(partial.events, value))
            (done if index + 1 == len(steps) else alive).append(further)
        elif index and not steps[index].is_strict:
            alive.append(partial)
    if pattern.skip == "none":
        return tuple(alive), done
    if done:
        return (), done[:1]
    if pattern.within_ms is None:
        alive = _that_count(pattern, alive)
    return tuple(alive), done


def _that_count(pattern: Pattern, partials: list[Partial]) -> list[Partial]:
    """Return those of which one may become the next match, if time ends none."""
    kept: dict[int, Partial] = {}
    for one in partials:
        # Those at one step share their future, in which only the earliest counts.
        kept.setdefault(one.step, one)
        # One that no record can end is completed before all that began later.
        if one.step > pattern.last_strict:
            break
    return list(kept.values())


def unexpired(
    pattern: Pattern, partials: tuple[Partial, ...], time: int
) -> tuple[Partial, ...]:
    """Return those that can still be completed by a record of an event time."""
    within = pattern.within_ms
    if within is None:
        return partials
    return tuple(one for one in partials if time - one.start < within)


def _step(name: Any, where: Any, *, is_strict: bool) -> Step:
    check_type(name, str, "name", "Name the step.", "a string")
    if not name:
        raise InvalidArgumentError("name", "it is empty", "Name the step.")
    if where is not None:
        check_sync_function(where, "where", arity=1)
    return Step(name, where, is_strict)


# Finds patterns in the records of each key, in event time.


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
        on_error: How to handle a record for which a step's ``where`` raises; it is
            part of no match.

    Raises:
        WrongTypeError: If an argument has the wrong type.
        InvalidArgumentError: If ``partials_max`` is below 1.

    Concept:
        Flink CEP, ``CepOperator``.

    Example:
        >>> from aiomailbox.operators.useful.patterns import pattern
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
        self._failures = RecordFailures(self, next(wheres, advance))
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
            partials = unexpired(self._pattern, self._partials.value(), timer.timestamp)
        else:
            # Only when time has passed it: all records of this time are here, in their
            # order.
            partials = self._take(timer.key, timer.timestamp)
        self._partials.update(partials or None)
        return None

    def on_processing_time(self, timer: Timer) -> Pending:
        """Do nothing: there are no timers in processing time."""
        return None

    def _take(self, key: Any, stamp: int) -> tuple[Partial, ...]:
        """Match the records of one time; return what has begun then."""
        records = values_of(self._records.get(stamp, ()))
        self._records.remove(stamp)
        partials = self._partials.value()
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
