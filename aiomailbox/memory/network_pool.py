"""The process-wide pool of segments that all local pools share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from aiomailbox.availability import Availability
from aiomailbox.errors import (
    BufferRecycledError,
    IllegalStateError,
    InsufficientBuffersError,
    InvalidArgumentError,
    PoolDestroyedError,
)
from aiomailbox.memory.buffer import (
    DEFAULT_SEGMENT_SIZE_BYTES,
    MemoryArena,
    MemorySegment,
)
from aiomailbox.memory.local_pool import (
    DEFAULT_OVERDRAFT_CEILING,
    LocalBufferPool,
    LocalPoolOptions,
)

# How many segments each local pool may have (pure).


class Demand(NamedTuple):
    """What one pool must have, and what it could use at most (None: any number)."""

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
    def used_segments(self) -> int:
        """Segments that a local pool or an unpooled request holds."""
        return self.total_segments - self.available_segments

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
            required_segments: What the share always has, at least 1.
            segments_max: What it may grow to; None for no limit.
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
        self._charge_unpooled(count)
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
        self._put_back(segments)
        self._uncharge(len(segments))

    def _put_back(self, segments: list[MemorySegment]) -> None:
        for segment in segments:
            segment.lender = None
        if self._destroyed:
            return
        self._free.extend(segments)
        if segments and not self.availability.available:
            self.availability.set_available()

    def _charge_unpooled(self, count: int) -> None:
        if count < 0:
            raise InvalidArgumentError("count", f"{count} is negative")
        self._check_alive()
        self._charge(count)
        self._redistribute()

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

        Args:
            new: The pool that has just been created, if one has.
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
