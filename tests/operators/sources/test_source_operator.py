from __future__ import annotations

import asyncio

import pytest

from aiomailbox.durations import seconds
from aiomailbox.errors import (
    IllegalStateError,
    OverdraftCeilingError,
    TimestampError,
    UserFunctionError,
)
from aiomailbox.eventtime.strategy import WatermarkStrategy
from aiomailbox.operators.sources import operator as source_operator
from aiomailbox.operators.sources.operator import SourceMode, SourceOperator
from aiomailbox.operators.sources.source import InputStatus
from aiomailbox.records.events import (
    MAX_TIMESTAMP,
    StopMode,
    StreamRecord,
    Watermark,
    WatermarkStatus,
)
from aiomailbox.records.run import ListRun
from aiomailbox.testing import (
    CRASH,
    PAUSE,
    InjectedFailureError,
    OperatorHarness,
    ScriptedSource,
)
from aiomailbox.testing.scripted_source import ScriptSplit

IN_ORDER = WatermarkStrategy.for_monotonous_timestamps()


def started(source, strategy=IN_ORDER, *, splits=None, no_more=True, **options):
    harness = OperatorHarness(SourceOperator(source, strategy, **options))
    harness.open()
    names = source.scripts if splits is None else splits
    harness.operator.add_splits([ScriptSplit(name) for name in names])
    if no_more:
        harness.operator.notify_no_more_splits()
    return harness


def poll(harness) -> InputStatus:
    status, pending = harness.operator.poll()
    assert pending is None
    return status


def poll_all(harness) -> InputStatus:
    while (status := poll(harness)) is InputStatus.MORE_AVAILABLE:
        pass
    return status


def test_a_run_is_followed_by_the_watermark_if_it_advanced():
    harness = started(ScriptedSource([("a", 5), ("b", 3), ("c", 6)], timed=True))
    poll_all(harness)
    assert harness.output == [
        StreamRecord("a", 5),
        Watermark(4),
        StreamRecord("b", 3),
        StreamRecord("c", 6),
        Watermark(5),
    ]


def test_the_assigner_of_the_strategy_finds_the_event_times():
    strategy = IN_ORDER.with_timestamp_assigner(lambda value: value * 10)
    harness = started(ScriptedSource([1, 2], run_length=2), strategy)
    poll(harness)
    assert harness.output == [StreamRecord(1, 10), StreamRecord(2, 20), Watermark(19)]


def test_without_a_strategy_there_is_no_event_time_until_the_end():
    harness = started(ScriptedSource([("a", 5)], timed=True), None)
    poll_all(harness)
    assert harness.output == [StreamRecord("a", 5)]
    assert harness.operator.emit_max_watermark() is None
    assert harness.output[1:] == [Watermark(MAX_TIMESTAMP)]


def test_the_data_ends_once_and_the_input_for_ever():
    harness = started(ScriptedSource(["a"]))
    assert poll(harness) is InputStatus.MORE_AVAILABLE
    assert poll(harness) is InputStatus.END_OF_DATA
    assert poll(harness) is InputStatus.END_OF_INPUT
    assert poll(harness) is InputStatus.END_OF_INPUT
    assert harness.operator.availability.available


def test_a_split_that_is_assigned_but_not_read_holds_event_time_back():
    """SEM-245."""
    source = ScriptedSource({"a": [("x", 9)], "b": [PAUSE, ("y", 4)]}, timed=True)
    harness = started(source)
    assert poll_all(harness) is InputStatus.NOTHING_AVAILABLE
    assert harness.operator.watermark < 0
    # Split a has ended, so b alone decides.
    source.resume()
    poll_all(harness)
    assert harness.output[-1] == Watermark(3)


def test_event_time_is_the_minimum_over_the_splits():
    source = ScriptedSource(
        {"a": [("x", 9), PAUSE], "b": [("y", 4), PAUSE]}, timed=True
    )
    harness = started(source)
    poll_all(harness)
    assert harness.operator.watermark == 3
    assert harness.operator.split_watermarks() == {"a": 8, "b": 3}


class UnsplitReader:
    """Emits everything on the main output, whatever its splits."""

    def __init__(self, runs):
        from aiomailbox.availability import Availability

        self.availability = Availability(available=True)
        self.runs = runs

    def start(self): ...

    def add_splits(self, splits): ...

    def notify_no_more_splits(self): ...

    def snapshot(self):
        return []

    def close(self): ...

    def poll_next(self, output):
        if not self.runs:
            return InputStatus.END_OF_INPUT
        run = self.runs.pop(0)
        if isinstance(run, Exception):
            raise run
        output.emit_run(run)
        return InputStatus.MORE_AVAILABLE


class UnsplitSource:
    def __init__(self, *runs):
        self.scripts = {"a": [], "b": []}
        self._runs = list(runs)

    def create_reader(self, context):
        return UnsplitReader(self._runs)


def test_a_reader_that_does_not_tell_splits_apart_has_one_watermark():
    harness = started(UnsplitSource(ListRun(["x"], [7])))
    poll(harness)
    assert harness.output == [StreamRecord("x", 7), Watermark(6)]


def test_an_idle_split_lets_the_others_go_on_and_all_idle_is_idle():
    source = ScriptedSource(
        {"a": [("x", 9), PAUSE], "b": [PAUSE, ("y", 20)]}, timed=True
    )
    harness = started(source, IN_ORDER.with_idleness(seconds(1.0)))
    poll_all(harness)
    harness.take_output()
    for now_ms in range(200, 3001, 200):
        harness.set_processing_time(now_ms)
    assert harness.take_output() == [Watermark(8), WatermarkStatus.IDLE]
    source.resume()
    poll_all(harness)
    assert harness.output[1:] == [WatermarkStatus.ACTIVE, Watermark(19)]


def test_the_last_watermark_wakes_an_idle_source_first():
    """SEM-229, at the source."""
    harness = started(ScriptedSource([PAUSE]), IN_ORDER.with_idleness(seconds(1.0)))
    poll_all(harness)
    for now_ms in range(200, 3001, 200):
        harness.set_processing_time(now_ms)
    assert harness.take_output() == [WatermarkStatus.IDLE]
    harness.operator.emit_max_watermark()
    assert harness.output == [WatermarkStatus.ACTIVE, Watermark(MAX_TIMESTAMP)]
    assert harness.context.manual_time.active_timestamps() == []


def test_time_in_which_the_output_takes_nothing_is_not_quiet_time():
    harness = started(ScriptedSource([PAUSE]), IN_ORDER.with_idleness(seconds(1.0)))
    harness.recorded.availability.reset()
    for now_ms in range(200, 5001, 200):
        harness.set_processing_time(now_ms)
    harness.recorded.availability.set_available()
    harness.set_processing_time(5200)
    harness.set_processing_time(6200)
    assert harness.output == []
    harness.set_processing_time(6600)
    assert harness.output == [WatermarkStatus.IDLE]


def test_no_timer_is_armed_for_a_strategy_without_an_idle_timeout():
    harness = started(ScriptedSource(["a"]))
    assert harness.context.manual_time.active_timestamps() == []


@pytest.mark.parametrize(
    ("mode", "status"),
    [
        (StopMode.DRAIN, InputStatus.END_OF_DATA),
        (StopMode.NO_DRAIN, InputStatus.STOPPED),
    ],
)
def test_a_stopped_source_says_so_and_wakes_whoever_waits(mode, status):
    harness = started(ScriptedSource([PAUSE, "a"]))
    assert poll(harness) is InputStatus.NOTHING_AVAILABLE
    woken = []
    harness.operator.availability.on_available(lambda: woken.append(True))
    harness.operator.stop(mode)
    assert woken == [True]
    assert poll(harness) is status
    assert poll(harness) is InputStatus.END_OF_INPUT
    assert harness.operator.mode is SourceMode.DATA_FINISHED
    assert harness.output == []


def test_stopping_a_source_that_has_ended_changes_nothing():
    harness = started(ScriptedSource([]))
    poll_all(harness)
    harness.operator.stop(StopMode.NO_DRAIN)
    assert poll(harness) is InputStatus.END_OF_INPUT


@pytest.mark.parametrize("cut", range(8))
def test_a_cut_anywhere_changes_nothing(cut):
    script = {"a": [("a1", 1), ("a2", 5)], "b": [("b1", 2), ("b2", 3), ("b3", 9)]}
    whole = started(ScriptedSource(script, timed=True))
    poll_all(whole)
    before = started(ScriptedSource(script, timed=True))
    for _ in range(cut):
        poll(before)
    state = before.snapshot()
    after = OperatorHarness(
        SourceOperator(ScriptedSource(script, timed=True), IN_ORDER)
    )
    after.restore(state)
    after.open()
    after.operator.notify_no_more_splits()
    poll_all(after)
    assert sorted(before.values + after.values) == sorted(whole.values)


def test_a_crash_happens_once_and_reading_goes_on_from_the_snapshot():
    source = ScriptedSource(["a", "b", CRASH, "c"])
    before = started(source)
    poll(before)
    state = before.snapshot()
    poll(before)
    with pytest.raises(InjectedFailureError):
        poll(before)
    after = OperatorHarness(SourceOperator(source))
    after.restore(state)
    after.open()
    after.operator.notify_no_more_splits()
    assert poll_all(after) is InputStatus.END_OF_DATA
    assert after.values == ["b", "c"]


def test_splits_and_their_end_may_come_before_the_source_is_open():
    """SEM-244."""
    harness = OperatorHarness(SourceOperator(ScriptedSource(["a"])))
    harness.operator.add_splits([ScriptSplit("script")])
    harness.operator.notify_no_more_splits()
    assert not harness.operator.availability.available
    harness.open()
    assert poll_all(harness) is InputStatus.END_OF_DATA
    assert harness.values == ["a"]


def test_waiting_may_begin_before_the_source_is_open():
    harness = OperatorHarness(SourceOperator(ScriptedSource(["a"])))
    woken = []
    harness.operator.availability.on_available(lambda: woken.append(True))
    harness.open()
    assert woken == []
    harness.operator.add_splits([ScriptSplit("script")])
    assert woken == [True]


def test_a_reader_is_told_how_long_a_run_may_be():
    harness = started(ScriptedSource(list(range(99)), run_length=100), records_max=4)
    poll(harness)
    harness.operator.limit_runs(3)
    poll(harness)
    harness.operator.limit_runs(50)
    poll(harness)
    assert [len(run) for run in harness.recorded.runs] == [4, 3, 4]


def test_a_failing_reader_fails_with_the_operators_name():
    harness = started(UnsplitSource(ValueError("disk")))
    with pytest.raises(UserFunctionError, match="disk") as raised:
        poll(harness)
    assert raised.value.operator == "operator"


def test_a_record_without_event_time_names_the_operator():
    strategy = IN_ORDER.with_timestamp_assigner(lambda value: value)
    harness = started(ScriptedSource(["soon"]), strategy)
    with pytest.raises(TimestampError) as raised:
        poll(harness)
    assert raised.value.__notes__ == ["in operator 'operator'"]


async def test_a_slow_output_delays_the_watermark_too():
    harness = started(ScriptedSource([("a", 5)], timed=True))

    async def slowly(run):
        harness.recorded.elements.append(("written", run.values))

    harness.recorded.emit_run = slowly
    status, pending = harness.operator.poll()
    assert status is InputStatus.MORE_AVAILABLE
    assert harness.output == []
    await pending
    assert harness.output == [("written", ["a"]), Watermark(4)]


def test_a_reader_that_asks_for_a_split_reaches_the_task():
    asked = []

    class Asking(UnsplitSource):
        def create_reader(self, context):
            context.request_split()
            return super().create_reader(context)

    operator = SourceOperator(Asking())
    operator.request_split = lambda: asked.append(True)
    OperatorHarness(operator).open()
    assert asked == [True]
    with pytest.raises(IllegalStateError, match="request_split"):
        OperatorHarness(SourceOperator(Asking())).open()


def test_closing_closes_the_reader_also_before_it_exists():
    harness = started(ScriptedSource(["a"]))
    harness.close()
    assert harness.operator.reader.closed
    OperatorHarness(SourceOperator(ScriptedSource(["a"]))).close()


def test_a_reader_cannot_keep_the_runs_of_one_poll_without_end(monkeypatch):
    monkeypatch.setattr(source_operator, "RESULTS_MAX", 50_000)
    harness = started(ScriptedSource([("a", 5)], timed=True))

    def poll_for_ever(output):
        for _ in range(100_000):
            output.emit_run(run)

    run = ListRun([1])
    harness.operator.reader.poll_next = poll_for_ever
    with pytest.raises(OverdraftCeilingError, match="one poll"):
        poll(harness)


async def test_any_number_of_runs_of_one_poll_may_have_to_be_awaited():
    """They are awaited one after the other, and not inside each other."""
    harness = started(ScriptedSource([("a", 5)], timed=True))
    seen = []

    async def slow(run):
        await asyncio.sleep(0)
        seen.extend(run.values)

    def poll_bursts(output):
        for number in range(3_000):
            output.emit_run(ListRun([number], [5]))
        return InputStatus.NOTHING_AVAILABLE

    harness.operator.reader.poll_next = poll_bursts
    harness.operator.output.emit_run = slow
    _, pending = harness.operator.poll()
    await pending
    assert seen == list(range(3_000))
