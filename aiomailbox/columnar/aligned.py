"""Windows that begin at the same times for all keys, over columns.

Tumbling windows, and sliding ones that cannot share panes: a record is added to each of
its windows.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from aiomailbox.columnar.accumulators import Values, reshaped
from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.cell_grid import (
    ABSENT,
    CellGrid,
    DetachedRow,
    KeptRow,
    StartHeap,
)
from aiomailbox.columnar.keys import Groups, distinct
from aiomailbox.columnar.types import RowsNeededError
from aiomailbox.columnar.windows import ColumnarWindows, Fired, Firing, rows_firing
from aiomailbox.operators.aggregates.functions import Aggregate
from aiomailbox.operators.core.operator import Pending, then
from aiomailbox.records.events import MAX_TIMESTAMP, MIN_TIMESTAMP
from aiomailbox.records.run import Run
from aiomailbox.state.snapshot import KeyedStateSnapshot
from aiomailbox.windowing.aggregate import (
    SlidingAggregateOperator,
    TumblingAggregateOperator,
    window_rows,
)
from aiomailbox.windowing.partition import PartitionAggregateOperator
from aiomailbox.windowing.spec import WindowSpec

# Stretches of event time, all of one length: where those begin that times are in.


def beginnings(times: np.ndarray, offset: int, size: int) -> np.ndarray:
    """Return where stretches begin, milliseconds, that these times are in.

    A division by one number is a multiplication; a remainder would not be.
    """
    starts: np.ndarray = times - offset
    starts //= size
    starts *= size
    starts += offset
    return starts


def beginning(time: int, offset: int, size: int) -> int:
    """Return where the stretch begins that a time is in; see `beginnings`."""
    return time - (time - offset) % size


def overlapping(
    times: np.ndarray, offset: int, size: int, slide: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sliding windows that times are in, the latest of each time first.

    Args:
        times: Milliseconds, shape ``(n,)``.
        offset: Where some window begins.
        size: How long windows are.
        slide: From the beginning of one to that of the next.

    Returns:
        The place of the time, and where the window begins, of each that one is in.

    Example:
        >>> places, starts = overlapping(np.array([7, 12]), 0, 10, 5)
        >>> places.tolist(), starts.tolist()
        ([0, 0, 1, 1], [5, 0, 10, 5])
    """
    last = beginnings(times, offset, slide)
    starts = last[:, np.newaxis] - np.arange(-(-size // slide)) * slide
    there = starts > (times - size)[:, np.newaxis]
    return np.nonzero(there)[0], starts[there]


# The accumulators of windows that are not over, fired or not.


class WindowGrid(CellGrid):
    """The contents of windows by key, and whether they were emitted.

    A window that fired may still get late records. After a restore there may be both in
    a window, since nothing says yet how far event time had come.

    Args:
        aggregate: What is computed.

    Attributes:
        waiting: The starts of windows that hold something which has not been emitted.
        first_waiting: The same, the first one first.
    """

    def __init__(self, aggregate: Aggregate[Any, Any]) -> None:
        super().__init__(aggregate)
        self.waiting: set[int] = set()
        self.first_waiting = StartHeap(self.waiting)
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
        self.first_waiting.add(new)

    def add_late(self, values: list[Values], cells: np.ndarray) -> list[pa.Array]:
        """Add records to windows that have fired, once checked; return each result."""
        mine, codes = np.unique(cells, return_inverse=True)
        made = self.cells.roll(values, Groups(codes, len(mine)), mine)
        self.see(cells)
        self._fired[mine] = True
        return made

    def unfired(self, start: int) -> np.ndarray:
        """Return the places of keys whose content has not been emitted."""
        slots = self.slots(start)
        return slots[~self._fired[self.cells_of(start, slots)]]

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
        windows = [
            window_rows(partial(frozen.contents, keys, fired=fired))
            for fired in (False, True)
        ]
        return [rows, self._windows_snapshot(*windows)]

    def _open_columns(self) -> Pending:
        self._grid.lay_out(self._offset, self._step)
        self._to_load = [
            (fired, start)
            for fired, windows in ((False, self._open), (True, self._fired))
            for start in windows.contents
        ]
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
        while (
            count > 0 and (start := grid.first_waiting.first_until(limit)) is not None
        ):
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
        grid, keys = self._grid, self._slots.keys
        frozen, had = grid.frozen(), len(grid)
        for fired, windows in ((False, self._open), (True, self._fired)):
            for start, contents in frozen.contents(keys, fired=fired):
                windows.of(start).update(contents)
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


class ColumnarPartitionOperator(ColumnarTumblingOperator, PartitionAggregateOperator):
    """Does what `PartitionAggregateOperator` does, on columns as long as it gets any.

    Args:
        spec: Key (a selector of fields, or none) and errors.
        aggregate: One for which `needs_rows` returns nothing.
    """

    _says_bounds = False

    @staticmethod
    def _timed(run: Run) -> tuple[ArrowRun, np.ndarray]:
        if type(run) is not ArrowRun:
            raise RowsNeededError("records came as rows")
        times = np.zeros(len(run), np.int64)
        return run.with_timestamps(times), times

    def _fire_some(self, count: int) -> Firing | None:
        firing = super()._fire_some(count)
        if firing is None:
            return None
        return firing._replace(times=np.full(len(firing.times), MAX_TIMESTAMP))


def _least(times: np.ndarray) -> int:
    """Return the least of some times; one that is over if there are none."""
    return int(times.min()) if len(times) else MIN_TIMESTAMP
