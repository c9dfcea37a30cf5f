"""The life of a task: every pair of states."""

from __future__ import annotations

import itertools

import pytest

from aiomailbox.errors import IllegalStateError
from aiomailbox.task.stream_task import TaskLifecycle, TaskState

S = TaskState
ALLOWED = {
    (S.CREATED, S.RESTORING),
    (S.CREATED, S.CANCELLING),
    (S.CREATED, S.FAILED),
    (S.RESTORING, S.RUNNING),
    (S.RESTORING, S.CANCELLING),
    (S.RESTORING, S.FAILED),
    (S.RUNNING, S.FINISHING),
    (S.RUNNING, S.CANCELLING),
    (S.RUNNING, S.FAILED),
    (S.FINISHING, S.FINISHED),
    (S.FINISHING, S.CANCELLING),
    (S.FINISHING, S.FAILED),
    (S.CANCELLING, S.CANCELED),
    (S.CANCELLING, S.FAILED),
}


@pytest.mark.parametrize(("state", "target"), list(itertools.product(S, S)))
def test_a_life_moves_along_the_table_only(state: TaskState, target: TaskState) -> None:
    life = TaskLifecycle()
    life.state = state
    assert life.can_advance(target) is ((state, target) in ALLOWED)
    if (state, target) in ALLOWED:
        life.advance(target)
        assert life.state is target
    else:
        with pytest.raises(
            IllegalStateError, match=f"is {state.value} cannot become {target.value}"
        ):
            life.advance(target)
        assert life.state is state


@pytest.mark.parametrize("state", list(S))
def test_a_life_is_over_where_nothing_can_follow(state: TaskState) -> None:
    life = TaskLifecycle()
    life.state = state
    assert life.is_terminal is not any(pair[0] is state for pair in ALLOWED)
    assert life.is_cancelling is (state in {S.CANCELLING, S.CANCELED})
