"""What happens for every record is logged once a second, with the sum."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import aiomailbox as am
from aiomailbox.operators.core.context import RepeatedWarnings
from aiomailbox.testing import ManualClock, RecordingLog


def said(log: RecordingLog) -> list[tuple[str, int, int, str]]:
    return [
        (event, fields["count"], fields["total"], fields["first_error"])
        for _, event, fields in log.entries
    ]


def test_the_first_is_said_at_once_and_the_sum_of_others_a_second_later() -> None:
    log, clock = RecordingLog(), ManualClock()
    warnings = RepeatedWarnings(log, clock)
    warnings.add("skipped", 3, ValueError(0))
    for number in range(1, 100):
        clock.advance(0.0099)
        warnings.add("skipped", 1, ValueError(number))
    assert said(log) == [("skipped", 3, 3, "ValueError(0)")]
    clock.advance(0.1)
    warnings.add("skipped", 1, ValueError(100))
    warnings.add("skipped", 1, ValueError(101))
    assert said(log)[1:] == [("skipped", 100, 103, "ValueError(1)")]
    warnings.flush()
    warnings.flush()
    assert said(log)[2:] == [("skipped", 1, 104, "ValueError(101)")]


def test_what_is_different_is_counted_apart() -> None:
    log = RecordingLog()
    warnings = RepeatedWarnings(log, ManualClock())
    for event in ("skipped", "failed", "skipped"):
        warnings.add(event, 1, ValueError())
    warnings.flush()
    assert [(event, count) for event, count, *_ in said(log)] == [
        ("skipped", 1),
        ("failed", 1),
        ("skipped", 1),
    ]


async def test_a_flood_of_skipped_records_is_a_line_a_second_and_the_rest_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Five seconds of 1,200 bad records each."""
    log = RecordingLog()
    monkeypatch.setattr("aiomailbox.runtime.deployment.library_log", lambda **_: log)

    async def bad_records() -> AsyncIterator[str]:
        for _ in range(6_000):
            yield "n/a"
            await asyncio.sleep(1 / 1200)

    env = am.StreamExecutionEnvironment()
    stream = env.from_async_iterable(bad_records)
    assert await stream.map(float, on_error=am.skip).collect() == []
    lines = [fields for _, event, fields in log.entries if event == "records skipped"]
    assert 5 <= len(lines) <= 7
    assert sum(fields["count"] for fields in lines) == 6_000
    assert lines[-1]["total"] == 6_000
