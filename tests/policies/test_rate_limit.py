"""Laws of rate limits."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from aiomailbox.errors import InvalidArgumentError, WrongTypeError
from aiomailbox.policies.rate_limit import RateLimit, RateWindow


def busiest(uses: list[tuple[float, float]], per_s: float) -> float:
    """Return the most that any closed window of ``per_s`` holds."""
    return max(
        (
            sum(weight for at, weight in uses if start <= at <= start + per_s)
            for start, _ in uses
        ),
        default=0,
    )


def use_all(
    limit: RateLimit, wishes: list[tuple[float, float]]
) -> list[tuple[float, float]]:
    """Use units one after the other, each as early as possible after a gap."""
    window, now_s, uses = RateWindow(limit), 0.0, []
    for gap_s, weight in wishes:
        now_s += gap_s
        while (delay_s := window.delay_s(weight, now_s)) > 0:
            now_s += delay_s
        window.reserve(weight, now_s)
        window.use(weight, now_s)
        uses.append((now_s, weight))
    return uses


@given(
    count=st.integers(1, 20),
    per=st.sampled_from([0.1, 1.0, 60.0]),
    burst=st.none() | st.integers(1, 20),
    wishes=st.lists(
        st.tuples(st.floats(0, 2), st.floats(0, 20) | st.integers(0, 20)), max_size=60
    ),
)
def test_no_window_ever_holds_more_than_the_count(
    count: int,
    per: float,
    burst: int | None,
    wishes: list[tuple[float, float]],
) -> None:
    limit = RateLimit(
        count, per=per, burst=None if burst is None else min(burst, count)
    )
    scaled = [(gap * per, min(weight, count)) for gap, weight in wishes]
    assert busiest(use_all(limit, scaled), per) <= count * (1 + 1e-6)


def test_uses_remembered_as_one_count_from_the_last_of_them() -> None:
    uses = use_all(RateLimit(2, per=1.0), [(0.0, 1), (0.0009, 1), (0.0, 1), (0.0, 1)])
    assert busiest(uses, 1.0) <= 2


def test_all_units_of_a_window_may_be_used_at_once_and_again_after_it() -> None:
    uses = use_all(RateLimit(3, per=1.0), [(0.0, 1)] * 9)
    assert [round(at, 3) for at, _ in uses] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_a_burst_spreads_the_units_evenly() -> None:
    uses = use_all(RateLimit(4, per=1.0, burst=1), [(0.0, 1)] * 6)
    assert [round(at, 3) for at, _ in uses] == [0, 0.25, 0.5, 0.75, 1.0, 1.25]


def test_the_long_run_rate_is_the_limit_for_uses_at_any_distance() -> None:
    uses = use_all(RateLimit(1000, per=1.0), [(0.0003, 1)] * 10_000)
    assert 9.0 <= uses[-1][0] <= 9.5


def test_memory_is_bounded_however_many_uses_a_window_has() -> None:
    window = RateWindow(RateLimit(1_000_000, per=1.0))
    for index in range(50_000):
        window.reserve(1, index / 50_000)
        window.use(1, index / 50_000)
    assert len(window._uses) <= 1025


def test_reserved_units_are_missing_until_they_are_released() -> None:
    window = RateWindow(RateLimit(2))
    window.reserve(2, 0.0)
    assert window.delay_s(1, 0.0) == float("inf")
    window.release(2)
    assert window.delay_s(2, 0.0) == 0


def test_a_release_gives_an_even_pace_back() -> None:
    window = RateWindow(RateLimit(10, per=1.0, burst=1))
    window.reserve(1, 0.0)
    window.release(1)
    assert window.delay_s(1, 0.0) == 0


def test_a_pause_holds_everything_back_and_is_never_shortened() -> None:
    window = RateWindow(RateLimit(2))
    window.pause(until_s=5.0)
    window.pause(until_s=1.0)
    assert window.delay_s(1, 2.0) == 3.0


@pytest.mark.parametrize(
    ("wrong", "parameter"),
    [
        ({"count": 0}, "count"),
        ({"count": "many"}, "count"),
        ({"count": 1, "per": 0}, "per"),
        ({"count": 1, "per": -1}, "per"),
        ({"count": 1, "name": ""}, "name"),
        ({"count": 1, "name": 1}, "name"),
        ({"count": 1, "burst": 2}, "burst"),
        ({"count": 1, "burst": 0}, "burst"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(
    wrong: dict[str, object], parameter: str
) -> None:
    with pytest.raises((InvalidArgumentError, WrongTypeError), match=parameter):
        RateLimit(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("weight", [-1, 11, float("nan"), float("inf")])
def test_a_weight_that_can_never_be_granted_is_refused(weight: float) -> None:
    with pytest.raises(InvalidArgumentError, match="weight"):
        RateLimit(10).check_weight(weight)
