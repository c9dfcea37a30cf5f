"""The accumulators of windows that are not over, fired or not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from aiomailbox.columnar.cell_grid import ABSENT, CellGrid, KeptRow
from aiomailbox.columnar.groups import Groups, distinct
from aiomailbox.columnar.pieces import reshaped
from aiomailbox.columnar.starts import Starts
from aiomailbox.columnar.values import Values
from aiomailbox.operators.aggregates.functions import Aggregate

__all__ = ["WindowGrid"]


class WindowGrid(CellGrid):
    """What windows hold of each key, and which of it has been emitted.

    A window that fired may still get late records. After a restore there may be both in
    a window, since nothing says yet how far event time had come.

    Args:
        aggregate: What is computed.

    Attributes:
        waiting: The starts of windows that hold something which has not been emitted.
    """

    def __init__(self, aggregate: Aggregate[Any, Any]) -> None:
        super().__init__(aggregate)
        self.waiting: set[int] = set()
        self._first_waiting = Starts(self.waiting)
        # The window that is being taken out, and what is left of it.
        self._leaving: tuple[int, np.ndarray] | None = None
        self._fired: np.ndarray = np.zeros(0, np.bool_)
        self._may_revive = False

    def add_waiting(
        self, values: list[Values], starts: list[int], cells: np.ndarray
    ) -> None:
        """Add records to windows that have not ended, after `Cells.check_records`.

        Args:
            values: What is to be added.
            starts: Of the windows, maybe with others that wait already.
            cells: Where it is added.
        """
        if self._may_revive:
            self._revive(distinct(cells[self._fired[cells]]))
            used = set(distinct(cells // self._width).tolist())
            starts = [start for start in starts if self._rows[start] in used]
        self.add(values, cells)
        self._wait(starts)

    def _wait(self, starts: Iterable[int]) -> None:
        """Let windows wait for their end, which may do so already."""
        new = [start for start in starts if start not in self.waiting]
        self.waiting.update(new)
        self._first_waiting.add(new)

    def add_late(self, values: list[Values], cells: np.ndarray) -> list[pa.Array]:
        """Add records to windows that have fired, once checked; return each result."""
        mine, codes = np.unique(cells, return_inverse=True)
        made = self.cells.roll(values, Groups(codes, len(mine)), mine)
        self.see(cells)
        self._fired[mine] = True
        return made

    def first_waiting(self, limit: int) -> int | None:
        """Return the start of the first window that has not fired, up to a limit."""
        return self._first_waiting.first_until(limit)

    def unfired(self, start: int) -> np.ndarray:
        """Return the places of keys whose content has not been emitted."""
        slots = self.slots(start)
        unfired: np.ndarray = slots[~self._fired[self.cells_of(start, slots)]]
        return unfired

    def count_unfired(self, start: int) -> int:
        """Return of how many keys a window has what has not been emitted."""
        if self._leaving is not None and self._leaving[0] == start:
            return len(self._leaving[1])
        mine = self._cells_in(start)
        unfired = (self._seen[mine] != ABSENT) > self._fired[mine]
        return int(np.count_nonzero(unfired))

    def _left_in(self, cells: slice) -> np.ndarray:
        seen = super()._left_in(cells)
        seen[self._fired[cells]] = ABSENT
        return seen

    def mark_fired(self, start: int) -> None:
        """Let all of a window have been emitted, and stay."""
        mine = self._cells_in(start)
        self.cells.will_change(np.arange(mine.start, mine.stop))
        self._fired[mine] = self._seen[mine] != ABSENT
        self.waiting.discard(start)

    def take(self, start: int, count: int) -> KeptRow:
        """Take out the first contents of a window that have not been emitted.

        No records are added to it until all are taken.
        """
        if self._leaving is None or self._leaving[0] != start:
            self._leaving = start, self.unfired(start)
        left = self._leaving[1]
        slots, self._leaving = left[:count], (start, left[count:])
        taken = self.kept(start, slots)
        self.take_out(start, slots)
        return taken

    def forget(self, start: int) -> None:
        """Forget a window."""
        super().forget(start)
        self.waiting.discard(start)
        self._leaving = None

    def _marks(self) -> tuple[np.ndarray, ...]:
        return (*super()._marks(), self._fired)

    def kept_windows(self) -> tuple[list[KeptRow], list[KeptRow]]:
        """Return copies of what has not been emitted, and of what has."""
        unfired: list[KeptRow] = []
        fired: list[KeptRow] = []
        for start in sorted(self):
            slots = self.slots(start)
            mine = self._fired[self.cells_of(start, slots)]
            for into, chosen in ((unfired, slots[~mine]), (fired, slots[mine])):
                if len(chosen):
                    into.append(self.kept(start, chosen))
        return unfired, fired

    def load_window(
        self,
        start: int,
        slots: np.ndarray,
        accumulators: list[Any],
        keys: int,
        *,
        fired: bool,
    ) -> None:
        """Give keys that a window does not have their accumulators, as `load`."""
        cells = self.load(start, slots, accumulators, keys)
        if fired:
            self._fired[cells] = True
            self._may_revive = True
        else:
            self._wait([start])

    def _revive(self, cells: np.ndarray) -> None:
        """Let what had fired before a restore be emitted once more."""
        self.cells.will_change(cells)
        self._fired[cells] = False
        self._seen[cells] = ABSENT

    def _clear_row(self, cells: slice) -> None:
        super()._clear_row(cells)
        self._fired[cells] = False

    def _move(self, chosen: np.ndarray, height: int, width: int) -> None:
        self._fired = reshaped(self._fired, chosen, height * width, False)
        super()._move(chosen, height, width)
