"""A Spark DataFrame as a source."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any, ClassVar, Generic, Literal, NoReturn, overload

from aiomailbox.columnar.forms import ClassForm
from aiomailbox.connectors.spark.frame_checks import (
    check_names,
    checked_schema,
    fields_of,
    form_of,
)
from aiomailbox.connectors.spark.reader import SparkReader, SparkSplit
from aiomailbox.connectors.spark.reading import ReadPlan, RowForm, quoted
from aiomailbox.connectors.spark.staged import Stage, check_stageable
from aiomailbox.connectors.spark.types import ReadPath, check_path
from aiomailbox.errors import (
    AioMailboxError,
    InvalidArgumentError,
    UsageError,
    WrongTypeError,
)
from aiomailbox.operators.core.fields import RecordFields
from aiomailbox.operators.sources.source import (
    Boundedness,
    EnumeratorContext,
    ReaderContext,
    StaticEnumerator,
)
from aiomailbox.policies.arguments import local_path
from aiomailbox.typevars import OutT


class SparkSource(Generic[OutT]):
    """Reads the partitions of a Spark DataFrame, one after another.

    Spark computes a partition when the pipeline requests it; memory is bounded by the
    largest partition (on Spark's side) and a few batches (on ours), never by the whole
    DataFrame. Stopping early, cancelling or failing cancels the Spark jobs of this
    source, and only those; the session is left unchanged.

    A TIMESTAMP becomes an aware datetime in UTC, a TIMESTAMP_NTZ a naive one, a map a
    dict, a struct a record of the same kind, a variant a ``VariantVal``; all others are
    what ``collect()`` returns.

    Guarantee when a job resumes from a checkpoint: if it is read live, the DataFrame is
    computed again, and the rows that were emitted are skipped. That they are the same
    rows is checked (plan, schema, number of partitions, and the values of the rows), and
    a DataFrame that changed is rejected with `SourceChangedError`. With ``stage=``, Spark
    writes the rows once, and they can be read again without Spark or recomputation.

    Args:
        df: The DataFrame, of a classic session or of Spark Connect; not a streaming one.
            None to read what was staged before.
        splits: ``"ordered"``: partitions follow each other in time, and one watermark
            continues from one to the next. ``"independent"``: each partition has a
            watermark of its own and holds event time back until it has been read.
        records: The form of a record: ``"namedtuple"``, ``dict``, `pyspark.sql.Row`, a
            dataclass, a `msgspec.Struct`, a NamedTuple class; or ``"batch"``: each
            Arrow batch is one record.
        order_by: Columns that rows are sorted by: with ``splits="ordered"`` all rows,
            so that partitions follow each other, else within each partition. None
            leaves them as they are.
        partitions: How many partitions (or staged files) there are; None for Spark's.
        stage: A directory, in storage that Spark's executors and this process share, to
            which Spark writes the rows as Parquet before the first one is read. Rows that
            it holds already are read by a job that resumes from them, with
            ``stage_name``, or with ``df=None``; else they are refused. The caller
            deletes it.
        stage_name: What the caller calls the rows, for example the day that they are of.
            A stage that holds rows of this name is read, and not written again; one that
            holds others is refused.
        path: ``"arrow"``: batches packed by Spark's Python workers. ``"rows"``: rows
            pickled by the JVM, which is slower but carries user-defined types. None
            uses Arrow where possible.
        prefetch: Whether Spark computes one partition ahead (not on Spark Connect,
            which computes all of them at once anyway).
        batch_rows: The maximum number of rows per Arrow batch; Spark's own limit is
            ``spark.sql.execution.arrow.maxRecordsPerBatch``, by default 10,000 too.
        handover_batches: How many batches may wait for the pipeline.

    Raises:
        InvalidArgumentError: If an argument has an invalid value.
        WrongTypeError: If ``df`` is not a DataFrame.
        UnsupportedColumnError: If a column cannot be carried, or does not fit
            ``records``; names it.
        SparkJobError: If Spark's Java process has ended.
        SourceChangedError: In the job, if the stage holds rows that are not asked for.

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
        order_by: Any = None,
        partitions: int | None = None,
        stage: str | os.PathLike[str] | None = None,
        stage_name: str | None = None,
        path: ReadPath | None = None,
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
        order_by: Any = None,
        partitions: int | None = None,
        stage: str | os.PathLike[str] | None = None,
        stage_name: str | None = None,
        path: ReadPath | None = None,
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
        order_by: Any = None,
        partitions: int | None = None,
        stage: str | os.PathLike[str] | None = None,
        stage_name: str | None = None,
        path: ReadPath | None = None,
        prefetch: bool = False,
        batch_rows: int = 10_000,
        handover_batches: int = 2,
    ) -> None:
        if splits not in {"ordered", "independent"}:
            raise InvalidArgumentError(
                "splits", f"{splits!r} is unknown", 'Use "ordered" or "independent".'
            )
        _check_positive("batch_rows", batch_rows)
        _check_positive("handover_batches", handover_batches)
        if partitions is not None:
            _check_positive("partitions", partitions)
        form = form_of(records)
        place = _stage(stage, stage_name)
        schema = _schema(df, place)
        if place is None:
            chosen = check_path(schema, path)
        else:
            check_stageable(schema)
            chosen = check_path(schema, "arrow")
        if form is None and chosen == "rows":
            raise InvalidArgumentError(
                "records", '"batch" needs the Arrow path', 'Use path="arrow".'
            )
        check_names(schema, form)
        self._splits = splits
        self._order = _columns(order_by, schema)
        self._depth = handover_batches
        if df is not None:
            df = _arranged(df, self._order, partitions, splits == "ordered")
        # Where ranges are cut is drawn by lot, in each run of a plan anew.
        by_count = bool(self._order) and splits == "ordered" and place is None
        self._plan = ReadPlan(
            df, chosen, form, prefetch, batch_rows, place, by_count, parts=partitions
        )
        self._row_count: int | None = None
        self._names = [field.name for field in schema.fields]
        self._fields = fields_of(form, schema)

    @property
    def record_types(self) -> tuple[type, ...]:
        """The class of the records, if it is the user's or Spark's."""
        form = self._plan.form
        return (form.record_type,) if isinstance(form, ClassForm | RowForm) else ()

    @property
    def record_fields(self) -> RecordFields | None:
        """The fields of the records: the columns, or those of the user's class."""
        return self._fields

    @property
    def gives_columns(self) -> bool:
        """Whether its runs have columns."""
        return self._plan.form is not None and self.path == "arrow"

    @property
    def record_count(self) -> int | None:
        """How many rows there are, once they are staged; None if they are not to be."""
        stage = self._plan.stage
        if stage is not None and self._row_count is None:
            # What is wrong with it, its reader says.
            with suppress(AioMailboxError, OSError):
                staged = stage.find()
                self._row_count = None if staged is None else staged.rows
        return self._row_count

    @property
    def path(self) -> ReadPath:
        """The path that is taken."""
        return self._plan.path

    @property
    def replays(self) -> str:
        """From where, and on which condition."""
        if self._plan.stage is not None:
            return "from (file, row) of its stage"
        position = "a row" if self._plan.by_count else "(partition, row)"
        return (
            f"from {position} if the DataFrame gives the same rows again; if not, the "
            "restart is refused"
        )

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
            independent=self._splits == "independent",
            depth=self._depth,
        )

    def explain(self) -> str:
        """Return how the DataFrame is read, and which guarantee holds for a restart."""
        order = ", ".join(self._order) or "nothing: as Spark gives them"
        lines = [f"{self!r}: {self._splits} partitions, sorted by {order}"]
        stage = self._plan.stage
        if stage is not None:
            lines.append(
                f"  staged in {str(stage.directory)!r}: exactly once, also if the session "
                "and the data are gone; a position is (file, row)"
            )
            return "\n".join(lines)
        position = "a row" if self._plan.by_count else "(partition, row)"
        lines.append(
            f"  live, by {self._plan.path}: exactly once if the DataFrame gives the same "
            f"rows again, which is checked; a position is {position}"
        )
        if not self._order:
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


def _schema(df: Any, place: Stage | None) -> Any:
    if df is not None:
        return checked_schema(df)
    if place is None:
        raise WrongTypeError("df", "there is no DataFrame", "Give one, or stage=.")
    staged = place.find()
    if staged is None:
        raise InvalidArgumentError(
            "stage", f"nothing is staged in {str(place.directory)!r}", "Give df too."
        )
    return staged.schema


def _stage(directory: str | os.PathLike[str] | None, name: str | None) -> Stage | None:
    if name is not None and not (isinstance(name, str) and name):
        raise InvalidArgumentError(
            "stage_name", f"{name!r} is no name", 'Use a text, e.g. "2026-11-23".'
        )
    if directory is not None:
        return Stage(local_path(directory, "stage").absolute(), name)
    if name is not None:
        raise InvalidArgumentError(
            "stage_name", "there is no stage", "Give stage=, a directory, too."
        )
    return None


def _columns(order_by: Any, schema: Any) -> list[str]:
    names = [order_by] if isinstance(order_by, str) else list(order_by or ())
    known = [field.name for field in schema.fields]
    for name in names:
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


def _check_positive(parameter: str, value: int) -> None:
    if value < 1:
        raise InvalidArgumentError(parameter, f"{value!r} is too few", "Use 1 or more.")
