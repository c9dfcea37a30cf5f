"""The stores that keep the laws of keyed state."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aiomailbox.clock import Clock
from aiomailbox.keygroups.assignment import KeyGroupRange
from aiomailbox.state.backends import HeapStateStore
from aiomailbox.testing import ManualClock

NewStore = Callable[..., Any]


@pytest.fixture(params=["heap", "rocksdb", "rocksdb without a cache"])
def new_store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[NewStore]:
    """Make stores of one backend; they are closed after the test."""
    made: list[Any] = []
    if request.param != "heap":
        # Imported here: a test of the heap alone needs no RocksDB.
        from aiomailbox.state import rocksdb

        if request.param == "rocksdb without a cache":
            monkeypatch.setattr("aiomailbox.state.rocksdb.store.GENERATION_MIN", 2)
            monkeypatch.setattr("aiomailbox.state.rocksdb.store._OVERHEAD_BYTES", 2**40)

    def make(
        max_parallelism: int = 128,
        owned: KeyGroupRange | None = None,
        clock: Clock | None = None,
    ) -> Any:
        owned = owned or KeyGroupRange(0, max_parallelism - 1)
        clock = clock or ManualClock()
        if request.param == "heap":
            return HeapStateStore(max_parallelism, owned, clock)
        store = rocksdb.RocksDBStateStore(
            max_parallelism, owned, clock, path=tmp_path, memory_bytes=1 << 20
        )
        made.append(store)
        return store

    yield make
    for store in made:
        store.close()
    if made:
        gc.collect()
        assert list(tmp_path.iterdir()) == [], "a directory was left behind"
