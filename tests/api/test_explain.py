"""What `explain` tells of a job's settings: each line, as the user wrote them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am

HERE = Path(__file__).name
Env = am.StreamExecutionEnvironment
Events = am.WatermarkStrategy


def told(env: Env, start: str) -> list[str]:
    """Return the lines of the explanation that begin like this."""
    lines = [line.strip() for line in env.explain().splitlines()]
    return [line for line in lines if line.startswith(start)]


def ignore(record: Any) -> None:
    pass


async def itself(record: Any) -> Any:
    return record


@pytest.mark.parametrize(
    ("limit", "line"),
    [
        (am.RateLimit(5), "limit: 5 units in 1 s"),
        (
            am.RateLimit(90_000, per=60, name="openai", unit="tokens", budget=1e6),
            "limit 'openai': 90000 tokens in 1 min, 1000000 in all",
        ),
        (
            am.RateLimit(10, per=am.millis(250), burst=2, per_task=True),
            "limit: 10 units in 250 ms, 2 at once, for each task",
        ),
    ],
)
def test_rate_limits_are_told(limit: am.RateLimit, line: str) -> None:
    env = Env()
    calls = env.from_collection([1]).map_async(itself, limit=limit)
    calls.rate_limit(am.RateLimit(7)).sink_to(ignore)
    assert told(env, "limit") == [line, "limit: 7 units in 1 s"]


def time_of(record: Any) -> int:
    return int(record)


@pytest.mark.parametrize(
    ("strategy", "line"),
    [
        (
            Events.for_monotonous_timestamps(),
            "event times of the records, watermarks in order",
        ),
        (
            Events.for_bounded_out_of_orderness(am.seconds(90))
            .with_timestamp_assigner("at")
            .with_idleness(am.minutes(2)),
            (
                "event times from 'at', watermarks 90 s behind the newest record, idle "
                "after 2 min"
            ),
        ),
        (
            Events.no_watermarks().with_timestamp_assigner(time_of),
            (
                f"event times by time_of ({HERE}:{time_of.__code__.co_firstlineno}), no "
                "watermarks before the end"
            ),
        ),
        (
            Events.for_monotonous_timestamps().with_watermark_alignment(
                "clicks", am.minutes(5)
            ),
            (
                "event times of the records, watermarks in order, at most 5 min ahead in "
                "group 'clicks'"
            ),
        ),
    ],
)
def test_watermark_strategies_are_told(strategy: Any, line: str) -> None:
    env = Env()
    env.from_collection([1], strategy).sink_to(ignore)
    if strategy.alignment is None:
        later = env.from_collection([1]).assign_timestamps_and_watermarks(strategy)
        later.sink_to(ignore)
    found = told(env, "event times")
    assert found
    # A line names a function by its file and line.
    assert {text.replace(f"{Path(__file__).parent}/", "") for text in found} == {line}
    assert len(found) == (2 if strategy.alignment is None else 1)


def test_a_source_without_event_time_has_no_line_of_it() -> None:
    env = Env()
    env.from_collection([1]).sink_to(ignore)
    assert told(env, "event times") == []


@pytest.mark.parametrize(
    ("windows", "line"),
    [
        (
            lambda keyed: keyed.window(
                am.TumblingEventTimeWindows.of(am.days(1), am.hours(-8))
            ).allowed_lateness(am.minutes(3)),
            (
                "windows: TumblingEventTimeWindows of 1 d, offset -8 h; allowed lateness "
                "3 min"
            ),
        ),
        (
            lambda keyed: keyed.window(
                am.SlidingEventTimeWindows.of(am.minutes(10), am.minutes(5))
            ).side_output_late_data(am.OutputTag("late")),
            (
                "windows: SlidingEventTimeWindows of 10 min every 5 min; late records to "
                "'late'"
            ),
        ),
        (
            lambda keyed: keyed.window(
                am.ProcessingTimeSessionWindows.with_gap(am.seconds(1.5))
            ).trigger(am.PurgingTrigger.of(am.CountTrigger.of(3))),
            (
                "windows: ProcessingTimeSessionWindows with a gap of 1500 ms; trigger "
                "PurgingTrigger of CountTrigger of 3"
            ),
        ),
        (
            lambda keyed: (
                keyed.window(am.GlobalWindows.create())
                .trigger(am.ContinuousEventTimeTrigger.of(am.seconds(5)))
                .evictor(am.CountEvictor.of(2, after=True))
            ),
            (
                "windows: GlobalWindows; trigger ContinuousEventTimeTrigger of 5 s; evictor "
                "CountEvictor of 2, after the function"
            ),
        ),
    ],
)
def test_windows_are_told(windows: Callable[[Any], Any], line: str) -> None:
    env = Env()
    windows(env.from_collection([1]).key_by(time_of)).reduce(max).sink_to(ignore)
    assert told(env, "windows") == [line]
    (plan,) = [
        one["settings"]
        for vertex in json.loads(env.explain(format="json"))["vertices"]
        for one in vertex["operators"]
        if one["settings"]
    ]
    assert plan == [line]


def test_the_interval_of_a_join_is_told() -> None:
    env = Env()
    left, right = (env.from_collection([1]).key_by(time_of) for _ in range(2))
    joined = left.interval_join(right).between(am.seconds(-5), am.minutes(1))
    joined.process(max).sink_to(ignore)
    assert told(env, "the right record") == [
        "the right record is -5 s to 1 min later than the left one"
    ]


def test_it_is_told_where_checkpoints_go() -> None:
    env = Env()
    env.from_collection([1]).sink_to(ignore)
    assert told(env, "Checkpoints") == []
    env.enable_checkpointing(am.seconds(10))
    assert told(env, "Checkpoints") == [
        "Checkpoints: every 10 s, to a temporary directory, which ends with the job."
    ]
    env.enable_checkpointing(
        None, directory="/jobs", retained=3, journal_directory="/journals"
    )
    assert told(env, "Checkpoints") == [
        (
            "Checkpoints: when asked for, to /jobs, which keeps the last 3, journals to "
            "/journals."
        )
    ]
