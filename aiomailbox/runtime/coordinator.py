"""Carries out what the planner of checkpoints decides, for one job.

Theory of operation: all calls come on the job's loop. Whatever happens is reported to the
planner, and what it answers is done in order: messages to tasks and timers at once; what
takes time (files, commits) by one worker, step after step, so that checkpoints complete
and commit in their order. The enumerators are captured before any task is notified of a
checkpoint, in the same turn of the loop: a split is part of it or comes after it.

Concept:
    Flink, ``CheckpointCoordinator``.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from aiomailbox.checkpoint.layout import (
    CheckpointMetadata,
    describe_vertices,
    job_directory,
    with_handles,
)
from aiomailbox.checkpoint.planner import (
    CheckpointAction,
    CheckpointInProgress,
    CheckpointPlan,
    CheckpointPlanner,
    CheckpointRequest,
    DiscardCheckpoint,
    FailJob,
    FailRequest,
    FailureReason,
    Finalize,
    NotifyAborted,
    NotifyComplete,
    SetPeriodicTimer,
    StartCheckpoint,
    SubtaskState,
    loses_union_state,
    plan_checkpoint,
    trigger_failure,
)
from aiomailbox.checkpoint.settings import CheckpointConfig
from aiomailbox.checkpoint.store import CheckpointStore
from aiomailbox.errors import (
    AioMailboxError,
    CheckpointFailedError,
    InFlightRecordsError,
    RemoteTaskError,
    safe_str,
)
from aiomailbox.graph.job_graph import JobGraph
from aiomailbox.graph.regions import producers_of
from aiomailbox.ids import OperatorId, SubtaskId
from aiomailbox.metrics.catalogue import MetricValue
from aiomailbox.operators.snapshots.codec import encode_snapshot
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.records.events import SnapshotType, StopMode
from aiomailbox.runtime.host import LocalTasks
from aiomailbox.runtime.services import JobServices
from aiomailbox.runtime.sources import JobSources
from aiomailbox.runtime.views import (
    CheckpointView,
    CompletedCheckpoint,
    PendingCheckpoint,
)
from aiomailbox.supervision import run_in_thread
from aiomailbox.task.messages import (
    Acknowledged,
    CheckpointAborted,
    CheckpointComplete,
    DataEnded,
    Declined,
    PreparedData,
    TaskEvent,
    TaskRunning,
    TaskStatistics,
    TriggerCheckpoint,
)

# After which a checkpoint that tasks need in order to end is asked for again.
_FINAL_RETRY_S: Final = 1.0
_VIEWS_MAX: Final = 20
_EARLY_MAX: Final = 1_000


class CheckpointOwner(Protocol):
    """The job, as its coordinator sees it."""

    def on_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Be notified that tasks resume from a checkpoint, or a later one, from now on."""

    def capture_services(self) -> dict[str, bytes]:
        """Return the totals of limiters and budgets."""

    @property
    def ancestors(self) -> tuple[str, ...]:
        """The savepoints that the job has gone on from."""

    async def commit_prepared(
        self, prepared: Sequence[PreparedData], checkpoint_id: int
    ) -> None:
        """Make visible what sinks have prepared; what is visible already stays."""

    async def on_retained(self, oldest: int) -> None:
        """Be notified of the oldest checkpoint that a job may resume from."""


class StepRunner(Protocol):
    """The job, as what takes and keeps its checkpoints sees it."""

    sources: JobSources

    async def run_step(self, work: Coroutine[Any, Any, None], what: str) -> None:
        """Run a step to its end, whatever the user's code in it does."""

    def fail_attempt(self, error: BaseException) -> None:
        """Fail the attempt that runs."""


class CheckpointCoordinator:
    """Takes the checkpoints of one job, attempt after attempt.

    Args:
        graph: The job.
        settings: How often, and what they may cost.
        services: The job's.
        tasks: Those of the present attempt.
        owner: What the job keeps of checkpoints, beside the files.
        job: Runs what takes time.

    Attributes:
        last_savepoint_id: The savepoint with which the last attempt ended, None if it
            ended otherwise.
    """

    def __init__(
        self,
        graph: JobGraph,
        settings: CheckpointConfig,
        services: JobServices,
        tasks: LocalTasks,
        owner: CheckpointOwner,
        job: StepRunner,
    ) -> None:
        self._graph = graph
        self._settings = settings
        self._services = services
        self._tasks = tasks
        self._tell = tasks.tell
        self._owner = owner
        self._job = job
        self._store: CheckpointStore | None = None
        self._vertices = describe_vertices(graph)
        self._producers = producers_of(graph)
        self._sources = {one.id for one in graph.vertices if not any(one.in_edges)}
        self._planner = CheckpointPlanner(
            settings, self._plan, random.Random(services.seed)
        )
        # The completed checkpoints that are kept, oldest first.
        self._retained: list[int] = []
        self._epoch = 0
        # The newest checkpoint of which everything that sinks prepared is committed.
        self._committed_id = -1
        self._states: dict[SubtaskId, SubtaskState] = {}
        self._data_ended: set[SubtaskId] = set()
        self._expiries: dict[int, asyncio.TimerHandle] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._steps: deque[tuple[Coroutine[Any, Any, None], str]] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._is_active = False
        self._is_over = False
        self._is_cancelled = False
        # Asked for before the tasks run, or while they start again.
        self._early: deque[CheckpointRequest] = deque()
        # What is awaited until the tasks run; None if nothing waits.
        self._all_run: asyncio.Future[None] | None = None
        self._final: asyncio.Future[CompletedCheckpoint] | None = None
        self._final_retry: asyncio.TimerHandle | None = None
        # The savepoint that ends the job, while sources come to their end.
        self._stopping: CheckpointRequest | None = None
        self._is_stop_asked = False
        self.last_savepoint_id: int | None = None
        self._views: deque[CheckpointView] = deque(maxlen=_VIEWS_MAX)
        self._begun = self._completed = self._unchanged = 0
        # The newest complete checkpoint of the present attempt, and the last one in which
        # tasks were as they are in it.
        self._newest: CheckpointInProgress | None = None
        self._unchanged_id = -1
        self._has_announced = False

    @property
    def next_id(self) -> int:
        """The number of the next checkpoint."""
        return self._planner.next_id

    @property
    def views(self) -> list[CheckpointView]:
        """The costs of the last checkpoints, oldest first."""
        return list(self._views)

    def pending(self) -> list[PendingCheckpoint]:
        """Return the checkpoints that are being taken, oldest first."""
        now_s = self._services.clock.monotonic()
        return [
            PendingCheckpoint(
                checkpoint_id,
                now_s - one.started_s,
                one.missing,
            )
            for checkpoint_id, one in self._planner.in_progress.items()
        ]

    def metrics(self) -> dict[str, MetricValue]:
        """Return how many checkpoints there were, and what the last one took.

        Concept:
            Flink, the metrics of checkpointing of a ``JobManager``.
        """
        pending = len(self._planner.in_progress)
        last = self._views[-1] if self._views else None
        done = None if last is None else last.completed
        return {
            "total_number_of_checkpoints": self._begun,
            "number_of_completed_checkpoints": self._completed,
            "number_of_unchanged_checkpoints": self._unchanged,
            "number_of_in_progress_checkpoints": pending,
            "number_of_failed_checkpoints": self._begun - self._completed - pending,
            "last_completed_checkpoint_id": None
            if done is None
            else done.checkpoint_id,
            "last_checkpoint_duration_ms": None if last is None else last.duration_ms,
            "last_checkpoint_size_bytes": None if done is None else done.size_bytes,
        }

    @property
    def own_places(self) -> list[str]:
        """The paths or URLs below which the job keeps checkpoints and finished calls."""
        settings = self._settings
        below = job_directory(self._services.job_id)
        return [
            f"{os.fspath(place).rstrip('/')}/{below}"
            for place in (settings.directory, settings.journal_directory)
            if place is not None
        ]

    def open(self, store: CheckpointStore) -> None:
        """Begin: checkpoints are kept there, beside those that the job goes on from."""
        self._store = store
        self._planner.next_id = store.next_checkpoint_id
        # However many: until the next one is complete, a newer one may turn out to be
        # damaged.
        self._retained = sorted(store.newest_first())

    def begin_attempt(self, epoch: int, restored_id: int) -> None:
        """Expect the tasks of an attempt to start.

        Args:
            epoch: Its number.
            restored_id: The checkpoint that they resume from, -1 for none.
        """
        self._epoch = epoch
        self._committed_id = restored_id
        # A savepoint may come from another job, whose numbers were higher.
        self._planner.next_id = max(self._planner.next_id, restored_id + 1)
        self._is_active = True
        self._newest = self._final = None
        self._data_ended.clear()
        self._states = {
            SubtaskId(vertex.id, index): SubtaskState.STARTING
            for vertex in self._graph.vertices
            for index in range(vertex.parallelism)
        }

    @property
    def is_stopping(self) -> bool:
        """Whether the savepoint that ends the job was asked for."""
        return self._stopping is not None

    def on_failover(self, tasks: Iterable[SubtaskId]) -> None:
        """Be notified that tasks are being ended, to begin again; others go on.

        There is no checkpoint until all of them run again.
        """
        for task in tasks:
            # The tasks that go on keep what they have, but checkpoints need them all.
            self._states[task] = SubtaskState.STARTING
            self._data_ended.discard(task)
        self._final = None
        self._do(self._planner.on_failover())

    async def end_attempt(self) -> None:
        """Take no more checkpoints, and wait for what is being written or committed."""
        self._is_active = False
        self._end_timers()
        self._do(self._planner.stop_periodic())
        stopping, self._stopping = self._stopping, None
        self.last_savepoint_id = None
        if stopping is not None:
            ended = stopping.future
            _refuse(ended, "the job ended before its savepoint began")
            if not ended.cancelled() and ended.exception() is None:
                self.last_savepoint_id = ended.result().checkpoint_id
        await self.settle()
        self._planner.in_progress.clear()

    def cancel(self) -> None:
        """Complete and commit nothing more; a commit that has begun goes on.

        What the last checkpoints have prepared can be committed by who resumes from them.
        """
        self._is_cancelled = True
        self._end_timers()

    def close(self) -> None:
        """Refuse what is asked for, from now on: there will be no attempt."""
        self._is_over = True
        self._end_timers()
        while self._early:
            _refuse(self._early.popleft().future, "the job has ended")
        self._wake()

    async def until_running(self) -> None:
        """Wait until all tasks run, or the job has ended."""
        while not self._is_over and not self._has_started:
            if self._all_run is None:
                self._all_run = asyncio.get_running_loop().create_future()
            # All wait for one: who is cancelled cancels only itself.
            await asyncio.shield(self._all_run)

    async def settle(self) -> None:
        """Wait until nothing is being written or committed."""
        while self._worker is not None:
            await asyncio.wait((self._worker,))

    def on_event(self, event: TaskEvent) -> None:
        """Take what a task reports."""
        task = event.task
        match event:
            case TaskRunning():
                if self._states.get(task) is SubtaskState.STARTING:
                    self._states[task] = SubtaskState.RUNNING
                    self._look_at_start()
            case DataEnded():
                self._data_ended.add(task)
                self._look_at_ends()
            case Acknowledged():
                self._do(self._planner.acknowledge(event))
            case Declined():
                self._on_declined(event)
            case _:
                pass

    def on_task_finished(self, task: SubtaskId) -> None:
        """Be notified that a task has finished."""
        was_starting = self._states.get(task) is SubtaskState.STARTING
        self._states[task] = SubtaskState.FINISHED
        # What it has not acknowledged, it never will.
        self._do(self._planner.on_tasks_failed([task], self._now_ms()))
        if was_starting:
            self._look_at_start()
        self._look_at_ends()

    def _on_declined(self, event: Declined) -> None:
        checkpoint_id, error = event.checkpoint_id, event.error
        self._name_operator(error)
        self._services.log.warning(
            "a task declined a checkpoint",
            task=str(event.task),
            operator=getattr(error, "operator", None),
            checkpoint_id=checkpoint_id,
            reason=safe_str(error),
        )
        planner, now_ms = self._planner, self._now_ms()
        if _is_about_records_in_flight(error):
            self._do(planner.on_not_kept(checkpoint_id, now_ms, error))
        else:
            declined = FailureReason.DECLINED
            self._do(planner.fail(checkpoint_id, declined, now_ms, error))

    def request(
        self,
        kind: SnapshotType = SnapshotType.CHECKPOINT,
        location: str | None = None,
    ) -> asyncio.Future[CompletedCheckpoint]:
        """Ask for a checkpoint or a savepoint now.

        Returns:
            A future of what has completed; a `CheckpointFailedError` if nothing did.
        """
        asked, future = self._new_request(kind, location)
        if self._is_over:
            _refuse(future, "the job has ended")
        elif self._is_cancelled:
            _refuse(future, FailureReason.CANCELLED.value)
        elif self._has_started:
            self._ask(asked)
        elif len(self._early) == _EARLY_MAX:
            _refuse(future, FailureReason.TOO_MANY_REQUESTS.value)
        else:
            self._early.append(asked)
        return future

    def stop_with_savepoint(
        self, location: str, mode: StopMode
    ) -> asyncio.Future[CompletedCheckpoint]:
        """Ask for the savepoint that ends the job, as soon as its sources have stopped.

        The caller stops the sources, after this.
        """
        kind = (
            SnapshotType.TERMINATE_CANONICAL
            if mode is StopMode.DRAIN
            else SnapshotType.SUSPEND_CANONICAL
        )
        asked, future = self._new_request(kind, location)
        if self._is_over:
            _refuse(future, "the job has ended")
        elif not self._has_started:
            _refuse(future, FailureReason.NOT_RUNNING.value)
        elif self._stopping is not None:
            _refuse(future, "the job is being stopped already")
        else:
            self._end_timers()
            self._do(self._planner.stop_periodic())
            self._stopping, self._is_stop_asked = asked, False
            self._look_at_ends()
        return future

    @property
    def _is_starting(self) -> bool:
        # One that starts would take its barrier before it has its state.
        return SubtaskState.STARTING in self._states.values()

    @property
    def _has_started(self) -> bool:
        return self._is_active and not self._is_starting

    @property
    def _running(self) -> list[SubtaskId]:
        running = SubtaskState.RUNNING
        return [task for task, state in self._states.items() if state is running]

    def _ask(self, request: CheckpointRequest) -> None:
        self._do(self._planner.request(request, self._now_ms()))

    def _plan(self) -> CheckpointPlan | FailureReason:
        return plan_checkpoint(
            self._states,
            self._producers,
            after_tasks_finish=self._settings.after_tasks_finish,
        )

    def _look_at_start(self) -> None:
        """Begin to take checkpoints once all tasks run."""
        if not self._is_starting:
            self._do(self._planner.start_periodic())
            while self._early:
                self._ask(self._early.popleft())
            self._wake()

    def _wake(self) -> None:
        all_run, self._all_run = self._all_run, None
        if all_run is not None:
            all_run.set_result(None)

    def _look_at_ends(self) -> None:
        """Ask for the checkpoint that tasks wait for, once all of them do."""
        running = set(self._running)
        if self._stopping is not None:
            self._begin_stopping(running)
        # Once all have come to their end: an earlier one would be without the rest.
        elif (
            self._settings.after_tasks_finish
            and self._has_started
            and running
            and running <= self._data_ended
            and self._final is None
            and self._final_retry is None
        ):
            self._final = self.request()
            self._final.add_done_callback(self._on_final)

    def _begin_stopping(self, running: set[SubtaskId]) -> None:
        stopping = self._stopping
        assert stopping is not None, "the job is being stopped"
        sources = {task for task in running if task.vertex in self._sources}
        # No record may come behind it, so the sources stop first.
        if self._is_stop_asked or not sources <= self._data_ended:
            return
        self._is_stop_asked = True
        self._ask(stopping)

    def _on_final(self, final: asyncio.Future[CompletedCheckpoint]) -> None:
        if final.cancelled() or final.exception() is not None:
            self._final = None
            # Nothing else would request again the checkpoint that the tasks wait for.
            loop = asyncio.get_running_loop()
            self._final_retry = loop.call_later(_FINAL_RETRY_S, self._retry_final)

    def _retry_final(self) -> None:
        self._final_retry = None
        self._look_at_ends()

    def _do(self, actions: Iterable[CheckpointAction]) -> None:
        """Carry out actions, and what the planner says to what comes of them."""
        # A queue and no recursion: each action may lead to others, without an end.
        waiting = deque(actions)
        while waiting:
            waiting.extend(self._do_one(waiting.popleft()))

    def _do_one(self, action: CheckpointAction) -> Iterable[CheckpointAction]:
        loop = asyncio.get_running_loop()
        match action:
            case StartCheckpoint():
                return self._start(action)
            case Finalize(checkpoint_id=checkpoint_id):
                self._end_expiry(checkpoint_id)
                progress = self._planner.in_progress.get(checkpoint_id)
                if (
                    self._worker is None
                    and progress is not None
                    and self._is_unchanged(progress)
                    and self._files.is_used_up(checkpoint_id)
                ):
                    return self._pass_over(checkpoint_id)
                self._take_step(
                    self._finalize(checkpoint_id),
                    f"completing checkpoint {checkpoint_id}",
                )
            case NotifyComplete(checkpoint_id=checkpoint_id, tasks=tasks):
                self._take_step(
                    self._complete(checkpoint_id, tasks),
                    f"committing checkpoint {checkpoint_id}",
                )
            case NotifyAborted():
                self._end_expiry(action.checkpoint_id)
                # Tasks that are notified of a complete checkpoint forget what sinks
                # prepared for it: not before that is committed.
                latest_id = min(action.latest_completed_id, self._committed_id)
                self._tell(
                    action.tasks, CheckpointAborted(action.checkpoint_id, latest_id)
                )
            case DiscardCheckpoint(checkpoint_id=checkpoint_id):
                self._take_step(
                    self._discard_failed(checkpoint_id),
                    f"deleting checkpoint {checkpoint_id}",
                )
            case FailRequest(request=request, reason=reason, error=error):
                _fail(request.future, _failure(reason.value, error))
            case FailJob(checkpoint_id=checkpoint_id, reason=reason, error=error):
                self._job.fail_attempt(
                    _failure(f"checkpoint {checkpoint_id}: {reason.value}", error)
                )
            case SetPeriodicTimer(delay_ms=delay_ms):
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = loop.call_later(delay_ms / 1000, self._on_periodic)
        return ()

    def _start(self, action: StartCheckpoint) -> Iterable[CheckpointAction]:
        begun, clock = action.checkpoint, self._services.clock
        location = begun.request.location
        # The wall clock: tasks in other processes compare it with theirs.
        begun.barrier = replace(
            begun.barrier,
            timestamp_ms=clock.now_ms(),
            location=None if location is None else location.encode(),
        )
        begun.started_s = clock.monotonic()
        checkpoint_id = begun.checkpoint_id
        self._expiries[checkpoint_id] = asyncio.get_running_loop().call_later(
            action.timeout_ms / 1000, self._on_expired, checkpoint_id
        )
        # Counted when it begins, so that failed ones are what is left over.
        self._begun += 1
        try:
            begun.services = self._owner.capture_services()
            begun.enumerators = _encoded(self._job.sources.snapshot(checkpoint_id))
        except Exception as error:  # noqa: BLE001 -- the planner decides
            self._warn("a checkpoint could not be triggered", checkpoint_id, error)
            reason = trigger_failure(error)
            return self._planner.fail(checkpoint_id, reason, self._now_ms(), error)
        # Last: from here on tasks know of it, and it can only complete or be aborted.
        self._tell(begun.plan.to_trigger, TriggerCheckpoint(begun.barrier))
        return self._planner.on_started(checkpoint_id, self._now_ms())

    async def _finalize(self, checkpoint_id: int) -> None:
        progress = self._planner.in_progress.get(checkpoint_id)
        if progress is None:
            return
        if self._is_cancelled:
            self._give_up(checkpoint_id, FailureReason.CANCELLED)
            return
        # A savepoint lets no task end, and holds what those have that wait to.
        is_savepoint = progress.request.kind.is_savepoint
        if not is_savepoint and loses_union_state(progress.handles.values()):
            reason = FailureReason.TASK_CLOSING
            self._warn("a checkpoint was given up", checkpoint_id, reason.value)
            self._give_up(checkpoint_id, reason)
            return
        if self._is_unchanged(progress):
            try:
                # Tasks hear that it is complete, and must never hear so of another one.
                await run_in_thread(self._files.use_up, checkpoint_id)
            except OSError as error:
                self._on_not_written(checkpoint_id, error)
            else:
                self._do(self._pass_over(checkpoint_id))
            return
        metadata = CheckpointMetadata(
            checkpoint_id=checkpoint_id,
            kind=progress.request.kind,
            epoch=self._epoch,
            job_id=self._services.job_id,
            job_name=self._graph.name,
            timestamp_ms=progress.barrier.timestamp_ms,
            vertices=with_handles(self._vertices, progress.handles),
            enumerators=progress.enumerators,
            services=progress.services,
            statistics=_statistics(progress.statistics),
            ancestors=self._owner.ancestors,
        )
        location = progress.request.location
        try:
            progress.place = await run_in_thread(
                self._files.complete, metadata, location
            )
        except Exception as error:  # noqa: BLE001 -- the planner decides
            self._on_not_written(checkpoint_id, error)
            return
        progress.metadata = metadata
        actions = self._planner.on_finalized(checkpoint_id, self._now_ms())
        # Without a commit there is nothing to wait for.
        if not any(isinstance(one, NotifyComplete) for one in actions):
            self._answer(checkpoint_id)
        elif not is_savepoint:
            self._newest = progress
            self._unchanged_id = checkpoint_id
        self._do(actions)

    def _is_unchanged(self, progress: CheckpointInProgress) -> bool:
        """Say whether tasks resume as well from the newest complete checkpoint.

        Whatever moves a source, or is staged by a sink, is in what tasks have written. A
        checkpoint that somebody asked for is written.
        """
        newest = self._newest
        return (
            newest is not None
            and not self._is_cancelled
            and progress.request.is_periodic
            and newest.checkpoint_id == self._committed_id
            # What is older and not complete would be subsumed.
            and self._planner.pending_ids == [progress.checkpoint_id]
            and progress.enumerators == newest.enumerators
            and progress.services == newest.services
            and progress.handles.keys() == newest.handles.keys()
            and all(
                handle.is_as(newest.handles[task])
                for task, handle in progress.handles.items()
            )
        )

    def _pass_over(self, checkpoint_id: int) -> Iterable[CheckpointAction]:
        """Complete a checkpoint without writing it: the newest complete one is the same."""
        self._completed += 1
        self._unchanged += 1
        self._unchanged_id = checkpoint_id
        actions = self._planner.on_unchanged(checkpoint_id, self._now_ms())
        progress = self._planner.in_progress.pop(checkpoint_id)
        self._tell(progress.plan.to_wait_for, CheckpointComplete(checkpoint_id))
        return actions

    def _on_not_written(self, checkpoint_id: int, error: Exception) -> None:
        self._warn("a checkpoint could not be written", checkpoint_id, error)
        self._give_up(checkpoint_id, FailureReason.STORAGE, error)

    async def _complete(self, checkpoint_id: int, tasks: Sequence[SubtaskId]) -> None:
        progress = self._planner.in_progress.get(checkpoint_id)
        if progress is None:
            return
        if self._is_cancelled:
            # Who resumes from it commits it; a temporary one goes with the job.
            _refuse(progress.request.future, FailureReason.CANCELLED.value)
            return
        # Before tasks are notified: they forget what they had prepared.
        await self._owner.commit_prepared(progress.prepared, checkpoint_id)
        self._committed_id = max(self._committed_id, checkpoint_id)
        if not progress.request.kind.is_savepoint:
            self._owner.on_checkpoint_complete(checkpoint_id)
            kept, count = (
                sorted([*self._retained, checkpoint_id]),
                self._settings.retained,
            )
            self._retained = kept[-count:]
            # Older ones go only now, when this one is complete and committed.
            for subsumed in kept[:-count]:
                await self._discard(subsumed)
            passed_over = self._files.passed_over
            for passed in passed_over:
                await self._discard(passed)
            if passed_over:
                self._services.log.info(
                    "checkpoints of earlier runs were removed",
                    count=len(passed_over),
                    place=self._files.place,
                )
            await self._owner.on_retained(self._retained[0])
        self._tell(tasks, CheckpointComplete(checkpoint_id))
        self._answer(checkpoint_id)

    def _warn(self, what: str, checkpoint_id: int, reason: object) -> None:
        self._services.log.warning(
            what, checkpoint_id=checkpoint_id, reason=safe_str(reason)
        )

    def _give_up(
        self,
        checkpoint_id: int,
        reason: FailureReason,
        error: BaseException | None = None,
    ) -> None:
        self._do(self._planner.give_up(checkpoint_id, reason, self._now_ms(), error))

    async def _discard_failed(self, checkpoint_id: int) -> None:
        await self._discard(checkpoint_id)
        self._do(self._planner.on_discarded(self._now_ms()))

    async def _discard(self, checkpoint_id: int) -> None:
        progress = self._planner.in_progress.pop(checkpoint_id, None)
        location = None if progress is None else progress.request.location
        try:
            await run_in_thread(self._files.discard, checkpoint_id, location)
        except OSError as error:
            self._warn(
                "files of a checkpoint could not be deleted", checkpoint_id, error
            )

    @property
    def _files(self) -> CheckpointStore:
        assert self._store is not None, "there are checkpoints from `open` on"
        return self._store

    def _answer(self, checkpoint_id: int) -> None:
        """Notify the requester of a checkpoint that it is complete."""
        progress = self._planner.in_progress.pop(checkpoint_id)
        metadata = progress.metadata
        assert metadata is not None, "what is complete has been written"
        duration_ms = (self._services.clock.monotonic() - progress.started_s) * 1000
        completed = CompletedCheckpoint(
            checkpoint_id, metadata.kind, progress.place, metadata.size_bytes
        )
        if not self._has_announced and not metadata.kind.is_savepoint:
            self._has_announced = True
            self._services.log.info(
                "the first checkpoint is complete",
                checkpoint_id=checkpoint_id,
                place=progress.place,
                size_bytes=metadata.size_bytes,
                duration_ms=round(duration_ms),
            )
        self._completed += 1
        self._views.append(CheckpointView(completed, duration_ms, metadata.statistics))
        future = progress.request.future
        if future is not None and not future.done():
            future.set_result(completed)

    def _name_operator(self, error: BaseException) -> None:
        """Give an error the name of the operator whose id it has."""
        if not isinstance(error, AioMailboxError) or error.operator is None:
            return
        for node in self._graph.nodes:
            if node.operator_id == error.operator:
                error.operator, error.uid = node.name, node.transformation.uid
                return

    def _take_step(self, work: Coroutine[Any, Any, None], what: str) -> None:
        self._steps.append((work, what))
        if self._worker is None:
            self._worker = asyncio.get_running_loop().create_task(
                self._work(), name=f"checkpoints of job {self._graph.name}"
            )

    async def _work(self) -> None:
        # One at a time and in order: commits of checkpoints must not overtake each
        # other.
        try:
            while self._steps:
                work, what = self._steps.popleft()
                await self._job.run_step(work, what)
        finally:
            self._worker = None

    def _on_periodic(self) -> None:
        self._timer = None
        has_changed = self._has_changed()
        if not has_changed:
            # Complete as it begins: whoever resumes resumes from the newest one.
            self._begun += 1
            self._completed += 1
            self._unchanged += 1
        self._do(
            self._planner.on_periodic_timer(self._now_ms(), has_changed=has_changed)
        )

    def _has_changed(self) -> bool:
        """Say whether a checkpoint now may be another one than the newest complete one.

        If not, there is nothing that a barrier could find out.
        """
        newest = self._newest
        if newest is None or newest.checkpoint_id != self._committed_id:
            return True
        if newest.prepared:
            # It is committed: without one more, each restart would do so again.
            return True
        running = newest.handles.keys()
        is_quiet = (
            self._worker is None
            and not self._planner.is_engaged
            and self._has_started
            and running == set(self._running)
            and self._tasks.are_unchanged_since(self._unchanged_id, running)
        )
        try:
            return not (
                is_quiet
                and self._owner.capture_services() == newest.services
                and _encoded(self._job.sources.snapshot()) == newest.enumerators
            )
        except Exception:  # noqa: BLE001 -- the checkpoint that follows says so
            return True

    def _end_expiry(self, checkpoint_id: int) -> None:
        expiry = self._expiries.pop(checkpoint_id, None)
        if expiry is not None:
            expiry.cancel()

    def _on_expired(self, checkpoint_id: int) -> None:
        self._expiries.pop(checkpoint_id, None)
        expired = FailureReason.EXPIRED
        self._do(self._planner.fail(checkpoint_id, expired, self._now_ms()))

    def _end_timers(self) -> None:
        for timer in (self._timer, self._final_retry):
            if timer is not None:
                timer.cancel()
        self._timer = self._final_retry = None

    def _new_request(
        self, kind: SnapshotType, location: str | None
    ) -> tuple[CheckpointRequest, asyncio.Future[CompletedCheckpoint]]:
        future: asyncio.Future[CompletedCheckpoint]
        future = asyncio.get_running_loop().create_future()
        # The caller may have gone.
        future.add_done_callback(_retrieve)
        return (
            self._planner.new_request(kind, location=location, future=future),
            future,
        )

    def _now_ms(self) -> int:
        return int(self._services.clock.monotonic() * 1000)


def _encoded(snapshots: dict[OperatorId, OperatorSnapshot]) -> dict[OperatorId, bytes]:
    return {name: encode_snapshot(snapshot) for name, snapshot in snapshots.items()}


def _retrieve(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


def _fail(future: asyncio.Future[Any] | None, error: CheckpointFailedError) -> None:
    if future is not None and not future.done():
        future.set_exception(error)


def _refuse(future: asyncio.Future[Any], reason: str) -> None:
    _fail(future, CheckpointFailedError(reason))


def _statistics(of_tasks: Sequence[TaskStatistics]) -> dict[str, Any]:
    """Return the slowest figures, for people."""
    names = ("start_delay_ms", "alignment_ms", "sync_ms", "async_ms")
    found: dict[str, Any] = {
        name: max((getattr(one, name) for one in of_tasks), default=0.0)
        for name in names
    }
    found["alignment_bytes"] = sum(one.alignment_bytes for one in of_tasks)
    return found


def _failure(reason: str, error: BaseException | None) -> CheckpointFailedError:
    """Return what says why there is no checkpoint, and whose fault that is."""
    because = "" if error is None else f": {safe_str(error)}"
    failure = CheckpointFailedError(f"{reason}{because}")
    failure.__cause__ = error
    if isinstance(error, AioMailboxError):
        failure.operator, failure.uid = error.operator, error.uid
    return failure


def _is_about_records_in_flight(error: BaseException) -> bool:
    """Say whether it is an `InFlightRecordsError`, maybe of another process."""
    if isinstance(error, RemoteTaskError):
        return error.kind == InFlightRecordsError.__name__
    return isinstance(error, InFlightRecordsError)
