"""All results of a job become visible, or none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiomailbox.errors import JobCancelledError, JobFailedError
from aiomailbox.runtime import JobState


def fail(message: str) -> Any:
    def raise_it(*_: Any) -> None:
        raise ValueError(message)

    return raise_it


async def test_check_first_commit_last_clean_up_always(
    bench: Any, new_sink: Any
) -> None:
    """SEM-239."""
    sink = new_sink()
    source = bench.source([1, 2], [3], parallelism=2)
    job = bench.deploy(bench.sink(source, sink, parallelism=2))
    await job.wait()
    assert sink.log == ["begin", "close", "close", "commit [1, 2, 3]", "end True"]
    assert job.state is JobState.FINISHED


@pytest.mark.parametrize("facts", [{}, {"uid": "mine"}, {"uid": "other", "name": "x"}])
async def test_two_sinks_of_one_name_commit_their_own(
    bench: Any, new_sink: Any, facts: dict[str, str]
) -> None:
    first, second = new_sink(), new_sink()
    source = bench.source([1, 2])
    other = bench.source([3])
    name = facts.pop("name", "sink")
    await bench.deploy(
        bench.sink(source, first, **facts), bench.sink(other, second, name)
    ).wait()
    assert "commit [1, 2]" in first.log
    assert "commit [3]" in second.log


async def test_two_sinks_in_one_chain_commit_their_own(
    bench: Any, new_sink: Any
) -> None:
    first, second = new_sink(), new_sink()
    source = bench.source([1, 2])
    job = bench.deploy(bench.sink(source, first), bench.sink(source, second))
    assert len(job.graph.vertices) == 1
    await job.wait()
    assert "commit [1, 2]" in first.log
    assert "commit [1, 2]" in second.log


async def test_a_target_that_is_refused_starts_no_task(
    bench: Any, new_sink: Any
) -> None:
    first = new_sink()
    second = new_sink(first.log, begin=fail("exists"))
    third = new_sink(first.log)
    source = bench.source([1])
    job = bench.deploy(*[bench.sink(source, sink) for sink in (first, second, third)])
    with pytest.raises(JobFailedError, match="exists"):
        await job.wait()
    assert first.log == ["begin", "begin", "end False", "end False"]
    assert job.tasks == []


async def test_nothing_is_committed_when_a_task_fails(
    bench: Any, new_sink: Any
) -> None:
    sink = new_sink()
    middle = bench.operator(bench.source([1]), hooks={"finish": fail("late")})
    job = bench.deploy(bench.sink(middle, sink))
    with pytest.raises(JobFailedError, match="late"):
        await job.wait()
    assert sink.log == ["begin", "close", "end False"]


async def test_nothing_is_committed_when_the_job_is_cancelled(
    bench: Any, new_sink: Any
) -> None:
    sink = new_sink()
    job = bench.deploy(bench.sink(bench.source([1], ends=False), sink))
    await asyncio.sleep(1)
    job.cancel()
    with pytest.raises(JobCancelledError):
        await job.wait()
    assert sink.log == ["begin", "close", "end False"]


async def test_a_check_that_hangs_can_be_cancelled(bench: Any, new_sink: Any) -> None:
    sink = new_sink(begin=lambda: asyncio.sleep(10**6))
    job = bench.deploy(bench.sink(bench.source([1]), sink))
    await asyncio.sleep(1)
    job.cancel()
    with pytest.raises(JobCancelledError):
        await job.wait()
    assert job.duration_s == 1.0
    assert sink.log == ["begin", "end False"]


async def test_a_committer_that_cancels_its_own_job_is_cleaned_up(
    bench: Any, new_sink: Any
) -> None:
    async def slowly() -> None:
        await asyncio.sleep(1)
        sink.log.append("ended")

    sink = new_sink(begin=lambda: bench.jobs[0].cancel(), end=slowly)
    job = bench.deploy(bench.sink(bench.source([1]), sink))
    with pytest.raises(JobCancelledError):
        await job.wait()
    assert sink.log == ["begin", "end False", "ended"]


async def test_it_is_too_late_to_cancel_while_results_are_committed(
    bench: Any, new_sink: Any
) -> None:
    sink = new_sink(commit=lambda: asyncio.sleep(10))
    job = bench.deploy(bench.sink(bench.source([1]), sink))
    await asyncio.sleep(5)
    job.cancel()
    await job.wait()
    assert sink.log[-2:] == ["commit [1]", "end True"]
    assert job.state is JobState.FINISHED


async def test_a_commit_that_fails_fails_the_job_and_is_cleaned_up(
    bench: Any, new_sink: Any
) -> None:
    sink = new_sink(commit=fail("full"))
    job = bench.deploy(bench.sink(bench.source([1]), sink))
    with pytest.raises(JobFailedError, match="full"):
        await job.wait()
    assert sink.log[-2:] == ["commit [1]", "end False"]


async def test_every_committer_is_ended_and_the_first_error_counts(
    bench: Any, new_sink: Any
) -> None:
    first = new_sink(end=fail("one"))
    second = new_sink(first.log, end=fail("two"))
    source = bench.source([1])
    job = bench.deploy(bench.sink(source, first), bench.sink(source, second))
    with pytest.raises(JobFailedError, match="one"):
        await job.wait()
    assert first.log.count("end True") == 2
    assert await bench.handover.take() is None


async def test_a_clean_up_that_hangs_is_given_up(bench: Any, new_sink: Any) -> None:
    sink = new_sink(end=lambda: asyncio.sleep(10**6))
    job = bench.deploy(bench.sink(bench.source([1]), sink), cancel_timeout_s=5.0)
    with pytest.raises(JobFailedError) as caught:
        await job.wait()
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert job.duration_s == 5.0
