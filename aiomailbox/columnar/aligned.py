"""Windows that begin at the same times for all keys, over columns.

Tumbling windows, and sliding ones that cannot share panes: a record is added to each of
its windows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.cell_grid import FrozenGrid, contents_of
from aiomailbox.columnar.groups import distinct
from aiomailbox.columnar.window_grid import WindowGrid
from aiomailbox.columnar.windows import ColumnarWindows, Fired, beginnings
from aiomailbox.operators import Pending, then
from aiomailbox.state import GroupedEntries, KeyedStateSnapshot
from aiomailbox.windowing import (
    SlidingAggregateOperator,
    TumblingAggregateOperator,
    WindowRows,
    WindowSpec,
)

__all__ = ["ColumnarSlidingOperator", "ColumnarTumblingOperator", "rows_of"]


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

    @property
    def _step(self) -> int:
        """From the beginning of one window to that of the next, milliseconds."""
        return self._size

    def _windows(self, times: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
        """Return the record of each window, None for one a record; where each begins."""
        return None, beginnings(times, self._offset, self._size)

    def _add_columns(self, run: ArrowRun, times: np.ndarray) -> Pending:
        grid = self._grid
        values, slots = grid.cells.read(run), self._slots_of(run)
        records, starts = self._windows(times)
        if records is not None:
            values, slots = [each.at(records) for each in values], slots[records]
        keys = len(self._slots.places)
        late = starts <= self._ended
        if records is None and not late.any():
            cells, begun = grid.place(starts, slots, keys, self._step)
            grid.check(values, cells)
            grid.add_waiting(values, begun, cells)
            return None
        over = late & (starts + (self._size - 1 + self._lateness) <= self.watermark_ms)
        kept = np.flatnonzero(~over)
        waits = np.flatnonzero(~late[kept])
        after = np.flatnonzero(late[kept])
        values = [each.at(kept) for each in values]
        starts, slots = starts[kept], slots[kept]
        cells, _ = grid.place(starts, slots, keys, self._step)
        grid.check(values, cells)
        pending: Pending = None
        if len(waits):
            mine = [each.at(waits) for each in values]
            begun = distinct(starts[waits]).tolist()
            grid.add_waiting(mine, begun, cells[waits])
        if len(after):
            results = grid.add_late([each.at(after) for each in values], cells[after])
            ended = starts[after]
            pending = self._emit_results(
                (ended, ended + self._size, slots[after], results)
            )
        taken = kept if records is None else records[kept]
        return then(pending, self._emit_too_late, run, self._skipped(times, taken))

    def _skipped(self, times: np.ndarray, taken: np.ndarray) -> np.ndarray:
        """Return the records that no window took, and that have come too late."""
        late = times + self._lateness <= self.watermark_ms
        late[taken] = False
        return np.flatnonzero(late)

    def _fire_some(self, count: int) -> Fired | None:
        limit = self.watermark_ms - self._size + 1
        parts: list[tuple[int, np.ndarray, list[pa.Array]]] = []
        while count > 0 and (start := self._grid.first_waiting(limit)) is not None:
            slots, results = self._take_fired(start, count)
            count -= len(slots)
            parts.append((start, slots, results))
        if not parts:
            return None
        starts: np.ndarray = np.repeat(
            np.array([start for start, _, _ in parts], np.int64),
            [len(slots) for _, slots, _ in parts],
        )
        columns = [
            pa.concat_arrays([results[piece] for _, _, results in parts])
            for piece in range(len(parts[0][2]))
        ]
        slots = np.concatenate([slots for _, slots, _ in parts])
        return starts, starts + self._size, slots, columns

    def _take_fired(self, start: int, count: int) -> tuple[np.ndarray, list[pa.Array]]:
        """Return results of a window that ends, and keep it if records may come late."""
        if start + self._size - 1 + self._lateness > self.watermark_ms:
            # All at once: a part that was emitted would look like one that was not.
            return self._grid.fire(start)
        return self._grid.take(start, count)

    def _forget_idle(self) -> None:
        grid = self._grid
        over = self.watermark_ms - self._lateness - self._size + 1
        for start in grid:
            if start <= over and start not in grid.waiting:
                grid.forget(start)

    def _used_slots(self) -> np.ndarray:
        return self._grid.used_slots()

    def _keep_slots(self, slots: np.ndarray) -> None:
        self._grid.keep_slots(slots)

    def _begin_load(self) -> None:
        for fired, windows in ((False, self._open), (True, self._fired)):
            self._to_load += [(fired, start) for start in windows.contents]

    def _load_next(self) -> int:
        if not self._to_load:
            return 0
        fired, start = self._to_load[-1]
        contents = (self._fired if fired else self._open).contents[start]
        slots = self._slots.place(list(contents))
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
        slide, size = self._slide, self._size
        last = beginnings(times, self._offset, slide)
        # The latest window comes first, as in rows.
        starts = last[:, np.newaxis] - np.arange(-(-size // slide)) * slide
        there = starts > (times - size)[:, np.newaxis]
        return np.nonzero(there)[0], starts[there]


def rows_of(frozen: FrozenGrid, keys: list[Any], *, fired: bool) -> WindowRows:
    """Return what windows hold as a snapshot has it, made when it is read."""
    return WindowRows(lambda: frozen.contents(keys, fired=fired))
