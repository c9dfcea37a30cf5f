"""The keys of a run of columns: each distinct one once, and which record has which.

Theory of operation: what depends on a key alone (its key group, its place in state) is
done once for each distinct key of a run, as a Python value, by the code that does it for
rows. All that is done for each record is to look up a number.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from math import prod
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aiomailbox.columnar.decode import column_decoder, decoded
from aiomailbox.columnar.rows import RowMaker

__all__ = ["KEYS_OF_ROWS", "KeyCodes", "KeySlots", "KnownKeys", "key_codes"]

# Why keys have to be read from rows.
KEYS_OF_ROWS: Final = (
    "a key is None, NaN or -0.0, or neither a text, a number, a bool nor bytes"
)
# Codes of all fields together have to stay below.
_CODES_MAX: Final = 2**63
# A kernel looks keys up sooner than a dict, but prepares all of them each time.
_LOOKED_UP_MAX: Final = 4096


class Columns(Protocol):
    """A record batch, or what puts columns of one together when they are asked for."""

    @property
    def schema(self) -> pa.Schema:
        """The columns' names and types."""
        ...

    def column(self, name: str) -> pa.Array:
        """Return a column."""
        ...


class KeyCodes(NamedTuple):
    """The keys of a run.

    Attributes:
        distinct: The keys as functions of a record would see them, each once.
        codes: For each record the place of its key in ``distinct``; int64, shape ``(n,)``.
    """

    distinct: list[Any]
    codes: np.ndarray


def key_codes(
    batch: Columns, maker: RowMaker, fields: tuple[str, ...], *, alone: bool
) -> KeyCodes | None:
    """Return the keys of a batch's rows, or None if the rows have to be asked.

    They have to be for keys that could be equal without being the same (-0.0), or are
    equal to none (NaN), that are no keys (null), and that only a record knows.

    Args:
        batch: The rows' columns.
        maker: Would make the rows.
        fields: Which columns are the key.
        alone: Whether the key is the value of the one field; else it is a tuple.

    Example:
        >>> from aiomailbox.columnar.forms import NamedTupleForm
        >>> batch = pa.record_batch({"a": ["x", "y", "x"], "n": [1, 2, 1]})
        >>> maker = RowMaker(batch.schema, NamedTupleForm())
        >>> key_codes(batch, maker, ("a", "n"), alone=False)
        KeyCodes(distinct=[('x', 1), ('y', 2)], codes=array([0, 1, 0]))
    """
    found = [_codes_of(batch, maker, field) for field in fields]
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
        >>> from aiomailbox.columnar.forms import NamedTupleForm
        >>> batch = pa.record_batch({"a": ["x", "y", "x"]})
        >>> slots = KeySlots(print)
        >>> slots.of_batch(
        ...     batch, RowMaker(batch.schema, NamedTupleForm()), ("a",), True
        ... )
        ['x', 'y']
        array([0, 1, 0])
    """

    __slots__ = ("_begin", "_known", "keys", "places")

    def __init__(self, begin: Callable[[list[Any]], None]) -> None:
        self.places: dict[Any, int] = {}
        self.keys: list[Any] = []
        self._begin = begin
        # All keys as a column, while they are few: a kernel looks them up.
        self._known: pa.Array | None = None

    def of_batch(
        self,
        batch: Columns,
        maker: RowMaker,
        fields: tuple[str, ...],
        alone: bool,
    ) -> np.ndarray | None:
        """Return the place of each row's key; None if the rows have to be asked.

        Args as for `key_codes`.
        """
        known = self._known
        if known is not None and alone and not maker.special:
            place = batch.schema.get_field_index(fields[0])
            column = batch.column(fields[0]) if place >= 0 else None
            # Of the same type only: a kernel would find 1.0 for 1.
            if column is not None and column.type.equals(known.type):
                found = pc.index_in(column, known)
                if not found.null_count:
                    return _int64(found)
        keys = key_codes(batch, maker, fields, alone=alone)
        return None if keys is None else self._placed(keys, batch, fields)

    def _placed(
        self, keys: KeyCodes, batch: Columns, fields: tuple[str, ...]
    ) -> np.ndarray:
        places, distinct = self.places, keys.distinct
        found: list[Any] = list(map(places.get, distinct))
        if None in found:
            pairs = zip(distinct, found, strict=True)
            new = [key for key, place in pairs if place is None]
            self._begin(new)
            first = len(places)
            places.update(zip(new, range(first, first + len(new)), strict=True))
            self.keys += new
            found = list(map(places.get, distinct))
        self._learn(batch.schema.field(fields[0]).type, distinct[0])
        numbers: np.ndarray = np.array(found, np.int64)[keys.codes]
        return numbers

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
        found: np.ndarray = np.array([places[key] for key in keys], np.int64)
        return found

    def clear(self) -> None:
        """Forget all keys."""
        self.places = {}
        self.keys = []
        self._known = None


def _codes_of(batch: Columns, maker: RowMaker, field: str) -> KeyCodes | None:
    if batch.schema.get_field_index(field) < 0 or maker.is_special(field):
        return None
    column = given = batch.column(field)
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
