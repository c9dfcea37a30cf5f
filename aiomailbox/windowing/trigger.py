"""The contract of triggers: they decide when a window's contents are emitted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Any, Protocol

from aiomailbox.errors import BadResultError
from aiomailbox.operators.core.callables import describe, shortened
from aiomailbox.state.descriptors import ReducingStateDescriptor, ValueStateDescriptor
from aiomailbox.state.store import ReducingState, ValueState
from aiomailbox.typevars import ValueT
from aiomailbox.windowing.time_window import Window


class TriggerResult(Enum):
    """What happens to a window's contents: they are emitted, purged, both, or neither."""

    CONTINUE = "continue"
    FIRE = "fire"
    PURGE = "purge"
    FIRE_AND_PURGE = "fire_and_purge"

    @property
    def is_fire(self) -> bool:
        """Whether the contents are emitted."""
        return self in {TriggerResult.FIRE, TriggerResult.FIRE_AND_PURGE}

    @property
    def is_purge(self) -> bool:
        """Whether the contents are purged."""
        return self in {TriggerResult.PURGE, TriggerResult.FIRE_AND_PURGE}


class TriggerContext(Protocol):
    """The time, timers and state of a trigger, for the current key and window.

    Concept:
        Flink, ``Trigger.TriggerContext`` and ``Trigger.OnMergeContext``.
    """

    @property
    def current_watermark(self) -> int:
        """The current watermark; `MIN_TIMESTAMP` before the first."""
        ...

    def current_processing_time(self) -> int:
        """Return wall-clock time, milliseconds since the epoch."""
        ...

    def register_event_time_timer(self, timestamp_ms: int) -> None:
        """Call `Trigger.on_event_time` when the watermark reaches ``timestamp_ms``."""
        ...

    def delete_event_time_timer(self, timestamp_ms: int) -> None:
        """Delete that timer."""
        ...

    def register_processing_time_timer(self, timestamp_ms: int) -> None:
        """Call `Trigger.on_processing_time` when wall-clock time has passed it."""
        ...

    def delete_processing_time_timer(self, timestamp_ms: int) -> None:
        """Delete that timer."""
        ...

    def get_value(self, descriptor: ValueStateDescriptor[ValueT]) -> ValueState[ValueT]:
        """Return a value that is kept for the key and window."""
        ...

    def get_reducing(
        self, descriptor: ReducingStateDescriptor[ValueT]
    ) -> ReducingState[ValueT]:
        """Return a reduced value that is kept for the key and window."""
        ...

    def merge_state(self, descriptor: ReducingStateDescriptor) -> None:
        """In `Trigger.on_merge`, merge this state of the merged windows."""
        ...


class Trigger(ABC):
    """Decides when the contents of windows are emitted and purged.

    One trigger serves all keys and windows, and keeps its state through the
    context. Its methods are not ``async def``.

    Concept:
        Flink, ``Trigger``.

    Example:
        >>> class EveryRecord(Trigger):
        ...     def on_element(self, value, timestamp, window, context):
        ...         return TriggerResult.FIRE
        >>> EveryRecord().can_merge
        False
    """

    @abstractmethod
    def on_element(
        self,
        value: Any,
        timestamp: int | None,
        window: Window,
        context: TriggerContext,
        /,
    ) -> TriggerResult:
        """Handle a record that was added to the window."""

    def on_event_time(
        self, timestamp: int, window: Window, context: TriggerContext, /
    ) -> TriggerResult:
        """Handle a timer that the watermark has reached."""
        return TriggerResult.CONTINUE

    def on_processing_time(
        self, timestamp: int, window: Window, context: TriggerContext, /
    ) -> TriggerResult:
        """Handle a timer that wall-clock time has passed."""
        return TriggerResult.CONTINUE

    @property
    def can_merge(self) -> bool:
        """Whether windows with this trigger can be merged (see `on_merge`)."""
        return type(self).on_merge is not Trigger.on_merge

    def on_merge(  # noqa: B027 -- only triggers that can merge have it
        self, window: Window, context: TriggerContext, /
    ) -> None:
        """Handle the merge of several windows into ``window``.

        Their timers and state are removed by `clear`; ``on_element`` follows.
        """

    def clear(  # noqa: B027 -- not all triggers keep something
        self, window: Window, context: TriggerContext, /
    ) -> None:
        """Delete the timers and clear the state of the window."""


def check_result(result: object, trigger: Trigger, method: str, about: object) -> None:
    """Reject the result of a trigger if it is not a `TriggerResult`.

    Args:
        result: What it returned.
        trigger: The trigger.
        method: The method that returned it.
        about: The record, or for timers the window.

    Raises:
        BadResultError: Naming the method, its line, and the record or window.
    """
    if type(result) is TriggerResult:
        return
    what = "window" if isinstance(about, Window) else "record"
    raise BadResultError(
        describe(getattr(trigger, method)),
        f"{shortened(result)} for the {what} {shortened(about)}",
        "Return a member of am.TriggerResult, e.g. TriggerResult.CONTINUE.",
    )
