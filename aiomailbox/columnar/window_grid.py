"""The accumulators of windows that are not over, fired or not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from aiomailbox.columnar.cell_grid import ABSENT, CellGrid, KeptRow
from aiomailbox.columnar.cells import Values, reshaped
from aiomailbox.columnar.groups import Groups, distinct
from aiomailbox.operators import Aggregate

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
        self._fired: np.ndarray = np.zeros(0, np.bool_)
        self._may_revive = False

    def add_waiting(
        self, values: list[Values], starts: list[int], cells: np.ndarray
    ) -> None:
        """Add records to these windows, which have not ended, after `check`."""
        if self._may_revive:
            self._revive(distinct(cells[self._fired[cells]]))
        self.add(values, cells)
        self.waiting.update(starts)

    def add_late(self, values: list[Values], cells: np.ndarray) -> list[pa.Array]:
        """Add records to windows that have fired, after `check`; return each result."""
        mine, codes = np.unique(cells, return_inverse=True)
        made = self.cells.roll(values, Groups(codes, len(mine)), mine)
        self.see(cells)
        self._fired[mine] = True
        return made

    def first_waiting(self, limit: int) -> int | None:
        """Return the earliest start up to a limit of a window that has not fired."""
        return min((one for one in self.waiting if one <= limit), default=None)

    def unfired(self, start: int) -> np.ndarray:
        """Return the places of keys whose content has not been emitted."""
        slots = self.slots(start)
        unfired: np.ndarray = slots[~self._fired[self.cells_of(start, slots)]]
        return unfired

    def fire(self, start: int) -> tuple[np.ndarray, list[pa.Array]]:
        """Return all results of a window that have not been emitted, which stay.

        Returns:
            The places of their keys, and a column for each piece of the aggregate.
        """
        slots = self.unfired(start)
        self.waiting.discard(start)
        cells = self.cells_of(start, slots)
        self.cells.will_change(cells)
        self._fired[cells] = True
        return slots, self.results(start, slots)

    def take(self, start: int, count: int) -> tuple[np.ndarray, list[pa.Array]]:
        """Take out results of a window, at most so many; forget it with the last ones."""
        unfired = self.unfired(start)
        slots = unfired[:count]
        results = self.results(start, slots)
        if len(slots) == len(unfired):
            self.forget(start)
        else:
            self.take_out(start, slots)
        return slots, results

    def forget(self, start: int) -> None:
        """Forget a window."""
        super().forget(start)
        self.waiting.discard(start)

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
            self.waiting.add(start)

    def _revive(self, cells: np.ndarray) -> None:
        """Let what had fired before a restore be emitted once more."""
        self.cells.will_change(cells)
        self._fired[cells] = False
        self._seen[cells] = ABSENT

    def _clear_row(self, row: int) -> None:
        super()._clear_row(row)
        self._fired[row * self._width : (row + 1) * self._width] = False

    def _move(self, chosen: np.ndarray, height: int, width: int) -> None:
        self._fired = reshaped(self._fired, chosen, height * width, False)
        super()._move(chosen, height, width)
