"""Laws of combining watermarks: of splits, and of an operator's inputs."""

from __future__ import annotations

from typing import Any

from hypothesis import given, strategies as st

from aiomailbox.eventtime.generators import (
    InputWatermarks,
    OutputGuard,
    WatermarkOutput,
)
from aiomailbox.eventtime.valve import WatermarkOutputMultiplexer
from aiomailbox.records.events import MIN_TIMESTAMP, Watermark, WatermarkStatus

IDLE, ACTIVE = WatermarkStatus.IDLE, WatermarkStatus.ACTIVE


class Splits:
    """A multiplexer with its splits' outputs by name."""

    def __init__(self, *names: str) -> None:
        self.guard = OutputGuard()
        self.multiplexer = WatermarkOutputMultiplexer(self.guard)
        self.outputs: dict[str, WatermarkOutput] = {}
        for name in names:
            self.register(name)

    def register(self, name: str) -> None:
        self.outputs[name] = self.multiplexer.register_split(name)

    def __getitem__(self, name: str) -> WatermarkOutput:
        return self.outputs[name]

    @property
    def now(self) -> tuple[int, bool]:
        return self.guard.watermark, self.guard.is_idle


def test_an_idle_split_is_left_out() -> None:
    """SEM-23."""
    splits = Splits("1", "2", "3")
    splits["1"].emit_watermark(2)
    splits["2"].emit_watermark(5)
    assert splits.now == (MIN_TIMESTAMP, False)
    splits["3"].mark_idle()
    assert splits.now == (2, False)


def test_the_slowest_becoming_idle_advances() -> None:
    """SEM-24."""
    splits = Splits("1", "2")
    splits["1"].emit_watermark(2)
    splits["2"].emit_watermark(5)
    assert splits.now == (2, False)
    splits["1"].mark_idle()
    assert splits.now == (5, False)


def test_when_all_are_idle_the_maximum_counts_and_the_output_is_idle() -> None:
    """SEM-25, SEM-26."""
    splits = Splits("1", "2")
    for name, watermark in (("1", 5), ("2", 2)):
        splits[name].emit_watermark(watermark)
    assert splits.now == (2, False)
    splits["1"].mark_idle()
    splits["2"].mark_idle()
    assert splits.guard.take() == [Watermark(2), Watermark(5), IDLE]
    assert splits.now == (5, True)


def test_the_output_never_goes_back() -> None:
    """SEM-27."""
    splits = Splits("1", "2")
    splits["1"].emit_watermark(2)
    splits["2"].emit_watermark(5)
    splits["1"].mark_idle()
    splits["1"].emit_watermark(3)
    assert splits.now == (5, False)


def test_without_splits_there_is_nothing_to_say() -> None:
    """SEM-28."""
    splits = Splits()
    splits.multiplexer.on_periodic_emit()
    assert splits.now == (MIN_TIMESTAMP, False)
    splits.register("1")
    splits["1"].mark_idle()
    splits.multiplexer.release_split("1")
    splits.guard.mark_active()
    splits.multiplexer.on_periodic_emit()
    assert splits.now == (MIN_TIMESTAMP, False)


def test_releasing_the_slowest_emits_nothing_before_the_next_update() -> None:
    """SEM-31."""
    splits = Splits("low", "high")
    splits["low"].emit_watermark(-4343)
    splits["high"].emit_watermark(-4333)
    splits.multiplexer.release_split("low")
    assert splits.now == (-4343, False)
    splits["high"].emit_watermark(-4332)
    assert splits.now == (-4332, False)


def test_releasing_the_highest_takes_nothing_back() -> None:
    """SEM-32."""
    splits = Splits("high")
    splits["high"].emit_watermark(2)
    splits.multiplexer.release_split("high")
    splits.register("new")
    splits["new"].emit_watermark(1)
    assert splits.now == (2, False)


def test_a_released_split_no_longer_holds_back() -> None:
    """SEM-33."""
    splits = Splits("lower")
    splits["lower"].emit_watermark(156765)
    splits.multiplexer.release_split("lower")
    splits.register("higher")
    splits["higher"].emit_watermark(156775)
    assert splits.now == (156775, False)


def test_an_unfinished_split_without_a_watermark_holds_the_minimum() -> None:
    splits = Splits("fast", "silent")
    splits["fast"].emit_watermark(100)
    assert splits.now == (MIN_TIMESTAMP, False)
    assert splits.multiplexer.split_watermarks() == {
        "fast": 100,
        "silent": MIN_TIMESTAMP,
    }


def test_a_split_can_say_that_it_is_awake() -> None:
    splits = Splits("1")
    splits["1"].mark_idle()
    splits["1"].mark_active()
    assert splits.guard.take() == [IDLE, ACTIVE]


def test_a_split_that_is_not_there_can_be_released() -> None:
    splits = Splits("1")
    splits.multiplexer.release_split("2")
    splits["1"].emit_watermark(5)
    assert splits.now == (5, False)


def test_an_operators_watermark_is_the_minimum_of_its_inputs() -> None:
    inputs = InputWatermarks(2)
    assert inputs.input_watermark(5, 0) == ()
    assert inputs.input_watermark(3, 1) == (Watermark(3),)
    assert inputs.input_watermark(2, 1) == ()
    assert inputs.input_status(IDLE, 1) == (Watermark(5),)
    assert inputs.input_status(IDLE, 0) == (IDLE,)
    assert inputs.input_status(ACTIVE, 1) == (ACTIVE,)
    assert inputs.input_watermark(9, 1) == (Watermark(9),)
    assert inputs.watermark == 9


def test_an_operators_inputs_flush_before_they_are_idle() -> None:
    inputs = InputWatermarks(2)
    inputs.input_watermark(5, 0)
    assert inputs.input_status(IDLE, 0) == ()
    assert inputs.input_status(IDLE, 1) == (Watermark(5), IDLE)
    assert inputs.input_watermark(6, 1) == (ACTIVE, Watermark(6))


@given(st.integers(1, 3), st.data())
def test_an_operators_watermark_only_grows(count: int, data: Any) -> None:
    inputs, last, status = InputWatermarks(count), MIN_TIMESTAMP, ACTIVE
    what = st.integers(0, 30) | st.sampled_from([IDLE, ACTIVE])
    for index, item in data.draw(st.lists(st.tuples(st.integers(0, count - 1), what))):
        if isinstance(item, int):
            outputs = inputs.input_watermark(item, index)
        else:
            outputs = inputs.input_status(item, index)
        for output in outputs:
            if isinstance(output, Watermark):
                assert (output.timestamp_ms > last, status) == (True, ACTIVE)
                last = output.timestamp_ms
            else:
                assert output is not status
                status = output
