"""What ready-made aggregates add so that a record can be taken back from them."""

from __future__ import annotations

from typing import Any

__all__ = ["Undoable", "UndoableList"]


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
