"""Sharing of spare segments."""

from __future__ import annotations

from hypothesis import given, strategies as st

from aiomailbox.memory.local_pool import Demand, redistribute

DEMANDS = st.lists(
    st.builds(
        lambda required, headroom: Demand(
            required, None if headroom is None else required + headroom
        ),
        st.integers(1, 50),
        st.none() | st.integers(1, 50),
    ),
    max_size=8,
)


@given(st.integers(0, 500), DEMANDS)
def test_each_size_is_within_its_demand_and_nothing_is_lost(
    spare: int, demands: list[Demand]
) -> None:
    sizes = redistribute(spare, demands)
    for size, demand in zip(sizes, demands, strict=True):
        assert demand.required <= size
        assert demand.maximum is None or size <= demand.maximum
    given_out = sum(sizes) - sum(demand.required for demand in demands)
    wished = sum(
        spare if d.maximum is None else min(spare, d.maximum - d.required)
        for d in demands
    )
    assert given_out == min(spare, wished)


@given(st.integers(0, 100), DEMANDS)
def test_more_spare_segments_never_make_all_pools_together_smaller(
    spare: int, demands: list[Demand]
) -> None:
    assert sum(redistribute(spare, demands)) <= sum(redistribute(spare + 1, demands))


def test_shares_follow_headroom() -> None:
    """NET-47."""
    demands = [Demand(5, 12), Demand(9, 24), Demand(17, 40)]
    assert redistribute(25, demands) == [8, 18, 30]


def test_equal_pools_share_equally_and_the_last_gets_the_remainder() -> None:
    assert redistribute(5, [Demand(1, None), Demand(1, None)]) == [3, 4]


def test_without_spare_segments_everyone_has_what_is_required() -> None:
    assert redistribute(0, [Demand(2, 9), Demand(3, None)]) == [2, 3]
    assert redistribute(7, []) == []
