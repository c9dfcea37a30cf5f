"""Both ends of a connection: a producer of numbered bytes, and a reader of them."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from aiomailbox.errors import PartitionNotFoundError
from aiomailbox.exchange.core.subpartition import Producer as Lender
from aiomailbox.exchange.frames import (
    BytesSubpartition,
    FrameEncoder,
    FrameWriter,
    QueuedBuffer,
)
from aiomailbox.exchange.remote.client import Connections
from aiomailbox.exchange.remote.connection import ConnectionOptions
from aiomailbox.exchange.remote.credit import ChannelBuffers
from aiomailbox.exchange.remote.handshake import PeerAddress, WorkerIdentity
from aiomailbox.exchange.remote.server import DataServer
from aiomailbox.ids import PartitionId, TaskId, VertexId
from aiomailbox.memory.buffer import BufferConsumer, MemorySegment, NetworkBuffer
from aiomailbox.memory.local_pool import NetworkBufferPool
from aiomailbox.records import BYTES_SERIALIZER, ElementCodec
from aiomailbox.testing import RecordingLog

SEGMENT_BYTES = 32 * 1024
POISON = 0xDB
_NUMBERS = itertools.count(1)


class SegmentStore:
    """Lends segments, spoils those that come back, and counts."""

    def __init__(self, size_bytes: int = SEGMENT_BYTES) -> None:
        self.size_bytes = size_bytes
        self.out: set[int] = set()
        self.lent = 0
        self.limit: int | None = None
        self._kept: dict[int, MemorySegment] = {}
        self._idle: list[MemorySegment] = []
        self._listeners: deque[Any] = deque()

    def take(self) -> MemorySegment:
        segment = self._idle.pop() if self._idle else MemorySegment(self.size_bytes)
        self.out.add(id(segment))
        self._kept[id(segment)] = segment
        self.lent += 1
        return segment

    def recycle(self, segment: MemorySegment) -> None:
        self.out.remove(id(segment))  # A KeyError: it came back twice.
        segment.view[:] = bytes([POISON]) * len(segment.view)
        self._idle.append(segment)
        while self._listeners and self.limit and len(self.out) < self.limit:
            offered = self.take()
            if not self._listeners.popleft().on_buffer_available(offered):
                self.out.remove(id(offered))
                self._idle.append(offered)

    def recycle_many(self, segments: list[MemorySegment]) -> None:
        for segment in segments:
            self.recycle(segment)

    # As a pool of floating buffers.

    def try_request(self) -> MemorySegment | None:
        if self.limit is not None and len(self.out) >= self.limit:
            return None
        return self.take()

    def add_listener(self, listener: Any) -> bool:
        self._listeners.append(listener)
        return True


class View:
    """A view of a subpartition, as its owner makes one."""

    def __init__(self, subpartition: BytesSubpartition, listener: Any) -> None:
        self._subpartition = subpartition
        self.acknowledged = False
        subpartition.attach(listener)

    @property
    def is_released(self) -> bool:
        return self._subpartition.is_released

    @property
    def failure(self) -> BaseException | None:
        return self._subpartition.failure

    @property
    def backlog(self) -> int:
        return self._subpartition.backlog

    def is_available(self, *, has_credit: bool = True) -> bool:
        return self._subpartition.is_available(has_credit=has_credit)

    def poll(self) -> Any:
        return self._subpartition.poll()

    def resume_consumption(self) -> None:
        self._subpartition.resume_consumption()

    def acknowledge_all_data_processed(self) -> None:
        self.acknowledged = True

    def set_buffer_bytes(self, size_bytes: int) -> None:
        self._subpartition.set_buffer_bytes(size_bytes)

    def release(self) -> None:
        self._subpartition.detach()
        self._subpartition.release()


class Producer:
    """Partitions of one subpartition each, and where they are found."""

    def __init__(self) -> None:
        self.store = SegmentStore()
        self.partitions: dict[PartitionId, BytesSubpartition] = {}
        self.views: dict[PartitionId, View] = {}
        self.requested = 0

    def partition(self, number: int, exclusive: int = 2) -> BytesSubpartition:
        partition_id = partition_number(number)
        pool = NetworkBufferPool(2).create_local_pool(2)
        encoder = FrameEncoder(ElementCodec(BYTES_SERIALIZER))
        self.partitions[partition_id] = BytesSubpartition(
            0,
            FrameWriter(Lender(partition_id, pool), encoder),
            receiver_exclusive_buffers=exclusive,
        )
        return self.partitions[partition_id]

    def create_bytes_view(
        self,
        partition_id: PartitionId,
        subpartition_index: int,
        listener: Any,
        *,
        receiver_exclusive_buffers: int,
    ) -> View:
        self.requested += 1
        if partition_id not in self.partitions:
            raise PartitionNotFoundError(f"there is no partition {partition_id}")
        view = View(self.partitions[partition_id], listener)
        self.views[partition_id] = view
        return view

    def emit(self, subpartition: BytesSubpartition, content: bytes) -> None:
        segment = self.store.take()
        segment.view[: len(content)] = content
        buffer = NetworkBuffer(segment, self.store.recycle, size_bytes=len(content))
        subpartition.add(QueuedBuffer(BufferConsumer.of_finished(buffer)))
        subpartition.flush()

    def emit_event(self, subpartition: BytesSubpartition, event: Any) -> None:
        subpartition.add_event(event)
        subpartition.flush()

    def finish(self, subpartition: BytesSubpartition) -> None:
        subpartition.finish()


class Reader:
    """A channel's receiving end with real credit; reads at once unless it is slow."""

    def __init__(
        self, store: SegmentStore, exclusive: int = 2, *, slow: bool = False
    ) -> None:
        self.receiver_id = next(_NUMBERS).to_bytes(16, "big")
        self.is_released = False
        self.store = store
        self.is_slow = slow
        self.link: Any = None
        self.waiting: deque[tuple[int, NetworkBuffer]] = deque()
        self.received: list[bytes] = []
        self.numbers: list[int] = []
        self.has_ended = False
        self.failures: list[BaseException] = []
        self.backlogs: list[int] = []
        self.not_found = 0
        self.empty = 0
        self.changed = asyncio.Event()
        self.buffers = ChannelBuffers(
            store,
            [store.take() for _ in range(exclusive)],
            on_credit=self._on_credit,
            return_exclusive=store.recycle_many,
        )

    def request_buffer(self) -> NetworkBuffer | None:
        return self.buffers.request_buffer()

    def on_buffer(
        self, buffer: NetworkBuffer, sequence_number: int, backlog: int
    ) -> None:
        self.waiting.append((sequence_number, buffer))
        self.backlogs.append(backlog)
        if buffer.data_type.is_blocking_upstream:
            self.buffers.on_blocking_event()
        self.buffers.on_sender_backlog(backlog)
        if not self.is_slow:
            self.read()
        self.changed.set()

    def on_empty_buffer(self, sequence_number: int, backlog: int) -> None:
        self.numbers.append(sequence_number)
        self.empty += 1
        buffer = self.buffers.request_buffer()
        assert buffer is not None
        buffer.recycle()
        self.changed.set()

    def on_sender_backlog(self, backlog: int) -> None:
        self.backlogs.append(backlog)
        self.buffers.on_sender_backlog(backlog)
        self.changed.set()

    def take_credit(self) -> int:
        return self.buffers.take_credit()

    def on_partition_not_found(self) -> None:
        self.not_found += 1
        self.changed.set()

    def fail(self, error: BaseException) -> None:
        self.failures.append(error)
        self.changed.set()

    def read(self, count: int | None = None) -> None:
        while self.waiting and count != 0:
            number, buffer = self.waiting.popleft()
            content = bytes(buffer.readable())
            self.numbers.append(number)
            if buffer.data_type.is_buffer:
                self.received.append(content)
            elif buffer.data_type.name == "END_OF_PARTITION":
                self.has_ended = True
            buffer.recycle()
            count = None if count is None else count - 1

    def release(self) -> None:
        self.is_released = True
        while self.waiting:
            self.waiting.popleft()[1].recycle()
        self.buffers.release()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    def _on_credit(self) -> None:
        if self.link is not None:
            self.link.announce_credit()


def partition_number(number: int) -> PartitionId:
    return PartitionId(TaskId(VertexId(1), number, 0), 0)


class World:
    """A server, and connections to it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.producer = Producer()
        self.readers = SegmentStore()
        self.log = RecordingLog()
        # Where time is not what a test is about, none of them ends on a busy machine.
        self.options = ConnectionOptions(
            handshake_timeout=60.0, linger=60.0, connect_timeout=60.0
        )
        self.address = PeerAddress("127.0.0.1", 0)
        self._closing: list[Any] = []

    def identity(self, worker: str, **changes: Any) -> WorkerIdentity:
        return WorkerIdentity(b"j" * 16, worker)._replace(**changes)

    async def serve(self, kind: str = "tcp", **arguments: Any) -> DataServer:
        server = DataServer(
            self.identity("server"),
            self.producer,
            options=arguments.pop("options", self.options),
            log=self.log,
            **arguments,
        )
        self._closing.append(server)
        wanted = PeerAddress("127.0.0.1", 0)
        if kind == "unix":
            wanted = PeerAddress(str(self.directory / "data.sock"))
        self.address = await server.listen(wanted)
        return server

    def connect(self, **arguments: Any) -> Connections:
        connections = Connections(
            arguments.pop("identity", self.identity("client")),
            options=arguments.pop("options", self.options),
            log=self.log,
            **arguments,
        )
        self._closing.insert(0, connections)
        return connections

    def read(
        self, connections: Connections, number: int, exclusive: int = 2, **how: Any
    ) -> Reader:
        reader = self.new_reader(exclusive, **how)
        reader.link = connections.request(
            self.address, partition_number(number), 0, reader, exclusive
        )
        return reader

    def new_reader(self, exclusive: int = 2, **how: Any) -> Reader:
        return Reader(self.readers, exclusive, **how)

    def reasons(self) -> list[str]:
        return [
            fields["reason"]
            for _, event, fields in self.log.entries
            if event == "connection closed"
        ]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for what happens on sockets: nobody tells when."""
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.002)

    async def close(self) -> None:
        for part in self._closing:
            await part.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    built = World(tmp_path)
    yield built
    await built.close()
    assert len(asyncio.all_tasks()) <= 2, asyncio.all_tasks()


@pytest.fixture
def new_reader(world: World) -> Callable[..., Reader]:
    return world.new_reader


@pytest.fixture(scope="session")
def make_world() -> Callable[[], World]:
    """Make worlds without sockets, for tests of properties."""
    return lambda: World(Path("/nowhere"))
