"""Jobs whose connections are cut, closed by halves, mangled, slow, and visited."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.errors import RemoteTransportError
from aiomailbox.exchange.remote.wire import Hello, HelloProof, encode_message
from aiomailbox.runtime.peers.host import WorkerDesk
from aiomailbox.runtime.peers.network import PeerNetwork

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(180)]

SECOND = 2
CONTENT_BYTES = 100_000
# In the middle of a record, whatever came before it.
FAULT_AT_BYTES = 1_550_000

Pump = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


class Proxy:
    """Stands before a worker's data server, and passes on what it is told to.

    Args:
        address: Of the server.
        path: Of the proxy's own unix socket; TCP of this machine without.
        down: Passes on what the server sends.
        up: Passes on what its readers send.
    """

    def __init__(
        self,
        address: tuple[str, int | None],
        path: Path | None,
        down: Pump | None,
        up: Pump | None,
    ) -> None:
        self._target = address
        self._down = down or pass_on
        self._up = up or pass_on
        if path is None:
            bound = socket.create_server(("127.0.0.1", 0))
            self.address: tuple[str, int | None] = bound.getsockname()
        else:
            bound = socket.socket(socket.AF_UNIX)
            bound.bind(str(path))
            bound.listen()
            self.address = str(path), None
        self._writers: list[asyncio.StreamWriter] = []
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._listen(bound))]

    async def _listen(self, bound: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with bound:
            bound.setblocking(False)
            while True:
                accepted, _ = await loop.sock_accept(bound)
                self._tasks.append(loop.create_task(self._serve(accepted)))

    async def _serve(self, accepted: socket.socket) -> None:
        host, port = self._target
        near = await asyncio.open_connection(sock=accepted)
        if port is None:
            far = await asyncio.open_unix_connection(host)
        else:
            far = await asyncio.open_connection(host, port)
        self._writers += [near[1], far[1]]
        with contextlib.suppress(OSError):
            await asyncio.gather(self._up(near[0], far[1]), self._down(far[0], near[1]))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)


async def pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while piece := await source.read(65_536):
        if target.transport.is_closing():
            return
        target.write(piece)
        await target.drain()
    target.write_eof()


def after(fault: Callable[[asyncio.StreamWriter], None]) -> Pump:
    """Pass on so many bytes, then do something, and go on."""

    async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        passed = 0
        while piece := await source.read(65_536):
            if passed < FAULT_AT_BYTES <= passed + len(piece):
                head = FAULT_AT_BYTES - passed
                target.write(piece[:head])
                await target.drain()
                fault(target)
                piece = piece[head:]
                passed += head
            passed += len(piece)
            if not target.transport.is_closing() and target.can_write_eof():
                with contextlib.suppress(RuntimeError):
                    target.write(piece)
                    await target.drain()

    return pump


def cut(target: asyncio.StreamWriter) -> None:
    target.transport.abort()


def half_close(target: asyncio.StreamWriter) -> None:
    target.write_eof()


def insert_a_byte(target: asyncio.StreamWriter) -> None:
    target.write(b"?")


async def drip(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Pass on pieces of all sizes, with pauses."""
    rng = random.Random(7)
    while piece := await source.read(65_536):
        while piece:
            size = rng.choice([1, 8, 46, 47, 48, 1_000, 20_000, 65_536])
            target.write(piece[:size])
            piece = piece[size:]
            if rng.random() < 0.2:
                await asyncio.sleep(rng.random() / 1000)
        await target.drain()
    target.write_eof()


@pytest.fixture
async def place(monkeypatch: Any, temporary: Path) -> Any:
    """Place proxies: workers are told their addresses instead of the servers'."""
    placed: list[Proxy] = []
    known = WorkerDesk.addresses_in_order

    def put(
        down: Pump | None = None,
        up: Pump | None = None,
        *,
        peers: tuple[int, ...] = (SECOND,),
    ) -> None:
        addresses: list[tuple[str, int | None]] = []

        def substituted(desk: WorkerDesk) -> list[tuple[str, int | None]]:
            if addresses:
                return addresses
            addresses.extend(known(desk))
            for peer in peers:
                host, port = addresses[peer]
                path = Path(host).with_suffix(".proxy") if port is None else None
                placed.append(Proxy((host, port), path, down, up))
                addresses[peer] = placed[-1].address
            return addresses

        monkeypatch.setattr(WorkerDesk, "addresses_in_order", substituted)

    yield put
    for proxy in placed:
        await proxy.close()


@pytest.fixture
async def env(traces: Any, place: Any) -> Any:
    """As everywhere here; proxies close before the traces are looked at."""
    made = am.StreamExecutionEnvironment(parallelism=2, config=am.JobConfig(seed=1))
    made.configure(deployment=am.Processes(2))
    return made


def content(number: int) -> bytes:
    return random.Random(number).randbytes(CONTENT_BYTES)


def checked(record: tuple[int, int, bytes]) -> int:
    number, check, body = record
    if zlib.crc32(body) != check:
        raise AssertionError(f"{number} was changed on its way")
    return number


def large_records(
    env: am.StreamExecutionEnvironment, count: int, seen: list[int]
) -> None:
    """Records of 100 kB cross between the workers both ways, numbers come back."""
    (
        env.from_collection(range(count))
        .map(lambda n: (n, zlib.crc32(content(n)), content(n)))
        .key_by(lambda record: record[0] % 32)
        .map(checked)
        .sink_to(seen.append)
    )


def assert_once(seen: list[int]) -> None:
    assert len(set(seen)) == len(seen), "something was delivered twice"


@pytest.mark.parametrize("transport", ["unix", "tcp"])
@pytest.mark.parametrize("fault", [cut, half_close])
async def test_a_connection_lost_in_mid_record_fails_the_job_and_names_both_ends(
    env: Any, place: Any, fault: Callable[[asyncio.StreamWriter], None], transport: Any
) -> None:
    env.configure(deployment=am.Processes(2, transport=transport))
    place(down=after(fault))
    seen: list[int] = []
    large_records(env, 1_000, seen)
    with pytest.raises(am.JobFailedError) as raised:
        async with asyncio.timeout(150):
            await env.execute()
    cause = raised.value.__cause__
    assert isinstance(cause, am.RemoteTaskError)
    assert (cause.worker, cause.kind) == ("worker 1", "RemoteTransportError")
    assert "worker '1'" in str(cause)
    assert "worker '2'" in str(cause)
    assert_once(seen)
    assert len(seen) < 1_000


async def test_a_reader_that_closes_its_half_fails_the_job_with_both_ends(
    env: Any, place: Any
) -> None:
    async def close_after_a_while(
        source: asyncio.StreamReader, target: asyncio.StreamWriter
    ) -> None:
        # Greeting, proof, request and some credit: 29 bytes each time.
        passed = 0
        while passed < 1_000 and (piece := await source.read(1_000)):
            target.write(piece)
            passed += len(piece)
        target.write_eof()
        while await source.read(1_000):
            pass

    place(up=close_after_a_while)
    seen: list[int] = []
    large_records(env, 1_000, seen)
    with pytest.raises(am.JobFailedError) as raised:
        async with asyncio.timeout(150):
            await env.execute()
    # Worker 1 reads from worker 2 as the parent does: either may be first.
    cause = raised.value.__cause__
    assert isinstance(cause, am.RemoteTaskError | RemoteTransportError)
    assert getattr(cause, "kind", "RemoteTransportError") == "RemoteTransportError"
    assert "worker '2'" in str(raised.value)
    assert "the peer closed it" in str(raised.value)
    assert_once(seen)


async def test_a_stream_with_a_byte_too_many_fails_the_job(
    env: Any, place: Any
) -> None:
    place(down=after(insert_a_byte))
    seen: list[int] = []
    large_records(env, 1_000, seen)
    with pytest.raises(am.JobFailedError) as raised:
        async with asyncio.timeout(150):
            await env.execute()
    # The frame is shifted: either its end is found wrong, or the record in it.
    assert any(
        text in str(raised.value)
        for text in ("does not speak this protocol", "was changed", "CorruptStream")
    ), raised.value
    assert_once(seen)


async def test_a_slow_connection_in_small_pieces_changes_nothing(
    env: Any, place: Any
) -> None:
    place(down=drip, up=drip, peers=(1, SECOND))
    seen: list[int] = []
    large_records(env, 60, seen)
    async with asyncio.timeout(150):
        await env.execute()
    assert sorted(seen) == list(range(60))


# Strangers at the door of a job over TCP.


class Door:
    """What a stranger could know at the most, but for the secret."""

    def __init__(self) -> None:
        self.network: Any = None

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [(host, port) for host, port in self.network._addresses]

    def greeting(self) -> Hello:
        identity = self.network._server._identity
        return Hello(1, 1, identity.job_id, "stranger", b"n" * 16, identity[2])


@pytest.fixture
def door(monkeypatch: Any) -> Door:
    found = Door()
    know = PeerNetwork.know

    def learn(network: Any, addresses: Any) -> None:
        know(network, addresses)
        found.network = network

    monkeypatch.setattr(PeerNetwork, "know", learn)
    return found


async def scan(door: Door, address: tuple[str, int]) -> None:
    """Connect and go."""
    _, writer = await asyncio.open_connection(*address)
    writer.close()
    await writer.wait_closed()


async def babble(door: Door, address: tuple[str, int]) -> None:
    """Say something else."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(random.Random(1).randbytes(500))
    with contextlib.suppress(ConnectionError):
        await reader.read()
    writer.close()


async def guess(door: Door, address: tuple[str, int]) -> None:
    """Greet as one of the job, and give a wrong proof; nothing may be said of theirs."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(encode_message(door.greeting()))
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    await reader.readexactly(length - 4)
    writer.write(encode_message(HelloProof(bytes(32))))
    rest = b""
    with contextlib.suppress(ConnectionError):
        rest = await reader.read()
    assert b"proof" not in rest
    assert b"refused; my log says why" in rest
    writer.close()


async def dawdle(door: Door, address: tuple[str, int]) -> None:
    """Greet byte by byte, and never end: it is closed with the job at the latest."""
    reader, writer = await asyncio.open_connection(*address)
    for byte in encode_message(door.greeting())[:-1]:
        if reader.at_eof():
            break
        writer.write(bytes([byte]))
        await asyncio.sleep(0.005)
    with contextlib.suppress(ConnectionError):
        await reader.read()
    writer.close()


REASONS = {
    scan: "the peer closed it during the handshake",
    babble: "does not speak this protocol",
    guess: "did not prove",
    dawdle: "the data server was closed",
}


async def test_strangers_change_nothing_about_a_job_over_tcp(
    env: Any, door: Door, capfd: Any
) -> None:
    env.configure(deployment=am.Processes(2, transport="tcp"))
    seen: list[int] = []
    gate = asyncio.Event()

    async def numbers() -> Any:
        # The job runs for as long as the strangers are busy.
        number = 0
        while not gate.is_set() or number < 2_000:
            yield number
            number += 1
            if not number % 50:
                await asyncio.sleep(0.005)

    (
        env.from_async_iterable(numbers())
        .rebalance()
        .map(lambda n: (n, bytes(n % 5_000)))
        .key_by(lambda pair: pair[0] % 32)
        .map(lambda pair: pair[0] if len(pair[1]) == pair[0] % 5_000 else -1)
        .sink_to(seen.append)
    )
    async with asyncio.timeout(150):
        async with env.start("visited") as job, asyncio.TaskGroup() as strangers:
            while len(seen) < 100:
                assert job.state in {am.JobState.CREATED, am.JobState.RUNNING}
                await asyncio.sleep(0.02)
            slow = [
                strangers.create_task(dawdle(door, address))
                for address in door.addresses
            ]
            for visit in (scan, babble, guess):
                for address in door.addresses:
                    await visit(door, address)
            assert not any(task.done() for task in slow)
            gate.set()
            await job.result()
    assert seen
    assert sorted(seen) == list(range(len(seen)))
    written = capfd.readouterr().err
    for visit, reason in REASONS.items():
        # One line of each worker, of connections that were never open.
        lines = [line for line in written.splitlines() if reason in line]
        assert len(lines) >= 2, (visit.__name__, written)
