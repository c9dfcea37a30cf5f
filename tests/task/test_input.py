"""A task and its input: what is left of a buffer, event time, the status machine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiomailbox.errors import CorruptStreamError
from aiomailbox.operators.sources.source import InputStatus
from aiomailbox.records.events import (
    MAX_TIMESTAMP,
    Alignment,
    CancelCheckpoint,
    CheckpointBarrier,
    EndOfData,
    EndOfOutputChannelState,
    EndOfPartition,
    RuntimeEvent,
    StopMode,
    Watermark,
    WatermarkStatus,
)
from aiomailbox.records.run import ListRun
from aiomailbox.task.stream_task import TaskState


async def slowly(self: Any, run: Any) -> None:
    await asyncio.sleep(1)
    pending = self.output.emit_run(run)
    if pending is not None:
        await pending


def fill(producer: Any, *elements: Any) -> None:
    """Put runs and watermarks into one buffer, and flush it."""
    writer = producer.partition
    for element in elements:
        if isinstance(element, int):
            writer.emit_control(Watermark(element), 0)
        else:
            writer.emit_run(ListRun(list(element)), 0)
    writer.flush_all()


async def test_the_rest_of_a_buffer_is_not_forgotten_behind_an_await(
    bench: Any,
) -> None:
    (producer,) = bench.input()
    bench.logged("a", run=slowly)
    consumer = bench.output()
    bench.start()
    fill(producer, "a", 5, "b", 7, "c")
    await asyncio.sleep(60)
    assert consumer.read() == ["a", Watermark(5), "b", Watermark(7), "c"]


async def test_the_rest_of_a_buffer_is_not_forgotten_among_several_inputs(
    bench: Any,
) -> None:
    (first,) = bench.input()
    (second,) = bench.input()
    bench.two_inputs()
    bench.output()
    bench.start()
    # The first slices are shorter than this run.
    fill(first, "abcdefg")
    await asyncio.sleep(60)
    assert bench.log == [f"1:{value}" for value in "abcdefg"]
    fill(second, "xyz")
    await asyncio.sleep(60)
    assert bench.log[7:] == ["2:x", "2:y", "2:z"]


@pytest.mark.parametrize("inputs", [1, 2])
async def test_whatever_is_read_is_a_step_of_the_task(bench: Any, inputs: int) -> None:
    """And nothing else is: where it has read nothing, it has not changed."""
    producers = [bench.input()[0] for _ in range(inputs)]
    if inputs == 1:
        bench.logged("a")
    else:
        bench.two_inputs()
    bench.output()
    bench.start()
    await bench.settle()
    steps = [bench.task._steps()]
    for producer in producers:
        ended = producer.partition.notify_end_of_data
        for read, what in (
            (producer.send, "a"),
            (producer.watermark, 5),
            (ended, StopMode.DRAIN),
        ):
            read(what)
            await bench.settle()
            steps.append(bench.task._steps())
            await asyncio.sleep(60)
            assert bench.task._steps() == steps[-1]
    assert len(set(steps)) == 1 + 3 * inputs


async def test_records_arrive_in_order_whatever_the_slices(bench: Any) -> None:
    (producer,) = bench.input()
    bench.logged("a")
    consumer = bench.output(permits=64)
    bench.start()
    expected = []
    for length in (1, 5, 300, 1024, 2, 700):
        values = list(range(len(expected), len(expected) + length))
        producer.send(*values)
        expected += values
    producer.end()
    assert await bench.end() is None
    assert consumer.read()[:-2] == expected
    assert bench.metrics.child("a").counter("num_records_in").value == len(expected)


async def test_event_time_is_the_minimum_of_the_channels(bench: Any) -> None:
    first, second = bench.input(channels=2)
    bench.logged("a")
    consumer = bench.output()
    bench.start()
    first.watermark(10)
    await bench.settle()
    assert consumer.read() == []
    second.watermark(3)
    await bench.settle()
    second.watermark(20)
    await bench.settle()
    assert consumer.read() == [Watermark(3), Watermark(10)]
    first.writer.emit_control(WatermarkStatus.IDLE)
    await bench.settle()
    assert consumer.read() == [Watermark(20)]


async def test_data_ends_when_every_channel_ended_its_own(bench: Any) -> None:
    first, second = bench.input(channels=2)
    bench.logged("a")
    consumer = bench.output()
    bench.start()
    first.watermark(MAX_TIMESTAMP)
    first.end()
    await bench.settle()
    assert consumer.read() == []
    second.send(1)
    second.watermark(MAX_TIMESTAMP)
    second.end()
    assert await bench.end() is None
    end = [Watermark(MAX_TIMESTAMP), EndOfData(), EndOfPartition()]
    assert consumer.read() == [1, *end]


async def test_one_channel_that_was_stopped_stops_the_task(bench: Any) -> None:
    first, second = bench.input(channels=2)
    bench.logged("a")
    consumer = bench.output()
    bench.start()
    first.end(StopMode.NO_DRAIN)
    second.end(StopMode.DRAIN)
    assert await bench.end() is None
    assert "a.finish" not in bench.log
    assert consumer.read() == [EndOfData(StopMode.NO_DRAIN), EndOfPartition()]


@pytest.mark.parametrize("last", [0, 1])
async def test_one_input_that_was_stopped_stops_the_task_whichever_is_last(
    bench: Any, last: int
) -> None:
    """D9."""
    producers = [bench.input()[0], bench.input()[0]]
    bench.two_inputs()
    consumer = bench.output()
    bench.start()
    producers[1 - last].end(StopMode.DRAIN if last else StopMode.NO_DRAIN)
    await bench.settle()
    producers[last].end(StopMode.NO_DRAIN if last else StopMode.DRAIN)
    assert await bench.end() is None
    assert "finish" not in bench.log
    assert consumer.read() == [EndOfData(StopMode.NO_DRAIN), EndOfPartition()]


@pytest.mark.parametrize(
    "event",
    [
        CheckpointBarrier(3, 0),
        CheckpointBarrier(4, 0, Alignment.UNALIGNED),
        CancelCheckpoint(5),
        EndOfOutputChannelState(),
    ],
)
async def test_an_event_that_nobody_handles_fails_the_task(
    bench: Any, event: RuntimeEvent
) -> None:
    """Recycled in silence a barrier would leave its channel blocked for ever."""
    _, second = bench.input(channels=2)
    bench.logged("a")
    bench.start()
    second.send(1)
    second.writer.broadcast_event(event)
    error = await bench.end()
    assert isinstance(error, CorruptStreamError)
    assert "channel 1 of <InputGate" in str(error)
    assert repr(event) in str(error)


async def test_two_inputs_end_one_by_one_and_then_finish(bench: Any) -> None:
    (first,) = bench.input()
    (second,) = bench.input()
    bench.two_inputs()
    bench.output()
    bench.start()
    first.send("a")
    first.end()
    await bench.settle()
    second.send("b")
    second.end()
    assert await bench.end() is None
    assert bench.log == ["1:a", "end 1", "2:b", "end 2", "finish"]


async def test_two_inputs_are_read_in_turn(bench: Any) -> None:
    (first,) = bench.input(permits=64)
    (second,) = bench.input(permits=64)
    bench.two_inputs()
    bench.output(permits=64)
    for number in range(6):
        first.send(number)
        second.send(number)
    bench.start()
    await bench.settle()
    heads = "".join(entry[0] for entry in bench.log)
    assert sorted(heads) == sorted("12" * 6)
    assert heads.index("2") < heads.rindex("1")
    assert heads.index("1") < heads.rindex("2")


async def test_a_quiet_input_collects_no_callbacks(bench: Any) -> None:
    (busy,) = bench.input()
    (quiet,) = bench.input()
    bench.two_inputs()
    bench.start()
    for number in range(1000):
        busy.send(number)
        await bench.settle(3)
    assert len(bench.log) == 1000
    assert len(bench.gates[1].availability._callbacks) <= 1
    assert len(bench.gates[0].availability._callbacks) <= 1
    quiet.send("x")
    await bench.settle()
    assert bench.log[-1] == "2:x"


async def test_a_producer_that_lets_go_before_its_end_stops_the_task(
    bench: Any,
) -> None:
    (producer,) = bench.input()
    bench.logged("a")
    bench.output()
    task = bench.start()
    await bench.settle()
    producer.partition.release(ValueError("producer"))
    assert await bench.end() is None
    assert task.lifecycle.state is TaskState.CANCELED


class ScriptedProcessor:
    """An input processor that returns what the test says."""

    def __init__(self, real: Any) -> None:
        self.statuses: list[Any] = []
        self.availability = real.availability
        self.pending = None
        self.real = real

    def emit_next(self) -> InputStatus:
        return self.statuses.pop(0)

    async def end_of_event_time(self) -> None:
        pass

    async def close(self) -> None:
        pass


class Controller:
    def __init__(self) -> None:
        self.suspended = 0

    def suspend_default_action(self, timer: Any = None) -> Any:
        self.suspended += 1
        return self

    def resume(self) -> None:
        self.suspended -= 1


async def act(bench: Any, status: InputStatus) -> tuple[Any, Controller]:
    processor = ScriptedProcessor(bench.task._input)
    processor.statuses = [status]
    bench.task._input = processor
    controller = Controller()
    try:
        return bench.task._process_input(controller), controller
    finally:
        bench.task._input = processor.real


@pytest.mark.parametrize(
    ("status", "has_input", "suspends"),
    [
        (InputStatus.MORE_AVAILABLE, True, False),
        (InputStatus.MORE_AVAILABLE, False, False),
        (InputStatus.NOTHING_AVAILABLE, True, False),
        (InputStatus.NOTHING_AVAILABLE, False, True),
        (InputStatus.END_OF_INPUT, False, True),
    ],
)
async def test_what_follows_from_a_status(
    bench: Any, status: InputStatus, has_input: bool, suspends: bool
) -> None:
    """MB-64: nothing was said to be there, and there is something: no waiting."""
    bench.input()
    bench.logged("a")
    bench.output()
    bench.start()
    await bench.settle()
    if has_input:
        bench.gates[0].availability.set_available()
    pending, controller = await act(bench, status)
    assert pending is None
    assert bool(controller.suspended) is suspends


async def test_the_end_of_a_recovery_outside_restore_is_refused(bench: Any) -> None:
    bench.input()
    bench.logged("a")
    bench.start()
    await bench.settle()
    with pytest.raises(AssertionError, match="recovery"):
        await act(bench, InputStatus.END_OF_RECOVERY)


@pytest.mark.parametrize(("target_s", "longest"), [(0.001, 50), (0.004, 200)])
async def test_records_are_taken_for_as_long_as_the_job_says(
    bench: Any, target_s: float, longest: int
) -> None:
    """In a program for a millisecond, in a worker of its own for four."""
    lengths: list[int] = []

    def slowly_computed(self: Any, run: Any) -> Any:
        lengths.append(len(run))
        bench.clock.advance(0.000_02 * len(run))
        return self.output.emit_run(run)

    bench.slice_target_s = target_s
    (producer,) = bench.input()
    bench.logged("a", run=slowly_computed)
    bench.output()
    bench.start()
    for _ in range(3):
        fill(producer, range(1000))
    await bench.settle(500)
    assert sum(lengths) == 3000
    assert longest // 2 < max(lengths) <= longest
