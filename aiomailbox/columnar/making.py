"""Makes operators that have a form for columns, and says why one works on rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from aiomailbox.columnar.aligned import (
    ColumnarPartitionOperator,
    ColumnarSlidingOperator,
    ColumnarTumblingOperator,
)
from aiomailbox.columnar.cells import needs_rows
from aiomailbox.columnar.expressions import RunCondition
from aiomailbox.columnar.interval_join import ColumnarIntervalJoin
from aiomailbox.columnar.pairs import PairSelection
from aiomailbox.columnar.paned import ColumnarPanedOperator
from aiomailbox.columnar.rolling import ColumnarAggregateOperator
from aiomailbox.columnar.sessions import ColumnarSessionOperator
from aiomailbox.columnar.window_join import ColumnarWindowJoin
from aiomailbox.operators.aggregates.functions import with_expressions
from aiomailbox.operators.core.fields import ExpressionSelector
from aiomailbox.operators.core.operator import RowsNote
from aiomailbox.operators.joins.interval import IntervalJoinOperator
from aiomailbox.operators.keyed.operators import KeyedAggregateOperator
from aiomailbox.windowing.aggregate import (
    SlidingAggregateOperator,
    TumblingAggregateOperator,
)
from aiomailbox.windowing.build import window_operator
from aiomailbox.windowing.panes import PanedAggregateOperator
from aiomailbox.windowing.partition import (
    PartitionAggregateOperator,
    partition_operator,
)
from aiomailbox.windowing.session_aggregate import SessionAggregateOperator
from aiomailbox.windowing.window_join import WindowJoinOperator

# The form for columns of what works on rows: it is made of the same.
_FORMS: Final[dict[Any, Any]] = {
    IntervalJoinOperator: ColumnarIntervalJoin,
    KeyedAggregateOperator: ColumnarAggregateOperator,
    WindowJoinOperator: ColumnarWindowJoin,
    TumblingAggregateOperator: ColumnarTumblingOperator,
    SlidingAggregateOperator: ColumnarSlidingOperator,
    PanedAggregateOperator: ColumnarPanedOperator,
    PartitionAggregateOperator: ColumnarPartitionOperator,
    SessionAggregateOperator: ColumnarSessionOperator,
}
# Functions that choose the class for rows.
_MAKERS: Final = (window_operator, partition_operator)


def rows_reason(operator: Any, aggregate: Any = None) -> str:
    """Return what in an operator asks for rows; "" if columns will do.

    Args:
        operator: The one for rows.
        aggregate: What it computes, if it does.
    """
    asking: str = operator.rows_reason()
    return asking or ("" if aggregate is None else needs_rows(aggregate))


def made(
    make: Callable[..., Any],
    *args: Any,
    columns: RowsNote | None = None,
    selection: tuple[Any, Any] | None = None,
    **named: Any,
) -> Any:
    """Return an operator of rows, or the form of it that works on columns.

    Args:
        make: The class for rows, `window_operator` or `partition_operator`.
        args: Its arguments.
        columns: Why it goes on with rows when it runs; None for the operator of rows.
        selection: Which fields of pairs a join emits, and what to do with a pair for
            which that fails; None for pairs.
        named: More arguments. Expressions in an ``aggregate`` get evaluators.
    """
    conditions: list[RunCondition] = []

    def bind(selector: ExpressionSelector) -> ExpressionSelector:
        conditions.append(RunCondition(selector.expression))
        return ExpressionSelector(selector.expression, conditions[-1])

    if (aggregate := named.get("aggregate")) is not None:
        named["aggregate"], _ = with_expressions(aggregate, bind)
    if columns is not None and make in _MAKERS:
        sample: Any = make(*args, **named)
        operator = _FORMS[type(sample)](sample._spec, sample._given)
    else:
        form = make if columns is None else _FORMS[make]
        operator = form(*args, **named)
    if columns is not None:
        operator.rows_note = columns
    if conditions:
        operator.conditions = conditions
    if selection is not None:
        operator.selection = PairSelection(*selection)
    return operator
