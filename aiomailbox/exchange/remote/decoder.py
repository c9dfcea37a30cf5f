"""Bytes in, messages out: frames cut anywhere, bodies straight into their segments.

Theory of operation: three states. The first nine bytes of a frame say what it is and
how long; a buffer's header says where its content goes; the content is copied, or
received directly, into a window that the receiver gives. A content that is not wanted
is counted down, so that the frames after it are still found. What is held back is never
more than one control message.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Protocol

from aiomailbox.errors import CorruptStreamError, IllegalStateError
from aiomailbox.exchange.remote.wire import (
    BUFFER_HEADER_BYTES,
    FRAME_HEADER,
    MAGIC,
    BufferResponse,
    Message,
    decode_body,
    decode_buffer_header,
    frame_layout,
)
from aiomailbox.memory.buffer import DEFAULT_SEGMENT_SIZE_BYTES

# A barrier with a long location; events are not counted against credit.
EVENT_BYTES_MAX: Final = 64 * 1024
_BUFFER_RESPONSE: Final = 0


class FrameHandler(Protocol):
    """Receives what was decoded, in order."""

    def open_body(self, header: BufferResponse) -> memoryview | None:
        """Return where a buffer's content goes; not called for an empty one.

        Returns:
            A writable window of ``header.size_bytes`` bytes, or None to skip it.
        """
        ...

    def on_message(self, message: Message) -> None:
        """Take a message; of a buffer, its header once the content is complete."""
        ...


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

    __slots__ = (
        "_body_bytes",
        "_event_bytes_max",
        "_failure",
        "_handler",
        "_header",
        "_held",
        "_missing",
        "_number",
        "_segment_bytes_max",
        "_state",
        "_window",
    )

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

        Args:
            data: Borrowed for the call.

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
