"""The largest records, as an aggregate."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, Generic

from aiomailbox.operators.aggregates.promises import UndoableList
from aiomailbox.operators.core.fields import (
    Condition,
    Selector,
    selector_text,
    selector_where,
)
from aiomailbox.policies.arguments import check_count
from aiomailbox.typevars import InT

__all__ = ["TopN", "top_n"]


class TopN(UndoableList, Generic[InT]):
    """Keeps the ``n`` records that are largest by something; see `top_n`.

    The accumulator is a list of records, the smallest first.

    Args:
        n: How many.
        by: A field's name or a function of a record.
        where: Which records count; None for all.
    """

    def __init__(self, n: int, by: Selector, where: Condition | None = None) -> None:
        self.n: int = check_count(n, "n")
        self.by: Callable[[Any], Any] = selector_where(by, "by", where)

    def __repr__(self) -> str:
        return f"top_n({self.n}, by={selector_text(self.by)})"

    @property
    def accumulator_kind(self) -> str:
        """With how many records: of fewer, more could not be made again."""
        return f"top_n({self.n})"

    def may_hold(self, accumulator: Any) -> bool:
        """Return whether it may have made an accumulator: a list that is short enough."""
        return type(accumulator) is list and len(accumulator) <= self.n

    def create_accumulator(self) -> list[InT]:
        """Return an empty list."""
        return []

    def add(self, value: InT, accumulator: list[InT]) -> list[InT]:
        """Add a record, unless ``n`` are as large; one without a value is ignored."""
        by = self.by
        rank = by(value)
        if rank is None:
            return accumulator
        if len(accumulator) < self.n:
            accumulator.insert(bisect_left(accumulator, rank, key=by), value)
        elif rank > by(accumulator[0]):
            accumulator.insert(bisect_left(accumulator, rank, key=by), value)
            del accumulator[0]
        return accumulator

    def get_result(self, accumulator: list[InT]) -> list[InT]:
        """Return the records, the largest first."""
        return accumulator[::-1]

    def merge(self, first: list[InT], second: list[InT]) -> list[InT]:
        """Return the largest of both; of equal ones those of ``first``."""
        return sorted([*second, *first], key=self.by)[-self.n :]


def top_n(n: int, *, by: Selector, where: Condition | None = None) -> TopN[InT]:
    """Find the ``n`` records that are largest by something.

    The result is a list, the largest first; of equally large records the earlier ones
    count. Records for which ``by`` gives None are ignored.

    Args:
        n: How many, 1 or more.
        by: A field's name or a function of a record.
        where: Records for which it gives something false do not count.

    Raises:
        InvalidArgumentError: If ``n`` is below 1.
        WrongTypeError: If an argument is of another type.

    Concept:
        Flink SQL, Top-N.

    Example:
        >>> best = top_n(2, by=len)
        >>> words = best.create_accumulator()
        >>> for word in ["ab", "a", "abc"]:
        ...     words = best.add(word, words)
        >>> best.get_result(words)
        ['abc', 'ab']
    """
    return TopN(n, by, where)
