"""The types that columns of keys have had, and those that hold all keys."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from aiomailbox.columnar.plain import plain_type
from aiomailbox.columnar.rows_needed import RowsNeededError

__all__ = ["KeyTypes"]

_SEEN_MAX: Final = 64
_MISFIT: Final = (pa.ArrowException, OverflowError, TypeError)


class KeyTypes:
    """A type for each field of a key, wide enough for all keys that came.

    Two streams that were united may have narrower and wider columns of keys in turns.

    Attributes:
        types: The types; None before the first run.

    Example:
        >>> types = KeyTypes()
        >>> types.add([pa.int64()], [300], alone=True)
        >>> types.add([pa.int8()], [300, 1], alone=True)
        >>> types.types
        [DataType(int64)]
    """

    __slots__ = ("_seen", "types")

    def __init__(self) -> None:
        self.types: list[pa.DataType] | None = None
        self._seen: set[tuple[pa.DataType, ...]] = set()

    def add(self, kinds: list[pa.DataType], keys: list[Any], *, alone: bool) -> None:
        """Widen the types to those of a run's columns.

        Args:
            kinds: The types of the columns.
            keys: All keys that there are.
            alone: Whether a key is the value of the one field; else it is a tuple.

        Raises:
            RowsNeededError: If no type holds all keys of a field.
        """
        seen = tuple(kinds)
        if seen in self._seen:
            return
        plain = [
            kind.value_type if pa.types.is_dictionary(kind) else kind for kind in kinds
        ]
        known = plain if self.types is None else self.types
        self.types = _holding(list(map(_both, known, plain)), keys, alone=alone)
        if len(self._seen) >= _SEEN_MAX:
            self._seen.clear()
        self._seen.add(seen)

    def hold(self, keys: list[Any], *, alone: bool) -> None:
        """Widen the types to keys that a restore has brought.

        Raises:
            RowsNeededError: If no type holds all keys of a field.
        """
        if self.types is not None:
            self.types = _holding(self.types, keys, alone=alone)


def _holding(
    kinds: list[pa.DataType], keys: list[Any], *, alone: bool
) -> list[pa.DataType]:
    """Return types that hold keys, the same ones or wider."""
    if not keys:
        return kinds
    parts = [keys] if alone else zip(*keys, strict=True)
    return [
        kind if _holds(kind, part) else _plainer(kind, part)
        for kind, part in zip(kinds, parts, strict=True)
    ]


def _plainer(kind: pa.DataType, keys: Any) -> pa.DataType:
    """Return the type of all values like those of a column, for keys that it has not."""
    plain = plain_type(kind)
    if plain is None or not _holds(plain, keys):
        raise RowsNeededError("keys are of several types")
    return plain


def _both(kind: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return a type for all values of two types."""
    if kind.equals(other):
        return kind
    try:
        schemas = [pa.schema([("key", kind)]), pa.schema([("key", other)])]
        merged = pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowException as error:
        raise RowsNeededError("keys are of several types") from error
    return merged.field(0).type


def _holds(kind: pa.DataType, keys: Any) -> bool:
    """Say whether a column of a type has just these keys."""
    try:
        return bool(pa.array(keys, kind).to_pylist() == list(keys))
    except _MISFIT:
        return False
