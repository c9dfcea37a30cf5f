"""Local pools over one global pool: sizes, counts and availability after each step."""

from __future__ import annotations

from typing import Any

from aiomailbox.errors import PoolDestroyedError
from aiomailbox.memory.buffer import MemorySegment
from aiomailbox.memory.local_pool import LocalBufferPool, NetworkBufferPool

FILE = "local_buffer_pool"


class _Replay:
    """Applies the recorded operations and remembers what each label stands for."""

    def __init__(self, total_segments: int) -> None:
        self.network = NetworkBufferPool(total_segments, segment_size_bytes=32)
        self.pools: list[LocalBufferPool] = []
        self.lent: dict[int, tuple[MemorySegment, int | None]] = {}

    def create(self, step: dict[str, Any]) -> None:
        pool = self.network.create_local_pool(
            step["required"],
            step["max"],
            owner=f"pool {step['pool']}",
            subpartitions=step["num_subpartitions"],
            per_channel_max=step["max_buffers_per_channel"],
            overdraft_max=step["max_overdraft"],
        )
        assert len(self.pools) == step["pool"]
        self.pools.append(pool)

    def request(self, step: dict[str, Any]) -> None:
        channel = step.get("channel")
        try:
            segment = self.pools[step["pool"]].try_request(channel)
        except PoolDestroyedError:
            assert "exception" in step
            return
        assert "exception" not in step
        assert (segment is None) == (step["buffer"] is None)
        if segment is not None:
            self.lent[step["buffer"]] = segment, channel

    def recycle(self, step: dict[str, Any]) -> None:
        segment, channel = self.lent.pop(step["buffer"])
        self.pools[step["pool"]].recycle(segment, channel)

    def set_max_overdraft(self, step: dict[str, Any]) -> None:
        self.pools[step["pool"]].overdraft_max = step["max_overdraft"]

    def destroy(self, step: dict[str, Any]) -> None:
        self.pools[step["pool"]].lazy_destroy()

    def numbers(self) -> list[dict[str, Any] | None]:
        return [None if pool.is_destroyed else _numbers(pool) for pool in self.pools]


def run_case(case: dict[str, Any]) -> None:
    """Replay the operations, comparing every number after each."""
    replay = _Replay(case["total_segments"])
    for step in case["ops"]:
        getattr(replay, step["op"])(step)
        assert replay.numbers() == step["pools"], step
        assert replay.network.available_segments == step["global_available"], step


def _numbers(pool: LocalBufferPool) -> dict[str, Any]:
    statistics = pool.statistics()
    return {
        "size": statistics.size,
        "requested": statistics.requested,
        "available": statistics.idle,
        "used": statistics.used,
        "is_available": statistics.available,
    }
