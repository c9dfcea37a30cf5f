"""Columns that are kept per key and event time, and found again by both.

Theory of operation: each run that comes is sorted by key and time, of which only places
are moved, and becomes a segment. Four segments of about one size become one, as in a
log-structured tree, so that there are few of them, and each record is moved a
logarithmic number of times. What a watermark ends is cut off by a bound, and goes with
its segment, or when that is merged, or when it is half of a large one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.groups import stable_order
from aiomailbox.columnar.join_side import recast
from aiomailbox.columnar.rows import RowMaker

__all__ = ["KeptColumns", "Near", "Segment", "spread"]

_BEGINNING: Final = -(2**63)
# Codes of keys and times stay below.
_CODES_MAX: Final = 2**62
# Texts of a column have offsets of 32 bits.
_BYTES_MAX: Final = 2**30
# So many segments become one; and a segment is small that has fewer records.
_MERGED: Final = 4
_SMALL: Final = 65_536


class Segment:
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

    __slots__ = (
        *("_codes", "_last_slot", "_ranked", "_width"),
        *("earliest", "latest", "middle", "places", "run", "slots", "times"),
    )

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

    __slots__ = ("segments",)

    def __init__(self) -> None:
        self.segments: list[tuple[Segment, int]] = []

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
        order = by_time[stable_order(slots[by_time], int(slots.max()) + 1)]
        self.segments.append(
            (Segment(run, order, slots[order], times[order]), _BEGINNING)
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
                Segment(
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
            (Segment(recast(s.run, maker), s.places, s.slots, s.times), floor)
            for s, floor in self.segments
        ]

    def clear(self) -> None:
        """Forget all."""
        self.segments = []


class Query:
    """What was found near some records, put together piece by piece.

    Attributes:
        counts: How many were found for each, shape ``(n,)``.
    """

    __slots__ = ("_found", "counts")

    def __init__(
        self, found: list[tuple[Segment, np.ndarray, np.ndarray]], count: int
    ) -> None:
        self._found = found
        self.counts: np.ndarray = np.zeros(count, np.int64)
        for _, _, counts in found:
            self.counts += counts

    def pieces(self, start: int, stop: int, size: int) -> Iterator[Near]:
        """Yield what was found for some records, about so many at a time."""
        ends = np.cumsum(self.counts[start:stop])
        first = before = 0
        while first < stop - start:
            fitting = int(np.searchsorted(ends, before + size, side="right"))
            after = max(fitting, first + 1)
            if ends[after - 1] > before:
                yield from _cut(self.of(start + first, start + after), size)
            first, before = after, int(ends[after - 1])

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


def _alive(segment: Segment, floor: int) -> Segment:
    """Return what of a segment is not over, with a run of just that if it is little."""
    there = np.flatnonzero(segment.times > floor)
    run, places = segment.run, segment.places[there]
    if 2 * len(places) < len(run):
        chosen = np.sort(places)
        numbers: np.ndarray = np.empty(len(run), np.int64)
        numbers[chosen] = np.arange(len(chosen))
        run, places = _whole(run, chosen), numbers[places]
    return Segment(run, places, segment.slots[there], segment.times[there])


def _merged(several: list[tuple[Segment, int]]) -> tuple[Segment, int]:
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
    return Segment(run, places[order], slots[order], times[order]), _BEGINNING


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
