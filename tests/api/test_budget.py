"""Units that are money or tokens: totals per operator and key, and a hard end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.metrics import KeyTotals


async def ask(text: str) -> str:
    await asyncio.sleep(0.001)
    return text.upper()


async def endless() -> AsyncIterator[str]:
    for number in range(1_000_000):
        yield f"text {number}"
        await asyncio.sleep(0.01)


LIMIT = am.RateLimit(1_000, per=1.0, name="tokens", budget=100)


async def test_totals_are_per_operator_and_per_key() -> None:
    env = am.StreamExecutionEnvironment(parallelism=2)
    words = env.from_collection(["a", "bb", "a", "cccc", "a"])
    asked = words.map_async(
        ask,
        ordered="key",
        key=lambda word: word,
        limit=am.RateLimit(1_000, per=1.0),
        weight=len,
    )
    asked.name("ask").sink_to(lambda word: None)
    async with env.start() as job:
        await job.result()
        operator = job.snapshot().operator("ask")
    assert operator.metrics["units_used"] == 9
    totals = {one.key: one.units for one in operator.key_totals}
    assert totals == {"'a'": 3, "'bb'": 2, "'cccc'": 4}


@pytest.mark.real_time
@pytest.mark.timeout(60)
@pytest.mark.parametrize("workers", [0, 2])
async def test_a_budget_that_is_used_up_stops_the_source(workers: int) -> None:
    env = am.StreamExecutionEnvironment(parallelism=2)
    texts = env.from_async_iterable(endless, name="texts").rebalance()
    asked = texts.map_async(
        ask, limit=LIMIT, weight=10, on_error=am.skip, retry=am.Retry(attempts=5)
    )
    asked.name("ask").sink_to(lambda text: None)
    deployment = am.Processes(workers) if workers else None
    async with env.start("paid", deployment=deployment) as job:
        result = await job.result()
        seen = job.snapshot()
    assert result.stop_reason == "the budget of 100 units of limit 'tokens' is used up"
    assert seen.stop_reason == result.stop_reason
    assert seen.state == "finished"
    operator = seen.operator("ask")
    # Hard: not one unit more.
    assert operator.metrics["units_used"] == 100
    assert operator.metrics["num_records_out"] == 10
    assert operator.metrics["retries"] == 0
    assert operator.metrics["skipped"]


async def test_without_on_error_the_job_fails_and_says_why() -> None:
    env = am.StreamExecutionEnvironment()
    texts = env.from_async_iterable(endless).map_async(ask, limit=LIMIT, weight=40)
    seen: list[Any] = []
    texts.sink_to(seen.append)
    with pytest.raises(am.JobFailedError, match="the budget of 100 units") as failed:
        await env.execute()
    assert isinstance(failed.value.__cause__, am.UserFunctionError)
    assert isinstance(failed.value.__cause__.__cause__, am.BudgetExceededError)
    assert len(seen) <= 2


async def test_a_job_that_ends_by_itself_has_no_reason() -> None:
    env = am.StreamExecutionEnvironment()
    env.from_collection(["a"]).map_async(ask, limit=LIMIT).sink_to(lambda text: None)
    result = await env.execute()
    assert result.stop_reason == ""
    with pytest.raises(am.InvalidArgumentError, match="budget"):
        am.RateLimit(1, budget=0)


def test_totals_by_key_are_bounded() -> None:
    totals = KeyTotals()
    for number in range(5_000):
        totals.add(number, 1.0)
    totals.add(7, 9.0)
    top = totals.top()
    assert (top[0].key, top[0].units) == ("7", 10.0)
    assert (top[-1].key, len(top)) == ("(others)", 11)
    assert sum(one.units for one in top) == 5_009
