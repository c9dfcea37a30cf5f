"""A task's output towards Spark's shuffle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from aiomailbox.availability import Availability
from aiomailbox.connectors.spark.inside.wire import (
    BEGIN_ORDER,
    DATA_ORDER_MIN,
    JobLevels,
    Outlet,
    RowKind,
    Target,
    WireRow,
    wire_batch,
)
from aiomailbox.errors import IllegalStateError
from aiomailbox.exchange.core.contract import (
    BytesView,
    ChannelStatistics,
    DataListener,
    ObjectView,
)
from aiomailbox.exchange.frames import FrameEncoder
from aiomailbox.ids import PartitionId
from aiomailbox.memory.local_pool import LocalBufferPool
from aiomailbox.records import Control
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.events import RuntimeEvent, StopMode, Watermark
from aiomailbox.records.run import Run

_ROW_BYTES_MAX: Final = 512 * 1024
# No consumer waits for a frame to be complete: of columns it holds what one run had.
_FRAME_BYTES: Final = 256 * 1024
# What rows in the making may hold together, of all consumers of an edge.
_WAITING_BYTES_MAX: Final = 16 * 1024 * 1024
_BATCH_ROWS: Final = 64
_BATCH_BYTES: Final = 2 * 1024 * 1024


class RowWriter:
    """Numbers the rows of one task, and hands them to Spark in batches.

    Args:
        outlet: Takes the batches.
        levels: The stages of the job.
        level: The stage that this is.
        producer: The task's number among all producers of the job.
    """

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

    Args:
        partition_id: Whose output, and towards which edge.
        pool: Not needed; destroyed at the end.
        target: Where the edge leads.
        subtasks: The consumers, in the order of the channels.
        writer: Takes the rows.
        codec: How elements are encoded.

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

    @property
    def queued_buffers(self) -> int:
        """Rows in the making."""
        return sum(bool(row.payload) for row in self._rows)

    @property
    def has_unflushed_data(self) -> bool:
        """Nothing that a consumer could take earlier: it runs later."""
        return False

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
        """Take no event but the end.

        Raises:
            IllegalStateError: For any; there are no barriers in a blocking exchange.
        """
        raise IllegalStateError(f"{self!r} carries no {event!r}")

    async def settle(self) -> None:
        """Do nothing: Spark keeps what it is given."""

    async def writable(self) -> None:
        """Suspend until another buffer fits."""
        while not self.availability.available:
            await self.availability.waiter()

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
        """Refuse: a consumer reads what Spark has sorted.

        Raises:
            IllegalStateError: Always.
        """
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
