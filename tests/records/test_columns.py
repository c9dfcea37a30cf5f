"""Runs of undeclared values by column: types come back exactly, classes only if entered."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import math
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, strategies as st

from aiomailbox.errors import CorruptStreamError, InvalidArgumentError, WrongTypeError
from aiomailbox.records.byte_reader import ByteReader
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.record_classes import RecordClasses
from aiomailbox.records.run import ListRun
from aiomailbox.records.run_columns import PLAIN_RECORDS, PLAIN_TUPLES, PythonSerializer


class Side(enum.Enum):
    """An enum of the user's."""

    BUY = "buy"
    SELL = "sell"


class Trade(NamedTuple):
    """A NamedTuple, with a field of a class that has to be known as well."""

    symbol: str
    price: float
    side: Side | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """A dataclass whose making has an effect that must not happen again."""

    number: int
    trades: list[Trade] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        object.__setattr__(self, "number", self.number + 1)


class Quote(msgspec.Struct, kw_only=True):
    """A struct."""

    bid: float
    order: Order | None = None


CLASSES = RecordClasses.found_in([dict[str, Quote]])
SERIALIZER = PythonSerializer(CLASSES)


def there_and_back(values: list[Any], serializer: Any = SERIALIZER) -> list[Any]:
    output = bytearray()
    serializer.write_many(values, output)
    source = ByteReader(output)
    found = serializer.read_many(source, len(values))
    source.expect_end("the values")
    return list(found)


def described(value: Any) -> Any:
    """A value with every type in it, and floats by their bits."""
    kind = type(value)
    if kind is float:
        return kind, "nan" if math.isnan(value) else value.hex()
    if kind in {tuple, list}:
        return kind, [described(item) for item in value]
    if kind is dict:
        return kind, [(described(key), described(item)) for key, item in value.items()]
    return kind, value


# UTF-8 carries no surrogates.
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
_SCALAR = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    _TEXT,
    st.binary(max_size=5),
    st.dates(),
)
_VALUE = st.recursive(
    _SCALAR,
    lambda inner: st.one_of(
        st.tuples(inner),
        st.tuples(inner, inner),
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(_TEXT, st.integers(0, 3)), inner, max_size=3),
    ),
    max_leaves=6,
)
_UNIFORM = _VALUE.flatmap(
    lambda value: st.lists(
        st.one_of(st.just(value), st.tuples(_VALUE, _SCALAR)), max_size=4
    )
)
_RUNS = st.one_of(
    _UNIFORM,
    st.lists(
        st.tuples(st.integers(), _TEXT, st.tuples(_SCALAR, _SCALAR)),
        max_size=6,
    ),
    st.lists(st.fixed_dictionaries({"a": _SCALAR, "b": _VALUE}), max_size=4),
    st.lists(_VALUE, max_size=6),
)


@given(_RUNS)
def test_values_come_back_as_they_were(values: list[Any]) -> None:
    found = there_and_back(values)
    assert described(found) == described(values)


@pytest.mark.parametrize(
    "values",
    [
        [(1, 2**63), (2, -(2**70))],
        [(True, 1, 1.0), (False, 0, -0.0)],
        [(math.nan, math.inf), (-0.0, -math.inf)],
        [(), ()],
        [(1,), (1, 2)],
        [(1, "a"), [1, "a"]],
        [{"a": 1, "b": True}, {"b": 2.0, "a": None}],
        [{1: 2}, {"1": 2}],
        [((((((1,),),),),),)] * 3,
        [(dt.date(2026, 1, 1), 1)] * 2,
        [],
    ],
)
def test_no_type_is_taken_for_another(values: list[Any]) -> None:
    assert described(there_and_back(values)) == described(values)


def test_a_run_of_tuples_says_no_types() -> None:
    codec = ElementCodec(PythonSerializer())
    run = ListRun([(i, "key", i * 0.5) for i in range(1000)], list(range(1000)))
    encoded = codec.encode(run)
    assert len(encoded) < 1000 * (1 + 3 + 4 + 9 + 8) + 50
    found = codec.decode(encoded)
    assert isinstance(found, ListRun)
    assert (found.values, found.timestamps) == (run.values, run.timestamps)


@pytest.mark.parametrize(
    "values", [[(1, "a", 0.5), (2, "b", -0.0)], [Trade("A", 1.5)] * 2]
)
def test_plain_rows_of_a_run_are_one_message(values: list[Any]) -> None:
    output = bytearray()
    SERIALIZER.write_many(values, output)
    encoded = msgspec.msgpack.encode([list(row) for row in values])
    assert bytes(output).endswith(bytes([len(encoded)]) + encoded)
    assert output[0] == (PLAIN_TUPLES if type(values[0]) is tuple else PLAIN_RECORDS)


@pytest.mark.parametrize("rows", [[[1]], [], [1, 2], {"a": 1}, ["ab", "cd"], [[1]] * 3])
def test_plain_rows_that_are_no_such_run_are_corrupt(rows: Any) -> None:
    with pytest.raises(CorruptStreamError):
        SERIALIZER.read_many(ByteReader(as_form(PLAIN_TUPLES, rows)), 2)


@pytest.mark.parametrize("rows", [[["A", 1.0]] * 2, [["A", 1.0, None, 1]] * 2, [1, 2]])
def test_rows_of_other_fields_than_the_class_has_are_corrupt(rows: Any) -> None:
    output = bytearray()
    SERIALIZER.write_many([Trade("A", 1.5)], output)
    name = bytes(output[1 : 2 + output[1]])
    encoded = msgspec.msgpack.encode(rows)
    content = bytes([PLAIN_RECORDS]) + name + bytes([len(encoded)]) + encoded
    with pytest.raises(CorruptStreamError):
        SERIALIZER.read_many(ByteReader(content), 2)


def as_form(form: int, content: Any) -> bytes:
    encoded = msgspec.msgpack.encode(content)
    return bytes([form, len(encoded)]) + encoded


def test_plain_columns_that_version_3_has_written_are_read() -> None:
    """Data in flight of an unaligned checkpoint may be as old as that."""
    columns = [[1, 2], ["a", "b"], [0.5, -0.0]]
    found = SERIALIZER.read_many(ByteReader(as_form(3, columns)), 2)
    assert described(found) == described([(1, "a", 0.5), (2, "b", -0.0)])
    name = CLASSES.of(Trade)
    assert name is not None
    head = bytes([4]) + as_form(0, name.name)[1:]
    content = head + as_form(0, [["A", "B"], [1.0, 2.0], [None, None]])[1:]
    assert SERIALIZER.read_many(ByteReader(content), 2) == [
        Trade("A", 1.0),
        Trade("B", 2.0),
    ]


@pytest.mark.parametrize(
    "columns",
    [[[1, 2], ["a"]], [[1, 2, 3]], [[1]], [], [1, 2], {"a": 1}, ["ab", "cd"]],
)
def test_plain_columns_that_are_no_such_run_are_corrupt(columns: Any) -> None:
    with pytest.raises(CorruptStreamError):
        SERIALIZER.read_many(ByteReader(as_form(3, columns)), 2)


def test_declared_classes_travel_whole_and_nested() -> None:
    trades = [Trade("A", 1.5, Side.BUY), Trade("B", math.inf)]
    orders = [Order(1, trades), Order(2)]
    quotes = [Quote(bid=0.5, order=orders[0]), Quote(bid=-0.0)]
    for values in (
        trades,
        orders,
        quotes,
        [(1, trades[0]), (2, trades[1])],
        [Side.SELL] * 2,
    ):
        found = there_and_back(values)
        assert found == values
        assert list(map(type, found)) == list(map(type, values))
    mixed = [trades[0], orders[0], quotes[0], {"side": Side.BUY}, None]
    assert there_and_back(mixed) == mixed
    output = bytearray()
    SERIALIZER.write(orders[0], output)
    assert SERIALIZER.read(ByteReader(output)) == orders[0]


def test_hints_lead_to_the_classes_of_fields() -> None:
    assert [CLASSES.of(kind) is not None for kind in (Quote, Order, Trade, Side)] == [
        True
    ] * 4
    assert len(CLASSES) == 4
    assert len(RecordClasses.found_in([int, None, "Quote", list])) == 0


def test_a_class_that_was_not_entered_is_refused_and_the_error_says_how() -> None:
    with pytest.raises(WrongTypeError, match="output_type="):
        there_and_back([Trade("A", 1.0)], PythonSerializer())
    output = bytearray()
    SERIALIZER.write_many([Trade("A", 1.0)], output)
    with pytest.raises(CorruptStreamError, match="Trade' was declared"):
        PythonSerializer().read_many(ByteReader(output), 1)
    nested = bytearray()
    SERIALIZER.write_many([[Trade("A", 1.0)]], nested)
    with pytest.raises(CorruptStreamError, match="Trade' was declared"):
        PythonSerializer().read_many(ByteReader(nested), 1)


def test_both_ends_can_tell_whether_they_know_the_same_classes() -> None:
    one, other = RecordClasses([Trade]), RecordClasses([Order])
    assert PythonSerializer(one).serializer_id != PythonSerializer(other).serializer_id
    again = PythonSerializer(RecordClasses([Trade]))
    assert PythonSerializer(one).serializer_id == again.serializer_id
    assert PythonSerializer().serializer_id == "python"


def test_only_records_can_be_entered_and_names_are_unique() -> None:
    with pytest.raises(WrongTypeError, match="not a NamedTuple"):
        RecordClasses([int])
    namesake = enum.Enum("Side", {"BUY": 1}, module=Side.__module__)
    with pytest.raises(InvalidArgumentError, match="two classes are called"):
        RecordClasses([Side, namesake])


@given(st.binary(max_size=40), st.integers(0, 5))
def test_other_bytes_are_values_or_corrupt(content: bytes, count: int) -> None:
    try:
        found = SERIALIZER.read_many(ByteReader(content), count)
    except CorruptStreamError:
        return
    assert len(found) == count


def test_every_cut_of_a_run_is_corrupt() -> None:
    output = bytearray()
    SERIALIZER.write_many([(1, Trade("A", 1.0)), (2, Trade("B", 2.0))], output)
    for end in range(len(output)):
        with pytest.raises(CorruptStreamError):
            SERIALIZER.read_many(ByteReader(output[:end]), 2)


def nested(levels: int, wrap: Any) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = wrap(value)
    return value


WRAPS = [
    lambda inner: [inner],
    lambda inner: (inner, inner) if inner == 1 else (inner, 1),
    lambda inner: {"key": inner},
    lambda inner: {1: inner},
    lambda inner: Trade("A", inner),
]


@pytest.mark.parametrize("wrap", WRAPS)
def test_what_is_as_deep_as_may_be_sent_can_be_read(wrap: Any) -> None:
    value = nested(100, wrap)
    assert there_and_back([value, 1]) == [value, 1]
    with pytest.raises(WrongTypeError, match="100 levels"):
        there_and_back([nested(101, wrap), 1])


@pytest.mark.parametrize(
    "value",
    [
        "\ud800",
        ("\ud800", ("a", 1)),
        ("a", ("\ud800",)),
        {"\ud800": 1},
        {1: "\ud800"},
        [["\ud800"]],
        Trade("\ud800", 1.0),
    ],
)
def test_a_text_that_is_none_is_refused_wherever_it_is(value: Any) -> None:
    for values in ([value], [value, value], [value, 1]):
        with pytest.raises(WrongTypeError, match="surrogates"):
            there_and_back(values)
    with pytest.raises(WrongTypeError, match="surrogates"):
        SERIALIZER.write(value, bytearray())


def test_an_int_that_could_not_be_read_is_not_written() -> None:
    largest = 1 << (8 * 64 * 1024 - 2)
    assert there_and_back([largest, -largest]) == [largest, -largest]
    with pytest.raises(WrongTypeError, match="65537 bytes"):
        there_and_back([largest << 1])


class Tick(msgspec.Struct):
    """A struct whose fields may be given in order."""

    symbol: str
    price: float
    size: int = 1


class Base(msgspec.Struct, kw_only=True):
    """Its field has to be named, and so comes behind those of a subclass."""

    number: int


class Named(Base):
    """One field in order, one by name."""

    symbol: str


class Renamed(msgspec.Struct, rename="camel", tag=True):
    """Called one way, written another."""

    bid_price: float
    ask_price: float


@pytest.mark.parametrize(
    "made",
    [
        Tick("a", 1.5, 7),
        Tick("b", 2.0),
        Named("a", number=3),
        Named("b", number=4),
        Renamed(1.0, 2.0),
    ],
    ids=repr,
)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_structs_come_back_whether_their_fields_have_an_order_or_not(
    made: Any, count: int
) -> None:
    serializer = PythonSerializer(RecordClasses([Tick, Named, Renamed]))
    found = there_and_back([made] * count, serializer)
    assert found == [made] * count
    assert {type(each) for each in found} == {type(made)}


def test_columns_of_structs_that_differ_in_length_are_corrupt() -> None:
    serializer = PythonSerializer(RecordClasses([Tick]))
    output = bytearray()
    serializer.write_many([Tick("a", 1.0), Tick("b", 2.0)], output)
    with pytest.raises(CorruptStreamError):
        serializer.read_many(ByteReader(output), 3)
