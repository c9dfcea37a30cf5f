"""Which tasks a checkpoint concerns, and which settings exclude each other."""

from __future__ import annotations

from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.checkpoint.planner import (
    CheckpointPlan,
    FailureReason,
    SubtaskState,
    loses_union_state,
    plan_checkpoint,
)
from aiomailbox.checkpoint.settings import CheckpointConfig, CheckpointingMode
from aiomailbox.errors import InvalidArgumentError, WrongTypeError
from aiomailbox.ids import SubtaskId, VertexId
from aiomailbox.records.events import NO_ALIGNED_TIMEOUT, Alignment, SnapshotType
from aiomailbox.task.messages import TaskHandle

RUNNING, FINISHED = SubtaskState.RUNNING, SubtaskState.FINISHED
A, B, JOIN = (SubtaskId(VertexId(number), 0) for number in range(3))
PRODUCERS = {JOIN: [A, B]}


def plan(**states: SubtaskState) -> CheckpointPlan:
    tasks = {"a": A, "b": B, "join": JOIN}
    found = plan_checkpoint(
        {tasks[name]: state for name, state in states.items()}, PRODUCERS
    )
    assert isinstance(found, CheckpointPlan)
    return found


def test_sources_get_the_barrier_and_all_are_waited_for() -> None:
    found = plan(a=RUNNING, b=RUNNING, join=RUNNING)
    assert found == CheckpointPlan((A, B), (A, B, JOIN), ())


def test_a_source_that_finished_is_not_triggered() -> None:
    """SEM-224. The other one is, and all that run are waited for."""
    found = plan(a=FINISHED, b=RUNNING, join=RUNNING)
    assert found == CheckpointPlan((B,), (B, JOIN), (A,))


def test_a_task_whose_sources_have_all_finished_is_triggered_itself() -> None:
    """SEM-225."""
    found = plan(a=FINISHED, b=FINISHED, join=RUNNING)
    assert found == CheckpointPlan((JOIN,), (JOIN,), (A, B))


def test_no_checkpoint_begins_while_a_task_starts_or_when_all_are_over() -> None:
    starting = {A: SubtaskState.STARTING, JOIN: RUNNING}
    assert plan_checkpoint(starting, PRODUCERS) is FailureReason.NOT_RUNNING
    over = {A: FINISHED, JOIN: FINISHED}
    assert plan_checkpoint(over, PRODUCERS) is FailureReason.NOT_RUNNING


def test_checkpoints_can_end_with_the_first_task() -> None:
    states = {A: FINISHED, B: RUNNING, JOIN: RUNNING}
    found = plan_checkpoint(states, PRODUCERS, after_tasks_finish=False)
    assert found is FailureReason.TASKS_FINISHED


def test_union_state_is_not_kept_of_some_subtasks_only() -> None:
    """SEM-226."""

    def handle(index: int, *, ends: bool, union: bool = True) -> TaskHandle:
        return TaskHandle(
            checkpoint_id=1,
            vertex=VertexId(0),
            subtask_index=index,
            epoch=1,
            size=0,
            is_finished=ends,
            has_union_state=union,
        )

    assert loses_union_state([handle(0, ends=True), handle(1, ends=False)])
    assert not loses_union_state([handle(0, ends=True), handle(1, ends=True)])
    assert not loses_union_state([handle(0, ends=False), handle(1, ends=False)])
    without = handle(0, ends=True, union=False)
    assert not loses_union_state([without, handle(1, ends=False)])
    assert not FailureReason.TASK_CLOSING.counts


CHECKPOINT, SAVEPOINT = SnapshotType.CHECKPOINT, SnapshotType.SAVEPOINT_CANONICAL


@pytest.mark.parametrize(
    ("settings", "kind", "expected"),
    [
        ({"mode": CheckpointingMode.AT_LEAST_ONCE}, SAVEPOINT, Alignment.AT_LEAST_ONCE),
        ({}, CHECKPOINT, Alignment.ALIGNED),
        ({"unaligned": True}, CHECKPOINT, Alignment.UNALIGNED),
        ({"unaligned": True}, SAVEPOINT, Alignment.ALIGNED),
    ],
)
def test_how_barriers_meet(
    settings: dict[str, Any], kind: SnapshotType, expected: Alignment
) -> None:
    """SEM-194."""
    found = CheckpointConfig(interval=am.seconds(1), **settings).alignment(kind)
    assert found == (expected, NO_ALIGNED_TIMEOUT)


def test_unaligned_barriers_may_be_tried_aligned_first() -> None:
    settings = CheckpointConfig(
        interval=am.seconds(1), unaligned=True, aligned_timeout=am.millis(30)
    )
    assert settings.alignment(CHECKPOINT) == (Alignment.ALIGNED, 30)
    assert settings.alignment(SAVEPOINT) == (Alignment.ALIGNED, NO_ALIGNED_TIMEOUT)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"interval": am.millis(1)}, "interval: 0:00:00.001000 is too short"),
        ({"timeout": 0}, "timeout: it is 0"),
        ({"max_concurrent": 0}, "max_concurrent: 0"),
        ({"retained": 0}, "retained: 0"),
        ({"tolerable_failures": -1}, "tolerable_failures: -1 is too small"),
        ({"aligned_timeout": am.seconds(1)}, "aligned_timeout: it has no effect"),
        ({"unaligned": True, "max_concurrent": 2}, "max_concurrent: unaligned"),
        (
            {"unaligned": True, "mode": CheckpointingMode.AT_LEAST_ONCE},
            "unaligned: it has no effect",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(
    settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=problem):
        CheckpointConfig(**{"interval": am.seconds(1), **settings})


def test_settings_of_another_type_are_refused() -> None:
    with pytest.raises(
        WrongTypeError, match="mode: 'exactly_once' is not a checkpointing mode"
    ):
        CheckpointConfig(interval=am.seconds(1), mode="exactly_once")  # type: ignore[arg-type]
    with pytest.raises(WrongTypeError, match="tolerable_failures"):
        CheckpointConfig(interval=am.seconds(1), tolerable_failures=True)


def test_the_pause_stretches_the_interval() -> None:
    assert (
        CheckpointConfig(interval=am.seconds(1), min_pause=am.seconds(3)).interval_ms
        == 3000
    )
    assert CheckpointConfig(interval=None).interval_ms == 0
