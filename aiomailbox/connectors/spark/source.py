"""A Spark DataFrame as a source."""

from __future__ import annotations

from typing import Any, Literal, NoReturn

from aiomailbox.columnar import ClassForm
from aiomailbox.connectors.spark.frame_checks import (
    check_names,
    checked_schema,
    form_of,
)
from aiomailbox.connectors.spark.reader import SparkReader, SparkSplit
from aiomailbox.connectors.spark.reading import ReadPlan
from aiomailbox.connectors.spark.row_form import RowForm
from aiomailbox.connectors.spark.types import ReadPath, check_path
from aiomailbox.errors import InvalidArgumentError, UsageError
from aiomailbox.operators import (
    Boundedness,
    EnumeratorContext,
    ReaderContext,
    StaticEnumerator,
)

__all__ = ["SparkSource"]


class SparkSource:
    """Streams the partitions of a Spark DataFrame in, one after the other.

    Spark computes a partition when the pipeline asks for it; memory is bounded by the
    largest partition (on Spark's side) and a few batches (on ours), never by the whole
    DataFrame. Stopping early, cancelling or failing cancels the Spark jobs of this
    source, and only those; the session stays as it is.

    A TIMESTAMP becomes an aware datetime in UTC, a TIMESTAMP_NTZ a naive one, a map a
    dict, a struct a record of the same kind, a variant a ``VariantVal``; all else is
    what ``collect()`` gives.

    Going on from a snapshot reads the DataFrame again and skips what was emitted: that
    is right only if it always gives the same rows in the same order. Sort inside its
    partitions by a total order, or persist it.

    Args:
        df: The DataFrame; of a classic session or of Spark Connect. Not a streaming one.
        splits: ``"ordered"``: partitions follow each other in time, and one watermark
            carries on from one to the next. ``"independent"``: each partition has a
            watermark of its own and holds event time back until it has been read.
        records: What a record is: ``"namedtuple"``, ``dict``, `pyspark.sql.Row`, a
            dataclass, a `msgspec.Struct`, a NamedTuple class; or ``"batch"``: each
            Arrow batch is one record.
        path: ``"arrow"``: batches packed by Spark's Python workers. ``"rows"``: rows
            pickled by the JVM, which is slower but carries user-defined types. None
            takes Arrow where it can.
        prefetch: Whether Spark computes one partition ahead (not on Spark Connect,
            which computes all of them at once anyway).
        batch_rows: The most rows of an Arrow batch; Spark makes none longer than its
            ``spark.sql.execution.arrow.maxRecordsPerBatch``, which is 10,000 too.
        handover_batches: How many batches may wait for the pipeline.

    Raises:
        InvalidArgumentError: If an argument has a value that cannot work.
        WrongTypeError: If ``df`` is no DataFrame.
        UnsupportedColumnError: If a column cannot be carried, or does not fit
            ``records``; names it.
        SparkJobError: If Spark's Java process has ended.

    Concept:
        Flink, FLIP-27 ``Source``, bounded.

    Example:
        >>> from aiomailbox.connectors.spark import SparkSource
        >>> source = SparkSource(df, records=dict)  # doctest: +SKIP
    """

    # Two local iterators at a time slow Spark down: there is one reader.
    parallelism_max = 1
    stays_in_parent = True
    boundedness = Boundedness.BOUNDED

    def __init__(
        self,
        df: Any,
        splits: Literal["ordered", "independent"] = "ordered",
        *,
        records: Any = "namedtuple",
        path: ReadPath | None = None,
        prefetch: bool = False,
        batch_rows: int = 10_000,
        handover_batches: int = 2,
    ) -> None:
        schema = checked_schema(df)
        if splits not in {"ordered", "independent"}:
            raise InvalidArgumentError(
                "splits", f"{splits!r} is unknown", 'Use "ordered" or "independent".'
            )
        _check_positive("batch_rows", batch_rows)
        _check_positive("handover_batches", handover_batches)
        form = form_of(records)
        chosen = check_path(schema, path)
        if form is None and chosen == "rows":
            raise InvalidArgumentError(
                "records", '"batch" needs the Arrow path', 'Use path="arrow".'
            )
        check_names(schema, form or RowForm())
        self._independent = splits == "independent"
        self._depth = handover_batches
        self._plan = ReadPlan(df, chosen, form, self._independent, prefetch, batch_rows)

    @property
    def record_types(self) -> tuple[type, ...]:
        """The class of the records, if it is the user's or Spark's."""
        form = self._plan.form
        return (form.record_type,) if isinstance(form, ClassForm | RowForm) else ()

    @property
    def path(self) -> ReadPath:
        """The path that is taken."""
        return self._plan.path

    def create_enumerator(
        self, context: EnumeratorContext[SparkSplit], state: list[Any] | None = None
    ) -> StaticEnumerator[SparkSplit]:
        """Create the enumerator: one split, for the first reader."""
        splits = [SparkSplit()] if state is None else state
        return StaticEnumerator(context, splits)

    def create_reader(self, context: ReaderContext) -> SparkReader:
        """Create a reader; only the one that gets the split starts a thread."""
        return SparkReader(
            context, self._plan, independent=self._independent, depth=self._depth
        )

    def __repr__(self) -> str:
        return f"<SparkSource of {', '.join(self._plan.df.columns)}>"

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a SparkSource cannot be pickled: its DataFrame lives in this process. "
            "Pickle the pipeline (am.pipeline) and attach the source where it runs."
        )


def _check_positive(parameter: str, value: int) -> None:
    if value < 1:
        raise InvalidArgumentError(parameter, f"{value!r} is too few", "Use 1 or more.")
