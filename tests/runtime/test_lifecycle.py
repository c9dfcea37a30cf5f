"""The life of a job: every pair of states."""

from __future__ import annotations

import itertools

import pytest

from aiomailbox.runtime.config import JobState
from aiomailbox.runtime.master import JobLifecycle

S = JobState
ALLOWED = {
    (S.CREATED, S.RUNNING),
    (S.CREATED, S.RESTARTING),
    (S.CREATED, S.CANCELLING),
    (S.CREATED, S.FAILING),
    (S.RUNNING, S.FINISHED),
    (S.RUNNING, S.RESTARTING),
    (S.RESTARTING, S.RUNNING),
    (S.RESTARTING, S.CANCELLING),
    (S.RESTARTING, S.FAILING),
    (S.RUNNING, S.CANCELLING),
    (S.RUNNING, S.FAILING),
    (S.CANCELLING, S.CANCELED),
    (S.CANCELLING, S.FAILING),
    (S.FAILING, S.FAILED),
}


@pytest.mark.parametrize(("state", "target"), list(itertools.product(S, S)))
def test_a_life_moves_along_the_table_only(state: JobState, target: JobState) -> None:
    life = JobLifecycle()
    life.state = state
    allowed = (state, target) in ALLOWED
    assert life.advance(target) is allowed
    assert life.state is (target if allowed else state)


@pytest.mark.parametrize("state", list(S))
def test_a_life_is_over_where_nothing_can_follow(state: JobState) -> None:
    life = JobLifecycle()
    life.state = state
    assert life.is_terminal is not any(pair[0] is state for pair in ALLOWED)
