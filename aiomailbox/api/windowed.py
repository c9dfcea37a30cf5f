"""Windowed streams: the records of a key in a span of time."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from copy import copy
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Self, TypeVar, overload

from aiomailbox.api.adapted import OnlyProcessWindow, as_object
from aiomailbox.api.build import described_key
from aiomailbox.api.definition import formed, own_copy
from aiomailbox.api.grouped import Grouped
from aiomailbox.api.misnamed import OF_WINDOWS, Unfinished
from aiomailbox.durations import duration_text, pipeline_ms
from aiomailbox.errors import InvalidArgumentError, WrongTypeError
from aiomailbox.graph.transformation import FunctionInfo, Origin
from aiomailbox.logs import library_log
from aiomailbox.operators.core.collector import Collector
from aiomailbox.operators.core.user_code import (
    OnError,
    check_function,
    check_methods,
    check_on_error,
    describe,
    fail,
    is_async_callable,
    warn_here,
)
from aiomailbox.records.events import OutputTag
from aiomailbox.signatures import check_count, check_type
from aiomailbox.state.descriptors import AggregateFunction
from aiomailbox.typevars import K, T, U, V, WindowT
from aiomailbox.windowing.assigners import (
    GlobalWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    WindowAssigner,
)
from aiomailbox.windowing.build import window_operator
from aiomailbox.windowing.co_group import CoGroupFunction, JoinFunction
from aiomailbox.windowing.evictors import CountEvictor, Evictor
from aiomailbox.windowing.functions import ProcessWindowContext, ProcessWindowFunction
from aiomailbox.windowing.time_window import GlobalWindow
from aiomailbox.windowing.triggers import (
    CountTrigger,
    EventTimeTrigger,
    NeverTrigger,
    PurgingTrigger,
    Trigger,
)

if TYPE_CHECKING:
    # A stream leads to this class, and this class to a stream: only in their types.
    from aiomailbox.api.stream import DataStream

_SLIDING: Final = (SlidingEventTimeWindows, SlidingProcessingTimeWindows)
# A day by ten seconds is fewer.
_WINDOWS_MANY: Final = 10_000

W = TypeVar("W")

# What `explain` calls the settings of windows.
_TOLD: Final = {
    "trigger": "trigger",
    "evictor": "evictor",
    "allowed_lateness": "allowed lateness",
    "late_tag": "late records",
}

# What `explain` says of windows that never end.
_NEVER_PURGED: Final = "a global window keeps its contents until its trigger purges"

# What a stop drops of windows that event time does not fire, with or without draining.
_BY_TRIGGER: Final = "open windows, which only their trigger fires"

# What a function may return for the items of a stream.
Items = Iterable[U] | Awaitable[Iterable[U]] | AsyncIterable[U]
WindowFunction = ProcessWindowFunction[K, T, U, W] | Callable[[K, W, list[T]], Items[U]]


class WindowedStream(Unfinished, Grouped[K, T], Generic[K, T, WindowT]):
    """A keyed stream divided into windows; next is what to compute per key and window.

    Made by `KeyedStream.window` and `DataStream.window_all`.

    Concept:
        Flink, ``WindowedStream``.
    """

    _called = "windows"
    _left = "aggregate(...), reduce(...) or process(...), which give a stream"
    _meant = OF_WINDOWS

    def __init__(
        self,
        key: Callable[[T], K] | None,
        assigner: WindowAssigner[WindowT],
        derive: Callable[..., DataStream[Any]],
        origins: list[Origin],
    ) -> None:
        self._key = key
        self._origins = origins
        self._derive = derive
        self._assigner = check_type(
            assigner,
            WindowAssigner,
            "assigner",
            "Use am.TumblingEventTimeWindows.of(am.minutes(5)).",
        )
        self._settings: dict[str, Any] = {}
        # What is made by a setting, and then dropped, is a mistake.
        self._is_used = True
        if isinstance(assigner, _SLIDING) and assigner.slide_ms > assigner.size_ms:
            warn_here(
                "records between two windows are in none: the slide is longer than "
                "the size",
                size_ms=assigner.size_ms,
                slide_ms=assigner.slide_ms,
                remedy=f"write {self._assigner_name}.of(size, slide)",
            )
        elif isinstance(assigner, _SLIDING) and (
            (windows := assigner.size_ms // assigner.slide_ms) > _WINDOWS_MANY
        ):
            warn_here(
                "each record is in very many windows: a job holds and fires them all",
                windows=windows,
                size_ms=assigner.size_ms,
                slide_ms=assigner.slide_ms,
                remedy="use a longer slide, or a running aggregate without windows",
            )

    def __repr__(self) -> str:
        key = "" if self._key is None else f" by {described_key(self._key)}"
        return f"<WindowedStream{key} in {self._assigner_name}>"

    @property
    def _said(self) -> dict[str, Any]:
        """The arguments of the windows: ``key``, ``assigner``, and settings."""
        self._is_used = True
        return {"key": self._key, "assigner": self._assigner, **self._settings}

    @property
    def _assigner_name(self) -> str:
        """The class name of the window assigner."""
        return type(self._assigner).__name__

    def trigger(self, trigger: Trigger) -> Self:
        """Return windows that fire when the trigger says so.

        By default they fire when time passes their end.
        """
        return self._with(trigger=_check_sync(trigger, Trigger, "trigger"))

    def evictor(self, evictor: Evictor) -> Self:
        """Return windows that evict records when they fire."""
        return self._with(evictor=_check_sync(evictor, Evictor, "evictor"))

    def allowed_lateness(self, lateness: timedelta) -> Self:
        """Return windows that are kept for longer, and fire again for each late record."""
        pipeline_ms(lateness, "lateness")
        self._warn_if_never_late("allowed_lateness")
        return self._with(allowed_lateness=lateness)

    def side_output_late_data(self, tag: OutputTag[T]) -> Self:
        """Return windows that send records to a side output if they arrive too late."""
        check_type(tag, OutputTag, "tag", "Write am.OutputTag('late').")
        self._warn_if_never_late("side_output_late_data")
        return self._with(late_tag=tag)

    def _with(self, **settings: Any) -> Self:
        """Return a copy with other settings, which warns if it is never used."""
        self._is_used = True
        windows = copy(self)
        windows._settings = {**self._settings, **settings}
        windows._is_used = False
        return windows

    def __del__(self) -> None:
        if not getattr(self, "_is_used", True):
            warnings.warn(
                f"nothing uses the windows that {', '.join(self._settings)} returned: "
                "windows do not change, so write `windows = windows.trigger(...)`",
                RuntimeWarning,
                stacklevel=2,
                source=self,
            )

    def _warn_if_never_late(self, what: str) -> None:
        if not self._assigner.is_event_time:
            library_log().warning(
                f"{what} is ignored: no record is too late for these windows",
                assigner=self._assigner_name,
                remedy="use windows of event time, or leave it out",
            )

    @overload
    def reduce(
        self,
        function: Callable[[T, T], T] | Callable[[T, T], Awaitable[T]],
        window_function: None = None,
        *,
        on_error: OnError = fail,
    ) -> DataStream[T]: ...

    @overload
    def reduce(
        self,
        function: Callable[[T, T], T] | Callable[[T, T], Awaitable[T]],
        window_function: WindowFunction[K, T, U, WindowT],
        *,
        on_error: OnError = fail,
    ) -> DataStream[U]: ...

    def reduce(
        self,
        function: Callable[[T, T], Any],
        window_function: Any = None,
        *,
        on_error: OnError = fail,
    ) -> DataStream[Any]:
        """Fold the records of each window into one.

        Args:
            function: ``(reduced, record)`` → a new record. It must not change either. An
                ``async def`` function is awaited for each record as it arrives. Merging
                session windows are folded too, so the function must be associative.
            window_function: Gets the key, the window and a list with the result; None emits
                the result.
            on_error: How to handle a record, or a firing, for which a function raises.
                A record is added to all its windows or, if that or the trigger fails,
                to none. A firing that fails emits nothing; its window is purged and
                cleaned up as after one that succeeded. Changes that the window function
                made to its own state remain. The dead letter of a firing has a
                `FailedWindow` as its record.
        """
        check_function(function, "function", arity=2, gets="reduced, record")
        return self._windowed(
            "window reduce", on_error, reduce=function, window_function=window_function
        )

    def _extreme(
        self, name: str, field: Any, first: bool, on_error: OnError
    ) -> DataStream[T]:
        # Also if the field is refused: that is said, and no more.
        self._is_used = True
        return super()._extreme(name, field, first, on_error)

    def _reduced(
        self, name: str, function: Callable[[Any, Any], Any], on_error: OnError
    ) -> DataStream[Any]:
        return self._windowed(f"window {name}", on_error, reduce=function)

    @overload
    def aggregate(
        self,
        aggregate: AggregateFunction[T, Any, U],
        window_function: None = None,
        *,
        include_key: Literal[False] = False,
        on_error: OnError = fail,
    ) -> DataStream[U]: ...

    @overload
    def aggregate(
        self,
        aggregate: AggregateFunction[T, Any, U],
        window_function: None = None,
        *,
        include_key: Literal[True],
        on_error: OnError = fail,
    ) -> DataStream[tuple[K, U]]: ...

    @overload
    def aggregate(
        self,
        aggregate: AggregateFunction[T, Any, U],
        window_function: WindowFunction[K, U, V, WindowT],
        *,
        on_error: OnError = fail,
    ) -> DataStream[V]: ...

    def aggregate(
        self,
        aggregate: AggregateFunction[T, Any, Any],
        window_function: Any = None,
        *,
        include_key: bool = False,
        on_error: OnError = fail,
    ) -> DataStream[Any]:
        """Aggregate the records of each window as they arrive.

        Args:
            aggregate: ``am.count()``, ``am.aggregates(...)`` or your own. Several
                named ones give records with ``key``, ``window_start``, ``window_end``.
            window_function: Gets the key, the window and a list with the result; None emits
                the result.
            include_key: Whether a single aggregate emits ``(key, result)``. Such results
                are rows, also where those of ``am.aggregates(...)`` would be columns.
            on_error: How to handle a record, or a firing, for which a function raises;
                as in `reduce`.

        Raises:
            InvalidArgumentError: If ``include_key`` is given with a window function, or
                the stream has no keys.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> clicks = env.from_collection(
            ...     [("a", 1000), ("a", 1500), ("a", 2500)],
            ...     am.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
            ...         lambda click: click[1]
            ...     ),
            ... )
            >>> counts = (
            ...     clicks.key_by(lambda click: click[0])
            ...     .window(am.TumblingEventTimeWindows.of(am.seconds(1)))
            ...     .aggregate(am.count(), include_key=True)
            ... )
            >>> am.run(counts.collect())
            [('a', 2), ('a', 1)]
        """
        return self._windowed(
            "window aggregate",
            on_error,
            aggregate=aggregate,
            window_function=window_function,
            include_key=include_key,
        )

    def process(
        self,
        function: ProcessWindowFunction[K, T, U, WindowT]
        | Callable[
            [K, ProcessWindowContext[WindowT], list[T], Collector[U]],
            Awaitable[None] | None,
        ],
        *,
        on_error: OnError = fail,
    ) -> DataStream[U]:
        """Keep all records of each window and pass them to ``function`` when it fires.

        Args:
            function: A `ProcessWindowFunction`, or a function
                ``(key, context, elements, out)``, sync or ``async def``.
            on_error: How to handle a record, or a firing, for which it raises; as in
                `reduce`.
        """
        if not isinstance(function, ProcessWindowFunction):
            function = as_object(
                OnlyProcessWindow, function, "(key, context, elements, out)", 4
            )
        return self._windowed("window process", on_error, window_function=function)

    def apply(
        self,
        function: Callable[[K, WindowT, list[T]], Items[U]],
        *,
        on_error: OnError = fail,
    ) -> DataStream[U]:
        """Keep all records of each window, and emit what a function returns for them.

        Args:
            function: ``function(key, window, records)`` returns an iterable.
            on_error: How to handle a record, or a firing, for which it raises; as in
                `reduce`.
        """
        check_function(function, "function", arity=3, gets="key, window, records")
        return self._windowed("window apply", on_error, window_function=function)

    def _join(
        self, name: str, function: CoGroupFunction | JoinFunction, on_error: OnError
    ) -> DataStream[Any]:
        """Emit what a function makes of the sides of each window; see `JoinedWindows`."""
        for origin in self._origins:
            # It marks the records of a side for this function, and has none itself.
            origin.transformation.asks_for_rows = describe(function.function)
        return self._windowed(name, on_error, window_function=function)

    def _windowed(self, name: str, on_error: OnError, **work: Any) -> DataStream[Any]:
        self._is_used = True
        if "trigger" not in self._settings:
            _check_fires(self._assigner)
        settings = {**self._settings, "on_error": check_on_error(on_error)}
        factory = partial(
            own_copy,
            formed,
            window_operator,
            self._key,
            self._assigner,
            **settings,
            **work,
        )
        functions = tuple(
            function for item in work.values() for function in _functions_of(item)
        )
        purging = isinstance(settings.get("trigger"), PurgingTrigger)
        evicting = isinstance(settings.get("evictor"), CountEvictor)
        stays = isinstance(self._assigner, GlobalWindows) and not purging | evicting
        unbounded = _NEVER_PURGED if stays else ""
        waits = waits_for_watermarks({"assigner": self._assigner, **self._settings})
        return self._derive(
            name,
            factory,
            functions,
            unbounded=unbounded,
            settings=(self._told(),),
            has_columns=True,
            held="open windows" if waits else _BY_TRIGGER,
            waits_for_watermarks=waits,
        )

    def _told(self) -> str:
        """Return the windows with their settings, for `explain`."""
        texts = [f"windows: {self._assigner}"]
        for name, value in self._settings.items():
            told = value
            if isinstance(value, timedelta):
                told = duration_text(pipeline_ms(value, name))
            elif isinstance(value, OutputTag):
                told = f"to {value.id!r}"
            if name in _TOLD:
                texts.append(f"{_TOLD[name]} {told}")
        return "; ".join(texts)


def waits_for_watermarks(said: Mapping[str, Any]) -> bool:
    """Say whether windows fire only when event time passes their end."""
    trigger = said.get("trigger") or said["assigner"].default_trigger
    return isinstance(trigger, EventTimeTrigger)


def counting(
    windows: WindowedStream[K, T, GlobalWindow], size: int, slide: int | None
) -> WindowedStream[K, T, GlobalWindow]:
    """Let windows fire for every so many records, as Flink's count windows do."""
    size = check_count(size, "size")
    if slide is None:
        return windows.trigger(PurgingTrigger.of(CountTrigger.of(size)))
    every = CountTrigger.of(check_count(slide, "slide"))
    return windows.trigger(every).evictor(CountEvictor.of(size))


def _check_fires(assigner: WindowAssigner[Any]) -> None:
    """Refuse windows that never fire, and so never emit anything.

    Raises:
        InvalidArgumentError: If the assigner's own trigger is that of global windows.
    """
    if isinstance(assigner.default_trigger, NeverTrigger):
        raise InvalidArgumentError(
            "trigger",
            f"{type(assigner).__name__} without one never fire, so nothing is emitted",
            "Write .trigger(am.CountTrigger.of(n)) or another one before this, or "
            "am.GlobalWindows.create_with_end_of_stream_trigger() for windows that fire "
            "when the input ends.",
        )


def _check_sync(value: object, kind: type[Any], parameter: str) -> Any:
    """Return ``value`` if it is of a kind, and its methods are as the kind has them."""
    check_type(value, kind, parameter)
    for name in vars(kind):
        method = getattr(value, name)
        if inspect.isfunction(vars(kind)[name]) and name[0] != "_":
            _, *arguments = inspect.signature(vars(kind)[name]).parameters
            check_methods(value, parameter, {name: arguments})
        if callable(method) and is_async_callable(method):
            raise WrongTypeError(
                parameter,
                f"{name} of {value!r} is async, and windows call it without awaiting",
                "Write def instead of async def.",
            )
    return value


def _functions_of(work: Any) -> list[Any]:
    """Return what the user wrote: a function, or the methods of an object."""
    if isinstance(work, CoGroupFunction | JoinFunction):
        return [work.function]
    process = getattr(work, "process", None)
    if callable(process):
        return [process]
    add = getattr(work, "add", None)
    if callable(add):
        return [FunctionInfo(repr(work), is_async_callable(add))]
    return [work] if callable(work) else []
