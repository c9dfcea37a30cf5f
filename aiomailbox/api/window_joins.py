"""Two streams joined by key and window, said step by step."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar

from aiomailbox.api.windowed import WindowedStream
from aiomailbox.operators import KeySelector, OnError, field_or_function
from aiomailbox.windowing import (
    CoGroupFunction,
    Evictor,
    JoinFunction,
    SidedKey,
    Trigger,
    WindowAssigner,
)

StreamT = TypeVar("StreamT")

MakeFunction = type[CoGroupFunction] | type[JoinFunction]


class SidedWindows(Protocol[StreamT]):
    """Makes windows of the two sides of a join, united."""

    def __call__(
        self, key: SidedKey, assigner: WindowAssigner
    ) -> WindowedStream[Any, Any, StreamT]:
        """Return the windows."""
        ...


class JoinedStreams(Generic[StreamT]):
    """Two streams to be joined in windows: next is ``where(key)``.

    Made by `DataStream.join` and `DataStream.co_group`.

    Concept:
        Flink, ``JoinedStreams`` and ``CoGroupedStreams``.
    """

    def __init__(self, windows: SidedWindows[StreamT], make: MakeFunction) -> None:
        self._windows = windows
        self._make = make

    def where(self, key: KeySelector) -> JoinedWhere[StreamT]:
        """Say by which key the first stream is joined: a field's name or a function."""
        field_or_function(key, "where")
        return JoinedWhere(self._windows, self._make, key)


class JoinedWhere(Generic[StreamT]):
    """A join that knows one key: next is ``equal_to(key)``."""

    def __init__(
        self, windows: SidedWindows[StreamT], make: MakeFunction, where: KeySelector
    ) -> None:
        self._windows = windows
        self._make = make
        self._where = where

    def equal_to(self, key: KeySelector) -> JoinedKeys[StreamT]:
        """Say by which key the second stream is joined; keys are of one type."""
        return JoinedKeys(self._windows, self._make, SidedKey(self._where, key))


class JoinedKeys(Generic[StreamT]):
    """A join that knows both keys: next is ``window(assigner)``."""

    def __init__(
        self, windows: SidedWindows[StreamT], make: MakeFunction, key: SidedKey
    ) -> None:
        self._windows = windows
        self._make = make
        self._key = key

    def window(self, assigner: WindowAssigner) -> JoinedWindows[StreamT]:
        """Say in which windows records meet."""
        return JoinedWindows(self._windows(self._key, assigner), self._make)


class JoinedWindows(Generic[StreamT]):
    """A join in windows; `apply` says what is made of the records that meet.

    Triggers, evictors and gap functions see records with their side: ``(0, record)``
    of the first stream, ``(1, record)`` of the second.

    Concept:
        Flink, ``JoinedStreams.WithWindow`` and ``CoGroupedStreams.WithWindow``.
    """

    def __init__(
        self, windowed: WindowedStream[Any, Any, StreamT], make: MakeFunction
    ) -> None:
        self._windowed = windowed
        self._make = make

    def trigger(self, trigger: Trigger) -> JoinedWindows[StreamT]:
        """Decide when a window fires; by default when time passes its end."""
        self._windowed.trigger(trigger)
        return self

    def evictor(self, evictor: Evictor) -> JoinedWindows[StreamT]:
        """Decide which records a firing forgets."""
        self._windowed.evictor(evictor)
        return self

    def allowed_lateness(self, lateness: timedelta | float) -> JoinedWindows[StreamT]:
        """Keep windows so much longer, and fire again for each late record."""
        self._windowed.allowed_lateness(lateness)
        return self

    def on_error(self, on_error: OnError) -> JoinedWindows[StreamT]:
        """Say what to do with what a function raises for.

        That is a pair of records of a join, a window of a co-group, or the record for
        which a gap function or trigger raises; see `WindowedStream.on_error`.
        """
        self._windowed.on_error(on_error)
        return self

    def apply(self, function: Callable[[Any, Any], Any]) -> StreamT:
        """Emit what ``function`` makes of the records that meet.

        Args:
            function: After `DataStream.join`: ``(first, second)`` → one result, called
                for each pair of a window. After `DataStream.co_group`:
                ``(firsts, seconds)`` → an iterable of results, called with two lists,
                of which one may be empty. Sync or ``async def``.

        Returns:
            The results, with the last millisecond of their window as event time.
        """
        made = self._make(function)
        name = "window join" if isinstance(made, JoinFunction) else "co-group"
        return self._windowed.join(name, made)
