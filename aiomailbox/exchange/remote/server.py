"""Where a worker's data is asked for: a listener and its connections."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from aiomailbox.errors import IllegalStateError, InvalidArgumentError
from aiomailbox.exchange.gate import PartitionRegistry
from aiomailbox.exchange.remote.connection import ConnectionOptions, close_all
from aiomailbox.exchange.remote.handshake import (
    Handshake,
    PeerAddress,
    Security,
    WorkerIdentity,
    check_listener,
)
from aiomailbox.exchange.remote.producer import ProducerConnection
from aiomailbox.forks import keep_from_forks
from aiomailbox.logs import library_log

# Accepting connections, also where there are no descriptors left.
#
# Theory of operation: asyncio's own servers go on asking for connections after the
# system has said that there is no room for one, and write a line for each. Here, the
# listener is asked to make room, and where there is none to make, nothing is accepted
# for a second: new connections wait in the kernel's queue meanwhile.


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


# Connections that are not authenticated yet: few, briefly, with small frames.


_LOG_PAUSE_S: Final = 1.0
# A reason may quote what a stranger has said.
_REASONS_MAX: Final = 8


class Strangers:
    """The connections of a server that are not open yet, in the order of their coming.

    Args:
        count_max: How many there may be.
        log: A structlog logger.

    Concept:
        Flink has no such bound; its network is one's own.
    """

    def __init__(self, count_max: int, log: Any) -> None:
        self._count_max = count_max
        self._log = log
        self._known: dict[ProducerConnection, asyncio.Task[Any]] = {}
        self._unsaid: dict[str, int] = {}
        self._pause: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._known)

    def add(self, connection: ProducerConnection, opening: asyncio.Task[Any]) -> None:
        """Take a newcomer; one that came before has to go if there are too many."""
        while len(self._known) >= self._count_max:
            self.turn_away_one()
        self._known[connection] = opening

    def remove(self, connection: ProducerConnection) -> None:
        """Forget one: it is open, or gone."""
        self._known.pop(connection, None)

    def turn_away_one(self) -> bool:
        """Close the oldest, if there is any; those of the job that lack a proof last."""
        if not self._known:
            return False
        oldest = next(iter(self._known))
        # A connection that named the job is probably a worker's that was held up.
        chosen = next((each for each in self._known if not each.is_introduced), oldest)
        self._turn_away(chosen, "others want to connect, and it has not proved itself")
        return True

    def turn_all_away(self, reason: str) -> list[ProducerConnection]:
        """Close all, and return them."""
        known = list(self._known)
        for connection in known:
            self._turn_away(connection, reason)
        return known

    def on_ended(self, peer: str, reason: str | None) -> None:
        """Log that one came to nothing; at most one line a second, with the sums."""
        text = str(reason)
        if self._pause is not None:
            if text not in self._unsaid and len(self._unsaid) >= _REASONS_MAX:
                text = "other reasons"
            self._unsaid[text] = self._unsaid.get(text, 0) + 1
            return
        self._log.warning("connection closed", peer=peer, reason=text, was_open=False)
        self._say_later()

    def close(self) -> None:
        """Say what is still to be said."""
        if self._pause is not None:
            self._pause.cancel()
            self._say()

    def _say_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._pause = loop.call_later(_LOG_PAUSE_S, self._say_and_go_on)

    def _say_and_go_on(self) -> None:
        if self._say():
            self._say_later()

    def _say(self) -> bool:
        self._pause = None
        reasons, self._unsaid = self._unsaid, {}
        if reasons:
            count = sum(reasons.values())
            self._log.warning(
                "connections closed", count=count, reasons=reasons, was_open=False
            )
        return bool(reasons)

    def _turn_away(self, connection: ProducerConnection, reason: str) -> None:
        opening = self._known.pop(connection)
        connection.end(reason)
        connection.abort()
        opening.cancel()


# The kernel's limit of a unix socket's path, with its end; 104 on some systems.
_UNIX_PATH_BYTES_MAX: Final = 103


class DataServer:
    """Listens for the readers of this worker's partitions.

    Args:
        identity: This worker's identity.
        provider: Where partitions are found.
        security: Which peers may connect.
        options: Limits.
        log: A structlog logger; None takes the library's.

    Concept:
        Flink, ``NettyServer``.
    """

    def __init__(
        self,
        identity: WorkerIdentity,
        provider: PartitionRegistry,
        *,
        security: Security | None = None,
        options: ConnectionOptions | None = None,
        log: Any = None,
    ) -> None:
        self._identity = identity
        self._provider = provider
        self._security = security or Security()
        self._options = options or ConnectionOptions()
        self._log = library_log() if log is None else log
        self._listeners: list[Listener] = []
        self._unix_path: tuple[str, int] | None = None
        # In the order of their coming.
        self._connections: dict[ProducerConnection, None] = {}
        self._strangers = Strangers(self._options.strangers_max, self._log)
        self._opening: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    @property
    def connections(self) -> int:
        """How many connections there are, those of strangers included."""
        return len(self._connections) + len(self._strangers)

    async def listen(self, address: PeerAddress) -> PeerAddress:
        """Listen at an address, and return it with its real port.

        Raises:
            InvalidArgumentError: If strangers could connect, or the path is too long.
            IllegalStateError: If it listens already, or was closed.
            OSError: If the address is in use, or not this machine's.
        """
        if self._listeners or self._is_closed:
            raise IllegalStateError("a data server listens once")
        check_listener(address, self._security)
        if address.port is None:
            self._listen(_bind_unix(address.host), None)
            self._unix_path = (address.host, os.stat(address.host).st_ino)
            return address
        loop = asyncio.get_running_loop()
        infos = await loop.getaddrinfo(
            address.host,
            address.port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )
        if self._is_closed:
            raise IllegalStateError("the data server was closed before it listened")
        family, _, _, _, where = infos[0]
        bound = socket.create_server(where[:2], family=family)
        self._listen(bound, self._security.server_context)
        return PeerAddress(address.host, bound.getsockname()[1])

    async def close(self) -> None:
        """Stop listening and close every connection. Idempotent."""
        self._is_closed = True
        for listener in self._listeners:
            listener.close()
        reason = "the data server was closed"
        strangers = self._strangers.turn_all_away(reason)
        for connection in self._connections:
            connection.end(reason)
        await close_all([*self._connections, *strangers], self._options.linger)
        if self._opening:
            await asyncio.wait(self._opening)
        self._strangers.close()
        self._remove_unix_file()

    def _listen(self, bound: socket.socket, context: ssl.SSLContext | None) -> None:
        self._listeners.append(
            Listener(
                bound,
                lambda accepted: self._accept(accepted, context),
                self._strangers.turn_away_one,
                self._log,
            )
        )

    def _accept(self, accepted: socket.socket, context: ssl.SSLContext | None) -> None:
        connection = ProducerConnection(
            self._identity,
            self._provider,
            Handshake(self._identity, self._security.secret, connects=False),
            options=self._options,
            log=self._log,
            on_open=self._on_open,
            on_refused=self._strangers.on_ended,
        )
        connection.closed.add_done_callback(lambda _: self._forget(connection))
        keep_from_forks(accepted)
        options = self._options
        loop = asyncio.get_running_loop()
        opening = loop.create_task(
            loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=context,
                ssl_handshake_timeout=options.handshake_timeout if context else None,
                ssl_shutdown_timeout=options.linger if context else None,
            ),
            name="accept a connection",
        )
        self._opening.add(opening)
        opening.add_done_callback(
            lambda _: self._on_opened(opening, accepted, connection)
        )
        self._strangers.add(connection, opening)

    def _on_opened(
        self,
        opening: asyncio.Task[Any],
        accepted: socket.socket,
        connection: ProducerConnection,
    ) -> None:
        self._opening.discard(opening)
        error = None if opening.cancelled() else opening.exception()
        if opening.cancelled() or error is not None:
            # Of a connection that fails in TLS, asyncio reports nothing.
            accepted.close()
            connection.end(
                "TLS was not agreed on; the peer may have no certificate that is "
                f"trusted ({type(error).__name__}: {error})"
            )

    def _on_open(self, connection: ProducerConnection) -> None:
        self._strangers.remove(connection)
        if len(self._connections) >= self._options.connections_max:
            connection.end(
                f"there are {self._options.connections_max} connections already"
            )
            connection.abort()
            return
        self._connections[connection] = None

    def _forget(self, connection: ProducerConnection) -> None:
        self._strangers.remove(connection)
        self._connections.pop(connection, None)

    def _remove_unix_file(self) -> None:
        if self._unix_path is None:
            return
        path, inode = self._unix_path
        self._unix_path = None
        # By its inode: another process may listen at the path by now.
        with suppress(FileNotFoundError):
            # It may be another process's by now.
            if os.stat(path).st_ino == inode:
                os.unlink(path)


def _bind_unix(path: str) -> socket.socket:
    if len(os.fsencode(path)) > _UNIX_PATH_BYTES_MAX:
        raise InvalidArgumentError(
            "address",
            f"{path} is longer than the {_UNIX_PATH_BYTES_MAX} bytes of a unix socket",
            "Take a shorter directory.",
        )
    _remove_stale(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(path)
        # No peer can connect before it listens, so there is no moment to slip in.
        os.chmod(path, stat.S_IRUSR | stat.S_IWUSR)
    except BaseException:
        bound.close()
        raise
    return bound


def _remove_stale(path: str) -> None:
    """Remove what a process that has died left behind, and nothing else."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # Not waited for: a socket without a server answers at once.
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        except OSError:
            return
