"""Results as Spark DataFrames, and in tables of Spark's catalog."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import shutil
import sys
from collections.abc import AsyncIterator, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

import pyarrow as pa
from pyarrow import parquet

from aiomailbox.checkpoint.savepoint import Savepoint
from aiomailbox.connectors.directory import (
    Segments,
    former_token_of,
    token_of,
)
from aiomailbox.connectors.parquet import GROUP_BYTES, ParquetWriter
from aiomailbox.connectors.spark.frame_checks import check_session, paths_of
from aiomailbox.connectors.spark.jobs import (
    explaining_loss,
    is_connect,
    is_one_process,
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
    SinkError,
    TargetExistsError,
    UsageError,
    WrongTypeError,
)
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.fields import RecordFields
from aiomailbox.operators.core.operator import Pending
from aiomailbox.operators.sinks.sink import CommitterContext, Guarantee
from aiomailbox.records.run import ListRun, Run
from aiomailbox.scratch import ScratchDirectory
from aiomailbox.signatures import explained, local_path
from aiomailbox.storage.local import make_directories
from aiomailbox.supervision import ThreadTurns, run_in_thread


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

    async def runs() -> AsyncIterator[Run]:
        yield ListRun(values)

    # They are in memory already.
    return await dataframe_from_runs(
        spark, runs(), schema=schema, segment_bytes=sys.maxsize
    )


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

    They are written as by `ParquetSink`, and what was written is read. Few stay in
    memory; many become files at ``path``, or of this process if there is none.
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
            raise TargetExistsError(
                f"{str(self._path)!r} exists already. Give another path, or remove it"
            )
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
        # The files of a server of Spark Connect are not this process's.
        elif is_one_process(self._spark) and not is_connect(self._spark):
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


# Results appended to a table of Spark, checkpoint by checkpoint.
#
# Theory of operation: writers stage Parquet files; when a checkpoint is complete, Spark reads
# its files and appends their rows to the table in one write. That write may be repeated:
# Spark's append does not report what was appended before. With a ledger column, each row
# holds the commit that added it, and a commit whose rows are already there is skipped.

_DONE_KEPT: Final = 16


@explained('Write SparkTableSink(spark, "table", stage="directory").')
class SparkTableSink:
    """Appends records to a table of Spark's catalog.

    Records are staged as Parquet files; with every checkpoint (or, without any, when
    the job has succeeded) Spark appends them in one write. A table that does not exist is
    created.

    Guarantee: Spark's append is not idempotent. With ``ledger=``, exactly once: a column
    of this name holds for each row the commit that added it, and after a crash the sink
    looks there for appends of which it is not certain. An append of which a crash has
    left only a part, which formats with a log (Delta Lake, Iceberg) exclude, is
    detected by its row count, and the job fails with an error that says what to delete.
    Without a ledger, at least once.

    Args:
        spark: The session, classic or Connect.
        table: The table's name, as ``"sales.delays"``.
        stage: A directory for staged files, in storage that Spark's executors and this
            process share.
        ledger: The name of the column for the commit that added a row; a table that
            exists needs it, of type string. None for no ledger.
        schema: The rows' schema; None for the known types of the records' fields, as in
            `ParquetSink`.

    Raises:
        WrongTypeError: If an argument has the wrong type.
        InvalidArgumentError: If the session was stopped, or a name is empty.

    Example:
        >>> from aiomailbox.connectors.spark import SparkTableSink
        >>> SparkTableSink(spark, "delays", stage="stage")  # doctest: +SKIP
        <SparkTableSink 'delays'>
    """

    stays_in_parent = True

    def __init__(
        self,
        spark: Any,
        table: str,
        *,
        stage: str | os.PathLike[str],
        ledger: str | None = None,
        schema: pa.Schema | None = None,
    ) -> None:
        check_session(spark)
        for name, value in (("table", table), ("ledger", ledger)):
            if value is None and name == "ledger":
                continue
            if not isinstance(value, str):
                raise WrongTypeError(name, f"{value!r} is not a name", "Give a str.")
            if not value:
                raise InvalidArgumentError(name, "it is empty", "Give a name.")
        if schema is not None and not isinstance(schema, pa.Schema):
            raise WrongTypeError(
                "schema", f"{schema!r} is not a schema", "Use pyarrow.schema([...])."
            )
        if schema is not None and ledger in schema.names:
            raise InvalidArgumentError(
                "ledger", f"the records have a column {ledger!r}", "Use another name."
            )
        self._spark = spark
        self._table = table
        self._stage = Path(stage).absolute()
        self._ledger = ledger
        self._schema = schema
        self._fields: RecordFields | None = None

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee for records that the job processes again after a failure."""
        return (
            Guarantee.AT_LEAST_ONCE if self._ledger is None else Guarantee.EXACTLY_ONCE
        )

    @property
    def file_like(self) -> Path | None:
        """A path like those of the table's files; None if they are not known."""
        with contextlib.suppress(Exception):
            return Path(paths_of(self._spark.table(self._table))[0]) / "part-0.parquet"
        return None

    def for_fields(self, fields: RecordFields | None) -> SparkTableSink:
        """Return the same sink for records whose fields are known so far."""
        sink = object.__new__(SparkTableSink)
        sink.__dict__.update(self.__dict__, _fields=fields)
        return sink

    def create_writer(self, context: RuntimeContext) -> ParquetWriter:
        """Create the writer of one subtask."""
        token = token_of(context)
        prefix = f"part-{context.subtask_index:05d}-{context.attempt}"
        # With the execution: attempts are counted from the beginning in each.
        prefix = f"{prefix}-{context.execution_id[:12]}"
        return ParquetWriter(
            Segments(self._stage / token, prefix, ".parquet"),
            schema=self._schema,
            fields=self._fields,
            is_first=context.subtask_index == 0,
        )

    def create_committer(self, context: CommitterContext) -> _TableCommitter:
        """Create the committer."""
        table = _Table(self._spark, self._table, self._ledger)
        return _TableCommitter(table, self._stage, context)

    def __repr__(self) -> str:
        return f"<SparkTableSink {self._table!r}>"

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a SparkTableSink cannot be pickled: its session lives in this process. "
            "Pickle the pipeline (am.pipeline) and attach the sink where it runs."
        )


class _Table:
    """The table, as a commit needs it; all calls block."""

    def __init__(self, spark: Any, name: str, ledger: str | None) -> None:
        self.spark = spark
        self._name = name
        self._ledger = ledger

    def check(self) -> None:
        """Check that a table that is there has the ledger."""
        if self._ledger is None or not self.spark.catalog.tableExists(self._name):
            return
        kinds = dict(self.spark.table(self._name).dtypes)
        if kinds.get(self._ledger) != "string":
            raise SinkError(
                f"table {self._name!r} has no column {self._ledger!r} of type string for "
                f"the ledger: ALTER TABLE {self._name} ADD COLUMN {self._ledger} STRING, "
                "or leave ledger= out"
            )

    def append(self, files: list[Path], commit: str) -> None:
        """Append the rows of files, unless they are there."""
        from pyspark.sql import functions as sf

        # All files in one write: Spark's append is one commit of the table.
        df = self.spark.read.parquet(*map(url_for_spark, files))
        if self._ledger is not None:
            if self._ledger in df.columns:
                raise SinkError(
                    f"the records have a column {self._ledger!r}, which is the ledger's: "
                    "give it another name"
                )
            if self._has(commit, sum(map(_rows_of, files))):
                return
            df = df.withColumn(self._ledger, sf.lit(commit))
        df.write.mode("append").saveAsTable(self._name)

    def has_any(self, commit: str) -> bool:
        """Say whether the ledger knows a commit."""
        return self._ledger is not None and self._count(commit) > 0

    def _count(self, commit: str) -> int:
        from pyspark.sql import functions as sf

        if not self.spark.catalog.tableExists(self._name):
            return 0
        table = self.spark.table(self._name)
        return int(table.where(sf.col(self._ledger) == commit).count())

    def _has(self, commit: str, rows: int) -> bool:
        there = self._count(commit)
        # Fewer than were written, so a part of the write was lost, or removed.
        if there not in {0, rows}:
            raise SinkError(
                f"table {self._name!r} has {there} of {rows} rows of commit "
                f"{commit!r}: an append was interrupted. DELETE those WHERE "
                f"{self._ledger} = '{commit}' and resume from the checkpoint"
            )
        return bool(there)


class _TableCommitter:
    """Appends what a checkpoint has; see `SparkTableSink`."""

    def __init__(self, table: _Table, stage: Path, context: CommitterContext) -> None:
        self._table = table
        self._context = context
        self._folder = stage / token_of(context)
        former = former_token_of(context)
        self._folders = {self._folder, stage / former} if former else {self._folder}
        self._turns = ThreadTurns()

    async def begin(self, *, restored: bool) -> None:
        """Check the table, and make the staging directory."""
        await self._turns.run(partial(self._begin, restored))

    async def commit(
        self, committables: list[Any], *, checkpoint_id: int, is_final: bool
    ) -> None:
        """Append the rows of staged files."""
        if committables:
            await self._turns.run(
                partial(self._commit, sorted(committables), checkpoint_id)
            )

    async def recover(self) -> None:
        """Remove what was staged and is in no checkpoint."""
        await self._turns.run(self._clear)

    async def end(self, *, succeeded: bool) -> None:
        """Remove what is staged, unless another execution may commit it."""
        if succeeded or not self._context.is_resumable:
            await self._turns.run(self._remove)

    def _begin(self, restored: bool) -> None:
        with explaining_loss(self._table.spark, "a table was looked up"):
            self._table.check()
        if not restored:
            self._remove()
        try:
            make_directories(self._folder)
        except OSError as error:
            raise SinkError(f"{str(self._folder)!r} cannot be made: {error}") from error

    def _commit(self, names: list[str], checkpoint_id: int) -> None:
        # Names of files never come again, so this names these rows.
        digest = hashlib.sha256("\0".join(names).encode()).hexdigest()[:16]
        # Of those who staged them, which may be an earlier execution of the job.
        folder = self._folder.parent / names[0].partition("/")[0]
        commit = f"{folder.name}-{digest}"
        files = [folder.parent / name for name in names]
        done = folder / f".{checkpoint_id:020d}-{digest}.done"
        # Told by a file of ours where the table has no ledger.
        if not done.exists():
            with explaining_loss(self._table.spark, "rows were appended to a table"):
                if all(file.exists() for file in files):
                    self._table.append(files, commit)
                elif not self._table.has_any(commit):
                    raise SinkError(
                        f"files that were staged for commit {commit!r} are gone. "
                        "Their records are lost: resume from an older checkpoint, "
                        "or start without one."
                    )
            # Before the files go: without both nothing would say that it was done.
            if folder.is_dir():
                done.touch()
        for file in files:
            file.unlink(missing_ok=True)
        # Those that may be committed again are among the last.
        for old in sorted(folder.glob(".*.done"))[:-_DONE_KEPT]:
            old.unlink()

    def _remove(self) -> None:
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def _clear(self) -> None:
        for folder in self._folders:
            for file in folder.glob("part-*"):
                file.unlink()


def _rows_of(file: Path) -> int:
    return int(parquet.read_metadata(file).num_rows)
