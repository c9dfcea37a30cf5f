"""The control channel between a parent and a worker: frames, and their receivers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeVar

import msgspec

from aiomailbox.errors import CorruptStreamError
from aiomailbox.exchange.remote.wire import FRAME_HEADER
from aiomailbox.runtime.peers.messages import (
    FRAME_BYTES_MAX,
    body_bytes,
    encode,
)

# A job may bring its data along: all that a frame can say.
PARENT_BYTES_MAX: Final = (1 << 31) - 1 - FRAME_HEADER.size
# With more than this waiting to be sent, the other end is taken not to read any more.
_UNSENT_BYTES_MAX: Final = 2 * FRAME_BYTES_MAX

InT = TypeVar("InT")


class FrameBuffer:
    r"""Puts frames together from what arrives.

    Args:
        bytes_max: The longest body that is taken.

    Example:
        >>> from aiomailbox.runtime.peers.messages import Cancel
        >>> frames, sent = FrameBuffer(100), encode(Cancel())
        >>> [*frames.feed(sent[:5])], [*frames.feed(sent[5:] + sent[:1])]
        ([], [b'\x92\x00\x92\xa6Cancel\xc0'])
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._received = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the bodies that are complete now, those of earlier bytes included.

        Raises:
            CorruptStreamError: If what comes next is no frame, or too long.
        """
        received = self._received
        received += data
        while len(received) >= FRAME_HEADER.size:
            end = FRAME_HEADER.size + body_bytes(received, self._bytes_max)
            if len(received) < end:
                return
            body = bytes(received[FRAME_HEADER.size : end])
            del received[:end]
            yield body

    def clear(self) -> None:
        """Forget what is not complete."""
        self._received.clear()


class ControlChannel(asyncio.Protocol, Generic[InT]):
    """One end of the channel; everything arrives as calls on the loop.

    Args:
        decode: Reads the body of a frame.
        bytes_max: The longest body that is taken.
        on_message: Takes the number of an attempt and a message about it, in order.
        on_lost: Called once at the end, with the reason if the other end broke the
            protocol.

    Attributes:
        attempt: Which attempt of the job what is sent is about.
    """

    def __init__(
        self,
        decode: Callable[[bytes], tuple[int, InT]],
        bytes_max: int,
        on_message: Callable[[int, InT], None],
        on_lost: Callable[[BaseException | None], None],
    ) -> None:
        self.attempt = 0
        self._decode = decode
        self._frames = FrameBuffer(bytes_max)
        self._on_message = on_message
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._reason: BaseException | None = None

    async def connect(self, end: socket.socket) -> None:
        """Take over an end of the pair; it is closed with the channel."""
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self, sock=end)

    async def adopt(self, transport: Any) -> None:
        """Take over a connection whose ends have authenticated each other."""
        transport.set_protocol(self)
        self.connection_made(transport)

    @property
    def unsent_bytes(self) -> int:
        """How much waits to be sent."""
        transport = self._transport
        return 0 if transport is None else transport.get_write_buffer_size()

    def send(self, message: msgspec.Struct, attempt: int | None = None) -> None:
        """Send a message; a no-op once the other end is gone.

        Args:
            message: What is said.
            attempt: Which attempt it is about; None for the last one.
        """
        transport = self._transport
        # The handler of the loss cleans up; a sender needn't know.
        if transport is None or transport.is_closing():
            return
        encoded = encode(message, self.attempt if attempt is None else attempt)
        if transport.get_write_buffer_size() > _UNSENT_BYTES_MAX:
            self._break(CorruptStreamError("the other end does not read any more"))
            return
        transport.write(encoded)

    def close(self) -> None:
        """Close once everything is sent; idempotent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once; idempotent."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: Any) -> None:
        """Keep the transport."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Take the frames that are complete."""
        try:
            for body in self._frames.feed(data):
                self._on_message(*self._decode(body))
        except CorruptStreamError as error:
            self._break(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell that it is over."""
        self._transport = None
        self._frames.clear()
        self._on_lost(self._reason)

    def _break(self, error: BaseException) -> None:
        # The first reason counts, for the ones after it follow from it.
        self._reason = self._reason or error
        self.abort()


def read_message(
    end: socket.socket, decode: Callable[[bytes], tuple[int, InT]], bytes_max: int
) -> InT:
    """Wait for one message without a loop.

    Raises:
        EOFError: If the other end has gone.
        CorruptStreamError: If it is no message.
    """
    header = _read(end, FRAME_HEADER.size)
    _, message = decode(_read(end, body_bytes(header, bytes_max)))
    return message


def _read(end: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = end.recv(min(count - len(data), 1 << 20))
        if not part:
            raise EOFError("the parent process has gone")
        data += part
    return bytes(data)
