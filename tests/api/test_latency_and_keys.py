"""Marks of the time measure how long records wait; a sketch finds hot keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.metrics.instruments import HotKeys


async def ticks() -> AsyncIterator[int]:
    for number in range(200):
        yield number
        await asyncio.sleep(0.05)


async def test_each_operator_measures_each_source() -> None:
    env = am.StreamExecutionEnvironment(
        config=am.JobConfig(latency_interval=am.millis(100))
    )
    left = env.from_async_iterable(ticks, name="left")
    right = env.from_async_iterable(ticks, name="right")

    async def slow(number: int) -> int:
        await asyncio.sleep(0.04)
        return number

    united = left.union(right).rebalance().map(slow).name("slow")
    united.map(abs).name("after").filter(bool).name("last").sink_to(lambda number: None)
    async with env.start() as job:
        await asyncio.sleep(9)
        operators = job.metrics().operators
    for name in ("slow", "after", "last"):
        for source in ("left", "right"):
            latency = operators[name][f"latency_ms_from_{source}"]
            assert isinstance(latency, am.HistogramValue)
            assert latency.count > 20
            # 40 records a second come, and 25 are processed.
            assert latency.maximum is not None
            assert latency.maximum > 500
    assert "latency_ms_from_left" not in operators["left"]


async def test_each_task_measures_how_long_its_mail_waits() -> None:
    env = am.StreamExecutionEnvironment(
        config=am.JobConfig(latency_interval=am.millis(100))
    )

    async def slow(number: int) -> int:
        await asyncio.sleep(0.04)
        return number

    env.from_async_iterable(ticks).rebalance().map(slow).name("slow").sink_to(
        lambda number: None
    )
    async with env.start() as job:
        await asyncio.sleep(9)
        tasks = job.metrics().tasks
    for name, task in tasks.items():
        waited = task["mailbox_latency_ms"]
        assert isinstance(waited, am.HistogramValue), name
        assert waited.count > 20
        assert waited.maximum is not None
        # Nothing but its own mail, and the record that is awaited, is before it.
        assert waited.maximum < 200
    assert any(task["mailbox_latency_ms"].maximum > 10 for task in tasks.values())


async def test_there_are_no_marks_unless_they_are_wanted() -> None:
    env = am.StreamExecutionEnvironment()
    env.from_async_iterable(ticks).sink_to(lambda number: None)
    async with env.start() as job:
        await asyncio.sleep(5)
        names = {name for one in job.snapshot().operators for name in one.metrics}
        assert all(
            "mailbox_latency_ms" not in one.metrics for one in job.snapshot().tasks
        )
    assert not [name for name in names if name.startswith("latency")]
    with pytest.raises(am.InvalidArgumentError, match="latency_interval"):
        am.JobConfig(latency_interval=am.millis(0))


async def test_the_hottest_key_is_found_over_all_subtasks() -> None:
    env = am.StreamExecutionEnvironment(parallelism=3)

    def key(number: int) -> str:
        return "hot" if number % 3 else f"key {number % 60}"

    def take(number: Any) -> None:
        """Take it."""

    stream = env.from_collection(range(60_000)).key_by(key).reduce(max).name("largest")
    stream.sink_to(take)
    async with env.start() as job:
        await job.result()
        hot = job.snapshot().operator("largest").hot_keys
    assert hot[0].key == "'hot'"
    assert hot[0].share == pytest.approx(2 / 3, abs=0.2)
    assert len(hot) <= 5


def test_the_sketch_is_bounded_and_keeps_what_is_frequent() -> None:
    keys = HotKeys()
    for turn in range(20_000):
        keys.sample([turn if place % 2 else "hot" for place in range(7)])
    assert keys.top()[0].key == "'hot'"
    assert len(keys._counts) <= 32
    keys.sample([])
    assert HotKeys().top() == []
