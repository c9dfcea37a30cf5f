"""Accepting connections, also where there are no descriptors left.

Theory of operation: asyncio's own servers go on asking for connections after the system
has said that there is no room for one, and write a line for each. Here, the listener
is asked to make room, and where there is none to make, nothing is accepted for a second:
new connections wait in the kernel's queue meanwhile.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Any, Final

from aiomailbox.forks import keep_from_forks

__all__ = ["Listener"]

_FULL: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
# Others of the loop get their turn: a queue of strangers may be long.
_PER_TURN: Final = 16
_PAUSE_S: Final = 1.0
_QUEUE_LENGTH: Final = 128


class Listener:
    """A socket that listens.

    Args:
        bound: A bound socket; it is closed with the listener.
        on_accepted: Is given each connection's socket.
        make_room: Closes a connection that is of least use, and says whether there was
            one; asked where the system has no more descriptors.
        log: A structlog logger.
    """

    def __init__(
        self,
        bound: socket.socket,
        on_accepted: Callable[[socket.socket], None],
        make_room: Callable[[], bool],
        log: Any,
    ) -> None:
        keep_from_forks(bound)
        bound.setblocking(False)
        bound.listen(_QUEUE_LENGTH)
        self._socket = bound
        self._on_accepted = on_accepted
        self._make_room = make_room
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._is_full = False
        self._resume()

    def close(self) -> None:
        """Stop listening. Idempotent."""
        if self._pause is not None:
            self._pause.cancel()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()

    def _resume(self) -> None:
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(_PER_TURN):
            try:
                accepted, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # What was closed to make room is gone in the next turn.
                if error.errno not in _FULL or not self._make_room():
                    self._wait_a_while(error)
                return
            self._is_full = False
            accepted.setblocking(False)
            self._on_accepted(accepted)

    def _wait_a_while(self, error: OSError) -> None:
        self._loop.remove_reader(self._socket)
        self._pause = self._loop.call_later(_PAUSE_S, self._resume)
        if not self._is_full:
            # Once, until something was accepted again.
            self._is_full = True
            self._log.error(
                "no connection can be accepted",
                error=f"{type(error).__name__}: {error}",
            )
