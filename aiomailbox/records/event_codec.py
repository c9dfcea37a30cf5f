"""Runtime events as bytes: a table of type numbers, one writer and reader each.

The numbers and layouts are Flink 2.3's. Its type 3, "any other class", names a Java class
and is refused: nothing that arrives decides which code runs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
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
    RecoveryMetadata,
    RuntimeEvent,
    SnapshotType,
    StopMode,
    SubtaskConnection,
    WatermarkEvent,
)
from aiomailbox.records.serializers import read_java_utf, write_java_utf

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


_TWO_INTS: Final = struct.Struct(">ii")


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


def _write_nothing(event: RuntimeEvent, output: bytearray) -> None:
    """Append nothing: the number says it all."""


def _reader_of(event: RuntimeEvent) -> Read:
    def read(source: ByteReader) -> RuntimeEvent:
        return event

    return read


def _write_cancel(event: CancelCheckpoint, output: bytearray) -> None:
    output += _LONG.pack(event.checkpoint_id)


def _read_cancel(source: ByteReader) -> RuntimeEvent:
    return CancelCheckpoint(source.read_long())


def _write_announcement(event: EventAnnouncement, output: bytearray) -> None:
    output += _INT.pack(event.sequence_number)
    _write_event(event.announced, output)


def _read_announcement(source: ByteReader) -> RuntimeEvent:
    sequence_number = source.read_int()
    # Announcements of announcements do not exist, and would nest without end.
    if bytes(source.peek(_INT.size)) == _INT.pack(_ANNOUNCEMENT):
        raise CorruptStreamError("an announcement announces an announcement")
    return EventAnnouncement(_read_event(source), sequence_number)


def _write_connection(event: SubtaskConnection, output: bytearray) -> None:
    output += _TWO_INTS.pack(event.input_subtask, event.output_subtask)


def _read_connection(source: ByteReader) -> RuntimeEvent:
    return SubtaskConnection(source.read_int(), source.read_int())


def _write_end_of_data(event: EndOfData, output: bytearray) -> None:
    output.append(_STOP_MODES.index(event.mode))


def _read_end_of_data(source: ByteReader) -> RuntimeEvent:
    mode = source.read_byte()
    if not 0 <= mode < len(_STOP_MODES):
        raise CorruptStreamError(f"there is no stop mode {mode}")
    return EndOfData(_STOP_MODES[mode])


def _write_recovery(event: RecoveryMetadata, output: bytearray) -> None:
    output += _INT.pack(event.final_subpartition)


def _read_recovery(source: ByteReader) -> RuntimeEvent:
    return RecoveryMetadata(source.read_int())


def _write_watermark(event: WatermarkEvent, output: bytearray) -> None:
    write_java_utf(event.identifier, output)
    output.append(event.is_aligned)
    if isinstance(event.value, bool):
        output += _INT.pack(_WATERMARK_BOOL)
        output.append(event.value)
    else:
        output += _INT.pack(_WATERMARK_LONG) + _LONG.pack(event.value)


def _read_watermark(source: ByteReader) -> RuntimeEvent:
    identifier = read_java_utf(source)
    is_aligned = source.read_bool()
    kind = source.read_int()
    if kind == _WATERMARK_LONG:
        return WatermarkEvent(identifier, source.read_long(), is_aligned)
    if kind == _WATERMARK_BOOL:
        return WatermarkEvent(identifier, source.read_bool(), is_aligned)
    raise CorruptStreamError(f"there is no generalized watermark of kind {kind}")


_TABLE: Final[tuple[tuple[int, type[RuntimeEvent], Write, Read], ...]] = (
    (0, EndOfPartition, _write_nothing, _reader_of(EndOfPartition())),
    (1, CheckpointBarrier, write_barrier, read_barrier),
    (2, EndOfSuperstep, _write_nothing, _reader_of(EndOfSuperstep())),
    (4, CancelCheckpoint, _write_cancel, _read_cancel),
    (5, EndOfOutputChannelState, _write_nothing, _reader_of(EndOfOutputChannelState())),
    (_ANNOUNCEMENT, EventAnnouncement, _write_announcement, _read_announcement),
    (7, SubtaskConnection, _write_connection, _read_connection),
    (8, EndOfData, _write_end_of_data, _read_end_of_data),
    (9, EndOfSegment, _write_nothing, _reader_of(EndOfSegment())),
    (10, RecoveryMetadata, _write_recovery, _read_recovery),
    (11, WatermarkEvent, _write_watermark, _read_watermark),
    (12, EndOfInputChannelState, _write_nothing, _reader_of(EndOfInputChannelState())),
)


_WRITERS: Final = {kind: (number, write) for number, kind, write, _ in _TABLE}


_READERS: Final = {number: read for number, _, _, read in _TABLE}
