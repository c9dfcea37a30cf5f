"""The contents of windows that overlap, merged from columns of the panes that they share.

Theory of operation: that of `aiomailbox.windowing.running_merge`, pane by pane and in the
same order, so that sums of floats are the same; but all keys of a pane at once.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from aiomailbox.columnar.cell_grid import CellGrid, contents_of
from aiomailbox.columnar.values import Values
from aiomailbox.records.elements import MIN_TIMESTAMP
from aiomailbox.windowing.running_merge import RunningMerge

__all__ = ["PaneMerge"]

# Rows that stand for no window; no event time in columns is so late.
_GROWN: Final = 2**62
_REST: Final = _GROWN + 1
_ONE: Final = _GROWN + 2
_OTHER: Final = _GROWN + 3


class PaneMerge:
    """Merges panes to windows, which are asked for from the earliest to the latest.

    Args:
        panes: What each pane holds, by its start; never changed here.
        aggregate: What is computed.
        size: Of a window, a multiple of ``pane``; milliseconds like all that follows.
        slide: Between the starts of two windows, a multiple of ``pane``.
        pane: Length of a pane.
        offset: The start of some window.

    Attributes:
        grid: Has windows that were taken.

    Invariants:
        As `RunningMerge`: ``grid`` has a row for each window that begins in the block
        and was not taken, and one with the panes of the next block up to ``_grown_to``.
    """

    def __init__(
        self,
        panes: CellGrid,
        aggregate: Any,
        *,
        size: int,
        slide: int,
        pane: int,
        offset: int,
    ) -> None:
        self._panes = panes
        self.grid: CellGrid = CellGrid(aggregate)
        self._size, self._slide, self._pane = size, slide, pane
        self._offset = offset
        self._block = MIN_TIMESTAMP - 2 * size
        self._grown_to = self._block + size
        self._rests: list[int] = []

    def take(self, start: int, keys: int) -> None:
        """Have the grid hold what a window does; the caller lets it forget that.

        Args:
            start: Of the window; after that of the one before.
            keys: How many keys have a place.

        Raises:
            RowsNeededError: If only rows can be merged; nothing has been changed.
        """
        self._panes.cells.check_merged(self._size // self._pane)
        begins = start >= self._block + self._size
        block = start - (start - self._offset) % self._size if begins else self._block
        rests = self._rests_of(block, start) if begins else []
        self.grid.make_rows([*rests, *([_REST] if begins else []), _GROWN, start], keys)
        if begins:
            self._begin_block(block, rests)
        self._grow(start + self._size)
        if start in self._rests:
            self._rests.remove(start)
        self.grid.merge(start, self.grid, _GROWN)

    def late_cells(
        self, panes: np.ndarray, slots: np.ndarray
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the cells that panes of records that come late have gone into already.

        Args:
            panes: The panes of the records.
            slots: The places of their keys, which the grid has room for.

        Returns:
            Which records, and a cell for each.
        """
        end = self._block + self._size
        found: list[tuple[np.ndarray, np.ndarray]] = []
        mine = np.flatnonzero((end <= panes) & (panes < self._grown_to))
        if len(mine):
            found.append((mine, self.grid.cells_of(_GROWN, slots[mine])))
        for start in self._rests:
            mine = np.flatnonzero((start <= panes) & (panes < end))
            if len(mine):
                found.append((mine, self.grid.cells_of(start, slots[mine])))
        return found

    def make_room(self, keys: int) -> None:
        """Have room for so many keys.

        Raises:
            RowsNeededError: If most cells would be empty.
        """
        self.grid.make_rows([], keys)

    def add(
        self, values: list[Values], late: list[tuple[np.ndarray, np.ndarray]]
    ) -> None:
        """Add records to what `late_cells` returned, after it was checked."""
        for mine, cells in late:
            self.grid.add([each.at(mine) for each in values], cells)

    def results(self, start: int, slots: np.ndarray, keys: int) -> list[pa.Array]:
        """Return the results of a window that was taken, of some keys.

        Args:
            start: Of the window.
            slots: The places of the keys, each once; the window has all of them.
            keys: How many keys have a place.

        Raises:
            RowsNeededError: If most cells would be empty.
        """
        grid = self.grid
        grid.make_rows([_ONE, _OTHER], keys)
        end = start - (start - self._offset) % self._size + self._size
        for pane in range(end - self._pane, start - 1, -self._pane):
            self._look_at(_ONE, pane, slots)
        for pane in range(end, start + self._size, self._pane):
            self._look_at(_OTHER, pane, slots)
        both = slots[grid.has(_OTHER, slots)]
        grid.merge_cells(grid.cells_of(_ONE, both), grid, _OTHER, both)
        found = grid.results(_ONE, slots)
        # Not the whole rows: they are as long as there are keys.
        for row in (_ONE, _OTHER):
            grid.take_out(row, slots)
        return found

    def give_back(self, merge: RunningMerge, keys: list[Any]) -> None:
        """Let a merge of rows go on from here."""
        grid = self.grid
        if self._block < MIN_TIMESTAMP:
            return

        def held(start: int) -> dict[Any, Any]:
            return contents_of(grid.kept(start), keys)

        rests = {start: held(start) for start in self._rests}
        merge.resume(self._block, self._grown_to, rests, held(_GROWN))

    def _rests_of(self, block: int, first: int) -> list[int]:
        """Return the windows that begin in a block, from one on, the latest first."""
        return list(range(first, block + self._size, self._slide))[::-1]

    def _look_at(self, row: int, pane: int, slots: np.ndarray) -> None:
        if pane in self._panes:
            mine = slots[self._panes.has(pane, slots)]
            into = self.grid.cells_of(row, mine)
            self.grid.merge_cells(into, self._panes, pane, mine)

    def _begin_block(self, block: int, rests: list[int]) -> None:
        grid, end = self.grid, block + self._size
        for row in (*self._rests, _GROWN):
            grid.forget(row)
        self._block, self._grown_to, self._rests = block, end, rests
        grid.make_rows([*rests, _GROWN], 0)
        windows = iter(rests)
        window = next(windows, None)
        for pane in range(end - self._pane, block - 1, -self._pane):
            if pane in self._panes:
                grid.merge(_REST, self._panes, pane)
            if pane == window:
                grid.merge(window, grid, _REST)
                window = next(windows, None)
        grid.forget(_REST)

    def _grow(self, end: int) -> None:
        for pane in range(self._grown_to, end, self._pane):
            if pane in self._panes:
                self.grid.merge(_GROWN, self._panes, pane)
        self._grown_to = max(self._grown_to, end)
