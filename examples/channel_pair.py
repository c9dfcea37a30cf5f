"""Two plain asyncio tasks joined by a bounded channel: no job, no operators.

Buffers cross the channel, records never do. The producer waits while the pool's permits
are out; the consumer waits while nothing is queued; both waits are ordinary awaits.
"""

from __future__ import annotations

import asyncio

from aiomailbox.exchange import (
    InputGate,
    LocalInputChannel,
    PartitionRegistry,
    ResultPartition,
)
from aiomailbox.ids import PartitionId, TaskId, VertexId
from aiomailbox.memory import NetworkBufferPool
from aiomailbox.records import EndOfData, ListRun, StopMode, Watermark

PERMITS = 4
RUNS = 1_000
RUN_LENGTH = 1_000


async def produce(partition: ResultPartition) -> int:
    """Send runs of numbers; return the most buffers that ever waited in the channel."""
    subpartition = partition.subpartitions[0]
    most_queued = 0
    for start in range(0, RUNS * RUN_LENGTH, RUN_LENGTH):
        await partition.writable()
        partition.emit_run(ListRun(list(range(start, start + RUN_LENGTH))), 0)
        most_queued = max(most_queued, subpartition.queued_buffers)
    partition.broadcast_control(Watermark(RUNS))
    partition.notify_end_of_data(StopMode.DRAIN)
    partition.finish()
    return most_queued


async def consume(gate: InputGate) -> tuple[int, int]:
    """Read to the end; return the number of records and their sum."""
    records = total = 0
    await gate.available()
    async for _, buffer in gate:
        with buffer:
            if isinstance(buffer.event, EndOfData):
                print("data ended with", buffer.event.mode.value)
            for element in buffer.elements:
                if isinstance(element, Watermark):
                    print("watermark", element.timestamp_ms)
                elif isinstance(element, ListRun):
                    records += len(element)
                    total += sum(element.values)
    return records, total


async def main() -> None:
    """Wire a producer and a consumer, and let them run."""
    memory = NetworkBufferPool(total_segments=PERMITS)
    pool = memory.create_local_pool(PERMITS, owner="numbers", subpartitions=1)
    partition = ResultPartition(PartitionId(TaskId(VertexId(0), 0, 0), 0), pool, 1)
    registry = PartitionRegistry()
    registry.register(partition)
    gate = InputGate([LocalInputChannel(registry, partition.partition_id, 0)])
    gate.request_partitions()

    most_queued, (records, total) = await asyncio.gather(
        produce(partition), consume(gate)
    )
    print(f"{records:,} records, sum {total:,}")
    print("never more than the permits were queued:", most_queued <= PERMITS)
    print("permits back in the pool:", memory.available_segments, "of", PERMITS)


if __name__ == "__main__":
    asyncio.run(main())
