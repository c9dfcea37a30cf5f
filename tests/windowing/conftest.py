"""Drives a window operator through a scenario, and maybe restarts it at each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from aiomailbox.operators.core.operator import Operator
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.records.events import (
    MIN_TIMESTAMP,
    OutputTag,
    StreamRecord,
    Watermark,
)
from aiomailbox.testing import OneInputHarness
from aiomailbox.windowing.assigners import WindowAssigner
from aiomailbox.windowing.build import window_operator
from aiomailbox.windowing.functions import ProcessWindowFunction
from aiomailbox.windowing.triggers import EventTimeTrigger

LATE = OutputTag("late")


class GeneralTrigger(EventTimeTrigger):
    """The default trigger, but not by name: so the fast way does not apply."""


class SumWithWindow(ProcessWindowFunction):
    """Emits the key, the sum of the values, and the window."""

    def process(self, key: Any, context: Any, elements: list[Any], out: Any) -> None:
        window = context.window
        out.collect((key, elements[0][1], window.start, window.end))


def added(first: tuple[str, int], second: tuple[str, int]) -> tuple[str, int]:
    return first[0], first[1] + second[1]


class Scenario:
    """Feeds ``(key, number)`` records and tells what comes out.

    With ``restarts`` the operator is replaced after each step by one that was restored
    from its snapshot.
    """

    late = LATE

    def __init__(self, make: Callable[[], Operator], *, restarts: bool) -> None:
        self._make = make
        self._restarts = restarts
        self._watermark = MIN_TIMESTAMP
        self._now = 0
        self._late: list[StreamRecord] = []
        self.dropped = 0
        self.harness = self._open(None)

    def feed(self, key: str, *stamps: int, number: int = 1) -> list[Any]:
        """Process records of one key; return ``(value, timestamp)`` of the output."""
        return self._step(
            self.harness.process_run, [(key, number)] * len(stamps), list(stamps)
        )

    def watermark(self, timestamp_ms: int) -> list[Any]:
        """Advance event time; the watermark must be the last thing that comes out."""
        self._watermark = timestamp_ms
        return self._step(self.harness.process_watermark, timestamp_ms)

    def time(self, now_ms: int) -> list[Any]:
        """Advance processing time."""
        self._now = now_ms
        return self._step(self.harness.set_processing_time, now_ms)

    def late_records(self) -> list[Any]:
        """Return the records that came too late, and forget them."""
        taken, self._late = self._late, []
        return [(record.value, record.timestamp) for record in taken]

    def restart(self) -> None:
        """Go on with a new operator."""
        state = self.harness.snapshot()
        self._collect_side_effects()
        self.harness.close()
        self.harness = self._open(state)

    def is_empty(self) -> bool:
        """Say whether the operator holds nothing: no state, no timers."""
        state = self.harness.snapshot()
        timers = state.timers.values()
        return not any(keyed.key_groups for keyed in state.keyed) and not any(
            service.event or service.processing for service in timers
        )

    def _step(self, method: Callable[..., None], *args: Any) -> list[Any]:
        method(*args)
        output = self.harness.take_output()
        if method == self.harness.process_watermark:
            assert output.pop() == Watermark(self._watermark)
        assert all(isinstance(element, StreamRecord) for element in output)
        if self._restarts:
            self.restart()
        else:
            self._collect_side_effects()
        return [tuple(record) for record in output]

    def _collect_side_effects(self) -> None:
        self._late += self.harness.recorded.sides.pop(LATE, [])
        counter = self.harness.context.metrics.counter("num_late_records_dropped")
        self.dropped += counter.value
        counter.value = 0

    def _open(self, state: OperatorSnapshot | None) -> OneInputHarness:
        harness = OneInputHarness(self._make(), keyed=True)
        harness.set_processing_time(self._now)
        harness.restore(state)
        harness.open()
        return harness


@pytest.fixture(params=[False, True], ids=["straight", "restarting"])
def restarts(request: pytest.FixtureRequest) -> bool:
    """Whether the operator is restarted at every step."""
    restarting: bool = request.param
    return restarting


@pytest.fixture
def scenario(restarts: bool) -> Callable[..., Scenario]:
    """Make a scenario in which the numbers of each key and window are summed up."""

    def make(assigner: WindowAssigner, **options: Any) -> Scenario:
        if not {"reduce", "aggregate", "window_function"} & set(options):
            options["reduce"] = added
        return Scenario(
            lambda: window_operator(lambda record: record[0], assigner, **options),
            restarts=restarts,
        )

    return make


@pytest.fixture(params=[None, GeneralTrigger()], ids=["default", "general"])
def trigger(request: pytest.FixtureRequest) -> EventTimeTrigger | None:
    """The default trigger, so that the fast way is taken where there is one, or not."""
    chosen: EventTimeTrigger | None = request.param
    return chosen


@pytest.fixture
def general_trigger() -> EventTimeTrigger:
    """A trigger like the default one with which the fast way is never taken."""
    return GeneralTrigger()


@pytest.fixture
def sum_with_window() -> ProcessWindowFunction:
    """A window function that tells the window."""
    return SumWithWindow()


@pytest.fixture
def unordered() -> Callable[[Iterable[Any]], list[Any]]:
    """Sort what may come in any order."""
    return sorted
