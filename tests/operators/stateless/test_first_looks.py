"""The look at the first results of a function steps aside: later nothing is in between."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from aiomailbox.operators.core import watched
from aiomailbox.operators.stateless.fused import StageKind
from aiomailbox.operators.stateless.operators import stateless
from aiomailbox.testing import OneInputHarness

CALLERS: list[str] = []


def noting(number: int) -> int:
    CALLERS.append(sys._getframe(1).f_code.co_filename)
    return number


def yielding(number: int) -> Iterator[int]:
    CALLERS.append(sys._getframe(1).f_code.co_filename)
    yield number


def noting_nothing(number: int) -> list[int]:
    CALLERS.append(sys._getframe(1).f_code.co_filename)
    return []


@pytest.mark.parametrize(
    ("kind", "function", "count"),
    [
        (StageKind.MAP, noting, 20),
        (StageKind.FILTER, noting, 300),
        (StageKind.FLAT_MAP, noting_nothing, 5000),
    ],
)
def test_a_function_is_called_by_the_loop_alone_once_its_first_results_were_looked_at(
    kind: StageKind, function: Callable[[int], Any], count: int
) -> None:
    CALLERS.clear()
    with OneInputHarness(stateless(kind, function)) as harness:
        for number in range(count):
            harness.process_element(number)
        assert CALLERS[0] == watched.__file__
        assert CALLERS[-1].startswith("<aiomailbox fused")


def test_items_of_a_generator_are_yielded_by_it_alone_once_the_first_were_looked_at() -> (
    None
):
    CALLERS.clear()
    with OneInputHarness(stateless(StageKind.FLAT_MAP, yielding)) as harness:
        for number in range(40):
            harness.process_element(number)
        assert harness.values == list(range(40))
    assert CALLERS[0] == watched.__file__
    assert CALLERS[-1].startswith("<aiomailbox fused")
