"""Quantiles of a field, from a sketch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiomailbox.errors import InvalidArgumentError, MissingExtraError
from aiomailbox.operators.aggregates.promises import Undoable
from aiomailbox.operators.core.fields import (
    Condition,
    Selector,
    selector_text,
    selector_where,
)
from aiomailbox.policies.arguments import check_number

__all__ = ["Quantile", "quantile"]

# How many values above, below and at zero there are; the first two by the sketch's bin.
Accumulator = list[Any]
# Which of the three, and which bin.
_Place = tuple[int, int]


class Quantile(Undoable):
    """Estimates a quantile; see `quantile`.

    The accumulator holds the counts of a DDSketch as plain values, so that it can be
    kept and merged like any other; the library says which bin a value belongs to, and
    which value a rank has.

    Args:
        q: From 0 to 1.
        field: A field's name or a function of a record.
        accuracy: The relative error.
        where: Which records count; None for all.
    """

    is_commutative = True

    def __init__(
        self,
        q: float,
        field: Selector,
        accuracy: float,
        where: Condition | None = None,
    ) -> None:
        self.q: float = check_number(q, "q", minimum=0, maximum=1)
        self.field: Callable[[Any], Any] = selector_where(field, "field", where)
        self.accuracy: float = check_number(accuracy, "accuracy", minimum=0)
        if not 0 < accuracy < 1:
            raise InvalidArgumentError(
                "accuracy",
                f"{accuracy} is not a relative error between 0 and 1",
                "Use e.g. 0.01.",
            )
        self._mapping = _mapping(accuracy)

    def __reduce__(self) -> tuple[Any, ...]:
        return Quantile, (self.q, self.field, self.accuracy)

    def __repr__(self) -> str:
        return f"quantile({self.q}, {selector_text(self.field)})"

    @property
    def accumulator_kind(self) -> str:
        """With the accuracy, which says what the bins are; all quantiles read them."""
        return f"quantile(accuracy={self.accuracy})"

    def may_hold(self, accumulator: Any) -> bool:
        """Return whether it may have made an accumulator: two dicts and a count."""
        return type(accumulator) is list and [*map(type, accumulator)] == [
            dict,
            dict,
            int,
        ]

    def create_accumulator(self) -> Accumulator:
        """Return counts of nothing."""
        return [{}, {}, 0]

    def add(self, value: Any, accumulator: Accumulator) -> Accumulator:
        """Count a record; one without a value is ignored."""
        self._count(accumulator, self._place(value), 1)
        return accumulator

    def mark(self, value: Any, accumulator: Accumulator) -> _Place | None:
        """Return where the record is counted."""
        return self._place(value)

    def reset(self, accumulator: Accumulator, mark: _Place | None) -> Accumulator:
        """Count the record no more."""
        self._count(accumulator, mark, -1)
        return accumulator

    def get_result(self, accumulator: Accumulator) -> float | None:
        """Return the quantile, or None if no record has a value."""
        from ddsketch.ddsketch import BaseDDSketch

        above, below, zeros = accumulator
        sketch = BaseDDSketch(self._mapping, _store(above), _store(below), zeros)
        result: float | None = sketch.get_quantile_value(self.q)
        return None if result is None else float(result)

    def merge(self, first: Accumulator, second: Accumulator) -> Accumulator:
        """Add the counts of ``second`` to those of ``first``."""
        for counts, others in zip(first[:2], second[:2], strict=True):
            for index, count in others.items():
                counts[index] = counts.get(index, 0) + count
        first[2] += second[2]
        return first

    def _place(self, value: Any) -> _Place | None:
        number = self.field(value)
        if number is None:
            return None
        smallest = self._mapping.min_possible
        if number > smallest:
            return 0, self._mapping.key(number)
        if number < -smallest:
            return 1, self._mapping.key(-number)
        return 2, 0

    def _count(self, accumulator: Accumulator, place: _Place | None, by: int) -> None:
        if place is None:
            return
        slot, index = place
        if slot == 2:
            accumulator[2] += by
            return
        counts = accumulator[slot]
        count = counts.get(index, 0) + by
        if count:
            counts[index] = count
        else:
            del counts[index]


def quantile(
    q: float,
    field: Selector,
    *,
    accuracy: float = 0.01,
    where: Condition | None = None,
) -> Quantile:
    """Estimate a quantile of a field: the median is that of 0.5.

    The result differs from the value at rank ``q * (count - 1)``, rounded down, by at
    most ``accuracy`` times that value, however many records there are and however they
    were merged; a count is kept per bin of values that close to each other. None if no
    record has a value. Needs the extra ``sketch``.

    Args:
        q: From 0 to 1.
        field: A field's name or a function of a record; finite numbers, or None.
        accuracy: The relative error, between 0 and 1.
        where: A field's name or a function of a record: records for which it gives
            something false do not count.

    Raises:
        InvalidArgumentError: If a number is out of range.
        MissingExtraError: If ``ddsketch`` is not installed.
        WrongTypeError: If an argument is of another type.

    Example:
        >>> median = quantile(0.5, float)
        >>> numbers = median.create_accumulator()
        >>> for number in range(1, 102):
        ...     numbers = median.add(number, numbers)
        >>> abs(median.get_result(numbers) - 51) <= 0.01 * 51
        True
    """
    return Quantile(q, field, accuracy, where)


def _mapping(accuracy: float) -> Any:
    try:
        from ddsketch.mapping import LogarithmicMapping
    except ImportError as error:
        raise MissingExtraError("quantile", "sketch") from error
    return LogarithmicMapping(accuracy)


def _store(counts: dict[int, int]) -> Any:
    from ddsketch.store import DenseStore

    store = DenseStore()
    for index, count in counts.items():
        store.add(index, count)
    return store
