"""From the buffers of a channel back to elements, which may span several of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import cast

from aiomailbox.errors import CorruptStreamError
from aiomailbox.exchange.core.buffer import CONTROL, ObjectBuffer
from aiomailbox.memory.buffer import Buffer
from aiomailbox.memory.data_type import DataType
from aiomailbox.records import Element
from aiomailbox.records.byte_reader import ByteReader
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.event_codec import decode_event
from aiomailbox.records.run import RUN_LENGTH_MAX
from aiomailbox.records.spanning import RecordDeserializer

__all__ = ["ElementReader"]


class ElementReader:
    """Reads what a channel's buffers hold, in their order.

    Args:
        codec: How the edge's elements are encoded.
        name: The sender's name, for errors.
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
        "_rest",
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
        # Of a buffer that is read in parts.
        self._rest: Iterator[Element] | None = None
        self.buffers_total: int = 0
        self.records_total: int = 0
        self.bytes_total: int = 0

    def read(self, buffer: Buffer) -> ObjectBuffer | None:
        """Return the elements that end in a buffer, or its event; None if none does.

        After an error nothing that follows makes sense.

        Raises:
            CorruptStreamError: If it does not hold what was written.
        """
        if buffer.data_type.is_event:
            return self._read_event(buffer)
        return self._taken(list(self._begin(buffer)))

    def read_part(self, buffer: Buffer) -> ObjectBuffer | None:
        """Return some elements of a buffer, or its event; None if none ends in it.

        A buffer may hold far more records than are processed at once. What has just been
        made of bytes is in the processor's cache when it is processed, and of the rest no
        objects exist yet. As long as `has_rest`, call it again with the same buffer;
        events may come in between.

        Raises:
            CorruptStreamError: If it does not hold what was written.
        """
        if buffer.data_type.is_event:
            return self._read_event(buffer)
        if self._rest is None:
            self._rest = self._begin(buffer)
        elements: list[Element] = []
        count = 0
        for element in self._rest:
            elements.append(element)
            count += 1 if isinstance(element, CONTROL) else len(element)
            if count >= RUN_LENGTH_MAX and self._deserializer.has_rest:
                break
        else:
            self._rest = None
        return self._taken(elements)

    @property
    def has_rest(self) -> bool:
        """Whether `read_part` has left something of its buffer."""
        return self._rest is not None

    def unconsumed(self) -> bytes:
        """Return what there is of a record that is not whole yet."""
        return self._deserializer.unconsumed()

    def clear(self) -> None:
        """Forget what is not whole, and what is left of a buffer."""
        self._rest = None
        self._deserializer.clear()

    def _begin(self, buffer: Buffer) -> Iterator[Element]:
        content = buffer.readable()
        self._count(content)
        return self._elements(content)

    def _count(self, content: memoryview) -> None:
        self.buffers_total += 1
        self.bytes_total += len(content)

    def _taken(self, elements: list[Element]) -> ObjectBuffer | None:
        if not elements:
            # Not an empty buffer of elements: it would be handed around and say
            # nothing.
            return None
        taken = ObjectBuffer.of_elements(elements)
        self.records_total += taken.record_count
        return taken

    def _read_event(self, buffer: Buffer) -> ObjectBuffer:
        content = buffer.readable()
        self._count(content)
        event = decode_event(content)
        if (
            buffer.data_type is DataType.END_OF_PARTITION
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
