"""How a worker process begins, and how it goes with its parent, whatever it does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, Final

from aiomailbox.collector import tune_collector
from aiomailbox.errors import CorruptStreamError
from aiomailbox.forks import keep_from_forks
from aiomailbox.logs import LOGGER_NAME, library_log
from aiomailbox.runtime.peers.control import PARENT_BYTES_MAX, Heart, read_message
from aiomailbox.runtime.peers.limits import limit_from_text
from aiomailbox.runtime.peers.messages import Begin, Failed, decode_from_parent, encode
from aiomailbox.runtime.peers.shipping import unpack
from aiomailbox.runtime.peers.worker_job import WorkerJob
from aiomailbox.runtime.processes.starter import SETUP_BYTES_MAX, decode_setup

# A signal from the system when the parent process dies, where there is one.


# The exit code of a worker whose parent is gone.
ORPHANED: Final = 70
_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(parent: int) -> None:
    """Have the system kill this process when its parent dies, whatever either does.

    On Linux; on other systems the lifeline has to do, which needs Python's global lock,
    and that no other process has a copy of the parent's end. For the system the parent
    is the thread that started this process: the one that runs the job.
    """
    if sys.platform != "linux":
        return
    # A libc without prctl, or an interpreter without ctypes: the lifeline is left.
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    # It may have died before the signal was requested.
    if os.getppid() != parent:
        os._exit(ORPHANED)


# How a worker logs: to stderr, in plain text.


_RICH = "rich"


def plain_log() -> Any:
    """Return the library's logger, which writes to stderr here: the process is ours.

    Where rich is installed, structlog imports it to paint tracebacks. That takes a
    worker longer than its own modules, and what it writes is for files, so rich counts
    as not installed meanwhile; the job's functions can import it as ever.
    """
    logger = logging.getLogger(LOGGER_NAME)
    # A line in one piece: the workers share stderr.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-8s %(message)s"))
    # What a program has configured, as its module or a function's open may, gets each
    # line instead: none is written twice.
    handler.addFilter(lambda _: not logging.getLogger().handlers)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    is_hidden = _RICH not in sys.modules and "structlog" not in sys.modules
    modules: dict[str, Any] = sys.modules
    if is_hidden:
        modules[_RICH] = None
    try:
        return library_log()
    finally:
        if is_hidden:
            del modules[_RICH]


def main(control: int, lifeline: int, parent: int) -> None:
    """Run a worker to its end.

    Args:
        control: Descriptor of the control channel.
        lifeline: Descriptor of the channel for signs of life.
        parent: The parent's process id.
    """
    # First: a parent that dies during the setup leaves no worker behind.
    die_with_parent(parent)
    # The parent cancels what is to be cancelled.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    heart = Heart(_taken_over(lifeline), lambda: os._exit(ORPHANED))
    end = _taken_over(control)
    try:
        setup = read_message(end, decode_setup, SETUP_BYTES_MAX)
        begin = read_message(end, decode_from_parent, PARENT_BYTES_MAX)
    except EOFError:
        sys.exit(ORPHANED)
    if not isinstance(begin, Begin):
        raise CorruptStreamError(f"a worker cannot begin with {begin!r}")
    setup.import_as_parent()
    try:
        limits = [limit_from_text(text) for text in begin.limits]
        shipment = unpack(begin.payload, limits)
        job = WorkerJob(
            shipment,
            limits,
            begin,
            setup.place,
            tune_collector,
            plain_log(),
        )
    except Exception as error:  # noqa: BLE001 -- the parent gets it, whatever it is
        end.sendall(encode(Failed(error)))
        end.close()
        sys.exit(1)
    end.setblocking(False)
    asyncio.run(_run(job, end, heart))


async def _run(job: WorkerJob, end: socket.socket, heart: Heart) -> None:
    loop = asyncio.get_running_loop()
    heart.watch(loop)
    # A service manager may signal all of its processes: clean-up is as of a failure.
    _handle_sigterm(lambda: loop.call_soon_threadsafe(job.on_told_to_end))
    await job.run(lambda channel: channel.connect(end))


def _handle_sigterm(on_sigterm: Callable[[], object]) -> None:
    """Handle the signal in this process; children that are forked die of it as ever."""
    signal.signal(signal.SIGTERM, lambda *_: on_sigterm())
    mask, one = signal.pthread_sigmask, {signal.SIGTERM}

    def after_in_child() -> None:
        # In a child the handler would speak for a worker that it is not.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        mask(signal.SIG_UNBLOCK, one)

    # A child may get the signal before it has reset the handler: it is handled then.
    os.register_at_fork(
        before=lambda: mask(signal.SIG_BLOCK, one),
        after_in_parent=lambda: mask(signal.SIG_UNBLOCK, one),
        after_in_child=after_in_child,
    )


def _taken_over(descriptor: int) -> socket.socket:
    """Return a socket of the parent's making, for this process alone."""
    end = socket.socket(fileno=descriptor)
    end.set_inheritable(False)
    keep_from_forks(end)
    return end
