"""What runs inside Spark's executors: batches packed as Arrow IPC in a binary column.

The functions that are shipped are nested and refer to nothing of this module: Spark
pickles a nested function by value, but a reference to a module makes the executor
import a package that it does not have. An executor needs pyarrow only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

__all__ = ["PACKED_SCHEMA", "SKIPPED", "arrow_packer"]

# A message: partition, number of its first row, rows, sum of the skipped rows' checks,
# Arrow IPC stream. One without IPC says that so many rows, its second field, were
# skipped, or, with 0 rows, that the partition ended and had so many.
PACKED_SCHEMA: Final = "part int, first long, rows int, check long, ipc binary"
SKIPPED: Final = -1


def arrow_packer(
    part: int, row: int, batch_rows: int
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return the function for ``DataFrame.mapInArrow``.

    The last column of what it gets is the check of each row; see `row_check`.

    Args:
        part: Rows of earlier partitions are skipped.
        row: Earlier rows of that partition are skipped.
        batch_rows: The most rows of a message, at least 1.
    """
    skipped_rows = SKIPPED

    def pack(batches: Iterator[Any]) -> Iterator[Any]:
        import numpy as np
        import pyarrow as pa
        from pyspark import TaskContext

        index = TaskContext.get().partitionId()

        def message(first: int, rows: int, check: int, ipc: bytes | None) -> Any:
            return pa.RecordBatch.from_arrays(
                [
                    pa.array([index], pa.int32()),
                    pa.array([first], pa.int64()),
                    pa.array([rows], pa.int32()),
                    pa.array([check], pa.int64()),
                    pa.array([ipc], pa.binary()),
                ],
                names=["part", "first", "rows", "check", "ipc"],
            )

        # What is to be skipped is read nevertheless: a worker whose input was not read
        # to the end cannot be used again, which costs more.
        skipped = row if index == part else 0
        offset = 0
        check: Any = np.zeros(1, np.int64)
        for batch in batches:
            start = offset
            offset += batch.num_rows
            passed = batch.num_rows if index < part else min(offset, skipped) - start
            if passed > 0:
                checks = batch.column(batch.num_columns - 1).slice(0, passed)
                # The sum is taken modulo 2**64.
                check += np.add.reduce(checks.to_numpy(zero_copy_only=False))
                if index == part and offset >= skipped:
                    yield message(skipped, skipped_rows, int(check[0]), None)
            if index < part:
                continue
            for first in range(max(start, skipped), offset, batch_rows):
                piece = batch.slice(first - start, batch_rows)
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, piece.schema) as writer:
                    writer.write_batch(piece)
                ipc = sink.getvalue().to_pybytes()
                yield message(first, piece.num_rows, 0, ipc)
        yield message(offset, 0, int(check[0]), None)

    return pack
