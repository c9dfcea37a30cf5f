from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from aiomailbox.errors import (
    IllegalStateError,
    PartitionNotFoundError,
    StopTask,
)
from aiomailbox.exchange.gate import (
    InputGate,
    LocalInputChannel,
    PartitionRegistry,
    retry_delays_ms,
)
from aiomailbox.ids import TaskId, VertexId
from aiomailbox.records.events import EndOfPartition
from aiomailbox.records.run import ListRun

Wire = Callable[..., Any]


def test_net_120_waits_double_up_to_the_maximum() -> None:
    assert list(retry_delays_ms(137, 1001)) == [137, 274, 548, 1001]
    assert list(retry_delays_ms(5, 5)) == [5]
    assert list(retry_delays_ms(0, 5)) == []


async def test_net_136_a_missing_partition_is_asked_for_again_then_given_up(
    wire: Wire,
) -> None:
    channel = LocalInputChannel(
        PartitionRegistry(),
        wire().partition_id,
        0,
        retry_initial_ms=500,
        retry_max_ms=3000,
    )
    gate = InputGate([channel])
    loop = asyncio.get_running_loop()
    start = loop.time()
    gate.request_partitions()
    await gate.available()
    assert loop.time() - start == pytest.approx(6.5)
    with pytest.raises(PartitionNotFoundError, match="not registered"):
        gate.poll_next()


async def test_a_partition_that_appears_in_time_is_read(wire: Wire, drain: Any) -> None:
    wiring = wire()
    registry = PartitionRegistry()
    gate = InputGate([LocalInputChannel(registry, wiring.partition_id, 0)])
    gate.request_partitions()
    wiring.partition.emit_run(ListRun([1]), 0)
    wiring.partition.finish()
    registry.register(wiring.partition)
    await gate.available()
    assert drain(gate) == [1, EndOfPartition()]


def test_net_137_without_waits_a_missing_partition_fails_at_once(wire: Wire) -> None:
    channel = LocalInputChannel(
        PartitionRegistry(), wire().partition_id, 0, retry_initial_ms=0
    )
    gate = InputGate([channel])
    gate.request_partitions()
    with pytest.raises(PartitionNotFoundError):
        gate.poll_next()


async def test_an_error_in_a_later_attempt_surfaces_at_a_poll(wire: Wire) -> None:
    wiring = wire()
    registry = PartitionRegistry()
    gate = InputGate([LocalInputChannel(registry, wiring.partition_id, 0)])
    gate.request_partitions()
    wiring.connect()
    registry.register(wiring.partition)
    await gate.available()
    with pytest.raises(IllegalStateError, match="view already"):
        gate.poll_next()


def test_net_138_a_producer_that_lets_go_early_stops_its_consumer(wire: Wire) -> None:
    wiring = wire().connect()
    wiring.partition.emit_run(ListRun([1]), 0)
    failure = ZeroDivisionError()
    wiring.partition.release(failure)
    assert wiring.gate.availability.available
    with pytest.raises(StopTask, match="before its end") as caught:
        wiring.gate.poll_next()
    assert caught.value.__cause__ is failure
    assert wiring.permits_out == 0


def test_a_released_channel_gives_nothing(wire: Wire) -> None:
    wiring = wire().connect()
    (channel,) = wiring.gate.channels
    wiring.partition.emit_run(ListRun([1]), 0)
    channel.release()
    channel.release()
    assert channel.poll() is None
    channel.resume_consumption()
    assert wiring.permits_out == 0


async def test_net_139_a_release_ends_the_waiting_for_a_partition(wire: Wire) -> None:
    wiring = wire()
    registry = PartitionRegistry()
    channel = LocalInputChannel(registry, wiring.partition_id, 0)
    gate = InputGate([channel])
    gate.request_partitions()
    timer = channel._retry
    gate.close()
    assert timer is not None
    assert timer.cancelled()
    registry.register(wiring.partition)
    await asyncio.sleep(1000)
    channel.request_subpartition()
    assert wiring.partition.subpartitions[0].attach(channel) is None


def test_net_141_what_is_queued_counts_the_end_too(wire: Wire) -> None:
    wiring = wire().connect()
    for value in range(3):
        wiring.partition.emit_run(ListRun(list(range(1024))), 0)
        assert wiring.gate.statistics()[0].queued_buffers == value + 1
    wiring.partition.finish()
    assert wiring.gate.statistics()[0].queued_buffers == 4


def test_net_142_data_from_before_the_view_is_found(wire: Wire, drain: Any) -> None:
    wiring = wire()
    wiring.partition.emit_run(ListRun([1]), 0)
    wiring.partition.flush_all()
    assert not wiring.gate.availability.available
    wiring.connect()
    assert drain(wiring.gate) == [1]


def test_an_acknowledgement_reaches_the_producer(wire: Wire) -> None:
    wiring = wire().connect()
    wiring.gate.acknowledge_all_data_processed(0)
    assert wiring.partition.all_data_processed.available


def test_the_registry_keeps_attempts_apart(wire: Wire) -> None:
    wiring = wire()
    registry, partition_id = wiring.registry, wiring.partition_id
    with pytest.raises(IllegalStateError, match="attempt"):
        registry.register(wiring.partition)
    later = partition_id._replace(producer=TaskId(VertexId(0), 0, 1))
    with pytest.raises(PartitionNotFoundError):
        registry.find(later)
    assert registry.find(partition_id) is wiring.partition


def test_a_released_partition_is_not_found_any_more(wire: Wire) -> None:
    wiring = wire()
    wiring.partition.release()
    assert wiring.partition_id not in wiring.registry
    views = wire(subpartitions=2).connect()
    views.partition.release()
    for gate in views.gates:
        gate.close()
    assert len(views.registry) == 0


def test_a_request_that_fails_otherwise_surfaces_at_a_poll(wire: Wire) -> None:
    wiring = wire().connect()
    gate = InputGate([LocalInputChannel(wiring.registry, wiring.partition_id, 0)])
    gate.request_partitions()
    with pytest.raises(IllegalStateError, match="view already"):
        gate.poll_next()


def test_releasing_by_the_registry_recycles_and_forgets(wire: Wire) -> None:
    wiring = wire().connect()
    wiring.partition.emit_run(ListRun([1]), 0)
    wiring.registry.release_all()
    wiring.registry.release(wiring.partition_id)
    assert len(wiring.registry) == 0
    assert wiring.memory.available_segments == 8
