"""Which operators of windows have a form that works on columns."""

from __future__ import annotations

from typing import Any, Final

from aiomailbox.columnar.aligned import (
    ColumnarSlidingOperator,
    ColumnarTumblingOperator,
)
from aiomailbox.columnar.paned import ColumnarPanedOperator
from aiomailbox.columnar.sessions import ColumnarSessionOperator
from aiomailbox.operators.core.user_code import describe
from aiomailbox.windowing.aggregate import (
    AggregateWindowsOperator,
    SlidingAggregateOperator,
    TumblingAggregateOperator,
)
from aiomailbox.windowing.build import window_operator
from aiomailbox.windowing.panes import PanedAggregateOperator
from aiomailbox.windowing.session_aggregate import SessionAggregateOperator

_FORMS: Final[dict[type, Any]] = {
    TumblingAggregateOperator: ColumnarTumblingOperator,
    SlidingAggregateOperator: ColumnarSlidingOperator,
    PanedAggregateOperator: ColumnarPanedOperator,
    SessionAggregateOperator: ColumnarSessionOperator,
}


def columnar_windows(*args: Any, **settings: Any) -> AggregateWindowsOperator:
    """Return the operator on columns for the arguments of `window_operator`.

    Raises:
        TypeError: If that makes an operator that has no form for columns.
    """
    made: Any = window_operator(*args, **settings)
    if asking := windows_asking(made):
        raise TypeError(f"{asking} has no form that works on columns")
    form: AggregateWindowsOperator = _FORMS[type(made)](made._spec, made._given)
    return form


def windows_asking(operator: Any) -> str:
    """Return which setting of windows needs rows; "" if columns will do.

    Args:
        operator: Made by `window_operator`.
    """
    if type(operator) not in _FORMS:
        peculiarity: str = operator._spec.peculiarity
        return peculiarity
    gap = getattr(operator, "_gap", 0)
    return "" if isinstance(gap, int) else f"gap {describe(gap)}"
