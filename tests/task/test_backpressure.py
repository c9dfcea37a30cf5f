"""Bounds, flushes, and letting the loop go."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from aiomailbox.errors import OverdraftCeilingError
from aiomailbox.records.events import Watermark
from aiomailbox.records.run import RUN_LENGTH_MAX, ListRun


async def test_a_task_stops_reading_when_nobody_reads_its_output(bench: Any) -> None:
    (producer,) = bench.input(permits=64)
    bench.logged("a")
    consumer = bench.output(permits=4)
    task = bench.start()
    run = list(range(RUN_LENGTH_MAX))
    for _ in range(30):
        producer.send(*run)
    await bench.settle(500)
    assert not task.processor.is_default_action_available
    passed = bench.metrics.child("a").counter("num_records_in").value
    # Four permits, of which one may hold a record only, and the slice in hand.
    assert passed <= 5 * RUN_LENGTH_MAX
    assert len(consumer.read(1)) <= RUN_LENGTH_MAX
    await bench.settle(100)
    assert (
        bench.metrics.child("a").counter("num_records_in").value <= 6 * RUN_LENGTH_MAX
    )
    for _ in range(60):
        consumer.read()
        await bench.settle(100)
    assert [e for e in consumer.elements if isinstance(e, int)] == run * 30


async def test_backpressure_is_measured_apart_from_idleness(bench: Any) -> None:
    (producer,) = bench.input()
    bench.logged("a")
    consumer = bench.output(permits=2)
    task = bench.start()
    await asyncio.sleep(1)
    for number in range(5):
        producer.send(*[number] * RUN_LENGTH_MAX)
    await asyncio.sleep(2)
    metrics = task.metrics()
    assert metrics["idle_ms"] == pytest.approx(1000, abs=5)
    assert metrics["backpressured_ms"] == pytest.approx(2000, abs=5)
    while consumer.read():
        await asyncio.sleep(0)
        await bench.settle(20)
    await asyncio.sleep(4)
    metrics = task.metrics()
    assert metrics["backpressured_ms"] == pytest.approx(2000, abs=5)
    assert metrics["idle_ms"] == pytest.approx(5000, abs=5)


@pytest.mark.parametrize("waits_for", ["input", "output"])
async def test_time_in_mail_is_no_waiting(bench: Any, waits_for: str) -> None:
    """MB-65, MB-66."""
    (producer,) = bench.input()
    bench.logged("a")
    consumer = bench.output(permits=2)
    task = bench.start()
    if waits_for == "output":
        for _ in range(5):
            producer.send(*range(RUN_LENGTH_MAX))
    await asyncio.sleep(3)
    task.processor.main_executor.execute(asyncio.sleep, 10)
    await asyncio.sleep(12)
    metrics = task.metrics()
    assert metrics["idle_ms"] == pytest.approx(
        5000 if waits_for == "input" else 0, abs=5
    )
    assert metrics["backpressured_ms"] == pytest.approx(
        5000 if waits_for == "output" else 0, abs=5
    )
    while consumer.read():
        await asyncio.sleep(0)
        await bench.settle(20)
    records = 5 * RUN_LENGTH_MAX if waits_for == "output" else 0
    assert bench.metrics.child("a").counter("num_records_in").value == records


async def test_mail_runs_while_a_task_is_backpressured(bench: Any) -> None:
    (producer,) = bench.input()
    bench.logged("a")
    bench.output(permits=2)
    task = bench.start()
    for _ in range(5):
        producer.send(*range(RUN_LENGTH_MAX))
    await bench.settle(100)
    assert not task.processor.is_default_action_available
    assert await task.processor.main_executor.submit(lambda: "mail") == "mail"
    assert not task.processor.is_default_action_available


async def test_a_task_flushes_before_it_is_idle(bench: Any) -> None:
    (producer,) = bench.input()
    bench.logged("a")
    consumer = bench.output(flush_interval_ms=None)
    bench.start()
    producer.send(1)
    await bench.settle()
    assert consumer.read() == [1]


async def test_a_busy_task_flushes_when_the_interval_is_over(bench: Any) -> None:
    (producer,) = bench.input()

    async def emit_and_wait(self: Any, run: Any) -> None:
        self.output.emit_run(run)
        await asyncio.sleep(1)

    bench.logged("a", run=emit_and_wait)
    consumer = bench.output(flush_interval_ms=100)
    bench.start()
    producer.send(1)
    await asyncio.sleep(0.099)
    assert consumer.read() == []
    await asyncio.sleep(0.002)
    assert consumer.read() == [1]


async def test_what_an_operator_emits_while_nobody_reads_fits_up_to_the_ceiling(
    bench: Any,
) -> None:
    (producer,) = bench.input()

    def burst(self: Any, run: Any) -> Any:
        for _ in range(20):
            self.output.emit_run(ListRun(list(range(RUN_LENGTH_MAX))))

    bench.logged("a", run=burst)
    consumer = bench.output(permits=4)
    task = bench.start()
    producer.send(1)
    producer.send(2)
    await bench.settle()
    assert not task.processor.is_default_action_available
    assert (
        sum(one.queued_buffers for one in bench.writers[0].partition.statistics()) == 20
    )
    for _ in range(200):
        consumer.read()
        await bench.settle(5)
    assert len(consumer.elements) == 40 * RUN_LENGTH_MAX


async def test_a_burst_without_end_fails_the_task_and_not_the_process(
    bench: Any,
) -> None:

    (producer,) = bench.input()

    def burst(self: Any, run: Any) -> Any:
        while True:
            self.output.emit_run(ListRun([0] * RUN_LENGTH_MAX))

    bench.logged("a", run=burst)
    bench.output(permits=4)
    bench.start()
    producer.send(1)
    assert isinstance(await bench.end(), OverdraftCeilingError)


async def test_a_slow_function_leaves_the_loop_responsive(bench: Any) -> None:
    """D6: half a millisecond a record, and the loop is never held for long."""
    (producer,) = bench.input()

    def slow(self: Any, run: Any) -> Any:
        bench.clock.advance(0.0005 * len(run))
        return self.output.emit_run(run)

    bench.logged("a", run=slow)
    bench.output(permits=64)
    bench.start()
    producer.send(*range(RUN_LENGTH_MAX))
    producer.end()
    held, last = 0.0, bench.clock.monotonic()
    while not bench.runner.done():
        await asyncio.sleep(0)
        now = bench.clock.monotonic()
        held, last = max(held, now - last), now
    assert await bench.end() is None
    # All in one piece it would be half a second.
    assert held < 0.003


async def test_two_busy_tasks_on_one_loop_take_turns(bench: Any) -> None:
    other = type(bench)()
    spent: list[tuple[str, float]] = []

    def work(self: Any, run: Any) -> Any:
        cost_s = 0.000_01 * len(run)
        bench.clock.advance(cost_s)
        spent.append((self.name, cost_s))

    for each, name in ((bench, "a"), (other, "b")):
        (producer,) = each.input(permits=64)
        each.logged(name, run=work)
        for _ in range(20):
            producer.send(*range(RUN_LENGTH_MAX))
        producer.end()
        each.start()
    await bench.end()
    await other.end()
    await other.tear_down()
    lasted = [
        sum(cost_s for _, cost_s in turn)
        for _, turn in itertools.groupby(spent, lambda entry: entry[0])
    ]
    # Of each the first turn is the longest: runs begin with one record.
    assert max(lasted[:2]) < 0.003, lasted
    # A run that takes a slice is not followed by another one.
    assert max(lasted[2:-1]) < 0.0015, lasted


async def test_mail_that_sends_itself_again_does_not_starve_the_input(
    bench: Any,
) -> None:
    """MB-123: one mail of each operator per record."""
    (producer,) = bench.input()
    log: list[str] = []

    def again(self: Any) -> None:
        log.append(self.name)
        self.context.mailbox.execute(again, self)

    def note(self: Any, run: Any) -> Any:
        if self.name == "a":
            log.append("record")
        return self.output.emit_run(run)

    for name in "ab":
        bench.logged(name, open=again, run=note)
    bench.start()
    log.clear()
    for number in range(5):
        producer.partition.emit_run(ListRun([number]), 0)
        producer.partition.emit_control(Watermark(number), 0)
    producer.partition.flush_all()
    while log.count("record") < 5:
        await asyncio.sleep(0)
    records = [index for index, entry in enumerate(log) if entry == "record"]
    for first, second in itertools.pairwise(records):
        assert sorted(log[first + 1 : second]) in (["a", "b"], [])
    bench.task.cancel()


async def test_a_task_that_is_always_busy_lets_others_run(bench: Any) -> None:
    (producer,) = bench.input(permits=256)
    turns: list[int] = []

    def slow(self: Any, run: Any) -> Any:
        bench.clock.advance(0.001)

    bench.logged("a", run=slow)
    for number in range(100):
        producer.send(number)
    bench.start()
    producer.end()
    while not bench.runner.done():
        turns.append(1)
        await asyncio.sleep(0)
    assert len(turns) > 90
