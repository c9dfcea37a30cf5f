"""One connection between two workers: the part that both of its ends share.

Theory of operation: bytes come in through the decoder, straight into segments where a
body is large. What goes out is collected in turns: first messages, of which there is at
most one of a kind per receiver, each built when it is written; then what the end adds.
A turn ends after a few buffers, and all turns end when the transport says that bytes
wait. The socket is always read: credit has made room for what comes.
"""

from __future__ import annotations

import asyncio
import enum
import errno
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple, cast

from aiomailbox.errors import (
    CorruptStreamError,
    HandshakeError,
    LocalTransportError,
    RemoteTransportError,
    TransportError,
)
from aiomailbox.exchange.remote.handshake import Handshake
from aiomailbox.exchange.remote.wire import (
    BufferResponse,
    ErrorResponse,
    Message,
    RemoteCause,
    WireDecoder,
    encode_message,
)
from aiomailbox.forks import keep_from_forks
from aiomailbox.memory.buffer import DEFAULT_SEGMENT_SIZE_BYTES, Buffer

# Noticing a peer whose machine has gone without a word.


# Seconds of silence before the first probe, seconds between probes, and how many may
# stay unanswered: a dead machine is noticed within two minutes.
_PROBES: Final = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
# Of these, some are no ConnectionError.
_GONE: Final = frozenset(
    {errno.ECONNRESET, errno.EPIPE, errno.ETIMEDOUT, errno.EHOSTUNREACH}
)


def keep_alive(transport: asyncio.BaseTransport, stall_timeout: float) -> None:
    """Let the kernel notice that a TCP connection is dead; nothing to do for others."""
    connected = transport.get_extra_info("socket")
    if connected is None or connected.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    # Of a connection that was reset meanwhile, some systems refuse any option.
    with suppress(OSError):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        unconfirmed_ms = max(1, round(1000 * stall_timeout))
        for name, value in (*_PROBES, ("TCP_USER_TIMEOUT", unconfirmed_ms)):
            option = getattr(socket, name, None)
            if option is not None:
                connected.setsockopt(socket.IPPROTO_TCP, option, value)


def means_gone(error: Exception) -> bool:
    """Say whether a connection was lost with its peer, and not by our own trouble."""
    if isinstance(error, ConnectionError):
        return True
    return isinstance(error, OSError) and error.errno in _GONE


# The life of a connection: a table of states and the moves between them. The connecting
# peer may begin again if it lost its transport while greeting: nothing was said yet, and
# the peer may have needed the place for another one.


class ConnectionState(enum.Enum):
    """How far a connection is.

    Attributes:
        CONNECTING: There is no transport yet.
        GREETING: Both sides identify and authenticate themselves.
        OPEN: Everything else may be said.
        CLOSING: Nothing is read or said any more; what was written may still go out.
        CLOSED: The transport is gone, and with it all that was pinned.
    """

    CONNECTING = "connecting"
    GREETING = "greeting"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


_State = ConnectionState
_NEXT: Final = {
    _State.CONNECTING: frozenset({_State.GREETING, _State.CLOSED}),
    _State.GREETING: frozenset(
        {_State.OPEN, _State.CONNECTING, _State.CLOSING, _State.CLOSED}
    ),
    _State.OPEN: frozenset({_State.CLOSING, _State.CLOSED}),
    _State.CLOSING: frozenset({_State.CLOSED}),
    _State.CLOSED: frozenset[_State](),
}
_ENDING: Final = frozenset({_State.CLOSING, _State.CLOSED})


# The limits of connections, and where they write what happened to them.


class ConnectionOptions(NamedTuple):
    """Limits of connections; durations in seconds.

    Attributes:
        segment_bytes_max: A data buffer of more bytes is refused.
        handshake_timeout: How long a connected peer may take to greet and to
            authenticate; time in which the server's loop was held is no part of it.
        strangers_max: How many connections a server holds that have not done so.
        stall_timeout: How long a peer may read nothing at all of what it is sent, or
            its machine confirm nothing.
        linger: How long a closing connection may take to send what it has written.
        receivers_max: How many channels may share a connection.
        connections_max: How many connections of peers a server holds.
        connect_timeout: After which no further attempt to connect and to be let in is
            made.
        connect_backoff: Between the first two attempts; doubles.
        connect_backoff_max: Where it ends.
    """

    segment_bytes_max: int = DEFAULT_SEGMENT_SIZE_BYTES
    handshake_timeout: float = 10.0
    strangers_max: int = 32
    stall_timeout: float = 120.0
    linger: float = 2.0
    receivers_max: int = 16_384
    connections_max: int = 1_024
    connect_timeout: float = 30.0
    connect_backoff: float = 0.05
    connect_backoff_max: float = 2.0


# What is written: headers and views without a copy, pinned until they are sent.
#
# Theory of operation: since CPython 3.12 a transport keeps the caller's view until the
# kernel has taken it, so a segment may not be reused before. asyncio does not tell when
# one write is done, but how many bytes wait: what was written before these has left.


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


class OutgoingBatch:
    """The bytes that go out in one turn.

    Attributes:
        parts: Pieces in order, none of them empty.
        buffers: Whose bytes they are; recycled when sent.
        size_bytes: Of all pieces.
    """

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

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._pinned: deque[tuple[int, list[Buffer]]] = deque()
        self._is_writing = False
        self.written_bytes: int = 0

    def write(self, batch: OutgoingBatch) -> None:
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


_GREETING_SCRATCH_BYTES: Final = 1024
_SCRATCH_BYTES: Final = 64 * 1024
# What is still missing of a body is received in place from here on: less is copied.
_DIRECT_BYTES_MIN: Final = 16 * 1024
# What a stranger says goes to the log, but not at any length.
_STRANGERS_TEXT_MAX: Final = 200
MessageBuilder = Callable[[], Message | None]


class Connection(asyncio.BufferedProtocol):
    """The base of the reader's and the producer's end.

    Args:
        handshake: How it begins.
        peer: The other side, as people know it.
        local: This side.
        options: Limits.
        log: A structlog logger.

    Attributes:
        state: How far it is; it only moves along the table.
        local: As given.
        peer: As given, until the peer has said who it is.
        closed: Done when the transport is gone.

    Invariants:
        At most one message of a kind per receiver waits to be written.
        `_on_lost` is called once, after which nothing is pinned.

    Concept:
        Flink, the Netty pipeline of ``NettyServer`` and ``NettyClient``.
    """

    def __init__(
        self,
        handshake: Handshake,
        *,
        local: str,
        peer: str,
        options: ConnectionOptions,
        log: Any,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._handshake = handshake
        self._options = options
        self._log = log
        self.state: ConnectionState = ConnectionState.CONNECTING
        self._transport: asyncio.Transport | None = None
        self._outgoing: Outgoing | None = None
        self._decoder = self._new_decoder()
        # Before it is authenticated, a peer is given little memory.
        self._scratch = memoryview(bytearray(_GREETING_SCRATCH_BYTES))
        self._is_direct = False
        self._may_write = True
        self._is_woken = False
        self._was_open = False
        self._control: dict[tuple[type, bytes], MessageBuilder] = {}
        self._deadline: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._pauses = 0
        self._error: TransportError | None = None
        self._reason: str | None = None
        self.local = local
        self.peer: str = peer
        self.closed: asyncio.Future[None] = self._loop.create_future()

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.local} to {self.peer}: {self.state.value}>"
        )

    @property
    def is_introduced(self) -> bool:
        """Whether the peer has named the job, which strangers do not know."""
        return self._handshake.peer is not None

    @property
    def is_ending(self) -> bool:
        """Whether nothing more is read or said."""
        return self.state in _ENDING

    def fileno(self) -> int:
        """Return the descriptor of its socket, -1 if there is none."""
        transport = self._transport
        socket = None if transport is None else transport.get_extra_info("socket")
        return -1 if socket is None else int(socket.fileno())

    # What the ends add.

    _tries_again = False

    def open_body(self, header: BufferResponse) -> memoryview | None:
        """Return where a buffer's content goes, or None to skip it."""
        raise CorruptStreamError(f"the peer has sent {type(header).__name__}")

    def _on_made(self) -> None:
        """Be notified that there is a transport."""

    def _on_open_message(self, message: Message) -> None:
        """Take a message of an open connection."""

    def _fill(self, batch: OutgoingBatch) -> bool:
        """Add to a turn, and say whether another one is needed."""
        return False

    def _on_lost(self, error: TransportError) -> None:
        """Release everything: it is over."""

    def _is_expected_end(self) -> bool:
        """Whether the peer may just go away now."""
        return False

    def _begin_again(self) -> None:
        """Prepare for another transport after one was lost in greeting."""

    def _on_open(self) -> None:
        """Be notified that the peer is authenticated."""

    def _report_end(self, write: Callable[..., None]) -> None:
        write(
            "connection closed",
            local=self.local,
            peer=self.peer,
            reason=self._reason,
            was_open=self._was_open,
        )

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        # Not asked for by class: those of other loops (uvloop) are of none of asyncio's.
        made = cast("asyncio.Transport", transport)
        self._transport = made
        self._outgoing = Outgoing(made)
        keep_from_forks(self)
        self._cancel_timers()
        if not self._advance(ConnectionState.GREETING):
            made.abort()
            return
        keep_alive(made, self._options.stall_timeout)
        # So that whatever waits pauses us; asyncio's TLS would pause at 0 for ever.
        is_tls = made.get_extra_info("sslcontext") is not None
        made.set_write_buffer_limits(high=1 if is_tls else 0, low=0)
        self._on_made()
        if not self.is_ending:
            self._say(self._handshake.start())

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go: into a segment if many of it are missing."""
        # Into the segment itself, where enough is missing: no copy, and no larger
        # reads.
        window = None if self.is_ending else self._decoder.direct_window
        self._is_direct = window is not None and len(window) >= _DIRECT_BYTES_MIN
        return window if window is not None and self._is_direct else self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        """Decode what has arrived."""
        if self.is_ending:
            return
        try:
            if self._is_direct:
                self._decoder.received(nbytes)
            else:
                self._decoder.feed(self._scratch[:nbytes])
        except (CorruptStreamError, HandshakeError) as error:
            self._fail(RemoteTransportError(self.local, self.peer, str(error)))
        except Exception as error:  # noqa: BLE001 -- it must not end the loop's reader
            reason = f"{type(error).__name__}: {error}"
            self._fail(LocalTransportError(self.local, self.peer, reason))

    def eof_received(self) -> bool:
        """Close: a peer that says nothing more grants no credit either."""
        if not self.is_ending:
            self._on_eof()
        return False

    def pause_writing(self) -> None:
        """Stop writing: bytes wait."""
        self._may_write = False
        self._pauses += 1
        if self._stall is None and not self.is_ending:
            self._watch_stall()

    def resume_writing(self) -> None:
        """Go on writing: no byte waits."""
        self._may_write = True
        if self._outgoing is not None:
            self._outgoing.recycle_sent()
        # Not at once: the transport may be in the middle of a write.
        self.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything that was pinned, and notify the users."""
        if self._outgoing is not None:
            self._outgoing.recycle_all()
        # A server that was full turned us away before anything was said: try again.
        if self.state is ConnectionState.GREETING and self._tries_again:
            self._begin_again()
            self._cancel_timers()
            return
        if not self.is_ending:
            if exc is None:
                self._on_eof()
            else:
                error = self._lost_by(exc)
                self.end(error.reason, error)
        self._finish()

    # Saying things.

    def queue(self, kind: type, receiver: bytes, build: MessageBuilder) -> None:
        """Say something soon, once; it is built when it is written."""
        if not self.is_ending:
            self._control.setdefault((kind, receiver), build)
            self.wake()

    def wake(self) -> None:
        """Write soon, if there is something to write."""
        if (
            self._may_write
            and not self._is_woken
            and self.state is ConnectionState.OPEN
        ):
            self._is_woken = True
            self._loop.call_soon(self._write_turn)

    def end(self, reason: str, error: TransportError | None = None) -> None:
        """Close, for a reason; what was written may still go out. Idempotent."""
        if self.is_ending:
            return
        self._reason, self._error = reason, error
        self._control.clear()
        self._cancel_timers()
        # A peer that does not read would keep the socket, and with it what is pinned.
        if self._advance(ConnectionState.CLOSING):
            assert self._transport is not None
            self._deadline = self._loop.call_later(
                self._options.linger, self._transport.abort
            )
            self._transport.close()
        else:
            self._finish()
        self._on_lost(error or LocalTransportError(self.local, self.peer, reason))

    def abort(self) -> None:
        """Close at once, whatever waits."""
        if self._transport is not None:
            # Before it has proved itself, a stranger must not fill the log.
            self._transport.abort()

    def on_message(self, message: Message) -> None:
        """Take a message that was decoded."""
        if self.is_ending:
            return
        if isinstance(message, ErrorResponse) and message.receiver is None:
            is_known = self.state is ConnectionState.OPEN
            reason = f"it reports {message.cause.kind}: {message.cause.text}"
            reason = reason if is_known else reason[:_STRANGERS_TEXT_MAX]
            self.end(reason, self._remote_error(reason))
            return
        if self.state is ConnectionState.OPEN:
            self._on_open_message(message)
            return
        self._say(self._handshake.on_message(message))
        if self._handshake.peer is not None:
            self.peer = f"worker {self._handshake.peer!r} at {self._address()}"
        if self._handshake.is_complete:
            self._open()

    def _advance(self, target: ConnectionState) -> bool:
        """Move to a state if the table allows it; say whether it did."""
        if target not in _NEXT[self.state]:
            return False
        self.state = target
        return True

    def _new_decoder(self) -> WireDecoder:
        return WireDecoder(self, segment_bytes_max=self._options.segment_bytes_max)

    def _address(self) -> str:
        """Return where the peer is."""
        return self.peer

    def _open(self) -> None:
        self._was_open = self._advance(ConnectionState.OPEN)
        self._cancel_timers()
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._log.debug("connection open", local=self.local, peer=self.peer)
        self._on_open()
        self.wake()

    def _say(self, messages: list[Message]) -> None:
        assert self._outgoing is not None
        batch = OutgoingBatch()
        for message in messages:
            batch.add(encode_message(message))
        if batch:
            self._outgoing.write(batch)

    def _write_turn(self) -> None:
        self._is_woken = False
        if not self._may_write or self.state is not ConnectionState.OPEN:
            return
        assert self._outgoing is not None
        batch = OutgoingBatch()
        try:
            needs_another = self._collect(batch)
        except Exception as error:  # noqa: BLE001 -- its waiter gets it
            batch.drop()
            reason = f"{type(error).__name__}: {error}"
            self._fail(LocalTransportError(self.local, self.peer, reason))
            return
        if batch:
            self._outgoing.write(batch)
        self._after_turn()
        if needs_another:
            self.wake()

    def _collect(self, batch: OutgoingBatch) -> bool:
        while self._control and batch.has_room_for_control:
            key = next(iter(self._control))
            message = self._control.pop(key)()
            if message is not None:
                batch.add(encode_message(message))
        return self._fill(batch) or bool(self._control)

    def _after_turn(self) -> None:
        """Do what had to wait for the turn to be written."""

    # Ending.

    def _fail(self, error: TransportError) -> None:
        """Close because of an error, and tell the peer that there was one."""
        state = self.state
        if state in {ConnectionState.GREETING, ConnectionState.OPEN}:
            # What went wrong is not for strangers to know.
            is_known = state is ConnectionState.OPEN
            text = error.reason if is_known else "refused; my log says why"
            self._say([ErrorResponse(RemoteCause(type(error).__name__, text))])
        self.end(error.reason, error)

    def _on_eof(self) -> None:
        if self.state is ConnectionState.GREETING and self._tries_again:
            # Losing the transport comes next.
            return
        reason = "the peer closed it"
        if self.state is ConnectionState.GREETING:
            reason = "the peer closed it during the handshake"
        is_expected = self._is_expected_end() and self._decoder.is_between_frames
        self.end(
            reason,
            None if is_expected else self._remote_error(reason),
        )

    def _lost_by(self, error: Exception) -> TransportError:
        reason = f"{type(error).__name__}: {error}"
        if means_gone(error):
            return self._remote_error(reason)
        return LocalTransportError(self.local, self.peer, reason)

    def _remote_error(self, reason: str) -> RemoteTransportError:
        return RemoteTransportError(self.local, self.peer, reason)

    def _finish(self) -> None:
        self._cancel_timers()
        if not self._advance(ConnectionState.CLOSED):
            return
        self._report_end(self._log.info if self._error is None else self._log.warning)
        if not self.closed.done():
            self.closed.set_result(None)

    def _watch_stall(self) -> None:
        assert self._transport is not None
        seen = (self._pauses, self._transport.get_write_buffer_size())
        self._stall = self._loop.call_later(
            self._options.stall_timeout, self._check_stall, seen
        )

    def _check_stall(self, seen: tuple[int, int]) -> None:
        self._stall = None
        if self._may_write or self.is_ending or self._transport is None:
            return
        # The transport has sent something meanwhile: slow is not dead.
        if seen != (self._pauses, self._transport.get_write_buffer_size()):
            self._watch_stall()
            return
        reason = f"the peer has read nothing for {self._options.stall_timeout:g} s"
        self.end(reason, self._remote_error(reason))
        self.abort()

    def _cancel_timers(self) -> None:
        for timer in (self._deadline, self._stall):
            if timer is not None:
                timer.cancel()
        self._deadline = self._stall = None


# Waiting for connections to be gone, but not for ever.


async def close_all(connections: Iterable[Connection], linger: float) -> None:
    """Wait until connections that were ended are gone; hurry them after a while."""
    waiting = {connection.closed: connection for connection in connections}
    if not waiting:
        return
    _, pending = await asyncio.wait(waiting, timeout=linger)
    for closed in pending:
        waiting[closed].abort()
    if pending:
        await asyncio.wait(pending)
