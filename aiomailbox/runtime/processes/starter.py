"""Starts the workers of a job as processes of this machine."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Literal

from aiomailbox.exchange.remote.endpoints import PeerAddress
from aiomailbox.runtime.config import JobConfig
from aiomailbox.runtime.peers.modules import import_path
from aiomailbox.runtime.peers.place import PeerPlace
from aiomailbox.runtime.peers.placement import PARENT
from aiomailbox.runtime.peers.workers import WorkerEvents
from aiomailbox.runtime.processes.setup import WorkerSetup
from aiomailbox.runtime.processes.worker_process import WorkerProcess
from aiomailbox.scratch import ScratchDirectories

__all__ = ["ProcessStarter"]


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
