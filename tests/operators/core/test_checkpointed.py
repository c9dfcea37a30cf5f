"""Functions that keep state without keys by hand are asked before each cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.errors import UserFunctionError, WrongTypeError
from aiomailbox.keygroups.assignment import key_group
from aiomailbox.operators.core.operator import Operator
from aiomailbox.operators.core.resources import CheckpointedFunction
from aiomailbox.operators.functions.process import (
    BroadcastProcessFunction,
    BroadcastProcessOperator,
    CoProcessFunction,
    CoProcessOperator,
    KeyedCoProcessFunction,
    KeyedCoProcessOperator,
    KeyedProcessFunction,
    KeyedProcessOperator,
    ProcessFunction,
    ProcessOperator,
)
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from aiomailbox.testing import OneInputHarness, OperatorHarness, redistributed
from aiomailbox.windowing.assigners import TumblingEventTimeWindows
from aiomailbox.windowing.build import window_operator
from aiomailbox.windowing.functions import ProcessWindowFunction

RULES = MapStateDescriptor("rules", str, int)


class Hooks:
    """Holds values in a list of its own, and hands it over when it is asked."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.held: list[Any] = []

    def initialize_state(self, context: Any) -> None:
        self.calls.append("restored" if context.is_restored else "new")
        store = context.operator_state
        self.split = store.get_list_state(ListStateDescriptor("split"))
        self.union = store.get_union_list_state(ListStateDescriptor("union"))
        self.copies = store.get_broadcast_state(RULES)
        self.held = list(self.split.get())
        self.place = (context.subtask_index, context.parallelism)

    def open(self, context: Any) -> None:
        self.calls.append("open")

    def snapshot_state(self, context: Any) -> None:
        self.calls.append("snapshot")
        self.split.update(self.held)
        self.union.update([len(self.held)])
        self.copies.put("all", len(self.held))

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        self.held.append(value)


class Plain(Hooks, ProcessFunction):
    pass


class Keyed(Hooks, KeyedProcessFunction):
    """Keeps one more thing that has a key."""

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        super().process_element(value, context, out)
        seen = context.keyed_state.get_value(
            ValueStateDescriptor("seen", int, default=0)
        )
        seen.update(seen.value() + 1)
        out.collect((value, seen.value()))


class Two(Hooks, CoProcessFunction):
    process_element1 = Hooks.process_element


class KeyedTwo(Hooks, KeyedCoProcessFunction):
    process_element1 = Hooks.process_element


class Ruled(Hooks, BroadcastProcessFunction):
    def process_broadcast_element(self, value: Any, context: Any, out: Any) -> None:
        """Do nothing."""


class Window(Hooks, ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any, out: Any) -> None:
        self.held += elements


def same(value: Any) -> Any:
    return value


OPERATORS: dict[str, Callable[[], tuple[Any, Operator]]] = {
    "plain": lambda: (f := Plain(), ProcessOperator(f)),
    "keyed": lambda: (f := Keyed(), KeyedProcessOperator(same, f)),
    "two": lambda: (f := Two(), CoProcessOperator(f)),
    "keyed two": lambda: (f := KeyedTwo(), KeyedCoProcessOperator(same, same, f)),
    "broadcast": lambda: (
        f := Ruled(),
        BroadcastProcessOperator(f, [MapStateDescriptor("other")]),
    ),
    "window": lambda: (
        f := Window(),
        window_operator(
            same, TumblingEventTimeWindows.of(am.seconds(1)), window_function=f
        ),
    ),
}


def feed(harness: OperatorHarness, values: Sequence[str]) -> None:
    harness.inputs[0].process_run(values, [0] * len(values))
    for each in harness.inputs:
        each.process_watermark(1_000)


@pytest.mark.parametrize("make", OPERATORS.values(), ids=OPERATORS)
def test_a_function_fills_its_state_before_the_cut(
    make: Callable[[], tuple[Any, Operator]],
) -> None:
    function, operator = make()
    with OperatorHarness(operator, keyed=True) as harness:
        feed(harness, ["a", "a", "a"])
        cut = harness.snapshot()
    assert function.calls == ["new", "open", "snapshot"]
    function, operator = make()
    after = OperatorHarness(operator, keyed=True)
    after.restore(cut)
    with after:
        assert function.calls == ["restored", "open"]
        assert function.held == ["a", "a", "a"]


@pytest.mark.parametrize("make", [Plain, Keyed])
@pytest.mark.parametrize(
    ("parallelism", "shares"),
    [
        (1, [["a", "b", "c", "d", "e"]]),
        (2, [["a", "b", "c"], ["d", "e"]]),
        # Who stays as many as before is not given even shares.
        (3, [["a", "b"], [], ["c", "d", "e"]]),
        (4, [["a", "b"], ["c"], ["d"], ["e"]]),
        (6, [["a"], ["b"], ["c"], ["d"], ["e"], []]),
    ],
)
def test_a_function_goes_on_with_another_parallelism(
    make: Callable[[], Any], parallelism: int, shares: list[list[str]]
) -> None:
    cuts = [cut_of(make(), index, values) for index, values in enumerate(HELD)]
    found = []
    for index, pieces in enumerate(redistributed(cuts, parallelism)):
        function = make()
        harness = harness_of(function, parallelism, index)
        harness.restore(pieces)
        with harness:
            found.append(function.held)
            assert sorted(function.union.get()) == [0, 2, 3]
            assert function.copies.get("all") in {0, 2, 3}
            assert function.calls == ["restored", "open"]
            assert function.place == (index, parallelism)
    assert found == shares


# What the three subtasks before hold.
HELD = [["a", "b"], [], ["c", "d", "e"]]


def harness_of(function: Any, parallelism: int, index: int) -> OneInputHarness:
    operator = (
        KeyedProcessOperator(same, function)
        if isinstance(function, Keyed)
        else ProcessOperator(function)
    )
    settings: dict[str, Any] = {"parallelism": parallelism, "subtask_index": index}
    return OneInputHarness(operator, keyed=isinstance(function, Keyed), **settings)


def cut_of(function: Any, index: int, values: list[str]) -> OperatorSnapshot:
    with harness_of(function, len(HELD), index) as harness:
        function.held = list(values)
        return harness.snapshot()


def test_keyed_state_goes_where_the_keys_are() -> None:
    with harness_of(Keyed(), 1, 0) as harness:
        harness.process_run(["a", "b", "c", "d"])
        cut = harness.snapshot()
    seen = {}
    for index, pieces in enumerate(redistributed([cut], 2)):
        harness = harness_of(Keyed(), 2, index)
        harness.restore(pieces)
        with harness:
            key_range = harness.context.key_group_range.key_groups
            mine = [key for key in "abcd" if key_group(key, 128) in key_range]
            harness.process_run(mine)
            seen |= dict(harness.values)
    assert seen == dict.fromkeys("abcd", 2)


def test_a_function_with_both_methods_is_a_checkpointed_function() -> None:
    assert isinstance(Plain(), CheckpointedFunction)
    assert not isinstance(ProcessFunction(), CheckpointedFunction)


def test_one_hook_without_the_other_is_refused() -> None:
    class Half(ProcessFunction):
        def snapshot_state(self, context: Any) -> None:
            """Keep nothing."""

        def process_element(self, value: Any, context: Any, out: Any) -> None:
            """Do nothing."""

    with pytest.raises(WrongTypeError, match="Half has snapshot_state and no init"):
        am.StreamExecutionEnvironment().from_collection([1]).process(Half())


def test_an_async_hook_is_refused() -> None:
    class Waiting(Plain):
        async def snapshot_state(self, context: Any) -> None:  # type: ignore[override]
            """Wait."""

    with pytest.raises(WrongTypeError, match=r"snapshot_state .*async"):
        ProcessOperator(Waiting())


def test_a_hook_that_raises_names_operator_and_line() -> None:
    class Broken(Plain):
        def snapshot_state(self, context: Any) -> None:
            raise ValueError("no room")

    harness = OneInputHarness(ProcessOperator(Broken()), operator_name="keep")
    message = r"'keep'.*test_checkpointed.*room"
    with harness, pytest.raises(UserFunctionError, match=message):
        harness.snapshot()
