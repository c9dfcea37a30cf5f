"""Process functions: full control over what a record leads to."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Generic

from aiomailbox.errors import InvalidArgumentError, WrongTypeError
from aiomailbox.eventtime.timers import Timer
from aiomailbox.operators.core.collector import Collector
from aiomailbox.operators.core.failures import USER_ERRORS, raise_as
from aiomailbox.operators.core.fields import field_or_function
from aiomailbox.operators.core.operator import (
    InputSelection,
    Pending,
    TwoInputOperator,
    then,
)
from aiomailbox.operators.core.user_code import (
    OnError,
    check_on_error,
    check_sync_function,
    fail,
)
from aiomailbox.operators.functions.base import (
    ElementOperator,
    RichFunction,
    check_process_method,
    check_state_names,
    has_on_timer,
    inherited_on_timer,
)
from aiomailbox.operators.functions.contexts import (
    BroadcastContext,
    KeyedBroadcastContext,
    KeyedProcessContext,
    KeyedReadOnlyContext,
    ProcessContext,
    ReadOnlyContext,
    TimeDomain,
    broadcast_states,
)
from aiomailbox.operators.keyed.operators import (
    KeyReader,
    KeySelector,
    StatefulOperator,
)
from aiomailbox.operators.stateless.fused import FusedLoop, StageKind
from aiomailbox.records.events import MIN_TIMESTAMP
from aiomailbox.records.run import Run
from aiomailbox.state.descriptors import MapStateDescriptor
from aiomailbox.typevars import (
    ContextT,
    FirstT,
    InT,
    KeyT,
    OtherContextT,
    OutT,
    SecondT,
)


class ElementFunction(RichFunction[OutT], Generic[InT, ContextT, OutT]):
    """A function of records and of what it may ask meanwhile, the context."""

    @abstractmethod
    def process_element(
        self, value: InT, context: ContextT, out: Collector[OutT], /
    ) -> Pending:
        """Process one record; pass results to ``out.collect(value)``."""
        raise WrongTypeError(
            "function", f"{type(self).__qualname__} defines no process_element"
        )


class ProcessFunction(ElementFunction[InT, ProcessContext, OutT], Generic[InT, OutT]):
    """A function with a life, side outputs and access to time; subclass it.

    Each method may be ``async def``. For a type checker, ``ProcessFunction[In, Out]``
    declares the types of input and output.

    Concept:
        Flink, ``ProcessFunction``.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> class Split(ProcessFunction):
        ...     def process_element(self, value, context, out):
        ...         for word in value.split():
        ...             out.collect(word)
        >>> with OneInputHarness(ProcessOperator(Split())) as harness:
        ...     harness.process_element("to be")
        ...     harness.values
        ['to', 'be']
    """


class ProcessOperator(ElementOperator):
    """Runs a `ProcessFunction` on a stream without keys.

    Args:
        function: The function; it is not shared between subtasks.
        on_error: How to handle a record for which it raises. Its results for the
            record until then stay emitted.

    Raises:
        WrongTypeError: If ``function`` has no usable ``process_element``, or needs a
            key: it has ``on_timer``, or describes state of a key.

    Concept:
        Flink, ``ProcessOperator``.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> class Late(ProcessFunction):
        ...     def process_element(self, value, context, out):
        ...         out.collect((value, context.timestamp))
        >>> with OneInputHarness(ProcessOperator(Late())) as harness:
        ...     harness.process_element("a", 5)
        ...     harness.values
        [('a', 5)]
    """

    without_keys = (
        "Derive from KeyedProcessFunction and write key_by(...).process(...)."
    )


# Process functions on keyed streams: state and timers.
class KeyedProcessFunction(
    ElementFunction[InT, KeyedProcessContext[KeyT], OutT], Generic[KeyT, InT, OutT]
):
    """A process function with state and timers per key; subclass it.

    Each method may be ``async def``. State objects may be made in `open`, from
    ``context.keyed_state``, and refer to the current key when they are used. For a type
    checker, ``KeyedProcessFunction[Key, In, Out]`` declares the types of keys, input
    and output.

    Concept:
        Flink, ``KeyedProcessFunction``.

    Example:
        >>> from aiomailbox.state.descriptors import ValueStateDescriptor
        >>> from aiomailbox.testing import OneInputHarness
        >>> class Count(KeyedProcessFunction):
        ...     def open(self, context):
        ...         self.seen = context.keyed_state.get_value(
        ...             ValueStateDescriptor("seen", int, default=0)
        ...         )
        ...
        ...     def process_element(self, value, context, out):
        ...         self.seen.update(self.seen.value() + 1)
        ...         context.timer_service.register_event_time_timer(10)
        ...
        ...     def on_timer(self, timestamp, context, out):
        ...         out.collect((context.current_key, self.seen.value()))
        >>> operator = KeyedProcessOperator(str.lower, Count())
        >>> with OneInputHarness(operator, keyed=True) as harness:
        ...     harness.process_run(["a", "A"], [1, 2])
        ...     harness.process_watermark(10)
        ...     harness.output[0]
        StreamRecord(value=('a', 2), timestamp=10)
    """

    @inherited_on_timer
    def on_timer(
        self,
        timestamp: int,
        context: KeyedProcessContext[KeyT],
        out: Collector[OutT],
        /,
    ) -> Pending:
        """React to a timer that is due.

        Results get the timer's event time, or none if it is about processing time.

        Args:
            timestamp: The timer's time, milliseconds.
            context: As for a record; ``time_domain`` says which time this is.
            out: The collector.
        """
        return None


class KeyedFunctionOperator(ElementOperator, StatefulOperator):
    """The base of operators that run a process function with state and timers.

    Args:
        function: The function; it is not shared between subtasks.
        on_error: How to handle a record for which it raises. The results and
            the state of the record until then stay.
        **keys: For each input that has keys a field's name or a function of a record,
            by the parameter's name; those of all inputs are of one type.
    """

    def __init__(self, function: Any, on_error: OnError, **keys: KeySelector) -> None:
        super().__init__(function, on_error)
        self._on_timer = check_process_method(function, "on_timer")
        check_state_names(function)
        self._selectors = [field_or_function(key, name) for name, key in keys.items()]

    def open(self) -> Pending:
        """Bind state and timers, and open the function."""
        first, *others = self._selectors
        reader = KeyReader(first, self)
        self._readers = [reader, *(KeyReader(key, self, like=reader) for key in others)]
        return super().open()

    def make_contexts(self) -> Sequence[ProcessContext]:
        """Return one context for all methods, with the timers bound."""
        self._timers = self.timer_service("timers", self, self._collector)
        self._context = self.keyed_context()
        if not has_on_timer(self.function):
            self._context.refuse_timers(self.function)
        return [self._context] * len(self.methods)

    def keyed_context(self) -> KeyedProcessContext:
        """Return the context of the methods that have a key."""
        return KeyedProcessContext(self.context, self._collector, self._timers)

    def key_of_input(self, index: int) -> Callable[[Any], Any] | None:
        return self._selectors[index] if index < len(self._selectors) else None

    def process_input(self, index: int, run: Run) -> Pending:
        """Call the method of an input for each record, with its key."""
        if not len(run):
            return None
        keys = self._readers[index].read(run.values)
        self.context.keyed_state.prefetch(keys)
        pending = self._calls[index].process_run(run, keys)
        return then(pending, self._context.leave)

    def enter_of(self, index: int) -> Callable[[Any], None] | None:
        """Return what makes the key of each record the current one."""
        return self._context.enter

    def fire(self, timestamp_ms: int) -> Pending:
        """Fire the timers that a watermark has reached; then no key is current."""
        return then(super().fire(timestamp_ms), self._context.leave)

    def finish(self) -> Pending:
        """Warn of timers that the end of input cuts off, and finish the function."""
        if left := self._timers.processing_time_timer_count:
            self.context.log.warning(
                "the input ended before timers of processing time were due: they are "
                "dropped",
                timers=left,
                remedy="use event time, or a source that outlasts the last timer",
            )
        return super().finish()

    def on_event_time(self, timer: Timer) -> Pending:
        """Call the function with a timer in event time."""
        self._collector.timestamp = timer.timestamp
        self._collector.passed = 0
        return self._call_timer(timer, TimeDomain.EVENT_TIME)

    def on_processing_time(self, timer: Timer) -> Pending:
        """Call the function with a timer in processing time."""
        context, collector = self._context, self._collector
        # A function that yields to mail goes on afterwards, with its own record.
        before = (context.current_key, context.timestamp, collector.timestamp)
        collector.timestamp = MIN_TIMESTAMP
        pending = self._call_timer(timer, TimeDomain.PROCESSING_TIME)
        pending = then(pending, collector.emit)
        return then(pending, self._return_to, *before)

    def _call_timer(self, timer: Timer, domain: TimeDomain) -> Pending:
        context = self._context
        context.enter(timer.key)
        context.timestamp = timer.timestamp
        context.time_domain = domain
        pending = self._failures.guard(
            self._on_timer, timer.timestamp, context, self._collector
        )
        if pending is not None:
            pending = context.own(pending)
        return then(pending, self._after_timer)

    def _after_timer(self) -> Pending:
        self._context.time_domain = None
        return None

    def _return_to(self, key: Any, timestamp: int | None, stamp: int) -> Pending:
        self._context.enter_again(key)
        self._context.timestamp = timestamp
        if key is not None:
            self._collector.timestamp = stamp
        return None


class KeyedProcessOperator(KeyedFunctionOperator):
    """Runs a `KeyedProcessFunction`.

    Args:
        key: A field's name or a function of a record.
        function: The function; it is not shared between subtasks.
        on_error: How to handle a record for which it raises. The results and
            the state of the record until then stay.

    Raises:
        WrongTypeError: If ``function`` lacks ``process_element`` or ``on_timer``, or
            one of them is a generator.

    Concept:
        Flink, ``KeyedProcessOperator``.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> class Keys(KeyedProcessFunction):
        ...     def process_element(self, value, context, out):
        ...         out.collect(context.current_key)
        >>> operator = KeyedProcessOperator(str.lower, Keys())
        >>> with OneInputHarness(operator, keyed=True) as harness:
        ...     harness.process_element("A")
        ...     harness.values
        ['a']
    """

    def __init__(
        self, key: KeySelector, function: Any, *, on_error: OnError = fail
    ) -> None:
        super().__init__(function, on_error, key=key)


# What functions of two streams may say about their inputs.
class CoFunctionOperator(ElementOperator, TwoInputOperator):
    """The base of operators that run a function of two streams.

    The function may have ``end_input(index, out)``, called when input 0 or 1 has ended,
    and ``next_selection()``, asked after each record which input the next one comes
    from. With the latter, records are read one at a time, which costs speed.

    Concept:
        Flink, ``BoundedMultiInput`` and ``InputSelectable``.
    """

    methods = ("process_element1", "process_element2")

    @property
    def next_selection(self) -> Callable[[], InputSelection] | None:
        """The function that names the inputs to be read, or None to read all of them."""
        if getattr(self.function, "next_selection", None) is None:
            return None
        return self._selected

    def input_ended(self, index: int) -> Pending:
        """Tell the function that an input has ended."""
        end_input = getattr(self.function, "end_input", None)
        if end_input is None:
            return None
        self._collector.timestamp = MIN_TIMESTAMP
        pending = self._failures.guard(end_input, index, self._collector)
        return then(pending, self._collector.emit)

    def _selected(self) -> InputSelection:
        try:
            selection = self.function.next_selection()
        except USER_ERRORS as error:
            raise_as(self._failures.user_error(error), error)
        if not isinstance(selection, InputSelection):
            raise WrongTypeError(
                "next_selection",
                f"it returned {selection!r}, not an InputSelection",
                "Return am.InputSelection.FIRST, SECOND or ALL.",
            )
        return selection


# Functions on two connected streams, without keys.
class _CoStage:
    """One of the two functions, as the loop sees it."""

    def __init__(self, operator: CoMapOperator, function: Callable[[Any], Any]) -> None:
        self.kind = operator.kind
        self.function = function
        self.on_error = operator.on_error
        self.context = operator.context
        self.output = operator.output


class CoMapOperator(TwoInputOperator):
    """Replaces each record by what the function of its stream returns.

    Args:
        first: Called with each value of the first stream.
        second: Called with each value of the second stream.
        on_error: How to handle a record for which its function raises.

    Raises:
        WrongTypeError: If a function cannot be called with one argument or is
            ``async def``.
        InvalidArgumentError: If a function is a generator and this is no flat_map.

    Concept:
        Flink, ``CoMapFunction`` and ``CoStreamMap``.

    Example:
        >>> from aiomailbox.testing import TwoInputHarness
        >>> with TwoInputHarness(CoMapOperator(str, float)) as harness:
        ...     harness.first.process_element(1)
        ...     harness.second.process_element("2")
        ...     harness.values
        ['1', 2.0]
    """

    kind: ClassVar[StageKind] = StageKind.MAP

    def __init__(
        self,
        first: Callable[[Any], Any],
        second: Callable[[Any], Any],
        *,
        on_error: OnError = fail,
    ) -> None:
        super().__init__()
        checked = partial(
            check_sync_function, arity=1, may_yield=self.kind is StageKind.FLAT_MAP
        )
        self.first: Callable[..., Any] = checked(first, "first")
        self.second: Callable[..., Any] = checked(second, "second")
        self.on_error: OnError = check_on_error(on_error)

    def open(self) -> Pending:
        """Prepare a loop for each function."""
        self._loops = [
            FusedLoop([_CoStage(self, function)], self.output)
            for function in (self.first, self.second)
        ]
        return None

    def process_input(self, index: int, run: Run) -> Pending:
        """Apply the function of an input to each record."""
        return self._loops[index].process(run)


class CoFlatMapOperator(CoMapOperator):
    """Replaces each record by the items that the function of its stream returns.

    Args:
        first: Called with each value of the first stream; returns an iterable.
        second: Called with each value of the second stream; returns an iterable.
        on_error: How to handle a record for which its function raises.

    Concept:
        Flink, ``CoFlatMapFunction`` and ``CoStreamFlatMap``.

    Example:
        >>> from aiomailbox.testing import TwoInputHarness
        >>> with TwoInputHarness(CoFlatMapOperator(str.split, list)) as harness:
        ...     harness.first.process_element("to be")
        ...     harness.second.process_element("or")
        ...     harness.values
        ['to', 'be', 'o', 'r']
    """

    kind = StageKind.FLAT_MAP


class TwoInputFunction(RichFunction[OutT], Generic[FirstT, SecondT, ContextT, OutT]):
    """A function of the records of two streams."""

    def process_element1(
        self, value: FirstT, context: ContextT, out: Collector[OutT], /
    ) -> Pending:
        """Process a record of the first stream; by default it is dropped."""
        return None

    def process_element2(
        self, value: SecondT, context: ContextT, out: Collector[OutT], /
    ) -> Pending:
        """Process a record of the second stream; by default it is dropped."""
        return None

    def end_input(self, index: int, out: Collector[OutT], /) -> Pending:
        """React to the end of the first (0) or the second (1) stream."""
        return None


class CoProcessFunction(
    TwoInputFunction[FirstT, SecondT, ProcessContext, OutT],
    Generic[FirstT, SecondT, OutT],
):
    """A process function of two streams; subclass it. Methods may be ``async def``.

    With a method ``next_selection()``, not ``async def``, that returns an
    `InputSelection` it chooses the stream that the next record comes from.

    Concept:
        Flink, ``CoProcessFunction``.
    """


class CoProcessOperator(CoFunctionOperator):
    """Runs a `CoProcessFunction` on two streams without keys.

    Args:
        function: The function; it is not shared between subtasks.
        on_error: How to handle a record for which it raises.

    Raises:
        WrongTypeError: If ``function`` lacks one of its two methods.

    Concept:
        Flink, ``CoProcessOperator``.

    Example:
        >>> from aiomailbox.testing import TwoInputHarness
        >>> class Tag(CoProcessFunction):
        ...     def process_element1(self, value, context, out):
        ...         out.collect(("left", value))
        >>> with TwoInputHarness(CoProcessOperator(Tag())) as harness:
        ...     harness.first.process_element(1)
        ...     harness.values
        [('left', 1)]
    """

    without_keys = "Derive from KeyedCoProcessFunction and give both streams a key."


# Process functions on two keyed streams that share state and timers.
class KeyedCoProcessFunction(
    TwoInputFunction[FirstT, SecondT, KeyedProcessContext[KeyT], OutT],
    Generic[KeyT, FirstT, SecondT, OutT],
):
    """A process function of two streams with the same keys; subclass it.

    Each method may be ``async def``.

    Concept:
        Flink, ``KeyedCoProcessFunction``.
    """

    @inherited_on_timer
    def on_timer(
        self,
        timestamp: int,
        context: KeyedProcessContext[KeyT],
        out: Collector[OutT],
        /,
    ) -> Pending:
        """React to a timer that is due; see `KeyedProcessFunction.on_timer`."""
        return None


class KeyedCoProcessOperator(KeyedFunctionOperator, CoFunctionOperator):
    """Runs a `KeyedCoProcessFunction`.

    Args:
        key1: The key of the first stream's records: a field's name or a function.
        key2: The key of the second stream's; keys of both are of one type.
        function: The function; it is not shared between subtasks.
        on_error: How to handle a record for which it raises. The results and
            the state of the record until then stay.

    Raises:
        WrongTypeError: If ``function`` lacks a method, or one of them is a generator.

    Concept:
        Flink, ``KeyedCoProcessOperator``.

    Example:
        >>> from aiomailbox.state.descriptors import ValueStateDescriptor
        >>> from aiomailbox.testing import TwoInputHarness
        >>> class Latest(KeyedCoProcessFunction):
        ...     def open(self, context):
        ...         self.rate = context.keyed_state.get_value(
        ...             ValueStateDescriptor("rate")
        ...         )
        ...
        ...     def process_element1(self, value, context, out):
        ...         out.collect((value[0], self.rate.value()))
        ...
        ...     def process_element2(self, value, context, out):
        ...         self.rate.update(value[1])
        >>> by_first = lambda record: record[0]
        >>> operator = KeyedCoProcessOperator(by_first, by_first, Latest())
        >>> with TwoInputHarness(operator, keyed=True) as harness:
        ...     harness.second.process_element(("EUR", 1.1))
        ...     harness.first.process_run([("EUR",), ("USD",)])
        ...     harness.values
        [('EUR', 1.1), ('USD', None)]
    """

    def __init__(
        self,
        key1: KeySelector,
        key2: KeySelector,
        function: Any,
        *,
        on_error: OnError = fail,
    ) -> None:
        super().__init__(function, on_error, key1=key1, key2=key2)


# Functions on a stream and on one that every subtask gets: the broadcast pattern.


class BroadcastFunction(
    RichFunction[OutT], Generic[FirstT, SecondT, ContextT, OtherContextT, OutT]
):
    """A function of the records of a stream and of a broadcast one."""

    @abstractmethod
    def process_element(
        self, value: FirstT, context: ContextT, out: Collector[OutT], /
    ) -> Pending:
        """Process a record; ``context.get_broadcast_state(descriptor)`` is read-only."""
        raise WrongTypeError(
            "function", f"{type(self).__qualname__} defines no process_element"
        )

    @abstractmethod
    def process_broadcast_element(
        self, value: SecondT, context: OtherContextT, out: Collector[OutT], /
    ) -> Pending:
        """Process a broadcast record, which may change the broadcast state."""
        raise WrongTypeError(
            "function",
            f"{type(self).__qualname__} defines no process_broadcast_element",
        )

    def end_input(self, index: int, out: Collector[OutT], /) -> Pending:
        """React to the end of the stream (0) or of the broadcast stream (1)."""
        return None


class BroadcastProcessFunction(
    BroadcastFunction[FirstT, SecondT, ReadOnlyContext, BroadcastContext, OutT],
    Generic[FirstT, SecondT, OutT],
):
    """A function of a stream and of a broadcast one; subclass it.

    Each method may be ``async def``. With a method ``next_selection()``, which may not,
    that returns an `InputSelection` it chooses the stream that is read next: e.g. the
    broadcast one until it has ended.

    Concept:
        Flink, ``BroadcastProcessFunction``.
    """


class KeyedBroadcastProcessFunction(
    BroadcastFunction[
        FirstT, SecondT, KeyedReadOnlyContext[KeyT], KeyedBroadcastContext, OutT
    ],
    Generic[KeyT, FirstT, SecondT, OutT],
):
    """A function of a keyed stream and of a broadcast one; subclass it.

    `process_element` and `on_timer` have the key's state and timers; the broadcast side
    has ``context.apply_to_keyed_state(descriptor, function)`` instead.

    Concept:
        Flink, ``KeyedBroadcastProcessFunction``.
    """

    @inherited_on_timer
    def on_timer(
        self,
        timestamp: int,
        context: KeyedReadOnlyContext[KeyT],
        out: Collector[OutT],
        /,
    ) -> Pending:
        """React to a timer that is due; see `KeyedProcessFunction.on_timer`."""
        return None


class BroadcastOperator(CoFunctionOperator):
    """The base of operators whose second input is the broadcast one."""

    methods = ("process_element", "process_broadcast_element")
    _descriptors: Sequence[MapStateDescriptor]

    def may_leave_rest(self, index: int) -> bool:
        """Whether it may leave the rest of a run: not of what each subtask gets."""
        return not index


class BroadcastProcessOperator(BroadcastOperator):
    """Runs a `BroadcastProcessFunction`; the second input is the broadcast one.

    Args:
        function: The function; it is not shared between subtasks.
        descriptors: The broadcast state, of which every subtask has a copy.
        on_error: How to handle a record for which the function raises.

    Raises:
        InvalidArgumentError: If there is no descriptor, or two have one name.
        WrongTypeError: If ``function`` lacks a method, or something is no descriptor.

    Concept:
        Flink, ``CoBroadcastWithNonKeyedOperator``.

    Example:
        >>> from aiomailbox.testing import TwoInputHarness
        >>> words = MapStateDescriptor("words", str, str)
        >>> class Translate(BroadcastProcessFunction):
        ...     def process_element(self, value, context, out):
        ...         out.collect(context.get_broadcast_state(words).get(value, "?"))
        ...
        ...     def process_broadcast_element(self, value, context, out):
        ...         context.get_broadcast_state(words).put(*value)
        >>> operator = BroadcastProcessOperator(Translate(), [words])
        >>> with TwoInputHarness(operator) as harness:
        ...     harness.second.process_element(("ja", "yes"))
        ...     harness.first.process_run(["ja", "nei"])
        ...     harness.values
        ['yes', '?']
    """

    without_keys = (
        "Derive from KeyedBroadcastProcessFunction and give the stream a key."
    )

    def __init__(
        self,
        function: Any,
        descriptors: Sequence[MapStateDescriptor],
        *,
        on_error: OnError = fail,
    ) -> None:
        super().__init__(function, on_error)
        self._descriptors = check_descriptors(descriptors)

    def make_contexts(self) -> Sequence[ProcessContext]:
        """Return a context that reads broadcast state, and one that writes it."""
        context, collector = self.context, self._collector
        read, changed = broadcast_states(self._descriptors, context.operator_state)
        return [
            ReadOnlyContext(context, collector, read),
            BroadcastContext(context, collector, changed),
        ]


class KeyedBroadcastProcessOperator(KeyedFunctionOperator, BroadcastOperator):
    """Runs a `KeyedBroadcastProcessFunction`; the second input is the broadcast one.

    Args:
        key: The key of the first stream's records: a field's name or a function.
        function: The function; it is not shared between subtasks.
        descriptors: The broadcast state, of which every subtask has a copy.
        on_error: How to handle a record for which the function raises.

    Raises:
        InvalidArgumentError: If there is no descriptor, or two have one name.
        WrongTypeError: If ``function`` lacks a method, or something is no descriptor.

    Concept:
        Flink, ``CoBroadcastWithKeyedOperator``.

    Example:
        >>> from aiomailbox.state.descriptors import ValueStateDescriptor
        >>> from aiomailbox.testing import TwoInputHarness
        >>> rules = MapStateDescriptor("rules", str, int)
        >>> seen = ValueStateDescriptor("seen", int, default=0)
        >>> class Count(KeyedBroadcastProcessFunction):
        ...     def process_element(self, value, context, out):
        ...         count = context.keyed_state.get_value(seen)
        ...         count.update(count.value() + 1)
        ...         limit = context.get_broadcast_state(rules).get("limit", 1)
        ...         out.collect((context.current_key, count.value() <= limit))
        ...
        ...     def process_broadcast_element(self, value, context, out):
        ...         context.get_broadcast_state(rules).put(*value)
        >>> operator = KeyedBroadcastProcessOperator(str.lower, Count(), [rules])
        >>> with TwoInputHarness(operator, keyed=True) as harness:
        ...     harness.first.process_run(["a", "A"])
        ...     harness.second.process_element(("limit", 9))
        ...     harness.first.process_element("a")
        ...     harness.values
        [('a', True), ('a', False), ('a', True)]
    """

    def __init__(
        self,
        key: KeySelector,
        function: Any,
        descriptors: Sequence[MapStateDescriptor],
        *,
        on_error: OnError = fail,
    ) -> None:
        super().__init__(function, on_error, key=key)
        self._descriptors = check_descriptors(descriptors)

    def make_contexts(self) -> Sequence[ProcessContext]:
        """Return a context with a key, which reads broadcast state, and one without."""
        context, collector = self.context, self._collector
        store = context.operator_state
        self._states, changed = broadcast_states(self._descriptors, store)
        keyed, _ = super().make_contexts()
        return [keyed, KeyedBroadcastContext(context, collector, changed)]

    def keyed_context(self) -> KeyedProcessContext:
        return KeyedReadOnlyContext(
            self.context, self._collector, self._timers, self._states
        )

    def enter_of(self, index: int) -> Callable[[Any], None] | None:
        """Return what makes the key the current one; a broadcast record has none."""
        if index:
            return self.context.keyed_state.set_current_key
        return super().enter_of(index)

    def process_input(self, index: int, run: Run) -> Pending:
        """Call the function for each record, for a broadcast one without a key."""
        if index:
            return self._calls[1].process_run(run, [None] * len(run))
        return super().process_input(index, run)


def check_descriptors(
    descriptors: Sequence[MapStateDescriptor],
) -> Sequence[MapStateDescriptor]:
    """Return descriptors of broadcast state, checked.

    Raises:
        InvalidArgumentError: If there is none, or two have one name.
        WrongTypeError: If one is not a `MapStateDescriptor`.
    """
    for descriptor in descriptors:
        if not isinstance(descriptor, MapStateDescriptor):
            raise WrongTypeError(
                "descriptors",
                f"{descriptor!r} is not a MapStateDescriptor",
                "Write rules.broadcast(am.MapStateDescriptor('rules')).",
            )
    names = [descriptor.name for descriptor in descriptors]
    if not names or len(set(names)) < len(names):
        raise InvalidArgumentError(
            "descriptors",
            "there is none" if not names else f"two of {names} have one name",
            "Give each broadcast state a descriptor with a name of its own.",
        )
    return descriptors
