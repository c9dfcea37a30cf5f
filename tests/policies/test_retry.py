"""Laws of retry policies."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from aiomailbox.errors import (
    InvalidArgumentError,
    RetryLater,
    StopTask,
    WrongTypeError,
)
from aiomailbox.policies.retry import Retry, retry_after_s


class Awaited:
    async def __call__(self, one: object) -> bool:
        return True


def test_the_wait_grows_by_the_multiplier_up_to_the_maximum() -> None:
    retry = Retry(initial=1, multiplier=3, maximum=10, jitter=0)
    delays = [retry.delay_s(attempt, random.Random(0)) for attempt in range(1, 6)]
    assert delays == [1, 3, 9, 10, 10]


def test_many_attempts_do_not_overflow() -> None:
    assert Retry(maximum=5, jitter=0).delay_s(100_000, random.Random(0)) == 5
    assert Retry(initial=0).delay_s(100_000, random.Random(0)) == 0


def test_durations_may_be_timedeltas() -> None:
    retry = Retry(initial=timedelta(milliseconds=50), jitter=0)
    assert retry.delay_s(1, random.Random(0)) == 0.05


@given(
    attempt=st.integers(1, 60),
    seed=st.integers(),
    jitter=st.floats(0, 1),
    initial=st.floats(0, 100),
    maximum=st.floats(0, 100),
    after=st.none() | st.floats(0, 1000),
)
def test_a_wait_is_never_longer_than_the_maximum_nor_shorter_than_asked_for(
    attempt: int,
    seed: int,
    jitter: float,
    initial: float,
    maximum: float,
    after: float | None,
) -> None:
    retry = Retry(initial=min(initial, maximum), maximum=maximum, jitter=jitter)
    delay_s = retry.delay_s(attempt, random.Random(seed), after)
    assert delay_s >= (after or 0)
    assert delay_s <= max(maximum, after or 0)


def test_a_first_delay_beyond_the_maximum_is_refused_where_it_is_written() -> None:
    with pytest.raises(InvalidArgumentError, match=r"initial: 100 s .* maximum=60"):
        Retry(initial=100)
    assert Retry(maximum=0.01, jitter=0).delay_s(1, random.Random(0)) == 0.01


@given(seed=st.integers(), jitter=st.floats(0, 1))
def test_jitter_moves_a_wait_by_at_most_its_fraction(seed: int, jitter: float) -> None:
    delay_s = Retry(initial=10, jitter=jitter).delay_s(1, random.Random(seed))
    assert 10 * (1 - jitter) - 1e-9 <= delay_s <= 10 * (1 + jitter) + 1e-9


def test_jitter_makes_waits_longer_and_shorter_and_those_of_two_jobs_differ() -> None:
    """Or all that failed together would come again together."""
    retry, random_ = Retry(initial=10, jitter=0.5), random.Random(0)
    delays = [retry.delay_s(1, random_) for _ in range(1000)]
    assert 5 <= min(delays) < 5.1
    assert 14.9 < max(delays) <= 15
    assert sum(delays) / 1000 == pytest.approx(10, abs=0.3)


def test_what_nobody_says_is_as_documented() -> None:
    retry = Retry()
    assert (retry.attempts, retry.jitter, retry.retry_on) == (4, 0.1, Exception)
    steady = Retry(jitter=0)
    delays = [steady.delay_s(attempt, random.Random(0)) for attempt in (1, 2, 3, 99)]
    assert delays == [0.1, 0.2, 0.4, 60]


def test_retry_on_is_a_type_or_several_or_a_function() -> None:
    assert Retry(retry_on=OSError).wants_error(ConnectionError())
    assert not Retry(retry_on=OSError).wants_error(ValueError())
    assert Retry(retry_on=(OSError, ValueError)).wants_error(ValueError())
    assert Retry(retry_on=lambda error: "busy" in str(error)).wants_error(
        ValueError("busy")
    )


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([OSError(), ConnectionError()], True),
        ([OSError(), ValueError()], False),
        ([OSError(), ExceptionGroup("inner", [TimeoutError()])], True),
        ([OSError(), ExceptionGroup("inner", [ValueError()])], False),
        ([OSError(), RetryLater(retry_after=3)], True),
    ],
)
def test_a_group_is_retried_if_each_exception_in_it_is(
    errors: list[Exception], expected: bool
) -> None:
    group = ExceptionGroup("calls", errors)
    assert Retry(retry_on=OSError).wants_error(group) is expected
    assert Retry().wants_error(group)
    assert Retry(retry_on=ExceptionGroup).wants_error(group)
    # A function decides about the group.
    assert Retry(retry_on=lambda error: error is group).wants_error(group)


def test_a_group_with_a_stop_is_not_retried_for_other_failures() -> None:
    group = BaseExceptionGroup("calls", [OSError(), StopTask()])
    assert not Retry(retry_on=OSError).wants_error(group)


def test_of_a_group_the_longest_delay_counts() -> None:
    errors = [RetryLater(retry_after=2), OSError(), RetryLater(retry_after=5)]
    assert retry_after_s(ExceptionGroup("calls", errors), 0) == 5
    assert retry_after_s(ExceptionGroup("calls", [OSError()]), 0) is None


def test_retry_later_is_always_retried_and_stop_task_never() -> None:
    retry = Retry(retry_on=OSError)
    assert retry.wants_error(RetryLater(retry_after=3))
    assert not Retry().wants_error(StopTask())


def test_a_result_is_final_unless_retry_if_says_otherwise() -> None:
    assert not Retry().wants_result(None)
    retry = Retry(retry_if=lambda result: result is None)
    assert [retry.wants_result(result) for result in (None, "")] == [True, False]


@pytest.mark.parametrize(
    ("wrong", "parameter"),
    [
        ({"attempts": 0}, "attempts"),
        ({"attempts": True}, "attempts"),
        ({"initial": -1}, "initial"),
        ({"initial": 100_000}, "initial"),
        ({"multiplier": 0.5}, "multiplier"),
        ({"maximum": float("nan")}, "maximum"),
        ({"jitter": 2}, "jitter"),
        ({"retry_on": 429}, "retry_on"),
        ({"retry_on": (OSError, 429)}, "retry_on"),
        ({"retry_on": str}, "retry_on"),
        ({"retry_on": (OSError, str)}, "retry_on"),
        ({"retry_on": lambda: True}, "retry_on: .* cannot be called with an exception"),
        ({"retry_on": Awaited()}, "retry_on: .* is async"),
        ({"retry_if": 429}, "retry_if"),
        ({"retry_if": lambda: True}, "retry_if: .* cannot be called with a result"),
        ({"retry_if": Awaited()}, "retry_if: .* is async"),
        ({"retry_if": Awaited().__call__}, "retry_if: .* is async"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(
    wrong: dict[str, object], parameter: str
) -> None:
    with pytest.raises((InvalidArgumentError, WrongTypeError), match=parameter):
        Retry(**wrong)  # type: ignore[arg-type]
