"""How a user says where event time comes from."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from functools import partial
from operator import attrgetter, itemgetter
from types import CoroutineType
from typing import Any, ClassVar, Generic, NoReturn

from aiomailbox.durations import above_zero, event_time_ms, pipeline_ms
from aiomailbox.errors import TimestampError, WrongTypeError
from aiomailbox.eventtime.generators import (
    BoundedOutOfOrderness,
    NoWatermarks,
    OwnGenerator,
    RelativeClock,
    WatermarkGenerator,
    WithIdleness,
)
from aiomailbox.records.events import MIN_TIMESTAMP
from aiomailbox.records.run import ListRun, Run, map_all
from aiomailbox.signatures import Suggesting, accepts
from aiomailbox.typevars import InT_contra

# From records to their event times.


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
        function: The function, or None for a field.
        is_new: Whether what it finds has not been looked at yet.

    Example:
        >>> from aiomailbox.records import ListRun
        >>> TimestampAssigner("ts").assign(ListRun([{"ts": 1}, {"ts": 5}]))
        [1, 5]
    """

    def __init__(self, spec: AssignerSpec) -> None:
        self.field: str | None = spec if isinstance(spec, str) else None
        self.is_new: bool = True
        self.function: Callable[..., Any] | None = None
        self._takes_previous = False
        if not isinstance(spec, str):
            _check_function(spec)
            self.function = spec
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
        if self.function is None:
            assert self.field is not None
            found = _field(self.field, value)
        elif self._takes_previous:
            found = self.function(value, previous)
        else:
            found = self.function(value)
        return found if type(found) is int else _converted([found], [value])[0]

    def _find(self, run: Run, values: list[Any]) -> list[Any]:
        if self.function is None:
            assert self.field is not None
            return _field_of_all(self.field, values)
        function = self.function
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


@dataclass(frozen=True, slots=True)
class AlignmentConfig:
    """How far ahead of the slowest reader of a group a reader may run.

    Attributes:
        group: Readers of the same group wait for each other, also of other sources.
        max_drift_ms: How far ahead, in event time.
        update_interval_ms: How often the group's slowest is looked for.
    """

    group: str
    max_drift_ms: int
    update_interval_ms: int


def _is_ours(made: object) -> bool:
    return str(getattr(made, "__module__", "")).startswith("aiomailbox.")


def _check_generator(generator: object, name: str) -> None:
    """Check that a generator, or its class, has both methods.

    Raises:
        WrongTypeError: If not.
    """
    for method in ("on_run", "on_periodic_emit"):
        if not callable(getattr(generator, method, None)):
            raise WrongTypeError(
                "factory",
                f"{name} has no method {method}",
                "A generator has on_run(timestamps, output), which gets the event times "
                "of some records in milliseconds, and on_periodic_emit(output), which "
                "calls output.emit_watermark(milliseconds).",
            )


@dataclass(frozen=True)
class WatermarkStrategy(Generic[InT_contra], metaclass=Suggesting):
    """Where event times come from, and how late records may be.

    For a type checker, ``WatermarkStrategy[Click].for_monotonous_timestamps()`` says of
    which records; without it they are Any.

    Holds no progress: each task, and each split of a source, creates its own generator.
    Every method returns a new strategy.

    Attributes:
        generator_factory: Makes the generator of a stream or split.
        assigner: The argument of `with_timestamp_assigner`, or None: event times are
            those that the records have already.
        idleness_ms: After how many quiet milliseconds a stream is idle, or None.
        alignment: Which other sources to wait for, or None.
        moves_on_bounded_input: Whether event time moves while a DataFrame is read inside
            Spark, too, or waits for the end of each partition.

    Concept:
        Flink, ``WatermarkStrategy``.

    Example:
        >>> from aiomailbox.durations import minutes, seconds
        >>> strategy = (
        ...     WatermarkStrategy.for_bounded_out_of_orderness(seconds(2))
        ...     .with_timestamp_assigner("created_at")
        ...     .with_idleness(minutes(1))
        ... )
        >>> strategy.idleness_ms
        60000
    """

    _meant: ClassVar[Mapping[str, str]] = {
        "for_ascending_timestamps": "for_monotonous_timestamps()",
        "for_bounded_lateness": "for_bounded_out_of_orderness(am.seconds(5))",
        "for_watermark_generator": "for_generator(factory)",
        "builder": "for_bounded_out_of_orderness(am.seconds(5))",
    }

    generator_factory: Callable[[], WatermarkGenerator]
    assigner: AssignerSpec | None = None
    idleness_ms: int | None = None
    alignment: AlignmentConfig | None = None
    moves_on_bounded_input: bool = False

    @classmethod
    def for_monotonous_timestamps(cls) -> WatermarkStrategy[InT_contra]:
        """Return a strategy for records that come in the order of their event times."""
        return cls(partial(BoundedOutOfOrderness, 0))

    @classmethod
    def for_bounded_out_of_orderness(
        cls, max_out_of_orderness: timedelta
    ) -> WatermarkStrategy[InT_contra]:
        """Return a strategy for records that come at most this much too late.

        Args:
            max_out_of_orderness: A timedelta.

        Raises:
            InvalidArgumentError: If it is negative, or a number without a unit.
        """
        bound_ms = pipeline_ms(max_out_of_orderness, "max_out_of_orderness")
        return cls(partial(BoundedOutOfOrderness, bound_ms))

    @classmethod
    def no_watermarks(cls) -> WatermarkStrategy[InT_contra]:
        """Return a strategy without event time: it moves only when the stream ends."""
        return cls(NoWatermarks)

    @classmethod
    def for_generator(
        cls, factory: Callable[[], WatermarkGenerator]
    ) -> WatermarkStrategy[InT_contra]:
        """Return a strategy with generators of your own.

        Their ``on_periodic_emit`` is called after each run of records, and every 200 ms.

        Args:
            factory: The class of a generator, or a function that makes one: for each
                subtask, or for each split of a source.

        Raises:
            WrongTypeError: If it is a generator itself, or its class lacks a method.
        """
        if inspect.isclass(factory):
            _check_generator(factory, factory.__qualname__)
        elif not callable(factory):
            raise WrongTypeError(
                "factory",
                f"{factory!r} makes no generators, and each subtask needs its own",
                "Give the class of the generator, or a function that makes one.",
            )
        return cls(factory)

    def with_timestamp_assigner(
        self,
        assigner: str
        | Callable[[InT_contra], Any]
        | Callable[[InT_contra, int | None], Any],
    ) -> WatermarkStrategy[InT_contra]:
        """Take event times from a field, or from a function.

        Args:
            assigner: A field's name, ``fn(value)`` or ``fn(value, previous)``, giving
                int milliseconds or an aware datetime. ``previous`` is the event time that
                this record already has, from its source or an earlier strategy; None if
                it has none. It is not that of the record before.

        Raises:
            WrongTypeError: If it is neither, or is an ``async def`` function.
        """
        TimestampAssigner(assigner)  # fails here, where it is written
        return self._with("with_timestamp_assigner", assigner=assigner)

    def with_idleness(self, timeout: timedelta) -> WatermarkStrategy[InT_contra]:
        """Let a stream without records not hold event time back.

        Args:
            timeout: A timedelta, more than zero.

        Raises:
            InvalidArgumentError: If it is zero or negative.
        """
        idleness_ms = pipeline_ms(timeout, "timeout")
        above_zero(
            idleness_ms, "timeout", ", so that every input would be idle at once"
        )
        return self._with("with_idleness", idleness_ms=idleness_ms)

    def with_watermark_alignment(
        self,
        group: str,
        max_drift: timedelta,
        update_interval: timedelta = timedelta(seconds=1),
    ) -> WatermarkStrategy[InT_contra]:
        """Hold sources back that run ahead of the slowest of their group.

        Args:
            group: Sources that name the same group wait for each other.
            max_drift: How far ahead a source may be in event time.
            update_interval: How often the slowest is looked for.

        Raises:
            InvalidArgumentError: If a duration is negative, or the interval zero.
        """
        interval_ms = pipeline_ms(update_interval, "update_interval")
        above_zero(interval_ms, "update_interval")
        drift_ms = pipeline_ms(max_drift, "max_drift")
        alignment = AlignmentConfig(group, drift_ms, interval_ms)
        return self._with("with_watermark_alignment", alignment=alignment)

    def with_watermarks_on_bounded_input(self) -> WatermarkStrategy[InT_contra]:
        """Let event time move while a DataFrame is read inside Spark, too.

        There (``apply_to``, ``run_on``) the rows of a partition may have any order, so
        watermarks wait for its end, and no row is late, unless ``order_by=`` sorts
        them. This strategy then applies to them, too: a row that comes later than it
        allows is late.
        """
        return self._with(
            "with_watermarks_on_bounded_input", moves_on_bounded_input=True
        )

    def _with(self, call: str, **setting: Any) -> WatermarkStrategy[InT_contra]:
        """Return a copy with another setting, and remember whether it is ever used."""
        self._use()
        copy, uses = replace(self, **setting), set[str]()
        # No fields: strategies are equal without it.
        object.__setattr__(copy, "_uses", uses)
        object.__setattr__(self, "_copied", (call, weakref.ref(copy), uses))
        return copy

    def _use(self) -> str:
        """Be notified that a stream, or another strategy, is made with it.

        Returns:
            The call whose result was dropped, if the last one was; else "".
        """
        self.__dict__.get("_uses", set[str]()).add("used")
        call, copy, uses = self.__dict__.get("_copied", ("", None, ()))
        return call if call and not uses and copy() is None else ""

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields alone, for pickles."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @property
    def has_own_generator(self) -> bool:
        """Whether its generators are the user's, which may look at the time."""
        factory = getattr(self.generator_factory, "func", self.generator_factory)
        return not _is_ours(factory)

    def create_assigner(self) -> TimestampAssigner | None:
        """Return the assigner, or None when the records' own event times count."""
        return None if self.assigner is None else TimestampAssigner(self.assigner)

    def create_generator(self, clock: RelativeClock) -> WatermarkGenerator:
        """Return a new generator, for one stream or one split.

        Args:
            clock: Measures quiet time; paused while the stream may not flow.
        """
        generator = self.generator_factory()
        _check_generator(generator, type(generator).__qualname__)
        if not _is_ours(type(generator)):
            generator = OwnGenerator(generator)
        if self.idleness_ms is None:
            return generator
        return WithIdleness(generator, self.idleness_ms / 1000, clock)
