"""What fired before a restore fires again only with another record.

Where a subtask has the state of several now, or of a savepoint, event time may be behind
what has fired: its records come to windows that have ended, have fired, and are open.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from aiomailbox.durations import millis
from aiomailbox.operators.aggregates.functions import collect_list, sum_
from aiomailbox.operators.core.user_code import skip
from aiomailbox.records.events import MIN_TIMESTAMP, OutputTag, StreamRecord
from aiomailbox.testing import OneInputHarness
from aiomailbox.windowing.assigners import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from aiomailbox.windowing.build import window_operator
from aiomailbox.windowing.operator import WindowOperator

LATE = OutputTag("late")
ASSIGNERS: dict[str, Any] = {
    "tumbling": TumblingEventTimeWindows(10),
    "panes": SlidingEventTimeWindows(10, 5),
    "sliding": SlidingEventTimeWindows(10, 7),
    "sessions": EventTimeSessionWindows(6),
}
# Of a list no two windows share a part; of the record 0 a sum cannot be computed.
FOLDINGS: dict[str, Any] = {
    "sum": lambda: sum_(lambda record: 720 // record[1]),
    "list": lambda: collect_list(lambda record: 720 // record[1]),
}
BEFORE: list[Any] = [
    [("a", 1), ("b", 2), ("c", 3), ("a", 4), ("e", 36)],
    [1, 2, 3, 12, 25],
]
# Records that fail, of one key, and of a key that has fired in none.
AFTER: list[Any] = [
    [[("a", 0), ("c", 0), ("b", 0)], [4, 4, 12]],
    [[("a", 5), ("a", 6), ("d", 8)], [4, 5, 4]],
    [[("a", 30)], [3]],
    9,
    [[("b", 9)], [6]],
    [[("c", 0)], [6]],
    13,
    [[("c", 10), ("e", 12)], [6, 9]],
    22,
    [[("a", 15)], [13]],
    28,
    [[("a", 16), ("b", 18)], [3, 6]],
    29,
    [[("a", 20), ("b", 24)], [3, 19]],
    60,
]


class Driven:
    """An operator whose event time is behind after each restore."""

    def __init__(self, make: Any, lateness: int) -> None:
        self.make = make
        self.late: list[Any] = []
        self.harness: Any = None
        self.start(lateness, None)

    def start(self, lateness: int, state: Any) -> None:
        self.harness = OneInputHarness(self.make(lateness), keyed=True)
        self.harness.restore(state)
        self.harness.open()

    def restart(self, lateness: int, watermark: int) -> None:
        self.late += self.harness.side_output(LATE)
        state = replace(self.harness.snapshot(), watermark=watermark)
        self.start(lateness, state)

    def step(self, step: Any) -> list[Any]:
        if isinstance(step, int):
            self.harness.process_watermark(step)
        else:
            self.harness.process_run(*step)
        output = self.harness.take_output()
        found = [
            (one.timestamp, one.value) for one in output if type(one) is StreamRecord
        ]
        return sorted(found)


def outcome(
    make: Any, lateness: tuple[int, int], watermark: int, *, again: int | None
) -> tuple[list[Any], Any]:
    driven = Driven(make, lateness[0])
    found = [driven.step(BEFORE), driven.step(22)]
    driven.restart(lateness[1], watermark)
    for number, step in enumerate(AFTER):
        found.append(driven.step(step))
        if number == again:
            driven.restart(lateness[1], watermark)
    return [*found, driven.late + driven.harness.side_output(LATE)], driven.harness


def kept_by(harness: Any) -> list[Any]:
    """Return what an operator has of windows, and its timers."""
    state = harness.snapshot()
    timers = [
        each for one in state.timers.values() for each in (one.event, one.processing)
    ]
    groups = [*(one.key_groups for one in state.keyed), *timers]
    return [content for each in groups for content in each.values()]


@pytest.mark.parametrize("again", [None, 0, 1, 2, 3])
@pytest.mark.parametrize("lateness", [20, 0])
@pytest.mark.parametrize("folding", FOLDINGS)
@pytest.mark.parametrize("kind", ASSIGNERS)
def test_each_way_gives_what_the_general_one_gives(
    general_trigger: Any,
    kind: str,
    folding: str,
    lateness: int,
    again: int | None,
) -> None:
    def make(trigger: Any, lateness: int) -> Any:
        return window_operator(
            lambda record: record[0],
            ASSIGNERS[kind],
            aggregate=FOLDINGS[folding](),
            trigger=trigger,
            allowed_lateness=millis(lateness),
            late_tag=LATE,
            on_error=skip,
        )

    for watermark in (MIN_TIMESTAMP, 5):
        (fast, harness), (general, other) = (
            outcome(partial(make, trigger), (lateness, 20), watermark, again=again)
            for trigger in (None, general_trigger)
        )
        assert not isinstance(harness.operator, WindowOperator)
        assert fast == general
        assert kept_by(harness) == kept_by(other) == []


@pytest.mark.parametrize("is_general", [False, True])
@pytest.mark.parametrize("kind", ["tumbling", "panes", "sliding"])
def test_what_was_kept_for_late_records_goes_where_none_is_taken_any_more(
    general_trigger: Any, kind: str, is_general: bool
) -> None:
    def make(lateness: int) -> Any:
        return window_operator(
            lambda record: record[0],
            ASSIGNERS[kind],
            aggregate=sum_(lambda record: record[1]),
            trigger=general_trigger if is_general else None,
            allowed_lateness=millis(lateness),
        )

    driven = Driven(make, 20)
    driven.step(BEFORE)
    driven.step(22)
    driven.restart(0, MIN_TIMESTAMP)
    assert driven.step([[("a", 5)], [4]]) == []
    # Fired again with what it had, where it has become more.
    assert (9, 6) in driven.step(9)
    assert (9, 2) not in driven.step(22)
    # Timers of a longer lateness come first in the general way.
    driven.step(60)
    assert kept_by(driven.harness) == []
