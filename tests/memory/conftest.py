"""Small fakes that the pool tests share."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from aiomailbox.memory.buffer import MemorySegment
from aiomailbox.memory.local_pool import LocalBufferPool


class RecordingListener:
    """A listener that notes what it gets and recycles, keeps or declines it."""

    def __init__(self, pool: LocalBufferPool, name: str, log: list[str]) -> None:
        self.pool = pool
        self.name = name
        self.log = log
        self.keeps = False
        self.accepts = True
        self.kept: list[MemorySegment] = []

    def on_buffer_available(self, segment: MemorySegment) -> bool:
        self.log.append(self.name)
        if self.accepts and self.keeps:
            self.kept.append(segment)
        elif self.accepts:
            self.pool.recycle(segment)
        return self.accepts

    def on_pool_destroyed(self) -> None:
        self.log.append(f"{self.name} destroyed")


@pytest.fixture
def listener() -> Callable[[LocalBufferPool, str, list[str]], RecordingListener]:
    """Make recording listeners."""
    return RecordingListener


@pytest.fixture
def drain() -> Callable[[LocalBufferPool], list[MemorySegment]]:
    """Request everything that a pool gives."""

    def take_all(pool: LocalBufferPool) -> list[MemorySegment]:
        taken = []
        while (segment := pool.try_request()) is not None:
            taken.append(segment)
        return taken

    return take_all


@pytest.fixture
def take() -> Callable[
    [LocalBufferPool, int], Coroutine[Any, Any, list[MemorySegment]]
]:
    """Request as many segments, waiting for the pool wherever it has none."""

    async def take_some(pool: LocalBufferPool, count: int) -> list[MemorySegment]:
        taken: list[MemorySegment] = []
        while len(taken) < count:
            segment = pool.try_request()
            if segment is None:
                await pool.availability.wait()
            else:
                taken.append(segment)
        return taken

    return take_some
