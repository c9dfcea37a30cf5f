from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.exchange.writer import (
    BroadcastPartitioner,
    CustomPartitioner,
    ForwardPartitioner,
    RebalancePartitioner,
    RecordWriter,
)
from aiomailbox.records.events import (
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    LatencyMarker,
    StopMode,
    Watermark,
    WatermarkStatus,
)
from aiomailbox.records.run import ListRun

Wire = Callable[..., Any]


def by_value(wiring: Any, **options: Any) -> RecordWriter:
    partitioner = CustomPartitioner(lambda key, count: key % count, int)
    return RecordWriter(wiring.partition, partitioner, **options)


def test_records_go_where_the_partitioner_says(wire: Wire, drain: Any) -> None:
    wiring = wire(subpartitions=2).connect()
    writer = by_value(wiring, flush_interval_ms=None)
    writer.emit_run(ListRun([0, 1, 2, 3]))
    writer.emit_run(ListRun([]))
    writer.flush_all()
    assert [drain(gate) for gate in wiring.gates] == [[0, 2], [1, 3]]


def test_a_broadcast_run_is_shared_by_all_channels(wire: Wire) -> None:
    wiring = wire(subpartitions=3).connect()
    writer = RecordWriter(wiring.partition, BroadcastPartitioner(), flush_interval_ms=0)
    run = ListRun([1, 2])
    writer.emit_run(run)
    taken = [gate.poll_next()[1] for gate in wiring.gates]
    assert all(buffer.elements == [run] for buffer in taken)
    assert wiring.permits_out == 3


def test_net_76_interval_zero_flushes_only_the_target_of_each_emit(wire: Wire) -> None:
    wiring = wire(subpartitions=2).connect()
    writer = by_value(wiring, flush_interval_ms=0)
    wiring.partition.emit_run(ListRun([9]), 0)
    writer.emit_run(ListRun([1]))
    assert [gate.availability.available for gate in wiring.gates] == [False, True]


@pytest.mark.parametrize("never", [None, -1])
async def test_net_76_without_an_interval_nothing_is_flushed_by_time(
    wire: Wire, never: int | None
) -> None:
    wiring = wire().connect()
    writer = RecordWriter(
        wiring.partition, ForwardPartitioner(), flush_interval_ms=never
    )
    writer.emit_run(ListRun([1]))
    await asyncio.sleep(3600)
    assert not wiring.gate.availability.available
    writer.flush_all()
    assert wiring.gate.availability.available


async def test_net_76_the_timer_runs_only_while_something_waits_for_it(
    wire: Wire, drain: Any
) -> None:
    wiring = wire().connect()
    writer = RecordWriter(wiring.partition, ForwardPartitioner())
    loop = asyncio.get_running_loop()
    for start in (loop.time(), loop.time() + 50):
        await asyncio.sleep(start - loop.time())
        assert writer._timer is None
        writer.emit_run(ListRun([1]))
        writer.emit_control(Watermark(1))
        await wiring.gate.available()
        assert loop.time() - start == pytest.approx(0.1)
        assert drain(wiring.gate) == [1, Watermark(1)]
        assert writer._timer is None


async def test_a_sealed_buffer_needs_no_timer(wire: Wire) -> None:
    wiring = wire().connect()
    writer = RecordWriter(wiring.partition, ForwardPartitioner())
    writer.emit_run(ListRun(list(range(1024))))
    assert writer._timer is None
    assert wiring.gate.availability.available


async def test_closing_disarms_the_timer(wire: Wire) -> None:
    wiring = wire().connect()
    writer = RecordWriter(wiring.partition, ForwardPartitioner())
    writer.emit_run(ListRun([1]))
    writer.close()
    writer.close()
    await asyncio.sleep(1)
    assert not wiring.gate.availability.available


async def test_net_77_a_failed_flush_surfaces_at_once(wire: Wire) -> None:
    wiring = wire()
    error = ZeroDivisionError()

    class Failing:
        def on_data_available(self) -> None:
            raise error

        def on_priority_event(self, sequence_number: int) -> None:
            raise error

    wiring.partition.create_view(0, Failing())
    writer = RecordWriter(wiring.partition, ForwardPartitioner())
    writer.emit_run(ListRun([1]))
    await asyncio.sleep(0.1)
    for call in (
        lambda: writer.emit_run(ListRun([2])),
        lambda: writer.emit_control(Watermark(1)),
        lambda: writer.emit_latency_marker(LatencyMarker(0, "source", 0)),
        lambda: writer.broadcast_event(CheckpointBarrier(1, 0)),
        writer.flush_all,
    ):
        with pytest.raises(ZeroDivisionError) as caught:
            call()
        assert caught.value is error


def test_watermarks_and_status_go_everywhere_in_order_with_records(
    wire: Wire, drain: Any
) -> None:
    wiring = wire(subpartitions=2).connect()
    writer = by_value(wiring, flush_interval_ms=None)
    writer.emit_run(ListRun([0, 1]))
    writer.emit_control(Watermark(5))
    writer.emit_control(WatermarkStatus.IDLE)
    writer.emit_run(ListRun([2]))
    writer.flush_all()
    assert [drain(gate) for gate in wiring.gates] == [
        [0, Watermark(5), WatermarkStatus.IDLE, 2],
        [1, Watermark(5), WatermarkStatus.IDLE],
    ]


def test_net_81_a_latency_marker_goes_to_one_channel_each_in_its_turn(
    wire: Wire, drain: Any
) -> None:
    wiring = wire(subpartitions=3).connect()
    writer = RecordWriter(
        wiring.partition,
        RebalancePartitioner(),
        flush_interval_ms=0,
        random=Random(1),
    )
    hit = set()
    for number in range(30):
        marker = LatencyMarker(number, "source", 0)
        writer.emit_latency_marker(marker)
        taken = [drain(gate) for gate in wiring.gates]
        assert sorted(taken) == [[], [], [marker]]
        hit.add(taken.index([marker]))
    assert hit == {0, 1, 2}


def test_events_and_ends_reach_every_channel(wire: Wire, drain: Any) -> None:
    wiring = wire(subpartitions=2).connect()
    writer = by_value(wiring, flush_interval_ms=None)
    writer.emit_run(ListRun([0]))
    writer.notify_end_of_data(StopMode.DRAIN)
    writer.finish()
    end = [EndOfData(StopMode.DRAIN), EndOfPartition()]
    assert [drain(gate) for gate in wiring.gates] == [[0, *end], end]


def test_each_writer_has_a_partitioner_of_its_own(wire: Wire) -> None:
    description = RebalancePartitioner()
    writer = RecordWriter(wire().partition, description, random=Random(0))
    assert writer.partitioner is not description


def test_a_negative_interval_is_refused(wire: Wire) -> None:
    with pytest.raises(InvalidArgumentError, match="flush_interval_ms"):
        RecordWriter(wire().partition, ForwardPartitioner(), flush_interval_ms=-2)
