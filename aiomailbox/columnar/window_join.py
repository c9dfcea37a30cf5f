"""The join in windows over columns."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.columnar_join import PAIRS_MAX, ColumnarJoin
from aiomailbox.columnar.join_side import recast, run_of_rows
from aiomailbox.columnar.joined_rows import FrozenWindow, JoinedRows, JoinedTimers
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.columnar.rows_needed import RowsNeededError
from aiomailbox.columnar.starts import Starts
from aiomailbox.columnar.stretches import beginnings, overlapping
from aiomailbox.columnar.window_pairs import (
    Ending,
    EndingPairs,
    Groups,
    KeyedParts,
    LatePairs,
    Part,
    of_keys,
)
from aiomailbox.eventtime.timers import event_timers
from aiomailbox.operators.core.contract import Pending, in_turn, then
from aiomailbox.operators.core.pieces import Pieces, done_after
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.state.descriptors import ListStateDescriptor
from aiomailbox.state.entries import GroupedEntries
from aiomailbox.state.registry import state_meta
from aiomailbox.state.snapshot import KeyedStateSnapshot
from aiomailbox.windowing.assigners import (
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from aiomailbox.windowing.time_window import TimeWindow
from aiomailbox.windowing.window_join import WindowJoinOperator
from aiomailbox.windowing.window_spec import WindowSpec

__all__ = ["ColumnarWindowJoin", "window_join_asking"]

_TIMERS: Final = "window-timers"
_CONTENTS: Final[ListStateDescriptor[Any]] = ListStateDescriptor("window-contents")
# Up to so many parts are looked at one by one.
_RECENT_MIN: Final = 16
_NO_KEYS: Final[np.ndarray] = np.zeros(0, np.int64)


class _Window:
    """A window and what is in it.

    Attributes:
        parts: Its records in the order in which they came.
        silent: Keys that were emitted before a restore, ascending: until another record
            of theirs comes, the end of the window emits nothing of them.
    """

    __slots__ = ("_keyed", "parts", "silent")

    def __init__(self, parts: list[Part], silent: np.ndarray = _NO_KEYS) -> None:
        self.parts: list[Part] = parts
        self.silent: np.ndarray = silent
        # The first of the parts by their keys, once some were asked for.
        self._keyed: KeyedParts | None = None

    def replace(self, parts: list[Part]) -> None:
        """Let other parts be in the place of those that there are."""
        self.parts, self._keyed = parts, None

    def of_keys(self, slots: np.ndarray) -> list[Part]:
        """Return what there is of some keys, in the order in which it came."""
        keyed = self._keyed
        if keyed is None or len(self.parts) > _recent_max(keyed.count):
            keyed = self._keyed = KeyedParts(self.parts[:])
        recent = self.parts[keyed.count :]
        return [*keyed.of(slots), *of_keys(recent, slots)]

    def add(self, part: Part) -> None:
        """Add records that have come."""
        self.parts.append(part)
        if len(self.silent):
            self.silent = np.setdiff1d(self.silent, part.slots)

    def due(self) -> list[Part]:
        """Return what the end of the window emits."""
        if not len(self.silent):
            return self.parts
        return of_keys(self.parts, self.silent, are_others=True)


def _recent_max(count: int) -> int:
    """Return up to how many parts there are some that are looked at one by one."""
    return count + max(_RECENT_MIN, count // 4)


class _Windows(dict[int, _Window]):
    """Windows by where they begin."""

    def __init__(self) -> None:
        super().__init__()
        self._starts = Starts(self)

    def of(self, start: int) -> _Window:
        """Return the window that begins there; it may be new."""
        found = self.get(start)
        if found is None:
            found = self[start] = _Window([])
            self._starts.add([start])
        return found

    def first_until(self, limit: int) -> int | None:
        """Return the start of the first window if it is not after a limit."""
        return self._starts.first_until(limit)

    def take(self, limit: int) -> int | None:
        """Return the same, which is not the first any more from now on."""
        return self._starts.take(limit)


class ColumnarWindowJoin(ColumnarJoin, WindowJoinOperator):
    """Does what `WindowJoinOperator` does, on columns as long as both sides have them.

    A window has places in the runs that came; no column is copied before it ends.
    Records that come after that lead to all pairs of their key once more, as in rows.

    Args:
        key: The keys of both sides, selectors of fields.
        assigner: Windows of which `window_join_asking` has nothing to say.
        settings: As of `WindowJoinOperator`.
    """

    def __init__(self, key: Any, assigner: Any, **settings: Any) -> None:
        super().__init__(key, assigner, **settings)
        self._size: int = assigner.size_ms
        self._slide: int = getattr(assigner, "slide_ms", assigner.size_ms)
        self._lateness: int = self._spec.allowed_lateness_ms
        # By where they begin: those that wait for their end, and those that have ended
        # and still take late records.
        self._open = _Windows()
        self._ended = _Windows()
        self._ending: EndingPairs | None = None

    def open(self) -> Pending:
        """Bind the state."""
        self._pieces = Pieces(self.context, self.output, self.emit_collected)
        return super().open()

    def fire(self, timestamp_ms: int) -> Pending:
        """Emit the windows that end, in pieces."""
        if not self._is_columnar:
            return super().fire(timestamp_ms)
        return then(self._pieces.run(self._emit_some), self._fired, timestamp_ms)

    def _fired(self, timestamp_ms: int) -> Pending:
        while (start := self._ended.first_until(self._over)) is not None:
            del self._ended[start]
        self._forget_keys()
        return super().fire(timestamp_ms)

    @property
    def _over(self) -> int:
        """Windows that start here or before take no more records."""
        return self.watermark_ms - self._lateness - self._size + 1

    def capture(self) -> OperatorSnapshot:
        """Return all state, that in columns as the operator of rows would have it."""
        captured = super().capture()
        if not self._open and not self._ended:
            return captured
        groups, rows = self.context.max_parallelism, self._frozen()
        states = [state_meta(_CONTENTS, namespaced=True)]
        apart = KeyedStateSnapshot(groups, states, GroupedEntries([rows], groups))
        timers = event_timers(JoinedTimers(rows), groups)
        return replace(
            captured,
            keyed=(*captured.keyed, apart),
            timers={**captured.timers, _TIMERS: timers},
        )

    def _frozen(self) -> JoinedRows:
        """Return what windows hold, for a thread to make rows of."""
        frozen = [
            FrozenWindow(start, list(window.parts), window.silent, _NO_KEYS)
            for start, window in self._open.items()
        ]
        if self._ending is not None:
            start, emitted = self._ending.half_emitted()
            place = list(self._open).index(start)
            frozen[place] = self._half_emitted(frozen[place], emitted)
        frozen += [
            FrozenWindow(start, list(window.parts), None, _NO_KEYS)
            for start, window in self._ended.items()
        ]
        return JoinedRows(frozen, self._size, self._lateness, self._slots.keys)

    def _half_emitted(self, window: FrozenWindow, emitted: np.ndarray) -> FrozenWindow:
        if not self._lateness:
            return window._replace(gone=emitted)
        return window._replace(silent=np.union1d(window.silent, emitted))

    def _check_keys(self, keys: list[Any]) -> None:
        self._keys.check(keys)

    def _conform(self, side: int, maker: RowMaker) -> None:
        made = [
            [
                part._replace(run=recast(part.run, maker))
                if part.side == side
                else part
                for part in window.parts
            ]
            for window in self._all()
        ]
        for window, parts in zip(self._all(), made, strict=True):
            window.replace(parts)

    def _all(self) -> list[_Window]:
        return [*self._open.values(), *self._ended.values()]

    def _join(
        self, side: int, run: ArrowRun, times: np.ndarray, slots: np.ndarray
    ) -> Pending:
        # Kept for as long as windows are.
        run.compact()
        # What others do with theirs must not change what a thread may read.
        run = run.slice(0, len(run))
        records, starts = self._windows(times)
        over = starts <= self._over
        if len(records) < len(times) or over.any():
            kept = np.flatnonzero(~over)
            records, starts = records[kept], starts[kept]
            late = times + self._lateness <= self.watermark_ms
            late[records] = False
            if late.any():
                oldest, count = int(times[late].min()), int(np.count_nonzero(late))
                self._dropped.drop(oldest, self.watermark_ms, count)
        slots = slots[records]
        ended = starts <= self.watermark_ms - self._size + 1
        if not ended.any():
            self._put(self._open, side, run, starts, slots, records)
            return None
        for into, mine in (
            (self._open, np.flatnonzero(~ended)),
            (self._ended, np.flatnonzero(ended)),
        ):
            self._put(into, side, run, starts[mine], slots[mine], records[mine])
        pairs = self._late(side, starts[ended], slots[ended]).pairs()
        return in_turn(self.output.emit_run, ((each,) for each in pairs))

    def _put(
        self,
        windows: _Windows,
        side: int,
        run: ArrowRun,
        starts: np.ndarray,
        slots: np.ndarray,
        records: np.ndarray,
    ) -> None:
        """Put records into windows, each into the one that begins there."""
        if not len(records):
            return
        order = np.argsort(starts, kind="stable")
        borders = np.flatnonzero(np.diff(starts[order])) + 1
        for mine in np.split(order, borders):
            part = Part(side, run, records[mine], slots[mine])
            start = int(starts[mine[0]])
            windows.of(start).add(part)

    def _late(self, side: int, starts: np.ndarray, slots: np.ndarray) -> LatePairs:
        """Return what records lead to that were put into windows after their end.

        Args:
            side: 0 for left, 1 for right.
            starts: The windows, in the order of the records.
            slots: The keys.
        """
        begun, which = np.unique(starts, return_inverse=True)
        keys = len(self._slots.places)
        numbers = which * keys + slots
        parts = [
            part._replace(slots=part.slots + place * keys)
            for place, start in enumerate(begun.tolist())
            for part in self._ended[start].of_keys(slots[which == place])
        ]
        groups = Groups(parts)
        mine = groups.of(numbers)
        # They are the last ones of their groups.
        order = np.argsort(mine, kind="stable")
        coming = np.bincount(mine, minlength=len(groups.keys))
        counts: np.ndarray = np.empty(len(mine), np.int64)
        counts[order] = np.arange(1, len(mine) + 1)
        there = (groups.right if side else groups.left).counts
        counts += (there - np.cumsum(coming))[mine]
        return LatePairs(groups, side, mine, counts, starts + (self._size - 1))

    def _windows(self, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the records that have windows, and where each of these begins."""
        slide, offset = self._slide, self._assigner.offset_ms
        if slide == self._size:
            return np.arange(len(times)), beginnings(times, offset, slide)
        return overlapping(times, offset, self._size, slide)

    def _emit_some(self, count: int) -> bool | Awaitable[bool]:
        """Emit the pairs of some keys of windows that have ended."""
        if self._ending is None:
            ended = self._next_ended()
            if not ended:
                return True
            keys = len(self._slots.places)
            self._ending = EndingPairs(ended, self._size, keys)
        ending = self._ending
        pairs = ending.pairs()
        for start in ending.done():
            self._end(start)
        if ending.is_done:
            self._ending = None
        pending = in_turn(self.output.emit_run, ((each,) for each in pairs))
        return done_after(pending, done=False)

    def _next_ended(self) -> list[Ending]:
        """Return the next windows that the watermark has ended, several if they are small."""
        limit, count = self.watermark_ms - self._size + 1, 0
        found: list[Ending] = []
        while count < PAIRS_MAX and (start := self._open.take(limit)) is not None:
            due = self._open[start].due()
            count += sum(len(part.places) for part in due)
            if due:
                found.append(Ending(start, due))
            else:
                self._end(start)
        return found

    def _end(self, start: int) -> None:
        window = self._open.pop(start)
        if start > self._over:
            self._ended.of(start).replace(window.parts)

    def _used_slots(self) -> np.ndarray:
        parts = [part.slots for window in self._all() for part in window.parts]
        return np.unique(np.concatenate(parts)) if parts else _NO_KEYS

    def _renumber(self, numbers: np.ndarray) -> None:
        for window in self._all():
            window.silent = numbers[window.silent]
            window.replace(
                [part._replace(slots=numbers[part.slots]) for part in window.parts]
            )

    def _load_next(self, count: int) -> int:
        table = self.context.keyed_state.namespaced(_CONTENTS)
        entries = table.drain(count)
        if not entries:
            return 0
        try:
            self._load(entries)
        except RowsNeededError:
            for entry in entries:
                table.put(*entry)
            raise
        return len(entries)

    def _load(self, entries: list[tuple[Any, TimeWindow, list[Any]]]) -> None:
        """Make columns of what windows have."""
        made: list[tuple[int, ArrowRun, list[int], list[Any]]] = []
        for side in range(2):
            found = [
                (window.start, key, record)
                for key, window, records in entries
                for where, record in records
                if where == side
            ]
            if found:
                starts, keys, rows = map(list, zip(*found, strict=True))
                conform = partial(self._conform, side)
                run = self._sides[side].fit(run_of_rows(rows), conform)
                made.append((side, run, starts, keys))
        for side, run, starts, keys in made:
            slots, records = self._slots.place(keys), np.arange(len(run))
            begun = np.array(starts, np.int64)
            self._put(self._open, side, run, begun, slots, records)
        silent: dict[int, list[Any]] = {}
        for key, window, _ in entries:
            end = window.max_timestamp
            # It has none if it was emitted and takes late records.
            if not self._timers.delete_event_time_timer(key, window, end):
                silent.setdefault(window.start, []).append(key)
        for start, keys in silent.items():
            mine = self._open[start]
            mine.silent = np.union1d(mine.silent, self._slots.place(keys))

    def _loaded(self) -> None:
        if not self._is_columnar:
            return
        # They follow from the windows.
        self._timers.forget_event_time_timers()
        last = self.watermark_ms - self._size + 1
        for start in [start for start in self._open if start <= last]:
            if not self._open[start].due():
                self._end(start)

    def _give_back(self) -> int:
        rows, had = self._frozen(), 0
        store = self.context.keyed_state
        table = store.namespaced(_CONTENTS)
        for key, window, records in rows.entries():
            # What a restore has left there came before.
            table.put(key, window, [*(table.get(key, window) or ()), *records])
            had += 1
        for key, window, timestamp in rows.timers():
            store.set_current_key(key)
            self._timers.register_event_time_timer(key, window, timestamp)
        self._open, self._ended, self._ending = _Windows(), _Windows(), None
        return had


def window_join_asking(operator: Any) -> str:
    """Return which setting of the windows of a join needs rows; "" if columns will do.

    Args:
        operator: The `WindowJoinOperator` of rows.
    """
    spec: WindowSpec = operator._spec
    known = type(spec.assigner) in {TumblingEventTimeWindows, SlidingEventTimeWindows}
    return "" if known and spec.is_plain else spec.peculiarity
