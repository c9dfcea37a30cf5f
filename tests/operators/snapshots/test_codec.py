"""Laws of snapshots as bytes: in small pieces, in any thread, read when asked for."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from aiomailbox.durations import seconds
from aiomailbox.errors import StateError
from aiomailbox.eventtime.timers import TimerSnapshot
from aiomailbox.keygroups.assignment import KeyGroupRange
from aiomailbox.operators.snapshots.codec import (
    decode_snapshot,
    encode_snapshot,
    snapshot_chunks,
)
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot, redistribute
from aiomailbox.state.backends import HeapStateStore
from aiomailbox.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from aiomailbox.state.operator_state import (
    OperatorStateSnapshot,
    OperatorStateStore,
    RedistributionMode,
)
from aiomailbox.state.schema import Misfit
from aiomailbox.state.serializers import PickleSerializer
from aiomailbox.state.snapshot import KeyedStateSnapshot
from aiomailbox.state.snapshot_codec import BLOCK_BYTES, BLOCK_ROWS
from aiomailbox.testing import ManualClock

COUNT = ValueStateDescriptor("count", list)


class Watched(Mapping[int, Any]):
    """Key groups that note when they are read."""

    def __init__(self, groups: dict[int, Any], log: list[Any]) -> None:
        self._groups = groups
        self._log = log

    def __getitem__(self, group: int) -> Any:
        self._log.append(group)
        return self._groups[group]

    def __iter__(self) -> Iterator[int]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)


def filled(keys: int, size: int = 1) -> HeapStateStore:
    store = HeapStateStore(128, KeyGroupRange(0, 127), ManualClock())
    table = store.table(COUNT)
    for number in range(keys):
        table.put(f"key {number}", [number] * size)
    return store


def test_a_piece_is_small_however_large_the_snapshot_is() -> None:
    timers = {1: [(number, f"key {number}", None) for number in range(5000)]}
    own = OperatorStateSnapshot().with_list("rows", [b"x" * 100] * 5000)
    snapshot = OperatorSnapshot(
        (filled(20_000).snapshot(),),
        timers={"timers": TimerSnapshot(128, timers)},
        own=own,
    )
    *chunks, description = snapshot_chunks(snapshot)
    assert max(map(len, chunks)) < 2 * BLOCK_BYTES
    assert len(chunks) > 25_000 // BLOCK_ROWS
    assert decode_snapshot(b"".join(chunks) + description) == snapshot


def test_key_groups_are_asked_for_one_by_one_as_pieces_are() -> None:
    log: list[Any] = []
    kept = filled(300).snapshot()
    watched = KeyedStateSnapshot(128, kept.states, Watched(dict(kept.key_groups), log))
    for chunk in snapshot_chunks(OperatorSnapshot((watched,))):
        log.append(chunk)
        assert sum(isinstance(one, int) for one in log) < len(log)
    groups = [one for one in log if isinstance(one, int)]
    assert groups == list(kept.key_groups)


def test_it_is_made_bytes_in_a_thread_while_its_store_goes_on() -> None:
    store = filled(5000, size=3)
    snapshot = OperatorSnapshot((store.snapshot(),))
    expected = encode_snapshot(snapshot)
    with ThreadPoolExecutor(1) as pool:
        encoding = pool.submit(encode_snapshot, snapshot)
        table = store.table(COUNT)
        for number in range(5000):
            table.get(f"key {number}").append("later")
            table.put(f"new {number}", [number])
        assert encoding.result() == expected


def test_what_was_read_from_bytes_travels_to_another_process() -> None:
    timers = {"timers": TimerSnapshot(128, {3: [(1, "k", None)]})}
    snapshot = OperatorSnapshot((filled(10).snapshot(),), timers=timers)
    read = decode_snapshot(encode_snapshot(snapshot))
    assert pickle.loads(pickle.dumps(read)) == snapshot


def test_a_new_subtask_reads_only_what_is_its_own() -> None:
    log: list[Any] = []
    rows = {group: [(1, "k", None)] for group in range(128)}
    timers = TimerSnapshot(128, Watched(rows, log), Watched({}, log))
    found = redistribute([OperatorSnapshot(timers={"timers": timers})], 4)
    assert [sorted(one.timers["timers"].event) for one in found] == [
        list(range(32 * index, 32 * index + 32)) for index in range(4)
    ]
    assert log == [], "none is read before the subtask asks"
    for index, one in enumerate(found):
        log.clear()
        assert dict(one.timers["timers"].event) == {
            group: [(1, "k", None)] for group in range(32 * index, 32 * index + 32)
        }
        assert sorted(log) == list(range(32 * index, 32 * index + 32))


def test_pickled_lists_are_read_only_when_that_is_allowed() -> None:
    store = OperatorStateStore()
    descriptor = ListStateDescriptor("ranges", serializer=PickleSerializer())
    store.get_list_state(descriptor).add(range(3))
    data = encode_snapshot(OperatorSnapshot(operator=store.snapshot()))
    with pytest.raises(StateError, match="'ranges' was pickled"):
        decode_snapshot(data)
    found = decode_snapshot(data, allow_pickled_state=True)
    assert found.operator.elements("ranges") == [range(3)]
    restored = OperatorStateStore()
    restored.restore([found.operator])
    with pytest.raises(StateError, match="was written by serializer 'pickle/5'"):
        restored.get_list_state(ListStateDescriptor("ranges"))


def test_lists_without_keys_whose_type_changed_are_refused() -> None:
    store = OperatorStateStore()
    store.get_list_state(ListStateDescriptor("offsets", int)).add(1)
    data = encode_snapshot(OperatorSnapshot(operator=store.snapshot()))
    restored = OperatorStateStore()
    restored.restore([decode_snapshot(data).operator])
    restored.get_list_state(ListStateDescriptor("offsets", int | None))
    with pytest.raises(StateError, match=r"written as .*int.* read as str"):
        restored.get_list_state(ListStateDescriptor("offsets", str))


def test_what_a_subtask_is_about_is_merged_only_where_there_are_other_subtasks() -> (
    None
):
    snapshots = [
        OperatorSnapshot(
            own=OperatorStateSnapshot().with_list(
                "at", [number], RedistributionMode.MERGE
            ),
            watermark=number,
        )
        for number in (7, 5)
    ]
    same = redistribute(snapshots, 2)
    assert [(one.own.elements("at"), one.watermark) for one in same] == [
        ([7], 7),
        ([5], 5),
    ]
    for one in redistribute(snapshots, 3):
        assert (one.own.elements("at"), one.watermark) == ([7, 5], 5)
    (gone,) = redistribute([None, snapshots[0]], 1)
    assert (gone.own.elements("at"), gone.watermark) == ([7], 7)


TTL = StateTtlConfig(ttl=seconds(60))
MISFITS: list[tuple[Any, Any, set[tuple[str, str, str]]]] = [
    (ValueStateDescriptor("s", int), "x", {("value", "int", "str")}),
    (ValueStateDescriptor("s", int, ttl=TTL), "x", {("value", "int", "str")}),
    (ValueStateDescriptor("s", list[int]), (1,), {("value", "list[int]", "tuple")}),
    (ListStateDescriptor("s", int), [1, "x", "y"], {("element", "int", "str")}),
    (ListStateDescriptor("s", int, ttl=TTL), ["x"], {("element", "int", "str")}),
    (
        MapStateDescriptor("s", str, int),
        {1: "x"},
        {("key", "str", "int"), ("value", "int", "str")},
    ),
    (
        MapStateDescriptor("s", str, int, ttl=TTL),
        {"a": b""},
        {("value", "int", "bytes")},
    ),
    # What fits, or may.
    (ValueStateDescriptor("s", int), True, set()),
    (ValueStateDescriptor("s", int), None, set()),
    (ValueStateDescriptor("s", float), 1, set()),
    (ValueStateDescriptor("s", int | str), "x", set()),
    (ValueStateDescriptor("s", Mapping), {}, set()),
    (ValueStateDescriptor("s"), "x", set()),
]


@pytest.mark.parametrize(("descriptor", "content", "told"), MISFITS)
def test_what_is_not_of_the_declared_type_is_told_as_it_is_written(
    descriptor: Any, content: Any, told: set[tuple[str, str, str]]
) -> None:
    store = HeapStateStore(128, KeyGroupRange(0, 127), ManualClock())
    state: Any = getattr(store, f"get_{descriptor.kind}")(descriptor)
    for key in range(3):
        store.set_current_key(key)
        if descriptor.kind == "map":
            state.put_all(content)
        else:
            state.update(content)
    found: list[Misfit] = []
    snapshot = OperatorSnapshot((store.snapshot(),))
    for _ in snapshot_chunks(snapshot, on_misfit=found.append):
        pass
    assert {one[1:] for one in found} == told
    assert {one.state for one in found} <= {"s"}


def test_lists_and_broadcast_maps_are_compared_too() -> None:
    store = OperatorStateStore()
    store.get_list_state(ListStateDescriptor("texts", str)).update([1])
    store.get_broadcast_state(MapStateDescriptor("rules", str, int)).put("a", "b")
    found: list[Misfit] = []
    snapshot = OperatorSnapshot(operator=store.snapshot())
    for _ in snapshot_chunks(snapshot, on_misfit=found.append):
        pass
    assert set(found) == {
        ("texts", "element", "str", "int"),
        ("rules", "value", "int", "str"),
    }
