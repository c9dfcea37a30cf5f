"""Timers of keys, in event time and in processing time.

Theory of operation: a firing sets the key, removes the timer and calls the operator,
and the earliest timer is looked up afresh each time, so that what a callback registers
or deletes counts at once. Timers fire in pieces: the owner of the service says when the
next one comes, and between two pieces the timers that are left are all there is to go
on from. Of all processing-time timers only the earliest is armed with the
processing-time service; when it fires, so do all that are due by then.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Any, Final, NamedTuple, Protocol

from aiomailbox.errors import StateError
from aiomailbox.eventtime.processing_time import (
    Pending,
    ProcessingTimeService,
    TimerHandle,
)
from aiomailbox.keygroups.assignment import KeyGroupRange
from aiomailbox.records.events import MIN_TIMESTAMP
from aiomailbox.state.layers import (
    DictSnapshot,
    Layer,
    Layered,
    LayeredDict,
    frozen_items,
)
from aiomailbox.state.snapshot import GroupedEntries, LazyTimers, SnapshotRows

# A set of timers that knows its earliest.
#
# Theory of operation: timers of one timestamp share a bucket, so that windows, which
# end at the same time for all keys, cost little. A bucket of one timer is that timer's
# ``(key, namespace)`` itself, of more a dict of them, which keeps the order. Timestamps
# come into a heap. When many are in it, they are sorted into a list, whose end is its
# earliest, for sorting many and taking them from the end costs a fraction of taking
# them from a heap. A list has a few thousand timestamps, so that no sort holds the
# event loop; of several lists the one with the earliest end is in use, the others wait
# in a heap. All may hold timestamps whose bucket has gone; they are dropped when they
# come up, and all at once when they are the majority.


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


class TimerQueue(Layered):
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

    def __init__(self) -> None:
        super().__init__(LayeredDict(_thaw))
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

    def _bind(self) -> None:
        self._buckets: Any = self._layers.live

    def frozen_rows(self) -> SnapshotRows:
        """Return keys, namespaces and timestamps of now, for a thread to read."""
        return SnapshotRows.of(3, partial(_entries_in, self.snapshot()))

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


def _entries_in(snapshot: DictSnapshot) -> Iterator[tuple[Any, Any, int]]:
    for timestamp, bucket in snapshot.items():
        for key, namespace in [bucket] if type(bucket) is tuple else bucket:
            yield key, namespace, timestamp


_Rows = list[tuple[int, Any, Any]]


# So many timers are restored at a time.
_PIECE: Final = 1024


# Does at most so many steps of something, and says whether there is nothing left.
Slice = Callable[[int], bool | Awaitable[bool]]


class KeyContext(Protocol):
    """Has to know which key is being worked for: a keyed state store."""

    def set_current_key(self, key: Any) -> None:
        """Make ``key`` the current key."""


class Triggerable(Protocol):
    """Is called when timers are due; the key is set by then.

    Concept:
        Flink, ``Triggerable``.
    """

    def on_event_time(self, timer: Timer) -> Pending:
        """React to a timer that the watermark has reached."""

    def on_processing_time(self, timer: Timer) -> Pending:
        """React to a timer that wall-clock time has passed."""


@dataclass(frozen=True, slots=True)
class TimerSnapshot:
    """All timers of a service: plain values, grouped by key group.

    The watermark is not part of it.

    Attributes:
        max_parallelism: The number of key groups that the keys were placed in.
        event: Per key group the event-time timers, ``(timestamp, key, namespace)``;
            which there are, and what is in bytes, is found out when it is asked for.
        processing: Per key group the processing-time timers.
    """

    max_parallelism: int
    event: Mapping[int, _Rows] = field(default_factory=dict)
    processing: Mapping[int, _Rows] = field(default_factory=dict)


class Cancellation(Protocol):
    """Knows whether a task is cancelled."""

    @property
    def cancelled(self) -> bool:
        """Whether it is; an attribute, since it is read before each timer."""


class Results(Protocol):
    """Where results of callbacks are collected.

    Attributes:
        has_passed: Whether so many were collected since the last time that some have
            gone out already: then it is time to look whether there is room for more.
    """

    has_passed: bool


class _Never:
    cancelled: Final = False


class _Nowhere:
    has_passed = False


def all_at_once(piece: Slice) -> Pending:
    """Do one piece after the other, without a pause."""
    done = piece(sys.maxsize)
    while done is False:
        done = piece(sys.maxsize)
    return None if done is True else _rest_at_once(piece, done)


async def _rest_at_once(piece: Slice, done: bool | Awaitable[bool]) -> None:
    while done is not True:
        if done is not False:
            done = await done
        if not done:
            done = piece(sys.maxsize)


class InternalTimerService:
    """The timers of one operator in one subtask.

    A timer is a timestamp, a key and a namespace; registering an equal one again
    changes nothing. Timers of equal timestamps fire in no promised order. One that is
    registered at or before the current watermark fires with the next watermark.

    Args:
        target: Called when timers are due.
        keys: Told the key before each call, normally the keyed state store.
        processing_time: Arms one timer, the earliest in processing time.
        max_parallelism: Number of key groups of the job.
        cancellation: Of the task: nothing more fires once it is cancelled.

    Attributes:
        current_watermark: The last watermark, `MIN_TIMESTAMP` before the first.
        in_slices: Lets timers fire piece by piece; by default without a pause.
        results: Where callbacks collect results; a piece ends when there are many.

    Concept:
        Flink, ``InternalTimerServiceImpl``.

    Example:
        >>> from aiomailbox.eventtime.manual_time import ManualProcessingTimeService
        >>> class Printer:
        ...     def set_current_key(self, key): ...
        ...     def on_event_time(self, timer):
        ...         print(timer.key, timer.timestamp)
        >>> printer = Printer()
        >>> timers = InternalTimerService(
        ...     printer,
        ...     printer,
        ...     ManualProcessingTimeService(),
        ...     128,
        ... )
        >>> timers.register_event_time_timer("k", None, 10)
        True
        >>> timers.advance_watermark(10)
        k 10
    """

    def __init__(
        self,
        target: Triggerable,
        keys: KeyContext,
        processing_time: ProcessingTimeService,
        max_parallelism: int,
        *,
        cancellation: Cancellation | None = None,
    ) -> None:
        self.current_watermark: int = MIN_TIMESTAMP
        self.in_slices: Callable[[Slice], Pending] = all_at_once
        self.results: Results = _Nowhere()
        self._target = target
        self._keys = keys
        self._processing_time = processing_time
        self._max_parallelism = max_parallelism
        self._cancellation = cancellation or _Never()
        self._event = TimerQueue()
        self._processing = TimerQueue()
        self._armed: TimerHandle | None = None

    @property
    def event_time_timer_count(self) -> int:
        """How many event-time timers there are."""
        return len(self._event)

    @property
    def processing_time_timer_count(self) -> int:
        """How many processing-time timers there are."""
        return len(self._processing)

    def current_processing_time(self) -> int:
        """Return wall-clock time, integer milliseconds since the epoch."""
        return self._processing_time.current_processing_time()

    def register_event_time_timer(
        self, key: Any, namespace: Any, timestamp_ms: int
    ) -> bool:
        """Call the target when the watermark reaches ``timestamp_ms``.

        Returns:
            Whether the timer is new.
        """
        return self._event.add(timestamp_ms, key, namespace)

    def delete_event_time_timer(
        self, key: Any, namespace: Any, timestamp_ms: int
    ) -> bool:
        """Forget that timer; say whether there was one."""
        return self._event.discard(timestamp_ms, key, namespace)

    def register_processing_time_timer(
        self, key: Any, namespace: Any, timestamp_ms: int
    ) -> bool:
        """Call the target when wall-clock time has passed ``timestamp_ms``.

        Returns:
            Whether the timer is new.
        """
        head = self._processing.head
        is_new = self._processing.add(timestamp_ms, key, namespace)
        if is_new and (head is None or timestamp_ms < head):
            self._arm(timestamp_ms)
        return is_new

    def delete_processing_time_timer(
        self, key: Any, namespace: Any, timestamp_ms: int
    ) -> bool:
        """Forget that timer; say whether there was one."""
        # What is armed stays armed: a wake-up for nothing is cheaper than re-arming.
        return self._processing.discard(timestamp_ms, key, namespace)

    def advance_watermark(self, timestamp_ms: int) -> Pending:
        """Set the watermark and fire all event-time timers that it has reached.

        Pass the watermark on only after that, so that what timers emit goes first. If
        there are many it is done in pieces; see ``in_slices``.

        Returns:
            None when everything has fired, else an awaitable that fires the rest.
        """
        # First: what a callback asks for is the watermark that it fires for.
        self.current_watermark = timestamp_ms
        head = self._event.head
        if head is None or head > timestamp_ms:
            return None
        return self.in_slices(partial(self._fire_event_time, timestamp_ms))

    def snapshot(self) -> TimerSnapshot:
        """Return all timers as they are now; a thread may read them."""
        groups = self._max_parallelism
        return TimerSnapshot(
            groups,
            _SnapshotTimers(self._event.frozen_rows(), groups),
            _SnapshotTimers(self._processing.frozen_rows(), groups),
        )

    @property
    def has_snapshot(self) -> bool:
        """Whether a snapshot makes every access cost more."""
        return self._event.has_snapshot or self._processing.has_snapshot

    def settle(self, count: int) -> int:
        """Remove layers that no snapshot needs; see `LayeredDict.settle`."""
        return self._processing.settle(self._event.settle(count))

    def take_over(self, loaded: LoadedTimers) -> None:
        """Go on with timers that were loaded, instead of the present ones.

        The watermark stays `MIN_TIMESTAMP` until the first one arrives.
        """
        self._event, self._processing = loaded.event, loaded.processing
        self._arm_head()

    def forget_event_time_timers(self) -> None:
        """Forget all event-time timers: the caller knows what they would say."""
        self._event = TimerQueue()

    def close(self) -> None:
        """Disarm: no processing-time timer fires any more."""
        if self._armed is not None:
            self._armed.cancel()
            self._armed = None

    def _fire_event_time(self, limit: int, count: int) -> bool | Awaitable[bool]:
        return self._fire(self._event, limit, self._target.on_event_time, count)

    def _fire_processing_time(
        self, timestamp_ms: int, count: int
    ) -> bool | Awaitable[bool]:
        # All that is due by now, or a source that registers more than one timer per
        # turn of the event loop would leave them ever further behind.
        passed = self._processing_time.current_processing_time() - 1
        # The millisecond that is running has not passed yet.
        return self._fire(
            self._processing,
            max(timestamp_ms, passed),
            self._target.on_processing_time,
            count,
        )

    def _fire(
        self,
        queue: TimerQueue,
        limit: int,
        fire: Callable[[Timer], Pending],
        count: int,
    ) -> bool | Awaitable[bool]:
        """Fire at most ``count`` timers, and end early with the first that must wait."""
        pop_due, set_current_key = queue.pop_due, self._keys.set_current_key
        cancellation, results = self._cancellation, self.results
        for _ in repeat(None, count):
            # Looked for anew each time: a callback may register or delete what comes
            # next.
            if cancellation.cancelled or (timer := pop_due(limit)) is None:
                return True
            set_current_key(timer.key)
            pending = fire(timer)
            if pending is not None:
                return _not_done_after(pending)
            # Results must go on their way, or a watermark with a million timers would
            # hold them all.
            if results.has_passed:
                return False
        return False

    def _arm(self, timestamp_ms: int) -> None:
        if self._armed is not None:
            self._armed.cancel()
        self._armed = self._processing_time.register_timer(
            timestamp_ms, self._on_processing_time
        )

    def _arm_head(self) -> None:
        head = self._processing.head
        if head is not None and self._armed is None:
            self._arm(head)

    def _on_processing_time(self, timestamp_ms: int) -> Pending:
        # Gone before the callbacks: what they register decides what is armed next.
        self._armed = None
        pending = self.in_slices(partial(self._fire_processing_time, timestamp_ms))
        if pending is not None:
            return self._arm_head_after(pending)
        self._arm_head()
        return None

    async def _arm_head_after(self, pending: Awaitable[None]) -> None:
        await pending
        self._arm_head()


async def _not_done_after(pending: Awaitable[None]) -> bool:
    await pending
    return False


class LoadedTimers:
    """Timers that are read from snapshots, before there is an operator to call.

    Args:
        max_parallelism: Number of key groups of the job.
        key_group_range: The key groups whose timers are wanted.

    Attributes:
        event: The event-time timers.
        processing: The processing-time timers.
    """

    def __init__(self, max_parallelism: int, key_group_range: KeyGroupRange) -> None:
        self._max_parallelism = max_parallelism
        self._key_group_range = key_group_range
        self.event: TimerQueue = TimerQueue()
        self.processing: TimerQueue = TimerQueue()

    def load(self, snapshot: TimerSnapshot) -> Iterator[None]:
        """Add the timers of a snapshot, about a thousand at a time.

        Raises:
            StateError: If it was made with another number of key groups.
        """
        if snapshot.max_parallelism != self._max_parallelism:
            raise StateError(
                f"the timers were written with max_parallelism "
                f"{snapshot.max_parallelism} and cannot be read with "
                f"{self._max_parallelism}. "
                f"Set max_parallelism to {snapshot.max_parallelism}."
            )
        for queue, groups in (
            (self.event, snapshot.event),
            (self.processing, snapshot.processing),
        ):
            for group in groups:
                if group in self._key_group_range.key_groups:
                    yield from _load(queue, groups, group)


def _load(queue: TimerQueue, groups: Mapping[int, _Rows], group: int) -> Iterator[None]:
    # What is in bytes is read piece by piece.
    read: Any = getattr(groups, "pieces", None)
    pieces: Iterable[_Rows] = [groups[group]] if read is None else read(group)
    for rows in pieces:
        for start in range(0, len(rows), _PIECE):
            for timestamp, key, namespace in rows[start : start + _PIECE]:
                queue.add(timestamp, key, namespace)
            yield


def event_timers(rows: SnapshotRows, max_parallelism: int) -> TimerSnapshot:
    """Return a snapshot of event-time timers, without registering them.

    Args:
        rows: Their keys, namespaces and timestamps; read when they are asked for.
        max_parallelism: The number of key groups.
    """
    return TimerSnapshot(max_parallelism, _SnapshotTimers(rows, max_parallelism))


class _SnapshotTimers(LazyTimers):
    """Timers by key group, which are found out when one is asked for."""

    def __init__(self, snapshot: SnapshotRows, max_parallelism: int) -> None:
        self._groups = GroupedEntries([snapshot], max_parallelism)

    def pieces(self, group: int) -> Iterator[_Rows]:
        """Yield the timers of a key group, some at a time."""
        for _, rows in self._groups.pieces(group):
            yield [(timestamp, key, namespace) for key, namespace, timestamp in rows]

    def __iter__(self) -> Iterator[int]:
        return iter(self._groups)
