"""The accumulators of open windows: a row of cells a window, a column of them a key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from aiomailbox.columnar.cells import Cells, RowsNeededError, Values, reshaped
from aiomailbox.operators import Aggregate

__all__ = ["KeptWindow", "WindowGrid"]

_ABSENT: Final = -1
_ROWS_MIN: Final = 4
_COLUMNS_MIN: Final = 64
# So many cells may be empty, and beyond them so many for each that is not.
_EMPTY_MAX: Final = 1 << 20
_EMPTY_EACH: Final = 16


class KeptWindow(NamedTuple):
    """What a window holds, by itself.

    Attributes:
        start: Where it begins, milliseconds.
        has_fired: Whether it has been emitted.
        slots: Its keys' places, in the order of their first records.
        cells: The accumulators, in the same order.
    """

    start: int
    has_fired: bool
    slots: np.ndarray
    cells: Cells


class WindowGrid:
    """What open windows hold of each key.

    Args:
        aggregate: What is computed.

    Attributes:
        fired: The starts of windows that have been emitted and wait for late records.
    """

    def __init__(self, aggregate: Aggregate[Any, Any]) -> None:
        self._cells = Cells(aggregate)
        self._rows: dict[int, int] = {}
        self._free: list[int] = []
        self._height = self._width = 0
        # When the first record of a cell came, or absent.
        self._seen: np.ndarray = np.zeros(0, np.int64)
        self._clock = 0
        self.fired: set[int] = set()
        self.read = self._cells.read

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, start: int) -> bool:
        return start in self._rows

    def check(
        self, values: list[Values], starts: np.ndarray, slots: np.ndarray, keys: int
    ) -> np.ndarray:
        """Make room for records and return their cells, if they can be added.

        Args:
            values: What is read of them.
            starts: Where their windows begin, shape ``(n,)``.
            slots: The places of their keys, shape ``(n,)``.
            keys: How many keys have a place.

        Raises:
            RowsNeededError: If only rows give the right result, or most cells would be
                empty.
        """
        distinct, numbers = _distinct(starts)
        new = [start for start in distinct.tolist() if start not in self._rows]
        self._make_room(len(self._rows) + len(new), keys)
        for start in new:
            self._rows[start] = self._free.pop()
        rows = np.array([self._rows[start] for start in distinct.tolist()], np.int64)
        cells: np.ndarray = rows[numbers] * self._width + slots
        try:
            self._cells.check(values, cells, len(cells))
        except RowsNeededError:
            # It may have been too careful.
            self._cells.check(values, cells, int(np.bincount(numbers).max()))
        return cells

    def add(self, values: list[Values], cells: np.ndarray) -> None:
        """Add records to their cells, which `check` returned."""
        self._cells.add(values, cells)
        fresh = np.flatnonzero(self._seen[cells] == _ABSENT)
        if len(fresh):
            # Of several records of a cell the first is set last.
            back = fresh[::-1]
            self._seen[cells[back]] = back + self._clock
            self._clock += len(cells)

    def first_until(self, limit: int, *, fired: bool = False) -> int | None:
        """Return the earliest start up to a limit, of windows that have fired or not."""
        starts = (one for one in self._rows if one <= limit)
        return min((s for s in starts if (s in self.fired) is fired), default=None)

    def take(self, start: int, count: int) -> tuple[np.ndarray, list[pa.Array]]:
        """Take out results of a window, at most so many.

        Returns:
            The places of their keys, and a column for each piece of the aggregate.
        """
        slots = self._slots(start)[:count]
        cells: np.ndarray = self._rows[start] * self._width + slots
        results = self._cells.results(cells)
        self._cells.clear(cells)
        self._seen[cells] = _ABSENT
        return slots, results

    def look(self, start: int) -> tuple[np.ndarray, list[pa.Array]]:
        """Return all results of a window, which stay."""
        slots = self._slots(start)
        return slots, self._cells.results(self._rows[start] * self._width + slots)

    def count(self, start: int) -> int:
        """Return how many keys a window has."""
        return int(np.count_nonzero(self._row(start) != _ABSENT))

    def forget(self, start: int) -> None:
        """Forget a window."""
        row = self._rows.pop(start)
        cells = np.arange(row * self._width, (row + 1) * self._width)
        self._cells.clear(cells)
        self._seen[cells] = _ABSENT
        self._free.append(row)
        self.fired.discard(start)

    def kept(self, start: int) -> KeptWindow:
        """Return a copy of what a window holds."""
        slots = self._slots(start)
        cells = self._cells.copied(self._rows[start] * self._width + slots)
        return KeptWindow(start, start in self.fired, slots, cells)

    def all_kept(self) -> Iterator[KeptWindow]:
        """Yield copies of what all windows hold, the earliest first."""
        for start in sorted(self._rows):
            yield self.kept(start)

    def load(
        self, start: int, slots: np.ndarray, accumulators: list[Any], keys: int
    ) -> None:
        """Give keys that a window does not have their accumulators.

        Raises:
            RowsNeededError: If one does not fit; none of them is there then.
        """
        self._make_room(len(self._rows) + (start not in self._rows), keys)
        if start not in self._rows:
            self._rows[start] = self._free.pop()
        cells: np.ndarray = self._rows[start] * self._width + slots
        self._cells.load(cells, accumulators)
        self._seen[cells] = self._clock + np.arange(len(cells))
        self._clock += len(cells)

    def used_slots(self) -> np.ndarray:
        """Return the places of the keys that any window has, ascending."""
        if not self._width:
            return np.zeros(0, np.int64)
        grid = self._seen.reshape(self._height, self._width)
        return np.flatnonzero((grid != _ABSENT).any(axis=0))

    def keep_slots(self, slots: np.ndarray) -> None:
        """Keep the places of these keys only; they get new ones, in their order."""
        width = max(_COLUMNS_MIN, len(slots))
        chosen: np.ndarray = np.full((self._height, width), _ABSENT)
        rows: np.ndarray = np.arange(self._height)[:, np.newaxis] * self._width
        chosen[:, : len(slots)] = rows + slots
        self._move(chosen.reshape(-1), self._height, width)

    def _slots(self, start: int) -> np.ndarray:
        seen = self._row(start)
        slots = np.flatnonzero(seen != _ABSENT)
        ordered: np.ndarray = slots[np.argsort(seen[slots])]
        return ordered

    def _row(self, start: int) -> np.ndarray:
        first = self._rows[start] * self._width
        return self._seen[first : first + self._width]

    def _make_room(self, windows: int, keys: int) -> None:
        height, width = self._height, self._width
        if windows <= height and keys <= width:
            return
        if windows > height:
            height = max(windows, 2 * height, _ROWS_MIN)
        if keys > width:
            width = max(keys, 2 * width, _COLUMNS_MIN)
        used = int(np.count_nonzero(self._seen != _ABSENT))
        if height * width > _EMPTY_MAX + _EMPTY_EACH * (used + keys):
            raise RowsNeededError("most keys are in few of the open windows")
        chosen: np.ndarray = np.full((height, width), _ABSENT)
        old = np.arange(self._height * self._width)
        chosen[: self._height, : self._width] = old.reshape(self._height, self._width)
        self._free += range(self._height, height)
        self._move(chosen.reshape(-1), height, width)

    def _move(self, chosen: np.ndarray, height: int, width: int) -> None:
        self._cells.reshape(chosen, height * width)
        self._seen = reshaped(self._seen, chosen, height * width, _ABSENT)
        self._height, self._width = height, width


def _distinct(starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct starts, and for each record which of them it has."""
    distinct: list[int] = []
    numbers: np.ndarray = np.zeros(len(starts), np.int64)
    left: np.ndarray = np.ones(len(starts), np.bool_)
    # Most runs are of a few windows, for which a comparison each is less than to sort.
    for number in range(_COMPARED_MAX):
        if not left.any():
            return np.array(distinct, np.int64), numbers
        start = starts[int(left.argmax())]
        mine = starts == start
        distinct.append(int(start))
        numbers[mine] = number
        left &= ~mine
    if not left.any():
        return np.array(distinct, np.int64), numbers
    found, numbers = np.unique(starts, return_inverse=True)
    return found, numbers


_COMPARED_MAX: Final = 8
