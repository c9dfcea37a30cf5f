"""Where a worker's data is asked for: a listener and its connections."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import stat
from contextlib import suppress
from typing import Any, Final

from aiomailbox.errors import IllegalStateError, InvalidArgumentError
from aiomailbox.exchange.remote.closing import close_all
from aiomailbox.exchange.remote.endpoints import PeerAddress, ViewProvider
from aiomailbox.exchange.remote.handshake import Handshake, WorkerIdentity
from aiomailbox.exchange.remote.lifecycle import ConnectionState
from aiomailbox.exchange.remote.options import ConnectionOptions, library_log
from aiomailbox.exchange.remote.producer import ProducerConnection
from aiomailbox.exchange.remote.security import Security, check_listener
from aiomailbox.forks import keep_from_forks

__all__ = ["DataServer"]

# The kernel's limit of a unix socket's path, with its end; 104 on some systems.
_UNIX_PATH_BYTES_MAX: Final = 103


class DataServer:
    """Listens for the readers of this worker's partitions.

    Args:
        identity: Who this worker is.
        provider: Where partitions are found.
        security: Who may connect.
        options: Limits.
        log: A structlog logger; None takes the library's.

    Concept:
        Flink, ``NettyServer``.
    """

    def __init__(
        self,
        identity: WorkerIdentity,
        provider: ViewProvider,
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
        self._server: asyncio.Server | None = None
        self._unix_path: tuple[str, int] | None = None
        # In the order of their coming.
        self._connections: dict[ProducerConnection, None] = {}
        # Those that are still agreeing on TLS.
        self._expected: set[ProducerConnection] = set()
        self._is_closed = False

    @property
    def connections(self) -> int:
        """How many connections there are."""
        return len(self._connections)

    async def listen(self, address: PeerAddress) -> PeerAddress:
        """Listen at an address, and return it with its real port.

        Args:
            address: A unix socket's path, or a host and a port; 0 takes a free one.

        Raises:
            InvalidArgumentError: If strangers could connect, or the path is too long.
            IllegalStateError: If it listens already, or was closed.
            OSError: If the address is in use, or not this machine's.
        """
        if self._server is not None or self._is_closed:
            raise IllegalStateError("a data server listens once")
        check_listener(address, self._security)
        loop = asyncio.get_running_loop()
        if address.port is None:
            bound = _bind_unix(address.host)
            self._unix_path = (address.host, os.stat(address.host).st_ino)
            self._keep(
                await loop.create_unix_server(lambda: self._accept(None), sock=bound)
            )
            return address
        context = self._security.server_context
        timeout = self._options.handshake_timeout if context is not None else None
        server = await loop.create_server(
            lambda: self._accept(context),
            address.host,
            address.port,
            ssl=context,
            ssl_handshake_timeout=timeout,
            ssl_shutdown_timeout=self._options.linger if context is not None else None,
        )
        self._keep(server)
        return PeerAddress(address.host, server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and close every connection. Idempotent."""
        self._is_closed = True
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for connection in [*self._connections, *self._expected]:
            connection.end("the data server was closed")
        await close_all(self._connections, self._options.linger)
        if server is not None:
            # Since 3.12 it waits for connections too, also for those that never agree
            # on TLS: they end by themselves, at the handshake's deadline.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._options.linger):
                    await server.wait_closed()
        self._remove_unix_file()

    def _keep(self, server: asyncio.Server) -> None:
        if self._is_closed:
            server.close()
            raise IllegalStateError("the data server was closed before it listened")
        self._server = server

    def _accept(self, context: ssl.SSLContext | None) -> asyncio.BaseProtocol:
        connection = ProducerConnection(
            self._identity,
            self._provider,
            Handshake(self._identity, self._security.secret, connects=False),
            options=self._options,
            log=self._log,
            on_made=self._on_made,
        )
        if context is not None:
            # Of a connection that fails in TLS, asyncio tells nobody.
            connection.expect_transport()
            self._expected.add(connection)
            connection.closed.add_done_callback(
                lambda _: self._expected.discard(connection)
            )
        return connection

    def _on_made(self, connection: ProducerConnection) -> None:
        self._expected.discard(connection)
        if self._is_closed:
            connection.end("the data server was closed")
            return
        self._connections[connection] = None
        connection.closed.add_done_callback(
            lambda _: self._connections.pop(connection, None)
        )
        if len(self._connections) > self._options.connections_max:
            self._turn_away(connection)

    def _turn_away(self, newcomer: ProducerConnection) -> None:
        """Close one too many: whoever has said nothing for longest, if there is one."""
        for known in self._connections:
            if known is not newcomer and known.state is ConnectionState.GREETING:
                known.end("others want to connect, and it has not said who it is")
                known.abort()
                return
        newcomer.end(f"there are {self._options.connections_max} connections already")
        newcomer.abort()

    def _remove_unix_file(self) -> None:
        if self._unix_path is None:
            return
        path, inode = self._unix_path
        self._unix_path = None
        with suppress(FileNotFoundError):
            # Somebody else's by now, perhaps.
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
    keep_from_forks(bound)
    try:
        bound.setblocking(False)
        bound.bind(path)
        # Nobody can connect before it listens, so there is no moment to slip in.
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
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        except OSError:
            return
