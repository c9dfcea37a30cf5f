"""Windows that begin at the same times for all keys, over columns.

Tumbling windows, and sliding ones that cannot share panes: a record is added to each of
its windows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.cell_grid import DetachedRow, FrozenGrid, KeptRow, contents_of
from aiomailbox.columnar.groups import distinct
from aiomailbox.columnar.stretches import beginning, beginnings, overlapping
from aiomailbox.columnar.window_grid import WindowGrid
from aiomailbox.columnar.windows import (
    ColumnarWindows,
    Fired,
    Firing,
    rows_firing,
)
from aiomailbox.operators.core.contract import Pending, then
from aiomailbox.records.elements import MIN_TIMESTAMP
from aiomailbox.state.entries import GroupedEntries
from aiomailbox.state.snapshot import KeyedStateSnapshot
from aiomailbox.windowing.open_windows import WindowRows
from aiomailbox.windowing.sliding import SlidingAggregateOperator
from aiomailbox.windowing.tumbling import TumblingAggregateOperator
from aiomailbox.windowing.window_spec import WindowSpec

__all__ = ["ColumnarSlidingOperator", "ColumnarTumblingOperator", "rows_of"]

# A window of fewer keys takes as long to emit as one of so many.
_KEYS_MIN: Final = 64


class ColumnarTumblingOperator(ColumnarWindows, TumblingAggregateOperator):
    """Does what `TumblingAggregateOperator` does, on columns as long as it gets any.

    Windows that are not over are rows of a grid, which a snapshot has in the form of
    rows.

    Args:
        spec: Key (a selector of fields, or none), windows, lateness and errors.
        aggregate: One for which `needs_rows` returns nothing.
    """

    def __init__(self, spec: WindowSpec, aggregate: Any) -> None:
        super().__init__(spec, aggregate)
        self._grid = WindowGrid(aggregate)
        self._to_load: list[tuple[bool, int]] = []

    def snapshot_apart(self) -> Iterable[KeyedStateSnapshot]:
        """Hold on to what the grid has, for a thread to make rows of."""
        (rows,) = super().snapshot_apart()
        frozen, keys = self._grid.frozen(), self._slots.keys
        groups = self.context.max_parallelism
        entries = GroupedEntries(
            [rows_of(frozen, keys, fired=fired) for fired in (False, True)], groups
        )
        return [rows, KeyedStateSnapshot(groups, rows.states, entries)]

    def _open_columns(self) -> Pending:
        self._grid.lay_out(self._offset, self._step)
        return super()._open_columns()

    @property
    def _step(self) -> int:
        """From the beginning of one window to that of the next, milliseconds."""
        return self._size

    def _windows(self, times: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
        """Return the record of each window, None for one a record; and a time in it.

        The window is the latest with that time.
        """
        return None, times

    def _add_columns(self, run: ArrowRun, times: np.ndarray) -> Pending:
        grid = self._grid
        values, slots = grid.cells.read(run), self._slots_of(run)
        records, times_in = self._windows(times)
        if records is not None:
            values, slots = [each.at(records) for each in values], slots[records]
        keys = len(self._slots.places)
        span = run.span_ms() if records is None else None
        lowest = _least(times_in) if span is None else span[0]
        if beginning(lowest, self._offset, self._step) > self._ended:
            cells, begun = grid.place(times_in, slots, keys, span)
            grid.cells.check_records(values, cells)
            grid.add_waiting(values, begun, cells)
            if records is None:
                return None
            return self._emit_too_late(run, self._skipped(times, records))
        starts = beginnings(times_in, self._offset, self._step)
        late = starts <= self._ended
        over = late & (starts + (self._size - 1 + self._lateness) <= self.watermark_ms)
        kept = np.flatnonzero(~over)
        waits = np.flatnonzero(~late[kept])
        after = np.flatnonzero(late[kept])
        values = [each.at(kept) for each in values]
        starts, slots = starts[kept], slots[kept]
        cells, _ = grid.place(starts, slots, keys)
        grid.cells.check_records(values, cells)
        pending: Pending = None
        if len(waits):
            mine = [each.at(waits) for each in values]
            begun = distinct(starts[waits]).tolist()
            grid.add_waiting(mine, begun, cells[waits])
        if len(after):
            results = grid.add_late([each.at(after) for each in values], cells[after])
            ended = starts[after]
            pending = self._emit_results(
                Fired(ended, ended + self._size, slots[after], results)
            )
        taken = kept if records is None else records[kept]
        return then(pending, self._emit_too_late, run, self._skipped(times, taken))

    def _skipped(self, times: np.ndarray, taken: np.ndarray) -> np.ndarray:
        """Return the records that no window took, and that have come too late."""
        late = times + self._lateness <= self.watermark_ms
        late[taken] = False
        return np.flatnonzero(late)

    def _fire_some(self, count: int) -> Firing | None:
        rows: list[DetachedRow | KeptRow] = []
        grid = self._grid
        limit = self.watermark_ms - self._size + 1
        while count > 0 and (start := grid.first_waiting(limit)) is not None:
            keys, is_kept = grid.count_unfired(start), self._is_kept(start)
            # What is kept at once: a part that was emitted would look like the rest.
            if keys > count and not is_kept:
                rows = rows or [grid.take(start, count)]
                break
            if keys:
                rows.append(grid.taken(start))
                count -= max(keys, _KEYS_MIN)
            if is_kept:
                grid.mark_fired(start)
            else:
                grid.forget(start)
        return rows_firing(rows, self._size) if rows else None

    def _is_kept(self, start: int) -> bool:
        """Say whether records may come to a window that has ended."""
        return start + self._size - 1 + self._lateness > self.watermark_ms

    def _forget_idle(self) -> None:
        # What has ended has been emitted.
        over = self.watermark_ms - self._lateness - self._size + 1
        self._grid.forget_until(over)

    def _kept_cells(self) -> int:
        return self._grid.size

    def _used_slots(self) -> np.ndarray:
        return self._grid.used_slots()

    def _keep_slots(self, slots: np.ndarray) -> None:
        self._grid.keep_slots(slots)

    def _begin_load(self) -> None:
        for fired, windows in ((False, self._open), (True, self._fired)):
            self._to_load += [(fired, start) for start in windows.contents]

    def _load_next(self, count: int) -> int:
        if not self._to_load:
            return 0
        fired, start = self._to_load[-1]
        contents = (self._fired if fired else self._open).contents[start]
        slots = self._place_restored(list(contents))
        if len(slots):
            found, keys = list(contents.values()), len(self._slots.places)
            self._grid.load_window(start, slots, found, keys, fired=fired)
            contents.clear()
        self._to_load.pop()
        return len(slots) + 1

    def _give_back(self) -> int:
        keys, grid = self._slots.keys, self._grid
        for windows, into in zip(
            grid.kept_windows(), (self._open, self._fired), strict=True
        ):
            for window in windows:
                into.of(window.start).update(contents_of(window, keys))
        had = len(grid)
        for start in grid:
            grid.forget(start)
        self._to_load = []
        return had


class ColumnarSlidingOperator(ColumnarTumblingOperator, SlidingAggregateOperator):
    """Does what `SlidingAggregateOperator` does, on columns as long as it gets any.

    Args:
        spec: Key (a selector of fields, or none), windows, lateness and errors.
        aggregate: One for which `needs_rows` returns nothing.
    """

    @property
    def _step(self) -> int:
        return self._slide

    def _windows(self, times: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
        return overlapping(times, self._offset, self._size, self._slide)


def _least(times: np.ndarray) -> int:
    """Return the least of some times; one that is over if there are none."""
    return int(times.min()) if len(times) else MIN_TIMESTAMP


def rows_of(frozen: FrozenGrid, keys: list[Any], *, fired: bool) -> WindowRows:
    """Return what windows hold as a snapshot has it, made when it is read."""
    return WindowRows(lambda: frozen.contents(keys, fired=fired))
