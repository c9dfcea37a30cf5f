"""Checkpoint barriers as bytes, without the type number that goes before them."""

from __future__ import annotations

import struct
from typing import Final

from aiomailbox.errors import CorruptStreamError, InvalidArgumentError
from aiomailbox.records.byte_reader import ByteReader
from aiomailbox.records.events import Alignment, CheckpointBarrier, SnapshotType

__all__ = ["BARRIER_PADDING_BYTES", "read_barrier", "write_barrier"]

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
