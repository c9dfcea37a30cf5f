"""Records of a run that belong together, and what is folded in each group, in order.

Theory of operation: a fold must go from record to record within a group, as floats do not
associate, but all groups can take a step at once. So each group is a column of a matrix,
which begins with what the group had before. Groups of very different lengths would leave
most of it empty, so each matrix has groups of about one length.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final

import numpy as np

__all__ = ["Groups", "distinct", "stable_order"]

# The longest group of a matrix is so many times as long as its shortest.
_STRETCH: Final = 4
# Where all of it is so little, one matrix will do.
_CELLS_PER_RECORD: Final = 4
# So many groups are worth a call for each of their steps.
_STEPS_MIN: Final = 200


def distinct(numbers: np.ndarray) -> np.ndarray:
    """Return each of some integers once, ascending.

    Numpy's own takes some times as long, and imports much when it is first called.
    """
    ordered = np.sort(numbers)
    first: np.ndarray = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    found: np.ndarray = ordered[first]
    return found


def stable_order(codes: np.ndarray, count: int) -> np.ndarray:
    """Return the places of codes from 0 to ``count - 1`` by these, equal ones in order."""
    return _ordered(codes, count)[0]


def _ordered(codes: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the same, and the codes in this order.

    To sort numbers that have the place in their lower bits takes a fraction of what it
    takes to sort places.
    """
    if count <= 1 << 16:
        # Sixteen bits are sorted by radix.
        few = codes.astype(np.uint16)
        places: np.ndarray = few.argsort(kind="stable")
        return places, few.take(places)
    bits = max(1, (len(codes) - 1).bit_length())
    kind = np.uint32 if count << bits <= 1 << 32 else np.uint64
    packed: np.ndarray = codes.astype(kind)
    packed <<= kind(bits)
    packed |= np.arange(len(codes), dtype=kind)
    packed.sort()
    order: np.ndarray = (packed & kind((1 << bits) - 1)).astype(np.int64)
    packed >>= kind(bits)
    return order, packed


class Groups:
    """Which records of a run belong together.

    Args:
        codes: The group of each record, from 0; int64, shape ``(n,)``.
        count: How many there may be.

    Attributes:
        used: The codes of the groups that have records, ascending.
        lengths: How many records each of these has, at least one.

    Example:
        >>> groups = Groups(np.array([0, 1, 0]), 2)
        >>> found, last = groups.running(
        ...     np.add, np.array([1.0, 2.0, 4.0]), np.array([0.5, 0.0]), -0.0
        ... )
        >>> found.tolist(), last.tolist()
        ([1.5, 2.0, 5.5], [5.5, 2.0])
    """

    def __init__(self, codes: np.ndarray, count: int) -> None:
        self._order, ordered = _ordered(codes, count)
        # Not counted: there may be a million codes, of which a run has few.
        bounds: np.ndarray = np.empty(len(ordered) + 1, np.bool_)
        bounds[0] = bounds[-1] = True
        np.not_equal(ordered[1:], ordered[:-1], out=bounds[1:-1])
        ends = np.flatnonzero(bounds)
        self._starts: np.ndarray = ends[:-1]
        self.used: np.ndarray = ordered[self._starts].astype(np.int64)
        self.lengths: np.ndarray = ends[1:] - ends[:-1]

    @cached_property
    def _groups(self) -> np.ndarray:
        """Of each record, in the order of the groups, the place of its group in `used`."""
        numbers = np.arange(len(self.used))
        groups: np.ndarray = np.repeat(numbers, self.lengths)
        return groups

    @cached_property
    def _cells(self) -> np.ndarray:
        """Of each record its cell in a matrix with a column a group; see `_folded`."""
        width = len(self.used)
        ordered: np.ndarray = np.arange(width, (len(self._order) + 1) * width, width)
        firsts = np.arange(width) - self._starts * width
        ordered += np.repeat(firsts, self.lengths)
        return self._in_order(ordered)

    @cached_property
    def _ranks(self) -> np.ndarray:
        """Of each record, in the order of the groups, its place in its group."""
        ranks: np.ndarray = np.arange(len(self._order))
        ranks -= np.repeat(self._starts, self.lengths)
        return ranks

    def rounds(self) -> Iterator[np.ndarray]:
        """Yield places of records in order: the first of each group, then the second."""
        for rank in range(int(self.lengths.max(initial=0))):
            yield np.sort(self._order[self._ranks == rank])

    def running_counts(
        self, there: np.ndarray | None, before: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return how many there are up to each record, and in the end in each group.

        Args:
            there: Which records count, shape ``(n,)``; None for all.
            before: How many there were in each group, shape ``(groups,)``.
        """
        if there is not None:
            ones: np.ndarray = there.astype(np.int64)
            return self.running_sums(ones, before)
        counts = self._ranks + np.repeat(before + 1, self.lengths)
        return self._in_order(counts), before + self.lengths

    def running_sums(
        self, numbers: np.ndarray, before: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the sums up to each record, and in the end in each group.

        Args:
            numbers: Integers whose sums fit into 64 bits, shape ``(n,)``.
            before: The sum in each group before them, shape ``(groups,)``.
        """
        # What wraps around on the way comes back.
        ordered = numbers[self._order]
        sums = np.cumsum(ordered)
        offsets = before - (sums[self._starts] - ordered[self._starts])
        sums += np.repeat(offsets, self.lengths)
        return self._in_order(sums), sums[self._starts + self.lengths - 1]

    def running(
        self, fold: np.ufunc, numbers: np.ndarray, before: np.ndarray, nothing: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """Fold each group from its first record to its last.

        Args:
            fold: What is done with two numbers.
            numbers: One a record, shape ``(n,)``.
            before: What each group begins with, shape ``(groups,)``.
            nothing: A number that changes none with which it is folded.

        Returns:
            The result up to each record, and the last one of each group.
        """
        longest = int(self.lengths.max())
        if len(self.lengths) * longest <= _CELLS_PER_RECORD * len(numbers):
            return _folded(fold, numbers, before, nothing, (self._cells, longest))
        ordered: np.ndarray = numbers.take(self._order)
        found, last = np.empty_like(ordered), np.empty_like(before)
        while longest:
            shortest = longest // _STRETCH
            rows = np.flatnonzero((self.lengths <= longest) & (self.lengths > shortest))
            if len(rows):
                places: np.ndarray = np.empty(len(self.lengths), np.int64)
                places.fill(-1)
                places[rows] = np.arange(len(rows))
                mine = np.flatnonzero(places[self._groups] >= 0)
                cells = (self._ranks[mine] + 1) * len(rows)
                cells += places[self._groups[mine]]
                where = (cells, longest)
                found[mine], last[rows] = _folded(
                    fold, ordered[mine], before[rows], nothing, where
                )
            longest = shortest
        return self._in_order(found), last

    def _in_order(self, ordered: np.ndarray) -> np.ndarray:
        """Return what is in the order of the groups in that of the records."""
        found: np.ndarray = np.empty_like(ordered)
        found[self._order] = ordered
        return found


def _folded(
    fold: np.ufunc,
    numbers: np.ndarray,
    before: np.ndarray,
    nothing: Any,
    where: tuple[np.ndarray, int],
) -> tuple[np.ndarray, np.ndarray]:
    """Fold the columns of one matrix.

    Args:
        fold: What is done with two numbers.
        numbers: The numbers.
        before: What the columns begin with.
        nothing: Fills the rest of the columns.
        where: The cell of each number, row by row, the first row being what columns
            begin with; and how many of them columns have.
    """
    cells, longest = where
    width = len(before)
    matrix = np.full((longest + 1, width), nothing, numbers.dtype)
    matrix[0] = before
    flat = matrix.reshape(-1)
    flat[cells] = numbers
    if width < _STEPS_MIN:
        fold.accumulate(matrix, axis=0, out=matrix)
    else:
        # Numpy would go down one column after the other.
        for row in range(1, longest + 1):
            fold(matrix[row - 1], matrix[row], out=matrix[row])
    return flat.take(cells), matrix[-1]
