"""What runs inside Spark's executors: batches packed as Arrow IPC in a binary column.

The functions that are shipped are nested and refer to nothing of this module: Spark
pickles a nested function by value, but a reference to a module makes the executor
import a package that it does not have. An executor needs pyarrow only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

__all__ = ["PACKED_SCHEMA", "arrow_packer"]

# A message: partition, number of its first row, rows, Arrow IPC stream. A message with
# no IPC says that the partition ended; its second field is then the rows in it.
PACKED_SCHEMA: Final = "part int, first long, rows int, ipc binary"


def arrow_packer(
    part: int, row: int, batch_rows: int
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return the function for ``DataFrame.mapInArrow``.

    Args:
        part: Rows of earlier partitions are skipped.
        row: Earlier rows of that partition are skipped.
        batch_rows: The most rows of a message, at least 1.
    """

    def pack(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        index = TaskContext.get().partitionId()

        def message(first: int, rows: int, ipc: bytes | None) -> Any:
            return pa.RecordBatch.from_arrays(
                [
                    pa.array([index], pa.int32()),
                    pa.array([first], pa.int64()),
                    pa.array([rows], pa.int32()),
                    pa.array([ipc], pa.binary()),
                ],
                names=["part", "first", "rows", "ipc"],
            )

        # What is to be skipped is read nevertheless: a worker whose input was not read
        # to the end cannot be used again, which costs more.
        skipped = row if index == part else 0
        offset = 0
        for batch in batches:
            start = offset
            offset += batch.num_rows
            if index < part:
                continue
            for first in range(max(start, skipped), offset, batch_rows):
                piece = batch.slice(first - start, batch_rows)
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, piece.schema) as writer:
                    writer.write_batch(piece)
                yield message(first, piece.num_rows, sink.getvalue().to_pybytes())
        yield message(offset, 0, None)

    return pack
