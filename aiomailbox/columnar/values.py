"""What the pieces of an aggregate read of a run: numbers, and where there are any."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from aiomailbox.columnar.arrow_run import ArrowRun, as_bools
from aiomailbox.columnar.evaluator import EVALUATION_ERRORS
from aiomailbox.columnar.ordered import ordered_values
from aiomailbox.columnar.rows_needed import RowsNeededError
from aiomailbox.operators.core.selectors import ExpressionSelector, SelectorWhere

__all__ = ["NOTHING", "Values", "read_condition", "read_field", "selectors_of"]

# Adding it changes nothing, not even a zero's sign.
NOTHING: Final = -0.0


class Values(NamedTuple):
    """What a piece of an aggregate reads of a run.

    Attributes:
        numbers: int64 or float64, shape ``(n,)``; anything where there is none. Empty
            for a piece that needs none.
        there: Where there is one, bools of shape ``(n,)``; None for everywhere.
        kind: The type that the numbers stand for, or that of objects; None for numbers.
    """

    numbers: np.ndarray
    there: np.ndarray | None
    kind: pa.DataType | None = None

    def at(self, places: np.ndarray) -> Values:
        """Return those of the records at these places."""
        numbers, there = self.numbers, self.there
        return Values(
            numbers[places] if len(numbers) else numbers,
            None if there is None else there[places],
            self.kind,
        )


def selectors_of(selector: Any) -> list[Any]:
    """Return what reads the values of a piece, and what chooses the records."""
    if selector is None:
        return []
    if type(selector) is SelectorWhere:
        return [selector.read, selector.where]
    return [selector]


def _field(run: ArrowRun, field: str) -> pa.Array:
    if run.schema.get_field_index(field) < 0 or run.row_maker.is_special(field):
        raise RowsNeededError(f"there is no column {field!r}")
    return run.column(field)


def read_condition(run: ArrowRun, where: Any) -> np.ndarray:
    """Return where a field is true, as Python sees it, or an expression."""
    chosen: np.ndarray
    if type(where) is ExpressionSelector:
        try:
            chosen = where.reader.mask(run)
        except EVALUATION_ERRORS as error:
            raise RowsNeededError("a condition cannot be computed") from error
        return chosen
    field = where.field
    column = _field(run, field)
    if pa.types.is_boolean(column.type):
        return as_bools(column)
    values = read_field(run, field)
    if values.kind is not None:
        raise RowsNeededError(f"column {field!r} is of type {column.type}")
    chosen = values.numbers != 0
    return chosen if values.there is None else chosen & values.there


def read_field(run: ArrowRun, field: str) -> Values:
    """Return the values of a field.

    Raises:
        RowsNeededError: If they are neither numbers nor have an order.
    """
    column = _field(run, field)
    kind = column.type
    if pa.types.is_floating(kind):
        empty: Any = NOTHING
        if not pa.types.is_float64(kind):
            column = column.cast(pa.float64())
    elif pa.types.is_integer(kind):
        if pa.types.is_uint64(kind):
            try:
                column = column.cast(pa.int64())
            except pa.ArrowInvalid as error:
                raise RowsNeededError("an integer needs more than 63 bits") from error
        empty = 0
        if not pa.types.is_int64(kind):
            column = column.cast(pa.int64())
    elif pa.types.is_null(kind):
        return Values(np.zeros(len(column), np.int64), np.zeros(len(column), np.bool_))
    else:
        return _ordered(column, field)
    if not column.null_count:
        return Values(column.to_numpy(), None)
    there = as_bools(column.is_valid())
    return Values(column.fill_null(empty).to_numpy(), there)


def _ordered(column: pa.Array, field: str) -> Values:
    """Return values that have an order but are no numbers."""
    if pa.types.is_dictionary(column.type):
        # Its count of nulls leaves out those that are in the dictionary.
        column = column.cast(column.type.value_type)
    found = ordered_values(column)
    if found is None:
        raise RowsNeededError(f"column {field!r} is of type {column.type}")
    there = None
    if column.null_count:
        there = as_bools(column.is_valid())
    numbers, kind = found
    return Values(numbers, there, kind)
