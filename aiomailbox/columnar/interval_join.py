"""The interval join over columns."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.columnar_join import PAIRS_MAX, ColumnarJoin
from aiomailbox.columnar.join_side import run_of_rows
from aiomailbox.columnar.kept_columns import KeptColumns, Near, Query, Segment
from aiomailbox.columnar.pair_run import PairRun, Picked
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.columnar.rows_needed import RowsNeededError
from aiomailbox.eventtime.timers import event_timers
from aiomailbox.operators.core.contract import Pending, in_turn, then
from aiomailbox.operators.core.grown import grown, values_of
from aiomailbox.operators.joins.interval import IntervalJoinOperator
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.state.descriptors import MapStateDescriptor
from aiomailbox.state.entries import GroupedEntries
from aiomailbox.state.registry import state_meta
from aiomailbox.state.snapshot import KeyedStateSnapshot

__all__ = ["ColumnarIntervalJoin"]

_TIMERS: Final = "join-timers"
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

    def capture(self) -> OperatorSnapshot:
        """Return all state, that in columns as the operator of rows would have it."""
        captured = super().capture()
        groups, keys = self.context.max_parallelism, self._slots.keys
        frozen = [list(kept.segments) for kept in self._kept]
        if not any(frozen):
            return captured
        names = self._left.name, self._right.name
        states = [state_meta(_buffer(name), namespaced=False) for name in names]
        rows = [_BufferRows(segments, keys) for segments in frozen]
        ends = [
            (name, self._kept_ms(side == 0), segments)
            for side, (name, segments) in enumerate(zip(names, frozen, strict=True))
        ]
        apart = KeyedStateSnapshot(groups, states, GroupedEntries(rows, groups))
        timers = event_timers(_TimerRows(ends, keys), groups)
        return replace(
            captured,
            keyed=(*captured.keyed, apart),
            timers={**captured.timers, _TIMERS: timers},
        )

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
        start = 0
        while start < len(run):
            start, pending = self._join_some(arrived, start)
            if pending is not None:
                return self._join_rest(pending, arrived, start)
        return None

    def _join_some(self, arrived: _Arrived, start: int) -> tuple[int, Pending]:
        """Keep and join some records; return which comes next, and what is to await."""
        side, run, times, slots, found = arrived
        counts = found.counts[start:]
        stop = len(run)
        if int(counts.sum()) > _PAIRS_AT_ONCE:
            ends = np.cumsum(counts)
            fitting = int(np.searchsorted(ends, _PAIRS_AT_ONCE, side="right"))
            stop = start + max(fitting, 1)
        some = run.slice(start, stop)
        self._kept[side].add(some, slots[start:stop], times[start:stop])
        pairs = (
            (_pairs(arrived, near),) for near in found.pieces(start, stop, PAIRS_MAX)
        )
        return stop, in_turn(self.output.emit_run, pairs)

    async def _join_rest(
        self,
        pending: Awaitable[None] | None,
        arrived: _Arrived,
        start: int,
    ) -> None:
        run, interruption = arrived.run, self.interruption
        watch = interruption.start()
        while True:
            if pending is not None:
                await pending
            if start == len(run):
                return
            if watch.has_waited and await interruption.look_around(run, start):
                return
            start, pending = self._join_some(arrived, start)

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


class _BufferRows:
    """The records of a side as the state of rows has them: by key, then by time."""

    __slots__ = ("_keys", "_segments")
    width = 2

    def __init__(self, segments: list[tuple[Segment, int]], keys: list[Any]) -> None:
        self._segments = segments
        self._keys = keys

    def columns(self, count: int) -> Iterator[tuple[list[Any], ...]]:
        """Yield keys and contents, so many at a time."""
        found: dict[Any, dict[int, list[Any]]] = {}
        for segment, floor in self._segments:
            for key, stamp, record in _records(segment, floor, self._keys):
                found.setdefault(key, {}).setdefault(stamp, []).append(record)
        keys = list(found)
        for start in range(0, len(keys), count):
            some = keys[start : start + count]
            yield (
                some,
                [
                    {stamp: (tuple(tied),) for stamp, tied in found[key].items()}
                    for key in some
                ],
            )


class _TimerRows:
    """The timers that the operator of rows would have registered."""

    __slots__ = ("_ends", "_keys")
    width = 3

    def __init__(
        self, ends: list[tuple[str, int, list[tuple[Segment, int]]]], keys: list[Any]
    ) -> None:
        self._ends = ends
        self._keys = keys

    def columns(self, count: int) -> Iterator[tuple[list[Any], ...]]:
        """Yield keys, namespaces and timestamps, so many at a time."""
        keys = self._keys
        for name, lasts, segments in self._ends:
            for segment, floor in segments:
                there = segment.times > floor
                slots = segment.slots[there].tolist()
                stamps = (segment.times[there] + lasts).tolist()
                for start in range(0, len(slots), count):
                    some = [keys[slot] for slot in slots[start : start + count]]
                    yield some, [name] * len(some), stamps[start : start + count]


def _records(
    segment: Segment, floor: int, keys: list[Any]
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
