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


class Exact:
    """What a limit in any second allows, told by each single use of it."""

    def __init__(self, limit: RateLimit) -> None:
        self.count = limit.count
        self.burst = limit.burst
        self.uses: list[tuple[float, float]] = []
        self.reserved = self.total = 0.0
        self.paused_s = self.even_s = 0.0

    def used(self, now_s: float, lag_s: float = 0.0) -> float:
        return sum(weight for at, weight in self.uses if at + 1.0 + lag_s > now_s)

    def delay_s(self, weight: float, now_s: float) -> float:
        times = sorted([now_s, *(at + 1.0 for at, _ in self.uses if at + 1.0 > now_s)])
        room = self.count - self.reserved - weight + 1e-9
        free_s = [time for time in times if self.used(time) <= room]
        at_s = max(min(free_s, default=float("inf")), self.paused_s)
        if self.burst is not None:
            ahead = max(self.burst - weight, 0.0)
            at_s = max(at_s, self.even_s - ahead / self.count)
        return at_s - now_s

    def reserve(self, weight: float, now_s: float) -> None:
        self.reserved += weight
        self.even_s = max(self.even_s, now_s) + weight / self.count

    def use(self, weight: float, now_s: float) -> None:
        self.reserved -= weight
        self.total += weight
        self.uses.append((now_s, weight))


# More than what is remembered as one, and less than a thing that anybody waits for.
STEP_S = 1.5 / 1024
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["use", "use", "hold", "release", "pause", "go on"]),
        st.sampled_from([0.0, 0.0004, 0.3, 0.9999, 1.0001]) | st.floats(0, 2),
        st.sampled_from([0.25, 1, 2.5, 4]),
    ),
    max_size=40,
)


@given(
    count=st.sampled_from([4, 5.5]),
    burst=st.sampled_from([None, 0.5, 2]),
    steps=STEPS,
)
def test_a_window_is_what_single_uses_make_it_also_after_a_restore(
    count: float, burst: float | None, steps: list[tuple[str, float, float]]
) -> None:
    """Up to a thousandth, by which it may be late; the clock may be another one."""
    limit = RateLimit(count, burst=burst)
    window, exact, now_s, ahead_s = RateWindow(limit), Exact(limit), 0.0, 0.0
    held: list[float] = []
    for step, gap_s, weight in steps:
        now_s += gap_s
        clock_s = now_s + ahead_s
        delay_s, least_s = window.delay_s(weight, clock_s), exact.delay_s(weight, now_s)
        assert delay_s == least_s or -1e-6 <= delay_s - least_s <= STEP_S
        free = window.free(clock_s)
        if exact.paused_s - now_s > 1e-6:
            assert free == 0
        elif now_s - exact.paused_s > 1e-6:
            room = count - exact.reserved
            least, most = room - exact.used(now_s, STEP_S), room - exact.used(now_s)
            assert max(least, 0) - 1e-6 <= free <= max(most, 0) + 1e-6
        if step == "use" and delay_s < 3:
            now_s += delay_s
            for one in (window, exact):
                at_s = now_s + ahead_s * (one is window)
                one.reserve(weight, at_s)
                one.use(weight, at_s)
        elif step == "hold" and delay_s == 0:
            held.append(weight)
            window.reserve(weight, clock_s)
            exact.reserve(weight, now_s)
        elif step == "release" and held:
            weight = held.pop()
            window.release(weight)
            exact.reserved -= weight
            exact.even_s -= weight / count
        elif step == "pause":
            window.pause(clock_s + gap_s)
            exact.paused_s = max(exact.paused_s, now_s + gap_s)
        elif step == "go on":
            usage = window.snapshot(clock_s)
            # Nobody knows whether what was held was used.
            exact.use(exact.reserved, now_s)
            held.clear()
            now_s += gap_s
            ahead_s = 1000.0 - ahead_s
            window = RateWindow(limit)
            window.restore(usage, now_s + ahead_s, elapsed_s=gap_s)
        assert window.total == pytest.approx(exact.total)
        assert window.committed == pytest.approx(exact.total + exact.reserved)


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


def test_limits_bursts_and_weights_may_be_fractions() -> None:
    limit = RateLimit(0.5, burst=0.25, budget=0.75)
    limit.check_weight(0.25)
    assert [round(at, 3) for at, _ in use_all(limit, [(0, 0.25)] * 3)] == [0, 0.5, 1]


@pytest.mark.parametrize(
    ("limit", "label", "title", "text"),
    [
        (RateLimit(5), "the limit", "", "limit: 5 units in 1 s"),
        (
            RateLimit(5, per=60, burst=0.5, per_task=True, unit="USD"),
            "the limit",
            "(USD)",
            "limit: 5 USD in 1 min, 0.5 at once, for each task",
        ),
        (
            RateLimit(5, name="api", budget=9),
            "limit 'api'",
            "api",
            "limit 'api': 5 units in 1 s, 9 in all",
        ),
    ],
)
def test_a_limit_says_what_it_is(
    limit: RateLimit, label: str, title: str, text: str
) -> None:
    assert (limit.label, limit.title, str(limit)) == (label, title, text)


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
        ({"count": 1, "budget": 0}, "budget"),
        ({"count": 1, "unit": ""}, "unit"),
        ({"count": 1, "unit": 1}, "unit"),
        ({"count": 1, "on_refusal": "none"}, "on_refusal"),
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
