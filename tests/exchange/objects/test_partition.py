from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from aiomailbox.errors import (
    IllegalStateError,
    InvalidArgumentError,
    OverdraftCeilingError,
)
from aiomailbox.exchange.core.contract import ObjectBuffer
from aiomailbox.records.events import (
    Alignment,
    CancelCheckpoint,
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    StopMode,
    Watermark,
)
from aiomailbox.records.run import RUN_LENGTH_MAX, ListRun

Wire = Callable[..., Any]


def numbers(count: int, start: int = 0) -> ListRun:
    return ListRun(list(range(start, start + count)))


def buffers(partition: Any, index: int = 0) -> list[ObjectBuffer]:
    taken = []
    while (polled := partition.subpartitions[index].poll()) is not None:
        taken.append(polled.buffer)
        if partition.subpartitions[index].is_blocked:
            partition.subpartitions[index].resume_consumption()
    return taken


def test_net_69_an_event_without_records_makes_no_data_buffers(wire: Wire) -> None:
    wiring = wire(subpartitions=4)
    wiring.partition.broadcast_event(CheckpointBarrier(1, 0))
    assert [each.queued_buffers for each in wiring.partition.subpartitions] == [1] * 4
    assert wiring.permits_out == 0


def test_net_70_an_event_comes_last_in_a_buffer_of_its_own(wire: Wire) -> None:
    wiring = wire(subpartitions=4, buffer_size_bytes=128)
    for channel, count in enumerate([1, 2, 1]):
        wiring.partition.emit_run(numbers(count), channel)
    wiring.partition.broadcast_event(CheckpointBarrier(1, 0))
    queued = [each.queued_buffers for each in wiring.partition.subpartitions]
    assert (queued, wiring.permits_out) == ([2, 3, 2, 1], 4)
    for channel in range(4):
        taken = buffers(wiring.partition, channel)
        assert [buffer.event is not None for buffer in taken[-2:]][-1]
        assert not any(buffer.event is not None for buffer in taken[:-1])


def test_short_runs_and_controls_share_the_unfinished_buffer_in_order(
    wire: Wire,
) -> None:
    partition = wire().partition
    assert partition.emit_run(ListRun(["a"]), 0)
    assert partition.emit_run(ListRun(["b"]), 0)
    assert partition.broadcast_control(Watermark(7))
    assert partition.emit_run(ListRun(["c"]), 0)
    partition.emit_run(ListRun([]), 0)
    (buffer,) = buffers(partition)
    first, watermark, last = buffer.elements
    assert (first.values, watermark, last.values) == (["a", "b"], Watermark(7), ["c"])


def test_a_full_run_moves_as_it_is_and_is_sealed_at_once(wire: Wire) -> None:
    partition = wire().partition
    run = numbers(RUN_LENGTH_MAX)
    assert not partition.emit_run(run, 0)
    assert partition.subpartitions[0].backlog == 1
    assert buffers(partition)[0].elements[0] is run


def test_short_runs_that_fill_a_buffer_seal_it(wire: Wire, listener: Any) -> None:
    partition = wire().partition
    partition.create_view(0, listener)
    assert partition.emit_run(numbers(RUN_LENGTH_MAX - 1), 0)
    assert (listener.data, partition.has_unflushed_data) == (0, True)
    assert not partition.emit_run(numbers(1), 0)
    assert (listener.data, partition.has_unflushed_data) == (1, False)


def test_a_run_that_does_not_fit_seals_the_unfinished_buffer(wire: Wire) -> None:
    partition = wire().partition
    partition.emit_run(numbers(10), 0)
    run = numbers(RUN_LENGTH_MAX, 10)
    partition.emit_run(run, 0)
    small, big = buffers(partition)
    assert (small.record_count, big.elements) == (10, [run])


def test_a_full_run_goes_with_the_controls_before_it(wire: Wire) -> None:
    wiring = wire()
    wiring.partition.broadcast_control(Watermark(7))
    run = numbers(RUN_LENGTH_MAX)
    assert not wiring.partition.emit_run(run, 0)
    assert wiring.permits_out == 1
    (buffer,) = buffers(wiring.partition)
    assert buffer.elements == [Watermark(7), run]


def test_a_control_goes_with_the_full_run_before_it_that_is_still_queued(
    wire: Wire, listener: Any
) -> None:
    wiring = wire()
    partition = wiring.partition
    partition.create_view(0, listener)
    run = numbers(RUN_LENGTH_MAX)
    partition.emit_run(run, 0)
    assert not partition.broadcast_control(Watermark(7))
    assert (wiring.permits_out, listener.data) == (1, 1)
    (buffer,) = buffers(partition)
    assert buffer.elements == [run, Watermark(7)]


def test_only_one_control_goes_behind_a_full_run(wire: Wire) -> None:
    partition = wire().partition
    run = numbers(RUN_LENGTH_MAX)
    partition.emit_run(run, 0)
    partition.broadcast_control(Watermark(7))
    assert partition.broadcast_control(Watermark(8))
    partition.emit_run(run, 0)
    partition.broadcast_control(Watermark(9))
    taken = [buffer.elements for buffer in buffers(partition)]
    assert taken == [[run, Watermark(7)], [Watermark(8), run, Watermark(9)]]


def test_no_control_goes_into_a_buffer_that_was_taken(wire: Wire) -> None:
    partition = wire().partition
    run = numbers(RUN_LENGTH_MAX)
    partition.emit_run(run, 0)
    (taken,) = buffers(partition)
    assert partition.broadcast_control(Watermark(7))
    assert taken.elements == [run]


def test_no_control_goes_before_an_event_that_came_first(wire: Wire) -> None:
    partition = wire().partition
    run = numbers(RUN_LENGTH_MAX)
    partition.emit_run(run, 0)
    partition.broadcast_event(CheckpointBarrier(1, 0))
    assert partition.broadcast_control(Watermark(7))
    partition.flush_all()
    data, barrier, control = buffers(partition)
    assert (data.elements, barrier.event is None) == ([run], False)
    assert control.elements == [Watermark(7)]


def test_long_runs_are_cut_by_count(wire: Wire) -> None:
    partition = wire(permits=8).partition
    partition.emit_run(numbers(2 * RUN_LENGTH_MAX + 5), 0)
    partition.flush_all()
    taken = buffers(partition)
    counts = [buffer.record_count for buffer in taken]
    assert counts == [RUN_LENGTH_MAX, RUN_LENGTH_MAX, 5]
    values = [value for each in taken for run in each.elements for value in run.values]
    assert values == list(range(2 * RUN_LENGTH_MAX + 5))


def test_runs_are_cut_by_size_but_a_huge_record_goes_alone(wire: Wire) -> None:
    partition = wire(buffer_size_bytes=2 * ListRun.RECORD_BYTES_ESTIMATE).partition
    partition.emit_run(numbers(5), 0)
    partition.flush_all()
    assert [buffer.record_count for buffer in buffers(partition)] == [2, 2, 1]
    partition = wire(buffer_size_bytes=1).partition
    partition.emit_run(numbers(2), 0)
    assert [buffer.record_count for buffer in buffers(partition)] == [1, 1]


def test_control_elements_alone_fill_a_buffer_too(wire: Wire) -> None:
    partition = wire(buffer_size_bytes=128).partition
    for timestamp_ms in range(4):
        partition.broadcast_control(Watermark(timestamp_ms))
    assert [len(buffer.elements) for buffer in buffers(partition)] == [2, 2]


def test_emitting_goes_on_in_a_new_buffer_after_the_consumer_took_the_unfinished_one(
    wire: Wire,
) -> None:
    partition = wire().partition
    partition.emit_run(ListRun([1]), 0)
    partition.flush_all()
    (first,) = buffers(partition)
    partition.emit_run(ListRun([2]), 0)
    partition.broadcast_control(Watermark(1))
    partition.flush(0)
    (second,) = buffers(partition)
    assert [run.values for run in first.elements] == [[1]]
    assert second.elements[0].values == [2]


def test_net_74_the_partition_is_available_exactly_as_its_pool(wire: Wire) -> None:
    wiring = wire()
    assert wiring.partition.availability is wiring.pool.availability


def test_what_one_record_emits_fits_up_to_the_ceiling_then_fails(wire: Wire) -> None:
    wiring = wire(permits=2, overdraft_ceiling=3)
    partition = wiring.partition
    partition.emit_run(numbers(5 * RUN_LENGTH_MAX), 0)
    assert (wiring.permits_out, partition.availability.available) == (5, False)
    with pytest.raises(OverdraftCeilingError, match="producer"):
        partition.emit_run(numbers(RUN_LENGTH_MAX), 0)
    taken = buffers(partition)
    for buffer in taken[:4]:
        buffer.recycle()
    assert partition.availability.available
    taken[4].recycle()
    assert wiring.permits_out == 0


def test_net_83_end_of_data_is_sent_once_and_acknowledged_by_every_consumer(
    wire: Wire,
) -> None:
    partition = wire(subpartitions=2).partition
    partition.notify_end_of_data(StopMode.DRAIN)
    partition.notify_end_of_data(StopMode.NO_DRAIN)
    assert [buffer.event for buffer in buffers(partition)] == [
        EndOfData(StopMode.DRAIN)
    ]
    partition.acknowledge_all_data_processed(1)
    partition.acknowledge_all_data_processed(1)
    assert not partition.all_data_processed.available
    partition.acknowledge_all_data_processed(0)
    assert partition.all_data_processed.available


def test_net_82_it_is_dropped_once_when_the_producer_and_all_views_let_go(
    wire: Wire, new_listener: Any
) -> None:
    wiring = wire(subpartitions=2)
    views = [wiring.partition.create_view(each, new_listener()) for each in range(2)]
    wiring.partition.finish()
    views[0].release()
    wiring.partition.close()
    wiring.partition.close()
    views[0].release()
    assert wiring.partition_id in wiring.registry
    views[1].release()
    assert wiring.partition_id not in wiring.registry
    with pytest.raises(IllegalStateError, match="more often"):
        wiring.partition.drop_user()


def test_what_goes_to_a_consumer_that_has_left_is_dropped(
    wire: Wire, drain: Any
) -> None:
    wiring = wire(permits=2, subpartitions=2).connect()
    wiring.gates[0].close()
    for _ in range(9):
        assert not wiring.partition.emit_run(ListRun([1]), 0)
        assert not wiring.partition.emit_control(Watermark(1), 0)
    queued = [one.queued_buffers for one in wiring.partition.statistics()]
    assert (wiring.permits_out, queued) == (0, [0, 0])
    wiring.partition.emit_run(ListRun([2]), 1)
    wiring.partition.finish()
    assert drain(wiring.gates[1]) == [2, EndOfPartition()]
    assert len(wiring.registry) == 0


def test_finishing_leaves_what_is_queued_to_the_consumers(wire: Wire) -> None:
    wiring = wire()
    wiring.partition.emit_run(ListRun([1]), 0)
    wiring.partition.finish()
    with pytest.raises(IllegalStateError, match="closed"):
        wiring.partition.emit_run(ListRun([2]), 0)
    data, end = buffers(wiring.partition)
    assert end.event == EndOfPartition()
    data.recycle()
    assert wiring.memory.available_segments == 8


def test_a_priority_event_seals_and_overtakes(wire: Wire) -> None:
    partition = wire().partition
    partition.emit_run(ListRun([1]), 0)
    event = CheckpointBarrier(1, 0, Alignment.UNALIGNED)
    partition.broadcast_event(event)
    barrier, data = buffers(partition)
    assert (barrier.event, data.record_count) == (event, 1)


async def test_writable_flushes_all_channels_that_hold_permits_and_wakes_each_waiter(
    wire: Wire, drain: Any
) -> None:
    wiring = wire(permits=2, subpartitions=2).connect()
    partition = wiring.partition
    partition.emit_run(ListRun([1]), 0)
    partition.emit_run(ListRun([2]), 1)
    waiting = asyncio.create_task(partition.writable())
    cancelled = asyncio.create_task(partition.writable())
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.sleep(0)
    assert not waiting.done()
    assert [drain(gate) for gate in wiring.gates] == [[1], [2]]
    await waiting
    await partition.writable()


def test_wrong_arguments_are_refused(wire: Wire, listener: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="buffer_size_bytes"):
        wire(buffer_size_bytes=0)
    with pytest.raises(InvalidArgumentError, match="subpartition_count"):
        wire(subpartitions=0)
    with pytest.raises(InvalidArgumentError, match="subpartition_index"):
        wire().partition.create_view(1, listener)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("emit"), st.integers(0, 1), st.integers(0, 40)),
        st.tuples(st.just("watermark"), st.just(0), st.just(0)),
        st.tuples(st.just("event"), st.just(0), st.just(0)),
        st.tuples(st.just("flush"), st.integers(0, 1), st.just(0)),
        st.tuples(st.just("poll"), st.integers(0, 1), st.integers(1, 3)),
    ),
    max_size=60,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(OPERATIONS, st.sampled_from(["drain", "release", "close and release"]))
def test_nothing_is_lost_reordered_or_leaked(
    wire: Wire, operations: list[tuple[str, int, int]], ending: str
) -> None:
    """Any interleaving: each channel gets what was sent, in order; permits add up."""
    wiring = wire(permits=4, subpartitions=2, buffer_size_bytes=1024)
    partition = wiring.partition
    sent: list[list[Any]] = [[], []]
    got: list[list[Any]] = [[], []]

    def poll(channel: int) -> bool:
        polled = partition.subpartitions[channel].poll()
        if polled is None:
            return False
        with polled.buffer as buffer:
            if buffer.event is not None:
                got[channel].append(buffer.event)
            for element in buffer.elements:
                is_run = isinstance(element, ListRun)
                got[channel].extend(element.values if is_run else [element])
        return True

    for serial, (kind, channel, count) in enumerate(operations):
        if kind == "emit":
            run = numbers(count, serial * 1000)
            partition.emit_run(run, channel)
            sent[channel] += run.values
        elif kind in {"watermark", "event"}:
            element = Watermark(serial) if kind == "watermark" else None
            if element is not None:
                partition.broadcast_control(element)
            else:
                partition.broadcast_event(CancelCheckpoint(serial))
            for each in sent:
                each.append(element or CancelCheckpoint(serial))
        elif kind == "flush":
            partition.flush(channel)
        else:
            for _ in range(count):
                poll(channel)
        held = sum(
            buffer.event is None
            for each in partition.subpartitions
            for buffer in each._buffers
        )
        assert wiring.permits_out == held
    if ending == "drain":
        partition.finish()
        for channel in range(2):
            while poll(channel):
                pass
            assert got[channel] == [*sent[channel], EndOfPartition()]
        partition.close()
    elif ending == "release":
        partition.release()
    else:
        partition.close()
        partition.release()
    assert wiring.memory.available_segments == 4
    wiring.memory.check_leaks()
