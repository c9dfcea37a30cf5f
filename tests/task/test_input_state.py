"""What a task keeps of its inputs for a checkpoint whose barriers overtake."""

from __future__ import annotations

from typing import Any

import pytest

from aiomailbox.barriers.machine import ChannelInfo
from aiomailbox.errors import (
    CheckpointDeclinedError,
    IllegalStateError,
    InFlightRecordsError,
)
from aiomailbox.exchange.core.contract import decode_in_flight, encode_in_flight
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.events import Alignment, CheckpointBarrier
from aiomailbox.records.run import ListRun
from aiomailbox.records.serializers import LONG_SERIALIZER
from aiomailbox.task.in_flight import ChannelStates, InputState, TaskChannels

CODEC = ElementCodec(LONG_SERIALIZER)
ONE, TWO = ChannelInfo(0, 0), ChannelInfo(0, 1)


class Gate:
    """Two channels, and what has arrived in them before a barrier."""

    def __init__(self) -> None:
        self.unfinished_channels = [0, 1]
        self.is_closed = False
        self.queued: dict[int, Any] = {}

    def in_flight(self, channel: int, checkpoint_id: int) -> list[bytes]:
        found = self.queued.get(channel, [])
        if isinstance(found, Exception):
            raise found
        return [encode_in_flight(CODEC, [ListRun(found)])] if found else []


class Kept:
    """The state of a task's inputs, and what was collected of them."""

    def __init__(self) -> None:
        self.gate: Any = Gate()
        self.states = ChannelStates()
        channels = TaskChannels(CODEC, [["one", "two"]], [], [])
        self.inputs = InputState(channels, [self.gate], self.states)

    def start(self, checkpoint_id: int) -> None:
        self.inputs.start(CheckpointBarrier(checkpoint_id, 0, Alignment.UNALIGNED))

    def read(self, info: ChannelInfo, *numbers: Any) -> None:
        self.inputs.on_data(info, [ListRun(list(numbers))])

    async def collected(self, checkpoint_id: int) -> dict[str, list[int]]:
        found = await self.states.collected(checkpoint_id)
        return {
            name: [n for run in decode_in_flight(CODEC, data) for n in run.values]  # type: ignore[union-attr]
            for name, data in found.items()
        }


async def test_what_each_channel_brings_before_its_barrier_is_kept_in_order() -> None:
    kept = Kept()
    kept.inputs.attach(0, lambda: [(1, [ListRun([1])])])
    kept.start(1)
    kept.read(ONE, 10)
    kept.read(TWO, 2)
    kept.gate.queued[0] = [11, 12]
    kept.inputs.on_barrier(ONE, 1)
    kept.read(ONE, 99)
    kept.read(TWO, 3)
    # A channel that has its barrier twice has it once.
    kept.inputs.on_barrier(ONE, 1)
    kept.gate.queued[1] = [4]
    kept.inputs.stop(1)
    kept.read(TWO, 99)
    assert await kept.collected(1) == {"one": [10, 11, 12], "two": [1, 2, 3, 4]}


async def test_barriers_that_came_before_are_not_waited_for() -> None:
    kept = Kept()
    kept.inputs.on_barrier(ONE, 1)
    kept.inputs.on_barrier(ONE, 2)
    # One that was given up is late.
    kept.inputs.on_barrier(TWO, 1)
    kept.start(2)
    kept.read(ONE, 99)
    kept.read(TWO, 1)
    kept.inputs.stop(2)
    assert await kept.collected(2) == {"two": [1]}


async def test_a_channel_that_has_ended_or_a_gate_that_is_closed_is_not_asked() -> None:
    for end in ("channel", "gate"):
        kept = Kept()
        kept.start(1)
        kept.gate.queued = {0: [1], 1: IllegalStateError("it has ended")}
        if end == "gate":
            kept.gate.is_closed = True
        else:
            kept.gate.unfinished_channels = [0]
        kept.inputs.stop(1)
        assert await kept.collected(1) == ({} if end == "gate" else {"one": [1]})


async def test_a_newer_checkpoint_that_is_aborted_ends_the_one_before() -> None:
    kept = Kept()
    kept.start(1)
    kept.read(ONE, 1)
    kept.inputs.stop(2)
    kept.read(ONE, 2)
    with pytest.raises(CheckpointDeclinedError, match="a newer one was aborted"):
        await kept.collected(1)
    # There is nothing left to stop.
    kept.inputs.stop(2)
    assert await kept.collected(2) == {}


async def test_a_record_that_cannot_be_kept_fails_the_checkpoint_by_its_channel() -> (
    None
):
    kept = Kept()
    kept.start(1)
    kept.read(TWO, "no number")
    kept.read(ONE, 1)
    kept.inputs.stop(1)
    with pytest.raises(InFlightRecordsError, match="in flight on two cannot be kept"):
        await kept.collected(1)
    kept.start(2)
    kept.read(ONE, 1)
    kept.inputs.stop(2)
    assert await kept.collected(2) == {"one": [1]}


async def test_a_newer_barrier_behind_data_gives_the_checkpoint_up() -> None:
    kept = Kept()
    kept.start(1)
    kept.gate.queued[0] = IllegalStateError("barrier 2 is ahead of it")
    kept.inputs.on_barrier(ONE, 1)
    kept.inputs.stop(1)
    with pytest.raises(IllegalStateError, match="barrier 2"):
        await kept.collected(1)
