"""How much a producer may send: the reader's room, and the credit that it granted.

Theory of operation: a channel keeps a few buffers for itself, exclusively, and borrows
floating ones from its gate's pool while the producer's backlog asks for them. Each
buffer that becomes free for the channel is a credit, announced once; each data buffer
that arrives uses one up. So of what is free, every single one is either still
unannounced, or on its way to the producer, or there, or its data is on the way back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from aiomailbox.errors import IllegalStateError
from aiomailbox.memory.buffer import DataType, MemorySegment, NetworkBuffer
from aiomailbox.memory.local_pool import LocalBufferPool


class ChannelBuffers:
    """The buffers of one remote channel on the reader's side.

    Args:
        pool: Of the gate, for floating buffers.
        exclusive: Segments for this channel alone; their number is the credit that
            the partition request carries.
        on_credit: Called when unannounced credit has turned from none to some.
        return_exclusive: Gets the exclusive segments back, in the end.

    Attributes:
        required: How many buffers the producer's backlog asks for.
        unannounced: Credit that was not announced to the producer yet.
        is_waiting: Whether the pool is to offer its next segment.

    Invariants:
        ``available == producer's credit + unannounced + credit and data on the way``.

    Concept:
        Flink, ``BufferManager``.

    Example:
        >>> class Empty:
        ...     def try_request(self): ...
        ...     def add_listener(self, listener):
        ...         return True
        >>> buffers = ChannelBuffers(
        ...     Empty(),
        ...     [MemorySegment(8), MemorySegment(8)],
        ...     on_credit=lambda: print("credit to announce"),
        ...     return_exclusive=lambda segments: None,
        ... )
        >>> buffer = buffers.request_buffer()
        >>> buffer.recycle()
        credit to announce
        >>> buffers.take_credit()
        1
    """

    def __init__(
        self,
        pool: LocalBufferPool,
        exclusive: Iterable[MemorySegment],
        *,
        on_credit: Callable[[], None],
        return_exclusive: Callable[[list[MemorySegment]], None],
    ) -> None:
        self._pool = pool
        self._exclusive = deque(exclusive)
        self._floating: deque[MemorySegment] = deque()
        self._on_credit = on_credit
        self._return_exclusive = return_exclusive
        self.initial_credit: int = len(self._exclusive)
        self.required: int = 0
        self.unannounced: int = 0
        self.is_waiting: bool = False
        self.is_released: bool = False

    def __repr__(self) -> str:
        return (
            f"<ChannelBuffers: {self.available} available, {self.required} required, "
            f"{self.unannounced} unannounced{', waiting' if self.is_waiting else ''}"
            f"{', released' if self.is_released else ''}>"
        )

    @property
    def available(self) -> int:
        """Buffers that data can arrive in."""
        return len(self._exclusive) + len(self._floating)

    @property
    def available_exclusive(self) -> int:
        """How many of them are the channel's own."""
        return len(self._exclusive)

    @property
    def sender_backlog(self) -> int:
        """How many buffers wait at the producer, as far as it has said."""
        return max(0, self.required - self.initial_credit)

    def request_buffer(self) -> NetworkBuffer | None:
        """Take a buffer for data that arrives, a floating one first.

        Returns:
            The buffer, or None: the producer has sent without credit.
        """
        # What arrives was part of the backlog that asked for room.
        self.required = max(0, self.required - 1)
        if self._floating:
            # Floating ones first: they go back to the pool when they are recycled, and
            # others of the gate wait there.
            return NetworkBuffer(self._floating.popleft(), self._pool.recycle)
        if self._exclusive:
            return NetworkBuffer(self._exclusive.popleft(), self._recycle_exclusive)
        return None

    def on_sender_backlog(self, backlog: int) -> None:
        """Learn how much the producer has, and get buffers for it."""
        if not self.is_released:
            self.required = backlog + self.initial_credit
            self._grant(self._request_floating())

    def take_credit(self) -> int:
        """Return the credit to announce now, and count it as announced."""
        credit, self.unannounced = self.unannounced, 0
        return credit

    def on_blocking_event(self) -> None:
        """Release floating buffers when the producer stops, if there are no others.

        A channel without buffers of its own would hold on to them for nothing.
        """
        if not self.initial_credit:
            self.required = 0
            self._release_floating()

    def on_resume(self) -> None:
        """Forget credit for buffers that are gone; the producer does the same."""
        if not self.initial_credit:
            self.unannounced = 0

    def on_buffer_available(self, segment: MemorySegment) -> bool:
        """Take the segment that the pool offers, if it is still needed.

        Raises:
            IllegalStateError: If nothing waits for it.
        """
        if not self.is_waiting:
            raise IllegalStateError(f"{self!r} was offered a segment without waiting")
        self.is_waiting = False
        if self.is_released or self.available >= self.required:
            return False
        self._floating.append(segment)
        self._grant(1 + self._request_floating())
        return True

    def on_pool_destroyed(self) -> None:
        """Learn that no segment will come."""
        self.is_waiting = False

    def release(self) -> None:
        """Give everything back; buffers still out follow when they are recycled."""
        if self.is_released:
            return
        self.is_released = True
        self.required = self.unannounced = 0
        exclusive, self._exclusive = list(self._exclusive), deque()
        if exclusive:
            self._return_exclusive(exclusive)
        self._release_floating()

    def _request_floating(self) -> int:
        granted = 0
        while self.available < self.required and not self.is_waiting:
            segment = self._pool.try_request()
            if segment is not None:
                self._floating.append(segment)
                granted += 1
            else:
                self.is_waiting = self._pool.add_listener(self)
        return granted

    def _grant(self, credit: int) -> None:
        had_none = not self.unannounced
        self.unannounced += credit
        if credit and had_none:
            self._on_credit()

    def _recycle_exclusive(self, segment: MemorySegment) -> None:
        if self.is_released:
            self._return_exclusive([segment])
            return
        self._exclusive.append(segment)
        if self.available > self.required and self._floating:
            # One more of our own for one less that is borrowed: no credit changes.
            self._pool.recycle(self._floating.popleft())
        else:
            self._grant(1)

    def _release_floating(self) -> None:
        # One at a time: recycling may offer to others, and they may call back.
        while self._floating:
            self._pool.recycle(self._floating.popleft())


class SenderCredit:
    """The credit of a producer on one channel.

    Args:
        initial_credit: Of the partition request.

    Attributes:
        available: How many data buffers may be sent; events are free.

    Concept:
        Flink, ``CreditBasedSequenceNumberingViewReader``.

    Example:
        >>> credit = SenderCredit(1)
        >>> credit.on_sent(DataType.DATA_BUFFER)
        >>> credit.on_sent(DataType.END_OF_DATA)
        >>> credit.available
        0
    """

    def __init__(self, initial_credit: int) -> None:
        self.initial_credit: int = initial_credit
        self.available: int = initial_credit

    def add(self, credit: int) -> None:
        """Be notified of announced credit."""
        self.available += credit

    def on_sent(self, data_type: DataType) -> None:
        """Use up a credit for a data buffer.

        Raises:
            IllegalStateError: If there is none.
        """
        if not data_type.is_buffer:
            return
        if not self.available:
            raise IllegalStateError("a data buffer was sent without credit")
        self.available -= 1

    def announces_backlog(self, backlog: int) -> bool:
        """Say whether the reader has to know the backlog to give any credit."""
        return not self.initial_credit and not self.available and backlog > 0

    def on_resume(self) -> None:
        """Forget credit for buffers that a reader without its own has released."""
        if not self.initial_credit:
            self.available = 0
