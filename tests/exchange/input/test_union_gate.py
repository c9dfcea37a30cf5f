from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from aiomailbox.errors import GateClosedError, InvalidArgumentError
from aiomailbox.exchange import InputGate, LocalInputChannel, UnionInputGate
from aiomailbox.records import (
    Alignment,
    CheckpointBarrier,
    EndOfPartition,
    ListRun,
    StopMode,
)

Wire = Callable[..., Any]


@pytest.fixture
def union(wire: Wire) -> tuple[UnionInputGate, Any, Any]:
    """Two gates: one of two channels, one of one; the producers of both."""
    first, second = wire(subpartitions=2), wire()
    left = InputGate(
        [
            LocalInputChannel(first.registry, first.partition_id, index)
            for index in range(2)
        ]
    )
    gate = UnionInputGate([left, second.gate])
    gate.request_partitions()
    return gate, first, second


def send(wiring: Any, channel: int, value: int) -> None:
    wiring.partition.emit_run(ListRun([value]), channel)
    wiring.partition.broadcast_event(CheckpointBarrier(value, 0))


def order(gate: UnionInputGate) -> list[int]:
    taken = []
    while (item := gate.poll_next()) is not None:
        taken.append(item[0])
        if item[1].blocks_upstream:
            gate.resume_consumption(item[0])
        item[1].recycle()
    return taken


def test_net_135_channels_are_numbered_through(union: Any) -> None:
    gate, first, second = union
    assert gate.channel_count == 3
    second.partition.emit_run(ListRun([1]), 0)
    second.partition.flush_all()
    assert order(gate) == [2]
    first.partition.emit_run(ListRun([1]), 1)
    first.partition.flush_all()
    assert order(gate) == [1]
    with pytest.raises(InvalidArgumentError, match="3 channels"):
        gate.resume_consumption(3)


def test_a_finished_gate_leaves_and_the_last_one_ends_the_union(
    union: Any, drain: Any
) -> None:
    gate, first, second = union
    first.partition.notify_end_of_data(StopMode.DRAIN)
    first.partition.finish()
    order(gate)
    assert (gate.is_finished, gate.end_of_data) == (False, None)
    assert not gate.availability.available
    second.partition.notify_end_of_data(StopMode.NO_DRAIN)
    second.partition.finish()
    assert EndOfPartition() in drain(gate)
    assert (gate.is_finished, gate.end_of_data) == (True, StopMode.NO_DRAIN)
    assert gate.availability.available
    assert gate.poll_next() is None


def test_gates_take_turns(union: Any) -> None:
    gate, first, second = union
    for value in range(4):
        send(first, 0, value)
        send(second, 0, value)
    taken = order(gate)
    assert len(taken) == 4 * 3 + 4 * 2
    assert all(2 in taken[start : start + 3] for start in range(0, 12, 3))


def test_a_priority_event_comes_first_whatever_gate_it_is_in(union: Any) -> None:
    gate, first, second = union
    first.partition.emit_run(ListRun([1]), 0)
    first.partition.flush_all()
    second.partition.emit_run(ListRun([2]), 0)
    second.partition.flush_all()
    second.partition.broadcast_event(CheckpointBarrier(1, 0, Alignment.UNALIGNED))
    assert gate.priority_availability.available
    index, buffer = gate.poll_next()
    assert (index, buffer.is_priority) == (2, True)
    assert not gate.priority_availability.available
    assert sorted(order(gate)) == [0, 2]


async def test_waiting_and_iterating_work_as_on_one_gate(union: Any) -> None:
    gate, first, second = union

    async def produce() -> None:
        for value in range(6):
            await asyncio.sleep(1)
            wiring = first if value % 2 else second
            wiring.partition.emit_run(ListRun([value]), 0)
            wiring.partition.flush_all()
        first.partition.finish()
        second.partition.finish()

    producing = asyncio.create_task(produce())
    records = []
    async for _, buffer in gate:
        with buffer:
            records += [value for run in buffer.elements for value in run.values]
    await producing
    assert records == list(range(6))


async def test_closing_wakes_waiters(union: Any) -> None:
    gate, first, _ = union
    waiter = gate.available()
    first.partition.emit_run(ListRun([1]), 0)
    gate.close()
    await waiter
    with pytest.raises(GateClosedError):
        gate.poll_next()
    assert first.permits_out == 0


def test_waiting_leaves_one_callback_per_gate(union: Any) -> None:
    gate, first, _ = union
    for value in range(20):
        first.partition.emit_run(ListRun([value]), 0)
        first.partition.flush_all()
        order(gate)
    assert all(len(each.availability._callbacks) <= 1 for each in gate.gates)
    assert all(len(each.priority_availability._callbacks) <= 1 for each in gate.gates)


def test_an_error_of_one_gate_surfaces(union: Any) -> None:
    gate, first, _ = union
    gate.gates[0].channels[1].set_error(ZeroDivisionError())
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            gate.poll_next()
    assert first is not None


def test_a_union_of_unions_or_of_one_is_refused(union: Any, wire: Wire) -> None:
    with pytest.raises(InvalidArgumentError, match="union"):
        UnionInputGate([union[0], wire().gate])
    with pytest.raises(InvalidArgumentError, match="no union"):
        UnionInputGate([wire().gate])
