"""Aggregates from which a record can be taken back, should it fail later.

Theory of operation: an accumulator may be changed in place, so that what it was is lost
unless something is noted first. A ready-made aggregate notes next to nothing; one of
the user's gets a copy to work on. Only operators whose records may fail without failing
the job pay for this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiomailbox.operators.aggregates.functions import Aggregate, Undoable
from aiomailbox.operators.core.failures import USER_ERRORS
from aiomailbox.state.descriptors import AggregateFunction
from aiomailbox.state.snapshot import copy_content


def undoable(aggregate: AggregateFunction) -> Any:
    """Return an aggregate function in a form from which records can be taken back.

    Example:
        >>> from aiomailbox.operators.aggregates.functions import mean
        >>> average = undoable(mean(float))
        >>> held = average.add("1", average.create_accumulator())
        >>> mark = average.mark("3", held)
        >>> held = average.add("3", held)
        >>> average.get_result(held), average.get_result(average.reset(held, mark))
        (2.0, 1.0)
    """
    if isinstance(aggregate, Aggregate):
        return _OfPieces(aggregate)
    if isinstance(aggregate, Undoable):
        return _WithSafeMerge(aggregate) if aggregate.merges_in_place else aggregate
    return _OnCopies(aggregate)


class _OnCopies(Undoable):
    """A function of the user's: it never gets what is kept, but a copy.

    Cost:
        A copy of the accumulator per record.
    """

    def __init__(self, aggregate: Any) -> None:
        self._aggregate = aggregate
        self.create_accumulator: Callable[[], Any] = aggregate.create_accumulator
        self.get_result: Callable[[Any], Any] = aggregate.get_result

    def add(self, value: Any, accumulator: Any) -> Any:
        return self._aggregate.add(value, copy_content(accumulator))

    def merge(self, first: Any, second: Any) -> Any:
        return self._aggregate.merge(copy_content(first), copy_content(second))


class _WithSafeMerge:
    """A ready-made aggregate function, which can be undone but merges in place."""

    def __init__(self, aggregate: Any) -> None:
        self.create_accumulator: Callable[[], Any] = aggregate.create_accumulator
        self.add: Callable[[Any, Any], Any] = aggregate.add
        self.get_result: Callable[[Any], Any] = aggregate.get_result
        self.mark: Callable[[Any, Any], Any] = aggregate.mark
        self.reset: Callable[[Any, Any], Any] = aggregate.reset
        self._merge = aggregate.merge

    def merge(self, first: Any, second: Any) -> Any:
        return self._merge(copy_content(first), copy_content(second))


class _CopyMarks(Undoable):
    """Of a part that may change its accumulator in place: the mark is a copy of it."""

    def mark(self, value: Any, accumulator: Any) -> Any:
        return copy_content(accumulator)


class _OfPieces(_OnCopies):
    """One or several ready-made aggregates, with a list as the accumulator.

    Each piece computes before any of them is changed, except for those of the user's
    and other objects among them.
    """

    def __init__(self, aggregate: Aggregate) -> None:
        super().__init__(aggregate)
        slots = list(enumerate(aggregate.slots()))
        self._lists = [slot for slot, kind in slots if kind == "collect_list"]
        self._parts = [
            (slot, _part(kind)) for slot, kind in slots if not isinstance(kind, str)
        ]

    def add(self, value: Any, accumulator: list[Any]) -> Any:
        if not self._parts:
            return self._aggregate.add(value, accumulator)
        mark = self.mark(value, accumulator)
        try:
            return self._aggregate.add(value, accumulator)
        except USER_ERRORS:
            self.reset(accumulator, mark)
            raise

    def mark(self, value: Any, accumulator: list[Any]) -> list[Any]:
        marks = accumulator.copy()
        for slot in self._lists:
            marks[slot] = len(accumulator[slot])
        for slot, part in self._parts:
            marks[slot] = part.mark(value, accumulator[slot])
        return marks

    def reset(self, accumulator: list[Any], mark: list[Any]) -> list[Any]:
        for slot in self._lists:
            elements = accumulator[slot]
            del elements[mark[slot] :]
            mark[slot] = elements
        for slot, part in self._parts:
            mark[slot] = part.reset(accumulator[slot], mark[slot])
        accumulator[:] = mark
        return accumulator


def _part(function: Any) -> Any:
    if isinstance(function, Aggregate):
        return _OfPieces(function)
    return function if isinstance(function, Undoable) else _CopyMarks()
