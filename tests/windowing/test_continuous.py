from __future__ import annotations

import pytest

from aiomailbox.durations import seconds
from aiomailbox.errors import InvalidArgumentError
from aiomailbox.operators.aggregates.functions import count
from aiomailbox.testing import OneInputHarness
from aiomailbox.windowing.assigners import (
    GlobalWindows,
    ProcessingTimeSessionWindows,
    TumblingProcessingTimeWindows,
)
from aiomailbox.windowing.build import window_operator
from aiomailbox.windowing.triggers import ContinuousProcessingTimeTrigger


def harness_of(assigner, interval=3):
    trigger = ContinuousProcessingTimeTrigger.of(seconds(interval))
    operator = window_operator(str, assigner, aggregate=count(), trigger=trigger)
    return OneInputHarness(operator, keyed=True)


def test_it_fires_at_multiples_of_the_interval_and_at_the_end_of_the_window():
    with harness_of(TumblingProcessingTimeWindows.of(seconds(10))) as harness:
        harness.set_processing_time(1_000)
        harness.process_run([7])
        harness.set_processing_time(2_999)
        assert harness.values == []
        harness.set_processing_time(3_000)
        assert harness.values == [1]
        harness.process_run([7])
        harness.set_processing_time(6_001)
        assert harness.values == [1, 2]
        harness.set_processing_time(9_500)
        harness.set_processing_time(20_000)
        assert harness.values == [1, 2, 2, 2]


def test_a_planned_firing_survives_a_restart():
    with harness_of(GlobalWindows.create()) as harness:
        harness.process_run([7])
        harness.set_processing_time(1_000)
        snapshot = harness.snapshot()
    restored = harness_of(GlobalWindows.create())
    restored.restore(snapshot)
    with restored as harness:
        harness.set_processing_time(3_001)
        assert harness.values == [1]


def test_merged_sessions_keep_the_earliest_firing():
    with harness_of(ProcessingTimeSessionWindows.with_gap(seconds(10))) as harness:
        harness.set_processing_time(1_000)
        harness.process_run([7])
        harness.set_processing_time(2_500)
        harness.process_run([7])
        harness.set_processing_time(3_001)
        assert harness.values == [2]


def test_an_interval_of_zero_is_refused():
    with pytest.raises(InvalidArgumentError, match="interval"):
        ContinuousProcessingTimeTrigger.of(0)
