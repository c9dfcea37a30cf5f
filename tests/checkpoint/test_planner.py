"""The coordinator's decisions: who begins, who completes, who is aborted."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
)

from aiomailbox.checkpoint.planner import (
    CheckpointAction,
    CheckpointPlan,
    CheckpointPlanner,
    CheckpointRequest,
    DiscardCheckpoint,
    FailJob,
    FailRequest,
    FailureCounter,
    FailureReason,
    Finalize,
    NotifyAborted,
    NotifyComplete,
    RequestQueue,
    SetPeriodicTimer,
    StartCheckpoint,
    trigger_failure,
)
from aiomailbox.checkpoint.settings import CheckpointConfig
from aiomailbox.durations import seconds
from aiomailbox.ids import SubtaskId, VertexId
from aiomailbox.records.events import SnapshotType
from aiomailbox.task.messages import Acknowledged, TaskHandle, TaskStatistics

TASKS = tuple(SubtaskId(VertexId(0), index) for index in range(3))
PLAN = CheckpointPlan(TASKS[:1], TASKS, ())
SAVEPOINT = SnapshotType.SAVEPOINT_CANONICAL
STOP = SnapshotType.SUSPEND_CANONICAL


def acknowledged(checkpoint_id: int, index: int) -> Acknowledged:
    """Return what a task says when it has written its part."""
    task = TASKS[index]
    handle = TaskHandle(
        checkpoint_id=checkpoint_id,
        vertex=task.vertex,
        subtask_index=index,
        epoch=0,
        size=0,
    )
    return Acknowledged(task, checkpoint_id, handle, TaskStatistics())


@dataclass
class Coordinator:
    """Carries out what a planner decides, as lists of what happened."""

    settings: CheckpointConfig
    plan: CheckpointPlan | FailureReason = PLAN
    now_ms: int = 1_000_000
    started: list[int] = field(default_factory=list)
    completed: list[int] = field(default_factory=list)
    aborted: list[tuple[int, int]] = field(default_factory=list)
    discarded: list[int] = field(default_factory=list)
    deletes: bool = True
    refused: list[FailureReason] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)
    timers: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.planner = CheckpointPlanner(self.settings, lambda: self.plan, Random(0))

    def request(self, kind: SnapshotType = SnapshotType.CHECKPOINT) -> None:
        self.do(self.planner.request(self.planner.new_request(kind), self.now_ms))

    def acknowledge(self, checkpoint_id: int, *indexes: int) -> None:
        for index in indexes:
            self.do(self.planner.acknowledge(acknowledged(checkpoint_id, index)))

    def complete(self, checkpoint_id: int) -> None:
        self.acknowledge(checkpoint_id, 0, 1, 2)

    def decline(self, checkpoint_id: int) -> None:
        self.do(self.planner.fail(checkpoint_id, FailureReason.DECLINED, self.now_ms))

    def do(self, actions: list[CheckpointAction]) -> None:
        for action in actions:
            match action:
                case StartCheckpoint(begun):
                    barrier = begun.barrier
                    self.started.append(barrier.checkpoint_id)
                    self.do(self.planner.on_started(barrier.checkpoint_id, self.now_ms))
                case Finalize(checkpoint_id):
                    self.do(self.planner.on_finalized(checkpoint_id, self.now_ms))
                case NotifyComplete(checkpoint_id):
                    self.completed.append(checkpoint_id)
                case NotifyAborted(checkpoint_id, latest_id):
                    self.aborted.append((checkpoint_id, latest_id))
                case DiscardCheckpoint(checkpoint_id):
                    self.discarded.append(checkpoint_id)
                    if self.deletes:
                        self.do(self.planner.on_discarded(self.now_ms))
                case FailRequest(_, reason):
                    self.refused.append(reason)
                case FailJob(checkpoint_id):
                    self.failures.append(checkpoint_id)
                case SetPeriodicTimer(delay_ms):
                    self.timers.append(delay_ms)
                case _:
                    pass


def coordinator(**settings: Any) -> Coordinator:
    return Coordinator(CheckpointConfig(**{"interval": None, **settings}))


def test_a_checkpoint_completes_with_its_last_acknowledgement() -> None:
    """SEM-203."""
    job = coordinator(max_concurrent=2)
    job.request()
    job.acknowledge(1, 1)
    job.request()
    job.acknowledge(1, 0)
    job.acknowledge(2, 0, 2)
    job.acknowledge(1, 2)
    assert job.completed == [1]
    assert job.planner.pending_ids == [2]
    job.acknowledge(2, 1)
    assert job.completed == [1, 2]
    assert job.aborted == []


def test_a_completed_checkpoint_subsumes_the_older_ones() -> None:
    """SEM-204."""
    job = coordinator(max_concurrent=2)
    job.request()
    job.request()
    job.acknowledge(1, 0, 1)
    job.complete(2)
    assert job.completed == [2]
    assert job.discarded == [1]
    assert job.refused == [FailureReason.SUBSUMED]
    late = job.planner.in_progress[1].missing
    assert job.planner.acknowledge(acknowledged(1, 2)) == []
    assert job.planner.in_progress[1].missing == late


def test_an_expired_checkpoint_is_discarded() -> None:
    """SEM-205."""
    job = coordinator(tolerable_failures=1)
    job.request()
    job.acknowledge(1, 0)
    job.do(job.planner.fail(1, FailureReason.EXPIRED, job.now_ms))
    assert job.discarded == [1]
    assert job.planner.pending_ids == []
    assert job.completed == []
    assert job.aborted == [(1, 0)]


def test_acknowledgements_that_nobody_waits_for_are_harmless() -> None:
    """SEM-206."""
    job = coordinator()
    job.request()
    begun = job.planner.in_progress[1]
    stranger = acknowledged(1, 0)
    stranger.task = SubtaskId(VertexId(9), 0)
    for event in (stranger, acknowledged(7, 0)):
        job.do(job.planner.acknowledge(event))
    assert begun.missing == [*TASKS]
    job.acknowledge(1, 0)
    first = dict(begun.handles)
    job.acknowledge(1, 0)
    assert begun.handles == first
    assert begun.missing == [*TASKS[1:]]
    assert len(begun.statistics) == 1


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_no_more_checkpoints_are_pending_than_allowed(limit: int) -> None:
    """SEM-207."""
    job = coordinator(interval=seconds(0.01), max_concurrent=limit)
    job.do(job.planner.start_periodic())
    for _ in range(20):
        job.now_ms += 10
        job.do(job.planner.on_periodic_timer(job.now_ms))
    assert job.started == list(range(1, limit + 1))
    job.complete(1)
    assert len(job.started) == limit + 1


def test_a_newer_completion_makes_room_for_two() -> None:
    """SEM-208."""
    job = coordinator(max_concurrent=2)
    for _ in range(4):
        job.request()
    assert job.planner.pending_ids == [1, 2]
    job.complete(2)
    assert job.planner.pending_ids == [3, 4]
    assert job.refused == [FailureReason.SUBSUMED]


def test_the_timer_goes_on_where_nothing_has_changed_and_nothing_begins() -> None:
    job = coordinator(interval=seconds(0.02), min_pause=seconds(0.015))
    job.do(job.planner.start_periodic())
    for _ in range(3):
        job.now_ms += 20
        actions = job.planner.on_periodic_timer(job.now_ms, has_changed=False)
        assert actions == [SetPeriodicTimer(20)]
    assert not job.planner.is_engaged
    # It counts as complete: the pause begins with it.
    job.now_ms += 10
    job.do(job.planner.on_periodic_timer(job.now_ms))
    assert job.started == []
    job.now_ms += 10
    job.do(job.planner.on_periodic_timer(job.now_ms))
    assert job.started == [1]
    assert job.planner.is_engaged


def test_one_that_is_as_the_last_complete_one_ends_as_if_it_had_been_written() -> None:
    job = coordinator(
        interval=seconds(0.01), min_pause=seconds(0.02), tolerable_failures=1
    )
    job.do(job.planner.start_periodic())
    job.do(job.planner.on_periodic_timer(job.now_ms))
    job.decline(1)
    # It is over: that it would have been the same counts for nothing.
    assert job.planner.on_unchanged(1, job.now_ms) == []
    job.now_ms += 10
    job.do(job.planner.on_periodic_timer(job.now_ms))
    assert job.planner.pending_ids == [2]
    job.do(job.planner.on_unchanged(2, job.now_ms))
    assert job.planner.pending_ids == []
    # The pause begins with it, and failures are counted anew.
    for started in ([1, 2], [1, 2, 3]):
        job.now_ms += 10
        job.do(job.planner.on_periodic_timer(job.now_ms))
        assert job.started == started
    job.decline(3)
    assert job.failures == []


def test_nothing_begins_before_all_tasks_run() -> None:
    """SEM-209."""
    job = coordinator(interval=seconds(0.01))
    job.plan = FailureReason.NOT_RUNNING
    job.do(job.planner.start_periodic())
    for _ in range(20):
        job.do(job.planner.on_periodic_timer(job.now_ms))
    assert job.planner.pending_ids == []
    assert set(job.refused) == {FailureReason.NOT_RUNNING}
    assert job.failures == []
    job.plan = PLAN
    job.do(job.planner.on_periodic_timer(job.now_ms))
    assert job.started == [1]


def test_a_request_waits_until_there_is_room() -> None:
    """SEM-210."""
    job = coordinator()
    job.request()
    job.request()
    assert job.started == [1]
    assert job.planner.queued == 1
    job.complete(1)
    assert job.started == [1, 2]


def test_a_request_waits_while_too_many_that_failed_are_deleted() -> None:
    """SEM-211."""
    job = coordinator(tolerable_failures=5)
    job.deletes = False
    for checkpoint_id in (1, 2):
        job.request()
        job.decline(checkpoint_id)
    job.request()
    assert (job.started, job.discarded) == ([1, 2], [1, 2])
    job.do(job.planner.on_discarded(job.now_ms))
    assert job.started == [1, 2, 3]


def test_savepoints_come_first_and_people_before_the_timer() -> None:
    """SEM-212."""
    queue = RequestQueue(CheckpointConfig(interval=None, unaligned=True))
    periodic = CheckpointRequest(1, is_periodic=True)
    asked = CheckpointRequest(2)
    savepoint = CheckpointRequest(3, SAVEPOINT)
    for request in (periodic, asked, savepoint):
        assert queue.add(request) is None
    assert queue.clear() == [savepoint, asked, periodic]


def test_only_the_timer_keeps_the_pause() -> None:
    """SEM-213."""
    job = coordinator(interval=seconds(10), min_pause=seconds(10))
    job.do(job.planner.start_periodic())
    job.request()
    job.complete(1)
    job.now_ms += 4_000
    job.do(job.planner.on_periodic_timer(job.now_ms))
    assert job.refused == [FailureReason.MIN_PAUSE]
    assert job.timers[-1] == 6_000
    assert job.started == [1]
    job.request()
    assert job.started == [1, 2]
    job.complete(2)
    job.request(SAVEPOINT)
    assert job.started == [1, 2, 3]


def test_too_many_requests_are_refused() -> None:
    """SEM-214."""
    settings = CheckpointConfig(interval=None)
    queue = RequestQueue(settings, queued_max=10)
    requests = [CheckpointRequest(number) for number in range(11)]
    refusals = [queue.add(request) for request in requests]
    assert refusals[:10] == [None] * 10
    assert refusals[10] is not None
    assert refusals[10].request == requests[10]
    assert refusals[10].reason is FailureReason.TOO_MANY_REQUESTS


def test_the_timers_request_makes_room_for_a_savepoint() -> None:
    """SEM-214."""
    queue = RequestQueue(CheckpointConfig(interval=None), queued_max=1)
    periodic = CheckpointRequest(1, is_periodic=True)
    assert queue.add(periodic) is None
    refusal = queue.add(CheckpointRequest(2, SAVEPOINT))
    assert refusal is not None
    assert refusal.request == periodic


def test_the_job_fails_with_one_failure_more_than_it_tolerates() -> None:
    """SEM-215."""
    job = coordinator(tolerable_failures=2)
    job.planner.next_id = 5
    job.request()
    job.do(job.planner.fail(5, FailureReason.EXPIRED, job.now_ms))
    job.request()
    job.decline(6)
    job.decline(6)
    assert job.failures == []
    job.request()
    job.do(job.planner.fail(7, FailureReason.EXPIRED, job.now_ms))
    assert job.failures == [7]


def test_a_success_forgives_the_failures_before_it() -> None:
    """SEM-215."""
    job = coordinator(tolerable_failures=2)
    for checkpoint_id in range(1, 9):
        job.request()
        if checkpoint_id % 3:
            job.decline(checkpoint_id)
        else:
            job.complete(checkpoint_id)
    assert job.failures == []


def test_an_older_checkpoint_that_completes_later_forgives_nothing() -> None:
    counter = FailureCounter(tolerable=1)
    counter.on_success(3)
    assert not counter.on_failure(4, FailureReason.EXPIRED)
    counter.on_success(2)
    assert counter.on_failure(5, FailureReason.EXPIRED)


def test_what_is_nobodys_fault_never_fails_the_job() -> None:
    """SEM-216."""
    job = coordinator(max_concurrent=2)
    job.request()
    job.request()
    job.complete(2)
    job.plan = FailureReason.NOT_RUNNING
    job.request()
    job.plan = FailureReason.TASK_CLOSING
    job.request()
    job.plan = PLAN
    job.request()
    job.do(job.planner.on_tasks_failed(TASKS[:1], job.now_ms))
    assert len(job.refused) == 4
    assert job.failures == []


def test_a_failure_older_than_a_success_is_ignored() -> None:
    """SEM-217."""
    job = coordinator(max_concurrent=2)
    job.request(SAVEPOINT)
    job.request()
    job.complete(2)
    assert job.completed == [2]
    # A savepoint is not subsumed; that it failed is old news by now.
    assert job.planner.pending_ids == [1]
    job.decline(1)
    assert job.failures == []
    assert job.refused == [FailureReason.DECLINED]


def test_a_task_that_missed_a_completion_hears_of_it_with_the_abort() -> None:
    """SEM-219: the abort of 9 names 8."""
    job = coordinator(tolerable_failures=1)
    job.planner.next_id = 8
    job.request()
    job.complete(8)
    job.request()
    job.decline(9)
    assert job.aborted == [(9, 8)]


def test_a_savepoint_runs_beside_a_checkpoint_and_subsumes_nothing() -> None:
    job = coordinator()
    job.request()
    job.request(SAVEPOINT)
    assert job.started == [1, 2]
    job.complete(2)
    assert job.completed == []
    assert job.planner.pending_ids == [1]


def test_with_unaligned_checkpoints_a_savepoint_waits_for_them() -> None:
    job = coordinator(unaligned=True)
    job.request()
    job.request(SAVEPOINT)
    assert job.started == [1]
    job.complete(1)
    assert job.started == [1, 2]


def test_a_savepoint_fails_the_job_only_through_its_tasks() -> None:
    job = coordinator()
    job.request(SAVEPOINT)
    job.do(job.planner.fail(1, FailureReason.EXPIRED, job.now_ms))
    assert job.failures == []
    job.request(SAVEPOINT)
    job.decline(2)
    assert job.failures == [2]


def test_a_stop_with_savepoint_that_is_declined_fails_the_job_at_once() -> None:
    job = coordinator(tolerable_failures=5)
    job.request(STOP)
    job.decline(1)
    assert job.failures == [1]


def test_a_stop_with_savepoint_lets_the_tasks_commit() -> None:
    job = coordinator()
    job.request(STOP)
    job.complete(1)
    assert job.completed == [1]


def test_stopping_aborts_what_is_pending_and_refuses_what_waits() -> None:
    job = coordinator(interval=seconds(1))
    job.do(job.planner.start_periodic())
    job.request()
    job.request()
    job.do(job.planner.stop_periodic())
    assert job.refused == [FailureReason.SUSPENDED] * 2
    assert job.planner.pending_ids == []
    job.do(job.planner.on_periodic_timer(job.now_ms))
    assert job.started == [1]


def test_what_is_being_written_completes_although_checkpoints_were_stopped() -> None:
    job = coordinator()
    job.request()
    planner = job.planner
    for task in TASKS:
        actions = planner.acknowledge(acknowledged(1, task.subtask_index))
    assert Finalize(1) in actions
    job.do(planner.stop_periodic())
    job.do(planner.on_finalized(1, job.now_ms))
    assert job.discarded == []
    assert job.completed == [1]


def lost_disk() -> Exception:
    error = RuntimeError("no snapshot")
    error.__cause__ = OSError("the disk is gone")
    return error


@pytest.mark.parametrize(
    ("error", "failures"),
    [
        (OSError("full"), [1]),
        (lost_disk(), [1]),
        # As in Flink: what is no I/O error does not count.
        (RuntimeError("a bug of an enumerator's"), []),
    ],
    ids=str,
)
def test_a_checkpoint_that_cannot_be_triggered_has_failed(
    error: Exception, failures: list[int]
) -> None:
    job = coordinator()
    actions = job.planner.request(job.planner.new_request(), job.now_ms)
    assert any(isinstance(action, StartCheckpoint) for action in actions)
    reason = trigger_failure(error)
    job.do(job.planner.fail(1, reason, job.now_ms, error))
    assert job.failures == failures
    assert job.planner.pending_ids == []
    job.request()
    assert job.started == [2]


class Coordinating(RuleBasedStateMachine):
    """Whatever happens in whichever order, the books stay right."""

    def __init__(self) -> None:
        super().__init__()
        settings = CheckpointConfig(
            interval=seconds(1), max_concurrent=2, tolerable_failures=3
        )
        self.planner = CheckpointPlanner(settings, lambda: PLAN, Random(1))
        self.now_ms = 0
        self.asked: set[CheckpointRequest] = set()
        self.answered: list[CheckpointRequest] = []
        self.begun: dict[int, CheckpointRequest] = {}
        self.over: list[int] = []
        self.finalizing: list[int] = []
        self.do(self.planner.start_periodic())

    def do(self, actions: list[CheckpointAction]) -> None:
        for action in actions:
            match action:
                case StartCheckpoint(begun):
                    barrier, request = begun.barrier, begun.request
                    assert barrier.checkpoint_id not in self.begun
                    self.begun[barrier.checkpoint_id] = request
                    self.do(self.planner.on_started(barrier.checkpoint_id, self.now_ms))
                case FailRequest(request, _):
                    self.answered.append(request)
                case NotifyAborted(checkpoint_id):
                    self.over.append(checkpoint_id)
                case Finalize(checkpoint_id):
                    self.finalizing.append(checkpoint_id)
                case _:
                    pass

    @rule(wait_ms=st.integers(0, 3000), kind=st.sampled_from(SnapshotType))
    def ask(self, wait_ms: int, kind: SnapshotType) -> None:
        self.now_ms += wait_ms
        request = self.planner.new_request(kind)
        self.asked.add(request)
        self.do(self.planner.request(request, self.now_ms))

    @rule(checkpoint_id=st.integers(1, 12), index=st.integers(0, 2))
    def acknowledge(self, checkpoint_id: int, index: int) -> None:
        self.do(self.planner.acknowledge(acknowledged(checkpoint_id, index)))

    @rule(checkpoint_id=st.integers(1, 12), expired=st.booleans())
    def fail(self, checkpoint_id: int, expired: bool) -> None:
        reason = FailureReason.EXPIRED if expired else FailureReason.DECLINED
        self.do(self.planner.fail(checkpoint_id, reason, self.now_ms))

    @rule()
    def write(self) -> None:
        for checkpoint_id in self.finalizing[:1]:
            self.finalizing.remove(checkpoint_id)
            was_pending = checkpoint_id in self.planner.pending_ids
            self.do(self.planner.on_finalized(checkpoint_id, self.now_ms))
            if was_pending:
                self.over.append(checkpoint_id)
                self.answered.append(self.begun[checkpoint_id])

    @rule(wait_ms=st.integers(0, 3000))
    def tick(self, wait_ms: int) -> None:
        self.now_ms += wait_ms
        self.do(self.planner.on_periodic_timer(self.now_ms))

    @rule(task=st.sampled_from(TASKS))
    def lose(self, task: SubtaskId) -> None:
        self.do(self.planner.on_tasks_failed([task], self.now_ms))

    @invariant()
    def each_checkpoint_is_pending_or_over_once(self) -> None:
        assert len(set(self.over)) == len(self.over)
        assert set(self.begun) == {*self.over, *self.planner.pending_ids}
        assert sorted(self.begun) == list(range(1, len(self.begun) + 1))

    @invariant()
    def each_request_is_answered_at_most_once(self) -> None:
        assert len(set(self.answered)) == len(self.answered)
        waiting = self.asked - set(self.answered)
        begun = [self.begun[number] for number in self.planner.pending_ids]
        queued = len(waiting - set(begun))
        assert queued <= self.planner.queued


TestCoordinating = Coordinating.TestCase
