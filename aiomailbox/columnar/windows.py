"""What windows over columns have in common: keys, results and late records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.cell_grid import DetachedRow, KeptRow
from aiomailbox.columnar.columnar_operator import ColumnarOperator
from aiomailbox.columnar.key_types import KeyTypes
from aiomailbox.columnar.keys import KeySlots, KnownKeys
from aiomailbox.columnar.results import NamedResultsOutput, ResultMaker
from aiomailbox.columnar.rows_needed import RowsNeededError
from aiomailbox.operators.core.contract import Output, Pending, then
from aiomailbox.operators.core.pieces import done_after
from aiomailbox.records.run import COLUMN_RUN_LENGTH_MAX, Run
from aiomailbox.windowing.tumbling import AggregateWindowsOperator
from aiomailbox.windowing.window_spec import WindowSpec, key_function

__all__ = [
    "ColumnarWindows",
    "Fired",
    "Firing",
    "moments",
    "rows_firing",
]

# The years 1 to 9999, which datetimes have.
_DATE_MIN: Final = -62_135_596_800_000
_DATE_MAX: Final = 253_402_300_799_999
# Keys without a window are forgotten when they are so many more than the others.
_IDLE_KEYS: Final = 4096
# To look whether a cell is used takes this part of what it takes to add a record.
_LOOKED_AT: Final = 16
_WINDOW_FIELDS: Final = ("window_start", "window_end")


class Fired(NamedTuple):
    """Windows that are to be emitted, one a key.

    Attributes:
        starts: Where they begin, milliseconds, shape ``(n,)`` like all that follows.
        ends: Where they end.
        slots: The places of the keys.
        results: A column for each piece of the aggregate.
    """

    starts: np.ndarray
    ends: np.ndarray
    slots: np.ndarray
    results: list[pa.Array]

    def firing(self) -> Firing:
        """Return the same, as made already."""
        return Firing(self.ends - 1, lambda: self)


class Firing(NamedTuple):
    """Windows that are to be emitted; their results are computed when they are read.

    Attributes:
        times: The event times of the results, milliseconds, shape ``(n,)``.
        make: Returns the windows; called on demand, in any thread, maybe twice.
    """

    times: np.ndarray
    make: Callable[[], Fired]


class ColumnarWindows(ColumnarOperator, AggregateWindowsOperator):
    """Lets an operator of windows work on columns; see `ColumnarOperator`.

    Args:
        spec: Key (a selector of fields, or none), windows, lateness and errors.
        aggregate: One for which `needs_rows` returns nothing.
    """

    def __init__(self, spec: WindowSpec, aggregate: Any) -> None:
        super().__init__(spec, aggregate)
        selector: Any = None if spec.key is None else key_function(spec.key)
        self._selector = selector
        names = aggregate.names
        self._has_bounds = names is not None
        are_pairs = spec.include_key and names is None
        # Whether results have a key.
        self._is_keyed = selector is not None and (self._has_bounds or are_pairs)
        if are_pairs:
            names = ("key", "value")
        elif names is not None:
            names = (*(("key",) if self._is_keyed else ()), *_WINDOW_FIELDS, *names)
        several = selector is not None and not selector.is_alone
        self._maker = ResultMaker(
            names, selector.fields if several else (), are_tuples=are_pairs
        )
        self._slots = KeySlots(self._begin_keys)
        self._key_types = KeyTypes()
        # Whether the columns of any results have been read.
        self._are_read = False
        # How many records have come since all cells were looked at.
        self._since_look = 0

    def setup(self, context: Any, output: Output) -> None:
        """Take the context, and an output that keeps the names of fields."""
        if self._maker.rows_lack_names:
            output = NamedResultsOutput(output, self._maker)
        super().setup(context, output)

    def process_run(self, run: Run) -> Pending:
        """Add each record to its window."""
        if self._is_columnar and len(run):
            self._since_look += len(run)
            try:
                return self._add_columns(*self._timed(run))
            except RowsNeededError as reason:
                self._go_to_rows(str(reason))
        return super().process_run(run)

    def fire(self, timestamp_ms: int) -> Pending:
        """Emit what ends, and forget what is over, in pieces."""
        if not self._is_columnar:
            return super().fire(timestamp_ms)
        pending = self._pieces.run(self._emit_some)
        return then(then(pending, self._tidy), super().fire, timestamp_ms)

    def _add_columns(self, run: ArrowRun, times: np.ndarray) -> Pending:
        """Add the records of a run of columns.

        Raises:
            RowsNeededError: If the rows have to be asked; nothing has been changed.
        """
        raise TypeError(f"{type(self).__name__} defines no _add_columns")

    def _fire_some(self, count: int) -> Firing | None:
        """Return about so many results of what the watermark has ended; None for none.

        Raises:
            RowsNeededError: If the rows have to be asked; nothing has been changed.
        """
        raise TypeError(f"{type(self).__name__} defines no _fire_some")

    def _forget_idle(self) -> None:
        """Forget what is over, which a watermark has said."""

    def _kept_cells(self) -> int:
        """Return how many cells there are, used or not."""
        raise TypeError(f"{type(self).__name__} defines no _kept_cells")

    def _used_slots(self) -> np.ndarray:
        """Return the places of keys that there is something of, ascending."""
        raise TypeError(f"{type(self).__name__} defines no _used_slots")

    def _keep_slots(self, slots: np.ndarray) -> None:
        """Keep the places of these keys only; they get new ones, in their order."""
        raise TypeError(f"{type(self).__name__} defines no _keep_slots")

    def _slots_of(self, run: ArrowRun) -> np.ndarray:
        if self._selector is None:
            self._slots.place([0])
            return np.zeros(len(run), np.int64)
        slots = self._slots_by(self._selector, run)
        kinds = [run.schema.field(field).type for field in self._selector.fields]
        alone = self._selector.is_alone
        self._key_types.add(kinds, self._slots.keys, alone=alone)
        return slots

    def _place_restored(self, keys: list[Any]) -> np.ndarray:
        """Return the places of keys that a restore has brought.

        Raises:
            RowsNeededError: If no column has them together with the others.
        """
        if self._selector is not None:
            self._key_types.hold(keys, alone=self._selector.is_alone)
        return self._slots.place(keys)

    def _begin_keys(self, new: list[Any]) -> None:
        self._keys.check(new)

    def _emit_some(self, count: int) -> bool | Awaitable[bool]:
        """Emit results of windows that have ended, as many as a run may have."""
        try:
            firing = self._fire_some(COLUMN_RUN_LENGTH_MAX)
        except RowsNeededError as reason:
            self._go_to_rows(str(reason))
            return True
        if firing is None:
            return True
        pending = self._emit_firing(firing)
        return done_after(pending, done=False)

    def _emit_results(self, fired: Fired) -> Pending:
        """Emit results with their windows, at the end of each."""
        return self._emit_firing(fired.firing())

    def _emit_firing(self, firing: Firing) -> Pending:
        # Keys may have other places later.
        make = partial(self._made_of, firing, self._slots.known_keys())
        if self._are_read:
            return self.output.emit_run(make())
        times = firing.times
        return self.output.emit_run(ArrowRun.deferred(len(times), make, times))

    def _made_of(self, firing: Firing, known: KnownKeys) -> ArrowRun:
        """Return results, those of several aggregates with windows. In any thread."""
        # From now on they are made at once.
        self._are_read = True
        times = firing.times
        starts, ends, slots, results = firing.make()
        columns = results
        if self._has_bounds:
            columns = [moments(starts), moments(ends), *results]
        if self._is_keyed:
            column = known.column(slots)
            if column is None:
                named = [known.keys[slot] for slot in slots.tolist()]
                column = self._maker.key_column(named, self._key_types.types)
            columns = [column, *columns]
        return self._maker.run(columns, times)

    def _emit_too_late(self, run: ArrowRun, over: np.ndarray) -> Pending:
        """Drop records whose windows are over, or pass them on aside."""
        if not len(over):
            return None
        tag = self._spec.late_tag
        if tag is None:
            times: Any = run.event_times
            oldest = int(times[over].min())
            self._dropped.drop(oldest, self.watermark_ms, len(over))
            return None
        return self.output.emit_side(tag, run.take(over))

    def _tidy(self) -> None:
        """Forget what is over, and keys that no window has."""
        if not self._is_columnar:
            return
        self._forget_idle()
        places = self._slots.places
        # Few keys cost little, and none is looked at for them.
        if len(places) < _IDLE_KEYS:
            return
        # Not at each of many watermarks: it would take longer than the records do.
        if self._since_look * _LOOKED_AT < self._kept_cells():
            return
        self._since_look = 0
        used = self._used_slots()
        # Only if most are idle: moving the others costs as much as they are.
        if len(places) < _IDLE_KEYS + 2 * len(used):
            return
        keys = self._slots.keys
        self._keep_slots(used)
        self._slots.clear()
        self._slots.place([keys[slot] for slot in used.tolist()])


def moments(times: np.ndarray) -> pa.Array:
    """Return milliseconds as moments; null where a datetime has no year for them."""
    kind = pa.timestamp("ms", "UTC")
    if not len(times) or (
        int(times.min()) >= _DATE_MIN and int(times.max()) <= _DATE_MAX
    ):
        return pa.array(times).view(kind)
    beyond = (times < _DATE_MIN) | (times > _DATE_MAX)
    return pa.array(np.where(beyond, 0, times), mask=beyond).cast(kind)


def rows_firing(rows: Sequence[DetachedRow | KeptRow], size: int) -> Firing:
    """Return the windows whose contents rows are.

    Args:
        rows: At least one.
        size: How long the windows are, milliseconds.
    """
    starts: np.ndarray = np.repeat(
        np.array([row.start for row in rows], np.int64), [row.keys for row in rows]
    )
    return Firing(starts + (size - 1), partial(_fired_of, rows, starts, size))


def _fired_of(
    rows: Sequence[DetachedRow | KeptRow], starts: np.ndarray, size: int
) -> Fired:
    slots, columns = zip(*[row.results() for row in rows], strict=True)
    results = [pa.concat_arrays(parts) for parts in zip(*columns, strict=True)]
    return Fired(starts, starts + size, np.concatenate(slots), results)
