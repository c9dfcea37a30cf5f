"""Which windows a record belongs to: the contract, tumbling, sliding, global."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from enum import Enum
from typing import Any, ClassVar, Generic, Self

from aiomailbox.durations import duration_text, pipeline_ms, signed_ms
from aiomailbox.errors import (
    BadResultError,
    InvalidArgumentError,
    TimestampError,
    UsageError,
    WrongTypeError,
)
from aiomailbox.operators.core.user_code import check_sync_function, describe, shortened
from aiomailbox.records.events import MIN_TIMESTAMP
from aiomailbox.signatures import Suggesting
from aiomailbox.typevars import WindowT_co
from aiomailbox.windowing.time_window import (
    GLOBAL_WINDOW,
    GlobalWindow,
    MergedWindows,
    TimeWindow,
    merge_windows,
    window_start,
)
from aiomailbox.windowing.triggers import (
    EndOfStreamTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
    Trigger,
)


class WindowAssigner(ABC, Generic[WindowT_co]):
    """Assigns windows to each record. Assigners are immutable.

    Attributes:
        is_event_time: Whether windows end in event time; otherwise in processing time.
        is_merging: Whether adjacent or overlapping windows of a key are merged; see
            `aiomailbox.windowing.assigners`.

    Concept:
        Flink, ``WindowAssigner``.
    """

    is_event_time: ClassVar[bool]
    is_merging: ClassVar[bool] = False

    @abstractmethod
    def assign(
        self, value: Any, timestamp: int | None, now_ms: int, /
    ) -> Sequence[WindowT_co]:
        """Return the record's windows; there may be none.

        Args:
            value: The record.
            timestamp: Its event time in milliseconds, or None.
            now_ms: Wall-clock time in milliseconds.

        Raises:
            TimestampError: If event time is needed and the record has none.
        """

    @property
    def default_trigger(self) -> Trigger:
        """The trigger that is used if none is given."""
        return EventTimeTrigger() if self.is_event_time else ProcessingTimeTrigger()

    @property
    def needs_now(self) -> bool:
        """Whether `assign` uses ``now_ms``; otherwise it may be 0."""
        return not self.is_event_time

    def for_subtask(
        self, rng: random.Random, offsets: Sequence[int] = (), /
    ) -> WindowAssigner:
        """Return the assigner that one subtask uses; this one by default.

        Args:
            rng: The operator's random source.
            offsets: The results of `kept_offset` of earlier subtasks, if there were
                any.
        """
        return self

    def kept_offset(self) -> int | None:
        """Return the offset of this subtask's own windows, once it is set."""
        return None

    def __str__(self) -> str:
        """Return its class and its times, for `explain`."""
        return type(self).__name__


class WindowStagger(Enum):
    """Whether the windows of all subtasks start at the same time.

    Concept:
        Flink, ``WindowStagger``.
    """

    ALIGNED = "aligned"
    RANDOM = "random"
    NATURAL = "natural"


class _MadeOfDurations(metaclass=Suggesting):
    """A class whose class method takes durations, and ``__init__`` milliseconds.

    Raises:
        WrongTypeError: If it is given durations.
    """

    # The method that makes it, as it is called.
    _maker: ClassVar[str]
    _meant: ClassVar[Mapping[str, str]]

    def __new__(cls, *args: Any, **named: Any) -> Self:
        if any(isinstance(one, timedelta) for one in (*args, *named.values())):
            raise WrongTypeError(
                cls.__name__,
                "the class itself takes no durations",
                f"Write am.{cls.__name__}.{cls._maker}.",
            )
        return super().__new__(cls)


class _TumblingWindows(_MadeOfDurations, WindowAssigner[TimeWindow]):
    """Consecutive windows of one size.

    Args:
        size_ms: Length in milliseconds.
        offset_ms: Where windows start, relative to multiples of the size.
        stagger: Whether the windows of subtasks start at different times.
    """

    _maker = "of(size)"
    _meant = dict.fromkeys(("every", "over", "size", "create"), _maker)

    def __init__(
        self,
        size_ms: int,
        offset_ms: int = 0,
        stagger: WindowStagger = WindowStagger.ALIGNED,
    ) -> None:
        if not abs(offset_ms) < size_ms:
            raise InvalidArgumentError(
                "size, offset",
                f"size {size_ms} ms and offset {offset_ms} ms do not satisfy "
                "abs(offset) < size",
                "Use a size above zero and a smaller offset.",
            )
        self.size_ms = size_ms
        self.offset_ms: int = offset_ms
        self.stagger: WindowStagger = stagger
        # Whether this is the assigner of one subtask, with a beginning of its own.
        self._is_shifted = False

    @classmethod
    def of(
        cls,
        size: timedelta,
        offset: timedelta = timedelta(),
        stagger: WindowStagger = WindowStagger.ALIGNED,
    ) -> Self:
        """Return windows of ``size``; both arguments are timedeltas.

        Raises:
            InvalidArgumentError: Unless ``abs(offset) < size``.
        """
        return cls(signed_ms(size, "size"), signed_ms(offset, "offset"), stagger)

    @property
    def needs_now(self) -> bool:
        """Whether the current time is used, for all records or for the first."""
        return super().needs_now or self.stagger is WindowStagger.NATURAL

    def for_subtask(
        self, rng: random.Random, offsets: Sequence[int] = ()
    ) -> WindowAssigner:
        """Return the assigner with a beginning of its own, if it is to have one."""
        if self.stagger is WindowStagger.ALIGNED:
            return self
        # A copy: the user's assigner serves all subtasks, and each of them decides for
        # itself.
        own = type(self)(self.size_ms, self.offset_ms, WindowStagger.NATURAL)
        own._is_shifted = True
        if offsets:
            own.offset_ms, own.stagger = offsets[0], WindowStagger.ALIGNED
        elif self.stagger is WindowStagger.RANDOM:
            own._shift_by(rng.randrange(self.size_ms))
        return own

    def kept_offset(self) -> int | None:
        is_decided = self.stagger is WindowStagger.ALIGNED
        return self.offset_ms if self._is_shifted and is_decided else None

    def __str__(self) -> str:
        text = f"{super().__str__()} of {duration_text(self.size_ms)}"
        if self.stagger is not WindowStagger.ALIGNED:
            text += f", {self.stagger.value} start"
        return text + _offset_text(self.offset_ms)

    def assign(
        self, value: Any, timestamp: int | None, now_ms: int
    ) -> list[TimeWindow]:
        """Return the window that holds the record's event time, or the current time."""
        time = required_timestamp(timestamp) if self.is_event_time else now_ms
        if self.stagger is WindowStagger.NATURAL:
            # The first record decides, by when it arrived within an aligned window.
            self._shift_by(now_ms - window_start(now_ms, self.offset_ms, self.size_ms))
        start = window_start(time, self.offset_ms, self.size_ms)
        return [TimeWindow(start, start + self.size_ms)]

    def _shift_by(self, shift_ms: int) -> None:
        self.offset_ms = (self.offset_ms + shift_ms) % self.size_ms
        self.stagger = WindowStagger.ALIGNED


class TumblingEventTimeWindows(_TumblingWindows):
    """Consecutive windows of one size in event time.

    Args:
        size_ms: Length in milliseconds; `of` takes timedeltas.
        offset_ms: Where windows start, relative to multiples of the size.
        stagger: Whether the windows of subtasks start at different times.

    Raises:
        InvalidArgumentError: Unless ``abs(offset_ms) < size_ms``.

    Concept:
        Flink, ``TumblingEventTimeWindows``.

    Example:
        >>> TumblingEventTimeWindows.of(timedelta(seconds=5)).assign(
        ...     "record", 12_000, 0
        ... )
        [TimeWindow(start=10000, end=15000)]
    """

    is_event_time = True


class TumblingProcessingTimeWindows(_TumblingWindows):
    """Consecutive windows of one size in processing time.

    Args:
        size_ms: Length in milliseconds; `of` takes timedeltas.
        offset_ms: Where windows start, relative to multiples of the size.
        stagger: Whether the windows of subtasks start at different times.

    Raises:
        InvalidArgumentError: Unless ``abs(offset_ms) < size_ms``.

    Concept:
        Flink, ``TumblingProcessingTimeWindows``.

    Example:
        >>> TumblingProcessingTimeWindows.of(timedelta(seconds=5)).assign(
        ...     "record", None, 12_000
        ... )
        [TimeWindow(start=10000, end=15000)]
    """

    is_event_time = False


class _SlidingWindows(_MadeOfDurations, WindowAssigner[TimeWindow]):
    _maker = "of(size, slide)"
    _meant = dict.fromkeys(("every", "over", "size", "create"), _maker)

    def __init__(self, size_ms: int, slide_ms: int, offset_ms: int = 0) -> None:
        if not (abs(offset_ms) < slide_ms and size_ms > 0):
            raise InvalidArgumentError(
                "size, slide, offset",
                f"size {size_ms} ms, slide {slide_ms} ms and offset {offset_ms} ms do "
                "not satisfy abs(offset) < slide and size > 0",
                "Use a size and a slide above zero and an offset below the slide.",
            )
        self.size_ms = size_ms
        self.slide_ms = slide_ms
        self.offset_ms = offset_ms

    @classmethod
    def of(
        cls, size: timedelta, slide: timedelta, offset: timedelta = timedelta()
    ) -> Self:
        """Return windows of ``size`` that start every ``slide``.

        All three are timedeltas.

        Raises:
            InvalidArgumentError: Unless ``abs(offset) < slide`` and ``size > 0``.
        """
        return cls(
            signed_ms(size, "size"),
            signed_ms(slide, "slide"),
            signed_ms(offset, "offset"),
        )

    def __str__(self) -> str:
        times = f"of {duration_text(self.size_ms)} every {duration_text(self.slide_ms)}"
        return f"{super().__str__()} {times}{_offset_text(self.offset_ms)}"

    def assign(
        self, value: Any, timestamp: int | None, now_ms: int
    ) -> list[TimeWindow]:
        """Return the windows that hold the event time or current time, latest first."""
        time = required_timestamp(timestamp) if self.is_event_time else now_ms
        size = self.size_ms
        last = window_start(time, self.offset_ms, self.slide_ms)
        return [
            TimeWindow(start, start + size)
            for start in range(last, time - size, -self.slide_ms)
        ]


class SlidingEventTimeWindows(_SlidingWindows):
    """Windows of one size that start at regular event times and may overlap.

    With a slide above the size there are gaps, whose records are in no window.

    Args:
        size_ms: Length in milliseconds; `of` takes timedeltas.
        slide_ms: Milliseconds between the starts of consecutive windows.
        offset_ms: Where windows start, relative to multiples of the slide.

    Raises:
        InvalidArgumentError: Unless ``abs(offset_ms) < slide_ms`` and ``size_ms > 0``.

    Concept:
        Flink, ``SlidingEventTimeWindows``.

    Example:
        >>> SlidingEventTimeWindows.of(
        ...     timedelta(seconds=10), timedelta(seconds=5)
        ... ).assign("record", 12_000, 0)
        [TimeWindow(start=10000, end=20000), TimeWindow(start=5000, end=15000)]
    """

    is_event_time = True


class SlidingProcessingTimeWindows(_SlidingWindows):
    """Windows of one size that start at regular processing times and may overlap.

    Args:
        size_ms: Length in milliseconds; `of` takes timedeltas.
        slide_ms: Milliseconds between the starts of consecutive windows.
        offset_ms: Where windows start, relative to multiples of the slide.

    Raises:
        InvalidArgumentError: Unless ``abs(offset_ms) < slide_ms`` and ``size_ms > 0``.

    Concept:
        Flink, ``SlidingProcessingTimeWindows``.
    """

    is_event_time = False


class GlobalWindows(WindowAssigner[GlobalWindow]):
    """One window for all records; a trigger must decide when it fires.

    Args:
        trigger: The trigger that is used if none is given; by default it never fires.

    Concept:
        Flink, ``GlobalWindows``.

    Example:
        >>> GlobalWindows.create().assign("record", None, 0)
        [<GlobalWindow.GLOBAL: 'global'>]
    """

    is_event_time = True

    def __init__(self, trigger: Trigger | None = None) -> None:
        self._trigger = trigger or NeverTrigger()

    @classmethod
    def create(cls) -> GlobalWindows:
        """Return the assigner; without a trigger, nothing is ever emitted."""
        return cls()

    @classmethod
    def create_with_end_of_stream_trigger(cls) -> GlobalWindows:
        """Return the assigner with a trigger that fires when event time ends."""
        return cls(EndOfStreamTrigger())

    def assign(
        self, value: Any, timestamp: int | None, now_ms: int
    ) -> list[GlobalWindow]:
        """Return the global window."""
        return [GLOBAL_WINDOW]

    @property
    def default_trigger(self) -> Trigger:
        """The trigger that was given, or one that never fires."""
        return self._trigger


def _offset_text(offset_ms: int) -> str:
    return f", offset {duration_text(offset_ms)}" if offset_ms else ""


def required_timestamp(timestamp: int | None) -> int:
    """Return ``timestamp``, or raise if there is none.

    Raises:
        TimestampError: If it is None or `MIN_TIMESTAMP`.
    """
    if timestamp is None or timestamp == MIN_TIMESTAMP:
        raise TimestampError(
            "a record has no event time, which event-time windows need. Give its stream "
            "a strategy with .with_timestamp_assigner(...), at the source or by "
            "assign_timestamps_and_watermarks(strategy) before the window, or use "
            "windows in processing time."
        )
    return timestamp


# Session windows: a record keeps its session open for a gap.


Gap = int | Callable[[Any], int]


class MergingWindowAssigner(WindowAssigner[TimeWindow]):
    """Assigns windows that are merged when they touch or overlap.

    Concept:
        Flink, ``MergingWindowAssigner``.
    """

    is_merging = True

    def merge(self, windows: Iterable[TimeWindow]) -> list[MergedWindows]:
        """Return which of a key's windows are merged."""
        return merge_windows(windows)


class _SessionWindows(_MadeOfDurations, MergingWindowAssigner):
    _maker = "with_gap(gap)"
    _meant = dict.fromkeys(("of", "gap", "every", "create"), _maker)

    def __init__(self, gap_ms: Gap) -> None:
        if isinstance(gap_ms, int) and gap_ms <= 0:
            raise InvalidArgumentError(
                "gap", f"{gap_ms} ms is not positive", "Use 1 ms or more."
            )
        self.gap_ms: Gap = gap_ms

    @classmethod
    def with_gap(cls, gap: timedelta) -> Self:
        """Return sessions with one gap, a timedelta."""
        return cls(signed_ms(gap, "gap"))

    @classmethod
    def with_dynamic_gap(cls, gap: Callable[[Any], timedelta]) -> Self:
        """Return sessions whose gap is what a function of the record returns."""
        return cls(DynamicGap(gap))

    def __str__(self) -> str:
        """Return its class and its gap, for `explain`."""
        gap = self.gap_ms
        text = duration_text(gap) if isinstance(gap, int) else str(gap)
        return f"{super().__str__()} with a gap of {text}"

    def assign(self, value: Any, timestamp: int | None, now_ms: int) -> list[Any]:
        """Return the session of the record alone, before merging."""
        begin_ms = timestamp if self.is_event_time else now_ms
        if begin_ms is None:
            begin_ms = required_timestamp(begin_ms)
        gap = self.gap_ms
        length = gap if isinstance(gap, int) else gap(value)
        return [TimeWindow(begin_ms, begin_ms + length)]


class EventTimeSessionWindows(_SessionWindows):
    """Sessions in event time: they end when a key has no record for longer than a gap.

    A record exactly a gap after the last one still joins its session.

    Args:
        gap_ms: Milliseconds, or a function of a record that returns them; see
            `with_gap` and `with_dynamic_gap`.

    Raises:
        InvalidArgumentError: If the gap is not above zero.

    Concept:
        Flink, ``EventTimeSessionWindows``.

    Example:
        >>> EventTimeSessionWindows.with_gap(timedelta(seconds=5)).assign(
        ...     "record", 12_000, 0
        ... )
        [TimeWindow(start=12000, end=17000)]
    """

    is_event_time = True


class ProcessingTimeSessionWindows(_SessionWindows):
    """Sessions in processing time.

    Args:
        gap_ms: Milliseconds, or a function of a record that returns them; see
            `with_gap` and `with_dynamic_gap`.

    Raises:
        InvalidArgumentError: If the gap is not above zero.

    Concept:
        Flink, ``ProcessingTimeSessionWindows``.
    """

    is_event_time = False


class DynamicGap:
    """Reads a session's gap from a record, in milliseconds.

    Args:
        gap: A function of a record that returns a timedelta.
    """

    def __init__(self, gap: Callable[[Any], timedelta]) -> None:
        self._gap = check_sync_function(gap, "gap", arity=1)

    def __str__(self) -> str:
        return describe(self._gap)

    def __call__(self, value: Any) -> int:
        """Return the gap after ``value``.

        Raises:
            BadResultError: If it is no duration, or not above zero.
        """
        gap = self._gap(value)
        try:
            length = pipeline_ms(gap, "gap")
        except UsageError as error:
            raise self._refusal(gap, value) from error
        if length <= 0:
            raise self._refusal(gap, value)
        return length

    def _refusal(self, gap: Any, value: Any) -> BadResultError:
        return BadResultError(
            describe(self._gap),
            f"{shortened(gap)} as the session gap after the record {shortened(value)}",
            "Return a timedelta, more than 0.",
        )
