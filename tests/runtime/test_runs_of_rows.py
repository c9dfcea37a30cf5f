"""What a job of rows does per run of records, not to be felt beside the records."""

from __future__ import annotations

import typing
from typing import Any

import pytest

import aiomailbox as am

COUNT = 20_000


async def test_lists_are_not_asked_for_protocols(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That takes ten microseconds, as much as a hundred records do."""
    asked: list[Any] = []
    checker: Any = type(typing.SupportsInt)
    check = checker.__instancecheck__

    def count(cls: Any, instance: Any) -> bool:
        asked.append(cls)
        return bool(check(cls, instance))

    env = am.StreamExecutionEnvironment(parallelism=2)
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    stream = env.from_collection(
        [(number % 7, number) for number in range(COUNT)]
    ).assign_timestamps_and_watermarks(
        strategy.with_timestamp_assigner(lambda record: record[1])
    )
    counts = (
        stream.key_by(lambda record: record[1])
        .deduplicate()
        .key_by(lambda record: record[0])
        .window(am.TumblingEventTimeWindows.of(am.seconds(COUNT)))
        .aggregate(am.count())
    )
    monkeypatch.setattr(checker, "__instancecheck__", count)
    results = await counts.collect()
    monkeypatch.undo()
    assert sum(results) == COUNT
    names = [one.__name__ for one in asked]
    assert not [name for name in names if name.endswith(("Run", "Columns"))]
