"""When places are due, so that a watermark looks only at those that may be soon.

Theory of operation: the places that are due until a horizon are near. A watermark goes
through these; when it comes to the horizon, all places are gone through once, and those
that are due next become near. What is noted may be due later by then, as sessions grow:
the caller that takes it notes it again. So what merely grows costs nothing here.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from aiomailbox.columnar.groups import distinct

__all__ = ["Dues"]

# So many places are near, or so small a part of all, if those are more.
_NEAR_MIN: Final = 1024
_NEAR_PART: Final = 32
# So many times as many near ones let a nearer horizon be chosen.
_NEAR_GROWTH: Final = 4
_PAST: Final = -(2**63)


class Dues:
    """Places and when each is due at the earliest, as far as that is near.

    Invariants:
        Of the places that `choose` was given or that were noted since, all that are due
        until the horizon are near.

    Example:
        >>> dues = Dues()
        >>> dues.is_beyond(8)
        True
        >>> dues.choose(np.array([0, 1]), np.array([5, 25]), 4)
        >>> dues.note(np.array([2, 3]), np.array([7, 99]))
        >>> dues.take(8).tolist(), dues.take(24).tolist(), dues.is_beyond(25)
        ([0, 2], [], True)
    """

    __slots__ = ("_horizon", "_near_max", "_places", "_times")

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
