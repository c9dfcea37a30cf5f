"""All results of a job become visible, or none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.errors import (
    JobCancelledError,
    JobFailedError,
    SinkError,
    UserFunctionError,
)
from aiomailbox.runtime.config import JobState
from aiomailbox.runtime.job_checkpoints import JobCommitters


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
    job = bench.deploy(
        bench.sink(bench.source([1]), sink), cancel_timeout=am.seconds(5.0)
    )
    with pytest.raises(JobFailedError) as caught:
        await job.wait()
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert job.duration_s == 5.0


def line_of(function: Any) -> str:
    code = function.__code__
    return f"{code.co_filename}:{code.co_firstlineno + 1}"


def refuse() -> None:
    raise OSError("disk full")


async def refuse_later() -> None:
    raise OSError("disk full")


@pytest.mark.parametrize("hook", ["begin", "commit", "end"])
@pytest.mark.parametrize("function", [refuse, refuse_later])
async def test_an_error_of_a_hook_names_operator_uid_line_and_hook(
    bench: Any, new_sink: Any, hook: str, function: Any
) -> None:
    sink = new_sink(**{hook: function})
    job = bench.deploy(bench.sink(bench.source([1]), sink, "prices", uid="p-1"))
    with pytest.raises(JobFailedError) as caught:
        await job.wait()
    error = caught.value.__cause__
    assert isinstance(error, UserFunctionError)
    assert (error.operator, error.uid) == ("prices", "p-1")
    assert error.location == line_of(function)
    assert isinstance(error.__cause__, OSError)
    assert f"in {hook}() of operator 'prices' (uid 'p-1')" in error.__notes__


async def test_a_sink_that_makes_no_committer_is_named(
    bench: Any, new_sink: Any
) -> None:
    sink = new_sink()
    sink.create_committer = lambda context: refuse()
    job = bench.deploy(bench.sink(bench.source([1]), sink, "prices", uid="p-1"))
    with pytest.raises(JobFailedError, match=r"'prices' \(uid 'p-1'\)") as caught:
        await job.wait()
    assert "in create_committer()" in caught.value.__cause__.__notes__[0]


async def test_an_error_of_ours_stays_what_it_is_and_is_placed(
    bench: Any, new_sink: Any
) -> None:
    def full() -> None:
        raise SinkError("full")

    job = bench.deploy(bench.sink(bench.source([1]), new_sink(commit=full), "prices"))
    with pytest.raises(JobFailedError) as caught:
        await job.wait()
    error = caught.value.__cause__
    assert isinstance(error, SinkError)
    place = f"in commit() of operator 'prices' at {line_of(full)}"
    assert error.__notes__[0] == place


@pytest.mark.parametrize("hook", ["begin", "commit", "end"])
async def test_a_cancellation_of_somebody_else_in_a_hook_is_a_failure(
    bench: Any, new_sink: Any, hook: str
) -> None:
    async def await_cancelled() -> None:
        upload = asyncio.ensure_future(asyncio.sleep(10))
        asyncio.get_running_loop().call_soon(upload.cancel)
        await upload

    sink = new_sink(**{hook: await_cancelled})
    job = bench.deploy(bench.sink(bench.source([1]), sink, "prices"))
    with pytest.raises(JobFailedError, match="'prices'"):
        await job.wait()
    assert job.state is JobState.FAILED


async def test_every_committer_is_ended_also_when_time_has_run_out(
    bench: Any, new_sink: Any
) -> None:
    first = new_sink(end=lambda: asyncio.sleep(10**6))
    second = new_sink(first.log)
    source = bench.source([1])
    job = bench.deploy(
        bench.sink(source, first),
        bench.sink(source, second),
        cancel_timeout=am.seconds(5.0),
    )
    with pytest.raises(JobFailedError):
        await job.wait()
    assert first.log.count("end True") == 2


async def test_committers_and_writers_know_the_execution_and_no_two_are_one(
    bench: Any, new_sink: Any
) -> None:
    known: list[str] = []

    def sink() -> Any:
        made = new_sink()
        writer, committer = made.create_writer, made.create_committer
        made.create_writer = lambda context: (
            known.append(context.execution_id) or writer(context)  # type: ignore[func-returns-value]
        )
        made.create_committer = lambda context: (
            known.append(context.execution_id) or committer(context)  # type: ignore[func-returns-value]
        )
        return made

    await bench.deploy(bench.sink(bench.source([1]), sink())).wait()
    await bench.deploy(bench.sink(bench.source([1]), sink())).wait()
    assert known[0] == known[1] != known[2] == known[3]
    assert all(len(name) == 32 and int(name, 16) >= 0 for name in known)


@pytest.mark.parametrize("hook", ["begin", "end"])
async def test_a_committer_that_does_not_give_way_is_left_behind_and_named(
    bench: Any, new_sink: Any, hook: str
) -> None:
    async def swallow() -> None:
        while True:
            try:
                await asyncio.sleep(10**6)
            except asyncio.CancelledError:
                continue

    first = new_sink(**{hook: swallow})
    second = new_sink(first.log)
    source = bench.source([1], ends=False)
    job = bench.deploy(
        bench.sink(source, first, "stubborn"),
        bench.sink(source, second),
        cancel_timeout=am.seconds(5.0),
    )
    await asyncio.sleep(1)
    job.cancel()
    with pytest.raises(JobFailedError) as caught:
        await job.wait()
    line = swallow.__code__.co_firstlineno + 3
    assert f"in operator 'stubborn' at {__file__}:{line}" in str(caught.value)
    assert job.state is JobState.FAILED
    # What had begun is ended once, whoever stands in the way.
    assert first.log.count("end False") == (1 if hook == "begin" else 2)
    assert job.duration_s < 8


async def test_a_commit_of_somebody_elses_cancellation_is_a_failure(
    bench: Any, new_sink: Any
) -> None:
    for hook in ("begin", "commit", "end"):

        async def cancelled() -> None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.cancel()
            await future

        sink = new_sink(**{hook: cancelled})
        job = bench.deploy(bench.sink(bench.source([1]), sink))
        with pytest.raises(JobFailedError, match=r"operator 'sink'.*CancelledError"):
            await job.wait()
        assert job.state is JobState.FAILED
        assert sink.log[-1].startswith("end")


def failing(error: Exception, *, times: int) -> Any:
    calls = 0

    def hook() -> None:
        nonlocal calls
        calls += 1
        if calls <= times:
            raise error

    return hook


@pytest.mark.parametrize("error", [ConnectionResetError("gone"), TimeoutError("slow")])
async def test_a_commit_that_nobody_answers_is_made_again(
    bench: Any, new_sink: Any, error: Exception
) -> None:
    sink = new_sink(commit=failing(error, times=4))
    job = bench.deploy(bench.sink(bench.source([1, 2]), sink))
    await job.wait()
    assert sink.log[-6:] == ["commit [1, 2]"] * 5 + ["end True"]
    # 0.1 + 0.2 + 0.4 + 0.8 seconds, a tenth more or less.
    assert 1.3 < job.duration_s < 1.7


async def test_a_commit_that_nobody_ever_answers_fails_the_job(
    bench: Any, new_sink: Any
) -> None:
    sink = new_sink(commit=failing(ConnectionRefusedError("no server"), times=10**6))
    job = bench.deploy(bench.sink(bench.source([1]), sink))
    with pytest.raises(JobFailedError, match="no server"):
        await job.wait()
    assert sink.log[-6:] == ["commit [1]"] * 5 + ["end False"]


async def test_committers_hear_of_a_checkpoint_only_what_is_theirs(
    bench: Any, new_sink: Any
) -> None:
    """The job's side of checkpoints, by hand: what is empty is said at the end only."""
    calls: list[Any] = []

    class Logged:
        def __init__(self, name: str) -> None:
            self.name = name

        def begin(self, *, restored: bool) -> None:
            calls.append((self.name, "begin", restored))

        def commit(
            self, committables: list[Any], *, checkpoint_id: int, is_final: bool
        ) -> None:
            calls.append((self.name, checkpoint_id, committables, is_final))

        def end(self, *, succeeded: bool) -> None:
            calls.append((self.name, "end", succeeded))

    class Recovering(Logged):
        def recover(self) -> None:
            calls.append((self.name, "recover"))

    first, second = new_sink(), new_sink()
    first.create_committer = lambda context: Logged("first")
    second.create_committer = lambda context: Recovering("second")
    source = bench.source([1])
    job = bench.prepare(
        bench.sink(source, first, uid="a"), bench.sink(source, second, uid="b")
    )
    committers = JobCommitters(job.graph, job.services)
    ids = [
        node.operator_id
        for vertex in job.graph.vertices
        for node in vertex.nodes
        if node.transformation.sink is not None
    ]
    await committers.begin(restored=True)
    await committers.recover()
    await committers.commit({ids[1]: ["x"]}, checkpoint_id=7, is_final=False)
    await committers.commit({}, checkpoint_id=8, is_final=True)
    for end in committers.ending(succeeded=True):
        await end()  # type: ignore[misc]
    assert calls == [
        ("first", "begin", True),
        ("second", "begin", True),
        ("second", "recover"),
        ("second", 7, ["x"], False),
        ("first", 8, [], True),
        ("second", 8, [], True),
        ("first", "end", True),
        ("second", "end", True),
    ]
    job.services.release()


OWN_CANCELS = ["create_committer", "begin", "create_writer", "flush", "commit", "end"]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("hook", OWN_CANCELS)
async def test_a_hook_that_cancels_the_asyncio_task_it_runs_in_fails_the_job(
    bench: Any, hook: str, is_async: bool
) -> None:
    if is_async and hook.startswith("create"):
        pytest.skip("it is not awaited")

    def reach(name: str) -> Any:
        if name == hook and not is_async:
            asyncio.current_task().cancel()  # type: ignore[union-attr]
        return later() if name == hook and is_async else None

    async def later() -> None:
        asyncio.current_task().cancel()  # type: ignore[union-attr]
        await asyncio.sleep(0)

    class Hooks:
        def create_committer(self, context: Any) -> Any:
            reach("create_committer")
            return self

        def create_writer(self, context: Any) -> Any:
            reach("create_writer")
            return self

        def begin(self, *, restored: bool) -> Any:
            return reach("begin")

        def commit(self, prepared: Any, *, checkpoint_id: int, is_final: bool) -> Any:
            return reach("commit")

        def end(self, *, succeeded: bool) -> Any:
            return reach("end")

        def write_run(self, run: Any) -> None:
            pass

        def flush(self, *, end_of_input: bool) -> Any:
            return reach("flush")

        def prepare_commit(self) -> list[Any]:
            return []

        def close(self) -> None:
            pass

    job = bench.deploy(bench.sink(bench.source([1]), Hooks(), "odd"))
    with pytest.raises(JobFailedError, match=r"operator 'odd'.*CancelledError"):
        await job.wait()
    assert job.state is JobState.FAILED
