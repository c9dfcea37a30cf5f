"""Laws of the valve, as Flink 2.3.0 keeps them.

Newer Flink advances the output when a channel wakes up, and flushes whenever the last
channel becomes idle; the recorded cases do neither, and so do we.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.eventtime.valve import StatusWatermarkValve
from aiomailbox.records.events import MIN_TIMESTAMP, Watermark, WatermarkStatus

Step = tuple[int, Any, list[Any]]


def feed(valve: StatusWatermarkValve, channel: int, what: int | str) -> list[Any]:
    """Give a watermark (int), or a status (its name); return numbers and names."""
    if isinstance(what, int):
        outputs = valve.input_watermark(what, channel)
    else:
        outputs = valve.input_status(WatermarkStatus(what), channel)
    return [o.timestamp_ms if isinstance(o, Watermark) else o.value for o in outputs]


CASES: dict[str, tuple[int, list[Step]]] = {
    "SEM-01 one channel passes everything on": (1, [(0, 0, [0]), (0, 25, [25])]),
    "SEM-02 a watermark that goes back is ignored": (
        1,
        [(0, 25, [25]), (0, 18, []), (0, 42, [42])],
    ),
    "SEM-03 repeated statuses are swallowed": (
        1,
        [
            (0, "active", []),
            (0, "idle", ["idle"]),
            (0, "idle", []),
            (0, "active", ["active"]),
        ],
    ),
    "SEM-04 watermarks of an idle channel are not even remembered": (
        1,
        [
            (0, 25, [25]),
            (0, "idle", ["idle"]),
            (0, 50, []),
            (0, "active", ["active"]),
            (0, 50, [50]),
        ],
    ),
    "SEM-05 all channels must have spoken": (3, [(0, 0, []), (1, 0, []), (2, 0, [0])]),
    "SEM-06 the minimum advances with the slowest": (
        3,
        [
            (0, 0, []),
            (1, 0, []),
            (2, 0, [0]),
            (0, 12, []),
            (2, 8, []),
            (2, 10, []),
            (1, 15, [10]),
            (2, 17, [12]),
            (0, 20, [15]),
        ],
    ),
    "SEM-07 no output when every channel goes back": (
        3,
        [
            (0, 25, []),
            (1, 10, []),
            (2, 17, [10]),
            (0, 12, []),
            (1, 8, []),
            (2, 15, []),
        ],
    ),
    "SEM-08 idle when all are, active when one is": (
        2,
        [
            (1, "idle", []),
            (0, "idle", ["idle"]),
            (0, "idle", []),
            (1, "idle", []),
            (1, "active", ["active"]),
            (0, "active", []),
        ],
    ),
    "SEM-09 an idle channel does not hold the others back": (
        3,
        [
            (0, 15, []),
            (1, 10, []),
            (2, "idle", [10]),
            (1, 18, [15]),
            (0, 20, [18]),
        ],
    ),
    "SEM-10 the slowest becoming idle advances the output": (
        3,
        [(0, 25, []), (1, 10, []), (2, 17, [10]), (1, "idle", [17]), (2, "idle", [25])],
    ),
    "SEM-11 the maximum is flushed before the output becomes idle": (
        3,
        [
            (0, 10, []),
            (1, 5, []),
            (2, 3, [3]),
            (0, "idle", []),
            (1, "idle", []),
            (2, "idle", [10, "idle"]),
        ],
    ),
    "SEM-12 nothing is flushed by a channel that was left out": (
        3,
        [
            (0, 100, []),
            (1, 50, []),
            (2, 70, [50]),
            (1, "idle", [70]),
            (1, "active", []),
            (1, 60, []),
            (0, "idle", []),
            (2, "idle", []),
            (1, "idle", ["idle"]),
        ],
    ),
    "SEM-13 a channel that woke up behind is left out until it has caught up": (
        3,
        [
            (0, 10, []),
            (1, 7, []),
            (2, 3, [3]),
            (2, "idle", [7]),
            (2, "active", []),
            (2, 5, []),
            (2, 9, []),
            (1, 12, [9]),
        ],
    ),
    "a channel that is left out does not hold the others back": (
        3,
        [
            (0, 10, []),
            (1, 7, []),
            (2, 3, [3]),
            (2, "idle", [7]),
            (2, "active", []),
            (2, 5, []),
            (1, 12, [10]),
        ],
    ),
    "SEM-14 nothing leaks when only a channel without a watermark is active": (
        3,
        [
            (0, 10, []),
            (1, 7, []),
            (2, "idle", [7]),
            (2, "active", []),
            (0, "idle", []),
            (1, "idle", []),
        ],
    ),
    "SEM-15 becoming idle again while left out changes nothing": (
        2,
        [
            (0, 7, []),
            (1, 10, [7]),
            (0, "idle", [10]),
            (0, "active", []),
            (0, 9, []),
            (0, "idle", []),
        ],
    ),
    "SEM-16 waking up ahead advances the output with the next watermark": (
        3,
        [
            (0, 10, []),
            (1, 7, []),
            (2, "idle", [7]),
            (2, "active", []),
            (0, "idle", []),
            (1, "idle", []),
            (0, "active", []),
            (0, 11, [11]),
            (2, "idle", []),
        ],
    ),
    "SEM-17 a watermark is not passed on twice": (
        3,
        [
            (0, 10, []),
            (1, 20, []),
            (2, 30, [10]),
            (2, "idle", []),
            (0, "idle", [20]),
            (0, "active", []),
            (1, "idle", []),
            (2, "active", []),
            (2, 31, [31]),
            (0, "idle", []),
            (2, "idle", ["idle"]),
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_valve(name: str) -> None:
    """SEM-1, SEM-2, SEM-3, SEM-4, SEM-5, SEM-6, SEM-7, SEM-8, SEM-9, SEM-10, SEM-11,
    SEM-13, SEM-14, SEM-15.
    """
    channels, steps = CASES[name]
    valve = StatusWatermarkValve(channels)
    for number, (channel, what, expected) in enumerate(steps):
        assert feed(valve, channel, what) == expected, f"step {number}"


INPUTS = st.integers(0, 30) | st.sampled_from(["idle", "active"])


@given(st.integers(1, 4), st.data())
def test_watermarks_only_grow_and_statuses_alternate(channels: int, data: Any) -> None:
    valve = StatusWatermarkValve(channels)
    last, status = MIN_TIMESTAMP, "active"
    steps = data.draw(st.lists(st.tuples(st.integers(0, channels - 1), INPUTS)))
    for channel, what in steps:
        for output in feed(valve, channel, what):
            if isinstance(output, int):
                assert (output > last, status) == (True, "active")
                last = output
            else:
                assert output != status
                status = output
    assert (valve.last_watermark, valve.status.value) == (last, status)


@given(st.integers(1, 4), st.data())
def test_the_output_is_the_minimum_of_channels_that_never_sleep(
    channels: int, data: Any
) -> None:
    valve = StatusWatermarkValve(channels)
    highest = [MIN_TIMESTAMP] * channels
    steps = st.tuples(st.integers(0, channels - 1), st.integers(-50, 50))
    for channel, watermark in data.draw(st.lists(steps)):
        feed(valve, channel, watermark)
        highest[channel] = max(highest[channel], watermark)
        assert valve.last_watermark == min(highest)


def test_a_shared_channel_sleeps_as_a_whole() -> None:
    valve = StatusWatermarkValve.shared([range(2), [7]])
    assert valve.input_watermark(5, 0, 0) == ()
    assert valve.input_watermark(9, 1, 7) == ()
    assert valve.input_status(WatermarkStatus.IDLE, 0) == [Watermark(9)]


def test_a_valve_has_a_channel() -> None:
    with pytest.raises(InvalidArgumentError, match="channels"):
        StatusWatermarkValve(0)
