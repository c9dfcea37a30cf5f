"""Data, credit and segments over real sockets."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytestmark = pytest.mark.real_time


def contents(seed: int, count: int) -> list[bytes]:
    numbers = random.Random(seed)
    return [
        numbers.randbytes(numbers.choice([1, 7, 500, 9_000, 20_000, 32_768]))
        for _ in range(count)
    ]


@pytest.mark.parametrize("kind", ["tcp", "unix"])
async def test_what_is_emitted_is_read_and_every_segment_comes_back(
    world: Any, kind: str
) -> None:
    await world.serve(kind)
    expected = contents(1, 300)
    partition = world.producer.partition(0)
    reader = world.read(world.connect(), 0)
    for content in expected:
        world.producer.emit(partition, content)
    partition.finish()
    await reader.until(lambda: reader.has_ended)
    assert reader.received == expected
    assert reader.numbers == list(range(len(expected) + 1))
    assert not reader.failures
    await world.until(lambda: not world.producer.store.out)
    reader.link.close()
    reader.release()
    assert not world.readers.out
