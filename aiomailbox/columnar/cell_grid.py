"""Accumulators by stretches of time and keys: a row of cells a stretch, a column a key."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from aiomailbox.columnar.accumulators import Values, reshaped
from aiomailbox.columnar.cells import Cells, FrozenCells
from aiomailbox.columnar.types import RowsNeededError
from aiomailbox.operators.aggregates.functions import Aggregate

# Where stretches of time begin, earliest first.


class StartHeap:
    """Finds the earliest of some stretches of time without a look at the others.

    Args:
        there: Says which starts are there; those that it has no more are passed over.

    Example:
        >>> windows = {10: "a", 0: "b"}
        >>> starts = StartHeap(windows)
        >>> starts.add(windows)
        >>> starts.first_until(20), windows.pop(0), starts.first_until(20)
        (0, 'b', 10)
        >>> starts.take(9), starts.take(10), starts.take(10)
        (None, 10, None)
    """

    def __init__(self, there: Container[int]) -> None:
        self._there = there
        self._heap: list[int] = []

    def add(self, starts: Iterable[int]) -> None:
        """Be notified of stretches that are there now and were not before."""
        for start in starts:
            heapq.heappush(self._heap, start)

    def first_until(self, limit: int) -> int | None:
        """Return the earliest start if it is not after ``limit``."""
        heap = self._heap
        while heap and heap[0] <= limit:
            if heap[0] in self._there:
                return heap[0]
            heapq.heappop(heap)
        return None

    def take(self, limit: int) -> int | None:
        """Return the same, which is passed over from now on."""
        start = self.first_until(limit)
        if start is not None:
            heapq.heappop(self._heap)
        return start


# Later than any record.
ABSENT: Final = 2**63 - 1


_NO_CELL: Final = -1


_ROWS_MIN: Final = 4


_COLUMNS_MIN: Final = 64


# So many cells may be empty, and beyond them so many for each that is not.
_EMPTY_MAX: Final = 1 << 20


_EMPTY_EACH: Final = 16


_TABLE_MAX: Final = 1 << 12


class KeptRow(NamedTuple):
    """A row with cells of its own, apart from any grid.

    Attributes:
        start: Where its stretch of time begins, milliseconds.
        slots: Its keys' places, in the order of their first records.
        cells: The accumulators, in the same order.
    """

    start: int
    slots: np.ndarray
    cells: Cells

    @property
    def keys(self) -> int:
        """How many keys there are."""
        return len(self.slots)

    def results(self) -> tuple[np.ndarray, list[pa.Array]]:
        """Return the places of keys, and a column for each piece of the aggregate."""
        return self.slots, self.cells.results(np.arange(len(self.slots)))


class DetachedRow:
    """A row that was taken out of a grid; whoever reads it puts its cells into order.

    Args:
        start: Where its stretch of time begins, milliseconds.
        keys: How many keys there are.
        seen: When the first record of each cell came, or absent.
        cells: The accumulators, one a key.

    Attributes:
        start: As given.
        keys: As given.
    """

    def __init__(self, start: int, keys: int, seen: np.ndarray, cells: Cells) -> None:
        self.start: int = start
        self.keys: int = keys
        self._seen = seen
        self._cells = cells

    def results(self) -> tuple[np.ndarray, list[pa.Array]]:
        """Return the same as `KeptRow.results`, of keys in the order of their records."""
        slots = _in_order(self._seen)
        return slots, self._cells.results(slots)


class CellGrid:
    """The accumulators of each key in each stretch of time.

    Args:
        aggregate: What is computed.

    Attributes:
        cells: The accumulators.
    """

    def __init__(self, aggregate: Aggregate[Any, Any]) -> None:
        self.cells: Cells = Cells(aggregate)
        self._offset, self._step = 0, 1
        self._rows: dict[int, int] = {}
        self._starts = StartHeap(self._rows)
        self._free: list[int] = []
        self._height = self._width = 0
        # When the first record of a cell came, or absent.
        self._seen: np.ndarray = np.zeros(0, np.int64)
        self._clock = 0
        # Whether a row has been made since cells were last seen.
        self._has_new = False

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, start: int) -> bool:
        return start in self._rows

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._rows))

    def lay_out(self, offset: int, step: int) -> None:
        """Say where some stretch begins, and how far it is to the next, milliseconds."""
        self._offset, self._step = offset, step

    def place(
        self,
        times: np.ndarray,
        slots: np.ndarray,
        keys: int,
        span: tuple[int, int] | None = None,
    ) -> tuple[np.ndarray, list[int]]:
        """Make room for records and return their cells, and stretches that there are.

        Args:
            times: Moments within their stretches, shape ``(n,)``.
            slots: The places of their keys, shape ``(n,)``.
            keys: How many keys have a place.
            span: The earliest of the times and the latest, if that is known.

        Returns:
            The cell of each record; and where the stretches begin that these are in,
            maybe with others between them that were there before.

        Raises:
            RowsNeededError: If most cells would be empty.
        """
        if not len(times):
            return np.zeros(0, np.int64), []
        low, high = (int(times.min()), int(times.max())) if span is None else span
        step = self._step
        first = low - (low - self._offset) % step
        count = (high - first) // step + 1
        if count > _TABLE_MAX:
            numbers = times - first
            numbers //= step
            found, numbers = np.unique(numbers, return_inverse=True)
            starts: list[int] = (found * step + first).tolist()
            return self._cells_at(starts, keys).take(numbers) + slots, starts
        if count == 1:
            return self._cells_at([first], keys)[0] + slots, [first]
        numbers = times - first
        # A division by one number is a multiplication; a remainder would not be.
        numbers //= step
        starts = list(range(first, first + count * step, step))
        known = self._rows
        if any(start not in known for start in starts[1:-1]):
            there: np.ndarray = np.zeros(count, np.bool_)
            there[numbers] = True
            starts = [
                start
                for start, has_records in zip(starts, there.tolist(), strict=True)
                if has_records or start in known
            ]
        firsts = self._cells_at(starts, keys)
        if len(starts) < count:
            sparse: np.ndarray = np.zeros(count, np.int64)
            sparse[(np.array(starts) - first) // step] = firsts
            firsts = sparse
        cells: np.ndarray = firsts.take(numbers)
        cells += slots
        return cells, starts

    def _cells_at(self, starts: list[int], keys: int) -> np.ndarray:
        """Return the first cells of rows for these starts, which have room then."""
        rows = self._begin_rows(starts, keys)
        rows *= self._width
        return rows

    def _begin_rows(self, starts: list[int], keys: int) -> np.ndarray:
        """Do as `make_rows` for rows that `forget_until` forgets."""
        before = len(self._rows)
        rows = self.make_rows(starts, keys)
        if new := len(self._rows) - before:
            self._starts.add(islice(reversed(self._rows), new))
        return rows

    def make_rows(self, starts: list[int], keys: int) -> np.ndarray:
        """Have rows for these starts, with room for so many keys; return their numbers.

        Raises:
            RowsNeededError: If most cells would be empty.
        """
        new = [start for start in dict.fromkeys(starts) if start not in self._rows]
        self._make_room(len(self._rows) + len(new), keys)
        self._has_new = self._has_new or bool(new)
        for start in new:
            self._rows[start] = self._free.pop()
        return np.array([self._rows[each] for each in starts], np.int64)

    def add(self, values: list[Values], cells: np.ndarray) -> None:
        """Add records to their cells, in their order, after `Cells.check_records`."""
        self.cells.add(values, cells)
        self.see(cells)

    def see(self, cells: np.ndarray) -> None:
        """Let cells have records from now on, in this order if they had none."""
        # Not asked where all may be without: that takes as long as to set them.
        if not self._has_new and (self._seen.take(cells) != ABSENT).all():
            return
        self._has_new = False
        last = self._clock + len(cells)
        np.minimum.at(self._seen, cells, np.arange(self._clock, last))
        self._clock = last

    def expect(self, cells: np.ndarray) -> None:
        """Do as `see` for records that are about to be added in another order."""
        self.cells.will_change(cells)
        self.see(cells)

    def merge(self, start: int, other: CellGrid, source: int) -> None:
        """Put what a row of another grid holds into a row that there is.

        Both grids have room for the same keys.
        """
        slots = other.slots(source)
        if len(slots):
            self.merge_cells(self.cells_of(start, slots), other, source, slots)

    def merge_cells(
        self, into: np.ndarray, other: CellGrid, source: int, slots: np.ndarray
    ) -> None:
        """Put what a row of another grid holds of some keys into cells."""
        self.cells.merge(into, other.cells, other.cells_of(source, slots))
        self.see(into)

    def cells_of(self, start: int, slots: np.ndarray) -> np.ndarray:
        """Return the cells of keys in a row."""
        return self._rows[start] * self._width + slots

    def has(self, start: int, slots: np.ndarray) -> np.ndarray:
        """Return of which of these keys a row that there is has anything."""
        return self._seen[self.cells_of(start, slots)] != ABSENT

    def slots(self, start: int) -> np.ndarray:
        """Return the places of a row's keys, in the order of their first records."""
        return _in_order(self._row(start))

    def results(self, start: int, slots: np.ndarray) -> list[pa.Array]:
        """Return a column of results for each piece of the aggregate."""
        return self.cells.results(self.cells_of(start, slots))

    def take_out(self, start: int, slots: np.ndarray) -> None:
        """Forget what a row holds of some keys."""
        cells = self.cells_of(start, slots)
        self.cells.clear(cells)
        self._seen[cells] = ABSENT

    def taken(self, start: int) -> KeptRow | DetachedRow:
        """Return a copy of what a row holds, which is put into order when it is read."""
        mine = self._cells_in(start)
        seen = self._left_in(mine)
        keys = int(np.count_nonzero(seen != ABSENT))
        if 2 * keys < len(seen):
            # A reader that wants a few keys should not have to keep a row.
            return self.kept(start, _in_order(seen))
        return DetachedRow(start, keys, seen, self.cells.copied(mine))

    def _left_in(self, cells: slice) -> np.ndarray:
        """Return when the first record of each cell came that is to be emitted."""
        return self._seen[cells].copy()

    def forget(self, start: int) -> None:
        """Forget a row."""
        self._clear_row(self._cells_in(start))
        self._free.append(self._rows.pop(start))

    def forget_until(self, limit: int) -> None:
        """Forget all rows that begin at or before a time."""
        while (start := self._starts.first_until(limit)) is not None:
            self.forget(start)

    @property
    def size(self) -> int:
        """How many cells there are, used or not."""
        return len(self._seen)

    def kept(self, start: int, slots: np.ndarray | None = None) -> KeptRow:
        """Return a copy of what a row holds, of some keys or of all."""
        chosen = self.slots(start) if slots is None else slots
        return KeptRow(start, chosen, self.cells.copied(self.cells_of(start, chosen)))

    def frozen(self) -> FrozenGrid:
        """Return the grid as it is now, for a thread to read; copies no cell."""
        cells = self.cells.frozen(len(self._seen), *self._marks())
        return FrozenGrid(dict(self._rows), self._width, cells)

    def _marks(self) -> tuple[np.ndarray, ...]:
        """Return what is known of each cell, first when its first record came."""
        return (self._seen,)

    def load(
        self, start: int, slots: np.ndarray, accumulators: list[Any], keys: int
    ) -> np.ndarray:
        """Give keys that a row does not have their accumulators; return their cells.

        Raises:
            RowsNeededError: If one does not fit; none of them is there then.
        """
        self._begin_rows([start], keys)
        cells = self.cells_of(start, slots)
        self.cells.load(cells, accumulators)
        self.see(cells)
        return cells

    def used_slots(self) -> np.ndarray:
        """Return the places of the keys that any row has, ascending."""
        if not self._width:
            return np.zeros(0, np.int64)
        grid = self._seen.reshape(self._height, self._width)
        return np.flatnonzero((grid != ABSENT).any(axis=0))

    def keep_slots(self, slots: np.ndarray) -> None:
        """Keep the places of these keys only; they get new ones, in their order."""
        width = max(_COLUMNS_MIN, len(slots))
        chosen: np.ndarray = np.full((self._height, width), _NO_CELL)
        rows: np.ndarray = np.arange(self._height)[:, np.newaxis] * self._width
        chosen[:, : len(slots)] = rows + slots
        self._move(chosen.reshape(-1), self._height, width)

    def _row(self, start: int) -> np.ndarray:
        return self._seen[self._cells_in(start)]

    def _cells_in(self, start: int) -> slice:
        first = self._rows[start] * self._width
        return slice(first, first + self._width)

    def _clear_row(self, cells: slice) -> None:
        self.cells.clear(cells)
        self._seen[cells] = ABSENT

    def _make_room(self, rows: int, keys: int) -> None:
        height, width = self._height, self._width
        if rows <= height and keys <= width:
            return
        if rows > height:
            height = max(rows, 2 * height, _ROWS_MIN)
        if keys > width:
            width = max(keys, 2 * width, _COLUMNS_MIN)
        used = int(np.count_nonzero(self._seen != ABSENT))
        if height * width > _EMPTY_MAX + _EMPTY_EACH * (used + keys):
            raise RowsNeededError("most keys are in few of the open windows")
        chosen: np.ndarray = np.full((height, width), _NO_CELL)
        old = np.arange(self._height * self._width)
        chosen[: self._height, : self._width] = old.reshape(self._height, self._width)
        self._free += range(self._height, height)
        self._move(chosen.reshape(-1), height, width)

    def _move(self, chosen: np.ndarray, height: int, width: int) -> None:
        self.cells.reshape(chosen, height * width)
        self._seen = reshaped(self._seen, chosen, height * width, ABSENT)
        self._height, self._width = height, width


class FrozenGrid:
    """The contents of a grid at one time.

    Args:
        rows: The numbers of the rows, by start.
        width: How many cells a row has.
        cells: The accumulators, and what is known of each cell, as the grid says it.
    """

    def __init__(self, rows: dict[int, int], width: int, cells: FrozenCells) -> None:
        self._rows = rows
        self._width = width
        self._cells = cells

    def contents(
        self, keys: list[Any], *, fired: bool = False
    ) -> Iterator[tuple[int, dict[Any, Any]]]:
        """Yield each row that holds anything, the earliest first: its start, contents.

        Args:
            keys: By their places.
            fired: Where cells say whether they have been emitted: whether these are
                wanted, or the others.
        """
        for start in sorted(self._rows):
            first = self._rows[start] * self._width
            seen, *others = self._cells.marks(first, first + self._width)
            for mark in others:
                seen[mark != fired] = ABSENT
            slots = _in_order(seen)
            if len(slots):
                accumulators = self._cells.accumulators(slots + first)
                named = [keys[slot] for slot in slots.tolist()]
                yield start, dict(zip(named, accumulators, strict=True))


def _in_order(seen: np.ndarray) -> np.ndarray:
    """Return the places of what has been seen, in the order of when it was."""
    (there,) = (seen != ABSENT).nonzero()
    return there.take(seen.take(there).argsort())


def contents_of(row: KeptRow, keys: list[Any]) -> dict[Any, Any]:
    """Return what a row holds by key, as rows have it."""
    accumulators = row.cells.accumulators(np.arange(len(row.slots)))
    named = [keys[slot] for slot in row.slots.tolist()]
    return dict(zip(named, accumulators, strict=True))
