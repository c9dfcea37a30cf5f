"""Laws of what windows refuse where they are described."""

from __future__ import annotations

import pytest

import aiomailbox as am


class ByTheClock(am.TumblingEventTimeWindows):
    @property
    def default_trigger(self) -> am.Trigger:
        return am.ProcessingTimeTrigger()


class ByWatermarks(am.TumblingProcessingTimeWindows):
    @property
    def default_trigger(self) -> am.Trigger:
        return am.EventTimeTrigger()


@pytest.mark.parametrize("assigner", [ByTheClock, ByWatermarks])
def test_a_trigger_of_the_other_time_is_refused_also_as_an_assigners_own(
    assigner: type[am.TumblingEventTimeWindows | am.TumblingProcessingTimeWindows],
) -> None:
    stream = (
        am.StreamExecutionEnvironment().from_collection([1]).key_by(lambda one: one)
    )
    windows = stream.window(assigner.of(am.seconds(1)))
    with pytest.raises(am.InvalidArgumentError, match=r"^trigger: .* waits for w"):
        windows.reduce(lambda one, other: one + other)
