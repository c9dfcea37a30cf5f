"""Calls the kernels that an expression is made of, one after the other.

Theory of operation: Arrow evaluates an expression by a plan, which takes a tenth of a
millisecond to begin: more than the kernels themselves need for a run. What an expression
is made of, Arrow tells only by its pickled form: a call, a field or a literal is an entry
of a schema's metadata, of which the same key may come several times. So the metadata is
read as Arrow's C interface lays it out. Only calls that mean the same in both ways are
made here: of types for which a plan would cast nothing, without options.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Kernel", "Parts", "kernel_of", "parts_of"]

Kernel = Callable[[Mapping[str, pa.Array]], pa.Array]

_ARITHMETIC: Final = frozenset(
    f"{name}{ending}"
    for name in ("add", "subtract", "multiply", "divide")
    for ending in ("", "_checked")
)
_BITS: Final = frozenset({"bit_wise_and", "bit_wise_or", "bit_wise_xor"})
_COMPARING: Final = frozenset(
    {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}
)
_LOGIC: Final = frozenset({"and_kleene", "or_kleene"})
_INT, _FLOAT, _TEXT, _BOOL = pa.int64(), pa.float64(), pa.string(), pa.bool_()
_COMPARED: Final = (_INT, _FLOAT, _TEXT)
# Beyond it, an integer is not always a float.
_EXACT_MAX: Final = 2**53
# What an expression may consist of; a field of a field is not among it.
_KNOWN_ENTRIES: Final = frozenset({"call", "end", "field_ref", "literal", "options"})


class _Bound(NamedTuple):
    """A part of an expression that can be called.

    Attributes:
        kind: Of what it gives.
        literal: What it always gives; None if it depends on columns.
        run: Gives it.
    """

    kind: pa.DataType
    literal: pa.Scalar | None
    run: Kernel


class _CSchema(ctypes.Structure):
    """``ArrowSchema`` of Arrow's C data interface, as far as it is read."""

    _fields_ = (
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_void_p),
    )


# Longer ones have long literals, and are not kept.
_KNOWN_BYTES_MAX: Final = 16_384


class Parts(NamedTuple):
    """What an expression is made of.

    Attributes:
        entries: Calls, fields and literals in the order in which they are written.
        batch: Has the literals.

    Example:
        >>> parts = parts_of(pc.field("a") + pc.field("b") * 2)
        >>> sorted(parts.fields())
        ['a', 'b']
        >>> kernel = parts.kernel({"a": pa.int64(), "b": pa.int64()})
        >>> kernel({"a": pa.array([1, None]), "b": pa.array([2, 3])}).to_pylist()
        [5, None]
    """

    entries: list[tuple[str, str]]
    batch: pa.RecordBatch

    def fields(self) -> set[str] | None:
        """Return the names of the fields that are read; None if they are not known."""
        if not {key for key, _ in self.entries} <= _KNOWN_ENTRIES:
            return None
        return {value for key, value in self.entries if key == "field_ref"}

    def kernel(self, types: Mapping[str, pa.DataType]) -> Kernel | None:
        """Return what evaluates the expression over columns; None to leave it to a plan.

        Args:
            types: The types of the columns that it reads.
        """
        entries = iter(self.entries)
        found = _bound(next(entries, ("", "")), entries, self.batch, types)
        return None if found is None or found.literal is not None else found.run


def parts_of(expression: pc.Expression) -> Parts | None:
    """Return what an expression is made of; None if Arrow says it in another way."""
    try:
        (_, (packed,)) = expression.__reduce__()
        data = bytes(packed)
        # It is asked several times for each expression of a job that starts.
        return _known_parts(data) if len(data) <= _KNOWN_BYTES_MAX else _unpacked(data)
    except (pa.ArrowException, TypeError, ValueError):
        # Another version may pickle expressions in another form.
        return None


def _unpacked(packed: bytes) -> Parts:
    batch = pa.ipc.open_file(packed).get_batch(0)
    return Parts(_metadata(batch.schema), batch)


_known_parts = lru_cache(maxsize=256)(_unpacked)


def kernel_of(
    expression: pc.Expression, types: Mapping[str, pa.DataType]
) -> Kernel | None:
    """Return what evaluates an expression over columns; None to leave it to a plan.

    Args:
        expression: What to evaluate.
        types: The types of the columns that it reads.

    Example:
        >>> kernel = kernel_of(pc.field("n") * 2 > 4, {"n": pa.int64()})
        >>> kernel({"n": pa.array([1, None, 3])}).to_pylist()
        [False, None, True]
        >>> kernel_of(pc.field("n").cast("string"), {"n": pa.int64()}) is None
        True
    """
    parts = parts_of(expression)
    return None if parts is None else parts.kernel(types)


def _bound(
    entry: tuple[str, str],
    rest: Iterator[tuple[str, str]],
    batch: pa.RecordBatch,
    types: Mapping[str, pa.DataType],
) -> _Bound | None:
    """Return the part that an entry begins; takes its other entries from the rest."""
    key, value = entry
    if key == "field_ref" and value in types:
        return _Bound(types[value], None, lambda columns: columns[value])
    if key == "literal":
        return _constant(batch.column(int(value))[0])
    if key != "call":
        return None
    parts: list[_Bound] = []
    for one in rest:
        if one == ("end", value):
            return _called(value, parts)
        part = _bound(one, rest, batch, types)
        if part is None:
            return None
        parts.append(part)
    return None


def _constant(literal: pa.Scalar) -> _Bound | None:
    return (
        _Bound(literal.type, literal, lambda _: literal) if literal.is_valid else None
    )


def _called(name: str, parts: list[_Bound]) -> _Bound | None:
    """Return a call of a kernel; None if a plan might do something else."""
    if all(part.literal is not None for part in parts):
        return None
    if name == "invert" and [part.kind for part in parts] == [_BOOL]:
        (given,) = (part.run for part in parts)
        return _Bound(_BOOL, None, lambda columns: pc.invert(given(columns)))
    if len(parts) != 2:
        return None
    first, second = _fitted(parts[0], parts[1]), _fitted(parts[1], parts[0])
    kind = _result_of(name, first.kind) if first.kind == second.kind else None
    if kind is None:
        return None
    call, one, other = pc.get_function(name).call, first.run, second.run
    return _Bound(kind, None, lambda columns: call([one(columns), other(columns)]))


def _fitted(part: _Bound, other: _Bound) -> _Bound:
    """Return a literal as a fraction where the other one is a fraction."""
    literal = part.literal
    if literal is None or part.kind != _INT or other.kind != _FLOAT:
        return part
    number = literal.as_py()
    exact = _constant(pa.scalar(float(number))) if abs(number) <= _EXACT_MAX else None
    return part if exact is None else exact


def _result_of(name: str, kind: pa.DataType) -> pa.DataType | None:
    """Return what a kernel makes of two of a type; None if it is not called here."""
    if name in _ARITHMETIC:
        return kind if kind in {_INT, _FLOAT} else None
    if name in _BITS:
        return kind if kind == _INT else None
    if name in _COMPARING:
        return _BOOL if kind in _COMPARED else None
    return _BOOL if name in _LOGIC and kind == _BOOL else None


def _metadata(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return all entries of a schema's metadata, in their order."""
    capsule = schema.__arrow_c_schema__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype = ctypes.c_void_p
    pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    address = _CSchema.from_address(pointer(capsule, b"arrow_schema")).metadata

    def number() -> int:
        nonlocal address
        found = ctypes.c_int32.from_address(address).value
        address += 4
        return found

    def text() -> str:
        nonlocal address
        length = number()
        found = ctypes.string_at(address, length).decode()
        address += length
        return found

    if not address:
        return []
    return [(text(), text()) for _ in range(number())]
