"""Results as a Spark DataFrame."""

from __future__ import annotations

import atexit
import shutil
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet

from aiomailbox.checkpoint.savepoint import Savepoint
from aiomailbox.columnar.encode import BatchMaker, canonical_in_micros
from aiomailbox.columnar.types import canonical_type, is_rare_list
from aiomailbox.connectors.spark.frame_checks import check_session
from aiomailbox.connectors.spark.jobs import (
    explaining_loss,
    is_connect_session,
    url_for_spark,
)
from aiomailbox.errors import (
    InvalidArgumentError,
    TargetExistsError,
    UnsupportedColumnError,
    UsageError,
)
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
    if not values:
        return spark.createDataFrame([], schema)
    columns = None
    if schema is not None:
        schema, columns = declared_schema(spark, schema)
    maker = BatchMaker(columns, needs_columns=True)
    table = pa.Table.from_batches(maker.batches(ListRun(values)), maker.schema)
    return spark.createDataFrame(table, schema or spark_schema(table.schema))


def declared_schema(spark: Any, schema: Any) -> tuple[Any, pa.Schema]:
    """Return a schema that the user gives as Spark's and as Arrow's; blocks.

    Args:
        spark: The session, which reads text.
        schema: A StructType or text.

    Raises:
        SparkJobError: If Spark's Java process has ended.
    """
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    if not isinstance(schema, StructType):
        with explaining_loss(spark, "a schema was read"):
            schema = spark.createDataFrame([], schema).schema
    return schema, to_arrow_schema(schema, timezone="UTC")


def spark_schema(schema: pa.Schema) -> Any:
    """Return the Spark schema of an Arrow schema.

    Spark itself would take times without a zone for TIMESTAMP.

    Raises:
        UnsupportedColumnError: If Spark has no type for a column; names it.
    """
    from pyspark.sql.types import StructField, StructType

    return StructType(
        [
            StructField(field.name, _spark_type(field.type, field.name), field.nullable)
            for field in schema
        ]
    )


def kind_of_spark(kind: pa.DataType) -> pa.DataType:
    """Return a type that Spark has for the values of a column.

    Without one, as for unsigned integers, it is that of the values in Python.
    """
    kind = canonical_in_micros(kind)
    if is_rare_list(kind):
        return pa.list_(kind_of_spark(kind.value_type))
    if pa.types.is_decimal(kind) and kind.precision > _DIGITS_MAX >= kind.scale:
        return pa.decimal128(_DIGITS_MAX, kind.scale)
    try:
        _spark_type(kind, "")
    except UnsupportedColumnError:
        return canonical_type(kind) or kind
    return kind


def _spark_type(kind: pa.DataType, where: str) -> Any:
    from pyspark.sql import types as spark

    if pa.types.is_timestamp(kind):
        return spark.TimestampType() if kind.tz else spark.TimestampNTZType()
    if pa.types.is_decimal(kind):
        return spark.DecimalType(kind.precision, kind.scale)
    if pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        marks = fields[-1].metadata or {} if fields else {}
        if b"variant" in marks:
            return spark.VariantType()
        for mark, special in ((b"geometry", "Geometry"), (b"geography", "Geography")):
            if mark in marks:
                return getattr(spark, f"{special}Type")(int(marks[b"srid"]))
        return spark.StructType(
            [
                spark.StructField(
                    field.name,
                    _spark_type(field.type, f"{where}.{field.name}"),
                    field.nullable,
                )
                for field in fields
            ]
        )
    if pa.types.is_map(kind):
        return spark.MapType(
            _spark_type(kind.key_type, f"{where}.key"),
            _spark_type(kind.item_type, f"{where}.value"),
            kind.item_field.nullable,
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = _spark_type(kind.value_type, f"{where}.element")
        return spark.ArrayType(element, kind.value_field.nullable)
    name = _SIMPLE.get(str(kind))
    if name is None or not hasattr(spark, name):
        raise UnsupportedColumnError(
            f"column {where!r}: Spark has no type for {kind}. Convert it before."
        )
    return getattr(spark, name)()


# Of decimals in Spark.
_DIGITS_MAX: Final = 38
_SIMPLE = {
    "binary": "BinaryType",
    "bool": "BooleanType",
    "date32[day]": "DateType",
    "double": "DoubleType",
    "duration[us]": "DayTimeIntervalType",
    "float": "FloatType",
    "int16": "ShortType",
    "int32": "IntegerType",
    "int64": "LongType",
    "int8": "ByteType",
    "large_binary": "BinaryType",
    "large_string": "StringType",
    "null": "NullType",
    "string": "StringType",
    "time64[us]": "TimeType",
}


# Results of any size as a Spark DataFrame: few in memory, many in files.


# What is collected before it is written; up to so much is never written.
SEGMENT_BYTES: Final = 64 * 1024 * 1024


_ROW_GROUP_ROWS: Final = 65_536


async def dataframe_from_runs(
    spark: Any,
    runs: AsyncIterator[Run],
    *,
    schema: Any = None,
    path: Any = None,
    segment_bytes: int = SEGMENT_BYTES,
) -> Any:
    """Return a Spark DataFrame of runs, of which a bounded part is in memory.

    Args:
        spark: The session.
        runs: The results.
        schema: The DataFrame's schema, as a StructType or as text; None takes that of
            the first records.
        path: A directory that does not exist, in storage that Spark's executors see;
            None for memory, and where results are many, for files of this process.
        segment_bytes: How much is collected before it is written, as Arrow holds it.

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
        schema, columns = await run_in_thread(declared_schema, spark, schema)
    maker = BatchMaker(columns, kind_of_spark, needs_columns=True)
    segments = _Segments(spark, path)
    waiting: list[pa.RecordBatch] = []
    size_bytes = 0
    async for run in runs:
        for batch in maker.batches(run):
            waiting.append(batch)
            size_bytes += batch.nbytes
        if size_bytes >= segment_bytes:
            await run_in_thread(segments.write, waiting)
            waiting, size_bytes = [], 0
    if maker.schema is None:
        raise InvalidArgumentError(
            "schema", "there are no records to take it from", "Give schema=."
        )
    wanted = spark_schema(maker.schema) if schema is None else schema
    if path is None and not segments.count:
        with explaining_loss(spark, "a DataFrame was made"):
            table = _table(waiting, maker.schema)
            return await run_in_thread(_in_memory, spark, table, wanted)
    await run_in_thread(segments.write, waiting)
    with explaining_loss(spark, "a DataFrame was made"):
        return await run_in_thread(segments.read, wanted)


async def dataframe_from_state(
    spark: Any, savepoint: Savepoint, uid: str, name: str, *, path: Any = None
) -> Any:
    """Return what a state holds in a savepoint or checkpoint, as a DataFrame.

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


class _Segments:
    """Parquet files that become a directory when the last one is written."""

    def __init__(self, spark: Any, path: Any) -> None:
        self.count = 0
        self._spark = spark
        self._path = None if path is None else local_path(path, "path").absolute()
        if self._path is not None and self._path.exists():
            raise TargetExistsError(f"{str(self._path)!r} exists already")
        self._draft: Path | None = None

    def write(self, batches: list[pa.RecordBatch]) -> None:
        """Write a file; blocks."""
        folder = self._draft or self._begin()
        batches = [batch for batch in batches if batch.num_rows]
        if not batches:
            return
        # A column without a type so far has no values: Spark fills them in.
        known = pa.schema(
            [field for field in batches[-1].schema if not pa.types.is_null(field.type)]
        )
        table = pa.Table.from_batches(
            [batch.select(known.names).cast(known) for batch in batches], known
        )
        file = folder / f"part-{self.count:05d}.parquet"
        parquet.write_table(table, file, row_group_size=_ROW_GROUP_ROWS)
        self.count += 1

    def read(self, schema: Any) -> Any:
        """Let the files be seen, and return them as a DataFrame; blocks."""
        draft = self._draft or self._begin()
        if self._path is not None:
            draft.rename(self._path)
        place = self._path or draft
        return self._spark.read.schema(schema).parquet(url_for_spark(place))

    def _begin(self) -> Path:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Spark does not look at names that begin with a dot.
            self._draft = self._path.with_name(f".{self._path.name}.inprogress")
            # What a run that failed, or was killed, has left are other results.
            shutil.rmtree(self._draft, ignore_errors=True)
        elif _is_local(self._spark):
            folder = ScratchDirectory()
            # DataFrames that are made of this one outlive it.
            atexit.register(folder.remove)
            self._draft = folder.path / "results"
        else:
            raise UsageError(
                "the results are too large for a message, and Spark's executors "
                "may be on other machines: pass to_spark(spark, path=...) a "
                "directory that they see"
            )
        self._draft.mkdir(exist_ok=True)
        return self._draft


def _in_memory(spark: Any, table: pa.Table, schema: Any) -> Any:
    if not table.num_rows:
        return spark.createDataFrame([], schema)
    return spark.createDataFrame(table, schema)


def _table(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches([batch.cast(schema) for batch in batches], schema)


def _is_local(spark: Any) -> bool:
    if is_connect_session(spark):
        return False
    return str(spark.sparkContext.master).startswith("local[") or (
        spark.sparkContext.master == "local"
    )
