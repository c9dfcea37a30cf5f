"""Whole jobs of several tasks: results, event time, failures, cancellation."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest

from aiomailbox.connectors.sinks import PullSink
from aiomailbox.errors import (
    JobCancelledError,
    JobFailedError,
    MailFailedError,
    StopTask,
    UserFunctionError,
)
from aiomailbox.exchange.writer import (
    BroadcastPartitioner,
    RebalancePartitioner,
    RescalePartitioner,
)
from aiomailbox.graph.transformation import ChainingStrategy, Origin
from aiomailbox.records.events import MAX_TIMESTAMP, OutputTag, StreamRecord
from aiomailbox.records.run import RUN_LENGTH_MAX, ListRun
from aiomailbox.runtime.config import JobState
from aiomailbox.task.stream_task import TaskState
from aiomailbox.testing import CRASH, VirtualTimeLoop


def at(*times: int) -> list[StreamRecord]:
    return [StreamRecord(f"r{time}", time) for time in times]


@pytest.mark.parametrize("way", [RebalancePartitioner(), RescalePartitioner(), None])
@pytest.mark.parametrize(("first", "second"), [(1, 3), (3, 2), (2, 2), (3, 1)])
async def test_every_record_arrives_once(
    bench: Any, way: Any, first: int, second: int
) -> None:
    scripts = [[f"{split}-{n}" for n in range(200)] for split in range(4)]
    source = bench.source(*scripts, run_length=7, parallelism=first)
    job = bench.deploy(bench.operator(source, way=way, parallelism=second))
    await job.wait()
    values = [value for _, value in bench.log]
    assert sorted(values) == sorted(v for script in scripts for v in script)
    assert job.state is JobState.FINISHED
    # Of one split to one subtask the order stays.
    for subtask in range(second):
        for split in range(4):
            mine = [
                v for i, v in bench.log if i == subtask and v.startswith(f"{split}-")
            ]
            assert mine == sorted(mine, key=lambda value: int(value.split("-")[1]))


async def test_a_broadcast_reaches_every_subtask(bench: Any) -> None:
    source = bench.source([1, 2], [3], parallelism=2)
    way = BroadcastPartitioner()
    await bench.deploy(bench.operator(source, way=way, parallelism=3)).wait()
    for subtask in range(3):
        assert sorted(v for i, v in bench.log if i == subtask) == [1, 2, 3]


async def test_a_key_lives_in_one_subtask_which_owns_its_key_group(bench: Any) -> None:
    scripts = [[f"key{n % 20}" for n in range(300)] for _ in range(2)]
    source = bench.source(*scripts, run_length=50, parallelism=2)
    groups: dict[int, Any] = {}

    def on_open(self: Any) -> None:
        groups[self.context.subtask_index] = self.context.key_group_range

    keyed = bench.keyed(source, str, parallelism=3, hooks={"open": on_open})
    await bench.deploy(keyed).wait()
    homes = defaultdict(set)
    for subtask, key in bench.log:
        homes[key].add(subtask)
    assert len(bench.log) == 600
    assert len(homes) == 20
    assert all(len(subtasks) == 1 for subtasks in homes.values())
    assert {next(iter(subtasks)) for subtasks in homes.values()} == {0, 1, 2}
    assert sum(each.end - each.start + 1 for each in groups.values()) == 128


async def test_watermarks_are_the_minimum_over_the_channels(bench: Any) -> None:
    source = bench.source(
        at(10, 20, 30), at(5, 15), strategy=bench.timed(), parallelism=2
    )
    seen: dict[int, list[int]] = defaultdict(list)

    def watermark(self: Any, timestamp_ms: int) -> None:
        seen[self.context.subtask_index].append(timestamp_ms)
        so_far = [value for index, value in bench.log]
        # Nothing that is still to come may be late.
        assert timestamp_ms == MAX_TIMESTAMP or all(
            f"r{t}" in so_far or t > timestamp_ms
            for t in (5, 10, 15, 20, 30)
            if f"r{t}" in mine[self.context.subtask_index]
        )

    mine: dict[int, set[str]] = defaultdict(set)
    sink = bench.operator(
        source,
        way=RebalancePartitioner(),
        parallelism=2,
        hooks={"watermark": watermark},
    )
    await bench.deploy(sink).wait()
    for timestamps in seen.values():
        assert timestamps == sorted(timestamps)
        assert timestamps[-1] == MAX_TIMESTAMP
        assert timestamps[0] <= 9
    assert len(seen) == 2


async def test_side_outputs_have_records_watermarks_and_an_end(bench: Any) -> None:
    tag = OutputTag("odd")

    def split(self: Any, run: Any) -> Any:
        odd = [v for v in run.values if v % 2]
        self.output.emit_side(tag, ListRun(odd))
        return self.output.emit_run(ListRun([v for v in run.values if not v % 2]))

    times: list[int] = []
    side_log: list[Any] = []
    source = bench.source(
        [StreamRecord(n, n) for n in range(10)], strategy=bench.timed()
    )
    middle = bench.operator(source, log=[], hooks={"run": split})
    main = bench.operator(middle, "main", parallelism=2)
    side = bench.operator(
        middle,
        "side",
        tag=tag,
        log=side_log,
        hooks={"watermark": lambda _, time: times.append(time)},
    )
    await bench.deploy(main, side).wait()
    assert sorted(v for _, v in bench.log) == [0, 2, 4, 6, 8]
    assert [v for _, v in side_log] == [1, 3, 5, 7, 9]
    assert times == sorted(times)
    assert times[-1] == MAX_TIMESTAMP
    assert len(times) > 1


async def test_united_streams_all_arrive(bench: Any) -> None:
    first, second = bench.source([1, 2]), bench.source([3])
    way = RebalancePartitioner()
    both = [Origin(first, way), Origin(second), Origin(first)]
    await bench.deploy(bench.operator(both)).wait()
    assert sorted(v for _, v in bench.log) == [1, 1, 2, 2, 3]


async def test_the_first_error_wins_and_names_its_task(bench: Any) -> None:
    async def fail(self: Any, run: Any) -> Any:
        await asyncio.sleep(1)
        raise ValueError("first")

    def fail_too(self: Any) -> Any:
        raise KeyError("second")

    closed: list[str] = []
    source = bench.source([1], ends=False)
    failing = bench.operator(source, "failing", hooks={"run": fail})
    other = bench.operator(source, "other", hooks={"close": fail_too})
    third = bench.operator(
        other, "third", hooks={"close": lambda self: closed.append("third")}
    )
    job = bench.deploy(failing, third)
    with pytest.raises(JobFailedError) as caught:
        await job.wait()
    cause = caught.value.__cause__
    assert repr(cause) == "ValueError('first')"
    notes = "\n".join(cause.__notes__)
    assert "in task 'failing (1/1)' of job 'job'" in notes
    assert "operator 'other' failed at " in notes
    assert "KeyError: 'second'" in notes
    assert closed == ["third"]
    assert (job.state, job.failed) == (JobState.FAILED, True)
    bench.check_nothing_stays()


async def test_a_source_that_crashes_fails_the_job(bench: Any) -> None:
    source = bench.source([1, 2, CRASH, 3], parallelism=1)
    job = bench.deploy(bench.operator(source, parallelism=2))
    with pytest.raises(JobFailedError, match="CRASH"):
        await job.wait()
    assert {task.lifecycle.state for task in job.tasks} <= {
        TaskState.FAILED,
        TaskState.CANCELED,
    }
    bench.check_nothing_stays()


async def test_every_task_is_closed_when_one_fails(bench: Any) -> None:
    closed: list[tuple[str, int]] = []

    def close(self: Any) -> Any:
        closed.append((self.context.operator_name, self.context.subtask_index))

    async def fail(self: Any, run: Any) -> Any:
        await asyncio.sleep(1)
        if self.context.subtask_index == 2:
            raise ValueError("one of three")

    source = bench.source(range(1000), ends=False, run_length=10)
    middle = bench.operator(
        source,
        "m",
        way=RebalancePartitioner(),
        parallelism=3,
        hooks={"run": fail, "close": close},
    )
    last = bench.operator(middle, "l", parallelism=2, hooks={"close": close})
    with pytest.raises(JobFailedError, match="one of three"):
        await bench.deploy(last).wait()
    assert sorted(closed) == [("l", 0), ("l", 1), ("m", 0), ("m", 1), ("m", 2)]


async def test_a_foreign_cancellation_in_a_function_fails_the_job(bench: Any) -> None:
    async def call(self: Any, *_: Any) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    for phase in ("open", "run", "close"):
        sink = bench.operator(bench.source([1]), hooks={phase: call})
        job = bench.deploy(sink)
        with pytest.raises(JobFailedError) as caught:
            await job.wait()
        cause = caught.value.__cause__
        assert isinstance(cause, MailFailedError | UserFunctionError)
        assert isinstance(cause.__cause__, asyncio.CancelledError)


async def test_a_function_may_stop_the_job(bench: Any) -> None:
    def stop(self: Any, run: Any) -> Any:
        raise StopTask("enough")

    job = bench.deploy(
        bench.operator(bench.source([1], ends=False), hooks={"run": stop})
    )
    with pytest.raises(JobCancelledError):
        await job.wait()


@pytest.mark.parametrize(
    ("error", "surfaces"),
    [(KeyboardInterrupt, KeyboardInterrupt), (SystemExit, JobFailedError)],
)
@pytest.mark.parametrize("is_async", [False, True])
async def test_an_interrupt_surfaces_as_itself_and_an_exit_fails_the_job(
    bench: Any, error: Any, surfaces: Any, is_async: bool
) -> None:
    def exit_now(self: Any, run: Any) -> Any:
        if not is_async:
            raise error

        async def later() -> None:
            await asyncio.sleep(1)
            raise error

        return later()

    closed: list[int] = []
    hooks = {"run": exit_now, "close": lambda self: closed.append(1)}
    job = bench.deploy(bench.operator(bench.source([1]), hooks=hooks))
    with pytest.raises(surfaces):
        await job.wait()
    assert closed == [1]
    bench.check_nothing_stays()


@pytest.mark.parametrize("delay_s", [0, 0.0005, 0.5, 3])
async def test_cancelled_at_any_time_leaves_nothing(bench: Any, delay_s: float) -> None:
    async def slowly(self: Any, run: Any) -> None:
        await asyncio.sleep(1)
        await (self.output.emit_run(run) or asyncio.sleep(0))

    source = bench.source(range(50), range(50), ends=False, parallelism=2)
    middle = bench.keyed(source, str, parallelism=3, hooks={"run": slowly})
    job = bench.deploy(bench.operator(middle, parallelism=2))
    await asyncio.sleep(delay_s)
    job.cancel()
    job.cancel()
    with pytest.raises(JobCancelledError):
        await job.wait()
    assert job.state is JobState.CANCELED
    bench.check_nothing_stays()
    job.cancel()
    assert job.state is JobState.CANCELED


@pytest.mark.parametrize("turns", range(12))
async def test_cancelled_after_any_number_of_turns_leaves_nothing(
    bench: Any, turns: int
) -> None:
    source = bench.source(range(9), parallelism=2)
    job = bench.deploy(bench.operator(source, parallelism=2))
    await bench.settle(turns)
    job.cancel()
    await job.join()
    bench.check_nothing_stays()


async def test_cancelled_by_its_own_function(bench: Any) -> None:
    def cancel(self: Any, run: Any) -> Any:
        bench.jobs[0].cancel()

    async def slowly(self: Any) -> None:
        await asyncio.sleep(1)
        bench.log.append("closed")

    hooks = {"run": cancel, "close": slowly}
    job = bench.deploy(bench.operator(bench.source([1], ends=False), hooks=hooks))
    with pytest.raises(JobCancelledError):
        await job.wait()
    assert bench.log[-1] == "closed"


async def test_cancelling_a_waiter_does_not_touch_the_job(bench: Any) -> None:
    job = bench.deploy(bench.operator(bench.source([1], ends=False)))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(job.wait(), 1)
    assert job.state is JobState.RUNNING


@pytest.mark.parametrize("delay_s", [0, 0.5])
def test_a_loop_that_goes_down_takes_the_job_with_it(
    new_bench: Any, delay_s: float
) -> None:
    bench = new_bench()
    closed: list[Any] = []

    async def slowly(self: Any) -> None:
        await asyncio.sleep(1)
        closed.append(self.context.subtask_index)

    async def main() -> None:
        source = bench.source(range(10), ends=False)
        sink = bench.operator(source, parallelism=3, hooks={"close": slowly})
        bench.deploy(sink)
        if delay_s:
            await asyncio.sleep(delay_s)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())
    (job,) = bench.jobs
    assert sorted(closed) == ([0, 1, 2] if delay_s else [])
    assert job.state is JobState.CANCELED
    job.services.pool.check_leaks()
    assert len(job.services.registry) == 0
    assert all(task.lifecycle.is_terminal for task in job.tasks)


async def test_records_in_flight_are_bounded_by_what_explain_says(bench: Any) -> None:
    sent: list[int] = []
    gate = asyncio.Event()

    async def wait(self: Any, run: Any) -> None:
        await gate.wait()

    def count(self: Any, run: Any) -> Any:
        sent.append(len(run))
        return self.output.emit_run(run)

    total = 60 * RUN_LENGTH_MAX
    source = bench.source(range(total), run_length=RUN_LENGTH_MAX)
    middle = bench.operator(source, log=[], hooks={"run": count})
    last = bench.operator(middle, log=bench.log, hooks={"run": wait})
    job = bench.deploy(last, buffers_per_channel=2, floating_buffers=3)
    await asyncio.sleep(5)
    # 5 buffers of the middle task's partition, one in each hand, one of overdraft.
    assert sum(sent) <= 8 * RUN_LENGTH_MAX
    gate.set()
    await job.wait()
    assert sum(sent) == len(bench.log) == total


async def test_results_that_are_pulled_pace_the_job(bench: Any) -> None:
    source = bench.source(range(1000))
    job = bench.deploy(bench.sink(source, PullSink("results")))
    run = await bench.handover.take()
    assert run is not None
    await bench.settle(1000)
    emitted = job.services.metrics.child(job.tasks[0].name).child("source")
    assert emitted.counter("num_records_out").value <= 10
    values = list(run.values)
    while (run := await bench.handover.take()) is not None:
        values += run.values
    assert values == list(range(1000))
    await job.wait()


async def test_two_jobs_on_one_loop_do_not_meet(bench: Any) -> None:
    jobs = [
        bench.deploy(bench.operator(bench.source(range(100)), parallelism=2))
        for _ in range(2)
    ]
    for job in jobs:
        await job.wait()
    assert sorted(v for _, v in bench.log) == sorted([*range(100), *range(100)])


async def test_how_long_a_job_took(bench: Any) -> None:
    async def slowly(self: Any, run: Any) -> None:
        await asyncio.sleep(2)

    job = bench.deploy(bench.operator(bench.source([1]), hooks={"run": slowly}))
    await asyncio.sleep(1)
    assert job.duration_s == 1.0
    result = await job.wait()
    assert (result.name, result.duration_s) == ("job", 2.0)
    await asyncio.sleep(5)
    assert job.duration_s == 2.0


async def test_metrics_of_equal_names_are_kept_apart(bench: Any) -> None:
    chained = ChainingStrategy.ALWAYS
    source = bench.source(range(10))

    def halve(self: Any, run: Any) -> Any:
        return self.output.emit_run(ListRun([v for v in run.values if v % 2]))

    first = bench.operator(source, "map", chaining=chained, hooks={"run": halve})
    second = bench.operator(first, "map", chaining=chained)
    other = bench.operator(bench.source([1]), "map", chaining=chained)
    job = bench.deploy(second, other)
    await job.wait()
    assert [task.name for task in job.tasks] == [
        "source -> map -> map (1/1)",
        "source -> map (1/1)",
    ]
    group = job.services.metrics.child(job.tasks[0].name)
    assert [
        group.child(name).counter("num_records_out").value
        for name in ("source", "map", "map #2")
    ] == [10, 5, 5]


async def test_tasks_of_equal_names_can_be_told_apart(bench: Any) -> None:
    sources = [bench.source([n], chaining=ChainingStrategy.NEVER) for n in range(2)]
    job = bench.deploy(*[bench.operator(source, "print") for source in sources])
    await job.wait()
    assert [task.name for task in job.tasks] == [
        "source (1/1)",
        "source #2 (1/1)",
        "print (1/1)",
        "print #2 (1/1)",
    ]
