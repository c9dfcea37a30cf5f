"""One task of a barrier stage: a worker of the job, and in the first one its director.

Theory of operation: Spark calls `run_member` in the worker's main thread. The tasks tell
each other by Spark's ``allGather`` where the director listens. Worker and director have
threads and event loops of their own, and a third thread reads what Spark gives; the main
thread waits for their end. What became of the job is the one row that the first task
gives; the others give none. A worker that dies takes the stage with it, by Spark's rules.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from aiomailbox.connectors.spark.frame_source import hold_watermarks
from aiomailbox.connectors.spark.inside.partitions import (
    BarrierInput,
    PartitionFeeds,
    Wrapping,
)
from aiomailbox.connectors.spark.shipped import (
    HANDSHAKE_S,
    IDENTITY_BYTES,
    Credentials,
    admit,
    connect_as,
    read_message,
    security_of,
)
from aiomailbox.errors import (
    AioMailboxError,
    CorruptStreamError,
    HandshakeError,
    RemoteTaskError,
    WorldError,
)
from aiomailbox.exchange.remote.connection import ConnectionOptions
from aiomailbox.exchange.remote.handshake import PeerAddress
from aiomailbox.logs import library_log
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.runtime.declared import state_classes
from aiomailbox.runtime.job_snapshot import JobSnapshot
from aiomailbox.runtime.master import JobMaster
from aiomailbox.runtime.observer import JobObserver
from aiomailbox.runtime.peers.control import PARENT_BYTES_MAX, Worker, WorkerEvents
from aiomailbox.runtime.peers.host import assemble
from aiomailbox.runtime.peers.limits import limit_from_text
from aiomailbox.runtime.peers.messages import (
    Begin,
    ErrorText,
    Failed,
    decode_from_parent,
    encode,
    text_of_error,
)
from aiomailbox.runtime.peers.placement import PeerPlace, peer_name
from aiomailbox.runtime.peers.shipping import Shipment, unpack
from aiomailbox.runtime.peers.worker_job import WorkerJob
from aiomailbox.scratch import ScratchDirectories
from aiomailbox.supervision import LoopThread, run_in_thread

# The director of a job: the parent of its workers, which are Spark's tasks.
#
# Theory of operation: Spark has started the workers, all at once. The director shares
# the process of the first one, in a thread and a loop of its own. Each worker connects
# to it, proves that it knows the secret, and is then a worker like a process of one
# machine: told the job, its tasks' places, and when everything is over.


# Spark has started all of them, and they have spoken to each other.
_ARRIVAL_S: Final = 60.0


def identity_of(peer: int) -> bytes:
    """Return what a worker of a number says it is."""
    return peer.to_bytes(IDENTITY_BYTES, "big")


class Arrivals:
    """Where workers connect with the director."""

    def __init__(self, place: PeerPlace, workers: int) -> None:
        self._security = place.security
        self._workers = workers
        self._server: asyncio.Server | None = None
        self._arrived: dict[int, asyncio.Future[asyncio.StreamWriter]] = {}

    async def listen(self, bound: socket.socket) -> None:
        """Take workers from now on."""
        context = self._security.server_context
        self._server = await asyncio.start_server(self._greet, sock=bound, ssl=context)

    async def wait(self, peer: int) -> asyncio.StreamWriter:
        """Return the connection of a worker that has proved who it is."""
        try:
            async with asyncio.timeout(_ARRIVAL_S):
                return await self._of(peer)
        except TimeoutError as error:
            raise WorldError(
                f"{peer_name(peer)} has not connected to the first worker within "
                f"{_ARRIVAL_S:g} s: check that the executors can reach each other's "
                "ports"
            ) from error

    def close(self) -> None:
        """Accept no more connections."""
        if self._server is not None:
            self._server.close()

    async def _greet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        secret = self._security.secret
        assert secret is not None, "a job has a secret"
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                identity = await admit(reader, writer, secret)
        except (OSError, EOFError, TimeoutError, HandshakeError):
            identity = None
        peer = 0 if identity is None else int.from_bytes(identity, "big")
        if not 0 < peer <= self._workers or self._of(peer).done():
            writer.close()
            return
        # No await from the proof to here: the worker waits for it, and says nothing.
        self._of(peer).set_result(writer)

    def _of(self, peer: int) -> asyncio.Future[asyncio.StreamWriter]:
        arrived = self._arrived.get(peer)
        if arrived is None:
            arrived = asyncio.get_running_loop().create_future()
            self._arrived[peer] = arrived
        return arrived


class BarrierWorker(Worker):
    """A worker as the director has it: a connection."""

    def __init__(self, peer: int, events: WorkerEvents, arrivals: Arrivals) -> None:
        super().__init__(peer, events)
        self._arrivals = arrivals
        # Dropped, it would close the connection.
        self._writer: asyncio.StreamWriter | None = None

    async def start(self) -> None:
        """Wait until it has connected."""
        self._writer = await self._arrivals.wait(self.peer)
        self.has_exited = False
        await self._channel.adopt(self._writer.transport)

    def kill(self, reason: str | None) -> None:
        """Cut the connection: the worker ends its tasks, and Spark's task with them."""
        self._reason = self._reason or reason
        self._channel.abort()

    def _on_lost(self, reason: BaseException | None) -> None:
        self._on_gone(
            "is gone: its Spark task has ended"
            if reason is None
            else f"broke the protocol: {reason}"
        )


class BarrierStarter:
    """The `Starter` of a barrier stage: Spark has started the workers."""

    def __init__(self, place: PeerPlace, arrivals: Arrivals) -> None:
        self._place = place
        self._arrivals = arrivals

    def prepare(self) -> PeerPlace:
        """Return where the director is."""
        return self._place

    def new_worker(self, peer: int, events: WorkerEvents) -> BarrierWorker:
        """Return a worker that has not connected."""
        return BarrierWorker(peer, events, self._arrivals)

    def release(self) -> None:
        """Nothing: what the place has made goes with the task."""


# How far a barrier stage is, for the driver: a file of its directory.
#
# Theory of operation: the director, which is in a worker, writes the job's snapshot to
# a file once a second, and once more when the job has ended. The driver reads it. A
# snapshot that could not be written or read is left out: another one follows.


_FILE: Final = "snapshot.json"
_EVERY_S: Final = 1.0


@contextlib.asynccontextmanager
async def showing(job: JobMaster, place: Path | None) -> AsyncIterator[None]:
    """Write a job's snapshots for as long as the block is, and one at its end."""
    if place is None:
        yield
        return
    observer = JobObserver(job)

    async def write() -> None:
        data = observer.snapshot(with_stacks=True).to_json()
        with contextlib.suppress(OSError):
            await run_in_thread(_write, place / _FILE, data)

    async def keep_writing() -> None:
        while True:
            await write()
            await asyncio.sleep(_EVERY_S)

    writing = asyncio.get_running_loop().create_task(keep_writing(), name="snapshots")
    try:
        yield
    finally:
        writing.cancel()
        await asyncio.wait([writing])
        await write()


@contextlib.asynccontextmanager
async def watching(
    place: Path, tell: Callable[[JobSnapshot], object] | None
) -> AsyncIterator[None]:
    """Tell of new snapshots for as long as the block is, and of the last one."""
    if tell is None:
        yield
        return
    last: bytes = b""

    async def read() -> None:
        nonlocal last
        data = last
        with contextlib.suppress(OSError):
            data = await run_in_thread((place / _FILE).read_bytes)
        if data == last:
            return
        last = data
        with contextlib.suppress(CorruptStreamError):
            snapshot = JobSnapshot.from_json(data)
            tell(snapshot)

    async def keep_reading() -> None:
        while True:
            await read()
            await asyncio.sleep(_EVERY_S / 2)

    reading = asyncio.get_running_loop().create_task(keep_reading(), name="snapshots")
    try:
        yield
    finally:
        reading.cancel()
        await asyncio.wait([reading])
    if not reading.cancelled():
        reading.result()
    await read()


def _write(path: Path, data: bytes) -> None:
    part = path.with_suffix(".part")
    part.write_bytes(data)
    os.replace(part, path)


# Spark detects a dead worker; a function may block a loop for as long as it likes.
_DAY_S: Final = 86_400.0
_OPTIONS: Final = ConnectionOptions(stall_timeout=_DAY_S, connect_timeout=60.0)
_CONNECT_S: Final = 60.0
# How long the threads may take to end.
_END_S: Final = 60.0
# How long those that were notified of the end.
_SELF_END_S: Final = 5.0
# The file beside the results that says which attempt of the driver is the present one.
MARKER: Final = "epoch"


@dataclass(frozen=True, slots=True)
class BarrierPart:
    """The plan that all tasks of one attempt get.

    Attributes:
        payload: The job, as `pack` made it for a parent.
        limits: Its rate limits.
        workers: How many tasks there are.
        wrapping: How the rows of the DataFrames come.
        secret: What they prove themselves with.
        credentials: What they encrypt with; None for no encryption.
        place: A directory that all of them see.
        epoch: The number of the attempt.
        is_watched: Whether the driver wants to see how far it is.
    """

    payload: bytes
    limits: list[RateLimit]
    workers: int
    wrapping: Wrapping
    secret: bytes
    credentials: Credentials | None
    place: str
    epoch: int
    is_watched: bool = False


class Outcome(msgspec.Struct, frozen=True):
    """The end of a job.

    Attributes:
        error: Why it failed; None if it did not.
        worker: Where it failed.
        engine_traceback: Where it failed with all frames of the engine.
        is_final: Whether another attempt would fail in the same way.
    """

    error: ErrorText | None = None
    worker: str = ""
    engine_traceback: str = ""
    is_final: bool = False


class _Hello(msgspec.Struct, frozen=True):
    """The message that tasks send to each other."""

    host: str
    port: int
    nonce: str


def run_member(
    part: BarrierPart, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run one task; blocks. Called by Spark, once for each partition."""
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    index = context.partitionId()
    infos = context.getTaskInfos()
    _check_place(part)
    host = infos[index].address.rpartition(":")[0].strip("[]") or "127.0.0.1"
    bound = socket.create_server((host, 0)) if index == 0 else None
    hello = _Hello(
        host, 0 if bound is None else bound.getsockname()[1], secrets.token_hex(16)
    )
    said = context.allGather(msgspec.json.encode(hello).decode())
    first = msgspec.json.decode(said[0], type=_Hello)
    # Spark may start the tasks of one attempt twice: those are strangers to each other.
    secret = hmac.digest(part.secret, first.nonce.encode(), hashlib.sha256)
    security = security_of(secret, part.credentials)
    scratch = ScratchDirectories()
    place = PeerPlace(PeerAddress(host, 0), security, _OPTIONS, scratch.below)
    threads: list[LoopThread[Any]] = [LoopThread("aiomailbox-worker")]
    outcome: Future[Outcome] | None = None
    if bound is not None:
        threads.append(LoopThread("aiomailbox-director"))
        outcome = threads[-1].start(lambda: _direct(part, place, bound))
    director = PeerAddress(first.host, first.port)
    worked = threads[0].start(lambda: _work(part, place, director, index, batches))
    try:
        if outcome is None:
            # If the director is gone, Spark knows, or the director says why.
            with contextlib.suppress(WorldError):
                worked.result()
            return
        row = pa.array([msgspec.json.encode(outcome.result())], pa.binary())
        yield pa.RecordBatch.from_arrays([row], names=["outcome"])
    finally:
        for thread in threads:
            _end(thread)
        scratch.remove()


def _end(thread: LoopThread[Any]) -> None:
    """End it, if it does not end by itself."""
    if not thread.wait(_SELF_END_S):
        thread.cancel()
        thread.wait(_END_S)


async def _direct(part: BarrierPart, place: PeerPlace, bound: socket.socket) -> Outcome:
    """Direct the job, and say what became of it."""
    arrivals = Arrivals(place, part.workers)
    await arrivals.listen(bound)
    job = None
    try:
        shipment = unpack(part.payload, part.limits)
        graph, config = shipment.graph, shipment.config
        classes = (
            state_classes(graph, config.state_names)
            if config.needs_state_classes
            else ()
        )
        starter = BarrierStarter(place, arrivals)
        job = assemble(graph, config, part.workers, starter, {}, classes)
        job.start()
        async with showing(job, Path(part.place) if part.is_watched else None):
            await job.wait()
    except asyncio.CancelledError:
        if job is not None:
            job.cancel()
            await job.outlast()
        raise
    except Exception as error:  # noqa: BLE001 -- the driver gets it, whatever it is
        cause = error.__cause__ or error
        text, worker = _text_of(cause)
        traceback = getattr(error, "engine_traceback", "")
        return Outcome(text, worker, traceback, is_final=_is_final(cause))
    finally:
        arrivals.close()
    return Outcome()


async def _work(
    part: BarrierPart,
    place: PeerPlace,
    director: PeerAddress,
    index: int,
    batches: Iterator[pa.RecordBatch],
) -> None:
    """Be a worker until the director says that all is over."""
    peer = index + 1
    reader, writer = await _connect(place, director, peer)
    feeds = PartitionFeeds(batches, index, part.wrapping)
    feeds.start()
    try:
        begin = await _begin(reader)
        limits = [limit_from_text(text) for text in begin.limits]
        try:
            shipment = unpack(begin.payload, limits)
            _attach(shipment, feeds)
            for vertex in shipment.graph.vertices:
                hold_watermarks(vertex)
            job = WorkerJob(shipment, limits, begin, place, lambda: None, library_log())
        except Exception as error:  # noqa: BLE001 -- the director gets it, whatever it is
            writer.write(encode(Failed(error)))
            await writer.drain()
            return
        await job.run(lambda channel: channel.adopt(writer.transport))
        if job.is_orphaned:
            raise WorldError("the first worker, which directs the job, is gone")
    finally:
        feeds.abandon()
        writer.close()


async def _connect(
    place: PeerPlace, director: PeerAddress, peer: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect with the director, and prove who this is."""
    secret = place.security.secret
    assert secret is not None, "a job has a secret"
    try:
        async with asyncio.timeout(_CONNECT_S):
            assert director.port is not None, "the director listens at a port"
            return await connect_as(
                identity_of(peer),
                secret,
                director.host,
                director.port,
                place.security.client_context,
            )
    except (OSError, EOFError, TimeoutError) as error:
        raise WorldError(
            f"the first worker, at {director}, cannot be reached from another: {error!r}"
        ) from error


async def _begin(reader: asyncio.StreamReader) -> Begin:
    """Return the first message of the director."""
    try:
        message = await read_message(reader, decode_from_parent, PARENT_BYTES_MAX)
    except (OSError, EOFError) as error:
        raise WorldError("the first worker ended before the job began") from error
    if not isinstance(message, Begin):
        raise CorruptStreamError(f"a worker cannot begin with {message!r}")
    return message


def _attach(shipment: Shipment, feeds: PartitionFeeds) -> None:
    for vertex in shipment.graph.vertices:
        source = vertex.head.transformation.factory
        if isinstance(source, BarrierInput):
            source.attach(feeds[source.number])


def _check_place(part: BarrierPart) -> None:
    """Check that the workers see what the driver sees, and are of its last attempt."""
    marker = Path(part.place) / MARKER
    try:
        epoch = int(marker.read_text("utf-8"))
    except FileNotFoundError as error:
        raise WorldError(
            f"this executor does not see {part.place!r}, which the driver has made: "
            "results and checkpoints have to be in storage that all of them see"
        ) from error
    if epoch != part.epoch:
        raise WorldError(
            f"attempt {part.epoch} is over: the driver has begun attempt {epoch}"
        )


def _text_of(error: BaseException) -> tuple[ErrorText, str]:
    """Return an error as text, and where it happened."""
    text = text_of_error(error)
    if not isinstance(error, RemoteTaskError):
        return text, "the director"
    # It has come as text before.
    told = msgspec.structs.replace(
        text, kind=error.kind, text=error.text, traceback="", is_echo=error.is_echo
    )
    return told, error.worker


def _is_final(error: BaseException) -> bool:
    """Say whether it is what the user has to change."""
    return isinstance(error, AioMailboxError) and not isinstance(error, WorldError)
