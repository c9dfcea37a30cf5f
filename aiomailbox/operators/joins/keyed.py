"""Joins of two keyed streams: the operator, and functions of pairs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic

from aiomailbox.errors import TimestampError, WrongTypeError
from aiomailbox.eventtime.timers import Timer
from aiomailbox.operators.core.collector import Collector
from aiomailbox.operators.core.context import LateRecords, RuntimeContext
from aiomailbox.operators.core.failures import USER_ERRORS, RecordFailures
from aiomailbox.operators.core.fields import field_or_function
from aiomailbox.operators.core.mutations import MutationCheck
from aiomailbox.operators.core.operator import (
    Pending,
    TwoInputOperator,
    go_through,
)
from aiomailbox.operators.core.user_code import (
    UNMADE,
    CallableKind,
    OnError,
    callable_kind,
    check_function,
    collected,
    refuse_generator,
    refuse_undefined,
    refuse_unmade,
)
from aiomailbox.operators.functions.base import YIELDS, FunctionOperator
from aiomailbox.operators.functions.contexts import ProcessContext
from aiomailbox.operators.keyed.operators import (
    KeyReader,
    KeySelector,
    StatefulOperator,
)
from aiomailbox.records.events import MIN_TIMESTAMP, OutputTag
from aiomailbox.records.run import Run
from aiomailbox.state.descriptors import MapStateDescriptor
from aiomailbox.state.store import MapState
from aiomailbox.typevars import FirstT, OutT, SecondT

# What becomes of two records that belong together.


# The records of two sides with their event times; `MIN_TIMESTAMP` where there is none.
Pair = tuple[Any, int, Any, int]


class ProcessJoinContext(ProcessContext):
    """A `ProcessContext` that knows the event times of both records.

    ``timestamp`` is that of the result: the larger one.

    Attributes:
        left_timestamp: Of the left record, milliseconds.
        right_timestamp: Of the right record; None if there is no such record.

    Concept:
        Flink, ``ProcessJoinFunction.Context``.
    """

    __slots__ = ("left_timestamp", "right_timestamp")

    def __init__(self, context: RuntimeContext, collector: Collector) -> None:
        super().__init__(context, collector)
        self.left_timestamp: int = MIN_TIMESTAMP
        self.right_timestamp: int | None = None


class ProcessJoinFunction(Generic[FirstT, SecondT, OutT]):
    """A function of two records that belong together; subclass it.

    Each method may be ``async def``.

    Concept:
        Flink, ``ProcessJoinFunction``.

    Example:
        >>> class Delay(ProcessJoinFunction):
        ...     def process_element(self, left, right, context, out):
        ...         out.collect(context.right_timestamp - context.left_timestamp)
    """

    def open(self, context: RuntimeContext, /) -> Any:
        """Acquire resources, before the first pair."""
        return None

    @abstractmethod
    def process_element(
        self,
        left: FirstT,
        right: SecondT,
        context: ProcessJoinContext,
        out: Collector[OutT],
        /,
    ) -> Pending:
        """Process a pair; pass results to ``out.collect(value)``."""
        raise WrongTypeError(
            "function", f"{type(self).__qualname__} defines no process_element"
        )

    def close(self) -> Pending:
        """Release resources; called also after a failure."""
        return None


class PairFunction(ProcessJoinFunction):
    """A plain function of two records, whose result is emitted.

    Args:
        function: ``(left, right)`` → the result; may be ``async def``.
        parameter: The argument it was given for.
    """

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self.function: Callable[..., Any] = check_function(
            function, "function", arity=2, gets="left, right"
        )
        remedy = "Return one result, or use a ProcessJoinFunction."
        refuse_generator(function, "function", remedy, WrongTypeError)
        self._is_async = callable_kind(function) is CallableKind.ASYNC

    def process_element(
        self, left: Any, right: Any, context: Any, out: Collector, /
    ) -> Pending:
        """Emit what the function returns."""
        result = self.function(left, right)
        if self._is_async:
            return self._collect(result, out)
        if type(result) in UNMADE:
            refuse_unmade(result, self.function)
        out.collect(result)
        return None

    async def _collect(self, result: Awaitable[Any], out: Collector) -> None:
        out.collect(await result)


def pair(left: Any, right: Any) -> tuple[Any, Any]:
    """Return both records: what joins emit if no function is given."""
    return left, right


def check_join_function(function: Any) -> Any:
    """Return ``function`` in the form of `ProcessJoinFunction`.

    Raises:
        WrongTypeError: If it is neither that nor a function of two arguments.
    """
    process = getattr(function, "process_element", None)
    if process is None:
        return PairFunction(function)
    refuse_undefined(process, "function")
    check_function(process, "function", arity=4, gets="left, right, context, out")
    refuse_generator(process, "function", YIELDS, WrongTypeError)
    return function


class PairCalls:
    """Calls a join function for pairs; its results get the larger event time.

    Args:
        function: A `ProcessJoinFunction`.
        context: Gets the event times of each pair.
        collector: Gets the results, and emits those that were awaited at once.
        failures: Gets the pairs for which the function raises.
        check: Watches over the records of the pairs, or None.
    """

    def __init__(
        self,
        function: Any,
        context: ProcessJoinContext,
        collector: Collector,
        failures: RecordFailures,
        check: MutationCheck | None = None,
    ) -> None:
        self._function: Callable[..., Pending] = function.process_element
        self._call = self._function
        if check is not None:
            self._call = _watched(check, self._function)
        self._context = context
        self._collector = collector
        self._failures = failures

    def process(self, pairs: Sequence[Pair]) -> Pending:
        """Call the function for each pair, in order."""
        pending, index = self._advance(pairs, 0)
        return None if pending is None else self._process_rest(pending, pairs, index)

    def _advance(self, pairs: Sequence[Pair], start: int) -> tuple[Pending, int]:
        """Process pairs until a call must be awaited; return it and its index."""
        call, context, collector = self._call, self._context, self._collector
        for index in range(start, len(pairs)):
            left, left_ms, right, right_ms = pairs[index]
            context.left_timestamp = left_ms
            context.right_timestamp = None if right_ms == MIN_TIMESTAMP else right_ms
            stamp = max(left_ms, right_ms)
            context.timestamp = collector.timestamp = stamp
            collector.passed = 0
            try:
                pending = call(left, right, context, collector)
            except USER_ERRORS as error:
                self._failures.take((left, right), stamp, error)
                continue
            if pending is not None:
                return pending, index
        return None, len(pairs)

    async def _process_rest(
        self, pending: Pending, pairs: Sequence[Pair], index: int
    ) -> None:
        while pending is not None:
            try:
                await collected(self._function, pending)
            except USER_ERRORS as error:
                left, left_ms, right, right_ms = pairs[index]
                self._failures.take((left, right), max(left_ms, right_ms), error)
            emitted = self._collector.emit()
            if emitted is not None:
                await emitted
            pending, index = self._advance(pairs, index + 1)


def _watched(
    check: MutationCheck, process: Callable[..., Pending]
) -> Callable[..., Pending]:
    def call(left: Any, right: Any, *rest: Any) -> Pending:
        return check.calling((left, right), process, left, right, *rest)

    return call


# What joins of two keyed streams have in common.


_NO_TIME = MIN_TIMESTAMP


@dataclass(slots=True)
class JoinSide:
    """One of the two streams, as the operator keeps it.

    Attributes:
        name: ``left`` or ``right``; also names its timers.
        keys: Reads the keys of its records.
        buffer: Its records of the current key, by event time.
    """

    name: str
    keys: KeyReader
    buffer: MapState


class KeyedJoinOperator(FunctionOperator, StatefulOperator, TwoInputOperator):
    """The base of joins in event time that keep records of both sides per key.

    Args:
        key1: The key of the left stream's records: a field's name or a function.
        key2: The key of the right stream's; keys of both are of one type.
        function: A `ProcessJoinFunction`, or a function ``(left, right)`` → result.
        on_error: How to handle a pair for which the function raises.
    """

    def __init__(
        self, key1: KeySelector, key2: KeySelector, function: Any, on_error: OnError
    ) -> None:
        self._key1 = field_or_function(key1, "key1")
        self._key2 = field_or_function(key2, "key2")
        super().__init__(check_join_function(function), on_error)

    def open(self) -> Pending:
        """Bind state and timers, and open the function."""
        store = self.context.keyed_state
        left_keys = KeyReader(self._key1, self)
        right_keys = KeyReader(self._key2, self, like=left_keys)
        # The names are in snapshots.
        self._left = JoinSide(
            "left", left_keys, store.get_map(MapStateDescriptor("left-buffer"))
        )
        self._right = JoinSide(
            "right", right_keys, store.get_map(MapStateDescriptor("right-buffer"))
        )
        self._dropped = LateRecords(self.context.metrics, self.context.repeated)
        return super().open()

    def make_contexts(self) -> Sequence[ProcessContext]:
        """Return the context of pairs, with what it needs bound."""
        context = ProcessJoinContext(self.context, self._collector)
        self._calls = PairCalls(
            self.function,
            context,
            self._collector,
            self._failures,
            self.context.mutations,
        )
        self._timers = self.timer_service("join-timers", self, self._collector)
        return [context]

    @property
    def named_function(self) -> Callable[..., Any]:
        """The function of two records, or the method of pairs."""
        return getattr(self.function, "function", self.function.process_element)

    def key_of_input(self, index: int) -> Callable[[Any], Any] | None:
        return self._key2 if index else self._key1

    def process_input(self, index: int, run: Run) -> Pending:
        """Join each record of the left, or of the right stream."""
        if not len(run):
            return None
        side = self._right if index else self._left
        keys = side.keys.read(run.values)
        advance = partial(self._advance, side, run, keys)
        return go_through(run, advance, self.interruption, self.emit_collected)

    def take(self, side: JoinSide, key: Any, value: Any, stamp: int) -> Pending:
        """Take a record; the state's current key is its key."""
        raise TypeError(f"{type(self).__name__} does not define take")

    def on_event_time(self, timer: Timer) -> Pending:
        """React to a timer that event time has reached."""
        raise TypeError(f"{type(self).__name__} does not define on_event_time")

    def on_processing_time(self, timer: Timer) -> Pending:
        """Do nothing: joins have no timers in processing time."""
        return None

    def drop_late(self, value: Any, stamp: int, tag: OutputTag | None) -> None:
        """Send a record that came too late to a side output, or drop it."""
        if tag is None:
            self._dropped.drop(stamp, self.current_watermark)
            return
        self._collector.timestamp = stamp
        self._collector.collect_side(tag, value)

    def _advance(
        self, side: JoinSide, run: Run, keys: list[Any], start: int
    ) -> tuple[Pending, int]:
        """Take records until one must be awaited; return that and its index."""
        values, stamps = run.values, run.timestamps
        store = self.context.keyed_state
        for index in range(start, len(values)):
            value, key = values[index], keys[index]
            stamp = _NO_TIME if stamps is None else stamps[index]
            if stamp == _NO_TIME:
                raise self._no_time(side, value)
            store.set_current_key(key)
            pending = self.take(side, key, value, stamp)
            if pending is not None:
                return pending, index
        return None, len(values)

    def _no_time(self, side: JoinSide, value: Any) -> TimestampError:
        return TimestampError(
            f"the {side.name} record {value!r} of operator "
            f"{self.context.operator_name!r} has no event time, by which it is to be "
            "joined. Give the source a watermark strategy with a timestamp assigner, "
            "or use assign_timestamps_and_watermarks before."
        )
