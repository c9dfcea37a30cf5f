"""Results of aggregates as columns, and the records that they stand for."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from types import NoneType
from typing import Any, Final

import pyarrow as pa

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.forms import RecordForm
from aiomailbox.columnar.forwarding import ForwardingOutput
from aiomailbox.columnar.result_forms import ResultForm, TupleForm, ValueForm
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.operators.core.contract import Output, Pending
from aiomailbox.records.run import ListRun, Run

__all__ = ["NamedResultsOutput", "ResultMaker"]

_DECIMAL_DIGITS: Final = 38
# Types whose values are the same after they have been a column.
_EXACT: Final = {bool, bytes, float, int, str}
# What says that values are no column: too large, of several types, with surrogates.
_NO_COLUMN: Final = (pa.ArrowException, OverflowError, UnicodeEncodeError)


class ResultMaker:
    """Makes runs of results, all with the same fields.

    Args:
        names: The fields; None for results that are single values.
        key_fields: The fields of a key that is a tuple; its column is a struct of them.
        are_tuples: Whether results are tuples without names; the columns have them.

    Example:
        >>> import numpy as np
        >>> maker = ResultMaker(("key", "n"))
        >>> run = maker.run([pa.array(["a"]), pa.array([2])], np.array([7]))
        >>> run.values, run.timestamps
        ([Result(key='a', n=2)], [7])
    """

    def __init__(
        self,
        names: tuple[str, ...] | None,
        key_fields: tuple[str, ...] = (),
        *,
        are_tuples: bool = False,
    ) -> None:
        self._names = ("value",) if names is None else names
        self._form: RecordForm
        if names is None:
            self._form = ValueForm()
        elif are_tuples:
            self._form = TupleForm(has_tuples=bool(key_fields))
        else:
            self._form = ResultForm(names, bool(key_fields))
        self._key_fields = key_fields
        self._are_tuples = are_tuples
        self._maker: RowMaker | None = None

    def run(self, columns: list[pa.Array], times: Any) -> ArrowRun:
        """Return results as a run.

        Args:
            columns: One a field, each of shape ``(n,)``.
            times: Event times in milliseconds, shape ``(n,)``, or None.
        """
        batch = pa.RecordBatch.from_arrays(columns, names=list(self._names))
        if self._maker is None or not self._maker.schema.equals(batch.schema):
            self._maker = RowMaker(batch.schema, self._form)
        return ArrowRun(batch, self._maker, times)

    @property
    def rows_lack_names(self) -> bool:
        """Whether rows are tuples, or have one for a key of several fields."""
        has_key = "key" in self._names
        return has_key and (self._are_tuples or bool(self._key_fields))

    def run_of_rows(self, run: ListRun) -> ArrowRun | None:
        """Return results that are rows as columns, None if rows of these were others."""
        known = None if self._maker is None else self._maker.schema
        columns: list[pa.Array] = []
        for index, values in enumerate(zip(*run.values, strict=True)):
            if self._names[index] == "key" and self._key_fields:
                try:
                    columns.append(self.key_column(list(values), None))
                except _NO_COLUMN:
                    return None
                continue
            kind = None if known is None else known.field(index).type
            column = _column(list(values), kind)
            if column is None:
                return None
            columns.append(column)
        return self.run(columns, run.timestamps)

    def key_column(self, keys: list[Any], kinds: list[pa.DataType] | None) -> pa.Array:
        """Return keys as a column.

        Args:
            keys: Of the one type that they have.
            kinds: The type of each of their fields; None to go by the keys.
        """
        if not self._key_fields:
            return pa.array(keys, None if kinds is None else kinds[0])
        parts = [
            pa.array(part, None if kinds is None else kinds[place])
            for place, part in enumerate(zip(*keys, strict=True))
        ]
        return pa.StructArray.from_arrays(parts, list(self._key_fields))


class NamedResultsOutput(ForwardingOutput):
    """An operator's output that makes columns of results whose rows lack names.

    Of a tuple, or of one that is a key, expressions and sinks would not know the fields.

    Args:
        output: The output.
        maker: Makes the columns.
    """

    def __init__(self, output: Output, maker: ResultMaker) -> None:
        super().__init__(output)
        self._maker = maker

    def emit_run(self, run: Run) -> Pending:
        """Pass on results, as columns where that is possible."""
        if type(run) is ListRun and len(run):
            run = self._maker.run_of_rows(run) or run
        return self._output.emit_run(run)


def _column(values: list[Any], known: pa.DataType | None) -> pa.Array | None:
    """Return values as a column, None if the values of that were others."""
    kinds = set(map(type, values)) - {NoneType}
    if not kinds:
        # Without a type until there is a value.
        return pa.nulls(len(values), known or pa.null())
    if len(kinds) > 1:
        return None
    try:
        if kinds == {datetime}:
            zones = {value.tzinfo for value in values if value is not None}
            if zones not in ({UTC}, {None}):
                return None
            return pa.array(values, pa.timestamp("us", "UTC" if UTC in zones else None))
        column = pa.array(values)
        if kinds == {Decimal}:
            # Later values may have more digits before the point.
            column = column.cast(pa.decimal128(_DECIMAL_DIGITS, column.type.scale))
    except _NO_COLUMN:
        return None
    same = kinds <= _EXACT or repr(column.to_pylist()) == repr(values)
    return column if same else None
