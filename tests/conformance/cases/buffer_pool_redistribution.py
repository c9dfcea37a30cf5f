"""The sizes of all local pools after each change, in order of creation."""

from __future__ import annotations

import re
from typing import Any

import pytest

from aiomailbox.errors import InsufficientBuffersError
from aiomailbox.memory.buffer import MemorySegment
from aiomailbox.memory.local_pool import LocalBufferPool, NetworkBufferPool

FILE = "buffer_pool_redistribution"


class _Replay:
    """Applies the recorded operations."""

    def __init__(self, total_segments: int) -> None:
        self.network = NetworkBufferPool(total_segments, segment_size_bytes=32)
        self.pools: list[LocalBufferPool] = []
        self.unpooled: list[MemorySegment] = []

    def create(self, step: dict[str, Any]) -> None:
        if "exception" in step:
            # The recorded message goes on with Flink's own configuration keys.
            reason, _, _ = step["message"].partition(" You can")
            with pytest.raises(InsufficientBuffersError, match=re.escape(reason)):
                self.network.create_local_pool(step["required"], step["max"])
        else:
            pool = self.network.create_local_pool(step["required"], step["max"])
            self.pools.append(pool)

    def destroy(self, step: dict[str, Any]) -> None:
        self.pools[step["pool"]].lazy_destroy()

    def request_unpooled(self, step: dict[str, Any]) -> None:
        segments = self.network.try_request_unpooled(step["count"])
        assert segments is not None
        self.unpooled += segments

    def recycle_unpooled(self, step: dict[str, Any]) -> None:
        count = step["count"]
        returned, self.unpooled = self.unpooled[:count], self.unpooled[count:]
        self.network.recycle_unpooled(returned)

    def sizes(self) -> list[int | None]:
        return [None if pool.is_destroyed else pool.size for pool in self.pools]


def run_case(case: dict[str, Any]) -> None:
    """Replay the operations, comparing sizes and free segments after each."""
    replay = _Replay(case["total_segments"])
    for step in case["ops"]:
        getattr(replay, step["op"])(step)
        assert replay.sizes() == step["sizes"], step
        free = replay.network.available_segments
        assert free == step["available_in_global_pool"], step
