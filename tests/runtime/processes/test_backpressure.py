"""A slow worker in another process is seen, and named, from the parent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import aiomailbox as am

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(60)]


async def slow(number: int) -> int:
    await asyncio.sleep(0.05)
    return number


async def test_the_bottleneck_in_another_process_is_named(
    env: am.StreamExecutionEnvironment,
) -> None:
    numbers = env.from_collection(list(range(400_000)), name="numbers").rebalance()
    numbers.map(slow).name("slow").sink_to(lambda number: None).name("write")
    async with env.start("slow workers") as job:
        async with asyncio.timeout(40):
            while (report := job.backpressure()).bottleneck is None:
                await asyncio.sleep(0.1)
        tasks = job.metrics().tasks
        await job.cancel()
    found = report.bottleneck
    assert found is not None
    assert found.task.startswith("slow (")
    assert len(report["slow"].subtasks) == 2
    assert report["numbers"].level is not am.BackpressureLevel.OK
    seen: dict[str, Any] = {}
    for name, metrics in tasks.items():
        if name.startswith("slow ("):
            seen |= metrics
    assert seen["exclusive_buffers_usage"] is not None
    assert seen["in_pool_usage"] > 0
    assert any(name.endswith("_credit") for name in seen)
    assert seen["input_queue_length"] > 0
