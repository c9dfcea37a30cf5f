"""Laws of state that expires; ttl is 100 ms unless a test says otherwise."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from aiomailbox.durations import millis
from aiomailbox.errors import InvalidArgumentError, StateError
from aiomailbox.operators.async_state.row_state import StateHandles, row_state
from aiomailbox.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    StateVisibility,
    TtlUpdate,
    ValueStateDescriptor,
)
from aiomailbox.state.handles import Expiry
from aiomailbox.testing import ManualClock
from tests.state.kept import found as found_keyed, kept as keyed_bytes

READ = TtlUpdate.ON_READ_AND_WRITE
EXPIRED = StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP


def config(**options: Any) -> StateTtlConfig:
    return StateTtlConfig(options.pop("ttl", millis(100)), **options)


class Setup:
    """A store, its clock from 0, and the value state under test."""

    def __init__(self, make_store: Any, **options: Any) -> None:
        self.make_store = make_store
        self.clock = ManualClock(datetime(1970, 1, 1, tzinfo=UTC))
        self.store = self.new_store()
        self.descriptor = ValueStateDescriptor("v", ttl=config(**options))
        self.store.set_current_key("k")

    def new_store(self) -> Any:
        return self.make_store(clock=self.clock)

    def at(self, now_ms: int) -> Setup:
        self.clock.advance_to(now_ms)
        return self

    def write(self, value: Any) -> None:
        self.store.get_value(self.descriptor).update(value)

    def read(self) -> Any:
        return self.store.get_value(self.descriptor).value()

    def reload(self) -> None:
        snapshot = self.store.snapshot()
        self.store = self.new_store()
        self.store.restore([snapshot])
        self.store.set_current_key("k")


@pytest.fixture
def new_setup(new_store: Any) -> Any:
    return partial(Setup, new_store)


@pytest.mark.parametrize("reloads", [False, True])
def test_only_writing_keeps_a_value_alive(new_setup: Any, reloads: bool) -> None:
    """SEM-119."""
    setup = new_setup()
    steps = [(0, "w", 1), (20, "r", 1), (50, "w", 2), (120, "r", 2), (170, "w", 3)]
    steps += [(220, "r", 3), (300, "r", None)]
    for time, step, value in steps:
        setup.at(time)
        if reloads:
            setup.reload()
        if step == "w":
            setup.write(value)
        else:
            assert setup.read() == value
    assert setup.store.key_count() == 0


def test_an_expired_value_may_be_returned_once(new_setup: Any) -> None:
    """SEM-120."""
    setup = new_setup(visibility=EXPIRED)
    setup.write(1)
    assert [setup.at(120).read(), setup.read()] == [1, None]


def test_reading_can_keep_a_value_alive(new_setup: Any) -> None:
    """SEM-121."""
    setup = new_setup(update=READ)
    setup.write(1)
    assert [setup.at(t).read() for t in (50, 120, 250)] == [1, 1, None]


def test_reading_keeps_alive_and_returns_the_expired_once(new_setup: Any) -> None:
    """SEM-122."""
    setup = new_setup(update=READ, visibility=EXPIRED)
    setup.write(1)
    assert [setup.at(t).read() for t in (50, 170, 170)] == [1, 1, None]


def test_the_longest_ttl_never_expires(new_setup: Any) -> None:
    """SEM-123."""
    setup = new_setup(ttl=timedelta.max)
    setup.at(10).write(1)
    assert setup.at(10**12).read() == 1


def test_a_value_expires_exactly_when_its_time_is_over(new_setup: Any) -> None:
    """SEM-126."""
    setup = new_setup()
    setup.write(1)
    assert [setup.at(99).read(), setup.at(100).read()] == [1, None]


def test_merged_state_leaves_out_what_expired_and_is_as_young_as_the_merge(
    new_setup: Any,
) -> None:
    """SEM-124, reducing state."""
    setup = new_setup()
    total = ReducingStateDescriptor("t", lambda a, b: a + b, ttl=config())
    setup.store.get_reducing(total, "n1").add(5)
    setup.at(120).store.get_reducing(total, "n2").add(7)
    setup.at(150).store.get_reducing(total, "n2").add(1)
    setup.at(230).store.merge_namespaces(total, "n1", ["n2"])
    assert setup.store.get_reducing(total, "n1").get() == 8
    assert setup.at(329).store.get_reducing(total, "n1").get() == 8
    assert setup.at(330).store.get_reducing(total, "n1").get() is None


def test_elements_of_a_list_age_one_by_one_also_when_merged(new_setup: Any) -> None:
    """SEM-124 and SEM-127, list state."""
    setup = new_setup()
    items = ListStateDescriptor("l", ttl=config())
    setup.at(120).store.get_list(items, "n2").add(7)
    setup.at(150).store.get_list(items, "n2").add(1)
    setup.at(230).store.merge_namespaces(items, "n1", ["n2"])
    assert setup.store.get_list(items, "n1").get() == [1]
    assert setup.at(250).store.get_list(items, "n1").get() == []
    assert setup.store.key_count() == 0


def test_each_key_of_a_snapshot_keeps_its_age(new_setup: Any) -> None:
    """SEM-125."""
    setup = new_setup()
    for time, key in ((0, "k1"), (50, "k1"), (100, "k2")):
        setup.at(time).store.set_current_key(key)
        setup.write(f"{key}@{time}")
    snapshot = setup.store.snapshot()
    for key in ("k1", "k2"):
        setup.at(170).store.set_current_key(key)
        setup.write("later")
    setup.store = setup.new_store()
    setup.store.restore([snapshot])
    setup.at(180).store.set_current_key("k1")
    assert setup.read() is None
    setup.store.set_current_key("k2")
    assert setup.read() == "k2@100"


def test_the_time_in_which_nothing_runs_counts(new_setup: Any) -> None:
    """State that was touched before a restart expires when it would have anyway."""
    setup = new_setup()
    items = ListStateDescriptor("items", ttl=config())
    prices = MapStateDescriptor("prices", ttl=config())
    setup.write("value")
    setup.store.get_list(items).add("old")
    setup.store.get_map(prices).put("old", 1)
    setup.at(60).store.get_list(items).add("new")
    setup.store.get_map(prices).put("new", 2)
    kept = keyed_bytes(setup.store.snapshot())
    for now_ms, value, listed, mapped in (
        (99, "value", ["old", "new"], {"old", "new"}),
        (100, None, ["new"], {"new"}),
        (159, None, ["new"], {"new"}),
        (160, None, [], set()),
        (10_000, None, [], set()),
    ):
        setup.at(now_ms).store = setup.new_store()
        setup.store.restore([found_keyed(kept)])
        setup.store.set_current_key("k")
        assert setup.read() == value, now_ms
        assert setup.store.get_list(items).get() == listed, now_ms
        assert set(setup.store.get_map(prices).keys()) == mapped, now_ms


def test_entries_of_a_map_age_one_by_one(new_setup: Any) -> None:
    """SEM-127, map state."""
    setup = new_setup()
    prices = setup.store.get_map(MapStateDescriptor("m", ttl=config()))
    prices.put("a", 1)
    setup.at(60)
    prices.put("b", 2)
    setup.at(100)
    assert (prices.get("a"), prices.contains("b"), prices.keys()) == (None, True, ["b"])
    setup.at(160)
    assert (prices.keys(), setup.store.key_count()) == ([], 0)


def test_a_map_returns_expired_entries_once(new_setup: Any) -> None:
    setup = new_setup()
    descriptor = MapStateDescriptor("m", ttl=config(visibility=EXPIRED))
    prices = setup.store.get_map(descriptor)
    prices.put_all({"a": 1, "b": 2})
    setup.at(100)
    assert (prices.get("a"), prices.items(), prices.items()) == (1, [("b", 2)], [])


def test_a_list_returns_expired_elements_once_and_reading_refreshes_the_rest(
    new_setup: Any,
) -> None:
    setup = new_setup()
    ttl = config(visibility=EXPIRED, update=READ)
    items = setup.store.get_list(ListStateDescriptor("l", ttl=ttl))
    items.add(1)
    setup.at(50)
    items.add(2)
    setup.at(100)
    assert (items.get(), items.get()) == ([1, 2], [2])
    setup.at(199)
    assert items.get() == [2]


def test_reading_keeps_alive_those_entries_of_a_map_that_are_read(
    new_setup: Any,
) -> None:
    setup = new_setup()
    entries = MapStateDescriptor("m", ttl=config(update=READ))
    state = setup.store.get_map(entries)
    state.put_all({"read": 1, "other": 2})
    setup.at(60)
    assert (state.get("read"), state.get("absent")) == (1, None)
    setup.at(120)
    assert (state.items(), state.values()) == ([("read", 1)], [1])
    setup.at(230)
    assert (state.keys(), state.is_empty()) == ([], True)
    assert setup.store.key_count() == 0


def test_asking_whether_a_map_is_empty_keeps_no_entry_alive(new_setup: Any) -> None:
    setup = new_setup()
    state = setup.store.get_map(MapStateDescriptor("m", ttl=config(update=READ)))
    assert state.is_empty()
    state.put("a", 1)
    setup.at(60)
    assert not state.is_empty()
    setup.at(100)
    # As in Flink: an entry that has expired is there until something removes it.
    assert not state.is_empty()
    assert state.get("a") is None
    assert state.is_empty()


def test_a_row_that_asks_whether_its_map_is_empty_keeps_no_entry_alive(
    new_setup: Any,
) -> None:
    setup = new_setup()
    descriptor = MapStateDescriptor("m", ttl=config(update=READ))
    handles = StateHandles(setup.store)

    def of_a_row() -> Any:
        return row_state(handles, descriptor, lambda: None, "k")

    assert of_a_row().is_empty()
    first = of_a_row()
    first.put("a", 1)
    first.put("b", 1)
    assert not first.is_empty()
    first.apply()
    setup.at(60)
    second = of_a_row()
    assert not second.is_empty()
    second.clear()
    assert second.is_empty()
    second.put("c", 1)
    second.remove("c")
    assert second.is_empty()
    second.put("d", 1)
    assert not second.is_empty()
    setup.at(100)
    assert setup.store.get_map(descriptor).get("a") is None
    third = of_a_row()
    third.remove("b")
    assert third.is_empty()


def test_entries_of_a_map_are_removed_one_by_one_or_all(new_setup: Any) -> None:
    setup = new_setup()
    state = setup.store.get_map(MapStateDescriptor("m", ttl=config()))
    state.remove("absent")
    assert setup.store.key_count() == 0
    for key in ("a", "b", "c"):
        state.put(key, 1)
    state.remove("a")
    state.remove("absent")
    assert (state.keys(), state.is_empty()) == (["b", "c"], False)
    state.clear()
    assert state.is_empty()
    state.put("d", 1)
    state.remove("d")
    assert setup.store.key_count() == 0


def test_updating_a_list_makes_all_of_it_young(new_setup: Any) -> None:
    setup = new_setup()
    state = setup.store.get_list(ListStateDescriptor("l", ttl=config()))
    state.add(1)
    setup.at(60)
    state.update([1, 2])
    setup.at(120)
    assert list(state.get()) == [1, 2]
    state.update([])
    assert setup.store.key_count() == 0
    state.add(3)
    state.clear()
    assert list(state.get()) == []


def test_updating_to_none_clears(new_setup: Any) -> None:
    """SEM-127."""
    setup = new_setup()
    setup.write(1)
    setup.write(None)
    assert (setup.read(), setup.store.key_count()) == (None, 0)


VISIBILITIES = pytest.mark.parametrize("visibility", StateVisibility)


@VISIBILITIES
def test_what_nobody_reads_is_swept_by_the_writes_of_others(
    new_setup: Any, visibility: StateVisibility
) -> None:
    setup = new_setup(visibility=visibility)
    for key in range(100):
        setup.store.set_current_key(key)
        setup.write(key)
    setup.at(1000)
    for _ in range(120):
        setup.store.set_current_key(-1)
        setup.write(1)
    assert setup.store.key_count() == 1


@pytest.mark.parametrize(("now_ms", "found"), [(199, "old"), (200, None)])
def test_what_may_still_be_read_is_kept_for_as_long_again_and_then_swept(
    new_setup: Any, now_ms: int, found: str | None
) -> None:
    setup = new_setup(visibility=EXPIRED)
    setup.write("old")
    setup.at(now_ms).store.set_current_key("other")
    for _ in range(10):
        setup.write(1)
    setup.store.set_current_key("k")
    assert setup.read() == found


def test_a_table_of_state_with_a_ttl_is_refused(new_setup: Any) -> None:
    setup = new_setup()
    for view in (setup.store.table, setup.store.namespaced):
        with pytest.raises(StateError, match="time to live"):
            view(setup.descriptor)


def test_a_ttl_cannot_be_added_to_state_that_is_there(new_setup: Any) -> None:
    setup = new_setup()
    setup.store.get_value(ValueStateDescriptor("plain"))
    with pytest.raises(StateError, match="had no time to live and now has one"):
        setup.store.get_value(ValueStateDescriptor("plain", ttl=config()))


@pytest.mark.parametrize("ttl", [0, -1, timedelta()])
def test_a_ttl_is_positive(ttl: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="ttl"):
        StateTtlConfig(ttl)


def _held(setup: Setup) -> int:
    """Return how many elements or entries the state of all keys consists of."""
    snapshot = setup.store.snapshot()
    return sum(
        len(contents)
        for group in snapshot.key_groups.values()
        for entries in group.values()
        for contents in entries.columns[-1]
    )


@VISIBILITIES
@pytest.mark.parametrize("kind", ["map", "list"])
def test_what_expired_of_a_key_in_use_is_swept_though_nobody_reads_it(
    new_setup: Any, kind: str, visibility: StateVisibility
) -> None:
    setup, ttl = new_setup(), config(visibility=visibility)
    if kind == "map":
        state = setup.store.get_map(MapStateDescriptor("m", ttl=ttl))
        add = partial(_put_one, state)
    else:
        state = setup.store.get_list(ListStateDescriptor("l", ttl=ttl))
        add = state.add
    for now_ms in range(0, 3_000, 10):
        setup.at(now_ms)
        add(now_ms)
    # Ten of them are alive at a time, or twenty may still be read, and about as many are
    # written between two looks.
    assert _held(setup) < 80


def _put_one(state: Any, number: int) -> None:
    assert not state.contains(number)
    state.put(number, True)


def test_sweeping_looks_at_a_few_entries_per_write_however_many_a_key_has(
    new_setup: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup, count = new_setup(), 100
    state = setup.store.get_map(
        MapStateDescriptor("m", ttl=config(ttl=timedelta(days=1)))
    )
    state.put_all(dict.fromkeys(range(count), True))
    looks = 0

    def counting(self: Any, touched_ms: int, now_ms: int) -> bool:
        nonlocal looks
        looks += 1
        return False

    monkeypatch.setattr(Expiry, "is_expired", counting)
    for number in range(10 * count):
        state.put(number % count, True)
    assert looks <= 3 * 10 * count
