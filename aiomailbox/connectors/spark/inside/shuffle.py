"""The rows that a task sends to Spark's shuffle, and receives from there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, NoReturn

from aiomailbox.availability import Availability
from aiomailbox.connectors.spark.inside.wire import (
    BEGIN_ORDER,
    DATA_ORDER_MIN,
    JobLevels,
    Outlet,
    RowKind,
    Target,
    WireRow,
    elements_of,
    wire_batch,
)
from aiomailbox.errors import CorruptStreamError, IllegalStateError
from aiomailbox.exchange.core.contract import (
    BytesView,
    ChannelStatistics,
    DataListener,
    ObjectBuffer,
    ObjectView,
    PolledBuffer,
)
from aiomailbox.exchange.frames import FrameEncoder
from aiomailbox.exchange.gate import InputChannel
from aiomailbox.ids import PartitionId
from aiomailbox.memory.local_pool import LocalBufferPool
from aiomailbox.records import Control
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.events import (
    MAX_WATERMARK,
    EndOfData,
    EndOfPartition,
    RuntimeEvent,
    StopMode,
    Watermark,
)
from aiomailbox.records.run import Run

_ROW_BYTES_MAX: Final = 512 * 1024
# No consumer waits for a frame to be complete: of columns it holds what one run had.
_FRAME_BYTES: Final = 256 * 1024
# What rows in the making may hold together, of all consumers of an edge.
_WAITING_BYTES_MAX: Final = 16 * 1024 * 1024
_BATCH_ROWS: Final = 64
_BATCH_BYTES: Final = 2 * 1024 * 1024


class RowWriter:
    """Numbers the rows of one task, and hands them to Spark in batches."""

    def __init__(
        self, outlet: Outlet, levels: JobLevels, level: int, producer: int
    ) -> None:
        self.producer = producer
        self.room: Availability = outlet.room
        self._outlet = outlet
        self._levels = levels
        self._next = level + 1
        self._seq = 0
        self._rows: list[WireRow] = []
        self._bytes = 0

    def write(
        self, target: Target, subtask: int, kind: RowKind, order: int, payload: bytes
    ) -> None:
        """Send a row to a consumer."""
        part = self._levels.partition(target, subtask, self._next)
        self._add(target.number, part, order, kind, subtask, payload)

    def write_result(self, output: int, kind: RowKind, payload: bytes) -> None:
        """Send a result towards the last stage, with little work for those between."""
        is_last = self._next >= len(self._levels)
        width = 1 if is_last else self._levels.width(self._next)
        part = self.producer % width
        self._add(output, part, DATA_ORDER_MIN, kind, 0, payload)

    def forward(self, row: WireRow) -> None:
        """Pass on a row that is for a later stage."""
        part = row.part
        if self._next < len(self._levels):
            if row.kind in {RowKind.RESULT, RowKind.METRICS}:
                part %= self._levels.width(self._next)
            else:
                edge = self._levels.edges[row.edge]
                target = self._levels.targets[id(edge)]
                part = self._levels.partition(target, row.subtask, self._next)
        self._queue(row._replace(part=part))

    def flush(self) -> None:
        """Hand over what waits for a full batch."""
        if self._rows:
            rows, self._rows, self._bytes = self._rows, [], 0
            self._outlet.offer(wire_batch(rows))

    def _add(
        self, edge: int, part: int, order: int, kind: int, subtask: int, payload: bytes
    ) -> None:
        self._seq += 1
        row = WireRow(
            edge, part, order, self.producer, self._seq, int(kind), subtask, payload
        )
        self._queue(row)

    def _queue(self, row: WireRow) -> None:
        self._rows.append(row)
        self._bytes += len(row.payload)
        if len(self._rows) >= _BATCH_ROWS or self._bytes >= _BATCH_BYTES:
            self.flush()


class _Row:
    """A row in the making."""

    __slots__ = ("order", "payload", "records")

    def __init__(self) -> None:
        self.payload = bytearray()
        self.records = 0
        self.order = 0


class ShuffleOutput:
    """A task's output towards one edge, as rows for Spark to sort; see `OutputPartition`.

    Runs are put together, and cut, to rows of as many records as a run may have, with
    watermarks between them: a thousand, or more of columns. A row is sorted by the
    watermark at its beginning. So where a row ends follows from the records and not from
    the lengths of runs, which depend on time, and a repeated task sends the same rows.

    Concept:
        Flink, ``BoundedBlockingResultPartition`` (``ResultPartitionType.BLOCKING``).
    """

    def __init__(
        self,
        partition_id: PartitionId,
        pool: LocalBufferPool,
        target: Target,
        subtasks: list[int],
        writer: RowWriter,
        codec: ElementCodec,
    ) -> None:
        self.partition_id = partition_id
        self.availability: Availability = writer.room
        # Consumers run when this has ended, and acknowledge nothing.
        self.all_data_processed: Availability = Availability(available=True)
        self._pool = pool
        self._target = target
        self._subtasks = subtasks
        self._writer = writer
        self._encoder = FrameEncoder(codec, frame_bytes_wished=_FRAME_BYTES)
        self._rows = [_Row() for _ in subtasks]
        self._order = DATA_ORDER_MIN
        self._row_bytes_max = min(_ROW_BYTES_MAX, _WAITING_BYTES_MAX // len(subtasks))
        self._records = [0] * len(subtasks)
        self._is_finished = False
        self._is_released = False
        for subtask in subtasks:
            writer.write(target, subtask, RowKind.BEGIN, BEGIN_ORDER, b"")

    def __repr__(self) -> str:
        return f"<ShuffleOutput {self.partition_id} to {len(self._rows)} subtasks>"

    @property
    def is_released(self) -> bool:
        """Whether nothing is kept for any consumer."""
        return self._is_released

    @property
    def subpartition_count(self) -> int:
        """Number of consumers."""
        return len(self._subtasks)

    def statistics(self) -> list[ChannelStatistics]:
        """Return a snapshot per channel, in order."""
        return [
            ChannelStatistics(records_total=records, queued_bytes=len(row.payload))
            for records, row in zip(self._records, self._rows, strict=True)
        ]

    def emit_run(self, run: Run, channel: int) -> bool:
        """Queue records for one consumer."""
        self._append_run(run, (channel,))
        return False

    def broadcast_run(self, run: Run) -> bool:
        """Queue records for every consumer, encoded once."""
        self._append_run(run, range(len(self._rows)))
        return False

    def emit_control(self, element: Control, channel: int) -> bool:
        """Queue a control element for one consumer."""
        self._append(channel, self._encoder.frame(element), 0)
        return False

    def broadcast_control(self, element: Control) -> bool:
        """Queue a control element for every consumer, encoded once."""
        framed = self._encoder.frame(element)
        if isinstance(element, Watermark):
            self._order = max(self._order, element.timestamp_ms)
        for channel in range(len(self._rows)):
            self._append(channel, framed, 0)
        return False

    def broadcast_event(self, event: RuntimeEvent) -> None:
        """Take no event but the end."""
        raise IllegalStateError(f"{self!r} carries no {event!r}")

    async def settle(self) -> None:
        """Do nothing: Spark keeps what it is given."""

    def flush(self, channel: int) -> None:
        """Nothing: a consumer runs when all has been written."""

    def flush_all(self) -> None:
        """Nothing: a consumer runs when all has been written."""

    def notify_end_of_data(self, mode: StopMode) -> None:
        """Nothing: a stage always ends its data well, or fails."""

    def finish(self) -> None:
        """Send all that waits, and the end. Idempotent."""
        if self._is_finished or self._is_released:
            return
        self._is_finished = True
        for channel in range(len(self._rows)):
            self._send(channel)
        for subtask in self._subtasks:
            self._writer.write(self._target, subtask, RowKind.END, _LAST_ORDER, b"")
        self.close()

    def create_view(
        self, subpartition_index: int, listener: DataListener
    ) -> ObjectView:
        """Refuse: a consumer reads what Spark has sorted."""
        self._refuse_reading()

    def create_bytes_view(
        self,
        subpartition_index: int,
        listener: DataListener,
        *,
        receiver_exclusive_buffers: int,
    ) -> BytesView:
        """Refuse; as `create_view`."""
        self._refuse_reading()

    def on_consumed(self, callback: Callable[[], None]) -> None:
        """Never call back: no consumer runs here."""

    def close(self) -> None:
        """End the producer's part. Idempotent."""
        self._pool.lazy_destroy()

    def release(self, failure: BaseException | None = None) -> None:
        """Drop what was not sent. Idempotent."""
        self._is_released = True
        for row in self._rows:
            row.payload.clear()
        self.close()

    def _append_run(self, run: Run, channels: Sequence[int]) -> None:
        """Queue records for consumers whose rows have as many records so far."""
        start, count, most = 0, len(run), run.length_max
        while start < count:
            stop = min(count, start + most - self._rows[channels[0]].records % most)
            piece = run if stop - start == count else run.slice(start, stop)
            for framed, records in self._encoder.frames(piece):
                for channel in channels:
                    self._append(channel, framed, records)
            for channel in channels:
                if self._rows[channel].records >= most:
                    self._send(channel)
            start = stop

    def _append(self, channel: int, framed: bytearray, count: int) -> None:
        row = self._rows[channel]
        if not row.payload:
            row.order = self._order
        row.payload += framed
        row.records += count
        self._records[channel] += count
        if len(row.payload) >= self._row_bytes_max:
            self._send(channel)

    def _send(self, channel: int) -> None:
        row = self._rows[channel]
        if row.payload:
            subtask, payload = self._subtasks[channel], bytes(row.payload)
            self._writer.write(self._target, subtask, RowKind.DATA, row.order, payload)
            self._rows[channel] = _Row()

    def _refuse_reading(self) -> NoReturn:
        raise IllegalStateError(f"{self!r} is read by another stage")


# Of the same order as the last watermark; its number puts it behind.
_LAST_ORDER: Final = 2**63 - 1


# A task's input from Spark's shuffle: rows in their order, demultiplexed.
#
# Theory of operation: at most one buffer is in the hands of the task, whatever channel
# and input it belongs to; the next row is decoded when that one was recycled. So what a
# task reads is the order of the rows and nothing else, an attempt after another reads the
# same, and two inputs need no more memory than one.


class ChannelKey(NamedTuple):
    """The origin of a message: an edge, and one of its producers."""

    edge: int
    producer: int


class ShuffleChannel(InputChannel):
    """One producer of one edge, as its consumer's gate sees it."""

    def __init__(
        self, key: ChannelKey | None, on_requested: Callable[[], None]
    ) -> None:
        super().__init__()
        self.key = key
        self.has_ended: bool = key is None
        self._on_requested = on_requested
        self._buffer: ObjectBuffer | None = None
        self._polled = 0

    def __repr__(self) -> str:
        return f"<ShuffleChannel {self.index}: {self.key}>"

    def request_subpartition(self) -> None:
        """Be ready to read."""
        self._on_requested()

    def offer(self, buffer: ObjectBuffer) -> None:
        """Let the gate take a buffer; the one before was recycled."""
        self._buffer = buffer
        self._gate.on_channel_data(self)

    def poll(self) -> PolledBuffer | None:
        """Take the buffer, if there is one; raises the channel's error."""
        if self.error is not None:
            raise self.error
        buffer, self._buffer = self._buffer, None
        if buffer is None:
            return None
        self._polled += 1
        return PolledBuffer(buffer, False, False, self._polled)

    def resume_consumption(self) -> None:
        """Nothing blocks upstream."""


class _ToldBuffer(ObjectBuffer):
    """A buffer that calls back when it was recycled."""

    __slots__ = ("on_recycled",)

    on_recycled: Callable[[], None]

    def recycle(self) -> None:
        super().recycle()
        self.on_recycled()


class _End(NamedTuple):
    """The event that follows the rows of a channel."""

    channel: ShuffleChannel
    buffer: _ToldBuffer


class Demultiplexer:
    """Gives rows to the channels of a task, one after the other."""

    def __init__(
        self,
        codec: ElementCodec,
        forward: Callable[[WireRow], None],
        on_drained: Callable[[], None],
    ) -> None:
        self._codec = codec
        self._forward = forward
        self._on_drained = on_drained
        self._channels: dict[ChannelKey, ShuffleChannel] = {}
        self._stand_ins: list[ShuffleChannel] = []
        self._unready = 0
        self._waiting: deque[WireRow | _End] = deque()
        # Invariant: a buffer is in the hands of the task; nothing else is offered.
        self._is_busy = False

    def channels(self, keys: Iterable[ChannelKey]) -> list[InputChannel]:
        """Return the channels of an input; one that ends at once if there are none."""
        made = [ShuffleChannel(key, self._on_ready) for key in keys]
        self._channels |= {channel.key: channel for channel in made if channel.key}
        if not made:
            made = [ShuffleChannel(None, self._on_ready)]
            self._stand_ins += made
        self._unready += len(made)
        return [*made]

    def take(self, rows: Iterable[WireRow]) -> None:
        """Queue rows; the caller bounds how many there are."""
        self._waiting.extend(rows)
        self._deliver()

    def end(self) -> None:
        """Queue the end of all channels."""
        for channel in self._stand_ins:
            ending = _ToldBuffer.of_elements([MAX_WATERMARK])
            self._waiting.append(_End(channel, ending))  # type: ignore[arg-type]
        for event in (EndOfData(StopMode.DRAIN), EndOfPartition()):
            for channel in [*self._channels.values(), *self._stand_ins]:
                buffer = _ToldBuffer.for_event(event)
                self._waiting.append(_End(channel, buffer))  # type: ignore[arg-type]
        self._deliver()

    def fail(self, error: BaseException) -> None:
        """Let the task trip over an error of the input."""
        for channel in [*self._channels.values(), *self._stand_ins][:1]:
            channel.set_error(error)

    def _on_ready(self) -> None:
        self._unready -= 1
        self._deliver()

    def _on_recycled(self) -> None:
        self._is_busy = False
        self._deliver()

    def _deliver(self) -> None:
        """Deal with what waits until something is in the hands of the task."""
        if self._unready or self._is_busy:
            return
        while self._waiting:
            item = self._waiting.popleft()
            if isinstance(item, _End):
                self._end(item)
            else:
                self._deal(item)
            if self._is_busy:
                return
        self._on_drained()

    def _deal(self, row: WireRow) -> None:
        channel = self._channels.get(ChannelKey(row.edge, row.producer))
        if row.kind > RowKind.END or channel is None:
            self._forward(row)
        elif row.kind == RowKind.END:
            channel.has_ended = True
        elif row.kind == RowKind.DATA:
            try:
                elements = elements_of(row.payload, self._codec)
            except Exception as error:  # noqa: BLE001 -- the task trips over it
                channel.set_error(error)
                return
            self._offer(channel, _ToldBuffer.of_elements(elements))  # type: ignore[arg-type]

    def _end(self, end: _End) -> None:
        channel = end.channel
        if not channel.has_ended:
            assert channel.key is not None
            channel.set_error(
                CorruptStreamError(
                    f"Spark gave no end of what producer {channel.key.producer} sent on "
                    f"edge {channel.key.edge}: rows are missing"
                )
            )
            return
        self._offer(channel, end.buffer)

    def _offer(self, channel: ShuffleChannel, buffer: _ToldBuffer) -> None:
        self._is_busy = True
        buffer.on_recycled = self._on_recycled
        channel.offer(buffer)
