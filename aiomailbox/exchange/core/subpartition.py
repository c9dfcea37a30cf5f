"""What subpartitions have in common, whatever their buffers hold.

Theory of operation: a subpartition has one reader in its life. Events may block it until
the reader resumes, and the producer may release it before its end.
"""

from __future__ import annotations

import abc
from typing import Generic, Protocol, TypeVar

from aiomailbox.errors import IllegalStateError
from aiomailbox.exchange.core.contract import DataListener

__all__ = ["ResultSubpartition"]


class _Queue(Protocol):
    @property
    def priority_count(self) -> int: ...

    def __len__(self) -> int: ...


Q = TypeVar("Q", bound=_Queue)


class ResultSubpartition(abc.ABC, Generic[Q]):
    """Base of subpartitions: their one reader, what blocks it, and their end.

    Args:
        index: Its place in the partition, from 0.
        queue: Of buffers, priority events first.

    Attributes:
        index: As given.
        is_finished: Whether the event that ends the partition is queued, or taken.
        is_released: Whether everything was released.
        failure: Why, if the producer failed.
        buffers_total: Buffers counted so far, events included.
        bytes_total: Bytes taken so far.

    Concept:
        Flink, ``ResultSubpartition``.
    """

    __slots__ = (
        "_has_view",
        "_is_blocked",
        "_listener",
        "_queue",
        "_sequence_number",
        "buffers_total",
        "bytes_total",
        "failure",
        "index",
        "is_finished",
        "is_released",
    )

    def __init__(self, index: int, queue: Q) -> None:
        self.index: int = index
        self.is_finished: bool = False
        self.is_released: bool = False
        self.failure: BaseException | None = None
        self.buffers_total: int = 0
        self.bytes_total: int = 0
        self._queue = queue
        self._is_blocked = False
        self._sequence_number = 0
        self._listener: DataListener | None = None
        self._has_view = False

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.index}: {len(self._queue)} queued"
            f"{', blocked' if self._is_blocked else ''}"
            f"{', finished' if self.is_finished else ''}"
            f"{', released' if self.is_released else ''}>"
        )

    @property
    def is_blocked(self) -> bool:
        """Whether an event that was handed out waits for `resume_consumption`."""
        return self._is_blocked

    @property
    def queued_buffers(self) -> int:
        """Buffers that are queued, events included."""
        return len(self._queue)

    @property
    def has_priority(self) -> bool:
        """Whether the next buffer is a priority event that can be taken."""
        return self._queue.priority_count > 0 and not self._is_blocked

    @property
    @abc.abstractmethod
    def backlog(self) -> int:
        """Data buffers that can be taken: the unfinished one only if it is flushed."""

    @property
    @abc.abstractmethod
    def has_unflushed_data(self) -> bool:
        """Whether an unfinished buffer holds something that cannot be taken yet."""

    @abc.abstractmethod
    def is_available(self, *, has_credit: bool = True) -> bool:
        """Say whether something can be taken; without credit only an event can."""

    @abc.abstractmethod
    def flush(self) -> None:
        """Let the unfinished buffer be taken, if it holds anything."""

    @abc.abstractmethod
    def _clear(self, failure: BaseException | None) -> None:
        """Release what is queued."""

    def attach(self, listener: DataListener) -> None:
        """Notify a reader from now on; not about what is queued.

        Raises:
            IllegalStateError: If there is, or was, a reader, or all was released.
        """
        if self.is_released:
            raise IllegalStateError(f"{self!r} has been released")
        if self._has_view:
            raise IllegalStateError(
                f"{self!r} has a view already; one consumer reads a subpartition"
            )
        self._has_view = True
        self._listener = listener

    def detach(self) -> None:
        """Tell the reader nothing more: it is going away itself."""
        self._listener = None

    def resume_consumption(self) -> None:
        """Lift the block of an event; a waiter is notified by `tell_again`.

        Raises:
            IllegalStateError: If nothing blocks.
        """
        if not self._is_blocked:
            raise IllegalStateError(
                f"{self!r} is not blocked; resume once per event that blocks upstream"
            )
        self._is_blocked = False

    def tell_again(self) -> None:
        """Tell the reader if something can be taken: after it came, or resumed."""
        # Asked again, for adding and flushing notify nothing while an event blocks
        # (FLINK-23223).
        if self._listener is None or not self.is_available():
            return
        if self._queue.priority_count:
            self._listener.on_priority_event(self._sequence_number)
        else:
            self._listener.on_data_available()

    def release(self, failure: BaseException | None = None) -> None:
        """Release what is queued and tell a reader that nothing will come.

        Args:
            failure: Why, when the producer failed. Idempotent.
        """
        if self.is_released:
            return
        self.is_released = True
        self.failure = failure
        # Told last, and without its listener: it may come back and find all released.
        listener, self._listener = self._listener, None
        self._clear(failure)
        if listener is not None:
            listener.on_data_available()
