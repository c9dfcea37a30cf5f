"""What functions that go to workers change outside of themselves is named, also in place."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.runtime.declared import changed_variables

SEEN: list[int] = []
LAST: deque[int] = deque(maxlen=3)
COUNTS: dict[int, int] = {1: 0}
CACHE: dict[int, int] = {}
LIMITS = [3]


class Total:
    value = 0


def appends(value: int) -> int:
    SEEN.append(value)
    return value


def appends_inside(value: int) -> list[None]:
    return [LAST.append(one) for one in range(value)]


def counts(value: int) -> int:
    COUNTS[value] += 1
    return value


def counts_in_a_class(value: int) -> int:
    Total.value += value
    return value


def around_an_object() -> Callable[[int], int]:
    total = Total()

    def add(value: int) -> int:
        total.value += value
        return value

    return add


def caches(value: int) -> int:
    if value not in CACHE:
        CACHE[value] = value * 2
    return CACHE[value] + LIMITS[0] + Total.value


def appends_to_its_own(value: int) -> list[int]:
    seen = []
    seen.append(value)
    return seen


def changed_by(function: Callable[[int], Any]) -> list[str]:
    env = am.StreamExecutionEnvironment().configure(deployment=am.Processes(1))
    stream = env.from_collection([1]).rebalance().map(function).name("one")
    stream.sink_to(lambda _: None)
    graph = env._definition.job_graph("job", env._definition.sinks)
    return [one.variable for one in changed_variables(graph)]


@pytest.mark.parametrize(
    ("function", "variable"),
    [
        (appends, "global SEEN"),
        (appends_inside, "global LAST"),
        (counts, "global COUNTS"),
        (counts_in_a_class, "global Total"),
        (around_an_object(), "nonlocal total"),
    ],
)
def test_what_a_function_changes_in_place_is_named(
    function: Callable[[int], Any], variable: str
) -> None:
    assert changed_by(function) == [variable]


@pytest.mark.parametrize("function", [caches, appends_to_its_own])
def test_a_cache_and_what_a_function_has_itself_are_not_named(
    function: Callable[[int], Any],
) -> None:
    assert changed_by(function) == []
