"""Stream elements over three kinds of values."""

from __future__ import annotations

from typing import Any

from aiomailbox.records.element_codec import ElementCodec, StreamElement
from aiomailbox.records.events import (
    InternalWatermark,
    LatencyMarker,
    RecordAttributes,
    StreamRecord,
    Watermark,
    WatermarkStatus,
)
from aiomailbox.records.serializers import (
    LONG_SERIALIZER,
    STRING_SERIALIZER,
    TupleSerializer,
)

FILE = "stream_elements"

CODECS = {
    "long": ElementCodec(LONG_SERIALIZER),
    "string": ElementCodec(STRING_SERIALIZER),
    "tuple2<string,long>": ElementCodec(
        TupleSerializer([STRING_SERIALIZER, LONG_SERIALIZER])
    ),
}


def _string(value: dict[str, str]) -> str:
    return bytes.fromhex(value["utf16"]).decode("utf-16-be", "surrogatepass")


def _value(kind: str, value: Any) -> Any:
    if kind == "long":
        return value
    if kind == "string":
        return _string(value)
    return _string(value[0]), value[1]


def _element(case: dict[str, Any]) -> StreamElement:
    match case["element"]:
        case "record":
            return StreamRecord(_value(case["type"], case["value"]), case["timestamp"])
        case "watermark":
            return Watermark(case["timestamp"])
        case "internal_watermark":
            return InternalWatermark(case["subpartition_index"], case["timestamp"])
        case "watermark_status":
            return WatermarkStatus(case["name"])
        case "latency_marker":
            return LatencyMarker(
                case["marked_time"], case["operator_id_hex"], case["subtask_index"]
            )
        case _:
            assert case["element"] == "record_attributes"
            return RecordAttributes(case["is_backlog"])


def run_case(case: dict[str, Any]) -> None:
    """Compare the bytes, and read them back."""
    codec = CODECS[case.get("type", "long")]
    element = _element(case)
    encoded = codec.encode(element)
    assert encoded.hex() == case["bytes"]
    assert codec.decode(encoded) == element
