"""What a savepoint holds can be read as data, without the job and its classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import aiomailbox as am
from aiomailbox.checkpoint.layout import open_place
from aiomailbox.checkpoint.writer import CheckpointWriter
from aiomailbox.errors import DamagedFileError, NoCheckpointError, StateError
from aiomailbox.ids import OperatorId, SubtaskId, VertexId
from aiomailbox.keygroups.assignment import (
    KeyGroupAssigner,
    KeyGroupRange,
    key_group_range,
)
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.state.backends import HeapStateStore
from aiomailbox.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from aiomailbox.state.operator_state import OperatorStateSnapshot, OperatorStateStore
from aiomailbox.state.serializers import PickleSerializer
from aiomailbox.state.snapshot import KeyedStateSnapshot
from aiomailbox.storage.local import LocalStorage
from aiomailbox.task.in_flight import TaskSnapshot
from aiomailbox.testing import ManualClock
from aiomailbox.windowing.time_window import TimeWindow
from tests.checkpoint.checkpoints import COUNT, SINK, metadata, open_store

TTL = StateTtlConfig(ttl=am.seconds(60))


class Color(Enum):
    RED = "red"


class Pair(NamedTuple):
    left: int
    right: str


@dataclass
class Cart:
    color: Color
    pair: Pair


Keep = Callable[..., Any]


@pytest.fixture(params=["heap", "rocksdb"])
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterable[Keep]:
    """Make stores of one backend; they are closed after the test."""
    made: list[Any] = []

    def make(groups: KeyGroupRange) -> Any:
        if request.param == "heap":
            store: Any = HeapStateStore(128, groups, ManualClock())
        else:
            from aiomailbox.state.rocksdb.store import RocksDBStateStore

            store = RocksDBStateStore(128, groups, ManualClock(), path=tmp_path)
        made.append(store)
        return store

    yield make
    for store in made:
        store.close()


def keep(place: Path, snapshots: list[OperatorSnapshot], *, as_savepoint: bool) -> str:
    """Write what the subtasks of the counting operator keep; return the place."""
    jobs = place / "jobs"
    location = place / "saved" if as_savepoint else None
    store = open_store(jobs)
    writer = CheckpointWriter(LocalStorage(jobs), "job")
    tasks = [
        writer.write_task(
            SubtaskId(VertexId(1), index),
            1,
            1,
            TaskSnapshot(operators={COUNT: one, SINK: OperatorSnapshot()}),
            location,
        )
        for index, one in enumerate(snapshots)
    ]
    try:
        return store.complete(metadata(1, tasks), location)
    finally:
        store.close()


def filled(new_store: Keep, index: int) -> KeyedStateSnapshot:
    """Return the state of one of two subtasks, whose keys are those of its groups."""
    groups = key_group_range(128, 2, index)
    store = new_store(groups)
    placed = KeyGroupAssigner(1, 128).key_groups([*range(40)])
    keys = [key for key, group in enumerate(placed) if group in groups.key_groups]
    for key in keys:
        store.set_current_key(key)
        cart = Cart(Color.RED, Pair(key, "x" * 1_000))
        store.get_value(ValueStateDescriptor("cart", Cart)).update(cart)
        store.get_list(ListStateDescriptor("list", ttl=TTL)).add_all([key, key])
        store.get_map(MapStateDescriptor("map", ttl=TTL)).put("k", key)
        store.get_value(ValueStateDescriptor("old", ttl=TTL)).update(key)
        counts = ValueStateDescriptor("counts")
        store.get_value(counts, TimeWindow(0, 10)).update(key)
    return store.snapshot()


@pytest.mark.parametrize("as_savepoint", [True, False])
def test_keyed_state_of_all_subtasks_is_read(
    tmp_path: Path, new_store: Keep, as_savepoint: bool
) -> None:
    snapshots = [OperatorSnapshot((filled(new_store, index),)) for index in range(2)]
    place = keep(tmp_path, snapshots, as_savepoint=as_savepoint)
    saved = am.Savepoint(place, classes=[Cart])
    keys = range(40)
    assert dict(saved.state("count", "cart")) == {
        key: Cart(Color.RED, Pair(key, "x" * 1_000)) for key in keys
    }
    assert dict(saved.state("count", "list")) == {key: [key, key] for key in keys}
    assert dict(saved.state("count", "map")) == {key: {"k": key} for key in keys}
    assert dict(saved.state("count", "old")) == {key: key for key in keys}
    assert sorted(saved.state("count", "counts")) == [
        (key, TimeWindow(0, 10), key) for key in keys
    ]
    (count,) = [one for one in saved.operators() if one.uid == "count"]
    described = {state.name: state for state in count.states}
    assert list(described) == ["cart", "list", "map", "old", "counts"]
    assert described["cart"].types == {"value": f"{__name__}:Cart"}
    assert list(described["cart"].classes) == [
        f"{__name__}:{name}" for name in ("Cart", "Color", "Pair")
    ]
    assert (count.parallelism, count.max_parallelism) == (2, 128)


def test_objects_of_classes_that_are_not_there_come_with_their_fields(
    tmp_path: Path, new_store: Keep
) -> None:
    snapshots = [OperatorSnapshot((filled(new_store, index),)) for index in range(2)]
    saved = am.Savepoint(keep(tmp_path, snapshots, as_savepoint=True))
    cart: Any = dict(saved.state("count", "cart"))[7]
    assert (cart.color.value, cart.pair.left) == ("red", 7)
    assert type(cart) is not Cart
    assert type(cart).__qualname__ == "Cart"


def test_state_is_read_as_arrow(tmp_path: Path, new_store: Keep) -> None:
    snapshots = [OperatorSnapshot((filled(new_store, index),)) for index in range(2)]
    saved = am.Savepoint(keep(tmp_path, snapshots, as_savepoint=True), classes=[Cart])
    batches = list(saved.arrow("count", "cart", rows=16))
    assert [batch.num_rows for batch in batches] == [16, 16, 8]
    table = pa.Table.from_batches(batches)
    assert table.schema.names == ["key", "value"]
    rows = {row["key"]: row["value"] for row in table.to_pylist()}
    assert rows[7] == {"color": "red", "pair": {"left": 7, "right": "x" * 1_000}}
    (batch,) = saved.arrow("count", "counts")
    assert batch.to_pylist()[0]["namespace"] == {"start": 0, "end": 10}
    (batch,) = saved.arrow("count", "map")
    assert batch.to_pylist()[0]["value"][0]["key"] == "k"


def test_lists_without_keys_are_read(tmp_path: Path) -> None:
    def one(index: int) -> OperatorSnapshot:
        store = OperatorStateStore()
        store.get_list_state(ListStateDescriptor("offsets")).add(("file", index))
        rules = store.get_broadcast_state(MapStateDescriptor("rules"))
        rules.put("a", Pair(1, "one"))
        own = OperatorStateSnapshot().with_list("own", [index])
        return OperatorSnapshot(operator=store.snapshot(), own=own)

    place = keep(tmp_path, [one(0), one(1)], as_savepoint=True)
    saved = am.Savepoint(place, classes=[Pair])
    assert list(saved.state("count", "offsets")) == [("file", 0), ("file", 1)]
    assert list(saved.state("count", "rules")) == [("a", Pair(1, "one"))]
    assert list(saved.state("count", "own")) == [0, 1]
    assert pa.Table.from_batches(saved.arrow("count", "own")).to_pylist() == [
        {"value": 0},
        {"value": 1},
    ]
    (batch,) = saved.arrow("count", "rules")
    assert batch.to_pylist() == [{"key": "a", "value": {"left": 1, "right": "one"}}]


def test_pickled_state_is_read_only_when_allowed(tmp_path: Path) -> None:
    store = HeapStateStore(128, KeyGroupRange(0, 127), ManualClock())
    store.set_current_key("a")
    pickled = ValueStateDescriptor("odd", serializer=PickleSerializer())
    store.get_value(pickled).update(range(3))
    store.get_value(ValueStateDescriptor("plain")).update(7)
    snapshots = [OperatorSnapshot((store.snapshot(),)), OperatorSnapshot()]
    place = keep(tmp_path, snapshots, as_savepoint=True)
    with pytest.raises(StateError, match="'odd' was pickled"):
        list(am.Savepoint(place).state("count", "odd"))
    assert list(am.Savepoint(place).state("count", "plain")) == [("a", 7)]
    saved = am.Savepoint(place, allow_pickled_state=True)
    assert list(saved.state("count", "odd")) == [("a", range(3))]
    assert saved.metadata.serializers == {OperatorId("count"): {"odd": "pickle/5"}}


def test_what_is_not_there_is_named_with_what_is(tmp_path: Path) -> None:
    with pytest.raises(NoCheckpointError, match="no _metadata"):
        am.Savepoint(tmp_path)
    own = OperatorStateSnapshot().with_list("own", [1])
    snapshots = [OperatorSnapshot(own=own), OperatorSnapshot()]
    saved = am.Savepoint(keep(tmp_path, snapshots, as_savepoint=True))
    with pytest.raises(StateError, match=r"'gone'.*has \['count', 'sink', 'source'\]"):
        saved.state("gone", "own")
    with pytest.raises(StateError, match=r"no state 'gone'.*has \['own'\]"):
        saved.state("count", "gone")
    with pytest.raises(StateError, match="no state 'gone'"):
        list(saved.arrow("count", "gone"))


def test_damage_is_found_before_anything_is_read(
    tmp_path: Path, new_store: Keep
) -> None:
    snapshots = [OperatorSnapshot((filled(new_store, index),)) for index in range(2)]
    place = Path(keep(tmp_path, snapshots, as_savepoint=True))
    (file,) = place.glob("1.1-*")
    data = bytearray(file.read_bytes())
    data[100] ^= 4
    file.write_bytes(data)
    with pytest.raises(DamagedFileError, match=r"1\.1-1"):
        am.Savepoint(place).operators()


@pytest.mark.parametrize(
    ("place", "where", "name"),
    [
        ("/sp", "/sp", ""),
        ("/sp/", "/sp", ""),
        ("/sp/_metadata", "/sp", ""),
        ("/", "/", ""),
        ("/data/sp", "/data", "sp"),
    ],
)
def test_a_directory_at_the_root_is_not_looked_for_where_the_program_is(
    place: str, where: str, name: str
) -> None:
    storage, found = open_place(place)
    assert (storage.place, found) == (where, name)


def test_a_relative_directory_is_where_the_program_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    storage, found = open_place("sp")
    assert (storage.place, found) == (str(tmp_path / "sp"), "")
