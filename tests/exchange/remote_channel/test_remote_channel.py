"""A channel from elsewhere: order, blocking, priority, failures, and what it gives back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiomailbox.errors import (
    CorruptStreamError,
    IllegalStateError,
    InsufficientBuffersError,
    PartitionNotFoundError,
    StopTask,
)
from aiomailbox.exchange.remote.channel import GateBuffers
from aiomailbox.memory.local_pool import NetworkBufferPool
from aiomailbox.records.events import (
    Alignment,
    CancelCheckpoint,
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    EventAnnouncement,
    LatencyMarker,
    StopMode,
    Watermark,
    WatermarkStatus,
)
from aiomailbox.records.run import ListRun

ALIGNED = CheckpointBarrier(7, 0)
TIMEOUTABLE = CheckpointBarrier(7, 0, aligned_timeout_ms=100)
UNALIGNED = CheckpointBarrier(7, 0, Alignment.UNALIGNED)
END = [EndOfData(StopMode.DRAIN), EndOfPartition()]


def finish(job: Any) -> None:
    for partition in job.partitions:
        partition.notify_end_of_data(StopMode.DRAIN)
        partition.finish()
        # Nobody reads the other channel.
        local = partition.create_view(0, _Deaf()) if 0 in job.remote else None
        if local is not None:
            local.release()


class _Deaf:
    def on_data_available(self) -> None:
        """Nobody listens."""

    def on_priority_event(self, sequence_number: int) -> None:
        """Nobody listens."""


async def test_elements_arrive_as_they_were_in_order(job: Any) -> None:
    job.connect()
    sent = [
        ListRun([(1, "a"), (2, "b")], [10, 20]),
        Watermark(20),
        WatermarkStatus.IDLE,
        LatencyMarker(5, "source", 3),
        ListRun(["x" * 500]),
    ]
    for element in sent:
        if isinstance(element, ListRun):
            job.partition.emit_run(element, 1)
        else:
            job.partition.emit_control(element, 1)
    finish(job)
    job.pump()
    assert job.read() == [(1, "a"), (2, "b"), *sent[1:4], "x" * 500, *END]
    assert job.gate.is_finished
    job.assert_all_returned()


async def test_times_come_along(job: Any) -> None:
    job.connect()
    job.partition.emit_run(ListRun(["a", "b"], [10, 20]), 1)
    job.partition.flush_all()
    job.pump()
    _, buffer = job.gate.poll_next()
    assert buffer.elements[0].timestamps == [10, 20]
    assert buffer.record_count == 2
    buffer.recycle()
    job.gate.close()


async def test_a_segment_is_back_as_soon_as_its_elements_are_decoded(job: Any) -> None:
    job.connect()
    job.emit("first")
    job.pump()
    assert job.channel.credit().exclusive_free == 1
    _, buffer = job.gate.poll_next()
    assert job.channel.credit().exclusive_free == 2
    assert buffer.elements[0].values == ["first"]
    buffer.recycle()
    job.gate.close()
    job.partition.release()
    job.assert_all_returned()


async def test_an_aligned_barrier_blocks_until_it_is_resumed(job: Any) -> None:
    job.connect()
    job.emit(1)
    job.partition.broadcast_event(ALIGNED)
    job.emit(2)
    job.pump()
    assert job.read() == [1, ALIGNED]
    assert job.gate.poll_next() is None
    job.gate.resume_consumption(0)
    job.pump()
    assert job.read() == [2]
    job.gate.close()


async def test_an_unaligned_barrier_overtakes_at_the_producer_and_here(
    job: Any,
) -> None:
    job.connect()
    for number in range(8):
        job.emit(number, "x" * 40)
    job.link.pump()
    job.partition.broadcast_event(UNALIGNED)
    job.pump()
    assert job.gate.priority_availability.available
    read = job.read()
    assert read[0] == UNALIGNED
    assert [each for each in read[1:] if isinstance(each, int)] == list(range(8))
    job.gate.close()


async def test_an_announced_barrier_that_is_made_to_overtake_still_blocks_its_producer(
    job: Any,
) -> None:
    """Its producer waits: whoever reads it has to see that it blocks, and resume."""
    job.connect()
    job.emit(1)
    job.partition.broadcast_event(TIMEOUTABLE)
    job.emit(2)
    job.pump()
    _, announced = job.gate.poll_next()
    assert isinstance(announced.event, EventAnnouncement)
    assert announced.event.announced == TIMEOUTABLE
    overtaken = job.channel.in_flight(7)
    assert len(overtaken) == 1

    job.channel.prioritize(announced.event.sequence_number)
    assert job.gate.priority_availability.available
    index, barrier = job.gate.poll_priority()
    assert barrier.event == TIMEOUTABLE
    assert barrier.event.blocks_upstream
    assert job.read() == [1]
    job.gate.resume_consumption(index)
    job.pump()
    assert job.read() == [2]
    job.gate.close()


async def test_events_are_free(new_job: Any) -> None:
    job = new_job(exclusive=1, floating=1).connect()
    for number in range(20):
        job.partition.broadcast_event(CancelCheckpoint(number))
    job.pump()
    assert job.channel.statistics().queued_buffers == 20
    assert job.channel.credit().available == 1
    assert len(job.read()) == 20
    job.gate.close()


async def test_the_backlog_borrows_floating_buffers(job: Any) -> None:
    job.connect()
    for number in range(6):
        job.emit("x" * 60, number)
    job.pump()
    assert job.channel.credit().exclusive == 2
    assert job.memory.available_segments < job.segments - 3
    assert len(job.read()) == 12
    job.gate.close()
    assert job.channel.credit().exclusive == 0, "none is in use any more"
    job.partition.release()
    job.assert_all_returned()


async def test_without_buffers_of_its_own_a_channel_asks_for_each(new_job: Any) -> None:
    job = new_job(exclusive=0, floating=1).connect()
    job.emit(*range(40))
    job.partition.broadcast_event(ALIGNED)
    job.emit("after")
    job.pump()
    assert job.read() == [*range(40), ALIGNED]
    job.gate.resume_consumption(0)
    job.pump()
    assert job.read() == ["after"]
    job.gate.close()
    job.partition.release()
    job.assert_all_returned()


async def test_acknowledging_reaches_the_producer(job: Any) -> None:
    job.connect()
    job.partition.acknowledge_all_data_processed(0)
    assert not job.partition.all_data_processed.available
    job.gate.acknowledge_all_data_processed(0)
    job.pump()
    assert job.partition.all_data_processed.available
    job.gate.close()


async def test_a_partition_that_is_late_is_requested_again(new_job: Any) -> None:
    """NET-165."""
    job = new_job(registered=False, retry_initial_ms=500, retry_max_ms=3_000).connect()
    assert job.link.requests == 1
    for wait_s in (0.5, 1.0):
        await asyncio.sleep(wait_s - 0.01)
        requests = job.link.requests
        await asyncio.sleep(0.02)
        assert job.link.requests == requests + 1
        job.pump()
    job.registry.register(job.partition)
    await asyncio.sleep(2.1)
    job.emit("late")
    job.pump()
    assert job.read() == ["late"]
    job.gate.close()


async def test_a_partition_that_never_comes_fails_the_task(new_job: Any) -> None:
    job = new_job(registered=False, retry_initial_ms=500, retry_max_ms=3_000).connect()
    for wait_s in (0.5, 1.0, 2.0, 3.0):
        assert job.gate.poll_next() is None
        await asyncio.sleep(wait_s + 0.001)
        job.pump()
    with pytest.raises(PartitionNotFoundError, match=r"127\.0\.0\.1:1"):
        job.gate.poll_next()
    assert job.link.requests == 5
    job.gate.close()
    job.assert_all_returned()


async def test_without_retries_a_missing_partition_fails_at_once(new_job: Any) -> None:
    job = new_job(registered=False, retry_initial_ms=0).connect()
    with pytest.raises(PartitionNotFoundError):
        job.gate.poll_next()
    job.gate.close()


async def test_requesting_again_before_the_first_request_is_refused(job: Any) -> None:
    """NET-145."""
    with pytest.raises(IllegalStateError, match="not connected"):
        job.channel.on_partition_not_found()
    job.gate.close()
    job.assert_all_returned()


async def test_a_released_channel_retries_nothing(new_job: Any) -> None:
    job = new_job(registered=False).connect()
    job.gate.close()
    await asyncio.sleep(20)
    assert job.link.requests == 1


async def test_files_that_cannot_be_read_fail_the_task_their_producer_has_ended(
    new_job: Any,
) -> None:
    job = new_job(is_kept=True).connect()
    job.emit(1)
    job.partition.release(ValueError("division of labour"))
    job.pump()
    with pytest.raises(PartitionNotFoundError, match=r"cannot be read.*division"):
        job.channel.poll()
    job.gate.close()
    job.assert_all_returned()


async def test_a_producer_that_failed_stops_the_task_and_says_why(job: Any) -> None:
    """NET-158."""
    job.connect()
    job.emit(1)
    job.partition.release(ValueError("division of labour"))
    job.pump()
    with pytest.raises(StopTask, match=r"ValueError.*division of labour"):
        job.read()
    job.gate.close()
    job.assert_all_returned()


async def test_a_connection_that_cannot_be_made_surfaces_at_the_next_poll(
    job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NET-158."""
    refused = ConnectionRefusedError("nobody listens")

    def request(*arguments: Any) -> Any:
        raise refused

    monkeypatch.setattr(job, "request", request)
    job.connect()
    assert job.gate.availability.available
    with pytest.raises(ConnectionRefusedError):
        job.gate.poll_next()
    job.gate.close()
    job.assert_all_returned()


async def test_the_first_error_stays_and_all_segments_return(job: Any) -> None:
    job.connect()
    job.emit("x" * 300)
    job.pump()
    first = OSError("cable")
    job.channel.fail(first)
    job.channel.fail(OSError("second"))
    for _ in range(2):
        with pytest.raises(OSError, match="cable"):
            job.gate.poll_next()
    job.gate.close()
    job.partition.release()
    job.assert_all_returned()


async def test_a_lost_buffer_is_an_error_at_the_next_poll(job: Any) -> None:
    job.connect()
    job.emit("a")
    while job.link.deliver_up():
        pass
    assert job.link.send()
    job.link.downstream.clear()
    job.emit("b")
    job.pump()
    with pytest.raises(CorruptStreamError, match="arrived in place of"):
        job.gate.poll_next()
    job.gate.close()
    job.partition.release()
    job.assert_all_returned()


async def test_bytes_that_are_no_element_fail_the_channel_for_good(job: Any) -> None:
    job.connect()
    job.partition.emit_record(b"\0\0\0\1\x7f", 1)
    job.emit("fine")
    job.pump()
    for _ in range(2):
        with pytest.raises(CorruptStreamError, match="no element has tag 127") as said:
            job.gate.poll_next()
    (note,) = said.value.__notes__
    assert note.startswith("in what arrived from ")
    job.gate.close()
    job.partition.release()
    job.assert_all_returned()


async def test_an_end_within_a_record_is_an_error(job: Any) -> None:
    job.connect()
    job.partition.emit_record(b"\0\0\0\x09abc", 1)
    finish(job)
    job.pump()
    with pytest.raises(CorruptStreamError, match="middle of a record"):
        job.read()
    job.gate.close()
    job.assert_all_returned()


@pytest.mark.parametrize("steps", range(12))
async def test_a_gate_that_closes_in_the_middle_gives_everything_back(
    job: Any, steps: int
) -> None:
    job.gate.request_partitions()
    job.emit(*["x" * 50] * 10)
    for _ in range(steps):
        assert job.link.deliver_up() or job.link.send() or job.link.deliver_down()
    job.gate.close()
    job.partition.release()
    job.assert_all_returned()


async def test_a_released_channel_resumes_and_announces_nothing(job: Any) -> None:
    """NET-159."""
    job.connect()
    job.gate.close()
    with pytest.raises(IllegalStateError, match="released"):
        job.channel.resume_consumption()
    with pytest.raises(IllegalStateError, match="released"):
        job.channel.announce_buffer_size(100)


async def test_net_118_the_last_buffer_says_that_nothing_follows(job: Any) -> None:
    job.connect()
    job.emit("x")
    finish(job)
    job.pump()
    followed = []
    while (polled := job.channel.poll()) is not None:
        followed.append(polled.more_available)
        polled.buffer.recycle()
    assert followed == [True, True, False]
    job.gate.close()
    job.assert_all_returned()


async def test_net_128_129_what_is_queued_and_in_use_is_counted(job: Any) -> None:
    job.connect()
    assert job.channel.buffers_in_use == 0
    job.emit("x" * 150)
    job.pump()
    statistics = job.gate.statistics()[0]
    assert statistics.queued_buffers == job.channel.buffers_in_use == 3
    framed_bytes = 4 + len(job.codec.encode(ListRun(["x" * 150])))
    assert statistics.queued_bytes == framed_bytes
    assert job.read() == ["x" * 150]
    statistics = job.gate.statistics()[0]
    assert (statistics.queued_buffers, statistics.queued_bytes) == (0, 0)
    assert (statistics.buffers_total, statistics.records_total) == (3, 1)
    job.gate.close()


async def test_two_subpartitions_are_two_receivers(new_job: Any) -> None:
    job = new_job(2, (0, 1))
    first, second = (channel.receiver_id for channel in job.gate.channels)
    assert len(first) == len(second) == 16
    assert first != second
    job.gate.close()
    # What is on its way to the first reader of a subpartition is not for the second.
    again = new_job(2, (0, 1))
    assert (
        len({first, second, *(each.receiver_id for each in again.gate.channels)}) == 4
    )
    again.gate.close()


async def test_local_and_remote_channels_are_read_in_turn(
    new_job: Any, content_of: Any
) -> None:
    job = new_job(3, (0, 2)).connect()
    for number in range(4):
        for producer in range(3):
            job.emit(number, "x" * 60, producer=producer)
    job.pump()
    order = []
    while (polled := job.gate.poll_next()) is not None:
        if content_of(polled[1]):
            order.append(polled[0])
        job.pump()
    # On its own loop a producer's four runs are one buffer.
    assert sorted(order[:3]) == [0, 1, 2]
    elsewhere = [index for index in order if index != 1]
    assert elsewhere in ([0, 2] * 4, [2, 0] * 4)
    job.gate.close()


async def test_a_gate_takes_two_segments_a_channel_and_one_to_lend() -> None:
    memory = NetworkBufferPool(8)
    buffers = GateBuffers(memory, 3, owner="reader")
    assert memory.available_segments == 1
    with pytest.raises(InsufficientBuffersError):
        GateBuffers(memory, 1, owner="another")
    assert memory.available_segments == 1
    channel = buffers.claim(lambda: None)
    assert channel.available == 2
    buffers.close()
    channel.release()
    assert memory.available_segments == 8
    with pytest.raises(IllegalStateError):
        buffers.claim(lambda: None)
