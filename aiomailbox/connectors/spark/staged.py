"""A DataFrame written once to Parquet files, which are read without Spark.

Theory of operation: Spark writes the rows into a directory of their own below the stage's;
then a manifest that names the files appears beside it, in one step. Rows without a
manifest were left by a crash, and the next write removes them. What was staged never
changes, so a position is a file and a row of it, and reading again needs no Spark.

Rows that are there already are read only if something names them: a position, or the
directory alone. A DataFrame does not: the same plan over files that were replaced, or over
other local rows, has other rows.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyarrow import parquet

from aiomailbox.connectors.files.parquet import batches_from
from aiomailbox.connectors.spark.frame_checks import plan_digest
from aiomailbox.connectors.spark.jobs import url_for_spark
from aiomailbox.errors import (
    DamagedFileError,
    InvalidArgumentError,
    SourceChangedError,
    UnsupportedColumnError,
)
from aiomailbox.storage.local import Disk, sync_directory

_MANIFEST: Final = "_aiomailbox.json"
_VERSION: Final = 1
_ROWS: Final = "rows-"


class _File(msgspec.Struct):
    name: str
    rows: int


class _Manifest(msgspec.Struct):
    version: int
    identity: str
    plan: str
    schema: str
    files: list[_File]


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows that were staged.

    Attributes:
        identity: Names these rows, and no others.
        schema: The DataFrame's schema.
        files: The files, in the order of Spark's partitions.
        rows: How many rows there are.
        plan: The digest of the DataFrame's plan; see `plan_digest`.
    """

    identity: str
    schema: Any
    files: tuple[Path, ...]
    rows: int
    plan: str

    def batches(
        self, index: int, row: int, batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Give a file's rows from a row on."""
        from pyspark.sql.pandas.types import to_arrow_schema

        columns = to_arrow_schema(self.schema, timezone="UTC")
        path = self.files[index]
        try:
            # Spark writes timestamps of 96 bits by default.
            with parquet.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
                for _, batch in batches_from(file, row, batch_rows):
                    yield _as_declared(batch, columns)
        except (FileNotFoundError, pa.ArrowInvalid) as error:
            raise DamagedFileError(str(path), str(error)) from error


class Stage:
    """Where a DataFrame is staged."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # The identity of what was written here through this object.
        self._written = ""

    def find(self) -> StagedRows | None:
        """Return what is staged here, whatever it is; None if nothing is."""
        from pyspark.sql.types import StructType

        path = self.directory / _MANIFEST
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            manifest = msgspec.json.decode(content, type=_Manifest)
        except msgspec.MsgspecError as error:
            raise DamagedFileError(str(path), str(error)) from error
        folder = self.directory / f"{_ROWS}{manifest.identity}"
        return StagedRows(
            manifest.identity,
            StructType.fromJson(msgspec.json.decode(manifest.schema)),
            tuple(folder / file.name for file in manifest.files),
            sum(file.rows for file in manifest.files),
            manifest.plan,
        )

    def rows(self, df: Any, identity: str) -> StagedRows:
        """Return the rows of a DataFrame, which Spark writes here if nothing is staged.

        Blocks, in a thread whose jobs are tagged.
        """
        staged = self.find()
        if staged is not None:
            if df is not None:
                self._check(staged, df, identity)
            return staged
        if identity:
            raise SourceChangedError(
                f"nothing is staged in {str(self.directory)!r}, but the position to "
                "resume from is in rows that were there. Bring them back, or start anew."
            )
        if df is None:
            raise nothing_staged(self.directory)
        return self._write(df)

    def _check(self, staged: StagedRows, df: Any, identity: str) -> None:
        """Check that the rows that are staged are those that are asked for."""
        place = str(self.directory)
        if staged.plan != plan_digest(df):
            raise SourceChangedError(
                f"{place!r} holds the rows of another DataFrame: its plan or schema was "
                "different. Give another directory, or delete this one."
            )
        if staged.identity in {identity, self._written}:
            return
        raise SourceChangedError(
            f"{place!r} holds rows that were staged before, and the plan of the DataFrame "
            "does not show whether these are still its rows. To read them, write "
            f"SparkSource.from_stage({place!r}); to stage others, give another "
            "directory, or delete this one."
        )

    def _write(self, df: Any) -> StagedRows:
        self.directory.mkdir(parents=True, exist_ok=True)
        # No manifest names them, so they are never read.
        for left in self.directory.glob(f"{_ROWS}*"):
            shutil.rmtree(left, ignore_errors=True)
        identity = uuid.uuid4().hex
        folder = self.directory / f"{_ROWS}{identity}"
        df.write.parquet(url_for_spark(folder))
        # Files are named by their partitions, those of empty ones may be missing.
        files = [
            _File(path.name, parquet.read_metadata(path).num_rows)
            for path in sorted(folder.glob("part-*.parquet"))
        ]
        # On another machine Spark has written to a disk of its own, without an error.
        if not (folder / "_SUCCESS").exists():
            raise SourceChangedError(
                f"Spark has written the rows, and {str(folder)!r} is empty: its "
                "executors do not see the same storage as this process"
            )
        for file in files[:1]:
            _check_whole(df.schema, parquet.read_schema(folder / file.name))
        manifest = _Manifest(
            _VERSION, identity, plan_digest(df), df.schema.json(), files
        )
        # It appears with its content, or not at all.
        Disk().write(self.directory / _MANIFEST, msgspec.json.encode(manifest))
        sync_directory(self.directory)
        self._written = identity
        found = self.find()
        assert found is not None, "it was written just now"
        return found


def nothing_staged(directory: Path) -> InvalidArgumentError:
    """Return the error that says so."""
    return InvalidArgumentError(
        "path",
        f"nothing is staged in {str(directory)!r}",
        "Stage it first, with SparkSource(df, stage=path).",
    )


def check_stageable(schema: Any) -> None:
    """Check that Spark can write all columns to Parquet."""
    from pyspark.sql.types import StructType

    from aiomailbox.connectors.spark.types import is_user_type, nested_types

    if not schema.fields:
        raise UnsupportedColumnError(
            "a DataFrame without columns cannot be staged: Parquet would keep no rows of "
            "it. Select a column, or read without stage=."
        )
    for where, kind in nested_types(schema):
        is_empty = isinstance(kind, StructType) and not kind.fields
        if is_empty or type(kind).__name__ in _UNWRITABLE or is_user_type(kind):
            raise UnsupportedColumnError(
                f"column {'.'.join(where)!r} of type {kind.simpleString()} cannot be "
                "staged: Spark cannot write it to Parquet. Cast it, or read without stage=."
            )


def _check_whole(schema: Any, written: pa.Schema) -> None:
    """Check that the values of variants are not spread over columns of a file."""
    from aiomailbox.connectors.spark.types import nested_types

    for where, kind in nested_types(schema):
        if type(kind).__name__ != "VariantType":
            continue
        if "typed_value: " in str(written.field(where[0]).type):
            raise UnsupportedColumnError(
                f"column {'.'.join(where)!r} of type variant cannot be read from a stage: "
                "Spark has shredded its values. Set "
                "spark.sql.variant.writeShredding.enabled to false, or read without "
                "stage=."
            )


_UNWRITABLE: Final = frozenset(
    {
        "CalendarIntervalType",
        "GeographyType",
        "GeometryType",
        "NullType",
        "TimeType",
    }
)


def _as_declared(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the types that Spark's have in Arrow."""
    if batch.schema.equals(schema):
        return batch
    columns = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
