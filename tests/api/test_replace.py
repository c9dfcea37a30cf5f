"""A job that takes over from a running one, as where a cell of a notebook is run again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import aiomailbox as am

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(60)]


hurried: set[str] = set()


async def numbers(offset: int | None) -> AsyncIterator[int]:
    for number in range(0 if offset is None else offset + 1, 4_000):
        yield number
        # The first job never comes to the end.
        await asyncio.sleep(0 if hurried else 0.01)


def summing(seen: list[int]) -> am.StreamExecutionEnvironment:
    env = am.StreamExecutionEnvironment().enable_checkpointing(None)
    source = env.from_async_iterable(numbers, name="numbers", offset=lambda one: one)
    total = source.key_by(lambda one: "all").reduce(lambda left, right: left + right)
    total.uid("sum").sink_to(seen.append)
    return env


async def test_the_next_job_goes_on_where_the_one_before_was_stopped() -> None:
    before: list[int] = []
    after: list[int] = []
    async with summing(before).start("sums") as first:
        while len(before) < 50:
            await asyncio.sleep(0.01)
        async with summing(after).start("sums", replace=first) as second:
            hurried.add("the second one")
            result = await second.result()
        assert first.state is am.JobState.FINISHED
    assert result.name == "sums"
    assert after[-1] == sum(range(4_000))
    # Neither twice nor not at all.
    assert len(before) + len(after) == 4_000


async def test_a_job_that_has_ended_is_left_alone() -> None:
    seen: list[int] = []
    env = am.StreamExecutionEnvironment()
    env.from_collection([1]).sink_to(lambda one: None)
    async with env.start() as ended:
        await ended.result()
    env.from_collection([2]).sink_to(seen.append)
    await env.execute(replace=ended)
    assert seen == [2]


async def test_two_places_to_go_on_from_are_refused() -> None:
    env = summing([])
    async with env.start() as job:
        with pytest.raises(am.InvalidArgumentError, match="replace"):
            await summing([]).execute(replace=job, restore_from="latest")
