"""Objects of the user's with a life: opened, used and closed once per subtask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

import pytest

import aiomailbox as am

Stream = am.DataStream[Any]

LIVES: list[tuple[str, int]] = []


class Life:
    """Knows which subtask opened it; opening takes its time."""

    subtask: int | None = None

    async def open(self, context: Any) -> None:
        self.subtask = context.subtask_index
        LIVES.append(("open", self.subtask))
        await asyncio.sleep(0.1)

    def close(self) -> None:
        assert self.subtask is not None
        LIVES.append(("close", self.subtask))


class Process(Life, am.ProcessFunction):
    def process_element(self, value: Any, context: Any, out: Any) -> None:
        out.collect((self.subtask, value))


class KeyedProcess(Life, am.KeyedProcessFunction):
    def process_element(self, value: Any, context: Any, out: Any) -> None:
        out.collect((self.subtask, value))


class CoProcess(Life, am.CoProcessFunction):
    def process_element1(self, value: Any, context: Any, out: Any) -> None:
        out.collect((self.subtask, value))

    def process_element2(self, value: Any, context: Any, out: Any) -> None:
        pass


class KeyedCoProcess(Life, am.KeyedCoProcessFunction):
    def process_element1(self, value: Any, context: Any, out: Any) -> None:
        out.collect((self.subtask, value))

    def process_element2(self, value: Any, context: Any, out: Any) -> None:
        pass


class ProcessWindow(Life, am.ProcessWindowFunction):
    def process(self, key: Any, context: Any, values: Any, out: Any) -> None:
        for value in values:
            out.collect((self.subtask, value))


class Client(Life):
    async def __call__(self, value: Any) -> Any:
        await asyncio.sleep(0.1)
        return self.subtask, value


class Entered:
    """The same as an asynchronous context manager; it learns no subtask there."""

    count = 0

    async def __aenter__(self) -> Self:
        self.subtask = Entered.count
        Entered.count += 1
        LIVES.append(("open", self.subtask))
        await asyncio.sleep(0.1)
        return self

    async def __aexit__(self, *_: object) -> None:
        LIVES.append(("close", self.subtask))

    async def __call__(self, value: Any) -> Any:
        await asyncio.sleep(0.1)
        return self.subtask, value


def keyed(s: Stream) -> Any:
    return s.key_by(lambda n: n)


OPERATORS: dict[str, Callable[[Stream], Stream]] = {
    "process": lambda s: s.process(Process()),
    "keyed process": lambda s: keyed(s).process(KeyedProcess()),
    "co-process": lambda s: s.connect(s).process(CoProcess()),
    "keyed co-process": lambda s: keyed(s).connect(keyed(s)).process(KeyedCoProcess()),
    "window": lambda s: (
        keyed(s)
        .window(am.TumblingEventTimeWindows.of(am.seconds(1)))
        .process(ProcessWindow())
    ),
    "map_async": lambda s: s.map_async(Client()),
    "map_async with": lambda s: s.map_async(Entered()),
}


@pytest.mark.parametrize("case", OPERATORS)
async def test_each_subtask_has_an_object_of_its_own(case: str) -> None:
    LIVES.clear()
    Entered.count = 0
    env = am.StreamExecutionEnvironment(parallelism=2)
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    numbers = env.from_collection(
        list(range(40)), strategy.with_timestamp_assigner(lambda n: n)
    )
    results = await OPERATORS[case](numbers.rebalance()).collect()
    assert sorted(value for _, value in results) == list(range(40))
    assert {subtask for subtask, _ in results} == {0, 1}, "one stood for both"
    assert sorted(LIVES) == [("close", 0), ("close", 1), ("open", 0), ("open", 1)]


async def test_an_object_can_be_used_by_two_jobs_at_a_time() -> None:
    client = Client()
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection([1, 2]).map_async(client)
    both = await asyncio.gather(stream.collect(), stream.collect())
    assert both == [[(0, 1), (0, 2)]] * 2
    assert client.subtask is None, "what the user keeps stays as it was"


async def test_a_failed_job_closes_what_it_opened() -> None:
    LIVES.clear()
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection([0]).process(Process()).map(lambda pair: 1 / pair[1])
    with pytest.raises(am.JobFailedError, match="division"):
        await stream.collect()
    assert LIVES == [("open", 0), ("close", 0)]
