"""Strangers, broken peers and attacks: each is closed with a reason, others go on."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from aiomailbox.errors import InvalidArgumentError, RemoteTransportError
from aiomailbox.exchange.remote import wire as m
from aiomailbox.exchange.remote.client import ClientConnection
from aiomailbox.exchange.remote.handshake import (
    PeerAddress,
    Security,
    partition_address,
    prove,
)
from aiomailbox.exchange.remote.server import DataServer
from aiomailbox.exchange.remote.wire import MAGIC, WireDecoder, encode_message
from aiomailbox.ids import PartitionId, TaskId, VertexId
from aiomailbox.memory.buffer import DataType

pytestmark = pytest.mark.real_time

SECRET = bytes(range(32))
JOB = b"j" * 16
RECEIVER = b"r" * 16


def hello(**changes: Any) -> m.Hello:
    greeting = m.Hello(1, 1, JOB, "stranger", b"n" * 16, bytes(16))
    return greeting._replace(**changes)


def addressed(number: int, job: bytes = JOB, **changes: Any) -> m.PartitionRequest:
    partition_id = PartitionId(TaskId(VertexId(1), number, 0), 0)
    request = m.PartitionRequest(
        partition_address(job, partition_id), 0, 0, RECEIVER, 2
    )
    return request._replace(**changes)


class Stranger:
    """Somebody who speaks to a server byte by byte."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, *pieces: bytes | m.Message) -> None:
        for piece in pieces:
            encoded = piece if isinstance(piece, bytes) else encode_message(piece)
            self._writer.write(encoded)

    def half_close(self) -> None:
        self._writer.write_eof()

    async def receive(self, count: int) -> bytes:
        return await self._reader.readexactly(count)

    async def greet(self) -> None:
        """Become one of the job, where no secret is asked for."""
        self.send(hello())
        (length,) = struct.unpack(">i", await self.receive(4))
        await self.receive(length - 4)

    async def until_closed(self) -> bytes:
        try:
            async with asyncio.timeout(60):
                return await self._reader.read()
        except ConnectionError:
            return b""

    def close(self) -> None:
        self._writer.close()


@pytest.fixture
async def meet(world: Any) -> AsyncIterator[Callable[..., Any]]:
    """Connect strangers to the world's server."""
    met: list[Stranger] = []

    async def connect() -> Stranger:
        host, port = world.address
        if port is None:
            connected = await asyncio.open_unix_connection(host)
        else:
            connected = await asyncio.open_connection(host, port)
        met.append(Stranger(*connected))
        return met[-1]

    yield connect
    for stranger in met:
        stranger.close()


class Canary:
    """A channel that has to go on whatever happens beside it."""

    def __init__(self, world: Any, number: int = 999, **arguments: Any) -> None:
        self._world = world
        self._partition = world.producer.partition(number)
        self._reader = world.read(world.connect(**arguments), number)
        self._sent = 0

    async def sings(self) -> None:
        for _ in range(5):
            self._sent += 1
            self._world.producer.emit(self._partition, b"%d" % self._sent)
        await self._reader.until(lambda: len(self._reader.received) == self._sent)
        assert not self._reader.failures


def request_frame(**changes: Any) -> bytes:
    return encode_message(addressed(0, **changes))


VIOLATIONS: dict[str, tuple[Callable[[], list[bytes | m.Message]], str]] = {
    "random bytes": (
        lambda: [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"],
        "does not speak this protocol",
    ),
    "wrong magic": (
        lambda: [struct.pack(">iIb", 90, 0xCAFEBABE, 64)],
        "cafebabe",
    ),
    "huge length": (
        lambda: [struct.pack(">iIb", 2**31 - 1, MAGIC, 64)],
        "cannot have 2147483638 bytes",
    ),
    "negative length": (
        lambda: [struct.pack(">iIb", -1, MAGIC, 64)],
        "cannot have",
    ),
    "unknown message": (
        lambda: [struct.pack(">iIb", 9, MAGIC, 99)],
        "no message 99",
    ),
    "wrong job": (lambda: [hello(job_id=b"x" * 16)], "belongs to job"),
    "other version": (
        lambda: [hello(version_min=7, version_max=9)],
        "versions 7 to 9",
    ),
    "other codec": (lambda: [hello(codec_digest=b"x" * 16)], "serialize records"),
    "no greeting": (lambda: [request_frame()], "where Hello has to come"),
    "data before greeting": (
        lambda: [
            m.BufferResponse(RECEIVER, 0, 0, 0, DataType.DATA_BUFFER, 4),
            b"data",
        ],
        "BufferResponse",
    ),
    "two greetings": (lambda: [hello(), hello()], "cannot send Hello"),
    "a proof nobody asked for": (
        lambda: [hello(), m.HelloProof(bytes(32))],
        "cannot send HelloProof",
    ),
    "data from a reader": (
        lambda: [
            hello(),
            m.BufferResponse(RECEIVER, 0, 0, 0, DataType.DATA_BUFFER, 4),
            b"data",
        ],
        "BufferResponse",
    ),
    "credit for nobody": (
        lambda: [hello(), m.AddCredit(1, RECEIVER)],
        "requested nothing",
    ),
    "a partition of another job": (
        lambda: [hello(), addressed(0, job=b"x" * 16)],
        "a partition of job",
    ),
    "two subpartitions at once": (
        lambda: [hello(), addressed(0, subpartition_last=1)],
        "one subpartition",
    ),
    "one receiver twice": (
        lambda: [hello(), addressed(0), addressed(0)],
        "requests twice",
    ),
    "too many receivers": (
        lambda: [
            hello(),
            *(addressed(5, receiver=bytes([n]) * 16) for n in range(20)),
        ],
        "more than 16 receivers",
    ),
}


@pytest.mark.parametrize("violation", VIOLATIONS)
async def test_a_violation_is_closed_with_its_reason_and_others_go_on(
    world: Any, meet: Callable[..., Any], violation: str
) -> None:
    """NET-181, of the producer."""
    world.producer.partition(0)
    world.options = world.options._replace(receivers_max=16)
    server = await world.serve()
    canary = Canary(world)
    await canary.sings()
    pieces, reason = VIOLATIONS[violation]
    stranger = await meet()
    stranger.send(*pieces())
    await stranger.until_closed()
    await world.until(lambda: server.connections == 1)
    assert any(reason in given for given in world.reasons()), world.reasons()
    await canary.sings()


@pytest.mark.parametrize("sent", [b"", encode_message(hello())[:20], b"\0"])
async def test_a_port_scanner_and_a_truncated_greeting_leave_nothing_but_a_line(
    world: Any, meet: Callable[..., Any], sent: bytes
) -> None:
    server = await world.serve()
    canary = Canary(world)
    stranger = await meet()
    stranger.send(sent)
    stranger.close()
    await canary.sings()
    await world.until(
        lambda: "the peer closed it during the handshake" in world.reasons()
    )
    await world.until(lambda: server.connections == 1)
    await canary.sings()


async def test_a_frame_that_is_cut_off_and_a_half_closed_socket_end_the_connection(
    world: Any, meet: Callable[..., Any]
) -> None:
    server = await world.serve()
    partition = world.producer.partition(0)
    stranger = await meet()
    await stranger.greet()
    stranger.send(addressed(0), request_frame()[:11])
    await world.until(lambda: world.producer.requested == 1)
    stranger.half_close()
    assert await stranger.until_closed() == b""
    await world.until(lambda: partition.is_released and not server.connections)
    assert world.reasons() == ["the peer closed it"]


async def test_what_a_stranger_reports_is_cut(
    world: Any, meet: Callable[..., Any]
) -> None:
    await world.serve()
    stranger = await meet()
    stranger.send(encode_message(m.ErrorResponse(m.RemoteCause("X", "y" * 16_000))))
    await stranger.until_closed()
    (reason,) = world.reasons()
    assert reason.startswith("it reports X: yyy")
    assert len(reason) <= 200


async def test_a_slow_greeting_is_closed_at_the_deadline_however_it_drips(
    world: Any, meet: Callable[..., Any]
) -> None:
    world.options = world.options._replace(handshake_timeout=1.0)
    server = await world.serve()
    canary = Canary(world)
    stranger = await meet()
    for byte in encode_message(hello()):
        stranger.send(bytes([byte]))
        await asyncio.sleep(0.05)
        if "no handshake within 1 s" in world.reasons():
            break
    await stranger.until_closed()
    assert world.reasons() == ["no handshake within 1 s"]
    await world.until(lambda: server.connections == 1)
    await canary.sings()


NEEDED = "others want to connect, and it has not proved itself"


async def test_strangers_beyond_the_limit_are_turned_away_and_counted(
    world: Any, meet: Callable[..., Any]
) -> None:
    server = await world.serve(options=world.options._replace(strangers_max=3))
    canary = Canary(world)
    await canary.sings()
    started_at = time.monotonic()
    strangers = [await meet() for _ in range(8)]
    await strangers[4].until_closed()
    assert server.connections == 4
    await canary.sings()
    await server.close()
    # One line at once, one a second with the sum, and one at the end: not eight.
    seconds = time.monotonic() - started_at
    assert world.reasons()[0] == NEEDED
    sums = [
        fields["count"]
        for _, event, fields in world.log.entries
        if event == "connections closed"
    ]
    assert 1 + sum(sums) == 8
    assert len(sums) <= 1 + seconds


async def test_who_names_the_job_is_turned_away_after_those_who_do_not(
    world: Any, meet: Callable[..., Any]
) -> None:
    server = await world.serve(
        security=Security(secret=SECRET),
        options=world.options._replace(strangers_max=3),
    )
    introduced = await meet()
    introduced.send(hello())
    await introduced.receive(4)
    strangers = [await meet() for _ in range(20)]
    await strangers[17].until_closed()
    assert server.connections == 3
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await introduced.until_closed()


async def test_a_worker_that_was_turned_away_while_it_greeted_comes_again(
    world: Any, meet: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strangers come faster than it greets, for a while."""
    made = ClientConnection.connection_made
    left = [5]

    def crowded(connection: ClientConnection, transport: Any) -> None:
        made(connection, transport)
        if left[0]:
            left[0] -= 1
            server._strangers.turn_away_one()

    server = await world.serve()
    monkeypatch.setattr(ClientConnection, "connection_made", crowded)
    await Canary(world).sings()
    assert left == [0]


async def test_time_in_which_the_servers_loop_is_held_is_no_part_of_a_deadline(
    world: Any, meet: Callable[..., Any]
) -> None:
    server = await world.serve(
        security=Security(secret=SECRET),
        options=world.options._replace(handshake_timeout=0.4),
    )
    # Before it is known: what is held up until then makes it no shorter.
    started_at = time.monotonic()
    stranger = await meet()
    await world.until(lambda: server.connections == 1)
    time.sleep(0.5)
    stranger.send(hello())
    await stranger.receive(4)
    assert server.connections == 1
    await stranger.until_closed()
    assert time.monotonic() - started_at > 0.7


async def test_where_no_descriptor_is_left_strangers_make_room_and_few_lines(
    world: Any, meet: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's answer is put in the place of the real one, which hurts everybody."""
    server = await world.serve()
    strangers = [await meet() for _ in range(4)]
    await world.until(lambda: server.connections == 4)
    full = [True]
    accept = socket.socket.accept

    def accept_or_not(bound: socket.socket) -> Any:
        if full[0]:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(bound)

    monkeypatch.setattr(socket.socket, "accept", accept_or_not)
    canary = Canary(world)
    for stranger in strangers:
        await stranger.until_closed()
    await world.until(lambda: "no connection can be accepted" in _errors(world))
    full[0] = False
    await canary.sings()
    assert _errors(world) == ["no connection can be accepted"]


def _errors(world: Any) -> list[str]:
    return [event for level, event, _ in world.log.entries if level == "error"]


async def test_workers_beyond_the_limit_are_turned_away(world: Any) -> None:
    server = await world.serve(options=world.options._replace(connections_max=2))
    canaries = [Canary(world), Canary(world, number=998)]
    for canary in canaries:
        await canary.sings()
    reader = world.read(world.connect(), 0)
    await reader.until(lambda: bool(reader.failures))
    assert "there are 2 connections already" in world.reasons()
    for canary in canaries:
        await canary.sings()
    assert server.connections == 2


@pytest.mark.parametrize(
    ("secret", "proof", "reason"),
    [
        (bytes(32), True, "did not prove"),
        (SECRET, False, "where HelloProof has to come"),
        (None, False, "where HelloProof has to come"),
    ],
)
async def test_without_the_secret_nobody_gets_in_or_sees_a_proof(
    world: Any,
    meet: Callable[..., Any],
    secret: bytes | None,
    proof: bool,
    reason: str,
) -> None:
    world.producer.partition(0)
    security = Security(secret=SECRET)
    server = await world.serve(security=security)
    canary = Canary(world, security=security)
    await canary.sings()
    stranger = await meet()
    stranger.send(hello())
    (length,) = struct.unpack(">i", await stranger.receive(4))
    rest = await stranger.receive(length - 4)
    theirs = decoded(struct.pack(">i", length) + rest)
    assert isinstance(theirs, m.Hello)
    if proof and secret is not None:
        stranger.send(prove(secret, hello(), theirs))
    else:
        stranger.send(addressed(0))
    answer = await stranger.until_closed()
    assert b"HelloProof" not in answer
    assert all(not isinstance(x, m.HelloProof) for x in decoded_all(answer))
    await world.until(lambda: server.connections == 1)
    assert any(reason in given for given in world.reasons()), world.reasons()
    assert world.producer.requested == 1
    await canary.sings()


@pytest.mark.parametrize("kind", ["tcp", "unix"])
@pytest.mark.parametrize(
    ("serves", "connects"), [(SECRET, bytes(32)), (SECRET, None), (None, SECRET)]
)
async def test_workers_with_different_secrets_tell_both_sides(
    world: Any, kind: str, serves: bytes | None, connects: bytes | None
) -> None:
    server = await world.serve(kind, security=Security(secret=serves))
    reader = world.read(world.connect(security=Security(secret=connects)), 0)
    await reader.until(lambda: bool(reader.failures))
    assert isinstance(reader.failures[0], RemoteTransportError)
    await world.until(lambda: not server.connections)
    assert world.producer.requested == 0


async def test_a_peer_that_reads_nothing_is_closed_and_pins_a_few_buffers(
    world: Any, meet: Callable[..., Any]
) -> None:
    # Of TCP, the kernel has the same limit, and might be the first to say so.
    server = await world.serve(
        "unix", options=world.options._replace(stall_timeout=0.3)
    )
    canary = Canary(world)
    partition = world.producer.partition(0)
    for _ in range(400):
        world.producer.emit(partition, b"x" * 32_768)
    stranger = await meet()
    await stranger.greet()
    stranger._reader._transport.pause_reading()  # type: ignore[attr-defined]
    stranger.send(addressed(0, credit=400))
    await world.until(lambda: bool(world.reasons()))
    assert world.reasons() == ["the peer has read nothing for 0.3 s"]
    await world.until(lambda: server.connections == 1)
    assert partition.is_released
    assert not world.producer.store.out
    await canary.sings()


class Swindler:
    """A producer that says what it likes, after a proper greeting."""

    def __init__(self) -> None:
        self.got = b""
        self.receivers: list[bytes] = []
        self.closed = asyncio.Event()

    async def serve(
        self, answer: Callable[[bytes], list[bytes | m.Message]]
    ) -> PeerAddress:
        async def talk(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            try:
                await reader.readexactly(len(encode_message(hello(worker="client"))))
                writer.write(encode_message(hello(worker="swindler")))
                request = await reader.readexactly(len(request_frame()))
                for piece in answer(request[-20:-4]):
                    writer.write(
                        piece if isinstance(piece, bytes) else encode_message(piece)
                    )
                while chunk := await reader.read(65_536):
                    self.got += chunk
            except ConnectionError:
                # It was closed with something unread: what came before counts.
                pass
            finally:
                self.closed.set()
                writer.close()

        self._server = await asyncio.start_server(talk, "127.0.0.1", 0)
        return PeerAddress("127.0.0.1", self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        self._server.close()
        await self._server.wait_closed()


def data(receiver: bytes, number: int, content: bytes) -> list[bytes | m.Message]:
    header = m.BufferResponse(
        receiver, 0, number, 0, DataType.DATA_BUFFER, len(content)
    )
    return [header, content]


@pytest.fixture
async def swindler(world: Any) -> AsyncIterator[Swindler]:
    built = Swindler()
    yield built
    await world.close()
    await built.close()


async def test_data_without_credit_fails_its_channel_and_keeps_the_connection(
    world: Any, swindler: Swindler
) -> None:
    """NET-164."""
    world.address = await swindler.serve(
        lambda receiver: [
            piece
            for number in range(6)
            for piece in data(receiver, number, b"x" * 20_000)
        ]
    )
    connections = world.connect()
    world.readers.limit = 2
    reader = world.read(connections, 0, slow=True)
    other = world.read(connections, 1, exclusive=0)
    await reader.until(lambda: bool(reader.failures))
    assert "without credit" in str(reader.failures[0])
    assert len(reader.waiting) == 2
    assert not other.failures
    cancel = m.CancelPartitionRequest(reader.receiver_id)
    await world.until(lambda: cancel in decoded_all(swindler.got))
    reader.link.close()
    reader.release()
    other.link.close()
    await swindler.closed.wait()
    sent = decoded_all(swindler.got)
    cancels = [x for x in sent if isinstance(x, m.CancelPartitionRequest)]
    assert cancels == [cancel]
    assert not world.readers.out


async def test_data_for_nobody_is_skipped_and_cancelled_once(
    world: Any, swindler: Swindler
) -> None:
    ghost = b"g" * 16
    world.address = await swindler.serve(
        lambda receiver: [
            *data(ghost, 0, b"boo" * 9_000),
            *data(ghost, 1, b"boo"),
            *data(receiver, 0, b"real"),
            *data(ghost, 2, b""),
        ]
    )
    connections = world.connect()
    reader = world.read(connections, 0)
    await reader.until(lambda: reader.received == [b"real"])
    (connection,) = connections._all
    await world.until(lambda: not connection._control)
    reader.link.close()
    await swindler.closed.wait()
    cancels = [
        x for x in decoded_all(swindler.got) if isinstance(x, m.CancelPartitionRequest)
    ]
    assert cancels == [m.CancelPartitionRequest(ghost)]


async def test_an_exception_of_one_channel_stays_there(
    world: Any, swindler: Swindler
) -> None:
    """NET-169."""
    world.address = await swindler.serve(lambda receiver: data(receiver, 0, b"x"))
    connections = world.connect()
    reader, other = world.read(connections, 0), world.read(connections, 1)

    def refuse(*_: Any) -> None:
        raise ValueError("not that")

    reader.on_buffer = refuse
    await reader.until(lambda: bool(reader.failures))
    assert str(reader.failures[0]) == "not that"
    assert not other.failures
    assert connections.connections == 1


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda _: [b"\0\0\0\x10nonsense!"], "does not speak"),
        (lambda _: [m.ErrorResponse(m.RemoteCause("OSError", "on fire"))], "on fire"),
        (lambda _: [m.AddCredit(1, b"x" * 16)], "cannot send AddCredit"),
        (
            lambda receiver: data(receiver, 0, b"x" * 40_000)[:1],
            "exceeds the 32768 allowed",
        ),
    ],
)
async def test_a_broken_or_failing_peer_fails_all_its_channels(
    world: Any,
    swindler: Swindler,
    answer: Callable[[bytes], list[bytes | m.Message]],
    reason: str,
) -> None:
    """NET-181."""
    world.address = await swindler.serve(answer)
    connections = world.connect()
    readers = [world.read(connections, number) for number in range(3)]
    for reader in readers:
        await reader.until(lambda reader=reader: bool(reader.failures))
        (error,) = reader.failures
        assert isinstance(error, RemoteTransportError)
        assert reason in str(error)
        assert "swindler" in str(error)
    await world.until(lambda: connections.connections == 0)


async def test_a_buffer_that_is_cut_off_comes_back(
    world: Any, swindler: Swindler
) -> None:
    world.address = await swindler.serve(
        lambda receiver: [data(receiver, 0, b"x" * 30_000)[0], b"x" * 25_000]
    )
    connections = world.connect()
    reader = world.read(connections, 0)
    await world.until(lambda: reader.buffers.available == 1)
    await asyncio.sleep(0.02)
    await connections.close()
    reader.release()
    assert not world.readers.out


# TLS.


class Papers:
    """Certificates in files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = trustme.CA()

    def of(self, name: str, authority: trustme.CA | None = None) -> Security:
        signer = authority or self.authority
        certificate = signer.issue_cert("127.0.0.1", "localhost")
        paths = {
            part: self.directory / f"{name}.{part}.pem"
            for part in ("certificate", "key", "authority")
        }
        certificate.cert_chain_pems[0].write_to_path(paths["certificate"])
        certificate.private_key_pem.write_to_path(paths["key"])
        self.authority.cert_pem.write_to_path(paths["authority"])
        return Security.mutual_tls(**paths)


@pytest.fixture
def papers(tmp_path: Path) -> Papers:
    return Papers(tmp_path)


async def test_data_passes_between_workers_that_know_each_others_authority(
    world: Any, papers: Papers
) -> None:
    server = await world.serve(security=papers.of("server"))
    partition = world.producer.partition(0)
    expected = [bytes([n]) * 30_000 for n in range(100)]
    for content in expected:
        world.producer.emit(partition, content)
    partition.finish()
    reader = world.read(world.connect(security=papers.of("client")), 0)
    await reader.until(lambda: reader.has_ended or bool(reader.failures))
    assert reader.received == expected
    assert not world.producer.store.out
    reader.link.close()
    await world.until(lambda: not server.connections)


async def test_a_certificate_of_another_authority_is_not_let_in(
    world: Any, papers: Papers
) -> None:
    server = await world.serve(security=papers.of("server"))
    canary = Canary(world, security=papers.of("friend"))
    await canary.sings()
    # They would go on asking for long.
    hasty = world.options._replace(connect_timeout=1.0)
    stranger = papers.of("stranger", trustme.CA())
    reader = world.read(world.connect(security=stranger, options=hasty), 0)
    await reader.until(lambda: bool(reader.failures))
    assert isinstance(reader.failures[0], RemoteTransportError)
    plain = world.read(world.connect(options=hasty), 0)
    await plain.until(lambda: bool(plain.failures))
    await world.until(lambda: any("TLS was not" in x for x in world.reasons()))
    await canary.sings()
    assert server.connections == 1
    assert world.producer.requested == 1


async def test_a_server_of_another_authority_is_not_spoken_to(
    world: Any, papers: Papers
) -> None:
    await world.serve(security=papers.of("server", trustme.CA()))
    reader = world.read(world.connect(security=papers.of("client")), 0)
    await reader.until(lambda: bool(reader.failures))
    assert "TLS was refused" in str(reader.failures[0])
    assert "certificate verify failed" in str(reader.failures[0])


async def test_closing_a_server_forgets_those_who_never_agree_on_tls(
    world: Any, papers: Papers, meet: Callable[..., Any]
) -> None:
    server = await world.serve(security=papers.of("server"))
    await meet()
    await world.until(lambda: server.connections == 1)
    await server.close()
    assert server.connections == 0
    assert world.reasons() == ["the data server was closed"]


# What is refused where it is written.


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org", "192.0.2.1", ""])
async def test_a_listener_for_everybody_needs_a_secret_or_tls(
    world: Any, host: str
) -> None:
    server = DataServer(world.identity("s"), world.producer, log=world.log)
    with pytest.raises(InvalidArgumentError, match="secret or mutual TLS"):
        await server.listen(PeerAddress(host, 0))


async def test_with_a_secret_a_listener_may_be_for_everybody(world: Any) -> None:
    server = DataServer(
        world.identity("s"),
        world.producer,
        security=Security(secret=SECRET),
        log=world.log,
    )
    address = await server.listen(PeerAddress("0.0.0.0", 0))
    assert address.host == "0.0.0.0"
    assert address.port
    await server.close()


def test_security_that_would_leave_out_a_side_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="15 bytes"):
        Security(secret=bytes(15))
    demanding = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    lax = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with pytest.raises(InvalidArgumentError, match="only one"):
        Security(client_context=demanding)
    with pytest.raises(InvalidArgumentError, match="CERT_REQUIRED"):
        Security(server_context=lax, client_context=demanding)
    assert "secret=" not in repr(Security(secret=SECRET))
    assert repr(SECRET) not in repr(Security(secret=SECRET))


def decoded_all(encoded: bytes) -> list[m.Message]:
    got: list[m.Message] = []

    class Collector:
        def open_body(self, header: m.BufferResponse) -> None:
            return None

        def on_message(self, message: m.Message) -> None:
            got.append(message)

    WireDecoder(Collector()).feed(encoded)
    return got


def decoded(encoded: bytes) -> m.Message:
    (message,) = decoded_all(encoded)
    return message
