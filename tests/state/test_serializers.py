"""Laws of what state is written as, and of what newer classes read."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import pickle
import sys
import uuid
import zoneinfo
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, strategies as st

from aiomailbox.errors import CorruptStreamError, StateError, WrongTypeError
from aiomailbox.keygroups.assignment import KeyGroupRange
from aiomailbox.operators.aggregates.compiled import result_type
from aiomailbox.operators.snapshots.codec import decode_snapshot, encode_snapshot
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.records.record_classes import record_class
from aiomailbox.state.backends import HeapStateStore
from aiomailbox.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from aiomailbox.state.operator_state import OperatorStateSnapshot, OperatorStateStore
from aiomailbox.state.schema import class_schema, type_options
from aiomailbox.state.serializers import (
    ObjectSerializer,
    PickleSerializer,
    StateClasses,
    declared_classes,
)
from aiomailbox.testing import ManualClock
from tests.state.kept import found as found_keyed, kept as keyed_bytes


class Color(enum.Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: float = 0.0


@dataclass(frozen=True, slots=True)
class Trade:
    price: Decimal
    at: dt.datetime
    where: Point


class Quote(msgspec.Struct):
    bid: int
    tags: tuple[str, ...] = ()


@dataclass
class Account:
    owner: str
    amount: int


CLASSES = (Color, Trade, Quote, Account)

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
AWARE = dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=BERLIN)


@pytest.mark.parametrize(
    "value",
    [
        1,
        -(2**70),
        [2**70, 1],
        1.5,
        "ü",
        b"\x00",
        True,
        None,
        (1, (2, "a")),
        [[1], {"a": (1,)}],
        {("a", 1): 2, None: 3},
        {1: 2},
        {1, 2},
        frozenset({"a"}),
        Decimal("1.10"),
        uuid.UUID(int=7),
        dt.datetime(2024, 1, 1, 12),
        AWARE,
        dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
        dt.date(2024, 2, 29),
        dt.timedelta(days=-1, microseconds=3),
        Color.RED,
        Point(1),
        Trade(Decimal(1), AWARE, Point(1, 2.0)),
        Quote(1, ("a",)),
        [Account("a", 1)],
    ],
)
def test_a_value_comes_back_equal_and_of_its_type(value: Any) -> None:
    serializer = ObjectSerializer()
    data = serializer.encode(value)
    classes = StateClasses(declared_classes(CLASSES))
    classes.expect("s", serializer.codec.classes.schemas())
    for reader in (serializer, ObjectSerializer(classes)):
        found = reader.decode(data)
        assert (found, type(found)) == (value, type(value))
    if value is AWARE:
        assert (found.tzinfo, found.fold) == (BERLIN, 1)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)
KEYS = st.integers() | st.text(max_size=3) | st.tuples(st.integers(), st.booleans())
VALUES = st.recursive(
    LEAVES | st.text(max_size=4) | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=8,
)


@given(VALUES)
def test_nested_values_come_back_exactly(value: Any) -> None:
    serializer = ObjectSerializer()
    assert repr(serializer.decode(serializer.encode(value))) == repr(value)


def test_an_unknown_type_is_refused_with_what_to_do() -> None:
    class Opaque:
        pass

    with pytest.raises(StateError, match=r"Opaque.*dataclass.*PickleSerializer"):
        ObjectSerializer().encode([Opaque()])


@pytest.mark.parametrize(
    "name",
    ["os:system", "subprocess:Popen", "builtins:eval", "antigravity:x", __name__],
)
def test_bytes_cannot_name_what_was_not_declared(name: str) -> None:
    class Mine(NamedTuple):
        command: str

    Mine.__module__, _, Mine.__qualname__ = name.partition(":")
    data = ObjectSerializer().encode(Mine("true"))
    for classes in (None, StateClasses({}), StateClasses(declared_classes([Point]))):
        with pytest.raises(CorruptStreamError, match=r"no class .* was declared"):
            ObjectSerializer(classes).decode(data)
    assert "antigravity" not in sys.modules


def test_what_nobody_could_read_is_not_written() -> None:
    store = HeapStateStore(128, KeyGroupRange(0, 127), ManualClock())
    store.table(ValueStateDescriptor("account")).put("a", Account("a", 1))
    with pytest.raises(StateError, match="the job does not declare"):
        keyed_bytes(store.snapshot(), [Point])
    assert keyed_bytes(store.snapshot(), [dict[str, Account]])


def test_objects_that_are_nested_without_end_are_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(StateError, match="nested too deeply"):
        ObjectSerializer().encode(value)


def cut_with(new_store: Any, value: Any, **options: Any) -> bytes:
    store = new_store()
    store.set_current_key("a")
    store.get_value(ValueStateDescriptor("account", **options)).update(value)
    return keyed_bytes(store.snapshot())


def test_a_cut_can_be_read_by_either_store(new_store: Any) -> None:
    before = new_store()
    before.table(ValueStateDescriptor("v", int)).put("a", 1)
    before.namespaced(MapStateDescriptor("m")).put("b", Point(1), {"x": (1, 2)})
    after = new_store()
    data = keyed_bytes(before.snapshot())
    after.restore([found_keyed(data, classes=[Point])])
    assert after.table(ValueStateDescriptor("v", int)).get("a") == 1
    found = after.namespaced(MapStateDescriptor("m")).get("b", Point(1))
    assert found == {"x": (1, 2)}
    assert after.snapshot() == before.snapshot()


def evolve(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> type:
    """Put a newer class in the place of `Account`."""
    options = [
        (name, *(kind if isinstance(kind, tuple) else (kind,)))
        for name, kind in fields.items()
    ]
    newer = dataclasses.make_dataclass("Account", options)
    newer.__module__ = __name__
    monkeypatch.setattr(sys.modules[__name__], "Account", newer)
    return newer


def test_added_fields_with_defaults_and_wider_types_load(
    new_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = cut_with(new_store, Account("a", 1))
    default = (int | None, dataclasses.field(default=None))
    newer = evolve(monkeypatch, amount=int | None, owner=str, limit=default)
    after = new_store()
    after.restore([found_keyed(data, classes=[newer])])
    after.set_current_key("a")
    found = after.get_value(ValueStateDescriptor("account", newer)).value()
    assert found == newer(1, "a", None)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"owner": str, "amount": str}, r"'account'.*'amount'.*int.*cannot.*str"),
        ({"owner": str, "amount": int, "limit": int}, r"'account'.*'limit'.*default"),
        ({"owner": str}, r"'account'.*'amount'.*is missing now"),
    ],
)
def test_fields_that_do_not_fit_are_refused_by_name(
    new_store: Any, monkeypatch: pytest.MonkeyPatch, fields: Any, said: str
) -> None:
    data = cut_with(new_store, Account("a", 1))
    newer = evolve(monkeypatch, **fields)
    with pytest.raises(StateError, match=said):
        found_keyed(data, classes=[newer])


def test_a_class_that_was_not_declared_is_named_with_its_state(new_store: Any) -> None:
    data = cut_with(new_store, Account("a", 1))
    with pytest.raises(
        StateError, match=r"'account' .*Account.*a class that the job does not"
    ):
        found_keyed(data)


def test_a_type_that_changed_is_refused_after_a_restore(new_store: Any) -> None:
    data = cut_with(new_store, 1, type_=int)
    after = new_store()
    after.restore([found_keyed(data)])
    after.get_value(ValueStateDescriptor("account", int | None))
    with pytest.raises(StateError, match=r"written as None \| int.* read as str"):
        after.get_value(ValueStateDescriptor("account", str))


def test_pickle_is_named_and_read_only_when_allowed(new_store: Any) -> None:
    data = cut_with(new_store, range(3), serializer=PickleSerializer())
    assert b'"serializer":"pickle/5"' in data
    with pytest.raises(StateError, match="'account' was pickled"):
        found_keyed(data)
    after = new_store()
    after.restore([found_keyed(data, allow_pickled_state=True)])
    with pytest.raises(StateError, match="was written by serializer 'pickle/5'"):
        after.get_value(ValueStateDescriptor("account"))
    pickled = ValueStateDescriptor("account", serializer=PickleSerializer())
    after.set_current_key("a")
    assert after.get_value(pickled).value() == range(3)


def test_damaged_bytes_are_refused(new_store: Any) -> None:
    data = cut_with(new_store, 1)
    for damaged in (b"", data[:-1], data[:8] + b"?" + data[9:], b"X" + data[1:]):
        with pytest.raises(CorruptStreamError):
            dict(found_keyed(damaged).key_groups)
    newer = data[:5] + b"\x09" + data[6:]
    with pytest.raises(CorruptStreamError, match="version 9"):
        found_keyed(newer)


def test_types_are_sets_of_alternatives() -> None:
    assert type_options(str | int) == type_options(int | str) == ("int", "str")
    assert type_options(dict[str, list[int | None]]) == ("dict[str, list[None | int]]",)
    assert class_schema(Point) == {"x": (("int",), True), "y": (("float",), False)}


def through_bytes(*values: Any, classes: Any = ()) -> list[Any]:
    own = OperatorStateSnapshot().with_list("held", values)
    data = encode_snapshot(OperatorSnapshot(own=own), classes)
    return decode_snapshot(data, classes).own.elements("held")


def test_records_made_from_field_names_need_no_declaration() -> None:
    values = [
        result_type(("count", "total"))(1, 2.5),
        record_class(("x", "y"))(1, "a"),
        record_class(())(),
    ]
    found = through_bytes(*values)
    assert found == values
    assert [type(one) for one in found] == [type(one) for one in values]


def test_the_newest_of_two_classes_with_one_name_does_not_matter() -> None:
    def account() -> type:
        return dataclasses.make_dataclass("Account", ["n"], namespace={})

    first, second = account(), account()
    first.__module__ = second.__module__ = "notebook"
    (found,) = through_bytes(first(1), classes=[first, second])
    assert type(found) is first
    with pytest.raises(StateError, match="the job does not declare"):
        through_bytes(second(1), classes=[first, second])


class Reversed:
    """Writes a list of texts in a way of its own."""

    id = "reversed/1"

    def encode(self, content: Any) -> bytes:
        return "\n".join(content[::-1]).encode()

    def decode(self, data: bytes) -> Any:
        return data.decode().split("\n")[::-1]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the serializers that descriptors have given, none at first."""
    known: dict[str, Any] = {}
    monkeypatch.setattr("aiomailbox.state.serializers._GIVEN", known)
    return known


def test_a_serializer_of_the_users_writes_and_reads(
    new_store: Any, given: dict[str, Any]
) -> None:
    data = cut_with(new_store, ["a", "b"], serializer=Reversed())
    assert b"b\na" in data
    given.clear()
    pickled = pickle.dumps(ValueStateDescriptor("account", serializer=Reversed()))
    given.clear()
    with pytest.raises(StateError, match=r"'account' .*'reversed/1'.*no descriptor"):
        found_keyed(data)
    descriptor = pickle.loads(pickled)
    after = new_store()
    after.restore([found_keyed(data)])
    after.set_current_key("a")
    assert after.get_value(descriptor).value() == ["a", "b"]
    again = new_store()
    again.restore([found_keyed(keyed_bytes(after.snapshot()))])
    again.set_current_key("a")
    assert again.get_value(descriptor).value() == ["a", "b"]
    with pytest.raises(StateError, match="written by serializer 'reversed/1'"):
        again.get_value(ValueStateDescriptor("account"))


def test_lists_without_keys_are_written_by_serializers_of_the_users(
    given: dict[str, Any],
) -> None:
    descriptor = ListStateDescriptor("lines", serializer=Reversed())
    store = OperatorStateStore()
    store.get_list_state(descriptor).add(["a", "b"])
    data = encode_snapshot(OperatorSnapshot(operator=store.snapshot()))
    given.clear()
    with pytest.raises(StateError, match=r"'lines' .*'reversed/1'.*no descriptor"):
        decode_snapshot(data)
    given[Reversed.id] = Reversed()
    after = OperatorStateStore()
    after.restore([decode_snapshot(data).operator])
    assert after.get_list_state(descriptor).get() == [["a", "b"]]


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({}, "has no id"),
        ({"id": 7}, "has no id"),
        ({"id": "msgpack/2"}, "is the id of another serializer"),
        ({"id": "x/1", "encode": bytes}, "no method decode"),
    ],
)
def test_what_is_no_serializer_is_refused(members: dict[str, Any], said: str) -> None:
    serializer: Any = type("Wrong", (), members)()
    with pytest.raises(WrongTypeError, match=said):
        ListStateDescriptor("lines", serializer=serializer)


class Exhausted(Reversed):
    """Raises what would end a loop, where it is not caught."""

    def decode(self, data: bytes) -> Any:
        raise StopIteration


def test_a_serializer_that_raises_stop_iteration_loses_no_entries(
    new_store: Any, given: dict[str, Any]
) -> None:
    data = cut_with(new_store, ["a", "b"], serializer=Reversed())
    given[Reversed.id] = Exhausted()
    with pytest.raises((StopIteration, RuntimeError)):
        new_store().restore([found_keyed(data)])
