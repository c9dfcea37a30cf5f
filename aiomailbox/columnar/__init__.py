"""Columns inside the pipeline: Arrow runs, and the records made from them."""

from __future__ import annotations

from aiomailbox.columnar.aligned import (
    ColumnarSlidingOperator,
    ColumnarTumblingOperator,
)
from aiomailbox.columnar.arrow_form import ArrowForm
from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.async_column import AsyncColumnOperator
from aiomailbox.columnar.batch_class import batch_class
from aiomailbox.columnar.cells import needs_rows
from aiomailbox.columnar.conditions import conditioned
from aiomailbox.columnar.decode import (
    EPOCH,
    SpecialColumns,
    column_decoder,
    out_of_range,
)
from aiomailbox.columnar.encode import (
    BatchMaker,
    in_micros,
    plain_in_micros,
    record_batches,
)
from aiomailbox.columnar.evaluator import check_expression, check_reads
from aiomailbox.columnar.expressions import ExpressionFilter, ProjectionOperator
from aiomailbox.columnar.forms import (
    ClassForm,
    DictForm,
    NamedTupleForm,
    RecordForm,
    StructBuilder,
    check_unique,
    record_form,
)
from aiomailbox.columnar.interval_join import ColumnarIntervalJoin
from aiomailbox.columnar.key_check import ColumnarKeyCheck
from aiomailbox.columnar.map_batches import MapBatchesOperator
from aiomailbox.columnar.pair_selection import selecting
from aiomailbox.columnar.pairing import pair_fields
from aiomailbox.columnar.paned import ColumnarPanedOperator
from aiomailbox.columnar.plain import plain_type
from aiomailbox.columnar.projection import Drop, Rename, Select, WithColumns
from aiomailbox.columnar.rolling import ColumnarAggregateOperator
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.columnar.sessions import ColumnarSessionOperator
from aiomailbox.columnar.unify import promoted, unified_schema, without_views
from aiomailbox.columnar.window_forms import columnar_windows, windows_asking
from aiomailbox.columnar.window_join import ColumnarWindowJoin, window_join_asking
from aiomailbox.records.named_tuples import record_class

__all__ = [
    "EPOCH",
    "ArrowForm",
    "ArrowRun",
    "AsyncColumnOperator",
    "BatchMaker",
    "ClassForm",
    "ColumnarAggregateOperator",
    "ColumnarIntervalJoin",
    "ColumnarKeyCheck",
    "ColumnarPanedOperator",
    "ColumnarSessionOperator",
    "ColumnarSlidingOperator",
    "ColumnarTumblingOperator",
    "ColumnarWindowJoin",
    "DictForm",
    "Drop",
    "ExpressionFilter",
    "MapBatchesOperator",
    "NamedTupleForm",
    "ProjectionOperator",
    "RecordForm",
    "Rename",
    "RowMaker",
    "Select",
    "SpecialColumns",
    "StructBuilder",
    "WithColumns",
    "batch_class",
    "check_expression",
    "check_reads",
    "check_unique",
    "column_decoder",
    "columnar_windows",
    "conditioned",
    "in_micros",
    "needs_rows",
    "out_of_range",
    "pair_fields",
    "plain_in_micros",
    "plain_type",
    "promoted",
    "record_batches",
    "record_class",
    "record_form",
    "selecting",
    "unified_schema",
    "window_join_asking",
    "windows_asking",
    "without_views",
]
