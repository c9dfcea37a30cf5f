"""Sessions of all keys as arrays: a place a session, and the sessions of a key linked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from aiomailbox.columnar.cells import Cells, FrozenCells
from aiomailbox.columnar.dues import Dues
from aiomailbox.columnar.groups import distinct
from aiomailbox.columnar.pieces import reshaped, resized
from aiomailbox.operators.aggregates.functions import Aggregate
from aiomailbox.windowing.open_sessions import FIRED, OPEN

__all__ = ["KeptSessions", "SessionCells"]

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
    """What sessions hold, when they are, and of which key.

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
        self._dues = Dues()
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

    def __len__(self) -> int:
        return len(self.stages) - self._free_count

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
        latest: np.ndarray = self._latest.take(slots)
        return latest

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
        found: np.ndarray = self._free[last - count : last][::-1].copy()
        return found

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
        last: np.ndarray = self.ends[places] - 1 + late
        return last

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
