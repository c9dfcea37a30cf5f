"""One channel's queue on the producer's side, and the view a consumer has of it.

Theory of operation: a subpartition has one reader in its life. Only its last buffer may
be unfinished: that is nothing to take unless a flush was asked for. Priority events come
before all else. After an event that blocks upstream only they can be taken until
consumption is resumed; the flush request survives that. The producer may release the
subpartition before its end. The reader is notified when there is something to take, and
takes until `poll` says that nothing more is ready.

A barrier that may still turn unaligned is expected by the channel state from when it is
queued until it is taken, overtakes, or will do neither.
"""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from aiomailbox.errors import IllegalStateError, InvalidArgumentError
from aiomailbox.exchange.core.contract import (
    SEQUENCE_MODULUS,
    ChannelStateWriter,
    ChannelStatistics,
    DataListener,
)
from aiomailbox.ids import PartitionId
from aiomailbox.memory.local_pool import LocalBufferPool
from aiomailbox.records import Control
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.events import CheckpointBarrier, EndOfPartition, RuntimeEvent
from aiomailbox.records.run import Run
from aiomailbox.typevars import ItemT

# A deque whose priority elements come first and keep their own order.


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


class Queueable(Protocol):
    """The methods that a queue needs of its buffers."""

    @property
    def event(self) -> RuntimeEvent | None:
        """The event, or None in a buffer of data."""

    @property
    def is_sealed(self) -> bool:
        """Whether its writer has finished, as far as was looked."""

    @property
    def has_content(self) -> bool:
        """Whether it holds something to take."""

    @property
    def record_count(self) -> int:
        """The records in it, as far as they are counted."""

    @property
    def size_bytes(self) -> int:
        """Its size, or an estimate of that."""


BufferT = TypeVar("BufferT", bound=Queueable)
PolledT = TypeVar("PolledT")


class Producer:
    """Lends one output the permits of its buffers, until the output is closed.

    Args:
        partition_id: Whose output, and towards which edge.
        pool: Where the permits come from.

    Attributes:
        is_closed: Whether nothing can be emitted any more.
    """

    def __init__(self, partition_id: PartitionId, pool: LocalBufferPool) -> None:
        self.partition_id: PartitionId = partition_id
        self.pool: LocalBufferPool = pool
        self.is_closed: bool = False
        self._counts_channels = bool(pool.options.subpartitions)

    def check_open(self) -> None:
        """Check that something can be emitted.

        Raises:
            IllegalStateError: If the output is closed.
        """
        if self.is_closed:
            raise IllegalStateError(
                f"partition {self.partition_id} is closed; nothing can be emitted"
            )

    def charged(self, channel: int) -> int | None:
        """Return which channel of the pool pays; a pool may count none."""
        return channel if self._counts_channels else None


UNLIMITED_BUFFER_BYTES: Final = 2**31 - 1


class ResultSubpartition(abc.ABC, Generic[BufferT, PolledT]):
    """Base of subpartitions: their queue, its one reader, and their end.

    Loop-local: every method is synchronous and belongs to the loop's thread.

    Args:
        index: The channel's place in the whole output, from 0.

    Attributes:
        is_blocked: Whether an event that was handed out waits for `resume_consumption`.
        index: As given.
        is_finished: Whether the event that ends the partition is queued, or taken.
        is_released: Whether everything was released.
        failure: Why, if the producer failed.
        buffer_bytes: How large the reader wishes buffers of bytes to be.
        buffers_total: Buffers taken so far, events included.
        records_total: Records taken so far; those that go as bytes count once they
            were emitted.
        bytes_total: Bytes taken so far; of objects an estimate.

    Invariants:
        Only the last buffer may be unfinished; an event is never unfinished.

    Concept:
        Flink, ``PipelinedSubpartition``.
    """

    def __init__(self, index: int) -> None:
        self.index: int = index
        self.is_finished: bool = False
        self.is_released: bool = False
        self.failure: BaseException | None = None
        self.buffer_bytes: int = UNLIMITED_BUFFER_BYTES
        self.buffers_total: int = 0
        self.records_total: int = 0
        self.bytes_total: int = 0
        self._buffers: PrioritizedDeque[BufferT] = PrioritizedDeque()
        self._data_count = 0
        self._flush_requested = False
        self.is_blocked: bool = False
        self._sequence_number = 0
        self._listener: DataListener | None = None
        self._has_view = False
        self._channel_state: ChannelStateWriter | None = None
        self._codec: ElementCodec | None = None
        # The checkpoint whose barrier is queued and may still turn unaligned.
        self._expected_id: int | None = None

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.index}: {len(self._buffers)} queued"
            f"{', blocked' if self.is_blocked else ''}"
            f"{', finished' if self.is_finished else ''}"
            f"{', released' if self.is_released else ''}>"
        )

    @property
    def queued_buffers(self) -> int:
        """Buffers that are queued, events included."""
        return len(self._buffers)

    @property
    def has_priority(self) -> bool:
        """Whether the next buffer is a priority event."""
        return self._buffers.priority_count > 0

    @property
    def backlog(self) -> int:
        """Data buffers that can be taken: the unfinished one only if it is flushed."""
        if self.is_blocked:
            return 0
        if self._flush_requested or self._unfinished is None:
            return self._data_count
        return self._data_count - 1

    @property
    def has_unflushed_data(self) -> bool:
        """Whether an unfinished buffer holds something that cannot be taken yet."""
        unfinished = self._unfinished
        if unfinished is None or self._flush_requested:
            return False
        return unfinished.has_content

    def statistics(self) -> ChannelStatistics:
        """Return a snapshot for metrics; counting what is queued takes a walk."""
        return ChannelStatistics(
            len(self._buffers),
            sum(buffer.record_count for buffer in self._buffers),
            sum(buffer.size_bytes for buffer in self._buffers),
            self.buffers_total,
            self.records_total,
            self.bytes_total,
        )

    @abc.abstractmethod
    def emit_run(self, run: Run) -> bool:
        """Queue records; see `ResultPartition.emit_run`."""

    @abc.abstractmethod
    def emit_control(self, element: Control) -> bool:
        """Queue a control element, in order with the records; as `emit_run`."""

    @abc.abstractmethod
    def poll(self) -> PolledT | None:
        """Take what is ready of the next buffer, or None; the caller recycles it."""

    @abc.abstractmethod
    def _buffer_of(self, event: RuntimeEvent) -> BufferT:
        """Return a buffer that carries an event."""

    @abc.abstractmethod
    def _as_bytes(self, buffers: list[BufferT]) -> list[bytes]:
        """Return what buffers of data hold, without taking it.

        Raises:
            WrongTypeError: If a record cannot be kept.
        """

    @abc.abstractmethod
    def _drop(self, buffer: BufferT) -> None:
        """Release a buffer that nobody will take."""

    def is_available(self, *, has_credit: bool = True) -> bool:
        """Say whether something can be taken; without credit only an event can."""
        if self.is_blocked:
            # An unaligned barrier passes what an aligned one has blocked.
            return self._buffers.priority_count > 0
        if has_credit:
            return self._has_ready
        head = self._buffers.peek()
        return head is not None and head.event is not None

    def flush(self) -> None:
        """Let the unfinished buffer be taken, if it holds anything."""
        if self._flush_requested or not self._buffers:
            return
        # With more than one buffer the reader was notified before; an empty one alone
        # is nothing to wake it for.
        if len(self._buffers) > 1:
            self._flush_requested = True
            return
        last = self._buffers.peek_last()
        if last is not None and last.has_content:
            self._flush_requested = True
            self._tell_of_data()

    def finish(self) -> None:
        """Queue the last event, and tell the reader; nothing comes after it. Idempotent."""
        if self.is_finished or self.is_released:
            return
        self._append(self._buffer_of(EndOfPartition()))
        self.is_finished = True
        # Always, also while an event blocks, as Flink does: the end is no data to wait
        # for.
        if self._listener is not None:
            self._listener.on_data_available()

    def in_flight(self) -> list[bytes]:
        """Return the data that an unaligned barrier overtakes now, to be kept.

        Nothing if no channel state is kept.

        Raises:
            WrongTypeError: If a record cannot be kept.
        """
        if self._channel_state is None:
            return []
        return self._as_bytes([each for each in self._buffers if each.event is None])

    def add_event(
        self,
        event: RuntimeEvent,
        buffer: BufferT | None = None,
        overtaken: Sequence[bytes] = (),
    ) -> None:
        """Queue an event behind all that was emitted; a priority event goes before it.

        Args:
            event: The event; dropped if the reader has left.
            buffer: Carries it, taken over; None makes one.
            overtaken: The former result of `in_flight`, if it is a barrier that
                overtakes.
        """
        if buffer is None:
            buffer = self._buffer_of(event)
        if self.is_finished or self.is_released:
            self._drop(buffer)
            return
        if not event.is_priority:
            # A savepoint holds no data in flight: its barrier never overtakes.
            if (
                isinstance(event, CheckpointBarrier)
                and event.is_timeoutable
                and event.may_overtake
            ):
                self._expect(event.checkpoint_id)
            self._add(buffer)
            return
        assert isinstance(event, CheckpointBarrier), "only barriers overtake"
        if overtaken and self._channel_state is not None:
            self._channel_state.add_output_data(
                event.checkpoint_id, self.index, list(overtaken)
            )
        self._add_priority(buffer)
        self._on_added(had_ready=True)

    def before_barrier(self, checkpoint_id: int) -> list[bytes] | None:
        """Return what the barrier of a checkpoint overtakes when its time is over.

        None if it was taken, was never queued, or must not overtake.

        Raises:
            WrongTypeError: If a record cannot be kept.
        """
        if self._expected_id != checkpoint_id:
            return None
        before: list[BufferT] = []
        for buffer in self._buffers:
            if buffer.event is None:
                before.append(buffer)
            elif _is_barrier_of(buffer.event, checkpoint_id):
                return self._as_bytes(before)
        raise IllegalStateError(
            f"the barrier of checkpoint {checkpoint_id} is not queued"
        )

    def time_out_barrier(self, checkpoint_id: int, overtaken: list[bytes]) -> None:
        """Turn a queued aligned barrier into an unaligned one, at the head.

        Args:
            checkpoint_id: Of the barrier.
            overtaken: The result of `before_barrier`.
        """
        for buffer in self._buffers:
            event = buffer.event
            if isinstance(event, CheckpointBarrier) and _is_barrier_of(
                event, checkpoint_id
            ):
                self._buffers.remove(buffer)
                self._drop(buffer)
                self._complete(overtaken)
                self._add_priority(self._buffer_of(event.as_unaligned()))
                return

    def abort_checkpoint(self, checkpoint_id: int, cause: BaseException) -> None:
        """Stop waiting for a barrier that may time out; it stays where it is."""
        if self._expected_id == checkpoint_id:
            self._end_expectation(cause)

    def keep_in_flight(self, writer: ChannelStateWriter, codec: ElementCodec) -> None:
        """Give what barriers overtake from now on to a writer, encoded."""
        self._channel_state, self._codec = writer, codec

    def set_buffer_bytes(self, size_bytes: int) -> None:
        """Say how large the next buffers should be; the reader's wish.

        Raises:
            InvalidArgumentError: If it is less than 1.
        """
        if size_bytes < 1:
            raise InvalidArgumentError("size_bytes", f"{size_bytes} is less than 1")
        self.buffer_bytes = size_bytes

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
        if not self.is_blocked:
            raise IllegalStateError(
                f"{self!r} is not blocked; resume once per event that blocks upstream"
            )
        self.is_blocked = False

    def tell_again(self) -> None:
        """Tell the reader if something can be taken: after it came, or resumed."""
        # Asked again, for adding and flushing notify nothing while an event blocks
        # (FLINK-23223).
        if self._listener is None or not self.is_available():
            return
        if self._buffers.priority_count:
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
        queued = self._buffers.clear()
        self._data_count = 0
        self._flush_requested = False
        for buffer in queued:
            self._drop(buffer)
        released = IllegalStateError(f"{self!r} was released before the barrier left")
        self._end_expectation(failure or released)
        if listener is not None:
            listener.on_data_available()

    @property
    def _unfinished(self) -> BufferT | None:
        last = self._buffers.peek_last()
        return None if last is None or last.is_sealed else last

    @property
    def _has_ready(self) -> bool:
        """Whether something could be taken if nothing blocked."""
        last = self._buffers.peek_last()
        if last is None:
            return False
        return last.is_sealed or self._flush_requested or len(self._buffers) > 1

    def _append(self, buffer: BufferT) -> None:
        self._buffers.append(buffer)
        if buffer.event is None:
            self._data_count += 1

    def _add(self, buffer: BufferT) -> None:
        had_ready = self._has_ready
        self._append(buffer)
        self._on_added(had_ready=had_ready)

    def _on_added(self, *, had_ready: bool) -> None:
        """Notify the reader if only now there is something to take."""
        if not had_ready and self._has_ready:
            self._tell_of_data()

    def _add_priority(self, buffer: BufferT) -> None:
        self._buffers.append_priority(buffer)
        # Only the first one tells: the reader takes all priority events when it comes.
        if self._buffers.priority_count == 1 and self._listener is not None:
            self._listener.on_priority_event(self._sequence_number)

    def _tell_of_data(self) -> None:
        if self._listener is not None and not self.is_blocked:
            self._listener.on_data_available()

    def _count_taken(
        self, event: RuntimeEvent | None, size_bytes: int, record_count: int = 0
    ) -> int:
        """Return the number of what is taken, after what an event brings about."""
        sequence_number = self._sequence_number
        self._sequence_number = (sequence_number + 1) % SEQUENCE_MODULUS
        self.buffers_total += 1
        self.bytes_total += size_bytes
        self.records_total += record_count
        if event is not None:
            # Before it is said what comes next: nothing, if it blocks.
            if event.blocks_upstream:
                self.is_blocked = True
            if self._expected_id is not None and _is_barrier_of(
                event, self._expected_id
            ):
                # Taken in time, it has overtaken nothing.
                self._complete([])
        return sequence_number

    def _expect(self, checkpoint_id: int) -> None:
        """Let the channel state wait for a barrier; an older one has failed then."""
        if self._channel_state is None:
            return
        self._end_expectation(
            IllegalStateError(
                f"checkpoint {checkpoint_id} began while the barrier of "
                f"{self._expected_id} could still time out: unaligned checkpoints do "
                "not run concurrently"
            )
        )
        self._expected_id = checkpoint_id
        self._channel_state.expect_output_data(checkpoint_id, self.index)

    def _complete(self, overtaken: list[bytes]) -> None:
        """Give the channel state what the expected barrier has overtaken."""
        checkpoint_id, self._expected_id = self._expected_id, None
        if checkpoint_id is not None and self._channel_state is not None:
            self._channel_state.complete_output_data(
                checkpoint_id, self.index, overtaken
            )

    def _end_expectation(self, error: BaseException) -> None:
        checkpoint_id, self._expected_id = self._expected_id, None
        if checkpoint_id is not None and self._channel_state is not None:
            self._channel_state.fail_output_data(checkpoint_id, self.index, error)


def _is_barrier_of(event: RuntimeEvent, checkpoint_id: int) -> bool:
    return isinstance(event, CheckpointBarrier) and event.checkpoint_id == checkpoint_id


class SubpartitionView(Generic[PolledT]):
    """The end of one subpartition that is read; there is one at most.

    Args:
        subpartition: The subpartition to read.
        listener: Notified when something can be taken; about what is queued
            already only if `tell_again` is called.
        on_acknowledged: Called when the reader has processed all records.
        on_released: Called once, after the view was released.

    Raises:
        IllegalStateError: If the subpartition has a view already or was released.

    Concept:
        Flink, ``PipelinedSubpartitionView``.
    """

    def __init__(
        self,
        subpartition: ResultSubpartition[Any, PolledT],
        listener: DataListener,
        *,
        on_acknowledged: Callable[[], None],
        on_released: Callable[[], None],
    ) -> None:
        subpartition.attach(listener)
        self._subpartition = subpartition
        self._on_acknowledged = on_acknowledged
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

    def poll(self) -> PolledT | None:
        """Take what is ready of the next buffer, or None; the caller recycles it."""
        return self._subpartition.poll()

    def set_buffer_bytes(self, size_bytes: int) -> None:
        """Be notified of the reader's wish for the size of buffers."""
        self._subpartition.set_buffer_bytes(size_bytes)

    def acknowledge_all_data_processed(self) -> None:
        """Be notified that the reader has processed all records."""
        self._on_acknowledged()

    def is_available(self, *, has_credit: bool = True) -> bool:
        """Say whether something can be taken; without credit only an event can."""
        return self._subpartition.is_available(has_credit=has_credit)

    def statistics(self) -> ChannelStatistics:
        """Return a snapshot for metrics; counting what is queued takes a walk."""
        return self._subpartition.statistics()

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
        """Release it: recycle queued buffers, and drop those that come later."""
        if self._released:
            return
        self._released = True
        self._subpartition.detach()
        self._subpartition.release()
        self._on_released()
