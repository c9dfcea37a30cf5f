"""NET-183: no credit is lost or made on a connection, whatever is on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings, strategies as st

from aiomailbox.exchange.remote import wire as m
from aiomailbox.exchange.remote.client import ClientConnection
from aiomailbox.exchange.remote.connection import ConnectionOptions
from aiomailbox.exchange.remote.handshake import (
    Handshake,
    PeerAddress,
    WorkerIdentity,
    partition_address,
)
from aiomailbox.exchange.remote.producer import ProducerConnection
from aiomailbox.exchange.remote.wire import WireDecoder
from aiomailbox.ids import PartitionId, TaskId, VertexId
from aiomailbox.records.events import CheckpointBarrier
from aiomailbox.testing import RecordingLog, virtual_time_loop_factory

JOB = b"j" * 16
SIZES = [1, 30, 5_000, 20_000, 32_768]


class Wire:
    """One direction: what was written waits until it is delivered, a few bytes a time.

    It is of none of asyncio's classes, as the transports of other loops (uvloop).
    """

    def __init__(self) -> None:
        self.protocol: Any = None
        self.receiver: Any = None
        self.written = bytearray()
        self.delivered = 0
        self.is_paused = False
        self._closed = False

    def get_extra_info(self, name: str) -> None:
        """There is no socket."""

    def get_write_buffer_size(self) -> int:
        # The kernel has taken all, unless it takes nothing.
        return len(self.written) - self.delivered if self.is_paused else 0

    def set_write_buffer_limits(
        self, high: int | None = None, low: int | None = None
    ) -> None:
        """Steps say when it pauses."""

    def write(self, data: Any) -> None:
        self.written += data

    def writelines(self, list_of_data: Any) -> None:
        for piece in list_of_data:
            self.written += piece

    def toggle(self) -> None:
        self.is_paused = not self.is_paused
        if self.is_paused:
            self.protocol.pause_writing()
        else:
            self.protocol.resume_writing()

    def deliver(self, size_bytes: int) -> None:
        rest = memoryview(bytes(self.written[self.delivered :][:size_bytes]))
        while rest:
            window = self.receiver.get_buffer(-1)
            count = min(len(window), len(rest))
            window[:count] = rest[:count]
            self.delivered += count
            self.receiver.buffer_updated(count)
            rest = rest[count:]

    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True

    def abort(self) -> None:
        if not self._closed:
            self._closed = True
            self.protocol.connection_lost(None)


class Frames:
    """What one end has written: every message, and where it begins to count."""

    def __init__(self) -> None:
        self.found: list[tuple[int, m.Message]] = []
        self._fed = 0
        self._decoder = WireDecoder(self)

    def open_body(self, header: m.BufferResponse) -> None:
        """The content does not matter."""

    def on_message(self, message: m.Message) -> None:
        self.found.append((self._fed, message))

    def read(self, written: bytearray) -> None:
        # Byte by byte, so that the end of each frame is known.
        for place in range(self._fed, len(written)):
            self._fed = place + 1
            self._decoder.feed(written[place : place + 1])

    def in_flight(self, receiver: bytes, delivered: int) -> int:
        """Credit and data of a receiver that have not arrived."""
        total = 0
        for end, message in self.found:
            if isinstance(message, m.BufferResponse):
                # It takes up its buffer as soon as its header is there.
                begin = end - message.size_bytes
                is_due = message.data_type.is_buffer and delivered < begin
                total += message.receiver == receiver and is_due
            elif isinstance(message, m.AddCredit | m.PartitionRequest):
                is_due = message.receiver == receiver and delivered < end
                total += message.credit if is_due else 0
        return total


class Pair:
    """A reader's and a producer's end, two wires between them, two channels."""

    def __init__(self, world: Any, exclusive: tuple[int, ...]) -> None:
        self.world = world
        self.down, self.up = Wire(), Wire()
        self._said_down, self._said_up = Frames(), Frames()
        options = ConnectionOptions()
        self.server = ProducerConnection(
            WorkerIdentity(JOB, "server"),
            world.producer,
            Handshake(WorkerIdentity(JOB, "server"), None, connects=False),
            options=options,
            log=RecordingLog(),
            on_open=lambda _: None,
            on_refused=lambda peer, reason: None,
        )
        self.client = ClientConnection(
            PeerAddress("nowhere", 1),
            Handshake(WorkerIdentity(JOB, "client"), None, connects=True),
            local="worker 'client'",
            options=options,
            log=RecordingLog(),
            on_ending=lambda _: None,
        )
        self.down.protocol, self.down.receiver = self.server, self.client
        self.up.protocol, self.up.receiver = self.client, self.server
        self.server.connection_made(self.down)
        self.client.connection_made(self.up)
        self.partitions, self.readers = [], []
        for number, own in enumerate(exclusive):
            self.partitions.append(world.producer.partition(number, own))
            reader = world.new_reader(own, slow=True)
            self.readers.append(reader)
            name = PartitionId(TaskId(VertexId(1), number, 0), 0)
            request = m.PartitionRequest(
                partition_address(JOB, name), 0, 0, reader.receiver_id, own
            )
            reader.link = self.client.add_channel(reader, request)
        self.emitted: list[list[bytes]] = [[] for _ in exclusive]

    def step(self, what: str, channel: int, size: int) -> None:
        producer, partition = self.world.producer, self.partitions[channel]
        if what == "emit":
            content = bytes([len(self.emitted[channel]) % 251]) * size
            self.emitted[channel].append(content)
            producer.emit(partition, content)
        elif what == "event":
            if not partition.is_blocked and not partition.is_finished:
                producer.emit_event(partition, CheckpointBarrier(1, 0))
        elif what == "read":
            self.read(channel, 1)
        elif what == "down":
            self.down.deliver(size)
        elif what == "up":
            self.up.deliver(size)
        elif what == "pause down":
            self.down.toggle()
        else:
            self.up.toggle()

    def read(self, channel: int, count: int | None = None) -> None:
        reader = self.readers[channel]
        resumes = sum(
            buffer.data_type.is_blocking_upstream
            for _, buffer in list(reader.waiting)[:count]
        )
        reader.read(count)
        for _ in range(resumes):
            reader.buffers.on_resume()
            reader.link.resume_consumption()

    def check(self) -> None:
        self._said_down.read(self.down.written)
        self._said_up.read(self.up.written)
        assert not self.client.is_ending
        assert not self.server.is_ending
        for reader in self.readers:
            assert not reader.failures
            receiver = reader.receiver_id
            known = self.server._readers.get(receiver)
            there = 0 if known is None else known.credit.available
            credit = self._said_up.in_flight(receiver, self.up.delivered)
            if known is None and not any(
                isinstance(message, m.PartitionRequest) and message.receiver == receiver
                for _, message in self._said_up.found
            ):
                # The request that carries it is not written yet.
                credit = reader.buffers.initial_credit
            data = self._said_down.in_flight(receiver, self.down.delivered)
            buffers = reader.buffers
            assert buffers.available == there + buffers.unannounced + credit + data

    def settle(self) -> bool:
        """Deliver and read everything; say whether there was anything."""
        moved = False
        for wire in (self.down, self.up):
            if wire.is_paused:
                wire.toggle()
            rest = len(wire.written) - wire.delivered
            wire.deliver(rest)
            moved = moved or bool(rest)
        for channel, reader in enumerate(self.readers):
            moved = moved or bool(reader.waiting)
            self.read(channel)
        return moved


STEP = st.tuples(
    st.sampled_from(
        [*["emit", "read", "down", "up"] * 3, "event", "pause down", "pause up"]
    ),
    st.integers(0, 1),
    st.sampled_from(SIZES),
)


@settings(max_examples=60)
@given(
    exclusive=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    floating=st.integers(0, 8),
    steps=st.lists(STEP, max_size=60),
)
def test_what_is_free_is_announced_or_on_its_way_or_there(
    make_world: Callable[[], Any],
    exclusive: tuple[int, int],
    floating: int,
    steps: list[tuple[str, int, int]],
) -> None:
    """NET-183: A = C + U + credit and data in flight, after every step."""

    async def scenario() -> None:
        world = make_world()
        world.readers.limit = sum(exclusive) + floating
        pair = Pair(world, exclusive)
        pair.check()
        for what, channel, size in steps:
            pair.step(what, channel, size)
            pair.check()
            await asyncio.sleep(0)
            pair.check()
        for _ in range(1_000):
            moved = pair.settle()
            await asyncio.sleep(0)
            pair.check()
            if not moved and not pair.settle():
                break
        for reader, sent in zip(pair.readers, pair.emitted, strict=True):
            assert reader.received == sent
        # Everything is announced: nothing is left anywhere but at the producer.
        for reader in pair.readers:
            there = pair.server._readers[reader.receiver_id].credit.available
            assert reader.buffers.available == there
        for reader in pair.readers:
            reader.link.close()
            reader.release()
        await asyncio.sleep(0)
        pair.down.abort()
        pair.up.abort()
        assert not world.readers.out
        assert not world.producer.store.out

    with asyncio.Runner(loop_factory=virtual_time_loop_factory()) as runner:
        runner.run(scenario())
