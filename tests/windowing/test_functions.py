"""Window functions, and what cannot be built."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiomailbox.durations import seconds
from aiomailbox.errors import (
    InvalidArgumentError,
    StateError,
    UserFunctionError,
    WrongTypeError,
)
from aiomailbox.operators.aggregates.functions import aggregates, count
from aiomailbox.records.events import OutputTag, StreamRecord, Watermark
from aiomailbox.state.descriptors import ValueStateDescriptor
from aiomailbox.testing import OneInputHarness
from aiomailbox.windowing.assigners import (
    EventTimeSessionWindows,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from aiomailbox.windowing.build import window_operator
from aiomailbox.windowing.evictors import CountEvictor, DeltaEvictor, TimeEvictor
from aiomailbox.windowing.functions import ProcessWindowFunction
from aiomailbox.windowing.time_window import TimeWindow
from aiomailbox.windowing.triggers import (
    ContinuousEventTimeTrigger,
    CountTrigger,
    DeltaTrigger,
    PurgingTrigger,
    Trigger,
    TriggerResult,
)

TUMBLING = TumblingEventTimeWindows(10)
SEEN = ValueStateDescriptor("seen", int, default=0)


def first(record: Any) -> Any:
    return record[0]


def results(operator: Any, *, then: int = 100) -> list[Any]:
    with OneInputHarness(operator, keyed=True) as harness:
        harness.process_run([("a", 1), ("a", 2), ("b", 3), ("a", 4)], [1, 2, 3, 11])
        harness.process_watermark(then)
        return harness.output[:-1]


def test_a_plain_function_returns_an_iterable_of_results() -> None:
    def shout(key: Any, window: Any, elements: list[Any]) -> Any:
        for _, number in elements:
            yield f"{key}{number}@{window.start}"

    operator = window_operator(first, TUMBLING, window_function=shout)
    assert results(operator) == [
        StreamRecord("a1@0", 9),
        StreamRecord("a2@0", 9),
        StreamRecord("b3@0", 9),
        StreamRecord("a4@10", 19),
    ]


def test_a_plain_function_that_returns_nothing_is_an_error() -> None:
    operator = window_operator(
        first, TUMBLING, window_function=lambda key, window, elements: None
    )
    with pytest.raises(UserFunctionError, match="not an iterable"):
        results(operator)


def test_with_an_aggregate_the_only_element_is_its_result() -> None:
    operator = window_operator(
        first,
        TUMBLING,
        aggregate=aggregates(n=count()),
        window_function=lambda key, window, elements: [(key, elements)],
    )
    rows = [record.value for record in results(operator)]
    assert [(key, [tuple(row) for row in found]) for key, found in rows] == [
        ("a", [(2,)]),
        ("b", [(1,)]),
        ("a", [(1,)]),
    ]


class Awaiting(ProcessWindowFunction):
    def __init__(self) -> None:
        self.life: list[Any] = []

    async def open(self, context: Any) -> None:
        await asyncio.sleep(1)
        self.life.append("open")

    async def process(self, key: Any, context: Any, elements: Any, out: Any) -> None:
        total = sum(number for _, number in elements)
        await asyncio.sleep(1)
        out.collect((key, total, context.window.start))
        context.output(OutputTag("keys"), key)

    async def clear(self, context: Any) -> None:
        await asyncio.sleep(1)
        self.life.append(("clear", context.window.start))

    async def close(self) -> None:
        self.life.append("close")


async def test_an_async_function_is_awaited_before_the_watermark_goes_on() -> None:
    function = Awaiting()
    operator = window_operator(first, TUMBLING, window_function=function)
    async with OneInputHarness(operator, keyed=True) as harness:
        harness.process_run([("a", 1), ("a", 2), ("b", 3)], [1, 2, 11])
        await harness.run(harness.process_watermark, 25)
        assert harness.output == [
            StreamRecord(("a", 3, 0), 9),
            StreamRecord(("b", 3, 10), 19),
            Watermark(25),
        ]
        assert harness.side_output(OutputTag("keys")) == [
            StreamRecord("a", 9),
            StreamRecord("b", 19),
        ]
    assert function.life == ["open", ("clear", 0), ("clear", 10), "close"]


async def test_an_async_function_is_awaited_when_a_record_fires_the_window() -> None:
    operator = window_operator(
        first,
        SlidingEventTimeWindows(10, 5),
        trigger=CountTrigger(2),
        window_function=Awaiting(),
    )
    async with OneInputHarness(operator, keyed=True) as harness:
        await harness.run(
            harness.process_run, [("a", 1), ("a", 2), ("b", 3), ("b", 4)], [6, 7, 8, 9]
        )
        assert harness.values == [
            ("a", 3, 5),
            ("a", 3, 0),
            ("b", 7, 5),
            ("b", 7, 0),
        ]


async def test_async_plain_functions_and_generators_are_awaited() -> None:
    async def listed(key: Any, window: Any, elements: list[Any]) -> list[Any]:
        await asyncio.sleep(1)
        return [key, len(elements)]

    async def generated(key: Any, window: Any, elements: list[Any]) -> Any:
        for element in elements:
            await asyncio.sleep(1)
            yield element

    found = []
    for function in (listed, generated):
        operator = window_operator(first, TUMBLING, window_function=function)
        async with OneInputHarness(operator, keyed=True) as harness:
            harness.process_run([("a", 1), ("a", 2)], [1, 2])
            await harness.run(harness.process_watermark, 9)
            found.append(harness.values)
    assert found == [["a", 2], [("a", 1), ("a", 2)]]


class AsyncSum:
    def create_accumulator(self) -> int:
        return 0

    async def add(self, value: Any, accumulator: int) -> int:
        await asyncio.sleep(1)
        return accumulator + int(value[1])

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, one: int, other: int) -> int:
        return one + other


async def test_an_async_aggregate_or_reduce_is_awaited_for_each_record() -> None:
    async def reduce(one: Any, other: Any) -> Any:
        await asyncio.sleep(1)
        return (one[0], one[1] + other[1])

    for assigner in (TUMBLING, EventTimeSessionWindows(5)):
        for how, expected in (
            ({"aggregate": AsyncSum()}, 3),
            ({"reduce": reduce}, ("a", 3)),
        ):
            operator = window_operator(first, assigner, **how)  # type: ignore[arg-type]
            async with OneInputHarness(operator, keyed=True) as harness:
                run = [("a", 1), ("a", 2)]
                await harness.run(harness.process_run, run, [1, 2])
                await harness.run(harness.process_watermark, 100)
                assert harness.values == [expected]


class CountFirings(ProcessWindowFunction):
    """Counts the firings of each window and of each key."""

    def process(self, key: Any, context: Any, elements: Any, out: Any) -> None:
        of_window = context.window_state.get_value(SEEN)
        of_key = context.global_state.get_value(ValueStateDescriptor("all", default=0))
        of_window.update(of_window.value() + 1)
        of_key.update(of_key.value() + 1)
        out.collect((key, context.window.start, of_window.value(), of_key.value()))

    def clear(self, context: Any) -> None:
        context.window_state.get_value(SEEN).clear()


def test_a_function_keeps_state_per_window_and_per_key() -> None:
    operator = window_operator(
        first, TUMBLING, window_function=CountFirings(), allowed_lateness=seconds(0.01)
    )
    with OneInputHarness(operator, keyed=True) as harness:
        harness.process_run([("a", 1), ("b", 1)], [1, 2])
        harness.process_watermark(9)
        harness.process_run([("a", 1), ("a", 1)], [3, 12])
        harness.process_watermark(19)
        assert harness.values == [
            ("a", 0, 1, 1),
            ("b", 0, 1, 1),
            ("a", 0, 2, 2),
            ("a", 10, 1, 3),
        ]
        harness.process_watermark(100)
        store = harness.context.keyed_state
        assert store.keys(SEEN) == []


def test_windows_that_merge_have_no_state_of_their_own() -> None:
    operator = window_operator(
        first, EventTimeSessionWindows(5), window_function=CountFirings()
    )
    with pytest.raises(UserFunctionError) as caught:
        results(operator)
    assert isinstance(caught.value.__cause__, StateError)
    assert "global_state" in str(caught.value)


class NoMerge(Trigger):
    def on_element(self, value: Any, timestamp: Any, window: Any, context: Any) -> Any:
        return TriggerResult.CONTINUE


class NoMergeSum:
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + int(value[1])

    def get_result(self, accumulator: int) -> int:
        return accumulator


def test_an_aggregate_needs_merge_only_where_windows_merge() -> None:
    operator = window_operator(first, TUMBLING, aggregate=NoMergeSum())
    assert [record.value for record in results(operator)] == [3, 3, 4]
    with pytest.raises(WrongTypeError, match="has no method merge"):
        window_operator(first, EventTimeSessionWindows(5), aggregate=NoMergeSum())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, InvalidArgumentError, "window_function"),
        ({"reduce": max, "aggregate": count()}, InvalidArgumentError, "reduce"),
        ({"aggregate": object()}, WrongTypeError, "create_accumulator"),
        ({"reduce": lambda one: one}, WrongTypeError, "2 positional"),
        ({"window_function": lambda key: [key]}, WrongTypeError, "3 positional"),
        ({"reduce": max, "allowed_lateness": -1}, InvalidArgumentError, "lateness"),
        ({"reduce": max, "trigger": "count"}, WrongTypeError, "trigger"),
        ({"reduce": max, "evictor": 3}, WrongTypeError, "evictor"),
        ({"reduce": max, "late_tag": "late"}, WrongTypeError, "late_tag"),
        ({"reduce": max, "on_error": "skip"}, WrongTypeError, "on_error"),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_written(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        window_operator(first, TUMBLING, **options)


def test_an_assigner_is_not_a_number() -> None:
    with pytest.raises(WrongTypeError, match="assigner"):
        window_operator(first, 60, reduce=max)  # type: ignore[arg-type]


def test_a_trigger_that_cannot_merge_is_refused_with_sessions() -> None:
    for trigger in (NoMerge(), PurgingTrigger(NoMerge()), DeltaTrigger(1, max)):
        with pytest.raises(InvalidArgumentError, match="on_merge"):
            window_operator(
                first, EventTimeSessionWindows(5), reduce=max, trigger=trigger
            )


def test_a_window_function_that_is_a_generator_is_refused() -> None:
    class Generates(ProcessWindowFunction):
        def process(self, key: Any, context: Any, elements: Any, out: Any) -> Any:
            yield key

    with pytest.raises(WrongTypeError, match=r"out\.collect"):
        window_operator(first, TUMBLING, window_function=Generates())


@pytest.mark.parametrize("bad", [0, -1, True, 1.5])
def test_counts_are_positive_ints(bad: Any) -> None:
    with pytest.raises((InvalidArgumentError, WrongTypeError), match="count"):
        CountTrigger(bad)


def test_an_interval_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="interval"):
        ContinuousEventTimeTrigger.of(0)


def test_a_delta_trigger_fires_when_a_record_is_far_from_the_last() -> None:
    operator = window_operator(
        None,
        GlobalWindows.create(),
        trigger=PurgingTrigger(DeltaTrigger.of(5, lambda last, value: value - last)),
        window_function=lambda key, window, elements: [elements],
    )
    with OneInputHarness(operator, keyed=True) as harness:
        harness.process_run([1, 2, 6, 7, 8, 12, 13], None)
        assert harness.values == [[1, 2, 6, 7], [8, 12, 13]]


def records(*stamps: int | None) -> list[StreamRecord]:
    return [StreamRecord(stamp, stamp) for stamp in stamps]


def test_evictors_keep_the_last_the_young_and_the_near() -> None:
    window = TimeWindow(0, 10)
    assert CountEvictor.of(2).evict(records(1, 2, 3), window) == records(2, 3)
    assert CountEvictor.of(0).evict(records(1, 2), window) == []
    assert TimeEvictor.of(seconds(0.002)).evict(records(1, 5, 3, 4), window) == records(
        5, 4
    )
    assert TimeEvictor(2).evict(records(None, None), window) == records(None, None)
    near = DeltaEvictor.of(2, lambda value, last: abs(last - value))
    assert near.evict(records(1, 5, 3, 4), window) == records(5, 3, 4)


def test_an_evictor_may_work_after_the_function() -> None:
    operator = window_operator(
        None,
        GlobalWindows.create(),
        trigger=CountTrigger(1),
        evictor=CountEvictor.of(1, after=True),
        reduce=lambda one, other: one + other,
    )
    with OneInputHarness(operator, keyed=True) as harness:
        harness.process_run(["a", "b", "c"])
        assert harness.values == ["a", "ab", "bc"]


def test_an_evictor_goes_with_an_aggregate() -> None:
    operator = window_operator(
        None, TUMBLING, evictor=CountEvictor.of(2), aggregate=aggregates(n=count())
    )
    rows = [record.value.n for record in results(operator)]
    assert rows == [2, 1]


def test_processing_time_sessions_and_windows_need_no_event_time() -> None:
    for assigner in (
        ProcessingTimeSessionWindows(10),
        TumblingProcessingTimeWindows(10),
    ):
        operator = window_operator(first, assigner, aggregate=count())
        with OneInputHarness(operator, keyed=True) as harness:
            harness.process_run([("a", 1), ("a", 2)])
            harness.set_processing_time(20)
            assert harness.output == [StreamRecord(2, 9)]
