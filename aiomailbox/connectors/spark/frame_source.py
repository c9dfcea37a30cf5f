"""The base of all sources of Spark's rows: the form of a record, and runs of batches."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.declared import NullCheck
from aiomailbox.columnar.decode import SpecialColumns
from aiomailbox.columnar.forms import ClassForm, RecordForm
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.connectors.spark.frame_checks import (
    CHECK,
    RowForm,
    check_names,
    checked_schema,
    fields_of,
    form_of,
)
from aiomailbox.connectors.spark.types import check_types, special_columns
from aiomailbox.errors import WrongTypeError
from aiomailbox.graph.job_graph import JobVertex
from aiomailbox.graph.transformation import OperatorFactory, Transformation
from aiomailbox.operators.core.fields import RecordFields
from aiomailbox.operators.core.operator import Operator
from aiomailbox.operators.sources.operator import SourceOperator
from aiomailbox.operators.sources.source import Boundedness
from aiomailbox.operators.stateless.operators import TimestampsAndWatermarksOperator
from aiomailbox.records.run import ListRun, Run


class RowsAsRecords:
    """The form that a source gives to a DataFrame's rows, and what is known of it."""

    def __init__(self, schema: Any, records: Any, order: str = "") -> None:
        # None if the batch itself is the record.
        self._form: RecordForm | None = form_of(records)
        check_types(schema)
        check_names(schema, self._form)
        # Columns that Arrow carries as structs of their parts.
        self._special = partial(special_columns, schema)
        self._names: list[str] = schema.fieldNames()
        self._fields = fields_of(self._form, schema)
        self._order = order

    @property
    def record_types(self) -> tuple[type, ...]:
        """The class of the records, if it is the user's or Spark's."""
        form = self._form
        return (form.record_type,) if isinstance(form, ClassForm | RowForm) else ()

    @property
    def record_fields(self) -> RecordFields | None:
        """The fields of the records: the columns, or those of the user's class."""
        return self._fields

    @property
    def gives_columns(self) -> bool:
        """Whether its runs have columns."""
        return self._form is not None

    def runs(self) -> BatchRuns:
        """Return the function that makes runs from the batches that Spark gives."""
        return BatchRuns(self._form, self._special, len(self._names))


class FrameSource(RowsAsRecords):
    """A DataFrame as a source where Spark gives its rows; makes its operator."""

    boundedness = Boundedness.BOUNDED

    def is_in_order_of(self, assigner: object) -> bool:
        """Say whether partitions are sorted by what event times are taken from."""
        order, _, direction = self._order.partition(" ")
        if not order or direction.startswith("DESC"):
            return False
        # What a function reads, or what a field was made of, only the user knows.
        return assigner not in self._names or assigner == order

    def __call__(self) -> SourceOperator:
        """Make the operator."""
        return SourceOperator(self)  # type: ignore[arg-type]


def with_column(df: Any) -> Any:
    """Return a DataFrame that has a column: Spark gives Python no rows without one."""
    from pyspark.sql import functions as sf

    return df if df.columns else df.select(sf.lit(1).alias(CHECK))


@dataclass(frozen=True, slots=True, eq=False)
class InputFrame:
    """A DataFrame that a pipeline runs on inside Spark, and its place in the graph.

    Attributes:
        df: The DataFrame.
        transformation: The beginning of the pipeline.
        order: The columns by which each partition is sorted.
    """

    df: Any
    transformation: Transformation
    order: list[Any]


def input_frame(
    df: Any,
    name: str,
    source: Callable[[Any, Any, str], FrameSource],
    *,
    records: Any,
    order_by: Any,
    may_stream: bool = False,
) -> InputFrame:
    """Return a DataFrame as the beginning of a pipeline."""
    given = [] if order_by is None else order_by
    order = [*given] if isinstance(given, list | tuple) else [given]
    for one in order:
        if not isinstance(one, str) and type(one).__name__ != "Column":
            raise WrongTypeError(
                "order_by",
                f"{one!r} is neither the name of a column nor a column",
                'Give e.g. "at", or a list.',
            )
    # Of a column its expression is all that is known.
    first = re.sub(r"^Column<'(.*)'>$", r"\1", str(order[0])) if order else ""
    schema = checked_schema(df, name, may_stream=may_stream)
    made = source(schema, records, first)
    return InputFrame(df, frame_operator(name, made), order)


def frame_operator(name: str, source: FrameSource) -> Transformation:
    """Return a DataFrame as the beginning of a pipeline."""
    return Transformation(
        name,
        source,
        record_fields=source.record_fields,
        source=source,  # type: ignore[arg-type]
    )


def makes_watermarks(item: Transformation) -> bool:
    """Say whether an operator assigns event times."""
    return item.source is None and isinstance(
        item.factory(), TimestampsAndWatermarksOperator
    )


def waits_for_end(vertex: JobVertex, item: Transformation) -> bool:
    """Say whether an operator's event time waits for the end of its task's input.

    A DataFrame ends, and its rows have an order of time only if somebody says so; behind
    an exchange they come one producer's after the other's.
    """
    made, source = item.factory(), vertex.head.transformation.source
    assert isinstance(made, TimestampsAndWatermarksOperator)
    strategy = made.strategy
    if strategy.moves_on_bounded_input:
        return False
    return not (
        isinstance(source, FrameSource) and source.is_in_order_of(strategy.assigner)
    )


def hold_watermarks(vertex: JobVertex) -> None:
    """Let the event times of a vertex wait that have to; where its tasks are made."""
    for node in vertex.nodes:
        item = node.transformation
        if makes_watermarks(item) and waits_for_end(vertex, item):
            item.factory = partial(_holding, item.factory)


def _holding(factory: OperatorFactory) -> Operator:
    made = factory()
    assert isinstance(made, TimestampsAndWatermarksOperator)
    made.hold_watermarks()
    return made


class BatchRuns:
    """Makes runs of batches that have one schema."""

    def __init__(
        self,
        form: RecordForm | None,
        special: Callable[[], SpecialColumns],
        width: int,
    ) -> None:
        self._form = form
        self._width = width
        self._special = special
        self._maker: RowMaker | None = None
        self._nulls = (
            NullCheck(form.record_type) if isinstance(form, ClassForm) else None
        )

    def cut(self, batch: Any, first: int, start: int, rows_max: int) -> tuple[Run, int]:
        """Return the run from a row on, and the row where the next one begins.

        Args:
            batch: Rows of a partition.
            first: Which row of the partition is the first of them.
            start: Where in the batch the run begins.
            rows_max: How many rows it has at most.

        Raises:
            UnsupportedColumnError: If a NULL is in a field that is not ``| None``.
        """
        rows: int = batch.num_rows
        if batch.num_columns > self._width:
            batch = batch.select(range(self._width))
        if self._form is None:
            return ListRun([batch.slice(start)]), rows
        if self._maker is None:
            self._maker = RowMaker(batch.schema, self._form, self._special())
        stop = min(start + rows_max, rows)
        part = batch.slice(start, stop - start)
        if self._nulls is not None:
            self._nulls.check(part, first + start, " of its partition")
        return ArrowRun(part, self._maker), stop
