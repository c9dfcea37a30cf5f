"""The bodies of the longer messages."""

from __future__ import annotations

import struct
from typing import Final

from aiomailbox.errors import CorruptStreamError, InvalidArgumentError
from aiomailbox.exchange.remote.messages import (
    ErrorResponse,
    Hello,
    PartitionAddress,
    PartitionRequest,
    RemoteCause,
)
from aiomailbox.records.byte_reader import ByteReader

__all__ = [
    "CAUSE_BYTES_MAX",
    "HELLO_BYTES_MAX",
    "HELLO_BYTES_MIN",
    "ID_BYTES",
    "error_body",
    "read_error",
    "read_hello",
    "read_partition_request",
    "write_error",
    "write_hello",
    "write_partition_request",
]

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
