"""Windowed streams: the records of a key in a span of time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar

from aiomailbox.api.build import function_info
from aiomailbox.durations import duration_ms
from aiomailbox.errors import WrongTypeError
from aiomailbox.graph import FunctionInfo, OperatorFactory
from aiomailbox.operators import check_function
from aiomailbox.records import OutputTag
from aiomailbox.state import AggregateFunction
from aiomailbox.windowing import (
    Evictor,
    ProcessWindowFunction,
    Trigger,
    WindowAssigner,
    WindowOperator,
)

K = TypeVar("K")
T = TypeVar("T")
StreamT = TypeVar("StreamT")


class WindowedStream(Generic[K, T, StreamT]):
    """A keyed stream cut into windows; say what to compute per key and window.

    Made by `KeyedStream.window`, which says how the resulting stream is made.

    Concept:
        Flink, ``WindowedStream``.
    """

    def __init__(
        self,
        key: Callable[[T], K],
        assigner: WindowAssigner,
        derive: Callable[[str, OperatorFactory, tuple[FunctionInfo, ...]], StreamT],
    ) -> None:
        if not isinstance(assigner, WindowAssigner):
            raise WrongTypeError(
                "assigner",
                f"{assigner!r} is not a window assigner",
                "Use am.TumblingEventTimeWindows.of(am.minutes(5)).",
            )
        self._key = key
        self._derive = derive
        self._assigner = assigner
        self._settings: dict[str, Any] = {}

    def trigger(self, trigger: Trigger) -> WindowedStream[K, T, StreamT]:
        """Decide when a window fires; by default when time passes its end."""
        self._settings["trigger"] = trigger
        return self

    def evictor(self, evictor: Evictor) -> WindowedStream[K, T, StreamT]:
        """Decide which records a firing forgets."""
        self._settings["evictor"] = evictor
        return self

    def allowed_lateness(
        self, lateness: timedelta | float
    ) -> WindowedStream[K, T, StreamT]:
        """Keep windows so much longer, and fire again for each late record."""
        self._settings["allowed_lateness_ms"] = duration_ms(lateness, "lateness")
        return self

    def side_output_late_data(self, tag: OutputTag) -> WindowedStream[K, T, StreamT]:
        """Send records that came too late for all their windows to a side output."""
        if not isinstance(tag, OutputTag):
            raise WrongTypeError("tag", f"{tag!r} is not an OutputTag")
        self._settings["late_tag"] = tag
        return self

    def reduce(
        self,
        function: Callable[[T, T], T],
        window_function: ProcessWindowFunction | None = None,
    ) -> StreamT:
        """Fold the records of each window into one.

        Args:
            function: Folds two records into one.
            window_function: Gets the result, with key and window; None emits it.
        """
        check_function(function, "function", arity=2)
        return self._windowed(
            "window reduce",
            (function_info(function),),
            reduce=function,
            process=window_function,
        )

    def aggregate(
        self,
        aggregate: AggregateFunction,
        window_function: ProcessWindowFunction | None = None,
    ) -> StreamT:
        """Aggregate the records of each window as they come.

        Args:
            aggregate: ``am.count()``, ``am.aggregates(...)`` or your own.
            window_function: Gets the result, with key and window; None emits it.
        """
        return self._windowed(
            "window aggregate", (), aggregate=aggregate, process=window_function
        )

    def process(self, function: ProcessWindowFunction) -> StreamT:
        """Keep all records of each window and hand them to ``function`` when it fires."""
        return self._windowed("window process", (), process=function)

    def _windowed(
        self, name: str, functions: tuple[FunctionInfo, ...], **work: Any
    ) -> StreamT:
        factory = partial(
            WindowOperator, self._key, self._assigner, **self._settings, **work
        )
        # Wrong combinations fail here, where they are written.
        factory()
        return self._derive(name, factory, functions)
