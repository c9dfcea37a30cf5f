"""Messages as frames: ``length:int32 | magic:int32 | id:int8 | body``, big-endian.

Theory of operation: the length counts the whole frame. Ids 0 to 11 and their layouts
are Flink's; 64 and above are ours. Each id knows how long its body may be, so that a
frame is refused by its first nine bytes, before anything is set aside for it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

from aiomailbox.errors import (
    CorruptStreamError,
    IllegalStateError,
    InvalidArgumentError,
    WrongTypeError,
)
from aiomailbox.memory.buffer import DEFAULT_SEGMENT_SIZE_BYTES, DataType
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
        # The third field counts partial buffers of a merged one, the byte before the
        # last says whether the content is compressed: neither is ever the case.
        return header + _BUFFER_HEADER.pack(
            _check_id(message.receiver),
            message.subpartition,
            0,
            message.sequence_number,
            message.backlog,
            message.data_type,
            0,
            size_bytes,
        )
    except struct.error as error:
        raise InvalidArgumentError("message", f"{message!r}: {error}") from error


def frame_layout(number: int) -> FrameLayout | None:
    """Return the layout of an id, None for an unknown one; buffers have none."""
    return _LAYOUTS.get(number)


def decode_buffer_header(header: memoryview, body_bytes: int) -> BufferResponse:
    """Return a buffer's header.

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
    if compressed:
        # Nobody here unpacks it: its bytes would be read as if they were records.
        raise CorruptStreamError(
            f"a buffer is marked as compressed ({compressed}), and peers compress nothing"
        )
    if partial or subpartition < 0 or backlog < 0:
        raise CorruptStreamError(
            f"a buffer cannot have {partial} partial ones, subpartition {subpartition} "
            f"and backlog {backlog}"
        )
    return BufferResponse(
        receiver,
        subpartition,
        sequence_number,
        backlog,
        _DATA_TYPES[kind],
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
        return kind(_positive(kind.__name__, value), receiver)

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


# Bytes in, messages out: frames cut anywhere, bodies straight into their segments.
#
# Theory of operation: three states. The first nine bytes of a frame say what it is and
# how long; a buffer's header says where its content goes; the content is copied, or
# received directly, into a window that the receiver gives. A content that is not wanted
# is counted down, so that the frames after it are still found. What is held back is never
# more than one control message.


# A barrier with a long location; events are not counted against credit.
EVENT_BYTES_MAX: Final = 64 * 1024


class FrameHandler(Protocol):
    """Receives what was decoded, in order."""

    def open_body(self, header: BufferResponse) -> memoryview | None:
        """Return where a buffer's content goes; not called for an empty one.

        Returns:
            A writable window of ``header.size_bytes`` bytes, or None to skip it.
        """

    def on_message(self, message: Message) -> None:
        """Take a message; of a buffer, its header once the content is complete."""


class _State(Enum):
    FRAME = "the first nine bytes of a frame"
    HEADER = "the header of a buffer"
    BODY = "the body of a message"
    CONTENT = "the content of a buffer"


class WireDecoder:
    """Decodes one connection's bytes.

    Args:
        handler: Is given what was decoded.
        segment_bytes_max: A buffer of more bytes is refused.
        event_bytes_max: An event of more bytes is refused.

    Invariants:
        At most one control message is held back; its size is bounded by its kind.

    Example:
        >>> from aiomailbox.exchange.remote.wire import AddCredit
        >>> from aiomailbox.exchange.remote.wire import encode_message
        >>> class Printer:
        ...     def open_body(self, header):
        ...         return None
        ...
        ...     def on_message(self, message):
        ...         print(type(message).__name__, message.credit)
        >>> decoder = WireDecoder(Printer())
        >>> encoded = encode_message(AddCredit(3, bytes(16)))
        >>> decoder.feed(encoded[:10])
        >>> decoder.feed(encoded[10:])
        AddCredit 3
    """

    def __init__(
        self,
        handler: FrameHandler,
        *,
        segment_bytes_max: int = DEFAULT_SEGMENT_SIZE_BYTES,
        event_bytes_max: int = EVENT_BYTES_MAX,
    ) -> None:
        self._handler = handler
        self._segment_bytes_max = segment_bytes_max
        self._event_bytes_max = event_bytes_max
        self._state = _State.FRAME
        self._held = bytearray()
        # Bytes that the state still needs, those held back not counted.
        self._missing = FRAME_HEADER.size
        self._number = 0
        self._body_bytes = 0
        self._header: BufferResponse | None = None
        self._window: memoryview | None = None
        self._failure: CorruptStreamError | None = None

    @property
    def is_between_frames(self) -> bool:
        """Whether the last frame is complete: the connection may end here."""
        return self._state is _State.FRAME and not self._held

    @property
    def direct_window(self) -> memoryview | None:
        """Where the next bytes may be received without a copy; see `received`."""
        if self._state is not _State.CONTENT or self._window is None:
            return None
        return self._window[len(self._window) - self._missing :]

    def received(self, size_bytes: int) -> None:
        """Be notified that bytes were received into `direct_window`."""
        self._missing -= size_bytes
        if not self._missing:
            self._end_content()

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Decode bytes, however the frames in them are cut.

        Raises:
            CorruptStreamError: If they are not what the protocol allows; from then on
                every call raises it.
        """
        if self._failure is not None:
            raise self._failure
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._advance(rest) :]
        except CorruptStreamError as error:
            self._failure = error
            self._held.clear()
            raise

    def _advance(self, data: memoryview) -> int:
        piece = data[: self._missing]
        size_bytes = len(piece)
        if self._state is _State.CONTENT:
            window = self.direct_window
            if window is not None:
                window[:size_bytes] = piece
            self.received(size_bytes)
            return size_bytes
        self._missing -= size_bytes
        if self._missing:
            self._held += piece
            return size_bytes
        if self._held:
            # Only what was cut is put together; whole messages are decoded where they
            # arrived.
            self._held += piece
            whole, self._held = memoryview(self._held), bytearray()
        else:
            whole = piece
        self._complete(whole)
        return size_bytes

    def _complete(self, whole: memoryview) -> None:
        if self._state is _State.FRAME:
            self._begin_frame(whole)
        elif self._state is _State.HEADER:
            self._begin_content(whole)
        else:
            self._end_body(whole)

    def _begin_frame(self, whole: memoryview) -> None:
        length, magic, self._number = FRAME_HEADER.unpack(whole)
        if magic != MAGIC:
            raise CorruptStreamError(
                f"a frame begins with {magic:08x}, not {MAGIC:08x}: the peer does not "
                "speak this protocol"
            )
        self._body_bytes = length - FRAME_HEADER.size
        self._check_body_bytes()
        if self._number == _BUFFER_RESPONSE:
            self._expect(_State.HEADER, BUFFER_HEADER_BYTES)
        elif self._body_bytes:
            self._expect(_State.BODY, self._body_bytes)
        else:
            self._end_body(whole[:0])

    def _check_body_bytes(self) -> None:
        # By the kind: a frame that announces more is refused before memory is set
        # aside.
        if self._number == _BUFFER_RESPONSE:
            content_max = max(self._segment_bytes_max, self._event_bytes_max)
            least, most = BUFFER_HEADER_BYTES, BUFFER_HEADER_BYTES + content_max
        else:
            layout = frame_layout(self._number)
            if layout is None:
                raise CorruptStreamError(f"there is no message {self._number}")
            least, most = layout.body_bytes_min, layout.body_bytes_max
        if not least <= self._body_bytes <= most:
            raise CorruptStreamError(
                f"the body of message {self._number} cannot have {self._body_bytes} "
                f"bytes: {least} to {most} are allowed"
            )

    def _begin_content(self, whole: memoryview) -> None:
        header = decode_buffer_header(whole, self._body_bytes)
        is_data = header.data_type.is_buffer
        most = self._segment_bytes_max if is_data else self._event_bytes_max
        if header.size_bytes > most:
            raise CorruptStreamError(
                f"a buffer of {header.size_bytes} bytes exceeds the {most} allowed"
            )
        if not header.size_bytes:
            self._expect(_State.FRAME, FRAME_HEADER.size)
            self._handler.on_message(header)
            return
        self._header = header
        self._expect(_State.CONTENT, header.size_bytes)
        window = self._handler.open_body(header)
        if window is not None and len(window) != header.size_bytes:
            raise IllegalStateError(
                f"open_body() gave {len(window)} bytes for {header.size_bytes}: give "
                "exactly as many, or None"
            )
        self._window = window

    def _end_content(self) -> None:
        header, self._header, self._window = self._header, None, None
        assert header is not None
        self._expect(_State.FRAME, FRAME_HEADER.size)
        self._handler.on_message(header)

    def _end_body(self, whole: memoryview) -> None:
        message = decode_body(self._number, whole)
        self._expect(_State.FRAME, FRAME_HEADER.size)
        self._handler.on_message(message)

    def _expect(self, state: _State, size_bytes: int) -> None:
        self._state = state
        self._missing = size_bytes
