"""From the buffers of a channel back to elements, which may span several of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import cast

from aiomailbox.errors import CorruptStreamError
from aiomailbox.exchange.core.buffer import ObjectBuffer
from aiomailbox.memory import Buffer, DataType
from aiomailbox.records import ByteReader, Element, ElementCodec, decode_event
from aiomailbox.records.spanning import RecordDeserializer

__all__ = ["ElementReader"]


class ElementReader:
    """Reads what a channel's buffers hold, in their order.

    Args:
        codec: How the edge's elements are encoded.
        name: Who sent them, for errors.
        spill_directory: Where very large records go; None for the system's place.

    Attributes:
        buffers_total: Buffers read.
        records_total: Records read.
        bytes_total: Bytes read, events included.
    """

    __slots__ = (
        "_codec",
        "_deserializer",
        "_name",
        "buffers_total",
        "bytes_total",
        "records_total",
    )

    def __init__(
        self,
        codec: ElementCodec,
        name: str,
        spill_directory: str | os.PathLike[str] | None = None,
    ) -> None:
        self._codec = codec
        self._name = name
        self._deserializer = RecordDeserializer(spill_directory=spill_directory)
        self.buffers_total: int = 0
        self.records_total: int = 0
        self.bytes_total: int = 0

    def read(self, buffer: Buffer) -> ObjectBuffer | None:
        """Return the elements that end in a buffer, or its event; None if none does.

        After an error nothing that follows makes sense.

        Raises:
            CorruptStreamError: If it does not hold what was written.
        """
        content = buffer.readable()
        self.buffers_total += 1
        self.bytes_total += len(content)
        if buffer.data_type.is_event:
            return self._read_event(content, buffer.data_type)
        elements = list(self._elements(content))
        if not elements:
            # Not an empty buffer of elements: it would be handed around and say
            # nothing.
            return None
        taken = ObjectBuffer.of_elements(elements)
        self.records_total += taken.record_count
        return taken

    def unconsumed(self) -> bytes:
        """Return what there is of a record that is not whole yet."""
        return self._deserializer.unconsumed()

    def clear(self) -> None:
        """Forget what is not whole."""
        self._deserializer.clear()

    def _read_event(self, content: memoryview, data_type: DataType) -> ObjectBuffer:
        event = decode_event(content)
        if (
            data_type is DataType.END_OF_PARTITION
            # The end is the only event that a half record may not precede: barriers
            # overtake.
            and self._deserializer.has_unfinished_record
        ):
            raise CorruptStreamError(f"{self._name} ended in the middle of a record")
        return ObjectBuffer.for_event(event)

    def _elements(self, content: memoryview) -> Iterator[Element]:
        read = self._codec.read
        for record in self._deserializer.records(content):
            source = ByteReader(record)
            element = read(source)
            source.expect_end("an element of a channel")
            yield cast("Element", element)
