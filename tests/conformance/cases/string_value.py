"""Strings in their encoding, written and read back."""

from __future__ import annotations

import hashlib
from typing import Any

from aiomailbox.records.byte_reader import ByteReader
from aiomailbox.records.serializers import STRING_SERIALIZER, read_string, write_string

FILE = "string_value"


def _text(value: dict[str, Any]) -> str | None:
    if "repeat_utf16" in value:
        units = value["repeat_utf16"] * value["count"]
    elif value["utf16"] is None:
        return None
    else:
        units = value["utf16"]
    return bytes.fromhex(units).decode("utf-16-be", "surrogatepass")


def run_case(case: dict[str, Any]) -> None:
    """Compare the bytes, and read them back."""
    text = _text(case["value"])
    output = bytearray()
    write_string(text, output)
    assert len(output) == case["length"]
    assert hashlib.sha256(output).hexdigest() == case["sha256"]
    assert output[:32].hex() == case["head"]
    if case["bytes"] is not None:
        assert output.hex() == case["bytes"]
    reader = ByteReader(output)
    assert read_string(reader) == text
    assert reader.remaining == 0
    if text is not None:
        again = bytearray()
        STRING_SERIALIZER.write(text, again)
        assert again == output
