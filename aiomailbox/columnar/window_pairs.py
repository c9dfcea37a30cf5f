"""Records of two sides that meet in groups, and the pairs that they make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.columnar_join import PAIRS_MAX
from aiomailbox.columnar.groups import distinct
from aiomailbox.columnar.kept_columns import spread
from aiomailbox.columnar.pair_run import PairRun, Picked

__all__ = [
    "Ending",
    "EndingPairs",
    "Groups",
    "KeyedParts",
    "LatePairs",
    "Part",
    "of_keys",
]


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


class Groups:
    """Records that are paired with those of the other side in their group.

    Args:
        parts: The records in the order in which they came; the groups are their slots.

    Attributes:
        left: Those of the left side, group by group.
        right: Those of the right side.
        keys: The groups' numbers, in the order in which they came.
    """

    __slots__ = ("_distinct", "_ranks", "keys", "left", "right")

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
        groups: np.ndarray = self._ranks[np.searchsorted(self._distinct, slots)]
        return groups


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

    __slots__ = ("_done", "_emitted", "_ends", "_groups", "_keys", "_size", "_starts")

    def __init__(self, windows: list[Ending], size: int, keys: int) -> None:
        parts = [
            part._replace(slots=part.slots + place * keys)
            for place, window in enumerate(windows)
            for part in window.parts
        ]
        self._groups = groups = Groups(parts)
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
        before = int(self._ends[first - 1]) if first else 0
        fitting = int(np.searchsorted(self._ends, before + PAIRS_MAX, side="right"))
        self._emitted = max(fitting, first + 1)
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


class LatePairs(NamedTuple):
    """Records that have come into windows after their end, in their order.

    Each is followed by all pairs that its key has in the window by then.

    Attributes:
        groups: Of the windows and keys that they have come into, with all records.
        side: 0 for left, 1 for right.
        which: The group of each.
        counts: How many of its side the group has with it.
        stamps: The last milliseconds of the windows.
    """

    groups: Groups
    side: int
    which: np.ndarray
    counts: np.ndarray
    stamps: np.ndarray

    def pairs(self) -> Iterator[PairRun]:
        """Yield what they lead to."""
        left, right = self.groups.left, self.groups.right
        lefts, rights = left.counts[self.which], right.counts[self.which]
        if self.side == 0:
            lefts = self.counts
        else:
            rights = self.counts
        some = np.flatnonzero((lefts > 0) & (rights > 0))
        ends, start = np.cumsum(lefts[some]), 0
        while start < len(some):
            before = int(ends[start - 1]) if start else 0
            fitting = int(np.searchsorted(ends, before + PAIRS_MAX, side="right"))
            stop = max(fitting, start + 1)
            mine = some[start:stop]
            whose, numbers = spread(left.starts[self.which[mine]], lefts[mine])
            mine = mine[whose]
            yield from _in_parts(
                left,
                right,
                numbers,
                right.starts[self.which[mine]],
                rights[mine],
                self.stamps[mine],
            )
            start = stop


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
    ends = np.cumsum(counts)
    start = before = 0
    while start < len(counts):
        fitting = int(np.searchsorted(ends, before + PAIRS_MAX, side="right"))
        stop = max(fitting, start + 1)
        these, many = slice(start, stop), counts[start:stop]
        _, partners = spread(begin[these], many)
        mine, times = np.repeat(lefts[these], many), np.repeat(stamps[these], many)
        for cut in range(0, len(mine), PAIRS_MAX):
            some = slice(cut, cut + PAIRS_MAX)
            yield PairRun(
                left.picked(mine[some]), right.picked(partners[some]), times[some]
            )
        start, before = stop, int(ends[stop - 1])


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

    __slots__ = ("_ends", "_parts", "_positions", "_slots", "count")

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
