"""The verb that gives two streams to one operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

from aiomailbox.api.broadcast import BroadcastConnectedStream, BroadcastStream
from aiomailbox.api.connected import ConnectedStreams
from aiomailbox.api.results import ResultVerbs
from aiomailbox.graph import OperatorFactory, Origin

T = TypeVar("T")
U = TypeVar("U")
StreamT = TypeVar("StreamT")


class Connecting(Generic[T, StreamT]):
    """Connecting a stream with another one, or with a broadcast one."""

    def _connected(
        self, others: list[Origin], name: str, factory: OperatorFactory, **facts: Any
    ) -> StreamT:
        raise TypeError(f"{type(self).__name__} does not define _connected")

    def _check_joinable(self, other: object, parameter: str) -> None:
        raise TypeError(f"{type(self).__name__} does not define _check_joinable")

    @overload
    def connect(self, other: BroadcastStream) -> BroadcastConnectedStream[StreamT]: ...

    @overload
    def connect(self, other: ResultVerbs[U]) -> ConnectedStreams[T, U, StreamT]: ...

    def connect(
        self, other: BroadcastStream | ResultVerbs[U]
    ) -> BroadcastConnectedStream[StreamT] | ConnectedStreams[T, U, StreamT]:
        """Give two streams, of different types if need be, to one operator.

        Args:
            other: A stream, or what ``broadcast(descriptor)`` returns.
        """
        key: Callable[[Any], Any] | None = getattr(self, "key", None)
        if isinstance(other, BroadcastStream):
            self._check_joinable(other.stream, "other")
            return BroadcastConnectedStream(self._connected, other, key)
        self._check_joinable(other, "other")
        other_key = getattr(other, "key", None)
        keys = None if key is None or other_key is None else (key, other_key)
        return ConnectedStreams(self._connected, other._origins, keys)
