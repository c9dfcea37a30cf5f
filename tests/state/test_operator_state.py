"""Laws of state without keys and of its redistribution."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aiomailbox.errors import StateError
from aiomailbox.state.descriptors import ListStateDescriptor, MapStateDescriptor
from aiomailbox.state.layers import Layer
from aiomailbox.state.operator_state import (
    OperatorStateEntry,
    OperatorStateSnapshot,
    OperatorStateStore,
    ReadOnlyBroadcastState,
    RedistributionMode,
    redistribute_operator_state,
)

SPLIT, UNION, BROADCAST, MERGE = RedistributionMode

RULES = MapStateDescriptor("rules", str)


def snapshot(**states: list[Any]) -> OperatorStateSnapshot:
    """Names that begin with u are union state, with x broadcast state."""
    modes = {"u": UNION, "x": BROADCAST}
    return OperatorStateSnapshot(
        {
            name: OperatorStateEntry(modes.get(name[0], SPLIT), elements)
            for name, elements in states.items()
        }
    )


def spread(old: list[Any], parallelism: int) -> list[dict[str, list[Any]]]:
    result = []
    for parts in redistribute_operator_state(old, parallelism):
        states: dict[str, list[Any]] = {}
        for _, name, entry in parts:
            states.setdefault(name, []).extend(entry.elements)
        result.append(states)
    return result


def test_the_next_state_starts_where_the_last_one_left_off() -> None:
    """SEM-135."""
    old = [snapshot(a=[1, 2, 3], b=[10]), snapshot(a=[4, 5], b=[11]), snapshot(b=[12])]
    assert spread(old, 2) == [
        {"a": [1, 2, 3], "b": [12]},
        {"a": [4, 5], "b": [10, 11]},
    ]


def test_extra_elements_of_small_states_do_not_pile_up() -> None:
    """SEM-136."""
    old = [snapshot(a=list(range(7)), b=[10, 11])]
    sizes = [{n: len(e) for n, e in states.items()} for states in spread(old, 3)]
    assert sizes == [{"a": 3}, {"a": 2, "b": 1}, {"a": 2, "b": 1}]


def test_shares_are_even() -> None:
    """SEM-137."""
    old = [snapshot(a=[value]) for value in (1, 2, 3, 4)]
    assert spread(old, 2) == [{"a": [1, 2]}, {"a": [3, 4]}]
    assert spread([snapshot(a=[1, 2])], 4) == [{"a": [1]}, {"a": [2]}, {}, {}]


def test_with_unchanged_parallelism_lists_stay_and_union_goes_to_all() -> None:
    """SEM-138."""
    old = [snapshot(a=[1, 2, 3], u=[7]), snapshot(a=[], u=[8])]
    assert spread(old, 2) == [{"a": [1, 2, 3], "u": [7, 8]}, {"a": [], "u": [7, 8]}]


def test_broadcast_state_is_handed_round() -> None:
    """SEM-139."""
    old = [snapshot(x=[("k", 0)]), snapshot(x=[("k", 1)])]
    assert [states["x"][0][1] for states in spread(old, 5)] == [0, 1, 0, 1, 0]


def test_one_name_in_two_modes_is_refused() -> None:
    other = OperatorStateSnapshot({"a": OperatorStateEntry(UNION, [])})
    with pytest.raises(StateError, match="'a'"):
        redistribute_operator_state([snapshot(a=[1]), other], 2)


@given(
    st.lists(
        st.none()
        | st.fixed_dictionaries(
            {}, optional={"a": st.lists(st.integers(), max_size=6)}
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 6),
)
def test_no_element_is_lost_or_doubled(
    old: list[dict[str, list[int]] | None], parallelism: int
) -> None:
    snapshots = [None if states is None else snapshot(**states) for states in old]
    before = [e for states in old if states for e in states.get("a", [])]
    after = [s.get("a", []) for s in spread(snapshots, parallelism)]
    assert Counter(e for elements in after for e in elements) == Counter(before)
    if len(old) != parallelism:
        assert [e for elements in after for e in elements] == before
        assert max(map(len, after)) - min(map(len, after)) <= 1


def test_a_snapshot_is_a_cut() -> None:
    store = OperatorStateStore()
    store.get_list_state(ListStateDescriptor("l")).add(1)
    rules = store.get_broadcast_state(MapStateDescriptor("b"))
    rules.put("k", 1)
    snapshot = store.snapshot()
    store.get_list_state(ListStateDescriptor("l")).add(2)
    rules.put("k", 2)
    restored = OperatorStateStore()
    restored.restore(
        [snapshot, OperatorStateSnapshot({"l": OperatorStateEntry(SPLIT, [5])})]
    )
    assert restored.get_list_state(ListStateDescriptor("l")).get() == [1, 5]
    view = ReadOnlyBroadcastState(restored.get_broadcast_state(MapStateDescriptor("b")))
    assert (view.get("k"), view.contains("x"), view.items()) == (1, False, [("k", 1)])
    with pytest.raises(StateError, match="read-only"):
        view.put("k", 2)


def test_a_name_belongs_to_one_mode() -> None:
    store = OperatorStateStore()
    store.get_list_state(ListStateDescriptor("l"))
    with pytest.raises(StateError, match="'l' is split state"):
        store.get_union_list_state(ListStateDescriptor("l"))


def test_a_broadcast_map_is_cut_at_once_and_settles_when_the_cut_is_gone() -> None:
    store = OperatorStateStore()
    rules = store.get_broadcast_state(RULES)
    for number in range(5000):
        rules.put(str(number), [number])
    layers = store._maps["rules"]
    below = layers.live
    snapshot: Any = store.snapshot().states["rules"].elements
    # Not copied: what was there is what is read.
    assert isinstance(layers.live, Layer)
    assert layers.live.base is below
    found: Any = rules.get("1")
    found.append("changed")
    rules.put("2", ["set"])
    rules.remove("3")
    rules.put("new", [])
    assert rules.get("1") == [1, "changed"]
    assert not rules.contains("3")
    assert len(snapshot) == 5000
    assert list(snapshot) == [(str(number), [number]) for number in range(5000)]
    del snapshot
    for _ in range(200):
        rules.contains("1")
    assert not layers.has_snapshot
    assert layers.live is below
    assert rules.get("1") == [1, "changed"]
    assert rules.get("2") == ["set"]
    assert not rules.contains("3")
    assert rules.get("new") == []


def test_cuts_of_a_broadcast_map_outlive_clearing_and_each_other() -> None:
    store = OperatorStateStore()
    rules = store.get_broadcast_state(RULES)
    snapshots = []
    for number in range(20):
        rules.put(str(number), number)
        snapshots.append(store.snapshot())
    rules.clear()
    assert rules.is_empty()
    assert rules.items() == []
    rules.put("after", 1)
    for number, snapshot in enumerate(snapshots):
        expected = [(str(each), each) for each in range(number + 1)]
        assert sorted(snapshot.elements("rules")) == sorted(expected)
    restored = OperatorStateStore()
    restored.restore(snapshots[:3])
    found = restored.get_broadcast_state(RULES)
    assert sorted(found.items()) == [("0", 0), ("1", 1), ("2", 2)]
    assert rules.items() == [("after", 1)]


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("get_list", "write context.operator_state.get_list_state(descriptor)"),
        ("get_value", "without keys, state is a list or a map"),
        ("getUnionListState", "write context.operator_state.get_union_list_state"),
    ],
)
def test_a_name_of_keyed_state_says_what_to_write(name: str, written: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(written)):
        getattr(OperatorStateStore(), name)
