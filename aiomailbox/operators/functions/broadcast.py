"""Functions on a stream and on one that every subtask gets: the broadcast pattern."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiomailbox.errors import InvalidArgumentError, WrongTypeError
from aiomailbox.operators.core.collector import Collector
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.contract import Pending, then
from aiomailbox.operators.core.failures import RecordFailures
from aiomailbox.operators.core.on_error import OnError, check_on_error, fail
from aiomailbox.operators.core.resources import FunctionLife
from aiomailbox.operators.core.selectors import field_or_function
from aiomailbox.operators.functions.broadcast_context import (
    BroadcastContext,
    BroadcastStates,
    KeyedBroadcastContext,
    KeyedReadOnlyContext,
    ReadOnlyContext,
)
from aiomailbox.operators.functions.co_inputs import CoInputsOperator
from aiomailbox.operators.functions.function_state import (
    check_without_keys,
    inherited_on_timer,
)
from aiomailbox.operators.functions.keyed import KeyedFunctionOperator
from aiomailbox.operators.functions.process import ElementCalls, check_process_method
from aiomailbox.operators.keyed.key_reader import KeyReader
from aiomailbox.operators.keyed.operators import KeySelector
from aiomailbox.records import MIN_TIMESTAMP, Run
from aiomailbox.state import MapStateDescriptor


class BroadcastProcessFunction:
    """A function of a stream and of a broadcast one; subclass it.

    Each method may be ``async def``. With a method ``next_selection()``, which may not,
    that returns an `InputSelection` it chooses the stream that is read next: e.g. the
    broadcast one until it has ended.

    Concept:
        Flink, ``BroadcastProcessFunction``.
    """

    def open(self, context: RuntimeContext) -> Any:
        """Acquire resources, before the first record.

        A context manager that is returned, such as an HTTP client, is entered now and
        left at the end; what it gives is ``context.resource`` of the other methods.
        """
        return None

    def process_element(self, value: Any, context: Any, out: Collector) -> Pending:
        """Process a record; ``context.get_broadcast_state(descriptor)`` is read-only."""
        raise WrongTypeError(
            "function", f"{type(self).__qualname__} defines no process_element"
        )

    def process_broadcast_element(
        self, value: Any, context: Any, out: Collector
    ) -> Pending:
        """Process a broadcast record, which may change the broadcast state."""
        raise WrongTypeError(
            "function",
            f"{type(self).__qualname__} defines no process_broadcast_element",
        )

    def end_input(self, index: int, out: Collector) -> Pending:
        """Take note that the stream (0) or the broadcast stream (1) has ended."""
        return None

    def finish(self, out: Collector) -> Pending:
        """Emit what is still held back; no record follows."""
        return None

    def close(self) -> Pending:
        """Release resources; called also after a failure."""
        return None


class KeyedBroadcastProcessFunction(BroadcastProcessFunction):
    """A function of a keyed stream and of a broadcast one; subclass it.

    `process_element` and `on_timer` have the key's state and timers; the broadcast side
    has ``context.apply_to_keyed_state(descriptor, function)`` instead.

    Concept:
        Flink, ``KeyedBroadcastProcessFunction``.
    """

    @inherited_on_timer
    def on_timer(self, timestamp: int, context: Any, out: Collector) -> Pending:
        """Take note that a timer is due; see `KeyedProcessFunction.on_timer`."""
        return None


class BroadcastProcessOperator(CoInputsOperator):
    """Runs a `BroadcastProcessFunction`; the second input is the broadcast one.

    Args:
        function: The function; it is not shared between subtasks.
        descriptors: The broadcast state, of which every subtask has a copy.
        on_error: What to do with a record for which the function raises.

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

    def __init__(
        self,
        function: Any,
        descriptors: Sequence[MapStateDescriptor],
        *,
        on_error: OnError = fail,
    ) -> None:
        super().__init__()
        self._call = check_process_method(function, "process_element")
        self._broadcast = check_process_method(function, "process_broadcast_element")
        check_without_keys(
            function,
            "Derive from KeyedBroadcastProcessFunction and give the stream a key.",
        )
        self.function = function
        self.on_error = check_on_error(on_error)
        self._descriptors = check_descriptors(descriptors)
        self._is_open = False

    def open(self) -> Pending:
        """Open the function."""
        context = self.context
        collector = self._collector = Collector(self.output)
        states = BroadcastStates(self._descriptors, context.operator_state)
        self._read_context = ReadOnlyContext(context, collector, states)
        self._write_context = BroadcastContext(context, collector, states)
        self._read_context.current_watermark = self.watermark_ms
        self._write_context.current_watermark = self.watermark_ms
        self._failures = RecordFailures(self.on_error, self._call, context, self.output)
        self._first = ElementCalls(
            self._call, self._read_context, collector, self._failures
        )
        self._second = ElementCalls(
            self._broadcast, self._write_context, collector, self._failures
        )
        self._is_open = True
        self._life = FunctionLife(self.function)
        holders = self._read_context, self._write_context
        return self._failures.guard(self._life.open, context, *holders)

    def process_run1(self, run: Run) -> Pending:
        """Call the function for each record."""
        return self._first.process_run(run)

    def process_run2(self, run: Run) -> Pending:
        """Call the function for each broadcast record."""
        return self._second.process_run(run)

    def process_watermark(self, timestamp_ms: int) -> Pending:
        """Note the watermark of both streams for the function and pass it on."""
        self.watermark_ms = timestamp_ms
        self._read_context.current_watermark = timestamp_ms
        self._write_context.current_watermark = timestamp_ms
        return self.output.emit_watermark(timestamp_ms)

    def fill_state(self) -> None:
        """Let the function put what it holds into its state."""
        if self._is_open:
            self._failures.guard(self._life.snapshot)

    def finish(self) -> Pending:
        """Let the function emit what it holds back."""
        self._collector.timestamp = MIN_TIMESTAMP
        pending = self._failures.guard(self.function.finish, self._collector)
        return then(pending, self._first.emit)

    def close(self) -> Pending:
        """Close the function, if it was opened."""
        if not self._is_open:
            return None
        self._is_open = False
        self._collector.discard()
        return self._failures.guard(self._life.close)


class KeyedBroadcastProcessOperator(KeyedFunctionOperator, CoInputsOperator):
    """Runs a `KeyedBroadcastProcessFunction`; the second input is the broadcast one.

    Args:
        key: The key of the first stream's records: a field's name or a function.
        function: The function; it is not shared between subtasks.
        descriptors: The broadcast state, of which every subtask has a copy.
        on_error: What to do with a record for which the function raises.

    Raises:
        InvalidArgumentError: If there is no descriptor, or two have one name.
        WrongTypeError: If ``function`` lacks a method, or something is no descriptor.

    Concept:
        Flink, ``CoBroadcastWithKeyedOperator``.

    Example:
        >>> from aiomailbox.state import ValueStateDescriptor
        >>> from aiomailbox.testing import TwoInputHarness
        >>> rules = MapStateDescriptor("rules", str, int)
        >>> seen = ValueStateDescriptor("seen", int, default=0)
        >>> class Count(KeyedBroadcastProcessFunction):
        ...     def process_element(self, value, context, out):
        ...         count = context.state.get_value(seen)
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
        self._call = check_process_method(function, "process_element")
        self._broadcast = check_process_method(function, "process_broadcast_element")
        self._key = field_or_function(key, "key")
        self._descriptors = check_descriptors(descriptors)
        super().__init__(function, on_error)

    def open(self) -> Pending:
        """Bind state and timers, and open the function."""
        pending = super().open()
        context, collector = self.context, self._collector
        states = BroadcastStates(self._descriptors, context.operator_state)
        self._context = KeyedReadOnlyContext(context, collector, self._timers, states)
        self._write_context = KeyedBroadcastContext(context, collector, states)
        self._context.current_watermark = self.watermark_ms
        self._write_context.current_watermark = self.watermark_ms
        self._life.share(self._context, self._write_context)
        self._keys = KeyReader(self._key, self)
        self._calls = self._element_calls(self._call)
        self._broadcast_calls = ElementCalls(
            self._broadcast,
            self._write_context,
            collector,
            self._failures,
            self._leave_key,
        )
        return pending

    def process_run1(self, run: Run) -> Pending:
        """Call the function for each record, with its key."""
        return self._process_keyed(self._calls, self._keys, run)

    def process_run2(self, run: Run) -> Pending:
        """Call the function for each broadcast record, without a key."""
        return self._broadcast_calls.process_run(run)

    def process_watermark(self, timestamp_ms: int) -> Pending:
        """Fire timers, pass on what they emitted, then the watermark."""
        self._write_context.current_watermark = timestamp_ms
        return super().process_watermark(timestamp_ms)

    def _leave_key(self, value: Any) -> None:
        self.context.keyed_state.set_current_key(None)


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
