"""What functions may ask and keep where one of two streams is broadcast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aiomailbox.errors import StateError
from aiomailbox.eventtime.timers import InternalTimerService
from aiomailbox.operators.core.callables import check_sync_function
from aiomailbox.operators.core.collector import Collector
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.functions.keyed_context import KeyedProcessContext
from aiomailbox.operators.functions.process_context import ProcessContext
from aiomailbox.state.descriptors import MapStateDescriptor, StateDescriptor
from aiomailbox.state.operator_state import OperatorStateStore, ReadOnlyBroadcastState
from aiomailbox.state.store import KeyedStateStore, MapState
from aiomailbox.typevars import KeyT, MapKeyT, ValueT


class BroadcastStates:
    """The broadcast state of one subtask: a map for each declared descriptor.

    Args:
        descriptors: What was given to ``stream.broadcast(...)``.
        store: The operator's state without keys.
    """

    __slots__ = ("_readable", "_writable")

    def __init__(
        self, descriptors: Sequence[MapStateDescriptor], store: OperatorStateStore
    ) -> None:
        self._writable: dict[str, MapState] = {}
        self._readable: dict[str, ReadOnlyBroadcastState] = {}
        for descriptor in descriptors:
            name = descriptor.name
            self._writable[name] = store.get_broadcast_state(descriptor)
            self._readable[name] = store.get_read_only_broadcast_state(descriptor)

    def writable(self, descriptor: MapStateDescriptor) -> MapState:
        """Return the map for the broadcast side.

        Raises:
            StateError: If the descriptor was not declared.
        """
        state = self._writable.get(descriptor.name)
        if state is None:
            raise self._undeclared(descriptor)
        return state

    def readable(self, descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState:
        """Return the map for the other side, for reading; raises as `writable`."""
        state = self._readable.get(descriptor.name)
        if state is None:
            raise self._undeclared(descriptor)
        return state

    def _undeclared(self, descriptor: MapStateDescriptor) -> StateError:
        declared = ", ".join(sorted(self._writable)) or "none"
        return StateError(
            f"broadcast state {descriptor.name!r} was not declared (declared: "
            f"{declared}). Write rules.broadcast(descriptor) with this descriptor."
        )


class ReadOnlyContext(ProcessContext):
    """A `ProcessContext` for the side that is not broadcast.

    Concept:
        Flink, ``BroadcastProcessFunction.ReadOnlyContext``.
    """

    __slots__ = ("_states",)

    def __init__(
        self, context: RuntimeContext, collector: Collector, states: BroadcastStates
    ) -> None:
        super().__init__(context, collector)
        self._states = states

    def get_broadcast_state(
        self, descriptor: MapStateDescriptor[MapKeyT, ValueT]
    ) -> ReadOnlyBroadcastState[MapKeyT, ValueT]:
        """Return the broadcast state for reading."""
        return self._states.readable(descriptor)


class KeyedReadOnlyContext(KeyedProcessContext[KeyT]):
    """A `KeyedProcessContext` for the side that is not broadcast.

    Concept:
        Flink, ``KeyedBroadcastProcessFunction.ReadOnlyContext`` and ``OnTimerContext``.
    """

    __slots__ = ("_states",)

    def __init__(
        self,
        context: RuntimeContext,
        collector: Collector,
        timers: InternalTimerService,
        states: BroadcastStates,
    ) -> None:
        super().__init__(context, collector, timers)
        self._states = states

    def get_broadcast_state(
        self, descriptor: MapStateDescriptor[MapKeyT, ValueT]
    ) -> ReadOnlyBroadcastState[MapKeyT, ValueT]:
        """Return the broadcast state for reading."""
        return self._states.readable(descriptor)


class BroadcastContext(ProcessContext):
    """A `ProcessContext` for the broadcast side.

    Every subtask gets every broadcast record. It must do the same with it, for the
    copies of the state to stay equal.

    Concept:
        Flink, ``BroadcastProcessFunction.Context``.
    """

    __slots__ = ("_states",)

    def __init__(
        self, context: RuntimeContext, collector: Collector, states: BroadcastStates
    ) -> None:
        super().__init__(context, collector)
        self._states = states

    def get_broadcast_state(
        self, descriptor: MapStateDescriptor[MapKeyT, ValueT]
    ) -> MapState[MapKeyT, ValueT]:
        """Return this subtask's copy of the broadcast state."""
        return self._states.writable(descriptor)

    @property
    def timer_service(self) -> Any:
        """Timers, which the broadcast side does not have.

        Raises:
            StateError: Always: a broadcast record belongs to no key.
        """
        raise StateError(
            f"the broadcast side of operator {self._context.operator_name!r} has no "
            "timers, for its records have no key. Register them in process_element."
        )


class KeyedBroadcastContext(BroadcastContext):
    """A `BroadcastContext` beside a keyed stream.

    Concept:
        Flink, ``KeyedBroadcastProcessFunction.Context``.
    """

    __slots__ = ()

    def apply_to_keyed_state(
        self, descriptor: StateDescriptor, function: Callable[[Any, Any], None]
    ) -> None:
        """Call ``function(key, state)`` for each key of this subtask that has state.

        Args:
            descriptor: Names the state.
            function: Gets a key and its state object, which it may read and change. Not
                ``async def``: no record may come in between.

        Raises:
            WrongTypeError: If ``function`` is of a wrong type.
        """
        check_sync_function(function, "function", arity=2)
        store = self._context.keyed_state
        state = _state_of(store, descriptor)
        try:
            for key in store.keys(descriptor):
                store.set_current_key(key)
                function(key, state)
        finally:
            store.set_current_key(None)


def _state_of(store: KeyedStateStore, descriptor: StateDescriptor) -> Any:
    return getattr(store, f"get_{descriptor.kind}")(descriptor)
