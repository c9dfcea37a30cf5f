"""Units that are money or tokens: totals per operator and key, and a hard end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.metrics.instruments import KeyTotals


async def ask(text: str) -> str:
    await asyncio.sleep(0.001)
    return text.upper()


async def endless() -> AsyncIterator[str]:
    for number in range(1_000_000):
        yield f"text {number}"
        await asyncio.sleep(0.01)


async def units_of(
    env: am.StreamExecutionEnvironment, asked: Any
) -> tuple[int, dict[str, int]]:
    """Run a job that asks, and return the units it used, in all and per key."""
    asked.name("ask").sink_to(lambda word: None)
    async with env.start() as job:
        await job.result()
        operator = job.snapshot().operator("ask")
    totals = {one.key: one.units for one in operator.key_totals}
    return operator.metrics["units_used"], totals


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
    assert await units_of(env, asked) == (9, {"'a'": 3, "'bb'": 2, "'cccc'": 4})


async def ask_all(texts: list[str]) -> list[str]:
    return [text.upper() for text in texts]


@pytest.mark.parametrize("ordered", [True, False])
async def test_totals_per_key_need_no_order_by_key(ordered: bool) -> None:
    words = ["a", "bb", "a", "cccc", "a"]
    expected = {"'a'": 3, "'bb'": 2, "'cccc'": 4}
    for keyed in (True, False):
        env = am.StreamExecutionEnvironment()
        stream: Any = env.from_collection(words)
        settings: dict[str, Any] = {"key": lambda word: word}
        if keyed:
            # The key of the stream, if nobody says another one.
            stream, settings = stream.key_by(lambda word: word), {}
        asked = stream.map_async(
            ask, ordered=ordered, limit=am.RateLimit(1_000), weight=len, **settings
        )
        assert await units_of(env, asked) == (9, expected)


async def test_each_row_of_a_batch_counts_for_its_key() -> None:
    env = am.StreamExecutionEnvironment()
    asked = env.from_collection(["a", "bb", "a"]).map_async(
        ask_all,
        batch=am.Batch(3, within=1.0),
        key=lambda word: word,
        limit=am.RateLimit(1_000),
        weight=len,
    )
    assert await units_of(env, asked) == (4, {"'a'": 2, "'bb'": 2})


async def test_a_key_that_nothing_is_ordered_or_counted_by_is_refused() -> None:
    stream = am.StreamExecutionEnvironment().from_collection(["a"])
    with pytest.raises(am.InvalidArgumentError, match="without a limit"):
        stream.map_async(ask, key=lambda word: word)
    for wrong, kind in (("", am.InvalidArgumentError), (1, am.WrongTypeError)):
        with pytest.raises(kind, match="unit"):
            am.RateLimit(1, unit=wrong)  # type: ignore[arg-type]


async def test_the_unit_is_named_wherever_the_limit_is() -> None:
    async def never(text: str) -> str:
        await asyncio.sleep(3600)
        return text

    limit = am.RateLimit(2, per=60, name="openai", unit="tokens", budget=3)
    env = am.StreamExecutionEnvironment()
    asked = env.from_collection(list("abc")).map_async(
        never, concurrency=3, limit=limit, on_error=am.skip
    )
    asked.name("enrich").sink_to(lambda text: None)
    async with env.start() as job:
        await asyncio.sleep(1)
        tree = job.await_tree()
        blocked = job._job.tasks[0].chain
        assert blocked is not None
        said = [each.blocked() for each in blocked.operators]
        assert job.snapshot().operator("enrich").unit == "tokens"
    assert "limit 'openai': 0 of 2 tokens free in 60 s, 1 calls wait for it" in tree
    assert (am.BlockCause.LIMIT, "openai (tokens)") in said
    error = am.BudgetExceededError(limit.label, 3, limit.unit)
    assert str(error) == "the budget of 3 tokens of limit 'openai' is exhausted"


async def test_a_call_that_the_budget_refuses_is_not_counted() -> None:
    env = am.StreamExecutionEnvironment()
    limit = am.RateLimit(1_000, per=1.0, budget=3)
    asked = env.from_collection(list("abcde")).map_async(
        ask, concurrency=1, limit=limit, on_error=am.skip
    )
    asked.name("ask").sink_to(lambda text: None)
    async with env.start() as job:
        await job.result()
    found = job.metrics().operators["ask"]
    assert (found["calls"], found["units_used"]) == (3, 3.0)
    assert job.metrics().total("units_used") == 3.0
    assert found["skipped"] > 0


PAYS = """
import asyncio, sys
import aiomailbox as am

directory, crashes = sys.argv[1], sys.argv[2] == "crashes"
paid = 0

async def pay(number):
    global paid
    paid += 1
    with open(f"{directory}/paid", "a") as file:
        file.write(f"{number}\\n")
    if crashes and paid == 41:
        await asyncio.sleep(3600)
    return number

async def numbers(after):
    for number in range(0 if after is None else after + 1, 1_000):
        yield number
    # At its end it would wait for the calls, and take no checkpoint.
    await asyncio.Event().wait()

async def main():
    limit = am.RateLimit(100_000, budget=100, unit="cents")
    env = am.StreamExecutionEnvironment().enable_checkpointing(
        None, directory=f"{directory}/checkpoints"
    )
    stream = env.from_async_iterable(numbers, offset=lambda number: number)
    paying = stream.map_async(
        pay, concurrency=1, capacity=2_000, limit=limit, on_error=am.skip
    )
    paying.uid("pay").sink_to(lambda number: None)
    restore_from = None if crashes else "latest"
    async with env.start("pays", restore_from=restore_from) as job:
        if crashes:
            while paid < 41:
                await asyncio.sleep(0.01)
            await job.trigger_checkpoint()
            print("kill me", flush=True)
        result = await job.result()
    print(result.stop_reason, flush=True)

am.run(main())
"""


@pytest.mark.real_time
@pytest.mark.timeout(120)
def test_a_program_that_was_killed_goes_on_with_what_is_left_of_the_budget(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", PAYS, str(tmp_path)]
    first = subprocess.Popen([*command, "crashes"], stdout=subprocess.PIPE, text=True)
    with first:
        assert first.stdout is not None
        try:
            told = first.stdout.readline()
        finally:
            first.kill()
    assert told == "kill me\n"
    again = subprocess.run(
        [*command, "goes on"], capture_output=True, text=True, check=True
    )
    assert again.stdout.strip().startswith("the budget of 100 cents of ")
    paid = (tmp_path / "paid").read_text().split()
    # The call that was in flight is made again, and paid again.
    assert paid == [str(number) for number in (*range(41), *range(40, 99))]
    assert len(paid) == 100


@pytest.mark.real_time
@pytest.mark.timeout(180)
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
    assert (
        result.stop_reason == "the budget of 100 units of limit 'tokens' is exhausted"
    )
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
