"""Patterns of records, and the plain arithmetic of matching them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

from aiomailbox.durations import duration_ms
from aiomailbox.errors import InvalidArgumentError, WrongTypeError
from aiomailbox.operators.core.callables import check_sync_function
from aiomailbox.operators.core.grown import Grown, grown
from aiomailbox.policies.arguments import check_count
from aiomailbox.state.state_classes import kept_in_state

__all__ = [
    "Match",
    "Partial",
    "Pattern",
    "Skip",
    "Step",
    "advance",
    "pattern",
    "unexpired",
]

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
    """What records of a key have to follow each other; made by `pattern`.

    Concept:
        Flink CEP, ``Pattern``.

    Example:
        >>> def is_small(payment):
        ...     return payment < 1
        >>> def is_large(payment):
        ...     return payment > 500
        >>> fraud = pattern("small", where=is_small).next("large", where=is_large)
        >>> fraud = fraud.within(60)
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
            WrongTypeError: If an argument is of another type.
        """
        return self._with_step(name, where, is_strict=False)

    def next(self, name: str, where: Callable[[Any], Any] | None = None) -> Pattern:
        """Add a step: the very next record of the key has to fit.

        Arguments and errors are those of `followed_by`.
        """
        return self._with_step(name, where, is_strict=True)

    def times(self, n: int) -> Pattern:
        """Let the last step take ``n`` records that fit; others may lie between.

        `Match.events` has a list of them. A step that was added by `next` has its first
        record right behind the step before.

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

    def within(self, duration: timedelta | float) -> Pattern:
        """Let only less than ``duration`` pass between first and last record.

        Args:
            duration: In event time: a timedelta or seconds.

        Raises:
            InvalidArgumentError: If it is not above zero.
        """
        within_ms = duration_ms(duration, "duration")
        if within_ms == 0:
            raise InvalidArgumentError(
                "duration", "it is 0", "Use a millisecond or more."
            )
        return replace(self, within_ms=within_ms)

    def skipping(self, skip: Skip) -> Pattern:
        """Say what a record of a match may still be part of.

        Args:
            skip: ``"past_last_event"``, the default: a match ends all others that have
                begun, and the next one begins after it. ``"none"``: all matches.

        Raises:
            InvalidArgumentError: If it is another word.
        """
        if skip not in {"past_last_event", "none"}:
            raise InvalidArgumentError(
                "skip", f"{skip!r} is unknown", "Use 'past_last_event' or 'none'."
            )
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
        WrongTypeError: If an argument is of another type.

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
    if not isinstance(name, str):
        raise WrongTypeError("name", f"{name!r} is not a string", "Name the step.")
    if not name:
        raise InvalidArgumentError("name", "it is empty", "Name the step.")
    if where is not None:
        check_sync_function(where, "where", arity=1)
    return Step(name, where, is_strict)
