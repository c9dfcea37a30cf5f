"""The user's settings of windows, and what they mean for a record."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from aiomailbox.durations import event_time_ms, pipeline_ms
from aiomailbox.errors import InvalidArgumentError
from aiomailbox.operators.core.fields import field_or_function
from aiomailbox.operators.core.user_code import OnError, check_on_error, fail
from aiomailbox.operators.keyed.operators import KeySelector
from aiomailbox.records.events import MAX_TIMESTAMP, OutputTag
from aiomailbox.signatures import check_type
from aiomailbox.windowing.assigners import (
    EventTimeSessionWindows,
    GlobalWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowAssigner,
    WindowStagger,
)
from aiomailbox.windowing.evictors import Evictor
from aiomailbox.windowing.time_window import Window, window_datetime
from aiomailbox.windowing.triggers import (
    ContinuousEventTimeTrigger,
    EventTimeTrigger,
    ProcessingTimeTrigger,
    Trigger,
    innermost,
)

# What the user said about windows, checked as a whole.


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """Which windows there are and what happens to late and failing records.

    Args:
        key: A field's name or a function of a record; None for one key for all.
        assigner: Which windows a record belongs to.
        trigger: When contents are emitted; None for the assigner's default.
        evictor: Which records are left out; None for none.
        allowed_lateness_ms: How long after its end a window takes late records.
        late_tag: The side output of records that come too late; None drops them.
        on_error: How to handle a record for which a function raises.
        include_key: Whether results that have no field ``key`` are ``(key, result)``.

    Raises:
        WrongTypeError: If one is of a wrong type.
        InvalidArgumentError: If the trigger does not go with merging windows or is
            about another time, or the lateness is negative or about processing time.
    """

    key: Any
    assigner: Any
    trigger: Trigger | None = None
    evictor: Evictor | None = None
    allowed_lateness_ms: int = 0
    late_tag: OutputTag | None = None
    on_error: OnError = fail
    include_key: bool = False

    def __post_init__(self) -> None:
        key_function(self.key)
        check_on_error(self.on_error)
        check_type(self.assigner, WindowAssigner, "assigner")
        check_type(self.trigger or EventTimeTrigger(), Trigger, "trigger")
        if self.evictor is not None:
            check_type(self.evictor, Evictor, "evictor")
        if self.late_tag is not None:
            check_type(self.late_tag, OutputTag, "late_tag")
        if self.allowed_lateness_ms < 0:
            raise InvalidArgumentError(
                "allowed_lateness",
                f"{self.allowed_lateness_ms} ms is negative",
                "Use a duration of zero or more.",
            )
        if self.include_key and self.key is None:
            raise InvalidArgumentError(
                "include_key",
                "the windows are of the whole stream, which has no key",
                "Leave it out, or use key_by(...).window(...).",
            )
        self._check_time_domain()
        if self.assigner.is_merging and not self.actual_trigger.can_merge:
            raise InvalidArgumentError(
                "trigger",
                f"{type(self.actual_trigger).__name__} cannot be used with session "
                "windows, for it has no on_merge",
                "Define on_merge, or use another trigger.",
            )

    def _check_time_domain(self) -> None:
        """Refuse what is about the other time than the windows are."""
        if isinstance(self.assigner, GlobalWindows):
            return
        windows = type(self.assigner).__name__
        trigger = innermost(self.actual_trigger)
        name = type(trigger).__name__
        if self.assigner.is_event_time:
            if isinstance(trigger, ProcessingTimeTrigger):
                raise InvalidArgumentError(
                    "trigger",
                    f"{name} waits for wall-clock time, and {windows} end in event "
                    "time: contents would be discarded before they are emitted",
                    "Use EventTimeTrigger, for early results "
                    "ContinuousProcessingTimeTrigger, or processing-time windows.",
                )
            return
        if isinstance(trigger, EventTimeTrigger | ContinuousEventTimeTrigger):
            raise InvalidArgumentError(
                "trigger",
                f"{name} waits for watermarks, and {windows} are in processing time",
                "Use ProcessingTimeTrigger, or event-time windows.",
            )
        late = "allowed_lateness" if self.allowed_lateness_ms else "late_tag"
        if self.allowed_lateness_ms or self.late_tag is not None:
            raise InvalidArgumentError(
                late,
                f"no record is late in {windows}, for it belongs to the time at "
                "which it arrives",
                "Leave it out, or use event-time windows.",
            )

    @property
    def actual_trigger(self) -> Trigger:
        """The trigger that was given, or the assigner's default."""
        return self.trigger or self.assigner.default_trigger

    @property
    def peculiarity(self) -> str:
        """The settings that keep the windows from being plain, for `explain`."""
        if self.evictor is not None:
            return f"evictor {type(self.evictor).__name__}"
        if type(self.actual_trigger) is not type(self.assigner.default_trigger):
            return f"trigger {type(self.actual_trigger).__name__}"
        return type(self.assigner).__name__

    @property
    def late_tags(self) -> tuple[OutputTag, ...]:
        """The side output of records that come too late, if there is one."""
        return () if self.late_tag is None else (self.late_tag,)

    @property
    def is_plain(self) -> bool:
        """Whether windows are in event time, of a known kind, and fire at their end."""
        assigner = self.assigner
        if type(assigner) is TumblingEventTimeWindows:
            aligned = assigner.stagger is not WindowStagger.NATURAL
        else:
            aligned = type(assigner) in (
                SlidingEventTimeWindows,
                EventTimeSessionWindows,
            )
        return (
            aligned
            and type(self.actual_trigger) is EventTimeTrigger
            and self.evictor is None
        )


def key_function(key: KeySelector | None) -> Callable[[Any], Any]:
    """Return the key function; without a key all records have the key 0."""
    return _zero if key is None else field_or_function(key, "key")


def _zero(record: Any) -> int:
    return 0


# Says what would happen to a record, without a job.


class WindowExplanation(NamedTuple):
    """A window of a record, and its times; None where a datetime cannot say it.

    Attributes:
        window: The window, in milliseconds.
        start: When it begins.
        end: When it ends; this moment belongs to the next one.
        fires_at: It fires when the watermark reaches this (by default).
        takes_late_until: From when the watermark has reached this, records that
            belong to it are dropped or go to the side output of late ones.
    """

    window: Window
    start: datetime | None
    end: datetime | None
    fires_at: datetime | None
    takes_late_until: datetime | None


def explain_window(
    assigner: WindowAssigner,
    timestamp: datetime | int,
    allowed_lateness: timedelta = timedelta(),
    *,
    value: Any = None,
) -> list[WindowExplanation]:
    """Return the windows that a record would be in, and their times.

    A session may still grow when other records come.

    Args:
        assigner: The windows.
        timestamp: The record's event time (for windows in processing time, when it
            arrives): an aware datetime or milliseconds since the epoch.
        allowed_lateness: As for the window: a timedelta.
        value: The record, for sessions whose gap depends on it.

    Raises:
        TimestampError: If ``timestamp`` is neither.
        WrongTypeError: If ``assigner`` makes no windows.

    Example:
        >>> from aiomailbox.windowing.assigners import TumblingEventTimeWindows
        >>> (found,) = explain_window(
        ...     TumblingEventTimeWindows.of(timedelta(seconds=60)),
        ...     90_000,
        ...     timedelta(seconds=5),
        ... )
        >>> found.start.time().isoformat(), found.takes_late_until.time().isoformat()
        ('00:01:00', '00:02:04.999000')
    """
    remedy = "Use am.TumblingEventTimeWindows.of(am.minutes(5))."
    check_type(assigner, WindowAssigner, "assigner", remedy)
    now = event_time_ms(timestamp)
    lateness = pipeline_ms(allowed_lateness, "allowed_lateness")
    if not assigner.is_event_time:
        lateness = 0
    found: list[WindowExplanation] = []
    # A copy: the first record of a subtask may decide where its windows begin.
    for window in copy(assigner).assign(value, now, now):
        over = min(window.max_timestamp + lateness, MAX_TIMESTAMP)
        found.append(
            WindowExplanation(
                window,
                window_datetime(window.start),
                window_datetime(window.end),
                window_datetime(window.max_timestamp),
                window_datetime(over),
            )
        )
    return found
