"""Every decision of the checkpoint coordinator, and nothing else.

Theory of operation: something happens (a timer, a request, an acknowledgement, a
failure), the planner changes its books and returns what is to be done, in order.
Its owner does that: snapshots of the enumerators, messages to tasks, files, and
the timers, which come back here. A checkpoint is *starting* until the owner has sent
its barrier, *pending* until all tasks have acknowledged it, *finalizing* while its
metadata is written, and then complete or failed.

Concept:
    Flink, ``CheckpointCoordinator``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum
from random import Random
from typing import Any, Final, TypeAlias

from aiomailbox.checkpoint.layout import CheckpointMetadata
from aiomailbox.checkpoint.settings import CheckpointConfig
from aiomailbox.ids import OperatorId, SubtaskId
from aiomailbox.records.events import CheckpointBarrier, SnapshotType
from aiomailbox.task.messages import (
    Acknowledged,
    PreparedData,
    TaskHandle,
    TaskStatistics,
)

# Why checkpoints fail, and how many may before the job does.
#
# Concept:
#     Flink, ``CheckpointFailureReason`` and ``CheckpointFailureManager``.


class FailureReason(Enum):
    """Why a checkpoint did not complete; some reasons are no fault."""

    EXPIRED = "it took longer than its timeout"
    DECLINED = "a task declined it"
    STORAGE = "it could not be written"
    NOT_TRIGGERED = "the sources' coordinators gave no snapshot of themselves"
    SUBSUMED = "a newer checkpoint completed before it"
    MIN_PAUSE = "the last checkpoint completed too recently"
    TOO_MANY_REQUESTS = "too many checkpoints were asked for at once"
    NOT_RUNNING = "not all of its tasks run"
    TASKS_FINISHED = "some tasks have finished, and checkpoints end with them"
    TASK_CLOSING = "some subtasks of an operator with union state have finished"
    TASK_FAILED = "a task failed"
    NOT_KEPT = "it was to hold records in flight that cannot be serialized"
    SUSPENDED = "checkpoints were stopped"
    CANCELLED = "the job was cancelled"

    @property
    def counts(self) -> bool:
        """Whether it counts towards the failures that a job tolerates."""
        return self in _COUNTED


_COUNTED: Final = frozenset(
    {FailureReason.EXPIRED, FailureReason.DECLINED, FailureReason.STORAGE}
)


def trigger_failure(error: BaseException) -> FailureReason:
    """Return why a checkpoint could not be triggered: for the world's sake, or not.

    Flink counts it if an I/O error is behind it, and else does not.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError):
            return FailureReason.STORAGE
        cause = cause.__cause__
    return FailureReason.NOT_TRIGGERED


class FailureCounter:
    """Counts failures since the last success.

    Args:
        tolerable: How many in a row are taken.

    Example:
        >>> counter = FailureCounter(tolerable=1)
        >>> counter.on_failure(5, FailureReason.EXPIRED)
        False
        >>> counter.on_failure(6, FailureReason.DECLINED)
        True
    """

    def __init__(self, tolerable: int) -> None:
        self._tolerable = tolerable
        self._last_success = 0
        self._failed_ids: set[int] = set()

    def on_failure(self, checkpoint_id: int, reason: FailureReason) -> bool:
        """Count a failure; say whether it is one more than the job tolerates.

        A checkpoint counts once, and not after a newer one succeeded.
        """
        if not reason.counts or checkpoint_id <= self._last_success:
            return False
        # A set: several tasks may decline one checkpoint, which failed once.
        self._failed_ids.add(checkpoint_id)
        if len(self._failed_ids) <= self._tolerable:
            return False
        self._failed_ids.clear()
        return True

    def on_success(self, checkpoint_id: int) -> None:
        """Forget the failures before a success; that of an older one forgives nothing."""
        if checkpoint_id > self._last_success:
            self._last_success = checkpoint_id
            self._failed_ids.clear()


# Which tasks a checkpoint triggers, waits for, and notifies of its completion.
#
# Concept:
#     Flink, ``DefaultCheckpointPlanCalculator`` and FLIP-147.


class SubtaskState(Enum):
    """The facts about a subtask that the coordinator needs."""

    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """The plan of one checkpoint.

    Attributes:
        to_trigger: Get the barrier from the coordinator: nothing upstream runs.
        to_wait_for: Acknowledge it, and are notified of its completion.
        finished: Have no state any more.
    """

    to_trigger: tuple[SubtaskId, ...]
    to_wait_for: tuple[SubtaskId, ...]
    finished: tuple[SubtaskId, ...]


def plan_checkpoint(
    states: Mapping[SubtaskId, SubtaskState],
    producers: Mapping[SubtaskId, Collection[SubtaskId]],
    *,
    after_tasks_finish: bool = True,
) -> CheckpointPlan | FailureReason:
    """Return the plan of a checkpoint, or why there can be none now.

    Example:
        >>> from aiomailbox.ids import VertexId
        >>> source, sink = SubtaskId(VertexId(0), 0), SubtaskId(VertexId(1), 0)
        >>> states = {source: SubtaskState.RUNNING, sink: SubtaskState.RUNNING}
        >>> plan = plan_checkpoint(states, {sink: [source]})
        >>> plan.to_trigger
        (SubtaskId(vertex=0, subtask_index=0),)
    """
    if any(state is SubtaskState.STARTING for state in states.values()):
        return FailureReason.NOT_RUNNING
    finished = [
        task for task, state in states.items() if state is SubtaskState.FINISHED
    ]
    running = [task for task, state in states.items() if state is SubtaskState.RUNNING]
    if not running:
        return FailureReason.NOT_RUNNING
    if finished and not after_tasks_finish:
        return FailureReason.TASKS_FINISHED
    is_running = set(running)
    # A task with a producer that runs gets the barrier from it, and a second one would
    # be one too many.
    to_trigger = [
        task for task in running if is_running.isdisjoint(producers.get(task, ()))
    ]
    return CheckpointPlan(tuple(to_trigger), tuple(running), tuple(finished))


def loses_union_state(handles: Iterable[TaskHandle]) -> bool:
    """Say whether a checkpoint lets subtasks end whose state others would miss.

    A finished task is in no later checkpoint, nor is its part of union state. As
    long as such a subtask waits for a checkpoint to end with, it is in each of them.

    Concept:
        Flink, ``PartialFinishingNotSupportedByStateException``.
    """
    kept = list(handles)
    ending = {one.vertex for one in kept if one.is_finished and one.has_union_state}
    return not ending.isdisjoint(one.vertex for one in kept if not one.is_finished)


# Requests for checkpoints, and which one is next.
#
# Concept:
#     Flink, ``CheckpointRequestDecider``.


# Flink's number: beyond it a request is refused.
_QUEUED_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """A request for a checkpoint.

    Attributes:
        number: Requests are numbered as they come.
        kind: A checkpoint, or one of the savepoints.
        is_periodic: Whether the timer asked for it, and not a person.
        location: Where a savepoint goes; None for checkpoints.
        future: Its owner answers it here; None if nobody waits.
    """

    number: int
    kind: SnapshotType = SnapshotType.CHECKPOINT
    is_periodic: bool = False
    location: str | None = None
    future: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Choice:
    """Begin this one now."""

    request: CheckpointRequest


@dataclass(frozen=True, slots=True)
class Refusal:
    """This one will not be; a periodic one may be asked for again after a while.

    Attributes:
        retry_after_ms: When the timer may ask again, None for its usual time.
    """

    request: CheckpointRequest
    reason: FailureReason
    retry_after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """No request's turn: ask again when something has changed."""


@dataclass(slots=True)
class RequestQueue:
    """The requests that wait, best first.

    Args:
        settings: Say how many may be pending, and which pause is between two.
        queued_max: How many may wait.
    """

    settings: CheckpointConfig
    queued_max: int = _QUEUED_MAX
    _queued: list[CheckpointRequest] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._queued)

    def add(self, request: CheckpointRequest) -> Refusal | None:
        """Enqueue a request; return the one that has to make room, if one has to.

        A request of the timer makes room for one of a person, never the other way.
        """
        queued = self._queued
        queued.append(request)
        queued.sort(key=self._rank)
        if len(queued) <= self.queued_max:
            return None
        # Periodic ones make room first: there will be another one soon.
        worst = queued[-1] if queued[-1].is_periodic else request
        queued.remove(worst)
        return Refusal(worst, FailureReason.TOO_MANY_REQUESTS)

    def choose(
        self,
        now_ms: int,
        *,
        is_starting: bool,
        pending: int,
        cleaning: int,
        last_completed_ms: int | None,
    ) -> Choice | Refusal | Wait:
        """Take the request whose turn it is."""
        limit = self.settings.max_concurrent
        # While one starts its barriers are on their way, and a second one could
        # overtake it.
        if not self._queued or is_starting or cleaning > limit:
            return Wait()
        first = self._queued[0]
        if pending >= limit and not self._is_forced(first):
            return Wait()
        del self._queued[0]
        # Asked for by hand, a checkpoint waits for no pause.
        if first.is_periodic and last_completed_ms is not None:
            left_ms = last_completed_ms + self.settings.min_pause_ms - now_ms
            if left_ms > 0:
                return Refusal(first, FailureReason.MIN_PAUSE, left_ms)
        return Choice(first)

    def clear(self) -> list[CheckpointRequest]:
        """Take all requests out."""
        queued, self._queued = self._queued, []
        return queued

    def _is_forced(self, request: CheckpointRequest) -> bool:
        """Say whether a request may run beside others, whatever the limit.

        Without unaligned checkpoints nothing keeps a savepoint from running at once.
        """
        return request.kind.is_savepoint and not self.settings.unaligned

    def _rank(self, request: CheckpointRequest) -> tuple[bool, bool, bool, int]:
        return (
            not request.kind.is_savepoint,
            not self._is_forced(request),
            request.is_periodic,
            request.number,
        )


Planning: TypeAlias = Callable[[], CheckpointPlan | FailureReason]


@dataclass(slots=True)
class CheckpointInProgress:
    """A checkpoint that was begun, until it is complete and committed, or deleted.

    Attributes:
        barrier: The command for its tasks.
        plan: Which tasks.
        request: Who asked for it.
        is_pending: Whether it can still complete or fail.
        is_finalizing: Whether all tasks have acknowledged it.
        handles: Where the snapshots of tasks are that have acknowledged it.
        statistics: Its statistics at these tasks.
        started_s: When it began; this and what follows its owner keeps here.
        enumerators: The state of the sources' enumerators.
        services: Totals of limits and budgets.
        metadata: All of it, once it is written.
        place: Where that is.
    """

    barrier: CheckpointBarrier
    plan: CheckpointPlan
    request: CheckpointRequest
    is_pending: bool = True
    is_finalizing: bool = False
    handles: dict[SubtaskId, TaskHandle] = field(default_factory=dict)
    statistics: list[TaskStatistics] = field(default_factory=list)
    started_s: float = 0.0
    enumerators: dict[OperatorId, bytes] = field(default_factory=dict)
    services: dict[str, bytes] = field(default_factory=dict)
    metadata: CheckpointMetadata | None = None
    place: str = ""

    @property
    def checkpoint_id(self) -> int:
        """Its number."""
        return self.barrier.checkpoint_id

    @property
    def missing(self) -> list[SubtaskId]:
        """The tasks that have not acknowledged it."""
        return [task for task in self.plan.to_wait_for if task not in self.handles]

    def waits_for(self, task: SubtaskId) -> bool:
        """Say whether a task is to acknowledge it, and has not."""
        return task not in self.handles and task in self.plan.to_wait_for

    @property
    def is_acknowledged(self) -> bool:
        """Whether all tasks have acknowledged it."""
        return len(self.handles) == len(self.plan.to_wait_for)

    @property
    def prepared(self) -> tuple[PreparedData, ...]:
        """The prepared results of sinks, in the order of the tasks."""
        return tuple(
            one for task in sorted(self.handles) for one in self.handles[task].prepared
        )

    @property
    def commits(self) -> bool:
        """Whether its completion lets tasks commit, and subsumes older ones."""
        kind = self.request.kind
        return not kind.is_savepoint or kind.is_synchronous


@dataclass(frozen=True, slots=True)
class StartCheckpoint:
    """Snapshot the enumerators, then send the barrier to the tasks of the plan.

    Fail it after ``timeout_ms``, unless it is to be finalized or aborted before.
    """

    checkpoint: CheckpointInProgress
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Finalize:
    """Write the metadata: all tasks have acknowledged."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class NotifyComplete:
    """Tell tasks, enumerators and committers that a checkpoint is complete."""

    checkpoint_id: int
    tasks: tuple[SubtaskId, ...]


@dataclass(frozen=True, slots=True)
class NotifyAborted:
    """Tell tasks that a checkpoint will not complete.

    Attributes:
        latest_completed_id: The one before, which they may have missed; 0 for none.
    """

    checkpoint_id: int
    latest_completed_id: int
    tasks: tuple[SubtaskId, ...]


@dataclass(frozen=True, slots=True)
class DiscardCheckpoint:
    """Delete what has been written for a checkpoint that failed.

    Then call ``on_discarded``: while too many are being deleted, none begins.
    """

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class FailRequest:
    """Tell the requester why there will be no checkpoint."""

    request: CheckpointRequest
    reason: FailureReason
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class FailJob:
    """Too many checkpoints in a row have failed: let the restart strategy decide."""

    checkpoint_id: int
    reason: FailureReason
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class SetPeriodicTimer:
    """Call ``on_periodic_timer`` after ``delay_ms``; a timer set before is replaced."""

    delay_ms: int


CheckpointAction: TypeAlias = (
    DiscardCheckpoint
    | FailJob
    | FailRequest
    | Finalize
    | NotifyAborted
    | NotifyComplete
    | SetPeriodicTimer
    | StartCheckpoint
)


@dataclass(slots=True)
class CheckpointPlanner:
    """The books of one job's checkpoints.

    All times are milliseconds of one clock. Each method that returns actions must be
    called by one owner, which carries them out before it calls the next one.

    Args:
        settings: The job's.
        plan: Says which tasks a checkpoint that begins now would concern.
        random: Where the first delay of the timer comes from.
        next_id: The first number to give away: beyond that of a restored checkpoint.

    Attributes:
        in_progress: The checkpoints that were begun, oldest first, until the owner
            takes them out: when they are answered, or deleted.
    """

    settings: CheckpointConfig
    plan: Planning
    random: Random
    next_id: int = 1
    _queue: RequestQueue = field(init=False)
    _failures: FailureCounter = field(init=False)
    _timeout_ms: int = field(init=False)
    in_progress: dict[int, CheckpointInProgress] = field(default_factory=dict)
    _requests: int = 0
    _starting_id: int | None = None
    _cleaning: int = 0
    _latest_completed_id: int = 0
    _last_completed_ms: int | None = None
    _is_periodic: bool = False

    def __post_init__(self) -> None:
        self._queue = RequestQueue(self.settings)
        self._failures = FailureCounter(self.settings.tolerable_failures)
        self._timeout_ms = self.settings.timeout_ms

    @property
    def pending_ids(self) -> list[int]:
        """The checkpoints that have begun and are not complete, oldest first."""
        return [one.checkpoint_id for one in self._pending]

    @property
    def _pending(self) -> list[CheckpointInProgress]:
        return [one for one in self.in_progress.values() if one.is_pending]

    def _pending_one(self, checkpoint_id: int) -> CheckpointInProgress | None:
        found = self.in_progress.get(checkpoint_id)
        return found if found is not None and found.is_pending else None

    @property
    def queued(self) -> int:
        """How many requests wait."""
        return len(self._queue)

    def start_periodic(self) -> list[CheckpointAction]:
        """Begin to take checkpoints by the timer, if there is an interval."""
        interval_ms = self.settings.interval_ms
        if not interval_ms or self._is_periodic:
            return []
        self._is_periodic = True
        # At random, so that not all jobs of a machine begin at once.
        first_ms = min(max(self.settings.min_pause_ms, 1), interval_ms)
        return [SetPeriodicTimer(self.random.randint(first_ms, interval_ms))]

    def stop_periodic(self) -> list[CheckpointAction]:
        """End what is queued, or pending and not yet being written, and the timer."""
        self._is_periodic = False
        actions: list[CheckpointAction] = [
            FailRequest(request, FailureReason.SUSPENDED)
            for request in self._queue.clear()
        ]
        return actions + self._abort_unwritten(FailureReason.SUSPENDED)

    @property
    def is_engaged(self) -> bool:
        """Whether a checkpoint is being taken, or is asked for."""
        return bool(self.in_progress or self.queued)

    def on_periodic_timer(
        self, now_ms: int, *, has_changed: bool = True
    ) -> list[CheckpointAction]:
        """Ask for a checkpoint, and for the timer's next call."""
        if not self._is_periodic:
            return []
        following = SetPeriodicTimer(self.settings.interval_ms)
        if not has_changed:
            self._last_completed_ms = now_ms
            return [following]
        periodic = self.new_request(is_periodic=True)
        return [following, *self.request(periodic, now_ms)]

    def new_request(
        self,
        kind: SnapshotType = SnapshotType.CHECKPOINT,
        *,
        is_periodic: bool = False,
        location: str | None = None,
        future: Any = None,
    ) -> CheckpointRequest:
        """Return a request with the next number, for `request`."""
        self._requests += 1
        return CheckpointRequest(self._requests, kind, is_periodic, location, future)

    def request(
        self, request: CheckpointRequest, now_ms: int
    ) -> list[CheckpointAction]:
        """Ask for a checkpoint or a savepoint."""
        refused = self._queue.add(request)
        actions: list[CheckpointAction] = []
        if refused is not None:
            actions.append(FailRequest(refused.request, refused.reason))
        return actions + self._next(now_ms)

    def on_started(self, checkpoint_id: int, now_ms: int) -> list[CheckpointAction]:
        """Be notified that a checkpoint's barrier has been sent to the tasks."""
        if self._starting_id == checkpoint_id:
            self._starting_id = None
        return self._next(now_ms)

    def acknowledge(self, event: Acknowledged) -> list[CheckpointAction]:
        """Take a task's part; one that is unknown, late or repeated is not kept."""
        checkpoint_id, task = event.checkpoint_id, event.task
        pending = self._pending_one(checkpoint_id)
        if pending is None or not pending.waits_for(task):
            return []
        pending.handles[task] = event.handle
        pending.statistics.append(event.statistics)
        if not pending.is_acknowledged:
            return []
        pending.is_finalizing = True
        return [Finalize(checkpoint_id)]

    def on_finalized(self, checkpoint_id: int, now_ms: int) -> list[CheckpointAction]:
        """Be notified that a checkpoint's metadata is written: it is complete."""
        pending = self._pending_one(checkpoint_id)
        if pending is None:
            # It was aborted while it was written.
            return [self._discard(checkpoint_id)]
        pending.is_pending = False
        # Also of a savepoint: the pause is for the tasks, which had work with both.
        self._last_completed_ms = now_ms
        self._failures.on_success(checkpoint_id)
        if not pending.commits:
            return self._next(now_ms)
        self._latest_completed_id = max(self._latest_completed_id, checkpoint_id)
        actions: list[CheckpointAction] = []
        # An older one is subsumed: what it was to commit is in this one, too (Flink's
        # rule).
        for older in self._pending:
            if older.checkpoint_id < checkpoint_id and older.commits:
                actions += self._abort(older, FailureReason.SUBSUMED)
        actions.append(NotifyComplete(checkpoint_id, pending.plan.to_wait_for))
        return actions + self._next(now_ms)

    def on_unchanged(self, checkpoint_id: int, now_ms: int) -> list[CheckpointAction]:
        """Be notified that a checkpoint is what the last complete one is: it counts."""
        pending = self._pending_one(checkpoint_id)
        if pending is None:
            return self._next(now_ms)
        pending.is_pending = False
        self._last_completed_ms = now_ms
        self._failures.on_success(checkpoint_id)
        return self._next(now_ms)

    def fail(
        self,
        checkpoint_id: int,
        reason: FailureReason,
        now_ms: int,
        error: BaseException | None = None,
    ) -> list[CheckpointAction]:
        """Be notified that a checkpoint will not complete."""
        pending = self._pending_one(checkpoint_id)
        if pending is None:
            # Several tasks may decline one checkpoint: it failed once.
            return self._next(now_ms)
        actions = self._abort(pending, reason, error)
        if self._fails_job(pending, reason):
            actions.append(FailJob(checkpoint_id, reason, error))
        return actions + self._next(now_ms)

    def give_up(
        self,
        checkpoint_id: int,
        reason: FailureReason,
        now_ms: int,
        error: BaseException | None = None,
    ) -> list[CheckpointAction]:
        """Be notified that a checkpoint that all tasks acknowledged is not to count."""
        actions = self.fail(checkpoint_id, reason, now_ms, error)
        # After an error it is unknown whether anything was written: what looks
        # complete would be gone on from, and its prepared data may be removed by then.
        return [self._discard(checkpoint_id), *actions]

    def on_not_kept(
        self, checkpoint_id: int, now_ms: int, error: BaseException
    ) -> list[CheckpointAction]:
        """Be notified that records in flight cannot be kept: nothing overtakes them now."""
        # From now on barriers align: a job whose records cannot be kept still has
        # checkpoints.
        self.settings = replace(
            self.settings, unaligned=False, aligned_timeout=timedelta()
        )
        return self.fail(checkpoint_id, FailureReason.NOT_KEPT, now_ms, error)

    def on_tasks_failed(
        self, tasks: Iterable[SubtaskId], now_ms: int
    ) -> list[CheckpointAction]:
        """Be notified that tasks have failed: they will acknowledge nothing more."""
        failed = set(tasks)
        actions: list[CheckpointAction] = []
        for pending in self._pending:
            if not failed.isdisjoint(pending.missing):
                actions += self._abort(pending, FailureReason.TASK_FAILED)
        return actions + self._next(now_ms)

    def on_failover(self) -> list[CheckpointAction]:
        """Be notified that tasks begin again: only what is being written can complete.

        Those that have acknowledged it go back to before it, and do so once more.
        """
        return self._abort_unwritten(FailureReason.TASK_FAILED)

    def on_discarded(self, now_ms: int) -> list[CheckpointAction]:
        """Be notified that a checkpoint that failed has been deleted, or cannot be."""
        self._cleaning -= 1
        return self._next(now_ms)

    def _next(self, now_ms: int) -> list[CheckpointAction]:
        """Begin the request whose turn it is, if there is one."""
        actions: list[CheckpointAction] = []
        while True:
            choice = self._queue.choose(
                now_ms,
                is_starting=self._starting_id is not None,
                pending=len(self._pending),
                cleaning=self._cleaning,
                last_completed_ms=self._last_completed_ms,
            )
            if isinstance(choice, Refusal):
                actions.append(FailRequest(choice.request, choice.reason))
                # Instead of the usual interval: the pause decides when it may be asked
                # for.
                if choice.retry_after_ms is not None and self._is_periodic:
                    actions.append(SetPeriodicTimer(choice.retry_after_ms))
            elif isinstance(choice, Choice):
                actions += self._begin(choice.request, now_ms)
            else:
                return actions

    def _begin(self, request: CheckpointRequest, now_ms: int) -> list[CheckpointAction]:
        plan = self.plan()
        if isinstance(plan, FailureReason):
            return [FailRequest(request, plan)]
        # A number is used up whatever becomes of the checkpoint.
        checkpoint_id, self.next_id = self.next_id, self.next_id + 1
        alignment, timeout_ms = self.settings.alignment(request.kind)
        barrier = CheckpointBarrier(
            checkpoint_id, now_ms, alignment, request.kind, timeout_ms
        )
        begun = CheckpointInProgress(barrier, plan, request)
        self.in_progress[checkpoint_id] = begun
        self._starting_id = checkpoint_id
        return [StartCheckpoint(begun, self._timeout_ms)]

    def _fails_job(self, pending: CheckpointInProgress, reason: FailureReason) -> bool:
        """Count a failure; a savepoint's counts only if a task is to blame."""
        # It ends anyway.
        if reason is FailureReason.CANCELLED:
            return False
        kind = pending.request.kind
        # The requester is notified; the job was not in danger.
        if kind.is_savepoint and reason is not FailureReason.DECLINED:
            return False
        # The tasks wait for it in order to end: they cannot go on without it.
        if kind.is_synchronous:
            return True
        return self._failures.on_failure(pending.checkpoint_id, reason)

    def _abort_unwritten(self, reason: FailureReason) -> list[CheckpointAction]:
        actions: list[CheckpointAction] = []
        for pending in self._pending:
            # What is being written may be durable already: it completes.
            if not pending.is_finalizing:
                actions += self._abort(pending, reason)
        return actions

    def _abort(
        self,
        pending: CheckpointInProgress,
        reason: FailureReason,
        error: BaseException | None = None,
    ) -> list[CheckpointAction]:
        checkpoint_id = pending.checkpoint_id
        pending.is_pending = False
        if self._starting_id == checkpoint_id:
            self._starting_id = None
        actions: list[CheckpointAction] = [
            FailRequest(pending.request, reason, error),
            NotifyAborted(
                checkpoint_id, self._latest_completed_id, pending.plan.to_wait_for
            ),
        ]
        # What is being written is deleted when it has been: see `on_finalized`.
        if not pending.is_finalizing:
            actions.append(self._discard(checkpoint_id))
        return actions

    def _discard(self, checkpoint_id: int) -> DiscardCheckpoint:
        self._cleaning += 1
        return DiscardCheckpoint(checkpoint_id)
