from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from aiomailbox.errors import (
    CorruptStreamError,
    GateClosedError,
    IllegalStateError,
    InvalidArgumentError,
)
from aiomailbox.exchange.core.contract import ObjectBuffer, PolledBuffer
from aiomailbox.exchange.gate import InputChannel, InputGate
from aiomailbox.records.events import (
    Alignment,
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    RuntimeEvent,
    StopMode,
)
from aiomailbox.records.run import ListRun

Wire = Callable[..., Any]


def overtakes(buffer: ObjectBuffer) -> bool:
    return buffer.event is not None and buffer.event.is_priority


class ScriptedChannel(InputChannel):
    """A channel that holds buffers given by the test."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: list[ObjectBuffer] = []
        self.sequence_number = 0

    def poll(self) -> PolledBuffer | None:
        if self.error is not None:
            raise self.error
        if not self.queue:
            return None
        buffer = self.queue.pop(0)
        number, self.sequence_number = self.sequence_number, self.sequence_number + 1
        next_is_priority = bool(self.queue) and overtakes(self.queue[0])
        return PolledBuffer(buffer, bool(self.queue), next_is_priority, number)

    def give(self, *buffers: ObjectBuffer) -> None:
        for buffer in buffers:
            if overtakes(buffer):
                self.queue.insert(0, buffer)
                self._gate.on_channel_priority(self, self.sequence_number)
            else:
                self.queue.append(buffer)
                self._gate.on_channel_data(self)


def event(what: RuntimeEvent) -> ObjectBuffer:
    return ObjectBuffer.for_event(what)


BARRIER = CheckpointBarrier(1, 0, Alignment.UNALIGNED)
END = EndOfPartition()
DRAIN = EndOfData(StopMode.DRAIN)
NO_DRAIN = EndOfData(StopMode.NO_DRAIN)
Scripted = tuple[InputGate, list[ScriptedChannel]]


def scripted(count: int) -> Scripted:
    channels = [ScriptedChannel() for _ in range(count)]
    return InputGate(channels), channels


def order(gate: InputGate) -> list[int]:
    taken = []
    while (item := gate.poll_next()) is not None:
        taken.append(item[0])
        item[1].recycle()
    return taken


def test_net_114_channels_take_turns_to_their_ends(
    data: Callable[..., ObjectBuffer],
) -> None:
    gate, (first, second) = scripted(2)
    first.give(data(1), data(1), event(DRAIN), event(END))
    second.give(data(1), event(DRAIN), event(END))
    taken = []
    ends = []
    while (item := gate.poll_next()) is not None:
        taken.append(item[0])
        ends.append(gate.end_of_data)
        item[1].recycle()
    assert taken == [0, 1, 0, 1, 0, 1, 0]
    assert ends == [None] * 4 + [StopMode.DRAIN] * 3
    assert gate.is_finished
    assert gate.availability.available


@pytest.mark.parametrize(
    ("other", "mode"), [(DRAIN, StopMode.DRAIN), (NO_DRAIN, StopMode.NO_DRAIN)]
)
def test_net_115_data_is_drained_only_if_every_channel_says_so(
    other: EndOfData, mode: StopMode
) -> None:
    gate, (first, second) = scripted(2)
    first.give(event(DRAIN))
    second.give(event(other))
    order(gate)
    assert gate.end_of_data is mode


def test_a_second_end_of_data_is_refused() -> None:
    gate, (channel,) = scripted(1)
    channel.give(event(DRAIN), event(DRAIN))
    gate.poll_next()
    with pytest.raises(CorruptStreamError, match="twice"):
        gate.poll_next()


def test_net_116_a_notice_after_the_end_of_a_channel_is_ignored(
    data: Callable[..., ObjectBuffer],
) -> None:
    gate, (first, second) = scripted(2)
    first.give(event(END))
    order(gate)
    first.give(data(1), event(BARRIER))
    assert gate.poll_next() is None
    assert not gate.availability.available
    assert second.is_released is False
    assert first.is_released


async def test_net_117_a_finished_gate_is_available_for_ever_and_gives_nothing() -> (
    None
):
    gate, (channel,) = scripted(1)
    channel.give(event(END))
    order(gate)
    for _ in range(3):
        await gate.available()
        assert gate.poll_next() is None
    gate.close()
    assert gate.poll_next() is None


def test_net_119_the_unfinished_channels_shrink() -> None:
    gate, channels = scripted(3)
    shrinking = [gate.unfinished_channels]
    for channel in channels:
        channel.give(event(END))
        order(gate)
        shrinking.append(gate.unfinished_channels)
    assert shrinking == [[0, 1, 2], [1, 2], [2], []]


def test_net_127_an_error_of_a_channel_is_raised_as_it_is_every_time() -> None:
    gate, (first, _) = scripted(2)
    error = ZeroDivisionError("x")
    first.set_error(error)
    first.set_error(ValueError("later"))
    for _ in range(2):
        with pytest.raises(ZeroDivisionError) as caught:
            gate.poll_next()
        assert caught.value is error
        assert gate.availability.available


def test_net_131_a_stale_priority_notice_is_ignored() -> None:
    gate, (channel,) = scripted(1)
    channel.give(event(BARRIER))
    assert order(gate) == [0]
    gate.on_channel_priority(channel, 0)
    assert not gate.priority_availability.available
    channel.sequence_number = 2**32 - 1
    channel.give(event(BARRIER))
    gate.poll_next()
    gate._priority_polled[0] = 2**32 - 1
    gate.on_channel_priority(channel, 0)
    assert gate.priority_availability.available


def test_net_132_priority_moves_a_queued_channel_to_the_front_once(
    data: Callable[..., ObjectBuffer],
) -> None:
    gate, (first, second) = scripted(2)
    first.give(data(1), data(1))
    second.give(data(1))
    second.give(event(BARRIER))
    gate.on_channel_priority(second, 0)
    assert gate.priority_availability.available
    assert order(gate) == [1, 0, 1, 0]
    assert not gate.priority_availability.available


def test_net_134_a_quiet_channel_is_read_within_one_round(
    data: Callable[..., ObjectBuffer],
) -> None:
    gate, (noisy, quiet) = scripted(2)
    noisy.give(*(data(1) for _ in range(10)))
    for _ in range(3):
        gate.poll_next()
    quiet.give(data(1))
    assert 1 in order(gate)[:2]


async def test_net_125_closing_wakes_every_waiter_and_polling_is_refused(
    wire: Wire,
) -> None:
    wiring = wire().connect()
    waiter = wiring.gate.available()

    async def iterate() -> None:
        async for _ in wiring.gate:
            pass

    iterating = asyncio.create_task(iterate())
    await asyncio.sleep(0)
    wiring.gate.close()
    wiring.gate.close()
    await waiter
    with pytest.raises(GateClosedError):
        await iterating
    with pytest.raises(GateClosedError):
        wiring.gate.poll_next()


async def test_cancelling_one_waiter_harms_no_other(wire: Wire) -> None:
    wiring = wire().connect()
    first, second = wiring.gate.available(), wiring.gate.available()
    assert first is not second
    first.cancel()
    wiring.partition.emit_run(ListRun([1]), 0)
    wiring.partition.flush_all()
    await second
    assert wiring.gate.poll_next()[1].record_count == 1


async def test_iterating_ends_with_the_last_channel(wire: Wire) -> None:
    wiring = wire().connect()

    async def produce() -> None:
        for number in range(3):
            await asyncio.sleep(1)
            wiring.partition.emit_run(ListRun([number]), 0)
            wiring.partition.flush_all()
        wiring.partition.finish()

    producing = asyncio.create_task(produce())
    records = []
    async for channel, buffer in wiring.gate:
        assert channel == 0
        with buffer:
            records += [run.values for run in buffer.elements]
    await producing
    assert records == [[0], [1], [2]]
    assert wiring.permits_out == 0


def test_net_140_resuming_tells_the_gate_only_if_something_waits(
    wire: Wire, drain: Any
) -> None:
    wiring = wire().connect()
    partition, gate = wiring.partition, wiring.gate
    for what in ("nothing", "data"):
        partition.broadcast_event(CheckpointBarrier(1, 0))
        assert drain(gate) == [CheckpointBarrier(1, 0)]
        if what == "data":
            partition.emit_run(ListRun([1]), 0)
            partition.flush_all()
        assert not gate.availability.available
        gate.resume_consumption(0)
        assert gate.availability.available is (what == "data")
    assert drain(gate) == [1]
    with pytest.raises(IllegalStateError):
        gate.resume_consumption(0)


def test_a_priority_event_from_before_the_view_or_behind_a_block_can_be_taken(
    wire: Wire, drain: Any
) -> None:
    wiring = wire()
    partition, gate = wiring.partition, wiring.gate
    partition.broadcast_event(BARRIER)
    wiring.connect()
    assert gate.priority_availability.available
    partition.broadcast_event(CheckpointBarrier(2, 0))
    assert drain(gate) == [BARRIER, CheckpointBarrier(2, 0)]
    partition.emit_run(ListRun([1]), 0)
    partition.broadcast_event(BARRIER)
    assert gate.priority_availability.available
    assert drain(gate) == [BARRIER]
    assert not gate.availability.available
    gate.resume_consumption(0)
    assert drain(gate) == [1]


def test_statistics_say_what_is_queued_and_what_was_taken(
    wire: Wire, drain: Any
) -> None:
    wiring = wire().connect()
    wiring.partition.emit_run(ListRun([1, 2]), 0)
    wiring.partition.flush_all()
    (waiting,) = wiring.gate.statistics()
    drain(wiring.gate)
    (taken,) = wiring.gate.statistics()
    assert waiting == (1, 2, 2 * ListRun.RECORD_BYTES_ESTIMATE, 0, 0, 0)
    assert taken == (0, 0, 0, 1, 2, 2 * ListRun.RECORD_BYTES_ESTIMATE)


def test_a_gate_needs_a_channel() -> None:
    with pytest.raises(InvalidArgumentError, match="channel"):
        InputGate([])
