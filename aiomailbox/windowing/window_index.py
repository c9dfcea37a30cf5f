"""Which keys have something in which tumbling window, in the order of the windows."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any


class WindowIndex:
    """The keys of each window, by the window's start.

    It takes the place of one timer per key and window, and is not part of a snapshot:
    the state itself tells what is to be in it.

    Attributes:
        keys: The keys by the window's start; may name keys whose content is gone.

    Invariants:
        The heap holds each start of ``keys`` exactly once.
    """

    __slots__ = ("_heap", "keys")

    def __init__(self) -> None:
        self.keys: dict[int, list[Any]] = {}
        self._heap: list[int] = []

    def add(self, start: int, key: Any) -> None:
        """Note that ``key`` has something in the window; once each is enough."""
        keys = self.keys.get(start)
        if keys is None:
            self.keys[start] = [key]
            heapq.heappush(self._heap, start)
        else:
            keys.append(key)

    def pop_until(self, limit: int) -> Iterator[tuple[int, list[Any]]]:
        """Take out the windows that start at or before ``limit``, earliest first."""
        heap = self._heap
        while heap and heap[0] <= limit:
            start = heapq.heappop(heap)
            yield start, self.keys.pop(start)
