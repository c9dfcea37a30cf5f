"""Timers that are still firing when the data ends, or when the task is cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiomailbox.mailbox.mail import MailOptions
from aiomailbox.operators.keyed.operators import StatefulOperator
from aiomailbox.records.events import EndOfData, EndOfPartition, StopMode, Watermark
from aiomailbox.records.run import ListRun
from aiomailbox.task.stream_task import TaskState


class Timed(StatefulOperator):
    """Has event-time timers; after each of them urgent mail waits."""

    def __init__(self, timestamps: list[int]) -> None:
        super().__init__()
        self.timestamps = timestamps

    def open(self) -> None:
        timers = self.timer_service("timers", self)
        for timestamp in self.timestamps:
            timers.register_event_time_timer("k", None, timestamp)

    def on_event_time(self, timer: Any) -> Any:
        run = ListRun([f"mail {timer.timestamp}"])
        self.context.mailbox.execute(
            self.output.emit_run, run, options=MailOptions.URGENT
        )
        return self.output.emit_run(ListRun([f"timer {timer.timestamp}"]))

    def on_processing_time(self, timer: Any) -> Any: ...


@pytest.mark.parametrize("count", [1, 2, 3, 5, 20, 5_000])
async def test_a_watermark_that_waits_comes_before_the_end_of_data(
    bench: Any, count: int
) -> None:
    """MB-126."""
    (producer,) = bench.input()
    timestamps = list(range(1, count + 1))
    bench.add(lambda: Timed(timestamps))
    bench.plans[0].is_keyed = True
    consumer = bench.output(permits=64)
    bench.start()
    producer.watermark(50_000)
    producer.end()
    while not bench.runner.done():
        await asyncio.sleep(0.01)
        consumer.read()
    assert await bench.end() is None
    consumer.read()
    elements = consumer.elements
    timers = [each for each in elements if str(each).startswith("timer")]
    assert timers == [f"timer {t}" for t in timestamps]
    assert elements.index(Watermark(50_000)) > elements.index(timers[-1])
    assert elements[-2:] == [EndOfData(), EndOfPartition()]
    assert len(elements) == 2 * count + 3


async def test_watermarks_that_fire_nothing_are_passed_on_in_order(bench: Any) -> None:
    """MB-125."""
    (producer,) = bench.input()
    bench.add(lambda: Timed([]))
    bench.plans[0].is_keyed = True
    consumer = bench.output()
    bench.start()
    producer.watermark(100)
    producer.watermark(200)
    await bench.settle()
    assert consumer.read() == [Watermark(100), Watermark(200)]


@pytest.mark.parametrize("mode", list(StopMode))
async def test_work_that_is_deferred_again_and_again_is_done_before_its_operator_ends(
    bench: Any, mode: StopMode
) -> None:
    """MB-84, in several pieces."""
    (producer,) = bench.input()

    def go_on(self: Any, left: int) -> None:
        self.log.append(str(left))
        if left:
            self.context.mailbox.execute(
                go_on, self, left - 1, options=MailOptions.DEFERRABLE
            )

    bench.logged("a", run=lambda self, run: go_on(self, 9))
    bench.logged("b")
    bench.start()
    producer.send(1)
    producer.end(mode)
    assert await bench.end() is None
    done = "".join(each for each in bench.log if len(each) == 1)
    assert done == "9876543210"
    if mode is StopMode.DRAIN:
        assert bench.log.index("0") < bench.log.index("a.finish")


async def test_work_that_is_deferred_for_ever_can_be_cancelled_at_the_end(
    bench: Any,
) -> None:
    (producer,) = bench.input()
    count = 0

    def again(self: Any) -> None:
        nonlocal count
        count += 1
        self.context.mailbox.execute(again, self, options=MailOptions.DEFERRABLE)

    bench.logged("a", end_input=again, run=lambda self, run: again(self))
    bench.start()
    producer.send(1)
    producer.end()
    await bench.settle(200)
    assert not bench.runner.done()
    assert count > 10
    bench.task.cancel()
    assert await bench.end() is None
    assert bench.task.lifecycle.state is TaskState.CANCELED


@pytest.mark.parametrize("is_async", [False, True])
async def test_event_time_timers_stop_when_the_task_is_cancelled(
    bench: Any, is_async: bool
) -> None:
    """MB-81: exactly ten of a hundred due timers fire."""
    (producer,) = bench.input()
    fired: list[int] = []

    class Stateful(StatefulOperator):
        def open(self) -> None:
            timers = self.timer_service("timers", self)
            for timestamp in range(100):
                timers.register_event_time_timer("k", None, timestamp)

        def on_event_time(self, timer: Any) -> Any:
            fired.append(timer.timestamp)
            if len(fired) == 10:
                bench.task.cancel()
            return asyncio.sleep(0) if is_async else None

    bench.add(Stateful)
    bench.plans[0].is_keyed = True
    bench.start()
    producer.watermark(200)
    assert await bench.end() is None
    assert bench.task.lifecycle.state is TaskState.CANCELED
    assert len(fired) == 10
