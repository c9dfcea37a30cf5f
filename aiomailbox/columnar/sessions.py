"""Event-time sessions over columns, with aggregates of fields.

Theory of operation: the records of a run and the sessions that their keys have are
sorted by key and time; what touches belongs together. That is what rows would find too,
and in the same order of additions, as long as each record on its arrival touches what is
there of its session already, and nothing of it has fired. Keys for which that does not
hold, which are few, are left to the operator of rows for this run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice
from typing import Any

import numpy as np
import pyarrow as pa

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.cells import Cells
from aiomailbox.columnar.groups import distinct
from aiomailbox.columnar.rows_needed import RowsNeededError
from aiomailbox.columnar.session_cells import KeptSessions, SessionCells
from aiomailbox.columnar.touching import Touching, find_touching
from aiomailbox.columnar.values import Values
from aiomailbox.columnar.windows import ColumnarWindows, Fired, Firing
from aiomailbox.operators.core.contract import Pending, then
from aiomailbox.records.run import ListRun
from aiomailbox.state.entries import GroupedEntries
from aiomailbox.state.snapshot import KeyedStateSnapshot
from aiomailbox.windowing.open_sessions import FIRED, GONE, OPEN
from aiomailbox.windowing.session_aggregate import SessionAggregateOperator
from aiomailbox.windowing.time_window import TimeWindow
from aiomailbox.windowing.window_spec import WindowSpec

__all__ = ["ColumnarSessionOperator"]

# What a late record has made of its session: the key, start, end, accumulator.
_Change = tuple[Any, int, int, list[Any]]


class ColumnarSessionOperator(ColumnarWindows, SessionAggregateOperator):
    """Does what `SessionAggregateOperator` does, on columns as long as it gets any.

    Args:
        spec: Key (a selector of fields, or none), sessions with a fixed gap, lateness
            and errors.
        aggregate: One for which `needs_rows` returns nothing.
    """

    def __init__(self, spec: WindowSpec, aggregate: Any) -> None:
        super().__init__(spec, aggregate)
        self._kept = SessionCells(aggregate, self._lateness)
        # What the watermark has ended and has not been emitted, in this order.
        self._ending: np.ndarray | None = None
        self._changes: list[_Change] = []

    def snapshot_apart(self) -> Iterable[KeyedStateSnapshot]:
        """Hold on to the sessions, for a thread to make rows of."""
        (rows,) = super().snapshot_apart()
        columns = _SessionColumns(self._kept.frozen(), self._slots.keys)
        groups = self.context.max_parallelism
        entries = GroupedEntries([columns], groups)
        return [rows, KeyedStateSnapshot(groups, rows.states, entries)]

    def _add_columns(self, run: ArrowRun, times: np.ndarray) -> Pending:
        kept = self._kept
        values, slots = kept.cells.read(run), self._slots_of(run)
        # Most records are within the latest session of their key, however that grows.
        places = kept.latest_of(slots)
        inside = places >= 0
        if len(kept.stages):
            inside &= kept.stages.take(places) == OPEN
            inside &= kept.starts.take(places) <= times
            inside &= times <= kept.ends.take(places)
        if inside.all():
            kept.cells.check_records(values, places)
            self._prolong(values, places, times)
            return None
        others: np.ndarray = np.zeros(len(self._slots.places), np.bool_)
        others[slots[~inside]] = True
        rest = np.flatnonzero(others[slots])
        found, mine = self._touching(slots[rest], times[rest])
        used = np.bincount(found.of_records, minlength=len(found.simple)) > 0
        by_rows = distinct(found.slots[used & ~found.simple])
        used[np.isin(found.slots, by_rows)] = False
        stretches: np.ndarray = np.full(len(used), -1)
        stretches[found.of_others] = mine
        new = used & (stretches < 0)
        stretches[new] = kept.free_places(int(np.count_nonzero(new)))
        stretches[~used] = -1
        places[rest] = stretches[found.of_records]
        fast = np.flatnonzero(places >= 0)
        values = [each.at(fast) for each in values]
        kept.cells.check_records(values, places[fast])
        kept.begin(found.slots[new], found.starts[new], found.ends[new])
        longer = stretches[used]
        kept.starts[longer], kept.ends[longer] = found.starts[used], found.ends[used]
        self._prolong(values, places[fast], times[fast])
        if not len(by_rows):
            return None
        return self._add_rows(run, times, slots, np.flatnonzero(places < 0), by_rows)

    def _touching(
        self, slots: np.ndarray, times: np.ndarray
    ) -> tuple[Touching, np.ndarray]:
        """Return what records touch, and which sessions their keys have."""
        kept, ends = self._kept, times + self._gap
        mine = kept.of_keys(distinct(slots))
        found = find_touching(
            slots, times, ends, kept.slots[mine], kept.starts[mine], kept.ends[mine]
        )
        # Neither what has fired already nor what fires at once is simple.
        found.simple[found.of_records[ends - 1 <= self.watermark_ms]] = False
        found.simple[found.of_others[kept.stages[mine] == FIRED]] = False
        return found, mine

    def _prolong(
        self, values: list[Values], places: np.ndarray, times: np.ndarray
    ) -> None:
        """Add records to sessions, which begin where or before they do."""
        kept = self._kept
        kept.cells.add(values, places)
        np.maximum.at(kept.ends, places, times + self._gap)

    def _add_rows(
        self,
        run: ArrowRun,
        times: np.ndarray,
        slots: np.ndarray,
        chosen: np.ndarray,
        by_rows: np.ndarray,
    ) -> Pending:
        """Add records of some keys one by one.

        Args:
            run: The run.
            times: Its event times.
            slots: The places of its keys.
            chosen: Which records.
            by_rows: The places of their keys, each once.
        """
        keys = self._slots.keys
        mine = self._kept.of_keys(by_rows)
        self._put_back(self._kept.kept(mine), keys)
        self._kept.end(mine)
        places = chosen.tolist()
        records = zip(
            places, run.take(chosen).values, slots[chosen].tolist(), strict=True
        )
        too_late = [
            place
            for (place, value, slot), stamp in zip(
                records, times[chosen].tolist(), strict=True
            )
            if not self._add(keys[slot], value, stamp, stamp + self._gap)
        ]
        pending = self._emit_late()
        try:
            self._load_sessions([keys[slot] for slot in by_rows.tolist()])
        except RowsNeededError as reason:
            self._go_to_rows(str(reason))
        return then(pending, self._emit_too_late, run, np.array(too_late, np.int64))

    def _collect(self, key: Any, window: TimeWindow, accumulator: Any) -> None:
        """Emit what a session has that ended before the record came."""
        if self._is_columnar:
            self._changes.append((key, window.start, window.end, list(accumulator)))
        else:
            super()._collect(key, window, accumulator)

    def _emit_late(self) -> Pending:
        changes, self._changes = self._changes, []
        if not changes:
            return None
        keys, starts, ends, accumulators = zip(*changes, strict=True)
        cells, places = Cells(self._given), np.arange(len(changes))
        cells.grow(len(changes))
        try:
            cells.load(places, list(accumulators))
        except RowsNeededError:
            made = [
                self._result(key, TimeWindow(start, end), accumulator)
                for key, start, end, accumulator in changes
            ]
            return self.output.emit_run(ListRun(made, [end - 1 for end in ends]))
        fired = np.array(starts), np.array(ends), self._slots.place(list(keys))
        return self._emit_results(Fired(*fired, cells.results(places)))

    def _fire_some(self, count: int) -> Firing | None:
        kept, now = self._kept, self.watermark_ms
        ending = self._take_ended_sessions() if self._ending is None else self._ending
        ended, self._ending = ending[:count], ending[count:]
        if not len(ended):
            self._ending = None
            return None
        starts, ends, slots = kept.starts[ended], kept.ends[ended], kept.slots[ended]
        results: list[pa.Array] = kept.cells.results(ended)
        over = ends - 1 + self._lateness <= now
        kept.fire(ended[~over])
        kept.end(ended[over])
        return Fired(starts, ends, slots, results).firing()

    def _take_ended_sessions(self) -> np.ndarray:
        """Return what the watermark has ended, the earliest first; forget what is over."""
        kept = self._kept
        due = kept.take_due(self.watermark_ms)
        is_open = kept.stages[due] == OPEN
        kept.end(due[~is_open])
        ended = due[is_open]
        in_order: np.ndarray = ended[np.argsort(kept.ends[ended], kind="stable")]
        return in_order

    def _kept_cells(self) -> int:
        return len(self._kept.stages)

    def _used_slots(self) -> np.ndarray:
        kept = self._kept
        used: np.ndarray = np.zeros(len(self._slots.places), np.bool_)
        used[kept.slots[kept.all()]] = True
        return np.flatnonzero(used)

    def _keep_slots(self, slots: np.ndarray) -> None:
        self._kept.keep_slots(slots)

    def _load_next(self, count: int) -> int:
        keys = list(islice(self._sessions.by_key, count))
        if keys:
            self._load_sessions(keys)
        return len(keys)

    def _load_sessions(self, keys: list[Any]) -> None:
        """Take sessions of keys over from the state of rows.

        Raises:
            RowsNeededError: If they have to stay rows; none of them was taken.
        """
        by_key, kept = self._sessions.by_key, self._kept
        found = [(key, one) for key in keys for one in by_key.get(key, ())]
        if found:
            slots = self._place_restored([key for key, _ in found])
            starts, ends, accumulators, stages = zip(
                *(one for _, one in found), strict=True
            )
            kept.cells.load(kept.free_places(len(found)), list(accumulators))
            kept.begin(slots, np.array(starts), np.array(ends), np.array(stages))
        for key in keys:
            by_key.pop(key, None)
        if not by_key:
            # Also when they are due is forgotten.
            self._sessions = self._sessions.emptied()

    def _give_back(self) -> int:
        kept = self._kept
        mine = kept.all()
        self._put_back(kept.kept(mine), self._slots.keys)
        kept.end(mine)
        return len(mine)

    def _put_back(self, sessions: KeptSessions, keys: list[Any]) -> None:
        for key, mine in _rows_of(sessions, keys):
            own = [[start, end, content, GONE] for start, end, content, _ in mine]
            self._sessions.by_key[key] = own
            for session, (*_, stage) in zip(own, mine, strict=True):
                self._sessions.schedule(key, session, stage)


class _SessionColumns:
    """Sessions as a snapshot has them, made when they are read."""

    __slots__ = ("_kept", "_keys")
    width = 2

    def __init__(self, kept: Callable[[], KeptSessions], keys: list[Any]) -> None:
        self._kept = kept
        self._keys = keys

    def columns(self, count: int) -> Iterator[tuple[list[Any], list[Any]]]:
        """Yield keys and their sessions, so many at a time."""
        rows = _rows_of(self._kept(), self._keys)
        while some := list(islice(rows, count)):
            yield [key for key, _ in some], [mine for _, mine in some]


def _rows_of(kept: KeptSessions, keys: list[Any]) -> Iterator[tuple[Any, list[Any]]]:
    """Yield each key with its sessions as rows have them."""
    rows = zip(
        kept.starts.tolist(),
        kept.ends.tolist(),
        kept.accumulators,
        kept.stages.tolist(),
        strict=True,
    )
    pairs = zip(kept.slots.tolist(), rows, strict=True)
    for slot, mine in groupby(pairs, lambda pair: pair[0]):
        yield keys[slot], [row for _, row in mine]
