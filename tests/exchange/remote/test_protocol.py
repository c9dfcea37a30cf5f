"""Both ends of a connection without sockets: turns, pauses, pins and every cut."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from aiomailbox.errors import (
    InvalidArgumentError,
    LocalTransportError,
    RemoteTransportError,
)
from aiomailbox.exchange.remote import wire as m
from aiomailbox.exchange.remote.client import ClientConnection
from aiomailbox.exchange.remote.connection import ConnectionOptions, ConnectionState
from aiomailbox.exchange.remote.handshake import (
    Handshake,
    PeerAddress,
    WorkerIdentity,
    partition_address,
)
from aiomailbox.exchange.remote.producer import ProducerConnection
from aiomailbox.exchange.remote.wire import WireDecoder, encode_message
from aiomailbox.ids import PartitionId, TaskId, VertexId
from aiomailbox.memory.buffer import DataType
from aiomailbox.records.events import CheckpointBarrier
from aiomailbox.testing import RecordingLog, virtual_time_loop_factory

JOB = b"j" * 16
SIZES = st.lists(st.sampled_from([1, 100, 9_000, 32_768]), min_size=1, max_size=12)


class KeepingTransport(asyncio.Transport):
    """A transport of CPython 3.12: it keeps views, and writelines() pauses nobody."""

    def __init__(self, protocol: Any, room_bytes: int) -> None:
        super().__init__()
        self._protocol = protocol
        self._kept: deque[memoryview] = deque()
        self._is_paused = False
        self._is_closed = False
        self._high = 64 * 1024
        self.resumes_inside_writes = False
        self.room_bytes = room_bytes
        self.sent = bytearray()
        self.writes = 0

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self._kept))

    def set_write_buffer_limits(
        self, high: int | None = None, low: int | None = None
    ) -> None:
        assert high is not None
        self._high = high

    def write(self, data: Any) -> None:
        self.writes += 1
        self._keep([data])
        if self.get_write_buffer_size() > self._high and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self._keep(list_of_data)
        if self.resumes_inside_writes:
            self.resumes_inside_writes = False
            self._protocol.pause_writing()
            self.room_bytes += self.get_write_buffer_size()
            self._send()
            self._protocol.resume_writing()

    def drain(self, size_bytes: int) -> None:
        """Let the kernel take more."""
        self.room_bytes += size_bytes
        self._send()
        if self._is_paused and not self._kept:
            self._is_paused = False
            self._protocol.resume_writing()

    def drop_views(self) -> None:
        self._kept.clear()

    def is_closing(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            if not self._kept:
                asyncio.get_running_loop().call_soon(
                    self._protocol.connection_lost, None
                )

    def abort(self) -> None:
        self._is_closed = True
        self._kept.clear()
        asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    def _keep(self, pieces: Any) -> None:
        assert not self._is_closed
        for piece in pieces:
            assert len(piece), "an empty piece pauses nobody"
            self._kept.append(memoryview(piece))
        self._send()

    def _send(self) -> None:
        while self._kept and self.room_bytes:
            piece = self._kept.popleft()
            taken = piece[: self.room_bytes]
            self.sent += taken
            self.room_bytes -= len(taken)
            if len(taken) < len(piece):
                self._kept.appendleft(piece[len(taken) :])


class Collector:
    """Decodes what an end has written."""

    def __init__(self) -> None:
        self.messages: list[m.Message] = []
        self.contents: list[bytes] = []
        self._body = bytearray()

    def open_body(self, header: m.BufferResponse) -> memoryview:
        self._body = bytearray(header.size_bytes)
        return memoryview(self._body)

    def on_message(self, message: m.Message) -> None:
        self.messages.append(message)
        if isinstance(message, m.BufferResponse):
            self.contents.append(bytes(self._body))


def said(transport: KeepingTransport) -> Collector:
    collector = Collector()
    WireDecoder(collector).feed(bytes(transport.sent))
    return collector


def feed(protocol: Any, data: bytes, cuts: Iterator[int] | None = None) -> None:
    """Hand bytes to a protocol as a transport does, in pieces of given sizes."""
    rest = memoryview(data)
    while rest:
        window = protocol.get_buffer(-1)
        assert len(window)
        limit = next(cuts) if cuts is not None else len(rest)
        size_bytes = min(len(window), len(rest), limit)
        window[:size_bytes] = rest[:size_bytes]
        protocol.buffer_updated(size_bytes)
        rest = rest[size_bytes:]


def identity(worker: str) -> WorkerIdentity:
    return WorkerIdentity(JOB, worker)


def hello(worker: str) -> bytes:
    return encode_message(m.Hello(1, 1, JOB, worker, b"n" * 16, bytes(16)))


def request(number: int, receiver: bytes, credit: int) -> m.PartitionRequest:
    partition_id = PartitionId(TaskId(VertexId(1), number, 0), 0)
    return m.PartitionRequest(
        partition_address(JOB, partition_id), 0, 0, receiver, credit
    )


def pinned(connection: Any) -> int:
    """How many buffers its transport may still refer to."""
    return sum(len(buffers) for _, buffers in connection._outgoing._pinned)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Server:
    """A producer's end on a transport that keeps views."""

    def __init__(self, world: Any, room_bytes: int = 2**40, **options: Any) -> None:
        self.log = RecordingLog()
        self.producer = world.producer
        self.connection = ProducerConnection(
            identity("server"),
            world.producer,
            Handshake(identity("server"), None, connects=False),
            options=ConnectionOptions(**options),
            log=self.log,
            on_open=lambda _: None,
            on_refused=lambda peer, reason: None,
        )
        self.transport = KeepingTransport(self.connection, 2**40)
        self.connection.connection_made(self.transport)
        feed(self.connection, hello("client"))
        self.transport.sent.clear()
        self.transport.room_bytes = room_bytes

    def hear(self, *messages: m.Message) -> None:
        for message in messages:
            feed(self.connection, encode_message(message))

    def said(self) -> list[m.Message]:
        return said(self.transport).messages

    def numbers(self, receiver: bytes) -> list[int]:
        return [
            x.sequence_number
            for x in self.said()
            if isinstance(x, m.BufferResponse) and x.receiver == receiver
        ]


class Client:
    """A reader's end on a transport that keeps views."""

    def __init__(self, room_bytes: int = 2**40, **options: Any) -> None:
        self.log = RecordingLog()
        self.ended = 0
        self.connection = ClientConnection(
            PeerAddress("nowhere", 1),
            Handshake(identity("client"), None, connects=True),
            local="worker 'client'",
            options=ConnectionOptions(**options),
            log=self.log,
            on_ending=self._on_ending,
        )
        self.transport = KeepingTransport(self.connection, 2**40)
        self.connection.connection_made(self.transport)
        feed(self.connection, hello("server"))
        self.transport.sent.clear()
        self.transport.room_bytes = room_bytes

    def add(self, reader: Any, number: int = 0, credit: int = 2) -> None:
        reader.link = self.connection.add_channel(
            reader, request(number, reader.receiver_id, credit)
        )

    def hear(
        self,
        reader: Any,
        number: int,
        content: bytes,
        backlog: int = 0,
        *,
        data_type: DataType = DataType.DATA_BUFFER,
    ) -> None:
        header = m.BufferResponse(
            reader.receiver_id,
            0,
            number,
            backlog,
            data_type,
            len(content),
        )
        feed(self.connection, encode_message(header) + content)

    def said(self) -> list[m.Message]:
        return said(self.transport).messages

    def _on_ending(self, _: Any) -> None:
        self.ended += 1


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario on virtual time, from a test of properties."""

    async def main() -> None:
        await scenario()

    with asyncio.Runner(loop_factory=virtual_time_loop_factory()) as runner:
        runner.run(main())


A, B = b"a" * 16, b"b" * 16


# The producer's end.


async def test_two_readers_that_waited_are_served_when_it_is_writable_again(
    world: Any,
) -> None:
    """NET-172."""
    server = Server(world)
    partitions = [world.producer.partition(number) for number in (0, 1)]
    server.hear(request(0, A, 4), request(1, B, 4))
    server.connection.pause_writing()
    for partition in partitions:
        world.producer.emit(partition, b"one")
        world.producer.emit(partition, b"two")
    await turns()
    assert server.said() == []
    assert len(server.connection._line) == 2
    server.connection.resume_writing()
    await turns()
    assert server.numbers(A) == server.numbers(B) == [0, 1]
    receivers = [x.receiver for x in server.said() if isinstance(x, m.BufferResponse)]
    assert receivers == [A, B, A, B]


async def test_an_event_needs_no_credit_and_uses_none(world: Any) -> None:
    """NET-173 and NET-175."""
    server = Server(world)
    partition = world.producer.partition(0)
    server.hear(request(0, A, 0))
    world.producer.emit_event(partition, CheckpointBarrier(1, 0))
    world.producer.emit(partition, b"data")
    await turns()
    assert server.numbers(A) == [0]
    server.hear(m.AddCredit(1, A))
    await turns()
    assert server.numbers(A) == [0]
    # Without buffers of its own, resuming forgets the credit.
    server.hear(m.ResumeConsumption(A))
    await turns()
    assert server.numbers(A) == [0]
    server.hear(m.AddCredit(1, A))
    await turns()
    assert server.numbers(A) == [0, 1]


async def test_three_credits_let_three_of_ten_buffers_out(world: Any) -> None:
    """NET-174."""
    server = Server(world)
    partition = world.producer.partition(0, exclusive=1)
    server.hear(request(0, A, 1))
    world.producer.emit(partition, b"first")
    await turns()
    server.transport.sent.clear()
    for _ in range(10):
        world.producer.emit(partition, b"x")
    await turns()
    assert server.said() == []
    assert len(server.connection._line) == 0
    server.hear(m.AddCredit(3, A))
    assert len(server.connection._line) == 1
    await turns()
    assert server.numbers(A) == [1, 2, 3]
    assert len(server.connection._line) == 0


async def test_what_waits_is_announced_once_to_a_reader_without_buffers(
    world: Any,
) -> None:
    """NET-176."""
    server = Server(world)
    partition = world.producer.partition(0, exclusive=0)
    server.hear(request(0, A, 0))
    server.connection.pause_writing()
    world.producer.emit(partition, b"x")
    world.producer.emit(partition, b"x")
    server.connection.resume_writing()
    await turns()
    assert server.said() == [m.BacklogAnnouncement(2, A)]


@pytest.mark.parametrize("has_data", [True, False])
async def test_a_cancelled_reader_is_gone_from_the_line_and_lets_go(
    world: Any, has_data: bool
) -> None:
    """NET-177, NET-178."""
    server = Server(world)
    partition = world.producer.partition(0)
    server.hear(request(0, A, 2))
    server.connection.pause_writing()
    if has_data:
        world.producer.emit(partition, b"x")
    assert len(server.connection._line) == int(has_data)
    server.hear(m.CancelPartitionRequest(A), m.CancelPartitionRequest(B))
    assert (len(server.connection._readers), len(server.connection._line)) == (0, 0)
    assert partition.is_released
    server.hear(m.NewBufferSize(100, A))
    assert server.connection.state is ConnectionState.OPEN
    server.hear(m.AddCredit(1, A))
    await turns()
    assert server.connection.state is ConnectionState.CLOSED
    assert not world.producer.store.out


async def test_a_peer_that_asks_and_never_reads_makes_little_wait(world: Any) -> None:
    server = Server(world, room_bytes=0, receivers_max=64)
    server.connection.pause_writing()
    for _ in range(10):
        for number in range(64):
            server.hear(request(number, bytes([number]) * 16, 1))
    assert len(server.connection._control) == 64
    server.hear(request(99, b"z" * 16, 1))
    await turns()
    assert server.connection.is_ending
    assert server.connection._control == {}


@settings(max_examples=60)
@given(sizes=SIZES, seed=st.integers(0, 2**32), reenter=st.booleans())
def test_a_segment_comes_back_when_its_last_byte_has_left_and_not_before(
    make_world: Callable[[], Any], sizes: list[int], seed: int, reenter: bool
) -> None:
    numbers = random.Random(seed)
    expected = [numbers.randbytes(size) for size in sizes]

    async def scenario() -> None:
        world = make_world()
        server = Server(world, room_bytes=0)
        server.transport.resumes_inside_writes = reenter
        partition = world.producer.partition(0)
        server.hear(request(0, A, len(sizes)))
        for content in expected:
            world.producer.emit(partition, content)
        for _ in range(10_000):
            await turns(2)
            sent = len(said(server.transport).contents)
            out = len(world.producer.store.out)
            # What goes out together comes back together: four at most.
            assert out - (len(expected) - sent) < 4
            if sent == len(expected):
                break
            server.transport.drain(numbers.choice([1_000, 20_000, 70_000]))
        assert said(server.transport).contents == expected
        await turns(2)
        assert not world.producer.store.out
        server.connection.abort()
        await turns()

    run(scenario)


async def test_at_most_a_few_buffers_wait_in_the_transport(world: Any) -> None:
    server = Server(world, room_bytes=0)
    partition = world.producer.partition(0)
    server.hear(request(0, A, 100))
    for _ in range(50):
        world.producer.emit(partition, b"x" * 32_768)
    await turns(50)
    assert server.transport.get_write_buffer_size() <= 4 * (32_768 + 47)
    assert pinned(server.connection) == 4
    server.connection.connection_lost(ConnectionResetError("gone"))
    assert not world.producer.store.out
    assert pinned(server.connection) == 0


async def test_a_pause_is_a_stall_only_if_nothing_leaves(world: Any) -> None:
    server = Server(world, room_bytes=0, stall_timeout=10.0)
    partition = world.producer.partition(0)
    server.hear(request(0, A, 100))
    for _ in range(8):
        world.producer.emit(partition, b"x" * 32_768)
    for _ in range(10):
        await asyncio.sleep(8.0)
        server.transport.drain(10)
    assert server.connection.state is ConnectionState.OPEN
    await asyncio.sleep(21.0)
    assert server.connection.state is ConnectionState.CLOSED
    assert server.log.entries[-1][2]["reason"] == "the peer has read nothing for 10 s"
    assert not world.producer.store.out


# The reader's end.


async def test_credit_is_withheld_while_nothing_can_be_written_and_then_summed_up(
    world: Any, new_reader: Callable[..., Any]
) -> None:
    """NET-166."""
    client = Client()
    readers = [new_reader(2), new_reader(2)]
    for reader in readers:
        client.add(reader)
    await turns()
    assert [x.credit for x in client.said()] == [2, 2]
    client.connection.pause_writing()
    for number in range(2):
        for reader in readers:
            client.hear(reader, number, b"data")
    await turns()
    assert len(client.said()) == 2
    client.connection.resume_writing()
    await turns()
    assert client.said()[2:] == [m.AddCredit(2, x.receiver_id) for x in readers]


async def test_of_a_channel_that_is_released_only_the_close_is_written(
    world: Any, new_reader: Callable[..., Any]
) -> None:
    """NET-167."""
    client = Client()
    reader = new_reader(2)
    client.add(reader)
    await turns()
    client.connection.pause_writing()
    client.hear(reader, 0, b"data")
    reader.link.announce_buffer_size(100)
    reader.link.close()
    reader.release()
    client.connection.resume_writing()
    await turns()
    assert client.said()[1:] == [m.CloseRequest()]
    assert client.connection.state is ConnectionState.CLOSED
    assert client.ended


async def test_a_channel_released_under_its_buffer_gives_it_back_and_cancels_once(
    world: Any, new_reader: Callable[..., Any]
) -> None:
    """NET-168."""
    client = Client()
    reader, other = new_reader(2), new_reader(1)
    client.add(reader)
    client.add(other, 1, 1)
    await turns()
    header = m.BufferResponse(reader.receiver_id, 0, 0, 0, DataType.DATA_BUFFER, 30_000)
    feed(client.connection, encode_message(header) + b"x" * 10_000)
    reader.release()
    feed(client.connection, b"x" * 20_000)
    client.hear(reader, 1, b"more")
    client.hear(other, 0, b"fine")
    await turns()
    cancels = [x for x in client.said() if isinstance(x, m.CancelPartitionRequest)]
    assert cancels == [m.CancelPartitionRequest(reader.receiver_id)]
    assert other.received == [b"fine"]
    reader.link.close()
    other.link.close()
    other.release()
    await turns()
    assert not world.readers.out


@pytest.mark.parametrize(
    ("data_type", "content", "reason"),
    [
        (DataType.EVENT_BUFFER, b"", "an event has no content"),
        (DataType.DATA_BUFFER, bytes(2000), "2000 bytes for a buffer of 1000"),
    ],
)
async def test_a_buffer_that_cannot_be_fails_its_channel_and_no_other(
    world: Any,
    new_reader: Callable[..., Any],
    data_type: DataType,
    content: bytes,
    reason: str,
) -> None:
    world.readers.size_bytes = 1000
    client = Client()
    reader, other = new_reader(2), new_reader(1)
    client.add(reader)
    client.add(other, 1, 1)
    await turns()
    client.hear(reader, 0, content, data_type=data_type)
    client.hear(other, 0, b"fine")
    await turns()
    (failure,) = reader.failures
    assert reason in str(failure)
    assert (other.received, other.failures) == ([b"fine"], [])
    assert m.CancelPartitionRequest(reader.receiver_id) in client.said()
    for one in (reader, other):
        one.link.close()
        one.release()
    assert not world.readers.out


async def test_a_receiver_that_fails_when_it_is_told_of_a_failure_harms_no_other(
    new_reader: Callable[..., Any],
) -> None:
    client = Client()
    reader, other = new_reader(2), new_reader(1)

    def fail(error: BaseException) -> None:
        raise RuntimeError("twice")

    reader.fail = fail
    client.add(reader)
    client.add(other, 1, 1)
    client.hear(reader, 0, b"", data_type=DataType.EVENT_BUFFER)
    client.hear(other, 0, b"fine")
    assert (other.received, len(client.connection._channels)) == ([b"fine"], 1)
    (told,) = [one for one in client.log.entries if one[0] == "error"]
    assert told[1] == "a channel could not be failed"
    assert told[2]["error"] == "RuntimeError: twice"
    assert told[2]["cause"] == "CorruptStreamError: an event has no content"


async def test_a_connection_has_one_channel_per_receiver_and_a_limit_of_them(
    new_reader: Callable[..., Any],
) -> None:
    client = Client(receivers_max=2)
    reader, other, third = new_reader(1), new_reader(1), new_reader(1)
    client.add(reader)
    with pytest.raises(InvalidArgumentError, match="has a channel already"):
        client.add(reader)
    client.add(other, 1)
    with pytest.raises(InvalidArgumentError, match="2 channels share the connection"):
        client.add(third, 2)
    assert len(client.connection._channels) == 2


async def test_a_peer_that_sends_to_nobody_is_answered_so_often_and_no_more(
    new_reader: Callable[..., Any],
) -> None:
    client = Client(receivers_max=2)
    reader = new_reader(1)
    client.add(reader)
    client.connection.pause_writing()
    header = m.BufferResponse(A, 0, 0, 0, DataType.DATA_BUFFER, 0)
    for number in range(100):
        stranger = number.to_bytes(16, "little")
        feed(client.connection, encode_message(header._replace(receiver=stranger)))
    (failure,) = reader.failures
    assert "sends to receivers that do not exist" in str(failure)
    assert client.connection.is_ending


async def test_backlog_gets_floating_buffers_and_announces_them(
    world: Any, new_reader: Callable[..., Any]
) -> None:
    """NET-162 and NET-163."""
    client = Client()
    reader = new_reader(2)
    world.readers.limit = 2 + 8
    client.add(reader)
    feed(
        client.connection, encode_message(m.BacklogAnnouncement(5, reader.receiver_id))
    )
    assert (reader.buffers.available, reader.buffers.required) == (7, 7)
    feed(
        client.connection, encode_message(m.BacklogAnnouncement(12, reader.receiver_id))
    )
    assert (reader.buffers.available, reader.buffers.required) == (10, 14)
    await turns()
    assert client.said()[1:] == [m.AddCredit(8, reader.receiver_id)]


async def test_an_empty_buffer_frees_its_credit(
    world: Any, new_reader: Callable[..., Any]
) -> None:
    """NET-161."""
    client = Client()
    reader = new_reader(2)
    client.add(reader)
    client.hear(reader, 0, b"")
    await turns()
    assert reader.empty == 1
    assert client.said()[1:] == [m.AddCredit(1, reader.receiver_id)]
    assert not reader.failures


async def test_credit_that_waits_is_announced_after_the_resumption(
    world: Any, new_reader: Callable[..., Any]
) -> None:
    client = Client()
    reader = new_reader(0)
    client.add(reader, credit=0)
    await turns()
    client.connection.pause_writing()
    reader.link.announce_credit()
    reader.buffers.on_resume()
    reader.link.resume_consumption()
    reader.on_sender_backlog(2)
    client.connection.resume_writing()
    await turns()
    assert client.said()[1:] == [
        m.ResumeConsumption(reader.receiver_id),
        m.AddCredit(2, reader.receiver_id),
    ]


async def test_a_failure_while_saying_something_fails_the_channels_not_the_loop(
    world: Any, new_reader: Callable[..., Any]
) -> None:
    """NET-170, its second half."""
    client = Client()
    reader = new_reader(1)
    client.add(reader)

    def burst() -> int:
        raise ValueError("no credit to give")

    reader.take_credit = burst
    reader.link.announce_credit()
    await turns()
    assert isinstance(reader.failures[0], LocalTransportError)
    assert "no credit to give" in str(reader.failures[0])
    assert client.connection.state is ConnectionState.CLOSED


# Every cut.


@settings(max_examples=40)
@given(cuts=st.lists(st.integers(1, 40_000), min_size=1, max_size=20))
def test_a_reader_receives_the_same_however_the_stream_is_cut(
    make_world: Callable[[], Any], cuts: list[int]
) -> None:
    async def scenario() -> None:
        world = make_world()
        reader = world.new_reader(8)
        client = Client()
        client.add(reader)
        contents = [b"a" * 5, b"b" * 32_768, b"c" * 20_000, b"d" * 17_000]
        stream = b"".join(
            encode_message(
                m.BufferResponse(
                    reader.receiver_id,
                    0,
                    number,
                    0,
                    DataType.DATA_BUFFER,
                    len(content),
                )
            )
            + content
            + encode_message(m.BacklogAnnouncement(number + 1, b"?" * 16))
            for number, content in enumerate(contents)
        )
        feed(client.connection, stream, itertools.cycle(cuts))
        await turns()
        assert reader.received == contents
        client.connection.abort()
        await turns()
        reader.release()
        assert not world.readers.out

    run(scenario)


@pytest.mark.parametrize("end", ["server", "client"])
def test_every_first_cut_of_a_whole_conversation_is_the_same(
    make_world: Callable[[], Any], end: str
) -> None:
    async def hear_server(cut: int) -> list[m.Message]:
        world = make_world()
        world.producer.emit(world.producer.partition(0), b"data")
        server = Server(world)
        stream = b"".join(
            map(
                encode_message,
                [
                    request(0, A, 1),
                    m.NewBufferSize(9, A),
                    request(1, B, 1),
                    m.CancelPartitionRequest(B),
                    m.AddCredit(2, A),
                    m.CloseRequest(),
                ],
            )
        )
        feed(server.connection, stream[:cut])
        await turns()
        feed(server.connection, stream[cut:])
        await turns()
        assert server.connection.state is ConnectionState.CLOSED
        return [len(stream), server.log.entries[-1][2]["reason"]]

    async def hear_client(cut: int) -> list[Any]:
        world = make_world()
        reader = world.new_reader(2)
        client = Client()
        client.add(reader)
        header = m.BufferResponse(reader.receiver_id, 0, 0, 3, DataType.DATA_BUFFER, 5)
        cause = m.RemoteCause("OSError", "on fire")
        stream = (
            encode_message(header)
            + b"first"
            + encode_message(m.BacklogAnnouncement(4, reader.receiver_id))
            + encode_message(m.ErrorResponse(cause, reader.receiver_id))
            + encode_message(m.ErrorResponse(cause))
        )
        feed(client.connection, stream[:cut])
        await turns()
        feed(client.connection, stream[cut:])
        await turns()
        assert client.connection.state is ConnectionState.CLOSED
        return [
            len(stream),
            reader.received,
            reader.backlogs,
            [type(error) for error in reader.failures],
        ]

    hear = hear_server if end == "server" else hear_client

    async def scenario() -> None:
        whole = await hear(10_000)
        assert isinstance(whole[0], int)
        for cut in range(whole[0]):
            assert await hear(cut) == whole

    run(scenario)


@settings(max_examples=100)
@given(
    end=st.sampled_from(["server", "client"]),
    garbage=st.binary(min_size=9, max_size=300),
    place=st.integers(0, 200),
)
def test_garbage_anywhere_ends_the_connection_or_waits_for_more_and_raises_nothing(
    make_world: Callable[[], Any], end: str, garbage: bytes, place: int
) -> None:
    async def scenario() -> None:
        world = make_world()
        reader = world.new_reader(2)
        if end == "server":
            world.producer.partition(0)
            peer: Any = Server(world)
            stream = encode_message(request(0, A, 1)) * 1
        else:
            peer = Client()
            peer.add(reader)
            stream = encode_message(m.BacklogAnnouncement(1, reader.receiver_id)) * 3
        feed(peer.connection, stream[:place] + garbage)
        await turns()
        if not peer.connection.is_ending:
            held = peer.connection._decoder
            assert len(held._held) <= 200
        peer.connection.abort()
        await turns()
        assert peer.connection.state is ConnectionState.CLOSED
        reader.release()
        assert not world.readers.out

    run(scenario)


async def test_the_wished_size_of_buffers_is_said_again_with_the_request(
    world: Any,
) -> None:
    reader = world.new_reader()
    client = Client()
    client.add(reader)
    reader.link.announce_buffer_size(500)
    await turns()
    missing = m.RemoteCause("PartitionNotFoundError", "not there")
    feed(
        client.connection, encode_message(m.ErrorResponse(missing, reader.receiver_id))
    )
    reader.link.announce_buffer_size(600)
    reader.link.request_again()
    await turns()
    wishes = [x for x in client.said() if isinstance(x, m.NewBufferSize)]
    assert wishes == [m.NewBufferSize(x, reader.receiver_id) for x in (500, 600)]
    assert isinstance(client.said()[-2], m.PartitionRequest)
    client.connection.close("the test is over")


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ETIMEDOUT, RemoteTransportError),
        (errno.EHOSTUNREACH, RemoteTransportError),
        (errno.ECONNRESET, RemoteTransportError),
        (errno.ENOBUFS, LocalTransportError),
    ],
)
async def test_a_peer_that_is_gone_is_not_our_own_trouble(
    world: Any, number: int, expected: type[Exception]
) -> None:
    reader = world.new_reader()
    client = Client()
    client.add(reader)
    client.connection.connection_lost(OSError(number, os.strerror(number)))
    assert [type(error) for error in reader.failures] == [expected]
