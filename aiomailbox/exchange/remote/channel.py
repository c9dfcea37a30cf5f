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
from typing import Final, Protocol

from aiomailbox.errors import (
    IllegalStateError,
    PartitionNotFoundError,
    RemoteFailureError,
    StopTask,
    add_note,
    safe_str,
)
from aiomailbox.exchange.core.buffer import ObjectBuffer
from aiomailbox.exchange.core.contract import (
    ChannelCredit,
    ChannelStatistics,
    PolledBuffer,
)
from aiomailbox.exchange.frames.element_reader import ElementReader
from aiomailbox.exchange.input.channel import InputChannel, retry_delays_ms
from aiomailbox.exchange.remote.endpoints import ChannelLink, PeerAddress, Receiver
from aiomailbox.exchange.remote.gate_buffers import GateBuffers
from aiomailbox.exchange.remote.received import ReceivedBuffer, ReceivedBuffers
from aiomailbox.ids import PartitionId
from aiomailbox.memory.buffer import NetworkBuffer
from aiomailbox.memory.local_pool import LocalBufferPool
from aiomailbox.records.element_codec import ElementCodec

__all__ = ["ChannelConnector", "RemoteInputChannel"]

_RECEIVER_ID_BYTES: Final = 16
_NUMBERS: Final = itertools.count(1)


class ChannelConnector(Protocol):
    """Connects channels with their producers; `Connections` does."""

    def request(
        self,
        address: PeerAddress,
        partition_id: PartitionId,
        subpartition_index: int,
        receiver: Receiver,
        credit: int,
    ) -> ChannelLink:
        """Request a subpartition, and return at once; what fails fails the receiver."""
        ...


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
        connector: ChannelConnector,
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
        self._link: ChannelLink | None = None
        self._gate_buffers = buffers
        self._buffers = buffers.claim(self._on_credit)
        self._received = ReceivedBuffers(self._buffers, self)
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
        return self._received.buffers_in_use + (self._begun is not None)

    @property
    def has_priority(self) -> bool:
        """Whether the next buffer is a priority event."""
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
                waiting = len(self._received)
                return PolledBuffer(
                    taken,
                    waiting,
                    self._begun is not None or waiting > 0,
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
        """Tell the producer that all its records have been processed."""
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
            exclusive=buffers.initial_credit,
            exclusive_free=buffers.available_exclusive,
            backlog=max(0, buffers.required - buffers.initial_credit),
        )

    def floating_pool(self) -> LocalBufferPool:
        """Return the pool that the channels of the gate borrow from."""
        return self._gate_buffers.pool

    def request_buffer(self) -> NetworkBuffer | None:
        """Return a buffer for data that arrives; None if it was sent without credit."""
        return self._buffers.request_buffer()

    def on_buffer(
        self, buffer: NetworkBuffer, sequence_number: int, backlog: int
    ) -> None:
        """Take a buffer with its content; it is recycled here in any case."""
        self._received.on_buffer(buffer, sequence_number, backlog)

    def on_empty_buffer(self, sequence_number: int, backlog: int) -> None:
        """Be notified of a data buffer without content."""
        self._received.on_empty_buffer(sequence_number, backlog)

    def on_sender_backlog(self, backlog: int) -> None:
        """Be notified of how many buffers wait at the producer."""
        self._buffers.on_sender_backlog(backlog)

    def take_credit(self) -> int:
        """Return the credit to announce now, and count it as announced."""
        return self._buffers.take_credit()

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

    def on_data_available(self) -> None:
        """Pass on to the gate that something has arrived."""
        self._gate.on_channel_data(self)

    def on_priority_event(self, sequence_number: int) -> None:
        """Pass on to the gate that the next buffer has priority."""
        self._gate.on_channel_priority(self, sequence_number)

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
        """Keep the buffer of which the reader has something left; recycle all others.

        Args:
            item: What was read, or None.
        """
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
                f"what {self.partition_id} has written cannot be read: {safe_str(error)}"
            ) from error
        if isinstance(error, RemoteFailureError):
            # No failure of this task's: the producer fails the job itself, with its own
            # error.
            raise StopTask(
                f"the producer of {self.partition_id} failed: {safe_str(error)}"
            ) from error
        raise error

    def _connected(self, purpose: str) -> ChannelLink:
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
