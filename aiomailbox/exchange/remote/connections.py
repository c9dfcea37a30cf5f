"""One connection per peer, shared by all channels that read from it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Sequence
from typing import Any, Final

from aiomailbox.clock import Clock, clock_of
from aiomailbox.errors import IllegalStateError
from aiomailbox.exchange.gate import InputChannel, InputGate
from aiomailbox.exchange.remote.channel import RemoteInputChannel
from aiomailbox.exchange.remote.client import Channel, ClientConnection
from aiomailbox.exchange.remote.connection import (
    ConnectionOptions,
    ConnectionState,
    close_all,
)
from aiomailbox.exchange.remote.handshake import (
    Handshake,
    PeerAddress,
    Receiver,
    Security,
    WorkerIdentity,
    partition_address,
)
from aiomailbox.exchange.remote.wire import PartitionRequest
from aiomailbox.ids import PartitionId
from aiomailbox.logs import library_log
from aiomailbox.memory.debloat import BufferDebloater, DebloatOptions, ThroughputMeter

_UNSETTLED: Final = frozenset({ConnectionState.CONNECTING, ConnectionState.GREETING})


class Connections:
    """Connects this worker's channels with their producers.

    Args:
        identity: This worker's identity.
        security: How workers know each other.
        options: Limits.
        log: A structlog logger; None takes the library's.

    Concept:
        Flink, ``NettyConnectionManager`` and ``PartitionRequestClientFactory``.
    """

    def __init__(
        self,
        identity: WorkerIdentity,
        *,
        security: Security | None = None,
        options: ConnectionOptions | None = None,
        log: Any = None,
    ) -> None:
        self._identity = identity
        self._security = security or Security()
        self._options = options or ConnectionOptions()
        self._log = library_log() if log is None else log
        self._shared: dict[PeerAddress, ClientConnection] = {}
        # Those that cannot be joined any more stay here until they are gone.
        self._all: set[ClientConnection] = set()
        self._connecting: dict[ClientConnection, asyncio.Task[None]] = {}
        self._is_closed = False

    @property
    def connections(self) -> int:
        """How many connections there are, those that are closing included."""
        return len(self._all)

    def request(
        self,
        address: PeerAddress,
        partition_id: PartitionId,
        subpartition_index: int,
        receiver: Receiver,
        credit: int,
    ) -> Channel:
        """Request a subpartition for a channel; connects in the background.

        Args:
            address: Where its worker's data server listens.
            partition_id: Which partition.
            subpartition_index: Which part of it, from 0.
            receiver: Gets what arrives, and is notified when nothing will.
            credit: How many buffers the channel keeps for itself.

        Raises:
            IllegalStateError: If the connections were closed.
            InvalidArgumentError: If the receiver has a channel there already.
        """
        if self._is_closed:
            raise IllegalStateError("the connections were closed")
        connection = self._shared.get(address)
        if connection is None:
            connection = self._connect(address)
        return connection.add_channel(
            receiver,
            PartitionRequest(
                partition_address(self._identity.job_id, partition_id),
                subpartition_index,
                subpartition_index,
                receiver.receiver_id,
                credit,
            ),
        )

    async def open(self, addresses: Iterable[PeerAddress]) -> None:
        """Connect with peers before anything is requested of them.

        Raises:
            TransportError: If one cannot be reached, or does not let this worker in.
        """
        connections = [
            self._shared.get(address) or self._connect(address) for address in addresses
        ]
        connecting = [
            self._connecting[each] for each in connections if each in self._connecting
        ]
        if connecting:
            await asyncio.wait(connecting)
        for connection in connections:
            if connection.failure is not None:
                raise connection.failure

    async def close(self) -> None:
        """Close every connection; channels that are left fail. Idempotent."""
        self._is_closed = True
        for connection in list(self._all):
            connection.close("this worker closed its connections")
        connecting = list(self._connecting.values())
        for task in connecting:
            task.cancel()
        if connecting:
            await asyncio.wait(connecting)
        await close_all(self._all, self._options.linger)

    def _connect(self, address: PeerAddress) -> ClientConnection:
        connection = ClientConnection(
            address,
            Handshake(self._identity, self._security.secret, connects=True),
            local=f"worker {self._identity.worker!r}",
            options=self._options,
            log=self._log,
            on_ending=self._on_ending,
        )
        self._shared[address] = connection
        self._all.add(connection)
        # Looked up by identity: another one for the same peer may exist by then.
        connection.closed.add_done_callback(lambda _: self._all.discard(connection))
        task = asyncio.get_running_loop().create_task(
            self._keep_trying(connection), name=f"connect {address}"
        )
        self._connecting[connection] = task
        task.add_done_callback(lambda _: self._connecting.pop(connection, None))
        return connection

    def _on_ending(self, connection: ClientConnection) -> None:
        if self._shared.get(connection.address) is connection:
            del self._shared[connection.address]
        task = self._connecting.get(connection)
        if (
            task is not None
            and task is not asyncio.current_task()
            and connection.state is ConnectionState.CLOSED
        ):
            task.cancel()

    async def _keep_trying(self, connection: ClientConnection) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.connect_timeout
        pause = self._options.connect_backoff
        attempts = 0
        while True:
            attempts += 1
            try:
                async with asyncio.timeout_at(deadline):
                    await self._open(connection)
                    await connection.settle()
                reason = "the peer closed it during the handshake"
            except ssl.SSLError as error:
                # A wrong certificate does not become right by asking again.
                reason = f"TLS was refused: {error}"
                break
            except OSError as error:
                # `TimeoutError` is one: the deadline ends the loop below.
                reason = f"{type(error).__name__}: {error}"
            except Exception as error:  # noqa: BLE001 -- the channels get it
                reason = f"{type(error).__name__}: {error}"
                break
            if connection.state not in _UNSETTLED:
                return
            if loop.time() + pause >= deadline:
                break
            await asyncio.sleep(pause)
            pause = min(2 * pause, self._options.connect_backoff_max)
        connection.cannot_connect(f"{attempts} attempts to connect; the last: {reason}")

    async def _open(self, connection: ClientConnection) -> None:
        loop = asyncio.get_running_loop()
        host, port = connection.address
        if port is None:
            await loop.create_unix_connection(lambda: connection, host)
            return
        context = self._security.client_context
        has_tls = context is not None
        await loop.create_connection(
            lambda: connection,
            host,
            port,
            ssl=context,
            ssl_handshake_timeout=self._options.handshake_timeout if has_tls else None,
            ssl_shutdown_timeout=self._options.linger if has_tls else None,
        )


# Keeps what is in flight towards a gate as small as its task is slow.
#
# Theory of operation: the gate says when it has something to read and when it has
# nothing, so that idle time does not count. Once a period the bytes that were read
# meanwhile make a throughput, and that a size of buffers, which the producers get if it
# has changed.


_MS_PER_S = 1_000


class GateDebloating:
    """Announces buffer sizes to the remote producers of a gate, once a period.

    Args:
        gate: Its channels on this loop are left alone: they hold objects.
        options: How sizes follow the throughput.
        clock: Says how long reading took; None for the loop's.

    Attributes:
        debloater: What was announced last, and how long what is in flight takes.

    Concept:
        Flink, ``StreamTask.debloat`` and ``SingleInputGate.triggerDebloating``.
    """

    def __init__(
        self,
        gate: InputGate,
        options: DebloatOptions | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        self.debloater: BufferDebloater = BufferDebloater(options or DebloatOptions())
        self._gate = gate
        self._channels = [
            channel
            for channel in gate.channels
            if isinstance(channel, RemoteInputChannel)
        ]
        self._clock = clock
        self._meter = ThroughputMeter()
        self._bytes_counted = 0
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<GateDebloating of {self._gate.name!r}: {self.debloater.size_bytes} bytes>"

    def start(self) -> None:
        """Begin to measure; ends by itself when all channels are released. Idempotent."""
        if self._timer is not None:
            return
        if self._clock is None:
            self._clock = clock_of(asyncio.get_running_loop())
        self._gate.activity = self
        self._gate.debloated_buffer_size_bytes = self.debloater.size_bytes
        if self._gate.availability.available:
            self.on_data()
        self._arm()

    def stop(self) -> None:
        """Announce nothing more. Idempotent."""
        self._gate.activity = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_data(self) -> None:
        """Be notified that there is something to read now."""
        self._meter.resume(self._now_ms())

    def on_idle(self) -> None:
        """Be notified that there is nothing to read any more."""
        self._meter.pause(self._now_ms())

    def recalculate(self) -> int | None:
        """Look at what was read since the last time.

        Returns:
            The size that was announced, in bytes, or None if it is no news.
        """
        read_bytes = sum(channel.bytes_total for channel in self._channels)
        self._meter.add(read_bytes - self._bytes_counted)
        self._bytes_counted = read_bytes
        open_channels = [each for each in self._channels if not each.is_released]
        size_bytes = self.debloater.recalculate(
            self._meter.calculate(self._now_ms()),
            sum(channel.buffers_in_use for channel in open_channels),
        )
        if size_bytes is not None:
            self._gate.debloated_buffer_size_bytes = size_bytes
            for channel in open_channels:
                channel.announce_buffer_size(size_bytes)
        return size_bytes

    def _on_period(self) -> None:
        self._timer = None
        if all(channel.is_released for channel in self._channels):
            self.stop()
            return
        self.recalculate()
        self._arm()

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        period_s = self.debloater.options.period_ms / _MS_PER_S
        self._timer = loop.call_later(period_s, self._on_period)

    def _now_ms(self) -> int:
        assert self._clock is not None, "start() was not called"
        return int(self._clock.monotonic() * _MS_PER_S)


class DebloatingGate(InputGate):
    """A gate that says how large its buffers should be while it is open.

    Args:
        channels: At least one; those on this loop are left alone.
        options: How sizes follow the throughput.
        name: Used in messages.
    """

    def __init__(
        self,
        channels: Sequence[InputChannel],
        options: DebloatOptions,
        *,
        name: str = "gate",
    ) -> None:
        super().__init__(channels, name=name)
        self._debloating = GateDebloating(self, options)

    def request_partitions(self) -> None:
        """Connect every channel to its producer, and begin to measure."""
        super().request_partitions()
        if not self.is_closed:
            self._debloating.start()

    def close(self) -> None:
        """Release every channel, and announce nothing more. Idempotent."""
        super().close()
        self._debloating.stop()
