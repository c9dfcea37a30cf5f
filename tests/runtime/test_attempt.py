"""Attempts: what they go on from, and what is told apart by their numbers."""

from __future__ import annotations

import asyncio
from typing import Any

from aiomailbox.ids import SubtaskId
from aiomailbox.operators.core.operator import Operator
from aiomailbox.records.events import StopMode
from aiomailbox.runtime.attempt import Attempt
from aiomailbox.runtime.builder import AttemptPlan
from aiomailbox.runtime.sources import JobSources


class Owner:
    """Writes down what it is told; starts the sources."""

    def __init__(self, sources: Any, graph: Any) -> None:
        self.told: list[str] = []
        self.sources = sources
        self.graph = graph

    def on_deployed(self) -> None:
        self.told.append("deployed")
        self.sources.prepare(self.graph)
        self.sources.start()

    def on_failing(self, error: BaseException) -> None:
        self.told.append("failing")

    def cancel(self) -> None:
        self.told.append("cancel")

    def on_split_request(self, task: SubtaskId) -> None:
        self.sources.request_split(task)


class Counter(Operator):
    """Counts records; its own state is the count."""

    def __init__(self, counts: dict[tuple[int, int], int]) -> None:
        self.counts = counts
        self.count = 0

    def open(self) -> None:
        self.counted_at = (self.context.subtask_index, self.context.attempt)

    def process_run(self, run: Any) -> None:
        self.count += len(run)
        self.counts[self.counted_at] = self.count

    def snapshot_own(self) -> Any:
        return super().snapshot_own().with_list("count", [self.count])

    def restore_own(self, own: Any) -> None:
        (self.count,) = own.elements("count")


async def test_a_second_attempt_runs_under_its_number_from_its_snapshots(
    bench: Any,
) -> None:
    counts: dict[tuple[int, int], int] = {}
    source = bench.source(range(10), range(6), parallelism=2)
    counter = bench.operator(source)
    counter.factory = lambda: Counter(counts)
    job = bench.prepare(counter, parallelism=2)
    host = job._host
    snapshots: dict[SubtaskId, Any] = {}
    for number in range(3):
        counts.clear()
        sources = JobSources(host.tell)
        owner = Owner(sources, job.graph)
        attempt = Attempt("job", AttemptPlan(number, dict(snapshots)), host, owner)
        await attempt.run()
        assert attempt.failure.error is None
        assert owner.told == ["deployed"]
        assert {place[1] for place in counts} == {number}
        assert sum(counts.values()) == 16 * (number + 1)
        for task in host.tasks:
            task_id = task.environment.task_id
            assert task_id.attempt == number
            if "operator" in task.name:
                subtask = SubtaskId(task_id.vertex, task_id.subtask_index)
                snapshots[subtask] = task.snapshot()
    await host.release()


async def test_an_attempt_that_is_stopped_ends_well(bench: Any) -> None:
    counts: dict[tuple[int, int], int] = {}
    source = bench.source(range(10), ends=False)
    counter = bench.operator(source)
    counter.factory = lambda: Counter(counts)
    job = bench.deploy(counter)
    await asyncio.sleep(1)
    job.stop(StopMode.NO_DRAIN)
    await job.wait()
    assert counts == {(0, 0): 10}
