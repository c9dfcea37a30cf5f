"""The keys of a run of columns: each distinct one once, and which record has which.

Theory of operation: what depends on a key alone (its key group, its place in state) is
done once for each distinct key of a run, as a Python value, by the code that does it for
rows. All that is done for each record is to look up a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import count
from math import prod
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aiomailbox.columnar.decode import column_decoder, decoded
from aiomailbox.columnar.rows import RowMaker

# Why keys have to be read from rows.
KEYS_OF_ROWS: Final = (
    "a key is None, NaN or -0.0, or neither a text, a number, a bool nor bytes"
)


# Codes of all fields together have to stay below.
_CODES_MAX: Final = 2**63


# A kernel looks keys up sooner than a dict, but prepares all of them each time.
_LOOKED_UP_MAX: Final = 4096


class Columns(Protocol):
    """What puts columns of a record batch together when they are asked for."""

    @property
    def schema(self) -> pa.Schema:
        """The columns' names and types."""

    @property
    def row_maker(self) -> RowMaker:
        """The maker of its rows."""

    def column(self, name: str) -> pa.Array:
        """Return a column."""


class KeyCodes(NamedTuple):
    """The keys of a run.

    Attributes:
        distinct: The keys as functions of a record would see them, each once.
        codes: For each record the place of its key in ``distinct``; int64, shape ``(n,)``.
    """

    distinct: list[Any]
    codes: np.ndarray


def key_codes(run: Columns, fields: tuple[str, ...], *, alone: bool) -> KeyCodes | None:
    """Return the keys of a run's rows, or None if the rows have to be asked.

    They have to be for keys that could be equal without being the same (-0.0), or are
    equal to none (NaN), that are no keys (null), and that only a record knows.

    Args:
        run: The rows' columns.
        fields: Which columns are the key.
        alone: Whether the key is the value of the one field; else it is a tuple.

    Example:
        >>> from aiomailbox.columnar.arrow_run import ArrowRun
        >>> from aiomailbox.columnar.forms import NamedTupleForm
        >>> batch = pa.record_batch({"a": ["x", "y", "x"], "n": [1, 2, 1]})
        >>> run = ArrowRun(batch, RowMaker(batch.schema, NamedTupleForm()))
        >>> key_codes(run, ("a", "n"), alone=False)
        KeyCodes(distinct=[('x', 1), ('y', 2)], codes=array([0, 1, 0]))
    """
    found = [_codes_of(run, field) for field in fields]
    parts = [each for each in found if each is not None]
    if len(parts) < len(found) or not parts:
        return None
    if prod(len(part.distinct) for part in parts) > _CODES_MAX:
        return None
    if alone:
        return parts[0]
    combined = parts[0].codes
    for part in parts[1:]:
        # A number to the base of how many there are: one sort for all fields.
        combined = combined * len(part.distinct) + part.codes
    encoded = pa.array(combined).dictionary_encode()
    left = encoded.dictionary.to_numpy()
    columns: list[list[Any]] = []
    for part in reversed(parts):
        left, place = np.divmod(left, len(part.distinct))
        columns.append([part.distinct[each] for each in place.tolist()])
    return KeyCodes(list(zip(*reversed(columns), strict=True)), _indices(encoded))


class KnownKeys(NamedTuple):
    """The keys that had a place at one time.

    Attributes:
        keys: In the order of their places; more may be added.
        array: The same as a column, where there is one.
    """

    keys: list[Any]
    array: pa.Array | None

    def column(self, places: np.ndarray) -> pa.Array | None:
        """Return the keys that have these places, if that is a matter of a kernel."""
        return None if self.array is None else self.array.take(pa.array(places))


class KeySlots:
    """The keys that have a place, in the order in which they got it.

    Args:
        begin: Called with new keys before they get the next places.

    Attributes:
        places: The place of each key.
        keys: The keys in the order of their places; it is another list after `clear`.

    Example:
        >>> from aiomailbox.columnar.arrow_run import ArrowRun
        >>> from aiomailbox.columnar.forms import NamedTupleForm
        >>> batch = pa.record_batch({"a": ["x", "y", "x"]})
        >>> run = ArrowRun(batch, RowMaker(batch.schema, NamedTupleForm()))
        >>> KeySlots(print).of_run(run, ("a",), True)
        ['x', 'y']
        array([0, 1, 0])
    """

    def __init__(self, begin: Callable[[list[Any]], None]) -> None:
        self.places: dict[Any, int] = {}
        self.keys: list[Any] = []
        self._begin = begin
        # All keys as a column, while they are few: a kernel looks them up.
        self._known: pa.Array | None = None

    def of_run(
        self, run: Columns, fields: tuple[str, ...], alone: bool
    ) -> np.ndarray | None:
        """Return the place of each row's key; None if the rows have to be asked.

        Args as for `key_codes`.
        """
        known = self._known
        if known is not None and alone and not run.row_maker.special:
            place = run.schema.get_field_index(fields[0])
            column = run.column(fields[0]) if place >= 0 else None
            # Of the same type only: a kernel would find 1.0 for 1.
            if column is not None and column.type.equals(known.type):
                known_places = pc.index_in(column, known)
                if not known_places.null_count:
                    return _int64(known_places)
        keys = key_codes(run, fields, alone=alone)
        if keys is None:
            return None
        places, distinct = self.places, keys.distinct
        found: list[Any] = list(map(places.get, distinct))
        if None in found:
            pairs = zip(distinct, found, strict=True)
            new = [key for key, place in pairs if place is None]
            self._begin(new)
            places.update(zip(new, count(len(places)), strict=False))
            self.keys += new
            found = list(map(places.get, distinct))
        self._learn(run.schema.field(fields[0]).type, distinct[0])
        return np.array(found, np.int64)[keys.codes]

    def _learn(self, kind: pa.DataType, sample: Any) -> None:
        # Keys that came as doubles would be rounded to shorter ones.
        is_other = pa.types.is_dictionary(kind) or pa.types.is_float32(kind)
        if len(self.places) > _LOOKED_UP_MAX or is_other:
            self._known = None
        elif type(sample) is not tuple:
            try:
                self._known = pa.array(list(self.places), kind)
            except (pa.ArrowException, OverflowError, TypeError):
                # Others came as a wider type.
                self._known = None

    def known_keys(self) -> KnownKeys:
        """Return the keys that have a place now."""
        return KnownKeys(self.keys, self._known)

    def place(self, keys: list[Any]) -> np.ndarray:
        """Return the places of keys, which get one if they have none."""
        places = self.places
        new = [key for key in dict.fromkeys(keys) if key not in places]
        if new:
            places.update(zip(new, count(len(places)), strict=False))
            self.keys += new
            self._known = None
        return np.array([places[key] for key in keys], np.int64)

    def clear(self) -> None:
        """Forget all keys."""
        self.places = {}
        self.keys = []
        self._known = None


def _codes_of(run: Columns, field: str) -> KeyCodes | None:
    maker = run.row_maker
    if run.schema.get_field_index(field) < 0 or maker.is_special(field):
        return None
    column = given = run.column(field)
    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
        # A dictionary of a whole file, of which a run has little.
        if len(column.dictionary) > len(column) or column.dictionary.null_count:
            column = column.cast(kind)
    if not _may_be_key(kind) or column.null_count:
        return None
    if pa.types.is_floating(kind) and _has_twins(column):
        return None
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    codes, values = _indices(column), column.dictionary
    if pa.types.is_dictionary(given.type):
        used = pc.unique(column.indices)
        # Values that no row has any more would become keys.
        if len(used) < len(values):
            places: np.ndarray = np.zeros(len(values), np.int64)
            places[used.to_numpy()] = np.arange(len(used))
            codes, values = places[codes], values.take(used)
        # A dictionary may name one value twice, and keys are distinguished by codes.
        if len(pc.unique(values)) < len(values):
            return None
    decode = column_decoder(values.type, maker.form.nested(field), (field,))
    return KeyCodes(decoded(decode, values, field), codes)


def _has_twins(column: pa.Array) -> bool:
    """Say whether there are fractions that are equal without being the same, or not equal.

    These are NaN, which equals nothing, and -0.0.
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary
    numbers = column.to_numpy()
    twins = np.isnan(numbers) | (np.signbit(numbers) & (numbers == 0))
    return bool(twins.any())


def _may_be_key(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_integer(kind)
        or types.is_float32(kind)
        or types.is_float64(kind)
        or types.is_boolean(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
    )


def _indices(column: pa.DictionaryArray) -> np.ndarray:
    return _int64(column.indices)


def _int64(column: pa.Array) -> np.ndarray:
    numbers: np.ndarray = column.to_numpy()
    return numbers.astype(np.int64, copy=False)


# Records of a run that belong together, and what is folded in each group, in order.
#
# Theory of operation: a fold must go from record to record within a group, as floats do
# not associate, but all groups can take a step at once. So each group is a column of a
# matrix, which begins with what the group had before. Groups of very different lengths
# would leave most of it empty, so each matrix has groups of about one length.


# The longest group of a matrix is so many times as long as its shortest.
_STRETCH: Final = 4


# Where all of it is so little, one matrix will do.
_CELLS_PER_RECORD: Final = 4


# So many groups are worth a call for each of their steps.
_STEPS_MIN: Final = 200


def distinct(numbers: np.ndarray) -> np.ndarray:
    """Return each of some integers once, ascending.

    Numpy's own takes some times as long, and imports much when it is first called.
    """
    ordered = np.sort(numbers)
    first: np.ndarray = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def stable_order(codes: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of codes from 0 to ``count - 1`` by these, equal ones in order.

    With them come the codes in this order. To sort numbers that have the place in their
    lower bits takes a fraction of what it takes to sort places.
    """
    bits = max(1, (len(codes) - 1).bit_length())
    if count <= 1 << 16 or count << bits > 1 << 64:
        # Sixteen bits are sorted by radix; and with the place in it, it may be too many.
        few = codes.astype(np.uint16) if count <= 1 << 16 else codes
        places: np.ndarray = few.argsort(kind="stable")
        return places, few.take(places)
    kind = np.uint32 if count << bits <= 1 << 32 else np.uint64
    packed: np.ndarray = codes.astype(kind)
    packed <<= kind(bits)
    packed |= np.arange(len(codes), dtype=kind)
    packed.sort()
    order: np.ndarray = (packed & kind((1 << bits) - 1)).astype(np.int64)
    packed >>= kind(bits)
    return order, packed


class Groups:
    """Which records of a run belong together.

    Args:
        codes: The group of each record, from 0; int64, shape ``(n,)``.
        count: How many there may be.

    Attributes:
        used: The codes of the groups that have records, ascending.
        lengths: How many records each of these has, at least one.

    Example:
        >>> groups = Groups(np.array([0, 1, 0]), 2)
        >>> found, last = groups.running(
        ...     np.add, np.array([1.0, 2.0, 4.0]), np.array([0.5, 0.0]), -0.0
        ... )
        >>> found.tolist(), last.tolist()
        ([1.5, 2.0, 5.5], [5.5, 2.0])
    """

    def __init__(self, codes: np.ndarray, count: int) -> None:
        self._order, ordered = stable_order(codes, count)
        # Not counted: there may be a million codes, of which a run has few.
        bounds: np.ndarray = np.empty(len(ordered) + 1, np.bool_)
        bounds[0] = bounds[-1] = True
        np.not_equal(ordered[1:], ordered[:-1], out=bounds[1:-1])
        ends = np.flatnonzero(bounds)
        self._starts: np.ndarray = ends[:-1]
        self.used: np.ndarray = ordered[self._starts].astype(np.int64)
        self.lengths: np.ndarray = ends[1:] - ends[:-1]

    @cached_property
    def _groups(self) -> np.ndarray:
        """Of each record, in the order of the groups, the place of its group in `used`."""
        numbers = np.arange(len(self.used))
        return np.repeat(numbers, self.lengths)

    @cached_property
    def _cells(self) -> np.ndarray:
        """Of each record its cell in a matrix with a column a group; see `_folded`."""
        width = len(self.used)
        ordered: np.ndarray = np.arange(width, (len(self._order) + 1) * width, width)
        firsts = np.arange(width) - self._starts * width
        ordered += np.repeat(firsts, self.lengths)
        return self._in_order(ordered)

    @cached_property
    def _ranks(self) -> np.ndarray:
        """Of each record, in the order of the groups, its place in its group."""
        ranks: np.ndarray = np.arange(len(self._order))
        ranks -= np.repeat(self._starts, self.lengths)
        return ranks

    def rounds(self) -> Iterator[np.ndarray]:
        """Yield places of records in order: the first of each group, then the second."""
        for rank in range(int(self.lengths.max(initial=0))):
            yield np.sort(self._order[self._ranks == rank])

    def running_counts(
        self, there: np.ndarray | None, before: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return how many there are up to each record, and in the end in each group.

        Args:
            there: Which records count, shape ``(n,)``; None for all.
            before: How many there were in each group, shape ``(groups,)``.
        """
        if there is not None:
            ones: np.ndarray = there.astype(np.int64)
            return self.running_sums(ones, before)
        counts = self._ranks + np.repeat(before + 1, self.lengths)
        return self._in_order(counts), before + self.lengths

    def running_sums(
        self, numbers: np.ndarray, before: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the sums up to each record, and in the end in each group.

        Args:
            numbers: Integers whose sums fit into 64 bits, shape ``(n,)``.
            before: The sum in each group before them, shape ``(groups,)``.
        """
        # What wraps around on the way comes back.
        ordered = numbers[self._order]
        sums = np.cumsum(ordered)
        offsets = before - (sums[self._starts] - ordered[self._starts])
        sums += np.repeat(offsets, self.lengths)
        return self._in_order(sums), sums[self._starts + self.lengths - 1]

    def running(
        self, fold: np.ufunc, numbers: np.ndarray, before: np.ndarray, nothing: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """Fold each group from its first record to its last.

        Args:
            fold: What is done with two numbers.
            numbers: One a record, shape ``(n,)``.
            before: What each group begins with, shape ``(groups,)``.
            nothing: A number that changes none with which it is folded.

        Returns:
            The result up to each record, and the last one of each group.
        """
        longest = int(self.lengths.max())
        if len(self.lengths) * longest <= _CELLS_PER_RECORD * len(numbers):
            return _folded(fold, numbers, before, nothing, (self._cells, longest))
        ordered: np.ndarray = numbers.take(self._order)
        found, last = np.empty_like(ordered), np.empty_like(before)
        while longest:
            shortest = longest // _STRETCH
            rows = np.flatnonzero((self.lengths <= longest) & (self.lengths > shortest))
            if len(rows):
                places: np.ndarray = np.empty(len(self.lengths), np.int64)
                places.fill(-1)
                places[rows] = np.arange(len(rows))
                mine = np.flatnonzero(places[self._groups] >= 0)
                cells = (self._ranks[mine] + 1) * len(rows)
                cells += places[self._groups[mine]]
                where = (cells, longest)
                found[mine], last[rows] = _folded(
                    fold, ordered[mine], before[rows], nothing, where
                )
            longest = shortest
        return self._in_order(found), last

    def _in_order(self, ordered: np.ndarray) -> np.ndarray:
        """Return what is in the order of the groups in that of the records."""
        found: np.ndarray = np.empty_like(ordered)
        found[self._order] = ordered
        return found


def _folded(
    fold: np.ufunc,
    numbers: np.ndarray,
    before: np.ndarray,
    nothing: Any,
    where: tuple[np.ndarray, int],
) -> tuple[np.ndarray, np.ndarray]:
    """Fold the columns of one matrix.

    Args:
        fold: What is done with two numbers.
        numbers: The numbers.
        before: What the columns begin with.
        nothing: Fills the rest of the columns.
        where: The cell of each number, row by row, the first row being what columns
            begin with; and how many of them columns have.
    """
    cells, longest = where
    width = len(before)
    matrix = np.full((longest + 1, width), nothing, numbers.dtype)
    matrix[0] = before
    flat = matrix.reshape(-1)
    flat[cells] = numbers
    if width < _STEPS_MIN:
        fold.accumulate(matrix, axis=0, out=matrix)
    else:
        # Numpy would go down one column after the other.
        for row in range(1, longest + 1):
            fold(matrix[row - 1], matrix[row], out=matrix[row])
    return flat.take(cells), matrix[-1]
