"""The table of `docs/concepts/errors.md` names what takes ``on_error``, and it works."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

import aiomailbox as am
from aiomailbox import api

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "errors.md"
Stream = am.DataStream[Any]
RECORDS = [("a", 1), ("a", None), ("a", 2)]


def rows_of_the_table() -> set[str]:
    """Return the operators that the table names in its first column."""
    rows = re.findall(r"^\| (`[A-Z].*?) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+\.\w+)`", row)}


def methods_with_on_error() -> set[str]:
    """Return the public methods of the API that take ``on_error``."""
    found: set[str] = set()
    for module_info in pkgutil.iter_modules(api.__path__):
        module = importlib.import_module(f"{api.__name__}.{module_info.name}")
        for name, kind in vars(module).items():
            if not inspect.isclass(kind) or kind.__module__ != module.__name__:
                continue
            if hasattr(am, name):
                # A base that has no name of its own for users is part of the class.
                own = lambda base: not hasattr(am, base.__name__)  # noqa: E731
                found |= {
                    f"{name}.{method}"
                    for owner in (kind, *takewhile(own, kind.__mro__[1:]))
                    for method, function in vars(owner).items()
                    if inspect.isfunction(function)
                    and not method.startswith("_")
                    and "on_error" in inspect.signature(function).parameters
                }
    return found


def test_the_table_names_every_operator_that_takes_on_error() -> None:
    assert rows_of_the_table() == methods_with_on_error()


def number(record: Any, *_: Any) -> Any:
    return record[1] + 0


def same(record: Any) -> Any:
    return record


async def number_later(record: Any) -> Any:
    await asyncio.sleep(0.001)
    return number(record)


class Own:
    def create_accumulator(self) -> list[Any]:
        return []

    def add(self, value: Any, accumulator: list[Any]) -> list[Any]:
        accumulator.append(value)
        number(value)
        return accumulator

    def get_result(self, accumulator: list[Any]) -> int:
        return len(accumulator)


def add(value: Any, out: Any) -> None:
    out.collect(number(value))


class Plain(am.ProcessFunction):
    def process_element(self, value: Any, context: Any, out: Any) -> None:
        add(value, out)


class Keyed(am.KeyedProcessFunction):
    def process_element(self, value: Any, context: Any, out: Any) -> None:
        add(value, out)


class Co(am.CoProcessFunction):
    def process_element1(self, value: Any, context: Any, out: Any) -> None:
        add(value, out)

    def process_element2(self, value: Any, context: Any, out: Any) -> None:
        add(value, out)


class Broadcast(am.BroadcastProcessFunction):
    def process_element(self, value: Any, context: Any, out: Any) -> None:
        add(value, out)

    def process_broadcast_element(self, value: Any, context: Any, out: Any) -> None:
        raise AssertionError("there are no rules")


class Async(am.KeyedAsyncProcessFunction):
    async def process_element(self, value: Any, context: Any, out: Any) -> None:
        await asyncio.sleep(0.001)
        context.keyed_state.get_value(am.ValueStateDescriptor("seen")).update(value)
        out.collect(number(value))


def timed(stream: Stream) -> Stream:
    strategy = am.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda record, _: 1
    )
    return stream.assign_timestamps_and_watermarks(strategy)


def keyed(stream: Stream) -> Any:
    return timed(stream).key_by(lambda record: record[0])


def windowed(stream: Stream) -> Any:
    return keyed(stream).window(am.TumblingEventTimeWindows.of(am.seconds(1)))


class OfWindow(am.ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any, out: Any) -> None:
        for one in elements:
            out.collect(number(one))


def one(stream: Stream) -> Any:
    """Return a second stream with one record of the key."""
    return stream.filter(lambda record: record[1] == 1)


def paired(first: Any, second: Any) -> Any:
    return number(first) + number(second)


def joined_windows(stream: Stream) -> Stream:
    windows = timed(stream).join(timed(one(stream)))
    sides = windows.where(lambda record: record[0]).equal_to(lambda record: record[0])
    within = sides.window(am.TumblingEventTimeWindows.of(am.seconds(1)))
    return within.apply(paired, on_error=am.skip)


def grouped_windows(stream: Stream) -> Stream:
    windows = timed(stream).co_group(timed(one(stream)))
    sides = windows.where(lambda record: str(record[1])).equal_to(lambda _: "none")
    within = sides.window(am.TumblingEventTimeWindows.of(am.seconds(1)))
    return within.apply(lambda rows, _: [number(row) for row in rows], on_error=am.skip)


def by_number(record: Any, _: Any) -> Any:
    return number(record)


def by_field(record: Any) -> dict[str, Any]:
    return {"number": record[1]}


def selected_pairs(stream: Stream) -> Stream:
    left, right = (
        timed(side).map(by_field).key_by(lambda _: "a")
        for side in (stream, one(stream))
    )
    share = pc.divide(pc.scalar(6), pc.field("left.number") - 1)
    pairs = left.interval_join(right).between(am.seconds(-1), am.seconds(1))
    return pairs.select("right.number", share=share, on_error=am.skip)


def selected_windows(stream: Stream) -> Stream:
    left, right = (timed(side).map(by_field) for side in (stream, one(stream)))
    sides = left.join(right).where(lambda _: "a").equal_to(lambda _: "a")
    share = pc.divide(pc.scalar(6), pc.field("left.number") - 1)
    windows = sides.window(am.TumblingEventTimeWindows.of(am.seconds(1)))
    return windows.select("right.number", share=share, on_error=am.skip)


# Nothing can be divided by zero, which the first record has there.
SHARE = pc.divide(pc.scalar(6), pc.field("number") - 1)
BY_NUMBER = am.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
    by_number
)
LARGE = am.pattern("large", where=lambda record: record[1] > 0)
NO_RULES = am.MapStateDescriptor("rules")

# What each builds, and how many records it leads to with one of three skipped.
CASES: dict[str, tuple[Callable[[Stream], Any], int]] = {
    "DataStream.map": (lambda s: s.map(number, on_error=am.skip), 2),
    "DataStream.filter": (lambda s: s.filter(number, on_error=am.skip), 2),
    "DataStream.select": (
        lambda s: s.map(by_field).select(share=SHARE, on_error=am.skip),
        2,
    ),
    "DataStream.with_columns": (
        lambda s: s.map(by_field).with_columns(share=SHARE, on_error=am.skip),
        2,
    ),
    "DataStream.flat_map": (
        lambda s: s.flat_map(lambda record: [number(record)], on_error=am.skip),
        2,
    ),
    "DataStream.map_async": (
        lambda s: s.map_async(number_later, on_error=am.skip),
        2,
    ),
    "DataStream.lookup_join": (
        lambda s: s.lookup_join(number_later, key=same, on_error=am.skip),
        2,
    ),
    "DataStream.key_by": (
        lambda s: s.key_by(number, on_error=am.skip).process(Keyed()),
        2,
    ),
    "DataStream.assign_timestamps_and_watermarks": (
        lambda s: s.assign_timestamps_and_watermarks(BY_NUMBER, on_error=am.skip),
        2,
    ),
    "DataStream.process": (lambda s: s.process(Plain(), on_error=am.skip), 2),
    "KeyedStream.process": (lambda s: keyed(s).process(Keyed(), on_error=am.skip), 2),
    "ConnectedStreams.process": (
        lambda s: s.connect(one(s)).process(Co(), on_error=am.skip),
        3,
    ),
    "BroadcastConnectedStream.process": (
        lambda s: s.connect(s.filter(lambda _: False).broadcast(NO_RULES)).process(
            Broadcast(), on_error=am.skip
        ),
        2,
    ),
    "ConnectedStreams.map": (
        lambda s: s.connect(one(s)).map(number, number, on_error=am.skip),
        3,
    ),
    "ConnectedStreams.flat_map": (
        lambda s: s.connect(one(s)).flat_map(
            lambda record: [number(record)],
            lambda record: [number(record)],
            on_error=am.skip,
        ),
        3,
    ),
    "KeyedStream.reduce": (
        lambda s: keyed(s).reduce(
            lambda old, new: (old[0], old[1] + number(new)), on_error=am.skip
        ),
        2,
    ),
    "KeyedStream.aggregate": (
        lambda s: keyed(s).aggregate(Own(), on_error=am.skip),
        2,
    ),
    "KeyedStream.process_async": (
        lambda s: keyed(s).process_async(Async(), on_error=am.skip),
        2,
    ),
    "KeyedStream.match": (lambda s: keyed(s).match(LARGE, on_error=am.skip), 2),
    "IntervalJoined.process": (
        lambda s: (
            keyed(s)
            .interval_join(keyed(one(s)))
            .between(am.seconds(-1), am.seconds(1))
            .process(paired, on_error=am.skip)
        ),
        2,
    ),
    "IntervalJoined.select": (selected_pairs, 2),
    "KeyedStream.as_of_join": (
        lambda s: keyed(s).as_of_join(keyed(one(s)), paired, on_error=am.skip),
        2,
    ),
    # How many pairs there are depends on when records arrive: none has a result.
    "DataStream.with_latest_from": (
        lambda s: s.with_latest_from(one(s), lambda *_: 1 // 0, on_error=am.skip),
        0,
    ),
    "WindowedStream.aggregate": (
        lambda s: windowed(s).aggregate(Own(), on_error=am.skip),
        1,
    ),
    "WindowedStream.reduce": (
        lambda s: windowed(s).reduce(
            lambda old, new: (old[0], old[1] + number(new)), on_error=am.skip
        ),
        1,
    ),
    "WindowedStream.min_by": (
        lambda s: windowed(s).min_by(number, on_error=am.skip),
        1,
    ),
    "WindowedStream.max_by": (
        lambda s: windowed(s).max_by(number, on_error=am.skip),
        1,
    ),
    "KeyedStream.min_by": (lambda s: keyed(s).min_by(number, on_error=am.skip), 2),
    "KeyedStream.max_by": (lambda s: keyed(s).max_by(number, on_error=am.skip), 2),
    # The whole firing fails.
    "WindowedStream.process": (
        lambda s: windowed(s).process(OfWindow(), on_error=am.skip),
        0,
    ),
    "WindowedStream.apply": (
        lambda s: windowed(s).apply(
            lambda key, window, records: [number(one) for one in records],
            on_error=am.skip,
        ),
        0,
    ),
    "PartitionWindowedStream.aggregate": (
        lambda s: s.full_window_partition().aggregate(Own(), on_error=am.skip),
        1,
    ),
    "PartitionWindowedStream.reduce": (
        lambda s: s.full_window_partition().reduce(
            lambda old, new: (old[0], old[1] + number(new)), on_error=am.skip
        ),
        1,
    ),
    "PartitionWindowedStream.min_by": (
        lambda s: s.full_window_partition().min_by(number, on_error=am.skip),
        1,
    ),
    "PartitionWindowedStream.max_by": (
        lambda s: s.full_window_partition().max_by(number, on_error=am.skip),
        1,
    ),
    "PartitionWindowedStream.sort_partition": (
        lambda s: s.full_window_partition().sort_partition(number, on_error=am.skip),
        2,
    ),
    # The whole partition fails.
    "PartitionWindowedStream.map_partition": (
        lambda s: s.full_window_partition().map_partition(
            lambda records: [number(one) for one in records], on_error=am.skip
        ),
        0,
    ),
    "JoinedWindows.select": (selected_windows, 2),
    "JoinedWindows.apply": (joined_windows, 2),
    "CoGroupedWindows.apply": (grouped_windows, 2),
}


def test_each_operator_of_the_table_is_tried() -> None:
    assert {*CASES, "DataStream.sink_to"} == rows_of_the_table()


@pytest.mark.parametrize("case", CASES)
async def test_an_operator_of_the_table_goes_on_after_a_record(case: str) -> None:
    build, count = CASES[case]
    env = am.StreamExecutionEnvironment(parallelism=1)
    job_result = await build(env.from_collection(RECORDS)).collect()
    assert len(job_result) == count


async def test_a_sink_goes_on_after_a_record() -> None:
    env = am.StreamExecutionEnvironment()
    numbers: list[Any] = []
    stream = env.from_collection(RECORDS)
    stream.sink_to(lambda record: numbers.append(number(record)), on_error=am.skip)
    await env.execute("numbers")
    assert numbers == [1, 2]


class Timer(am.KeyedProcessFunction):
    def process_element(self, value: Any, context: Any, out: Any) -> None:
        context.timer_service.register_event_time_timer(5)

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        raise ValueError("no record")


class Opening(am.ProcessFunction):
    def open(self, context: Any) -> None:
        raise ValueError("no record")

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        out.collect(value)


NOT_COVERED: dict[str, Callable[[Stream], Any]] = {
    "open": lambda s: s.process(Opening(), on_error=am.skip),
    "on_timer": lambda s: keyed(s).process(Timer(), on_error=am.skip),
    "key function": lambda s: s.key_by(number).process(Keyed(), on_error=am.skip),
    "no event time": lambda s: (
        s.key_by(lambda record: record[0])
        .window(am.TumblingEventTimeWindows.of(am.seconds(1)))
        .aggregate(am.count(), on_error=am.skip)
    ),
}


@pytest.mark.parametrize("case", NOT_COVERED)
async def test_what_is_about_no_record_fails_the_job(case: str) -> None:
    env = am.StreamExecutionEnvironment(parallelism=1)
    with pytest.raises(am.JobFailedError):
        await NOT_COVERED[case](env.from_collection(RECORDS)).collect()


FAILED = am.OutputTag("failed")


def fails_for_b(key: Any, window: Any, elements: list[Any]) -> list[Any]:
    if key == "b":
        raise ValueError(key)
    return [len(elements)]


@pytest.mark.real_time
@pytest.mark.timeout(180)
async def test_dead_letters_of_windows_travel_between_processes() -> None:
    env = am.StreamExecutionEnvironment(parallelism=2)
    env.configure(deployment=am.Processes(2))
    stream = env.from_collection([("a", 1), ("b", 2), ("b", 3)])
    timed = keyed(stream).window(am.TumblingEventTimeWindows.of(am.seconds(1)))
    global_ = stream.key_by(lambda record: record[0]).window(am.GlobalWindows())
    letters = None
    for windows in (timed, global_.trigger(am.CountTrigger(2))):
        results = windows.apply(fails_for_b, on_error=am.dead_letter(FAILED))
        failed = results.get_side_output(FAILED).rebalance().map(lambda one: one.record)
        letters = failed if letters is None else letters.union(failed)
    assert letters is not None
    found = await letters.collect()
    assert [one.elements for one in found] == [[("b", 2), ("b", 3)]] * 2
    assert {type(one.window).__name__ for one in found} == {
        "TimeWindow",
        "GlobalWindow",
    }
