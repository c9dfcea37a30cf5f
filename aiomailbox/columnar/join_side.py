"""What a join knows of the columns of one of its sides, and how they are kept alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.fields import record_shape
from aiomailbox.columnar.forms import RecordForm, form_of_class
from aiomailbox.columnar.plain import plain_type
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.columnar.rows_needed import RowsNeededError
from aiomailbox.errors import (
    InvalidArgumentError,
    RecordTypeError,
    UnsupportedColumnError,
)

__all__ = ["JoinSide", "recast", "run_of_rows"]

_OTHER_COLUMNS = "the columns of a side have other names or types than before"
# What is raised for values that are no column.
_NO_COLUMN = (
    InvalidArgumentError,
    *(pa.ArrowException, AttributeError, KeyError, OverflowError),
    *(RecordTypeError, TypeError, UnsupportedColumnError, ValueError),
)


class JoinSide:
    """One side: how its rows are made, to which all that is kept of it conforms.

    Args:
        selector: Reads the keys of its records; a selector of fields.

    Attributes:
        selector: The same.
        maker: Makes its rows; None before the first run.
        key_type: The type of the key's columns that was checked last.
    """

    __slots__ = ("_given", "_plain", "key_type", "maker", "selector")

    def __init__(self, selector: Any) -> None:
        self.selector: Any = selector
        self.maker: RowMaker | None = None
        # What came last, and the same without dictionaries.
        self._given: RowMaker | None = None
        self._plain: RowMaker | None = None
        self.key_type: Any = None

    def fit(self, run: ArrowRun, conform: Callable[[RowMaker], None]) -> ArrowRun:
        """Return a run with the columns that are kept of this side.

        Args:
            run: A run of it.
            conform: Gives what is kept the columns of another `RowMaker`, or raises
                `RowsNeededError`.

        Raises:
            RowsNeededError: If only rows of both are alike; nothing has been changed.
        """
        run = self._without_dictionaries(run)
        maker, given = self.maker, run.row_maker
        if maker is given:
            return run
        if not given.can_take or given.has_special:
            raise RowsNeededError("a column of a side cannot be kept")
        if maker is None:
            self.maker = given
            return run
        if _kind(maker.form) != _kind(given.form):
            raise RowsNeededError("the records of a side are of another class now")
        if maker.schema.equals(given.schema):
            return run
        try:
            return recast(run, maker)
        except RowsNeededError:
            conform(given)
        self.maker = given
        return run

    def _without_dictionaries(self, run: ArrowRun) -> ArrowRun:
        """Return a run with plain values: not all dictionaries can become one."""
        given, plain = run.row_maker, self._plain
        if plain is None or given is not self._given:
            schema = pa.schema(list(map(_plain_field, given.schema)))
            same = schema.equals(given.schema)
            plain = given if same else RowMaker(schema, given.form, given.special)
            self._given, self._plain = given, plain
        if plain is given:
            return run
        columns = [
            column.dictionary_decode()
            if pa.types.is_dictionary(column.type)
            else column
            for column in [run.column(name) for name in plain.schema.names]
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=plain.schema)
        return ArrowRun(batch, plain, run.event_times)


def _plain_field(field: pa.Field) -> pa.Field:
    kind = field.type
    return field.with_type(kind.value_type) if pa.types.is_dictionary(kind) else field


def recast(run: ArrowRun, maker: RowMaker) -> ArrowRun:
    """Return a run with other types of columns, whose rows are the same.

    Raises:
        RowsNeededError: If there is none.
    """
    if run.schema.names != maker.schema.names:
        raise RowsNeededError(_OTHER_COLUMNS)
    columns = [_recast(run.column(field.name), field.type) for field in maker.schema]
    batch = pa.RecordBatch.from_arrays(columns, schema=maker.schema)
    return ArrowRun(batch, maker, run.event_times)


def _recast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type.equals(kind):
        return column
    if column.null_count == len(column):
        return pa.nulls(len(column), kind)
    if not _means_the_same(column.type, kind):
        raise RowsNeededError(_OTHER_COLUMNS)
    try:
        made = column.cast(kind)
        if made.cast(column.type).equals(column):
            return made
    except pa.ArrowException:
        pass
    raise RowsNeededError(_OTHER_COLUMNS)


def _means_the_same(one: pa.DataType, other: pa.DataType) -> bool:
    """Say whether equal values of two types are equal in Python."""
    if pa.types.is_decimal(one) and pa.types.is_decimal(other):
        return bool(one.scale == other.scale)
    plain = plain_type(one)
    return plain is not None and plain.equals(plain_type(other))


def run_of_rows(rows: list[Any]) -> ArrowRun:
    """Return rows that a restore has brought as a run of columns.

    Raises:
        RowsNeededError: If the rows of that would not be the same.
    """
    kind = type(rows[0])
    if {kind} != set(map(type, rows)):
        raise RowsNeededError("the state has records of several classes")
    try:
        shape = record_shape(rows[0])
        form = form_of_class(kind, shape.names)
        if kind is dict and any(len(row) != len(shape.names) for row in rows):
            raise RowsNeededError("the state has records with different fields")
        columns = shape.picked(shape.names, rows)
        batch = pa.RecordBatch.from_arrays(
            [pa.array(columns[name]) for name in shape.names], list(shape.names)
        )
        run = ArrowRun(batch, RowMaker(batch.schema, form))
        # Types, digits and zones are a part of that.
        same = repr(run.row_maker.rows(batch)) == repr(rows)
    except _NO_COLUMN as error:
        raise RowsNeededError("the state has values that are no column") from error
    if not same or not run.row_maker.can_take:
        raise RowsNeededError("the state has values that are no column")
    return run


def _kind(form: RecordForm) -> tuple[Any, ...]:
    """Return what forms have in common that make the same records."""
    record_type = getattr(form, "record_type", None)
    if record_type is not None:
        return (record_type,)
    inner = getattr(form, "inner", {})
    parts = [(name, _kind(inner[name])) for name in sorted(inner)]
    return (type(form), *parts)
