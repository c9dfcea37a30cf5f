"""Laws of partitions that are written to files and read when they are complete."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from aiomailbox.errors import (
    CorruptStreamError,
    IllegalStateError,
    InvalidArgumentError,
    PartitionNotFoundError,
    PartitionStorageError,
)
from aiomailbox.exchange.blocking import file as blocking_file
from aiomailbox.exchange.blocking.file import BlockingFile
from aiomailbox.exchange.blocking.partition import BlockingResultPartition
from aiomailbox.exchange.core.contract import BytesView
from aiomailbox.ids import PartitionId, TaskId, VertexId
from aiomailbox.memory.buffer import DataType
from aiomailbox.memory.local_pool import NetworkBufferPool
from aiomailbox.records import BYTES_SERIALIZER, ElementCodec
from aiomailbox.records.element_codec import decode_event
from aiomailbox.records.events import (
    CancelCheckpoint,
    CheckpointBarrier,
    EndOfPartition,
    RuntimeEvent,
    StopMode,
    WatermarkEvent,
)
from aiomailbox.records.spanning import RecordDeserializer, frame_record
from aiomailbox.testing import VirtualTimeLoop

CODEC = ElementCodec(BYTES_SERIALIZER)
SEGMENTS = 16
SEGMENT_BYTES = 32


def run(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(work)


class Bench:
    """A partition and the memory that it gets its segments from."""

    def __init__(self, count: int = 1, **options: Any) -> None:
        self.network = NetworkBufferPool(SEGMENTS, segment_size_bytes=SEGMENT_BYTES)
        self.pool = self.network.create_local_pool(count + 1, owner="stage")
        self.partition = BlockingResultPartition(
            PartitionId(TaskId(VertexId(0), 0, 0), 0),
            self.pool,
            count,
            codec=CODEC,
            **options,
        )

    async def finish(self) -> None:
        self.partition.finish()
        await self.partition.settle()

    def file(self, index: int = 0) -> int:
        """The descriptor of a subpartition's file."""
        file = self.partition._files[index]._file
        assert file is not None
        return file.fileno()


class Reader:
    """Reads one view to its end, recycling what it gets."""

    def __init__(self, partition: BlockingResultPartition, index: int = 0) -> None:
        self.told = asyncio.Event()
        self.records: list[bytes] = []
        self.events: list[RuntimeEvent] = []
        self.sizes: list[int] = []
        self.backlogs: list[int] = []
        self.numbers: list[int] = []
        # What a connection to another process asks of a view.
        self.view: BytesView = partition.create_bytes_view(
            index, self, receiver_exclusive_buffers=2
        )
        self._deserializer = RecordDeserializer()

    def on_data_available(self) -> None:
        self.told.set()

    def on_priority_event(self, sequence_number: int) -> None:
        raise AssertionError("nothing overtakes in a file")

    async def read(self) -> list[bytes]:
        """Read to the end, or until reading has failed."""
        while EndOfPartition() not in self.events and not self.view.is_released:
            polled = self.view.poll()
            if polled is None:
                self.told.clear()
                await self.told.wait()
                continue
            buffer = polled.buffer
            self.numbers.append(polled.sequence_number)
            if buffer.data_type.is_event:
                self.events.append(decode_event(buffer.readable()))
            else:
                self.sizes.append(buffer.size_bytes)
                self.backlogs.append(polled.backlog)
                self._decode(buffer.readable())
            buffer.recycle()
            if buffer.data_type.is_blocking_upstream:
                self.view.resume_consumption()
        return self.records

    def _decode(self, content: memoryview) -> None:
        self._deserializer.set_next_buffer(content)
        while True:
            result, record = self._deserializer.next_record()
            if result.is_full_record:
                self.records.append(bytes(record))
            if result.is_buffer_consumed:
                return


async def read(partition: BlockingResultPartition, index: int = 0) -> list[bytes]:
    reader = Reader(partition, index)
    found = await reader.read()
    reader.view.release()
    return found


class HeldDisk:
    """A disk that takes nothing before it is let go, and then fails if it is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, full: bool = False) -> None:
        self.go = threading.Event()
        self.entered = threading.Event()
        real = blocking_file.open_nameless
        disk = self

        class Held:
            def __init__(self, directory: Any) -> None:
                self._file = real(directory)
                self.fileno, self.flush = self._file.fileno, self._file.flush
                self.close = self._file.close

            def write(self, data: Any) -> int:
                disk.entered.set()
                assert disk.go.wait(100)
                if full:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return self._file.write(data)

        monkeypatch.setattr(blocking_file, "open_nameless", Held)


@pytest.fixture
def held_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[..., HeldDisk]:
    def make(**options: Any) -> HeldDisk:
        return HeldDisk(monkeypatch, **options)

    return make


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["emit0", "emit1", "all", "flush", "event", "aligned", "wait"]),
        st.binary(max_size=100),
    ),
    max_size=30,
)


@given(STEPS, st.integers(1, 200))
@settings(max_examples=60, deadline=None)
def test_every_reader_finds_everything_in_order_and_all_memory_returns(
    steps: list[tuple[str, bytes]], read_ahead: int
) -> None:
    """Two at once on each subpartition, and one later; the events at their places."""

    async def work() -> None:
        bench = Bench(2, read_ahead_bytes=read_ahead)
        partition = bench.partition
        expected: list[list[bytes]] = [[], []]
        events: list[RuntimeEvent] = []
        for step, content in steps:
            while not partition.availability.available:
                await partition.availability.wait()
            match step:
                case "all":
                    partition.broadcast_record(frame_record(content))
                    expected[0].append(content)
                    expected[1].append(content)
                case "flush":
                    partition.flush(0)
                case "event":
                    events.append(CancelCheckpoint(len(events)))
                    partition.broadcast_event(events[-1])
                case "aligned":
                    events.append(WatermarkEvent("a", len(events), is_aligned=True))
                    partition.broadcast_event(events[-1])
                case "wait":
                    await asyncio.sleep(0)
                case _:
                    channel = int(step[-1])
                    partition.emit_record(frame_record(content), channel)
                    expected[channel].append(content)
        await bench.finish()
        assert bench.network.available_segments == SEGMENTS
        readers = [Reader(partition, index) for index in (0, 1, 0, 1)]
        found = await asyncio.gather(*(reader.read() for reader in readers))
        assert found == expected + expected
        late = Reader(partition, 1)
        assert await late.read() == expected[1]
        for reader in [*readers, late]:
            assert reader.events == [*events, EndOfPartition()]
            assert reader.backlogs == list(reversed(range(len(reader.sizes))))
            assert reader.numbers == list(range(len(reader.numbers)))
            reader.view.release()
        partition.release()

    run(work())


async def test_it_can_be_read_when_it_is_finished_and_until_it_is_released() -> None:
    bench = Bench()
    bench.partition.emit_record(frame_record(b"a"), 0)
    with pytest.raises(PartitionNotFoundError, match="still being written"):
        Reader(bench.partition)
    bench.partition.finish()
    with pytest.raises(PartitionNotFoundError, match="still being written"):
        Reader(bench.partition)
    await bench.partition.settle()
    assert await read(bench.partition) == [b"a"]
    with pytest.raises(InvalidArgumentError, match="not within"):
        Reader(bench.partition, 1)
    bench.partition.release()
    with pytest.raises(PartitionNotFoundError, match="released"):
        Reader(bench.partition)
    with pytest.raises(IllegalStateError):
        await bench.partition.settle()


async def test_a_full_buffer_is_written_when_the_next_one_begins_or_at_a_flush() -> (
    None
):
    bench = Bench()
    partition = bench.partition
    partition.emit_record(frame_record(bytes(28)), 0)
    partition.emit_record(frame_record(b"next"), 0)
    partition.flush(0)
    partition.flush(0)
    partition.emit_record(frame_record(b"last"), 0)
    await bench.finish()
    reader = Reader(partition)
    await reader.read()
    assert reader.sizes == [32, 8, 8]
    reader.view.release()
    partition.release()


async def test_what_waits_for_the_disk_is_bounded_and_holds_the_producer_back(
    held_disk: Callable[..., HeldDisk],
) -> None:
    disk = held_disk()
    bench = Bench()
    partition = bench.partition
    emitted = 0
    while partition.availability.available:
        partition.emit_record(frame_record(bytes(20)), 0)
        emitted += 1
        assert emitted < 1000
    assert bench.network.available_segments == 0
    assert partition._writer.waiting_bytes <= SEGMENTS * SEGMENT_BYTES
    disk.go.set()
    await partition.availability.wait()
    await bench.finish()
    assert partition._writer.waiting_bytes == 0
    assert await read(partition) == [bytes(20)] * emitted
    partition.release()


async def test_a_full_disk_is_said_at_the_next_record_and_leaves_nothing_behind(
    held_disk: Callable[..., HeldDisk],
) -> None:
    disk = held_disk(full=True)
    bench = Bench()
    partition = bench.partition
    while partition.availability.available:
        partition.emit_record(frame_record(bytes(20)), 0)
    disk.go.set()
    await partition.availability.wait()
    with pytest.raises(PartitionStorageError, match="No space left") as caught:
        partition.emit_record(frame_record(b"more"), 0)
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(PartitionStorageError):
        partition.broadcast_record(frame_record(b"more"))
    with pytest.raises(PartitionStorageError):
        partition.broadcast_event(CancelCheckpoint(1))
    with pytest.raises(PartitionStorageError):
        await partition.settle()
    with pytest.raises(PartitionNotFoundError):
        Reader(partition)
    assert bench.network.available_segments == SEGMENTS
    await asyncio.get_running_loop().shutdown_default_executor()
    assert partition._files[0]._file is None


async def test_a_disk_that_is_full_at_the_end_fails_whoever_waits_for_it(
    held_disk: Callable[..., HeldDisk],
) -> None:
    disk = held_disk(full=True)
    bench = Bench()
    bench.partition.emit_record(frame_record(b"a"), 0)
    bench.partition.finish()
    disk.go.set()
    with pytest.raises(PartitionStorageError):
        await bench.partition.settle()
    assert bench.network.available_segments == SEGMENTS


async def written(records: int = 20, **options: Any) -> Bench:
    bench = Bench(**options)
    for index in range(records):
        while not bench.partition.availability.available:
            await bench.partition.availability.wait()
        bench.partition.emit_record(frame_record(bytes([index]) * 24), 0)
    await bench.finish()
    return bench


async def test_a_changed_byte_ends_the_reader_with_what_was_before_it() -> None:
    bench = await written(read_ahead_bytes=64)
    size_bytes = bench.partition._files[0].size_bytes
    os.pwrite(bench.file(), b"\xff", size_bytes // 2)
    reader = Reader(bench.partition)
    found = await reader.read()
    assert isinstance(reader.view.failure, CorruptStreamError)
    assert reader.view.is_released
    assert reader.view.poll() is None
    assert 0 < len(found) < 20
    assert found == [bytes([index]) * 24 for index in range(len(found))]
    reader.view.release()
    bench.partition.release()


async def test_a_file_that_was_cut_is_a_corrupt_stream() -> None:
    bench = await written()
    os.ftruncate(bench.file(), bench.partition._files[0].size_bytes - 3)
    reader = Reader(bench.partition)
    await reader.read()
    assert isinstance(reader.view.failure, CorruptStreamError)
    reader.view.release()
    bench.partition.release()


async def test_a_disk_that_cannot_be_read_ends_the_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: Any) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    bench = await written()
    monkeypatch.setattr(os, "pread", broken)
    reader = Reader(bench.partition)
    await reader.read()
    assert isinstance(reader.view.failure, PartitionStorageError)
    reader.view.release()
    bench.partition.release()


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=5), st.data())
def test_whatever_byte_is_damaged_it_is_found(
    contents: list[bytes], data: st.DataObject
) -> None:
    file = BlockingFile()
    try:
        for content in contents:
            file.append(DataType.DATA_BUFFER, memoryview(content))
        file.flush()
        at = data.draw(st.integers(0, file.size_bytes - 1))
        assert file._file is not None
        descriptor = file._file.fileno()
        (byte,) = os.pread(descriptor, 1, at)
        os.pwrite(descriptor, bytes([byte ^ data.draw(st.integers(1, 255))]), at)
        with pytest.raises(CorruptStreamError):
            read_to_the_end(file)
    finally:
        file.close()


def read_to_the_end(file: BlockingFile) -> None:
    offset = 0
    while offset < file.size_bytes:
        _, offset = file.read(offset, file.size_bytes)


async def test_the_files_have_no_name_and_their_space_is_given_back(
    tmp_path: Path,
) -> None:
    bench = Bench(directory=tmp_path)
    for _ in range(4):
        bench.partition.emit_record(frame_record(bytes(30)), 0)
    await bench.finish()
    assert list(tmp_path.iterdir()) == []
    descriptor = bench.file()
    assert os.fstat(descriptor).st_size == bench.partition._files[0].size_bytes
    bench.partition.release()
    await asyncio.get_running_loop().shutdown_default_executor()
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(descriptor)


async def test_the_data_stays_until_the_last_reader_has_let_go() -> None:
    bench = await written(read_ahead_bytes=32)
    partition = bench.partition
    first, second = Reader(partition), Reader(partition)
    gone: list[int] = []
    partition.on_consumed(lambda: gone.append(1))
    partition.release()
    partition.release()
    assert (gone, partition.reader_count) == ([1], 2)
    assert len(await first.read()) == 20
    first.view.release()
    first.view.release()
    assert partition.reader_count == 1
    assert len(await second.read()) == 20
    second.view.release()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert (partition.reader_count, partition._files[0]._file) == (0, None)


async def test_a_release_while_the_disk_is_busy_waits_for_it(
    held_disk: Callable[..., HeldDisk],
) -> None:
    disk = held_disk()
    bench = Bench()
    bench.partition.emit_record(frame_record(bytes(20)), 0)
    bench.partition.flush(0)
    bench.partition.emit_record(frame_record(bytes(20)), 0)
    assert disk.entered.wait(10)
    failure = ValueError("the producer failed")
    bench.partition.release(failure)
    assert bench.partition._files[0]._file is not None
    assert bench.network.available_segments < SEGMENTS
    disk.go.set()
    with pytest.raises(ValueError, match="the producer failed"):
        await bench.partition.settle()
    while bench.partition._files[0]._file is not None:
        await asyncio.sleep(0)
    assert bench.network.available_segments == SEGMENTS


async def test_closing_what_is_not_finished_releases_it() -> None:
    bench = Bench()
    bench.partition.emit_record(frame_record(bytes(20)), 0)
    bench.partition.close()
    assert bench.partition.is_released
    assert bench.network.available_segments == SEGMENTS
    with pytest.raises(IllegalStateError):
        bench.partition.emit_record(frame_record(b"a"), 0)


async def test_a_view_that_lets_go_while_it_reads_keeps_the_data_until_then() -> None:
    bench = await written()
    reader = Reader(bench.partition)
    reader.view.release()
    assert bench.partition.reader_count == 1
    assert reader.view.poll() is None
    while bench.partition.reader_count:
        await asyncio.sleep(0)
    bench.partition.release()


async def test_a_reader_that_keeps_its_buffers_gets_no_more_than_is_allowed() -> None:
    bench = await written(read_ahead_bytes=100)
    reader = Reader(bench.partition)
    kept = []
    while True:
        await asyncio.sleep(0.01)
        polled = reader.view.poll()
        if polled is None:
            break
        kept.append(polled.buffer)
    assert 0 < sum(buffer.size_bytes for buffer in kept) <= 100 + SEGMENT_BYTES
    reader.told.clear()
    for buffer in kept:
        reader._decode(buffer.readable())
        buffer.recycle()
    await reader.told.wait()
    assert await reader.read() == [bytes([index]) * 24 for index in range(20)]
    reader.view.release()
    bench.partition.release()


async def test_an_event_that_blocks_stops_each_reader_until_it_resumes() -> None:
    bench = Bench()
    bench.partition.broadcast_event(WatermarkEvent("a", 1, is_aligned=True))
    bench.partition.emit_record(frame_record(b"behind"), 0)
    await bench.finish()
    reader = Reader(bench.partition)
    await reader.told.wait()
    assert reader.view.is_available(has_credit=False)
    polled = reader.view.poll()
    assert polled is not None
    assert polled.next_data_type is DataType.NONE
    polled.buffer.recycle()
    assert reader.view.poll() is None
    assert not reader.view.is_available()
    reader.told.clear()
    reader.view.resume_consumption()
    assert reader.told.is_set()
    assert not reader.view.is_available(has_credit=False)
    with pytest.raises(IllegalStateError):
        reader.view.resume_consumption()
    assert await reader.read() == [b"behind"]
    reader.view.release()
    bench.partition.release()


async def test_a_barrier_has_no_place_in_a_file() -> None:
    bench = Bench()
    with pytest.raises(InvalidArgumentError, match="no barriers"):
        bench.partition.broadcast_event(CheckpointBarrier(1, 0))
    bench.partition.release()


async def test_the_end_of_data_is_kept_once_and_acknowledged_by_nobody() -> None:
    bench = Bench()
    bench.partition.notify_end_of_data(StopMode.DRAIN)
    bench.partition.notify_end_of_data(StopMode.DRAIN)
    assert bench.partition.all_data_processed.available
    await bench.finish()
    bench.partition.finish()
    reader = Reader(bench.partition)
    await reader.read()
    reader.view.acknowledge_all_data_processed()
    reader.view.set_buffer_bytes(1)
    assert [type(event).__name__ for event in reader.events] == [
        "EndOfData",
        "EndOfPartition",
    ]
    reader.view.release()
    bench.partition.release()


async def test_a_cancelled_waiter_harms_no_other() -> None:
    bench = Bench()
    loop = asyncio.get_running_loop()
    one = loop.create_task(bench.partition.settle())
    other = loop.create_task(bench.partition.settle())
    await asyncio.sleep(0)
    one.cancel()
    bench.partition.finish()
    await other
    bench.partition.release()


class EndedThreads(ThreadPoolExecutor):
    """Threads that are shut down before they come to anything."""

    def submit(self, *call: Any, **arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.cancel()
        return future


async def test_without_threads_nobody_takes_what_is_missing_for_written() -> None:
    bench = Bench()
    bench.partition.emit_record(frame_record(b"lost"), 0)
    asyncio.get_running_loop().set_default_executor(EndedThreads())
    bench.partition.finish()
    with pytest.raises(PartitionStorageError, match="shut down"):
        await asyncio.wait_for(bench.partition.settle(), 5)
    with pytest.raises(PartitionNotFoundError):
        bench.partition.create_view(0, None)


class NoThreads(ThreadPoolExecutor):
    """No thread can be started."""

    def submit(self, *call: Any, **arguments: Any) -> Future[Any]:
        raise RuntimeError("can't start new thread")


async def test_a_write_that_cannot_be_started_fails_the_partition_and_frees_memory() -> (
    None
):
    bench = Bench()
    asyncio.get_running_loop().set_default_executor(NoThreads())
    # Not in the middle of whatever emits: the failure comes as that of a write does.
    bench.partition.emit_record(frame_record(b"lost" * SEGMENT_BYTES), 0)
    bench.partition.finish()
    with pytest.raises(RuntimeError, match="can't start new thread"):
        await asyncio.wait_for(bench.partition.settle(), 5)
    assert bench.partition.is_released
    assert bench.partition._writer.waiting_bytes == 0
    assert bench.pool.outstanding == 0


@pytest.mark.parametrize(
    ("threads", "failure"),
    [(EndedThreads, PartitionStorageError), (NoThreads, RuntimeError)],
)
async def test_a_reader_is_told_where_no_thread_reads(
    threads: type[ThreadPoolExecutor], failure: type[Exception]
) -> None:
    bench = Bench()
    await bench.finish()
    asyncio.get_running_loop().set_default_executor(threads())
    reader = Reader(bench.partition)
    await asyncio.wait_for(reader.read(), 5)
    assert isinstance(reader.view.failure, failure)
    reader.view.release()
    bench.partition.release()


def test_an_empty_subpartition_has_only_its_end() -> None:
    async def work() -> None:
        bench = Bench(2)
        bench.partition.emit_record(frame_record(b"a"), 0)
        await bench.finish()
        assert await read(bench.partition, 1) == []
        frame_bytes = bench.partition._files[1].size_bytes
        assert frame_bytes > 9
        bench.partition.release()

    run(work())


def test_a_reader_must_be_allowed_something() -> None:
    with pytest.raises(InvalidArgumentError, match="read_ahead_bytes"):
        Bench(read_ahead_bytes=0)
