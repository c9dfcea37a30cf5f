"""What a process function on a keyed stream may ask, keep and plan."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Generic, NoReturn, cast

from aiomailbox.durations import event_time_ms
from aiomailbox.errors import StateError, UsageError
from aiomailbox.eventtime.timers import InternalTimerService
from aiomailbox.operators.core.collector import Collector
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.functions.process_context import ProcessContext
from aiomailbox.state.descriptors import VOID
from aiomailbox.state.store import KeyedStateStore
from aiomailbox.typevars import KeyT


class TimeDomain(Enum):
    """Which time a timer is about.

    Concept:
        Flink, ``TimeDomain``.
    """

    EVENT_TIME = "event_time"
    PROCESSING_TIME = "processing_time"


class TimerService:
    """The timers of the current key.

    A timer is a key and a time: registering it again changes nothing. Times are
    integer milliseconds since the epoch, or aware datetimes.

    Concept:
        Flink, ``TimerService``.
    """

    __slots__ = ("_context", "_timers")

    def __init__(
        self, timers: InternalTimerService, context: KeyedProcessContext
    ) -> None:
        self._timers = timers
        self._context = context

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

    def register_event_time_timer(self, timestamp: int | datetime) -> None:
        """Call ``on_timer`` when the watermark reaches ``timestamp``.

        If it has reached it already, that is with the next watermark.
        """
        key, time = self._context.current_key, event_time_ms(timestamp)
        self._timers.register_event_time_timer(key, VOID, time)

    def delete_event_time_timer(self, timestamp: int | datetime) -> None:
        """Forget that timer; a no-op if there is none."""
        key, time = self._context.current_key, event_time_ms(timestamp)
        self._timers.delete_event_time_timer(key, VOID, time)

    def register_processing_time_timer(self, timestamp: int | datetime) -> None:
        """Call ``on_timer`` when wall-clock time has passed ``timestamp``."""
        key, time = self._context.current_key, event_time_ms(timestamp)
        self._timers.register_processing_time_timer(key, VOID, time)

    def delete_processing_time_timer(self, timestamp: int | datetime) -> None:
        """Forget that timer; a no-op if there is none."""
        key, time = self._context.current_key, event_time_ms(timestamp)
        self._timers.delete_processing_time_timer(key, VOID, time)


class NoTimerService(TimerService):
    """The timers of a function without ``on_timer``: none can be registered.

    Args:
        timers: The operator's timers.
        context: The function's context.
        problem: What to say of it.
    """

    __slots__ = ("_problem",)

    def __init__(
        self, timers: InternalTimerService, context: KeyedProcessContext, problem: str
    ) -> None:
        super().__init__(timers, context)
        self._problem = problem

    def register_event_time_timer(self, timestamp: int | datetime) -> NoReturn:
        """Raise `StateError`: nothing would handle the timer."""
        raise StateError(self._problem)

    def register_processing_time_timer(self, timestamp: int | datetime) -> NoReturn:
        """Raise `StateError`: nothing would handle the timer."""
        raise StateError(self._problem)


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

    __slots__ = ("_timer_service", "_timers", "current_key", "time_domain")

    def __init__(
        self,
        context: RuntimeContext,
        collector: Collector,
        timers: InternalTimerService,
    ) -> None:
        super().__init__(context, collector)
        self._timers = timers
        self._timer_service = TimerService(timers, self)
        self.current_key: KeyT = cast("KeyT", None)
        self.time_domain: TimeDomain | None = None

    @property
    def state(self) -> KeyedStateStore:
        """The state of the current key: ``state.get_value(descriptor)`` and so on."""
        return self._context.keyed_state

    @property
    def timer_service(self) -> TimerService:
        """The timers of the current key."""
        return self._timer_service

    def refuse_timers(self, function: object) -> None:
        """Let no timer be registered, for ``function`` has no ``on_timer``."""
        name = type(function).__qualname__.rpartition("<locals>.")[2]
        problem = (
            f"operator {self._context.operator_name!r}: {name} registers a timer and "
            "has no on_timer. Define "
            "on_timer(self, timestamp, context, out)."
        )
        # In place of the real one: a check at each registration would be felt.
        self._timer_service = NoTimerService(self._timers, self, problem)

    def enter(self, key: KeyT) -> None:
        """Make ``key`` the current one."""
        self.current_key = key
        self._context.keyed_state.set_current_key(key)
