"""Tools of tests that are used in another way than they are meant say so."""

from __future__ import annotations

from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.errors import IllegalStateError, UsageError
from aiomailbox.operators.stateless.operators import MapOperator
from aiomailbox.testing import OneInputHarness, simulate


def test_a_harness_that_is_not_open_says_how_it_is_opened():
    harness = OneInputHarness(MapOperator(str.upper))
    with pytest.raises(IllegalStateError, match="`with harness:`"):
        harness.process_element("a")
    with harness:
        harness.process_element("a")
    assert harness.values == ["A"]


def test_a_simulation_whose_sink_is_not_used_is_refused():
    def pipeline(env: Any, sink: Any) -> None:
        env.from_collection([1]).sink_to(print)

    with pytest.raises(UsageError, match=r"write stream\.sink_to\(sink\)"):
        simulate(pipeline, seeds=[1])


def test_a_simulation_that_compares_nothing_is_told(caplog):
    def pipeline(env: Any, sink: Any) -> None:
        env.from_collection([1]).filter(lambda number: number > 1).sink_to(sink)

    simulate(pipeline, seeds=[1])
    assert "a simulation compares nothing" in caplog.text


@pytest.mark.parametrize(
    ("seeds", "told"), [(5, r"range\(5\)"), ([], "nothing is tried")]
)
def test_a_simulation_without_seeds_is_refused(seeds, told):
    with pytest.raises((am.WrongTypeError, am.InvalidArgumentError), match=told):
        simulate(lambda env, sink: None, seeds=seeds)
