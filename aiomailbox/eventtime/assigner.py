"""From records to their event times."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter, itemgetter
from types import CoroutineType
from typing import Any, NoReturn

from aiomailbox.durations import event_time_ms
from aiomailbox.errors import TimestampError, WrongTypeError
from aiomailbox.records.elements import MIN_TIMESTAMP
from aiomailbox.records.mapping import map_all
from aiomailbox.records.run import ListRun, Run
from aiomailbox.signatures import accepts

__all__ = ["AssignerSpec", "TimestampAssigner"]

# A field's name, ``fn(value)`` or ``fn(value, previous)``.
AssignerSpec = str | Callable[[Any], Any] | Callable[[Any, Any], Any]

_INT = {int}


class TimestampAssigner:
    """Finds the event time of each record of a run.

    Args:
        spec: The name of a field (of a named tuple, dataclass, mapping or Row), or a
            function of the value, or of the value and its previous event time in
            milliseconds (None when it has none). The result is int milliseconds or an
            aware datetime.

    Raises:
        WrongTypeError: If ``spec`` is neither, or is an ``async def`` function.

    Attributes:
        field: The field's name, or None for a function; for columns.
        is_new: Whether what it finds has not been looked at yet.

    Example:
        >>> from aiomailbox.records import ListRun
        >>> TimestampAssigner("ts").assign(ListRun([{"ts": 1}, {"ts": 5}]))
        [1, 5]
    """

    __slots__ = ("_function", "_takes_previous", "field", "is_new")

    def __init__(self, spec: AssignerSpec) -> None:
        self.field: str | None = spec if isinstance(spec, str) else None
        self.is_new: bool = True
        self._function: Callable[..., Any] | None = None
        self._takes_previous = False
        if not isinstance(spec, str):
            _check_function(spec)
            self._function = spec
            self._takes_previous = _takes_two(spec)

    def timed(self, run: Run) -> Run:
        """Return the run with its event times; columns stay columns.

        Raises:
            TimestampError: As `assign`.
        """
        if type(run) is ListRun or self.field is None:
            return run.with_timestamps(self.assign(run))
        # To ask for a protocol would cost as much as a hundred records.
        timed_by: Callable[[str], Run] | None = getattr(run, "timed_by", None)
        if timed_by is not None:
            return timed_by(self.field)
        return run.with_timestamps(self.assign(run))

    def assign(self, run: Run) -> list[int]:
        """Return the event times of a run, milliseconds, shape ``(n,)``.

        Raises:
            TimestampError: If a result is neither an int nor an aware datetime, or a
                record has no such field. Names the record.
        """
        values = run.values
        if not values:
            return []
        found = self._find(run, values)
        # One look at the types of all, and only where it fails at each.
        if set(map(type, found)) == _INT:
            return found
        return _converted(found, values)

    def assign_one(self, value: Any, previous: int | None) -> int:
        """Return the event time of one record, milliseconds.

        Args:
            value: The record.
            previous: Its event time so far, or None.

        Raises:
            TimestampError: As `assign`.
        """
        if self._function is None:
            assert self.field is not None
            found = _field(self.field, value)
        elif self._takes_previous:
            found = self._function(value, previous)
        else:
            found = self._function(value)
        return found if type(found) is int else _converted([found], [value])[0]

    def _find(self, run: Run, values: list[Any]) -> list[Any]:
        if self._function is None:
            assert self.field is not None
            return _field_of_all(self.field, values)
        function = self._function
        if self._takes_previous:
            before = _previous(run)
            return [function(v, time) for v, time in zip(values, before, strict=True)]
        return [function(value) for value in values]


def _field_of_all(name: str, values: list[Any]) -> list[Any]:
    getter: Callable[[Any], Any] = attrgetter(name)
    # By the first record; where that does not fit all, each is asked on its own.
    if isinstance(values[0], Mapping):
        getter = itemgetter(name)
    try:
        return map_all(getter, values)
    except (AttributeError, KeyError, TypeError):
        return [_field(name, value) for value in values]


def _field(name: str, value: Any) -> Any:
    """Read the field of one record, where its run holds records of several types."""
    try:
        return value[name] if isinstance(value, Mapping) else getattr(value, name)
    except (AttributeError, KeyError) as error:
        raise TimestampError(
            f"the record {value!r} of type {type(value).__name__} has no field "
            f"{name!r} to take its event time from."
        ) from error


def _previous(run: Run) -> Iterable[int | None]:
    timestamps = run.timestamps
    if timestamps is None:
        return [None] * len(run)
    return [None if time == MIN_TIMESTAMP else time for time in timestamps]


def _converted(found: list[Any], values: list[Any]) -> list[int]:
    timestamps = []
    if any(type(time) is CoroutineType for time in found):
        _refuse_coroutines(found)
    for time, value in zip(found, values, strict=True):
        try:
            timestamps.append(event_time_ms(time))
        except TimestampError as error:
            raise TimestampError(f"record {value!r}: {error}") from None
    return timestamps


def _refuse_coroutines(found: list[Any]) -> NoReturn:
    for time in found:
        if type(time) is CoroutineType:
            time.close()
    raise TimestampError(
        "the timestamp assigner returned a coroutine where an event time is expected. "
        "Use a plain function; look things up with map_async before."
    )


def _check_function(spec: Any) -> None:
    if not callable(spec):
        raise WrongTypeError(
            "timestamp_assigner",
            f"{spec!r} is neither a field's name nor a function",
            "Give it e.g. 'ts', or lambda value: value.ts.",
        )
    if not accepts(spec, 1) and not accepts(spec, 2):
        raise WrongTypeError(
            "timestamp_assigner",
            f"{spec!r} cannot be called with a record",
            f"Its signature is {inspect.signature(spec)}; write lambda value: value.ts.",
        )
    if inspect.iscoroutinefunction(spec):
        raise WrongTypeError(
            "timestamp_assigner",
            f"{spec!r} is an async function",
            "Use a plain function; look things up with map_async before.",
        )


def _takes_two(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False  # a built-in without a signature takes the value
    required = [
        parameter
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind
        in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}
    ]
    return len(required) == 2
