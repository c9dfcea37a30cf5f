"""Parquet files as columns; positions are rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.declared import NullCheck, check_annotations, plain_types
from aiomailbox.columnar.forms import RecordForm, record_form
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.columnar.types import without_views
from aiomailbox.connectors.files.formats import (
    FileChunk,
    changed,
    open_file,
    reading,
)
from aiomailbox.errors import DamagedFileError, RecordTypeError
from aiomailbox.records.run import ListRun, Run


class ParquetFormat:
    """The rows of Parquet files, a batch at a time.

    Args:
        records: ``"namedtuple"``, dict, a class, or ``"batch"``: each Arrow batch is
            one record.
        columns: Which columns to read; None for all.
        batch_rows: The most rows of a batch.
    """

    def __init__(
        self, records: Any, columns: tuple[str, ...] | None, batch_rows: int
    ) -> None:
        self._form: RecordForm | None = None
        if records != "batch":
            self._form = record_form(records)
        self._columns = None if columns is None else list(columns)
        self._batch_rows = batch_rows
        self.gives_batches: bool = self._form is None
        is_class = isinstance(records, type) and records is not dict
        self.record_types: tuple[type, ...] = (records,) if is_class else ()

    def read(self, name: str, position: int) -> Iterator[FileChunk]:
        """Yield the batches from a row on.

        Raises:
            RecordTypeError: If the file lacks a column that is to be read.
            UnsupportedColumnError: If a column does not fit the class, by its type or by
                a NULL.
            DamagedFileError: If it is no Parquet file.
        """
        with reading(name) as source:
            try:
                file = parquet.ParquetFile(source)
                _check_columns(file, self._columns or ())
                if position > file.metadata.num_rows:
                    raise changed(name, f"ends before row {position}")
                maker: RowMaker | None = None
                nulls = NullCheck(self.record_types[0]) if self.record_types else None
                rows = batches_from(file, position, self._batch_rows, self._columns)
                for first, batch in rows:
                    if self._form is None:
                        yield _chunk(first, batch, None)
                        continue
                    plain = without_views(batch)
                    if maker is None:
                        maker = RowMaker(plain.schema, self._form)
                        for record_type in self.record_types:
                            check_annotations(record_type, plain_types(plain.schema))
                    if nulls is not None:
                        nulls.check(plain, first)
                    yield _chunk(first, plain, maker)
            except pa.ArrowInvalid as error:
                raise DamagedFileError(name, str(error)) from error

    def row_count(self, name: str) -> int:
        """Return how many rows a file has, by its footer; blocks."""
        with open_file(name) as source:
            rows: int = parquet.ParquetFile(source).metadata.num_rows
        return rows


def batches_from(
    file: parquet.ParquetFile,
    position: int,
    batch_rows: int,
    columns: Sequence[str] | None = None,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield batches from a row on, each with the number of its first row."""
    first = 0
    groups: list[int] = []
    for group in range(file.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        # Whole groups before the position need not be read.
        if not groups and first + rows <= position:
            first += rows
        else:
            groups.append(group)
    for batch in file.iter_batches(batch_rows, groups, columns):
        skip = min(max(0, position - first), batch.num_rows)
        if skip < batch.num_rows:
            yield first + skip, batch.slice(skip)
        first += batch.num_rows


def _check_columns(file: parquet.ParquetFile, wanted: Sequence[str]) -> None:
    """Raise if a file lacks a column, or an inner field by its path."""
    names = file.schema_arrow.names
    paths = [file.schema.column(index).path for index in range(len(file.schema))]
    for name in wanted:
        if name not in names and not any(
            path == name or path.startswith(f"{name}.") for path in paths
        ):
            raise RecordTypeError(
                "columns",
                f"there is no column {name!r}",
                f"The file's columns are: {', '.join(names)}.",
            )


def _chunk(first: int, batch: pa.RecordBatch, maker: RowMaker | None) -> FileChunk:
    end = first + batch.num_rows
    run: Run
    if maker is None:
        run = ListRun([batch])
        return FileChunk(run, [end])
    return FileChunk(ArrowRun(batch, maker), range(first + 1, end + 1))
