"""The Arrow form of a run: a record batch whose rows are made when asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from aiomailbox.columnar.decode import epoch_micros
from aiomailbox.columnar.keys import KeyCodes, key_codes
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.errors import RecordTypeError, TimestampError
from aiomailbox.eventtime.generators import check_before_end_of_time
from aiomailbox.records.run import COLUMN_RUN_LENGTH_MAX, ListRun, Run

# What a record takes as long as its columns are not made: a number or two.
_DEFERRED_BYTES: Final = 16
# Of so many records of a batch one is worth a copy.
_FEW: Final = 16


class ArrowRun:
    """Consecutive records as an Arrow record batch; see `aiomailbox.records.Run`.

    Args:
        batch: The records' columns.
        row_maker: Makes the rows, of the batch's schema.
        timestamps: Event times in milliseconds, shape ``(n,)``, or None.

    Example:
        >>> import pyarrow as pa
        >>> from aiomailbox.columnar.forms import NamedTupleForm
        >>> batch = pa.record_batch({"city": ["Oslo", "Rome"], "ms": [5, 7]})
        >>> run = ArrowRun(batch, RowMaker(batch.schema, NamedTupleForm()))
        >>> run.timed_by("ms").event_times, run.slice(1, 2).values
        (array([5, 7]), [Record(city='Rome', ms=7)])
    """

    __slots__ = (
        "_columns",
        "_count",
        "_indices",
        "_make",
        "_row_maker",
        "_rows",
        "_span",
        "_stamps",
        "_times",
    )

    # A kernel costs some microseconds however few rows there are.
    length_max: int = COLUMN_RUN_LENGTH_MAX

    def __init__(
        self,
        batch: pa.RecordBatch,
        row_maker: RowMaker,
        timestamps: list[int] | np.ndarray | None = None,
    ) -> None:
        self._row_maker = row_maker
        self._columns = batch
        # Makes the columns when they are first read; None once they are made.
        self._make: Callable[[], ArrowRun] | None = None
        self._count: int = batch.num_rows
        # Which rows of the batch these are; None for all.
        self._indices: np.ndarray | None = None
        self._rows: list[Any] | None = None
        # Event times in either form; the other one is made when it is asked for.
        self._stamps: list[int] | None = None
        self._times: np.ndarray | None = None
        # The earliest and the latest of them, once they were asked for.
        self._span: tuple[int, int] | None = None
        if isinstance(timestamps, np.ndarray):
            self._times = timestamps
        else:
            self._stamps = timestamps

    @classmethod
    def deferred(
        cls, count: int, make: Callable[[], ArrowRun], times: np.ndarray | None
    ) -> ArrowRun:
        """Return a run of so many records whose columns are made when they are asked for.

        Args:
            count: How many records there are.
            make: Returns them; called on demand, in any thread, maybe twice.
            times: Event times in milliseconds, shape ``(n,)``, or None.
        """
        run = object.__new__(cls)
        run._make, run._count, run._times = make, count, times
        run._indices = run._rows = run._stamps = run._span = None
        return run

    @property
    def _batch(self) -> pa.RecordBatch:
        if self._make is not None:
            self._made()
        return self._columns

    @property
    def row_maker(self) -> RowMaker:
        """The maker of the rows."""
        self._made()
        return self._row_maker

    def _made(self) -> None:
        make = self._make
        if make is not None:
            made = make()
            self._columns, self._row_maker = made.batch, made.row_maker
            # Last: another thread may ask as well.
            self._make = None

    @property
    def batch(self) -> pa.RecordBatch:
        """The records' columns; those that were taken are put together by the first call."""
        if self._indices is not None:
            self._put_together(self._indices)
        return self._batch

    def _put_together(self, chosen: np.ndarray) -> None:
        columns = [_taken(column, chosen) for column in self._batch.columns]
        self._columns = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        self._indices = None

    @property
    def schema(self) -> pa.Schema:
        """The columns' names and types."""
        return self._batch.schema

    @property
    def values(self) -> list[Any]:
        """The rows as records; made by the first call."""
        rows = self._rows
        if rows is None:
            rows = self._rows = self.row_maker.rows(self.batch)
        return rows

    @property
    def timestamps(self) -> list[int] | None:
        """The event times, milliseconds, one a record, or None."""
        if self._stamps is None and self._times is not None:
            self._stamps = self._times.tolist()
        return self._stamps

    @property
    def event_times(self) -> np.ndarray | None:
        """The event times as an array of int64, shape ``(n,)``, or None."""
        if self._times is None and self._stamps is not None:
            self._times = np.array(self._stamps, np.int64)
        return self._times

    def highest_ms(self) -> int | None:
        """Return the latest event time; None if there is none."""
        times = self.event_times
        return None if times is None or not len(times) else self.span_ms()[1]

    def span_ms(self) -> tuple[int, int]:
        """Return the earliest and the latest event time of records that have one."""
        span = self._span
        if span is None:
            times: Any = self.event_times
            span = self._span = int(times.min()), int(times.max())
        return span

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return (
            f"<ArrowRun of {len(self)} records: {', '.join(self._batch.schema.names)}>"
        )

    def slice(self, start: int, stop: int) -> ArrowRun:
        """Return records ``start`` to ``stop - 1`` as a run; copies nothing."""
        # In whichever form they are: making the other one costs more than the slice.
        times, rows, chosen = self._any_times, self._rows, self._indices
        part = ArrowRun(
            self._batch
            if chosen is not None
            else self._batch.slice(start, stop - start),
            self.row_maker,
            None if times is None else times[start:stop],
        )
        if chosen is not None:
            part._indices = chosen[start:stop]
            part._count = len(part._indices)
        if rows is not None:
            part._rows = rows[start:stop]
        return part

    def take(self, indices: list[int] | np.ndarray) -> Run:
        """Return the records at these places, in this order; copies no column yet.

        It is a list of rows if values of a column's type cannot be picked.
        """
        chosen = np.asarray(indices, np.int64)
        times, rows = self.event_times, self._rows
        taken = None if times is None else times[chosen]
        if not self.row_maker.can_take:
            values = self.values
            return ListRun(
                [values[each] for each in chosen],
                None if taken is None else taken.tolist(),
            )
        run = ArrowRun(self._batch, self.row_maker, taken)
        run._indices = chosen if self._indices is None else self._indices[chosen]
        run._count = len(chosen)
        if rows is not None:
            run._rows = [rows[each] for each in chosen]
        return run

    def select(self, mask: pa.BooleanArray | np.ndarray) -> Run:
        """Return the records for which ``mask``, of shape ``(n,)``, is true.

        No column is copied yet: what follows may read few of them.
        """
        chosen = mask if isinstance(mask, np.ndarray) else as_bools(mask)
        places = np.flatnonzero(chosen)
        return self if len(places) == len(chosen) else self.take(places)

    def with_timestamps(self, timestamps: list[int] | np.ndarray | None) -> ArrowRun:
        """Return the same records with other event times."""
        run = ArrowRun(self._batch, self.row_maker, timestamps)
        run._indices, run._rows, run._count = self._indices, self._rows, self._count
        return run

    @property
    def _any_times(self) -> list[int] | np.ndarray | None:
        return self._stamps if self._times is None else self._times

    def size_bytes(self) -> int:
        """Return the bytes of the columns, without the rows made from them.

        The caller is about to keep the run: first it is made compact.
        """
        if self._make is not None:
            return _DEFERRED_BYTES * self._count
        self.compact()
        size_bytes = self._row_maker.size_bytes(self._batch)
        if self._indices is None:
            return size_bytes
        # Their share of the batch that they keep alive.
        return size_bytes * len(self._indices) // max(1, int(self._batch.num_rows))

    def compact(self) -> None:
        """Put few records of a long batch together, so that it can be released."""
        chosen = self._indices
        if chosen is not None and _FEW * len(chosen) < self._columns.num_rows:
            self._put_together(chosen)

    def column(self, name: str) -> pa.Array:
        """Return a column; of records that were taken only this one is put together.

        Raises:
            RecordTypeError: If there is no such column.
        """
        batch = self._batch
        index = batch.schema.get_field_index(name)
        if index < 0:
            raise RecordTypeError(
                "column",
                f"there is no column {name!r}",
                f"The columns are: {', '.join(self.schema.names)}.",
            )
        column = batch.column(index)
        chosen = self._indices
        return column if chosen is None else _taken(column, chosen)

    def key_codes(self, key: Any) -> KeyCodes | None:
        """Return the keys of the records, or None if the rows have to be asked.

        Args:
            key: What reads a record's key; one of fields has their names as ``fields``.
        """
        fields = getattr(key, "fields", ())
        alone = getattr(key, "is_alone", False)
        return key_codes(self, fields, alone=alone)

    def first_of_keys(self, key: Any) -> tuple[list[Any], list[int]] | None:
        """Return each key once, with the place of its first record, ascending.

        Args:
            key: As in `key_codes`.

        Returns:
            None if the rows have to be asked.
        """
        keys = self.key_codes(key)
        if keys is None:
            return None
        # Of several records with a key the first is set last.
        places: np.ndarray = np.zeros(len(keys.distinct), np.int64)
        places[keys.codes[::-1]] = np.arange(len(keys.codes) - 1, -1, -1)
        order = np.argsort(places)
        distinct = [keys.distinct[code] for code in order.tolist()]
        return distinct, places[order].tolist()

    def split_by_key(
        self, key: Any, channels_of: Callable[[list[Any]], list[int]]
    ) -> list[tuple[int, Run]] | None:
        """Return the records of each channel, or None if the rows have to be asked.

        Args:
            key: As in `key_codes`.
            channels_of: Returns the channel of each of some keys.
        """
        keys = self.key_codes(key)
        if keys is None:
            return None
        channels = np.array(channels_of(keys.distinct), np.int64)[keys.codes]
        used = np.flatnonzero(np.bincount(channels))
        if len(used) == 1:
            return [(int(used[0]), self)]
        return [
            (int(each), self.take(np.flatnonzero(channels == each))) for each in used
        ]

    def timed_by(self, name: str) -> ArrowRun:
        """Return the same records with the event times that a column says.

        Args:
            name: A column of timestamps with a time zone, or of integers, which are
                milliseconds already.

        Raises:
            TimestampError: If there is no such column, it has another type, or a value
                is null.
        """
        return self.with_timestamps(self._column_ms(name))

    def _column_ms(self, name: str) -> np.ndarray:
        if self.schema.get_field_index(name) < 0:
            raise TimestampError(
                f"the records have no field {name!r} to take their event time from; "
                f"the columns are {', '.join(self.schema.names)}."
            )
        column = self.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if column.null_count:
            row = column.is_null().to_pylist().index(True)
            raise TimestampError(
                f"an event time cannot be None: column {name!r} is null in record "
                f"{self.slice(row, row + 1).values[0]!r}. Leave such records out, or give "
                "them another event time."
            )
        return _millis(column, name)


def _millis(column: pa.Array, name: str) -> np.ndarray:
    """Return event times without null as milliseconds, int64 of shape ``(n,)``.

    Raises:
        TimestampError: If they are neither integers nor moments with a time zone, or
            do not fit into 64 bits.
    """
    kind, times = column.type, column
    if pa.types.is_timestamp(kind) and kind.tz:
        if kind.unit not in {"s", "ms"}:
            return epoch_micros(column) // 1000
        try:
            times = column.cast(pa.timestamp("ms", kind.tz))
        except pa.ArrowInvalid as error:
            raise TimestampError(
                f"column {name!r} has an event time that 64 bits of milliseconds "
                f"cannot hold: {error}"
            ) from error
    elif not pa.types.is_integer(kind):
        raise TimestampError(
            f"column {name!r} of type {kind} cannot be an event time. Use a timestamp "
            "with a time zone, or int milliseconds since the epoch."
        )
    elif pa.types.is_uint64(kind):
        check_before_end_of_time(max(column.to_pylist(), default=0))
    if not pa.types.is_int64(times.type):
        times = times.cast(pa.int64())
    return times.to_numpy()


def as_bools(mask: pa.BooleanArray) -> np.ndarray:
    """Return where a column is true, shape ``(n,)``; null is not."""
    if mask.null_count:
        mask = mask.fill_null(False)
    bits = mask.buffers()[1]
    if bits is None:
        return np.zeros(len(mask), np.bool_)
    # Arrow's own way takes eight times as long.
    first, start = divmod(mask.offset, 8)
    unpacked = np.unpackbits(
        np.frombuffer(bits, np.uint8)[first:],
        count=start + len(mask),
        bitorder="little",
    )
    return unpacked[start:].view(np.bool_)


def _taken(column: pa.Array, chosen: np.ndarray) -> pa.Array:
    """Return the values of a column at some places."""
    kind = column.type
    if not column.null_count and (
        pa.types.is_integer(kind) or pa.types.is_float64(kind)
    ):
        # A kernel looks for nulls among the places, and takes twice as long.
        return pa.array(column.to_numpy().take(chosen))
    return column.take(pa.array(chosen))
