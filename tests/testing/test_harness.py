from __future__ import annotations

import asyncio

import pytest

import aiomailbox as am
from aiomailbox.errors import IllegalStateError, StateError
from aiomailbox.operators.core.operator import Operator
from aiomailbox.operators.functions.process import KeyedProcessOperator
from aiomailbox.operators.stateless.fused import StageKind
from aiomailbox.operators.stateless.operators import MapOperator, stateless
from aiomailbox.records.events import (
    LatencyMarker,
    StreamRecord,
    Watermark,
    WatermarkStatus,
)
from aiomailbox.state.descriptors import ValueStateDescriptor
from aiomailbox.testing import OneInputHarness, TestRuntimeContext


async def later(value):
    return value


class Delayed(Operator):
    """Emits each record a second of processing time later, by mail."""

    def process_element(self, value, timestamp):
        at = self.context.clock.now_ms() + 1000
        self.context.processing_time.register_timer(at, lambda _: self.send(value))

    def send(self, value):
        self.context.mailbox.execute(self.emit, value)

    def emit(self, value):
        from aiomailbox.records.run import ListRun

        return self.output.emit_run(ListRun([value]))


def test_everything_that_is_emitted_is_kept_in_order():
    marker = LatencyMarker(1, "source", 0)
    with OneInputHarness(MapOperator(str)) as harness:
        harness.process_element(1, 5)
        harness.process_watermark(5)
        harness.process_status(WatermarkStatus.IDLE)
        harness.process_latency_marker(marker)
        assert harness.take_output() == [
            StreamRecord("1", 5),
            Watermark(5),
            WatermarkStatus.IDLE,
            marker,
        ]
        assert harness.output == []


def test_an_operator_that_waits_needs_run():
    with (
        OneInputHarness(stateless(StageKind.MAP, later)) as harness,
        pytest.raises(IllegalStateError, match=r"await harness\.run"),
    ):
        harness.process_element(1)


def test_time_and_mail_move_when_the_test_says_so():
    with OneInputHarness(Delayed()) as harness:
        harness.process_element("a")
        harness.set_processing_time(999)
        assert harness.context.clock.now_ms() == 999
        harness.set_processing_time(1000)
        assert harness.output == []
        harness.run_mail()
        assert harness.values == ["a"]


async def test_settle_waits_for_spawned_work_and_its_mail():
    class Spawning(Operator):
        def process_element(self, value, timestamp):
            self.context.spawn(self.work(value), name="work")

        async def work(self, value):
            await asyncio.sleep(1)
            self.context.mailbox.execute(Delayed.emit, self, value)

    async with OneInputHarness(Spawning()) as harness:
        await harness.run(harness.process_element, "a")
        await harness.settle()
        assert harness.values == ["a"]


def test_keyed_state_is_there_for_keyed_operators_only():
    count = ValueStateDescriptor("count", default=0)
    keyed = TestRuntimeContext(keyed=True).keyed_state
    keyed.set_current_key("a")
    keyed.get_value(count).update(3)
    assert keyed.get_value(count).value() == 3
    with pytest.raises(StateError):
        TestRuntimeContext().keyed_state.set_current_key("a")


def test_an_operator_is_restored_before_it_is_opened():
    with (
        OneInputHarness(lambda: MapOperator(str)) as harness,
        pytest.raises(IllegalStateError, match="before open"),
    ):
        harness.restore(None)


def test_time_may_go_on_after_a_snapshot_of_keyed_state():
    class Total(am.KeyedProcessFunction):
        def open(self, context):
            descriptor = ValueStateDescriptor("total", default=0)
            self.total = context.keyed_state.get_value(descriptor)

        def process_element(self, value, context, out):
            self.total.update(self.total.value() + value)
            out.collect(self.total.value())

    operator = KeyedProcessOperator(lambda value: 0, Total())
    with OneInputHarness(operator, keyed=True) as harness:
        harness.process_run([1, 2])
        harness.snapshot()
        harness.process_run([3])
        # The operator looks whether the snapshot has been read.
        harness.set_processing_time(100_000)
        assert harness.values == [1, 3, 6]
