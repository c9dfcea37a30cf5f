"""Window join and co-group: the records of two streams in one window."""

from __future__ import annotations

import asyncio
import itertools
import pickle
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from aiomailbox.durations import seconds
from aiomailbox.errors import RecordTypeError, UserFunctionError, WrongTypeError
from aiomailbox.records.events import StreamRecord, Watermark
from aiomailbox.testing import OneInputHarness
from aiomailbox.windowing.assigners import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from aiomailbox.windowing.build import window_operator
from aiomailbox.windowing.co_group import (
    CoGroupFunction,
    JoinFunction,
    SidedKey,
    mark_first,
    mark_second,
)
from aiomailbox.windowing.evictors import CountEvictor

TUMBLING = TumblingEventTimeWindows.of(seconds(0.01))
KEY = SidedKey(lambda record: record[0], lambda record: record[0])


def pair(first: Any, second: Any) -> Any:
    return first[1], second[1]


def lists(firsts: list[Any], seconds: list[Any]) -> Any:
    return [([each[1] for each in firsts], [each[1] for each in seconds])]


class Sides:
    """Feeds records of two sides; replaces the operator after each step if asked."""

    def __init__(
        self,
        function: Any,
        assigner: Any = TUMBLING,
        *,
        restarts: bool = False,
        **settings: Any,
    ) -> None:
        self._make = lambda: window_operator(
            KEY, assigner, window_function=function, **settings
        )
        self._restarts = restarts
        self._watermark: int | None = None
        self.harness = OneInputHarness(self._make, keyed=True)
        self.harness.open()
        self.results: list[tuple[Any, int | None]] = []

    def first(self, name: Any, stamp: int, key: str = "k") -> None:
        self._step(mark_first((key, name)), stamp)

    def second(self, name: Any, stamp: int, key: str = "k") -> None:
        self._step(mark_second((key, name)), stamp)

    def watermark(self, timestamp: int) -> None:
        self._watermark = timestamp
        self.harness.process_watermark(timestamp)
        self.results += [
            (element.value, element.timestamp)
            for element in self.harness.take_output()
            if isinstance(element, StreamRecord)
        ]

    def _step(self, record: Any, stamp: int) -> None:
        self.harness.process_element(record, stamp)
        self.results += [(each, None) for each in self.harness.values]
        if self._restarts:
            state = self.harness.snapshot()
            self.harness = OneInputHarness(self._make, keyed=True)
            self.harness.restore(state)
            self.harness.open()
            if self._watermark is not None:
                self.harness.process_watermark(self._watermark)
                self.harness.take_output()


@pytest.mark.parametrize("restarts", [False, True])
def test_each_pair_of_a_key_and_window_is_joined(restarts: bool) -> None:
    sides = Sides(JoinFunction(pair), restarts=restarts)
    for name, stamp in [("a", 1), ("b", 9), ("c", 10)]:
        sides.first(name, stamp)
    for name, stamp in [("x", 9), ("y", 0), ("z", 25)]:
        sides.second(name, stamp)
    sides.second("other", 5, key="j")
    sides.watermark(30)
    pairs = itertools.product("ab", "xy")
    assert sides.results == [(each, 9) for each in pairs]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_co_group_gets_both_sides_even_if_one_is_empty(restarts: bool) -> None:
    sides = Sides(CoGroupFunction(lists), restarts=restarts)
    sides.first("a", 1)
    sides.second("x", 2)
    sides.first("b", 3)
    sides.first("c", 11)
    sides.second("z", 21)
    sides.watermark(30)
    assert sides.results == [
        ((["a", "b"], ["x"]), 9),
        ((["c"], []), 19),
        (([], ["z"]), 29),
    ]


def test_records_may_be_none() -> None:
    operator = window_operator(
        SidedKey(bool, bool),
        TUMBLING,
        window_function=CoGroupFunction(lambda firsts, seconds: [(firsts, seconds)]),
    )
    with OneInputHarness(operator, keyed=True) as harness:
        harness.process_run([mark_first(None), mark_second(None)], [1, 2])
        harness.process_watermark(9)
        assert harness.values == [([None], [None])]


def test_windows_may_slide_and_merge() -> None:
    sliding = Sides(
        JoinFunction(pair), SlidingEventTimeWindows.of(seconds(0.02), seconds(0.01))
    )
    sliding.first("a", 15)
    sliding.second("x", 12)
    sliding.watermark(50)
    assert sliding.results == [(("a", "x"), 19), (("a", "x"), 29)]
    sessions = Sides(
        CoGroupFunction(lists), EventTimeSessionWindows.with_gap(seconds(0.01))
    )
    sessions.first("a", 0)
    sessions.second("z", 16)
    sessions.second("x", 8)
    sessions.watermark(50)
    assert sessions.results == [((["a"], ["z", "x"]), 25)]


def test_late_records_within_the_lateness_join_again() -> None:
    sides = Sides(JoinFunction(pair), allowed_lateness=seconds(0.005))
    sides.first("a", 1)
    sides.watermark(9)
    assert sides.results == []
    sides.second("x", 2)
    assert [each for each, _ in sides.results] == [("a", "x")]
    sides.watermark(14)
    sides.results.clear()
    sides.harness.take_output()
    sides.second("y", 3)
    assert sides.results == []


def test_an_evictor_sees_records_with_their_side() -> None:
    sides = Sides(CoGroupFunction(lists), evictor=CountEvictor(2))
    sides.first("a", 1)
    sides.first("b", 2)
    sides.second("x", 3)
    sides.watermark(9)
    assert sides.results == [((["b"], ["x"]), 9)]


async def later(first: Any, second: Any) -> Any:
    await asyncio.sleep(1)
    return pair(first, second)


async def lists_later(firsts: Any, seconds: Any) -> Any:
    await asyncio.sleep(1)
    return lists(firsts, seconds)


def each_once(firsts: list[Any], seconds: list[Any]) -> Iterator[Any]:
    for record in [*firsts, *seconds]:
        yield record[1]


async def each_later(firsts: list[Any], seconds: list[Any]) -> AsyncIterator[Any]:
    for record in [*firsts, *seconds]:
        await asyncio.sleep(1)
        yield record[1]


@pytest.mark.parametrize(
    ("function", "values"),
    [
        (JoinFunction(later), [("a", "x"), ("a", "y")]),
        (CoGroupFunction(lists_later), [(["a"], ["x", "y"])]),
        (CoGroupFunction(each_once), ["a", "x", "y"]),
        (CoGroupFunction(each_later), ["a", "x", "y"]),
    ],
)
async def test_functions_may_be_async_or_generators(
    function: Any, values: list[Any]
) -> None:
    operator = window_operator(KEY, TUMBLING, window_function=function)
    records = [mark_first(("k", "a")), mark_second(("k", "x")), mark_second(("k", "y"))]
    async with OneInputHarness(operator, keyed=True) as harness:
        await harness.run(harness.process_run, records, [1, 2, 3])
        await harness.run(harness.process_watermark, 9)
        assert harness.values == values
        assert harness.output[-1] == Watermark(9)


def test_keys_may_be_names_of_fields_and_operators_are_pickled() -> None:
    operator = window_operator(
        SidedKey("city", "place"), TUMBLING, window_function=CoGroupFunction(each_once)
    )
    with OneInputHarness(pickle.loads(pickle.dumps(operator)), keyed=True) as harness:
        here, there = {"city": "Oslo", 1: "a"}, {"place": "Oslo", 1: "x"}
        harness.process_run([mark_first(here), mark_second(there)], [1, 2])
        harness.process_watermark(9)
        assert harness.values == ["a", "x"]


def test_wrong_functions_are_refused_by_name() -> None:
    with pytest.raises(WrongTypeError, match="2 positional"):
        JoinFunction(len)
    with pytest.raises(WrongTypeError, match="2 positional"):
        CoGroupFunction(len)
    with pytest.raises(WrongTypeError, match="generator"):
        JoinFunction(each_later)
    with pytest.raises(WrongTypeError, match="generator"):
        JoinFunction(each_once)
    with pytest.raises(WrongTypeError, match="equal_to"):
        SidedKey("name", 5)  # type: ignore[arg-type]


def test_a_forgotten_await_is_found() -> None:
    sides = Sides(JoinFunction(lambda first, second: later(first, second)))
    sides.first("a", 1)
    sides.second("x", 2)
    with pytest.raises(UserFunctionError) as caught:
        sides.watermark(9)
    assert isinstance(caught.value.__cause__, RecordTypeError)
