"""Signs of life: a thread of a worker sends them, a thread of its parent waits for them.

Theory of operation: the two ends of a socket of their own, the lifeline. Neither thread
needs a loop, so on both sides a loop that is held is distinguished from a process that
is stopped; and no large message is in the way. Time is counted in waits that timed out:
a side that was stopped itself has waited once, however long, and suspects no other one.
When the worker's end finds the other one closed, the parent is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any, Final

from aiomailbox.errors import CorruptStreamError
from aiomailbox.forks import keep_from_forks
from aiomailbox.runtime.loop_watch import look_at_loop
from aiomailbox.runtime.peers.control import FrameBuffer
from aiomailbox.runtime.peers.messages import Beat, decode_beat, encode

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
                    self._take(decode_beat(body))
            except CorruptStreamError as error:
                self._post(self._on_failed, f"broke the protocol: {error}")
                return
        self._post(
            self._on_failed,
            f"sent no heartbeat for {limit_s:g} s and was killed: it was suspended, "
            "or one call of C code held the GIL all that time. "
            "JobConfig(heartbeat_timeout=...) sets the limit",
        )

    def _take(self, beat: Beat) -> None:
        if beat.held is not None:
            self._post(self._on_held, beat)

    def _post(self, function: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # The loop is closed, the job over.
            self._loop.call_soon_threadsafe(function, *arguments)
