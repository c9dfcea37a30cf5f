"""The functions of reducing and aggregating state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from aiomailbox.typevars import AccT, InT_contra, OutT_co

__all__ = ["AggregateFunction", "ReduceFunction"]

ReduceFunction = Callable[[Any, Any], Any]


class AggregateFunction(Protocol[InT_contra, AccT, OutT_co]):
    """Folds values into an accumulator and reads a result from it.

    `add` and `merge` may change and return the accumulator they were given, or return
    another one; only what they return is kept.

    Its type variables are those of the values, the accumulator and the result.

    A class may have an ``accumulator_kind``, a str: under it, in place of the name of the
    class, savepoints find its accumulators again. Give it another one when they change.

    Concept:
        Flink, ``AggregateFunction``.

    Example:
        >>> class Mean:
        ...     def create_accumulator(self):
        ...         return (0, 0.0)
        ...
        ...     def add(self, value, accumulator):
        ...         count, total = accumulator
        ...         return (count + 1, total + value)
        ...
        ...     def get_result(self, accumulator):
        ...         count, total = accumulator
        ...         return total / count
        ...
        ...     def merge(self, first, second):
        ...         return (first[0] + second[0], first[1] + second[1])
        >>> mean = Mean()
        >>> mean.get_result(mean.add(4, mean.add(2, mean.create_accumulator())))
        3.0
    """

    def create_accumulator(self) -> AccT:
        """Return a new, empty accumulator."""
        ...

    def add(self, value: InT_contra, accumulator: AccT, /) -> AccT:
        """Return the accumulator after adding ``value``."""
        ...

    def get_result(self, accumulator: AccT, /) -> OutT_co:
        """Return the result; the accumulator must not change."""
        ...

    def merge(self, first: AccT, second: AccT, /) -> AccT:
        """Return one accumulator with the contents of both."""
        ...
