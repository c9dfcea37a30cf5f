"""A snapshot is a cut: nothing that happens after it changes it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from aiomailbox.durations import seconds
from aiomailbox.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from aiomailbox.state.operator_state import OperatorStateStore


@dataclass
class Cart:
    """An object of the user's, who changes it in place."""

    items: list[Any] = field(default_factory=list)


class Carts:
    """An aggregate that changes its accumulator in place."""

    def create_accumulator(self) -> Cart:
        return Cart()

    def add(self, value: int, accumulator: Cart) -> Cart:
        accumulator.items.append([value])
        return accumulator

    def get_result(self, accumulator: Cart) -> Cart:
        return accumulator

    def merge(self, first: Cart, second: Cart) -> Cart:
        first.items.extend(second.items)
        return first


def joined(first: Cart, second: Cart) -> Cart:
    first.items.extend(second.items)
    return first


TTL = StateTtlConfig(ttl=seconds(3600))
VALUE = ValueStateDescriptor("value", default=[])
OBJECT = ValueStateDescriptor("object", default=Cart())
LIST = ListStateDescriptor("list")
MAP = MapStateDescriptor("map")
REDUCING = ReducingStateDescriptor("reducing", joined)
AGGREGATING = AggregatingStateDescriptor("aggregating", Carts())
TTL_LIST = ListStateDescriptor("ttl list", ttl=TTL)
TTL_MAP = MapStateDescriptor("ttl map", ttl=TTL)
TTL_VALUE = ValueStateDescriptor("ttl value", default={}, ttl=TTL)


def change_value(store: Any, number: int) -> None:
    state = store.get_value(VALUE)
    content = state.value()
    content.append(number)
    state.update(content)


def change_object(store: Any, number: int) -> None:
    state = store.get_value(OBJECT)
    cart = state.value()
    cart.items.append(number)
    state.update(cart)


def change_ttl_value(store: Any, number: int) -> None:
    state = store.get_value(TTL_VALUE)
    content = state.value()
    content.setdefault("of", []).append(number)
    state.update(content)


def change_list(descriptor: ListStateDescriptor) -> Callable[[Any, int], None]:
    def change(store: Any, number: int) -> None:
        state = store.get_list(descriptor)
        for element in state.get():
            element.items.append(number)
        state.add(Cart([number]))

    return change


def change_map(descriptor: MapStateDescriptor) -> Callable[[Any, int], None]:
    def change(store: Any, number: int) -> None:
        state = store.get_map(descriptor)
        elements = state.get("k", [])
        elements.append(number)
        state.put("k", elements)
        state.put(number, Cart([number]))
        for _, cart in state.items():
            if isinstance(cart, Cart):
                cart.items.append(number)

    return change


def change_namespaced(store: Any, number: int) -> None:
    windows = store.namespaced(LIST)
    key = store.current_key
    content = windows.get(key, number) or []
    content.append(Cart([number]))
    windows.put(key, number, content)
    content[0].items.append(number)


CHANGES: dict[str, Callable[[Any, int], None]] = {
    "value": change_value,
    "object": change_object,
    "ttl value": change_ttl_value,
    "list": change_list(LIST),
    "ttl list": change_list(TTL_LIST),
    "map": change_map(MAP),
    "ttl map": change_map(TTL_MAP),
    "reducing": lambda store, n: store.get_reducing(REDUCING).add(Cart([n])),
    "aggregating": lambda store, n: store.get_aggregating(AGGREGATING).add(n),
    "namespaced": change_namespaced,
    "clear": lambda store, n: store.get_list(LIST).clear(),
}

sequences = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from([*CHANGES]), st.integers(0, 3)),
    max_size=12,
)


def apply_all(store: Any, sequence: list[tuple[str, str, int]]) -> None:
    for key, change, number in sequence:
        store.set_current_key(key)
        CHANGES[change](store, number)


def contents(snapshot: Any) -> Any:
    """Return what a snapshot holds: by key group, state and address; in any order."""
    return copy.deepcopy(
        {
            group: {
                position: {tuple(address): content for *address, content in entries}
                for position, entries in states.items()
            }
            for group, states in snapshot.key_groups.items()
        }
    )


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    max_examples=25,
    deadline=None,
)
@given(before=sequences, after=sequences)
def test_no_operation_after_a_snapshot_changes_it(
    new_store: Any, before: list[Any], after: list[Any]
) -> None:
    store = new_store()
    apply_all(store, before)
    snapshot = store.snapshot()
    at_the_cut = contents(snapshot)
    apply_all(store, after)
    assert contents(snapshot) == at_the_cut
    restored, twin = new_store(), new_store()
    restored.restore([snapshot])
    twin.restore([snapshot])
    apply_all(restored, after)
    assert contents(snapshot) == at_the_cut
    assert contents(twin.snapshot()) == at_the_cut
    for one in (store, restored, twin):
        one.close()


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    max_examples=25,
    deadline=None,
)
@given(parts=st.lists(sequences, min_size=2, max_size=5), data=st.data())
def test_snapshots_that_live_at_once_are_cuts_of_their_own_moments(
    new_store: Any, parts: list[Any], data: st.DataObject
) -> None:
    store, twin = new_store(), new_store()
    alive: list[tuple[Any, Any]] = []
    for part in parts:
        for one in (store, twin):
            apply_all(one, part)
        # The twin is cut and read at once, and never goes on under a cut.
        expected = contents(twin.snapshot())
        twin.settle(10_000)
        alive.append((store.snapshot(), expected))
        while alive and data.draw(st.booleans(), label="one is read"):
            chosen = data.draw(st.integers(0, len(alive) - 1))
            snapshot, expected = alive[chosen]
            assert contents(snapshot) == expected
            if data.draw(st.booleans(), label="and dropped"):
                del alive[chosen], snapshot
        store.settle(data.draw(st.integers(0, 5), label="steps"))
    for snapshot, expected in alive:
        assert contents(snapshot) == expected
    for one in (store, twin):
        one.close()


@pytest.mark.real_time
def test_a_thread_reads_a_cut_while_its_store_goes_on(new_store: Any) -> None:
    store = new_store()
    names = [*CHANGES]
    for number in range(2_000):
        store.set_current_key(f"key {number % 500}")
        CHANGES[names[number % len(names)]](store, number % 3)
    expected = contents(store.snapshot())
    with ThreadPoolExecutor(2) as pool:
        for _ in range(3):
            snapshot = store.snapshot()
            twice = [pool.submit(contents, snapshot) for _ in range(2)]
            number = 0
            while number < 500 or not all(one.done() for one in twice):
                store.set_current_key(f"key {number % 700}")
                CHANGES[names[number % len(names)]](store, number % 3)
                number += 1
            assert twice[0].result() == twice[1].result() == expected
            del snapshot, twice
            expected = contents(store.snapshot())
            store.settle(number % 1000)
    store.close()


@pytest.mark.parametrize("descriptor", [VALUE, OBJECT, TTL_VALUE])
def test_a_mutable_default_belongs_to_no_key(
    new_store: Any, descriptor: ValueStateDescriptor
) -> None:
    at_first = copy.deepcopy(descriptor.default)
    change = CHANGES[descriptor.name]
    for _ in ("a job", "a later job of the same descriptor"):
        store = new_store()
        for key in "ab":
            store.set_current_key(key)
            assert store.get_value(descriptor).value() == at_first
            change(store, 1)
        store.set_current_key("c")
        assert store.get_value(descriptor).value() == at_first
    assert descriptor.default == at_first


def test_a_default_that_is_changed_and_not_put_back_is_not_kept(new_store: Any) -> None:
    store = new_store()
    store.set_current_key("a")
    store.get_value(VALUE).value().append(1)
    assert store.get_value(VALUE).value() == []


def test_state_without_keys_is_cut_and_restored_apart() -> None:
    store = OperatorStateStore()
    listed, rules = store.get_list_state(LIST), store.get_broadcast_state(MAP)
    listed.add(Cart([1]))
    rules.put("rule", Cart([1]))
    snapshot = store.snapshot()
    restored, twin = OperatorStateStore(), OperatorStateStore()
    for one in (restored, twin):
        one.restore([snapshot])
    for one in (store, restored):
        one.get_list_state(LIST).get()[0].items.append(2)
        one.get_broadcast_state(MAP).get("rule").items.append(2)
    for entry in (snapshot.states, twin.snapshot().states):
        assert entry["list"].elements == [Cart([1])]
        assert entry["map"].elements == [("rule", Cart([1]))]
