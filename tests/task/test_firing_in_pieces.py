"""A watermark fires in pieces: with room, with mail, without records in between."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.slices import Slices
from aiomailbox.operators.keyed.operators import StatefulOperator
from aiomailbox.records.events import Watermark
from aiomailbox.records.run import ListRun
from aiomailbox.task.stream_task import TaskState
from aiomailbox.testing.context import TestRuntimeContext
from aiomailbox.testing.harness import RecordingOutput

_COUNT = 20_000
_WATERMARK = 10 * _COUNT


class Firing(StatefulOperator):
    """Has timers whose callbacks take time, and emits one result for each."""

    def __init__(self, count: int, cost_s: float, *, awaits: bool = False) -> None:
        super().__init__()
        self.count = count
        self.cost_s = cost_s
        self.awaits = awaits

    def open(self) -> None:
        is_restored = "timers" in self._restored_timers
        self.timers = self.timer_service("timers", self)
        if not is_restored:
            for timestamp in range(self.count):
                self.timers.register_event_time_timer("k", None, timestamp)

    def process_run(self, run: Any) -> Any:
        return self.output.emit_run(ListRun([f"record {one}" for one in run.values]))

    def on_event_time(self, timer: Any) -> Any:
        if self.awaits:
            return self._fire_slowly(timer.timestamp)
        if self.cost_s:
            self.context.clock.advance(self.cost_s)  # type: ignore[attr-defined]
        return self.output.emit_run(ListRun([timer.timestamp]))

    def on_processing_time(self, timer: Any) -> Any: ...

    async def _fire_slowly(self, timestamp: int) -> None:
        await asyncio.sleep(self.cost_s)
        emitted = self.output.emit_run(ListRun([timestamp]))
        assert emitted is None


def _firing_task(bench: Any, *, permits: int = 4, **settings: Any) -> tuple[Any, Any]:
    (producer,) = bench.input()
    settings = {"count": _COUNT, "cost_s": 0.0, **settings}
    bench.add(lambda: Firing(**settings))
    bench.plans[0].is_keyed = True
    return producer, bench.output(permits=permits)


async def test_firing_stops_where_the_output_has_no_room(bench: Any) -> None:
    producer, consumer = _firing_task(bench)
    bench.start()
    producer.watermark(_WATERMARK)
    await bench.settle(500)
    fired = bench.metrics.child("operator").counter("num_records_out").value
    # Four permits and the piece in hand.
    assert fired <= 6 * 1024
    while not consumer.read() or consumer.elements[-1] != Watermark(_WATERMARK):
        await bench.settle(20)
    assert consumer.elements == [*range(_COUNT), Watermark(_WATERMARK)]


async def test_waiting_for_room_while_firing_counts_as_backpressure(bench: Any) -> None:
    producer, consumer = _firing_task(bench)
    task = bench.start()
    producer.watermark(_WATERMARK)
    await asyncio.sleep(20)
    assert task.metrics()["hard_backpressured_time_ms_per_second"] > 950
    while not consumer.read() or consumer.elements[-1] != Watermark(_WATERMARK):
        await bench.settle(20)
    await asyncio.sleep(20)
    assert task.metrics()["hard_backpressured_time_ms_per_second"] == 0


@pytest.mark.parametrize("awaits", [False, True])
async def test_mail_is_taken_between_two_pieces_and_records_are_not(
    bench: Any, awaits: bool
) -> None:
    count = 2_000 if awaits else _COUNT
    cost_s = 0.010 if awaits else 0.000_05
    producer, consumer = _firing_task(
        bench, permits=200, count=count, cost_s=cost_s, awaits=awaits
    )
    task = bench.start()
    producer.watermark(_WATERMARK)
    producer.send("next")
    loop = asyncio.get_running_loop()
    waited: list[float] = []
    while Watermark(_WATERMARK) not in consumer.elements:
        sent, arrived = loop.time(), loop.create_future()
        task.processor.main_executor.execute(arrived.set_result, None)
        await arrived
        waited.append(loop.time() - sent)
        await asyncio.sleep(0.001)
        consumer.read()
    assert len(waited) > 100
    # One awaited timer, or a slice of the others; all together take a second or more.
    assert max(waited) <= (0.011 if awaits else 0.004)
    await bench.settle()
    consumer.read()
    assert consumer.elements[count:] == [Watermark(_WATERMARK), "record next"]


async def test_a_snapshot_between_two_pieces_resumes_the_rest(bench: Any) -> None:
    producer, consumer = _firing_task(bench, cost_s=0.000_05)
    task = bench.start()
    producer.watermark(_WATERMARK)
    taken: list[tuple[Any, int]] = []
    emitted = bench.metrics.child("operator").counter("num_records_out")

    def take() -> None:
        taken.append((task.snapshot(), emitted.value))

    while not taken or taken[-1][1] < _COUNT:
        task.processor.main_executor.execute(take)
        await asyncio.sleep(0.003)
        consumer.read()
    in_the_middle = [one for one in taken if 0 < one[1] < _COUNT]
    assert len(in_the_middle) > 3
    task.cancel()
    await bench.end()
    for snapshot, fired in in_the_middle[:: len(in_the_middle) // 3]:
        other = type(bench)()
        _, rest = _firing_task(other, permits=64)
        # Nothing comes in: the snapshot itself says that the watermark has come.
        other.start(snapshot)
        await other.settle(200)
        rest.read()
        assert rest.elements == [*range(fired, _COUNT), Watermark(_WATERMARK)]
        await other.tear_down()


@pytest.mark.parametrize("has_room", [True, False])
async def test_a_task_that_fires_is_cancelled_at_once(
    bench: Any, has_room: bool
) -> None:
    producer, _ = _firing_task(bench, permits=200 if has_room else 2, cost_s=0.000_05)
    task = bench.start()
    producer.watermark(_WATERMARK)
    await bench.settle(20)
    emitted = bench.metrics.child("operator").counter("num_records_out")
    before = emitted.value
    assert 0 < before < _COUNT
    task.cancel()
    assert await bench.end() is None
    assert task.lifecycle.state is TaskState.CANCELED
    assert emitted.value <= before + 1024


def test_a_piece_grows_while_it_is_short_and_falls_at_once() -> None:
    context, output = TestRuntimeContext(), RecordingOutput()
    counts: list[int] = []

    def piece(count: int) -> bool:
        counts.append(count)
        slow = len(counts) > 12
        context.clock.advance((0.002 if slow else 0.000_001) * count)
        return len(counts) == 15

    pieces = Slices(cast("RuntimeContext", context), output, lambda: None)
    assert pieces.run(piece) is None
    assert counts[:8] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert counts[8:12] == [pytest.approx(250, abs=1)] * 4
    assert counts[13:] == [1, 1]
