"""An input channel with a remote producer: bytes come in, elements go out.

Theory of operation: the connection hands over buffers as they arrive; they wait as
bytes until the gate polls, so that a slow task holds bytes and not objects. A poll
decodes about as many records of a buffer as are processed at once. When the last ones are
decoded the buffer is recycled, and that is what gives the producer its next credit.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from aiomailbox.clock import Clock, clock_of
from aiomailbox.errors import (
    CorruptStreamError,
    IllegalStateError,
    InsufficientBuffersError,
    InvalidArgumentError,
    PartitionNotFoundError,
    RemoteFailureError,
    StopTask,
    add_note,
    safe_str,
)
from aiomailbox.exchange.core.contract import (
    SEQUENCE_MODULUS,
    ChannelCredit,
    ChannelStatistics,
    DataListener,
    ObjectBuffer,
    PolledBuffer,
)
from aiomailbox.exchange.core.subpartition import PrioritizedDeque
from aiomailbox.exchange.frames import ElementReader, event_buffer
from aiomailbox.exchange.gate import InputChannel, InputGate, retry_delays_ms
from aiomailbox.exchange.remote.client import Channel, Connections
from aiomailbox.exchange.remote.credit import ChannelBuffers
from aiomailbox.exchange.remote.handshake import PeerAddress
from aiomailbox.ids import PartitionId
from aiomailbox.memory.buffer import NetworkBuffer
from aiomailbox.memory.debloat import BufferDebloater, DebloatOptions, ThroughputMeter
from aiomailbox.memory.local_pool import LocalBufferPool, NetworkBufferPool
from aiomailbox.records.element_codec import ElementCodec, decode_event
from aiomailbox.records.events import CheckpointBarrier, EventAnnouncement

# The segments that a gate's remote channels receive into.


class GateBuffers:
    """Exclusive segments for each remote channel of a gate, and a floating pool for all.

    When the last channel has released it, everything returns to the global pool by itself;
    `close` is for a gate that was never read.

    Args:
        memory: The global pool.
        channels: How many remote channels there are, at least 1.
        exclusive_per_channel: Segments that a channel keeps for itself. With none, a
            channel has to ask for each.
        floating: Segments that the channels borrow at most together, at least 1.
        owner: Whose they are, for messages and leak reports.

    Attributes:
        pool: The floating segments.

    Raises:
        InsufficientBuffersError: If the global pool has not enough.

    Concept:
        Flink, ``SingleInputGate.setupChannels`` and ``BufferPoolFactory``.

    Example:
        >>> memory = NetworkBufferPool(16)
        >>> buffers = GateBuffers(memory, 2, owner="window.0")
        >>> memory.available_segments  # two exclusive ones each, one floating
        11
        >>> buffers.close()
        >>> memory.available_segments
        16
    """

    def __init__(
        self,
        memory: NetworkBufferPool,
        channels: int,
        *,
        exclusive_per_channel: int = 2,
        floating: int = 8,
        owner: str = "",
    ) -> None:
        for name, value, minimum in (
            ("channels", channels, 1),
            ("exclusive_per_channel", exclusive_per_channel, 0),
            ("floating", floating, 1),
        ):
            if value < minimum:
                raise InvalidArgumentError(name, f"{value} is less than {minimum}")
        count = channels * exclusive_per_channel
        # Asked for now and not waited for: a gate is made while its job is built, where
        # an error can still say what is missing.
        unclaimed = memory.try_request_unpooled(count)
        if unclaimed is None:
            raise InsufficientBuffersError(
                f"the gate of {owner!r} needs {count} segments for its {channels} "
                f"remote channels, and {memory.available_segments} are free"
            )
        try:
            self.pool: LocalBufferPool = memory.create_local_pool(
                1, floating, owner=owner
            )
        except InsufficientBuffersError:
            memory.recycle_unpooled(unclaimed)
            raise
        self._memory = memory
        self._unclaimed = unclaimed
        self._exclusive_per_channel = exclusive_per_channel
        self._users = channels

    def claim(self, on_credit: Callable[[], None]) -> ChannelBuffers:
        """Return the buffers of one more channel, which calls `release` in the end.

        Raises:
            IllegalStateError: If all channels have theirs, or these were closed.
        """
        count = self._exclusive_per_channel
        if self.pool.is_destroyed or len(self._unclaimed) < count:
            raise IllegalStateError(
                f"the gate of {self.pool.owner!r} has no buffers for another channel"
            )
        exclusive = [self._unclaimed.pop() for _ in range(count)]
        return ChannelBuffers(
            self.pool,
            exclusive,
            on_credit=on_credit,
            return_exclusive=self._memory.recycle_unpooled,
        )

    def release(self) -> None:
        """Be notified that a channel was released; the last one closes."""
        self._users -= 1
        if not self._users:
            self.close()

    def close(self) -> None:
        """Lend nothing more, and return what no channel has. Idempotent."""
        unclaimed, self._unclaimed = self._unclaimed, []
        if unclaimed:
            self._memory.recycle_unpooled(unclaimed)
        self.pool.lazy_destroy()


# What has arrived on a remote channel and was not read yet.
#
# Theory of operation: buffers have consecutive numbers. Priority events go to the
# front; a barrier that may time out stays in its place, and an announcement of it goes
# to the front. The reader is notified of the first buffer in an empty queue and of the
# first priority event, and takes until nothing is left. Credit bounds the data; events,
# which take none, have a bound of their own.


# Events come without credit, so only a limit keeps a hostile producer from filling the
# memory of a slow reader. What a correct one can have unread: the two ends of data and
# partition, one barrier that blocks it, and, per checkpoint, one that blocks nothing and
# one cancellation. A reader would have to stand still for 500 checkpoints to get here.
QUEUED_EVENTS_MAX: Final = 1024
# A barrier takes some 30 bytes, and more only by the name of a place; this lets 1,024
# of them have 4 KiB each. Without it events of 64 KiB would add up to 64 MiB.
QUEUED_EVENT_BYTES_MAX: Final = 4 * 1024 * 1024
_HALF: Final = SEQUENCE_MODULUS // 2


class ReceivedBuffer(NamedTuple):
    """A buffer and its number; its reader recycles it.

    Attributes:
        buffer: The bytes.
        sequence_number: Its number on the channel, modulo 2**32.
    """

    buffer: NetworkBuffer
    sequence_number: int


class ReceivedBuffers:
    """The queue of one remote channel on the reader's side.

    Args:
        buffers: The channel's buffers.
        listener: Notified when there is something to read.
        first_sequence_number: Of the buffer that is expected first.

    Invariants:
        When an event arrives, fewer than `QUEUED_EVENTS_MAX` are queued, of fewer than
        `QUEUED_EVENT_BYTES_MAX` bytes; the channel fails otherwise.

    Concept:
        Flink, the receiving half of ``RemoteInputChannel``; the limit of events is ours.
    """

    def __init__(
        self,
        buffers: ChannelBuffers,
        listener: DataListener,
        *,
        first_sequence_number: int = 0,
    ) -> None:
        self._buffers = buffers
        self._listener = listener
        self._items: PrioritizedDeque[ReceivedBuffer] = PrioritizedDeque()
        self._events = 0
        self._event_bytes = 0
        self._expected = first_sequence_number
        self._failure: BaseException | None = None
        self._barrier_id: int | None = None
        self._barrier_sequence_number = 0
        self.queued_bytes: int = 0
        self.is_released: bool = False

    def __len__(self) -> int:
        return len(self._items)

    @property
    def has_priority(self) -> bool:
        """Whether the next buffer is a priority event."""
        return self._items.priority_count > 0

    def on_buffer(
        self, buffer: NetworkBuffer, sequence_number: int, backlog: int
    ) -> None:
        """Take a buffer that has arrived; it is recycled here in any case.

        A wrong number is not raised but kept for the reader: one channel's failure
        is not the connection's.
        """
        if not self._accepts(sequence_number):
            buffer.recycle()
            return
        data_type = buffer.data_type
        if data_type.is_blocking_upstream:
            self._buffers.on_blocking_event()
        if data_type.is_event and not (
            self._has_room_for_event()
            and self._look_for_barrier(buffer, sequence_number)
        ):
            buffer.recycle()
            return
        self._expected = (sequence_number + 1) % SEQUENCE_MODULUS
        was_empty = not self._items
        is_first_priority = self._enqueue(ReceivedBuffer(buffer, sequence_number))
        if is_first_priority:
            self._listener.on_priority_event(sequence_number)
        if was_empty:
            self._listener.on_data_available()
        self._buffers.on_sender_backlog(backlog)

    def on_empty_buffer(self, sequence_number: int, backlog: int) -> None:
        """Be notified of a data buffer without content; its credit comes back."""
        if self._accepts(sequence_number):
            self._expected = (sequence_number + 1) % SEQUENCE_MODULUS
            # It has used up a credit, so it uses up a buffer, for an instant.
            buffer = self._buffers.request_buffer()
            if buffer is None:
                self.fail(CorruptStreamError("the producer has sent without credit"))
                return
            buffer.recycle()
            self._buffers.on_sender_backlog(backlog)

    def fail(self, error: BaseException) -> None:
        """Let the next read raise an error; the first one stays."""
        if self._failure is None and not self.is_released:
            self._failure = error
            self._listener.on_data_available()

    def poll(self) -> ReceivedBuffer | None:
        """Take the next buffer, or None if nothing has arrived.

        Raises:
            IllegalStateError: If the channel was released.
            BaseException: What `fail` was given.
        """
        if self.is_released:
            raise IllegalStateError("the channel was released")
        if self._failure is not None:
            raise self._failure
        if not self._items:
            return None
        item = self._items.popleft()
        self._count(item.buffer, -1)
        return item

    def prioritize(self, sequence_number: int) -> None:
        """Move an announced barrier to the front.

        It stays an aligned one: it has blocked its producer, and whoever reads it has to
        resume the channel. The reader is notified in any case: of the announcement it
        knows already.

        Raises:
            IllegalStateError: If no barrier of that number is queued in its place.
        """
        for item in list(self._items)[self._items.priority_count :]:
            if (
                item.sequence_number == sequence_number
                and item.buffer.data_type.is_event
            ):
                break
        else:
            raise IllegalStateError(f"no barrier has number {sequence_number}")
        event = decode_event(item.buffer.readable())
        if not isinstance(event, CheckpointBarrier):
            raise IllegalStateError(f"{event!r} of number {sequence_number} overtakes")
        self._items.remove(item)
        overtaking = event_buffer(event, has_priority=True)
        self._count(item.buffer, -1)
        self._count(overtaking, 1)
        item.buffer.recycle()
        self._items.append_priority(ReceivedBuffer(overtaking, sequence_number))
        self._listener.on_priority_event(sequence_number)

    def in_flight(self, checkpoint_id: int) -> list[NetworkBuffer]:
        """Return the data before a checkpoint's barrier, retained, in order.

        All queued data if the barrier has not arrived; an older one does not count.

        Raises:
            IllegalStateError: If a newer checkpoint's barrier has arrived.
        """
        if self._barrier_id is not None and checkpoint_id < self._barrier_id:
            raise IllegalStateError(
                f"checkpoint {checkpoint_id} is superseded by {self._barrier_id}"
            )
        # No barrier of this checkpoint came: everything that is queued is before it.
        if self._barrier_id != checkpoint_id:
            self._barrier_id = None
        return [
            item.buffer.retain()
            for item in list(self._items)[self._items.priority_count :]
            if item.buffer.data_type.is_buffer and self._is_before_barrier(item)
        ]

    def release(self) -> None:
        """Release everything. Idempotent."""
        if self.is_released:
            return
        self.is_released = True
        for item in self._items.clear():
            item.buffer.recycle()
        self.queued_bytes = self._events = self._event_bytes = 0
        self._buffers.release()

    def _accepts(self, sequence_number: int) -> bool:
        if self.is_released or self._failure is not None:
            return False
        if sequence_number != self._expected:
            self.fail(
                CorruptStreamError(
                    f"buffer {sequence_number} arrived in place of {self._expected}: "
                    "one was lost, repeated or overtaken"
                )
            )
            return False
        return True

    def _has_room_for_event(self) -> bool:
        if (
            self._events < QUEUED_EVENTS_MAX
            and self._event_bytes < QUEUED_EVENT_BYTES_MAX
        ):
            return True
        self.fail(
            CorruptStreamError(
                f"{self._events} events of {self._event_bytes} bytes wait unread: the "
                "producer sends more of them than checkpoints can need"
            )
        )
        return False

    def _count(self, buffer: NetworkBuffer, change: int) -> None:
        """Count a buffer that was queued (1) or taken out (-1)."""
        size_bytes = change * buffer.size_bytes
        self.queued_bytes += size_bytes
        if buffer.data_type.is_event:
            self._events += change
            self._event_bytes += size_bytes

    def _look_for_barrier(self, buffer: NetworkBuffer, sequence_number: int) -> bool:
        try:
            event = decode_event(buffer.readable())
        except CorruptStreamError as error:
            self.fail(error)
            return False
        overtakes = buffer.data_type.has_priority or (
            buffer.data_type.requires_announcement
        )
        if not isinstance(event, CheckpointBarrier):
            if overtakes:
                self.fail(CorruptStreamError(f"{event!r} cannot overtake"))
            return not overtakes
        if self._barrier_id is None or event.checkpoint_id > self._barrier_id:
            self._barrier_id = event.checkpoint_id
            self._barrier_sequence_number = sequence_number
        return True

    def _enqueue(self, item: ReceivedBuffer) -> bool:
        buffer = item.buffer
        self._count(buffer, 1)
        if buffer.data_type.has_priority:
            self._items.append_priority(item)
            return self._items.priority_count == 1
        self._items.append(item)
        if not buffer.data_type.requires_announcement:
            return False
        number = item.sequence_number
        # Flink's number is a signed one, and events are encoded as there.
        signed = number - SEQUENCE_MODULUS if number >= _HALF else number
        announcement = event_buffer(
            EventAnnouncement(decode_event(buffer.readable()), signed),
            has_priority=True,
        )
        self._count(announcement, 1)
        self._items.append_priority(ReceivedBuffer(announcement, number))
        return self._items.priority_count == 1

    def _is_before_barrier(self, item: ReceivedBuffer) -> bool:
        if self._barrier_id is None:
            return True
        ahead = self._barrier_sequence_number - item.sequence_number
        return 0 < ahead % SEQUENCE_MODULUS < _HALF


_RECEIVER_ID_BYTES: Final = 16
_NUMBERS: Final = itertools.count(1)


class RemoteInputChannel(InputChannel):
    """Reads a subpartition of another loop, process or host.

    Args:
        connector: Connects with the producer.
        address: Where the producer's worker listens.
        partition_id: Which partition.
        subpartition_index: Which of its channels.
        buffers: Of the gate; one channel's are claimed here.
        codec: How the edge's elements are encoded.
        retry_initial_ms: First wait if the partition is not there yet; 0 never waits.
        retry_max_ms: Longest wait; after it the partition counts as missing.
        spill_directory: Where very large records go; None for the system's place.
        is_kept: Whether the producer has ended and left files: no failure of its own
            tells of what cannot be read.

    Attributes:
        receiver_id: 16 bytes that name the channel on its connection.

    Concept:
        Flink, ``RemoteInputChannel``.
    """

    def __init__(
        self,
        connector: Connections,
        address: PeerAddress,
        partition_id: PartitionId,
        subpartition_index: int,
        buffers: GateBuffers,
        codec: ElementCodec,
        *,
        retry_initial_ms: int = 100,
        retry_max_ms: int = 10_000,
        spill_directory: str | os.PathLike[str] | None = None,
        is_kept: bool = False,
    ) -> None:
        super().__init__()
        self._is_kept = is_kept
        self.address = address
        self.partition_id = partition_id
        self.subpartition_index = subpartition_index
        # Not a name of what is read: what is still on its way to a channel that was
        # released is not for another one that reads the same.
        self.receiver_id: bytes = next(_NUMBERS).to_bytes(_RECEIVER_ID_BYTES, "big")
        self._connector = connector
        self._delays_ms = retry_delays_ms(retry_initial_ms, retry_max_ms)
        self._retry: asyncio.TimerHandle | None = None
        self._link: Channel | None = None
        self._gate_buffers = buffers
        self._buffers = buffers.claim(self._on_credit)
        self._received = ReceivedBuffers(self._buffers, self)
        # What a connection says goes where it belongs; see `Receiver`.
        self.request_buffer = self._buffers.request_buffer
        self.on_sender_backlog = self._buffers.on_sender_backlog
        self.take_credit = self._buffers.take_credit
        self.on_buffer = self._received.on_buffer
        self.on_empty_buffer = self._received.on_empty_buffer
        self._reader = ElementReader(codec, str(partition_id), spill_directory)
        # The buffer that is read in parts.
        self._begun: ReceivedBuffer | None = None
        self._buffer_bytes: int | None = None

    def __repr__(self) -> str:
        return (
            f"<RemoteInputChannel {self.index}: {self.partition_id}"
            f"[{self.subpartition_index}] at {self.address}>"
        )

    @property
    def bytes_total(self) -> int:
        """Bytes that were read, events included."""
        return self._reader.bytes_total

    @property
    def buffers_in_use(self) -> int:
        """How many buffers the channel's data takes, here and at the producer."""
        here = len(self._received) + (self._begun is not None)
        return here + self._buffers.sender_backlog

    @property
    def has_priority(self) -> bool:
        return not self.is_released and self._received.has_priority

    def request_subpartition(self) -> None:
        """Connect to the producer; a failure surfaces at the next `poll`."""
        if self.is_released or self._link is not None:
            return
        try:
            self._link = self._connector.request(
                self.address,
                self.partition_id,
                self.subpartition_index,
                self,
                self._buffers.initial_credit,
            )
        except Exception as error:  # noqa: BLE001 -- the task trips over it
            self.set_error(error)
            return
        # Told before it was connected: the producer could not know.
        if self._buffer_bytes is not None:
            self._link.announce_buffer_size(self._buffer_bytes)

    def poll(self) -> PolledBuffer | None:
        """Take elements of the next buffer, or the next event.

        Returns:
            What was taken, or None if nothing whole has arrived. Of a large buffer it is
            a part, and all parts have its number.

        Raises:
            StopTask: If the producer failed; says why.
            BaseException: The channel's own error, if it has one.
        """
        if self.error is not None:
            self._raise(self.error)
        # Buffers in which no element ends give nothing: go on to the next one.
        while not self.is_released and (item := self._next_buffer()) is not None:
            taken = self._read(item)
            if taken is not None:
                return PolledBuffer(
                    taken,
                    self._begun is not None or len(self._received) > 0,
                    self._received.has_priority,
                    item.sequence_number,
                )
        return None

    def prioritize(self, sequence_number: int) -> None:
        """Let an announced barrier overtake; the gate is notified again.

        Raises:
            IllegalStateError: If no barrier of that number waits in its place.
        """
        self._received.prioritize(sequence_number)

    def in_flight(self, checkpoint_id: int) -> list[bytes]:
        """Return what has arrived before a checkpoint's barrier and was not taken.

        First what there is of a record that is not whole yet: the rest of it may still
        be at the producer.

        Raises:
            IllegalStateError: If a newer checkpoint's barrier has arrived.
        """
        found = [self._reader.unconsumed()]
        for buffer in self._received.in_flight(checkpoint_id):
            found.append(bytes(buffer.readable()))
            buffer.recycle()
        return [data for data in found if data]

    def resume_consumption(self) -> None:
        """Go on after an event that blocked upstream.

        Raises:
            IllegalStateError: If the channel is released, or was never connected.
        """
        link = self._connected("resume")
        self._buffers.on_resume()
        link.resume_consumption()

    def acknowledge_all_data_processed(self) -> None:
        if self._link is not None and not self.is_released:
            self._link.acknowledge_all_data_processed()

    def announce_buffer_size(self, size_bytes: int) -> None:
        """Tell the producer how large its buffers should be, once it is connected.

        Raises:
            IllegalStateError: If the channel is released.
        """
        if self.is_released:
            raise IllegalStateError(f"{self!r} is released; it announces nothing")
        self._buffer_bytes = size_bytes
        if self._link is not None:
            self._link.announce_buffer_size(size_bytes)

    def release(self) -> None:
        """Release the producer; every buffer goes back. Idempotent."""
        if self.is_released:
            return
        self.is_released = True
        self._cancel_retry()
        if self._link is not None:
            self._link.close()
        self._received.release()
        self._reader.clear()
        self._keep_begun(None)
        self._gate_buffers.release()

    def statistics(self) -> ChannelStatistics:
        """Return a snapshot for metrics; bytes are those of the encoded records."""
        return ChannelStatistics(
            queued_buffers=len(self._received),
            queued_bytes=self._received.queued_bytes,
            buffers_total=self._reader.buffers_total,
            records_total=self._reader.records_total,
            bytes_total=self.bytes_total,
        )

    def credit(self) -> ChannelCredit:
        """Return the credit of the channel, for metrics."""
        buffers = self._buffers
        return ChannelCredit(
            available=buffers.available,
            unannounced=buffers.unannounced,
            # A released channel has given them back.
            exclusive=0 if self.is_released else buffers.initial_credit,
            exclusive_free=buffers.available_exclusive,
            backlog=buffers.sender_backlog,
        )

    def floating_pool(self) -> LocalBufferPool:
        """Return the pool that the channels of the gate borrow from."""
        return self._gate_buffers.pool

    def on_partition_not_found(self) -> None:
        """Request the partition again after a while, or fail if it was long enough.

        Raises:
            IllegalStateError: If it was never requested.
        """
        if self.is_released:
            return
        link = self._connected("request again")
        delay_ms = next(self._delays_ms, None)
        if delay_ms is None:
            self.fail(
                PartitionNotFoundError(
                    f"partition {self.partition_id} is not registered at "
                    f"{self.address}: its producer has not started, or is gone"
                )
            )
            return
        self._cancel_retry()
        loop = asyncio.get_running_loop()
        self._retry = loop.call_later(delay_ms / 1000, link.request_again)

    def fail(self, error: BaseException) -> None:
        """Let the task trip over an error at its next poll; the first one stays."""
        if not self.is_released:
            self._cancel_retry()
            self.set_error(error)

    def _next_buffer(self) -> ReceivedBuffer | None:
        """Return what was begun; before it only an event that overtakes."""
        if self._begun is not None and not self._received.has_priority:
            return self._begun
        return self._received.poll()

    def _read(self, item: ReceivedBuffer) -> ObjectBuffer | None:
        try:
            return self._reader.read_part(item.buffer)
        except BaseException as error:
            # What was read of the buffer is lost, so nothing after it makes sense.
            self._reader.clear()
            add_note(
                error, f"in what arrived from {self.partition_id} at {self.address}"
            )
            if self.error is None:
                self.error = error
            raise
        finally:
            self._keep_begun(item)

    def _keep_begun(self, item: ReceivedBuffer | None) -> None:
        """Keep the buffer of which the reader has something left; recycle all others."""
        begun = self._begun
        if item is not None and item is not begun:
            if item.buffer.data_type.is_event:
                item.buffer.recycle()
            else:
                begun = item
        if begun is not None and not self._reader.has_rest:
            begun.buffer.recycle()
            begun = None
        self._begun = begun

    def _raise(self, error: BaseException) -> None:
        if isinstance(error, RemoteFailureError) and self._is_kept:
            # Of what is kept in files no task is to blame: it has ended, and is asked
            # again.
            raise PartitionNotFoundError(
                f"the files of {self.partition_id} cannot be read: {safe_str(error)}"
            ) from error
        if isinstance(error, RemoteFailureError):
            # No failure of this task's: the producer fails the job itself, with its own
            # error.
            raise StopTask(
                f"the producer of {self.partition_id} failed: {safe_str(error)}"
            ) from error
        raise error

    def _connected(self, purpose: str) -> Channel:
        if self.is_released or self._link is None:
            state = "released" if self.is_released else "not connected"
            raise IllegalStateError(f"{self!r} is {state}: it cannot {purpose}")
        return self._link

    def _on_credit(self) -> None:
        if self._link is not None:
            self._link.announce_credit()

    def _cancel_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None


# Keeps what is in flight towards a gate as small as its task is slow.
#
# Theory of operation: the gate says when it has something to read and when it has
# nothing, so that idle time does not count. Once a period the bytes that were read
# meanwhile make a throughput, and that a size of buffers, which the producers get if it
# has changed.


_MS_PER_S = 1_000


class DebloatingGate(InputGate):
    """A gate that says how large its buffers should be while it is open.

    Args:
        channels: At least one; those on this loop are left alone: they hold objects.
        options: How sizes follow the throughput.
        name: Used in messages.
        clock: Says how long reading took; None for the loop's.

    Attributes:
        debloater: What was announced last, and how long what is in flight takes.

    Concept:
        Flink, ``StreamTask.debloat`` and ``SingleInputGate.triggerDebloating``.
    """

    def __init__(
        self,
        channels: Sequence[InputChannel],
        options: DebloatOptions,
        *,
        name: str = "gate",
        clock: Clock | None = None,
    ) -> None:
        super().__init__(channels, name=name)
        self.debloater: BufferDebloater = BufferDebloater(options)
        self._remote = [
            channel for channel in channels if isinstance(channel, RemoteInputChannel)
        ]
        self._clock = clock or clock_of(asyncio.get_running_loop())
        self._meter = ThroughputMeter()
        self._bytes_counted = 0
        self._timer: asyncio.TimerHandle | None = None

    def request_partitions(self) -> None:
        """Connect every channel to its producer, and begin to measure."""
        super().request_partitions()
        if self.is_closed:
            return
        self.activity = self
        self.debloated_buffer_size_bytes = self.debloater.size_bytes
        if self.availability.available:
            self.on_data()
        self._arm()

    def close(self) -> None:
        """Release every channel, and announce nothing more. Idempotent."""
        super().close()
        self.activity = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_data(self) -> None:
        """Be notified that there is something to read now."""
        self._meter.resume(self._now_ms())

    def on_idle(self) -> None:
        """Be notified that there is nothing to read any more."""
        self._meter.pause(self._now_ms())

    def recalculate(self) -> int | None:
        """Look at what was read since the last time.

        Returns:
            The size that was announced, in bytes, or None if it is no news.
        """
        read_bytes = sum(channel.bytes_total for channel in self._remote)
        self._meter.add(read_bytes - self._bytes_counted)
        self._bytes_counted = read_bytes
        open_channels = [each for each in self._remote if not each.is_released]
        size_bytes = self.debloater.recalculate(
            self._meter.calculate(self._now_ms()),
            sum(channel.buffers_in_use for channel in open_channels),
        )
        if size_bytes is not None:
            self.debloated_buffer_size_bytes = size_bytes
            for channel in open_channels:
                channel.announce_buffer_size(size_bytes)
        return size_bytes

    def _on_period(self) -> None:
        self._timer = None
        # Nothing is measured any more where all channels have come to their ends.
        if all(channel.is_released for channel in self._remote):
            self.activity = None
            return
        self.recalculate()
        self._arm()

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        period_s = self.debloater.options.period_ms / _MS_PER_S
        self._timer = loop.call_later(period_s, self._on_period)

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * _MS_PER_S)
