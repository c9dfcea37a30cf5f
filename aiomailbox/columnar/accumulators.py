"""Accumulators of aggregates as columns, one cell a key."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from aiomailbox.columnar.arrow_run import ArrowRun, as_bools
from aiomailbox.columnar.decode import column_decoder
from aiomailbox.columnar.evaluator import EVALUATION_ERRORS
from aiomailbox.columnar.forms import NamedTupleForm
from aiomailbox.columnar.keys import Groups
from aiomailbox.columnar.types import (
    LARGEST,
    SMALLEST,
    RowsNeededError,
    as_kind,
    loaded_values,
    ordered_values,
)
from aiomailbox.operators.core.fields import ExpressionSelector, SelectorWhere

# What the pieces of an aggregate read of a run: numbers, and where there are any.


# Adding it changes nothing, not even a zero's sign.
NOTHING: Final = -0.0


class Values(NamedTuple):
    """The values of a run that a piece of an aggregate reads.

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


# Ready-made aggregates as arrays with an element a cell, with Python's arithmetic.
#
# Theory of operation: what a record adds is done for all records of a run by one call
# into numpy, in the order of the records. Where Python's result would be another one
# than that of 64 bits, or where it depends on more than the values (which of two equal
# zeros came first), nothing is changed and `RowsNeededError` says so.


_INT64_MAX: Final = 2**63 - 1


# Beyond it, an integer is not always a float.
_EXACT_MAX: Final = 2**53


class Added:
    """How many records cells got, which the pieces of an aggregate share."""

    def __init__(self, counts: np.ndarray) -> None:
        self.counts: np.ndarray = counts


def copies_of(pieces: list[Piece], cells: np.ndarray | slice) -> list[Piece]:
    """Return what pieces have for some cells, as others that share nothing with them."""
    added = Added(pieces[0].added.counts[cells].copy())
    return [piece.copied(cells, added) for piece in pieces]


class Piece:
    """One ready-made aggregate: arrays with an element a cell.

    Attributes:
        added: How many records each cell got, up to the call that adds some.
    """

    width = 1
    # Whether more is known of what was added than that there was something.
    counts_all = True

    def __init__(self, selector: Any, added: Added) -> None:
        self._selector = selector
        self.added: Added = added
        # How often something was added, once that was not by each record.
        self._own_counts: np.ndarray | None = None

    @property
    def _counts(self) -> np.ndarray:
        own = self._own_counts
        return self.added.counts if own is None else own

    def _to_count(self) -> np.ndarray:
        """Return the counts, which from now on are only those of this piece."""
        own = self._own_counts
        if own is None:
            own = self._own_counts = self.added.counts.copy()
        return own

    def resize(self, size: int) -> None:
        """Make room for so many cells."""
        if self._own_counts is not None:
            self._own_counts = resized(self._own_counts, size, 0)

    def reshape(self, chosen: np.ndarray, size: int) -> None:
        """Let the cells be these of the present ones; see `reshaped`."""
        if self._own_counts is not None:
            self._own_counts = reshaped(self._own_counts, chosen, size, 0)

    def read(self, run: ArrowRun) -> Values:
        """Return what the records of a run add.

        Raises:
            RowsNeededError: If only rows say it.
        """
        selectors = selectors_of(self._selector)
        values = read_field(run, selectors[0].field)
        for where in selectors[1:]:
            chosen = read_condition(run, where)
            there = chosen if values.there is None else chosen & values.there
            values = values._replace(there=there)
        return values

    def check(self, values: Values, cells: np.ndarray, most: int) -> None:
        """Raise if only rows give the right result."""

    def add(self, values: Values, cells: np.ndarray) -> None:
        """Add records to their cells, in their order."""
        if values.there is not None:
            np.add.at(self._to_count(), cells[values.there], 1)
        elif self._own_counts is not None:
            np.add.at(self._own_counts, cells, 1)

    def check_merged(self, times: int) -> None:
        """Raise if so many cells may not be merged."""

    def merge(self, into: np.ndarray, other: Piece, cells: np.ndarray) -> None:
        """Add cells of another piece to cells of this one."""
        if self._own_counts is not None or other._own_counts is not None:
            self._to_count()[into] += other._counts[cells]

    def roll(self, values: Values, groups: Groups, cells: np.ndarray) -> pa.Array:
        """Add records grouped by cells, and return the result after each of them."""
        raise TypeError(f"{type(self).__name__} defines no roll")

    def _roll_counts(
        self, values: Values, groups: Groups, cells: np.ndarray
    ) -> np.ndarray:
        """Return how often something was added, after each record."""
        counts, last = groups.running_counts(values.there, self._counts[cells])
        if values.there is not None:
            self._to_count()[cells] = last
        elif self._own_counts is not None:
            self._own_counts[cells] = last
        return counts

    def _roll_known(
        self, values: Values, groups: Groups, cells: np.ndarray
    ) -> np.ndarray | None:
        """Return the same, or None if something was added by each record."""
        if values.there is not None:
            return self._roll_counts(values, groups, cells)
        if self._own_counts is not None:
            self._own_counts[cells] += groups.lengths
        return None

    def results(self, cells: np.ndarray) -> pa.Array:
        """Return a column of the results of these cells."""
        return pa.array(self._counts[cells])

    def slots(self, cells: np.ndarray) -> list[list[Any]]:
        """Return what rows keep of these cells: a list for each slot of the accumulator."""
        return [self._counts[cells].tolist()]

    def load(self, cells: np.ndarray, columns: list[tuple[Any, ...]]) -> np.ndarray:
        """Fill cells, and return how often something was added."""
        return _loaded_ints(columns[0])

    def keep_counts(self, cells: np.ndarray, counts: np.ndarray) -> None:
        """Keep what `load` returned, after what all records are was kept."""
        added = self.added.counts[cells]
        same = counts == added if self.counts_all else (counts > 0) == (added > 0)
        if self._own_counts is not None or not same.all():
            self._to_count()[cells] = counts

    def clear(self, cells: np.ndarray | slice) -> None:
        """Let cells be empty."""
        if self._own_counts is not None:
            self._own_counts[cells] = 0

    def copied(self, cells: np.ndarray | slice, added: Added) -> Piece:
        """Return a piece of its own with what these cells have."""
        made = self.shared(added)
        if self._own_counts is not None:
            made._own_counts = self._own_counts[cells].copy()
        return made

    def shared(self, added: Added) -> Piece:
        """Return a piece with the same arrays, until one of both replaces its own."""
        made: Piece = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.added = added
        return made

    def put_back(self, cells: np.ndarray, old: Piece, places: np.ndarray) -> None:
        """Let cells have what another piece has at these places."""
        self._counts[cells] = old._counts[places]


class _Count(Piece):
    def read(self, run: ArrowRun) -> Values:
        if self._selector is None:
            return Values(np.zeros(0), None)
        return Values(np.zeros(0), read_condition(run, self._selector))

    def roll(self, values: Values, groups: Groups, cells: np.ndarray) -> pa.Array:
        return pa.array(self._roll_counts(values, groups, cells))


class _Folded(Piece):
    """One that also keeps a number, of the type of the first column."""

    counts_all = False

    def __init__(self, selector: Any, added: Added) -> None:
        super().__init__(selector, added)
        self._numbers: np.ndarray | None = None
        self._kind: pa.DataType | None = None

    def resize(self, size: int) -> None:
        super().resize(size)
        if self._numbers is not None:
            self._numbers = resized(self._numbers, size, self.nothing(self._numbers))

    def reshape(self, chosen: np.ndarray, size: int) -> None:
        super().reshape(chosen, size)
        own = self._numbers
        if own is not None:
            self._numbers = reshaped(own, chosen, size, self.nothing(own))

    def nothing(self, numbers: np.ndarray) -> Any:
        """Return the number of an empty cell, which changes none it meets."""
        raise TypeError(f"{type(self).__name__} defines no nothing")

    def _of_type(
        self, numbers: np.ndarray, kind: pa.DataType | None = None
    ) -> np.ndarray:
        """Return the numbers of the cells, which get their type if they have none."""
        own = self._numbers
        if own is None:
            own = np.full(len(self._counts), self.nothing(numbers), numbers.dtype)
            self._numbers, self._kind = own, kind
        return own

    def read(self, run: ArrowRun) -> Values:
        values, own = super().read(run), self._numbers
        same = own is None or own.dtype == values.numbers.dtype
        if same and (own is None or self._kind == values.kind):
            return values
        # A column of None only has a type that says nothing.
        if own is not None and values.there is not None and not values.there.any():
            return Values(np.zeros(len(run), own.dtype), values.there, self._kind)
        raise RowsNeededError("values of several types are mixed")

    def merge(self, into: np.ndarray, other: Piece, cells: np.ndarray) -> None:
        super().merge(into, other, cells)
        assert isinstance(other, _Folded), "merged cells are of one aggregate"
        numbers = other._numbers
        if numbers is not None:
            own = self._of_type(numbers, other._kind)
            own[into] = self.folding(own[into], numbers[cells])

    def put_back(self, cells: np.ndarray, old: Piece, places: np.ndarray) -> None:
        super().put_back(cells, old, places)
        assert isinstance(old, _Folded), "both were parts of one piece"
        if self._numbers is not None and old._numbers is not None:
            self._numbers[cells] = old._numbers[places]

    def folding(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return what the numbers of two cells are together."""
        raise TypeError(f"{type(self).__name__} defines no folding")

    def _filled(self, values: Values) -> np.ndarray:
        """Return the numbers; where there is none, one that changes nothing."""
        if values.there is None:
            return values.numbers
        return np.where(values.there, values.numbers, self.nothing(values.numbers))

    def _column(self, numbers: np.ndarray, counts: np.ndarray | None) -> pa.Array:
        empty = None if counts is None or (counts > 0).all() else counts == 0
        if self._kind is None:
            return pa.array(numbers, mask=empty)
        if numbers.dtype == np.object_:
            return pa.array(numbers, self._kind, mask=empty)
        return as_kind(pa.array(numbers, mask=empty), self._kind)

    def _kept(self, cells: np.ndarray) -> np.ndarray:
        own = self._numbers
        # No column has said which numbers these are: all cells are empty.
        return np.zeros(len(cells), np.int64) if own is None else own[cells]

    def results(self, cells: np.ndarray) -> pa.Array:
        return self._column(self._kept(cells), self._counts[cells])

    def slots(self, cells: np.ndarray) -> list[list[Any]]:
        counts = self._counts[cells].tolist()
        numbers = self._values(self._kept(cells), self._counts[cells])
        return [
            [number if n else None for number, n in zip(numbers, counts, strict=True)]
        ]

    def _values(self, numbers: np.ndarray, counts: np.ndarray) -> list[Any]:
        """Return numbers as rows have them; anything where nothing was counted."""
        if self._kind is None or numbers.dtype == np.object_:
            return numbers.tolist()
        column = self._column(numbers, counts)
        return column_decoder(self._kind, NamedTupleForm(), ("value",))(column)

    def load(self, cells: np.ndarray, columns: list[tuple[Any, ...]]) -> np.ndarray:
        known = [number for number in columns[0] if number is not None]
        # None stands for nothing that was added.
        there = np.array([number is not None for number in columns[0]])
        if known:
            numbers, kind = self.loaded(known)
            own = self._of_type(numbers, kind)
            if own.dtype != numbers.dtype or self._kind != kind:
                raise RowsNeededError("values of several types are mixed")
            self.check_kept(numbers)
            own[cells[there]] = numbers
        return there.astype(np.int64)

    def loaded(self, values: list[Any]) -> tuple[np.ndarray, pa.DataType | None]:
        """Return values of rows as numbers, and what these stand for."""
        return _loaded(values), None

    def check_kept(self, numbers: np.ndarray) -> None:
        """Raise if numbers that were kept can only be gone on with by rows."""

    def clear(self, cells: np.ndarray | slice) -> None:
        super().clear(cells)
        if self._numbers is not None:
            self._numbers[cells] = self.nothing(self._numbers)

    def copied(self, cells: np.ndarray | slice, added: Added) -> Piece:
        made = super().copied(cells, added)
        assert isinstance(made, _Folded), "a copy is of its own class"
        if self._numbers is not None:
            made._numbers = self._numbers[cells].copy()
        return made


class _Sum(_Folded):
    highest: int = _INT64_MAX

    def read(self, run: ArrowRun) -> Values:
        values = super().read(run)
        if values.kind is not None:
            raise RowsNeededError(f"values of type {values.kind} are not numbers")
        return values

    def nothing(self, numbers: np.ndarray) -> Any:
        return NOTHING if numbers.dtype == np.float64 else 0

    def check(self, values: Values, cells: np.ndarray, most: int) -> None:
        if values.numbers.dtype == np.float64:
            return
        kept = 0 if self._numbers is None else _peak(self._numbers[cells])
        if kept + most * _peak(self._filled(values)) > self.highest:
            raise RowsNeededError("a sum exceeds 64 bits")

    def check_merged(self, times: int) -> None:
        own = self._numbers
        if own is None or own.dtype == np.float64:
            return
        if times * _peak(own) > self.highest:
            raise RowsNeededError("a sum exceeds 64 bits")

    def folding(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return first + second

    def add(self, values: Values, cells: np.ndarray) -> None:
        super().add(values, cells)
        np.add.at(self._of_type(values.numbers), cells, self._filled(values))

    def roll(self, values: Values, groups: Groups, cells: np.ndarray) -> pa.Array:
        counts = self._roll_known(values, groups, cells)
        return self._column(self._roll_numbers(values, groups, cells), counts)

    def _roll_numbers(
        self, values: Values, groups: Groups, cells: np.ndarray
    ) -> np.ndarray:
        own, numbers = self._of_type(values.numbers), self._filled(values)
        before = own[cells]
        if own.dtype == np.float64:
            sums, own[cells] = groups.running(np.add, numbers, before, NOTHING)
        else:
            sums, own[cells] = groups.running_sums(numbers, before)
        return sums


class _Mean(_Sum):
    width = 2
    counts_all = True
    highest = _EXACT_MAX

    def roll(self, values: Values, groups: Groups, cells: np.ndarray) -> pa.Array:
        counts = self._roll_counts(values, groups, cells)
        sums = self._roll_numbers(values, groups, cells)
        return self._column(sums / counts, counts)

    def results(self, cells: np.ndarray) -> pa.Array:
        counts = self._counts[cells]
        return self._column(self._kept(cells) / counts, counts)

    def slots(self, cells: np.ndarray) -> list[list[Any]]:
        return [*super().slots(cells), self._counts[cells].tolist()]

    def load(self, cells: np.ndarray, columns: list[tuple[Any, ...]]) -> np.ndarray:
        super().load(cells, columns[:1])
        return _loaded_ints(columns[1])

    def check_kept(self, numbers: np.ndarray) -> None:
        if numbers.dtype == np.int64 and _peak(numbers) > self.highest:
            raise RowsNeededError("a sum is too large for an exact mean")


class _Extreme(_Folded):
    fold: np.ufunc

    def check(self, values: Values, cells: np.ndarray, most: int) -> None:
        if values.numbers.dtype == np.float64:
            numbers = values.numbers
            self.check_kept(numbers if values.there is None else numbers[values.there])

    def loaded(self, values: list[Any]) -> tuple[np.ndarray, pa.DataType | None]:
        if set(map(type, values)) <= {int, float}:
            return super().loaded(values)
        return loaded_values(values)

    def check_kept(self, numbers: np.ndarray) -> None:
        if numbers.dtype != np.float64:
            return
        if np.isnan(numbers).any():
            raise RowsNeededError(
                "NaN has no place in a minimum or maximum, and columns count it"
            )
        if (np.signbit(numbers) & (numbers == 0)).any():
            raise RowsNeededError(
                "the minimum or maximum of 0.0 and -0.0 depends on the order of records"
            )

    def folding(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return self.fold(first, second)

    def add(self, values: Values, cells: np.ndarray) -> None:
        super().add(values, cells)
        own = self._of_type(values.numbers, values.kind)
        self.fold.at(own, cells, self._filled(values))

    def roll(self, values: Values, groups: Groups, cells: np.ndarray) -> pa.Array:
        counts = self._roll_known(values, groups, cells)
        own, numbers = (
            self._of_type(values.numbers, values.kind),
            self._filled(values),
        )
        found, own[cells] = groups.running(
            self.fold, numbers, own[cells], self.nothing(own)
        )
        return self._column(found, counts)


class _Min(_Extreme):
    fold = np.minimum

    def nothing(self, numbers: np.ndarray) -> Any:
        return _LARGEST.get(numbers.dtype.char)


class _Max(_Extreme):
    fold = np.maximum

    def nothing(self, numbers: np.ndarray) -> Any:
        return _SMALLEST.get(numbers.dtype.char)


# By the types of numbers: what changes none that it is compared with.
_LARGEST: Final[dict[str, Any]] = {"d": math.inf, "l": _INT64_MAX, "O": LARGEST}


_SMALLEST: Final[dict[str, Any]] = {"d": -math.inf, "l": -_INT64_MAX - 1, "O": SMALLEST}


PIECES: Final[dict[str, type[Piece]]] = {
    "count": _Count,
    "count_where": _Count,
    "sum_": _Sum,
    "mean": _Mean,
    "min_": _Min,
    "max_": _Max,
}


def resized(array: np.ndarray, size: int, empty: Any) -> np.ndarray:
    """Return an array with more elements, which are empty."""
    larger: np.ndarray = np.full(size, empty, array.dtype)
    larger[: len(array)] = array
    return larger


def reshaped(
    array: np.ndarray, chosen: np.ndarray, size: int, empty: Any
) -> np.ndarray:
    """Return an array of elements of another one; see `Cells.reshape`."""
    made: np.ndarray = np.full(size, empty, array.dtype)
    there = np.flatnonzero(chosen >= 0)
    made[there] = array[chosen[there]]
    return made


def _peak(numbers: np.ndarray) -> int:
    """Return the largest absolute value, which may be more than 64 bits hold."""
    return max(int(numbers.max()), -int(numbers.min())) if len(numbers) else 0


def _loaded(numbers: list[Any]) -> np.ndarray:
    kinds = set(map(type, numbers))
    if kinds == {float}:
        return np.array(numbers, np.float64)
    return _loaded_ints(numbers)


def _loaded_ints(numbers: Any) -> np.ndarray:
    if set(map(type, numbers)) != {int}:
        raise RowsNeededError("the state is not an array of numbers")
    try:
        whole: np.ndarray = np.array(numbers, np.int64)
    except OverflowError as error:
        raise RowsNeededError("the state exceeds 64 bits") from error
    return whole
