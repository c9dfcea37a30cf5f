"""Nothing is lost and nothing appears, whatever happens in whatever order."""

from __future__ import annotations

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aiomailbox.errors import InsufficientBuffersError, OverdraftCeilingError
from aiomailbox.memory.buffer import MemorySegment
from aiomailbox.memory.local_pool import LocalBufferPool, NetworkBufferPool

TOTAL = 12
CHANNELS = 2
Lent = tuple[LocalBufferPool, MemorySegment, int | None]


class _Taker:
    """A listener that keeps what it gets, as one more holder."""

    def __init__(self, pool: LocalBufferPool, lent: list[Lent]) -> None:
        self.pool = pool
        self.lent = lent

    def on_buffer_available(self, segment: MemorySegment) -> bool:
        self.lent.append((self.pool, segment, None))
        return True

    def on_pool_destroyed(self) -> None:
        pass


class PoolMachine(RuleBasedStateMachine):
    """Requests, recycles, resizes and destroys, checking the sums after each."""

    def __init__(self) -> None:
        super().__init__()
        self.network = NetworkBufferPool(TOTAL)
        self.live: list[LocalBufferPool] = []
        self.every: list[LocalBufferPool] = []
        self.lent: list[Lent] = []
        self.unpooled: list[list[MemorySegment]] = []

    @rule(
        required=st.integers(1, 4),
        headroom=st.none() | st.integers(0, 6),
        quota=st.none() | st.integers(1, 3),
        overdraft=st.integers(0, 3),
    )
    def create(
        self, required: int, headroom: int | None, quota: int | None, overdraft: int
    ) -> None:
        try:
            pool = self.network.create_local_pool(
                required,
                None if headroom is None else required + headroom,
                subpartitions=CHANNELS,
                per_channel_max=quota,
                overdraft_max=overdraft,
                overdraft_ceiling=3,
            )
        except InsufficientBuffersError:
            return
        self.live.append(pool)
        self.every.append(pool)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), channel=st.none() | st.integers(0, 1), elastic=st.booleans())
    def request(self, data: st.DataObject, channel: int | None, elastic: bool) -> None:
        pool = data.draw(st.sampled_from(self.live))
        try:
            segment = (
                pool.request_elastic(channel) if elastic else pool.try_request(channel)
            )
        except OverdraftCeilingError:
            assert pool.statistics().elastic == 3
            return
        if segment is not None:
            self.lent.append((pool, segment, channel))

    @precondition(lambda self: self.lent)
    @rule(data=st.data())
    def recycle(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.lent) - 1))
        pool, segment, channel = self.lent.pop(index)
        pool.recycle(segment, channel)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def listen(self, data: st.DataObject) -> None:
        pool = data.draw(st.sampled_from(self.live))
        pool.add_listener(_Taker(pool, self.lent))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def destroy(self, data: st.DataObject) -> None:
        pool = data.draw(st.sampled_from(self.live))
        self.live.remove(pool)
        pool.lazy_destroy()

    @rule(count=st.integers(0, 4))
    def take_unpooled(self, count: int) -> None:
        try:
            segments = self.network.try_request_unpooled(count)
        except InsufficientBuffersError:
            return
        if segments is not None:
            self.unpooled.append(segments)

    @precondition(lambda self: self.unpooled)
    @rule()
    def return_unpooled(self) -> None:
        self.network.recycle_unpooled(self.unpooled.pop())

    @invariant()
    def every_segment_is_in_one_place(self) -> None:
        statistics = [pool.statistics() for pool in self.every]
        requested = sum(one.requested for one in statistics)
        unpooled = sum(map(len, self.unpooled))
        assert self.network.available_segments + requested + unpooled == TOTAL
        elastic = sum(one.elastic for one in statistics)
        used = sum(one.used for one in statistics)
        assert used + elastic == len(self.lent)
        assert len({id(segment) for _, segment, _ in self.lent}) == len(self.lent)

    @invariant()
    def channels_are_counted(self) -> None:
        for pool in self.every:
            counted = [0] * CHANNELS
            for holder, _, channel in self.lent:
                if holder is pool and channel is not None:
                    counted[channel] += 1
            assert pool.statistics().used_by_channel == tuple(counted)

    @invariant()
    def sizes_are_promises_that_can_be_kept(self) -> None:
        unpooled = sum(map(len, self.unpooled))
        assert sum(pool.size for pool in self.live) + unpooled <= TOTAL

    @invariant()
    def availability_is_true_to_what_a_request_would_find(self) -> None:
        for pool in self.live:
            now = pool.statistics()
            quota = pool.options.per_channel_max
            blocked = quota is not None and max(now.used_by_channel) >= quota
            over = now.elastic > 0 and now.used + now.elastic >= now.size
            assert pool.available == (now.idle > 0 and not blocked and not over)
            assert now.idle == 0 or now.requested <= now.size

    @invariant()
    def nobody_waits_while_a_segment_could_be_had(self) -> None:
        for pool in self.live:
            now = pool.statistics()
            below = now.used + now.elastic < now.size and now.requested < now.size
            if now.waiting or not now.idle:
                over = now.elastic > 0 and now.used + now.elastic >= now.size
                assert now.idle == 0 or over
                assert not (below and self.network.available_segments)

    def teardown(self) -> None:
        for pool in self.live:
            pool.lazy_destroy()
        while self.lent:
            pool, segment, channel = self.lent.pop()
            pool.recycle(segment, channel)
        while self.unpooled:
            self.network.recycle_unpooled(self.unpooled.pop())
        self.network.check_leaks()
        assert self.network.available_segments == TOTAL


TestPoolConservation = PoolMachine.TestCase
TestPoolConservation.settings = settings(max_examples=60, stateful_step_count=40)
