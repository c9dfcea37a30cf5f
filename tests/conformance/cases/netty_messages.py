"""Messages as frames; each is read back whole and byte by byte."""

from __future__ import annotations

from typing import Any

import pytest

from aiomailbox.errors import CorruptStreamError
from aiomailbox.exchange.remote import wire as messages
from aiomailbox.exchange.remote.wire import (
    WireDecoder,
    encode_message,
    error_body,
    frame,
)
from aiomailbox.memory.buffer import DataType

FILE = "netty_messages"

SIMPLE = {
    "ResumeConsumption": (),
    "CancelPartitionRequest": (),
    "AckAllUserRecordsProcessed": (),
    "AddCredit": ("credit",),
    "BacklogAnnouncement": ("backlog",),
    "NewBufferSize": ("buffer_size",),
    "SegmentId": ("subpartition_id", "segment_id"),
}
ERROR = 1


class _Handler:
    """Keeps what was decoded, contents included."""

    def __init__(self) -> None:
        self.messages: list[messages.Message] = []
        self.content = bytearray()

    def open_body(self, header: messages.BufferResponse) -> memoryview:
        self.content = bytearray(header.size_bytes)
        return memoryview(self.content)

    def on_message(self, message: messages.Message) -> None:
        self.messages.append(message)


def _id(value: dict[str, Any]) -> bytes:
    halves = [
        value[half].to_bytes(8, "big", signed=True) for half in ("lower", "upper")
    ]
    joined = b"".join(halves)
    assert joined.hex() == value["hex"]
    return joined


def _partition_request(case: dict[str, Any]) -> messages.PartitionRequest:
    partition = case["partition"]
    address = messages.PartitionAddress(
        _id(partition["data_set_id"]),
        partition["partition_number"],
        _id(partition["execution_graph_id"]),
        _id(partition["job_vertex_id"]),
        partition["subtask_index"],
        partition["attempt_number"],
    )
    return messages.PartitionRequest(
        address,
        case["subpartition_start"],
        case["subpartition_end_inclusive"],
        _id(case["receiver"]),
        case["credit"],
    )


def _buffer_response(case: dict[str, Any]) -> messages.BufferResponse:
    data_type = DataType[case["data_type"]]
    assert data_type == case["data_type_ordinal"]
    assert case["num_of_partial_buffers"] == 0
    return messages.BufferResponse(
        _id(case["receiver"]),
        case["subpartition_id"],
        case["sequence_number"] % 2**32,
        case["backlog"],
        data_type,
        len(case["payload"]) // 2,
    )


def _message(case: dict[str, Any]) -> messages.Message:
    name = case["message"]
    if name == "CloseRequest":
        return messages.CloseRequest()
    if name == "PartitionRequest":
        return _partition_request(case)
    if name == "BufferResponse":
        return _buffer_response(case)
    numbers = [case[field] for field in SIMPLE[name]]
    message: messages.Message = getattr(messages, name)(*numbers, _id(case["receiver"]))
    return message


def _check_data_types(case: dict[str, Any]) -> None:
    assert len(DataType) == len(case["data_types"])
    for expected in case["data_types"]:
        data_type = DataType[expected["name"]]
        assert data_type == expected["ordinal"]
        for flag in ("is_buffer", "is_event", "has_priority"):
            assert getattr(data_type, flag) == expected[flag]
        assert data_type.is_blocking_upstream == expected["is_blocking_upstream"]
        assert data_type.requires_announcement == expected["requires_announcement"]


def _check_error(case: dict[str, Any]) -> None:
    """The frame around the cause; the cause itself, a Java object, is ours."""
    receiver = None if case["fatal"] else _id(case["receiver"])
    around = len(frame(ERROR, error_body(b"", receiver)))
    java = bytes.fromhex("aced0005").ljust(case["length"] - around, b"\0")
    encoded = frame(ERROR, error_body(java, receiver))
    assert len(encoded) == case["length"]
    assert encoded.hex().startswith(case["head"])
    assert encoded.hex().endswith(case["tail"])
    ours = messages.ErrorResponse(
        messages.RemoteCause("Error", case["cause"]), receiver
    )
    _check_decoding(encode_message(ours), ours, b"")


def _check_decoding(encoded: bytes, message: messages.Message, content: bytes) -> None:
    for size in (len(encoded), 1):
        handler = _Handler()
        decoder = WireDecoder(handler)
        for start in range(0, len(encoded), size):
            decoder.feed(encoded[start : start + size])
        assert decoder.is_between_frames
        assert handler.messages == [message]
        assert handler.content == content


def _check_refusal_of_compressed(recorded: str) -> None:
    """Flink may compress contents; here nobody does, and nobody would unpack them."""
    decoder = WireDecoder(_Handler())
    with pytest.raises(CorruptStreamError, match="marked as compressed"):
        decoder.feed(bytes.fromhex(recorded))


def run_case(case: dict[str, Any]) -> None:
    """Compare the frame, and read it back."""
    if case["message"] == "DataTypes":
        _check_data_types(case)
        return
    if case["message"] == "ErrorResponse":
        _check_error(case)
        return
    if case.get("is_compressed"):
        _check_refusal_of_compressed(case["bytes"])
        return
    message = _message(case)
    content = bytes.fromhex(case.get("payload", ""))
    encoded = encode_message(message)
    if "header_bytes" in case:
        assert encoded.hex() == case["header_bytes"]
    assert (encoded + content).hex() == case["bytes"]
    _check_decoding(encoded + content, message, content)
