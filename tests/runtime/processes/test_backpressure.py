"""A slow worker in another process is seen, and named, from the parent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import aiomailbox as am

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(180)]


async def slow(value: Any) -> Any:
    await asyncio.sleep(0.05)
    return value


def has_waiting(task: tuple[str, Any]) -> bool:
    """Whether a task is one of the slow ones, and records wait for it."""
    name, metrics = task
    return bool(
        name.startswith("slow (")
        and metrics.get("in_pool_usage")
        and metrics.get("input_queue_length")
    )


def is_named(report: Any) -> bool:
    """Whether the slow ones are the bottleneck, and their producers are held up."""
    found = report.bottleneck
    return (
        found is not None
        and found.task.startswith("slow (")
        and len(report["slow"].subtasks) == 2
        and report["numbers"].level is not am.BackpressureLevel.OK
    )


async def test_the_bottleneck_in_another_process_is_named(
    env: am.StreamExecutionEnvironment,
) -> None:
    numbers = env.from_collection(list(range(400_000)), name="numbers").rebalance()
    numbers.map(slow).name("slow").sink_to(lambda number: None).name("write")
    async with env.start("slow workers") as job:
        async with asyncio.timeout(120):
            # Each worker tells of its own tasks, one sooner than the other; and until
            # queues are full, somebody else may be the slowest.
            while not is_named(report := job.backpressure()):
                await asyncio.sleep(0.1)
            # What waits is looked at in one moment, in which it may be nothing.
            tasks, edges = job.metrics().tasks, job.snapshot().edges
            while not any(map(has_waiting, tasks.items())):
                await asyncio.sleep(0.05)
                tasks, edges = job.metrics().tasks, job.snapshot().edges
        await job.cancel()
    assert len(report["slow"].subtasks) == 2
    seen: dict[str, Any] = {}
    for name, metrics in tasks.items():
        if has_waiting((name, metrics)):
            seen |= metrics
    assert seen["exclusive_buffers_usage"] is not None
    assert seen["in_pool_usage"] > 0
    assert any(edge.credits is not None for edge in edges)
    assert seen["input_queue_length"] > 0
    assert "debloated_buffer_size_bytes" not in seen, "only where it is asked for"


async def test_a_slow_worker_asks_its_producers_for_smaller_buffers(
    env: am.StreamExecutionEnvironment,
) -> None:
    config = am.JobConfig(
        seed=1,
        buffer_debloat=True,
        buffer_debloat_target=am.millis(50),
    )
    slow_env = am.StreamExecutionEnvironment(parallelism=2, config=config)
    slow_env.configure(deployment=env.config.deployment)
    texts = slow_env.from_collection(["x" * 1000] * 100_000).rebalance()
    texts.map(slow).name("slow").sink_to(lambda text: None)

    def sizes(job: Any) -> list[int]:
        return [
            metrics["debloated_buffer_size_bytes"]
            for name, metrics in job.metrics().tasks.items()
            if name.startswith("slow (") and "debloated_buffer_size_bytes" in metrics
        ]

    async with slow_env.start("slow workers") as job:
        async with asyncio.timeout(120):
            while len(small := sizes(job)) < 2 or max(small) > 64 * 1024:
                await asyncio.sleep(0.1)
        await job.cancel()
    assert min(small) >= 1024
