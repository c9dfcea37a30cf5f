"""Sources that were written at run time are kept by their text, and not for ever."""

from __future__ import annotations

import linecache
import traceback

import pytest

import aiomailbox as am
from aiomailbox.operators.core.user_code import SOURCES_MAX, compiled
from aiomailbox.operators.stateless.fused import (
    LoopShape,
    StageKind,
    compile_loop,
)
from aiomailbox.operators.stateless.operators import MapOperator
from aiomailbox.testing import OneInputHarness


def generated() -> set[str]:
    return {name for name in linecache.cache if name.startswith("<aiomailbox")}


def use(aggregate: am.Aggregate) -> None:
    held = aggregate.add({"n": 1}, aggregate.create_accumulator())
    assert aggregate.get_result(held) is not None


def test_an_aggregate_that_is_made_again_leaves_nothing_behind() -> None:
    use(am.aggregates(n=am.count(), total=am.sum_("n")))
    before = generated()
    for _ in range(50):
        use(am.aggregates(n=am.count(), total=am.sum_("n")))
    assert generated() == before


def test_many_different_sources_are_forgotten_in_turn() -> None:
    names = set()
    for number in range(SOURCES_MAX + 20):
        names.add(compiled("test", f"number = {number}").co_filename)
    assert len(names) == SOURCES_MAX + 20
    assert len(generated()) <= SOURCES_MAX
    assert compiled("test", "number = 0").co_filename in generated()


def test_a_loop_is_compiled_once_for_its_shape() -> None:
    shape = LoopShape((StageKind.MAP, StageKind.FILTER), timed=True, checked=False)
    compile_loop(shape)
    before = generated()
    compile_loop(shape)
    assert generated() == before


def test_tracebacks_show_the_lines_of_generated_functions() -> None:
    total = am.sum_("n")
    with pytest.raises(TypeError) as caught:
        held = total.add({"n": 1}, total.create_accumulator())
        total.add({"n": "a"}, held)
    assert "n0 + v0" in "".join(traceback.format_exception(caught.value))
    with (
        pytest.raises(am.UserFunctionError) as failed,
        OneInputHarness(MapOperator(lambda n: 1 // n)) as harness,
    ):
        harness.process_element(0)
    assert "v1 = f0(v0)" in "".join(traceback.format_exception(failed.value))
