"""The join in windows over columns."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.columnar_join import PAIRS_MAX, ColumnarJoin
from aiomailbox.columnar.join_side import recast, run_of_rows
from aiomailbox.columnar.kept_columns import spread
from aiomailbox.columnar.pair_run import PairRun, Picked
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.columnar.rows_needed import RowsNeededError
from aiomailbox.columnar.windows import beginnings
from aiomailbox.eventtime import event_timers
from aiomailbox.operators import (
    OperatorSnapshot,
    Pending,
    Pieces,
    in_turn,
    then,
)
from aiomailbox.state import (
    GroupedEntries,
    KeyedStateSnapshot,
    ListStateDescriptor,
    state_meta,
)
from aiomailbox.windowing import (
    SlidingEventTimeWindows,
    TimeWindow,
    TumblingEventTimeWindows,
    WindowJoinOperator,
    WindowSpec,
)

__all__ = ["ColumnarWindowJoin", "window_join_asking"]

_TIMERS: Final = "window-timers"
_CONTENTS: Final[ListStateDescriptor[Any]] = ListStateDescriptor("window-contents")


class _Part(NamedTuple):
    """Records of a side that came into a window together.

    Attributes:
        side: 0 for left, 1 for right.
        run: Has them.
        places: Where they are in it.
        slots: Their keys.
    """

    side: int
    run: ArrowRun
    places: np.ndarray
    slots: np.ndarray


class _Side(NamedTuple):
    """The records of a side of a window that ends, those of a key together.

    Attributes:
        runs: Have them.
        which: The run of each.
        places: Its place there.
        counts: How many each key has, in the order of `_Ending.keys`.
    """

    runs: list[ArrowRun]
    which: np.ndarray
    places: np.ndarray
    counts: np.ndarray

    def picked(self, numbers: np.ndarray) -> Picked:
        """Return some of the records."""
        return Picked(self.runs, self.which[numbers], self.places[numbers])


class _Ending:
    """A window that is being emitted, key by key in the order in which they came.

    Args:
        parts: Its records in the order in which they came.

    Attributes:
        keys: Its keys.
        emitted: How many of them have been emitted.
    """

    __slots__ = ("_ends", "_sides", "emitted", "keys")

    def __init__(self, parts: list[_Part]) -> None:
        slots = np.concatenate([part.slots for part in parts])
        distinct, firsts = np.unique(slots, return_index=True)
        order = np.argsort(firsts)
        self.keys: np.ndarray = distinct[order]
        ranks: np.ndarray = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        self._sides = [
            _side([part for part in parts if part.side == side], distinct, ranks)
            for side in range(2)
        ]
        left, right = (side.counts for side in self._sides)
        self._ends = np.cumsum(left * right)
        self.emitted: int = 0

    def pairs(self, stamp: int) -> Iterator[PairRun]:
        """Return pairs of the next keys, with an event time."""
        before = int(self._ends[self.emitted - 1]) if self.emitted else 0
        fitting = int(np.searchsorted(self._ends, before + PAIRS_MAX, side="right"))
        first, self.emitted = self.emitted, max(fitting, self.emitted + 1)
        left, right = self._sides
        there = slice(first, self.emitted)
        starts = np.cumsum(right.counts) - right.counts
        lefts_before = int(left.counts[:first].sum())
        # Of each left record, where its partners begin, and how many there are.
        begin = np.repeat(starts[there], left.counts[there])
        counts = np.repeat(right.counts[there], left.counts[there])
        return _in_parts(left, right, lefts_before, begin, counts, stamp)


def _in_parts(
    left: _Side,
    right: _Side,
    first: int,
    begin: np.ndarray,
    counts: np.ndarray,
    stamp: int,
) -> Iterator[PairRun]:
    ends = np.cumsum(counts)
    start = before = 0
    while start < len(counts):
        fitting = int(np.searchsorted(ends, before + PAIRS_MAX, side="right"))
        stop = max(fitting, start + 1)
        owners, partners = spread(begin[start:stop], counts[start:stop])
        owners += first + start
        for cut in range(0, len(owners), PAIRS_MAX):
            some = slice(cut, cut + PAIRS_MAX)
            times: np.ndarray = np.full(len(owners[some]), stamp, np.int64)
            yield PairRun(
                left.picked(owners[some]), right.picked(partners[some]), times
            )
        start, before = stop, int(ends[stop - 1])


def _side(parts: list[_Part], distinct: np.ndarray, ranks: np.ndarray) -> _Side:
    if not parts:
        nothing: np.ndarray = np.zeros(0, np.int64)
        return _Side([], nothing, nothing, np.zeros(len(distinct), np.int64))
    slots = np.concatenate([part.slots for part in parts])
    ranked = ranks[np.searchsorted(distinct, slots)]
    order = np.argsort(ranked, kind="stable")
    sizes = [len(part.places) for part in parts]
    return _Side(
        [part.run for part in parts],
        np.repeat(np.arange(len(parts)), sizes)[order],
        np.concatenate([part.places for part in parts])[order],
        np.bincount(ranked, minlength=len(distinct)),
    )


class ColumnarWindowJoin(ColumnarJoin, WindowJoinOperator):
    """Does what `WindowJoinOperator` does, on columns as long as both sides have them.

    A window has places in the runs that came; no column is copied before it ends.

    Args:
        key: The keys of both sides, selectors of fields.
        assigner: Windows of which `window_join_asking` has nothing to say.
        settings: As of `WindowJoinOperator`.
    """

    def __init__(self, key: Any, assigner: Any, **settings: Any) -> None:
        super().__init__(key, assigner, **settings)
        self._size: int = assigner.size_ms
        self._slide: int = getattr(assigner, "slide_ms", assigner.size_ms)
        # By where they begin.
        self._open: dict[int, list[_Part]] = {}
        self._ending: tuple[int, _Ending] | None = None

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
        self._forget_keys()
        return super().fire(timestamp_ms)

    def capture(self) -> OperatorSnapshot:
        """Return all state, that in columns as the operator of rows would have it."""
        captured = super().capture()
        if not self._open:
            return captured
        groups, keys = self.context.max_parallelism, self._slots.keys
        frozen = [
            (start, list(parts), self._emitted(start))
            for start, parts in self._open.items()
        ]
        rows = _WindowRows(frozen, self._size, keys)
        states = [state_meta(_CONTENTS, namespaced=True)]
        apart = KeyedStateSnapshot(groups, states, GroupedEntries([rows], groups))
        timers = event_timers(_WindowTimers(rows), groups)
        return replace(
            captured,
            keyed=(*captured.keyed, apart),
            timers={**captured.timers, _TIMERS: timers},
        )

    def _emitted(self, start: int) -> np.ndarray:
        """Return the keys of a window that have been emitted."""
        if self._ending is None or self._ending[0] != start:
            return np.zeros(0, np.int64)
        ending = self._ending[1]
        return ending.keys[: ending.emitted]

    def _check_keys(self, keys: list[Any]) -> None:
        self._keys.check(keys)

    def _conform(self, side: int, maker: RowMaker) -> None:
        made = {
            start: [
                part._replace(run=recast(part.run, maker))
                if part.side == side
                else part
                for part in parts
            ]
            for start, parts in self._open.items()
        }
        self._open = made

    def _join(
        self, side: int, run: ArrowRun, times: np.ndarray, slots: np.ndarray
    ) -> Pending:
        records, starts = self._windows(times)
        over = starts + (self._size - 1) <= self.watermark_ms
        if len(records) < len(times) or over.any():
            kept = np.flatnonzero(~over)
            records, starts = records[kept], starts[kept]
            late = times <= self.watermark_ms
            late[records] = False
            self._dropped.add(int(np.count_nonzero(late)))
        if len(records):
            self._put(side, run, starts, slots[records], records)
        return None

    def _put(
        self,
        side: int,
        run: ArrowRun,
        starts: np.ndarray,
        slots: np.ndarray,
        records: np.ndarray | None = None,
    ) -> None:
        """Put records into windows; by default each record of the run into one."""
        # Kept for as long as windows are.
        run.compact()
        # What others do with theirs must not change what a thread may read.
        run = run.slice(0, len(run))
        order = np.argsort(starts, kind="stable")
        borders = np.flatnonzero(np.diff(starts[order])) + 1
        for mine in np.split(order, borders):
            places = mine if records is None else records[mine]
            part = _Part(side, run, places, slots[mine])
            self._open.setdefault(int(starts[mine[0]]), []).append(part)

    def _windows(self, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the records that have windows, and where each of these begins."""
        slide, size = self._slide, self._size
        last = beginnings(times, self._assigner.offset_ms, slide)
        if slide == size:
            return np.arange(len(times)), last
        # The latest window comes first, as in rows.
        starts = last[:, np.newaxis] - np.arange(-(-size // slide)) * slide
        there = starts > (times - size)[:, np.newaxis]
        return np.nonzero(there)[0], starts[there]

    def _emit_some(self, count: int) -> bool | Awaitable[bool]:
        """Emit the pairs of some keys of a window that has ended."""
        if self._ending is None:
            start = min(self._open, default=None)
            if start is None or start + self._size - 1 > self.watermark_ms:
                return True
            self._ending = start, _Ending(self._open[start])
        start, ending = self._ending
        pairs = ending.pairs(start + self._size - 1)
        if ending.emitted == len(ending.keys):
            self._ending = None
            del self._open[start]
        pending = in_turn(self.output.emit_run, ((each,) for each in pairs))
        return False if pending is None else _false_after(pending)

    def _used_slots(self) -> np.ndarray:
        parts = [part.slots for parts in self._open.values() for part in parts]
        return np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.int64)

    def _renumber(self, numbers: np.ndarray) -> None:
        self._open = {
            start: [part._replace(slots=numbers[part.slots]) for part in parts]
            for start, parts in self._open.items()
        }

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
            self._put(side, run, np.array(starts, np.int64), self._slots.place(keys))

    def _loaded(self) -> None:
        if self._is_columnar:
            # They follow from the windows.
            self._timers.forget_event_time_timers()

    def _give_back(self) -> int:
        frozen = [
            (start, parts, self._emitted(start)) for start, parts in self._open.items()
        ]
        rows = _WindowRows(frozen, self._size, self._slots.keys)
        store, had = self.context.keyed_state, 0
        table = store.namespaced(_CONTENTS)
        for key, window, records in rows.entries():
            # What a restore has left there came before.
            table.put(key, window, [*(table.get(key, window) or ()), *records])
            store.set_current_key(key)
            self._timers.register_event_time_timer(key, window, window.max_timestamp)
            had += 1
        self._open, self._ending = {}, None
        return had


class _WindowRows:
    """The records of windows as the state of rows has them.

    Args:
        windows: Where each begins, its parts, and the keys that were emitted.
        size: How long they are, milliseconds.
        keys: The keys, by their places.
    """

    __slots__ = ("_keys", "_size", "_windows")
    width = 3

    def __init__(
        self,
        windows: list[tuple[int, list[_Part], np.ndarray]],
        size: int,
        keys: list[Any],
    ) -> None:
        self._windows = windows
        self._size = size
        self._keys = keys

    def entries(self) -> Iterator[tuple[Any, TimeWindow, list[Any]]]:
        """Yield keys, windows and records with their sides."""
        for start, parts, emitted in self._windows:
            window = TimeWindow(start, start + self._size)
            found: dict[int, list[Any]] = {}
            for part in parts:
                rows = part.run.take(part.places).values
                for slot, row in zip(part.slots.tolist(), rows, strict=True):
                    found.setdefault(slot, []).append((part.side, row))
            for slot in emitted.tolist():
                found.pop(slot, None)
            for slot, records in found.items():
                yield self._keys[slot], window, records

    def columns(self, count: int) -> Iterator[tuple[list[Any], ...]]:
        """Yield keys, windows and records, so many at a time."""
        return _by_columns(self.entries(), count)

    def timers(self) -> Iterator[tuple[Any, TimeWindow, int]]:
        """Yield keys, windows and when they end."""
        for start, parts, emitted in self._windows:
            window = TimeWindow(start, start + self._size)
            slots = np.unique(np.concatenate([part.slots for part in parts]))
            for slot in np.setdiff1d(slots, emitted).tolist():
                yield self._keys[slot], window, window.max_timestamp


class _WindowTimers:
    """The timers that the operator of rows would have registered."""

    __slots__ = ("_rows",)
    width = 3

    def __init__(self, rows: _WindowRows) -> None:
        self._rows = rows

    def columns(self, count: int) -> Iterator[tuple[list[Any], ...]]:
        """Yield keys, windows and timestamps, so many at a time."""
        return _by_columns(self._rows.timers(), count)


def window_join_asking(operator: Any) -> str:
    """Return what of windows asks for rows, beside keys; nothing if none does.

    Args:
        operator: The `WindowJoinOperator` of rows.
    """
    spec: WindowSpec = operator._spec
    known = type(spec.assigner) in {TumblingEventTimeWindows, SlidingEventTimeWindows}
    if not known or not spec.is_plain:
        return spec.peculiarity
    return "allowed lateness" if spec.allowed_lateness_ms else ""


def _by_columns(
    entries: Iterable[tuple[Any, ...]], count: int
) -> Iterator[tuple[list[Any], ...]]:
    some: list[tuple[Any, ...]] = []
    for entry in entries:
        some.append(entry)
        if len(some) >= count:
            yield tuple(map(list, zip(*some, strict=True)))
            some = []
    if some:
        yield tuple(map(list, zip(*some, strict=True)))


async def _false_after(pending: Awaitable[None]) -> bool:
    await pending
    return False
