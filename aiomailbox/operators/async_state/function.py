"""The user's keyed async function: its form, and how it is called."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Generic

from aiomailbox.durations import event_time_ms
from aiomailbox.errors import StateError, WrongTypeError
from aiomailbox.metrics.instruments import MetricGroup
from aiomailbox.operators.async_state.row_state import (
    CURRENT_ROW,
    KeyedEvent,
    RowChanges,
    StateHandles,
    TimerChange,
    WatchedRowChanges,
)
from aiomailbox.operators.core.collector import Collector
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.event_progress import warn_of_timer
from aiomailbox.operators.core.failures import Context
from aiomailbox.operators.core.operator import Pending
from aiomailbox.operators.core.resources import FunctionLife
from aiomailbox.operators.core.user_code import (
    CallableKind,
    callable_kind,
    check_function,
    collected,
    describe,
    refuse_generator,
)
from aiomailbox.operators.functions.base import (
    YIELDS,
    check_function_object,
    check_process_method,
    check_state_names,
    has_on_timer,
    inherited_on_timer,
)
from aiomailbox.operators.functions.contexts import TimeDomain, TimerNames, timer_ms
from aiomailbox.signatures import with_other_names
from aiomailbox.state.descriptors import (
    StateDescriptor,
)
from aiomailbox.state.store import (
    STATE_OF_ELSEWHERE,
    StateGetters,
    check_kind,
    refuse_second,
)
from aiomailbox.typevars import InT, KeyT, OutT

# What a keyed async function may ask, keep and plan.


@with_other_names("context.keyed_state", STATE_OF_ELSEWHERE)
class AsyncKeyedState(StateGetters):
    """Keyed state whose objects belong to a row, whatever other rows do meanwhile.

    Aggregating state with a time to live is refused.

    Args:
        find: Returns the state object that a descriptor names.
    """

    __slots__ = ("_find",)

    def __init__(self, find: Callable[[StateDescriptor], Any]) -> None:
        self._find = find

    def _state(self, descriptor: StateDescriptor, kind: str) -> Any:
        check_kind(descriptor, kind)
        return self._find(descriptor)


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
        self._asked: dict[str, StateDescriptor] = {}
        self.keyed_state: AsyncKeyedState = AsyncKeyedState(self._state)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def _state(self, descriptor: StateDescriptor) -> _StateOfCurrentRow:
        self._handles.get(descriptor)
        refuse_second(self._asked.setdefault(descriptor.name, descriptor), descriptor)
        return _StateOfCurrentRow(descriptor)


class AsyncTimerService(TimerNames):
    """The timers of a row's key; what is registered counts when the row has ended.

    Args:
        changes: Keeps what is to be done with timers.
        context: The operator's context.
        watermark: The watermark that the row knows of.
        refusal: Why there are no timers; empty if there are.
        timestamp: The row's event time, or the timer's; None if it has none.
    """

    __slots__ = ("_changes", "_context", "_refusal", "_timestamp", "current_watermark")

    def __init__(
        self,
        changes: RowChanges,
        context: RuntimeContext,
        watermark: int,
        refusal: str,
        timestamp: int | None,
    ) -> None:
        self._timestamp = timestamp
        self._changes = changes
        self._context = context
        self._refusal = refusal
        self.current_watermark: int = watermark

    def current_processing_time(self) -> int:
        """Return wall-clock time, milliseconds since the epoch."""
        return self._context.processing_time.current_processing_time()

    def register_event_time_timer(
        self, at: int | datetime | None = None, *, after: timedelta | None = None
    ) -> int:
        """Call ``on_timer`` when the watermark reaches a time; see `TimerService`."""
        time = timer_ms(at, after, self._timestamp)
        if isinstance(at, int):
            warn_of_timer(self._context, time, self._timestamp)
        return self._change(TimeDomain.EVENT_TIME, time, registers=True)

    def delete_event_time_timer(self, at: int | datetime) -> None:
        """Forget that timer; a no-op if there is none."""
        self._change(TimeDomain.EVENT_TIME, event_time_ms(at), registers=False)

    def register_processing_time_timer(
        self, at: int | datetime | None = None, *, after: timedelta | None = None
    ) -> int:
        """Call ``on_timer`` when wall-clock time has passed a time; see `TimerService`."""
        now = None if after is None else self.current_processing_time()
        time = timer_ms(at, after, now)
        if isinstance(at, int):
            warn_of_timer(self._context, time, self.current_processing_time())
        return self._change(TimeDomain.PROCESSING_TIME, time, registers=True)

    def delete_processing_time_timer(self, at: int | datetime) -> None:
        """Forget that timer; a no-op if there is none."""
        self._change(TimeDomain.PROCESSING_TIME, event_time_ms(at), registers=False)

    def _change(self, domain: TimeDomain, time: int, *, registers: bool) -> int:
        if self._refusal:
            raise StateError(self._refusal)
        self._changes.change_timer(TimerChange(domain, time, registers))
        return time


class KeyedAsyncContext(Context, Generic[KeyT]):
    """The context of one row, or of one timer, while it is processed.

    Unlike the context of a synchronous function it is not shared between calls.

    Args:
        event: The row or timer.
        changes: Takes what the function does.
        context: The operator's context.
        resource: The resource that ``open`` acquired.
        refusal: Why there are no timers; empty if there are.

    Attributes:
        timestamp: The row's event time in milliseconds or None; the timer's time.
        current_key: The key.
        current_watermark: The watermark before the row, or the one that fired.
        time_domain: Of a timer; None for a row.
        resource: The value of the asynchronous context manager of ``open``, or None.
        keyed_state: The state of the row's key: ``keyed_state.get_value(descriptor)`` and
            so on.
        timer_service: The timers of the row's key.

    Concept:
        Flink, ``KeyedProcessFunction.Context`` with asynchronous state.
    """

    __slots__ = (
        "_collector",
        "_context",
        "current_key",
        "current_watermark",
        "keyed_state",
        "resource",
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
        self._collector = changes
        self._context = context
        self.timestamp: int | None = event.timestamp
        self.current_key: KeyT = event.key
        self.current_watermark: int = event.watermark
        self.time_domain: TimeDomain | None = event.domain
        self.resource: Any = resource
        self.keyed_state: AsyncKeyedState = AsyncKeyedState(changes.state)
        self.timer_service: AsyncTimerService = AsyncTimerService(
            changes, context, event.watermark, refusal, event.timestamp
        )

    @property
    def metrics(self) -> MetricGroup:
        """The operator's metrics."""
        return self._context.metrics

    def current_processing_time(self) -> int:
        """Return wall-clock time, milliseconds since the epoch."""
        return self._context.processing_time.current_processing_time()


class KeyedAsyncProcessFunction(Generic[KeyT, InT, OutT]):
    """An asynchronous function with state and timers per key; subclass it.

    While a row of a key is being processed no other row and no timer of that key is;
    rows of other keys are. The function's results, changes of state and timers take
    effect together when it has returned, or not at all if it raises.

    State objects may be made in `open`, from ``context.keyed_state``, and kept.

    Concept:
        Flink, ``KeyedProcessFunction`` on asynchronous state.

    Example:
        >>> import asyncio
        >>> import aiomailbox as am
        >>> class Count(am.KeyedAsyncProcessFunction):
        ...     def open(self, context):
        ...         self.seen = context.keyed_state.get_value(
        ...             am.ValueStateDescriptor("seen", int, default=0)
        ...         )
        ...
        ...     async def process_element(self, value, context, out):
        ...         seen = self.seen.value() + 1
        ...         await asyncio.sleep(0.001)  # ask a server
        ...         self.seen.update(seen)
        ...         out.collect((value, seen))
        >>> env = am.StreamExecutionEnvironment()
        >>> words = env.from_collection(["a", "b", "a"])
        >>> counts = words.key_by(lambda word: word).process_async(Count())
        >>> sorted(am.run(counts.collect()))
        [('a', 1), ('a', 2), ('b', 1)]
    """

    def open(self, context: RuntimeContext, /) -> Any:
        """Acquire what the function needs, once a subtask; may be ``async def``.

        Args:
            context: The operator's context.

        Returns:
            None, or a context manager, e.g. an HTTP client. The operator enters it now
            and leaves it at the end; its value is ``context.resource`` in every call.
        """
        return None

    @abstractmethod
    async def process_element(
        self, value: InT, context: KeyedAsyncContext[KeyT], out: Collector[OutT], /
    ) -> None:
        """Process one record; pass results to ``out.collect(value)``."""
        raise WrongTypeError(
            "function", f"{type(self).__qualname__} defines no process_element"
        )

    @inherited_on_timer
    async def on_timer(
        self,
        timestamp: int,
        context: KeyedAsyncContext[KeyT],
        out: Collector[OutT],
        /,
    ) -> None:
        """React to a timer of the key that is due; by default nothing happens."""

    def close(self) -> Pending:
        """Release resources; called also after a failure."""
        return None


class KeyedAsyncFunction:
    """Calls a function object, or a plain function, with rows and timers.

    Args:
        function: An instance with ``process_element`` and maybe ``on_timer``; or an
            ``async def`` function ``(value, context, out)``.

    Raises:
        WrongTypeError: If it is something else.
    """

    def __init__(self, function: Any) -> None:
        self.given = function
        check_state_names(function)
        self.life: FunctionLife = FunctionLife(function)
        self._on_timer: Callable[..., Any] | None = None
        self.refusal: str = ""
        if inspect.isclass(function):
            raise WrongTypeError(
                "function",
                f"{function.__qualname__} is a class",
                f"Give an instance: {function.__qualname__}().",
            )
        if hasattr(function, "process_element"):
            self._process = check_process_method(function, "process_element")
            check_function_object(function)
            if has_on_timer(function):
                self._on_timer = check_process_method(function, "on_timer")
        else:
            self._process = _check_plain(function)
        if self._on_timer is None:
            self.refusal = (
                f"{describe(self._process)} has no on_timer. "
                "Derive a class from am.KeyedAsyncProcessFunction and define it."
            )

    def open(self, context: RuntimeContext, handles: StateHandles) -> Pending:
        """Open the function.

        Args:
            context: The operator's context.
            handles: The operator's state.
        """
        self._context = context
        self._handles = handles
        return self.life.open(AsyncOpenContext(context, handles))

    async def call(self, event: KeyedEvent) -> RowChanges:
        """Process a row or a timer; return what came of it, to be applied."""
        check = self._context.mutations
        changes = (
            RowChanges(event, self._handles)
            if check is None
            else WatchedRowChanges(event, self._handles, check)
        )
        context = KeyedAsyncContext(
            event, changes, self._context, self.life.resource, self.refusal
        )
        CURRENT_ROW.set(changes)
        try:
            call = self._process if event.domain is None else self._on_timer
            if call is not None:
                # A timer without a handler has no call.
                given = event.value if event.domain is None else event.timestamp
                pending: Any = call(given, context, changes)  # type: ignore[arg-type]
                if pending is not None:
                    await collected(call, pending)
        finally:
            changes.ended = True
        if isinstance(changes, WatchedRowChanges):
            changes.compare()
        return changes


def _check_plain(function: Any) -> Callable[..., Any]:
    checked = check_function(function, "function", arity=3, gets="value, context, out")
    kind = callable_kind(checked)
    if kind is CallableKind.ASYNC:
        return checked
    refuse_generator(checked, "function", YIELDS, WrongTypeError)
    raise WrongTypeError(
        "function",
        f"{describe(checked)} is not asynchronous",
        "Write async def, or use process() with a KeyedProcessFunction.",
    )
