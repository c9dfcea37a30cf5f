"""Messages as frames: ``length:int32 | magic:int32 | id:int8 | body``, big-endian.

Theory of operation: the length counts the whole frame. Ids 0 to 11 and their layouts
are Flink's; 64 and above are ours. Each id knows how long its body may be, so that a
frame is refused by its first nine bytes, before anything is set aside for it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from aiomailbox.errors import CorruptStreamError, InvalidArgumentError, WrongTypeError
from aiomailbox.exchange.remote.bodies import (
    CAUSE_BYTES_MAX,
    HELLO_BYTES_MAX,
    HELLO_BYTES_MIN,
    ID_BYTES,
    read_error,
    read_hello,
    read_partition_request,
    write_error,
    write_hello,
    write_partition_request,
)
from aiomailbox.exchange.remote.messages import (
    AckAllUserRecordsProcessed,
    AddCredit,
    BacklogAnnouncement,
    BufferResponse,
    CancelPartitionRequest,
    CloseRequest,
    ErrorResponse,
    Hello,
    HelloProof,
    Message,
    NewBufferSize,
    PartitionRequest,
    ResumeConsumption,
    SegmentId,
)
from aiomailbox.memory.data_type import DataType
from aiomailbox.records.byte_reader import ByteReader

__all__ = [
    "BUFFER_FRAME_OVERHEAD_BYTES",
    "BUFFER_HEADER_BYTES",
    "FRAME_HEADER",
    "MAGIC",
    "FrameLayout",
    "decode_body",
    "decode_buffer_header",
    "encode_buffer_header",
    "encode_message",
    "frame",
    "frame_layout",
]

MAGIC: Final = 0xBADC0FFE
FRAME_HEADER: Final = struct.Struct(">iIb")
_BUFFER_HEADER: Final = struct.Struct(">16siiIibbi")
BUFFER_HEADER_BYTES: Final = _BUFFER_HEADER.size
BUFFER_FRAME_OVERHEAD_BYTES: Final = FRAME_HEADER.size + BUFFER_HEADER_BYTES
_BUFFER_RESPONSE: Final = 0
_DATA_TYPES: Final = tuple(DataType)


class FrameLayout(NamedTuple):
    """How long the body of a frame may be, and what reads and writes it."""

    body_bytes_min: int
    body_bytes_max: int
    read: Callable[[ByteReader], Message]
    write: Callable[[Any, bytearray], None]


def encode_message(message: Message) -> bytes:
    """Return a message as one frame; of a buffer only what goes before its content.

    Raises:
        InvalidArgumentError: If a field does not fit.
        WrongTypeError: If it is no message.

    Example:
        >>> encode_message(AddCredit(1, bytes(16))).hex()
        '0000001dbadc0ffe060000000100000000000000000000000000000000'
    """
    if isinstance(message, BufferResponse):
        return encode_buffer_header(message)
    number = _NUMBERS.get(type(message))
    if number is None:
        raise WrongTypeError("message", f"{message!r} is not a message")
    body = bytearray()
    try:
        _LAYOUTS[number].write(message, body)
    except struct.error as error:
        raise InvalidArgumentError("message", f"{message!r}: {error}") from error
    return frame(number, body)


def frame(number: int, body: bytes | bytearray) -> bytes:
    """Return a frame around a body."""
    return FRAME_HEADER.pack(FRAME_HEADER.size + len(body), MAGIC, number) + body


def encode_buffer_header(message: BufferResponse) -> bytes:
    """Return what goes before a buffer's content: 47 bytes.

    Raises:
        InvalidArgumentError: If a field does not fit.
    """
    size_bytes = message.size_bytes
    header = FRAME_HEADER.pack(
        BUFFER_FRAME_OVERHEAD_BYTES + size_bytes, MAGIC, _BUFFER_RESPONSE
    )
    try:
        # The third field counts partial buffers of a merged one: there are none.
        return header + _BUFFER_HEADER.pack(
            _checked_id(message.receiver),
            message.subpartition,
            0,
            message.sequence_number,
            message.backlog,
            message.data_type,
            message.compressed,
            size_bytes,
        )
    except struct.error as error:
        raise InvalidArgumentError("message", f"{message!r}: {error}") from error


def frame_layout(number: int) -> FrameLayout | None:
    """Return the layout of an id, None for an unknown one; buffers have none."""
    return _LAYOUTS.get(number)


def decode_buffer_header(header: memoryview, body_bytes: int) -> BufferResponse:
    """Return a buffer's header.

    Args:
        header: `BUFFER_HEADER_BYTES` bytes.
        body_bytes: What the frame's length leaves after its first nine bytes.

    Raises:
        CorruptStreamError: If it contradicts itself or the frame.
    """
    (
        receiver,
        subpartition,
        partial,
        sequence_number,
        backlog,
        kind,
        compressed,
        size,
    ) = _BUFFER_HEADER.unpack(header)
    if size < 0 or size != body_bytes - BUFFER_HEADER_BYTES:
        raise CorruptStreamError(
            f"a buffer of {size} bytes is in a frame with room for "
            f"{body_bytes - BUFFER_HEADER_BYTES}"
        )
    if not 0 < kind < len(_DATA_TYPES):
        raise CorruptStreamError(f"there is no data type {kind}")
    if partial or subpartition < 0 or backlog < 0 or compressed not in {0, 1}:
        raise CorruptStreamError(
            f"a buffer cannot have {partial} partial ones, subpartition {subpartition}, "
            f"backlog {backlog} and compression {compressed}"
        )
    return BufferResponse(
        receiver,
        subpartition,
        sequence_number,
        backlog,
        _DATA_TYPES[kind],
        compressed == 1,
        size,
    )


def decode_body(number: int, body: bytes | bytearray | memoryview) -> Message:
    """Return the message that a body of a known id holds.

    Raises:
        CorruptStreamError: If it holds none.
    """
    layout = _LAYOUTS.get(number)
    if layout is None:
        raise CorruptStreamError(f"there is no message {number}")
    source = ByteReader(body)
    message = layout.read(source)
    source.expect_end(type(message).__name__)
    return message


def _checked_id(identity: bytes) -> bytes:
    if len(identity) != ID_BYTES:
        raise InvalidArgumentError(
            "receiver", f"{identity!r} has {len(identity)} bytes", "An id has 16."
        )
    return identity


def _positive(message: str, value: int) -> int:
    if value < 1:
        raise CorruptStreamError(f"{message} of {value}: it has to be positive")
    return value


def _nothing(message: Message, body: bytearray) -> None:
    """Append nothing: the id says it all."""


def _close(source: ByteReader) -> Message:
    return CloseRequest()


def _receiver_only(kind: Callable[[bytes], Message]) -> FrameLayout:
    def read(source: ByteReader) -> Message:
        return kind(bytes(source.take(ID_BYTES)))

    def write(message: Any, body: bytearray) -> None:
        body += _checked_id(message.receiver)

    return FrameLayout(ID_BYTES, ID_BYTES, read, write)


def _number_and_receiver(kind: Any) -> FrameLayout:
    form = struct.Struct(">i16s")

    def read(source: ByteReader) -> Message:
        value, receiver = source.unpack(form)
        message: Message = kind(_positive(kind.__name__, value), receiver)
        return message

    def write(message: Any, body: bytearray) -> None:
        value, receiver = message
        if value < 1:
            raise InvalidArgumentError(kind._fields[0], f"{value} is less than 1")
        body += form.pack(value, _checked_id(receiver))

    return FrameLayout(form.size, form.size, read, write)


_SEGMENT_ID: Final = struct.Struct(">ii16s")


def _read_segment_id(source: ByteReader) -> Message:
    subpartition, segment, receiver = source.unpack(_SEGMENT_ID)
    if subpartition < 0:
        raise CorruptStreamError(f"there is no subpartition {subpartition}")
    return SegmentId(subpartition, _positive("SegmentId", segment), receiver)


def _write_segment_id(message: SegmentId, body: bytearray) -> None:
    body += _SEGMENT_ID.pack(*message[:2], _checked_id(message.receiver))


_PROOF_BYTES: Final = 32


def _read_proof(source: ByteReader) -> Message:
    return HelloProof(bytes(source.take(_PROOF_BYTES)))


def _write_proof(message: HelloProof, body: bytearray) -> None:
    if len(message.proof) != _PROOF_BYTES:
        raise InvalidArgumentError(
            "proof", f"it has {len(message.proof)} bytes, not 32"
        )
    body += message.proof


_PARTITION_REQUEST_BYTES: Final = 88
_ERROR_BYTES_MIN: Final = 5
_ERROR_BYTES_MAX: Final = CAUSE_BYTES_MAX + _ERROR_BYTES_MIN + ID_BYTES

_TABLE: Final[tuple[tuple[int, Any, FrameLayout], ...]] = (
    (
        1,
        ErrorResponse,
        FrameLayout(_ERROR_BYTES_MIN, _ERROR_BYTES_MAX, read_error, write_error),
    ),
    (
        2,
        PartitionRequest,
        FrameLayout(
            _PARTITION_REQUEST_BYTES,
            _PARTITION_REQUEST_BYTES,
            read_partition_request,
            write_partition_request,
        ),
    ),
    (4, CancelPartitionRequest, _receiver_only(CancelPartitionRequest)),
    (5, CloseRequest, FrameLayout(0, 0, _close, _nothing)),
    (6, AddCredit, _number_and_receiver(AddCredit)),
    (7, ResumeConsumption, _receiver_only(ResumeConsumption)),
    (8, AckAllUserRecordsProcessed, _receiver_only(AckAllUserRecordsProcessed)),
    (9, BacklogAnnouncement, _number_and_receiver(BacklogAnnouncement)),
    (10, NewBufferSize, _number_and_receiver(NewBufferSize)),
    (11, SegmentId, FrameLayout(24, 24, _read_segment_id, _write_segment_id)),
    (64, Hello, FrameLayout(HELLO_BYTES_MIN, HELLO_BYTES_MAX, read_hello, write_hello)),
    (
        65,
        HelloProof,
        FrameLayout(_PROOF_BYTES, _PROOF_BYTES, _read_proof, _write_proof),
    ),
)
_LAYOUTS: Final = {number: layout for number, _, layout in _TABLE}
_NUMBERS: Final[dict[type, int]] = {kind: number for number, kind, _ in _TABLE}
