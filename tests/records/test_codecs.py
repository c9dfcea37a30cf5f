"""Serializers, element codec, event codec: round trips, and bytes that lie."""

from __future__ import annotations

import contextlib
import datetime as dt
import struct
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aiomailbox.errors import (
    CorruptStreamError,
    InvalidArgumentError,
    MissingExtraError,
    WrongTypeError,
)
from aiomailbox.records.byte_reader import ByteReader
from aiomailbox.records.element_codec import ElementCodec, decode_event, encode_event
from aiomailbox.records.events import (
    Alignment,
    CancelCheckpoint,
    CheckpointBarrier,
    EventAnnouncement,
    InternalWatermark,
    LatencyMarker,
    RecordAttributes,
    RuntimeEvent,
    SnapshotType,
    StreamRecord,
    Watermark,
    WatermarkEvent,
    WatermarkStatus,
)
from aiomailbox.records.python_types import PythonTypes
from aiomailbox.records.run import ListRun
from aiomailbox.records.run_columns import PythonSerializer
from aiomailbox.records.serializers import (
    BOOLEAN_SERIALIZER,
    BYTE_SERIALIZER,
    BYTES_SERIALIZER,
    DOUBLE_SERIALIZER,
    INT_SERIALIZER,
    LONG_SERIALIZER,
    STRING_SERIALIZER,
    ListSerializer,
    MapSerializer,
    NullableSerializer,
    TupleSerializer,
    read_java_utf,
    write_java_utf,
)
from aiomailbox.state.serializers import ObjectCodec

LONGS = st.integers(-(2**63), 2**63 - 1)
INTS = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(st.characters())
NESTED = MapSerializer(
    STRING_SERIALIZER,
    ListSerializer(
        TupleSerializer([LONG_SERIALIZER, NullableSerializer(BYTES_SERIALIZER)])
    ),
)
CODEC = ElementCodec(PythonSerializer(), operators=["source"])
READERS: list[Callable[[bytes], Any]] = [
    lambda data: NESTED.read(ByteReader(data)),
    lambda data: STRING_SERIALIZER.read(ByteReader(data)),
    lambda data: BOOLEAN_SERIALIZER.read(ByteReader(data)),
    lambda data: PythonSerializer().read(ByteReader(data)),
    lambda data: read_java_utf(ByteReader(data)),
    CODEC.decode,
    decode_event,
]


def round_trip(serializer: Any, value: Any) -> Any:
    output = bytearray()
    serializer.write(value, output)
    reader = ByteReader(output)
    found = serializer.read(reader)
    reader.expect_end("the value")
    return found


@given(st.dictionaries(TEXT, st.lists(st.tuples(LONGS, st.none() | st.binary()))))
def test_nested_values_come_back_as_they_went(value: dict[str, Any]) -> None:
    assert round_trip(NESTED, value) == value


@given(TEXT)
def test_strings_come_back_as_they_went(text: str) -> None:
    assert round_trip(STRING_SERIALIZER, text) == text
    output = bytearray()
    write_java_utf(text, output)
    assert read_java_utf(ByteReader(output)) == text


@given(st.floats())
def test_doubles_keep_every_bit(value: float) -> None:
    found = round_trip(DOUBLE_SERIALIZER, value)
    assert struct.pack(">d", found) == struct.pack(">d", value)


@pytest.mark.parametrize(
    ("serializer", "value", "error"),
    [
        (INT_SERIALIZER, 2**31, InvalidArgumentError),
        (LONG_SERIALIZER, -(2**63) - 1, InvalidArgumentError),
        (BYTE_SERIALIZER, 128, InvalidArgumentError),
        (LONG_SERIALIZER, "1", WrongTypeError),
        (DOUBLE_SERIALIZER, "1", WrongTypeError),
        (BOOLEAN_SERIALIZER, 1, WrongTypeError),
        (STRING_SERIALIZER, b"a", WrongTypeError),
        (BYTES_SERIALIZER, "a", WrongTypeError),
        (TupleSerializer([LONG_SERIALIZER]), (1, 2), WrongTypeError),
    ],
)
def test_what_does_not_fit_is_refused(
    serializer: Any, value: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        serializer.write(value, bytearray())


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.uuids()
    | st.datetimes()
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.complex_numbers(allow_nan=False)
)
HASHABLE = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3)
    ),
    max_leaves=4,
)
VALUES = st.recursive(
    HASHABLE,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(HASHABLE, inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.sets(HASHABLE, max_size=3)
    ),
    max_leaves=5,
)
ZONED = st.datetimes(
    min_value=dt.datetime(1900, 1, 1),
    max_value=dt.datetime(2100, 1, 1),
    timezones=st.timezones() | st.just(dt.UTC),
)


@given(ZONED)
def test_time_zones_and_folds_are_kept(value: dt.datetime) -> None:
    found = round_trip(PythonSerializer(), value)
    assert repr(found) == repr(value)


@given(VALUES)
def test_undeclared_values_keep_their_types(value: Any) -> None:
    found = round_trip(PythonSerializer(), value)
    assert found == value
    assert repr(found) == repr(value) or isinstance(
        value, set | frozenset | tuple | dict | list
    )
    assert type(found) is type(value)


def test_a_class_of_the_users_own_has_to_be_declared() -> None:
    with pytest.raises(WrongTypeError, match="Make it a dataclass, a NamedTuple"):
        PythonTypes().prepare(InternalWatermark(0, 0))


def values_of_spark() -> list[Any]:
    from pyspark.sql.types import Geography, Geometry, VariantVal

    point = struct.pack("<BIdd", 1, 1, 2.0, 3.0)
    return [
        VariantVal.parseJson('{"a": [1, null]}'),
        Geometry(point, 0),
        Geography(point, 4326),
    ]


def test_values_of_sparks_classes_come_back_as_what_they_are() -> None:
    values = values_of_spark()
    nested = {"rows": [(value, [value]) for value in values]}
    output = bytearray()
    PythonSerializer().write_many(values, output)
    found = PythonSerializer().read_many(ByteReader(output), len(values))
    found += round_trip(PythonSerializer(), nested)["rows"][2][1]
    found.append(ObjectCodec().decode(ObjectCodec().encode(values[0])))
    for value, expected in zip(found, [*values, values[2], values[0]], strict=True):
        assert type(value) is type(expected)
        assert vars(value) == vars(expected)


def test_only_those_of_sparks_classes_are_made_that_are_known() -> None:
    """A peer cannot name another class, and an extra that is missing is named."""
    output = bytearray()
    PythonSerializer().write(values_of_spark()[0], output)
    renamed = output.replace(b"VariantVal", b"StructType")
    with pytest.raises(CorruptStreamError, match=r"no value of Spark.*StructType"):
        PythonSerializer().read(ByteReader(renamed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pyspark.sql.types", None)
        with pytest.raises(MissingExtraError, match="a VariantVal needs"):
            PythonSerializer().read(ByteReader(output))


def test_a_value_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(WrongTypeError):
        PythonSerializer().write(endless, bytearray())


@pytest.mark.parametrize("timestamp", [2**63, -(2**63) - 1, None, 1.5])
def test_a_time_that_is_none_is_refused_by_name(timestamp: Any) -> None:
    codec = ElementCodec(PythonSerializer())
    with pytest.raises(WrongTypeError, match="timestamps"):
        codec.encode(ListRun(["a", "b"], [1, timestamp]))


ELEMENTS = (
    st.builds(StreamRecord, VALUES, st.none() | LONGS)
    | st.builds(Watermark, LONGS)
    | st.builds(InternalWatermark, INTS, LONGS)
    | st.sampled_from(WatermarkStatus)
    | st.builds(LatencyMarker, LONGS, st.just("source"), INTS)
    | st.builds(RecordAttributes, st.booleans())
)


@given(ELEMENTS)
def test_every_element_comes_back_as_it_went(element: Any) -> None:
    """NET-88."""
    assert CODEC.decode(CODEC.encode(element)) == element


@given(st.lists(st.tuples(VALUES, LONGS)), st.booleans())
def test_a_run_comes_back_as_it_went(records: list[Any], timed: bool) -> None:
    values = [value for value, _ in records]
    times = [time for _, time in records] if timed else None
    found = CODEC.decode(CODEC.encode(ListRun(values, times)))
    assert isinstance(found, ListRun)
    assert (found.values, found.timestamps) == (values, times)


def test_a_latency_marker_of_a_stranger_is_named_by_its_digits() -> None:
    marker = LatencyMarker(1, "elsewhere", 0)
    found = CODEC.decode(CODEC.encode(marker))
    assert isinstance(found, LatencyMarker)
    assert len(found.operator) == 32


def test_an_unknown_tag_is_a_corrupt_stream() -> None:
    """NET-88."""
    with pytest.raises(CorruptStreamError, match="tag 7"):
        CODEC.decode(b"\x07")


def test_a_serializer_that_reads_less_than_was_written_is_found_out() -> None:
    with pytest.raises(CorruptStreamError, match="reads less"):
        ElementCodec(INT_SERIALIZER).decode(
            ElementCodec(LONG_SERIALIZER).encode(StreamRecord(1))
        )


def test_a_serializer_that_reads_more_than_was_written_is_found_out() -> None:
    """NET-89."""
    with pytest.raises(CorruptStreamError, match="reads more"):
        ElementCodec(LONG_SERIALIZER).decode(
            ElementCodec(INT_SERIALIZER).encode(StreamRecord(1))
        )


BARRIERS = st.builds(
    CheckpointBarrier,
    LONGS,
    LONGS,
    st.sampled_from(
        [Alignment.AT_LEAST_ONCE, Alignment.ALIGNED, Alignment.FORCED_ALIGNED]
    ),
    st.sampled_from(SnapshotType),
    LONGS,
    st.none() | st.binary(max_size=100),
) | st.builds(CheckpointBarrier, LONGS, LONGS, st.just(Alignment.UNALIGNED))
EVENTS = (
    BARRIERS
    | st.builds(CancelCheckpoint, LONGS)
    | st.builds(EventAnnouncement, BARRIERS, INTS)
    | st.builds(WatermarkEvent, TEXT, LONGS | st.booleans(), st.booleans())
)


@given(EVENTS, st.booleans())
def test_every_event_comes_back_as_it_went(event: RuntimeEvent, padded: bool) -> None:
    assert decode_event(encode_event(event, padded=padded)) == event


def test_what_follows_an_event_has_to_be_zero() -> None:
    with pytest.raises(CorruptStreamError, match="not zero"):
        decode_event(encode_event(CancelCheckpoint(1)) + b"\0\1")


def test_announcements_do_not_nest() -> None:
    twice = EventAnnouncement(EventAnnouncement(CancelCheckpoint(1), 1), 2)
    with pytest.raises(CorruptStreamError, match="announces"):
        decode_event(encode_event(twice))


@pytest.mark.parametrize("read", READERS)
@given(data=st.binary(max_size=200))
def test_random_bytes_are_a_corrupt_stream_at_worst(
    read: Callable[[bytes], Any], data: bytes
) -> None:
    with contextlib.suppress(CorruptStreamError):
        read(data)


@given(ELEMENTS, st.data())
def test_a_cut_or_flipped_element_is_a_corrupt_stream_at_worst(
    element: Any, data: st.DataObject
) -> None:
    encoded = bytearray(CODEC.encode(element))
    with pytest.raises(CorruptStreamError):
        CODEC.decode(encoded[: data.draw(st.integers(0, len(encoded) - 1))])
    place = data.draw(st.integers(0, len(encoded) - 1))
    encoded[place] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(CorruptStreamError):
        CODEC.decode(encoded)


def test_a_count_that_cannot_be_is_refused_before_anything_is_read() -> None:
    for count in ("00000005", "ffffffff"):
        with pytest.raises(CorruptStreamError, match="elements cannot be"):
            ByteReader(bytes.fromhex(count) + bytes(4)).read_count("elements")
    assert ByteReader(bytes.fromhex("0000000100000000")).read_count("longs", 4) == 1


def test_lengths_that_lie_reserve_nothing() -> None:
    huge = bytes.fromhex("7fffffff")
    lies = [
        (lambda data: NESTED.read(ByteReader(data)), huge),
        (lambda data: BYTES_SERIALIZER.read(ByteReader(data)), huge),
        (
            lambda data: STRING_SERIALIZER.read(ByteReader(data)),
            b"\xff\xff\xff\xff\x0f",
        ),
        (CODEC.decode, b"\x40" + huge + b"\x01"),
        (CODEC.decode, b"\x01\x05\xdd" + huge),
    ]
    tracemalloc.start()
    try:
        for read, data in lies:
            with pytest.raises(CorruptStreamError):
                read(data)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
