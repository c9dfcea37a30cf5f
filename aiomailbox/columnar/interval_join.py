"""The interval join over columns."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.keys import stable_order
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
from aiomailbox.operators.core.operator import Pending, go_through, in_turn, then
from aiomailbox.operators.core.slices import grown, values_of
from aiomailbox.operators.joins.interval import IntervalJoinOperator
from aiomailbox.state.descriptors import MapStateDescriptor
from aiomailbox.state.snapshot import KeyedStateSnapshot, SnapshotRows

# Columns that are kept per key and event time, and found again by both.
#
# Theory of operation: each run that comes is sorted by key and time, of which only
# places are moved, and becomes a segment. Four segments of about one size become one,
# as in a log-structured tree, so that there are few of them, and each record is moved a
# logarithmic number of times. What a watermark ends is cut off by a bound, and goes
# with its segment, or when that is merged, or when it is half of a large one.


_BEGINNING: Final = -(2**63)


# Codes of keys and times stay below.
_CODES_MAX: Final = 2**62


# Texts of a column have offsets of 32 bits.
_BYTES_MAX: Final = 2**30


# So many segments become one; and a segment is small that has fewer records.
_MERGED: Final = 4


_SMALL: Final = 65_536


class SortedRecords:
    """Some of the records, in the order of their keys and times; it never changes.

    Args:
        run: The records in the order in which they came, and maybe others.
        places: The place of each record in ``run``.
        slots: Its key.
        times: Its event time, milliseconds.

    Attributes:
        run: As given.
        places: As given.
        slots: As given.
        times: As given.
        earliest: The first event time.
        latest: The last event time.
        middle: An event time in the middle.
    """

    def __init__(
        self, run: ArrowRun, places: np.ndarray, slots: np.ndarray, times: np.ndarray
    ) -> None:
        self.run = run
        self.places = places
        self.slots = slots
        self.times = times
        self.latest = int(times.max())
        self.middle = int(np.partition(times, len(times) // 2)[len(times) // 2])
        self._last_slot = int(slots[-1])
        self.earliest = int(times.min())
        self._width = self.latest - self.earliest + 1
        # Of times that are far from each other only the order counts.
        self._ranked: np.ndarray | None = None
        offsets = times - self.earliest
        if (self._last_slot + 2) * self._width >= _CODES_MAX:
            self._ranked, offsets = np.unique(times, return_inverse=True)
            self._width = len(self._ranked)
        self._codes = slots * self._width + offsets

    def find(
        self, slots: np.ndarray, low: np.ndarray, high: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return for each key and span of time where its records begin, and how many.

        Args:
            slots: Keys, shape ``(n,)``.
            low: The first event times.
            high: The last ones.
        """
        width = self._width
        if self._ranked is None:
            low, high = low - self.earliest, high - self.earliest + 1
        else:
            low = np.searchsorted(self._ranked, low)
            high = np.searchsorted(self._ranked, high, side="right")
        firsts = np.minimum(slots, self._last_slot + 1) * width
        starts = np.searchsorted(self._codes, firsts + np.clip(low, 0, width))
        stops = np.searchsorted(self._codes, firsts + np.clip(high, 0, width))
        return starts, np.maximum(stops - starts, 0)


class Near(NamedTuple):
    """Records near others; sorted by these, and then by time and arrival.

    Attributes:
        asking: The place of the other one of each.
        runs: Runs that have them.
        which: The run of each.
        places: Its place there.
        times: Its event time.
    """

    asking: np.ndarray
    runs: list[ArrowRun]
    which: np.ndarray
    places: np.ndarray
    times: np.ndarray


class KeptColumns:
    """The records of one side of a join.

    Attributes:
        segments: The earliest first, each with a bound: what is not later is over.

    Example:
        >>> from aiomailbox.columnar.forms import NamedTupleForm
        >>> batch = pa.record_batch({"n": [1, 2, 3]})
        >>> run = ArrowRun(batch, RowMaker(batch.schema, NamedTupleForm()))
        >>> kept = KeptColumns()
        >>> kept.add(run, np.array([0, 1, 0]), np.array([5, 5, 4]))
        >>> near = kept.query(np.array([0, 2]), np.array([0, 0]), np.array([9, 9]))
        >>> near.counts.tolist(), near.of(0, 2).places.tolist()
        ([2, 0], [2, 0])
    """

    def __init__(self) -> None:
        self.segments: list[tuple[SortedRecords, int]] = []

    def add(self, run: ArrowRun, slots: np.ndarray, times: np.ndarray) -> None:
        """Keep records.

        Args:
            run: The records.
            slots: Their keys, int64.
            times: Their event times.
        """
        if not len(run):
            return
        # What others do with theirs must not change what a thread may read.
        run = run.slice(0, len(run))
        by_time = np.argsort(times, kind="stable")
        by_slot, _ = stable_order(slots[by_time], int(slots.max()) + 1)
        order = by_time[by_slot]
        self.segments.append(
            (SortedRecords(run, order, slots[order], times[order]), _BEGINNING)
        )
        while self._is_time_to_merge():
            self.segments[-_MERGED:] = [_merged(self.segments[-_MERGED:])]

    def _is_time_to_merge(self) -> bool:
        """Say whether the last segments are no smaller together than the one before."""
        last = [segment.run for segment, _ in self.segments[-_MERGED:]]
        if len(last) < _MERGED or len(last[0]) > sum(map(len, last[1:])):
            return False
        if sum(map(len, last)) < _SMALL:
            return True
        return sum(run.size_bytes() for run in last) <= _BYTES_MAX

    def query(self, slots: np.ndarray, low: np.ndarray, high: np.ndarray) -> Query:
        """Return what finds the records of keys in spans of time; see `Segment.find`."""
        first, last = int(low.min()), int(high.max())
        found = [
            (segment, *segment.find(slots, np.maximum(low, floor + 1), high))
            for segment, floor in self.segments
            if segment.latest >= first and segment.earliest <= last
        ]
        return Query(found, len(slots))

    def forget(self, until: int) -> None:
        """Forget all that is kept and not later than an event time."""
        left = []
        for segment, floor in self.segments:
            if segment.latest <= until:
                continue
            floor = max(floor, until)
            if segment.middle <= floor and len(segment.run) >= _SMALL:
                segment, floor = _alive(segment, floor), _BEGINNING
            left.append((segment, floor))
        self.segments = left

    def used_slots(self) -> np.ndarray:
        """Return the keys that there are records of, ascending."""
        slots = [segment.slots[segment.times > f] for segment, f in self.segments]
        return np.unique(np.concatenate(slots)) if slots else np.zeros(0, np.int64)

    def renumber(self, numbers: np.ndarray) -> None:
        """Give keys other numbers, in the same order."""
        for place, (segment, floor) in enumerate(self.segments):
            segment = _alive(segment, floor)
            self.segments[place] = (
                SortedRecords(
                    segment.run,
                    segment.places,
                    numbers[segment.slots],
                    segment.times,
                ),
                _BEGINNING,
            )

    def conform(self, maker: RowMaker) -> None:
        """Give all columns other types.

        Raises:
            RowsNeededError: If rows would be others then; nothing has been changed.
        """
        self.segments = [
            (SortedRecords(recast(s.run, maker), s.places, s.slots, s.times), floor)
            for s, floor in self.segments
        ]

    def clear(self) -> None:
        """Forget all."""
        self.segments = []


class Query:
    """The matches near some records, put together piece by piece.

    Attributes:
        counts: How many were found for each, shape ``(n,)``.
    """

    def __init__(
        self, found: list[tuple[SortedRecords, np.ndarray, np.ndarray]], count: int
    ) -> None:
        self._found = found
        self.counts: np.ndarray = np.zeros(count, np.int64)
        for _, _, counts in found:
            self.counts += counts

    def pieces(self, start: int, stop: int, size: int) -> Iterator[Near]:
        """Yield what was found for some records, about so many at a time."""
        counts = self.counts[start:stop]
        for first, after in stretches(np.cumsum(counts), size):
            if counts[first:after].any():
                yield from _cut(self.of(start + first, start + after), size)

    def of(self, start: int, stop: int) -> Near:
        """Return what was found for some records."""
        asking, which, places, times = [], [], [], []
        runs: list[ArrowRun] = []
        for segment, starts, counts in self._found:
            asked, positions = spread(starts[start:stop], counts[start:stop])
            if not len(asked):
                continue
            asking.append(asked + start)
            places.append(segment.places[positions])
            times.append(segment.times[positions])
            which.append(np.full(len(asked), len(runs)))
            runs.append(segment.run)
        if len(runs) == 1:
            return Near(asking[0], runs, which[0], places[0], times[0])
        if not runs:
            nothing: Any = np.zeros(0, np.int64)
            return Near(nothing, [], nothing, nothing, nothing)
        parts = [np.concatenate(each) for each in (asking, which, places, times)]
        order = np.lexsort((parts[3], parts[0]))
        asked, run_of, placed, timed = (part[order] for part in parts)
        return Near(asked, runs, run_of, placed, timed)


def _cut(near: Near, size: int) -> Iterator[Near]:
    for start in range(0, len(near.asking), size):
        part = slice(start, start + size)
        yield Near(
            near.asking[part],
            near.runs,
            near.which[part],
            near.places[part],
            near.times[part],
        )


def spread(starts: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return all places of some stretches, each with the number of its stretch first.

    Example:
        >>> spread(np.array([5, 0, 2]), np.array([2, 0, 1]))
        (array([0, 0, 2]), array([5, 6, 2]))
    """
    owners = np.repeat(np.arange(len(starts)), counts)
    before = np.cumsum(counts) - counts
    return owners, np.arange(len(owners)) + np.repeat(starts - before, counts)


def fitting(ends: np.ndarray, start: int, size: int) -> int:
    """Return where a stretch stops that begins somewhere and has at most so many.

    Args:
        ends: How many there are up to each place, and with it.
        start: Where it begins; this place is in it, however many it has.
        size: How many.
    """
    before = int(ends[start - 1]) if start else 0
    return max(int(np.searchsorted(ends, before + size, side="right")), start + 1)


def stretches(ends: np.ndarray, size: int) -> Iterator[tuple[int, int]]:
    """Yield where stretches of at most so many begin and stop; see `fitting`.

    Example:
        >>> list(stretches(np.cumsum([2, 2, 9, 1]), 4))
        [(0, 2), (2, 3), (3, 4)]
    """
    start = 0
    while start < len(ends):
        stop = fitting(ends, start, size)
        yield start, stop
        start = stop


def _alive(segment: SortedRecords, floor: int) -> SortedRecords:
    """Return what of a segment is not over, with a run of just that if it is little."""
    there = np.flatnonzero(segment.times > floor)
    run, places = segment.run, segment.places[there]
    if 2 * len(places) < len(run):
        chosen = np.sort(places)
        numbers: np.ndarray = np.empty(len(run), np.int64)
        numbers[chosen] = np.arange(len(chosen))
        run, places = _whole(run, chosen), numbers[places]
    return SortedRecords(run, places, segment.slots[there], segment.times[there])


def _merged(several: list[tuple[SortedRecords, int]]) -> tuple[SortedRecords, int]:
    """Return the records of segments as one; the earliest comes first."""
    parts = [
        segment if floor == _BEGINNING else _alive(segment, floor)
        for segment, floor in several
    ]
    run = _joined([part.run for part in parts])
    sizes = [len(part.run) for part in parts]
    before = np.cumsum(sizes) - sizes
    places = np.concatenate(
        [part.places + first for part, first in zip(parts, before, strict=True)]
    )
    slots = np.concatenate([part.slots for part in parts])
    times = np.concatenate([part.times for part in parts])
    first, width = int(times.min()), int(times.max()) - int(times.min()) + 1
    if (int(slots.max()) + 1) * width < _CODES_MAX:
        # They are sorted in stretches, which this sort makes use of.
        order = np.argsort(slots * width + (times - first), kind="stable")
    else:
        order = np.lexsort((times, slots))
    return SortedRecords(run, places[order], slots[order], times[order]), _BEGINNING


def _joined(runs: list[ArrowRun]) -> ArrowRun:
    maker = runs[0].row_maker
    columns = [
        pa.concat_arrays([run.column(name) for run in runs])
        for name in maker.schema.names
    ]
    return ArrowRun(pa.RecordBatch.from_arrays(columns, schema=maker.schema), maker)


def _whole(run: ArrowRun, places: np.ndarray) -> ArrowRun:
    """Return some records with columns of their own."""
    taken = run.take(places)
    assert type(taken) is ArrowRun, "what is kept can be picked"
    return ArrowRun(taken.batch, run.row_maker)


# So many pairs are emitted before other mail of the task has its turn.
_PAIRS_AT_ONCE: Final = 16 * PAIRS_MAX


class _Arrived(NamedTuple):
    """Records of a side that are being joined.

    Attributes:
        side: 0 for left, 1 for right.
        run: The records.
        times: Their event times, milliseconds; shape ``(n,)`` like all that follows.
        slots: The places of their keys.
        found: What of the other side is near them.
    """

    side: int
    run: ArrowRun
    times: np.ndarray
    slots: np.ndarray
    found: Query


class ColumnarIntervalJoin(ColumnarJoin, IntervalJoinOperator):
    """Does what `IntervalJoinOperator` does, on columns as long as both sides have them.

    Args:
        args: As of `IntervalJoinOperator`; keys are selectors of fields.
        named: As of `IntervalJoinOperator`.
    """

    timers_name = "join-timers"

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._kept = KeptColumns(), KeptColumns()

    def fire(self, timestamp_ms: int) -> Pending:
        """Forget records that no partner can come for any more."""
        if self._is_columnar:
            for side, kept in enumerate(self._kept):
                kept.forget(timestamp_ms - self._kept_ms(side == 0))
            self._forget_keys()
        return super().fire(timestamp_ms)

    def _rows_kept(self) -> tuple[KeyedStateSnapshot, SnapshotRows] | None:
        keys, frozen = self._slots.keys, [list(kept.segments) for kept in self._kept]
        if not any(frozen):
            return None
        names = self._left.name, self._right.name
        rows = [
            (_buffer(name), SnapshotRows.of(2, partial(_buffers, segments, keys)))
            for name, segments in zip(names, frozen, strict=True)
        ]
        ends = [
            (name, self._kept_ms(side == 0), segments)
            for side, (name, segments) in enumerate(zip(names, frozen, strict=True))
        ]
        ended = SnapshotRows.of(3, partial(_timers, ends, keys))
        return self.snapshot_of(rows, namespaced=False), ended

    def _check_keys(self, keys: list[Any]) -> None:
        self._left.keys.check(keys)

    def _conform(self, side: int, maker: RowMaker) -> None:
        self._kept[side].conform(maker)

    def _join(
        self, side: int, run: ArrowRun, times: np.ndarray, slots: np.ndarray
    ) -> Pending:
        late = times < self.current_watermark
        pending: Pending = None
        if late.any():
            pending = self._emit_late(side, run, times, np.flatnonzero(late))
            kept = np.flatnonzero(~late)
            if not len(kept):
                return pending
            taken: Any = run.take(kept)
            run, times, slots = taken, times[kept], slots[kept]
        if pending is not None:
            return then(pending, self._join_all, side, run, times, slots)
        return self._join_all(side, run, times, slots)

    def _emit_late(
        self, side: int, run: ArrowRun, times: np.ndarray, places: np.ndarray
    ) -> Pending:
        tag = self._right_late if side else self._left_late
        if tag is None:
            oldest = int(times[places].min())
            self._dropped.drop(oldest, self.current_watermark, len(places))
            return None
        return self.output.emit_side(tag, run.take(places))

    def _join_all(
        self, side: int, run: ArrowRun, times: np.ndarray, slots: np.ndarray
    ) -> Pending:
        if side:
            low, high = times - self.upper_ms, times - self.lower_ms
        else:
            low, high = times + self.lower_ms, times + self.upper_ms
        found = self._kept[1 - side].query(slots, low, high)
        arrived = _Arrived(side, run, times, slots, found)
        advance = partial(self._join_from, arrived)
        return go_through(run, advance, self.interruption)

    def _join_from(self, arrived: _Arrived, start: int) -> tuple[Pending, int]:
        """Keep and join records until some are awaited; return that and the last one."""
        count = len(arrived.run)
        while start < count:
            start, pending = self._join_some(arrived, start)
            if pending is not None:
                return pending, start - 1
        return None, count

    def _join_some(self, arrived: _Arrived, start: int) -> tuple[int, Pending]:
        """Keep and join some records; return which comes next, and what is to await."""
        side, run, times, slots, found = arrived
        counts = found.counts[start:]
        stop = len(run)
        if int(counts.sum()) > _PAIRS_AT_ONCE:
            stop = start + fitting(np.cumsum(counts), 0, _PAIRS_AT_ONCE)
        some = run.slice(start, stop)
        self._kept[side].add(some, slots[start:stop], times[start:stop])
        pairs = (
            (_pairs(arrived, near),) for near in found.pieces(start, stop, PAIRS_MAX)
        )
        return stop, in_turn(self.output.emit_run, pairs)

    def _used_slots(self) -> np.ndarray:
        return np.union1d(*(kept.used_slots() for kept in self._kept))

    def _renumber(self, numbers: np.ndarray) -> None:
        for kept in self._kept:
            kept.renumber(numbers)

    def _load_next(self, count: int) -> int:
        store = self.context.keyed_state
        for side, name in enumerate((self._left.name, self._right.name)):
            entries = store.table(_buffer(name)).drain(count)
            if entries:
                self._load(side, entries)
                return len(entries)
        return 0

    def _load(self, side: int, entries: list[tuple[Any, dict[int, Any]]]) -> None:
        records = [
            (key, stamp, record)
            for key, stamps in entries
            for stamp, tied in stamps.items()
            for record in values_of(tied)
        ]
        keys, stamps, rows = map(list, zip(*records, strict=True))
        try:
            run = run_of_rows(rows)
            run = self._sides[side].fit(run, partial(self._conform, side))
        except RowsNeededError:
            for key, contents in entries:
                self._put_back(side, key, contents)
            raise
        slots = self._slots.place(keys)
        self._kept[side].add(run, slots, np.array(stamps, np.int64))

    def _put_back(self, side: int, key: Any, contents: dict[int, Any]) -> None:
        self.context.keyed_state.set_current_key(key)
        state = (self._right if side else self._left).buffer
        state.put_all(contents)

    def _loaded(self) -> None:
        if self._is_columnar:
            # They follow from the event times.
            self._timers.forget_event_time_timers()

    def _give_back(self) -> int:
        store, had = self.context.keyed_state, 0
        for side, (mine, kept) in enumerate(
            zip((self._left, self._right), self._kept, strict=True)
        ):
            lasts = self._kept_ms(side == 0)
            for segment, floor in kept.segments:
                for key, stamp, record in _records(segment, floor, self._slots.keys):
                    store.set_current_key(key)
                    there = mine.buffer.get(stamp, ())
                    mine.buffer.put(stamp, grown(there, record))
                    self._timers.register_event_time_timer(
                        key, mine.name, stamp + lasts
                    )
                    had += 1
            kept.clear()
        return had


def _buffers(
    segments: list[tuple[SortedRecords, int]], keys: list[Any]
) -> Iterator[tuple[Any, dict[int, tuple[Any, ...]]]]:
    """Yield the records of a side as the state of rows has them: by key, then by time."""
    found: dict[Any, dict[int, list[Any]]] = {}
    for segment, floor in segments:
        for key, stamp, record in _records(segment, floor, keys):
            found.setdefault(key, {}).setdefault(stamp, []).append(record)
    for key, buffer in found.items():
        yield key, {stamp: (tuple(tied),) for stamp, tied in buffer.items()}


def _timers(
    ends: list[tuple[str, int, list[tuple[SortedRecords, int]]]], keys: list[Any]
) -> Iterator[tuple[Any, str, int]]:
    """Yield the timers that the operator of rows would have registered."""
    for name, lasts, segments in ends:
        for segment, floor in segments:
            there = segment.times > floor
            slots = segment.slots[there].tolist()
            stamps = (segment.times[there] + lasts).tolist()
            for slot, stamp in zip(slots, stamps, strict=True):
                yield keys[slot], name, stamp


def _records(
    segment: SortedRecords, floor: int, keys: list[Any]
) -> Iterator[tuple[Any, int, Any]]:
    """Yield keys, event times and records, in the order in which these came."""
    there = np.flatnonzero(segment.times > floor)
    there = there[np.argsort(segment.places[there])]
    rows = segment.run.take(segment.places[there]).values
    slots, times = segment.slots[there].tolist(), segment.times[there].tolist()
    for slot, time, row in zip(slots, times, rows, strict=True):
        yield keys[slot], time, row


def _pairs(arrived: _Arrived, near: Near) -> PairRun:
    mine = Picked([arrived.run], None, near.asking)
    others = Picked(near.runs, near.which, near.places)
    latest = np.maximum(arrived.times[near.asking], near.times)
    left, right = (others, mine) if arrived.side else (mine, others)
    return PairRun(left, right, latest)


def _buffer(name: str) -> MapStateDescriptor[int, Any]:
    return MapStateDescriptor(f"{name}-buffer")
