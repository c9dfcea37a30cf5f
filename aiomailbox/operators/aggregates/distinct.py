"""How many different values there are, as an aggregate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiomailbox.errors import RecordTypeError
from aiomailbox.operators.aggregates.promises import Undoable
from aiomailbox.operators.core.fields import (
    Condition,
    Selector,
    selector_text,
    selector_where,
)
from aiomailbox.operators.core.user_code import shortened

__all__ = ["CountDistinct", "count_distinct"]


class CountDistinct(Undoable):
    """Counts different values; see `count_distinct`.

    The accumulator is the set of them.

    Args:
        field: A field's name or a function of a record.
        where: Which records count; None for all.
    """

    is_commutative = True
    accumulator_kind = "count_distinct"

    def __init__(self, field: Selector, where: Condition | None = None) -> None:
        self.field: Callable[[Any], Any] = selector_where(field, "field", where)

    def __repr__(self) -> str:
        return f"count_distinct({selector_text(self.field)})"

    def may_hold(self, accumulator: Any) -> bool:
        """Return whether it may have made an accumulator: a set."""
        return type(accumulator) is set

    def create_accumulator(self) -> set[Any]:
        """Return a set of nothing."""
        return set()

    def add(self, value: Any, accumulator: set[Any]) -> set[Any]:
        """Take the record's value; one without a value is ignored.

        Raises:
            RecordTypeError: If the value cannot be in a set.
        """
        found = self.field(value)
        if found is None:
            return accumulator
        try:
            accumulator.add(found)
        except TypeError as error:
            raise RecordTypeError(
                "field",
                f"{shortened(found)} of the record {shortened(value)} is not hashable",
                "Use a str, a number or a tuple of these.",
            ) from error
        return accumulator

    def mark(self, value: Any, accumulator: set[Any]) -> Any:
        """Return the record's value if it is not there yet, in a tuple."""
        found = self.field(value)
        try:
            return () if found is None or found in accumulator else (found,)
        except TypeError:
            # It cannot be added either.
            return ()

    def reset(self, accumulator: set[Any], mark: tuple[Any, ...]) -> set[Any]:
        """Take the record's value out again."""
        accumulator.difference_update(mark)
        return accumulator

    def get_result(self, accumulator: set[Any]) -> int:
        """Return how many there are."""
        return len(accumulator)

    def merge(self, first: set[Any], second: set[Any]) -> set[Any]:
        """Add the values of ``second`` to those of ``first``."""
        first |= second
        return first


def count_distinct(field: Selector, *, where: Condition | None = None) -> CountDistinct:
    """Count the different values of a field, exactly; None is none of them.

    Every value is kept, per key and window: about 60 bytes each and what the value
    itself takes, so 100,000 strings of 20 characters are some 13 MB. Values that are
    equal in Python are one: 1, 1.0 and True.

    Args:
        field: A field's name or a function of a record; values can be hashed.
        where: A field's name or a function of a record: records for which it gives
            something false do not count.

    Concept:
        SQL, ``COUNT(DISTINCT field) FILTER (WHERE ...)``.

    Example:
        >>> users = count_distinct("user")
        >>> seen = users.create_accumulator()
        >>> for user in ("a", "b", "a", None):
        ...     seen = users.add({"user": user}, seen)
        >>> users.get_result(seen)
        2
    """
    return CountDistinct(field, where)
