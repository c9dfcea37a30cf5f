"""Serializers of single values and of values made of others."""

from __future__ import annotations

import struct
from typing import Any

from aiomailbox.records.byte_reader import ByteReader
from aiomailbox.records.serializers import (
    BOOLEAN_SERIALIZER,
    BYTE_SERIALIZER,
    BYTES_SERIALIZER,
    DOUBLE_SERIALIZER,
    FLOAT_SERIALIZER,
    INT_SERIALIZER,
    LONG_SERIALIZER,
    SHORT_SERIALIZER,
    STRING_SERIALIZER,
    ListSerializer,
    MapSerializer,
    NullableSerializer,
    SerializedTimer,
    SingletonSerializer,
    TimerSerializer,
    TimeWindowSerializer,
)
from aiomailbox.windowing.time_window import GlobalWindow, TimeWindow

FILE = "basic_serializers"

WINDOW = TimeWindowSerializer(TimeWindow)
SERIALIZERS: dict[str, Any] = {
    "IntSerializer": INT_SERIALIZER,
    "LongSerializer": LONG_SERIALIZER,
    "ShortSerializer": SHORT_SERIALIZER,
    "ByteSerializer": BYTE_SERIALIZER,
    "BooleanSerializer": BOOLEAN_SERIALIZER,
    "DoubleSerializer": DOUBLE_SERIALIZER,
    "FloatSerializer": FLOAT_SERIALIZER,
    "BytePrimitiveArraySerializer": BYTES_SERIALIZER,
    "ListSerializer<Long>": ListSerializer(LONG_SERIALIZER),
    "MapSerializer<String,Long>": MapSerializer(STRING_SERIALIZER, LONG_SERIALIZER),
    "NullableSerializer<Long>(padNull=false)": NullableSerializer(LONG_SERIALIZER),
    "NullableSerializer<Long>(padNull=true)": NullableSerializer(LONG_SERIALIZER, 8),
    "TimeWindow.Serializer": WINDOW,
    "VoidNamespaceSerializer": SingletonSerializer(None),
    "GlobalWindow.Serializer": SingletonSerializer(GlobalWindow.GLOBAL),
    "TimerSerializer<String,TimeWindow>": TimerSerializer(STRING_SERIALIZER, WINDOW),
}


def _value(name: str, value: Any) -> Any:
    if name in {"DoubleSerializer", "FloatSerializer"}:
        bits = bytes.fromhex(value["raw_bits"])
        return struct.unpack(">d" if len(bits) == 8 else ">f", bits)[0]
    if name == "BytePrimitiveArraySerializer":
        return bytes.fromhex(value)
    if name == "MapSerializer<String,Long>":
        return dict(value)
    if name == "TimeWindow.Serializer":
        return TimeWindow(*value)
    if name == "GlobalWindow.Serializer":
        return GlobalWindow.GLOBAL
    if name == "TimerSerializer<String,TimeWindow>":
        namespace = TimeWindow(*value["namespace"])
        return SerializedTimer(value["timestamp"], value["key"], namespace)
    return value


def run_case(case: dict[str, Any]) -> None:
    """Compare the bytes, read them back, and write them again."""
    name = case["serializer"]
    serializer, value = SERIALIZERS[name], _value(name, case["value"])
    output = bytearray()
    serializer.write(value, output)
    assert output.hex() == case["bytes"]
    reader = ByteReader(output)
    found = serializer.read(reader)
    assert reader.remaining == 0
    assert type(found) is type(value)
    assert found == value or found != found
    again = bytearray()
    serializer.write(found, again)
    assert again == output
