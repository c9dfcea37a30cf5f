"""Laws of a source that waits for others of its group."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from aiomailbox.durations import seconds
from aiomailbox.errors import IllegalStateError
from aiomailbox.eventtime.alignment import AlignmentGroup
from aiomailbox.eventtime.strategy import AlignmentConfig, WatermarkStrategy
from aiomailbox.operators.sources.operator import SourceMode, SourceOperator
from aiomailbox.operators.sources.source import InputStatus
from aiomailbox.records.events import MAX_TIMESTAMP, StopMode, StreamRecord
from aiomailbox.testing import PAUSE, OperatorHarness, ScriptedSource
from aiomailbox.testing.scripted_source import ScriptSplit

CONFIG = AlignmentConfig("group", 100, 1000)
ALIGNED = WatermarkStrategy.for_monotonous_timestamps().with_watermark_alignment(
    "group", timedelta(milliseconds=100)
)


def started(
    source: ScriptedSource,
    strategy: WatermarkStrategy = ALIGNED,
    splits: list[str] | None = None,
) -> OperatorHarness:
    harness = OperatorHarness(SourceOperator(source, strategy))
    harness.open()
    names = source.scripts if splits is None else splits
    harness.operator.add_splits([ScriptSplit(name) for name in names])
    return harness


def group(harness: OperatorHarness) -> AlignmentGroup:
    found = harness.context.alignment(CONFIG)
    assert isinstance(found, AlignmentGroup)
    return found


def tick(harness: OperatorHarness) -> None:
    """Let one update interval pass."""
    service = harness.context.manual_time
    harness.set_processing_time(service.current_processing_time() + 1000)


def timed(*stamps: Any) -> ScriptedSource:
    script = [s if s is PAUSE else (f"at {s}", s) for s in stamps]
    return ScriptedSource(script, timed=True)


def poll(harness: OperatorHarness) -> InputStatus:
    status, pending = harness.operator.poll()
    assert pending is None
    return status


def values(harness: OperatorHarness) -> list[Any]:
    return [
        record.value for record in harness.output if isinstance(record, StreamRecord)
    ]


def test_a_source_beyond_the_limit_emits_nothing_until_the_limit_moves() -> None:
    """SEM-34."""
    harness = started(timed(1001, 2001, 3001))
    group(harness).report("slow", 500)
    assert poll(harness) is InputStatus.NOTHING_AVAILABLE
    assert harness.operator.mode is SourceMode.WAITING
    assert not harness.operator.availability.available
    assert poll(harness) is InputStatus.NOTHING_AVAILABLE
    assert values(harness) == ["at 1001"]
    told: list[str] = []
    harness.operator.availability.on_available(lambda: told.append("go"))
    group(harness).report("slow", 900)
    tick(harness)
    assert told == ["go"]
    assert harness.operator.mode is SourceMode.READING
    poll(harness)
    assert values(harness) == ["at 1001", "at 2001"]
    assert harness.operator.mode is SourceMode.WAITING


def test_a_source_reports_its_first_watermark_at_once_and_others_on_time() -> None:
    harness = started(timed(11, 12))
    assert group(harness).limit() == MAX_TIMESTAMP
    poll(harness)
    assert group(harness).limit() == 110
    poll(harness)
    assert group(harness).limit() == 110
    tick(harness)
    assert group(harness).limit() == 111


def test_a_source_without_splits_reports_nothing() -> None:
    """SEM-36."""
    harness = started(timed(11), splits=[])
    tick(harness)
    assert group(harness).limit() == MAX_TIMESTAMP


def test_what_a_killed_predecessor_has_reported_holds_nobody_back() -> None:
    """It could not say that it ended, and the successor may get no split."""
    harness = OperatorHarness(SourceOperator(timed(1001), ALIGNED))
    context = harness.context
    name = f"{context.task_name}/{context.operator_name}"
    group(harness).report(name, 500)
    harness.open()
    tick(harness)
    assert group(harness).limit() == MAX_TIMESTAMP


def test_an_idle_source_holds_nobody_back_until_it_has_records_again() -> None:
    strategy = ALIGNED.with_idleness(seconds(2.0))
    harness = started(timed(11, PAUSE, 5, PAUSE), strategy)
    while poll(harness) is InputStatus.MORE_AVAILABLE:
        pass
    assert group(harness).limit() == 110
    for _ in range(6):
        harness.context.clock.advance(1)
        tick(harness)
    assert group(harness).limit() == MAX_TIMESTAMP
    # An old event time: the stream stays idle, but its records count.
    harness.operator.source.resume()
    poll(harness)
    tick(harness)
    assert group(harness).limit() == 110


def test_a_source_that_waits_is_not_idle() -> None:
    harness = started(timed(1001, 2001), ALIGNED.with_idleness(seconds(2.0)))
    group(harness).report("slow", 500)
    poll(harness)
    for _ in range(6):
        harness.context.clock.advance(1)
        tick(harness)
    group(harness).report("slow", MAX_TIMESTAMP)
    assert group(harness).limit() == 1100


def test_stopping_a_source_that_waits_ends_the_waiting() -> None:
    """SEM-37."""
    harness = started(timed(1001, 2001))
    group(harness).report("slow", 500)
    poll(harness)
    told: list[str] = []
    harness.operator.availability.on_available(lambda: told.append("go"))
    harness.operator.stop(StopMode.NO_DRAIN)
    assert told == ["go"]
    assert poll(harness) is InputStatus.STOPPED
    group(harness).forget("slow")
    assert group(harness).limit() == MAX_TIMESTAMP


def test_a_source_that_has_ended_reports_the_end_of_time() -> None:
    """SEM-39."""
    harness = started(timed(11))
    harness.operator.notify_no_more_splits()
    poll(harness)
    assert poll(harness) is InputStatus.END_OF_DATA
    assert harness.operator.emit_max_watermark() is None
    assert group(harness).limit() == MAX_TIMESTAMP


def test_a_reader_that_cannot_pause_one_of_its_splits_says_so() -> None:
    source = ScriptedSource({"a": [("x", 901), PAUSE], "b": [("y", 5)]}, timed=True)
    harness = started(source)
    group(harness).report("slow", 500)
    with pytest.raises(IllegalStateError, match="cannot pause single splits"):
        while poll(harness) is InputStatus.MORE_AVAILABLE:
            pass


def test_a_reader_pauses_the_split_that_is_ahead_and_resumes_it() -> None:
    source = ScriptedSource(
        {
            "a": [("x", 901), PAUSE, PAUSE],
            "b": [("y", 5), PAUSE, ("z", 901), PAUSE],
        },
        timed=True,
    )
    harness = started(source)
    changes: list[tuple[list[str], list[str]]] = []
    harness.operator.reader.pause_or_resume_splits = lambda pause, resume: (
        changes.append((pause, resume))
    )
    group(harness).report("slow", 500)
    while poll(harness) is InputStatus.MORE_AVAILABLE:
        pass
    assert changes == [(["a"], [])]
    group(harness).report("slow", 2000)
    tick(harness)
    harness.operator.reader.resume()
    while poll(harness) is InputStatus.MORE_AVAILABLE:
        pass
    tick(harness)
    assert changes == [(["a"], []), (["b"], []), ([], ["a", "b"])]
