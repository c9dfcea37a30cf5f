"""Results as a Spark DataFrame."""

from __future__ import annotations

import atexit
import shutil
import sys
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from aiomailbox.checkpoint.savepoint import Savepoint
from aiomailbox.columnar.encode import BatchMaker
from aiomailbox.connectors.directory import Segments
from aiomailbox.connectors.parquet import GROUP_BYTES, ParquetWriter
from aiomailbox.connectors.spark.frame_checks import check_session
from aiomailbox.connectors.spark.jobs import (
    explaining_loss,
    is_connect_session,
    url_for_spark,
)
from aiomailbox.connectors.spark.types import (
    arrow_columns,
    as_spark_schema,
    kind_of_spark,
    spark_schema,
)
from aiomailbox.errors import (
    InvalidArgumentError,
    RecordsRefusedError,
    TargetExistsError,
    UsageError,
)
from aiomailbox.operators.core.fields import RecordFields
from aiomailbox.operators.core.operator import Pending
from aiomailbox.policies.arguments import local_path
from aiomailbox.records.run import ListRun, Run
from aiomailbox.scratch import ScratchDirectory
from aiomailbox.threads import run_in_thread


async def dataframe_from_records(
    spark: Any, records: Iterable[Any], *, schema: Any = None
) -> Any:
    """Return a Spark DataFrame of records that this process holds.

    An aware datetime becomes a TIMESTAMP, a naive one a TIMESTAMP_NTZ.

    Args:
        spark: The session.
        records: NamedTuples, dicts, dataclasses, Structs, Rows, or Arrow batches.
        schema: The DataFrame's schema, as a StructType or as text; None takes that of
            the records.

    Raises:
        WrongTypeError: If ``spark`` is no session.
        InvalidArgumentError: If it was stopped, or there is neither a schema nor a
            record.
        RecordTypeError: If the records are not of one form, or not of the schema's; names
            the column.
        UnsupportedColumnError: If Spark has no type for a column; names it.
        SparkJobError: If Spark's Java process has ended.
    """
    check_session(spark)
    values = list(records)
    if not values and schema is None:
        raise InvalidArgumentError(
            "schema", "there are no records to take it from", "Give schema=."
        )
    with explaining_loss(spark, "a DataFrame was made"):
        return await run_in_thread(_create, spark, values, schema)


def _create(spark: Any, values: list[Any], schema: Any) -> Any:
    if schema is not None:
        schema = as_spark_schema(schema, spark)
    if not values:
        return spark.createDataFrame([], schema)
    columns = None if schema is None else arrow_columns(schema)
    maker = BatchMaker(columns, kind_of_spark, needs_columns=True)
    table = pa.Table.from_batches(maker.batches(ListRun(values)), maker.schema)
    return spark.createDataFrame(table, schema or spark_schema(table.schema))


# Results of any size as a Spark DataFrame: few in memory, many in files.


async def dataframe_from_runs(
    spark: Any,
    runs: AsyncIterator[Run],
    *,
    schema: Any = None,
    path: Any = None,
    segment_bytes: int = GROUP_BYTES,
    fields: RecordFields | None = None,
) -> Any:
    """Return a Spark DataFrame of runs, of which a bounded part is in memory.

    They are written as by `ParquetSink`, and what was written is read.

    Args:
        spark: The session.
        runs: The results.
        schema: The DataFrame's schema, as a StructType, text, an Arrow schema or a record
            class; None for what is known of the records' fields, or else for that of
            the first records.
        path: A directory that does not exist, in storage that Spark's executors see;
            None for memory, and where results are many, for files of this process.
        segment_bytes: How much is collected before it is written, as Arrow holds it.
        fields: What is known of the records' fields.

    Raises:
        WrongTypeError: If ``spark`` is no session.
        InvalidArgumentError: If it was stopped, or there is neither a schema nor a
            record.
        TargetExistsError: If there is something at the path.
        UsageError: If results are many, and Spark's executors may be on other machines.
        RecordTypeError: If the records are not of one form.
        UnsupportedColumnError: If Spark has no type for a column; names it.
        SparkJobError: If Spark's Java process has ended.
    """
    check_session(spark)
    columns = None
    if schema is not None:
        schema = await run_in_thread(as_spark_schema, schema, spark)
        columns = arrow_columns(schema)
    place = _Place(spark, path)
    writer = ParquetWriter(
        place,
        schema=columns,
        # Nothing is written before there are so many bytes.
        row_group_rows=sys.maxsize,
        fields=fields,
        kind_of=kind_of_spark,
        group_bytes=segment_bytes,
        gives_schema=True,
    )
    try:
        async for run in runs:
            try:
                await _awaited(writer.write_run(run))
            except RecordsRefusedError as refused:
                raise refused.errors[min(refused.errors)] from None
        found = writer.maker.expect()
        if found is None:
            raise InvalidArgumentError(
                "schema", "there are no records to take it from", "Give schema=."
            )
        wanted = spark_schema(found) if schema is None else schema
        if path is None and not place.count:
            with explaining_loss(spark, "a DataFrame was made"):
                table = writer.take_table()
                return await run_in_thread(_in_memory, spark, table, wanted)
        await _awaited(writer.flush(end_of_input=True))
    finally:
        await _awaited(writer.close())
    with explaining_loss(spark, "a DataFrame was made"):
        return await run_in_thread(place.read, wanted)


async def _awaited(pending: Pending) -> None:
    if pending is not None:
        await pending


async def dataframe_from_state(
    spark: Any, savepoint: Savepoint, uid: str, name: str, *, path: Any = None
) -> Any:
    """Return the contents of a state in a savepoint or checkpoint, as a DataFrame.

    Columns are those of `Savepoint.arrow`: ``key``, ``namespace`` where there is one, and
    ``value``.

    Args:
        spark: The session.
        savepoint: The savepoint.
        uid: The operator's uid, its id, or its name.
        name: The state's name.
        path: Where the rows become files; see `dataframe_from_runs`.

    Raises:
        StateError: If there is no such operator or state, or it cannot be read.
        WrongTypeError: If ``spark`` is no session.
        InvalidArgumentError: If it was stopped, or the state holds nothing.
        DamagedFileError: If a file is not what was written.
        UnsupportedColumnError: If Spark has no type for a column; names it.
        SparkJobError: If Spark's Java process has ended.

    Example:
        >>> import aiomailbox as am
        >>> savepoint = am.Savepoint("savepoints/1")  # doctest: +SKIP
        >>> df = await dataframe_from_state(
        ...     spark, savepoint, "totals", "sum"
        ... )  # doctest: +SKIP
    """
    batches = savepoint.arrow(uid, name)

    async def runs() -> AsyncIterator[Run]:
        while (batch := await run_in_thread(next, batches, None)) is not None:
            yield ListRun([batch])

    return await dataframe_from_runs(spark, runs(), path=path)


class _Place(Segments):
    """The directory of the files, which is made for the first one, and seen at the end."""

    def __init__(self, spark: Any, path: Any) -> None:
        self._spark = spark
        self._path = None if path is None else local_path(path, "path").absolute()
        if self._path is not None and self._path.exists():
            raise TargetExistsError(f"{str(self._path)!r} exists already")
        super().__init__(Path(), "part", ".parquet")
        self._is_made = False

    def begin(self, folder: str = "") -> Path:
        """Return the path of a new file."""
        if not self._is_made:
            self.directory = self._made()
        self._is_made = True
        return super().begin(folder)

    def read(self, schema: Any) -> Any:
        """Let the files be seen, and return them as a DataFrame; blocks."""
        if self._path is not None:
            self.directory.rename(self._path)
        place = self._path or self.directory
        return self._spark.read.schema(schema).parquet(url_for_spark(place))

    def _made(self) -> Path:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Spark does not look at names that begin with a dot.
            draft = self._path.with_name(f".{self._path.name}.inprogress")
            # What a run that failed, or was killed, has left are other results.
            shutil.rmtree(draft, ignore_errors=True)
        elif _is_local(self._spark):
            folder = ScratchDirectory()
            # DataFrames that are made of this one outlive it.
            atexit.register(folder.remove)
            draft = folder.path / "results"
        else:
            raise UsageError(
                "the results are too large for a message, and Spark's executors "
                "may be on other machines: pass to_spark(spark, path=...) a "
                "directory that they see"
            )
        draft.mkdir(exist_ok=True)
        return draft


def _in_memory(spark: Any, table: pa.Table, schema: Any) -> Any:
    if not table.num_rows:
        return spark.createDataFrame([], schema)
    return spark.createDataFrame(table, schema)


def _is_local(spark: Any) -> bool:
    if is_connect_session(spark):
        return False
    return str(spark.sparkContext.master).startswith("local[") or (
        spark.sparkContext.master == "local"
    )
