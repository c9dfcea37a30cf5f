"""A worker as the parent has it, however it was started, and what it reports."""

from __future__ import annotations

from typing import Protocol

from aiomailbox.errors import WorkerDiedError
from aiomailbox.runtime.peers.messages import Beat, FromParent, FromWorker
from aiomailbox.runtime.peers.place import PeerPlace

__all__ = ["Starter", "Worker", "WorkerEvents"]


class Worker(Protocol):
    """One worker, from its start to its end.

    Attributes:
        peer: Its number, from 1.
        name: What people call it.
        attempt: Which attempt of the job what is sent to it is about.
        may_exit: Whether it was asked to exit.
        has_exited: Whether there is none, or not any more.
    """

    peer: int
    name: str
    attempt: int
    may_exit: bool
    has_exited: bool

    async def start(self) -> None:
        """Start it, and connect with it.

        Raises:
            OSError: If there can be no more processes, sockets or memory.
        """
        ...

    def send(self, message: FromParent) -> None:
        """Send it a message; a no-op once it is gone."""
        ...

    def kill(self, reason: str | None) -> None:
        """End it at once.

        Args:
            reason: Why, if that is the job's failure; None if it is clean-up.
        """
        ...

    def release(self) -> None:
        """Close everything that is left here; it has exited, or never was."""
        ...


class Starter(Protocol):
    """Starts the workers of a job somewhere: the processes of a machine, of a cluster."""

    def prepare(self) -> PeerPlace:
        """Get ready what peers need where they run; called in a thread, once.

        Returns:
            The place of the parent, itself a peer.

        Raises:
            OSError: If something cannot be had.
        """
        ...

    def new_worker(self, peer: int, events: WorkerEvents) -> Worker:
        """Return a worker of a number, from 1, that has not started."""
        ...

    def release(self) -> None:
        """Remove what was made; called in a thread, when no worker is left."""
        ...


class WorkerEvents(Protocol):
    """Is notified of what a worker does, on the loop of the parent."""

    def on_message(self, worker: Worker, attempt: int, message: FromWorker) -> None:
        """Take a message about an attempt; CorruptStreamError ends the worker."""
        ...

    def on_held(self, worker: Worker, beat: Beat) -> None:
        """Be notified that a loop of the worker is held, and by what."""
        ...

    def on_exit(self, worker: Worker, error: WorkerDiedError | None) -> None:
        """Be notified that it is gone; with an error if it should not be."""
        ...
