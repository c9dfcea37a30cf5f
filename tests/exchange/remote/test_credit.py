"""Credit: the traces that Flink's tests record, and the sum that always holds."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, strategies as st

from aiomailbox.errors import IllegalStateError
from aiomailbox.exchange.remote.credit import ChannelBuffers, SenderCredit
from aiomailbox.memory.buffer import DataType, MemorySegment, NetworkBuffer
from aiomailbox.memory.local_pool import LocalBufferPool, NetworkBufferPool


class Channel:
    """A manager with its exclusive segments and a pool of floating ones."""

    def __init__(self, exclusive: int, pool: LocalBufferPool) -> None:
        self.returned: list[MemorySegment] = []
        self.told = 0
        self.pool = pool
        self.manager = ChannelBuffers(
            pool,
            [MemorySegment(32) for _ in range(exclusive)],
            on_credit=self._tell,
            return_exclusive=self.returned.extend,
        )

    def _tell(self) -> None:
        self.told += 1

    @property
    def counts(self) -> tuple[int, int, bool]:
        manager = self.manager
        return manager.available, manager.required, manager.is_waiting

    def take(self) -> NetworkBuffer:
        buffer = self.manager.request_buffer()
        assert buffer is not None
        return buffer


def pool_of(floating: int) -> LocalBufferPool:
    return NetworkBufferPool(64, segment_size_bytes=32).create_local_pool(
        floating, floating, owner="gate"
    )


def idle(pool: LocalBufferPool) -> int:
    return pool.size - pool.outstanding


def with_buffers_out(
    floating: int, backlog: int
) -> tuple[Channel, NetworkBuffer, list[NetworkBuffer]]:
    """Two own buffers and fourteen to borrow; one, and some of these, are out."""
    channel = Channel(2, pool_of(14))
    exclusive = channel.take()
    channel.manager.on_sender_backlog(backlog)
    borrowed = [channel.take() for _ in range(floating)]
    channel.manager.on_sender_backlog(backlog)
    return channel, exclusive, borrowed


def test_with_less_than_is_required_everything_that_returns_is_kept() -> None:
    """NET-146."""
    channel, exclusive, floating = with_buffers_out(2, backlog=14)
    assert channel.counts == (13, 16, True)
    channel.manager.on_sender_backlog(16)
    assert channel.counts == (13, 18, True)
    exclusive.recycle()
    assert channel.counts == (14, 18, True)
    floating[0].recycle()
    assert channel.counts == (15, 18, True)
    channel.manager.on_sender_backlog(13)
    assert channel.counts == (15, 15, True)
    floating[1].recycle()
    assert (channel.counts, idle(channel.pool)) == ((15, 15, False), 1)
    channel.manager.on_sender_backlog(15)
    assert (channel.counts, idle(channel.pool)) == ((16, 17, True), 0)


def test_with_exactly_what_is_required_an_own_buffer_replaces_a_borrowed_one() -> None:
    """NET-147."""
    channel, exclusive, floating = with_buffers_out(1, backlog=12)
    assert (channel.counts, idle(channel.pool)) == ((14, 14, False), 0)
    floating[0].recycle()
    assert (channel.counts, idle(channel.pool)) == ((14, 14, False), 1)
    before = channel.manager.unannounced
    exclusive.recycle()
    assert (channel.counts, idle(channel.pool)) == ((14, 14, False), 2)
    assert channel.manager.available_exclusive == 2
    assert channel.manager.unannounced == before


def test_with_more_than_is_required_borrowed_buffers_go_back() -> None:
    """NET-148."""
    channel, exclusive, floating = with_buffers_out(1, backlog=12)
    channel.manager.on_sender_backlog(10)
    assert (channel.counts, idle(channel.pool)) == ((14, 12, False), 0)
    exclusive.recycle()
    assert (channel.counts, idle(channel.pool)) == ((14, 12, False), 1)
    floating[0].recycle()
    assert (channel.counts, idle(channel.pool)) == ((14, 12, False), 2)


def test_a_channel_without_own_buffers_lets_go_of_borrowed_ones_at_a_barrier() -> None:
    """NET-150."""
    pool = pool_of(16)
    own, none = Channel(2, pool), Channel(0, pool)
    for channel in (own, none):
        channel.manager.on_sender_backlog(2)
    assert (own.counts[:2], none.counts[:2]) == ((4, 4), (2, 2))
    for channel in (own, none):
        channel.manager.on_blocking_event()
    assert (own.counts[:2], none.counts[:2]) == ((4, 4), (0, 0))
    none.manager.on_resume()
    own.manager.on_resume()
    assert (own.manager.unannounced, none.manager.unannounced) == (2, 0)
    for channel in (own, none):
        channel.manager.on_sender_backlog(4)
    assert (own.counts[:2], none.counts[:2]) == ((6, 6), (4, 4))
    assert (own.manager.unannounced, none.manager.unannounced) == (4, 4)


def test_each_buffer_that_is_taken_lowers_what_is_required() -> None:
    """NET-151."""
    channel = Channel(2, pool_of(4))
    channel.manager.on_sender_backlog(2)
    required = []
    for _ in range(4):
        channel.take()
        required.append(channel.manager.required)
    assert required == [3, 2, 1, 0]
    assert channel.manager.request_buffer() is None
    assert channel.manager.required == 0


def test_what_the_producer_has_said_waits_beyond_the_own_buffers() -> None:
    """NET-156."""
    channel = Channel(2, pool_of(4))
    assert channel.manager.sender_backlog == 0
    channel.manager.on_sender_backlog(3)
    assert channel.manager.sender_backlog == 3


def test_credit_is_told_of_once_until_it_is_taken() -> None:
    channel = Channel(2, pool_of(4))
    first, second = channel.take(), channel.take()
    first.recycle()
    second.recycle()
    assert (channel.told, channel.manager.take_credit()) == (1, 2)
    assert channel.manager.take_credit() == 0


def test_release_gives_everything_back_even_what_returns_later() -> None:
    """NET-149."""
    channel, exclusive, floating = with_buffers_out(2, backlog=14)
    channel.manager.release()
    channel.manager.release()
    assert len(channel.returned) == 1
    exclusive.recycle()
    for buffer in floating:
        buffer.recycle()
    assert (len(channel.returned), channel.pool.outstanding) == (2, 0)
    channel.manager.on_sender_backlog(5)
    assert channel.manager.available == 0


def test_an_offer_that_nobody_waits_for_is_a_mistake() -> None:
    with pytest.raises(IllegalStateError, match="without waiting"):
        Channel(2, pool_of(2)).manager.on_buffer_available(MemorySegment(32))


def test_without_credit_only_events_may_be_sent() -> None:
    sender = SenderCredit(0)
    sender.on_sent(DataType.END_OF_PARTITION)
    with pytest.raises(IllegalStateError, match="without credit"):
        sender.on_sent(DataType.DATA_BUFFER)


def test_backlog_is_announced_only_where_no_credit_would_ever_come() -> None:
    sender = SenderCredit(0)
    assert sender.announces_backlog(3)
    assert not sender.announces_backlog(0)
    sender.add(2)
    assert not sender.announces_backlog(3)
    sender.on_resume()
    assert sender.available == 0
    assert not SenderCredit(2).announces_backlog(3)


class Link:
    """Both ends of a channel, and what is on the way between them."""

    def __init__(self, exclusive: int, floating: int) -> None:
        self.channel = Channel(exclusive, pool_of(max(1, floating)))
        self.sender = SenderCredit(exclusive)
        self.queued = 0
        self.credit: deque[int] = deque()
        self.data: deque[int] = deque()
        self.unread: deque[NetworkBuffer] = deque()

    def act(self, step: str) -> None:
        manager = self.channel.manager
        if step == "produce":
            self.queued += 1
        elif step == "send" and self.queued and self.sender.available:
            self.queued -= 1
            self.sender.on_sent(DataType.DATA_BUFFER)
            self.data.append(self.queued)
        elif step == "arrive" and self.data:
            self.unread.append(self.channel.take())
            manager.on_sender_backlog(self.data.popleft())
        elif step == "read" and self.unread:
            self.unread.popleft().recycle()
        elif step == "announce" and manager.unannounced:
            self.credit.append(manager.take_credit())
        elif step == "credit" and self.credit:
            self.sender.add(self.credit.popleft())
        elif step == "backlog" and self.sender.announces_backlog(self.queued):
            manager.on_sender_backlog(self.queued)

    @property
    def balances(self) -> bool:
        manager = self.channel.manager
        on_the_way = sum(self.credit) + len(self.data)
        return manager.available == (
            self.sender.available + manager.unannounced + on_the_way
        )


STEPS = ("produce", "send", "arrive", "read", "announce", "credit", "backlog")


@given(
    st.integers(0, 3), st.integers(1, 6), st.lists(st.sampled_from(STEPS), max_size=200)
)
def test_what_is_free_is_unannounced_or_granted_or_on_its_way(
    exclusive: int, floating: int, steps: list[str]
) -> None:
    """NET-183."""
    link = Link(exclusive, floating)
    for step in steps:
        link.act(step)
        assert link.balances


@given(
    st.integers(0, 3), st.integers(1, 6), st.lists(st.sampled_from(STEPS), max_size=100)
)
def test_everything_that_was_produced_arrives_in_the_end(
    exclusive: int, floating: int, steps: list[str]
) -> None:
    link = Link(exclusive, floating)
    for step in steps:
        link.act(step)
    for _ in range(200):
        for step in ("credit", "send", "arrive", "read", "announce", "backlog"):
            link.act(step)
    assert (link.queued, len(link.data), len(link.unread)) == (0, 0, 0)
