"""A connection in memory whose every step is taken by hand, and a job around it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from aiomailbox.errors import PartitionNotFoundError, RemoteFailureError
from aiomailbox.exchange.core.contract import BytesView
from aiomailbox.exchange.gate import (
    InputGate,
    LocalInputChannel,
    PartitionRegistry,
)
from aiomailbox.exchange.partition import ResultPartition
from aiomailbox.exchange.remote.channel import GateBuffers, RemoteInputChannel
from aiomailbox.exchange.remote.credit import SenderCredit
from aiomailbox.exchange.remote.handshake import PeerAddress, Receiver
from aiomailbox.ids import PartitionId, TaskId, VertexId
from aiomailbox.memory.buffer import DataType, MemorySegment, NetworkBuffer
from aiomailbox.memory.local_pool import NetworkBufferPool
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.run import ListRun
from aiomailbox.records.run_columns import PythonSerializer

ADDRESS = PeerAddress("127.0.0.1", 1)


class MemoryLink:
    """One channel's link: what is said waits in two queues until it is delivered."""

    def __init__(
        self,
        registry: PartitionRegistry,
        partition_id: PartitionId,
        index: int,
        receiver: Receiver,
        credit: int,
    ) -> None:
        self._registry = registry
        self._partition_id = partition_id
        self._index = index
        self.receiver = receiver
        self.sender = SenderCredit(credit)
        self.view: BytesView | None = None
        self.upstream: deque[Callable[[], None]] = deque()
        self.downstream: deque[tuple[Callable[[], None], int]] = deque()
        self.credit_in_flight = 0
        self.is_closed = False
        self.announced_sizes: list[int] = []
        self.requests = 0
        self.told_failed = False
        self.announced = 0
        self.request_again()

    @property
    def data_in_flight(self) -> int:
        return sum(data for _, data in self.downstream)

    def announce_credit(self) -> None:
        self._say(self._write_credit)

    def request_again(self) -> None:
        self.requests += 1
        self._say(self._request)

    def resume_consumption(self) -> None:
        def resume() -> None:
            if self.view is not None:
                self.sender.on_resume()
                self.announced = 0
                self.view.resume_consumption()

        self._say(resume)

    def acknowledge_all_data_processed(self) -> None:
        self._say(lambda: self.view and self.view.acknowledge_all_data_processed())

    def announce_buffer_size(self, size_bytes: int) -> None:
        self.announced_sizes.append(size_bytes)
        self._say(lambda: self.view and self.view.set_buffer_bytes(size_bytes))

    def close(self) -> None:
        if not self.is_closed:
            self._say(lambda: self.view and self.view.release())
            self.is_closed = True

    def on_data_available(self) -> None:
        """The link looks by itself."""

    def on_priority_event(self, sequence_number: int) -> None:
        """The link looks by itself."""

    def deliver_up(self) -> bool:
        """Let the producer take the oldest thing that was said to it."""
        if not self.upstream:
            return False
        self.upstream.popleft()()
        return True

    def deliver_down(self) -> bool:
        """Let the reader take the oldest thing that was sent to it."""
        if not self.downstream:
            return False
        arrive, _ = self.downstream.popleft()
        if not self.receiver.is_released:
            arrive()
        return True

    def send(self) -> bool:
        """Let the producer send one thing, if it has any and may."""
        view = self.view
        if view is None:
            return False
        if view.is_released:
            if not self.told_failed and not self.is_closed:
                self.told_failed = True
                kind = type(view.failure).__name__
                error = RemoteFailureError("w1", kind, str(view.failure))
                self.downstream.append((lambda: self.receiver.fail(error), 0))
                return True
            return False
        backlog = view.backlog
        if self.sender.announces_backlog(backlog) and backlog != self.announced:
            self.announced = backlog
            announce = self.receiver.on_sender_backlog
            self.downstream.append((lambda: announce(backlog), 0))
            return True
        if not view.is_available(has_credit=self.sender.available > 0):
            return False
        polled = view.poll()
        if polled is None:
            return False
        data_type = polled.buffer.data_type
        content = bytes(polled.buffer.readable())
        polled.buffer.recycle()
        self.sender.on_sent(data_type)
        number, after = polled.sequence_number, polled.backlog
        self.downstream.append(
            (
                lambda: self._arrive(content, data_type, number, after),
                int(data_type.is_buffer),
            )
        )
        return True

    def pump(self) -> bool:
        """Take every step there is, and say whether there was one."""
        moved = False
        while self.deliver_up() or self.send() or self.deliver_down():
            moved = True
        return moved

    def _arrive(
        self, content: bytes, data_type: DataType, number: int, backlog: int
    ) -> None:
        if data_type.is_event:
            segment = MemorySegment(len(content))
            buffer = NetworkBuffer(segment, MemorySegment.free, data_type)
        elif not content:
            self.receiver.on_empty_buffer(number, backlog)
            return
        else:
            requested = self.receiver.request_buffer()
            assert requested is not None, "data came without credit"
            buffer = requested
        buffer.segment.view[: len(content)] = content
        buffer.size_bytes = len(content)
        self.receiver.on_buffer(buffer, number, backlog)

    def _request(self) -> None:
        try:
            self.view = self._registry.create_bytes_view(
                self._partition_id,
                self._index,
                self,
                receiver_exclusive_buffers=self.sender.initial_credit,
            )
        except PartitionNotFoundError:
            self.downstream.append((self.receiver.on_partition_not_found, 0))

    def _write_credit(self) -> None:
        # What was announced is written here, and arrives with the next step.
        credit = self.receiver.take_credit()
        self.credit_in_flight += credit

        def arrive() -> None:
            self.credit_in_flight -= credit
            self.sender.add(credit)
            self.announced = 0

        self.upstream.append(arrive)

    def _say(self, message: Callable[[], Any]) -> None:
        if not self.is_closed:
            self.upstream.append(message)


class Job:
    """Producers with a channel each to every gate; some channels are elsewhere.

    Args:
        producers: How many, each with one partition.
        remote: Which producers are elsewhere.
    """

    def __init__(
        self,
        producers: int = 1,
        remote: tuple[int, ...] = (0,),
        *,
        segment_size_bytes: int = 64,
        segments: int = 32,
        exclusive: int = 2,
        floating: int = 8,
        registered: bool = True,
        **options: Any,
    ) -> None:
        self.registry = PartitionRegistry()
        self.codec = ElementCodec(PythonSerializer(), operators=["source"])
        self.links: list[MemoryLink] = []
        self.upstream_memory = NetworkBufferPool(
            64 * producers, segment_size_bytes=segment_size_bytes
        )
        self.memory = NetworkBufferPool(segments, segment_size_bytes=segment_size_bytes)
        self.segments = segments
        self.gate_buffers = GateBuffers(
            self.memory,
            len(remote),
            exclusive_per_channel=exclusive,
            floating=floating,
            owner="reader",
        )
        self.partitions: list[ResultPartition] = []
        channels: list[Any] = []
        for producer in range(producers):
            partition_id = PartitionId(TaskId(VertexId(producer), 0, 0), 0)
            # The other consumer of each producer is only there to make it mixed.
            index = 1 if producer in remote else 0
            partition = ResultPartition(
                partition_id,
                self.upstream_memory.create_local_pool(
                    3, 32, overdraft_ceiling=100_000
                ),
                2,
                remote_channels=[1],
                codec=self.codec,
            )
            self.partitions.append(partition)
            if registered:
                self.registry.register(partition)
            if index:
                channels.append(
                    RemoteInputChannel(
                        self,
                        ADDRESS,
                        partition_id,
                        index,
                        self.gate_buffers,
                        self.codec,
                        **options,
                    )
                )
            else:
                channels.append(LocalInputChannel(self.registry, partition_id, index))
        self.remote = remote
        self.gate = InputGate(channels)

    def request(
        self,
        address: PeerAddress,
        partition_id: PartitionId,
        subpartition_index: int,
        receiver: Receiver,
        credit: int,
    ) -> MemoryLink:
        assert address == ADDRESS
        link = MemoryLink(
            self.registry, partition_id, subpartition_index, receiver, credit
        )
        self.links.append(link)
        return link

    @property
    def partition(self) -> ResultPartition:
        return self.partitions[0]

    @property
    def channel(self) -> RemoteInputChannel:
        channel = self.gate.channels[0]
        assert isinstance(channel, RemoteInputChannel)
        return channel

    @property
    def link(self) -> MemoryLink:
        return self.links[0]

    def connect(self) -> Job:
        self.gate.request_partitions()
        self.pump()
        return self

    def emit(self, *values: Any, producer: int = 0) -> None:
        """Emit records to the gate's channel of a producer, and flush."""
        index = 1 if producer in self.remote else 0
        self.partitions[producer].emit_run(ListRun(list(values)), index)
        self.partitions[producer].flush(index)

    def pump(self) -> bool:
        moved = [link.pump() for link in self.links]
        return any(moved)

    def step(self, random: Random) -> bool:
        """Take one step of those that can be taken."""
        steps = [
            step
            for link in self.links
            for step in (link.deliver_up, link.send, link.deliver_down)
        ]
        random.shuffle(steps)
        return any(step() for step in steps)

    def read(self) -> list[Any]:
        """What the gate has: values, control elements, events."""
        taken: list[Any] = []
        moved = True
        while moved:
            while (polled := self.gate.poll_next()) is not None:
                taken += contents(polled[1])
            # A poll of half a record gives nothing, but its credit goes back.
            moved = self.pump()
        return taken

    def assert_credit(self) -> None:
        """What is free for a channel is on one of four ways."""
        for link in self.links:
            credit = link.receiver.credit()  # type: ignore[attr-defined]
            if not link.receiver.is_released:
                assert credit.available == (
                    link.sender.available
                    + credit.unannounced
                    + link.credit_in_flight
                    + link.data_in_flight
                )

    def assert_all_returned(self) -> None:
        """Every segment is back on both sides."""
        self.pump()
        assert self.memory.available_segments == self.segments
        self.memory.check_leaks()
        self.upstream_memory.check_leaks()


def contents(buffer: Any) -> list[Any]:
    with buffer:
        taken: list[Any] = [] if buffer.event is None else [buffer.event]
        for element in buffer.elements:
            taken += element.values if isinstance(element, ListRun) else [element]
    return taken


@pytest.fixture
def new_job() -> type[Job]:
    return Job


@pytest.fixture
def job() -> Job:
    return Job()


@pytest.fixture
def content_of() -> Callable[[Any], list[Any]]:
    return contents
