"""State of process functions that belongs to no key: cut, restored, spread anew."""

from __future__ import annotations

from typing import Any

from aiomailbox.operators.functions.process import (
    KeyedProcessFunction,
    KeyedProcessOperator,
    ProcessFunction,
    ProcessOperator,
)
from aiomailbox.state.descriptors import ListStateDescriptor
from aiomailbox.state.operator_state import (
    RedistributionMode,
    redistribute_operator_state,
)
from aiomailbox.testing import OneInputHarness


class Numbered(ProcessFunction):
    """Remembers all values; emits how many there are."""

    def open(self, context: Any) -> None:
        store = context.operator_state
        self.values = store.get_list_state(ListStateDescriptor("values", str))
        self.everywhere = store.get_union_list_state(ListStateDescriptor("all"))

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        self.values.add(value)
        self.everywhere.add(value)
        out.collect(len(self.values.get()))


class KeyedNumbered(KeyedProcessFunction):
    open = Numbered.open
    process_element = Numbered.process_element


def test_operator_state_goes_on_after_a_restore() -> None:
    for make in (
        lambda: ProcessOperator(Numbered()),
        lambda: KeyedProcessOperator(str.lower, KeyedNumbered()),
    ):
        with OneInputHarness(make, keyed=True) as before:
            before.process_run(["a", "b"])
            cut = before.snapshot()
            before.process_run(["c"])
        after = OneInputHarness(make, keyed=True)
        after.restore(cut)
        with after:
            after.process_run(["d"])
            assert after.values == [3]


def test_operator_state_is_spread_over_more_subtasks() -> None:
    with OneInputHarness(lambda: ProcessOperator(Numbered())) as before:
        before.process_run(["a", "b", "c"])
        cut = before.snapshot()
    parts = redistribute_operator_state([cut.operator], 2)
    shares = [
        [entry.elements for _, name, entry in part if name == "values"]
        for part in parts
    ]
    assert shares == [[["a", "b"]], [["c"]]]
    union = [e for _, _, e in parts[1] if e.mode is RedistributionMode.UNION]
    assert [entry.elements for entry in union] == [["a", "b", "c"]]


def test_an_operator_without_state_has_nothing_to_keep() -> None:
    class Through(ProcessFunction):
        def process_element(self, value: Any, context: Any, out: Any) -> None:
            out.collect(value)

    with OneInputHarness(lambda: ProcessOperator(Through())) as harness:
        harness.process_run([1])
        assert harness.snapshot().is_empty
