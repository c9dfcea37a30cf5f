"""A task's input from Spark's shuffle: rows in their order, demultiplexed.

Theory of operation: at most one buffer is in the hands of the task, whatever channel and
input it belongs to; the next row is decoded when that one was recycled. So what a task
reads is the order of the rows and nothing else, an attempt after another reads the same,
and two inputs need no more memory than one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from aiomailbox.connectors.spark.inside.wire import RowKind, WireRow, elements_of
from aiomailbox.errors import CorruptStreamError
from aiomailbox.exchange.core.contract import ObjectBuffer, PolledBuffer
from aiomailbox.exchange.gate import InputChannel
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.events import MAX_WATERMARK, EndOfData, EndOfPartition, StopMode


class ChannelKey(NamedTuple):
    """What a message is of: an edge, and one of its producers."""

    edge: int
    producer: int


class ShuffleChannel(InputChannel):
    """One producer of one edge, as its consumer's gate sees it.

    Args:
        key: What comes from it; None stands in where there is no producer.
        on_requested: Called when the task is ready to read.
    """

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
    """What is offered to a channel when all rows were."""

    channel: ShuffleChannel
    buffer: _ToldBuffer


class Demultiplexer:
    """Gives rows to the channels of a task, one after the other.

    Args:
        codec: Of all edges.
        forward: Takes the rows that are not for this stage.
        on_drained: Called when every row was dealt with, so that more may be read.
    """

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
