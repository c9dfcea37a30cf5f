"""What has arrived on a remote channel and was not read yet.

Theory of operation: buffers have consecutive numbers. Priority events go to the front;
a barrier that may time out stays in its place, and an announcement of it goes to the
front. The reader is notified of the first buffer in an empty queue and of the first
priority event, and takes until nothing is left. Credit bounds the data; events, which
take none, have a bound of their own.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from aiomailbox.errors import CorruptStreamError, IllegalStateError
from aiomailbox.exchange.core.contract import SEQUENCE_MODULUS, DataListener
from aiomailbox.exchange.core.priority_deque import PrioritizedDeque
from aiomailbox.exchange.frames.event_buffer import event_buffer
from aiomailbox.exchange.remote.credit import ChannelBuffers
from aiomailbox.memory.buffer import Buffer
from aiomailbox.records.event_codec import decode_event
from aiomailbox.records.events import CheckpointBarrier, EventAnnouncement

__all__ = [
    "QUEUED_EVENTS_MAX",
    "QUEUED_EVENT_BYTES_MAX",
    "ReceivedBuffer",
    "ReceivedBuffers",
]

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

    buffer: Buffer
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

    __slots__ = (
        "_barrier_id",
        "_barrier_sequence_number",
        "_buffers",
        "_event_bytes",
        "_events",
        "_expected",
        "_failure",
        "_items",
        "_listener",
        "is_released",
        "queued_bytes",
    )

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

    @property
    def buffers_in_use(self) -> int:
        """How many buffers the data of this channel takes, here and at the producer."""
        return self._buffers.buffers_in_use(len(self._items))

    def on_buffer(self, buffer: Buffer, sequence_number: int, backlog: int) -> None:
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

    def in_flight(self, checkpoint_id: int) -> list[Buffer]:
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

    def _count(self, buffer: Buffer, change: int) -> None:
        """Count a buffer that was queued (1) or taken out (-1)."""
        size_bytes = change * buffer.size_bytes
        self.queued_bytes += size_bytes
        if buffer.data_type.is_event:
            self._events += change
            self._event_bytes += size_bytes

    def _look_for_barrier(self, buffer: Buffer, sequence_number: int) -> bool:
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
