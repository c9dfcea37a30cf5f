"""What receives the data in flight that belongs to a checkpoint, and its bytes.

Theory of operation: whatever a channel's buffers hold, its data in flight is kept as the
bytes that would cross between processes: elements, each in a frame. So what was kept at
the two ends of a channel can be put together, one behind the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Protocol, cast

from aiomailbox.errors import CorruptStreamError
from aiomailbox.records import Element
from aiomailbox.records.byte_reader import ByteReader
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.elements import LatencyMarker
from aiomailbox.records.framing import begin_frame, end_frame
from aiomailbox.records.spanning import RecordDeserializer

__all__ = [
    "NO_CHANNEL_STATE",
    "ChannelStateWriter",
    "decode_in_flight",
    "encode_in_flight",
]


class ChannelStateWriter(Protocol):
    """Keeps output that a barrier has overtaken.

    Concept:
        Flink, ``ChannelStateWriter``; its futures are `expect_output_data` and one of
        the two calls that end the expectation.
    """

    def add_output_data(
        self, checkpoint_id: int, subpartition_index: int, data: list[bytes]
    ) -> None:
        """Keep data that an unaligned barrier has overtaken."""
        ...

    def expect_output_data(self, checkpoint_id: int, subpartition_index: int) -> None:
        """Wait: a queued barrier may still time out and overtake data."""
        ...

    def complete_output_data(
        self, checkpoint_id: int, subpartition_index: int, data: list[bytes]
    ) -> None:
        """Keep what the expected barrier has overtaken: nothing if it was in time."""
        ...

    def fail_output_data(
        self, checkpoint_id: int, subpartition_index: int, error: BaseException
    ) -> None:
        """Stop waiting: the barrier will neither be taken nor overtake."""
        ...


class _NoChannelState:
    """Keeps nothing: for jobs whose barriers never overtake."""

    def add_output_data(
        self, checkpoint_id: int, subpartition_index: int, data: list[bytes]
    ) -> None:
        pass

    def expect_output_data(self, checkpoint_id: int, subpartition_index: int) -> None:
        pass

    complete_output_data = add_output_data

    def fail_output_data(
        self, checkpoint_id: int, subpartition_index: int, error: BaseException
    ) -> None:
        pass


NO_CHANNEL_STATE: Final[ChannelStateWriter] = _NoChannelState()


def encode_in_flight(codec: ElementCodec, elements: Iterable[Element]) -> bytes:
    """Return elements in frames; latency markers are left out: they measure the past.

    Raises:
        WrongTypeError: If a record cannot be serialized.
        InvalidArgumentError: If an element exceeds what a frame may have.

    Example:
        >>> from aiomailbox.records import LONG_SERIALIZER, ListRun
        >>> codec = ElementCodec(LONG_SERIALIZER)
        >>> data = encode_in_flight(codec, [ListRun([1, 2])])
        >>> list(decode_in_flight(codec, [data[:5], data[5:]]))
        [ListRun([1, 2], None)]
    """
    output = bytearray()
    for element in elements:
        if not isinstance(element, LatencyMarker):
            start = begin_frame(output)
            codec.write(element, output)
            end_frame(output, start)
    return bytes(output)


def decode_in_flight(codec: ElementCodec, data: Iterable[bytes]) -> Iterator[Element]:
    """Return the elements of a channel's data, which may be cut anywhere.

    Raises:
        CorruptStreamError: If it is not what was kept, or ends within an element.
    """
    deserializer = RecordDeserializer()
    for piece in data:
        for record in deserializer.records(piece):
            source = ByteReader(record)
            element = codec.read(source)
            source.expect_end("an element in flight")
            yield cast("Element", element)
    if deserializer.has_unfinished_record:
        deserializer.clear()
        raise CorruptStreamError("the data in flight of a channel ends in an element")
