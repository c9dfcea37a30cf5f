"""What a job's tasks do or wait for, as text."""

from __future__ import annotations

import asyncio
from typing import Any

import aiomailbox as am


async def look_up(self: Any, run: Any) -> None:
    await asyncio.sleep(3600)


async def test_the_text_names_tasks_states_and_the_users_line(bench: Any) -> None:
    source = bench.source([1], ends=False)
    job = bench.deploy(bench.operator(source, "enrich", hooks={"run": look_up}))
    assert job.await_tree() == "job 'job': created"
    await asyncio.sleep(1)
    text = job.await_tree()
    assert text.startswith("job 'job': running\n  task 'source (1/1)': running\n")
    assert "  task 'enrich (1/1)': running\n    <MailboxProcessor" in text
    assert "'source (1/1)': running\n    waits 1.0 s for its source or mail\n" in text
    assert "in look_up (" in text
    assert f"{__file__}:" in text
    # Outermost first.
    assert text.index("in StreamTask._run", text.index("enrich")) < text.index(
        "look_up"
    )


async def hang(city: str) -> str:
    await asyncio.sleep(3600)
    return city


LINE = f"{__file__}:{hang.__code__.co_firstlineno + 1}"


def tree_of(job: am.JobClient) -> list[str]:
    return [line.strip() for line in job.await_tree().splitlines()]


async def test_two_hung_calls_are_named_with_record_attempt_age_and_line() -> None:
    env = am.StreamExecutionEnvironment()
    cities = ["oslo", "rome", "x" * 1_000_000, "bern"]
    stream = env.from_collection(cities).map_async(hang, concurrency=2, capacity=3)
    stream.name("enrich").sink_to(lambda city: None)
    async with env.start() as job:
        await asyncio.sleep(10)
        tree = tree_of(job)
    at = tree.index("operator 'enrich': 2 calls are open, 1 wait until fewer are")
    assert tree[at + 1] == (
        f"attempt 1 for 'oslo' waits 10.0 s for its function at {LINE}"
    )
    assert tree[at + 2] == "attempt 1 for 'rome' waits 10.0 s for its function"


async def test_calls_that_wait_for_a_limit_name_it_and_its_tokens() -> None:
    env = am.StreamExecutionEnvironment()
    limit = am.RateLimit(2, per=60, name="openai")
    stream = env.from_collection(range(9)).map_async(hang, concurrency=3, limit=limit)
    stream.name("enrich").sink_to(lambda city: None)
    async with env.start() as job:
        await asyncio.sleep(5)
        tree = tree_of(job)
    assert "limit 'openai': 0 of 2 units free in 60 s, 1 calls wait for it" in tree
    assert "attempt 1 for 2 waits 5.0 s for limit 'openai'" in tree


async def test_a_call_between_two_attempts_and_one_that_goes_on_are_told_apart() -> (
    None
):
    async def stubborn(number: int) -> int:
        if number == 0:
            raise ConnectionError
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(20)
        return number

    env = am.StreamExecutionEnvironment()
    retry = am.Retry(attempts=3, initial=50)
    stream = env.from_collection([0, 1]).map_async(
        stubborn, concurrency=2, timeout=3, retry=retry
    )
    stream.sink_to(lambda number: None)
    async with env.start() as job:
        await asyncio.sleep(5)
        tree = tree_of(job)
    assert "attempt 1 for 0 waits 5.0 s for its next attempt" in tree
    cancelled = "its function, which goes on after it was cancelled"
    assert any(f"attempt 1 for 1 waits 5.0 s for {cancelled}" in line for line in tree)


async def test_of_a_thousand_calls_the_oldest_few_are_shown() -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection(range(2000)).map_async(hang, concurrency=1000)
    stream.name("enrich").sink_to(lambda city: None)
    async with env.start() as job:
        await asyncio.sleep(1)
        tree = tree_of(job)
    assert sum(line.startswith("attempt") for line in tree) == 5
    assert "and 995 later calls" in tree


async def test_calls_with_state_name_record_and_key() -> None:
    class Hangs(am.KeyedAsyncProcessFunction[str, str, str]):
        async def process_element(self, value: str, context: Any, out: Any) -> None:
            await asyncio.sleep(3600)

    env = am.StreamExecutionEnvironment()
    stream = env.from_collection(["oslo"]).key_by(lambda city: city[0])
    stream.process_async(Hangs()).sink_to(lambda city: None)
    async with env.start() as job:
        await asyncio.sleep(2)
        tree = tree_of(job)
    assert any("attempt 1 for 'oslo' of key 'o' waits 2.0 s" in line for line in tree)


async def test_a_record_that_cannot_be_shown_does_not_hide_the_call() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise ValueError

    env = am.StreamExecutionEnvironment()
    stream = env.from_collection([Broken()]).map_async(hang, concurrency=1)
    stream.sink_to(lambda city: None)
    async with env.start() as job:
        await asyncio.sleep(2)
        tree = tree_of(job)
    assert any("attempt 1 for <Broken instance" in line for line in tree)


async def test_a_task_that_has_no_room_names_its_pools_and_one_without_input_its_channels(
    bench: Any,
) -> None:
    env = am.StreamExecutionEnvironment()
    stuck = asyncio.Event()

    async def wait(number: int) -> None:
        await stuck.wait()

    env.from_collection(iter(range(10**6))).rebalance().sink_to(wait)
    async with env.start() as job:
        await asyncio.sleep(3)
        tree = tree_of(job)
        stuck.set()
    assert any("for room in its outputs" in line for line in tree)
    assert any("buffers used" in line for line in tree)


async def test_a_job_that_ended_waits_for_nothing(bench: Any) -> None:
    job = bench.deploy(bench.operator(bench.source([1])))
    await job.wait()
    text = job.await_tree()
    assert text.startswith("job 'job': finished\n  task 'source (1/1)': finished\n")
    assert " in " not in text
