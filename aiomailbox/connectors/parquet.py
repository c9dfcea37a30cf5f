"""Results as a directory of Parquet files, which appear when the job commits."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aiomailbox.columnar.encode import BatchMaker, warmed
from aiomailbox.columnar.ipc import types_in
from aiomailbox.connectors.directory import (
    DirectoryTarget,
    GrowingCommitter,
    Segments,
    SegmentWriter,
    WholeCommitter,
    WriteMode,
)
from aiomailbox.connectors.sinks import refuse
from aiomailbox.errors import (
    InvalidArgumentError,
    RecordTypeError,
)
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.fields import RecordFields
from aiomailbox.operators.core.operator import Pending, finished
from aiomailbox.operators.sinks.sink import CommitterContext, Guarantee
from aiomailbox.records.run import Run
from aiomailbox.signatures import (
    check_choice,
    check_count,
    check_names,
    check_suffix,
    check_type,
)
from aiomailbox.storage.commit_log import Following

# Rows by the values of columns, in directories that Spark and Arrow read as columns.


# What Hive, Spark and Arrow write for NULL.
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
# What has a meaning in paths or URLs, for one of the readers.
_SPECIAL: Final = frozenset("\"#%'*/:=?\\{}[]^")
_CONTROL: Final = frozenset({*range(32), 127})


def check_columns(schema: pa.Schema, names: tuple[str, ...]) -> None:
    """Check that rows can be partitioned by columns.

    Raises:
        RecordTypeError: If there is no such column, or its values have no one text; or if
            no other column would be left.
    """
    for name in names:
        if name not in schema.names:
            raise RecordTypeError(
                "partition_by",
                f"there is no column {name!r}",
                f"The records have {schema.names}.",
            )
        kind = schema.field(name).type
        if not any(is_kind(kind) for is_kind in _KINDS):
            raise RecordTypeError(
                "partition_by",
                f"column {name!r} of type {kind} cannot be part of a directory's name",
                "Use a string, an integer, a bool or a date; convert a timestamp "
                "to its date.",
            )
    if len(names) == len(schema):
        raise RecordTypeError(
            "partition_by",
            "every column is a partition column, so that none is left for the files",
            "Leave one out.",
        )


def split(table: pa.Table, names: tuple[str, ...]) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of each partition, without its columns, and its directory.

    Rows of a partition stay in their order.

    Args:
        table: The rows.
        names: The columns, the outermost directory first.

    Example:
        >>> table = pa.table({"day": ["mon", "tue", "mon"], "n": [1, 2, 3]})
        >>> [(folder, part.to_pylist()) for folder, part in split(table, ("day",))]
        [('day=mon', [{'n': 1}, {'n': 3}]), ('day=tue', [{'n': 2}])]
    """
    if not table.num_rows:
        return
    if not names:
        yield "", table
        return
    rest = [name for name in table.schema.names if name not in names]
    codes = [pc.dictionary_encode(table[name], "encode") for name in names]
    columns = [code.combine_chunks() for code in codes]
    numbers = [str(number) for number in range(len(names))]
    indices = pa.table([column.indices for column in columns], names=numbers)
    order = pc.sort_indices(indices, [(number, "ascending") for number in numbers])
    ordered = indices.take(order)
    rows = table.select(rest).take(order)
    # Where one of the codes is another than in the row before, a partition begins.
    starts = [0, *_changes(ordered), table.num_rows]
    for start, stop in pairwise(starts):
        folder = "/".join(
            _folder(name, column.dictionary[ordered[number][start].as_py()])
            for name, column, number in zip(names, columns, numbers, strict=True)
        )
        yield folder, rows.slice(start, stop - start)


_KINDS: Final = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_integer,
    pa.types.is_boolean,
    pa.types.is_date32,
    pa.types.is_null,
)


def _changes(ordered: pa.Table) -> list[int]:
    found: set[int] = set()
    for column in ordered.columns:
        values = column.to_numpy()
        found.update((values[1:] != values[:-1]).nonzero()[0].tolist())
    return [row + 1 for row in sorted(found)]


def _folder(name: str, scalar: Any) -> str:
    value = scalar.as_py()
    if isinstance(value, bool):
        value = "true" if value else "false"
    # An empty text has no directory; Spark writes it as NULL, too.
    text = _NULL if value is None or value == "" else _escaped(str(value))
    return f"{_escaped(name)}={text}"


def _escaped(text: str) -> str:
    # No others: Spark takes each for one character, which it is in ASCII only.
    return "".join(
        f"%{ord(sign):02X}" if sign in _SPECIAL or ord(sign) in _CONTROL else sign
        for sign in text
    )


# Writes one subtask's Parquet files, in the staging directory.


ROW_GROUP_ROWS: Final = 65_536
# What is collected before it is written, where rows are large.
GROUP_BYTES: Final = 64 * 1024 * 1024
# Each open file holds a buffer and a descriptor; a partition whose file was closed for
# others gets another one.
_OPEN_FILES_MAX: Final = 64


class ParquetWriter(SegmentWriter):
    """Collects records and writes them a row group at a time, in a thread.

    Args:
        segments: The files.
        schema: The files' schema, or None.
        rows_per_file: The most rows of a file, or None.
        row_group_rows: How many rows to collect before they are written; fewer where
            they are large.
        partition_by: The columns whose values name directories, instead of being in
            files.
        fields: What is known of the records' fields where there is no schema.
        kind_of: What becomes of the types of columns that no schema names.
        group_bytes: How many bytes of Arrow to collect at most.
        is_first: Whether it is the writer that tells the columns of a result without rows.
        gives_schema: Whether who reads gives the schema: a column without a value so far
            is left out then, and later files may have it.

    Attributes:
        maker: Makes the columns, and has their schema.
    """

    kind = "Parquet"

    def __init__(
        self,
        segments: Segments,
        *,
        schema: pa.Schema | None,
        rows_per_file: int | None = None,
        row_group_rows: int = ROW_GROUP_ROWS,
        partition_by: tuple[str, ...] = (),
        fields: RecordFields | None = None,
        kind_of: Callable[[pa.DataType], pa.DataType] | None = None,
        group_bytes: int = GROUP_BYTES,
        is_first: bool = True,
        gives_schema: bool = False,
    ) -> None:
        super().__init__(segments)
        self.maker: BatchMaker = BatchMaker(
            schema, kind_of, needs_columns=True, fields=fields
        )
        self._partition_by = partition_by
        self._rows_per_file = rows_per_file
        self._group_rows = min(row_group_rows, rows_per_file or row_group_rows)
        self._group_bytes = group_bytes
        self._is_first = is_first
        self._gives_schema = gives_schema
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        # By directory, the one that was written to last at the end.
        self._files: dict[str, _OpenFile] = {}
        self._schema: pa.Schema | None = None

    def write_run(self, run: Run) -> Pending:
        """Collect records; write when there are enough.

        Raises:
            RecordsRefusedError: If some do not fit the schema; the others are taken.
        """
        importing = warmed()
        if importing is not None:
            return self._write_warm(run, importing)
        refused = self._collect(run)
        pending = None
        if self._rows >= self._group_rows or self._bytes >= self._group_bytes:
            pending = self._in_thread(self._write_groups)
        if refused:
            return refuse(refused, len(run), pending)
        return pending

    def flush(self, *, end_of_input: bool) -> Pending:
        """Write what is collected and finish the files."""
        if not self._files and not self._rows:
            # A schema without records is a result too, which a reader finds in a file.
            if not (end_of_input and self._is_first) or self._segments.count:
                return None
            schema = self.maker.expect()
            if schema is None:
                return None
            if self._partition_by:
                check_columns(schema, self._partition_by)
        return self._in_thread(self._finish_files)

    def take_table(self) -> pa.Table:
        """Return the rows that are collected and in no file yet."""
        collected, self._batches = self._batches, []
        self._rows = self._bytes = 0
        # A column of None only may have got its type since.
        batches = [self.maker.fit(batch) for batch in collected]
        return pa.Table.from_batches(batches, self.maker.schema)

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
                batches = self.maker.batches(part)
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
            self._bytes += sum(batch.nbytes for batch in batches)
        return refused

    async def _write_warm(self, run: Run, importing: Awaitable[None]) -> None:
        """Wait for what would take seconds on the loop, then collect."""
        await importing
        await finished(self.write_run(run))

    def _write_groups(self) -> None:
        """Write whole row groups, and keep the rest."""
        is_large = self._bytes >= self._group_bytes
        table = self._without_untyped(self.take_table())
        if self._partition_by:
            self._write_partitions(table)
            return
        start = 0
        # Only whole groups: small ones make a file slow to read.
        while table.num_rows - start >= (1 if is_large else self._group_rows):
            start += self._write_group("", table, start)
        if start < table.num_rows:
            self._batches = table.slice(start).to_batches()
            self._rows = table.num_rows - start
            self._bytes = sum(batch.nbytes for batch in self._batches)

    def _write_partitions(self, table: pa.Table) -> None:
        for folder, part in split(table, self._partition_by):
            start = 0
            while start < part.num_rows:
                start += self._write_group(folder, part, start)

    def _finish_files(self) -> None:
        table = self._without_untyped(self.take_table())
        self._write_partitions(table)
        if not self._files and not self._segments.count:
            # Not beside directories, where readers expect no files: in that of NULL.
            self._open_file(*self._without_rows(table.schema))
        self._close_files()

    def _without_rows(self, schema: pa.Schema) -> tuple[str, pa.Schema]:
        """Return directory and schema of the file of a result that has no rows."""
        names = self._partition_by
        if not names:
            return "", schema
        kept = [field for field in schema if field.name not in names]
        return "/".join(f"{_escaped(name)}={_NULL}" for name in names), pa.schema(kept)

    def _close_files(self) -> None:
        for folder in list(self._files):
            self._close_file(folder)

    def _without_untyped(self, table: pa.Table) -> pa.Table:
        """Return a table without columns that may get another type, where they may."""
        if not self._gives_schema:
            return table
        known = [each.name for each in table.schema if not pa.types.is_null(each.type)]
        return table.select(known) if known else table

    def _abandon(self) -> None:
        files, self._files = self._files, {}
        self._batches.clear()
        for file in files.values():
            # What a full disk did not take is not needed.
            with contextlib.suppress(OSError):
                file.writer.close()

    def _write_group(self, folder: str, table: pa.Table, start: int) -> int:
        """Write one row group into the present file of a directory; return its rows."""
        if self._schema is not None and not table.schema.equals(self._schema):
            if self._gives_schema:
                self._close_files()
                self._schema = None
                return self._write_group(folder, table, start)
            raise RecordTypeError(
                "record",
                "a column that was None got a type after its file was begun: "
                f"{table.schema}",
                "Give ParquetSink a schema= that has its type.",
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
        self._compare(schema)
        path = self._segments.begin(folder)
        try:
            writer = pq.ParquetWriter(path, _told_spark(schema))
        except pa.ArrowNotImplementedError as error:
            raise RecordTypeError(
                "record",
                f"a column has a type that Parquet has not ({error}): {schema}",
                "Convert its values before, or leave it out with drop().",
            ) from error
        file = _OpenFile(path, writer)
        self._files[folder] = file
        self._schema = schema
        return file

    def _compare(self, schema: pa.Schema) -> None:
        """Warn, before the first file, if those that it is added to have other columns."""
        joined = self._segments.take_joined()
        if joined is None:
            return
        try:
            there = pq.read_schema(joined)
        except (pa.ArrowInvalid, OSError):
            # No Parquet, or gone by now: its readers tell.
            return
        if differences := _differences(there, schema):
            self._segments.warn_of_columns(joined, differences)

    def _close_file(self, folder: str) -> None:
        file = self._files.pop(folder)
        file.writer.close()
        self._segments.finish(file.path)


def _differences(there: pa.Schema, here: pa.Schema) -> list[str]:
    """Say in which columns two files differ, by the types that Spark has."""
    found = [f"no column {name!r}" for name in there.names if name not in here.names]
    for field in here:
        if field.name not in there.names:
            found.append(f"a new column {field.name!r}")
            continue
        other = there.field(field.name)
        kinds = [_spark_text(each.type) for each in (field, other)]
        if kinds[0] != kinds[1] and "void" not in kinds:
            found.append(f"column {field.name!r} is {field.type}, and was {other.type}")
    return found


def _spark_text(kind: pa.DataType) -> str:
    return str(spark_type(kind, lambda other, _: str(other)))


# Where Spark looks for its own types in a file.
_SPARK_TYPES: Final = "org.apache.spark.sql.parquet.row.metadata"


def _told_spark(schema: pa.Schema) -> pa.Schema:
    """Return a schema that tells Spark's types, where Parquet's would be read as others.

    Spark would take durations for numbers, and variants for structs.
    """
    kinds = chain(*map(types_in, schema.types))
    if not any(pa.types.is_duration(kind) or _is_variant(kind) for kind in kinds):
        return schema
    told = msgspec.json.encode(spark_type(pa.struct(list(schema)), _in_file))
    return schema.with_metadata({**(schema.metadata or {}), _SPARK_TYPES: told})


def _is_variant(kind: pa.DataType) -> bool:
    if not pa.types.is_struct(kind) or kind.num_fields != 2:
        return False
    return b"variant" in (kind.field(1).metadata or {})


def _in_file(kind: pa.DataType, where: str) -> str | None:
    """Return as what Spark reads from Parquet what it does not write so itself."""
    return None if pa.types.is_struct(kind) else _UNSIGNED.get(str(kind), "string")


def spark_type(
    kind: pa.DataType, other: Callable[[pa.DataType, str], Any], where: str = ""
) -> Any:
    """Return how Spark writes a type as JSON.

    Args:
        kind: The type of a column.
        other: Is asked for types that Spark has not, and for those of geometries and
            geographies, by type and column; None for a struct as it is.
        where: The column.
    """
    types = pa.types

    def inner(field: pa.Field, name: str) -> Any:
        return spark_type(field.type, other, f"{where}.{name}" if where else name)

    if types.is_struct(kind):
        if _is_variant(kind):
            return "variant"
        marks = kind.field(kind.num_fields - 1).metadata if kind.num_fields else None
        if marks and (found := other(kind, where)) is not None:
            return found
        fields = [
            {
                "name": field.name,
                "type": inner(field, field.name),
                "nullable": field.nullable,
                "metadata": {},
            }
            for field in kind
        ]
        return {"type": "struct", "fields": fields}
    if types.is_map(kind):
        return {
            "type": "map",
            "keyType": inner(kind.key_field, "key"),
            "valueType": inner(kind.item_field, "value"),
            "valueContainsNull": kind.item_field.nullable,
        }
    if types.is_list(kind) or types.is_large_list(kind):
        return {
            "type": "array",
            "elementType": inner(kind.value_field, "element"),
            "containsNull": kind.value_field.nullable,
        }
    if types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    return _SPARK_NAMES.get(str(kind)) or other(kind, where)


_SPARK_NAMES: Final = {
    "binary": "binary",
    "bool": "boolean",
    "date32[day]": "date",
    "double": "double",
    "duration[us]": "interval day to second",
    "float": "float",
    "int16": "short",
    "int32": "integer",
    "int64": "long",
    "int8": "byte",
    "large_binary": "binary",
    "large_string": "string",
    "null": "void",
    "string": "string",
    "time64[us]": "time(6)",
}
# As Spark reads these where it finds them in Parquet.
_UNSIGNED: Final = {
    "uint16": "integer",
    "uint32": "long",
    "uint64": "decimal(20,0)",
    "uint8": "short",
}


@dataclass(slots=True)
class _OpenFile:
    path: Path
    writer: pq.ParquetWriter
    rows: int = 0


class ParquetSink:
    """Writes records into a directory of Parquet files.

    Files are written into a hidden directory next to it and never seen incomplete. One
    job at a time writes to a path. Times are microseconds, in UTC if they have a zone.

    Guarantee: exactly once. In a job that takes checkpoints, each subtask finishes a file
    before every checkpoint, and the job moves the files of a checkpoint into the
    directory when the checkpoint is complete. So the rows of an endless job become
    visible, and a crash neither loses nor repeats any. The last checkpoint adds a file
    ``_SUCCESS``. Without them, the hidden directory becomes the directory when the job
    succeeds: readers see what was there before, or all new files with ``_SUCCESS``, and
    a job that fails or is cancelled changes nothing. If the file system cannot exchange
    two directories, there is none for a moment. The next job that writes there removes
    the leftovers of a crash, unless another job can resume from them.

    Args:
        path: The directory. It must not exist yet; missing parents are created. A
            symbolic link is followed.
        schema: The files' schema; None for the known types of the records' fields, from
            a source with columns or a declared class, or else for the schema of the
            first records of a subtask.
        mode: ``"error"`` rejects a directory that exists, ``"overwrite"`` replaces it
            when the job commits for the first time, ``"append"`` adds files to it. A job
            that resumes from a checkpoint adds to what it has written, in all modes.
            Without checkpoints, the files of ``"append"`` appear one after another when the
            job succeeds; the next job that appends removes those that a crash has left.
        rows_per_file: The maximum number of rows per file; None for one file per subtask,
            or per subtask and checkpoint.
        row_group_rows: How many rows are collected before they are written; fewer, if
            they are 64 MiB before.
        partition_by: Columns whose values name directories, such as ``day=2024-05-01``,
            outermost first, instead of being in files: texts, integers, bools or dates.
            Readers that want some of the values open only these directories. As in
            Spark's own files, Spark reads an empty text as None and a bool as the text
            ``"true"`` or ``"false"``: give the columns to ``spark.read.schema(...)``. A
            result without a record, whose columns are known, is a file without rows in
            the directory of NULL: these columns have no type for Spark then.
        follow: Whether the directory has a log of its commits, by which
            ``spark.readStream.format("aiomailbox")`` follows it, commit by commit:
            ``"keep"`` keeps all files, ``"delete"`` deletes the files of commits that all
            its readers have passed, except the newest.
        spark_log: Whether the directory has the log of Spark's own streaming writers, so
            that ``spark.read.parquet`` and ``spark.readStream.parquet`` see the files of
            a commit all at once, too. It has absolute paths: the directory cannot be
            moved, and only Spark uses the log.

    Raises:
        InvalidArgumentError: If an argument has an invalid value.
        WrongTypeError: If ``path`` is not a path, or ``schema`` not an Arrow schema.

    Concept:
        Flink, ``FileSink``.

    Example:
        >>> ParquetSink("out/delays")
        <ParquetSink 'out/delays'>
    """

    guarantee = Guarantee.EXACTLY_ONCE
    takes_columns = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        schema: pa.Schema | None = None,
        mode: WriteMode = "error",
        rows_per_file: int | None = None,
        row_group_rows: int = ROW_GROUP_ROWS,
        partition_by: str | Sequence[str] = (),
        follow: Following | None = None,
        spark_log: bool = False,
    ) -> None:
        check_choice(follow, "follow", "keep", "delete", None)
        if follow == "delete" and spark_log:
            raise InvalidArgumentError(
                "spark_log",
                'Spark\'s log names files that follow="delete" deletes',
                'Use follow="keep".',
            )
        target = DirectoryTarget.of(path, mode)
        check_suffix(target.path, "parquet")
        self._target = replace(target, follow=follow, has_spark_log=spark_log)
        check_type(
            schema, pa.Schema | None, "schema", "Use pyarrow.schema([...]).", "a schema"
        )
        if rows_per_file is not None:
            check_count(rows_per_file, "rows_per_file")
        check_count(row_group_rows, "row_group_rows")
        self._schema = schema
        self._fields: RecordFields | None = None
        self._rows_per_file = rows_per_file
        self._row_group_rows = row_group_rows
        self._partition_by = check_names(
            (partition_by,) if isinstance(partition_by, str) else partition_by,
            "partition_by",
        )
        if schema is not None:
            check_columns(schema, self._partition_by)

    def for_fields(self, fields: RecordFields | None) -> ParquetSink:
        """Return the same sink for records whose fields are known so far."""
        sink = copy(self)
        sink._fields = fields
        return sink

    @property
    def file_like(self) -> Path:
        """A path like those of the files."""
        return self._target.path / "part-0.parquet"

    def create_writer(self, context: RuntimeContext) -> ParquetWriter:
        """Create the writer of one subtask."""
        return ParquetWriter(
            self._target.segments(context, ".parquet"),
            schema=self._schema,
            rows_per_file=self._rows_per_file,
            row_group_rows=self._row_group_rows,
            partition_by=self._partition_by,
            fields=self._fields,
            is_first=context.subtask_index == 0,
        )

    def create_committer(
        self, context: CommitterContext
    ) -> GrowingCommitter | WholeCommitter:
        """Create the committer."""
        return self._target.create_committer(context)

    def __repr__(self) -> str:
        return f"<ParquetSink {str(self._target.path)!r}>"
