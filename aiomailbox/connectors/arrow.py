"""Arrow tables and batches of this process as sources: columns that stay columns."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, ClassVar, Final

import pyarrow as pa

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.declared import NullCheck, check_annotations, plain_types
from aiomailbox.columnar.encode import canonical_in_micros
from aiomailbox.columnar.forms import RecordForm, form_fields, record_form
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.columnar.types import promoted, unified_schema, without_views
from aiomailbox.connectors.collection import RangeSplit, check_has, end_of, equal_ranges
from aiomailbox.errors import RecordTypeError, WrongTypeError
from aiomailbox.operators.core.fields import RecordFields
from aiomailbox.operators.sources.source import (
    Boundedness,
    EnumeratorContext,
    InputStatus,
    ReaderContext,
    ReaderOutput,
    SplitReader,
    StaticEnumerator,
)

# Iterating these gives parts that are no batches.
_ALONE: Final = (str, bytes, Mapping, pa.ChunkedArray, pa.Array)


class ArrowSource:
    """Reads the rows of Arrow data, in order; operators given by fields get columns.

    With several readers, each reads a consecutive part. It resumes exactly where a
    snapshot was taken.

    Args:
        data: A `pyarrow.Table` or `RecordBatch`, or anything that exports an Arrow
            stream, such as a DataFrame of Polars or a relation of DuckDB, or several of
            these. It stays in memory.
        records: How functions see a row: ``"namedtuple"``, dict or a class, as in
            `SparkSource`.

    Raises:
        WrongTypeError: If ``data`` is none of these.
        RecordTypeError: If the schemas of the batches cannot be unified; names the batch.
        UnsupportedColumnError: If a column does not fit ``records``, a class annotates
            its field as something else, or a NULL is in one that is not ``| None``.

    Example:
        >>> ArrowSource(pa.table({"city": ["Oslo", "Rome"]}))
        <ArrowSource of 2 rows: city>
    """

    gives_columns = True
    replayable = True
    parallelism_max = None
    position_types: ClassVar[tuple[type[Any], ...]] = (RangeSplit,)

    def __init__(self, data: Any, records: Any = "namedtuple") -> None:
        self.boundedness = Boundedness.BOUNDED
        self._form: RecordForm = record_form(records)
        self._batches, schema = _unified(_batches(data))
        self.record_types: tuple[type, ...] = (
            (records,) if isinstance(records, type) and records is not dict else ()
        )
        self.record_count: int = sum(batch.num_rows for batch in self._batches)
        self.record_fields: RecordFields | None = None
        self._names = [] if schema is None else schema.names
        if schema is not None:
            self._check(schema)
            types = {field.name: canonical_in_micros(field.type) for field in schema}
            self.record_fields = form_fields(self._form, schema.names, types)

    def create_enumerator(
        self, context: EnumeratorContext[RangeSplit], state: list[Any] | None = None
    ) -> StaticEnumerator[RangeSplit]:
        """Create the enumerator: as many splits as readers."""
        if state is None:
            state = equal_ranges("rows", self.record_count, context.parallelism)
        return StaticEnumerator(context, state)

    def create_reader(self, context: ReaderContext) -> _ArrowReader:
        """Create a reader."""
        return _ArrowReader(self._batches, self._form)

    def _check(self, schema: pa.Schema) -> None:
        """Check that the rows can be records of the form."""
        for record_type in self.record_types:
            check_annotations(record_type, plain_types(schema))
            nulls, first = NullCheck(record_type), 0
            for batch in self._batches:
                nulls.check(batch, first)
                first += batch.num_rows
        RowMaker(schema, self._form)

    def __repr__(self) -> str:
        names = ", ".join(self._names) or "none"
        return f"<ArrowSource of {self.record_count} rows: {names}>"


class _ArrowReader(SplitReader[RangeSplit]):
    """Reads ranges of rows; a run never reaches from one batch into the next."""

    def __init__(self, batches: list[pa.RecordBatch], form: RecordForm) -> None:
        super().__init__(available=True)
        self._batches = batches
        self._ends = list(accumulate(batch.num_rows for batch in batches))
        self._form = form
        self._maker: RowMaker | None = None
        self._has_views = True

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        """Emit the next rows of the first split."""
        if not self._splits:
            return self._nothing()
        split = self._splits[0]
        end = end_of(split)
        check_has(self._ends[-1] if self._ends else 0, end)
        start = split.position
        if start < end:
            number = bisect_right(self._ends, start)
            batch = self._batches[number]
            first = self._ends[number] - batch.num_rows
            stop = min(end, self._ends[number], start + output.records_max)
            part = batch.slice(start - first, stop - start)
            # All batches are of one schema: what one has not none has.
            if self._has_views:
                plain = without_views(part)
                self._has_views, part = plain is not part, plain
            if self._maker is None:
                self._maker = RowMaker(part.schema, self._form)
            output.for_split(split.split_id).emit_run(ArrowRun(part, self._maker))
            self._splits[0] = RangeSplit(split.split_id, stop, split.stop)
            if stop < end:
                return InputStatus.MORE_AVAILABLE
        return self._finish_split(output)


def _batches(data: Any) -> list[pa.RecordBatch]:
    batches = _exported(data)
    if batches is not None:
        return batches
    parts = (
        data if isinstance(data, Iterable) and not isinstance(data, _ALONE) else [data]
    )
    batches = []
    for part in parts:
        found = _exported(part)
        if found is None:
            raise WrongTypeError(
                "data",
                f"{type(part).__name__} is neither an Arrow table nor a record batch",
                "Use pa.table(...), record batches, or a DataFrame of Polars; "
                "env.from_async_iterable(...) takes what has to be awaited.",
            )
        batches += found
    return batches


def _exported(data: Any) -> list[pa.RecordBatch] | None:
    """Return the batches of a table or of what exports a stream; None if it is neither."""
    if isinstance(data, pa.RecordBatch):
        return [data]
    if isinstance(data, pa.Table):
        return _with_schema(data.to_batches(), data.schema)
    if not hasattr(data, "__arrow_c_stream__"):
        return None
    try:
        reader = pa.RecordBatchReader.from_stream(data)
        return _with_schema(list(reader), reader.schema)
    except pa.ArrowInvalid:
        # A stream of values without names.
        return None


def _with_schema(
    batches: list[pa.RecordBatch], schema: pa.Schema
) -> list[pa.RecordBatch]:
    """Return batches, one without rows at least: it says which columns there are."""
    return batches or [pa.RecordBatch.from_pylist([], schema=schema)]


def _unified(
    batches: list[pa.RecordBatch],
) -> tuple[list[pa.RecordBatch], pa.Schema | None]:
    """Return the batches that have rows, all of one schema, and that; None if no batch."""
    schema: pa.Schema | None = None
    for number, batch in enumerate(batches):
        if schema is None or batch.schema.equals(schema):
            schema = batch.schema if schema is None else schema
            continue
        try:
            schema = unified_schema(schema, batch.schema)
        except pa.ArrowException as error:
            raise _misfit(number, error) from error
    unified = []
    for number, batch in enumerate(batches):
        try:
            same = batch.schema.equals(schema)
            unified.append(batch if same else promoted(batch, schema))
        except pa.ArrowException as error:
            raise _misfit(number, error) from error
    return [batch for batch in unified if batch.num_rows], schema


def _misfit(number: int, error: Exception) -> RecordTypeError:
    return RecordTypeError(
        "data",
        f"the columns of batch {number} differ from those of others: {error}",
        "Cast them first.",
    )
