"""A gate that tells remote producers how large buffers should be."""

from __future__ import annotations

import asyncio
from typing import Any

from aiomailbox.exchange.remote.channel import DebloatingGate
from aiomailbox.memory.debloat import DebloatOptions
from aiomailbox.records.run import ListRun

OPTIONS = DebloatOptions(samples=1, size_bytes_min=64, size_bytes_max=1024)


def debloated(job: Any, options: DebloatOptions = OPTIONS) -> Any:
    """The same job, connected, with a gate that says how large its buffers should be."""
    job.gate = DebloatingGate(job.gate.channels, options)
    assert job.gate.debloated_buffer_size_bytes is None
    return job.connect()


async def test_the_size_follows_the_throughput_while_there_is_something_to_read(
    new_job: Any,
) -> None:
    job = debloated(new_job(segment_size_bytes=1024))
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
    subpartition = job.partition.subpartitions[1]
    assert subpartition.buffer_bytes == job.link.announced_sizes[-1]
    job.gate.close()
    announced = list(job.link.announced_sizes)
    await asyncio.sleep(5)
    assert job.link.announced_sizes == announced
    assert job.gate.activity is None


async def test_released_channels_are_not_told(new_job: Any) -> None:
    """NET-126: some released, all released, the gate closed."""
    job = debloated(new_job(2, (0, 1)))
    job.gate.channels[0].release()
    assert job.gate.recalculate() == 64
    assert [link.announced_sizes for link in job.links] == [[], [64]]
    job.gate.close()
    job.gate.recalculate()
    job.gate.close()


async def test_a_channel_that_connects_later_is_told_then(job: Any) -> None:
    job.channel.announce_buffer_size(333)
    job.connect()
    assert job.link.announced_sizes == [333]
    job.gate.close()


async def test_channels_on_this_loop_are_left_alone(new_job: Any) -> None:
    job = debloated(new_job(2, (1,)))
    await asyncio.sleep(1)
    assert [link.announced_sizes for link in job.links] == [[64]]
    job.gate.close()


def mean_bytes(job: Any, before: Any) -> float:
    """The size of the buffers that arrived since then."""
    now = job.channel.statistics()
    return (now.bytes_total - before.bytes_total) / (
        now.buffers_total - before.buffers_total
    )


async def test_a_slow_reader_shrinks_its_producers_buffers_and_a_fast_one_grows_them(
    new_job: Any,
) -> None:
    job = new_job(segment_size_bytes=4096)
    options = DebloatOptions(
        target_ms=500, samples=1, size_bytes_min=64, size_bytes_max=4096
    )
    debloated(job, options)
    assert job.gate.debloated_buffer_size_bytes == 4096

    async def read(count: int, pause_s: float) -> float:
        """Read so many buffers, of as many as the producer may write meanwhile."""
        before = job.channel.statistics()
        for _ in range(count):
            while job.partition.availability.available:
                job.partition.emit_run(ListRun(list(range(300, 1300))), 1)
            job.partition.flush(1)
            job.pump()
            job.gate.poll_next()[1].recycle()
            await asyncio.sleep(pause_s)
        return mean_bytes(job, before)

    whole = await read(10, 0.0001)
    # What was written before is read first.
    await read(100, 1.0)
    small = await read(10, 1.0)
    assert small < whole / 4
    assert job.gate.debloated_buffer_size_bytes < 4096 / 4
    await read(4_000, 0.001)
    assert job.gate.debloated_buffer_size_bytes == 4096
    assert await read(10, 0.0001) > whole / 2
    job.gate.close()
    assert job.gate.activity is None
    announced = list(job.link.announced_sizes)
    await asyncio.sleep(5)
    assert job.link.announced_sizes == announced


async def test_a_gate_that_is_closed_before_it_is_read_measures_nothing(
    new_job: Any,
) -> None:
    job = new_job()
    gate = DebloatingGate(job.gate.channels, OPTIONS)
    gate.close()
    gate.close()
    gate.request_partitions()
    assert gate.activity is None
    assert gate.debloated_buffer_size_bytes is None


async def test_frames_of_broadcasts_follow_the_smallest_wish(new_job: Any) -> None:
    job = new_job(segment_size_bytes=4096).connect()
    job.link.view.set_buffer_bytes(100)
    job.partition.broadcast_run(ListRun(list(range(300, 1300))))
    job.partition.flush_all()
    job.pump()
    statistics = job.channel.statistics()
    assert statistics.queued_bytes / statistics.queued_buffers < 400
    job.gate.close()
