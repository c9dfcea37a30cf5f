"""A job that takes over from a running one, as where a cell of a notebook is run again."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NoReturn

import pytest

import aiomailbox as am

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(180)]


hurried: set[str] = set()


@pytest.fixture(autouse=True)
def nobody_hurries() -> None:
    hurried.clear()


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


async def test_what_cannot_be_deployed_replaces_nothing() -> None:
    async with summing([]).start("sums") as job:
        env = am.StreamExecutionEnvironment().enable_checkpointing(None)
        with pytest.raises(am.UsageError, match="nothing to run"):
            await env.execute(replace=job)
        assert job.state not in {am.JobState.CANCELLING, am.JobState.FINISHED}


async def test_the_state_is_kept_if_the_next_job_fails_before_it_has_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before: list[int] = []
    after: list[int] = []

    def fail(total: int) -> NoReturn:
        raise ConnectionError("the new version is wrong")

    async with summing(before).start("sums") as first:
        while len(before) < 20:
            await asyncio.sleep(0.01)
        env = am.StreamExecutionEnvironment().enable_checkpointing(None)
        source = env.from_async_iterable(
            numbers, name="numbers", offset=lambda one: one
        )
        total = source.key_by(lambda one: "all").reduce(lambda one, other: one + other)
        total.uid("sum").sink_to(fail)
        env.configure(restart=am.restart.none())
        with pytest.raises(am.JobFailedError, match="the new version is wrong"):
            await env.execute("sums", replace=first)
    (kept,) = tmp_path.glob("aiomailbox-savepoint-*")
    hurried.add("the last one")
    await summing(after).execute("sums", restore_from=kept)
    assert after[-1] == sum(range(4_000))
    assert len(before) + len(after) == 4_000


async def test_a_job_that_still_runs_is_not_started_again_in_silence() -> None:
    seen: list[int] = []
    async with summing(seen).start("sums") as first:
        for again in (
            lambda env: env.execute_async("sums"),
            lambda env: env.execute("sums"),
            lambda env: env.execute("other", job_id="sums"),
        ):
            env = summing(seen)
            with pytest.raises(am.UsageError, match=r"replace=job"):
                await again(env)
            # It has taken nothing: it can be run by another name.
            assert "sum" in env.explain()
        with pytest.raises(am.UsageError, match="give this one another name"):
            async with summing(seen).start("sums"):
                pass
        assert first.state in {am.JobState.CREATED, am.JobState.RUNNING}
        # These are other jobs.
        async with summing([]).start("other"), summing([]).start("sums", job_id="2"):
            pass
        await first.cancel()
        async with summing([]).start("sums"):
            pass


async def test_jobs_without_a_name_run_beside_each_other() -> None:
    async with summing([]).start(), summing([]).start() as second:
        assert second.state is not am.JobState.FAILED


async def test_a_job_that_is_being_cancelled_is_in_nobodys_way() -> None:
    async with summing([]).start("sums") as first:
        ending = asyncio.create_task(first.cancel())
        await asyncio.sleep(0)
        async with summing([]).start("sums"):
            pass
        await ending
