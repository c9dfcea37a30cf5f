"""A set of timers that knows its earliest.

Theory of operation: timers of one timestamp share a bucket, so that windows, which end
at the same time for all keys, cost little. A bucket of one timer is that timer's
``(key, namespace)`` itself, of more a dict of them, which keeps the order. Timestamps
come into a heap. When many are in it, they are sorted into a list, whose end is its
earliest, for sorting many and taking them from the end costs a fraction of taking them
from a heap. A list has a few thousand timestamps, so that no sort holds the event loop;
of several lists the one with the earliest end is in use, the others wait in a heap. All
may hold timestamps whose bucket has gone; they are dropped when they come up, and all at
once when they are the majority.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from aiomailbox.state.layers import DictSnapshot, Layer, LayeredDict, frozen_items

__all__ = ["Timer", "TimerQueue", "TimerQueueSnapshot"]

_STALE_MIN = 64
_SORT_MIN = 64
# Sorting so many takes about 2 ms, unless they are in order already.
_SORTED_MAX = 8192
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
_Bucket = _Entry | dict[_Entry, None] | Layer[_Entry, None]


def _thaw(bucket: _Bucket) -> _Bucket:
    return bucket if type(bucket) is tuple else Layer(bucket, _same)  # type: ignore[arg-type]


def _same(content: None) -> None:
    return content


class TimerQueue:
    """Timers without repetition, taken earliest first; equal times in any order.

    Invariants:
        Every timestamp with a bucket is in the heap or in a sorted list. No bucket is
        empty. Sorted lists go from the latest to the earliest. None that waits is empty.

    Cost:
        Each sort takes at most five timestamps, most of them in order, per timestamp
        that was added since the one before, and no more than some 16,000.

    Example:
        >>> queue = TimerQueue()
        >>> queue.add(20, "k", None), queue.add(10, "k", None), queue.add(10, "k", None)
        (True, True, False)
        >>> queue.head, queue.pop_due(15), queue.pop_due(15)
        (10, Timer(timestamp=10, key='k', namespace=None), None)
    """

    __slots__ = (
        "_buckets",
        "_draining",
        "_heap",
        "_layers",
        "_serial",
        "_size",
        "_sorted",
        "_waiting",
    )

    def __init__(self) -> None:
        self._layers: LayeredDict[int, _Bucket] = LayeredDict(_thaw)
        self._buckets: Any = self._layers.live
        self._heap: list[int] = []
        self._sorted: list[int] = []
        # ``(its end, a number, a sorted list)``.
        self._waiting: list[tuple[int, int, list[int]]] = []
        self._serial = 0
        self._size = 0
        self._draining: int | None = None

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Timer]:
        """Iterate over all timers, in no particular order."""
        for timestamp, bucket in frozen_items(self._buckets):
            entries: Any = [bucket] if type(bucket) is tuple else bucket
            for key, namespace in entries:
                yield Timer(timestamp, key, namespace)

    def snapshot(self) -> TimerQueueSnapshot:
        """Return all timers that are here now; a thread may read them."""
        snapshot = TimerQueueSnapshot(self._layers.snapshot())
        self._buckets = self._layers.live
        return snapshot

    @property
    def has_snapshot(self) -> bool:
        """Whether a snapshot makes every access cost more."""
        return self._layers.has_snapshot

    def settle(self, count: int) -> int:
        """Remove layers that no snapshot needs; see `LayeredDict.settle`."""
        left = self._layers.settle(count)
        self._buckets = self._layers.live
        return left

    @property
    def head(self) -> int | None:
        """The earliest timestamp, or None when there is no timer."""
        heap, buckets = self._heap, self._buckets
        # The head may have gone; that is found out here, where all look anyway.
        while heap and heap[0] not in buckets:
            heapq.heappop(heap)
        ordered = self._earliest_list()
        while ordered and ordered[-1] not in buckets:
            ordered.pop()
            ordered = self._earliest_list()
        if heap and ordered:
            return min(heap[0], ordered[-1])
        return heap[0] if heap else ordered[-1] if ordered else None

    def add(self, timestamp: int, key: Any, namespace: Any) -> bool:
        """Add a timer; says whether it was not there yet."""
        entry = (key, namespace)
        bucket = self._buckets.setdefault(timestamp, entry)
        if bucket is entry:
            heap = self._heap
            heapq.heappush(heap, timestamp)
            if len(heap) >= _SORTED_MAX:
                self._sort(heap)
        elif type(bucket) is tuple:
            # One timer in a bucket is no dict: most keys have one, and a dict takes 200
            # bytes more.
            if bucket == entry:
                return False
            self._buckets[timestamp] = {bucket: None, entry: None}
        else:
            size = len(bucket)
            bucket[entry] = None
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
        if isinstance(bucket, tuple):
            if bucket != entry:
                return False
        elif entry not in bucket:
            return False
        else:
            del bucket[entry]
        if isinstance(bucket, tuple) or not bucket:
            del self._buckets[timestamp]
            self._drop_stale()
        self._size -= 1
        return True

    def pop_due(self, limit: int) -> Timer | None:
        """Remove and return the earliest timer if it is not after ``limit``."""
        heap, waiting, buckets = self._heap, self._waiting, self._buckets
        ordered = self._sorted
        # Sorted in bulk when many have come: taking from a sorted list is cheaper than
        # from a heap, and a quarter of what is there pays for the sort.
        if len(heap) > _SORT_MIN + len(ordered) // 4:
            if len(ordered) <= _SORTED_MAX:
                heap += ordered
                ordered.clear()
            self._sort(heap)
        while heap or ordered or waiting:
            if waiting and (not ordered or waiting[0][0] < ordered[-1]):
                ordered = self._earliest_list()
            timestamp = ordered[-1] if ordered else heap[0]
            from_heap = heap and heap[0] <= timestamp
            if from_heap:
                timestamp = heap[0]
            if timestamp > limit:
                return None
            bucket = buckets.get(timestamp)
            if bucket is not None and type(bucket) is not tuple:
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

    def _sort(self, heap: list[int]) -> None:
        """Let the heap's timestamps be a sorted list that waits."""
        heap.sort(reverse=True)
        self._serial += 1
        heapq.heappush(self._waiting, (heap[-1], self._serial, heap[:]))
        heap.clear()

    def _earliest_list(self) -> list[int]:
        """Let the sorted list with the earliest end be the one in use, and return it."""
        waiting, ordered = self._waiting, self._sorted
        if waiting:
            if not ordered:
                self._sorted = heapq.heappop(waiting)[2]
            elif waiting[0][0] < ordered[-1]:
                self._serial += 1
                following = (ordered[-1], self._serial, ordered)
                self._sorted = heapq.heapreplace(waiting, following)[2]
        return self._sorted

    def _pop_from(self, timestamp: int, bucket: Any) -> _Entry:
        if self._draining != timestamp:
            # Turned around once, so that taking from the end, the only cheap end of
            # a dict, gives the timers in the order in which they were added.
            self._draining = timestamp
            if type(bucket) is dict and len(bucket) <= _TURNED_MAX:
                bucket = dict.fromkeys(reversed(bucket))
                self._buckets[timestamp] = bucket
        entry: _Entry = bucket.popitem()[0]
        if not bucket:
            self._draining = None
            del self._buckets[timestamp]
        return entry

    def _drop_stale(self) -> None:
        stamps = len(self._heap) + len(self._sorted)
        stamps += sum(len(ordered) for _, _, ordered in self._waiting)
        # Twice as many timestamps as timers: deleting many, as sessions do, leaves them
        # behind.
        if stamps > 2 * len(self._buckets) + _STALE_MIN:
            self._heap = list(self._buckets)
            heapq.heapify(self._heap)
            self._sorted.clear()
            self._waiting.clear()


class TimerQueueSnapshot:
    """The timers of a queue at one moment.

    Args:
        snapshot: Their buckets.
    """

    __slots__ = ("_snapshot",)
    width = 3

    def __init__(self, snapshot: DictSnapshot) -> None:
        self._snapshot = snapshot

    def columns(self, count: int) -> Iterator[tuple[list[Any], list[Any], list[Any]]]:
        """Yield keys, namespaces and timestamps, so many at a time."""
        timers = (
            (key, namespace, timestamp)
            for timestamp, bucket in self._snapshot.items()
            for key, namespace in ([bucket] if type(bucket) is tuple else bucket)
        )
        while some := list(islice(timers, count)):
            keys, namespaces, timestamps = zip(*some, strict=True)
            yield list(keys), list(namespaces), list(timestamps)
