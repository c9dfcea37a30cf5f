"""A worker as its parent has it: the process, its end of the channel, its end.

Theory of operation: everything that happens to a worker arrives as a call on the loop,
so a death is noticed without awaiting it. A worker is gone when its process has ended
and all that it sent has been read; after one of the two the other has a time limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aiomailbox.errors import CorruptStreamError, WorkerDiedError
from aiomailbox.forks import keep_from_forks
from aiomailbox.runtime.peers.control import ControlChannel
from aiomailbox.runtime.peers.liveness import LivenessWatch
from aiomailbox.runtime.peers.messages import (
    FRAME_BYTES_MAX,
    Beat,
    FromParent,
    FromWorker,
    decode_from_worker,
)
from aiomailbox.runtime.peers.placement import peer_name
from aiomailbox.runtime.peers.workers import WorkerEvents
from aiomailbox.runtime.processes.setup import WorkerSetup

__all__ = ["WorkerProcess"]

_MODULE: Final = "aiomailbox.runtime.processes.worker"
_ROOT: Final = str(Path(__file__).parents[3])
# How long a process may outlive its channel, or its channel the process.
_ENDING_S: Final = 1.0


class WorkerProcess:
    """One worker process.

    Args:
        peer: Its number, from 1.
        events: Notified of what happens to it.
        heartbeat_timeout_s: How long it may send no heartbeat.
        new_setup: Makes what a worker of a number gets first.

    Attributes:
        peer: Its number.
        name: What people call it.
        pid: Its process id, once it has started; 0 before.
        may_exit: Whether it was asked to exit.
        has_exited: Whether there is no process, or not any more.
    """

    def __init__(
        self,
        peer: int,
        events: WorkerEvents,
        *,
        heartbeat_timeout_s: float,
        new_setup: Callable[[int], WorkerSetup],
    ) -> None:
        self.peer = peer
        self.name: str = peer_name(peer)
        self.pid: int = 0
        self.may_exit = False
        self.has_exited: bool = True
        self._events = events
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._new_setup = new_setup
        self._process: asyncio.SubprocessTransport | None = None
        self._lifeline: LivenessWatch | None = None
        self._reason: str | None = None
        self._is_lost = False
        self._has_ended = False
        self._timer: asyncio.TimerHandle | None = None
        self._channel: ControlChannel[FromWorker] = ControlChannel(
            decode_from_worker, FRAME_BYTES_MAX, self._on_message, self._on_lost
        )

    async def start(self) -> None:
        """Start the process and take over its channel.

        Raises:
            OSError: If there can be no more processes, sockets or memory.
        """
        loop = asyncio.get_running_loop()
        mine, theirs = socket.socketpair()
        here, there = socket.socketpair()
        # A child of another fork would keep the channel open after this end is closed.
        keep_from_forks(mine)
        try:
            process, _ = await loop.subprocess_exec(
                lambda: _ExitWatch(self._on_exit),
                sys.executable,
                # The current directory may hold modules of another user.
                "-P",
                "-m",
                _MODULE,
                str(theirs.fileno()),
                str(there.fileno()),
                str(os.getpid()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=None,
                stderr=None,
                pass_fds=(theirs.fileno(), there.fileno()),
                # Ctrl-C of a terminal is for the parent: it cancels the job.
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(_first_path())},
            )
            self._process = process
            self.pid = process.get_pid()
            self.has_exited = False
            self._lifeline = LivenessWatch(
                here, self._heartbeat_timeout_s, self.kill, self._on_held
            )
            mine.setblocking(False)
            await self._channel.connect(mine)
            self._channel.send(self._new_setup(self.peer))
        except BaseException:
            mine.close()
            if self._lifeline is None:
                here.close()
            raise
        finally:
            theirs.close()
            there.close()

    @property
    def attempt(self) -> int:
        """Which attempt of the job what is sent to it is about."""
        return self._channel.attempt

    @attempt.setter
    def attempt(self, number: int) -> None:
        self._channel.attempt = number

    def send(self, message: FromParent) -> None:
        """Send it a message; a no-op once it is gone."""
        self._channel.send(message)

    def kill(self, reason: str | None) -> None:
        """End the process at once.

        Args:
            reason: Why, if that is the job's failure; None if it is clean-up.
        """
        if self._has_ended or self._process is None:
            return
        self._reason = self._reason or reason
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def release(self) -> None:
        """Close everything that is left here; the process has exited, or never was."""
        self._cut()
        if self._timer is not None:
            self._timer.cancel()
        if self._process is not None:
            self._process.close()

    def _cut(self) -> None:
        """End the channel and the lifeline."""
        self._channel.abort()
        lifeline, self._lifeline = self._lifeline, None
        if lifeline is not None:
            lifeline.close()

    def _on_message(self, attempt: int, message: FromWorker) -> None:
        self._events.on_message(self, attempt, message)

    def _on_held(self, beat: Beat) -> None:
        self._events.on_held(self, beat)

    def _on_lost(self, reason: BaseException | None) -> None:
        self._is_lost = True
        # All that it said has been read.
        if self._has_ended:
            self._on_gone()
            return
        if isinstance(reason, CorruptStreamError):
            self.kill(f"broke the protocol: {reason}")
        if not self.has_exited and not self.may_exit:
            # It dies, or has closed its end and lives on.
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(
                _ENDING_S, self.kill, "closed its control channel"
            )

    def _on_exit(self) -> None:
        self._has_ended = True
        if self._is_lost:
            self._on_gone()
            return
        if self._timer is not None:
            self._timer.cancel()
        # A process that it has started may keep its end of the channel open.
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_ENDING_S, self._on_gone)

    def _on_gone(self) -> None:
        if self.has_exited:
            return
        assert self._process is not None
        code = self._process.get_returncode()
        self.has_exited = True
        if self._timer is not None:
            self._timer.cancel()
        error: WorkerDiedError | None = None
        if not self.may_exit or (self._reason is not None):
            how = self._reason or _how(code)
            error = WorkerDiedError(self.name, self.pid, code, how)
        self._events.on_exit(self, error)


class _ExitWatch(asyncio.SubprocessProtocol):
    def __init__(self, on_exit: Callable[[], None]) -> None:
        self._on_exit = on_exit

    def process_exited(self) -> None:
        self._on_exit()


def _first_path() -> list[str]:
    """Return the paths that a worker imports from where the parent does."""
    found = [entry for entry in sys.path if entry and os.pathsep not in entry]
    return found if _ROOT in found else [*found, _ROOT]


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = str(-code)
        return f"was ended by signal {name}"
    return f"ended with exit code {code}"
