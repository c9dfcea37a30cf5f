"""The first and the last record by something, as aggregates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiomailbox.operators.aggregates.promises import UndoableList
from aiomailbox.operators.core.fields import (
    Condition,
    Selector,
    field_or_function,
    selector_text,
    selector_where,
)

__all__ = ["FirstLast", "first", "last"]

# Whether there is a record, its rank, and its value.
Accumulator = list[Any]


class FirstLast(UndoableList):
    """Keeps a value of the record with the smallest or largest rank; see `first`.

    Args:
        field: What is kept of the record; None for the record itself.
        by: What ranks records.
        where: Which records count; None for all.
        is_last: Whether the largest rank wins.
    """

    def __init__(
        self,
        field: Selector | None,
        by: Selector,
        where: Condition | None,
        *,
        is_last: bool,
    ) -> None:
        self.field: Callable[[Any], Any] | None = (
            None if field is None else field_or_function(field, "field")
        )
        self.by: Callable[[Any], Any] = selector_where(by, "by", where)
        self.is_last = is_last

    def __repr__(self) -> str:
        name = self.accumulator_kind
        read = "" if self.field is None else f"{selector_text(self.field)}, "
        return f"{name}({read}by={selector_text(self.by)})"

    @property
    def accumulator_kind(self) -> str:
        """Which of the two it is."""
        return "last" if self.is_last else "first"

    def may_hold(self, accumulator: Any) -> bool:
        """Return whether it, or the other of the two, may have made an accumulator."""
        return (
            type(accumulator) is list
            and len(accumulator) == len(self.create_accumulator())
            and type(accumulator[0]) is bool
        )

    def create_accumulator(self) -> Accumulator:
        """Return an accumulator without a record."""
        return [False, None, None]

    def add(self, value: Any, accumulator: Accumulator) -> Accumulator:
        """Take a record if it comes before, or after; without a rank it is ignored."""
        rank = self.by(value)
        if rank is None or not self._wins(rank, accumulator):
            return accumulator
        kept = value if self.field is None else self.field(value)
        accumulator[:] = (True, rank, kept)
        return accumulator

    def get_result(self, accumulator: Accumulator) -> Any:
        """Return what was kept, or None if no record counts."""
        return accumulator[2]

    def merge(self, first: Accumulator, second: Accumulator) -> Accumulator:
        """Return the one that comes before, or after; of equals as if added so."""
        if second[0] and self._wins(second[1], first):
            first[:] = second
        return first

    def _wins(self, rank: Any, accumulator: Accumulator) -> bool:
        if not accumulator[0]:
            return True
        held = accumulator[1]
        won: bool = rank >= held if self.is_last else rank < held
        return won


def first(
    field: Selector | None = None, *, by: Selector, where: Condition | None = None
) -> FirstLast:
    """Find the value of the first record, in the order of a field, e.g. its event time.

    Of equally early records the one that came first counts. None if no record counts.

    Args:
        field: What is wanted of the record, a field's name or a function; None for the
            record itself.
        by: What says how early it is: a field's name or a function of a record.
            Records for which it gives None are ignored.
        where: Records for which it gives something false do not count.

    Concept:
        Flink SQL, ``FIRST_VALUE``.

    Example:
        >>> opening = first("price", by="at")
        >>> held = opening.create_accumulator()
        >>> for at, price in ((2, 10.5), (1, 10.0), (3, 11.0)):
        ...     held = opening.add({"at": at, "price": price}, held)
        >>> opening.get_result(held)
        10.0
    """
    return FirstLast(field, by, where, is_last=False)


def last(
    field: Selector | None = None, *, by: Selector, where: Condition | None = None
) -> FirstLast:
    """Find the value of the last record, in the order of a field, e.g. its event time.

    Of equally late records the one that came last counts; else as `first`.

    Args:
        field: What is wanted of the record; None for the record itself.
        by: What says how late it is.
        where: Records for which it gives something false do not count.

    Concept:
        Flink SQL, ``LAST_VALUE``.

    Example:
        >>> closing = last("price", by="at", where=lambda trade: trade["price"] > 0)
        >>> held = closing.create_accumulator()
        >>> for at, price in ((2, 10.5), (1, 10.0), (3, 0)):
        ...     held = closing.add({"at": at, "price": price}, held)
        >>> closing.get_result(held)
        10.5
    """
    return FirstLast(field, by, where, is_last=True)
