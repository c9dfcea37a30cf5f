"""What is written: headers and views without a copy, pinned until they are sent.

Theory of operation: since CPython 3.12 a transport keeps the caller's view until the
kernel has taken it, so a segment may not be reused before. asyncio does not tell when
one write is done, but how many bytes wait: what was written before these has left.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Final, Protocol

from aiomailbox.memory.buffer import Buffer

__all__ = ["BATCH_BUFFERS_MAX", "Batch", "Outgoing", "WriteTransport"]

# Flink lets two segments wait in a socket; more only hides in it.
BATCH_BUFFERS_MAX: Final = 4
# What a socket takes at once by default: of more, asyncio would copy the rest.
BATCH_BYTES_MAX: Final = 128 * 1024
BATCH_CONTROL_BYTES_MAX: Final = 64 * 1024
# Up to here one copy costs less than a second system call.
_JOIN_BYTES_MAX: Final = 16 * 1024
# Before, transports join what they are given by themselves, and copy what is left over
# twice: it is better done here, once.
_HAS_VECTORS: Final = sys.version_info >= (3, 12)


class WriteTransport(Protocol):
    """What is asked of a transport; `asyncio.Transport` is one."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes, or keep them until they can be sent."""
        ...

    def writelines(self, list_of_data: list[bytes | memoryview]) -> None:
        """Send several pieces in one go."""
        ...

    def get_write_buffer_size(self) -> int:
        """Return how many bytes wait."""
        ...


class Batch:
    """What goes out in one turn.

    Attributes:
        parts: Pieces in order, none of them empty.
        buffers: Whose bytes they are; recycled when sent.
        size_bytes: Of all pieces.
    """

    __slots__ = ("buffers", "parts", "size_bytes")

    def __init__(self) -> None:
        self.parts: list[bytes | memoryview] = []
        self.buffers: list[Buffer] = []
        self.size_bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.parts)

    @property
    def has_room_for_control(self) -> bool:
        """Whether another message fits in this turn."""
        return self.size_bytes < BATCH_CONTROL_BYTES_MAX

    @property
    def has_room_for_buffer(self) -> bool:
        """Whether another buffer fits in this turn."""
        return (
            len(self.buffers) < BATCH_BUFFERS_MAX and self.size_bytes < BATCH_BYTES_MAX
        )

    def add(self, encoded: bytes) -> None:
        """Append a message."""
        self.parts.append(encoded)
        self.size_bytes += len(encoded)

    def add_buffer(self, header: bytes, buffer: Buffer) -> None:
        """Append a buffer, taken over, behind its header."""
        self.add(header)
        self.buffers.append(buffer)
        content = buffer.readable()
        if content:
            self.parts.append(content)
            self.size_bytes += len(content)

    def drop(self) -> None:
        """Recycle what will not be written."""
        _recycle(self.buffers)


class Outgoing:
    """The buffers that a transport may still refer to.

    Args:
        transport: Where to.

    Attributes:
        written_bytes: All that was handed to the transport so far.
        pinned: How many buffers wait to be sent.

    Invariants:
        A buffer is recycled once, and only when its last byte has left the transport.
    """

    __slots__ = ("_is_writing", "_pinned", "_transport", "written_bytes")

    def __init__(self, transport: WriteTransport) -> None:
        self._transport = transport
        self._pinned: deque[tuple[int, list[Buffer]]] = deque()
        self._is_writing = False
        self.written_bytes: int = 0

    @property
    def pinned(self) -> int:
        """How many buffers wait to be sent."""
        return sum(len(buffers) for _, buffers in self._pinned)

    def write(self, batch: Batch) -> None:
        """Send a batch; its buffers are recycled now or when they have left."""
        parts, buffers = batch.parts, batch.buffers
        self.written_bytes += batch.size_bytes
        if batch.size_bytes <= _JOIN_BYTES_MAX:
            joined = b"".join(parts)
            _recycle(buffers)
            self._transport.write(joined)
            return
        if not _HAS_VECTORS:
            parts = [memoryview(b"".join(parts))]
        if buffers:
            self._pinned.append((self.written_bytes, buffers))
        self._is_writing = True
        try:
            # Some versions of writelines() do not pause (gh-127655): write() does.
            if len(parts) > 1:
                self._transport.writelines(parts[:-1])
            self._transport.write(parts[-1])
        finally:
            self._is_writing = False
        self.recycle_sent()

    def recycle_sent(self) -> None:
        """Recycle what has provably left."""
        # A transport may resume its writer inside a write, when only a part of the
        # batch is in its hands: what waits says nothing then.
        if not self._pinned or self._is_writing:
            return
        sent_bytes = self.written_bytes - self._transport.get_write_buffer_size()
        while self._pinned and self._pinned[0][0] <= sent_bytes:
            _recycle(self._pinned.popleft()[1])

    def recycle_all(self) -> None:
        """Recycle everything: the transport is gone and refers to nothing."""
        while self._pinned:
            _recycle(self._pinned.popleft()[1])


def _recycle(buffers: list[Buffer]) -> None:
    for buffer in buffers:
        buffer.recycle()
