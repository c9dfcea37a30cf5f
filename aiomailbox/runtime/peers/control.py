"""The channels between a parent and a worker: one of messages, one of signs of life."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from aiomailbox.errors import CorruptStreamError, WorkerDiedError
from aiomailbox.exchange.remote.wire import FRAME_HEADER
from aiomailbox.forks import keep_from_forks
from aiomailbox.runtime.held_loop import look_at_loop
from aiomailbox.runtime.peers.messages import (
    FRAME_BYTES_MAX,
    Beat,
    FromParent,
    FromWorker,
    body_bytes,
    decode_beat,
    decode_from_worker,
    encode,
)
from aiomailbox.runtime.peers.placement import PeerPlace, peer_name

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
        """Send a message; a no-op once the other end is gone."""
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


# A worker as the parent has it, however it was started, and what it reports.


class Worker(ABC):
    """One worker, from its start to its end; what it says comes over a channel.

    Attributes:
        peer: Its number, from 1.
        name: What people call it.
        may_exit: Whether it was asked to exit.
        has_exited: Whether there is none, or not any more.
    """

    def __init__(self, peer: int, events: WorkerEvents) -> None:
        self.peer = peer
        self.name: str = peer_name(peer)
        self.may_exit = False
        self.has_exited: bool = True
        self._events = events
        # Why it was killed, if that is the job's failure.
        self._reason: str | None = None
        self._channel: ControlChannel[FromWorker] = ControlChannel(
            partial(decode_from_worker, worker=self.name),
            FRAME_BYTES_MAX,
            self._on_message,
            self._on_lost,
        )

    @abstractmethod
    async def start(self) -> None:
        """Start it, and connect with it.

        Raises:
            OSError: If there can be no more processes, sockets or memory.
        """

    def begin_attempt(self, number: int) -> None:
        """Let what is sent to it be about an attempt of the job from now on."""
        self._channel.attempt = number

    def send(self, message: FromParent) -> None:
        """Send it a message; a no-op once it is gone."""
        self._channel.send(message)

    @abstractmethod
    def kill(self, reason: str | None) -> None:
        """End it at once; with the reason, if that is the job's failure."""

    def release(self) -> None:
        """Close everything that is left here; it has exited, or never was."""
        self._channel.abort()

    @abstractmethod
    def _on_lost(self, reason: BaseException | None) -> None:
        """Be notified of the end of the channel; with an error in what it said."""

    def _on_message(self, attempt: int, message: FromWorker) -> None:
        self._events.on_message(self, attempt, message)

    def _on_gone(self, how: str, pid: int = 0, exit_code: int | None = None) -> None:
        """Tell that it is gone, with an error if it should not be."""
        self.has_exited = True
        error: WorkerDiedError | None = None
        if not self.may_exit or self._reason is not None:
            error = WorkerDiedError(self.name, pid, exit_code, self._reason or how)
        self._events.on_exit(self, error)


class Starter(Protocol):
    """Starts the workers of a job somewhere: the processes of a machine, of a cluster."""

    def prepare(self) -> PeerPlace:
        """Get ready what peers need where they run; called in a thread, once.

        Returns:
            The place of the parent, itself a peer.

        Raises:
            OSError: If something cannot be had.
        """

    def new_worker(self, peer: int, events: WorkerEvents) -> Worker:
        """Return a worker of a number, from 1, that has not started."""

    def release(self) -> None:
        """Remove what was made; called in a thread, when no worker is left."""


class WorkerEvents(Protocol):
    """Is notified of what a worker does, on the loop of the parent."""

    def on_message(self, worker: Worker, attempt: int, message: FromWorker) -> None:
        """Take a message about an attempt; CorruptStreamError ends the worker."""

    def on_held(self, worker: Worker, beat: Beat) -> None:
        """Be notified that a loop of the worker is held, and by what."""

    def on_exit(self, worker: Worker, error: WorkerDiedError | None) -> None:
        """Be notified that it is gone; with an error if it should not be."""


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


# Signs of life: a thread of a worker sends them, a thread of its parent waits for them.
#
# Theory of operation: the two ends of a socket of their own, the lifeline. Neither thread
# needs a loop, so on both sides a loop that is held is distinguished from a process that
# is stopped; and no large message is in the way. Time is counted in waits that timed out:
# a side that was stopped itself has waited once, however long, and suspects no other one.
# When the worker's end finds the other one closed, the parent is gone.


_BEAT_S: Final = 1.0
_BEAT_BYTES_MAX: Final = 64 * 1024
# From here on a loop counts as held. Pauses between reports double, up to five minutes.
_HELD_BEATS_MIN: Final = 3
_REPORT_BEATS_MAX: Final = 300
# An interpreter starts, on a busy machine.
_START_S: Final = 60.0


class Heart:
    """A worker's end: says once a second that the process lives.

    Args:
        end: A connected socket; the heart's thread uses it alone, and closes it.
        on_orphaned: Called in that thread when the parent is gone.
    """

    def __init__(self, end: socket.socket, on_orphaned: Callable[[], None]) -> None:
        keep_from_forks(end)
        # So that a wait is a beat: no clock is asked.
        end.settimeout(_BEAT_S)
        self._end = end
        self._on_orphaned = on_orphaned
        self._unsent = b""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._has_turned = True
        self._held_beats = 0
        self._pause = 0
        self._pause_next = 2 * _HELD_BEATS_MIN
        threading.Thread(target=self._run, name="heart", daemon=True).start()

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tell from now on what holds a loop; call it in the loop's thread."""
        self._loop_thread = threading.get_ident()
        self._loop = loop

    def _run(self) -> None:
        is_connected = True
        while is_connected:
            self._send(self._beat())
            is_connected = self._wait()
        self._end.close()
        self._on_orphaned()

    def _wait(self) -> bool:
        """Wait for a beat, and say whether the parent is still there."""
        try:
            while self._end.recv(1):
                pass
        except TimeoutError:
            return True
        except OSError:
            return False
        return False

    def _beat(self) -> Beat:
        loop = self._loop
        if loop is None:
            return Beat(0.0, None)
        self._pause = max(0, self._pause - 1)
        if self._has_turned:
            # One question at a time, or a held loop would collect them.
            self._has_turned = False
            self._held_beats = 0
            with contextlib.suppress(RuntimeError):  # It is closed: the end is near.
                loop.call_soon_threadsafe(self._on_turn)
        else:
            self._held_beats += 1
        held_s = self._held_beats * _BEAT_S
        if self._held_beats < _HELD_BEATS_MIN or self._pause:
            return Beat(held_s, None)
        self._pause = self._pause_next
        # What holds a loop for an hour needs no line a second.
        self._pause_next = min(2 * self._pause_next, _REPORT_BEATS_MAX)
        try:
            return Beat(held_s, look_at_loop(loop, self._loop_thread))
        except Exception:  # noqa: BLE001 -- what stands there is the user's
            # A worker that cannot be described is alive all the same.
            return Beat(held_s, None)

    def _on_turn(self) -> None:
        self._has_turned = True

    def _send(self, beat: Beat) -> None:
        """Send what fits: a parent that does not read is not waited for, for long."""
        # The rest of a beat first: frames must not be mixed up.
        data = self._unsent or encode(beat)
        try:
            sent = self._end.send(data)
        except OSError:
            # It reads nothing, or the next wait shows that it has gone.
            return
        self._unsent = data[sent:]


class LivenessWatch:
    """The parent's end: receives a worker's heartbeats, and detects their absence.

    Args:
        end: A connected socket; it is closed with the watch.
        timeout_s: How long a worker may be silent, once it was heard.
        on_failed: Called on the loop, once, with why the worker has to be ended.
        on_held: Called on the loop with what holds the loop of the worker.
    """

    def __init__(
        self,
        end: socket.socket,
        timeout_s: float,
        on_failed: Callable[[str], None],
        on_held: Callable[[Beat], None],
    ) -> None:
        keep_from_forks(end)
        end.settimeout(_BEAT_S)
        self._end = end
        self._timeout_s = timeout_s
        self._on_failed = on_failed
        self._on_held = on_held
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(
            target=self._run, name="liveness of a worker", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Close the lifeline and wait for the thread; a worker that lives ends."""
        # Wakes the thread that waits for a beat.
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._end.close()

    def _run(self) -> None:
        frames = FrameBuffer(_BEAT_BYTES_MAX)
        # Importing the user's modules may take long before the first beat.
        limit_s, silent_s = max(self._timeout_s, _START_S), 0.0
        while silent_s < limit_s:
            try:
                data = self._end.recv(_BEAT_BYTES_MAX)
            except TimeoutError:
                silent_s += _BEAT_S
                continue
            except OSError:
                return
            if not data:
                # Its process says how it ended.
                return
            limit_s, silent_s = self._timeout_s, 0.0
            try:
                for body in frames.feed(data):
                    beat = decode_beat(body)
                    if beat.held is not None:
                        self._post(self._on_held, beat)
            except CorruptStreamError as error:
                self._post(self._on_failed, f"broke the protocol: {error}")
                return
        self._post(
            self._on_failed,
            f"sent no heartbeat for {limit_s:g} s and was killed: it was suspended, "
            "or one call of C code held the GIL all that time. "
            "JobConfig(heartbeat_timeout=...) sets the limit",
        )

    def _post(self, function: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # The loop is closed, the job over.
            self._loop.call_soon_threadsafe(function, *arguments)
