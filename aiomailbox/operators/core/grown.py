"""Sequences in state that grow by one value at a time, and are never changed in place.

Theory of operation: what is kept in state is replaced and never changed, because snapshots
share it; a tuple that is replaced for each value costs the square of its length. So a
sequence is a tuple of tuples whose lengths fall, as the digits of a binary counter: a new
value is a tuple of its own, and neighbours that are not longer are joined with it. A value
is copied as often as the length can be doubled.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

__all__ = ["Grown", "grown", "values_of"]

Grown = tuple[tuple[Any, ...], ...]


def grown(sequence: Grown, value: Any) -> Grown:
    """Return a sequence with a value more.

    Cost:
        As many copies of a reference per value as the binary logarithm of the length.

    Example:
        >>> grown(grown(grown((), "a"), "b"), "c")
        (('a', 'b'), ('c',))
    """
    last: tuple[Any, ...] = (value,)
    end = len(sequence)
    while end and len(sequence[end - 1]) <= len(last):
        end -= 1
        last = (*sequence[end], *last)
    return (*sequence[:end], last)


def values_of(sequence: Grown) -> Iterator[Any]:
    """Return the values of a sequence, in their order.

    Example:
        >>> list(values_of((("a", "b"), ("c",))))
        ['a', 'b', 'c']
    """
    return chain.from_iterable(sequence)
