"""X1: what pools cost inside one loop, against a pool that always grants."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from aiomailbox.availability import Availability
from aiomailbox.exchange.gate import (
    InputGate,
    LocalInputChannel,
    PartitionRegistry,
)
from aiomailbox.exchange.partition import ResultPartition
from aiomailbox.ids import PartitionId, TaskId, VertexId
from aiomailbox.memory.buffer import MemorySegment
from aiomailbox.memory.local_pool import LocalBufferPool, NetworkBufferPool
from aiomailbox.records.run import ListRun
from tests.benchmarks import jobs
from tests.benchmarks.measure import OURS, Report, System, compare

_GRANTING = "a pool that always grants"
# As long as the runs of a source whose slice ends early; each gets its own buffer.
_RUN_LENGTH = 256
# A consumer finds as many buffers when its turn comes.
_BURST = 8
_SUBPARTITIONS = 2


class GrantingPool(LocalBufferPool):
    """Counts nothing, bounds nothing: every request gets the one segment it has."""

    __slots__ = ("_only",)

    def __init__(self, inner: LocalBufferPool) -> None:
        self._destroyed = False
        self._only = MemorySegment(inner._source.extra_segment().size_bytes)
        self.options = inner.options
        self.availability = Availability(available=True)
        inner.lazy_destroy()

    def request_elastic(self, channel: int | None = None) -> MemorySegment:
        """Grant."""
        return self._only

    def recycle(self, segment: MemorySegment, channel: int | None = None) -> None:
        """Forget."""

    def lazy_destroy(self) -> None:
        """Forget."""


@contextlib.contextmanager
def granting_pools() -> Iterator[None]:
    """Let every job that starts meanwhile have pools that always grant."""
    create = NetworkBufferPool.create_local_pool

    def granting(self: NetworkBufferPool, *args: Any, **options: Any) -> GrantingPool:
        return GrantingPool(create(self, *args, **options))

    with mock.patch.object(NetworkBufferPool, "create_local_pool", granting):
        yield


def hand_over(count: int) -> int:
    """Take records through a partition and its gates, without tasks around them."""
    pool = NetworkBufferPool(64).create_local_pool(
        _SUBPARTITIONS + 1,
        subpartitions=_SUBPARTITIONS,
        per_channel_max=10,
        overdraft_max=5,
    )
    partition_id = PartitionId(TaskId(VertexId(0), 0, 0), 0)
    partition = ResultPartition(partition_id, pool, _SUBPARTITIONS)
    registry = PartitionRegistry()
    registry.register(partition)
    gates = [
        InputGate([LocalInputChannel(registry, partition_id, index)])
        for index in range(_SUBPARTITIONS)
    ]
    for gate in gates:
        gate.request_partitions()
    values = list(range(_RUN_LENGTH))
    emit, taken = partition.emit_run, 0
    for _ in range(count // (_RUN_LENGTH * _BURST)):
        for number in range(_BURST):
            emit(ListRun(values[:]), number % _SUBPARTITIONS)
        partition.flush_all()
        for gate in gates:
            poll = gate.poll_next
            while (item := poll()) is not None:
                with item[1] as buffer:
                    for run in buffer.elements:
                        taken += len(run.values)
    partition.release()
    return taken


def _granted(work: Callable[[int], int]) -> Callable[[int], int]:
    def run(count: int) -> int:
        with granting_pools():
            return work(count)

    return run


def reports(records: int, rounds: int) -> Iterator[Report]:
    """Compare a job and the bare path of its buffers."""
    for work, title, run, times in (
        ("X1", "W2 of this library, with and without real pools", jobs.w2_aggregate, 1),
        (
            "X1b",
            f"runs of {_RUN_LENGTH} records through a partition and two gates alone",
            hand_over,
            20,
        ),
    ):
        report = Report(work, title)
        systems = [System(_GRANTING, _granted(run)), System(OURS, run)]
        report.rows = compare(work, systems, times * records, rounds, computes=True)
        # Nothing waits here, and a few percent are less than what the machine's other
        # programs change on the clock.
        ratio = report.row().cpu_ratio
        report.judge(
            f"{OURS}: {ratio:.2f} x {_GRANTING} by processor time, wanted at least 0.9",
            reached=ratio >= 0.9,
        )
        yield report
