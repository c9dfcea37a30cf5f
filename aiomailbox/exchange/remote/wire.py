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
from aiomailbox.memory.buffer import DataType
from aiomailbox.records.byte_reader import ByteReader

# What the two ends of a connection say to each other.
#
# Identifiers are 16 bytes. Messages of the first group go from the reader of data to
# its producer, those of the second the other way, and those of the third open a
# connection.


# The kind of a cause that says: not there (yet), request it again later.
PARTITION_NOT_FOUND: Final = "PartitionNotFoundError"


class PartitionAddress(NamedTuple):
    """Which attempt's output is asked for.

    Concept:
        Flink, ``ResultPartitionID``.
    """

    data_set_id: bytes
    partition_number: int
    execution_graph_id: bytes
    job_vertex_id: bytes
    subtask_index: int
    attempt_number: int


class PartitionRequest(NamedTuple):
    """Send me these subpartitions; I have room for so many buffers."""

    partition: PartitionAddress
    subpartition_first: int
    subpartition_last: int
    receiver: bytes
    credit: int


class AddCredit(NamedTuple):
    """I have room for so many buffers more."""

    credit: int
    receiver: bytes


class ResumeConsumption(NamedTuple):
    """Go on after the event that blocks."""

    receiver: bytes


class AckAllUserRecordsProcessed(NamedTuple):
    """All records before the end of data were processed."""

    receiver: bytes


class NewBufferSize(NamedTuple):
    """Buffers should have so many bytes."""

    size_bytes: int
    receiver: bytes


class SegmentId(NamedTuple):
    """Send this segment of tiered storage next."""

    subpartition: int
    segment: int
    receiver: bytes


class CancelPartitionRequest(NamedTuple):
    """Send me nothing more."""

    receiver: bytes


class CloseRequest(NamedTuple):
    """I close the connection."""


class BufferResponse(NamedTuple):
    """The header of a buffer; ``size_bytes`` of its content follow."""

    receiver: bytes
    subpartition: int
    sequence_number: int
    backlog: int
    data_type: DataType
    compressed: bool
    size_bytes: int


class BacklogAnnouncement(NamedTuple):
    """So many buffers wait for credit."""

    backlog: int
    receiver: bytes


class RemoteCause(NamedTuple):
    """A peer's exception as text: nothing of it is ever executed here."""

    kind: str
    text: str
    traceback: str = ""


class ErrorResponse(NamedTuple):
    """One channel failed; without a receiver, everything did."""

    cause: RemoteCause
    receiver: bytes | None = None


class Hello(NamedTuple):
    """The first message of each side.

    Attributes:
        version_min: The oldest version of the protocol that is spoken.
        version_max: The newest.
        job_id: Both sides have to be of one job.
        worker: The sender's name, for messages to people.
        nonce: 16 random bytes, for a proof to be fresh.
        codec_digest: 16 bytes: both sides have to read what the other one writes.
    """

    version_min: int
    version_max: int
    job_id: bytes
    worker: str
    nonce: bytes
    codec_digest: bytes


class HelloProof(NamedTuple):
    """The second message of each side: the secret is known, 32 bytes prove it."""

    proof: bytes


Message = (
    PartitionRequest
    | AddCredit
    | ResumeConsumption
    | AckAllUserRecordsProcessed
    | NewBufferSize
    | SegmentId
    | CancelPartitionRequest
    | CloseRequest
    | BufferResponse
    | BacklogAnnouncement
    | ErrorResponse
    | Hello
    | HelloProof
)


# The bodies of the longer messages.


ID_BYTES: Final = 16


_TEXT_BYTES_MAX: Final = 16 * 1024


_TEXTS: Final = 3


_LENGTH: Final = struct.Struct(">i")


CAUSE_BYTES_MAX: Final = _TEXTS * (_LENGTH.size + _TEXT_BYTES_MAX)


_PARTITION_REQUEST: Final = struct.Struct(">16si16s16siiii16si")


_HELLO: Final = struct.Struct(">ii16s16s16s")


_WORKER_BYTES_MAX: Final = 256


HELLO_BYTES_MIN: Final = _HELLO.size + _LENGTH.size


HELLO_BYTES_MAX: Final = HELLO_BYTES_MIN + _WORKER_BYTES_MAX


def write_partition_request(message: PartitionRequest, body: bytearray) -> None:
    """Append a request's body."""
    partition, first, last, receiver, credit = message
    for identity in (partition[0], partition[2], partition[3], receiver):
        _check_id(identity)
    if not 0 <= first <= last or credit < 0:
        raise InvalidArgumentError(
            "message", f"subpartitions {first} to {last} with credit {credit}"
        )
    body += _PARTITION_REQUEST.pack(*partition, first, last, receiver, credit)


def read_partition_request(source: ByteReader) -> PartitionRequest:
    """Read a request's body.

    Raises:
        CorruptStreamError: If a number in it cannot be.
    """
    fields = source.unpack(_PARTITION_REQUEST)
    partition = PartitionAddress(*fields[:6])
    first, last, receiver, credit = fields[6:]
    numbers = (partition.partition_number, *partition[4:], first, last - first, credit)
    if min(numbers) < 0:
        raise CorruptStreamError(
            f"subpartitions {first} to {last} of {partition} with credit {credit} "
            "cannot be asked for"
        )
    return PartitionRequest(partition, first, last, receiver, credit)


def error_body(cause: bytes, receiver: bytes | None) -> bytes:
    """Return an error's body: the cause, whether a channel is meant, and which."""
    return cause + (b"\0" if receiver is None else b"\1" + _check_id(receiver))


def write_error(message: ErrorResponse, body: bytearray) -> None:
    """Append an error's body; long texts are truncated."""
    cause = bytearray()
    for text in message.cause:
        _write_text(text, _TEXT_BYTES_MAX, cause)
    body += _LENGTH.pack(len(cause)) + error_body(bytes(cause), message.receiver)


def read_error(source: ByteReader) -> ErrorResponse:
    """Read an error's body.

    Raises:
        CorruptStreamError: If the cause is not three texts.
    """
    texts = ByteReader(source.take(source.read_count("bytes of a cause")))
    cause = RemoteCause(*(_read_text(texts, _TEXT_BYTES_MAX) for _ in range(_TEXTS)))
    texts.expect_end("the cause of an error")
    if source.read_bool():
        return ErrorResponse(cause, bytes(source.take(ID_BYTES)))
    return ErrorResponse(cause)


def write_hello(message: Hello, body: bytearray) -> None:
    """Append a greeting's body; a long name is truncated."""
    for identity in (message.job_id, message.nonce, message.codec_digest):
        _check_id(identity)
    body += _HELLO.pack(
        message.version_min,
        message.version_max,
        message.job_id,
        message.nonce,
        message.codec_digest,
    )
    _write_text(message.worker, _WORKER_BYTES_MAX, body)


def read_hello(source: ByteReader) -> Hello:
    """Read a greeting's body.

    Raises:
        CorruptStreamError: If its versions cannot be, or its name is no text.
    """
    version_min, version_max, job_id, nonce, codec_digest = source.unpack(_HELLO)
    if not 0 < version_min <= version_max:
        raise CorruptStreamError(
            f"a peer cannot speak versions {version_min} to {version_max}"
        )
    worker = _read_text(source, _WORKER_BYTES_MAX)
    return Hello(version_min, version_max, job_id, worker, nonce, codec_digest)


def _write_text(text: str, bytes_max: int, output: bytearray) -> None:
    # Lone surrogates can be in any text of a user's, and UTF-8 refuses them.
    encoded = text.encode("utf-8", "backslashreplace")[:bytes_max]
    # What the cut left of a character goes too.
    encoded = encoded.decode("utf-8", "ignore").encode()
    output += _LENGTH.pack(len(encoded)) + encoded


def _read_text(source: ByteReader, bytes_max: int) -> str:
    size_bytes = source.read_count("bytes of text")
    if size_bytes > bytes_max:
        raise CorruptStreamError(f"a text of {size_bytes} bytes exceeds {bytes_max}")
    try:
        return bytes(source.take(size_bytes)).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptStreamError(f"a text is not UTF-8: {error}") from error


def _check_id(identity: bytes) -> bytes:
    if len(identity) != ID_BYTES:
        raise InvalidArgumentError(
            "id", f"{identity!r} has {len(identity)} bytes", "An id has 16."
        )
    return identity


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
            _check_id(message.receiver),
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
        body += _check_id(message.receiver)

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
        body += form.pack(value, _check_id(receiver))

    return FrameLayout(form.size, form.size, read, write)


_SEGMENT_ID: Final = struct.Struct(">ii16s")


def _read_segment_id(source: ByteReader) -> Message:
    subpartition, segment, receiver = source.unpack(_SEGMENT_ID)
    if subpartition < 0:
        raise CorruptStreamError(f"there is no subpartition {subpartition}")
    return SegmentId(subpartition, _positive("SegmentId", segment), receiver)


def _write_segment_id(message: SegmentId, body: bytearray) -> None:
    body += _SEGMENT_ID.pack(*message[:2], _check_id(message.receiver))


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
