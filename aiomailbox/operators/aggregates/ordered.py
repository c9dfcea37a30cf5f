"""Aggregates that look at order or at differences: first, top, distinct, quantile."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, Generic, overload

from aiomailbox.errors import InvalidArgumentError, MissingExtraError, RecordTypeError
from aiomailbox.operators.aggregates.functions import Ranking, Undoable
from aiomailbox.operators.core.fields import (
    Condition,
    Selector,
    field_or_function,
    selector_text,
    selector_where,
)
from aiomailbox.operators.core.user_code import shortened
from aiomailbox.signatures import check_count, check_number
from aiomailbox.typevars import InT, OutT, ValueT

# The first and the last record by something, as aggregates.


# Whether there is a record, its rank, and its value.
Accumulator = list[Any]


class FirstLast(Ranking, Generic[InT, OutT]):
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

    def add(self, value: InT, accumulator: Accumulator) -> Accumulator:
        """Take a record if it comes before, or after; without a rank it is ignored."""
        rank = self.by(value)
        if self.warn is not None:
            self.look(rank)
        # Only NaN is not equal to itself.
        if rank is None or rank != rank or not self._wins(rank, accumulator):
            return accumulator
        kept = value if self.field is None else self.field(value)
        accumulator[:] = (True, rank, kept)
        return accumulator

    def get_result(self, accumulator: Accumulator) -> OutT:
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
        return rank >= held if self.is_last else rank < held


@overload
def first(
    field: None = None, *, by: Callable[[InT], Any], where: None = None
) -> FirstLast[InT, InT]: ...


@overload
def first(
    field: Callable[[InT], ValueT], *, by: Selector, where: None = None
) -> FirstLast[InT, ValueT]: ...


@overload
def first(
    field: Selector | None = None, *, by: Selector, where: Condition | None = None
) -> FirstLast[Any, Any]: ...


def first(
    field: Selector | None = None, *, by: Selector, where: Condition | None = None
) -> FirstLast[Any, Any]:
    """Find the value of the first record, in the order of a field, e.g. its event time.

    Of equally early records the one that came first counts. None if no record counts.

    Args:
        field: The value to emit: a field's name or a function of the record; None for
            the record itself.
        by: The order, earliest first: a field's name or a function of the record.
            Records for which it gives None or NaN are ignored.
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


@overload
def last(
    field: None = None, *, by: Callable[[InT], Any], where: None = None
) -> FirstLast[InT, InT]: ...


@overload
def last(
    field: Callable[[InT], ValueT], *, by: Selector, where: None = None
) -> FirstLast[InT, ValueT]: ...


@overload
def last(
    field: Selector | None = None, *, by: Selector, where: Condition | None = None
) -> FirstLast[Any, Any]: ...


def last(
    field: Selector | None = None, *, by: Selector, where: Condition | None = None
) -> FirstLast[Any, Any]:
    """Find the value of the last record, in the order of a field, e.g. its event time.

    Of equally late records the one that came last counts; else as `first`.

    Args:
        field: The value to emit: a field's name or a function of the record; None for
            the record itself.
        by: The order, latest last: a field's name or a function of the record.
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


# The largest records, as an aggregate.


class TopN(Ranking, Generic[InT]):
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
        if self.warn is not None:
            self.look(rank)
        # Only NaN is not equal to itself.
        if rank is None or rank != rank:
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
    count. Records for which ``by`` gives None or NaN are ignored.

    Args:
        n: How many, 1 or more.
        by: A field's name or a function of a record.
        where: Records for which it gives something false do not count.

    Raises:
        InvalidArgumentError: If ``n`` is below 1.
        WrongTypeError: If an argument has the wrong type.

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


# How many different values there are, as an aggregate.


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

    It keeps every value, per key and window: about 60 bytes each plus the value itself,
    so 100,000 strings of 20 characters take some 13 MB. Values that are equal in Python
    are one: 1, 1.0 and True.

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


# Quantiles of a field, from a sketch.


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
        # Only NaN is not equal to itself.
        if number is None or number != number:
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
    """Estimate a quantile of a field; 0.5 is the median.

    The result differs from the value at rank ``q * (count - 1)``, rounded down, by at
    most ``accuracy`` times that value, for any number of records and any merges. It
    keeps a count per bin of values that are this close to each other. None if no record
    has a value. Needs the extra ``sketch``.

    Args:
        q: From 0 to 1.
        field: A field's name or a function of a record: finite numbers, or None or NaN
            for no value.
        accuracy: The relative error, between 0 and 1.
        where: A field's name or a function of a record: records for which it gives
            something false do not count.

    Raises:
        InvalidArgumentError: If a number is out of range.
        MissingExtraError: If ``ddsketch`` is not installed.
        WrongTypeError: If an argument has the wrong type.

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
