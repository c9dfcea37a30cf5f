"""A Spark DataFrame as a source."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Literal, NoReturn, overload

from aiomailbox.connectors.spark.frame_checks import checked_schema, quoted, reads
from aiomailbox.connectors.spark.frame_source import RowsAsRecords
from aiomailbox.connectors.spark.jobs import is_connect, master_of
from aiomailbox.connectors.spark.reader import SparkReader, SparkSplit
from aiomailbox.connectors.spark.reading import ReadPlan, ReadWay
from aiomailbox.connectors.spark.shipped import new_credentials
from aiomailbox.connectors.spark.staged import (
    Stage,
    check_stageable,
    nothing_staged,
)
from aiomailbox.errors import (
    AioMailboxError,
    InvalidArgumentError,
    UsageError,
    WrongTypeError,
)
from aiomailbox.exchange.remote.handshake import is_loopback
from aiomailbox.operators.sources.source import (
    Boundedness,
    EnumeratorContext,
    ReaderContext,
    StaticEnumerator,
)
from aiomailbox.signatures import check_count, explained, local_path
from aiomailbox.typevars import OutT

_LOOPBACK: Final = "127.0.0.1"


@explained(
    columns=' Select them before: SparkSource(df.select("a", "b")).',
    path=" Leave it out: all columns come as Arrow batches, user-defined types too.",
    stage_name=' To read staged rows, write SparkSource.from_stage("directory").',
)
class SparkSource(RowsAsRecords, Generic[OutT]):
    """Reads the partitions of a Spark DataFrame, in their order.

    Spark computes a partition when the pipeline requests it; memory is bounded, never by
    the size of the DataFrame. Stopping early, cancelling or failing cancels the Spark
    jobs of this source, and only those; the session is left unchanged.

    A TIMESTAMP becomes an aware datetime in UTC, a TIMESTAMP_NTZ a naive one, a map a
    dict, a struct a record of the same kind, a variant a ``VariantVal``; all others are
    what ``collect()`` returns.

    Guarantee when a job resumes from a checkpoint: a live source lets Spark compute the
    DataFrame again, and skips the rows that it had emitted. It checks that they are the
    same rows (plan, schema, number of partitions, and the values of the rows), and
    rejects a DataFrame that has changed with `SourceChangedError`. With ``stage=``,
    Spark writes the rows once, and the source reads them again without Spark.

    Args:
        df: The DataFrame, of a classic session or of Spark Connect; not a streaming one.
        splits: ``"ordered"``: partitions follow each other in time, and one watermark
            continues from one to the next. ``"independent"``: each partition has a
            watermark of its own and holds event time back until it has been read.
        read: ``"iterate"``: a Spark job per partition, through the driver's heap, which
            has to hold the largest one; needs nothing but the session. ``"push"``: one
            Spark job, whose tasks connect to this process and send their rows; faster,
            for partitions of any size, but slots of executors are held for as long as
            the pipeline takes: use ``stage=`` where it calls slow services. With
            ``stage=`` beside it, rows are staged only if executors do not reach this
            process.
        records: The form of a record: ``"namedtuple"``, ``dict``, `pyspark.sql.Row`, a
            dataclass, a `msgspec.Struct`, a NamedTuple class; or ``"batch"``: each
            Arrow batch is one record.
        order_by: Columns that rows are sorted by: with ``splits="ordered"`` all rows,
            so that partitions follow each other, else within each partition. None
            leaves them as they are.
        partitions: How many partitions (or staged files) there are; None for Spark's.
        stage: A directory, in storage that Spark's executors and this process share, to
            which Spark writes the rows as Parquet before the first one is read. Rows that
            it holds already are read by a job that resumes from them, or with
            `from_stage`; else they are refused. The caller deletes it.
        listen: With ``read="push"``, the address of this machine on which tasks connect,
            as executors know it; None for 127.0.0.1, where executors are on this
            machine. Tasks prove that they know a secret.
        encrypt: With ``read="push"``, whether tasks encrypt what they send; None if
            ``listen`` is an address that other machines reach.
        prefetch: With ``read="iterate"``, whether Spark computes one partition ahead
            (not on Spark Connect, which computes all of them at once anyway).
        batch_rows: The maximum number of rows per Arrow batch; it has at most 4 MiB, or
            one row. Spark's own limit is
            ``spark.sql.execution.arrow.maxRecordsPerBatch``, by default 10,000 too.
        handover_batches: How many batches may wait for the pipeline.

    Raises:
        InvalidArgumentError: If an argument has an invalid value.
        WrongTypeError: If ``df`` is not a DataFrame.
        UnsupportedColumnError: If a column cannot be carried, or does not fit
            ``records``; names it.
        UsageError: If what tasks send is to be encrypted, and nothing is installed that
            makes a certificate.
        SparkJobError: If Spark's Java process has ended. In the job: if Spark's job
            fails, or a partition is too large for ``read="iterate"``.
        SourceChangedError: In the job, if the stage holds rows that are not asked for,
            or a repeated task has other rows than before.

    Concept:
        Flink, FLIP-27 ``Source``, bounded.

    Example:
        >>> from aiomailbox.connectors.spark import SparkSource
        >>> source = SparkSource(df, records=dict)  # doctest: +SKIP
    """

    # Two local iterators at a time slow Spark down: there is one reader.
    parallelism_max = 1
    position_types: ClassVar[tuple[type[Any], ...]] = (SparkSplit,)
    stays_in_parent = True
    boundedness = Boundedness.BOUNDED

    @overload
    def __init__(
        self: SparkSource[dict[str, Any]],
        df: Any,
        splits: Literal["ordered", "independent"] = "ordered",
        *,
        records: type[dict[str, Any]],
        read: ReadWay = "iterate",
        order_by: Any = None,
        partitions: int | None = None,
        stage: str | os.PathLike[str] | None = None,
        listen: str | None = None,
        encrypt: bool | None = None,
        prefetch: bool = False,
        batch_rows: int = 10_000,
        handover_batches: int = 2,
    ) -> None: ...

    @overload
    def __init__(
        self,
        df: Any,
        splits: Literal["ordered", "independent"] = "ordered",
        *,
        records: type[OutT] | Literal["namedtuple", "batch"] = "namedtuple",
        read: ReadWay = "iterate",
        order_by: Any = None,
        partitions: int | None = None,
        stage: str | os.PathLike[str] | None = None,
        listen: str | None = None,
        encrypt: bool | None = None,
        prefetch: bool = False,
        batch_rows: int = 10_000,
        handover_batches: int = 2,
    ) -> None: ...

    def __init__(
        self,
        df: Any,
        splits: Literal["ordered", "independent"] = "ordered",
        *,
        records: Any = "namedtuple",
        read: ReadWay = "iterate",
        order_by: Any = None,
        partitions: int | None = None,
        stage: str | os.PathLike[str] | None = None,
        listen: str | None = None,
        encrypt: bool | None = None,
        prefetch: bool = False,
        batch_rows: int = 10_000,
        handover_batches: int = 2,
    ) -> None:
        if df is None and stage is not None:
            raise InvalidArgumentError(
                "df",
                "there is no DataFrame to stage",
                f"To read staged rows, write SparkSource.from_stage({stage!r}).",
            )
        schema = checked_schema(df)
        if partitions is not None:
            check_count(partitions, "partitions")
        place = None
        if stage is not None:
            place = Stage(local_path(stage, "stage").absolute())
            if place.directory.is_file():
                raise InvalidArgumentError(
                    "stage", f"{str(stage)!r} is a file", "Give a directory."
                )
            check_stageable(schema)
        _check_read(read, listen, encrypt, df)
        if encrypt is None:
            encrypt = listen is not None and not is_loopback(listen)
        order = _columns(order_by, schema)
        arranged = _arranged(df, order, partitions, splits == "ordered")
        # Where ranges are cut is drawn by lot, in each run of a plan anew.
        is_live = place is None or read == "push"
        by_count = bool(order) and splits == "ordered" and is_live
        plan = ReadPlan(
            arranged,
            batch_rows,
            read,
            listen or _LOOPBACK,
            prefetch,
            place,
            by_count,
            parts=partitions,
            credentials=new_credentials() if encrypt else None,
        )
        self._set_up(plan, schema, splits, records, handover_batches, order)

    @classmethod
    def from_stage(
        cls,
        path: str | os.PathLike[str],
        splits: Literal["ordered", "independent"] = "ordered",
        *,
        records: type[OutT] | Literal["namedtuple", "batch"] = "namedtuple",
        batch_rows: int = 10_000,
        handover_batches: int = 2,
    ) -> SparkSource[OutT]:
        """Read what ``SparkSource(df, stage=path)`` has staged, without Spark.

        Args:
            path: The directory.
            splits: As for `SparkSource`, with files for partitions.
            records: As for `SparkSource`.
            batch_rows: As for `SparkSource`.
            handover_batches: As for `SparkSource`.

        Raises:
            InvalidArgumentError: If nothing is staged there, or an argument has an
                invalid value.
            DamagedFileError: If the description of the staged rows cannot be read.

        Example:
            >>> import aiomailbox as am
            >>> am.SparkSource.from_stage("stage/monday")  # doctest: +SKIP
        """
        place = Stage(local_path(path, "path").absolute())
        staged = place.find()
        if staged is None:
            raise nothing_staged(place.directory)
        source: SparkSource[OutT] = cls.__new__(cls)
        plan = ReadPlan(None, batch_rows, stage=place)
        source._set_up(plan, staged.schema, splits, records, handover_batches, [])
        return source

    def _set_up(
        self,
        plan: ReadPlan,
        schema: Any,
        splits: str,
        records: Any,
        depth: int,
        order: list[str],
    ) -> None:
        if splits not in {"ordered", "independent"}:
            raise InvalidArgumentError(
                "splits", f"{splits!r} is unknown", 'Use "ordered" or "independent".'
            )
        check_count(plan.batch_rows, "batch_rows")
        check_count(depth, "handover_batches")
        RowsAsRecords.__init__(self, schema, records)
        self._splits, self._plan, self._depth = splits, plan, depth
        self._sorted_by = order
        self._row_count: int | None = None

    @property
    def record_count(self) -> int | None:
        """How many rows there are, once they are staged; None if they are not to be."""
        stage = self._plan.stage
        if stage is not None and self._is_staged and self._row_count is None:
            # What is wrong with it, its reader says.
            with suppress(AioMailboxError, OSError):
                staged = stage.find()
                self._row_count = None if staged is None else staged.rows
        return self._row_count

    @property
    def replays(self) -> str:
        """From where, and on which condition."""
        if self._is_staged:
            return "from (file, row) of its stage"
        return (
            f"from {self._position} if the DataFrame gives the same rows again; if not, "
            "the restart is refused"
        )

    @property
    def _is_staged(self) -> bool:
        return self._plan.stage is not None and self._plan.way != "push"

    @property
    def _position(self) -> str:
        return "a row" if self._plan.by_count else "(partition, row)"

    def may_read(self, file: Path) -> bool:
        """Say whether a file would be among those that are read, if it were there."""
        return self._plan.df is not None and reads(self._plan.df, file)

    def create_enumerator(
        self, context: EnumeratorContext[SparkSplit], state: list[Any] | None = None
    ) -> StaticEnumerator[SparkSplit]:
        """Create the enumerator: one split, for the first reader."""
        splits = [SparkSplit()] if state is None else state
        return StaticEnumerator(context, splits)

    def create_reader(self, context: ReaderContext) -> SparkReader:
        """Create a reader; only the one that gets the split starts a thread."""
        return SparkReader(
            context,
            self._plan,
            self.runs(),
            independent=self._splits == "independent",
            depth=self._depth,
        )

    def explain(self) -> str:
        """Return how the DataFrame is read, and which guarantee holds for a restart."""
        plan = self._plan
        order = ", ".join(self._sorted_by) or "nothing: as Spark gives them"
        lines = [f"{self!r}: {self._splits} partitions, sorted by {order}"]
        stage = None if plan.stage is None else str(plan.stage.directory)
        if self._is_staged:
            lines.append(
                f"  staged in {stage!r}: exactly once, also if the session and the data "
                "are gone; a position is (file, row)"
            )
            return "\n".join(lines)
        if plan.way == "push":
            lines.append(
                "  pushed by one Spark job, in order: slots of executors are held until "
                "the last row is taken; for slow calls, use stage="
            )
            if stage is not None:
                lines.append(
                    "  staged instead if Spark's executors do not reach this program, in "
                    f"{stage!r}"
                )
        else:
            lines.append(
                "  a Spark job for each partition, through the driver's heap; push is "
                "faster, and for partitions of any size"
            )
        lines.append(
            "  live: exactly once if the DataFrame gives the same rows again, which is "
            f"checked; a position is {self._position}"
        )
        if not self._sorted_by:
            lines.append(
                "  without order_by= a shuffle may give rows in another order each time: "
                "a restart would be refused"
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<SparkSource of {', '.join(self._names)}>"

    # Said here, or cloudpickle would fail deep inside of a session.
    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a SparkSource cannot be pickled: its DataFrame lives in this process. "
            "Pickle the pipeline (am.pipeline) and attach the source where it runs."
        )


def _check_read(read: str, listen: str | None, encrypt: bool | None, df: Any) -> None:
    """Check that Spark's tasks can come here, if they are to."""
    if read not in {"iterate", "push"}:
        raise InvalidArgumentError(
            "read", f"{read!r} is unknown", 'Use "iterate" or "push".'
        )
    for name, given in (("listen", listen), ("encrypt", encrypt)):
        if given is not None and read != "push":
            raise InvalidArgumentError(
                name, 'nothing listens without read="push"', "Leave it out."
            )
    if read != "push" or listen is not None or is_connect(df):
        return
    master = master_of(df.sparkSession)
    if not master.startswith("local"):
        raise InvalidArgumentError(
            "listen",
            f"the executors of {master} do not reach {_LOOPBACK} of this machine",
            'Give an address that they reach, as spark.conf.get("spark.driver.host") '
            "is, or read with stage=.",
        )


def _columns(order_by: Any, schema: Any) -> list[str]:
    given: list[Any] = [] if order_by is None else [order_by]
    names = [*order_by] if isinstance(order_by, list | tuple) else given
    known = [field.name for field in schema.fields]
    for name in names:
        if not isinstance(name, str):
            raise WrongTypeError(
                "order_by",
                f"{name!r} is not the name of a column",
                "Give names; for another order, sort before: "
                "df.sortWithinPartitions(...).",
            )
        if name not in known:
            raise InvalidArgumentError(
                "order_by", f"there is no column {name!r}", f"There are {known}."
            )
    return names


def _arranged(df: Any, order: list[str], partitions: int | None, total: bool) -> Any:
    """Return the DataFrame in the partitions and the order that are wanted."""
    from pyspark.sql import functions as sf

    columns = [sf.col(quoted(name)) for name in order]
    if order and total:
        # An explicit number, or adaptive execution would choose one.
        count = (partitions,) if partitions else ()
        df = df.repartitionByRange(*count, *columns)
    elif partitions:
        df = df.repartition(partitions)
    return df.sortWithinPartitions(*columns) if order else df
