"""The block of a job says what to write where it is used as something else."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

import aiomailbox as am


def made() -> Any:
    env = am.StreamExecutionEnvironment()
    env.from_collection([1]).sink_to(lambda _: None)
    return env.start("numbers")


async def awaits(block: Any) -> None:
    await block


async def enters(block: Any) -> None:
    with block:
        pass


async def asks(block: Any) -> None:
    block.metrics()


def shown() -> None:
    assert not hasattr(made(), "_repr_html_")
    gc.collect()


def forgotten() -> None:
    made()
    gc.collect()


@pytest.mark.parametrize(
    ("use", "error"),
    [(awaits, am.UsageError), (enters, am.UsageError), (asks, AttributeError)],
)
async def test_what_is_taken_for_the_job_says_how_one_is_started(
    use: Callable[[Any], Any], error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"write `async with env.start\(\.\.\.\) as job:`"):
        await use(made())


async def test_a_job_that_is_made_and_never_started_gives_a_warning() -> None:
    with pytest.warns(RuntimeWarning, match="never started: write `async with"):
        forgotten()


async def test_a_job_that_a_notebook_shows_is_not_started_by_that() -> None:
    with pytest.warns(RuntimeWarning, match="never started"):
        shown()


async def test_a_job_that_was_started_gives_none() -> None:
    async with made() as job:
        await job.result()
    gc.collect()
    assert job.state is am.JobState.FINISHED
