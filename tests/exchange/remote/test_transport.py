"""Data, credit and segments over real sockets."""

from __future__ import annotations

import asyncio
import random
import socket
import stat
import struct
from typing import Any

import pytest

from aiomailbox.errors import (
    IllegalStateError,
    InvalidArgumentError,
    LocalTransportError,
    PartitionNotFoundError,
    RemoteFailureError,
    RemoteTransportError,
)
from aiomailbox.exchange.remote.connection import ConnectionOptions
from aiomailbox.exchange.remote.handshake import PeerAddress
from aiomailbox.exchange.remote.server import DataServer
from aiomailbox.records.events import CheckpointBarrier

pytestmark = pytest.mark.real_time


def contents(seed: int, count: int) -> list[bytes]:
    numbers = random.Random(seed)
    return [
        numbers.randbytes(numbers.choice([1, 7, 500, 9_000, 20_000, 32_768]))
        for _ in range(count)
    ]


@pytest.mark.parametrize("kind", ["tcp", "unix"])
async def test_what_is_emitted_is_read_and_every_segment_comes_back(
    world: Any, kind: str
) -> None:
    await world.serve(kind)
    expected = contents(1, 300)
    partition = world.producer.partition(0)
    reader = world.read(world.connect(), 0)
    for content in expected:
        world.producer.emit(partition, content)
    partition.finish()
    await reader.until(lambda: reader.has_ended)
    assert reader.received == expected
    assert reader.numbers == list(range(len(expected) + 1))
    assert not reader.failures
    await world.until(lambda: not world.producer.store.out)
    reader.link.close()
    reader.release()
    assert not world.readers.out


async def test_a_slow_reader_stalls_no_other_on_its_connection(world: Any) -> None:
    server = await world.serve()
    connections = world.connect()
    slow = world.read(connections, 0, slow=True)
    slow_partition = world.producer.partition(0)
    # Without floating buffers, so that it has credit for two buffers and no more.
    world.readers.limit = len(world.readers.out)
    partitions = [world.producer.partition(number) for number in range(1, 9)]
    readers = [world.read(connections, number) for number in range(1, 9)]
    world.readers.limit = len(world.readers.out)
    slow_contents = contents(0, 10)
    for content in slow_contents:
        world.producer.emit(slow_partition, content)
    expected = [contents(number, 60) for number in range(1, 9)]
    for place in range(60):
        for partition, wanted in zip(partitions, expected, strict=True):
            world.producer.emit(partition, wanted[place])
    for partition in partitions:
        partition.finish()
    for reader, wanted in zip(readers, expected, strict=True):
        await reader.until(lambda reader=reader: reader.has_ended)
        assert reader.received == wanted
    assert len(slow.waiting) == 2
    assert server.connections == connections.connections == 1
    slow.is_slow = False
    slow.read()
    await slow.until(lambda: len(slow.received) == 10)
    assert slow.received == slow_contents
    assert world.reasons() == []


async def test_without_buffers_of_its_own_a_channel_lives_on_announced_backlog(
    world: Any,
) -> None:
    await world.serve()
    partition = world.producer.partition(0, exclusive=0)
    world.readers.limit = 3
    reader = world.read(world.connect(), 0, exclusive=0)
    expected = contents(5, 20)
    for content in expected:
        world.producer.emit(partition, content)
    partition.finish()
    await reader.until(lambda: reader.has_ended)
    assert reader.received == expected


async def test_a_missing_partition_is_requested_again_until_it_is_there(
    world: Any,
) -> None:
    """NET-165."""
    server = await world.serve()
    reader = world.read(world.connect(), 0)
    await reader.until(lambda: reader.not_found == 1)
    reader.link.announce_credit()
    reader.link.request_again()
    await reader.until(lambda: reader.not_found == 2)
    world.producer.emit(world.producer.partition(0), b"here")
    reader.link.request_again()
    await reader.until(lambda: reader.received == [b"here"])
    assert server.connections == 1
    assert world.reasons() == []


async def test_a_producer_that_fails_is_told_as_text_to_its_own_channel(
    world: Any,
) -> None:
    await world.serve()
    connections = world.connect()
    partition, other = world.producer.partition(0), world.producer.partition(1)
    failed, fine = world.read(connections, 0), world.read(connections, 1)
    world.producer.emit(other, b"1")
    world.producer.emit(partition, b"1")
    await failed.until(lambda: bool(failed.received))
    partition.release(ValueError("no such row"))
    await failed.until(lambda: bool(failed.failures))
    (error,) = failed.failures
    assert isinstance(error, RemoteFailureError)
    assert error.kind == "ValueError"
    assert "worker 'server'" in str(error)
    assert "no such row" in str(error)
    world.producer.emit(other, b"2")
    await fine.until(lambda: fine.received == [b"1", b"2"])
    assert not fine.failures


async def test_a_producer_that_missed_a_partition_itself_is_not_asked_again(
    world: Any,
) -> None:
    await world.serve()
    partition = world.producer.partition(0)
    reader = world.read(world.connect(), 0)
    world.producer.emit(partition, b"1")
    await reader.until(lambda: bool(reader.received))
    partition.release(PartitionNotFoundError("the partition before it is gone"))
    await reader.until(lambda: bool(reader.failures or reader.not_found))
    assert not reader.not_found
    assert "the partition before it is gone" in str(reader.failures[0])


async def test_a_partition_that_ended_may_be_released_in_peace(world: Any) -> None:
    await world.serve()
    connections = world.connect()
    partition, other = world.producer.partition(0), world.producer.partition(1)
    ended, fine = world.read(connections, 0), world.read(connections, 1)
    partition.finish()
    await ended.until(lambda: ended.has_ended)
    partition.release()
    world.producer.emit(other, b"1")
    await fine.until(lambda: fine.received == [b"1"])
    assert not ended.failures


async def test_the_last_channel_closes_the_connection_and_a_new_one_connects_again(
    world: Any,
) -> None:
    server = await world.serve()
    connections = world.connect()
    world.producer.partition(0)
    world.producer.partition(1)
    first, second = world.read(connections, 0), world.read(connections, 1)
    await world.until(lambda: world.producer.requested == 2)
    first.link.close()
    await world.until(
        lambda: next(iter(world.producer.partitions.values())).is_released
    )
    assert server.connections == 1
    second.link.close()
    second.link.close()
    second.link.announce_credit()
    await world.until(lambda: server.connections == connections.connections == 0)
    assert set(world.reasons()) == {
        "the peer needs it no more",
        "no channel needs it any more",
    }
    world.producer.emit(world.producer.partition(2), b"x")
    third = world.read(connections, 2)
    await third.until(lambda: third.received == [b"x"])


async def test_a_channel_that_closes_before_the_connection_is_made_leaves_nothing(
    world: Any,
) -> None:
    server = await world.serve()
    connections = world.connect()
    reader = world.read(connections, 0)
    reader.link.close()
    await world.until(lambda: connections.connections == 0)
    again = world.read(connections, 0)
    await world.until(lambda: world.producer.requested == 1)
    again.link.close()
    await world.until(lambda: server.connections == 0)
    assert not reader.failures
    assert not again.failures


async def test_a_server_that_comes_later_is_waited_for(world: Any) -> None:
    path = world.directory / "data.sock"
    world.address = PeerAddress(str(path))
    reader = world.read(world.connect(), 0)
    await asyncio.sleep(0.02)
    world.producer.emit(world.producer.partition(0), b"late")
    await world.serve("unix")
    await reader.until(lambda: reader.received == [b"late"])


async def test_a_server_that_never_comes_fails_the_channels_with_both_ends_named(
    world: Any,
) -> None:
    world.address = PeerAddress(str(world.directory / "nobody.sock"))
    connections = world.connect(options=ConnectionOptions(connect_timeout=0.1))
    reader = world.read(connections, 0)
    await reader.until(lambda: bool(reader.failures))
    (error,) = reader.failures
    assert isinstance(error, RemoteTransportError)
    assert "worker 'client'" in str(error)
    assert "nobody.sock" in str(error)
    assert "FileNotFoundError" in str(error)


async def test_closing_a_server_fails_what_reads_from_it(world: Any) -> None:
    server = await world.serve("unix")
    partition = world.producer.partition(0)
    reader = world.read(world.connect(), 0)
    world.producer.emit(partition, b"x")
    await reader.until(lambda: bool(reader.received))
    await server.close()
    await server.close()
    await reader.until(lambda: bool(reader.failures))
    assert isinstance(reader.failures[0], RemoteTransportError)
    assert partition.is_released
    assert list(world.directory.iterdir()) == []
    with pytest.raises(IllegalStateError):
        await server.listen(world.address)


async def test_a_server_that_is_closed_while_it_begins_to_listen_does_not_listen(
    world: Any,
) -> None:
    server = DataServer(world.identity("server"), world.producer, log=world.log)
    listening = asyncio.create_task(server.listen(PeerAddress("127.0.0.1", 0)))
    await asyncio.sleep(0)
    await server.close()
    with pytest.raises(IllegalStateError, match="closed"):
        await listening
    assert server._listeners == []


async def test_closing_the_connections_fails_what_reads_and_releases_the_views(
    world: Any,
) -> None:
    server = await world.serve()
    partition = world.producer.partition(0)
    connections = world.connect()
    reader = world.read(connections, 0)
    unconnected = world.read(connections, 7)
    await world.until(lambda: world.producer.requested == 2)
    await connections.close()
    assert isinstance(reader.failures[0], LocalTransportError)
    assert unconnected.failures
    await world.until(lambda: partition.is_released and not server.connections)
    with pytest.raises(IllegalStateError):
        world.read(connections, 0)


async def test_a_peer_that_is_cut_off_is_a_remote_error(world: Any) -> None:
    """NET-170, its first half."""
    server = await world.serve()
    reader = world.read(world.connect(), 0)
    await reader.until(lambda: reader.not_found == 1)
    for connection in server._connections:
        sock = connection._transport.get_extra_info("socket")
        # A reset instead of an orderly end.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.abort()
    await reader.until(lambda: bool(reader.failures))
    assert isinstance(reader.failures[0], RemoteTransportError)


async def test_an_idle_connection_is_probed_by_the_kernel(world: Any) -> None:
    server = await world.serve(options=world.options._replace(stall_timeout=90.0))
    reader = world.read(world.connect(), 0)
    await reader.until(lambda: reader.not_found == 1)
    for connection in server._connections:
        sock = connection._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        # What was sent and not confirmed is not probed for: it has a time of its own.
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert (
                sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 90_000
            )


async def test_wishes_of_the_reader_reach_the_view(world: Any) -> None:
    """NET-171."""
    await world.serve()
    partition = world.producer.partition(0)
    reader = world.read(world.connect(), 0)
    await world.until(lambda: bool(world.producer.views))
    (view,) = world.producer.views.values()
    reader.link.announce_buffer_size(500)
    reader.link.announce_buffer_size(333)
    reader.link.acknowledge_all_data_processed()
    world.producer.emit_event(partition, CheckpointBarrier(1, 0))
    world.producer.emit(partition, b"after")
    await reader.until(lambda: reader.numbers == [0])
    await world.until(lambda: view.acknowledged)
    assert partition.buffer_bytes == 333
    assert partition.is_blocked
    reader.link.resume_consumption()
    await reader.until(lambda: reader.received == [b"after"])
    # Once more, though nothing blocks: the channel's fault, and nobody else's.
    reader.link.resume_consumption()
    await reader.until(lambda: bool(reader.failures))
    assert reader.failures[0].kind == "IllegalStateError"
    assert world.reasons() == []


async def test_a_unix_socket_is_its_owners_alone_and_a_stale_one_is_replaced(
    world: Any,
) -> None:
    path = world.directory / "data.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    server = await world.serve("unix")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(OSError):
        await world.serve("unix")
    assert path.exists()
    await server.close()
    assert not path.exists()
    with pytest.raises(InvalidArgumentError, match="longer"):
        await DataServer(world.identity("x"), world.producer).listen(
            PeerAddress("/tmp/" + "x" * 200)
        )
