"""The contexts of users' functions: time, timers, side outputs, state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NoReturn, cast

from aiomailbox.durations import event_time_ms, pipeline_ms
from aiomailbox.errors import (
    InvalidArgumentError,
    StateError,
    UsageError,
)
from aiomailbox.eventtime.timers import InternalTimerService
from aiomailbox.mailbox.executor import MailboxExecutor
from aiomailbox.metrics.instruments import MetricGroup
from aiomailbox.operators.core.collector import Collector
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.event_progress import warn_of_timer
from aiomailbox.operators.core.failures import Context
from aiomailbox.operators.core.user_code import check_sync_function, describe
from aiomailbox.records.events import MAX_TIMESTAMP, MIN_TIMESTAMP
from aiomailbox.signatures import Misnamed
from aiomailbox.state.cells import NO_KEY, CurrentKey
from aiomailbox.state.descriptors import VOID, MapStateDescriptor, StateDescriptor
from aiomailbox.state.operator_state import OperatorStateStore, ReadOnlyBroadcastState
from aiomailbox.state.store import MapState
from aiomailbox.state.table_store import KeyedStateStore
from aiomailbox.typevars import KeyT, MapKeyT, ValueT

# What a process function may ask while it processes a record.


class ProcessContext(Context):
    """The record's event time, side outputs, time, and the task's services.

    One object serves all calls of a function: it describes the record that is being
    processed now and is not to be kept.

    Args:
        context: The operator's context.
        collector: Where the function's results go.

    Attributes:
        timestamp: The record's event time in milliseconds, or None.
        current_watermark: The watermark so far, `MIN_TIMESTAMP` before the first.
        resource: The value of the context manager that ``open`` returned, or None.

    Concept:
        Flink, ``ProcessFunction.Context``.
    """

    __slots__ = ("_collector", "_context", "current_watermark", "resource", "timestamp")

    def __init__(self, context: RuntimeContext, collector: Collector) -> None:
        self._context = context
        self._collector = collector
        self.timestamp: int | None = None
        self.current_watermark: int = MIN_TIMESTAMP
        self.resource: Any = None

    @property
    def metrics(self) -> MetricGroup:
        """The operator's metrics."""
        return self._context.metrics

    @property
    def mailbox(self) -> MailboxExecutor:
        """The task's mailbox, at the operator's priority."""
        return self._context.mailbox

    @property
    def keyed_state(self) -> Any:
        """The state of the current key, which only records of keyed streams have.

        Raises:
            StateError: Where there is no current key.
        """
        raise StateError(
            f"operator {self._context.operator_name!r} has no keyed state here, for "
            "this record has no key. Write stream.key_by(...).process(...)."
        )

    def own(self, pending: Awaitable[None]) -> Awaitable[None]:
        """Return what awaits a call of the function; without keys that is the call."""
        return pending

    def current_processing_time(self) -> int:
        """Return wall-clock time, integer milliseconds since the epoch."""
        return self._context.processing_time.current_processing_time()

    @property
    def timer_service(self) -> Any:
        """Timers, which only keyed streams have.

        Raises:
            StateError: On a stream without keys.
        """
        raise StateError(
            f"operator {self._context.operator_name!r} has no timers, for its stream "
            "has no keys. Write stream.key_by(...).process(...)."
        )


# What a process function on a keyed stream may ask, keep and plan.


class TimeDomain(Enum):
    """Which time a timer is about.

    Concept:
        Flink, ``TimeDomain``.
    """

    EVENT_TIME = "event_time"
    PROCESSING_TIME = "processing_time"


class TimerNames(Misnamed):
    """The base of classes that have timers: it knows other libraries' names for them."""

    __slots__ = ()
    _called = "context.timer_service"
    _meant: ClassVar[Mapping[str, str]] = {
        "register_timer": "register_event_time_timer(after=...), or "
        "register_processing_time_timer(after=...)",
        "delete_timer": "delete_event_time_timer(at), or "
        "delete_processing_time_timer(at)",
        "set_timer": "register_event_time_timer(at)",
    }


# So many timers that were not there, and none that was, are no races with their firing.
_MISSED_MAX: Final = 10


class TimerService(TimerNames):
    """The timers of the current key.

    A timer is a key and a time: registering it again changes nothing. Times are
    integer milliseconds since the epoch, or aware datetimes; ``after=`` is a timedelta.

    Concept:
        Flink, ``TimerService``.
    """

    __slots__ = ("_context", "_current", "_has_looked", "_missed", "_timers")

    def __init__(
        self, timers: InternalTimerService, context: KeyedProcessContext
    ) -> None:
        self._timers = timers
        self._context = context
        # Whether the unit of a time has been looked at: the first one is enough.
        self._has_looked = False
        self._current: CurrentKey = context.keyed_state.current
        # How many timers were to be deleted that were not there; -1 if one was.
        self._missed = 0

    if not TYPE_CHECKING:

        def __call__(self) -> NoReturn:
            """Say that it is no method, as it is in Flink.

            Raises:
                UsageError: Always.
            """
            raise UsageError("timer_service is no method: write context.timer_service")

    @property
    def current_watermark(self) -> int:
        """The watermark, `MIN_TIMESTAMP` before the first."""
        return self._timers.current_watermark

    def current_processing_time(self) -> int:
        """Return wall-clock time, milliseconds since the epoch."""
        return self._timers.current_processing_time()

    def register_event_time_timer(
        self, at: int | datetime | None = None, *, after: timedelta | None = None
    ) -> int:
        """Call ``on_timer`` when the watermark reaches a time.

        If it has reached it already, that is with the next watermark.

        Args:
            at: The time: milliseconds since the epoch, or an aware datetime.
            after: In its place, how long after the event time of the record, or of the
                timer that is due: a timedelta.

        Returns:
            The timer's time in milliseconds, by which it can be deleted.

        Raises:
            InvalidArgumentError: If not one of both is given, or the record has no event
                time that ``after`` could count from.
            StateError: If no key is current, as the function has returned.
            TimestampError: If ``at`` is no time.
        """
        time = timer_ms(at, after, self._context.timestamp)
        key = self._context.current_key
        if self._current.key is NO_KEY:
            self._current.required("a timer was registered")
        if self._context.timestamp is None:
            self._context.warn_of_no_times(time)
        if at is not None and not self._has_looked:
            self._look_at(at, time, self._context.timestamp)
        self._timers.register_event_time_timer(key, VOID, time)
        return time

    def delete_event_time_timer(self, at: int | datetime) -> None:
        """Forget that timer; a no-op if there is none."""
        key, time = self._context.current_key, event_time_ms(at)
        found = self._timers.delete_event_time_timer(key, VOID, time)
        if self._missed >= 0:
            self._look_at_deleted(time, found=found)

    def register_processing_time_timer(
        self, at: int | datetime | None = None, *, after: timedelta | None = None
    ) -> int:
        """Call ``on_timer`` when wall-clock time has passed a time.

        Args:
            at: The time: milliseconds since the epoch, or an aware datetime.
            after: In its place, how long from now: a timedelta.

        Returns:
            The timer's time in milliseconds, by which it can be deleted.

        Raises:
            InvalidArgumentError: If not one of both is given.
            StateError: If no key is current, as the function has returned.
            TimestampError: If ``at`` is no time.
        """
        now = None if after is None else self.current_processing_time()
        time = timer_ms(at, after, now)
        key = self._context.current_key
        if self._current.key is NO_KEY:
            self._current.required("a timer was registered")
        if at is not None and not self._has_looked:
            self._look_at(at, time, self.current_processing_time())
        self._timers.register_processing_time_timer(key, VOID, time)
        return time

    def delete_processing_time_timer(self, at: int | datetime) -> None:
        """Forget that timer; a no-op if there is none."""
        key, time = self._context.current_key, event_time_ms(at)
        found = self._timers.delete_processing_time_timer(key, VOID, time)
        if self._missed >= 0:
            self._look_at_deleted(time, found=found)

    def _look_at_deleted(self, time_ms: int, *, found: bool) -> None:
        self._missed = -1 if found else self._missed + 1
        if self._missed == _MISSED_MAX:
            self._missed = -1
            self._context.warn_of_missed(time_ms, _MISSED_MAX)

    def _look_at(self, at: int | datetime, time_ms: int, now_ms: int | None) -> None:
        self._has_looked = True
        if isinstance(at, int):
            self._context.warn_of_unit(time_ms, now_ms)


def timer_ms(
    at: int | datetime | None, after: timedelta | None, now_ms: int | None
) -> int:
    """Return the time of a timer in milliseconds.

    Args:
        at: The time itself, or None.
        after: In its place, how long after ``now_ms``.
        now_ms: What ``after`` counts from; None if there is no such time.

    Raises:
        InvalidArgumentError: If not one of both is given, or there is nothing to count
            from.
    """
    if after is None:
        if at is None:
            raise InvalidArgumentError(
                "at", "a timer needs a time", "Give at=... or after=am.seconds(5)."
            )
        return event_time_ms(at)
    if at is not None:
        raise InvalidArgumentError(
            "after",
            "the timer has a time already",
            "Give at=... or after=..., not both.",
        )
    if now_ms is None:
        raise InvalidArgumentError(
            "after",
            "the record has no event time from which it could count",
            "Assign event times, or register a timer of processing time.",
        )
    return now_ms + pipeline_ms(after, "after")


class NoTimerService(TimerService):
    """The timers of a function without ``on_timer``: none can be registered.

    Args:
        timers: The operator's timers.
        context: The function's context.
        problem: What to say of it.
    """

    def __init__(
        self, timers: InternalTimerService, context: KeyedProcessContext, problem: str
    ) -> None:
        super().__init__(timers, context)
        self._problem = problem

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        """Raise `StateError`: nothing would handle the timer."""
        raise StateError(self._problem)

    register_event_time_timer = register_processing_time_timer = _refuse


class KeyedProcessContext(ProcessContext, Generic[KeyT]):
    """A `ProcessContext` with a key, the key's state, and its timers.

    Args:
        context: The operator's context.
        collector: Where the function's results go.
        timers: The operator's timers.

    Attributes:
        current_key: The key of the record or timer.
        time_domain: In ``on_timer``, which time the timer is about; else None.

    Concept:
        Flink, ``KeyedProcessFunction.Context`` and ``OnTimerContext``.
    """

    __slots__ = (
        "_has_told",
        "_timer_service",
        "_timers",
        "current_key",
        "time_domain",
    )

    def __init__(
        self,
        context: RuntimeContext,
        collector: Collector,
        timers: InternalTimerService,
    ) -> None:
        super().__init__(context, collector)
        self._timers = timers
        self._timer_service = TimerService(timers, self)
        self._has_told = False
        self.current_key: KeyT = cast("KeyT", None)
        self.time_domain: TimeDomain | None = None

    @property
    def keyed_state(self) -> KeyedStateStore:
        """The state of the current key: ``keyed_state.get_value(descriptor)`` and so on."""
        return self._context.keyed_state

    @property
    def timer_service(self) -> TimerService:
        """The timers of the current key."""
        return self._timer_service

    def refuse_timers(self, function: object) -> None:
        """Let no timer be registered, for ``function`` has no ``on_timer``."""
        # A plain function stands for the only method of an object.
        plain = vars(function).get("process_element")
        if plain is not None:
            name = describe(plain)
            remedy = (
                "Write a class derived from am.KeyedProcessFunction, with on_timer."
            )
        else:
            name = type(function).__qualname__.rpartition("<locals>.")[2]
            remedy = "Define on_timer(self, timestamp, context, out)."
        problem = (
            f"operator {self._context.operator_name!r}: {name} registers a timer and "
            f"has no on_timer. {remedy}"
        )
        # In place of the real one: a check at each registration would be felt.
        self._timer_service = NoTimerService(self._timers, self, problem)

    def enter(self, key: KeyT) -> None:
        """Make ``key`` the current one."""
        self.current_key = key
        self._context.keyed_state.set_current_key(key)

    def enter_again(self, key: KeyT) -> None:
        """Make ``key`` the current one, within the call for it."""
        self.current_key = key
        self._context.keyed_state.current.enter_again(key)

    def warn_of_no_times(self, time_ms: int) -> None:
        """Warn of a timer of event time if nothing says what time it is; once."""
        is_silent = self._has_told or time_ms == MAX_TIMESTAMP
        if is_silent or self._timers.current_watermark != MIN_TIMESTAMP:
            return
        self._has_told = True
        self._context.log.warning(
            "a timer of event time was registered, and the records have no event times: "
            "it fires when the input ends",
            remedy="give the source a watermark strategy with "
            ".with_timestamp_assigner(...), or register a timer of processing time",
        )

    def warn_of_missed(self, time_ms: int, count: int) -> None:
        """Warn of timers that were to be deleted, and none of which was there."""
        self._context.log.warning(
            "timers are deleted that are not there: none was found",
            count=count,
            at_ms=time_ms,
            remedy="delete a timer by the time that its register method returned, with "
            "the delete method of the same kind of time",
        )

    def warn_of_unit(self, time_ms: int, now_ms: int | None) -> None:
        """Warn of a timer whose time is in another unit than milliseconds."""
        warn_of_timer(self._context, time_ms, now_ms)

    def own(self, pending: Awaitable[None]) -> Awaitable[None]:
        """Return what awaits a call, whose tasks alone may use the key."""
        return self._context.keyed_state.current.own(pending)

    def leave(self) -> None:
        """Let no key be current: a late use would get the key of another record."""
        self.current_key = cast("KeyT", None)
        self._context.keyed_state.leave()


# What functions may ask and keep where one of two streams is broadcast.


def broadcast_states(
    descriptors: Sequence[MapStateDescriptor], store: OperatorStateStore
) -> tuple[dict[str, ReadOnlyBroadcastState], dict[str, MapState]]:
    """Return the declared broadcast state of a subtask by name, to be read and changed.

    Args:
        descriptors: What was given to ``stream.broadcast(...)``.
        store: The operator's state without keys.
    """
    changed = {one.name: store.get_broadcast_state(one) for one in descriptors}
    return {name: ReadOnlyBroadcastState(one) for name, one in changed.items()}, changed


def declared_state(
    states: Mapping[str, ValueT], descriptor: MapStateDescriptor
) -> ValueT:
    """Return the broadcast state that a descriptor names.

    Raises:
        StateError: If the descriptor was not declared.
    """
    state = states.get(descriptor.name)
    if state is None:
        declared = ", ".join(sorted(states)) or "none"
        raise StateError(
            f"broadcast state {descriptor.name!r} was not declared (declared: "
            f"{declared}). Write rules.broadcast(descriptor) with this descriptor."
        )
    return state


class ReadOnlyContext(ProcessContext):
    """A `ProcessContext` for the side that is not broadcast.

    Concept:
        Flink, ``BroadcastProcessFunction.ReadOnlyContext``.
    """

    __slots__ = ("_states",)

    def __init__(
        self,
        context: RuntimeContext,
        collector: Collector,
        states: Mapping[str, ReadOnlyBroadcastState],
    ) -> None:
        super().__init__(context, collector)
        self._states = states

    def get_broadcast_state(
        self, descriptor: MapStateDescriptor[MapKeyT, ValueT]
    ) -> ReadOnlyBroadcastState[MapKeyT, ValueT]:
        """Return the broadcast state for reading."""
        return declared_state(self._states, descriptor)


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
        states: Mapping[str, ReadOnlyBroadcastState],
    ) -> None:
        super().__init__(context, collector, timers)
        self._states = states

    def get_broadcast_state(
        self, descriptor: MapStateDescriptor[MapKeyT, ValueT]
    ) -> ReadOnlyBroadcastState[MapKeyT, ValueT]:
        """Return the broadcast state for reading."""
        return declared_state(self._states, descriptor)


class BroadcastContext(ProcessContext):
    """A `ProcessContext` for the broadcast side.

    Every subtask gets every broadcast record. It must do the same with it, for the
    copies of the state to stay equal.

    Concept:
        Flink, ``BroadcastProcessFunction.Context``.
    """

    __slots__ = ("_states",)

    def __init__(
        self,
        context: RuntimeContext,
        collector: Collector,
        states: Mapping[str, MapState],
    ) -> None:
        super().__init__(context, collector)
        self._states = states

    def get_broadcast_state(
        self, descriptor: MapStateDescriptor[MapKeyT, ValueT]
    ) -> MapState[MapKeyT, ValueT]:
        """Return this subtask's copy of the broadcast state."""
        return declared_state(self._states, descriptor)

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
            WrongTypeError: If ``function`` has the wrong type.
        """
        check_sync_function(function, "function", arity=2)
        store = self._context.keyed_state
        state = None
        try:
            for key in store.keys(descriptor):
                store.set_current_key(key)
                if state is None:
                    state = _state_of(store, descriptor)
                function(key, state)
        finally:
            store.set_current_key(None)


def _state_of(store: KeyedStateStore, descriptor: StateDescriptor) -> Any:
    return getattr(store, f"get_{descriptor.kind}")(descriptor)
