"""The Arrow form of a run: a record batch whose rows are made when asked for."""

from __future__ import annotations

from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa

from aiomailbox.columnar.decode import epoch_micros
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.errors import RecordTypeError, TimestampError
from aiomailbox.records import ListRun, Run

__all__ = ["ArrowRun"]


class ArrowRun:
    """Consecutive records as an Arrow record batch; see `aiomailbox.records.Run`.

    Args:
        batch: The records' columns.
        row_maker: Makes the rows, of the batch's schema.
        timestamps: Event times in milliseconds, shape ``(n,)``, or None.

    Example:
        >>> import pyarrow as pa
        >>> from aiomailbox.columnar import NamedTupleForm
        >>> batch = pa.record_batch({"city": ["Oslo", "Rome"], "ms": [5, 7]})
        >>> run = ArrowRun(batch, RowMaker(batch.schema, NamedTupleForm()))
        >>> run.column_ms("ms"), run.slice(1, 2).values
        ([5, 7], [Record(city='Rome', ms=7)])
    """

    __slots__ = ("_batch", "_indices", "_rows", "row_maker", "timestamps")

    def __init__(
        self,
        batch: pa.RecordBatch,
        row_maker: RowMaker,
        timestamps: list[int] | None = None,
    ) -> None:
        self.row_maker: RowMaker = row_maker
        self.timestamps: list[int] | None = timestamps
        self._batch = batch
        # Which rows of the batch these are; None for all.
        self._indices: list[int] | None = None
        self._rows: list[Any] | None = None

    @property
    def batch(self) -> pa.RecordBatch:
        """The records' columns; those that were taken are put together by the first call."""
        if self._indices is not None:
            indices = pa.array(np.array(self._indices, np.int64))
            self._batch, self._indices = self._batch.take(indices), None
        return self._batch

    @property
    def values(self) -> list[Any]:
        """The rows as records; made by the first call."""
        rows = self._rows
        if rows is None:
            rows = self._rows = self.row_maker.rows(self.batch)
        return rows

    def __len__(self) -> int:
        if self._indices is not None:
            return len(self._indices)
        return int(self._batch.num_rows)

    def __repr__(self) -> str:
        return (
            f"<ArrowRun of {len(self)} records: {', '.join(self._batch.schema.names)}>"
        )

    def slice(self, start: int, stop: int) -> ArrowRun:
        """Return records ``start`` to ``stop - 1`` as a run; copies nothing."""
        timestamps, rows = self.timestamps, self._rows
        part = ArrowRun(
            self.batch.slice(start, stop - start),
            self.row_maker,
            None if timestamps is None else timestamps[start:stop],
        )
        if rows is not None:
            part._rows = rows[start:stop]
        return part

    def take(self, indices: list[int]) -> Run:
        """Return the records at these places, in this order; copies no column yet.

        It is a list of rows if values of a column's type cannot be picked.
        """
        timestamps, rows, chosen = self.timestamps, self._rows, self._indices
        taken = None if timestamps is None else [timestamps[each] for each in indices]
        if not self.row_maker.can_take:
            values = self.values
            return ListRun([values[each] for each in indices], taken)
        run = ArrowRun(self._batch, self.row_maker, taken)
        run._indices = indices if chosen is None else [chosen[each] for each in indices]
        if rows is not None:
            run._rows = [rows[each] for each in indices]
        return run

    def select(self, mask: pa.BooleanArray) -> Run:
        """Return the records for which ``mask``, of shape ``(n,)``, is true."""
        if not self.row_maker.can_take:
            return self.take(np.flatnonzero(_as_bools(mask)).tolist())
        chosen = _as_bools(mask).tolist()
        timestamps, rows = self.timestamps, self._rows
        run = ArrowRun(
            self.batch.filter(mask),
            self.row_maker,
            None if timestamps is None else list(compress(timestamps, chosen)),
        )
        if rows is not None:
            run._rows = list(compress(rows, chosen))
        return run

    def with_timestamps(self, timestamps: list[int] | None) -> ArrowRun:
        """Return the same records with other event times."""
        run = ArrowRun(self._batch, self.row_maker, timestamps)
        run._indices, run._rows = self._indices, self._rows
        return run

    def size_bytes(self) -> int:
        """Return the bytes of the columns, without the rows made from them."""
        size_bytes = int(self._batch.nbytes)
        if self._indices is None:
            return size_bytes
        # Their share of the batch that they keep alive.
        return size_bytes * len(self._indices) // max(1, int(self._batch.num_rows))

    def column(self, name: str) -> pa.Array:
        """Return a column.

        Raises:
            RecordTypeError: If there is no such column.
        """
        index = self.batch.schema.get_field_index(name)
        if index < 0:
            raise RecordTypeError(
                "column",
                f"there is no column {name!r}",
                f"The columns are: {', '.join(self.batch.schema.names)}.",
            )
        return self.batch.column(index)

    def column_ms(self, name: str) -> list[int]:
        """Return a column as event times in milliseconds, without making rows.

        Args:
            name: A column of timestamps with a time zone, or of integers, which are
                milliseconds already.

        Raises:
            TimestampError: If there is no such column, it has another type, or a value
                is null.
        """
        if self.batch.schema.get_field_index(name) < 0:
            raise TimestampError(
                f"the records have no field {name!r} to take their event time from; "
                f"the columns are {', '.join(self.batch.schema.names)}."
            )
        column = self.column(name)
        if column.null_count:
            row = column.is_null().to_pylist().index(True)
            raise TimestampError(
                f"an event time cannot be None: column {name!r} is null in record "
                f"{self.slice(row, row + 1).values[0]!r}."
            )
        times: list[int]
        if pa.types.is_timestamp(column.type) and column.type.tz:
            times = (epoch_micros(column) // 1000).tolist()
        elif pa.types.is_integer(column.type):
            times = column.to_pylist()
        else:
            raise TimestampError(
                f"column {name!r} of type {column.type} is no event time. Use a "
                "timestamp with a time zone, or int milliseconds since the epoch."
            )
        return times


def _as_bools(mask: pa.BooleanArray) -> np.ndarray:
    bools: np.ndarray = mask.fill_null(False).to_numpy(zero_copy_only=False)
    return bools
