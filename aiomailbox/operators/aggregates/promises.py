"""What an aggregate promises: any order, and values taken out again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from aiomailbox.errors import WrongTypeError

# A promise about a function: the order of what it combines is all the same to it.


_T = TypeVar("_T", bound=Callable[..., Any])


def commutative(function: _T) -> _T:
    """Promise that a reduce function or an aggregate combines records in any order.

    Overlapping windows may then share work: a record is added once, not once per
    window, and what was added is merged. The results are the same; only sums of floats
    may differ in their last digits.

    A function that is given to ``reduce`` must be associative too, and must not change
    its arguments. An aggregate must have a ``merge`` whose result is what adding all
    records of both would give, and which may change and return its first argument, but
    neither changes nor keeps the second.

    Args:
        function: The reduce function, or the class of the aggregate. It is marked and
            returned; what cannot be marked, such as a built-in function, is wrapped.

    Raises:
        WrongTypeError: If it cannot be called.

    Example:
        >>> largest = commutative(max)
        >>> largest(1, 2), is_commutative(largest), is_commutative(max)
        (2, True, False)
        >>> @commutative
        ... class Count:
        ...     def create_accumulator(self):
        ...         return 0
        ...
        ...     def add(self, value, accumulator):
        ...         return accumulator + 1
        ...
        ...     def get_result(self, accumulator):
        ...         return accumulator
        ...
        ...     def merge(self, first, second):
        ...         return first + second
        >>> is_commutative(Count())
        True
    """
    if not callable(function):
        raise WrongTypeError(
            "function",
            f"{function!r} is neither a function nor a class",
            "Decorate the reduce function, or the class of the aggregate.",
        )
    try:
        function.is_commutative = True  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        wrapped: Any = functools.partial(function)
        wrapped.is_commutative = True
        return wrapped  # type: ignore[no-any-return]
    return function


def is_commutative(function: object) -> bool:
    """Return whether `commutative` was said of it, or is known."""
    return getattr(function, "is_commutative", False) is True


# What ready-made aggregates add so that a record can be taken back from them.


class Undoable:
    """The base of aggregate functions that know how to be undone.

    Their ``add`` computes first and changes the accumulator when nothing can fail any
    more. By default a mark is the accumulator itself, for those that never change one.

    Attributes:
        merges_in_place: Whether ``merge`` may change its arguments.
    """

    __slots__ = ()

    merges_in_place = True

    def mark(self, value: Any, accumulator: Any) -> Any:
        """Return what `reset` needs, before ``value`` is added to the accumulator."""
        return accumulator

    def reset(self, accumulator: Any, mark: Any) -> Any:
        """Return the accumulator as it was; what was added since is forgotten."""
        return mark


class UndoableList(Undoable):
    """The base of those whose accumulator is a short list of values."""

    __slots__ = ()

    def mark(self, value: Any, accumulator: list[Any]) -> list[Any]:
        """Return a copy."""
        return accumulator.copy()

    def reset(self, accumulator: list[Any], mark: list[Any]) -> list[Any]:
        """Put the copy back."""
        accumulator[:] = mark
        return accumulator
