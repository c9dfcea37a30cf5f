"""With ``check_mutations`` an operator that changes an emitted record is named."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import math
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

import aiomailbox as am
from aiomailbox.errors import RecordMutatedError
from aiomailbox.operators.core.mutations import difference, structure

Env = am.StreamExecutionEnvironment
Stream = am.DataStream[Any]
CHECKED = am.JobConfig(check_mutations=True)


@dataclasses.dataclass
class Point:
    x: int
    tags: list[str] = dataclasses.field(default_factory=list)

    @functools.cached_property
    def label(self) -> str:
        return f"{self.x}"


class Trade(msgspec.Struct):
    price: float
    parts: dict[str, list[int]]


class Plain:
    def __init__(self) -> None:
        self.seen = {1}


class Slotted:
    __slots__ = ("left", "right")

    def __init__(self) -> None:
        self.left = bytearray(b"ab")


def rows() -> list[Any]:
    return [{"key": "a", "n": n, "deep": {"list": [n]}} for n in range(1, 4)]


def spoil(row: Any) -> Any:
    row["deep"]["list"].append(0)
    return row


async def spoil_later(row: Any) -> Any:
    await asyncio.sleep(0.01)
    return spoil(row)


async def wait(row: Any) -> Any:
    await asyncio.sleep(0.001)
    return row["n"]


def same(row: Any) -> Any:
    return row


def in_place(old: Any, new: Any) -> Any:
    old["n"] += new["n"]
    return old


class KeepsAppending(am.ProcessFunction):
    """Emits its own list, and appends to it afterwards."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        self.rows.append(value["n"])
        out.collect(self.rows)


class SpoilsElements(am.ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: list[Any], out: Any) -> None:
        elements.sort(key=lambda row: row["n"])
        elements[0]["n"] = 100
        out.collect(len(elements))


class AsyncSpoiler(am.KeyedAsyncProcessFunction):
    async def process_element(self, value: Any, context: Any, out: Any) -> None:
        await asyncio.sleep(0.001)
        value["n"] = 100
        out.collect(value["n"])


class CollectsTwice(am.ProcessFunction):
    """Changes a record between two collects of one call, and back."""

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        row = {"n": 1}
        out.collect(row)
        row["n"] = 2
        out.collect(row)


class CollectsTwiceAside(am.ProcessFunction):
    def process_element(self, value: Any, context: Any, out: Any) -> None:
        for number in range(2):
            self.row = getattr(self, "row", {})
            self.row["n"] = number
            context.output(SIDE, self.row)


class CollectsTwiceAsync(am.KeyedAsyncProcessFunction):
    async def process_element(self, value: Any, context: Any, out: Any) -> None:
        CollectsTwice().process_element(value, context, out)


class CollectsTwiceOfWindow(am.ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: list[Any], out: Any) -> None:
        CollectsTwice().process_element(key, context, out)


SIDE = am.OutputTag("side")


def one_row_again(_: Any) -> Any:
    row: dict[str, int] = {}
    for n in range(3):
        row["n"] = n
        yield row


async def one_row_again_later(_: Any) -> Any:
    for row in one_row_again(_):
        yield row


async def an_iterator_later(_: Any) -> Any:
    return one_row_again(_)


async def look_up(key: Any) -> Any:
    await asyncio.sleep(0.001)
    return FOUND


FOUND = {"n": 0, "deep": {"list": [0]}}


def timed(stream: Stream) -> Stream:
    strategy = am.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda row, _: row["n"]
    )
    return stream.assign_timestamps_and_watermarks(strategy)


def windowed(stream: Stream) -> Any:
    return (
        timed(stream)
        .key_by("key")
        .window(am.TumblingEventTimeWindows.of(am.seconds(1)))
    )


def fanned_out(stream: Stream) -> Stream:
    spoilt = stream.map(spoil).name("culprit")
    return spoilt.union(stream.map(same).name("innocent"))


def fanned_out_later(stream: Stream) -> Stream:
    spoilt = stream.map_async(spoil_later).name("culprit")
    return spoilt.union(stream.map_async(wait).name("innocent"))


def spoil_pair(left: Any, right: Any) -> Any:
    right["n"] += 1
    return left["n"]


def joined(stream: Stream) -> Stream:
    """Join records with one that came long before."""
    many = stream.flat_map(lambda row: [{**row, "i": i} for i in range(400)])
    first = many.filter(lambda row: row["i"] == 0 and row["n"] == 1)
    return (
        timed(many)
        .key_by("key")
        .interval_join(timed(first).key_by("key"))
        .between(am.seconds(-10), 0)
        .process(spoil_pair)
        .name("culprit")
    )


CASES: dict[str, Callable[[Stream], Any]] = {
    "two collects": lambda s: s.process(CollectsTwice()).name("culprit"),
    "two collects aside": lambda s: s.process(CollectsTwiceAside()).name("culprit"),
    "two collects of process_async": lambda s: (
        s.key_by("key").process_async(CollectsTwiceAsync()).name("culprit")
    ),
    "two collects of a window": lambda s: (
        windowed(s).process(CollectsTwiceOfWindow()).name("culprit")
    ),
    "generator": lambda s: s.flat_map(one_row_again).name("culprit"),
    "async generator": lambda s: s.flat_map(one_row_again_later).name("culprit"),
    "iterator of an async function": lambda s: s.flat_map(an_iterator_later).name(
        "culprit"
    ),
    "lookup_join": lambda s: s.lookup_join(
        look_up, key="n", join=lambda row, found: spoil(found)
    ).name("culprit"),
    "join": joined,
    "map": lambda s: s.map(spoil).name("culprit"),
    "behind what passes records on": lambda s: (
        s.filter(bool)
        .map(same)
        .name("innocent")
        .map(spoil)
        .name("culprit")
        .map(same)
        .name("next")
    ),
    "fan-out": fanned_out,
    "in another task": lambda s: fanned_out(s.rebalance()),
    "flat_map": lambda s: s.flat_map(lambda row: [spoil(row)]).name("culprit"),
    "async map": lambda s: s.map(spoil_later).name("culprit"),
    "map_async": lambda s: s.map_async(spoil_later).name("culprit"),
    "map_async of two": fanned_out_later,
    "process": lambda s: s.process(KeepsAppending()).name("culprit"),
    "reduce": lambda s: s.key_by("key").reduce(in_place).name("culprit"),
    "process_async": lambda s: (
        s.key_by("key").process_async(AsyncSpoiler()).name("culprit")
    ),
    "window function": lambda s: windowed(s).process(SpoilsElements()).name("culprit"),
    "window reduce": lambda s: windowed(s).reduce(in_place).name("culprit"),
    "window reduce, general": lambda s: (
        windowed(s).reduce(in_place, SpoilsElements()).name("culprit")
    ),
}


def mutation_in(error: BaseException) -> RecordMutatedError:
    """Return the error that names who changed what."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, RecordMutatedError):
        found = found.__cause__
    assert found is not None, repr(error)
    return found


@pytest.mark.parametrize("case", CASES)
async def test_the_operator_that_changes_a_record_is_named(case: str) -> None:
    env = Env(parallelism=1, config=CHECKED)
    stream = env.from_collection(rows())
    with pytest.raises(am.JobFailedError) as caught:
        await CASES[case](stream).collect()
    error = caught.value.__cause__
    assert isinstance(error, RecordMutatedError)
    assert error.operator == "culprit"
    assert error.__cause__ is None
    assert "Make a new one instead" in str(error)


async def test_a_partitioner_that_changes_records_is_named() -> None:
    def partition(row: Any, count: int) -> int:
        row["n"] += 1
        return 0

    stream = Env(parallelism=1, config=CHECKED).from_collection(rows()).map(same)
    parted = stream.name("innocent").partition_custom(partition, lambda row: row)
    with pytest.raises(am.JobFailedError) as caught:
        await parted.map(same).set_parallelism(2).collect()
    error = mutation_in(caught.value)
    assert error.operator == "CUSTOM after innocent"


async def test_what_is_made_anew_for_each_collect_is_left_in_peace() -> None:
    class Rows(am.ProcessFunction):
        def process_element(self, value: Any, context: Any, out: Any) -> None:
            row = {"n": 1}
            out.collect(row)
            row = {**row, "n": 2}
            out.collect(row)

    stream = Env(parallelism=1, config=CHECKED).from_collection(rows()).process(Rows())
    both = stream.flat_map(lambda row: ({**row, "i": i} for i in range(2)))
    assert await both.count() == 12


@pytest.mark.parametrize("case", CASES)
async def test_without_the_check_nobody_looks(case: str) -> None:
    env = Env(parallelism=1)
    await CASES[case](env.from_collection(rows())).collect()


async def test_on_error_does_not_hide_it() -> None:
    for build in (
        lambda s: s.map_async(spoil_later, on_error=am.skip, retry=am.Retry(3)),
        lambda s: s.map(spoil, on_error=am.skip),
        lambda s: s.key_by("key").reduce(in_place, on_error=am.skip),
        lambda s: windowed(s).process(SpoilsElements(), on_error=am.skip),
    ):
        stream = Env(config=CHECKED).from_collection(rows())
        with pytest.raises(am.JobFailedError) as caught:
            await build(stream).collect()
        assert mutation_in(caught.value)


async def test_a_sink_that_changes_records_is_named() -> None:
    env = Env(config=CHECKED)
    env.from_collection(rows()).sink_to(spoil).name("culprit")
    with pytest.raises(am.JobFailedError) as caught:
        await env.execute("spoil")
    assert mutation_in(caught.value).operator == "culprit"


@pytest.mark.parametrize("pause_s", [None, 0.1])
async def test_a_source_that_gives_one_object_again_is_named(
    pause_s: float | None,
) -> None:
    """Also where all that it gives is emitted at once, as one run."""

    async def numbers() -> AsyncIterator[Any]:
        row: dict[str, int] = {}
        for n in range(3):
            row["n"] = n
            yield row
            if pause_s is not None:
                await asyncio.sleep(pause_s)

    env = Env(config=CHECKED)
    stream = env.from_async_iterable(numbers).name("culprit")
    with pytest.raises(am.JobFailedError) as caught:
        await stream.map(same).collect()
    error = mutation_in(caught.value)
    assert error.operator == "culprit"
    assert "['n'] was 0 and is 1" in str(error)


@pytest.mark.real_time
@pytest.mark.timeout(180)
async def test_in_worker_processes_it_is_named_too() -> None:
    env = Env(parallelism=2, config=CHECKED)
    stream = fanned_out(env.from_collection(rows()))
    with pytest.raises(am.JobFailedError) as caught:
        await env_collect(env, stream)
    assert "operator 'culprit' changed a record" in str(caught.value)


async def env_collect(env: Env, stream: Stream) -> None:
    env.configure(deployment=am.Processes(2))
    await stream.collect()


class Pure(am.KeyedProcessFunction):
    def open(self, context: Any) -> None:
        self.seen = context.keyed_state.get_list(am.ListStateDescriptor("seen"))

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        self.seen.add(value)
        out.collect({**value, "seen": len(self.seen.get())})


async def test_what_makes_new_records_is_left_in_peace() -> None:
    def read(row: Any) -> Any:
        assert row["point"].label == "1"
        return row

    def make(row: Any) -> Any:
        point = Point(1, ["x"])
        trade = Trade(math.nan, {"a": [1]})
        return {**row, "point": point, "trade": trade, "self": Plain()}

    env = Env(parallelism=2, config=CHECKED)
    stream = env.from_collection(rows()).map(make).map(read).filter(bool)
    both = stream.map_async(wait).union(stream.key_by("key").process(Pure()))
    reduced = stream.key_by("key").reduce(lambda old, new: {**old, "n": new["n"]})
    counted = windowed(stream).aggregate(am.collect_list("n"))
    assert len(await both.union(reduced).union(counted).collect()) == 10


CHANGES: list[tuple[Any, Callable[[Any], Any], str]] = [
    ({"n": 1}, lambda one: one.update(n=2), "['n'] was 1 and is 2"),
    ({"n": 1}, lambda one: one.update(n=True), "['n'] was 1 and is True"),
    ({"n": 1}, lambda one: one.update(m=2), "['m'] is new"),
    ({"n": 1}, dict.clear, "['n'] is gone"),
    ([1, [2]], lambda one: one[1].append(3), "[1] has 2 elements instead of 1"),
    ([1.5], lambda one: one.__setitem__(0, 2.5), "[0] was 1.5 and is 2.5"),
    (({"a"},), lambda one: one[0].add("b"), "[0] was frozenset"),
    (Point(1), lambda one: one.tags.append("x"), ".tags has 1 elements instead of 0"),
    (
        Trade(1.0, {"a": [1]}),
        lambda one: one.parts["a"].clear(),
        ".parts['a'] has 0 elements instead of 1",
    ),
    (Plain(), lambda one: one.seen.add(2), ".seen was frozenset({1})"),
    (Slotted(), lambda one: setattr(one, "right", 1), ".right is new"),
    (Slotted(), lambda one: one.left.append(1), ".left was b'ab'"),
]


@pytest.mark.parametrize(("value", "change", "said"), CHANGES)
def test_a_change_is_seen_however_deep_it_is(
    value: Any, change: Callable[[Any], Any], said: str
) -> None:
    before = structure(value)
    assert structure(value) == before
    change(value)
    assert difference(before, structure(value)).startswith(said)


def test_what_is_not_a_change_is_not_seen() -> None:
    cycle: list[Any] = [1]
    cycle.append(cycle)
    deep: Any = []
    for _ in range(1000):
        deep = [deep]
    for value in (
        cycle,
        deep,
        math.nan,
        Point(1),
        datetime.now(UTC),
        object(),
        print,
        {"point": Point(2), 1: {2: {3}}},
    ):
        before = structure(value)
        repr(getattr(value, "label", None))
        assert structure(value) == before
        assert difference(before, structure(value)) == ""
