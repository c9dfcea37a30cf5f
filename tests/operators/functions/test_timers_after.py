"""A timer is due at a time, or after a while: the two ways mean the same."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import aiomailbox as am

BASE = am.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
    lambda record: record
)


class Planned(am.KeyedProcessFunction[str, int, tuple[Any, ...]]):
    def __init__(self, plan: Callable[[Any], int]) -> None:
        self.plan = plan

    def process_element(self, value: int, context: Any, out: Any) -> None:
        out.collect(("planned", self.plan(context.timer_service)))

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        out.collect(("due", timestamp, context.time_domain.value))


class PlannedAsync(am.KeyedAsyncProcessFunction[str, int, tuple[Any, ...]]):
    def __init__(self, plan: Callable[[Any], int]) -> None:
        self.plan = plan

    async def process_element(self, value: int, context: Any, out: Any) -> None:
        out.collect(("planned", self.plan(context.timer_service)))

    async def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        out.collect(("due", timestamp, context.time_domain.value))


def applied(function: Any, strategy: Any = BASE) -> Any:
    env = am.StreamExecutionEnvironment()
    keyed = env.from_collection([1_000], strategy).key_by(lambda number: "all")
    if isinstance(function, am.KeyedAsyncProcessFunction):
        return keyed.process_async(function)
    return keyed.process(function)


@pytest.mark.parametrize("kind", [Planned, PlannedAsync])
@pytest.mark.parametrize(
    "plan",
    [
        lambda timers: timers.register_event_time_timer(6_000),
        lambda timers: timers.register_event_time_timer(at=6_000),
        lambda timers: timers.register_event_time_timer(
            at=datetime(1970, 1, 1, 0, 0, 6, tzinfo=UTC)
        ),
        lambda timers: timers.register_event_time_timer(after=am.seconds(5)),
    ],
)
async def test_a_timer_of_event_time_counts_from_that_of_the_record(
    kind: Any, plan: Any
) -> None:
    assert await applied(kind(plan)).collect() == [
        ("planned", 6_000),
        ("due", 6_000, "event_time"),
    ]


@pytest.mark.parametrize("kind", [Planned, PlannedAsync])
async def test_a_timer_of_processing_time_counts_from_now(kind: Any) -> None:
    def plan(timers: Any) -> int:
        now = timers.current_processing_time()
        due: int = timers.register_processing_time_timer(after=am.seconds(5))
        return due - now

    found = await applied(kind(plan)).collect()
    assert found[0] == ("planned", 5_000)


@pytest.mark.parametrize("kind", [Planned, PlannedAsync])
async def test_a_timer_is_deleted_by_the_time_that_registering_it_returned(
    kind: Any,
) -> None:
    def plan(timers: Any) -> int:
        due: int = timers.register_event_time_timer(after=am.seconds(5))
        timers.delete_event_time_timer(due)
        return due

    assert await applied(kind(plan)).collect() == [("planned", 6_000)]


@pytest.mark.parametrize("kind", [Planned, PlannedAsync])
@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (lambda t: t.register_event_time_timer(), "at: a timer needs"),
        (
            lambda t: t.register_event_time_timer(1, after=am.seconds(1)),
            "not both",
        ),
        (
            lambda t: t.register_processing_time_timer(after=5),
            "5 has no unit",
        ),
        (lambda t: t.register_event_time_timer(1.5), "int millis"),
    ],
)
async def test_a_wrong_time_is_refused(kind: Any, plan: Any, text: str) -> None:
    with pytest.raises(am.JobFailedError) as caught:
        await applied(kind(plan)).collect()
    cause = caught.value.__cause__
    assert cause is not None
    assert text in f"{cause} {cause.__cause__}"


@pytest.mark.parametrize("kind", [Planned, PlannedAsync])
async def test_without_an_event_time_there_is_nothing_to_count_from(kind: Any) -> None:
    plan = kind(lambda timers: timers.register_event_time_timer(after=am.seconds(1)))
    with pytest.raises(am.JobFailedError, match="no event time"):
        await applied(plan, None).collect()
