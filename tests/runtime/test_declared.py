"""A job declares the classes that its functions name, hold, or keep in state."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

import aiomailbox as am
from aiomailbox.errors import CheckpointFailedError
from aiomailbox.graph.job_graph import build_job_graph
from aiomailbox.runtime.declared import state_classes


@dataclass
class Held:
    n: int = 0


class Inner(NamedTuple):
    n: int = 0


@dataclass
class Kept:
    inner: list[Inner] = field(default_factory=list)


@dataclass
class InCode:
    n: int = 0


@dataclass
class Element:
    n: int = 0


@dataclass
class InGlobalState:
    n: int = 0


@dataclass
class Accumulator:
    n: int = 0


@dataclass
class Unnamed:
    n: int = 0


TOTAL = am.ReducingStateDescriptor("total", max, InGlobalState)


class Sum:
    """An aggregate function as users write them."""

    def create_accumulator(self) -> Accumulator:
        return Accumulator()

    def add(self, value: Any, accumulator: Accumulator) -> Accumulator:
        return accumulator

    def get_result(self, accumulator: Accumulator) -> int:
        return accumulator.n

    def merge(self, one: Accumulator, other: Accumulator) -> Accumulator:
        return one


class Function(am.KeyedProcessFunction):
    kept = am.MapStateDescriptor("kept", str, dict[str, Kept])

    def __init__(self, held: Any) -> None:
        self.held = held

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        context.keyed_state.get_reducing(TOTAL)
        out.collect(InCode(value))


class Slotted:
    __slots__ = ("_held", "empty")

    def __init__(self, held: Any) -> None:
        self._held = held

    def __getattr__(self, name: str) -> Any:
        raise AssertionError("nobody may ask")


def classes_of(env: Any, stream: Any) -> set[str]:
    stream.sink_to(print)
    graph = build_job_graph("job", list(env._definition.sinks), max_parallelism=128)
    return {kind.__name__ for kind in state_classes(graph)}


def test_classes_of_functions_state_and_records_are_declared() -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection([*range(2_000), Element()]).key_by(str)
    held = Slotted({"one": [Held()]})
    found = classes_of(env, stream.process(Function(held)))
    assert {"Held", "Kept", "InCode", "Element", "InGlobalState"} <= found
    assert "Unnamed" not in found
    assert {"DeadLetter", "FailedWindow", "TimeWindow"} <= found


def test_classes_of_accumulators_are_declared() -> None:
    env = am.StreamExecutionEnvironment()
    windows = (
        env.from_collection([1])
        .key_by(str)
        .window(am.TumblingEventTimeWindows.of(am.seconds(1)))
    )
    assert "Accumulator" in classes_of(env, windows.aggregate(Sum()))


def test_a_large_collection_is_not_walked() -> None:
    env = am.StreamExecutionEnvironment()
    rows = [[Held()] for _ in range(50_000)]
    assert "InCode" in classes_of(
        env, env.from_collection(rows).map(lambda row: InCode(len(row)))
    )


HIDDEN = {"hidden": dataclasses.make_dataclass("Hidden", ["n"])}


class Hiding(am.KeyedProcessFunction):
    """Keeps objects of a class that nothing names."""

    kept = am.ValueStateDescriptor("kept")

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        context.keyed_state.get_value(self.kept).update(HIDDEN["hidden"](value))


async def endless() -> AsyncIterator[int]:
    yield 1
    await asyncio.Event().wait()


async def test_state_of_a_class_that_is_not_declared_fails_the_checkpoint() -> None:
    env = am.StreamExecutionEnvironment()
    at_least_once = am.CheckpointingMode.AT_LEAST_ONCE
    env.enable_checkpointing(None, tolerable_failures=3, mode=at_least_once)
    stream = env.from_source(am.AsyncIterableSource(endless)).key_by(str)
    stream.process(Hiding()).sink_to(print)
    async with env.start() as job:
        await asyncio.sleep(1)
        with pytest.raises(CheckpointFailedError) as caught:
            await job.trigger_checkpoint()
        assert "the job does not declare" in repr(caught.value.__cause__)
        await job.cancel()


class Plain:
    """A record that is neither a dataclass nor a NamedTuple."""

    def __init__(self, number: int) -> None:
        self.number = number


async def test_a_record_that_no_snapshot_can_hold_fails_the_job_and_repeats_no_calls() -> (
    None
):
    calls: list[int] = []

    async def charge(record: Plain) -> int:
        calls.append(record.number)
        await asyncio.sleep(5)
        return 1

    env = am.StreamExecutionEnvironment().enable_checkpointing(am.seconds(1))
    plain = env.from_collection(list(range(100))).map(Plain)
    charged = plain.map_async(charge, concurrency=10).name("charge").uid("charge-1")
    charged.sink_to(lambda _: None)
    with pytest.raises(am.JobFailedError) as caught:
        await env.execute()
    assert len(calls) == len(set(calls)) < 100
    cause = caught.value.__cause__
    assert isinstance(cause, CheckpointFailedError)
    assert (cause.operator, cause.uid) == ("charge", "charge-1")
    assert "in operator 'charge'" in str(caught.value)
    assert "objects of Plain cannot be written to a snapshot" in str(caught.value)
