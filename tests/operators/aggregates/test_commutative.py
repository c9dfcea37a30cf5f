"""A promise is found where it was given, and nowhere else."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from aiomailbox.errors import WrongTypeError
from aiomailbox.operators.aggregates.functions import (
    Aggregate,
    aggregates,
    collect_list,
    commutative,
    count,
    is_commutative,
    max_,
    mean,
    min_,
    sum_,
)
from aiomailbox.operators.aggregates.ordered import quantile, top_n


class Last:
    """Keeps the last record: the order matters."""

    def create_accumulator(self) -> Any:
        return None

    def add(self, value: Any, accumulator: Any) -> Any:
        return value

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, first: Any, second: Any) -> Any:
        return second


@commutative
class Anything(Last):
    """Says that the order does not matter."""


@pytest.mark.parametrize(
    "aggregate",
    [
        count(),
        count(where=bool),
        sum_(int),
        mean(int),
        min_(int),
        max_(int),
        quantile(0.5, float),
        Anything(),
        aggregates(n=count(), total=sum_(int), any=Anything(), most=max_(int)),
    ],
)
def test_ready_made_aggregates_and_those_that_say_so_are_commutative(
    aggregate: Any,
) -> None:
    assert is_commutative(aggregate)


@pytest.mark.parametrize(
    "aggregate",
    [
        collect_list(),
        top_n(2, by=len),
        Last(),
        aggregates(n=count(), all=collect_list()),
        aggregates(n=count(), last=Last()),
        max,
        lambda one, two: two,
    ],
)
def test_an_order_that_may_matter_is_kept(aggregate: Any) -> None:
    assert not is_commutative(aggregate)


def test_a_copy_of_an_aggregate_is_as_commutative_as_it() -> None:
    for aggregate in (count(), collect_list()):
        make, arguments = aggregate.__reduce__()
        copy = make(*arguments)
        assert isinstance(copy, Aggregate)
        assert copy.is_commutative is aggregate.is_commutative


def test_what_cannot_be_marked_is_wrapped_and_is_not_changed() -> None:
    def larger(one: int, two: int) -> int:
        return max(one, two)

    assert commutative(larger) is larger
    assert is_commutative(larger)
    largest = commutative(max)
    assert isinstance(largest, functools.partial)
    assert largest(1, 2) == 2
    assert not is_commutative(max)


def test_only_what_can_be_called_can_be_commutative() -> None:
    with pytest.raises(WrongTypeError, match="neither a function nor a class"):
        commutative(3)  # type: ignore[type-var]
