"""Records of two sides that meet in groups, and the pairs that they make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.columnar_join import PAIRS_MAX
from aiomailbox.columnar.kept_columns import spread
from aiomailbox.columnar.pair_run import PairRun, Picked

__all__ = ["EndingPairs", "Groups", "LatePairs", "Part", "of_keys"]


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
    """The records of a side of a window that ends, those of a key together.

    Attributes:
        runs: Have them.
        which: The run of each.
        places: Its place there.
        counts: How many each key has, in the order of `Groups.keys`.
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


class EndingPairs:
    """A window that is being emitted, key by key in the order in which they came.

    Args:
        parts: Its records in the order in which they came.

    Attributes:
        keys: Its keys.
        emitted: How many of them have been emitted.
    """

    __slots__ = ("_ends", "_groups", "emitted", "keys")

    def __init__(self, parts: list[Part]) -> None:
        self._groups = groups = Groups(parts)
        self.keys: np.ndarray = groups.keys
        self._ends = np.cumsum(groups.left.counts * groups.right.counts)
        self.emitted: int = 0

    def pairs(self, stamp: int) -> Iterator[PairRun]:
        """Return pairs of the next keys, with an event time."""
        before = int(self._ends[self.emitted - 1]) if self.emitted else 0
        fitting = int(np.searchsorted(self._ends, before + PAIRS_MAX, side="right"))
        first, self.emitted = self.emitted, max(fitting, self.emitted + 1)
        left, right = self._groups.left, self._groups.right
        there = slice(first, self.emitted)
        lefts = np.arange(left.counts[there].sum()) + left.counts[:first].sum()
        # Of each left record, where its partners begin, and how many there are.
        begin = np.repeat(right.starts[there], left.counts[there])
        counts = np.repeat(right.counts[there], left.counts[there])
        stamps: np.ndarray = np.full(len(lefts), stamp, np.int64)
        return _in_parts(left, right, lefts, begin, counts, stamps)


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


def _side(parts: list[Part], distinct: np.ndarray, ranks: np.ndarray) -> _Side:
    if not parts:
        none: np.ndarray = np.zeros(len(distinct), np.int64)
        return _Side([], none[:0], none[:0], none, none)
    slots = np.concatenate([part.slots for part in parts])
    ranked = ranks[np.searchsorted(distinct, slots)]
    order = np.argsort(ranked, kind="stable")
    sizes = [len(part.places) for part in parts]
    counts = np.bincount(ranked, minlength=len(distinct))
    return _Side(
        [part.run for part in parts],
        np.repeat(np.arange(len(parts)), sizes)[order],
        np.concatenate([part.places for part in parts])[order],
        counts,
        np.cumsum(counts) - counts,
    )
