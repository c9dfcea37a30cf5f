"""The reader's end of a connection: all channels to one peer share it.

Theory of operation: what arrives for a channel that has gone is skipped, and the peer
is notified once. A channel's own failure stays with it; whatever breaks the order of
frames, or the connection, is reported to all.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Final

from aiomailbox.availability import Availability
from aiomailbox.errors import (
    CorruptStreamError,
    IllegalStateError,
    InvalidArgumentError,
    LocalTransportError,
    RemoteFailureError,
    RemoteTransportError,
    TransportError,
)
from aiomailbox.exchange.remote.connection import (
    Connection,
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
from aiomailbox.exchange.remote.wire import (
    PARTITION_NOT_FOUND,
    AckAllUserRecordsProcessed,
    AddCredit,
    BacklogAnnouncement,
    BufferResponse,
    CancelPartitionRequest,
    CloseRequest,
    ErrorResponse,
    Message,
    NewBufferSize,
    PartitionRequest,
    ResumeConsumption,
)
from aiomailbox.ids import PartitionId
from aiomailbox.logs import library_log
from aiomailbox.memory.buffer import MemorySegment, NetworkBuffer

# A channel's link to its connection: what it may say, each thing once at a time.


_LINK_KINDS = (AddCredit, ResumeConsumption, AckAllUserRecordsProcessed, NewBufferSize)


class Channel:
    """One channel of a connection, as its owner holds it.

    Args:
        host: The connection.
        receiver: The channel's receiving end.
        request: What asks the producer for its data.

    Invariants:
        Nothing is said between a request that was answered with "not found" and the
        next one, and nothing after `close`.
    """

    def __init__(
        self, host: ClientConnection, receiver: Receiver, request: PartitionRequest
    ) -> None:
        self._host = host
        self._is_requested = False
        self._was_not_found = False
        self._buffer_bytes = 0
        self.receiver: Receiver = receiver
        self.request: PartitionRequest = request
        self.is_closed: bool = False

    def send_request(self) -> None:
        """Ask the producer."""
        self._is_requested = True
        self._host.queue(PartitionRequest, self.request.receiver, lambda: self.request)

    def was_not_found(self) -> None:
        """Be notified that the producer knows nothing of this channel."""
        self._unsay()
        self._is_requested = False
        self._was_not_found = True

    def take_back(self) -> bool:
        """Say nothing more; return whether the producer may know the channel."""
        self._unsay()
        self._is_requested = False
        is_new = self._host.drop(PartitionRequest, self.request.receiver)
        return self._was_not_found or not is_new

    # Built when it is written: credit that comes until then goes with it.
    def announce_credit(self) -> None:
        """Announce credit soon."""
        self._say(AddCredit, self._credit)

    def request_again(self) -> None:
        """Send the partition request once more, after it was not found."""
        if not self.is_closed and not self._is_requested:
            self.send_request()
            self.announce_credit()
            if self._buffer_bytes:
                # The producer had nowhere to keep it.
                self.announce_buffer_size(self._buffer_bytes)

    def resume_consumption(self) -> None:
        """Let the producer go on after an event that blocked it."""
        # Without buffers of its own, a channel's credit counts from the resumption:
        # credit that waits to be announced has to come after it.
        had_credit = self._host.drop(AddCredit, self.request.receiver)
        self._say(ResumeConsumption, lambda: ResumeConsumption(self.request.receiver))
        if had_credit:
            self.announce_credit()

    def acknowledge_all_data_processed(self) -> None:
        """Tell the producer that all its records have been processed."""
        self._say(
            AckAllUserRecordsProcessed,
            lambda: AckAllUserRecordsProcessed(self.request.receiver),
        )

    def announce_buffer_size(self, size_bytes: int) -> None:
        """Tell the producer how large its buffers should be; the latest counts.

        Raises:
            InvalidArgumentError: If it is less than 1.
        """
        if size_bytes < 1:
            raise InvalidArgumentError("size_bytes", f"{size_bytes} is less than 1")
        self._buffer_bytes = size_bytes
        self._say(
            NewBufferSize,
            lambda: NewBufferSize(self._buffer_bytes, self.request.receiver),
        )

    def close(self) -> None:
        """Release it. Idempotent."""
        if not self.is_closed:
            self.is_closed = True
            self._host.forget(self)

    def _credit(self) -> Message | None:
        if self.receiver.is_released:
            return None
        credit = self.receiver.take_credit()
        return AddCredit(credit, self.request.receiver) if credit > 0 else None

    def _say(self, kind: type, build: Callable[[], Message | None]) -> None:
        if self._is_requested and not self.is_closed:
            self._host.queue(kind, self.request.receiver, build)

    def _unsay(self) -> None:
        for kind in _LINK_KINDS:
            self._host.drop(kind, self.request.receiver)


# How many kinds of messages a receiver can have waiting.
_KINDS: Final = 6


class ClientConnection(Connection):
    """The reader's end.

    Args:
        address: Of the peer.
        handshake: How it begins.
        local: This worker's name.
        options: Limits.
        log: A structlog logger.
        on_ending: Called once no channel may be added any more.

    Concept:
        Flink, ``CreditBasedPartitionRequestClientHandler`` and
        ``NettyPartitionRequestClient``.
    """

    def __init__(
        self,
        address: PeerAddress,
        handshake: Handshake,
        *,
        local: str,
        options: ConnectionOptions,
        log: Any,
        on_ending: Callable[[ClientConnection], None],
    ) -> None:
        super().__init__(
            handshake, local=local, peer=str(address), options=options, log=log
        )
        self.address = address
        self._on_ending = on_ending
        self._channels: dict[bytes, Channel] = {}
        self._cancelled: OrderedDict[bytes, None] = OrderedDict()
        self._links = 0
        self._is_leaving = False
        self._arriving: tuple[Channel, NetworkBuffer] | None = None
        self._settled = Availability()

    @property
    def failure(self) -> TransportError | None:
        """The error that ended it; None if it has not ended, or without one."""
        return self._error

    async def settle(self) -> None:
        """Wait until the greeting has come to an end, whichever."""
        while self.state is ConnectionState.GREETING:
            self._settled.reset()
            await self._settled.wait()

    def add_channel(self, receiver: Receiver, request: PartitionRequest) -> Channel:
        """Request a partition for a channel, now or once the connection is open.

        Raises:
            InvalidArgumentError: If there is a channel of that id, or one too many.
        """
        if receiver.receiver_id in self._channels:
            raise InvalidArgumentError(
                "receiver", f"{receiver.receiver_id.hex()} has a channel already"
            )
        if len(self._channels) >= self._options.receivers_max:
            raise InvalidArgumentError(
                "receiver",
                f"{self._options.receivers_max} channels share the connection with "
                f"{self.peer} already",
            )
        self._cancelled.pop(receiver.receiver_id, None)
        channel = Channel(self, receiver, request)
        self._channels[receiver.receiver_id] = channel
        self._links += 1
        channel.send_request()
        return channel

    def forget(self, channel: Channel) -> None:
        """Release a channel that was closed; the last one closes the connection."""
        self._links -= 1
        self._remove(channel)
        if not self._links and not self.is_ending:
            self._leave()

    def drop(self, kind: type, receiver: bytes) -> bool:
        """Unsay what was not written yet; say whether there was anything."""
        return self._control.pop((kind, receiver), None) is not None

    def cannot_connect(self, reason: str) -> None:
        """End: the peer cannot be reached."""
        self.end(reason, RemoteTransportError(self.local, self.peer, reason))

    def open_body(self, header: BufferResponse) -> memoryview | None:
        """Return the window of a buffer of the channel that is meant."""
        channel = self._open_channel(header.receiver)
        if channel is None or self.state is not ConnectionState.OPEN:
            # Skipped, and counted down by the decoder: framing goes on.
            return None
        try:
            buffer = _buffer_for(channel.receiver, header)
        except Exception as error:  # noqa: BLE001 -- one channel's error stays with it
            self._fail_channel(channel, error)
            return None
        self._arriving = (channel, buffer)
        return buffer.segment.view[: header.size_bytes]

    _tries_again = True

    def _begin_again(self) -> None:
        self._advance(ConnectionState.CONNECTING)
        self._transport = self._outgoing = None
        self._may_write = True
        self._handshake = self._handshake.again()
        self._decoder = self._new_decoder()
        self._settled.set_available()

    def _on_open(self) -> None:
        self._settled.set_available()

    def _address(self) -> str:
        return str(self.address)

    def _is_expected_end(self) -> bool:
        return not self._channels

    def _on_open_message(self, message: Message) -> None:
        if isinstance(message, BufferResponse):
            self._on_buffer(message)
        elif isinstance(message, BacklogAnnouncement):
            channel = self._open_channel(message.receiver)
            if channel is not None:
                self._tell(channel, channel.receiver.on_sender_backlog, message.backlog)
        elif isinstance(message, ErrorResponse):
            self._on_error(message)
        else:
            raise CorruptStreamError(
                f"a producer cannot send {type(message).__name__} now"
            )

    def _on_buffer(self, header: BufferResponse) -> None:
        arrived, self._arriving = self._arriving, None
        number, backlog = header.sequence_number, header.backlog
        if arrived is not None:
            channel, buffer = arrived
            # It was released while its content arrived.
            if self._is_gone(channel):
                buffer.recycle()
                self._cancel_unasked(header.receiver)
            else:
                self._tell(channel, channel.receiver.on_buffer, buffer, number, backlog)
            return
        found = self._open_channel(header.receiver)
        if header.size_bytes or found is None:
            self._cancel_unasked(header.receiver)
        elif header.data_type.is_buffer:
            self._tell(found, found.receiver.on_empty_buffer, number, backlog)
        else:
            self._fail_channel(found, CorruptStreamError("an event has no content"))

    def _on_error(self, message: ErrorResponse) -> None:
        cause = message.cause
        channel = self._channels.get(message.receiver or b"")
        if channel is None:
            return
        if cause.kind == PARTITION_NOT_FOUND:
            channel.was_not_found()
            self._tell(channel, channel.receiver.on_partition_not_found)
        else:
            self._fail_channel(channel, RemoteFailureError(self.peer, *cause))

    def _open_channel(self, receiver: bytes) -> Channel | None:
        channel = self._channels.get(receiver)
        return None if channel is None or channel.receiver.is_released else channel

    def _is_gone(self, channel: Channel) -> bool:
        return self._open_channel(channel.receiver.receiver_id) is not channel

    def _tell(
        self, channel: Channel, method: Callable[..., None], *arguments: Any
    ) -> None:
        try:
            method(*arguments)
        except Exception as error:  # noqa: BLE001 -- one channel's error stays with it
            self._fail_channel(channel, error)

    def _fail_channel(self, channel: Channel, error: BaseException) -> None:
        self._remove(channel)
        try:
            channel.receiver.fail(error)
        except Exception as second:  # noqa: BLE001 -- there is nothing else to notify
            self._log.error(
                "a channel could not be failed",
                receiver=channel.receiver.receiver_id.hex(),
                error=f"{type(second).__name__}: {second}",
                cause=f"{type(error).__name__}: {error}",
            )

    def _remove(self, channel: Channel) -> None:
        receiver = channel.receiver.receiver_id
        if self._channels.get(receiver) is not channel:
            return
        del self._channels[receiver]
        if channel.take_back() and not self.is_ending:
            self._cancel(receiver)

    def _cancel_unasked(self, receiver: bytes) -> None:
        # A peer that sends to unknown receivers makes us answer: not without a bound.
        if len(self._control) > _KINDS * self._options.receivers_max:
            raise CorruptStreamError("the peer sends to receivers that do not exist")
        self._cancel(receiver)

    def _cancel(self, receiver: bytes) -> None:
        # What is on its way to those that were cancelled lately is no surprise.
        if receiver in self._cancelled:
            return
        self._cancelled[receiver] = None
        if len(self._cancelled) > self._options.receivers_max:
            self._cancelled.popitem(last=False)
        self.queue(
            CancelPartitionRequest, receiver, lambda: CancelPartitionRequest(receiver)
        )

    def _leave(self) -> None:
        self._on_ending(self)
        if self.state is not ConnectionState.OPEN:
            self.end("no channel needs it any more")
            self.abort()
            return
        self._is_leaving = True
        self._control.clear()
        # A peer that does not read is not waited for.
        self._deadline = self._loop.call_later(self._options.linger, self._depart)
        self.queue(CloseRequest, b"", CloseRequest)

    def _after_turn(self) -> None:
        if self._is_leaving and not self._control:
            self._depart()

    def _depart(self) -> None:
        self.end("no channel needs it any more")

    def _on_lost(self, error: TransportError) -> None:
        arrived, self._arriving = self._arriving, None
        if arrived is not None:
            arrived[1].recycle()
        self._on_ending(self)
        self._settled.set_available()
        # Taken away first: failing one may close the others.
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            self._fail_channel(channel, error)

    def close(self, reason: str) -> None:
        """Close from this side; channels that are still there fail."""
        self.end(reason, LocalTransportError(self.local, self.peer, reason))


def _buffer_for(receiver: Receiver, header: BufferResponse) -> NetworkBuffer:
    size_bytes = header.size_bytes
    if not header.data_type.is_buffer:
        event = MemorySegment(size_bytes)
        return NetworkBuffer(
            event, MemorySegment.free, header.data_type, size_bytes=size_bytes
        )
    buffer = receiver.request_buffer()
    if buffer is None:
        raise CorruptStreamError("the producer has sent data without credit")
    if size_bytes > buffer.capacity_bytes:
        capacity_bytes = buffer.capacity_bytes
        buffer.recycle()
        raise CorruptStreamError(
            f"the producer has sent {size_bytes} bytes for a buffer of {capacity_bytes}"
        )
    buffer.data_type = header.data_type
    buffer.size_bytes = size_bytes
    return buffer


# One connection per peer, shared by all channels that read from it.


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
