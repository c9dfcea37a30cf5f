"""What is fed with bytes of strangers: each target takes any bytes and holds its laws.

Nothing but `CorruptStreamError` may come out of a decoder, nothing at all out of a
connection, and what is held stays small, whatever the bytes announce.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any, Final, NamedTuple

from aiomailbox.errors import (
    CorruptStreamError,
    LocalTransportError,
    PartitionNotFoundError,
    RemoteTransportError,
    StopTask,
)
from aiomailbox.exchange.gate import InputGate
from aiomailbox.exchange.remote import wire as m
from aiomailbox.exchange.remote.channel import GateBuffers, RemoteInputChannel
from aiomailbox.exchange.remote.client import ClientConnection
from aiomailbox.exchange.remote.connection import ConnectionOptions, ConnectionState
from aiomailbox.exchange.remote.handshake import (
    Handshake,
    PeerAddress,
    WorkerIdentity,
    partition_address,
)
from aiomailbox.exchange.remote.producer import ProducerConnection
from aiomailbox.exchange.remote.wire import EVENT_BYTES_MAX, WireDecoder, encode_message
from aiomailbox.ids import PartitionId, TaskId, VertexId
from aiomailbox.memory.buffer import DataType
from aiomailbox.memory.local_pool import NetworkBufferPool
from aiomailbox.records.element_codec import ElementCodec, decode_event, encode_event
from aiomailbox.records.events import (
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    RuntimeEvent,
    StreamRecord,
    Watermark,
)
from aiomailbox.records.record_classes import RecordClasses
from aiomailbox.records.run import ListRun
from aiomailbox.records.run_columns import PythonSerializer
from aiomailbox.records.spanning import RecordDeserializer, frame_record
from aiomailbox.testing import RecordingLog, virtual_time_loop_factory

__all__ = ["INPUT_BYTES_MAX", "SEEDS", "TARGETS"]

INPUT_BYTES_MAX: Final = 4096
JOB: Final = b"j" * 16
RECEIVER: Final = b"r" * 16
PARTITION: Final = PartitionId(TaskId(VertexId(1), 0, 0), 0)
SEGMENT_BYTES: Final = 256
SEGMENTS: Final = 16


class Kind(Enum):
    A = "a"


@dataclass(frozen=True)
class Pair:
    left: Any
    right: Any


class Row(NamedTuple):
    number: int
    kind: Kind


SERIALIZER: Final = PythonSerializer(RecordClasses([Kind, Pair, Row]))
CODEC: Final = ElementCodec(SERIALIZER, operators=["source"])


# Decoders: CorruptStreamError, or a value that is written and read again.


def element(data: bytes) -> None:
    """An element of a channel."""
    with contextlib.suppress(CorruptStreamError):
        CODEC.decode(data)


def value(data: bytes) -> None:
    """Values, one and many."""
    from aiomailbox.records.byte_reader import ByteReader

    with contextlib.suppress(CorruptStreamError):
        SERIALIZER.read(ByteReader(data[1:]))
    with contextlib.suppress(CorruptStreamError):
        SERIALIZER.read_many(ByteReader(data[1:]), data[0] if data else 0)


def event(data: bytes) -> None:
    """An event; what is understood can be written, and says the same then."""
    with contextlib.suppress(CorruptStreamError):
        found = decode_event(data)
        assert decode_event(encode_event(found)) == found


def records(data: bytes) -> None:
    """Records that were cut into buffers anywhere."""
    deserializer = RecordDeserializer(
        spill_threshold_bytes=1_000, record_bytes_max=5_000
    )
    try:
        for piece in _pieces(data):
            for content in deserializer.records(piece):
                assert len(content) <= 5_000
            assert len(deserializer.unconsumed()) <= len(data)
    except CorruptStreamError:
        pass
    finally:
        deserializer.clear()


class _Sink:
    def open_body(self, header: m.BufferResponse) -> memoryview | None:
        if header.receiver != RECEIVER:
            return None
        return memoryview(bytearray(header.size_bytes))

    def on_message(self, message: m.Message) -> None:
        """Any message will do."""


def wire(data: bytes) -> None:
    """Frames that were cut anywhere; little is held back."""
    decoder = WireDecoder(_Sink())
    with contextlib.suppress(CorruptStreamError):
        for piece in _pieces(data):
            decoder.feed(piece)
            assert len(decoder._held) <= min(len(data), EVENT_BYTES_MAX)


# Connections: whatever comes, they go on or end with a reason that is the peer's fault.


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self._is_closed = False
        self.protocol: Any = None
        self.written = 0

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(
        self, high: int | None = None, low: int | None = None
    ) -> None:
        """Nothing ever waits."""

    def write(self, data: Any) -> None:
        self.written += len(data)

    def writelines(self, list_of_data: Any) -> None:
        self.written += sum(map(len, list_of_data))

    def is_closing(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self.protocol.connection_lost, None)

    abort = close


class _Provider:
    """A worker with one partition, which nobody has written to yet."""

    def create_bytes_view(
        self, partition_id: PartitionId, *args: Any, **how: Any
    ) -> Any:
        from aiomailbox.exchange.partition import ResultPartition

        if partition_id != PARTITION:
            raise PartitionNotFoundError(f"there is no partition {partition_id}")
        pool = NetworkBufferPool(2).create_local_pool(2)
        partition = ResultPartition(
            partition_id, pool, 1, remote_channels=[0], codec=CODEC
        )
        (subpartition,) = partition.subpartitions
        subpartition.tell_again()
        return _View(subpartition)


class _View:
    def __init__(self, subpartition: Any) -> None:
        self._subpartition = subpartition

    def __getattr__(self, name: str) -> Any:
        return getattr(self._subpartition, name)

    def acknowledge_all_data_processed(self) -> None:
        """Nobody waits for it."""


def server(data: bytes) -> None:
    """A worker's data server, asked by somebody who has greeted, or has not."""

    async def scenario() -> None:
        log = RecordingLog()
        connection = ProducerConnection(
            WorkerIdentity(JOB, "server"),
            _Provider(),  # type: ignore[arg-type]
            Handshake(WorkerIdentity(JOB, "server"), None, connects=False),
            options=ConnectionOptions(receivers_max=8),
            log=log,
            on_open=lambda _: None,
            on_refused=lambda peer, reason: None,
        )
        await _converse(connection, data, _greeting("client"))
        assert not connection._readers
        assert len(connection._control) <= 6 * 8

    _run(scenario())


def client(data: bytes) -> None:
    """A channel that reads from a producer who has greeted, or has not."""

    async def scenario() -> None:
        connection = ClientConnection(
            PeerAddress("nowhere", 1),
            Handshake(WorkerIdentity(JOB, "client"), None, connects=True),
            local="worker 'client'",
            options=ConnectionOptions(receivers_max=8, segment_bytes_max=SEGMENT_BYTES),
            log=RecordingLog(),
            on_ending=lambda _: None,
        )
        memory = NetworkBufferPool(SEGMENTS, segment_size_bytes=SEGMENT_BYTES)
        buffers = GateBuffers(memory, 1, exclusive_per_channel=2, floating=4)
        channel = RemoteInputChannel(
            _Connector(connection),
            PeerAddress("nowhere", 1),
            PARTITION,
            0,
            buffers,
            CODEC,
        )
        channel.receiver_id = RECEIVER
        gate = InputGate([channel])
        gate.request_partitions()
        polls = data[-1] if data else 0

        def poll() -> None:
            # A reader that looks now and then; its task ends with the first error.
            nonlocal polls
            polls = (5 * polls + 1) % 256
            if polls % 3:
                return
            while (polled := gate.poll_next()) is not None:
                polled[1].recycle()

        try:
            await _converse(connection, data, _greeting("server"), poll)
            poll()
        except (CorruptStreamError, StopTask, RemoteTransportError):
            # Of its own, of the producer, of the connection: all are the peer's fault.
            pass
        finally:
            channel.release()
        connection.abort()
        await asyncio.sleep(0)
        assert memory.available_segments == SEGMENTS
        memory.check_leaks()

    _run(scenario())


class _Connector:
    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    def request(
        self,
        address: PeerAddress,
        partition_id: Any,
        index: int,
        receiver: Any,
        credit: int,
    ) -> Any:
        return self._connection.add_channel(
            receiver,
            m.PartitionRequest(
                partition_address(JOB, partition_id),
                index,
                index,
                receiver.receiver_id,
                credit,
            ),
        )


async def _converse(
    connection: Any,
    data: bytes,
    greeting: bytes,
    after: Callable[[], None] = lambda: None,
) -> None:
    transport = _Transport()
    transport.protocol = connection
    connection.connection_made(transport)
    # Most would never get beyond the greeting by themselves.
    greets = bool(data) and data[0] != 0xFF
    try:
        for piece in [*([greeting] if greets else []), *_pieces(data)]:
            rest = memoryview(piece)
            while rest and not transport.is_closing():
                window = connection.get_buffer(-1)
                size_bytes = min(len(window), len(rest))
                window[:size_bytes] = rest[:size_bytes]
                connection.buffer_updated(size_bytes)
                rest = rest[size_bytes:]
            await asyncio.sleep(0)
            after()
    finally:
        error = connection._error
        assert not isinstance(error, LocalTransportError), error
        transport.abort()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if connection.state is ConnectionState.CONNECTING:
            # It was lost in greeting and would begin again: whoever connects gives up.
            connection.cannot_connect("no more attempts")
    assert connection.closed.done()


def _greeting(worker: str) -> bytes:
    return encode_message(m.Hello(1, 1, JOB, worker, b"n" * 16, bytes(16)))


def _pieces(data: bytes) -> Iterator[bytes]:
    """Cut what follows the first byte; that byte says how."""
    if not data:
        return
    size = data[0] % 64 or len(data)
    for start in range(1, len(data), size):
        yield data[start : start + size]


def _run(scenario: Any) -> None:
    with asyncio.Runner(loop_factory=virtual_time_loop_factory()) as runner:
        runner.run(scenario)


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    target.__name__: target
    for target in (wire, server, client, element, value, event, records)
}


def _buffer(kind: DataType, content: bytes, number: int) -> bytes:
    header = m.BufferResponse(RECEIVER, 0, number, 1, kind, len(content))
    return encode_message(header) + content


_VALUES: Final[list[list[Any]]] = [
    [1, 2**70, -1.5, "text", b"bytes", None, True],
    [(1, "a"), (2, "b")],
    [Row(1, Kind.A), Row(2, Kind.A)],
    [Pair(1, Pair(2, {3})), Pair([4], {"5": (6,)})],
    [Decimal("1.50"), frozenset({1}), {1: 2}],
]
_ELEMENTS: Final = [
    *(CODEC.encode(ListRun(values, list(range(len(values))))) for values in _VALUES),
    CODEC.encode(StreamRecord("record", 7)),
    CODEC.encode(Watermark(5)),
]
_EVENTS: Final[list[RuntimeEvent]] = [
    EndOfData(),
    EndOfPartition(),
    CheckpointBarrier(1, 2, location=b"somewhere"),
    CheckpointBarrier(1, 2, aligned_timeout_ms=3),
]
_TO_SERVER: Final[list[m.Message]] = [
    m.PartitionRequest(partition_address(JOB, PARTITION), 0, 0, RECEIVER, 2),
    m.AddCredit(1, RECEIVER),
    m.NewBufferSize(100, RECEIVER),
    m.ResumeConsumption(RECEIVER),
    m.AckAllUserRecordsProcessed(RECEIVER),
    m.CancelPartitionRequest(RECEIVER),
    m.CloseRequest(),
]
_TO_CLIENT: Final = [
    encode_message(m.BacklogAnnouncement(3, RECEIVER)),
    *(
        _buffer(DataType.DATA_BUFFER, bytes(frame_record(body)), number)
        for number, body in enumerate(_ELEMENTS[:3])
    ),
    _buffer(DataType.ALIGNED_CHECKPOINT_BARRIER, encode_event(_EVENTS[2]), 3),
    _buffer(DataType.END_OF_DATA, encode_event(_EVENTS[0]), 4),
    _buffer(DataType.END_OF_PARTITION, encode_event(_EVENTS[1]), 5),
    encode_message(m.ErrorResponse(m.RemoteCause("E", "text"), RECEIVER)),
    encode_message(m.ErrorResponse(m.RemoteCause("E", "text"))),
]
_CUTS: Final = [b"\0", b"\7", b"\xff"]
_FRAMES_UP: Final = [encode_message(message) for message in _TO_SERVER]

# Inputs to begin with: what correct peers say.
SEEDS: Final[dict[str, list[bytes]]] = {
    "wire": [cut + b"".join(_FRAMES_UP + _TO_CLIENT) for cut in _CUTS],
    "server": [
        *(cut + b"".join(_FRAMES_UP) for cut in _CUTS),
        *(b"\0" + _FRAMES_UP[0] + each for each in _FRAMES_UP[1:]),
        b"\xff" + _greeting("client"),
    ],
    "client": [
        *(cut + b"".join(_TO_CLIENT[:7]) for cut in _CUTS),
        *(b"\0" + each for each in _TO_CLIENT),
        b"\xff" + _greeting("server"),
    ],
    "element": _ELEMENTS,
    "value": [bytes([len(each)]) + each[6:] for each in _ELEMENTS[:5]],
    "event": [encode_event(each) for each in _EVENTS],
    "records": [b"\5" + bytes(frame_record(body)) * 3 for body in _ELEMENTS],
}
