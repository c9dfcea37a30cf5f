"""Where stretches of time begin, earliest first."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable

__all__ = ["Starts"]


class Starts:
    """Finds the earliest of some stretches of time without a look at the others.

    Args:
        there: Says which starts are there; those that it has no more are passed over.

    Example:
        >>> windows = {10: "a", 0: "b"}
        >>> starts = Starts(windows)
        >>> starts.add(windows)
        >>> starts.first_until(20), windows.pop(0), starts.first_until(20)
        (0, 'b', 10)
        >>> starts.take(9), starts.take(10), starts.take(10)
        (None, 10, None)
    """

    __slots__ = ("_heap", "_there")

    def __init__(self, there: Container[int]) -> None:
        self._there = there
        self._heap: list[int] = []

    def add(self, starts: Iterable[int]) -> None:
        """Be notified of stretches that are there now and were not before."""
        for start in starts:
            heapq.heappush(self._heap, start)

    def first_until(self, limit: int) -> int | None:
        """Return the earliest start if it is not after ``limit``."""
        heap = self._heap
        while heap and heap[0] <= limit:
            if heap[0] in self._there:
                return heap[0]
            heapq.heappop(heap)
        return None

    def take(self, limit: int) -> int | None:
        """Return the same, which is passed over from now on."""
        start = self.first_until(limit)
        if start is not None:
            heapq.heappop(self._heap)
        return start
