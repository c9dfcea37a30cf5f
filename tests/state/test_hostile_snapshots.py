"""What somebody else wrote over a snapshot: only declared errors, and nothing is run."""

from __future__ import annotations

import contextlib
import struct
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from aiomailbox.durations import seconds
from aiomailbox.errors import CorruptStreamError, StateError
from aiomailbox.eventtime.timers import TimerSnapshot
from aiomailbox.keygroups.assignment import KeyGroupRange
from aiomailbox.operators.snapshots.codec import decode_snapshot, encode_snapshot
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.state.backends import HeapStateStore
from aiomailbox.state.descriptors import (
    VOID,
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
    Void,
)
from aiomailbox.state.operator_state import OperatorStateSnapshot, OperatorStateStore
from aiomailbox.state.serializers import ObjectCodec
from aiomailbox.testing import ManualClock

_TAIL = struct.Struct(">II4s")


class Color(Enum):
    RED = "red"


class Point(NamedTuple):
    x: int


@dataclass
class Cart:
    items: list[Any] = field(default_factory=list)


class Quote(msgspec.Struct):
    bid: int


DECLARED = [Color, Point, Cart, Quote, Void]
TTL = StateTtlConfig(ttl=seconds(60))


def new_store() -> HeapStateStore:
    return HeapStateStore(128, KeyGroupRange(0, 127), ManualClock())


def example() -> OperatorSnapshot:
    store = new_store()
    for number, key in enumerate([("a", 1), ("b", 2)]):
        store.set_current_key(key)
        value = Cart([Quote(number), {1: Color.RED}, 2**70])
        store.get_value(ValueStateDescriptor("value")).update(value)
        store.get_list(ListStateDescriptor("list"), "window").add({1, 2})
        store.get_map(MapStateDescriptor("map")).put("k", 1.5)
        store.get_value(ValueStateDescriptor("old", ttl=TTL)).update([number])
    operator = OperatorStateStore()
    operator.get_broadcast_state(MapStateDescriptor("rules")).put("a", Point(1))
    own = OperatorStateSnapshot().with_list("splits", ["a", ("b", 7)])
    timers = TimerSnapshot(128, {3: [(10, "a", VOID)]}, {4: [(5, "b", Point(1))]})
    return OperatorSnapshot(
        (store.snapshot(),), operator.snapshot(), {"timers": timers}, own, 12
    )


DATA = encode_snapshot(example(), DECLARED)


def read_all(data: bytes) -> None:
    """Read and restore everything there is."""
    found = decode_snapshot(data, DECLARED)
    store = new_store()
    for piece in found.keyed:
        for group in piece.key_groups:
            assert piece.key_groups[group]
        store.restore([piece])
    for timers in found.timers.values():
        for groups in (timers.event, timers.processing):
            assert all(groups[group] is not None for group in groups)
    OperatorStateStore().restore([found.operator])
    store.close()


def repaired(data: bytes) -> bytes:
    """Return the bytes with checksums that are right, as far as they can be found."""
    length, _, magic = _TAIL.unpack(data[-_TAIL.size :])
    end = len(data) - _TAIL.size - length
    if end < 6 or length <= 0:
        return data
    metadata = data[end : -_TAIL.size]
    try:
        described = msgspec.json.decode(metadata)
        metadata = msgspec.json.encode(_with_checksums(described, data))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass
    checksum = zlib.crc32(metadata, zlib.crc32(data[:6]))
    return data[:end] + metadata + _TAIL.pack(len(metadata), checksum, magic)


def _with_checksums(part: Any, data: bytes) -> Any:
    if isinstance(part, dict):
        return {name: _with_checksums(value, data) for name, value in part.items()}
    if not isinstance(part, list):
        return part
    is_place = len(part) == 3 and all(type(one) is int for one in part)
    if is_place and 0 <= part[0] <= part[0] + part[1] <= len(data):
        return [*part[:2], zlib.crc32(data[part[0] : part[0] + part[1]])]
    return [_with_checksums(one, data) for one in part]


def test_a_repaired_snapshot_is_the_same_and_can_be_read() -> None:
    assert repaired(DATA) == DATA
    read_all(DATA)
    assert decode_snapshot(DATA, DECLARED) == example()


def overwritten(change: Callable[[bytearray], None]) -> bytes:
    data = bytearray(DATA)
    change(data)
    return repaired(bytes(data))


@settings(max_examples=250, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, len(DATA) - 13), st.binary(min_size=1, max_size=4)),
        min_size=1,
        max_size=4,
    )
)
def test_only_declared_errors_come_out_whatever_was_changed(
    changes: list[tuple[int, bytes]],
) -> None:
    modules = set(sys.modules)

    def change(data: bytearray) -> None:
        for place, new in changes:
            data[place : place + len(new)] = new[: len(data) - place]

    with contextlib.suppress(CorruptStreamError, StateError):
        read_all(overwritten(change))
    assert set(sys.modules) == modules


@given(st.binary(max_size=200))
def test_only_declared_errors_come_out_of_any_bytes(data: bytes) -> None:
    for decode in (decode_snapshot, ObjectCodec().decode):
        for prefix in (b"", b"AMOS\0\1"):
            with contextlib.suppress(CorruptStreamError, StateError):
                decode(prefix + data)


def test_a_snapshot_that_is_cut_off_anywhere_is_refused() -> None:
    for length in range(len(DATA)):
        with pytest.raises(CorruptStreamError):
            read_all(DATA[:length])


def test_a_damaged_byte_is_noticed_wherever_it_is() -> None:
    for place in range(len(DATA)):
        damaged = bytearray(DATA)
        damaged[place] ^= 1
        with pytest.raises(CorruptStreamError):
            read_all(bytes(damaged))


@pytest.mark.parametrize("depth", [90, 5_000, 200_000])
def test_nothing_is_nested_so_deeply_that_reading_it_fails_otherwise(
    depth: int,
) -> None:
    for data in (b"\x91" * depth + b"\x01", _nested_extensions(min(depth, 5_000))):
        with contextlib.suppress(CorruptStreamError):
            ObjectCodec().decode(data)


def _nested_extensions(depth: int) -> bytes:
    data = b"\x01"
    for _ in range(depth):
        data = b"\x91" + data
        data = b"\xc9" + struct.pack(">Ib", len(data), 1) + data
    return data


def test_a_length_is_believed_only_if_there_is_as_much() -> None:
    for announced in (
        b"\xdd\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x05",
        b"\xc6\xff\xff\xff\xff",
    ):
        with pytest.raises(CorruptStreamError):
            ObjectCodec().decode(announced)


def test_a_class_that_a_snapshot_names_is_neither_imported_nor_made() -> None:
    data = DATA.replace(b"hostile_snapshots:Cart", b"hostile_snapshots:Crat")
    with pytest.raises(StateError, match="Crat, a class that the job does not"):
        read_all(repaired(data))
    with pytest.raises(StateError, match="Cart, a class that the job does not"):
        decode_snapshot(DATA, [Color, Point, Quote, Void])
