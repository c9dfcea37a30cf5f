"""Functions on a stream and on one that every subtask gets: the broadcast pattern."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic

from aiomailbox.errors import InvalidArgumentError, WrongTypeError
from aiomailbox.operators.core.collector import Collector
from aiomailbox.operators.core.failures import OnError, fail
from aiomailbox.operators.core.operator import Pending
from aiomailbox.operators.functions.base import (
    RichFunction,
    check_without_keys,
    inherited_on_timer,
)
from aiomailbox.operators.functions.contexts import (
    BroadcastContext,
    BroadcastStates,
    KeyedBroadcastContext,
    KeyedProcessContext,
    KeyedReadOnlyContext,
    ProcessContext,
    ReadOnlyContext,
)
from aiomailbox.operators.functions.process import (
    CoFunctionOperator,
    KeyedFunctionOperator,
)
from aiomailbox.operators.keyed.operators import KeySelector
from aiomailbox.records.run import Run
from aiomailbox.state.descriptors import MapStateDescriptor
from aiomailbox.typevars import (
    ContextT,
    FirstT,
    KeyT,
    OtherContextT,
    OutT,
    SecondT,
)


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


# The methods of both inputs.
_METHODS: Final = ("process_element", "process_broadcast_element")


class BroadcastProcessOperator(CoFunctionOperator):
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

    methods = _METHODS

    def __init__(
        self,
        function: Any,
        descriptors: Sequence[MapStateDescriptor],
        *,
        on_error: OnError = fail,
    ) -> None:
        super().__init__(function, on_error)
        check_without_keys(
            function,
            "Derive from KeyedBroadcastProcessFunction and give the stream a key.",
        )
        self._descriptors = check_descriptors(descriptors)

    def may_leave_rest(self, index: int) -> bool:
        """Whether it may leave the rest of a run: not of what each subtask gets."""
        return not index

    def make_contexts(self) -> Sequence[ProcessContext]:
        """Return a context that reads broadcast state, and one that writes it."""
        context, collector = self.context, self._collector
        states = BroadcastStates(self._descriptors, context.operator_state)
        return [
            ReadOnlyContext(context, collector, states),
            BroadcastContext(context, collector, states),
        ]


class KeyedBroadcastProcessOperator(KeyedFunctionOperator, CoFunctionOperator):
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
        >>> from aiomailbox.state.descriptors import ValueStateDescriptor
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

    methods = _METHODS

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
        self._states = BroadcastStates(self._descriptors, context.operator_state)
        keyed, _ = super().make_contexts()
        return [keyed, KeyedBroadcastContext(context, collector, self._states)]

    def keyed_context(self) -> KeyedProcessContext:
        """Return the context of the methods that have a key."""
        return KeyedReadOnlyContext(
            self.context, self._collector, self._timers, self._states
        )

    def may_leave_rest(self, index: int) -> bool:
        """Whether it may leave the rest of a run: not of what each subtask gets."""
        return not index

    def enter_of(self, index: int) -> Callable[[Any], None] | None:
        """Return what makes the key the current one; a broadcast record has none."""
        if index:
            return self.context.keyed_state.set_current_key
        return super().enter_of(index)

    def process_run2(self, run: Run) -> Pending:
        """Call the function for each broadcast record, without a key."""
        return self._calls[1].process_run(run, [None] * len(run))


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
