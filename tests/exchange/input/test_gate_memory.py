"""A gate with remote channels: the segments it takes, the sizes it wishes for."""

from __future__ import annotations

from typing import Any

import pytest

from aiomailbox.exchange.remote.channel import (
    DebloatingGate,
    GateBuffers,
    RemoteInputChannel,
)
from aiomailbox.exchange.remote.handshake import PeerAddress
from aiomailbox.ids import PartitionId, TaskId, VertexId
from aiomailbox.memory.debloat import DebloatOptions
from aiomailbox.memory.local_pool import NetworkBufferPool
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.run_columns import PythonSerializer
from aiomailbox.testing import ManualClock

OPTIONS = DebloatOptions(samples=1, size_bytes_min=1, size_bytes_max=32_768)


class Link:
    """Keeps what is wished for; says nothing to anybody."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def announce_buffer_size(self, size_bytes: int) -> None:
        self.sizes.append(size_bytes)

    def announce_credit(self) -> None: ...

    def close(self) -> None: ...


class Readers:
    """A gate of remote channels, and what was said on their links."""

    def __init__(self, clock: ManualClock, channels: int) -> None:
        self.links: list[Link] = []
        self.clock = clock
        memory = NetworkBufferPool(64, segment_size_bytes=32)
        buffers = GateBuffers(memory, channels)
        codec = ElementCodec(PythonSerializer())
        self.gate = DebloatingGate(
            [
                RemoteInputChannel(
                    self,
                    PeerAddress("127.0.0.1", 1),
                    PartitionId(TaskId(VertexId(number), 0, 0), 0),
                    0,
                    buffers,
                    codec,
                )
                for number in range(channels)
            ],
            OPTIONS,
            clock=clock,
        )
        self.gate.request_partitions()
        self.gate.on_data()

    def request(self, *_: Any) -> Any:
        self.links.append(Link())
        return self.links[-1]

    def read(self, size_bytes: int) -> None:
        """Let every channel read so many bytes."""
        for channel in self.gate.channels:
            channel._reader.bytes_total += size_bytes

    @property
    def sizes(self) -> list[list[int]]:
        return [link.sizes for link in self.links]


def test_net_121_a_channel_takes_its_own_segments_and_the_gate_one_to_lend() -> None:
    memory = NetworkBufferPool(16)
    buffers = GateBuffers(memory, 1)
    assert memory.available_segments == 16 - (2 + 1)
    channel = buffers.claim(lambda: None)
    assert channel.available == 2
    # Up to eight segments can be borrowed.
    channel.on_sender_backlog(100)
    assert channel.available == 2 + 8
    channel.release()
    buffers.close()
    assert memory.available_segments == 16


async def test_all_channels_of_a_gate_are_told_the_same_size() -> None:
    """MB-73."""
    clock = ManualClock()
    readers = Readers(clock, 3)
    readers.read(1000)
    clock.advance(1)
    assert readers.gate.recalculate() == 3000
    assert readers.sizes == [[3000]] * 3
    readers.gate.close()


async def test_each_gate_has_a_size_of_its_own() -> None:
    """MB-74."""
    clock = ManualClock()
    fast, slow = Readers(clock, 2), Readers(clock, 2)
    fast.read(4000)
    slow.read(100)
    clock.advance(1)
    for readers in (fast, slow):
        readers.gate.recalculate()
    assert fast.sizes == [[8000]] * 2
    assert slow.sizes == [[200]] * 2
    for readers in (fast, slow):
        readers.gate.close()


@pytest.mark.parametrize(("backlogs", "size"), [((0, 0), 8000), ((1, 3), 2000)])
async def test_the_buffers_of_all_channels_share_what_is_in_flight(
    backlogs: tuple[int, int], size: int
) -> None:
    """NET-129."""
    clock = ManualClock()
    readers = Readers(clock, 2)
    for channel, backlog in zip(readers.gate.channels, backlogs, strict=True):
        assert isinstance(channel, RemoteInputChannel)
        channel.on_sender_backlog(backlog)
        assert channel.buffers_in_use == backlog
    readers.read(4000)
    clock.advance(1)
    assert readers.gate.recalculate() == size
    readers.gate.close()
