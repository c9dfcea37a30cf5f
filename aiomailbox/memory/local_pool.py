"""The permits of one task's output (or of one gate), taken from the global pool.

Theory of operation: the pool keeps one idle segment ahead, so that "available" can be
answered by looking at a flag. It is available exactly while a segment is idle, no
channel is at its quota, and no more segments are out than the pool's size. A record
that is being emitted cannot wait: `LocalBufferPool.request_elastic` always answers,
counts what goes beyond the pool, and the pool stays unavailable until it has drained.

Everything here runs on one loop and never suspends in the middle of a change: state
is changed first, listeners and availability callbacks are called afterwards.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from aiomailbox.availability import Availability
from aiomailbox.errors import (
    BufferRecycledError,
    IllegalStateError,
    InsufficientBuffersError,
    InvalidArgumentError,
    OverdraftCeilingError,
    PoolDestroyedError,
)
from aiomailbox.memory.buffer import (
    DEFAULT_SEGMENT_SIZE_BYTES,
    MemoryArena,
    MemorySegment,
)

# How a local pool behaves, and what it says about itself.


# Far above what one record emits, far below what would exhaust a process.
DEFAULT_OVERDRAFT_CEILING: Final = 1_000


@dataclass(frozen=True, slots=True)
class LocalPoolOptions:
    """How one local pool behaves; `NetworkBufferPool.create_local_pool` explains."""

    required_segments: int
    segments_max: int | None = None
    owner: str = ""
    subpartitions: int = 0
    per_channel_max: int | None = None
    overdraft_max: int = 0
    overdraft_ceiling: int = DEFAULT_OVERDRAFT_CEILING

    def __post_init__(self) -> None:
        if self.required_segments < 1:
            raise InvalidArgumentError(
                "required_segments", f"{self.required_segments} is less than 1"
            )
        if self.segments_max is not None and self.segments_max < self.required_segments:
            raise InvalidArgumentError(
                "segments_max",
                f"{self.segments_max} is less than the {self.required_segments} "
                "required segments",
            )
        for name in ("subpartitions", "overdraft_max", "overdraft_ceiling"):
            if getattr(self, name) < 0:
                raise InvalidArgumentError(name, f"{getattr(self, name)} is negative")
        if self.per_channel_max is not None and self.per_channel_max < 1:
            raise InvalidArgumentError(
                "per_channel_max", f"{self.per_channel_max} is less than 1"
            )


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """A snapshot of a local pool, all in segments.

    ``used`` counts what is lent out of the pool's own; ``overdraft`` is how many of
    those exceed its size; ``elastic`` is lent out beyond all of them.
    """

    owner: str
    size: int
    requested: int
    idle: int
    used: int
    overdraft: int
    elastic: int
    waiting: int
    available: bool
    used_by_channel: tuple[int, ...]


# How many segments each channel holds, and how many channels are at their quota.


class ChannelQuota:
    """A soft bound per channel: it decides about availability, not about grants.

    Args:
        channels: Number of channels that are counted.
        per_channel_max: Segments that put a channel at its quota; None for no quota.

    Invariants:
        ``at_quota`` is the number of channels with ``used >= per_channel_max``.

    Example:
        >>> quota = ChannelQuota(2, 1)
        >>> quota.count_up(0)
        >>> quota.at_quota
        1
    """

    def __init__(self, channels: int, per_channel_max: int | None) -> None:
        self._per_channel_max = per_channel_max
        self.used: list[int] = [0] * channels
        self.at_quota: int = 0

    def count_up(self, channel: int | None) -> None:
        """Count one more segment for a channel; None counts for none."""
        if channel is not None:
            used = self.used[channel] + 1
            self.used[channel] = used
            if used == self._per_channel_max:
                self.at_quota += 1

    def count_down(self, channel: int | None) -> None:
        """Count one segment less for a channel; None counts for none."""
        if channel is not None:
            used = self.used[channel]
            self.used[channel] = used - 1
            if used == self._per_channel_max:
                self.at_quota -= 1


# Waiters for one segment of a local pool, served in the order they came.


class BufferListener(Protocol):
    """A waiter for the next idle segment of a local pool, notified once.

    Concept:
        Flink, ``BufferListener``.
    """

    def on_buffer_available(self, segment: MemorySegment) -> bool:
        """Take the segment, or return False to leave it to the next in line."""

    def on_pool_destroyed(self) -> None:
        """Learn that no segment will come."""


class LocalBufferPool:
    """A share of the global pool, with overdraft, a per-channel quota and waiters.

    Made by `NetworkBufferPool.create_local_pool`. Loop-local: all methods belong to
    the loop's thread.

    Invariants:
        ``idle + lent == requested``; requested is what the global pool counts as
        taken by this one. Elastic segments are counted apart.

    Concept:
        Flink, ``LocalBufferPool``.
    """

    def __init__(
        self,
        source: NetworkBufferPool,
        options: LocalPoolOptions,
        on_destroyed: Callable[[LocalBufferPool], None],
    ) -> None:
        self.options: LocalPoolOptions = options
        self.size: int = options.required_segments
        self.overdraft_max: int = options.overdraft_max
        self.availability: Availability = Availability()
        self._source = source
        self._on_destroyed = on_destroyed
        self._idle: list[MemorySegment] = []
        self._requested = 0
        self._elastic = 0
        self._quota = ChannelQuota(options.subpartitions, options.per_channel_max)
        self._listeners: deque[BufferListener] = deque()
        self._recyclers: dict[int | None, Callable[[MemorySegment], None]] = {}
        self._awaiting_source = False
        self._destroyed = False
        self._settle()

    @property
    def available(self) -> bool:
        """Whether a request would be granted within size and quotas."""
        return self.availability.available

    @property
    def owner(self) -> str:
        """Whose pool this is, for messages."""
        return self.options.owner

    @property
    def is_destroyed(self) -> bool:
        """Whether `lazy_destroy` was called."""
        return self._destroyed

    @property
    def outstanding(self) -> int:
        """Segments that are lent out, elastic ones included."""
        return self._requested - len(self._idle) + self._elastic

    def try_request(self, channel: int | None = None) -> MemorySegment | None:
        """Return a segment if the pool, or its overdraft, has one now.

        The quota of a channel decides about availability only: a channel over its
        quota is still granted a segment.

        Args:
            channel: Subpartition to count the segment for, None for none.

        Returns:
            The segment, or None if the caller must wait.

        Raises:
            PoolDestroyedError: If the pool was destroyed.

        Cost:
            No allocation.
        """
        if self._destroyed:
            raise self._destroyed_error()
        idle = self._idle
        # What was lent beyond the pool counts against it until it has drained.
        if self._elastic and self.outstanding >= self.size:
            return None
        if idle:
            segment = idle.pop()
        else:
            # Overdraft begins at the size. Below it nothing idle means that the global
            # pool has nothing either, and is waited for.
            if not 0 <= self._requested - self.size < self.overdraft_max:
                return None
            taken = self._source.try_take()
            if taken is None:
                return None
            self._requested += 1
            segment = taken
        segment.lender = self
        if channel is not None:
            self._quota.count_up(channel)
        # Else the flag cannot have changed: there is one idle still, and no quota was
        # hit.
        if not idle or self._quota.at_quota or self._elastic:
            self._refresh()
        return segment

    def request_elastic(self, channel: int | None = None) -> MemorySegment:
        """Return a segment in any case: ordinary, overdraft, or beyond the pool.

        For a record that is being emitted, whose operator cannot wait. Before the
        next record, the producer waits for `availability`.

        Args:
            channel: Subpartition to count the segment for, None for none.

        Raises:
            OverdraftCeilingError: If as many segments as the ceiling allows are out
                beyond the pool.
            PoolDestroyedError: If the pool was destroyed.
        """
        segment = self.try_request(channel)
        if segment is not None:
            return segment
        # Refused above only because elastic ones are out: no reason to make one more.
        if self._idle:
            segment = self._idle.pop()
        elif self._elastic < self.options.overdraft_ceiling:
            segment = self._source.extra_segment()
            self._elastic += 1
        else:
            raise OverdraftCeilingError(
                f"the buffer pool of {self.owner!r} has lent "
                f"{self._elastic} segments beyond its size of {self.size}, which is "
                "its overdraft ceiling. Emit less for each record (a generator "
                "flat_map is paused between its items), or pass content by reference."
            )
        segment.lender = self
        self._quota.count_up(channel)
        self._refresh()
        return segment

    def recycle(self, segment: MemorySegment, channel: int | None = None) -> None:
        """Take a segment back, for the next waiter.

        Args:
            segment: A segment that this pool lent out.
            channel: The channel it was requested for.

        Raises:
            BufferRecycledError: If this pool has not lent the segment out, or has it
                back already.
        """
        if segment.lender is not self:
            raise BufferRecycledError(
                f"segment {segment.index} is not lent out by the pool of "
                f"{self.owner!r}; was it recycled twice?"
            )
        segment.lender = None
        if channel is not None:
            self._quota.count_down(channel)
        # Elastic ones are not lent again: their memory was made for one record.
        if segment.elastic:
            self._elastic -= 1
            segment.free()
        elif self._destroyed or self._requested > self.size:
            self._return(segment)
            return
        else:
            self._idle.append(segment)
        if self._listeners or not self.availability.available:
            self._settle()

    def recycler(self, channel: int | None = None) -> Callable[[MemorySegment], None]:
        """Return ``recycle`` bound to a channel; always the same object per channel."""
        recycler = self._recyclers.get(channel)
        if recycler is None:
            recycler = functools.partial(self.recycle, channel=channel)
            self._recyclers[channel] = recycler
        return recycler

    def add_listener(self, listener: BufferListener) -> bool:
        """Queue for the next idle segment, whatever makes it idle; one-shot.

        Returns:
            False if a segment is idle (request it instead) or the pool is destroyed.
        """
        if self._destroyed or self._may_lend_idle():
            return False
        self._listeners.append(listener)
        return True

    def resize(self, segments: int) -> None:
        """Set the pool's size; lent segments beyond it drain as they are recycled.

        Args:
            segments: The new size, capped at the pool's maximum.

        Raises:
            InvalidArgumentError: If it is less than the pool requires.
        """
        required, maximum = self.options.required_segments, self.options.segments_max
        if segments < required:
            raise InvalidArgumentError(
                "segments", f"{segments} is less than the required {required}"
            )
        self.size = segments if maximum is None else min(segments, maximum)
        # What is lent out beyond the new size cannot be taken back; it drains.
        while self._idle and self._requested > self.size:
            self._return(self._idle.pop())
        if not self._destroyed:
            self._settle()

    def lazy_destroy(self) -> None:
        """Stop lending; lent segments return to the global pool when recycled.

        Waiters are failed, and availability turns true so that a sleeper
        on it wakes up and learns the same. Idempotent.
        """
        if self._destroyed:
            return
        self._destroyed = True
        while self._idle:
            self._return(self._idle.pop())
        # Taken away first: a listener that asks again must be refused, not queued.
        listeners, self._listeners = self._listeners, deque()
        for listener in listeners:
            listener.on_pool_destroyed()
        # A sleeper cannot be interrupted, as Flink's threads can.
        self.availability.set_available()
        self._on_destroyed(self)

    def statistics(self) -> PoolStatistics:
        """Return a snapshot for metrics and for messages."""
        idle = len(self._idle)
        return PoolStatistics(
            owner=self.owner,
            size=self.size,
            requested=self._requested,
            idle=idle,
            used=self._requested - idle,
            overdraft=max(0, self._requested - self.size),
            elastic=self._elastic,
            waiting=len(self._listeners),
            available=self.availability.available,
            used_by_channel=tuple(self._quota.used),
        )

    def _may_lend_idle(self) -> bool:
        within = not self._elastic or self.outstanding < self.size
        return bool(self._idle) and within

    def _return(self, segment: MemorySegment) -> None:
        self._requested -= 1
        self._source.give_back(segment)

    def _prefetch(self) -> bool:
        segment = self._source.try_take()
        if segment is None:
            return False
        self._requested += 1
        self._idle.append(segment)
        return True

    def _refill(self) -> None:
        """Keep one segment idle while the pool is below its size."""
        # "Available" is answered by a flag, so one is kept idle: an availability that
        # had to ask the global pool would be asked per record.
        if self._idle or self.outstanding >= self.size or self._requested >= self.size:
            return
        if not self._prefetch() and not self._awaiting_source:
            self._awaiting_source = True
            # Registered once: a callback per refused request would pile up.
            self._source.availability.on_available(self._on_source_available)

    def _on_source_available(self) -> None:
        self._awaiting_source = False
        if not self._destroyed:
            self._settle()

    def _refresh(self) -> None:
        """Prefetch if nothing is idle, then make the availability flag true to it."""
        self._refill()
        available = self._may_lend_idle() and not self._quota.at_quota
        if available != self.availability.available:
            if available:
                self.availability.set_available()
            else:
                self.availability.reset()

    def _settle(self) -> None:
        """Serve the waiters, oldest first, then refresh the availability."""
        self._refill()
        # Whatever makes one idle serves the waiters. Flink does so only when one is
        # recycled, and waiters hung while one came from another place
        # (FLINK-24035).
        while self._listeners and self._may_lend_idle():
            listener = self._listeners.popleft()
            segment = self._idle.pop()
            segment.lender = self
            if not listener.on_buffer_available(segment):
                segment.lender = None
                self._idle.append(segment)
            self._refill()
        if not self._destroyed:
            self._refresh()

    def _destroyed_error(self) -> PoolDestroyedError:
        return PoolDestroyedError(f"the buffer pool of {self.owner!r} was destroyed")


# The process-wide pool of segments that all local pools share.


# How many segments each local pool may have (pure).


class Demand(NamedTuple):
    """The segments that one pool needs, and its maximum (None: any number)."""

    required: int
    maximum: int | None

    @property
    def is_resizable(self) -> bool:
        """Whether the pool could use more than it must have."""
        return self.maximum is None or self.maximum > self.required


def redistribute(spare: int, demands: Sequence[Demand]) -> list[int]:
    """Share spare segments in proportion to how many more each pool could use.

    Rounding goes by running sums, so that no segment is lost; which pool gets a
    remainder depends on the order of the pools only.

    Args:
        spare: Segments that no pool requires, at least 0.
        demands: Shape ``(n,)``, in order of creation.

    Returns:
        The size of each pool, shape ``(n,)``.

    Invariants:
        ``required <= size <= maximum`` for each pool, and the sizes add up to at most
        ``spare`` more than the requirements.

    Concept:
        Flink 2.3, ``NetworkBufferPool.redistributeBuffers``, there in hash-set order.

    Example:
        >>> redistribute(25, [Demand(5, 12), Demand(9, 24), Demand(17, 40)])
        [8, 18, 30]
    """
    headrooms = [_headroom(spare, demand) for demand in demands]
    shares = _shares(min(spare, sum(headrooms)), headrooms)
    return [
        demand.required + share for demand, share in zip(demands, shares, strict=True)
    ]


def _headroom(spare: int, demand: Demand) -> int:
    if demand.maximum is None:
        return spare
    return min(spare, demand.maximum - demand.required)


def _shares(distributable: int, headrooms: list[int]) -> Iterator[int]:
    total, used, given = sum(headrooms), 0, 0
    for headroom in headrooms:
        used += headroom
        share = distributable * used // total - given if total else 0
        given += share
        yield share


class PoolLeak(NamedTuple):
    """Segments that a destroyed pool has not got back."""

    owner: str
    segments: int
    by_channel: tuple[int, ...]


class NetworkBufferPool:
    """A fixed number of segments, shared out to local pools.

    Loop-local: all methods belong to the loop's thread. No memory is mapped until a
    segment is asked for its bytes.

    Args:
        total_segments: Number of segments, at least 1.
        segment_size_bytes: Size of each segment.

    Raises:
        InvalidArgumentError: If a number is not positive.

    Invariants:
        ``free + requested by local pools + unpooled == total_segments``.

    Concept:
        Flink, ``NetworkBufferPool``.

    Example:
        >>> network = NetworkBufferPool(total_segments=10)
        >>> output = network.create_local_pool(2, owner="map", overdraft_max=1)
        >>> segment = output.try_request()
        >>> output.recycle(segment)
        >>> output.available, output.size
        (True, 10)
    """

    def __init__(
        self,
        total_segments: int,
        segment_size_bytes: int = DEFAULT_SEGMENT_SIZE_BYTES,
    ) -> None:
        for name, value in (
            ("total_segments", total_segments),
            ("segment_size_bytes", segment_size_bytes),
        ):
            if value <= 0:
                raise InvalidArgumentError(name, f"{value} is not positive")
        self.segment_size_bytes = segment_size_bytes
        self.availability: Availability = Availability(available=True)
        self.arena: MemoryArena = MemoryArena(total_segments, segment_size_bytes)
        self._total = total_segments
        # Last in, first out: byte buffers keep to the pages that are already backed.
        self._free = [
            MemorySegment(segment_size_bytes, self.arena, index)
            for index in reversed(range(total_segments))
        ]
        self._required = 0
        # Dicts remember the order of creation; the second one is a set.
        self._pools: dict[LocalBufferPool, Demand] = {}
        self._draining: dict[LocalBufferPool, None] = {}
        self._draining_max = 16
        # Sums over the pools: redistributing all for each of a thousand new ones would
        # take seconds.
        self._unbounded = 0
        self._headroom = 0
        self._all_at_maximum = True
        self._destroyed = False

    @property
    def total_segments(self) -> int:
        """Segments of this pool; 0 once it is destroyed."""
        return 0 if self._destroyed else self._total

    @property
    def available_segments(self) -> int:
        """Segments without a holder."""
        return 0 if self._destroyed else len(self._free)

    @property
    def local_pools(self) -> list[LocalBufferPool]:
        """The live local pools in order of creation."""
        return list(self._pools)

    def create_local_pool(
        self,
        required_segments: int,
        segments_max: int | None = None,
        *,
        owner: str = "",
        subpartitions: int = 0,
        per_channel_max: int | None = None,
        overdraft_max: int = 0,
        overdraft_ceiling: int | None = None,
    ) -> LocalBufferPool:
        """Create a share of this pool.

        Args:
            required_segments: The segments that the share always has, at least 1.
            segments_max: The maximum number of segments; None for no limit.
            owner: Whose it is, for messages and leak reports.
            subpartitions: Number of channels that are counted.
            per_channel_max: Quota: a channel that holds this many makes the pool
                unavailable; None for no quota.
            overdraft_max: Segments that may be requested beyond the size.
            overdraft_ceiling: Segments that one record may take beyond everything
                else; None for the default of 1,000.

        Raises:
            InsufficientBuffersError: If fewer segments than required are not yet
                promised to others.
            PoolDestroyedError: If this pool was destroyed.
        """
        self._check_alive()
        ceiling = overdraft_ceiling
        options = LocalPoolOptions(
            required_segments=required_segments,
            segments_max=segments_max,
            owner=owner,
            subpartitions=subpartitions,
            per_channel_max=per_channel_max,
            overdraft_max=overdraft_max,
            overdraft_ceiling=DEFAULT_OVERDRAFT_CEILING if ceiling is None else ceiling,
        )
        self._charge(required_segments)
        pool = LocalBufferPool(self, options, self.destroy_local_pool)
        self._pools[pool] = demand = Demand(required_segments, segments_max)
        self._sum_up(demand, 1)
        self._redistribute(pool)
        return pool

    def destroy_local_pool(self, pool: LocalBufferPool) -> None:
        """Destroy a local pool and share out what it required. Idempotent."""
        if pool not in self._pools:
            return
        self._sum_up(self._pools.pop(pool), -1)
        self._required -= pool.options.required_segments
        pool.lazy_destroy()
        if pool.outstanding:
            self._keep_draining(pool)
        self._redistribute()

    def destroy_all_local_pools(self) -> None:
        """Destroy every local pool; this pool stays usable."""
        for pool in self.local_pools:
            pool.lazy_destroy()

    def leaks(self) -> list[PoolLeak]:
        """Return which destroyed pools have not got all their segments back."""
        return [
            PoolLeak(pool.owner, pool.outstanding, pool.statistics().used_by_channel)
            for pool in self._draining
            if pool.outstanding
        ]

    def check_leaks(self) -> None:
        """Check that every destroyed pool has its segments back.

        Raises:
            IllegalStateError: If one has not; names the owners.
        """
        leaks = self.leaks()
        if leaks:
            owners = ", ".join(f"{leak.owner!r}: {leak.segments}" for leak in leaks)
            raise IllegalStateError(
                f"segments were not recycled by their owners ({owners}). "
                "Recycle every buffer that was requested."
            )

    def destroy(self) -> None:
        """Free all idle segments and refuse new pools. Idempotent."""
        if self._destroyed:
            return
        self._destroyed = True
        for segment in self._free:
            segment.free()
        self._free.clear()
        self.availability.reset()

    def try_take(self) -> MemorySegment | None:
        """Take a free segment for a local pool, or None."""
        free = self._free
        if not free:
            return None
        segment = free.pop()
        if not free:
            # The latch is a hint for sleepers; the taker of the last one turns it off.
            self.availability.reset()
        return segment

    def give_back(self, segment: MemorySegment) -> None:
        """Return a segment of a local pool and wake a waiter for one."""
        if self._destroyed:
            segment.free()
            return
        self._free.append(segment)
        if not self.availability.available:
            self.availability.set_available()

    def extra_segment(self) -> MemorySegment:
        """Make a segment beyond the total, with memory of its own."""
        segment = MemorySegment(self.segment_size_bytes)
        segment.elastic = True
        return segment

    def try_request_unpooled(self, count: int) -> list[MemorySegment] | None:
        """Take segments out of all sharing, all at once or none.

        Args:
            count: Number of segments, at least 0.

        Returns:
            Shape ``(count,)``, or None if so many are not free now.

        Raises:
            InvalidArgumentError: If ``count`` is negative.
            InsufficientBuffersError: If fewer are not yet promised to others.
            PoolDestroyedError: If this pool was destroyed.
        """
        if count < 0:
            raise InvalidArgumentError("count", f"{count} is negative")
        self._check_alive()
        self._charge(count)
        self._redistribute()
        if len(self._free) < count:
            self._uncharge(count)
            return None
        taken: list[MemorySegment] = []
        while len(taken) < count and (segment := self.try_take()) is not None:
            segment.lender = self
            taken.append(segment)
        return taken

    def recycle_unpooled(self, segments: list[MemorySegment]) -> None:
        """Return segments that an unpooled request gave.

        Raises:
            BufferRecycledError: If one of them is not out.
        """
        for segment in segments:
            if segment.lender is not self:
                raise BufferRecycledError(
                    f"segment {segment.index} is not an unpooled segment that is out"
                )
        for segment in segments:
            segment.lender = None
            self.give_back(segment)
        self._uncharge(len(segments))

    def _charge(self, count: int) -> None:
        unpromised = self._total - self._required
        if count > unpromised:
            raise InsufficientBuffersError(
                f"Insufficient number of network buffers: required {count}, but only "
                f"{unpromised} available. The total number of network buffers is "
                f"currently set to {self._total} of {self.segment_size_bytes} bytes "
                "each. Raise total_segments, or run fewer tasks in this process."
            )
        self._required += count

    def _uncharge(self, count: int) -> None:
        self._required -= count
        self._redistribute()

    def _sum_up(self, demand: Demand, sign: int) -> None:
        if demand.maximum is None:
            self._unbounded += sign
        else:
            self._headroom += sign * (demand.maximum - demand.required)

    def _keep_draining(self, pool: LocalBufferPool) -> None:
        draining = self._draining
        draining[pool] = None
        # Looked through only when it has doubled, so each pool costs a constant.
        if len(draining) > self._draining_max:
            draining = {pool: None for pool in draining if pool.outstanding}
            self._draining = draining
            self._draining_max = 16 + 2 * len(draining)

    def _redistribute(self, new: LocalBufferPool | None = None) -> None:
        """Resize every pool that can be: to its share, in order of creation.

        Where each can have its maximum, only those are touched that have not.
        """
        spare = self._total - self._required
        if not self._unbounded and self._headroom <= spare:
            added = [] if new is None else [new]
            for pool in added if self._all_at_maximum else list(self._pools):
                maximum = self._pools[pool].maximum
                assert maximum is not None, "none is unbounded"
                pool.resize(maximum)
            self._all_at_maximum = True
            return
        self._all_at_maximum = False
        sharing = [one for one in self._pools.items() if one[1].is_resizable]
        sizes = redistribute(spare, [demand for _, demand in sharing])
        for (pool, _), size in zip(sharing, sizes, strict=True):
            pool.resize(size)

    def _check_alive(self) -> None:
        if self._destroyed:
            raise self._destroyed_error()

    def _destroyed_error(self) -> PoolDestroyedError:
        return PoolDestroyedError("the network buffer pool was destroyed")
