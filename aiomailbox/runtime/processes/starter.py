"""Starts the workers of a job as processes of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, Literal

import msgspec

from aiomailbox.clock import Clock, SystemClock, clock_of
from aiomailbox.errors import (
    CorruptStreamError,
    InvalidArgumentError,
    MissingExtraError,
)
from aiomailbox.exchange.remote.connection import ConnectionOptions
from aiomailbox.exchange.remote.handshake import PeerAddress, Security
from aiomailbox.forks import keep_from_forks
from aiomailbox.graph.job_graph import JobGraph
from aiomailbox.runtime.config import JobConfig
from aiomailbox.runtime.master import JobMaster
from aiomailbox.runtime.peers.control import LivenessWatch, Worker, WorkerEvents
from aiomailbox.runtime.peers.placement import PARENT, PeerPlace
from aiomailbox.runtime.peers.shipping import import_path
from aiomailbox.runtime.services import PullHandover
from aiomailbox.scratch import ScratchDirectories
from aiomailbox.signatures import check_choice, check_count, explained

# What a worker process gets before it learns of its job, and what it makes of it.


SETUP_BYTES_MAX: Final = 16 << 20
# A function may hold the loop of a peer for as long as it likes: whether it is dead says
# the parent, which watches its process. Greetings come before any function runs.
_DAY_S: Final = 86_400.0
_OPTIONS: Final = ConnectionOptions(stall_timeout=_DAY_S, connect_timeout=_DAY_S)


class WorkerSetup(msgspec.Struct, frozen=True, array_like=True):
    """The first frame that a worker process gets.

    Attributes:
        sys_path: Where the parent finds modules. Names of directories need not be text.
        python_path: What ``PYTHONPATH`` is in the parent, None if it is not set.
        directories: The job's directories, by the place below which each was made.
        host: Where it listens, or the path of a unix socket.
        port: Its port, None for a unix socket.
        secret: What the peers of the job prove themselves with.
    """

    sys_path: list[bytes]
    python_path: bytes | None
    directories: dict[str, str]
    host: str
    port: int | None
    secret: bytes

    @property
    def place(self) -> PeerPlace:
        """The place of a peer with this setup."""
        return PeerPlace(
            PeerAddress(self.host, self.port),
            Security(secret=self.secret),
            _OPTIONS,
            self.directories.__getitem__,
        )

    def import_as_parent(self) -> None:
        """Find modules where the parent does, and let programs that are started do so."""
        sys.path[:] = map(os.fsdecode, self.sys_path)
        if self.python_path is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environb[b"PYTHONPATH"] = self.python_path


_DECODER: Final = msgspec.msgpack.Decoder(tuple[int, WorkerSetup])


def decode_setup(body: bytes) -> tuple[int, WorkerSetup]:
    """Return a worker's setup, after the number of an attempt, as in all frames.

    Raises:
        CorruptStreamError: If it is none.
    """
    try:
        return _DECODER.decode(body)
    except msgspec.MsgspecError as error:
        raise CorruptStreamError(f"a worker's setup cannot be read: {error}") from error


# A worker as its parent has it: the process, its end of the channel, its end.
#
# Theory of operation: everything that happens to a worker arrives as a call on the
# loop, so a death is noticed without awaiting it. A worker is gone when its process has
# ended and all that it sent has been read; after one of the two the other has a time
# limit.


_MODULE: Final = "aiomailbox.runtime.processes.worker"
_ROOT: Final = str(Path(__file__).parents[3])
# How long a process may outlive its channel, or its channel the process.
_ENDING_S: Final = 1.0
# All workers have one: a key that is made with hash(text) is the same in each of them.
_HASH_SEED: Final = str(1 + secrets.randbelow(2**32 - 1))


class WorkerProcess(Worker):
    """One worker process.

    Attributes:
        pid: Its process id, once it has started; 0 before.
    """

    def __init__(
        self,
        peer: int,
        events: WorkerEvents,
        *,
        heartbeat_timeout_s: float,
        new_setup: Callable[[int], WorkerSetup],
    ) -> None:
        super().__init__(peer, events)
        self.pid: int = 0
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._new_setup = new_setup
        self._process: asyncio.SubprocessTransport | None = None
        self._lifeline: LivenessWatch | None = None
        self._is_lost = False
        self._has_ended = False
        self._timer: asyncio.TimerHandle | None = None

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
                env={
                    "PYTHONHASHSEED": _HASH_SEED,
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(_first_path()),
                },
            )
            self._process = process
            self.pid = process.get_pid()
            self.has_exited = False
            self._lifeline = LivenessWatch(
                here,
                self._heartbeat_timeout_s,
                self.kill,
                partial(self._events.on_held, self),
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

    def kill(self, reason: str | None) -> None:
        """End the process at once; with the reason, if that is the job's failure."""
        if self._has_ended or self._process is None:
            return
        self._reason = self._reason or reason
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def release(self) -> None:
        """Close everything that is left here; the process has exited, or never was."""
        super().release()
        lifeline, self._lifeline = self._lifeline, None
        if lifeline is not None:
            lifeline.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._process is not None:
            self._process.close()

    def _on_lost(self, reason: BaseException | None) -> None:
        self._is_lost = True
        # All that it said has been read.
        if self._has_ended:
            self._end()
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
            self._end()
            return
        if self._timer is not None:
            self._timer.cancel()
        # A process that it has started may keep its end of the channel open.
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_ENDING_S, self._end)

    def _end(self) -> None:
        if self.has_exited:
            return
        assert self._process is not None
        code = self._process.get_returncode()
        if self._timer is not None:
            self._timer.cancel()
        self._on_gone(_how(code), self.pid, code)


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


class ProcessStarter:
    """The `Starter` of `Processes`.

    Args:
        config: The job's settings.
        transport: What peers meet at: unix sockets, or TCP of this machine alone.
    """

    def __init__(self, config: JobConfig, transport: Literal["unix", "tcp"]) -> None:
        self._config = config
        self._transport = transport
        self._secret = secrets.token_bytes(32)
        self._scratch = ScratchDirectories()
        self._started = 0

    def prepare(self) -> PeerPlace:
        """Make the job's directories, for sockets and for state in files.

        Raises:
            OSError: If they cannot be made.
        """
        self._scratch.below("")
        # Workers make none themselves: one that is killed could not remove them.
        self._config.state_backend.placed(self._scratch.below)
        return self._setup(PARENT).place

    def new_worker(self, peer: int, events: WorkerEvents) -> WorkerProcess:
        """Return a worker process that has not started."""
        return WorkerProcess(
            peer,
            events,
            heartbeat_timeout_s=self._config.heartbeat_timeout_s,
            new_setup=self._setup,
        )

    def release(self) -> None:
        """Remove the job's directories."""
        self._scratch.remove()

    def _setup(self, peer: int) -> WorkerSetup:
        directories = self._scratch.paths
        listen_at = PeerAddress("127.0.0.1", 0)
        if self._transport == "unix":
            # A worker that takes the place of another one has a socket of its own.
            self._started += 1
            name = f"{peer}-{self._started}.sock"
            listen_at = PeerAddress(str(Path(directories[""]) / name))
        return WorkerSetup(
            [os.fsencode(entry) for entry in import_path()],
            os.environb.get(b"PYTHONPATH"),
            directories,
            listen_at.host,
            listen_at.port,
            self._secret,
        )


# Several processes of one machine as the place where a job runs.


@explained("Write am.Processes(4), with the number of worker processes.")
class Processes:
    """Runs a job in worker processes of this machine, to use more than one core.

    Subtask i of every operator is in one process; records that others need go there
    over unix sockets that only the user can reach. Functions are sent with cloudpickle,
    so it does not matter where they are defined, and no worker imports the program.

    The process that starts the job runs these itself: a `SparkSource`, asynchronous
    iterables and generators, functions as sinks, and results that the caller pulls.

    Args:
        count: Worker processes at most; no more are started than there are subtasks.
        transport: ``"unix"`` sockets, or ``"tcp"`` of this machine alone.

    Raises:
        InvalidArgumentError: If ``count`` is below 1, or ``transport`` unknown.
        WrongTypeError: If ``count`` is not an int.
        MissingExtraError: If cloudpickle is not installed.

    Concept:
        Flink, a local cluster: task managers, slots and slot sharing.

    Example:
        >>> import aiomailbox as am
        >>> env = am.StreamExecutionEnvironment(parallelism=2)
        >>> env = env.configure(deployment=am.Processes(2))
        >>> total = env.from_collection(range(1000)).map(lambda n: n * n)
        >>> sum(am.run(total.collect()))
        332833500
    """

    parent_apart = True

    def __init__(
        self, count: int, *, transport: Literal["unix", "tcp"] = "unix"
    ) -> None:
        self.count: int = check_count(count, "count")
        check_choice(transport, "transport", "unix", "tcp")
        self.transport: Literal["unix", "tcp"] = transport
        if importlib.util.find_spec("cloudpickle") is None:
            raise MissingExtraError("Processes", "processes")

    def __repr__(self) -> str:
        return f"Processes({self.count}, transport={self.transport!r})"

    def deploy(
        self,
        graph: JobGraph,
        config: JobConfig,
        *,
        clock: Clock | None,
        handovers: Mapping[str, PullHandover],
    ) -> JobMaster:
        """Start the job and return it; needs a running loop.

        Raises:
            InvalidArgumentError: If the job has a clock of its own.
            NotShippableError: If an operator cannot be pickled; names it and what of it.
        """
        # What only such jobs need is looked up when there is one.
        from aiomailbox.runtime.declared import state_classes, warn_of_copies
        from aiomailbox.runtime.peers.host import assemble
        from aiomailbox.runtime.peers.placement import place

        used_clock = clock or clock_of(asyncio.get_running_loop())
        if not isinstance(used_clock, SystemClock):
            raise InvalidArgumentError(
                "clock",
                f"{type(used_clock).__name__} ticks in this process only, and "
                "Processes runs the job in several",
                "Leave the clock and the virtual-time loop out, or run the job in one "
                "process.",
            )
        starter = ProcessStarter(config, self.transport)
        classes = (
            state_classes(graph, config.state_names)
            if config.needs_state_classes
            else ()
        )
        job = assemble(graph, config, self.count, starter, handovers, classes)
        warn_of_copies(graph)
        workers = place(graph, self.count).workers
        if workers < min(self.count, 2):
            event = (
                f"{self!r} has work for {workers} worker process only: no operator has "
                "several subtasks that run there"
            )
            job.services.log.warning(
                event,
                parallelism=max(vertex.parallelism for vertex in graph.vertices),
                remedy=f"write am.StreamExecutionEnvironment(parallelism={self.count})",
            )
        job.start()
        return job
