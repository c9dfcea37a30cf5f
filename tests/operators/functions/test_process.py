from __future__ import annotations

import pytest

from aiomailbox.errors import StateError, UserFunctionError, WrongTypeError
from aiomailbox.operators.core.user_code import dead_letter, skip
from aiomailbox.operators.functions.process import (
    CoFlatMapOperator,
    CoMapOperator,
    CoProcessFunction,
    CoProcessOperator,
    ProcessFunction,
    ProcessOperator,
)
from aiomailbox.records.events import (
    OutputTag,
    StreamRecord,
    Watermark,
    WatermarkStatus,
)
from aiomailbox.testing import OneInputHarness, TwoInputHarness

ODD = OutputTag("odd")
FAILED = OutputTag("failed")


class Sorter(ProcessFunction):
    def process_element(self, value, context, out):
        if value % 2:
            context.output(ODD, value)
        else:
            out.collect(value)
            out.collect((value, context.timestamp))


class AsyncSorter(ProcessFunction):
    async def process_element(self, value, context, out):
        Sorter.process_element(self, value, context, out)


def test_results_and_side_outputs_inherit_the_records_event_time():
    with OneInputHarness(ProcessOperator(Sorter())) as harness:
        harness.process_run([1, 2], [10, 20])
        assert harness.output == [StreamRecord(2, 20), StreamRecord((2, 20), 20)]
        assert harness.side_output(ODD) == [StreamRecord(1, 10)]


def test_the_results_of_a_run_are_one_run():
    with OneInputHarness(ProcessOperator(Sorter())) as harness:
        harness.process_run([2, 4, 6])
        assert [len(run) for run in harness.recorded.runs] == [6]
        assert harness.recorded.runs[0].timestamps is None
        assert harness.values[1] == (2, None)


async def test_an_async_function_gives_the_same_results_in_order():
    async with OneInputHarness(ProcessOperator(AsyncSorter())) as harness:
        await harness.run(harness.process_run, [1, 2, 4], [10, 20, 40])
        assert harness.values == [2, (2, 20), 4, (4, 40)]
        assert harness.side_output(ODD) == [StreamRecord(1, 10)]


async def test_a_function_may_wait_for_some_records_only():
    class Sometimes(ProcessFunction):
        def process_element(self, value, context, out):
            out.collect(value)
            return self.later(value, out) if value % 2 else None

        async def later(self, value, out):
            out.collect(-value)

    async with OneInputHarness(ProcessOperator(Sometimes())) as harness:
        await harness.run(harness.process_run, [2, 1, 4, 3, 6])
        assert harness.values == [2, 1, -1, 4, 3, -3, 6]


async def test_results_of_an_async_function_go_out_before_its_next_call():
    seen = []

    class Watching(ProcessFunction):
        async def process_element(self, value, context, out):
            seen.append(list(harness.values))
            out.collect(value)

    async with OneInputHarness(ProcessOperator(Watching())) as harness:
        await harness.run(harness.process_run, [1, 2])
    assert seen == [[], [1]]


class Life(ProcessFunction):
    def __init__(self):
        self.events = []

    async def open(self, context):
        self.events.append(("open", context.operator_name))

    def process_element(self, value, context, out):
        self.events.append(value)

    async def finish(self, out):
        out.collect(list(self.events))

    def close(self):
        self.events.append("close")


async def test_a_function_is_opened_finished_and_closed():
    function = Life()
    async with OneInputHarness(ProcessOperator(function)) as harness:
        await harness.run(harness.process_element, 1)
        await harness.run(harness.finish)
        assert harness.values == [[("open", "operator"), 1]]
    assert function.events[-1] == "close"


def test_a_function_that_was_never_opened_is_not_closed():
    function = Life()
    OneInputHarness(ProcessOperator(function)).close()
    assert function.events == []


def test_timers_need_a_key():
    class Timer(ProcessFunction):
        def process_element(self, value, context, out):
            context.timer_service.register_event_time_timer(1)

    with (
        OneInputHarness(ProcessOperator(Timer())) as harness,
        pytest.raises(UserFunctionError, match="key_by") as raised,
    ):
        harness.process_element(1)
    assert isinstance(raised.value.__cause__, StateError)


def test_a_function_sees_the_watermark_before_its_consumers():
    class Mark(ProcessFunction):
        def process_element(self, value, context, out):
            out.collect(context.current_watermark)

    with OneInputHarness(ProcessOperator(Mark())) as harness:
        harness.process_watermark(7)
        harness.process_element("a")
        assert harness.output == [Watermark(7), StreamRecord(7, None)]


class FailingOn2(ProcessFunction):
    def process_element(self, value, context, out):
        if value == 2:
            raise ValueError("two")
        out.collect(value)


class AsyncFailingOn2(ProcessFunction):
    async def process_element(self, value, context, out):
        FailingOn2.process_element(self, value, context, out)


@pytest.mark.parametrize("function", [FailingOn2, AsyncFailingOn2])
async def test_a_failing_record_is_skipped_written_out_or_fatal(function):
    async with OneInputHarness(ProcessOperator(function(), on_error=skip)) as harness:
        await harness.run(harness.process_run, [1, 2, 3])
        assert harness.values == [1, 3]
        assert harness.context.metrics.counter("skipped").value == 1
    operator = ProcessOperator(function(), on_error=dead_letter(FAILED))
    async with OneInputHarness(operator) as harness:
        await harness.run(harness.process_run, [1, 2, 3], [10, 20, 30])
        assert harness.values == [1, 3]
        (letter,) = harness.side_output(FAILED)
        assert (letter.value.record, letter.timestamp) == (2, 20)
    async with OneInputHarness(ProcessOperator(function())) as harness:
        with pytest.raises(UserFunctionError, match="two"):
            await harness.run(harness.process_run, [1, 2, 3])


def test_a_generator_is_refused_with_the_way_to_write_it():
    class Yielding(ProcessFunction):
        def process_element(self, value, context, out):
            yield value

    with pytest.raises(WrongTypeError, match=r"out\.collect"):
        ProcessOperator(Yielding())
    with pytest.raises(WrongTypeError, match="process_element"):
        ProcessOperator(lambda value: value)


def test_a_cut_anywhere_changes_nothing():
    with OneInputHarness(ProcessOperator(Sorter())) as whole:
        whole.process_run([1, 2, 3, 4])
    before = OneInputHarness(ProcessOperator(Sorter()))
    before.open()
    before.process_run([1, 2])
    after = OneInputHarness(ProcessOperator(Sorter()))
    after.restore(before.snapshot())
    after.open()
    after.process_run([3, 4])
    assert before.output + after.output == whole.output


def test_each_stream_has_its_function():
    with TwoInputHarness(CoMapOperator(str, float)) as harness:
        harness.first.process_run([1, 2], [10, 20])
        harness.second.process_element("3", 30)
        assert harness.output == [
            StreamRecord("1", 10),
            StreamRecord("2", 20),
            StreamRecord(3.0, 30),
        ]


def test_each_stream_is_expanded_by_its_function():
    with TwoInputHarness(CoFlatMapOperator(str.split, lambda n: range(n))) as harness:
        harness.first.process_element("to be")
        harness.second.process_element(2)
        assert harness.values == ["to", "be", 0, 1]


def test_a_failing_record_of_either_stream_follows_the_policy():
    operator = CoMapOperator(int, float, on_error=dead_letter(FAILED))
    with TwoInputHarness(operator) as harness:
        harness.first.process_run(["1", "x"])
        harness.second.process_run(["y", "2"])
        assert harness.values == [1, 2.0]
        assert [r.value.record for r in harness.side_output(FAILED)] == ["x", "y"]


class Tagged(CoProcessFunction):
    def process_element1(self, value, context, out):
        out.collect(("first", value, context.current_watermark))

    async def process_element2(self, value, context, out):
        out.collect(("second", value, context.timestamp))


async def test_a_co_process_function_tells_its_streams_apart():
    async with TwoInputHarness(CoProcessOperator(Tagged())) as harness:
        await harness.run(harness.first.process_watermark, 5)
        await harness.run(harness.second.process_watermark, 3)
        await harness.run(harness.first.process_element, 1)
        await harness.run(harness.second.process_element, 2, 20)
        assert harness.values == [("first", 1, 3), ("second", 2, 20)]


def test_event_time_of_two_streams_is_the_smaller_one():
    with TwoInputHarness(CoMapOperator(str, str)) as harness:
        harness.first.process_watermark(5)
        assert harness.output == []
        harness.second.process_watermark(3)
        harness.second.process_watermark(9)
        assert harness.output == [Watermark(3), Watermark(5)]


def test_an_idle_stream_does_not_hold_the_other_back():
    with TwoInputHarness(CoMapOperator(str, str)) as harness:
        harness.first.process_watermark(5)
        harness.second.process_status(WatermarkStatus.IDLE)
        assert harness.take_output() == [Watermark(5)]
        harness.first.process_status(WatermarkStatus.IDLE)
        assert harness.take_output() == [WatermarkStatus.IDLE]
        harness.second.process_status(WatermarkStatus.ACTIVE)
        assert harness.take_output() == [WatermarkStatus.ACTIVE]
