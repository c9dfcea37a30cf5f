"""What travels between two stages: rows of Spark's shuffle.

Theory of operation: a producer's elements on one edge, runs and watermarks in their
order, are framed as between processes and packed into rows of about a thousand records.
A row is sorted by the watermark that its producer had reached when the row began, so
that a consumer reads its producers in step with event time, however far apart they ran.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

import pyarrow as pa

from aiomailbox.errors import CorruptStreamError
from aiomailbox.records import Element
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.elements import MIN_TIMESTAMP
from aiomailbox.records.framing import LENGTH

__all__ = [
    "BEGIN_ORDER",
    "DATA_ORDER_MIN",
    "WIRE_COLUMNS",
    "WIRE_SCHEMA",
    "RowKind",
    "WireRow",
    "elements_of",
    "rows_of_batch",
    "wire_batch",
]

# What Spark calls them, in the order of `WireRow`.
WIRE_SCHEMA: Final = (
    "edge int, part int, wm long, producer long, seq long, kind int, subtask int, "
    "payload binary"
)
WIRE_COLUMNS: Final = pa.schema(
    [
        ("edge", pa.int32()),
        ("part", pa.int32()),
        ("wm", pa.int64()),
        ("producer", pa.int64()),
        ("seq", pa.int64()),
        ("kind", pa.int32()),
        ("subtask", pa.int32()),
        ("payload", pa.binary()),
    ]
)

# The row that names the producer comes before all that it produced.
BEGIN_ORDER: Final = MIN_TIMESTAMP
DATA_ORDER_MIN: Final = MIN_TIMESTAMP + 1


class RowKind(IntEnum):
    """What a row is.

    ``BEGIN`` and ``END`` enclose what one producer sends on one edge to one consumer.
    A ``RESULT`` is the pipeline's: its edge is the number of the output, and stages
    pass it on.
    """

    BEGIN = 0
    DATA = 1
    END = 2
    RESULT = 3
    METRICS = 4


class WireRow(NamedTuple):
    """One row.

    Attributes:
        edge: The edge's number in the job; of a result, the output's.
        part: Spark's partition in the next stage.
        wm: Sorts rows: the producer's watermark when the row began.
        producer: The name of the sender, unique in the job.
        seq: Counts a producer's rows, so that the order of its rows is total.
        kind: See `RowKind`.
        subtask: The consumer's subtask.
        payload: Frames; of a result, an Arrow stream.
    """

    edge: int
    part: int
    wm: int
    producer: int
    seq: int
    kind: int
    subtask: int
    payload: bytes


def wire_batch(rows: Sequence[WireRow]) -> pa.RecordBatch:
    """Return rows as Spark takes them, shape ``(len(rows),)``."""
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(column, field.type)
            for column, field in zip(columns, WIRE_COLUMNS, strict=True)
        ],
        schema=WIRE_COLUMNS,
    )


def rows_of_batch(batch: pa.RecordBatch) -> Iterator[WireRow]:
    """Give the rows of a batch that Spark gives."""
    columns = [batch.column(name).to_pylist() for name in WIRE_COLUMNS.names]
    return map(WireRow, *columns)


def elements_of(payload: bytes, codec: ElementCodec) -> list[Element]:
    """Return what is framed in a payload, in order.

    Raises:
        CorruptStreamError: If a frame ends beyond the payload.
    """
    elements: list[Element] = []
    view, position, size_bytes = memoryview(payload), 0, len(payload)
    while position < size_bytes:
        start = position + LENGTH.size
        (length,) = LENGTH.unpack_from(view, position)
        position = start + length
        if position > size_bytes:
            raise CorruptStreamError(
                f"a frame of {length} bytes ends beyond a payload of {size_bytes}"
            )
        elements.append(codec.decode(view[start:position]))  # type: ignore[arg-type]
    return elements
