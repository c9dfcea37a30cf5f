from __future__ import annotations

import pytest

from aiomailbox.durations import seconds
from aiomailbox.errors import UserFunctionError
from aiomailbox.eventtime.strategy import WatermarkStrategy
from aiomailbox.operators.stateless.operators import TimestampsAndWatermarksOperator
from aiomailbox.records.events import (
    MAX_TIMESTAMP,
    StreamRecord,
    Watermark,
    WatermarkStatus,
)
from aiomailbox.testing import OneInputHarness

BY_VALUE = WatermarkStrategy.for_bounded_out_of_orderness(
    seconds(0.002)
).with_timestamp_assigner(lambda value: value)


def operator(strategy=BY_VALUE):
    return TimestampsAndWatermarksOperator(strategy)


def test_records_get_event_times_and_a_watermark_follows_the_run():
    with OneInputHarness(operator()) as harness:
        harness.process_run([10, 8])
        assert harness.output == [
            StreamRecord(10, 10),
            StreamRecord(8, 8),
            Watermark(7),
        ]


def test_a_watermark_that_does_not_advance_is_not_emitted():
    with OneInputHarness(operator()) as harness:
        harness.process_run([10])
        harness.process_run([9])
        assert harness.output[-1] == StreamRecord(9, 9)


def test_without_an_assigner_the_event_times_stay():
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    with OneInputHarness(operator(strategy)) as harness:
        harness.process_element("a", 5)
        assert harness.output == [StreamRecord("a", 5), Watermark(4)]


def test_watermarks_and_statuses_of_upstream_end_here_except_the_last():
    with OneInputHarness(operator()) as harness:
        harness.process_watermark(99)
        harness.process_status(WatermarkStatus.IDLE)
        assert harness.output == []
        harness.process_watermark(MAX_TIMESTAMP)
        assert harness.output == [Watermark(MAX_TIMESTAMP)]


def test_a_quiet_stream_becomes_idle_and_wakes_when_event_time_advances():
    with OneInputHarness(operator(BY_VALUE.with_idleness(seconds(1.0)))) as harness:
        harness.process_element(10)
        harness.take_output()
        for now_ms in range(200, 3001, 200):
            harness.set_processing_time(now_ms)
        assert harness.take_output() == [WatermarkStatus.IDLE]
        harness.process_element(10)
        assert harness.take_output() == [StreamRecord(10, 10)]
        harness.process_element(20)
        assert harness.take_output() == [
            StreamRecord(20, 20),
            WatermarkStatus.ACTIVE,
            Watermark(17),
        ]
    assert harness.context.manual_time.active_timestamps() == []


def test_a_failing_assigner_names_the_operator():
    strategy = BY_VALUE.with_timestamp_assigner(lambda value: 1 // value)
    with (
        OneInputHarness(operator(strategy)) as harness,
        pytest.raises(UserFunctionError, match="division"),
    ):
        harness.process_element(0)


def test_a_cut_anywhere_loses_no_record():
    before = OneInputHarness(operator())
    before.open()
    before.process_run([10, 20])
    after = OneInputHarness(operator())
    after.restore(before.snapshot())
    after.open()
    after.process_run([30])
    assert before.values + after.values == [10, 20, 30]
    assert after.output[-1] == Watermark(27)
