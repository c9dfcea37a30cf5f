"""The fast ways give exactly what the general one gives."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from aiomailbox.durations import millis
from aiomailbox.operators.aggregates.functions import (
    aggregates,
    collect_list,
    commutative,
    count,
    max_,
    mean,
    min_,
    sum_,
)
from aiomailbox.records.events import (
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    OutputTag,
    StreamRecord,
)
from aiomailbox.state.descriptors import AggregateFunction
from aiomailbox.testing import OneInputHarness
from aiomailbox.windowing.aggregate import TumblingAggregateOperator
from aiomailbox.windowing.assigners import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowAssigner,
)
from aiomailbox.windowing.build import window_operator
from aiomailbox.windowing.operator import WindowOperator
from aiomailbox.windowing.panes import PanedAggregateOperator
from aiomailbox.windowing.session_aggregate import SessionAggregateOperator

LATE = OutputTag("late")
RECORDS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(-40, 60)), min_size=1, max_size=12
)
STEPS = st.lists(st.one_of(RECORDS, st.integers(-30, 80)), max_size=12)
ASSIGNERS = st.one_of(
    st.integers(1, 20).flatmap(
        lambda size: st.builds(
            TumblingEventTimeWindows, st.just(size), st.integers(-size + 1, size - 1)
        )
    ),
    st.builds(SlidingEventTimeWindows, st.integers(1, 20), st.integers(1, 20)),
    st.just(EventTimeSessionWindows(lambda record: 1 + record[1] % 7)),
)


@st.composite
def paned(draw: st.DrawFn) -> SlidingEventTimeWindows:
    """Return windows that share panes; the slide need not divide the size."""
    pane, panes_per_slide = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    panes = draw(st.integers(2 * panes_per_slide, 5 * panes_per_slide))
    slide = pane * panes_per_slide
    offset = draw(st.integers(1 - slide, slide - 1))
    return SlidingEventTimeWindows(pane * panes, slide, offset)


@st.composite
def bridged(draw: st.DrawFn, gap: int) -> list[Any]:
    """Return steps with pairs of sessions that a third record joins, or comes late to.

    The three records of a bridge come in any order, and so do the bridges: what is
    joined may be joined again, with watermarks in between.
    """
    steps: list[Any] = draw(st.lists(st.integers(-30, 80), max_size=4))
    for _ in range(draw(st.integers(1, 4))):
        key, left = draw(st.sampled_from("aab")), draw(st.integers(-40, 60))
        apart = draw(st.integers(1, gap))
        middle = left + draw(st.integers(apart, gap))
        for stamp in (left, left + gap + apart, middle):
            run = draw(st.integers(0, len(steps)))
            if run < len(steps) and isinstance(steps[run], list):
                steps[run].append((key, stamp))
            else:
                steps.insert(run, [(key, stamp)])
    return steps


SESSIONS = st.integers(1, 20).flatmap(
    lambda gap: st.tuples(st.just(EventTimeSessionWindows(gap)), bridged(gap))
)


def operator_for(assigner: WindowAssigner, **options: Any) -> Any:
    return window_operator(lambda record: record[0], assigner, **options)


class Drive:
    """Runs steps: lists of records, and watermarks."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make
        self.watermark = MIN_TIMESTAMP
        self.late: list[Any] = []
        self.open(None, with_watermark=False)

    def open(self, state: object, *, with_watermark: bool) -> None:
        self.harness = OneInputHarness(self.make(), keyed=True)
        self.harness.restore(state)
        self.harness.open()
        if with_watermark and self.watermark != MIN_TIMESTAMP:
            self.harness.process_watermark(self.watermark)
            # It knows that one already.
            assert self.harness.take_output() == []

    def restart(self, *, with_watermark: bool) -> None:
        """Go on from a snapshot, which event time is a part of: it does not go back."""
        state = self.harness.snapshot()
        self.late += self.harness.side_output(LATE)
        self.open(state, with_watermark=with_watermark)

    def step(self, number: int, step: Any) -> list[Any]:
        """Return what came out; firings of one moment may come in any order."""
        if isinstance(step, int):
            self.watermark = max(self.watermark, step)
            self.harness.process_watermark(self.watermark)
        else:
            values = [(key, number * 100 + i) for i, (key, _) in enumerate(step)]
            self.harness.process_run(values, [stamp for _, stamp in step])
        output = self.harness.take_output()
        records = [element for element in output if isinstance(element, StreamRecord)]
        assert output[: len(records)] == records, "the watermark comes last"
        if isinstance(step, int):
            stamps: list[Any] = [record.timestamp for record in records]
            assert stamps == sorted(stamps)
            records.sort()
        return records


def outcome(
    make: Callable[[], Any], steps: list[Any], cut: int | None, *, with_watermark: bool
) -> list[Any]:
    drive = Drive(make)
    found: list[Any] = []
    for number, step in enumerate([*steps, MAX_TIMESTAMP]):
        found.append(drive.step(number, step))
        if number == cut:
            drive.restart(with_watermark=with_watermark)
    dropped = drive.harness.context.metrics.counter("num_late_records_dropped").value
    return [*found, drive.late + drive.harness.side_output(LATE), dropped]


@settings(
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
    ]
)
@given(
    windows=st.one_of(st.tuples(ASSIGNERS, STEPS), SESSIONS),
    lateness=st.sampled_from([millis(0), millis(3), millis(20)]),
    tag=st.sampled_from([None, LATE]),
    cut=st.one_of(st.none(), st.integers(0, 12)),
    with_watermark=st.booleans(),
)
def test_the_fast_way_and_the_general_one_give_the_same(
    general_trigger: Any,
    windows: tuple[WindowAssigner, list[Any]],
    lateness: timedelta,
    tag: OutputTag | None,
    cut: int | None,
    with_watermark: bool,
) -> None:
    assigner, steps = windows
    options: dict[str, Any] = {
        "aggregate": aggregates(n=count(), all=collect_list(lambda record: record[1])),
        "allowed_lateness": lateness,
        "late_tag": tag,
    }

    def fast() -> Any:
        return operator_for(assigner, **options)

    def general() -> Any:
        return operator_for(assigner, trigger=general_trigger, **options)

    assert isinstance(fast(), TumblingAggregateOperator | SessionAggregateOperator)
    assert isinstance(general(), WindowOperator)
    found = outcome(fast, steps, cut, with_watermark=with_watermark)
    assert found == outcome(general, steps, cut, with_watermark=with_watermark)


class Distinct(AggregateFunction):
    """Collects the numbers, in a set that is changed in place."""

    def create_accumulator(self) -> set[int]:
        return set()

    def add(self, value: Any, accumulator: set[int]) -> set[int]:
        accumulator.add(value[1])
        return accumulator

    def get_result(self, accumulator: set[int]) -> Any:
        return sorted(accumulator)

    def merge(self, first: set[int], second: set[int]) -> set[int]:
        first |= second
        return first


def number_of(record: Any) -> int | None:
    number: int = record[1]
    return None if number % 5 == 4 else number


FOLDINGS: list[Callable[[], dict[str, Any]]] = [
    lambda: {
        "aggregate": aggregates(
            n=count(),
            odd=count(where=lambda record: record[1] % 2),
            total=sum_(number_of),
            mean=mean(number_of),
            least=min_(number_of),
            most=max_(number_of),
            all=commutative(Distinct)(),
        )
    },
    lambda: {"aggregate": commutative(Distinct)()},
    lambda: {"reduce": commutative(lambda one, two: (one[0], one[1] + two[1]))},
]


@settings(
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
    ]
)
@given(
    assigner=paned(),
    steps=STEPS,
    folding=st.sampled_from(FOLDINGS),
    lateness=st.sampled_from([millis(0), millis(3), millis(20)]),
    tag=st.sampled_from([None, LATE]),
    cut=st.one_of(st.none(), st.integers(0, 12)),
    with_watermark=st.booleans(),
)
def test_windows_that_share_panes_give_what_the_general_way_gives(
    general_trigger: Any,
    assigner: SlidingEventTimeWindows,
    steps: list[Any],
    folding: Callable[[], dict[str, Any]],
    lateness: timedelta,
    tag: OutputTag | None,
    cut: int | None,
    with_watermark: bool,
) -> None:
    def operator(**trigger: Any) -> Any:
        return operator_for(
            assigner,
            allowed_lateness=lateness,
            late_tag=tag,
            **folding(),
            **trigger,
        )

    def general() -> Any:
        return operator(trigger=general_trigger)

    assert isinstance(operator(), PanedAggregateOperator)
    assert isinstance(general(), WindowOperator)
    found = outcome(operator, steps, cut, with_watermark=with_watermark)
    assert found == outcome(general, steps, cut, with_watermark=with_watermark)


def test_a_record_joins_the_sessions_on_both_sides_of_it_with_all_they_hold() -> None:
    operator = operator_for(
        EventTimeSessionWindows(10), aggregate=collect_list(lambda record: record[1])
    )
    assert isinstance(operator, SessionAggregateOperator)
    with OneInputHarness(operator, keyed=True) as harness:
        harness.process_run([("a", 1), ("a", 2), ("a", 3)], [0, 16, 8])
        harness.process_watermark(100)
        assert [(sorted(r), t) for r, t in map(tuple, harness.output[:-1])] == [
            ([1, 2, 3], 25)
        ]


@pytest.mark.parametrize("lateness_ms", [0, 3])
@pytest.mark.parametrize("is_fast", [True, False])
def test_a_record_is_late_from_the_watermark_on_that_ends_its_session_and_lateness(
    general_trigger: Any, lateness_ms: int, is_fast: bool
) -> None:
    options: dict[str, Any] = {} if is_fast else {"trigger": general_trigger}
    for watermark in range(5, 15):
        operator = operator_for(
            EventTimeSessionWindows(10),
            allowed_lateness=millis(lateness_ms),
            aggregate=count(),
            **options,
        )
        assert isinstance(operator, SessionAggregateOperator) is is_fast
        with OneInputHarness(operator, keyed=True) as harness:
            harness.process_watermark(watermark)
            harness.process_run([("a", 1)], [0])
            harness.process_watermark(100)
            is_late = 9 + lateness_ms <= watermark
            assert harness.values == ([] if is_late else [1])
