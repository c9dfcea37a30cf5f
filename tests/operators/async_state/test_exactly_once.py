"""Cut by a snapshot wherever it suspends, process_async does as the synchronous one."""

from __future__ import annotations

import asyncio
import pickle
import random
from collections import defaultdict
from typing import Any

import pytest

from aiomailbox.operators.async_state.function import KeyedAsyncProcessFunction
from aiomailbox.operators.functions.process import (
    KeyedProcessFunction,
    KeyedProcessOperator,
)
from aiomailbox.operators.snapshots.snapshot import redistribute
from aiomailbox.records.events import StreamRecord, Watermark
from aiomailbox.state.backends import RocksDBStateBackend
from aiomailbox.state.descriptors import ListStateDescriptor, ValueStateDescriptor
from aiomailbox.testing import OneInputHarness

COUNT = ValueStateDescriptor("count", default=0)
LOG = ListStateDescriptor("log")

Step = tuple[str, Any, Any]


def on_element(value: Any, context: Any, out: Any, number: int) -> None:
    """What both functions do: count, remember, plan, emit."""
    key, serial, plan = value
    log = context.keyed_state.get_list(LOG)
    log.add(serial)
    for timestamp in plan["register"]:
        context.timer_service.register_event_time_timer(timestamp)
    for timestamp in plan["delete"]:
        context.timer_service.delete_event_time_timer(timestamp)
    context.keyed_state.get_value(COUNT).update(number + 1)
    out.collect((key, "row", serial, number, log.get()))


def on_timer(timestamp: int, context: Any, out: Any) -> None:
    """What both functions do: read, forget, plan, emit."""
    log = context.keyed_state.get_list(LOG)
    out.collect((context.current_key, "timer", timestamp, log.get()))
    log.clear()
    if timestamp % 3 == 0:
        context.timer_service.register_event_time_timer(timestamp + 5)


class Waiting(KeyedAsyncProcessFunction):
    """Waits between reading and writing, and after writing."""

    async def process_element(self, value: Any, context: Any, out: Any) -> None:
        number = context.keyed_state.get_value(COUNT).value()
        await asyncio.sleep(0.001 * (hash(value[1]) % 5))
        on_element(value, context, out, number)
        await asyncio.sleep(0.001 * (hash(value[1]) % 3))

    async def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        await asyncio.sleep(0.001 * (timestamp % 4))
        on_timer(timestamp, context, out)
        await asyncio.sleep(0)


class AtOnce(KeyedProcessFunction):
    """The same without waits."""

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        on_element(value, context, out, context.keyed_state.get_value(COUNT).value())

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        on_timer(timestamp, context, out)


def scenario(seed: int) -> list[Step]:
    """Rows of three keys with plans, and watermarks between them."""
    choice = random.Random(seed)
    steps: list[Step] = []
    watermark = 0
    for serial in range(30):
        if choice.random() < 0.3:
            watermark += choice.randrange(1, 12)
            steps.append(("watermark", watermark, None))
            continue
        plan = {
            "register": [watermark + choice.randrange(-3, 20) for _ in range(2)],
            "delete": [watermark + choice.randrange(20)],
        }
        timestamp = watermark + choice.randrange(10)
        steps.append(("row", (choice.choice("abc"), serial, plan), timestamp))
    return [*steps, ("watermark", 1_000, None)]


def by_key(elements: list[Any]) -> dict[str, list[Any]]:
    """Results of each key in their order, with their event times."""
    found = defaultdict(list)
    for element in elements:
        if isinstance(element, StreamRecord):
            found[element.value[0]].append((element.value, element.timestamp))
    return dict(found)


def expected(steps: list[Step]) -> list[Any]:
    with OneInputHarness(
        KeyedProcessOperator(lambda value: value[0], AtOnce()), keyed=True
    ) as harness:
        for kind, what, timestamp in steps:
            if kind == "row":
                harness.process_element(what, timestamp)
            else:
                harness.process_watermark(what)
        return harness.output


def feed(driven: Any, steps: list[Step]) -> None:
    for kind, what, timestamp in steps:
        if kind == "row":
            driven.send([what], [timestamp])
        else:
            driven.watermark(what)


def finish_before_watermarks(elements: list[Any]) -> None:
    """No timer's result comes after the watermark that fired it."""
    last = -1
    for element in elements:
        if isinstance(element, Watermark):
            assert element.timestamp_ms >= last
            last = element.timestamp_ms
        elif element.value[1] == "timer" and element.value[2] > 1_000:
            raise AssertionError(element)


@pytest.mark.parametrize("seed", range(20))
async def test_results_of_each_key_are_those_of_the_synchronous_function(
    drive: Any, seed: int
) -> None:
    steps = scenario(seed)
    driven = drive(Waiting())
    feed(driven, steps)
    await driven.end()
    assert by_key(driven.output.elements) == by_key(expected(steps))
    finish_before_watermarks(driven.output.elements)


async def cuts_of(driven: Any, steps: list[Step]) -> list[tuple[int, list[Any], bytes]]:
    """Run, and note at each turn of the loop: steps taken, output, and a snapshot."""
    cuts: dict[bytes, tuple[int, list[Any], bytes]] = {}
    taken = 0
    while taken < len(steps) or driven.operator.snapshot().own.states:
        snapshot = pickle.dumps(driven.operator.snapshot())
        cuts[snapshot] = (
            taken - len(driven.waiting),
            list(driven.output.elements),
            snapshot,
        )
        feed(driven, steps[taken : taken + 1])
        taken += 1
        for delay in (0, 0, 0, 0.0003):
            await asyncio.sleep(delay)
            snapshot = pickle.dumps(driven.operator.snapshot())
            cuts[snapshot] = (
                taken - len(driven.waiting),
                list(driven.output.elements),
                snapshot,
            )
        assert not driven.waiting
        assert not driven.busy
    return list(cuts.values())


@pytest.mark.parametrize("seed", range(2))
async def test_cut_anywhere_and_restored_the_results_are_the_same(
    drive: Any, seed: int
) -> None:
    steps = scenario(seed)
    wanted = by_key(expected(steps))
    cuts = await cuts_of(drive(Waiting(), capacity=100), steps)
    in_flight = 0
    for taken, before, snapshot in cuts:
        state = pickle.loads(snapshot)
        for elements, _ in state.own.elements("in-flight"):
            in_flight = max(in_flight, len(elements))
        second = drive(Waiting(), state=state)
        feed(second, steps[taken:])
        await second.end()
        assert by_key([*before, *second.output.elements]) == wanted
        await second.close()
    assert len(cuts) > len(steps)
    assert in_flight > 5


async def test_after_a_rescale_each_row_and_timer_is_where_its_key_is(
    drive: Any,
) -> None:
    steps = [
        ("row", (key, number, {"register": [50], "delete": []}), number)
        for number in range(3)
        for key in ("a", "b", "c", "d", "e", "f")
    ]
    one = drive(Waiting())
    feed(one, [*steps, ("watermark", 60, None)])
    await asyncio.sleep(0.004)
    snapshot = one.operator.snapshot()
    before = list(one.output.elements)
    await one.close()
    assert snapshot.own.elements("in-flight")
    after: list[Any] = []
    pieces = []
    for index, spread in enumerate(redistribute([snapshot], 2)):
        part = drive(
            Waiting(),
            state=spread,
            subtask={"parallelism": 2, "subtask_index": index},
        )
        await asyncio.sleep(0.002)
        pieces.append(part.operator.snapshot())
        after += part.output.elements
        await part.close()
    # The watermark that each of them held back comes after the rows of all.
    whole = drive(Waiting(), state=redistribute(pieces, 1)[0])
    await whole.end()
    assert whole.output.elements[-1] == Watermark(60)
    got = by_key([*before, *after, *whole.output.elements])
    assert got == by_key(expected([*steps, ("watermark", 60, None)]))


async def test_state_in_rocksdb_is_seen_and_changed_in_the_same_way(
    drive: Any, tmp_path: Any
) -> None:
    steps = scenario(1)
    backend = {"state_backend": RocksDBStateBackend(tmp_path)}
    driven = drive(Waiting(), subtask=backend)
    feed(driven, steps[:20])
    await asyncio.sleep(0.004)
    snapshot = driven.operator.snapshot()
    before = list(driven.output.elements)
    await driven.close()
    second = drive(Waiting(), state=snapshot)
    feed(second, steps[20:])
    await second.end()
    got = by_key([*before, *second.output.elements])
    assert got == by_key(expected(steps))
