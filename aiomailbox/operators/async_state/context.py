"""What a keyed async function may ask, keep and plan."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Generic, cast

from aiomailbox.durations import event_time_ms
from aiomailbox.errors import StateError, WrongTypeError
from aiomailbox.metrics.instruments import MetricGroup
from aiomailbox.operators.async_state.changes import (
    CURRENT_ROW,
    RowChanges,
    TimerChange,
)
from aiomailbox.operators.async_state.event import KeyedEvent
from aiomailbox.operators.async_state.row_state import StateHandles
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.misnamed import Context
from aiomailbox.operators.functions.keyed_context import TimeDomain
from aiomailbox.records.elements import OutputTag
from aiomailbox.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from aiomailbox.state.store import (
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)
from aiomailbox.typevars import InT, KeyT, MapKeyT, OutT, ValueT

__all__ = [
    "AsyncKeyedState",
    "AsyncOpenContext",
    "AsyncTimerService",
    "KeyedAsyncContext",
]


class AsyncKeyedState:
    """Keyed state whose objects belong to a row, whatever other rows do meanwhile.

    Args:
        find: Returns the state object that a descriptor names.
    """

    __slots__ = ("_find",)

    def __init__(self, find: Callable[[StateDescriptor], Any]) -> None:
        self._find = find

    def get_value(self, descriptor: ValueStateDescriptor[ValueT]) -> ValueState[ValueT]:
        """Return a value state."""
        return cast("ValueState[ValueT]", self._find(descriptor))

    def get_list(self, descriptor: ListStateDescriptor[ValueT]) -> ListState[ValueT]:
        """Return a list state."""
        return cast("ListState[ValueT]", self._find(descriptor))

    def get_map(
        self, descriptor: MapStateDescriptor[MapKeyT, ValueT]
    ) -> MapState[MapKeyT, ValueT]:
        """Return a map state."""
        return cast("MapState[MapKeyT, ValueT]", self._find(descriptor))

    def get_reducing(
        self, descriptor: ReducingStateDescriptor[ValueT]
    ) -> ReducingState[ValueT]:
        """Return a reducing state."""
        return cast("ReducingState[ValueT]", self._find(descriptor))

    def get_aggregating(
        self, descriptor: AggregatingStateDescriptor[InT, OutT]
    ) -> AggregatingState[InT, OutT]:
        """Return an aggregating state; one with a time to live is refused."""
        return cast("AggregatingState[InT, OutT]", self._find(descriptor))


class _StateOfCurrentRow:
    """A state object that was made in ``open``: that of the row that uses it."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: StateDescriptor) -> None:
        self._descriptor = descriptor

    def __getattr__(self, name: str) -> Any:
        changes = CURRENT_ROW.get(None)
        if changes is None:
            raise StateError(
                f"state {self._descriptor.name!r} was used while no row is processed. "
                "It can be used in process_element and on_timer, not in open or close."
            )
        return getattr(changes.state(self._descriptor), name)


class AsyncOpenContext:
    """The operator's context with state objects that refer to the row that uses them.

    Args:
        context: The operator's context.
        handles: The operator's state.
    """

    def __init__(self, context: RuntimeContext, handles: StateHandles) -> None:
        self._context = context
        self._handles = handles
        self.keyed_state: AsyncKeyedState = AsyncKeyedState(self._state)
        self.state: AsyncKeyedState = self.keyed_state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def _state(self, descriptor: StateDescriptor) -> _StateOfCurrentRow:
        self._handles.get(descriptor)
        return _StateOfCurrentRow(descriptor)


class AsyncTimerService:
    """The timers of a row's key; what is registered counts when the row has ended.

    Args:
        changes: Keeps what is to be done with timers.
        context: The operator's context.
        watermark: The watermark that the row knows of.
        refusal: Why there are no timers; empty if there are.
    """

    __slots__ = ("_changes", "_context", "_refusal", "current_watermark")

    def __init__(
        self,
        changes: RowChanges,
        context: RuntimeContext,
        watermark: int,
        refusal: str,
    ) -> None:
        self._changes = changes
        self._context = context
        self._refusal = refusal
        self.current_watermark: int = watermark

    def current_processing_time(self) -> int:
        """Return wall-clock time, milliseconds since the epoch."""
        return self._context.processing_time.current_processing_time()

    def register_event_time_timer(self, timestamp: int | datetime) -> None:
        """Call ``on_timer`` when the watermark reaches ``timestamp``."""
        self._change(TimeDomain.EVENT_TIME, timestamp, registers=True)

    def delete_event_time_timer(self, timestamp: int | datetime) -> None:
        """Forget that timer; a no-op if there is none."""
        self._change(TimeDomain.EVENT_TIME, timestamp, registers=False)

    def register_processing_time_timer(self, timestamp: int | datetime) -> None:
        """Call ``on_timer`` when wall-clock time has passed ``timestamp``."""
        self._change(TimeDomain.PROCESSING_TIME, timestamp, registers=True)

    def delete_processing_time_timer(self, timestamp: int | datetime) -> None:
        """Forget that timer; a no-op if there is none."""
        self._change(TimeDomain.PROCESSING_TIME, timestamp, registers=False)

    def _change(
        self, domain: TimeDomain, timestamp: int | datetime, *, registers: bool
    ) -> None:
        if self._refusal:
            raise StateError(self._refusal)
        change = TimerChange(domain, event_time_ms(timestamp), registers)
        self._changes.change_timer(change)


class KeyedAsyncContext(Context, Generic[KeyT]):
    """What belongs to one row, or to one timer, as long as it is processed.

    Unlike the context of a synchronous function it is not shared between calls.

    Args:
        event: The row or timer.
        changes: Takes what the function does.
        context: The operator's context.
        resource: What ``open`` acquired.
        refusal: Why there are no timers; empty if there are.

    Attributes:
        timestamp: The row's event time in milliseconds or None; the timer's time.
        current_key: The key.
        current_watermark: The watermark before the row, or the one that fired.
        time_domain: Of a timer; None for a row.
        resource: What the asynchronous context manager of ``open`` gave, or None.
        state: The state of the row's key: ``state.get_value(descriptor)`` and so on.
        timer_service: The timers of the row's key.

    Concept:
        Flink, ``KeyedProcessFunction.Context`` with asynchronous state.
    """

    __slots__ = (
        "_changes",
        "_context",
        "current_key",
        "current_watermark",
        "resource",
        "state",
        "time_domain",
        "timer_service",
        "timestamp",
    )

    def __init__(
        self,
        event: KeyedEvent,
        changes: RowChanges,
        context: RuntimeContext,
        resource: Any,
        refusal: str,
    ) -> None:
        self._changes = changes
        self._context = context
        self.timestamp: int | None = event.timestamp
        self.current_key: KeyT = event.key
        self.current_watermark: int = event.watermark
        self.time_domain: TimeDomain | None = event.domain
        self.resource: Any = resource
        self.state: AsyncKeyedState = AsyncKeyedState(changes.state)
        self.timer_service: AsyncTimerService = AsyncTimerService(
            changes, context, event.watermark, refusal
        )

    @property
    def metrics(self) -> MetricGroup:
        """The operator's metrics."""
        return self._context.metrics

    def current_processing_time(self) -> int:
        """Return wall-clock time, milliseconds since the epoch."""
        return self._context.processing_time.current_processing_time()

    def output(self, tag: OutputTag[ValueT], value: ValueT) -> None:
        """Emit to a side output, with the event time of the row.

        Raises:
            WrongTypeError: If ``tag`` is not an `OutputTag`.
        """
        if not isinstance(tag, OutputTag):
            raise WrongTypeError(
                "tag", f"{tag!r} is not an OutputTag", "Write am.OutputTag('late')."
            )
        self._changes.collect_side(tag, value)
