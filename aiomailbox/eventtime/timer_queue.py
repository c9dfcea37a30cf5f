"""A set of timers that knows its earliest.

Theory of operation: timers of one timestamp share a bucket, so that windows, which end
at the same time for all keys, cost little. A bucket of one timer is that timer's
``(key, namespace)`` itself, of more a dict of them, which keeps the order. Timestamps
come into a heap. When many are in it, they are sorted into a list, whose end is its
earliest, for sorting a million and taking them from the end costs a fraction of taking
a million from a heap. Either may hold timestamps whose bucket has gone; they are
dropped when they come up, and all at once when they are the majority.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, NamedTuple

__all__ = ["Timer", "TimerQueue"]

_STALE_MIN = 64
_SORT_MIN = 64
# Turning a bucket around takes 60 ns per timer, and that in one piece.
_TURNED_MAX = 16_384

# Half the time of calling the class, and one is made per firing.
_new = tuple.__new__


class Timer(NamedTuple):
    """A point in time at which a key wants to be called, in a namespace."""

    timestamp: int
    key: Any
    namespace: Any


_Entry = tuple[Any, Any]


class TimerQueue:
    """Timers without repetition, taken earliest first; equal times in any order.

    Invariants:
        Every timestamp with a bucket is in the heap or in the sorted list. No bucket is
        empty. The sorted list goes from the latest to the earliest.

    Cost:
        Each sort takes at most five timestamps, most of them in order, per timestamp
        that was added since the one before.

    Example:
        >>> queue = TimerQueue()
        >>> queue.add(20, "k", None), queue.add(10, "k", None), queue.add(10, "k", None)
        (True, True, False)
        >>> queue.head, queue.pop_due(15), queue.pop_due(15)
        (10, Timer(timestamp=10, key='k', namespace=None), None)
    """

    __slots__ = ("_buckets", "_draining", "_heap", "_size", "_sorted")

    def __init__(self) -> None:
        self._buckets: dict[int, _Entry | dict[_Entry, None]] = {}
        self._heap: list[int] = []
        self._sorted: list[int] = []
        self._size = 0
        self._draining: int | None = None

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Timer]:
        """Iterate over all timers, in no particular order."""
        for timestamp, bucket in self._buckets.items():
            for key, namespace in [bucket] if type(bucket) is tuple else bucket:
                yield Timer(timestamp, key, namespace)

    @property
    def head(self) -> int | None:
        """The earliest timestamp, or None when there is no timer."""
        heap, ordered, buckets = self._heap, self._sorted, self._buckets
        while heap and heap[0] not in buckets:
            heapq.heappop(heap)
        while ordered and ordered[-1] not in buckets:
            ordered.pop()
        if heap and ordered:
            return min(heap[0], ordered[-1])
        return heap[0] if heap else ordered[-1] if ordered else None

    def add(self, timestamp: int, key: Any, namespace: Any) -> bool:
        """Add a timer; says whether it was not there yet."""
        entry = (key, namespace)
        bucket = self._buckets.setdefault(timestamp, entry)
        if bucket is entry:
            heapq.heappush(self._heap, timestamp)
        elif type(bucket) is tuple:
            if bucket == entry:
                return False
            self._buckets[timestamp] = {bucket: None, entry: None}
        else:
            size = len(bucket)
            bucket[entry] = None  # type: ignore[index]
            if len(bucket) == size:
                return False
        self._size += 1
        return True

    def discard(self, timestamp: int, key: Any, namespace: Any) -> bool:
        """Remove a timer; says whether it was there."""
        bucket = self._buckets.get(timestamp)
        entry = (key, namespace)
        if bucket is None:
            return False
        if isinstance(bucket, dict):
            if entry not in bucket:
                return False
            del bucket[entry]
        elif bucket != entry:
            return False
        if isinstance(bucket, tuple) or not bucket:
            del self._buckets[timestamp]
            self._drop_stale()
        self._size -= 1
        return True

    def pop_due(self, limit: int) -> Timer | None:
        """Remove and return the earliest timer if it is not after ``limit``."""
        heap, ordered, buckets = self._heap, self._sorted, self._buckets
        if heap and len(heap) > _SORT_MIN + len(ordered) // 4:
            ordered += heap
            ordered.sort(reverse=True)
            heap.clear()
        while heap or ordered:
            timestamp = ordered[-1] if ordered else heap[0]
            from_heap = heap and heap[0] <= timestamp
            if from_heap:
                timestamp = heap[0]
            if timestamp > limit:
                return None
            bucket = buckets.get(timestamp)
            if type(bucket) is dict:
                self._size -= 1
                return _new(Timer, (timestamp, *self._pop_from(timestamp, bucket)))
            if from_heap:
                heapq.heappop(heap)
            else:
                ordered.pop()
            if bucket is not None:
                del buckets[timestamp]
                self._size -= 1
                key, namespace = bucket
                return _new(Timer, (timestamp, key, namespace))
        return None

    def _pop_from(self, timestamp: int, bucket: dict[_Entry, None]) -> _Entry:
        if self._draining != timestamp:
            # Turned around once, so that taking from the end, the only cheap end of
            # a dict, gives the timers in the order in which they were added.
            self._draining = timestamp
            if len(bucket) <= _TURNED_MAX:
                bucket = dict.fromkeys(reversed(bucket))
                self._buckets[timestamp] = bucket
        entry, _ = bucket.popitem()
        if not bucket:
            self._draining = None
            del self._buckets[timestamp]
        return entry

    def _drop_stale(self) -> None:
        stamps = len(self._heap) + len(self._sorted)
        if stamps > 2 * len(self._buckets) + _STALE_MIN:
            self._heap = list(self._buckets)
            heapq.heapify(self._heap)
            self._sorted.clear()
