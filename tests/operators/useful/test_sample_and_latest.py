"""Samples are repeatable; the latest record is the one that came last."""

from __future__ import annotations

from typing import Any

import pytest

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.operators.useful.operators import SampleOperator, WithLatestOperator
from aiomailbox.records.events import StreamRecord
from aiomailbox.testing import OneInputHarness, TwoInputHarness


def sampled(fraction: float, values: Any, state: Any = None) -> tuple[list[Any], Any]:
    harness = OneInputHarness(SampleOperator(fraction))
    if state is not None:
        harness.restore(state)
    with harness:
        harness.process_run(values)
        return harness.values, harness.snapshot()


def test_a_sample_is_the_same_again_and_goes_on_after_a_restart() -> None:
    whole, _ = sampled(0.3, range(1000))
    first, state = sampled(0.3, range(400))
    second, _ = sampled(0.3, range(400, 1000), state)
    assert whole == first + second
    assert 240 < len(whole) < 360


def test_all_and_none_are_samples_too() -> None:
    assert sampled(1, range(9))[0] == list(range(9))
    assert sampled(0, range(9))[0] == []


def test_a_sample_keeps_event_times() -> None:
    with OneInputHarness(SampleOperator(1)) as harness:
        harness.process_run(["a"], [7])
        assert harness.output == [StreamRecord("a", 7)]


def test_more_than_all_cannot_be_sampled() -> None:
    with pytest.raises(InvalidArgumentError, match="fraction"):
        SampleOperator(1.5)


def test_the_latest_survives_a_restart_and_early_records_are_counted() -> None:
    with TwoInputHarness(WithLatestOperator()) as harness:
        harness.first.process_element("early")
        harness.second.process_run([None, "x"])
        assert harness.context.metrics.snapshot()["records_without_latest"] == 1
        state = harness.snapshot()
    again = TwoInputHarness(WithLatestOperator())
    again.restore(state)
    with again as harness:
        harness.first.process_element("a", 3)
        harness.second.process_element(None)
        harness.first.process_element("b", 4)
        assert harness.output == [
            StreamRecord(("a", "x"), 3),
            StreamRecord(("b", None), 4),
        ]
