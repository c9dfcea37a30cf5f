"""Files that say whether they are whole: frames with a checksum each, and an end.

::

    file  = magic (6 bytes) version (1 byte) kind (1 byte) frame* end
    frame = size (u32, above 0) crc32 of the payload (u32) payload
    end   = 0 (u32) crc32 over the checksums of all frames (u32)

A file that was cut off has no end; one whose bits changed has a wrong checksum, and
frames that were lost or swapped give a wrong last one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final
from zlib import crc32

from aiomailbox.errors import DamagedFileError

FRAME_BYTES_MAX: Final = 1 << 26
_MAGIC: Final = b"AIOMBX"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<6sBB")
_FRAME: Final = struct.Struct("<II")


def checked_chunks(kind: int, payloads: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes of a file that holds ``payloads``, one frame each.

    Example:
        >>> data = b"".join(checked_chunks(7, [b"one", b"two"]))
        >>> list(checked_frames("name", 7, [data]))
        [b'one', b'two']
    """
    yield _HEADER.pack(_MAGIC, _VERSION, kind)
    digest = 0
    for payload in payloads:
        assert 0 < len(payload) <= FRAME_BYTES_MAX, "a frame has 1 byte to 64 MiB"
        checksum = crc32(payload)
        frame = _FRAME.pack(len(payload), checksum)
        digest = crc32(frame, digest)
        yield frame + payload if len(payload) < 4096 else frame
        if len(payload) >= 4096:
            yield payload
    yield _FRAME.pack(0, digest)


def checked_frames(name: str, kind: int, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the payloads of a file, each after its checksum has been compared.

    The frames before an error are right, but they are not all.

    Raises:
        DamagedFileError: If it is not whole, or of another kind or version.
    """
    source = _Bytes(name, chunks)
    magic, version, found = _HEADER.unpack(source.take(_HEADER.size))
    if magic != _MAGIC:
        raise DamagedFileError(name, "it does not begin like a file of aiomailbox")
    if version != _VERSION:
        raise DamagedFileError(
            name, f"it has version {version}, and this release reads {_VERSION}"
        )
    if found != kind:
        raise DamagedFileError(name, f"it is of kind {found}, not {kind}")
    digest = 0
    while True:
        frame = source.take(_FRAME.size)
        size, checksum = _FRAME.unpack(frame)
        if size == 0:
            break
        if size > FRAME_BYTES_MAX:
            raise DamagedFileError(name, f"a frame of {size} bytes is too large")
        payload = source.take(size)
        if crc32(payload) != checksum:
            raise DamagedFileError(name, "a checksum does not match its data")
        digest = crc32(frame, digest)
        yield payload
    if checksum != digest:
        raise DamagedFileError(name, "frames are missing, or in another order")
    if not source.is_at_end():
        raise DamagedFileError(name, "something follows its end")


class _Bytes:
    """Takes counted bytes from chunks."""

    def __init__(self, name: str, chunks: Iterable[bytes]) -> None:
        self._name = name
        self._chunks = iter(chunks)
        self._rest = memoryview(b"")

    def take(self, size: int) -> bytes:
        """Return exactly ``size`` bytes."""
        parts = []
        missing = size
        while missing:
            if not self._rest and not self._fetch():
                raise DamagedFileError(self._name, "it is truncated")
            part = self._rest[:missing]
            self._rest = self._rest[missing:]
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def is_at_end(self) -> bool:
        """Say whether all has been taken."""
        return not self._rest and not self._fetch()

    def _fetch(self) -> bool:
        for chunk in self._chunks:
            if chunk:
                self._rest = memoryview(chunk)
                return True
        return False
