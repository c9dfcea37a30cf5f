"""When places are due, so that a watermark looks only at those that may be.

Theory of operation: time is divided into stretches, and each place is noted in that of
the time at which it is due. It may be due later by then, as sessions grow: whoever takes
it sees that, and notes it again. So what merely grows costs nothing here.
"""

from __future__ import annotations

import heapq
from typing import Final

import numpy as np

from aiomailbox.columnar.pieces import resized

__all__ = ["Dues"]

# No stretch has this number.
_NOWHERE: Final = 2**63 - 1
# So many notes per place, and beyond them so many, may count no more.
_STALE_EACH: Final = 4
_STALE_MIN: Final = 1024


class Dues:
    """Places, and in which stretch of time each is due at the earliest.

    Args:
        step: How long stretches are, milliseconds.

    Invariants:
        Of the notes of a place one counts: that in the stretch that ``_stretch_of`` says.

    Example:
        >>> dues = Dues(10)
        >>> dues.note(np.array([0, 1, 2]), np.array([5, 25, 7]))
        >>> dues.take(8).tolist(), dues.take(19).tolist(), dues.take(20).tolist()
        ([0, 2], [], [1])
    """

    __slots__ = ("_by_stretch", "_count", "_queue", "_step", "_stretch_of")

    def __init__(self, step: int) -> None:
        self._step = step
        self._by_stretch: dict[int, list[np.ndarray]] = {}
        self._queue: list[int] = []
        self._stretch_of: np.ndarray = np.zeros(0, np.int64)
        self._count = 0

    def note(self, places: np.ndarray, times: np.ndarray) -> None:
        """Let places be due at these times, unless they were noted for an earlier one.

        Args:
            places: Each once, shape ``(n,)``.
            times: Milliseconds, shape ``(n,)``.
        """
        if not len(places):
            return
        self._make_room(int(places.max()) + 1)
        stretches = times // self._step
        new = stretches < self._stretch_of[places]
        places, stretches = places[new], stretches[new]
        self._stretch_of[places] = stretches
        order = np.argsort(stretches, kind="stable")
        borders = np.flatnonzero(np.diff(stretches[order])) + 1
        for some in np.split(places[order], borders):
            self._put(some)
        if self._count > _STALE_EACH * len(self._stretch_of) + _STALE_MIN:
            self._forget_stale()

    def take(self, now: int) -> np.ndarray:
        """Return the places that may be due by now, ascending; they are noted no more."""
        last, found = now // self._step, []
        while self._queue and self._queue[0] <= last:
            stretch = heapq.heappop(self._queue)
            for places in self._by_stretch.pop(stretch):
                self._count -= len(places)
                mine = places[self._stretch_of[places] == stretch]
                # A place may have been noted twice.
                self._stretch_of[mine] = _NOWHERE
                found.append(mine)
        return np.sort(np.concatenate(found)) if found else np.zeros(0, np.int64)

    def _put(self, places: np.ndarray) -> None:
        """Put places into the stretch that they have."""
        if not len(places):
            return
        stretch = int(self._stretch_of[places[0]])
        there = self._by_stretch.get(stretch)
        if there is None:
            there = self._by_stretch[stretch] = []
            heapq.heappush(self._queue, stretch)
        there.append(places)
        self._count += len(places)

    def _make_room(self, size: int) -> None:
        old = len(self._stretch_of)
        if size > old:
            self._stretch_of = resized(self._stretch_of, max(size, 2 * old), _NOWHERE)

    def _forget_stale(self) -> None:
        """Forget notes that count no more: their places have others by now."""
        stretches = self._stretch_of
        places = np.flatnonzero(stretches != _NOWHERE)
        self._by_stretch, self._queue, self._count = {}, [], 0
        self._stretch_of = np.full(len(stretches), _NOWHERE)
        self.note(places, stretches[places] * self._step)
