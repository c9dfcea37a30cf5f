"""Sliding event-time windows over columns that share what is added."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from aiomailbox.columnar.accumulators import Values
from aiomailbox.columnar.aligned import beginning, beginnings
from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.cell_grid import CellGrid, FrozenGrid, contents_of
from aiomailbox.columnar.cells import Cells
from aiomailbox.columnar.keys import Groups
from aiomailbox.columnar.types import RowsNeededError
from aiomailbox.columnar.windows import ColumnarWindows, Fired, Firing, rows_firing
from aiomailbox.operators.core.operator import Pending, then
from aiomailbox.records.events import MIN_TIMESTAMP
from aiomailbox.state.snapshot import KeyedStateSnapshot
from aiomailbox.windowing.panes import PanedAggregateOperator, RunningMerge
from aiomailbox.windowing.spec import WindowSpec

# The contents of windows that overlap, merged from columns of the panes that they
# share.
#
# Theory of operation: that of `aiomailbox.windowing.panes`, pane by pane and in
# the same order, so that sums of floats are the same; but all keys of a pane at once.


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


# What records that came late have changed: record, start of the window, key, results.
_Change = tuple[np.ndarray, np.ndarray, np.ndarray, list[pa.Array]]


class ColumnarPanedOperator(ColumnarWindows, PanedAggregateOperator):
    """Does what `PanedAggregateOperator` does, on columns as long as it gets any.

    Which windows there are, and what a restore has put into them, is kept as there;
    panes are rows of a grid.

    Args:
        spec: Key (a selector of fields, or none), windows, lateness and errors.
        aggregate: One for which `needs_rows` returns nothing.
    """

    def __init__(self, spec: WindowSpec, aggregate: Any) -> None:
        super().__init__(spec, aggregate)
        self._pane_grid = CellGrid(aggregate)

    def _open_columns(self) -> Pending:
        self._pane_grid.lay_out(self._offset, self._pane)
        self._pane_merge = PaneMerge(
            self._pane_grid,
            self._given,
            size=self._size,
            slide=self._slide,
            pane=self._pane,
            offset=self._offset,
        )
        return super()._open_columns()

    def snapshot_apart(self) -> Iterable[KeyedStateSnapshot]:
        """Copy the panes; what windows hold is merged when the snapshot is read."""
        if not self._is_columnar:
            return super().snapshot_apart()
        panes = _PaneSnapshot(self._pane_grid.frozen(), self._slots.keys)
        return [self._snapshot_with(panes)]

    def _load_next(self, count: int) -> int:
        return 0

    def _add_columns(self, run: ArrowRun, times: np.ndarray) -> Pending:
        grid = self._pane_grid
        values, slots = grid.cells.read(run), self._slots_of(run)
        fresh = self._next_start(self._ended) - self._slide + self._size
        if beginning(run.span_ms()[0], self._offset, self._pane) >= fresh:
            self._check_and_add(values, times, slots)
            return None
        panes = beginnings(times, self._offset, self._pane)
        late = panes < fresh
        # The last window that a pane is in.
        last = beginnings(panes, self._offset, self._slide)
        over = last + (self._size - 1 + self._lateness) <= self.watermark_ms
        kept = np.flatnonzero(~over)
        late = late[kept]
        fires = self._lateness > 0 and self._are_ended(panes[kept][late])
        values = [each.at(kept) for each in values]
        panes, slots = panes[kept], slots[kept]
        pending: Pending = None
        if not fires:
            if len(kept):
                self._check_and_add(values, panes, slots, late)
        else:
            pending = self._add_and_fire(values, panes, slots, late)
        return then(pending, self._emit_too_late, run, np.flatnonzero(over))

    def _check_and_add(
        self,
        values: list[Values],
        times: np.ndarray,
        slots: np.ndarray,
        late: np.ndarray | None = None,
    ) -> None:
        """Add records to their panes, and late ones to what these were merged into.

        Args:
            values: What is to be added.
            times: When the records are, or their panes begin.
            slots: The places of their keys.
            late: Which of them are late, if any may be; ``times`` are of panes then.
        """
        grid, keys = self._pane_grid, len(self._slots.places)
        cells, panes = grid.place(times, slots, keys)
        grid.cells.check_records(values, cells)
        if late is not None and late.any():
            places = np.flatnonzero(late)
            merge, mine = self._pane_merge, [each.at(places) for each in values]
            merge.make_room(keys)
            merged = merge.late_cells(times[places], slots[places])
            for chosen, into in merged:
                merge.grid.cells.check_records([each.at(chosen) for each in mine], into)
            merge.add(mine, merged)
        self._begin_windows(panes)
        grid.add(values, cells)

    def _begin_windows(self, panes: list[int]) -> None:
        for pane in panes:
            for start in self._windows_of(pane):
                if start > self._ended:
                    self._open.of(start)

    def _are_ended(self, panes: np.ndarray) -> bool:
        """Say whether any of these is in a window that has ended and is not over."""
        last = np.minimum(panes, self._ended)
        last -= (last - self._offset) % self._slide
        first: np.ndarray = panes + self._pane - self._size
        return bool(((last > self._over) & (last >= first)).any())

    @property
    def _over(self) -> int:
        """Windows that start here or before are over."""
        over = self.watermark_ms - self._lateness - self._size + 1
        return max(over, MIN_TIMESTAMP)

    def _add_and_fire(
        self,
        values: list[Values],
        panes: np.ndarray,
        slots: np.ndarray,
        late: np.ndarray,
    ) -> Pending:
        """Add records, and emit for each late one what its windows hold by then."""
        if any(self._fired.contents.values()):
            raise RowsNeededError("a restored window had fired already")
        # What follows may not stop in the middle.
        self._pane_grid.cells.check_merged(2 * self._size // self._pane)
        self._check_all(values, panes, slots)
        on_time = np.flatnonzero(~late)
        if len(on_time):
            mine = [each.at(on_time) for each in values]
            self._check_and_add(mine, panes[on_time], slots[on_time], late[on_time])
        places = np.flatnonzero(late)
        self._expect(panes[places], slots[places])
        changes: list[_Change] = []
        groups = Groups(slots[places], len(self._slots.places))
        for chosen in groups.rounds():
            part = places[chosen]
            mine = [each.at(part) for each in values]
            self._check_and_add(mine, panes[part], slots[part], late[part])
            changes += self._changes(part, panes[part], slots[part])
        return self._emit_changes(changes)

    def _check_all(
        self, values: list[Values], panes: np.ndarray, slots: np.ndarray
    ) -> None:
        """Raise if a record, in whatever order, cannot be added or merged."""
        grid, keys = self._pane_grid, len(self._slots.places)
        cells, _ = grid.place(panes, slots, keys)
        times = len(cells) * (2 + self._size // self._pane)
        grid.cells.check(values, cells, times)
        self._pane_merge.make_room(keys)

    def _expect(self, panes: np.ndarray, slots: np.ndarray) -> None:
        """Let keys be in the order of these records, which are added in another one."""
        grid, merge = self._pane_grid, self._pane_merge
        cells, _ = grid.place(panes, slots, len(self._slots.places))
        grid.expect(cells)
        for _, into in merge.late_cells(panes, slots):
            merge.grid.expect(into)

    def _changes(
        self, records: np.ndarray, panes: np.ndarray, slots: np.ndarray
    ) -> Iterator[_Change]:
        """Yield what windows that have ended hold now of keys, each there once."""
        lowest = int(panes.min()) + self._pane - self._size
        start = min(self._ended, int(panes.max()))
        start -= (start - self._offset) % self._slide
        while start >= lowest and start > self._over:
            mine = np.flatnonzero((start <= panes) & (panes < start + self._size))
            if len(mine):
                yield self._change(records[mine], start, slots[mine])
            start -= self._slide

    def _change(self, records: np.ndarray, start: int, slots: np.ndarray) -> _Change:
        # A snapshot has the windows that are noted there.
        self._fired.of(start)
        results = self._pane_merge.results(start, slots, len(self._slots.places))
        return records, np.full(len(slots), start), slots, results

    def _results_of(self, accumulators: list[Any]) -> list[pa.Array]:
        """Return the results of accumulators of rows.

        Raises:
            RowsNeededError: If only rows have them.
        """
        cells, places = Cells(self._given), np.arange(len(accumulators))
        if accumulators:
            cells.grow(len(accumulators))
            cells.load(places, accumulators)
        return cells.results(places)

    def _emit_changes(self, changes: list[_Change]) -> Pending:
        """Emit changes record by record, of each record the latest window first."""
        if not changes:
            return None
        records, starts, slots = (
            np.concatenate([change[part] for change in changes]) for part in range(3)
        )
        order = np.lexsort((-starts, records))
        results = [
            pa.concat_arrays([change[3][piece] for change in changes]).take(
                pa.array(order)
            )
            for piece in range(len(changes[0][3]))
        ]
        starts, slots = starts[order], slots[order]
        return self._emit_results(Fired(starts, starts + self._size, slots, results))

    def _fire_some(self, count: int) -> Firing | None:
        start = self._open.first_until(self.watermark_ms - self._size + 1)
        if start is None:
            return None
        merge, keys = self._pane_merge, len(self._slots.places)
        merge.take(start, keys)
        if self._open.peek(start) or self._fired.peek(start):
            return self._fire_restored(start).firing()
        row = merge.grid.taken(start)
        merge.grid.forget(start)
        self._end(start, {})
        return rows_firing([row], self._size)

    def _fire_restored(self, start: int) -> Fired:
        """Return the results of a window of which a restore has brought a part.

        Raises:
            RowsNeededError: If rows go on with what the window holds, which is noted.
        """
        grid = self._pane_merge.grid
        found = contents_of(grid.kept(start), self._slots.keys)
        grid.forget(start)
        self._end(start, found)
        contents = {} if self._ending is None else dict(self._ending.contents)
        slots = self._place_restored(list(contents))
        results = self._results_of(list(contents.values()))
        self._ending = None
        starts = np.full(len(slots), start)
        return Fired(starts, starts + self._size, slots, results)

    def _forget_over(self, count: int) -> bool:
        last = self._next_start(self._over) - 1
        self._pane_grid.forget_until(last)
        return super()._forget_over(count)

    def _kept_cells(self) -> int:
        return self._pane_grid.size + self._pane_merge.grid.size

    def _used_slots(self) -> np.ndarray:
        return np.union1d(
            self._pane_grid.used_slots(), self._pane_merge.grid.used_slots()
        )

    def _keep_slots(self, slots: np.ndarray) -> None:
        for grid in (self._pane_grid, self._pane_merge.grid):
            grid.make_rows([], len(self._slots.places))
            grid.keep_slots(slots)

    def _give_back(self) -> int:
        keys, grid = self._slots.keys, self._pane_grid
        had = len(grid)
        for start, contents in grid.frozen().contents(keys):
            self._panes.of(start).update(contents)
        for start in grid:
            grid.forget(start)
        self._pane_merge.give_back(self._merge, keys)
        return had


class _PaneSnapshot:
    """Panes as they were, of which a thread makes rows."""

    def __init__(self, frozen: FrozenGrid, keys: list[Any]) -> None:
        self._frozen = frozen
        self._keys = keys

    def items(self) -> Iterator[tuple[int, dict[Any, Any]]]:
        return self._frozen.contents(self._keys)
