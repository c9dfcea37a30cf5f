"""Restart strategies: how often, and after which delay."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, strategies as st

import aiomailbox as am
from aiomailbox.errors import (
    IllegalStateError,
    InvalidArgumentError,
    InvalidRecordError,
    PoolDestroyedError,
    UserFunctionError,
    WrongTypeError,
    lasting,
)
from aiomailbox.policies import restart
from aiomailbox.policies.restart import (
    Fault,
    Mistakes,
    RestartBackoff,
    RestartStrategy,
    culprit_of,
)


def of_user(cause: BaseException) -> UserFunctionError:
    error = UserFunctionError("parse", None, "job.py:7", cause)
    error.__cause__ = cause
    return error


def refused_by_a_table() -> UserFunctionError:
    error = of_user(OSError("duplicate key"))
    error.fault = "program"
    return error


def begin(strategy: RestartStrategy, seed: int = 0) -> RestartBackoff:
    return strategy.begin(Random(seed))


def after(backoff: RestartBackoff, now_ms: int) -> int:
    backoff.on_failure(now_ms)
    return backoff.delay_ms


def test_no_restart_means_none() -> None:
    backoff = begin(restart.none())
    backoff.on_failure(0)
    assert not backoff.can_restart


def test_a_fixed_delay_restarts_as_often_as_it_says() -> None:
    """SEM-246."""
    backoff = begin(restart.fixed_delay(10, am.millis(70)))
    for _ in range(10):
        assert after(backoff, 0) == 70
        assert backoff.can_restart
    backoff.on_failure(0)
    assert not backoff.can_restart


def test_a_failure_rate_ends_what_fails_too_often() -> None:
    """SEM-247."""
    backoff = begin(restart.failure_rate(3, per=10))
    for now_ms in (0, 1, 2):
        backoff.on_failure(now_ms)
        assert backoff.can_restart
    backoff.on_failure(3)
    assert not backoff.can_restart


def test_a_failure_rate_never_ends_what_fails_seldom() -> None:
    """SEM-247."""
    backoff = begin(restart.failure_rate(1, per=10))
    for now_ms in range(0, 200_000, 10_001):
        backoff.on_failure(now_ms)
        assert backoff.can_restart


def test_exponential_delays_grow_from_the_unrounded_delay() -> None:
    """SEM-248."""
    strategy = restart.exponential_delay(
        am.millis(4), am.millis(300), multiplier=2.3, jitter=0
    )
    backoff = begin(strategy)
    assert [after(backoff, 0) for _ in range(3)] == [4, 9, 21]


def test_there_is_no_delay_before_the_first_failure() -> None:
    """SEM-249."""
    backoff = begin(restart.exponential_delay(am.millis(42), jitter=0))
    with pytest.raises(IllegalStateError, match="first failure"):
        _ = backoff.delay_ms
    assert after(backoff, 0) == 42


def test_delays_are_short_again_after_a_quiet_time() -> None:
    """SEM-250."""
    strategy = restart.exponential_delay(
        am.millis(1), am.millis(5), multiplier=2, jitter=0, reset_after=am.millis(8)
    )
    backoff = begin(strategy)
    assert after(backoff, 0) == 1
    assert after(backoff, 8) == 2
    assert after(backoff, 18) == 1


def test_failures_in_a_row_are_counted() -> None:
    """SEM-251."""
    backoff = begin(restart.exponential_delay(attempts=13))
    for _ in range(13):
        backoff.on_failure(0)
        assert backoff.can_restart
    backoff.on_failure(0)
    assert not backoff.can_restart


def test_a_quiet_time_forgives_failures() -> None:
    strategy = restart.exponential_delay(attempts=1, reset_after=am.seconds(5))
    backoff = begin(strategy)
    for now_ms in range(0, 100_000, 10_000):
        backoff.on_failure(now_ms)
        assert backoff.can_restart


@pytest.mark.parametrize(
    ("initial_ms", "jitter", "expected"),
    [
        (2, 0.25, [{2}, {3, 4, 5}, {6, 7}, {7}]),
        (1, 1.0, [{1, 2}, {1, 2, 3, 4}, set(range(1, 8))]),
    ],
)
def test_jitter_comes_before_the_bounds(
    initial_ms: int, jitter: float, expected: list[set[int]]
) -> None:
    """SEM-252."""
    strategy = restart.exponential_delay(
        am.millis(initial_ms), am.millis(7), multiplier=2, jitter=jitter
    )
    seen: list[set[int]] = [set() for _ in expected]
    for seed in range(300):
        backoff = begin(strategy, seed)
        for delays in seen:
            delays.add(after(backoff, 0))
    assert seen == expected


@given(st.lists(st.integers(0, 10**6), max_size=60), st.integers(0, 99))
def test_a_delay_is_always_within_its_bounds(waits_ms: list[int], seed: int) -> None:
    strategy = restart.exponential_delay(am.millis(10), am.millis(500), multiplier=1e9)
    backoff = begin(strategy, seed)
    now_ms = 0
    for wait_ms in waits_ms:
        now_ms += wait_ms
        assert 10 <= after(backoff, now_ms) <= 500


def test_bad_arguments_are_refused_where_they_are_given() -> None:
    with pytest.raises(InvalidArgumentError, match="attempts: 0"):
        restart.fixed_delay(0)
    with pytest.raises(InvalidArgumentError, match="per: it is 0"):
        restart.failure_rate(1, per=0)
    with pytest.raises(InvalidArgumentError, match="shorter than initial"):
        restart.exponential_delay(initial=2, maximum=1)
    with pytest.raises(InvalidArgumentError, match="would never grow"):
        restart.exponential_delay(initial=0)
    with pytest.raises(WrongTypeError, match="multiplier"):
        restart.exponential_delay(multiplier="2")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="milliseconds"):
        restart.fixed_delay(3, delay=90_000)


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (am.StateError("no key"), Fault.LASTING),
        (InvalidRecordError("a.csv", 2, 7, "no number"), Fault.LASTING),
        (of_user(am.DamagedFileError("a.gz", "cut short")), Fault.LASTING),
        (lasting(am.SinkError("other columns")), Fault.LASTING),
        (of_user(am.WrongTypeError("function", "no", "Give one.")), Fault.CALLER),
        (of_user(TypeError("no")), Fault.PROGRAM),
        (of_user(KeyError("no")), Fault.PROGRAM),
        (of_user(ZeroDivisionError()), Fault.PROGRAM),
        (of_user(AssertionError()), Fault.PROGRAM),
        (of_user(ExceptionGroup("", [NameError("no")])), Fault.PROGRAM),
        (of_user(ConnectionResetError()), Fault.WORLD),
        (of_user(ValueError("not JSON")), Fault.WORLD),
        (of_user(type("PostgresError", (Exception,), {})()), Fault.WORLD),
        (of_user(ExceptionGroup("", [TypeError(), OSError()])), Fault.WORLD),
        # A consequence of another failure, in the family of the caller's.
        (PoolDestroyedError("gone"), Fault.WORLD),
        (am.RemoteTaskError("worker 1", "UserFunctionError", "no"), Fault.WORLD),
        (
            am.RemoteTaskError(
                "worker 1",
                "UserFunctionError",
                "no",
                fault="program",
                culprit="KeyError",
            ),
            Fault.PROGRAM,
        ),
        (
            am.RemoteTaskError(
                "worker 1", "InvalidRecordError", "no number", fault="lasting"
            ),
            Fault.LASTING,
        ),
        (refused_by_a_table(), Fault.PROGRAM),
    ],
)
def test_a_failure_is_the_callers_the_programs_or_the_worlds(
    error: BaseException, fault: Fault
) -> None:
    assert culprit_of(error).fault is fault


def test_the_callers_fault_comes_again_for_certain() -> None:
    mistakes = Mistakes()
    mistakes.on_failure(
        am.WrongTypeError("key", "no", "Give one."), None, completed_id=-1
    )
    assert mistakes.is_certain


def test_a_mistake_is_certain_at_its_third_failure() -> None:
    mistakes, seen = Mistakes(), []
    for _ in range(3):
        mistakes.on_failure(of_user(TypeError()), "job.py:7", completed_id=2)
        seen.append(mistakes.is_certain)
    assert seen == [False, False, True]
    assert "TypeError at job.py:7 ended 3 attempts" in mistakes.remark


@given(
    st.lists(
        st.tuples(
            st.sampled_from([TypeError, KeyError, OSError]),
            st.sampled_from(["job.py:7", "job.py:8", None]),
            st.integers(0, 2),
        ),
        max_size=30,
    )
)
def test_only_three_of_one_type_at_one_line_after_one_checkpoint_are_certain(
    failures: list[tuple[type[Exception], str | None, int]],
) -> None:
    mistakes, completed_id = Mistakes(), 0
    seen: list[tuple[type[Exception], str | None, int]] = []
    for kind, place, more in failures:
        completed_id += more
        mistakes.on_failure(kind(), place, completed_id=completed_id)
        seen.append((kind, place, completed_id))
        may_count = kind is not OSError and place is not None
        assert mistakes.is_certain == (may_count and seen.count(seen[-1]) >= 3)


def test_two_mistakes_that_take_turns_are_certain_too() -> None:
    mistakes, seen = Mistakes(), []
    for attempt in range(5):
        line = f"job.py:{attempt % 2}"
        mistakes.on_failure(of_user(KeyError()), line, completed_id=-1)
        seen.append(mistakes.is_certain)
    assert seen == [False, False, False, False, True]
