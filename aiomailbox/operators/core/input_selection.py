"""Which of its inputs an operator wants to read next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from aiomailbox.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class InputSelection:
    """A set of inputs.

    Attributes:
        mask: Has the bit ``1 << index`` for each input in it; -1 for all.

    Concept:
        Flink, ``InputSelection``.

    Example:
        >>> InputSelection.of(0, 2).includes(2), InputSelection.FIRST.includes(1)
        (True, False)
    """

    mask: int

    ALL: ClassVar[InputSelection]
    FIRST: ClassVar[InputSelection]
    SECOND: ClassVar[InputSelection]

    @classmethod
    def of(cls, *indexes: int) -> InputSelection:
        """Return the set of these inputs, counted from 0.

        Raises:
            InvalidArgumentError: If there is none, or an index is negative.
        """
        if not indexes or min(indexes) < 0:
            raise InvalidArgumentError(
                "indexes",
                f"{indexes} select no input",
                "Give the index of each input, counted from 0.",
            )
        mask = 0
        for index in indexes:
            mask |= 1 << index
        return cls(mask)

    def includes(self, index: int) -> bool:
        """Say whether an input is in the set."""
        return bool(self.mask >> index & 1)


InputSelection.ALL = InputSelection(-1)
InputSelection.FIRST = InputSelection.of(0)
InputSelection.SECOND = InputSelection.of(1)


class InputSelectable(Protocol):
    """An operator that says which input it wants to read.

    Concept:
        Flink, ``InputSelectable``.
    """

    def next_selection(self) -> InputSelection:
        """Return the inputs of which the next record may come.

        Asked once after ``open`` and then after each record. It may name inputs that
        have ended only as long as another one of those it names has not.
        """
        ...
