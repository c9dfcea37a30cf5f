"""Columns inside the pipeline: Arrow runs, and the records made from them.

Theory of operation: an operator on columns does what its operator of rows does, until only
rows give the right result; then it goes on as that one, for good (`ColumnarOperator`). Its
state is in arrays, and in snapshots as that of rows. The modules, from the bottom up:

* types: `plain`, `unify`, `meaning`, `ipc`;
* between columns and records: `forms`, `fields`, `decode`, `encode`, `rows`;
* the run: `arrow_run`, `keys` for the place of each key, `arrow_form` for the way to another
  process;
* expressions: `kernels`, `evaluator`, `conditions`; `projection` and `expressions` for the
  verbs with them;
* aggregates: `values` read of a run, added by `pieces` to `cells`, with `groups` for the order
  of additions; `rolling` emits each result on the way;
* windows: `cell_grid`, `window_grid` and `session_cells` keep cells by window; `windows` is
  the base of `aligned` (tumbling and sliding), `paned` (sliding by panes) and `sessions`;
* joins: `kept_columns` finds records by key and time, `pair_run` has pairs that were found,
  `pair_selection` makes records of them; `columnar_join` is the base of `interval_join` and
  `window_join`;
* functions of the user: `map_batches`; `async_column`, with the fields that `called_with` finds.
"""

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
from aiomailbox.columnar.plain import is_rare_list, plain_type
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
    "is_rare_list",
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
