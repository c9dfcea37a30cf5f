"""The join in windows over columns."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from aiomailbox.columnar.aligned import beginnings, overlapping
from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.cell_grid import StartHeap
from aiomailbox.columnar.interval_join import fitting, spread, stretches
from aiomailbox.columnar.keys import distinct
from aiomailbox.columnar.pairs import (
    PAIRS_MAX,
    ColumnarJoin,
    PairRun,
    Picked,
    recast,
    run_of_rows,
)
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.columnar.types import RowsNeededError
from aiomailbox.operators.core.operator import Pending, in_turn, then
from aiomailbox.operators.core.slices import Slices, done_after
from aiomailbox.state.descriptors import ListStateDescriptor
from aiomailbox.state.snapshot import KeyedStateSnapshot, SnapshotRows
from aiomailbox.windowing.time_window import TimeWindow
from aiomailbox.windowing.window_join import WindowJoinOperator

# Records of two sides that meet in groups, and the pairs that they make.


class Part(NamedTuple):
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
    """The records of a side of windows, those of a group together.

    Attributes:
        runs: Have them.
        which: The run of each.
        places: Its place there.
        counts: How many each group has, in the order of `Groups.keys`.
        starts: Where those of each begin.
    """

    runs: list[ArrowRun]
    which: np.ndarray
    places: np.ndarray
    counts: np.ndarray
    starts: np.ndarray

    def picked(self, numbers: np.ndarray) -> Picked:
        """Return some of the records."""
        return Picked(self.runs, self.which[numbers], self.places[numbers])


class JoinGroups:
    """Records that are paired with those of the other side in their group.

    Args:
        parts: The records in the order in which they came; the groups are their slots.

    Attributes:
        left: Those of the left side, group by group.
        right: Those of the right side.
        keys: The groups' numbers, in the order in which they came.
    """

    def __init__(self, parts: list[Part]) -> None:
        slots = np.concatenate([part.slots for part in parts])
        distinct, firsts = np.unique(slots, return_index=True)
        order = np.argsort(firsts)
        self.keys: np.ndarray = distinct[order]
        ranks: np.ndarray = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        self._distinct, self._ranks = distinct, ranks
        self.left, self.right = (
            _side([part for part in parts if part.side == side], distinct, ranks)
            for side in range(2)
        )

    def of(self, slots: np.ndarray) -> np.ndarray:
        """Return which group, from 0, each of some numbers is."""
        return self._ranks[np.searchsorted(self._distinct, slots)]


class Ending(NamedTuple):
    """A window that ends.

    Attributes:
        start: Where it begins.
        parts: What its end emits, in the order in which it came; not empty.
    """

    start: int
    parts: list[Part]


class EndingPairs:
    """Windows that are being emitted, key by key in the order in which they came.

    Several at once: a window of a record or two would take as long as one of a hundred.

    Args:
        windows: At least one, in order.
        size: How long they are, milliseconds.
        keys: How many keys have a place.
    """

    def __init__(self, windows: list[Ending], size: int, keys: int) -> None:
        parts = [
            part._replace(slots=part.slots + place * keys)
            for place, window in enumerate(windows)
            for part in window.parts
        ]
        self._groups = groups = JoinGroups(parts)
        self._size = size
        self._keys = keys
        self._starts = [window.start for window in windows]
        self._ends = np.cumsum(groups.left.counts * groups.right.counts)
        # How many keys, and how many windows.
        self._emitted = 0
        self._done = 0

    def pairs(self) -> Iterator[PairRun]:
        """Return pairs of the next keys, at the last milliseconds of their windows."""
        first = self._emitted
        self._emitted = fitting(self._ends, first, PAIRS_MAX)
        left, right = self._groups.left, self._groups.right
        there = slice(first, self._emitted)
        counts = left.counts[there]
        lefts = np.arange(counts.sum()) + left.counts[:first].sum()
        # Of each left record, where its partners begin, and how many there are.
        begin = np.repeat(right.starts[there], counts)
        partners = np.repeat(right.counts[there], counts)
        places = self._groups.keys[there] // self._keys
        stamps = np.array(self._starts, np.int64)[places] + (self._size - 1)
        return _in_parts(left, right, lefts, begin, partners, np.repeat(stamps, counts))

    def done(self) -> list[int]:
        """Return where windows begin of which all has been emitted; once for each."""
        keys, emitted = self._groups.keys, self._emitted
        there = len(self._starts)
        if emitted < len(keys):
            there = int(keys[emitted]) // self._keys
        done, self._done = self._starts[self._done : there], there
        return done

    @property
    def is_done(self) -> bool:
        """Whether all windows have been emitted."""
        return self._emitted == len(self._groups.keys)

    def half_emitted(self) -> tuple[int, np.ndarray]:
        """Return where the window begins of which some was emitted, and these keys.

        Not after all was.
        """
        keys, emitted = self._groups.keys, self._emitted
        place = int(keys[emitted]) // self._keys
        mine = keys[:emitted]
        return self._starts[place], mine[mine // self._keys == place] % self._keys


def late_pairs(
    groups: JoinGroups,
    side: int,
    which: np.ndarray,
    counts: np.ndarray,
    stamps: np.ndarray,
) -> Iterator[PairRun]:
    """Yield what records lead to that have come into windows after their end.

    Each is followed by all pairs that its key has in the window by then.

    Args:
        groups: Of the windows and keys that they have come into, with all records.
        side: 0 for left, 1 for right.
        which: The group of each.
        counts: How many of its side the group has with it.
        stamps: The last milliseconds of the windows.
    """
    left, right = groups.left, groups.right
    lefts, rights = left.counts[which], right.counts[which]
    if side == 0:
        lefts = counts
    else:
        rights = counts
    some = np.flatnonzero((lefts > 0) & (rights > 0))
    for start, stop in stretches(np.cumsum(lefts[some]), PAIRS_MAX):
        mine = some[start:stop]
        whose, numbers = spread(left.starts[which[mine]], lefts[mine])
        mine = mine[whose]
        begin = right.starts[which[mine]]
        yield from _in_parts(left, right, numbers, begin, rights[mine], stamps[mine])


def _in_parts(
    left: _Side,
    right: _Side,
    lefts: np.ndarray,
    begin: np.ndarray,
    counts: np.ndarray,
    stamps: np.ndarray,
) -> Iterator[PairRun]:
    """Yield pairs, a bounded number at a time.

    Args:
        left: The left records.
        right: The right ones.
        lefts: Which left records are paired.
        begin: Where the partners of each begin.
        counts: How many it has.
        stamps: The event times of its pairs.
    """
    for start, stop in stretches(np.cumsum(counts), PAIRS_MAX):
        these, many = slice(start, stop), counts[start:stop]
        _, partners = spread(begin[these], many)
        mine, times = np.repeat(lefts[these], many), np.repeat(stamps[these], many)
        for cut in range(0, len(mine), PAIRS_MAX):
            some = slice(cut, cut + PAIRS_MAX)
            yield PairRun(
                left.picked(mine[some]), right.picked(partners[some]), times[some]
            )


def of_keys(
    parts: list[Part], slots: np.ndarray, *, are_others: bool = False
) -> list[Part]:
    """Return what parts have of some keys, or of all but these."""
    found = []
    for part in parts:
        mine = np.isin(part.slots, slots, invert=are_others)
        if mine.all():
            found.append(part)
        elif mine.any():
            found.append(
                part._replace(places=part.places[mine], slots=part.slots[mine])
            )
    return found


class KeyedParts:
    """Finds what parts have of some keys without a look at the others.

    Args:
        parts: At least one, in the order in which they came.

    Attributes:
        count: How many parts there are.
    """

    def __init__(self, parts: list[Part]) -> None:
        slots = np.concatenate([part.slots for part in parts])
        self._parts = parts
        self.count: int = len(parts)
        self._ends = np.cumsum([len(part.slots) for part in parts])
        # Where each record is among those of all parts, key by key.
        self._positions: np.ndarray = np.argsort(slots, kind="stable")
        self._slots: np.ndarray = slots[self._positions]

    def of(self, slots: np.ndarray) -> list[Part]:
        """Return what there is of some keys, in the order in which it came."""
        mine = distinct(slots)
        starts = np.searchsorted(self._slots, mine)
        stops = np.searchsorted(self._slots, mine, side="right")
        _, found = spread(starts, stops - starts)
        positions = np.sort(self._positions[found])
        which = np.searchsorted(self._ends, positions, side="right")
        borders = np.flatnonzero(np.diff(which)) + 1
        return [
            self._some_of(int(numbers[0]), some)
            for numbers, some in zip(
                np.split(which, borders), np.split(positions, borders), strict=True
            )
            if len(some)
        ]

    def _some_of(self, number: int, positions: np.ndarray) -> Part:
        part = self._parts[number]
        places = positions - (int(self._ends[number]) - len(part.slots))
        return part._replace(places=part.places[places], slots=part.slots[places])


def _side(parts: list[Part], distinct: np.ndarray, ranks: np.ndarray) -> _Side:
    if not parts:
        none: np.ndarray = np.zeros(len(distinct), np.int64)
        return _Side([], none[:0], none[:0], none, none)
    slots = np.concatenate([part.slots for part in parts])
    ranked = ranks[np.searchsorted(distinct, slots)]
    order = np.argsort(ranked, kind="stable")
    sizes = [len(part.places) for part in parts]
    # Small windows share runs, of which each is looked at once.
    runs = {id(part.run): part.run for part in parts}
    numbers = {run: number for number, run in enumerate(runs)}
    which = np.array([numbers[id(part.run)] for part in parts], np.int64)
    counts = np.bincount(ranked, minlength=len(distinct))
    return _Side(
        list(runs.values()),
        np.repeat(which, sizes)[order],
        np.concatenate([part.places for part in parts])[order],
        counts,
        np.cumsum(counts) - counts,
    )


# Windows of two sides that are columns, as the state of rows has them.


class FrozenWindow(NamedTuple):
    """A window as it was.

    Attributes:
        start: Where it begins.
        parts: Its records.
        silent: The keys of which its end emits nothing more; None for all.
        gone: The keys of which it has nothing more.
    """

    start: int
    parts: list[Part]
    silent: np.ndarray | None
    gone: np.ndarray


class JoinedRows:
    """The records of windows as the state of rows has them.

    Args:
        windows: The windows.
        size: How long they are, milliseconds.
        lateness: How much longer they are kept, milliseconds.
        keys: The keys, by their places.
    """

    def __init__(
        self,
        windows: list[FrozenWindow],
        size: int,
        lateness: int,
        keys: list[Any],
    ) -> None:
        self._windows = windows
        self._size = size
        self._lateness = lateness
        self._keys = keys

    def entries(self) -> Iterator[tuple[Any, TimeWindow, list[Any]]]:
        """Yield keys, windows and records with their sides."""
        for start, parts, _, gone in self._windows:
            window = TimeWindow(start, start + self._size)
            found: dict[int, list[Any]] = {}
            for part in parts:
                rows = part.run.take(part.places).values
                for slot, row in zip(part.slots.tolist(), rows, strict=True):
                    found.setdefault(slot, []).append((part.side, row))
            for slot in gone.tolist():
                found.pop(slot, None)
            for slot, records in found.items():
                yield self._keys[slot], window, records

    def timers(self) -> Iterator[tuple[Any, TimeWindow, int]]:
        """Yield keys, windows, and when they end or are over."""
        for start, parts, silent, gone in self._windows:
            window = TimeWindow(start, start + self._size)
            end = window.max_timestamp
            slots, firsts = np.unique(
                np.concatenate([part.slots for part in parts]), return_index=True
            )
            # In the order in which keys came, which is that of rows.
            slots = slots[np.argsort(firsts)]
            slots = slots[~np.isin(slots, gone)]
            if silent is not None:
                for slot in slots[~np.isin(slots, silent)].tolist():
                    yield self._keys[slot], window, end
            if self._lateness:
                for slot in slots.tolist():
                    yield self._keys[slot], window, end + self._lateness


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
        self.starts = StartHeap(self)

    def of(self, start: int) -> _Window:
        """Return the window that begins there; it may be new."""
        found = self.get(start)
        if found is None:
            found = self[start] = _Window([])
            self.starts.add([start])
        return found


class ColumnarWindowJoin(ColumnarJoin, WindowJoinOperator):
    """Does what `WindowJoinOperator` does, on columns as long as both sides have them.

    A window has places in the runs that came; no column is copied before it ends.
    Records that come after that lead to all pairs of their key once more, as in rows.

    Args:
        key: The keys of both sides, selectors of fields.
        assigner: Tumbling or sliding windows of event time.
        settings: As of `WindowJoinOperator`.
    """

    timers_name = "window-timers"

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
        self._slices = Slices(self.context, self.output, self.emit_collected)
        return super().open()

    def fire(self, timestamp_ms: int) -> Pending:
        """Emit the windows that end, in pieces."""
        if not self._is_columnar:
            return super().fire(timestamp_ms)
        return then(self._slices.run(self._emit_some), self._fired, timestamp_ms)

    def _fired(self, timestamp_ms: int) -> Pending:
        while (start := self._ended.starts.first_until(self._over)) is not None:
            del self._ended[start]
        self._forget_keys()
        return super().fire(timestamp_ms)

    @property
    def _over(self) -> int:
        """Windows that start here or before take no more records."""
        return self.watermark_ms - self._lateness - self._size + 1

    def _rows_kept(self) -> tuple[KeyedStateSnapshot, SnapshotRows] | None:
        if not self._open and not self._ended:
            return None
        rows = self._frozen()
        contents = SnapshotRows.of(3, rows.entries)
        kept = self.snapshot_of([(_CONTENTS, contents)], namespaced=True)
        return kept, SnapshotRows.of(3, rows.timers)

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
        pairs = self._late(side, starts[ended], slots[ended])
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

    def _late(
        self, side: int, starts: np.ndarray, slots: np.ndarray
    ) -> Iterator[PairRun]:
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
        groups = JoinGroups(parts)
        mine = groups.of(numbers)
        # They are the last ones of their groups.
        order = np.argsort(mine, kind="stable")
        coming = np.bincount(mine, minlength=len(groups.keys))
        counts: np.ndarray = np.empty(len(mine), np.int64)
        counts[order] = np.arange(1, len(mine) + 1)
        there = (groups.right if side else groups.left).counts
        counts += (there - np.cumsum(coming))[mine]
        return late_pairs(groups, side, mine, counts, starts + (self._size - 1))

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
        while (
            count < PAIRS_MAX and (start := self._open.starts.take(limit)) is not None
        ):
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
