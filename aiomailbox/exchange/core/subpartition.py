"""What subpartitions have in common, whatever their buffers hold.

Theory of operation: a subpartition has one reader in its life. Events may block it until
the reader resumes, and the producer may release it before its end.
"""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from aiomailbox.errors import IllegalStateError
from aiomailbox.exchange.core.contract import (
    ChannelStatistics,
    DataListener,
    PolledBuffer,
    PolledBytes,
)


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


# What the two kinds of readers may do with a subpartition, without its stack.
#
# Theory of operation: channels, the registry and connections use a reader's end; which
# buffers it reads, and from what kind of partition, is nothing they import.


class _View(Protocol):
    @property
    def is_released(self) -> bool:
        """Whether either side has released it."""
        ...

    @property
    def failure(self) -> BaseException | None:
        """Why the producer released it, if it failed."""
        ...

    @property
    def backlog(self) -> int:
        """Data buffers that can be taken."""
        ...

    def is_available(self, *, has_credit: bool = True) -> bool:
        """Say whether something can be taken; without credit only an event can."""
        ...

    def resume_consumption(self) -> None:
        """Lift the block of an event; raises IllegalStateError if nothing blocks.

        The caller looks for data again: the listener is notified as well.
        """
        ...

    def release(self) -> None:
        """Recycle what is queued, and drop what is still added. Idempotent."""
        ...


class ObjectView(_View, Protocol):
    """The end of a subpartition that a consumer on this loop reads."""

    @property
    def has_priority(self) -> bool:
        """Whether the next buffer is a priority event."""
        ...

    def poll(self) -> PolledBuffer | None:
        """Take the next buffer, or None; the caller recycles it."""
        ...

    def tell_again(self) -> None:
        """Tell the listener if something can be taken now."""
        ...

    def statistics(self) -> ChannelStatistics:
        """Return a snapshot for metrics; counting what is queued takes a walk."""
        ...


class BytesView(_View, Protocol):
    """The end of a subpartition that a connection reads, at the producer."""

    def poll(self) -> PolledBytes | None:
        """Take the next buffer, or None; the caller recycles it."""
        ...

    def acknowledge_all_data_processed(self) -> None:
        """Be notified that the reader has processed all records."""
        ...

    def set_buffer_bytes(self, size_bytes: int) -> None:
        """Be notified of the reader's wish for the size of buffers."""
        ...


@runtime_checkable
class ServesBytes(Protocol):
    """A partition with consumers on other loops, which read bytes."""

    def create_bytes_view(
        self,
        subpartition_index: int,
        listener: DataListener,
        *,
        receiver_exclusive_buffers: int,
    ) -> BytesView:
        """Return the one view of a channel for a remote consumer.

        Raises:
            InvalidArgumentError: If there is no such channel, or it stays on this loop.
            IllegalStateError: If it has a view already, or was released.
        """
        ...


# What every reader may do with its subpartition, whatever its buffers hold.


S = TypeVar("S", bound=ResultSubpartition[Any])


class ReadingEnd(Generic[S]):
    """The end of one subpartition that is read; there is one at most.

    Args:
        subpartition: What is read.
        listener: Notified when something can be taken; about what is queued
            already only if `tell_again` is called.
        on_released: Called once, after the view was released.

    Raises:
        IllegalStateError: If the subpartition has a view already or was released.

    Concept:
        Flink, ``PipelinedSubpartitionView``.
    """

    __slots__ = ("_on_released", "_released", "_subpartition")

    def __init__(
        self,
        subpartition: S,
        listener: DataListener,
        on_released: Callable[[], None] | None = None,
    ) -> None:
        subpartition.attach(listener)
        self._subpartition = subpartition
        self._on_released = on_released
        self._released = False

    @property
    def is_released(self) -> bool:
        """Whether either side has released it."""
        return self._released or self._subpartition.is_released

    @property
    def failure(self) -> BaseException | None:
        """Why the producer released it, if it failed."""
        return self._subpartition.failure

    @property
    def backlog(self) -> int:
        """Data buffers that can be taken."""
        return self._subpartition.backlog

    @property
    def has_priority(self) -> bool:
        """Whether the next buffer is a priority event."""
        return self._subpartition.has_priority

    def is_available(self, *, has_credit: bool = True) -> bool:
        """Say whether something can be taken; without credit only an event can."""
        return self._subpartition.is_available(has_credit=has_credit)

    def resume_consumption(self) -> None:
        """Lift the block of an event, and tell the listener what came meanwhile.

        Raises:
            IllegalStateError: If nothing blocks.
        """
        self._subpartition.resume_consumption()
        self._subpartition.tell_again()

    def tell_again(self) -> None:
        """Tell the listener if something can be taken now."""
        self._subpartition.tell_again()

    def release(self) -> None:
        """Release it: what is queued is recycled, what is still added is dropped."""
        if self._released:
            return
        self._released = True
        self._subpartition.detach()
        self._subpartition.release()
        if self._on_released is not None:
            self._on_released()


# A deque whose priority elements come first and keep their own order.


ItemT = TypeVar("ItemT")


class PrioritizedDeque(Generic[ItemT]):
    """Priority elements first, in their order; then the others, in theirs.

    Elements are compared by identity.

    Invariants:
        ``0 <= priority_count <= len(self)``.

    Concept:
        Flink, ``PrioritizedDeque``.

    Example:
        >>> queue = PrioritizedDeque()
        >>> queue.append("data")
        >>> queue.append_priority("barrier")
        >>> queue.popleft(), queue.popleft()
        ('barrier', 'data')
    """

    __slots__ = ("_items", "priority_count")

    def __init__(self) -> None:
        self._items: deque[ItemT] = deque()
        self.priority_count: int = 0

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[ItemT]:
        return iter(self._items)

    def append(self, item: ItemT) -> None:
        """Add an element behind all others."""
        self._items.append(item)

    def append_priority(self, item: ItemT) -> None:
        """Add an element behind the priority elements and before the others."""
        self._items.insert(self.priority_count, item)
        self.priority_count += 1

    def prioritize(self, item: ItemT) -> None:
        """Move a queued element behind the last priority element.

        A no-op if it is a priority element already.

        Raises:
            ValueError: If the element is not queued.
        """
        index = self.index(item)
        if index < self.priority_count:
            return
        # At the border counting is enough: it already stands where it belongs.
        if index > self.priority_count:
            del self._items[index]
            self._items.insert(self.priority_count, item)
        self.priority_count += 1

    def popleft(self) -> ItemT:
        """Remove and return the first element.

        Raises:
            IndexError: If there is none.
        """
        item = self._items.popleft()
        if self.priority_count:
            self.priority_count -= 1
        return item

    def peek(self) -> ItemT | None:
        """Return the first element without removing it, or None."""
        return self._items[0] if self._items else None

    def peek_last(self) -> ItemT | None:
        """Return the last element without removing it, or None."""
        return self._items[-1] if self._items else None

    def remove(self, item: ItemT) -> bool:
        """Remove an element wherever it is; say whether it was there."""
        for index, candidate in enumerate(self._items):
            if candidate is item:
                del self._items[index]
                if index < self.priority_count:
                    self.priority_count -= 1
                return True
        return False

    def index(self, item: ItemT) -> int:
        """Return an element's place, from 0.

        Raises:
            ValueError: If the element is not queued.
        """
        for index, candidate in enumerate(self._items):
            if candidate is item:
                return index
        raise ValueError(f"{item!r} is not queued")

    def clear(self) -> list[ItemT]:
        """Remove all elements and return them in order."""
        items = list(self._items)
        self._items.clear()
        self.priority_count = 0
        return items
