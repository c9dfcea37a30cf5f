"""Writes one subtask's Parquet files, in the staging directory."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from aiomailbox.columnar.encode import BatchMaker
from aiomailbox.connectors.directory_target import Segments
from aiomailbox.connectors.parquet_partitions import check_columns, split
from aiomailbox.connectors.refused import refuse
from aiomailbox.errors import RecordTypeError, SinkError
from aiomailbox.operators.core.contract import Pending
from aiomailbox.records.run import Run
from aiomailbox.threads import ThreadTurns

__all__ = ["ParquetWriter"]

# Each open file holds a buffer and a descriptor; a partition whose file was closed for
# others gets another one.
_OPEN_FILES_MAX: Final = 64


class ParquetWriter:
    """Collects records and writes them a row group at a time, in a thread.

    Args:
        segments: The files.
        schema: The files' schema, or None.
        rows_per_file: The most rows of a file, or None.
        row_group_rows: How many rows to collect before they are written.
        partition_by: The columns whose values name directories, instead of being in
            files.
    """

    def __init__(
        self,
        segments: Segments,
        *,
        schema: pa.Schema | None,
        rows_per_file: int | None,
        row_group_rows: int,
        partition_by: tuple[str, ...] = (),
    ) -> None:
        self._segments = segments
        self._partition_by = partition_by
        self._maker = BatchMaker(schema, needs_columns=True)
        self._given_schema = schema is not None
        self._rows_per_file = rows_per_file
        self._group_rows = min(row_group_rows, rows_per_file or row_group_rows)
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        # By directory, the one that was written to last at the end.
        self._files: dict[str, _OpenFile] = {}
        self._schema: pa.Schema | None = None
        self._turns = ThreadTurns()
        self._has_written = False
        # The first array that pyarrow makes of Python's values imports pandas.
        self._is_warm = "pandas" in sys.modules

    def write_run(self, run: Run) -> Pending:
        """Collect records; write when there are enough.

        Raises:
            RecordsRefusedError: If some do not fit the schema; the others are taken.
        """
        if not self._is_warm:
            return self._write_warm(run)
        refused = self._collect(run)
        pending = None
        if self._rows >= self._group_rows:
            pending = self._in_thread(self._write_groups)
        if refused:
            return refuse(refused, len(run), pending)
        return pending

    def flush(self, *, end_of_input: bool) -> Pending:
        """Write what is collected and finish the files."""
        is_empty = not self._files and not self._rows
        # A schema without records is a result too, of the first subtask that ends.
        if is_empty and not (end_of_input and self._given_schema):
            return None
        if is_empty and (self._segments.count or self._partition_by):
            return None
        return self._in_thread(self._finish_files)

    def prepare_commit(self) -> list[Any]:
        """Return the names of the files finished since the last call."""
        return self._segments.take_finished()

    def snapshot(self) -> list[Any]:
        """Return how many files there are, so that names do not come again."""
        return self._segments.snapshot()

    def restore(self, elements: list[Any]) -> None:
        """Take over the number of files; of several writers, the largest."""
        self._segments.restore(elements)

    def close(self) -> Pending:
        """Close the files; they stay in the staging directory."""
        return self._turns.run(self._abandon) if self._has_written else None

    def _collect(self, run: Run) -> dict[int, BaseException]:
        """Make batches of records; return why some do not fit, by their index.

        Raises:
            RecordTypeError: If there is no column to partition by, or it cannot be.
        """
        refused: dict[int, BaseException] = {}
        parts = [(0, len(run))]
        while parts:
            start, stop = parts.pop()
            part = run if stop - start == len(run) else run.slice(start, stop)
            try:
                batches = self._maker.batches(part)
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 -- all that can fail is the records
                if stop - start == 1:
                    refused[start] = error
                else:
                    # What fits is found by halves, the first ones first.
                    middle = (start + stop) // 2
                    parts += [(middle, stop), (start, middle)]
                continue
            if batches and self._partition_by:
                check_columns(batches[0].schema, self._partition_by)
            self._batches += batches
            self._rows += sum(batch.num_rows for batch in batches)
        return refused

    async def _write_warm(self, run: Run) -> None:
        """Import in a thread what would take seconds on the loop, then collect."""
        await self._turns.run(pa.array, [None])
        self._is_warm = True
        pending = self.write_run(run)
        if pending is not None:
            await pending

    async def _in_thread(self, work: Callable[[], None]) -> None:
        try:
            self._has_written = True
            await self._turns.run(work)
        except OSError as error:
            place = str(self._segments.directory)
            raise SinkError(f"cannot write Parquet into {place!r}: {error}") from error

    def _write_groups(self) -> None:
        """Write whole row groups, and keep the rest."""
        table = self._take_table()
        if self._partition_by:
            self._write_partitions(table)
            return
        start = 0
        # Only whole groups: small ones make a file slow to read.
        while table.num_rows - start >= self._group_rows:
            start += self._write_group("", table, start)
        if start < table.num_rows:
            self._batches = table.slice(start).to_batches()
            self._rows = table.num_rows - start

    def _write_partitions(self, table: pa.Table) -> None:
        for folder, part in split(table, self._partition_by):
            self._write_all(folder, part)

    def _write_all(self, folder: str, table: pa.Table) -> None:
        start = 0
        while start < table.num_rows:
            start += self._write_group(folder, table, start)

    def _finish_files(self) -> None:
        table = self._take_table()
        if self._partition_by:
            self._write_partitions(table)
        else:
            self._write_all("", table)
            if not self._files and not self._segments.count:
                self._open_file("", table.schema)
        for folder in list(self._files):
            self._close_file(folder)

    def _abandon(self) -> None:
        files, self._files = self._files, {}
        self._batches.clear()
        for file in files.values():
            # What a full disk did not take is not needed.
            with contextlib.suppress(OSError):
                file.writer.close()

    def _take_table(self) -> pa.Table:
        collected, self._batches, self._rows = self._batches, [], 0
        # A column of None only may have got its type since.
        batches = [self._maker.fit(batch) for batch in collected]
        return pa.Table.from_batches(batches, self._maker.schema)

    def _write_group(self, folder: str, table: pa.Table, start: int) -> int:
        """Write one row group into the present file of a directory; return its rows."""
        if self._schema is not None and not table.schema.equals(self._schema):
            raise RecordTypeError(
                "record",
                "a column that was None got a type after its file was begun: "
                f"{table.schema}",
                "Give ParquetSink a schema=.",
            )
        # Popped and put in again: the one written to last is the last one.
        file = self._files.pop(folder, None) or self._open_file(folder, table.schema)
        self._files[folder] = file
        room = self._group_rows
        if self._rows_per_file is not None:
            room = min(room, self._rows_per_file - file.rows)
        group = table.slice(start, room)
        file.writer.write_table(group, row_group_size=self._group_rows)
        file.rows += group.num_rows
        if file.rows == self._rows_per_file:
            self._close_file(folder)
        return int(group.num_rows)

    def _open_file(self, folder: str, schema: pa.Schema) -> _OpenFile:
        if len(self._files) >= _OPEN_FILES_MAX:
            # The one that was not written to for longest.
            self._close_file(next(iter(self._files)))
        path = self._segments.begin(folder)
        file = _OpenFile(path, pq.ParquetWriter(path, schema))
        self._files[folder] = file
        self._schema = schema
        return file

    def _close_file(self, folder: str) -> None:
        file = self._files.pop(folder)
        file.writer.close()
        self._segments.finish(file.path)


@dataclass(slots=True)
class _OpenFile:
    path: Path
    writer: pq.ParquetWriter
    rows: int = 0
