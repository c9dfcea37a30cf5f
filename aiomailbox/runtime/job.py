"""A running job: its tasks in one task group, its first error, its end.

Concept:
    Flink, ``JobMaster`` and ``DefaultScheduler``, without restarts yet.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

import anyio

from aiomailbox.errors import JobCancelledError, JobFailedError
from aiomailbox.graph import JobGraph, JobVertex
from aiomailbox.runtime.builder import TaskBuilder
from aiomailbox.runtime.committing import JobCommitters
from aiomailbox.runtime.config import JobConfig
from aiomailbox.runtime.lifecycle import JobLifecycle, JobState
from aiomailbox.runtime.services import JobServices
from aiomailbox.runtime.sources import SourceCoordinator, deliver_splits
from aiomailbox.task import StreamTask, TaskState


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended well.

    Attributes:
        name: The job's name.
        duration_s: From start to end, seconds.
    """

    name: str
    duration_s: float


class Job:
    """One execution of a job graph on the running loop.

    Args:
        graph: What to run.
        config: Settings.
        services: What the tasks share.

    Attributes:
        lifecycle: Where the job is in its life.
        tasks: Its tasks, those of sources first; empty before they are built.
    """

    def __init__(
        self, graph: JobGraph, config: JobConfig, services: JobServices
    ) -> None:
        self.graph = graph
        self.services = services
        self.lifecycle = JobLifecycle()
        self.tasks: list[StreamTask] = []
        self._config = config
        self._coordinators: dict[int, SourceCoordinator] = {}
        self._failure: BaseException | None = None
        self._main: asyncio.Task[None] | None = None
        self._started_s = 0.0
        self._ended_s: float | None = None

    def start(self) -> None:
        """Start the job in the background; call it once, with a running loop."""
        loop = asyncio.get_running_loop()
        self._started_s = self.services.clock.monotonic()
        self._main = loop.create_task(self._run(), name=f"job {self.graph.name}")

    @property
    def state(self) -> JobState:
        """Where the job is in its life."""
        return self.lifecycle.state

    @property
    def failed(self) -> bool:
        """Whether the job failed, or is failing."""
        return self._failure is not None

    def cancel(self) -> None:
        """Ask the job to end; from its loop, any number of times."""
        if self.lifecycle.advance(JobState.CANCELLING):
            for task in self.tasks:
                task.cancel()

    async def join(self) -> None:
        """Wait until the job has ended and cleaned up, however it ended.

        Cancelling the waiter does not touch the job.
        """
        assert self._main is not None, "the job was not started"
        await asyncio.shield(self._main)

    async def wait(self) -> JobResult:
        """Wait for the end of the job and return how it went.

        Raises:
            JobFailedError: If it failed; the cause is the first error.
            JobCancelledError: If it was cancelled.
        """
        await self.join()
        failure = self._failure
        if isinstance(failure, KeyboardInterrupt | SystemExit):
            raise failure
        if failure is not None:
            raise JobFailedError(self.graph.name, failure) from failure
        if self.state is JobState.CANCELED:
            raise JobCancelledError(f"job {self.graph.name!r} was cancelled")
        return JobResult(self.graph.name, self.duration_s)

    @property
    def duration_s(self) -> float:
        """Seconds from the start until the end, or until now."""
        end = self._ended_s
        return (self.services.clock.monotonic() if end is None else end) - (
            self._started_s
        )

    async def _run(self) -> None:
        committers: JobCommitters | None = None
        try:
            committers = JobCommitters(self.graph, self.services.committables)
            await committers.begin()
            await self._run_tasks()
            if self.state is JobState.RUNNING:
                await committers.commit()
        except BaseException as error:  # noqa: BLE001 -- kept for `wait`
            self._record(error)
        with anyio.CancelScope(shield=True):
            await self._end(committers)

    async def _run_tasks(self) -> None:
        if not self.lifecycle.advance(JobState.RUNNING):
            return
        builder = TaskBuilder(
            self.graph, self._config, self.services, request_split=self._request_split
        )
        self.tasks = builder.build()
        self._start_coordinators()
        async with anyio.create_task_group() as group:
            for task in self.tasks:
                group.start_soon(self._supervise, task, name=task.name)

    async def _supervise(self, task: StreamTask) -> None:
        try:
            await task.run()
        except asyncio.CancelledError:
            # Not by `cancel`: the loop itself is going down.
            self.cancel()
            raise
        except BaseException as error:  # noqa: BLE001 -- kept for `wait`
            self._record(error, task)
            return
        if task.lifecycle.state is TaskState.CANCELED:
            self.cancel()

    def _record(self, error: BaseException, task: StreamTask | None = None) -> None:
        """Keep the first error, attach later ones to it, and end all tasks."""
        if isinstance(error, asyncio.CancelledError):
            self.cancel()
            return
        if self._failure is None:
            self._failure = error
            if task is not None:
                error.add_note(f"in task {task.name!r} of job {self.graph.name!r}")
        elif error is not self._failure:
            self._failure.add_note(f"later error: {error!r}")
        if self.lifecycle.advance(JobState.FAILING):
            for other in self.tasks:
                other.cancel()

    async def _end(self, committers: JobCommitters | None) -> None:
        for coordinator in self._coordinators.values():
            coordinator.close()
        succeeded = self.state is JobState.RUNNING
        if committers is not None:
            try:
                await committers.end(succeeded=succeeded)
            except Exception as error:  # noqa: BLE001 -- kept for `wait`
                self._record(error)
        self.services.limiters.close()
        self.services.pool.destroy_all_local_pools()
        self.services.pool.destroy()
        self._ended_s = self.services.clock.monotonic()
        for target in (JobState.FINISHED, JobState.CANCELED, JobState.FAILED):
            if self.lifecycle.advance(target):
                break
        for handover in self.services.handovers.values():
            handover.end()

    def _start_coordinators(self) -> None:
        for vertex in self.graph.vertices:
            source = vertex.head.transformation.source
            if source is None:
                continue
            readers = [
                task
                for task in self.tasks
                if task.environment.task_id.vertex == vertex.id
            ]
            self._coordinators[vertex.id] = SourceCoordinator(
                source, vertex.parallelism, partial(deliver_splits, readers)
            )
        for coordinator in self._coordinators.values():
            coordinator.start()

    def _request_split(self, vertex: JobVertex, subtask_index: int) -> None:
        self._coordinators[vertex.id].request_split(subtask_index)
