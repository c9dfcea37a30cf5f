"""Laws of keyed state, whichever store keeps it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from aiomailbox.errors import StateError
from aiomailbox.keygroups.assignment import key_group, key_group_range
from aiomailbox.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)

COUNT = ValueStateDescriptor("count", default=0)
ITEMS = ListStateDescriptor("items")
PRICES = MapStateDescriptor("prices")
TOTAL = ReducingStateDescriptor("total", lambda old, new: old + new)


class Collecting:
    """An aggregate function that changes its accumulator in place."""

    def create_accumulator(self) -> list[Any]:
        return []

    def add(self, value: Any, accumulator: list[Any]) -> list[Any]:
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator: list[Any]) -> tuple[Any, ...]:
        return tuple(accumulator)

    def merge(self, first: list[Any], second: list[Any]) -> list[Any]:
        first.extend(second)
        return first


SEEN = AggregatingStateDescriptor("seen", Collecting())


@pytest.fixture
def store(new_store: Any) -> Any:
    return new_store()


def test_each_key_has_its_own_value(store: Any) -> None:
    count = store.get_value(COUNT)
    store.set_current_key("a")
    count.update(1)
    store.set_current_key("b")
    assert count.value() == 0
    count.update(2)
    store.set_current_key("a")
    assert (count.value(), store.current_key) == (1, "a")


@pytest.mark.parametrize(
    "access",
    [
        lambda store: store.get_value(COUNT).value(),
        lambda store: store.get_value(COUNT).update(1),
        lambda store: store.get_value(COUNT).clear(),
        lambda store: store.get_list(ITEMS).get(),
        lambda store: store.get_list(ITEMS).add(1),
        lambda store: store.get_map(PRICES).put("a", 1),
        lambda store: store.get_reducing(TOTAL).add(1),
        lambda store: store.get_aggregating(SEEN).get(),
        lambda store: store.merge_namespaces(TOTAL, "w1", ["w2"]),
        lambda store: store.current_key,
    ],
)
def test_keyed_state_without_a_key_is_refused(store: Any, access: Any) -> None:
    with pytest.raises(StateError, match="no key is current"):
        access(store)
    store.set_current_key("a")
    access(store)
    store.set_current_key(None)
    with pytest.raises(StateError):
        access(store)


def test_a_falsy_key_is_a_key(store: Any) -> None:
    store.set_current_key(0)
    store.get_value(COUNT).update(5)
    assert store.keys(COUNT) == [0]


def test_updating_a_value_to_none_clears_it(store: Any) -> None:
    store.set_current_key("a")
    count = store.get_value(COUNT)
    count.update(7)
    count.update(None)
    assert (count.value(), store.key_count()) == (0, 0)


def test_list_state_hands_out_lists_that_nobody_else_changes(store: Any) -> None:
    store.set_current_key("a")
    items = store.get_list(ITEMS)
    assert items.get() == []
    items.add(1)
    items.add_all([2, 3])
    seen = items.get()
    seen.append("mine")
    assert items.get() == [1, 2, 3]
    items.update([9])
    assert items.get() == [9]
    items.update([])
    assert (items.get(), store.key_count()) == ([], 0)


def test_map_state_may_be_changed_while_it_is_walked(store: Any) -> None:
    store.set_current_key("a")
    prices = store.get_map(PRICES)
    assert prices.is_empty()
    prices.put_all({"x": 1, "y": 2})
    for name, price in prices.items():
        prices.put(name + name, price * 2)
        prices.remove(name)
    assert sorted(prices.items()) == [("xx", 2), ("yy", 4)]
    assert prices.contains("xx")
    assert prices.get("x", "gone") == "gone"
    assert sorted(prices.values()) == [2, 4]
    prices.clear()
    assert (prices.keys(), prices.is_empty()) == ([], True)


def test_a_map_without_entries_leaves_no_key_behind(store: Any) -> None:
    store.set_current_key("a")
    prices = store.get_map(PRICES)
    prices.put("x", 1)
    prices.remove("x")
    assert store.key_count() == 0


def test_reducing_and_aggregating_state_are_none_until_something_is_added(
    store: Any,
) -> None:
    store.set_current_key("a")
    total, seen = store.get_reducing(TOTAL), store.get_aggregating(SEEN)
    assert (total.get(), seen.get()) == (None, None)
    for value in (1, 2, 3):
        total.add(value)
        seen.add(value)
    assert (total.get(), seen.get()) == (6, (1, 2, 3))
    total.clear()
    seen.clear()
    assert (total.get(), seen.get()) == (None, None)


def test_a_name_belongs_to_one_kind_of_state(store: Any) -> None:
    store.get_value(COUNT)
    with pytest.raises(StateError, match="'count' is value state"):
        store.get_list(ListStateDescriptor("count"))
    with pytest.raises(StateError, match="'count' is value state"):
        store.namespaced(ListStateDescriptor("count"))


def test_namespaces_are_apart_from_each_other_and_from_none(store: Any) -> None:
    store.set_current_key("a")
    store.get_value(COUNT).update(1)
    store.get_value(COUNT, "w1").update(2)
    store.get_value(COUNT, "w2").update(3)
    assert store.get_value(COUNT).value() == 1
    assert store.get_value(COUNT, "w1").value() == 2
    assert store.namespaced(COUNT).namespaces("a") == ["w1", "w2"]
    assert store.keys(COUNT) == ["a"]


def test_merging_moves_the_sources_into_the_target(store: Any) -> None:
    store.set_current_key("a")
    for window, value in (("w1", 1), ("w2", 2), ("w3", 4)):
        store.get_reducing(TOTAL, window).add(value)
        store.get_list(ITEMS, window).add(value)
        store.get_aggregating(SEEN, window).add(value)
    for descriptor in (TOTAL, ITEMS, SEEN):
        store.merge_namespaces(descriptor, "w1", ["w2", "w3", "w1", "none"])
    assert store.get_reducing(TOTAL, "w1").get() == 7
    assert store.get_list(ITEMS, "w1").get() == [1, 2, 4]
    assert store.get_aggregating(SEEN, "w1").get() == (1, 2, 4)
    assert store.namespaced(TOTAL).namespaces("a") == ["w1"]


def test_a_merge_whose_function_fails_moves_nothing(store: Any) -> None:
    def refuse(old: int, new: int) -> int:
        raise ValueError("no sum")

    total = ReducingStateDescriptor("total", refuse)
    store.set_current_key("a")
    for window, value in (("w1", 1), ("w2", 2)):
        store.get_reducing(total, window).add(value)
    with pytest.raises(ValueError, match="no sum"):
        store.merge_namespaces(total, "w1", ["w2"])
    assert [store.get_reducing(total, each).get() for each in ("w1", "w2")] == [1, 2]


def test_value_state_cannot_be_merged(store: Any) -> None:
    store.set_current_key("a")
    store.get_value(COUNT, "w2").update(1)
    with pytest.raises(StateError, match="cannot be merged"):
        store.merge_namespaces(COUNT, "w1", ["w2"])
    assert store.get_value(COUNT, "w2").value() == 1


def test_a_table_and_a_state_object_are_two_views_of_one_state(store: Any) -> None:
    table = store.table(COUNT)
    table.put("a", 3)
    store.set_current_key("a")
    assert store.get_value(COUNT).value() == 3
    store.get_value(COUNT).update(4)
    assert (table.get("a"), table.get("b", 0), len(table)) == (4, 0, 1)
    assert list(table.items()) == [("a", 4)]
    table.remove("a")
    table.remove("a")
    assert store.get_value(COUNT).value() == 0


def test_a_namespaced_table_keeps_no_empty_row(store: Any) -> None:
    table = store.namespaced(COUNT)
    table.put("a", "w1", 1)
    table.put("a", "w2", 2)
    assert (len(table), sorted(table.items())) == (2, [("a", "w1", 1), ("a", "w2", 2)])
    table.remove("a", "w1")
    table.remove("a", "none")
    table.remove("b", "w1")
    assert table.namespaces("a") == ["w2"]
    table.remove("a", "w2")
    assert (list(table.items()), table.namespaces("a")) == ([], [])


def test_a_snapshot_is_not_touched_by_what_follows(store: Any, new_store: Any) -> None:
    store.set_current_key("a")
    box = ValueStateDescriptor("box")
    store.get_value(box).update({"nested": [1]})
    store.get_list(ITEMS).add(1)
    store.get_map(PRICES).put("x", 1)
    store.get_aggregating(SEEN, "w").add(1)
    snapshot = store.snapshot()
    store.get_value(box).value()["nested"].append(2)
    store.get_list(ITEMS).add(2)
    store.get_map(PRICES).put("y", 2)
    store.get_aggregating(SEEN, "w").add(2)
    restored = [new_store(), new_store()]
    for other in restored:
        other.restore([snapshot])
        other.set_current_key("a")
        assert other.get_value(box).value() == {"nested": [1]}
        assert other.get_list(ITEMS).get() == [1]
        assert other.get_map(PRICES).items() == [("x", 1)]
        assert other.get_aggregating(SEEN, "w").get() == (1,)
        # What one restored operator does, the next one must not see.
        other.get_value(box).value()["nested"].append(3)
        other.get_aggregating(SEEN, "w").add(3)
        other.get_list(ITEMS).add(3)


def test_a_restored_name_keeps_its_kind(store: Any, new_store: Any) -> None:
    store.table(COUNT).put("a", 1)
    other = new_store()
    other.restore([store.snapshot()])
    with pytest.raises(StateError, match="'count' is value state"):
        other.get_map(MapStateDescriptor("count"))
    assert other.snapshot() == store.snapshot()


def test_another_number_of_key_groups_is_refused(store: Any, new_store: Any) -> None:
    with pytest.raises(StateError, match=r"128.*256"):
        new_store(256).restore([store.snapshot()])


def test_restoring_replaces_what_was_there(store: Any) -> None:
    empty = store.snapshot()
    store.table(COUNT).put("a", 1)
    store.restore([empty])
    assert store.table(COUNT).get("a") is None


# Stores on disk take their time, and each example makes its own.
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
    max_examples=15,
)
@given(
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=40),
    st.integers(1, 5),
    st.integers(1, 5),
)
def test_rescaling_neither_loses_nor_doubles_a_key(
    new_store: Any, contents: dict[str, int], old: int, new: int
) -> None:
    before = [new_store(128, key_group_range(128, old, i)) for i in range(old)]
    for key, value in contents.items():
        before[key_group(key, 128) * old // 128].table(COUNT).put(key, value)
        before[key_group(key, 128) * old // 128].namespaced(ITEMS).put(
            key, "w", [value]
        )
    snapshots = [store.snapshot() for store in before]
    found: list[tuple[str, int]] = []
    for index in range(new):
        store = new_store(128, key_group_range(128, new, index))
        store.restore(snapshots)
        for key, value in store.table(COUNT).items():
            assert key_group(key, 128) * new // 128 == index
            assert store.namespaced(ITEMS).get(key, "w") == [value]
            found.append((key, value))
    assert sorted(found) == sorted(contents.items())


def test_a_snapshot_is_grouped_by_key_group(store: Any) -> None:
    store.table(COUNT).put("a", 1)
    store.table(COUNT).put("b", 2)
    snapshot = store.snapshot()
    assert {group: entries[0] for group, entries in snapshot.key_groups.items()} == {
        81: [("a", 1)],
        22: [("b", 2)],
    }
