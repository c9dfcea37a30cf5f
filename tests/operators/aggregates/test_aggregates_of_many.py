"""top_n and quantile: merged or not, they say what sorting says."""

from __future__ import annotations

import pickle
import sys

import pytest
from hypothesis import given, strategies as st

from aiomailbox.errors import InvalidArgumentError, MissingExtraError, UsageError
from aiomailbox.operators.aggregates.ordered import quantile, top_n

ROWS = st.lists(st.tuples(st.none() | st.integers(0, 5), st.integers()))
NUMBERS = st.floats(-1e9, 1e9).filter(lambda x: x == 0 or abs(x) > 1e-9)


def rank(row: tuple[int | None, int]) -> int | None:
    return row[0]


def filled(aggregate, values):
    accumulator = aggregate.create_accumulator()
    for value in values:
        accumulator = aggregate.add(value, accumulator)
    return accumulator


@given(rows=ROWS, n=st.integers(1, 4), cut=st.integers(0, 20))
def test_top_n_is_the_beginning_of_what_is_sorted_also_merged(rows, n, cut) -> None:
    best = top_n(n, by=rank)
    ranked = [row for row in rows if row[0] is not None]
    expected = sorted(ranked, key=rank, reverse=True)[:n]
    assert best.get_result(filled(best, rows)) == expected
    merged = best.merge(filled(best, rows[:cut]), filled(best, rows[cut:]))
    assert best.get_result(merged) == expected


def test_top_n_of_less_than_one_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="n"):
        top_n(0, by=rank)


@given(numbers=st.lists(NUMBERS, min_size=1), q=st.floats(0, 1), cut=st.integers(0, 20))
def test_a_quantile_is_as_accurate_as_it_says_also_merged(numbers, q, cut) -> None:
    estimate = quantile(q, float, accuracy=0.02)
    merged = estimate.merge(
        filled(estimate, numbers[:cut]), filled(estimate, numbers[cut:])
    )
    assert merged == filled(estimate, numbers)
    found = estimate.get_result(merged)
    place = q * (len(numbers) - 1)
    near = sorted(numbers)[int(place) : int(place) + 2]
    assert any(abs(found - one) <= 0.02 * abs(one) * 1.000001 for one in near)


def test_a_quantile_of_nothing_is_none_and_it_can_be_pickled() -> None:
    median = pickle.loads(pickle.dumps(quantile(0.5, "size")))
    assert median.get_result(median.create_accumulator()) is None
    rows = [{"size": None}, {"size": 0}, {"size": 0}]
    assert median.get_result(filled(median, rows)) == 0


def test_without_the_library_the_extra_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ddsketch.mapping", None)
    with pytest.raises(MissingExtraError, match="sketch"):
        quantile(0.5, float)


@pytest.mark.parametrize("wrong", [{"q": 2}, {"accuracy": 0}, {"accuracy": 1}])
def test_numbers_out_of_range_are_refused(wrong) -> None:
    with pytest.raises(UsageError):
        quantile(**{"q": 0.5, "field": float} | wrong)
