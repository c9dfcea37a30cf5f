"""A function that changes a record that another operator also has is named once."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import aiomailbox as am
from aiomailbox.operators.core.mutations import SharedRecords, Worker, is_watchable
from aiomailbox.records.run import ListRun
from aiomailbox.task.chain import OperatorChain

Stream = am.DataStream[Any]
TAG = am.OutputTag("copy")
TOLD = "a function changed a record that other operators have, too"


@dataclasses.dataclass
class Point:
    x: int


class Trade(msgspec.Struct):
    price: float


class Plain:
    def __init__(self) -> None:
        self.x = 1


def rows() -> list[Any]:
    return [{"n": n, "deep": [n]} for n in range(5)]


def spoil(row: Any) -> Any:
    row["deep"].append(0)
    return row


async def spoil_later(row: Any) -> Any:
    await asyncio.sleep(0)
    return spoil(row)


def spoil_items(row: Any) -> Any:
    yield spoil(row)


def same(row: Any) -> Any:
    return row


def copied(row: Any) -> Any:
    return {**row, "deep": [*row["deep"]]}


def has_number(row: Any) -> bool:
    return row["n"] >= 0


class SpoilByKey(am.KeyedProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, context: Any, out: Any) -> None:
        spoil(value)


class EmitTwice(am.ProcessFunction[Any, Any]):
    def process_element(self, value: Any, context: Any, out: Any) -> None:
        out.collect(value)
        context.output(TAG, value)


class EmitApart(am.ProcessFunction[Any, Any]):
    def process_element(self, value: Any, context: Any, out: Any) -> None:
        out.collect(copied(value))
        context.output(TAG, copied(value))


async def told_of(
    build: Callable[[Stream], list[Stream]],
    caplog: pytest.LogCaptureFixture,
    values: list[Any] | None = None,
    parallelism: int = 1,
) -> list[str]:
    """Run a job whose streams go to a sink each, and return the warnings of it."""
    caplog.set_level(logging.WARNING, "aiomailbox")
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection(rows() if values is None else values)
    for one in build(stream):
        sink = one.sink_to(lambda _: None)
        if parallelism > 1:
            sink.set_parallelism(parallelism)
    await env.execute("job")
    return [text for text in map(str, caplog.messages) if TOLD in text]


SPOILED: list[tuple[Callable[[Stream], list[Stream]], str]] = [
    (lambda s: [s.map(spoil), s.map(same)], r"spoil \("),
    (lambda s: [s.map(same), s.map(spoil)], r"spoil \("),
    # Of several that run as one the one that did it.
    (lambda s: [s.map(same).filter(has_number).map(spoil), s], r"spoil \("),
    (lambda s: [s.map(same).map(spoil).map(copied), s], r"spoil \("),
    (lambda s: [s.flat_map(spoil_items), s], r"spoil_items \("),
    (lambda s: [s.map(spoil_later), s.map(same)], r"spoil_later \("),
    (lambda s: [s.map(spoil, run_in="thread"), s.map(same)], r"spoil \("),
    (lambda s: [s.map_async(spoil_later), s.map(same)], r"spoil_later \("),
    # In another task, which has the same objects.
    (lambda s: [s.rebalance().map(spoil), s.map(same)], r"spoil \("),
    (
        lambda s: [s.key_by(lambda row: row["n"]).process(SpoilByKey()), s.map(same)],
        "SpoilByKey",
    ),
    # One object that a function emits twice.
    (lambda s: both_of(s.process(EmitTwice()), spoil, same), r"spoil \("),
    (lambda s: both_of(s.process(EmitTwice()), same, spoil), r"spoil \("),
    (lambda s: [s.union(s).map(spoil)], r"spoil \("),
]


def both_of(stream: Stream, of_main: Any, of_side: Any) -> list[Stream]:
    return [stream.map(of_main), stream.get_side_output(TAG).map(of_side)]


@pytest.mark.parametrize(("build", "function"), SPOILED)
async def test_what_changes_a_record_that_others_have_is_named(
    build: Callable[[Stream], list[Stream]],
    function: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = await told_of(build, caplog)
    assert len(told) == 1
    assert re.search(function, told[0])
    assert "['deep'] has 2 elements instead of 1" in told[0]
    assert "return a new record" in told[0]


async def test_subtasks_that_a_broadcast_gives_one_object_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = await told_of(
        lambda s: [s.broadcast().map(spoil).set_parallelism(2)], caplog, parallelism=2
    )
    assert len(told) == 1
    assert "spoil (" in told[0]


FINE: list[Callable[[Stream], list[Stream]]] = [
    lambda s: [s.map(spoil)],
    lambda s: [s.map(copied).map(spoil), s.map(same)],
    lambda s: [s.map(same).map(copied).filter(has_number).map(spoil), s],
    lambda s: [s.map(copied).map_async(spoil_later), s],
    lambda s: [s.rebalance().map(copied).map(spoil), s],
    lambda s: both_of(s.process(EmitTwice()), lambda row: spoil(copied(row)), same),
    # Its main output and its side output have different objects.
    lambda s: both_of(s.process(EmitApart()), spoil, spoil),
]


@pytest.mark.parametrize("build", FINE)
async def test_a_record_that_nobody_else_has_may_change(
    build: Callable[[Stream], list[Stream]], caplog: pytest.LogCaptureFixture
) -> None:
    assert await told_of(build, caplog) == []


def move(point: Any) -> Any:
    point.x += 1
    return point


@pytest.mark.parametrize("value", [Point(1), Plain()])
async def test_changed_attributes_are_seen(
    value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    told = await told_of(lambda s: [s.map(move), s], caplog, [value])
    assert ".x was 1 and is 2" in told[0]


class Array:
    dtype = "int64"


class Secretive:
    def __init__(self) -> None:
        self._hash = None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({}, True),
        ([1], True),
        (Trade(1.0), True),
        (("a", [1]), True),
        ({"tags": {1, 2}}, True),
        ("text", False),
        (("a", 1, (None, 2.5)), False),
        ([0] * 65, False),
        ({"all": [[0] * 40, [0] * 40]}, False),
        ({"numbers": Array()}, False),
        (Secretive(), False),
    ],
)
def test_small_records_that_can_change_are_watched(value: Any, expected: bool) -> None:
    assert is_watchable(value) is expected


async def test_after_the_first_records_nothing_is_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chains: list[OperatorChain] = []
    watch_head = OperatorChain._watch_head

    def kept(chain: OperatorChain) -> None:
        watch_head(chain)
        chains.append(chain)
        before.extend(names_in_between([chain]))

    def look(row: Any) -> None:
        if row["n"] == 99_999:
            found.extend(names_in_between(chains))

    before: list[str] = []
    found: list[str] = []
    monkeypatch.setattr(OperatorChain, "_watch_head", kept)
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection({"n": n} for n in range(100_000))
    stream.rebalance().map(same).sink_to(look)
    stream.map(same).map(same).sink_to(lambda _: None)
    await env.execute("job")
    for name in ("_NotingOutput", "SharedRecords.watched"):
        assert any(name in one for one in before)
        assert not any(name in one for one in found)
    assert found.count("same") == 3
    assert len(found) >= len(before)


def names_in_between(chains: list[OperatorChain]) -> list[str]:
    places: list[tuple[Any, str]] = []
    for operator in [one for chain in chains for one in chain.operators]:
        output: Any = operator.output
        ways = getattr(output._main, "_outputs", [output._main])
        places += [(operator, "process_run"), (output, "_main")]
        places += [(one, "_process_run") for one in ways]
    values = [vars(place).get(name) for place, name in places]
    for operator in [one for chain in chains for one in chain.operators]:
        loop = getattr(getattr(operator, "_loop", None), "_plain_loop", None)
        # What a compiled loop calls.
        values += [cell.cell_contents for cell in getattr(loop, "__closure__", ())]
    return [getattr(one, "__qualname__", type(one).__name__) for one in values]


def test_looks_end_at_a_number_of_runs() -> None:
    shared = SharedRecords(None)
    ended = []
    shared.at_end(lambda: ended.append(True))
    process = shared.watched(lambda run: None, Worker("map", None, "f"))
    shared.note([{"n": 1}], "main", is_shared=True)
    for _ in range(16):
        assert not ended
        process(ListRun([{"n": 2}]))
    assert ended == [True]
    assert shared.is_over


def test_a_record_whose_comparison_fails_is_left_alone() -> None:
    class Slier:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no")

        def __hash__(self) -> int:
            return 1

    record = {"a": {Slier()}}
    shared = SharedRecords(None)
    shared.note([record], "main", is_shared=True)

    def process_run(run: Any) -> None:
        record["a"] = {Slier()}

    shared.watched(process_run, Worker("map", None, "f"))(ListRun([record]))
