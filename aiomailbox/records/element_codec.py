"""Stream elements as bytes: a tag, then what belongs to it.

Theory of operation: tags 0 to 6 are Flink's, one record or control element each. Runs
are ours, because single records make Python slow. A run holds many records behind one
tag: 64 for lists of rows, and another one up to 127 for a form that is registered with
the codec.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable
from typing import Any, Final

from aiomailbox.errors import CorruptStreamError, InvalidArgumentError, WrongTypeError
from aiomailbox.records.byte_reader import ByteReader
from aiomailbox.records.events import (
    Alignment,
    CancelCheckpoint,
    CheckpointBarrier,
    EndOfData,
    EndOfInputChannelState,
    EndOfOutputChannelState,
    EndOfPartition,
    EndOfSegment,
    EndOfSuperstep,
    EventAnnouncement,
    InternalWatermark,
    LatencyMarker,
    RecordAttributes,
    RecoveryMetadata,
    RuntimeEvent,
    SnapshotType,
    StopMode,
    StreamRecord,
    SubtaskConnection,
    Watermark,
    WatermarkEvent,
    WatermarkStatus,
)
from aiomailbox.records.run import Run, RunForm
from aiomailbox.records.run_columns import ListRunForm
from aiomailbox.records.serializers import TypeSerializer, read_java_utf, write_java_utf

# Runtime events as bytes: a table of type numbers, one writer and reader each.
#
# The numbers and layouts are Flink 2.3's. Its type 3, "any other class", names a Java class
# and is refused: nothing that arrives decides which code runs.


# Checkpoint barriers as bytes, without the type number that goes before them.


# What Flink's array for a checkpoint barrier is too long by; one less for savepoints,
# whose format takes a byte of it.
BARRIER_PADDING_BYTES: Final = 4


_HEAD: Final = struct.Struct(">qq")


_LENGTH: Final = struct.Struct(">i")


_TAIL: Final = struct.Struct(">bq")


_DEFAULT_LOCATION: Final = -1


# The code, then the format of those that have one.
_SNAPSHOT_TYPES: Final = {
    SnapshotType.CHECKPOINT: b"\0",
    SnapshotType.SAVEPOINT_CANONICAL: b"\1\0",
    SnapshotType.SAVEPOINT_NATIVE: b"\1\1",
    SnapshotType.SUSPEND_CANONICAL: b"\2\0",
    SnapshotType.SUSPEND_NATIVE: b"\2\1",
    SnapshotType.TERMINATE_CANONICAL: b"\3\0",
    SnapshotType.TERMINATE_NATIVE: b"\3\1",
    SnapshotType.FULL_CHECKPOINT: b"\4",
}


_BY_CODE: Final = {code: kind for kind, code in _SNAPSHOT_TYPES.items()}


_CODES_WITH_FORMAT: Final = frozenset({1, 2, 3})


_ALIGNMENTS: Final = (
    Alignment.AT_LEAST_ONCE,
    Alignment.ALIGNED,
    Alignment.UNALIGNED,
    Alignment.FORCED_ALIGNED,
)


def write_barrier(event: CheckpointBarrier, output: bytearray) -> None:
    """Append a barrier."""
    output += _HEAD.pack(event.checkpoint_id, event.timestamp_ms)
    output += _SNAPSHOT_TYPES[event.snapshot_type]
    location = event.location
    if location is None:
        output += _LENGTH.pack(_DEFAULT_LOCATION)
    else:
        output += _LENGTH.pack(len(location)) + location
    alignment = _ALIGNMENTS.index(event.alignment)
    output += _TAIL.pack(alignment, event.aligned_timeout_ms)


def read_barrier(source: ByteReader) -> CheckpointBarrier:
    """Read a barrier.

    Raises:
        CorruptStreamError: If the bytes are none.
    """
    checkpoint_id, timestamp_ms = source.unpack(_HEAD)
    snapshot_type = _read_snapshot_type(source)
    length = source.read_int()
    location = None if length == _DEFAULT_LOCATION else bytes(source.take(length))
    alignment, aligned_timeout_ms = source.unpack(_TAIL)
    if not 0 <= alignment < len(_ALIGNMENTS):
        raise CorruptStreamError(f"there is no alignment {alignment}")
    try:
        return CheckpointBarrier(
            checkpoint_id,
            timestamp_ms,
            _ALIGNMENTS[alignment],
            snapshot_type,
            aligned_timeout_ms,
            location,
        )
    except InvalidArgumentError as error:
        raise CorruptStreamError(f"a barrier cannot be: {error}") from error


def _read_snapshot_type(source: ByteReader) -> SnapshotType:
    code = bytes(source.take(1))
    if code[0] in _CODES_WITH_FORMAT:
        code += bytes(source.take(1))
    snapshot_type = _BY_CODE.get(code)
    if snapshot_type is None:
        raise CorruptStreamError(f"there is no snapshot type {code.hex()}")
    return snapshot_type


Write = Callable[[Any, bytearray], None]


Read = Callable[[ByteReader], RuntimeEvent]


_INT: Final = struct.Struct(">i")


_LONG: Final = struct.Struct(">q")


_STOP_MODES: Final = (StopMode.DRAIN, StopMode.NO_DRAIN)


_WATERMARK_LONG: Final = 0


_WATERMARK_BOOL: Final = 1


_WATERMARK_BYTES_MIN: Final = 128


_ANNOUNCEMENT: Final = 6


def encode_event(event: RuntimeEvent, *, padded: bool = False) -> bytes:
    """Return an event as bytes.

    Args:
        event: Any event of `aiomailbox.records`.
        padded: Append the zeros that Flink's partitions send after some events:
            they queue the whole array that the event was written into.

    Raises:
        WrongTypeError: If the event is of an unknown class.

    Concept:
        Flink, ``EventSerializer``: ``toSerializedEvent``, padded ``toBufferConsumer``.

    Example:
        >>> encode_event(CancelCheckpoint(7)).hex()
        '000000040000000000000007'
    """
    output = bytearray()
    _write_event(event, output)
    if padded:
        output += bytes(_padding_bytes(event, len(output)))
    return bytes(output)


def decode_event(data: bytes | bytearray | memoryview) -> RuntimeEvent:
    """Return the event that the bytes hold; zeros after it are ignored.

    Raises:
        CorruptStreamError: If the bytes are no event, or something follows it.
    """
    source = ByteReader(data)
    event = _read_event(source)
    rest = source.take(source.remaining)
    if any(rest):
        raise CorruptStreamError(
            f"{len(rest)} bytes follow a {type(event).__name__}, and they are not zero"
        )
    return event


def _write_event(event: RuntimeEvent, output: bytearray) -> None:
    entry = _WRITERS.get(type(event))
    if entry is None:
        raise WrongTypeError("event", f"{event!r} is not an event that can travel")
    number, write = entry
    output += _INT.pack(number)
    write(event, output)


def _read_event(source: ByteReader) -> RuntimeEvent:
    number = source.read_int()
    read = _READERS.get(number)
    if read is None:
        raise CorruptStreamError(f"there is no event of type {number}")
    return read(source)


def _padding_bytes(event: RuntimeEvent, size_bytes: int) -> int:
    if isinstance(event, EventAnnouncement):
        return _padding_bytes(event.announced, 0)
    if isinstance(event, CheckpointBarrier):
        return BARRIER_PADDING_BYTES - event.snapshot_type.is_savepoint
    if isinstance(event, WatermarkEvent):
        return max(0, _WATERMARK_BYTES_MIN - size_bytes)
    return 0


def _fixed(
    number: int, kind: type[RuntimeEvent], form: str = "", *names: str
) -> tuple[int, type[RuntimeEvent], Write, Read]:
    """Return the row of an event that is written as some numbers, or as none."""
    fields = struct.Struct(f">{form}")

    def write(event: RuntimeEvent, output: bytearray) -> None:
        output += fields.pack(*(getattr(event, name) for name in names))

    def read(source: ByteReader) -> RuntimeEvent:
        return kind(*source.unpack(fields))

    return number, kind, write, read


def _write_announcement(event: EventAnnouncement, output: bytearray) -> None:
    output += _INT.pack(event.sequence_number)
    _write_event(event.announced, output)


def _read_announcement(source: ByteReader) -> RuntimeEvent:
    sequence_number = source.read_int()
    # Announcements of announcements do not exist, and would nest without end.
    if bytes(source.peek(_INT.size)) == _INT.pack(_ANNOUNCEMENT):
        raise CorruptStreamError("an announcement announces an announcement")
    return EventAnnouncement(_read_event(source), sequence_number)


def _write_end_of_data(event: EndOfData, output: bytearray) -> None:
    output.append(_STOP_MODES.index(event.mode))


def _read_end_of_data(source: ByteReader) -> RuntimeEvent:
    mode = source.read_byte()
    if not 0 <= mode < len(_STOP_MODES):
        raise CorruptStreamError(f"there is no stop mode {mode}")
    return EndOfData(_STOP_MODES[mode])


def _write_watermark_event(event: WatermarkEvent, output: bytearray) -> None:
    write_java_utf(event.identifier, output)
    output.append(event.is_aligned)
    if isinstance(event.value, bool):
        output += _INT.pack(_WATERMARK_BOOL)
        output.append(event.value)
    else:
        output += _INT.pack(_WATERMARK_LONG) + _LONG.pack(event.value)


def _read_watermark_event(source: ByteReader) -> RuntimeEvent:
    identifier = read_java_utf(source)
    is_aligned = source.read_bool()
    kind = source.read_int()
    if kind == _WATERMARK_LONG:
        return WatermarkEvent(identifier, source.read_long(), is_aligned)
    if kind == _WATERMARK_BOOL:
        return WatermarkEvent(identifier, source.read_bool(), is_aligned)
    raise CorruptStreamError(f"there is no generalized watermark of kind {kind}")


_TABLE: Final[tuple[tuple[int, type[RuntimeEvent], Write, Read], ...]] = (
    _fixed(0, EndOfPartition),
    (1, CheckpointBarrier, write_barrier, read_barrier),
    _fixed(2, EndOfSuperstep),
    _fixed(4, CancelCheckpoint, "q", "checkpoint_id"),
    _fixed(5, EndOfOutputChannelState),
    (_ANNOUNCEMENT, EventAnnouncement, _write_announcement, _read_announcement),
    _fixed(7, SubtaskConnection, "ii", "input_subtask", "output_subtask"),
    (8, EndOfData, _write_end_of_data, _read_end_of_data),
    _fixed(9, EndOfSegment),
    _fixed(10, RecoveryMetadata, "i", "final_subpartition"),
    (11, WatermarkEvent, _write_watermark_event, _read_watermark_event),
    _fixed(12, EndOfInputChannelState),
)


_WRITERS: Final = {kind: (number, write) for number, kind, write, _ in _TABLE}


_READERS: Final = {number: read for number, _, _, read in _TABLE}


StreamElement = (
    StreamRecord
    | Run
    | Watermark
    | WatermarkStatus
    | LatencyMarker
    | RecordAttributes
    | InternalWatermark
)

_RECORD_WITH_TIMESTAMP: Final = 0
_RECORD: Final = 1
_WATERMARK: Final = 2
_LATENCY_MARKER: Final = 3
_WATERMARK_STATUS: Final = 4
_RECORD_ATTRIBUTES: Final = 5
_INTERNAL_WATERMARK: Final = 6
_FORM_TAGS: Final = range(64, 128)

_TAGGED_LONG: Final = struct.Struct(">bq")
_TAGGED_INT: Final = struct.Struct(">bi")
_TAGGED_INT_LONG: Final = struct.Struct(">biq")
_STATUSES: Final = {WatermarkStatus.ACTIVE: 0, WatermarkStatus.IDLE: -1}
_STATUS_BY_NUMBER: Final = {number: status for status, number in _STATUSES.items()}
_OPERATOR_ID_BYTES: Final = 16


def operator_id(operator: str) -> bytes:
    """Return the 128 bits that stand for an operator's name in latency markers.

    A name of 32 hexadecimal digits stands for itself.

    Example:
        >>> operator_id("0123456789abcdef" * 2)[:2].hex()
        '0123'
    """
    if len(operator) == 2 * _OPERATOR_ID_BYTES and operator.isascii():
        try:
            return bytes.fromhex(operator)
        except ValueError:
            pass
    digest = hashlib.blake2b(operator.encode(), digest_size=_OPERATOR_ID_BYTES)
    return digest.digest()


class ElementCodec:
    """Writes and reads the elements of one edge.

    Args:
        serializer: For the records' values.
        operators: Names of the operators whose latency markers come by; the name of
            another one is read as 32 hexadecimal digits.
        forms: Further forms of runs, each with a tag of its own.

    Raises:
        InvalidArgumentError: If two forms have one tag or one class, or a tag is not
            within 64 .. 127.

    Concept:
        Flink, ``StreamElementSerializer``.

    Example:
        >>> from aiomailbox.records.serializers import LONG_SERIALIZER
        >>> codec = ElementCodec(LONG_SERIALIZER)
        >>> codec.encode(Watermark(5)).hex()
        '020000000000000005'
        >>> codec.decode(codec.encode(StreamRecord(7, 1000)))
        StreamRecord(value=7, timestamp=1000)
    """

    def __init__(
        self,
        serializer: TypeSerializer[Any],
        *,
        operators: Iterable[str] = (),
        forms: Iterable[RunForm[Any]] = (),
    ) -> None:
        self._serializer = serializer
        self._names = {operator_id(name): name for name in operators}
        self._writers: dict[type, Callable[[Any, bytearray], None]] = {
            StreamRecord: self._write_record,
            Watermark: _write_watermark,
            LatencyMarker: _write_latency_marker,
            WatermarkStatus: _write_status,
            RecordAttributes: _write_attributes,
            InternalWatermark: _write_internal_watermark,
        }
        self._readers: dict[int, Callable[[ByteReader], StreamElement]] = {
            _RECORD_WITH_TIMESTAMP: self._read_record_with_timestamp,
            _RECORD: self._read_record,
            _WATERMARK: _read_watermark,
            _LATENCY_MARKER: self._read_latency_marker,
            _WATERMARK_STATUS: _read_status,
            _RECORD_ATTRIBUTES: _read_attributes,
            _INTERNAL_WATERMARK: _read_internal_watermark,
        }
        self._register(ListRunForm(serializer))
        for form in forms:
            self._register(form)

    def encode(self, element: StreamElement) -> bytes:
        """Return an element as bytes.

        Raises:
            WrongTypeError: If it is no stream element, or a run of an unknown form.
        """
        output = bytearray()
        self.write(element, output)
        return bytes(output)

    def write(self, element: StreamElement, output: bytearray) -> None:
        """Append an element; see `encode`."""
        write = self._writers.get(type(element))
        if write is None:
            raise WrongTypeError(
                "element",
                f"{type(element).__name__} is not a stream element that this edge "
                "carries",
                "Register the form of a run with the codec.",
            )
        write(element, output)

    def decode(self, data: bytes | bytearray | memoryview) -> StreamElement:
        """Return the one element that the bytes hold.

        Raises:
            CorruptStreamError: If they hold none, or more.
        """
        source = ByteReader(data)
        element = self.read(source)
        source.expect_end(type(element).__name__)
        return element

    def read(self, source: ByteReader) -> StreamElement:
        """Read one element.

        Raises:
            CorruptStreamError: If the bytes are none.
        """
        tag = source.read_byte()
        read = self._readers.get(tag)
        if read is None:
            raise CorruptStreamError(f"corrupt stream: no element has tag {tag}")
        return read(source)

    def _register(self, form: RunForm[Any]) -> None:
        if form.tag not in _FORM_TAGS:
            raise InvalidArgumentError("forms", f"tag {form.tag} is not in 64 .. 127")
        if form.tag in self._readers or form.kind in self._writers:
            raise InvalidArgumentError(
                "forms", f"tag {form.tag} or {form.kind.__name__} is registered twice"
            )

        def write(run: Any, output: bytearray) -> None:
            output.append(form.tag)
            form.write(run, output)

        self._writers[form.kind] = write
        self._readers[form.tag] = form.read

    def _write_record(self, record: StreamRecord, output: bytearray) -> None:
        value, timestamp = record
        if timestamp is None:
            output.append(_RECORD)
        else:
            output += _TAGGED_LONG.pack(_RECORD_WITH_TIMESTAMP, timestamp)
        self._serializer.write(value, output)

    def _read_record_with_timestamp(self, source: ByteReader) -> StreamRecord:
        timestamp = source.read_long()
        return StreamRecord(self._serializer.read(source), timestamp)

    def _read_record(self, source: ByteReader) -> StreamRecord:
        return StreamRecord(self._serializer.read(source))

    def _read_latency_marker(self, source: ByteReader) -> LatencyMarker:
        marked_ms = source.read_long()
        identity = bytes(source.take(_OPERATOR_ID_BYTES))
        name = self._names.get(identity) or identity.hex()
        return LatencyMarker(marked_ms, name, source.read_int())


def _write_watermark(element: Watermark, output: bytearray) -> None:
    output += _TAGGED_LONG.pack(_WATERMARK, element.timestamp_ms)


def _read_watermark(source: ByteReader) -> Watermark:
    return Watermark(source.read_long())


def _write_latency_marker(element: LatencyMarker, output: bytearray) -> None:
    output += _TAGGED_LONG.pack(_LATENCY_MARKER, element.marked_ms)
    output += operator_id(element.operator)
    output += element.subtask_index.to_bytes(4, "big", signed=True)


def _write_status(element: WatermarkStatus, output: bytearray) -> None:
    output += _TAGGED_INT.pack(_WATERMARK_STATUS, _STATUSES[element])


def _read_status(source: ByteReader) -> WatermarkStatus:
    number = source.read_int()
    status = _STATUS_BY_NUMBER.get(number)
    if status is None:
        raise CorruptStreamError(f"there is no watermark status {number}")
    return status


def _write_attributes(element: RecordAttributes, output: bytearray) -> None:
    output.append(_RECORD_ATTRIBUTES)
    output.append(element.is_backlog)


def _read_attributes(source: ByteReader) -> RecordAttributes:
    return RecordAttributes(source.read_bool())


def _write_internal_watermark(element: InternalWatermark, output: bytearray) -> None:
    output += _TAGGED_INT_LONG.pack(
        _INTERNAL_WATERMARK, element.subpartition_index, element.timestamp_ms
    )


def _read_internal_watermark(source: ByteReader) -> InternalWatermark:
    return InternalWatermark(source.read_int(), source.read_long())
