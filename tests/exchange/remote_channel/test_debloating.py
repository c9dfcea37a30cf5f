"""A gate that tells remote producers how large buffers should be."""

from __future__ import annotations

import asyncio
from typing import Any

from aiomailbox.exchange.remote.debloating import GateDebloating
from aiomailbox.memory import DebloatOptions

OPTIONS = DebloatOptions(samples=1, size_bytes_min=64, size_bytes_max=1024)


async def test_the_size_follows_the_throughput_while_there_is_something_to_read(
    new_job: Any,
) -> None:
    job = new_job(segment_size_bytes=1024).connect()
    debloating = GateDebloating(job.gate, OPTIONS)
    assert job.gate.debloated_buffer_size_bytes is None
    debloating.start()
    assert job.gate.debloated_buffer_size_bytes == 1024
    await asyncio.sleep(10)
    assert job.gate.debloated_buffer_size_bytes == 64
    assert job.link.announced_sizes == [64], "nothing read: as small as may be"
    # 100 ms of something to read, 900 ms of nothing: idle time does not count.
    for _ in range(5):
        job.emit(b"x" * 50)
        job.pump()
        await asyncio.sleep(0.1)
        job.read()
        await asyncio.sleep(0.9)
    # 64 bytes with their envelope in 100 ms, for a second; it at most doubles at once.
    assert job.link.announced_sizes[1:4] == [128, 256, 512]
    job.pump()
    subpartition = job.partition._remote.subpartitions[0]
    assert subpartition._buffer_bytes == job.link.announced_sizes[-1]
    job.gate.close()
    announced = list(job.link.announced_sizes)
    await asyncio.sleep(5)
    assert job.link.announced_sizes == announced
    assert job.gate.activity is None


async def test_released_channels_are_not_told(new_job: Any) -> None:
    """NET-126: some released, all released, the gate closed."""
    job = new_job(2, (0, 1)).connect()
    debloating = GateDebloating(job.gate, OPTIONS)
    debloating.start()
    job.gate.channels[0].release()
    assert debloating.recalculate() == 64
    assert [link.announced_sizes for link in job.links] == [[], [64]]
    job.gate.close()
    debloating.recalculate()
    debloating.stop()
    debloating.stop()


async def test_a_channel_that_connects_later_is_told_then(job: Any) -> None:
    job.channel.announce_buffer_size(333)
    job.connect()
    assert job.link.announced_sizes == [333]
    job.gate.close()


async def test_channels_on_this_loop_are_left_alone(new_job: Any) -> None:
    job = new_job(2, (1,)).connect()
    debloating = GateDebloating(job.gate, OPTIONS)
    debloating.start()
    await asyncio.sleep(1)
    assert [link.announced_sizes for link in job.links] == [[64]]
    job.gate.close()
    debloating.stop()
