"""The director of a job: the parent of its workers, which are Spark's tasks.

Theory of operation: Spark has started the workers, all at once. The director shares the
process of the first one, in a thread and a loop of its own. Each worker connects to it,
proves that it knows the secret, and is then a worker like a process of one machine: told
the job, its tasks' places, and when everything is over.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from aiomailbox.connectors.spark.handshake import HANDSHAKE_S, IDENTITY_BYTES, admit
from aiomailbox.errors import HandshakeError, WorkerDiedError, WorldError
from aiomailbox.runtime.peers.control import ControlChannel
from aiomailbox.runtime.peers.messages import (
    FRAME_BYTES_MAX,
    FromParent,
    FromWorker,
    decode_from_worker,
)
from aiomailbox.runtime.peers.place import PeerPlace
from aiomailbox.runtime.peers.placement import peer_name
from aiomailbox.runtime.peers.workers import WorkerEvents

__all__ = ["Arrivals", "BarrierStarter", "identity_of"]

# Spark has started all of them, and they have spoken to each other.
_ARRIVAL_S: Final = 60.0


def identity_of(peer: int) -> bytes:
    """Return what a worker of a number says it is."""
    return peer.to_bytes(IDENTITY_BYTES, "big")


class Arrivals:
    """Where workers connect with the director.

    Args:
        place: What connections are secured with.
        workers: How many there are.
    """

    def __init__(self, place: PeerPlace, workers: int) -> None:
        self._security = place.security
        self._workers = workers
        self._server: asyncio.Server | None = None
        self._arrived: dict[int, asyncio.Future[asyncio.StreamWriter]] = {}

    async def listen(self, bound: socket.socket) -> None:
        """Take workers from now on."""
        context = self._security.server_context
        self._server = await asyncio.start_server(self._greet, sock=bound, ssl=context)

    async def wait(self, peer: int) -> asyncio.StreamWriter:
        """Return the connection of a worker that has proved who it is.

        Raises:
            WorldError: If it does not come.
        """
        try:
            async with asyncio.timeout(_ARRIVAL_S):
                return await self._of(peer)
        except TimeoutError as error:
            raise WorldError(
                f"{peer_name(peer)} has not connected to the first worker within "
                f"{_ARRIVAL_S:g} s: check that the executors can reach each other's "
                "ports"
            ) from error

    def close(self) -> None:
        """Accept no more connections."""
        if self._server is not None:
            self._server.close()

    async def _greet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        secret = self._security.secret
        assert secret is not None, "a job has a secret"
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                identity = await admit(reader, writer, secret)
        except (OSError, EOFError, TimeoutError, HandshakeError):
            identity = None
        peer = 0 if identity is None else int.from_bytes(identity, "big")
        if not 0 < peer <= self._workers or self._of(peer).done():
            writer.close()
            return
        # No await from the proof to here: the worker waits for it, and says nothing.
        self._of(peer).set_result(writer)

    def _of(self, peer: int) -> asyncio.Future[asyncio.StreamWriter]:
        arrived = self._arrived.get(peer)
        if arrived is None:
            arrived = asyncio.get_running_loop().create_future()
            self._arrived[peer] = arrived
        return arrived


class BarrierWorker:
    """A worker as the director has it: a connection.

    Args:
        peer: Its number, from 1.
        events: Gets the notifications.
        arrivals: Where it comes from.
    """

    def __init__(self, peer: int, events: WorkerEvents, arrivals: Arrivals) -> None:
        self.peer = peer
        self.name: str = peer_name(peer)
        self.may_exit = False
        self.has_exited = True
        self._events = events
        self._arrivals = arrivals
        # Dropped, it would close the connection.
        self._writer: asyncio.StreamWriter | None = None
        self._reason: str | None = None
        self._channel: ControlChannel[FromWorker] = ControlChannel(
            decode_from_worker, FRAME_BYTES_MAX, self._on_message, self._on_lost
        )

    @property
    def attempt(self) -> int:
        """Which attempt of the job what is sent to it is about."""
        return self._channel.attempt

    @attempt.setter
    def attempt(self, number: int) -> None:
        self._channel.attempt = number

    async def start(self) -> None:
        """Wait until it has connected.

        Raises:
            WorldError: If it does not.
        """
        self._writer = await self._arrivals.wait(self.peer)
        self.has_exited = False
        await self._channel.adopt(self._writer.transport)

    def send(self, message: FromParent) -> None:
        """Send it a message; a no-op once it is gone."""
        self._channel.send(message)

    def kill(self, reason: str | None) -> None:
        """Cut the connection: the worker ends its tasks, and Spark's task with them."""
        self._reason = self._reason or reason
        self._channel.abort()

    def release(self) -> None:
        """Close what is left here."""
        self._channel.abort()

    def _on_message(self, attempt: int, message: FromWorker) -> None:
        self._events.on_message(self, attempt, message)

    def _on_lost(self, reason: BaseException | None) -> None:
        self.has_exited = True
        error: WorkerDiedError | None = None
        if not self.may_exit or self._reason is not None:
            how = self._reason or (
                "is gone: its Spark task has ended"
                if reason is None
                else f"broke the protocol: {reason}"
            )
            error = WorkerDiedError(self.name, 0, None, how)
        self._events.on_exit(self, error)


class BarrierStarter:
    """The `Starter` of a barrier stage: Spark has started the workers.

    Args:
        place: Where the director is.
        arrivals: Where workers connect.
        release: Called when none is left.
    """

    def __init__(
        self, place: PeerPlace, arrivals: Arrivals, release: Callable[[], None]
    ) -> None:
        self._place = place
        self._arrivals = arrivals
        self._release = release

    def prepare(self) -> PeerPlace:
        """Return where the director is."""
        return self._place

    def new_worker(self, peer: int, events: WorkerEvents) -> BarrierWorker:
        """Return a worker that has not connected."""
        return BarrierWorker(peer, events, self._arrivals)

    def release(self) -> None:
        """Remove what the director has made."""
        self._release()
