"""Record batches as records: how they travel to another process."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from aiomailbox.columnar.ipc import BatchReader, BatchWriter
from aiomailbox.errors import CorruptStreamError
from aiomailbox.records.record_classes import RecordClass

__all__ = ["batch_class"]


def batch_class() -> RecordClass:
    """Return how a record batch that is itself a record is sent: as Arrow IPC.

    Example:
        >>> entry, batch = batch_class(), pa.record_batch({"city": ["Oslo"]})
        >>> entry.build(entry.split(batch)).equals(batch)
        True
    """
    writer, reader = BatchWriter(), BatchReader()

    def build(parts: Any) -> pa.RecordBatch:
        (written,) = parts
        if not isinstance(written, bytes):
            raise CorruptStreamError("a record batch is made of bytes")
        return reader.read(written)

    return RecordClass.taken_apart(
        pa.RecordBatch, ("ipc",), lambda batch: (writer.write(batch),), build
    )
