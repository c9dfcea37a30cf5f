"""Tumbling event-time windows over columns, with aggregates of fields."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.cells import RowsNeededError
from aiomailbox.columnar.keys import KeySlots
from aiomailbox.columnar.results import ResultMaker
from aiomailbox.columnar.window_grid import KeptWindow, WindowGrid
from aiomailbox.operators import Pending, in_pieces, then
from aiomailbox.records import COLUMN_RUN_LENGTH_MAX, Run
from aiomailbox.state import GroupedEntries, HeapStateStore, KeyedStateSnapshot
from aiomailbox.windowing import (
    TumblingAggregateOperator,
    WindowRows,
    WindowSpec,
    key_function,
    window_operator,
)

__all__ = ["ColumnarTumblingOperator", "columnar_windows"]

# Beyond it, the arithmetic of times might leave 64 bits.
_TIME_MAX: Final = 2**61
# The years 1 to 9999, which datetimes have.
_DATE_MIN: Final = -62_135_596_800_000
_DATE_MAX: Final = 253_402_300_799_999
# Keys without a window are forgotten when they are so many more than the others.
_IDLE_KEYS: Final = 4096
_WINDOW_FIELDS: Final = ("window_start", "window_end")


def columnar_windows(*args: Any, **settings: Any) -> ColumnarTumblingOperator:
    """Return the operator on columns for what `window_operator` is told.

    Raises:
        TypeError: If that makes another operator than one of tumbling windows.
    """
    made = window_operator(*args, **settings)
    if type(made) is not TumblingAggregateOperator:
        raise TypeError(f"{type(made).__name__} has no form that works on columns")
    return ColumnarTumblingOperator(made._spec, made._given)


class ColumnarTumblingOperator(TumblingAggregateOperator):
    """Does what `TumblingAggregateOperator` does, on columns as long as it gets any.

    Open windows are rows of a grid, which a snapshot has in the form of rows. Late
    records of windows that have fired, which are few, are added as rows. With the first
    run of rows, or the first value for which only Python has the right result, all
    becomes rows, for good.

    Args:
        spec: Key (a selector of fields, or none), windows, lateness and errors.
        aggregate: One for which `needs_rows` returns nothing.
    """

    takes_columns = True

    def __init__(self, spec: WindowSpec, aggregate: Any) -> None:
        super().__init__(spec, aggregate)
        selector: Any = None if spec.key is None else key_function(spec.key)
        self._selector = selector
        names = aggregate.names
        self._is_keyed = selector is not None
        if names is not None:
            names = (*(("key",) if self._is_keyed else ()), *_WINDOW_FIELDS, *names)
        several = self._is_keyed and not selector.is_alone
        self._maker = ResultMaker(names, selector.fields if several else ())
        self._grid = WindowGrid(aggregate)
        self._slots = KeySlots(self._begin_keys)
        self._key_type: pa.DataType | None = None

    def open(self) -> Pending:
        """Bind the state."""
        return then(super().open(), self._open_columns)

    def _open_columns(self) -> Pending:
        # What another backend keeps is there because it does not fit into memory.
        self._is_columnar = isinstance(self.context.keyed_state, HeapStateStore)
        self.context.metrics.gauge("columnar", lambda: int(self._is_columnar))
        self._to_load = list(self._open.contents) if self._is_columnar else []
        return in_pieces(self._load)

    def process_run(self, run: Run) -> Pending:
        """Add each record to its window."""
        if self._is_columnar and len(run):
            try:
                return self._add_columns(run)
            except RowsNeededError as reason:
                self._go_to_rows(str(reason))
        return super().process_run(run)

    def fire(self, timestamp_ms: int) -> Pending:
        """Emit what ends, and forget what is over, in pieces."""
        if not self._is_columnar:
            return super().fire(timestamp_ms)
        pending = self._pieces.run(self._emit_some)
        return then(then(pending, self._tidy), super().fire, timestamp_ms)

    def cut_apart(self) -> Iterable[KeyedStateSnapshot]:
        """Copy what the grid has, for a thread to make rows of."""
        (rows,) = super().cut_apart()
        windows, keys = list(self._grid.all_kept()), list(self._slots.places)

        def of(*, fired: bool) -> Iterator[tuple[int, dict[Any, Any]]]:
            for window in windows:
                if window.has_fired is fired:
                    yield window.start, _contents(window, keys)

        states = [
            WindowRows(lambda: of(fired=False)),
            WindowRows(lambda: of(fired=True)),
        ]
        groups = self.context.max_parallelism
        entries = GroupedEntries(states, groups)
        return [rows, KeyedStateSnapshot(groups, rows.states, entries)]

    def _add_columns(self, run: Run) -> Pending:
        """Add the records of a run of columns.

        Raises:
            RowsNeededError: If the rows have to be asked; nothing has been changed.
        """
        times = run.event_times if type(run) is ArrowRun else None
        if times is None or type(run) is not ArrowRun:
            raise RowsNeededError("records came as rows, or without event times")
        if int(times.min()) < -_TIME_MAX or int(times.max()) > _TIME_MAX:
            raise RowsNeededError("an event time is at the limits of 64 bits")
        values = self._grid.read(run)
        slots = self._slots_of(run)
        starts = times - (times - self._offset) % self._size
        late = starts <= self._ended
        if not late.any():
            self._add_on_time(values, starts, slots)
            return None
        on_time = np.flatnonzero(~late)
        if len(on_time):
            values = [each.at(on_time) for each in values]
            self._add_on_time(values, starts[on_time], slots[on_time])
        return self._add_late_ones(run, np.flatnonzero(late), starts)

    def _slots_of(self, run: ArrowRun) -> np.ndarray:
        if self._selector is None:
            self._slots.places.setdefault(0, 0)
            return np.zeros(len(run), np.int64)
        fields = self._selector.fields
        slots = self._slots.of_batch(
            run, run.row_maker, fields, self._selector.is_alone
        )
        if slots is None:
            raise RowsNeededError("not all keys are texts, integers, bools or bytes")
        if self._selector.is_alone:
            kind = run.schema.field(fields[0]).type
            self._key_type = kind.value_type if pa.types.is_dictionary(kind) else kind
        return slots

    def _begin_keys(self, new: list[Any]) -> None:
        self._keys.check(new)

    def _add_on_time(self, values: Any, starts: np.ndarray, slots: np.ndarray) -> None:
        kept = self._fired.contents
        if len(kept) and any(start in kept for start in np.unique(starts).tolist()):
            raise RowsNeededError("a window goes on that had fired before a restore")
        keys = len(self._slots.places)
        cells = self._grid.check(values, starts, slots, keys)
        self._grid.add(values, cells)

    def _add_late_ones(
        self, run: ArrowRun, late: np.ndarray, starts: np.ndarray
    ) -> Pending:
        """Add records to windows that have fired, as rows; drop those that are over."""
        last = starts[late] + (self._size - 1 + self._lateness)
        over = late[last <= self.watermark_ms]
        pending: Pending = None
        if len(over):
            if self._spec.late_tag is None:
                self._dropped.add(len(over))
            else:
                tag = self._spec.late_tag
                pending = self.output.emit_side(tag, run.take(over))
        rest = late[last > self.watermark_ms]
        if not len(rest):
            return pending
        for start in np.unique(starts[rest]).tolist():
            if start in self._grid:
                self._give_back(self._grid.kept(start), list(self._slots.places))
                self._grid.forget(start)
        rows = run.take(rest)
        return then(pending, super().process_run, rows)

    def _emit_some(self, count: int) -> bool | Awaitable[bool]:
        """Emit results of windows that have ended, as many as a run may have."""
        made = self._ended_results()
        if made is None:
            return True
        pending = self.output.emit_run(made)
        return False if pending is None else _false_after(pending)

    def _ended_results(self) -> Run | None:
        limit = self.watermark_ms - self._size + 1
        parts: list[tuple[int, np.ndarray, list[pa.Array]]] = []
        left = COLUMN_RUN_LENGTH_MAX
        while left > 0:
            start = self._grid.first_until(limit)
            if start is None:
                break
            slots, results = self._take(start, left)
            left -= len(slots)
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
        if self._given.names is not None:
            slots = np.concatenate([slots for _, slots, _ in parts])
            columns = [*self._fields(starts, slots), *columns]
        return self._maker.run(columns, starts + (self._size - 1))

    def _take(self, start: int, count: int) -> tuple[np.ndarray, list[pa.Array]]:
        """Return results of a window that ends, and keep it if records may come late."""
        grid = self._grid
        if start + self._size - 1 + self._lateness > self.watermark_ms:
            # All at once: a part that was emitted would look like one that was not.
            grid.fired.add(start)
            return grid.look(start)
        found = grid.take(start, count)
        if not grid.count(start):
            grid.forget(start)
        return found

    def _fields(self, starts: np.ndarray, slots: np.ndarray) -> list[pa.Array]:
        """Return the columns that come first in results of several aggregates."""
        columns = [_moments(starts), _moments(starts + self._size)]
        if not self._is_keyed:
            return columns
        column = self._slots.column(slots)
        if column is None:
            keys = list(self._slots.places)
            named = [keys[slot] for slot in slots.tolist()]
            column = self._maker.key_column(named, self._key_type)
        return [column, *columns]

    def _tidy(self) -> None:
        """Forget fired windows that are over, and keys that no window has."""
        grid = self._grid
        over = self.watermark_ms - self._lateness - self._size + 1
        while (start := grid.first_until(over, fired=True)) is not None:
            grid.forget(start)
        places = self._slots.places
        if len(places) < _IDLE_KEYS:
            return
        used = grid.used_slots()
        if len(places) < _IDLE_KEYS + 2 * len(used):
            return
        keys = list(places)
        grid.keep_slots(used)
        self._slots.clear()
        self._slots.places.update(
            (keys[slot], place) for place, slot in enumerate(used.tolist())
        )

    def _load(self, count: int) -> bool:
        """Take over about so many contents that a restore has put into rows."""
        while self._to_load and count > 0:
            start = self._to_load.pop()
            contents = self._open.contents[start]
            count -= len(contents) + 1
            try:
                self._load_window(start, contents)
            except RowsNeededError as reason:
                self._go_to_rows(str(reason))
        return not self._to_load

    def _load_window(self, start: int, contents: dict[Any, Any]) -> None:
        places = self._slots.places
        for key in contents:
            places.setdefault(key, len(places))
        slots = np.array([places[key] for key in contents], np.int64)
        if len(slots):
            self._grid.load(start, slots, list(contents.values()), len(places))
            contents.clear()

    def _go_to_rows(self, reason: str) -> None:
        """Give all windows to the state of rows, and leave columns alone from now on."""
        self._is_columnar, self._to_load = False, []
        keys, had = list(self._slots.places), len(self._grid)
        for window in self._grid.all_kept():
            self._give_back(window, keys)
        for start in [window.start for window in self._grid.all_kept()]:
            self._grid.forget(start)
        self._slots.clear()
        if had:
            self.context.log.info("works on rows from now on", reason=reason)

    def _give_back(self, window: KeptWindow, keys: list[Any]) -> None:
        contents = _contents(window, keys)
        if contents:
            into = self._fired if window.has_fired else self._open
            into.of(window.start).update(contents)


def _contents(window: KeptWindow, keys: list[Any]) -> dict[Any, Any]:
    """Return what a window holds by key, as rows have it."""
    accumulators = window.cells.accumulators(np.arange(len(window.slots)))
    named = [keys[slot] for slot in window.slots.tolist()]
    return dict(zip(named, accumulators, strict=True))


def _moments(times: np.ndarray) -> pa.Array:
    """Return milliseconds as moments; null where a datetime has no year for them."""
    beyond = (times < _DATE_MIN) | (times > _DATE_MAX)
    moments = pa.array(np.where(beyond, 0, times), mask=beyond)
    return moments.cast(pa.timestamp("ms", "UTC"))


async def _false_after(pending: Awaitable[None]) -> bool:
    await pending
    return False
