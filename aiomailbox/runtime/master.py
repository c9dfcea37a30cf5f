"""A running job, which outlives the attempts to run its tasks, and its end.

Theory of operation: the master makes ready what tasks need, runs an attempt, and when all
of its tasks have finished commits what the sinks prepared. Where a part of its tasks fails
that shares no data with the others, that part begins again and the attempt goes on; one
that fails is followed by another one. Both resume from the last complete checkpoint, as
often as the restart strategy says. Each part of its life runs in a supervised asyncio
task: whatever the user's code does, and however often it is interrupted, the next part
follows, and everything that was opened is closed.

Concept:
    Flink, ``JobMaster`` and ``DefaultScheduler``.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

from aiomailbox.errors import (
    CancelTimeoutError,
    CheckpointFailedError,
    JobCancelledError,
    SourceChangedError,
    UsageError,
    WorkerDiedError,
    safe_repr,
)
from aiomailbox.graph.job_graph import JobGraph
from aiomailbox.graph.regions import FailoverRegions
from aiomailbox.ids import SubtaskId, VertexId
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.policies.restart import Fault, Mistakes, RestartWait, culprit_of
from aiomailbox.records.events import StopMode
from aiomailbox.runtime.attempt import Attempt
from aiomailbox.runtime.builder import AttemptPlan
from aiomailbox.runtime.config import JobConfig, JobState
from aiomailbox.runtime.coordinator import CheckpointCoordinator
from aiomailbox.runtime.failures import (
    FailureReport,
    FirstError,
    PoisonWatch,
    job_failure,
    name_call,
    place_of_error,
    shorten,
)
from aiomailbox.runtime.host import Host
from aiomailbox.runtime.job_checkpoints import JobCheckpoints, JobCommitters
from aiomailbox.runtime.job_snapshot import FailureSummary
from aiomailbox.runtime.services import JobServices
from aiomailbox.runtime.sources import JobSources
from aiomailbox.runtime.stuck_watch import StuckWatch, await_tree
from aiomailbox.runtime.views import (
    CompletedCheckpoint,
    PendingCheckpoint,
    TaskView,
    record_totals,
)
from aiomailbox.signatures import Misnamed
from aiomailbox.supervision import (
    Closing,
    Step,
    SupervisedTask,
    frames_of,
    outlast,
)
from aiomailbox.task.stream_task import StreamTask, failure_of, place_of

# The host has deadlines of its own, which end processes.
_RELEASE_S: Final = 60.0
_ACTIVE: Final = (JobState.RUNNING, JobState.RESTARTING)
_END_OF: Final = {
    JobState.RUNNING: JobState.FINISHED,
    JobState.CANCELLING: JobState.CANCELED,
}
# What is asked of the result of a job, in the words of Flink and of lists.
_OF_RESULT: Final = {
    **dict.fromkeys(
        ("records", "results", "values", "collect", "to_list"),
        " its records are where the job's sinks put them; write "
        "`await stream.collect()` for a list",
    ),
    **dict.fromkeys(
        ("get_accumulator_result", "get_all_accumulator_results", "metrics"),
        " write job.snapshot() while the job runs, which has the counters",
    ),
    **dict.fromkeys(
        ("wait", "result", "done", "get_job_execution_result"),
        " the job has ended, and this is how",
    ),
    "state": " a job that ended in another way has raised its error",
    "get_net_runtime": "duration_s",
    "job_name": "name",
}


@dataclass(frozen=True, slots=True)
class JobResult(Misnamed):
    """How a job ended well.

    Attributes:
        name: The job's name.
        duration_s: From start to end, seconds.
        stop_reason: Why it stopped before its input ended, "" if nothing made it.
        finished_before: When an earlier run had finished, if this one ran nothing for
            that; None for a job that ran.
    """

    _called = "result"
    _meant = _OF_RESULT

    name: str
    duration_s: float
    stop_reason: str = ""
    finished_before: datetime | None = None

    if not TYPE_CHECKING:

        def __iter__(self) -> NoReturn:
            """Say where the records are.

            Raises:
                UsageError: Always.
            """
            message = (
                f"the result of job {self.name!r} says how it ended, and has no "
                "records: these are where the job's sinks put them. Write "
                "`await stream.collect()` for a list"
            )
            raise UsageError(message)

        def __getitem__(self, index: object) -> NoReturn:
            """Say where the records are.

            Raises:
                UsageError: Always.
            """
            self.__iter__()


_NEXT: Final[dict[JobState, frozenset[JobState]]] = {
    JobState.CREATED: frozenset(
        {
            JobState.RUNNING,
            JobState.RESTARTING,
            JobState.CANCELLING,
            JobState.FAILING,
        }
    ),
    JobState.RUNNING: frozenset(
        {
            JobState.FINISHED,
            JobState.RESTARTING,
            JobState.CANCELLING,
            JobState.FAILING,
        }
    ),
    JobState.RESTARTING: frozenset(
        {JobState.RUNNING, JobState.CANCELLING, JobState.FAILING}
    ),
    JobState.CANCELLING: frozenset({JobState.CANCELED, JobState.FAILING}),
    JobState.FAILING: frozenset({JobState.FAILED}),
    JobState.FINISHED: frozenset(),
    JobState.CANCELED: frozenset(),
    JobState.FAILED: frozenset(),
}


class JobLifecycle:
    """The state of one job; it only moves along the table.

    Example:
        >>> life = JobLifecycle()
        >>> life.advance(JobState.RUNNING), life.advance(JobState.CANCELED)
        (True, False)
    """

    def __init__(self) -> None:
        self.state: JobState = JobState.CREATED

    @property
    def is_terminal(self) -> bool:
        """Whether the life is over."""
        return not _NEXT[self.state]

    @property
    def is_cancelling(self) -> bool:
        """Whether the end was asked for, and has not come."""
        return self.state is JobState.CANCELLING

    def advance(self, target: JobState) -> bool:
        """Move on to ``target`` if it may follow, and say whether it did."""
        if target not in _NEXT[self.state]:
            return False
        self.state = target
        return True


# The job to whose tasks the running code belongs, and what that code has started.
WITHIN: Final[ContextVar[JobMaster | None]] = ContextVar("aiomailbox job", default=None)


class JobMaster:
    """Directs one job from the running loop.

    Args:
        graph: What to run.
        config: Settings.
        services: What the tasks share.
        host: Where the tasks run.

    Attributes:
        restarts: How often tasks were started again, all of them or those of a region.
        lifecycle: Where the job is in its life.
        stop_reason: Why its sources were stopped, "" if nothing but its user did.
    """

    def __init__(
        self, graph: JobGraph, config: JobConfig, services: JobServices, host: Host
    ) -> None:
        self.graph = graph
        self.services = services
        self.lifecycle: JobLifecycle = JobLifecycle()
        self._cancel_timeout_s = config.cancel_timeout_s
        self._host = host
        self.sources: JobSources = JobSources(host.tell)
        self._checkpoints = JobCheckpoints(graph, config, services, host, self)
        self._restart_wait = RestartWait(
            config.restart_strategy.begin(random.Random(services.seed))
        )
        # A strategy of the user's is not overruled.
        is_default = config.restart is None and config.checkpoints is not None
        self._mistakes = Mistakes() if is_default else None
        self._plan: AttemptPlan | None = None
        self._committers: JobCommitters | None = None
        self._attempt: Attempt | None = None
        self._failure = FirstError()
        self._engine_traceback: str | None = None
        self._poison_text = ""
        self._failure_report = FailureReport(services.log, services.clock)
        after_s = config.stuck_after_s
        self._watch: StuckWatch | None = None
        if after_s is not None:
            self._watch = StuckWatch(self, graph, after_s, services.log)
        self._stop: StopMode | None = None
        self._main: asyncio.Task[None] | None = None
        self._regions = FailoverRegions(graph)
        self._poison = PoisonWatch(graph)
        self._task_restarts: Counter[SubtaskId] = Counter()
        # What may be interrupted now, if anything may.
        self._beginning: SupervisedTask | None = None
        self._step: SupervisedTask | None = None
        self._is_committing = False
        self.restarts: int = 0
        self.stop_reason: str = ""
        self._started_s = 0.0
        self._ended_s: float | None = None

    @property
    def tasks(self) -> list[StreamTask]:
        """The tasks on this loop, those of sources first; empty before they are built."""
        return self._host.tasks

    def views(self, *, with_stacks: bool = False) -> list[TaskView]:
        """Return the statistics of every task of the job, wherever it runs."""
        views = self._host.views(with_stacks=with_stacks)
        for view in views:
            task = SubtaskId(VertexId(view.vertex), view.subtask_index)
            view.metrics["num_task_restarts"] = self._task_restarts[task]
        return views

    def await_tree(self, first: Collection[str] = ()) -> str:
        """Return what every task does or waits for, and the calls of its operators."""
        wanted = set(first)
        views = self.views(with_stacks=True)
        views.sort(key=lambda view: view.name not in wanted)
        return await_tree(self.graph.name, self.state.value, views)

    @property
    def has_room(self) -> bool:
        """Whether the consumer of its results takes more now."""
        return all(one.room.available for one in self.services.handovers.values())

    def pending_checkpoints(self) -> list[PendingCheckpoint]:
        """Return the checkpoints that are being taken, oldest first."""
        coordinator = self.coordinator
        return [] if coordinator is None else coordinator.pending()

    def start(self) -> None:
        """Start the job in the background; call it once, with a running loop."""
        loop = asyncio.get_running_loop()
        self._started_s = self.services.clock.monotonic()
        self.services.limiters.on_exhausted = self._on_exhausted
        if self._watch is not None:
            self._watch.start()
        self._main = loop.create_task(self._run(), name=f"job {self.graph.name}")

    @property
    def coordinator(self) -> CheckpointCoordinator | None:
        """The coordinator of checkpoints, once it is there; None for a job without."""
        return self._checkpoints.coordinator

    @property
    def failures(self) -> Iterable[FailureSummary]:
        """The last failures, oldest first."""
        return self._failure_report.failures

    @property
    def state(self) -> JobState:
        """Where the job is in its life."""
        return self.lifecycle.state

    @property
    def failed(self) -> bool:
        """Whether the job failed, or is failing."""
        attempt = self._attempt
        return self._failure.error is not None or (
            attempt is not None and attempt.failure.error is not None
        )

    def cancel(self) -> None:
        """Ask the job to end; from its loop, any number of times.

        Once all tasks have finished and the results are being committed it is too late:
        the job goes on to its end.
        """
        # What is being committed is committed: after a cancellation in between, how
        # much of it was would be unknown.
        if self._is_committing or not self.lifecycle.advance(JobState.CANCELLING):
            return
        if self.coordinator is not None:
            self.coordinator.cancel()
        if self._beginning is not None:
            self._beginning.interrupt()
        if self._step is not None:
            self._step.limit()
        if self._attempt is not None:
            self._attempt.cancel()

    def stop(self, mode: StopMode) -> None:
        """Let the job end well, now: its sources read no more; only the first mode counts.

        What they have read is processed and committed. From the job's loop, at any
        time; a job that is ending anyway goes on to do so.
        """
        if self._stop is None:
            self._stop = mode
            if self._attempt is not None:
                self._attempt.stop(mode)

    async def stop_with_savepoint(
        self, location: str, mode: StopMode
    ) -> CompletedCheckpoint:
        """Let the sources read no more, and end the job with a savepoint.

        A job that is starting does so once all of its tasks run.

        Raises:
            CheckpointFailedError: If it did not complete; the job then continues.
        """
        coordinator = self.coordinator
        assert coordinator is not None, "the job takes checkpoints"
        await coordinator.until_running()
        savepoint = coordinator.stop_with_savepoint(location, mode)
        # An attempt that is just beginning is notified when it has been deployed.
        if not savepoint.done() and self._attempt is not None:
            self._attempt.stop(mode)
        # The caller may be cancelled; the savepoint, which ends the job, goes on.
        return await asyncio.shield(savepoint)

    async def join(self) -> None:
        """Wait until the job has ended and cleaned up, however it ended.

        Cancelling the waiter does not touch the job.
        """
        assert self._main is not None, "the job was not started"
        # Shielded: a waiter that is cancelled does not cancel the job.
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
        failure = self._failure.error
        if isinstance(failure, KeyboardInterrupt | SystemExit):
            raise failure
        if failure is not None:
            if self._engine_traceback is None:
                self._engine_traceback = shorten(failure)
            remarks = [self._poison_text]
            if self._mistakes is not None:
                remarks.append(self._mistakes.remark)
            raise job_failure(
                self.graph.name,
                failure,
                self._engine_traceback,
                ". ".join(one for one in remarks if one),
            )
        # After its failure: a job that fails while it is cancelled has failed.
        if self.state is JobState.CANCELED:
            raise JobCancelledError(f"job {self.graph.name!r} was cancelled")
        return JobResult(
            self.graph.name,
            self.duration_s,
            self.stop_reason,
            self._checkpoints.finished_before,
        )

    @property
    def duration_s(self) -> float:
        """Seconds from the start until the end, or until now."""
        end = self._ended_s
        return (self.services.clock.monotonic() if end is None else end) - (
            self._started_s
        )

    def on_deployed(self) -> None:
        """Start the enumerators: there are tasks to send splits to."""
        try:
            self.sources.start()
        except BaseException as error:  # noqa: BLE001 -- kept for `wait`
            # The tasks still run: to their clean-up.
            self.fail_attempt(error)
        # Stopped before there were tasks: they have to be notified now.
        if self._stop is not None and self._attempt is not None:
            self._attempt.stop(self._stop)

    def on_failing(
        self, error: BaseException, tasks: Collection[SubtaskId] | None = None
    ) -> bool:
        """Be notified that all or a part of the attempt failed; say if it runs again.

        What fails while a part waits to begin again is counted as one failure with it,
        and shares the rest of its delay, as Flink's exponential delay does: one worker
        has tasks of several regions.
        """
        name_call(error, self.graph)
        # While it restarts, a further failure of a part belongs to the first one.
        state = self.state
        is_merged = state is JobState.RESTARTING and tasks is not None
        # What fails while a part begins again belongs to the same failure.
        if not is_merged:
            self._poison.on_failure(error)
        may_restart = state in _ACTIVE and (
            _can_be_tried_again(error) if is_merged else self._may_restart(error)
        )
        self.lifecycle.advance(JobState.RESTARTING if may_restart else JobState.FAILING)
        if not may_restart:
            self._failure_report.announce(error)
        elif tasks:
            self._warn_of_restart(error, tasks)
        return may_restart

    def can_restart_alone(self, tasks: Collection[SubtaskId]) -> bool:
        """Say whether the sources still know what tasks have to read again."""
        return self.sources.can_reset(tasks)

    async def prepare_tasks(
        self, tasks: frozenset[SubtaskId], *, is_restart: bool
    ) -> AttemptPlan | None:
        """Find what tasks begin with; if they have failed, after the strategy's delay."""
        plans: list[AttemptPlan] = []

        async def prepare() -> None:
            if is_restart:
                # Inside the part that is supervised: a cancellation ends the wait.
                await asyncio.sleep(self._left_s())
            await self._host.prepare()
            plan = await self._checkpoints.begin_again(tasks)
            # After `begin_again`: only now can the old attempt commit nothing any more.
            if is_restart and self._committers is not None:
                await self._committers.recover_writers(tasks, plan.number)
            plans.append(plan)

        what = f"starting tasks of job {self.graph.name!r}"
        await self._begin_part(prepare(), what)
        # Cancelled while it waited.
        if not plans or self.state not in _ACTIVE:
            return None
        return plans[0]

    def on_tasks_deployed(self, plan: AttemptPlan, *, is_restart: bool) -> None:
        """Give splits to tasks that begin while others run, or have run."""
        assert plan.tasks is not None, "those of a part are named"
        if is_restart:
            self.restarts += 1
            self._task_restarts.update(plan.tasks)
            self.lifecycle.advance(JobState.RUNNING)
        try:
            self.sources.reset_readers(plan.tasks, plan.restored_id)
        except BaseException as error:  # noqa: BLE001 -- kept for `wait`
            self.fail_attempt(error)
        if self._stop is not None and self._attempt is not None:
            self._attempt.stop(self._stop)

    def call_when_failed(self, function: Callable[[], None] | None) -> None:
        """Say what is called once the job has failed permanently, before it has ended."""
        self._failure_report.call(function)

    def _on_exhausted(self, limit: RateLimit) -> None:
        """Read no more: the calls of what would be read may not be made."""
        # Several limits may be used up in one moment; the first one is the reason.
        if not self.stop_reason:
            self.stop_reason = (
                f"the budget of {limit.budget:g} {limit.unit} of "
                f"{limit.label} is exhausted"
            )
            self.services.log.warning("the sources stop", reason=self.stop_reason)
        self.stop(StopMode.DRAIN)

    def call_when_over(self, function: Callable[[], None]) -> None:
        """Say what is called when the job has ended, however it did; at once if it has."""
        assert self._main is not None, "the job was not started"
        self._main.add_done_callback(lambda _: function())

    async def run_step(self, work: Coroutine[Any, Any, None], what: str) -> None:
        """Run a step beside the tasks to its end, whatever the user's code in it does."""
        step = self._part(work, f"{what} of job {self.graph.name!r}")
        self._step = step
        # It may have been asked before there was a step to be limited.
        if self.lifecycle.is_cancelling:
            step.limit()
        await self._supervise(step, step.limit)
        self._step = None

    def on_split_request(self, task: SubtaskId) -> None:
        """Pass a reader's request for another split to its enumerator."""
        try:
            self.sources.request_split(task)
        except BaseException as error:  # noqa: BLE001 -- kept for `wait`
            self.fail_attempt(error)

    async def _run(self) -> None:
        WITHIN.set(self)
        name = self.graph.name
        await self._begin_part(self._begin(), f"beginning job {name!r}")
        await self._run_attempts()
        if self.state is JobState.RUNNING and self._committers is not None:
            # From here on a cancel comes too late.
            self._is_committing = True
            what = f"committing the results of job {name!r}"
            # With checkpoints only what none of them has: mostly nothing.
            committing = self._committers.commit(
                self.services.committables.take_all(),
                checkpoint_id=self._last_checkpoint_id(),
                is_final=True,
            )
            await self._finish_part(committing, what)
        await self._end()

    async def _run_attempts(self) -> None:
        """Run attempts until one has not failed, or no other one follows."""
        while True:
            # What prepares a restart may fail as well, as often as the strategy allows.
            while self._plan is None and self.state is JobState.RESTARTING:
                await self._prepare_restart()
            plan, self._plan = self._plan, None
            if plan is None or not self.lifecycle.advance(JobState.RUNNING):
                return
            await self._run_attempt(plan)
            if self.state is not JobState.RESTARTING:
                return

    async def _begin(self) -> None:
        await self._checkpoints.open()
        if self._checkpoints.finished_before is not None:
            # It goes straight to its end: sinks have done all, and no task is needed.
            self.lifecycle.advance(JobState.RUNNING)
            return
        lineage = self._checkpoints.lineage
        committers = JobCommitters(self.graph, self.services, lineage)
        self._committers = committers
        await committers.begin(restored=self._checkpoints.is_restored)
        await self._host.prepare()
        self._plan = await self._checkpoints.begin_attempt(committers)
        event, facts = self._checkpoints.beginning
        self.services.log.info(event, job_id=self.services.job_id, **facts)
        # An interrupt that came from a committer's own code arrives here.
        await asyncio.sleep(0)

    async def _run_attempt(self, plan: AttemptPlan) -> None:
        attempt = Attempt(
            self.graph.name,
            plan,
            self._host,
            self,
            self.coordinator,
            # A split may come back to a subtask that goes on, and has not read what
            # the failed one had finished: it would pay twice.
            None if self.graph.has_journal else self._regions,
        )
        self._attempt = attempt
        self._checkpoints.on_attempt(plan)
        await attempt.run()
        await self._checkpoints.end_attempt()
        self._attempt = None
        error = attempt.failure.error
        if error is None:
            return
        if self.state is JobState.RESTARTING:
            self._warn_of_restart(error)
        else:
            self._poison_text = self._poison.describe(
                self._checkpoints.restored_id,
                self._checkpoints.restored_operators,
                self.views(),
            )
            self.fail_attempt(error)

    def _may_prepare_again(self, error: BaseException) -> bool:
        """Say whether an attempt that could not begin may be followed by another one."""
        return self.state is JobState.RESTARTING or (
            self.state is JobState.CREATED and isinstance(error, WorkerDiedError)
        )

    def _may_restart(self, error: BaseException) -> bool:
        """Count a failure, and say whether the job starts again after it."""
        if not _can_be_tried_again(error):
            return False
        if self._mistakes is not None:
            place = place_of_error(error)
            self._mistakes.on_failure(
                error,
                place.location or place.operator,
                completed_id=self._checkpoints.completed_id,
            )
            if self._mistakes.is_certain:
                return False
        return self._restart_wait.on_failure(self._monotonic_ms())

    def _left_s(self) -> float:
        """Return how long the restart still waits, seconds."""
        return self._restart_wait.left_ms(self._monotonic_ms()) / 1000

    def _monotonic_ms(self) -> int:
        return int(self.services.clock.monotonic() * 1000)

    def _warn_of_restart(
        self, error: BaseException, tasks: Collection[SubtaskId] | None = None
    ) -> None:
        self._failure_report.keep(error, self.restarts)
        what, facts = "the job failed and starts again", {}
        if tasks is not None:
            what = "a part of the job failed and starts again"
            facts = {"tasks": sorted(map(str, tasks))}
        self.services.log.warning(
            what,
            **facts,
            restarts=self.restarts,
            delay_s=self._left_s(),
            error=safe_repr(error),
        )

    async def _prepare_restart(self) -> None:
        """Wait as long as the strategy says, then find what the next attempt is."""
        self.restarts += 1
        self._task_restarts.update(self._regions.tasks)
        what = f"starting job {self.graph.name!r} again"
        beginning = await self._begin_part(self._wait_and_reload(), what)
        # Recovering is not interrupted: what it removes is in no checkpoint.
        if self.state is JobState.RESTARTING and beginning.error is None:
            await self.run_step(self._recover(), "recovering the results")

    async def _wait_and_reload(self) -> None:
        await asyncio.sleep(self._left_s())
        await self._checkpoints.reload()
        await self._host.prepare()

    async def _recover(self) -> None:
        committers = self._committers
        assert committers is not None, "the job has begun"
        self._plan = await self._checkpoints.begin_attempt(committers)

    def _last_checkpoint_id(self) -> int:
        coordinator = self.coordinator
        return 0 if coordinator is None else coordinator.next_id

    async def _end(self) -> None:
        name, timeout_s = self.graph.name, self._cancel_timeout_s
        what = f"cleaning up job {name!r}"
        errors: list[BaseException] = []
        closing = Closing(self._closing(errors), errors)
        on_late = partial(self._on_late, what, timeout_s)
        await closing.run_within(timeout_s, what, on_late)
        what = f"releasing what job {name!r} held"
        await self._finish_part(self._host.release(), what, _RELEASE_S)
        for error in errors:
            self._fail_unless_wanted(error, is_interrupted=closing.is_interrupted)
        state = _END_OF.get(self.state, JobState.FAILED)
        what = f"giving back the checkpoints of job {name!r}"
        failure = self._failure.error
        is_refused = (
            failure is not None
            and culprit_of(failure).kind == SourceChangedError.__name__
        )
        given_back = self._checkpoints.close(state, is_refused=is_refused)
        await self._finish_part(given_back, what, _RELEASE_S)
        if self._watch is not None:
            self._watch.stop()
        self._ended_s = self.services.clock.monotonic()
        self._log_end(state)
        for target in (JobState.FINISHED, JobState.CANCELED, JobState.FAILED):
            if self.lifecycle.advance(target):
                break
        for handover in self.services.handovers.values():
            handover.end()

    def _log_end(self, state: JobState) -> None:
        """Say how the job ended, unless it failed, which was said, or ran nothing."""
        if state is JobState.FAILED or self._checkpoints.finished_before is not None:
            return
        facts: dict[str, Any] = dict(record_totals(self.graph, self.views()))
        if self.restarts:
            # Tasks count from their last start on.
            facts["restarts"] = self.restarts
        coordinator = self.coordinator
        savepoint_id = None if coordinator is None else coordinator.last_savepoint_id
        event = "the job has finished"
        if state is JobState.CANCELED:
            event = "the job was cancelled"
        elif self._stop is not None or savepoint_id is not None:
            event = "the job was stopped"
            if self.stop_reason:
                facts["reason"] = self.stop_reason
            if savepoint_id is not None:
                facts["savepoint"] = savepoint_id
        self.services.log.info(event, duration_s=round(self.duration_s, 3), **facts)

    def _closing(self, errors: list[BaseException]) -> Iterator[Step]:
        yield from self.sources.closing()
        if self._committers is not None:
            # Said alike to all: what is committed stays, whichever of them fails now.
            succeeded = self.state is JobState.RUNNING and not errors
            yield from self._committers.ending(succeeded=succeeded)

    def _part(
        self,
        work: Coroutine[Any, Any, None],
        what: str,
        timeout_s: float | None = None,
    ) -> SupervisedTask:
        """Return a part of the job's life, to be supervised; ``what`` says which."""
        timeout_s = timeout_s or self._cancel_timeout_s
        on_late = partial(self._on_late, what, timeout_s)
        return SupervisedTask(work, name=what, timeout_s=timeout_s, on_late=on_late)

    async def _begin_part(
        self, work: Coroutine[Any, Any, None], what: str
    ) -> SupervisedTask:
        """Run what comes before tasks; a cancellation of the job interrupts it."""
        self._beginning = beginning = self._part(work, what)
        # It was cancelled before it had begun: nothing of it needs to happen.
        if self.lifecycle.is_cancelling:
            beginning.interrupt()
        await self._supervise(beginning, self.cancel)
        self._beginning = None
        return beginning

    async def _finish_part(
        self,
        work: Coroutine[Any, Any, None],
        what: str,
        timeout_s: float | None = None,
    ) -> None:
        """Run what comes after tasks to its end, for which there is a limit."""
        part = self._part(work, what, timeout_s)
        await self._supervise(part, part.limit)

    def _on_late(self, what: str, timeout_s: float, task: asyncio.Task[Any]) -> None:
        place = place_of(frames_of(task), "an unknown operator")
        self.fail_attempt(CancelTimeoutError(what, timeout_s, place))

    async def _supervise(
        self, part: SupervisedTask, on_interrupt: Callable[[], None]
    ) -> None:
        """Run a part to its end; what it raises fails the job."""
        is_interrupted = False
        part.start()
        try:
            await part.outlast(on_interrupt)
        except asyncio.CancelledError:
            is_interrupted = True
        # Late: `on_late` has failed the job already, and names the line.
        if part.error is not None and not part.is_late:
            self._fail_unless_wanted(part.error, is_interrupted=is_interrupted)

    def _fail_unless_wanted(
        self, error: BaseException, *, is_interrupted: bool
    ) -> None:
        """Keep an error; a cancellation not asked for comes from the user's code."""
        is_wanted = is_interrupted or self.lifecycle.is_cancelling
        if isinstance(error, asyncio.CancelledError) and not is_wanted:
            error = failure_of(error, f"job {self.graph.name!r}")
        self.fail_attempt(error)

    def fail_attempt(self, error: BaseException) -> None:
        """Keep the first error, and end what runs."""
        if isinstance(error, asyncio.CancelledError):
            # Not the user's code's own: the loop goes down.
            self._is_committing = False
            self.cancel()
        elif self._attempt is not None and not self._attempt.is_over:
            # While tasks run the attempt is what fails; its end decides about the job.
            self._attempt.fail(error)
        elif self._may_prepare_again(error) and self._may_restart(error):
            # What is left undone, the next attempt does.
            self.lifecycle.advance(JobState.RESTARTING)
            self._warn_of_restart(error)
        else:
            name_call(error, self.graph)
            if self._failure.error is None:
                self._failure_report.keep(error, self.restarts)
            self._failure.add(error)
            self.lifecycle.advance(JobState.FAILING)
            self._failure_report.add(error)


def _can_be_tried_again(error: BaseException) -> bool:
    """Say whether a restart strategy is asked about an error.

    Not about what ends the program, nor about what lasts: a function was left behind
    and still runs beside its successor; what is kept, or a line of a file, cannot be
    read the next time either, nor what does not fit be written to a snapshot.
    """
    if isinstance(error, CheckpointFailedError) and error.__cause__:
        error = error.__cause__
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return False
    return culprit_of(error).fault is not Fault.LASTING
