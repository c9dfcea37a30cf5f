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
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from aiomailbox.columnar.accumulators import Values, reshaped, resized
from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.cells import Cells, FrozenCells
from aiomailbox.columnar.keys import distinct, stable_order
from aiomailbox.columnar.types import RowsNeededError
from aiomailbox.columnar.windows import ColumnarWindows, Fired, Firing
from aiomailbox.operators.aggregates.functions import Aggregate
from aiomailbox.operators.core.operator import Pending, then
from aiomailbox.records.run import ListRun
from aiomailbox.state.snapshot import KeyedStateSnapshot, SnapshotRows
from aiomailbox.windowing.session_aggregate import (
    FIRED,
    GONE,
    OPEN,
    SessionAggregateOperator,
)
from aiomailbox.windowing.spec import WindowSpec
from aiomailbox.windowing.time_window import TimeWindow

# When places are due, so that a watermark looks only at those that may be soon.
#
# Theory of operation: the places that are due until a horizon are near. A watermark
# goes through these; when it comes to the horizon, all places are gone through once,
# and those that are due next become near. What is noted may be due later by then, as
# sessions grow: the caller that takes it notes it again. So what merely grows costs
# nothing here.


# So many places are near, or so small a part of all, if those are more.
_NEAR_MIN: Final = 1024


_NEAR_PART: Final = 32


# So many times as many near ones let a nearer horizon be chosen.
_NEAR_GROWTH: Final = 4


_PAST: Final = -(2**63)


class DeadlineIndex:
    """Places and when each is due at the earliest, as far as that is near.

    Invariants:
        Of the places that `choose` was given or that were noted since, all that are due
        until the horizon are near.

    Example:
        >>> dues = DeadlineIndex()
        >>> dues.is_beyond(8)
        True
        >>> dues.choose(np.array([0, 1]), np.array([5, 25]), 4)
        >>> dues.note(np.array([2, 3]), np.array([7, 99]))
        >>> dues.take(8).tolist(), dues.take(24).tolist(), dues.is_beyond(25)
        ([0, 2], [], True)
    """

    def __init__(self) -> None:
        self._horizon = _PAST
        self._near_max = 0
        self._places: np.ndarray = np.zeros(0, np.int64)
        self._times: np.ndarray = np.zeros(0, np.int64)

    def is_beyond(self, now: int) -> bool:
        """Say whether `choose` must be called before the places due by now are taken."""
        return now >= self._horizon

    def choose(self, places: np.ndarray, times: np.ndarray, now: int) -> None:
        """Choose a horizon that is not before ``now``, and which of all places are near.

        Args:
            places: All, each once, shape ``(n,)``.
            times: When they are due, milliseconds, shape ``(n,)``.
            now: The time, milliseconds.
        """
        count = max(_NEAR_MIN, len(places) // _NEAR_PART)
        if len(places) > count:
            self._horizon = max(now, int(np.partition(times, count)[count]))
            near = times <= self._horizon
            places, times = places[near], times[near]
        else:
            self._horizon = int(times.max(initial=now))
        self._places, self._times = places, times
        self._near_max = _NEAR_GROWTH * max(count, len(places))

    def note(self, places: np.ndarray, times: np.ndarray) -> None:
        """Let places be due at these times, or earlier if they were noted before.

        Args:
            places: Which, shape ``(n,)``.
            times: Milliseconds, shape ``(n,)``.
        """
        near = times <= self._horizon
        if not near.any():
            return
        self._places = np.concatenate([self._places, places[near]])
        self._times = np.concatenate([self._times, times[near]])
        if len(self._places) > self._near_max:
            self._horizon = _PAST

    def take(self, now: int) -> np.ndarray:
        """Return the places that may be due by now, ascending; they are noted no more."""
        due = self._times <= now
        found: np.ndarray = distinct(self._places[due])
        if len(found):
            self._places, self._times = self._places[~due], self._times[~due]
        return found


# Sessions of all keys as arrays: a place a session, and the sessions of a key linked.


_NONE: Final = -1


# Neither open nor fired.
_FREE: Final = 2


_PLACES_MIN: Final = 64


class KeptSessions(NamedTuple):
    """Sessions by themselves, in the order of their keys' places and their starts.

    Attributes:
        slots: The places of their keys; like all that follows of shape ``(n,)``.
        starts: Where they begin, milliseconds.
        ends: Where they end.
        stages: Whether they are open or have fired.
        accumulators: The accumulators.
    """

    slots: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    stages: np.ndarray
    accumulators: list[list[Any]]


class SessionCells:
    """The accumulators, times and keys of all sessions.

    Args:
        aggregate: What is computed.
        lateness_ms: How long after their end sessions take late records.

    Attributes:
        cells: The accumulators, at the places of the sessions.
        slots: The place of each session's key; anything where there is no session.
        starts: Where each begins.
        ends: Where each ends.
        stages: Whether it is open or has fired, or there is none.

    Invariants:
        From ``_latest[slot]`` on, ``_earlier`` leads to each session of a key once, the
        latest first. Sessions only grow, so that none is due before ``_dues`` says.
    """

    def __init__(self, aggregate: Aggregate[Any, Any], lateness_ms: int) -> None:
        self._lateness_ms = lateness_ms
        self._dues = DeadlineIndex()
        self.cells: Cells = Cells(aggregate)
        self.slots: np.ndarray = np.zeros(0, np.int64)
        self.starts: np.ndarray = np.zeros(0, np.int64)
        self.ends: np.ndarray = np.zeros(0, np.int64)
        self.stages: np.ndarray = np.zeros(0, np.int8)
        self._earlier: np.ndarray = np.zeros(0, np.int64)
        self._latest: np.ndarray = np.zeros(0, np.int64)
        # As many as there are places; those up to the count are free.
        self._free: np.ndarray = np.zeros(0, np.int64)
        self._free_count = 0

    def of_keys(self, slots: np.ndarray) -> np.ndarray:
        """Return the sessions of keys, given the places of these, each once."""
        known = slots[slots < len(self._latest)]
        found: list[np.ndarray] = []
        sessions: np.ndarray = self._latest[known]
        while len(sessions := sessions[sessions != _NONE]):
            found.append(sessions)
            sessions = self._earlier[sessions]
        return np.concatenate(found) if found else sessions

    def latest_of(self, slots: np.ndarray) -> np.ndarray:
        """Return for the places of keys their latest sessions; negative for none."""
        missing = int(slots.max()) + 1 - len(self._latest)
        if missing > 0:
            more = max(missing, len(self._latest))
            self._latest = np.concatenate([self._latest, np.full(more, _NONE)])
        return self._latest.take(slots)

    def free_places(self, count: int) -> np.ndarray:
        """Return so many places without a session, which `begin` may take."""
        missing = count - self._free_count
        if missing > 0:
            old = len(self.stages)
            size = max(old + missing, 2 * old, _PLACES_MIN)
            chosen = np.concatenate([np.arange(old), np.full(size - old, _NONE)])
            self.cells.reshape(chosen, size)
            self.slots = reshaped(self.slots, chosen, size, 0)
            self.starts = reshaped(self.starts, chosen, size, 0)
            self.ends = reshaped(self.ends, chosen, size, 0)
            self.stages = reshaped(self.stages, chosen, size, _FREE)
            self._earlier = reshaped(self._earlier, chosen, size, _NONE)
            self._free = resized(self._free, size, 0)
            self._release(np.arange(old, size)[::-1])
        return self._next_free(count)

    def _next_free(self, count: int) -> np.ndarray:
        last = self._free_count
        return self._free[last - count : last][::-1].copy()

    def _release(self, places: np.ndarray) -> None:
        """Let places be free."""
        first = self._free_count
        self._free_count = last = first + len(places)
        self._free[first:last] = places

    def begin(
        self,
        slots: np.ndarray,
        starts: np.ndarray,
        ends: np.ndarray,
        stages: Any = OPEN,
    ) -> None:
        """Let sessions be at the places that `free_places` returned for as many."""
        if not len(slots):
            return
        places = self._next_free(len(slots))
        self._free_count -= len(slots)
        others = self.of_keys(distinct(slots))
        self.slots[places], self.starts[places] = slots, starts
        self.ends[places], self.stages[places] = ends, stages
        self._link(np.concatenate([places, others]))
        self._dues.note(places, self._last(places))

    def take_due(self, now: int) -> np.ndarray:
        """Return the sessions whose stage is over by now, ascending.

        The caller forgets each, or lets it fire.
        """
        if self._dues.is_beyond(now):
            places = self.all()
            self._dues.choose(places, self._last(places), now)
        places = self._dues.take(now)
        places = places[self.stages[places] != _FREE]
        last = self._last(places)
        over = last <= now
        self._dues.note(places[~over], last[~over])
        return places[over]

    def fire(self, places: np.ndarray) -> None:
        """Let sessions have fired and take late records."""
        self.stages[places] = FIRED
        self._dues.note(places, self._last(places))

    def _last(self, places: np.ndarray) -> np.ndarray:
        """Return at which watermarks the stages of sessions are over."""
        late = np.where(self.stages[places] == FIRED, self._lateness_ms, 0)
        return self.ends[places] - 1 + late

    def end(self, places: np.ndarray) -> None:
        """Forget sessions."""
        if not len(places):
            return
        slots = distinct(self.slots[places])
        others = self.of_keys(slots)
        self.cells.clear(places)
        self.stages[places] = _FREE
        self._release(places)
        self._latest[slots] = _NONE
        self._link(others[self.stages[others] != _FREE])

    def all(self) -> np.ndarray:
        """Return the places of all sessions."""
        return np.flatnonzero(self.stages != _FREE)

    def kept(self, places: np.ndarray) -> KeptSessions:
        """Return what sessions hold."""
        own = (self.slots, self.starts, self.ends, self.stages)
        return _sessions_at(places, own, self.cells)

    def frozen(self) -> Callable[[], KeptSessions]:
        """Return what makes what all sessions hold now, later and in a thread.

        Copies no accumulator.
        """
        own = (self.slots, self.starts, self.ends, self.stages)
        copies = tuple(each.copy() for each in own)
        cells = self.cells.frozen(len(self.stages))
        return lambda: _sessions_at(np.flatnonzero(copies[3] != _FREE), copies, cells)

    def keep_slots(self, slots: np.ndarray) -> None:
        """Keep the places of these keys only; they get new ones, in their order."""
        places = self.all()
        self.slots[places] = np.searchsorted(slots, self.slots[places])
        self._latest = np.full(len(slots), _NONE)
        self._link(places)

    def _link(self, places: np.ndarray) -> None:
        """Put the sessions of some keys, all of each, into their order."""
        if not len(places):
            return
        places = places[np.lexsort((self.starts[places], self.slots[places]))]
        slots = self.slots[places]
        self.latest_of(slots)
        follows = slots[1:] == slots[:-1]
        earlier: np.ndarray = np.full(len(places), _NONE)
        earlier[1:][follows] = places[:-1][follows]
        self._earlier[places] = earlier
        last = np.append(~follows, True)
        self._latest[slots[last]] = places[last]


def _sessions_at(
    places: np.ndarray, own: tuple[np.ndarray, ...], cells: Cells | FrozenCells
) -> KeptSessions:
    """Return what sessions at some places hold.

    Args:
        places: Where they are.
        own: The slots, starts, ends and stages of all.
        cells: The accumulators of all.
    """
    slots, starts, ends, stages = own
    places = places[np.lexsort((starts[places], slots[places]))]
    return KeptSessions(
        slots[places],
        starts[places],
        ends[places],
        stages[places],
        cells.accumulators(places),
    )


# Which intervals of a key touch each other, found for all keys at once.


_INT64_MAX: Final = 2**63 - 1


class Overlaps(NamedTuple):
    """Stretches of time that intervals of a key cover without a hole.

    Attributes:
        slots: The place of each stretch's key.
        starts: Where it begins.
        ends: Where it ends.
        simple: Whether it has at most one of the other intervals, and each record, when
            it comes, touches what has come before.
        of_records: The stretch of each record.
        of_others: The stretch of each of the other intervals.
    """

    slots: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    simple: np.ndarray
    of_records: np.ndarray
    of_others: np.ndarray


def find_overlaps(
    slots: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    other_slots: np.ndarray,
    other_starts: np.ndarray,
    other_ends: np.ndarray,
) -> Overlaps:
    """Find the stretches that intervals of records, all of a length, make with others.

    Args:
        slots: The places of the records' keys; of shape ``(n,)``, ``n >= 1``.
        starts: Where their intervals begin, in the order in which they come.
        ends: Where they end; intervals that have a point in common touch, also an end.
        other_slots: The places of the other intervals' keys.
        other_starts: Where these begin.
        other_ends: Where they end. They do not touch each other.

    Raises:
        RowsNeededError: If the times are too far apart for the arithmetic.

    Example:
        >>> a = np.array
        >>> found = find_overlaps(
        ...     a([0, 1, 0]), a([5, 5, 40]), a([15, 15, 50]), a([0]), a([12]), a([20])
        ... )
        >>> found.starts.tolist(), found.ends.tolist(), found.of_records.tolist()
        ([5, 40, 5], [20, 50, 15], [0, 2, 1])
    """
    count = len(starts)
    all_slots = np.concatenate([slots, other_slots])
    all_starts = np.concatenate([starts, other_starts])
    all_ends = np.concatenate([ends, other_ends])
    base = int(all_starts.min())
    # Times of a key are beyond those of the keys before it.
    beyond = int(all_ends.max()) - base + 1
    keys = int(all_slots.max()) + 1
    if max(keys, len(all_starts)) * beyond * 2 > _INT64_MAX:
        raise RowsNeededError("event times of a run are too far apart")
    shift = all_slots * beyond - base
    lows, highs = all_starts + shift, all_ends + shift
    order, _ = stable_order(lows, keys * beyond)
    lows, highs = lows[order], highs[order]
    reached = np.maximum.accumulate(highs)
    begins: np.ndarray = np.ones(len(order), np.bool_)
    begins[1:] = lows[1:] > reached[:-1]
    firsts = np.flatnonzero(begins)
    stretches: np.ndarray = np.empty(len(order), np.int64)
    stretches[order] = np.cumsum(begins) - 1
    of_records, of_others = stretches[:count], stretches[count:]
    shift = shift[order][firsts]
    found_ends = reached[np.append(firsts[1:], len(order)) - 1] - shift
    others = np.bincount(of_others, minlength=len(firsts))
    simple = others <= 1
    low = np.full(len(firsts), 2 * beyond)
    high = np.full(len(firsts), -beyond)
    low[of_others], high[of_others] = other_starts - base, other_ends - base
    simple[_strays(of_records, starts - base, ends - base, low, high, beyond)] = False
    return Overlaps(
        all_slots[order][firsts],
        lows[firsts] - shift,
        found_ends,
        simple,
        of_records,
        of_others,
    )


def _strays(
    stretches: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    beyond: int,
) -> np.ndarray:
    """Return stretches of which a record touches nothing that has come before.

    Args:
        stretches: Of the records, in the order in which they come.
        starts: Where their intervals begin, from 0.
        ends: Where these end, less than ``beyond``.
        low: Where what is there of each stretch before begins; twice ``beyond`` for
            nothing.
        high: Where that ends.
        beyond: No time is so late.
    """
    order, _ = stable_order(stretches, len(low))
    mine, starts, ends = stretches[order], starts[order], ends[order]
    first: np.ndarray = np.ones(len(mine), np.bool_)
    first[1:] = mine[1:] != mine[:-1]
    shift = mine * beyond
    # What a stretch covers up to each record: between its least start and latest end.
    up, down = ends + shift, beyond - starts + shift
    firsts = np.flatnonzero(first)
    before = mine[firsts]
    up[firsts] = np.maximum(up[firsts], high[before] + shift[firsts])
    down[firsts] = np.maximum(down[firsts], beyond - low[before] + shift[firsts])
    highest = np.maximum.accumulate(up) - shift
    lowest = beyond + shift - np.maximum.accumulate(down)
    strays = first.copy()
    strays[1:] = ~first[1:] & ((starts[1:] > highest[:-1]) | (ends[1:] < lowest[:-1]))
    strays[firsts] = (low[before] < 2 * beyond) & (
        (starts[firsts] > high[before]) | (ends[firsts] < low[before])
    )
    return distinct(mine[strays])


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
        frozen, keys = self._kept.frozen(), self._slots.keys
        columns = SnapshotRows.of(2, lambda: _rows_of(frozen(), keys))
        return [rows, self.snapshot_of([(self._state, columns)], namespaced=False)]

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
    ) -> tuple[Overlaps, np.ndarray]:
        """Return what records touch, and which sessions their keys have."""
        kept, ends = self._kept, times + self._gap
        mine = kept.of_keys(distinct(slots))
        found = find_overlaps(
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
                self._result.of_one(key, TimeWindow(start, end), accumulator)
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
        return ended[np.argsort(kept.ends[ended], kind="stable")]

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
