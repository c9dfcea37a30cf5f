"""A running job: its tasks, its first error, its end.

Concept:
    Flink, ``JobMaster`` and ``DefaultScheduler``, without restarts yet.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio

from aiomailbox.availability import Availability
from aiomailbox.errors import (
    JobCancelledError,
    JobFailedError,
    RemoteFailureError,
    RemoteTaskError,
    TransportError,
)
from aiomailbox.graph import JobGraph
from aiomailbox.runtime.committing import JobCommitters
from aiomailbox.runtime.config import JobConfig
from aiomailbox.runtime.execution import Execution
from aiomailbox.runtime.lifecycle import JobLifecycle, JobState
from aiomailbox.runtime.services import JobServices
from aiomailbox.runtime.sources import SourceCoordinator
from aiomailbox.runtime.views import TaskView
from aiomailbox.supervision import outlast
from aiomailbox.task import StreamTask


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
    """One execution of a job graph, directed from the running loop.

    Args:
        graph: What to run.
        config: Settings.
        services: What the tasks share.
        execution: Where the tasks run.

    Attributes:
        lifecycle: Where the job is in its life.
    """

    def __init__(
        self,
        graph: JobGraph,
        config: JobConfig,
        services: JobServices,
        execution: Execution,
    ) -> None:
        self.graph = graph
        self.services = services
        self.lifecycle = JobLifecycle()
        self._config = config
        self._execution = execution
        self._coordinators: dict[int, SourceCoordinator] = {}
        self._failure: BaseException | None = None
        self._main: asyncio.Task[None] | None = None
        self._is_beginning = False
        self._is_committing = False
        self._changed = Availability()
        self._started_s = 0.0
        self._ended_s: float | None = None

    @property
    def tasks(self) -> list[StreamTask]:
        """The tasks on this loop, those of sources first; empty before they are built."""
        return self._execution.tasks

    def views(self, *, with_stacks: bool = False) -> list[TaskView]:
        """Return a look at every task of the job, wherever it runs."""
        return self._execution.views(with_stacks=with_stacks)

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
        """Ask the job to end; from its loop, any number of times.

        Once all tasks have finished and the results are being committed it is too late:
        the job goes on to its end.
        """
        if self._is_committing or not self.lifecycle.advance(JobState.CANCELLING):
            return
        if self._is_beginning and self._main is not None:
            self._main.cancel()
        self._execution.cancel()

    async def join(self) -> None:
        """Wait until the job has ended and cleaned up, however it ended.

        Cancelling the waiter does not touch the job.
        """
        assert self._main is not None, "the job was not started"
        await asyncio.shield(self._main)

    async def outlast(self) -> None:
        """Wait until the job has ended, however often the caller is cancelled.

        Raises:
            asyncio.CancelledError: If the caller was cancelled; after the job's end.
        """
        assert self._main is not None, "the job was not started"
        await outlast(self._main)

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
            committers = JobCommitters(self.graph, self.services)
            await self._begin(committers)
            await self._run_tasks()
            if self.state is JobState.RUNNING:
                self._is_committing = True
                await committers.commit()
        except BaseException as error:  # noqa: BLE001 -- kept for `wait`
            self._is_committing = False
            self._record(error)
        await self._end(committers)

    async def _begin(self, committers: JobCommitters) -> None:
        self._is_beginning = True
        try:
            await committers.begin()
            await self._execution.prepare()
            # An interrupt that came from a committer's own code arrives here.
            await asyncio.sleep(0)
        finally:
            self._is_beginning = False

    async def _run_tasks(self) -> None:
        if not self.lifecycle.advance(JobState.RUNNING):
            return
        self._execution.build(self)
        try:
            self._start_coordinators()
        except Exception as error:  # noqa: BLE001 -- kept for `wait`
            # The tasks still run: to their clean-up.
            self._record(error)
        async with anyio.create_task_group() as group:
            self._execution.start(group)
            await self._outlast_tasks()

    async def _outlast_tasks(self) -> None:
        """Wait for the end of all tasks, even while the loop itself is going down.

        A task group that is interrupted would cut short the clean-up of its tasks, so
        it never sees the interrupt: the tasks are cancelled as by `cancel`.
        """
        while not self._execution.is_over:
            try:
                await self._changed.wait()
            except asyncio.CancelledError:
                self.cancel()
                self._execution.on_interrupt()
            self._changed.reset()

    def on_task_ended(self, error: BaseException | None, task: str) -> None:
        """Take note that a task ended: well, or with an error."""
        if error is not None:
            self._record(error, task)
        self._changed.set_available()

    def on_cancelled(self) -> None:
        """Take note that a task ended itself, or was interrupted."""
        self.cancel()

    def on_failed(self, error: BaseException) -> None:
        """Take note of a failure that is of no task."""
        self._record(error)
        self._changed.set_available()

    def on_changed(self) -> None:
        """Look again whether everything is over."""
        self._changed.set_available()

    def on_split_request(self, vertex: int, subtask_index: int) -> None:
        """Pass a reader's request for another split to its enumerator."""
        self._coordinators[vertex].request_split(subtask_index)

    def _record(self, error: BaseException, task: str | None = None) -> None:
        """Keep the first error, attach later ones to it, and end all tasks."""
        if isinstance(error, asyncio.CancelledError):
            self.cancel()
            return
        first = self._failure
        if first is None or (_is_echo(first) and not _is_echo(error)):
            if task is not None:
                error.add_note(f"in task {task!r} of job {self.graph.name!r}")
            self._failure = error
            if first is not None:
                error.add_note(f"also: {first!r}")
        elif error is not first:
            first.add_note(f"later error: {error!r}")
        if self.lifecycle.advance(JobState.FAILING):
            self._execution.cancel()

    async def _end(self, committers: JobCommitters | None) -> None:
        for coordinator in self._coordinators.values():
            try:
                coordinator.close()
            except Exception as error:  # noqa: BLE001 -- kept for `wait`
                self._record(error)
        if committers is not None:
            await self._end_committers(committers)
        try:
            await self._execution.release()
        except BaseException as error:  # noqa: BLE001 -- kept for `wait`
            self._record(error)
        self._ended_s = self.services.clock.monotonic()
        for target in (JobState.FINISHED, JobState.CANCELED, JobState.FAILED):
            if self.lifecycle.advance(target):
                break
        for handover in self.services.handovers.values():
            handover.end()

    async def _end_committers(self, committers: JobCommitters) -> None:
        succeeded = self.state is JobState.RUNNING
        timeout_s = self._config.cancel_timeout_s
        try:
            with anyio.fail_after(timeout_s, shield=True):
                await committers.end(succeeded=succeeded)
        except BaseException as error:  # noqa: BLE001 -- kept for `wait`
            self._record(error)

    def _start_coordinators(self) -> None:
        for vertex in self.graph.vertices:
            source = vertex.head.transformation.source
            if source is None:
                continue
            self._coordinators[vertex.id] = SourceCoordinator(
                source, vertex.parallelism, partial(self._deliver, vertex.id)
            )
        for coordinator in self._coordinators.values():
            coordinator.start()

    def _deliver(
        self, vertex: int, subtask_index: int, splits: list[Any], no_more: bool
    ) -> None:
        self._execution.deliver_splits(vertex, subtask_index, splits, no_more=no_more)


def _is_echo(error: BaseException) -> bool:
    """Say whether an error may only tell that somebody else had one.

    What tells of a failure travels on other ways than what follows from it, and may
    come later.
    """
    if isinstance(error, RemoteTaskError):
        return error.is_echo
    return isinstance(error, RemoteFailureError | TransportError)
