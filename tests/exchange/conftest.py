"""Small fakes and factories of the exchange tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aiomailbox.exchange.core.contract import ObjectBuffer
from aiomailbox.exchange.gate import (
    InputGate,
    LocalInputChannel,
    PartitionRegistry,
)
from aiomailbox.exchange.partition import ResultPartition
from aiomailbox.ids import PartitionId, TaskId, VertexId
from aiomailbox.memory.local_pool import LocalBufferPool, NetworkBufferPool
from aiomailbox.records.run import ListRun


class RecordingListener:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.data = 0
        self.priority: list[int] = []

    def on_data_available(self) -> None:
        self.data += 1

    def on_priority_event(self, sequence_number: int) -> None:
        self.priority.append(sequence_number)


class Wiring:
    """One producer's partition and, for each subpartition, a gate of one channel."""

    def __init__(self, permits: int, subpartitions: int, **options: Any) -> None:
        pool_options = {
            name: options.pop(name)
            for name in ("overdraft_ceiling", "per_channel_max", "overdraft_max")
            if name in options
        }
        self.memory = NetworkBufferPool(permits)
        self.pool = self.memory.create_local_pool(
            permits, owner="producer", subpartitions=subpartitions, **pool_options
        )
        self.partition_id = PartitionId(TaskId(VertexId(0), 0, 0), 0)
        self.partition = ResultPartition(
            self.partition_id, self.pool, subpartitions, **options
        )
        self.registry = PartitionRegistry()
        self.registry.register(self.partition)
        self.gates = [
            InputGate([LocalInputChannel(self.registry, self.partition_id, index)])
            for index in range(subpartitions)
        ]

    @property
    def gate(self) -> InputGate:
        return self.gates[0]

    @property
    def permits_out(self) -> int:
        return self.pool.outstanding

    def connect(self) -> Wiring:
        for gate in self.gates:
            gate.request_partitions()
        return self


@pytest.fixture
def listener() -> RecordingListener:
    return RecordingListener()


@pytest.fixture
def new_listener() -> type[RecordingListener]:
    return RecordingListener


@pytest.fixture
def wire() -> Callable[..., Wiring]:
    def build(permits: int = 8, subpartitions: int = 1, **options: Any) -> Wiring:
        return Wiring(permits, subpartitions, **options)

    return build


@pytest.fixture
def pool() -> LocalBufferPool:
    return NetworkBufferPool(64).create_local_pool(64, owner="test")


@pytest.fixture
def data(pool: LocalBufferPool) -> Callable[..., ObjectBuffer]:
    """Make buffers of data: how many records, and whether sealed."""

    def build(records: int = 0, *, sealed: bool = True) -> ObjectBuffer:
        buffer = ObjectBuffer(pool, pool.request_elastic(), None)
        if records:
            run = ListRun(list(range(records)))
            buffer.append_run(run, records, run.size_bytes())
        if sealed:
            buffer.seal()
        return buffer

    return build


@pytest.fixture
def drain() -> Callable[..., list[Any]]:
    """Poll a gate until it has nothing, recycling; give what was in the buffers."""

    def take(gate: Any) -> list[Any]:
        taken: list[Any] = []
        while (item := gate.poll_next()) is not None:
            with item[1] as buffer:
                if buffer.event is not None:
                    taken.append(buffer.event)
                for element in buffer.elements:
                    if isinstance(element, ListRun):
                        taken.extend(element.values)
                    else:
                        taken.append(element)
        return taken

    return take
