"""How a worker process begins, and how it goes with its parent, whatever it does.

Theory of operation: the parent holds one end of a pipe and never writes. When it is
gone, for whatever reason, a thread of the worker that waits at the other end sees that
and ends the process, also while the loop is busy or stuck.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import sys
import threading
from typing import Final

from aiomailbox.errors import CorruptStreamError
from aiomailbox.runtime.peers.control import PARENT_BYTES_MAX, read_message
from aiomailbox.runtime.peers.errors_as_text import text_of_error
from aiomailbox.runtime.peers.limits import limit_from_text
from aiomailbox.runtime.peers.messages import (
    Begin,
    Failed,
    decode_from_parent,
    encode,
)
from aiomailbox.runtime.peers.shipping import unpack
from aiomailbox.runtime.peers.worker_job import WorkerJob
from aiomailbox.runtime.processes.plain_log import plain_log

__all__ = ["main"]

_ORPHANED: Final = 70


class _Lifeline:
    """Ends the process when its parent is gone.

    Args:
        descriptor: The end of the pipe that is read.
    """

    def __init__(self, descriptor: int) -> None:
        self.directory: str | None = None
        self._descriptor = descriptor
        threading.Thread(target=self._watch, name="lifeline", daemon=True).start()

    def _watch(self) -> None:
        while os.read(self._descriptor, 1):
            pass
        if self.directory is not None:
            # Nobody else is left to do it.
            shutil.rmtree(self.directory, ignore_errors=True)
        os._exit(_ORPHANED)


def main(control: int, lifeline: int) -> None:
    """Run a worker to its end.

    Args:
        control: Descriptor of the control channel.
        lifeline: Descriptor of the pipe that ends with the parent.
    """
    # The parent cancels what is to be cancelled.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch = _Lifeline(lifeline)
    end = socket.socket(fileno=control)
    try:
        begin = read_message(end, decode_from_parent, PARENT_BYTES_MAX)
    except EOFError:
        sys.exit(_ORPHANED)
    if not isinstance(begin, Begin):
        raise CorruptStreamError(f"a worker cannot begin with {begin!r}")
    watch.directory = begin.directory
    _take_over(begin)
    try:
        limits = [limit_from_text(text) for text in begin.limits]
        job = WorkerJob(unpack(begin.payload, limits), limits, begin, plain_log())
    except Exception as error:  # noqa: BLE001 -- the parent is told, whatever it is
        end.sendall(encode(Failed(text_of_error(error))))
        end.close()
        sys.exit(1)
    end.setblocking(False)
    asyncio.run(job.run(end))


def _take_over(begin: Begin) -> None:
    """Find modules where the parent does."""
    sys.path[:] = begin.sys_path
    if begin.python_path is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = begin.python_path
