"""An end of iteration out of a user's function is a failure, and never the end of data.

A bare ``next()`` raises ``StopIteration``, and whoever calls the function from inside a
``map`` takes it for the end of the records.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import aiomailbox as am

Env = am.StreamExecutionEnvironment
Stream = am.DataStream[Any]
FAILED = am.OutputTag("failed")

STRAYS = [StopIteration, StopAsyncIteration, GeneratorExit]
raised: list[type[BaseException]] = [StopIteration]


class Event(NamedTuple):
    key: str
    number: int
    at: int


COUNT = 40
BAD = 7
EVENTS = [Event("ab"[n % 2], n, 1_000 + n) for n in range(COUNT)]


def stray(event: Any) -> None:
    if event.number == BAD:
        raise raised[0]


def given(result: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that raises for one record."""

    def function(event: Any) -> Any:
        stray(event)
        return result(event)

    return function


def given_async(result: Callable[[Any], Any]) -> Callable[[Any], Any]:
    async def function(event: Any) -> Any:
        await asyncio.sleep(0)
        stray(event)
        return result(event)

    return function


async def same(value: Any) -> Any:
    return value


def items(event: Event) -> Any:
    stray(event)
    yield event


async def items_async(event: Event) -> Any:
    stray(event)
    yield event


def latest(_: Event, event: Event) -> Event:
    stray(event)
    return event


async def latest_async(_: Event, event: Event) -> Event:
    stray(event)
    return event


class Straying:
    """An aggregate function whose methods raise where it is said."""

    def __init__(self, where: str = "add") -> None:
        self.where = where

    def create_accumulator(self) -> list[Event]:
        return []

    def add(self, event: Event, accumulator: list[Event]) -> list[Event]:
        if self.where == "add":
            stray(event)
        return [*accumulator, event]

    def get_result(self, accumulator: list[Event]) -> Event:
        if self.where == "result":
            for event in accumulator:
                stray(event)
        return accumulator[-1]

    def merge(self, first: list[Event], second: list[Event]) -> list[Event]:
        return first + second


class Process(am.ProcessFunction):
    def process_element(self, value: Event, context: Any, out: Any) -> None:
        stray(value)
        out.collect(value)


class AsyncProcess(am.ProcessFunction):
    async def process_element(self, value: Event, context: Any, out: Any) -> None:
        await asyncio.sleep(0)
        stray(value)
        out.collect(value)


class Keyed(am.KeyedProcessFunction):
    process_element = Process.process_element


class Timed(am.KeyedProcessFunction):
    def process_element(self, value: Event, context: Any, out: Any) -> None:
        context.timer_service.register_event_time_timer(value.at)

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        stray(Event("", timestamp - 1_000, timestamp))


class CoProcess(am.CoProcessFunction):
    process_element1 = process_element2 = Process.process_element


class KeyedCoProcess(am.KeyedCoProcessFunction):
    process_element1 = process_element2 = Process.process_element


class Broadcast(am.BroadcastProcessFunction):
    process_element = process_broadcast_element = Process.process_element


class KeyedBroadcast(am.KeyedBroadcastProcessFunction):
    process_element = process_broadcast_element = Process.process_element


class Windows(am.ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any, out: Any) -> None:
        for event in elements:
            stray(event)


class Straight(am.EventTimeTrigger):
    def on_element(self, element: Any, timestamp: Any, window: Any, ctx: Any) -> Any:
        stray(element)
        return super().on_element(element, timestamp, window, ctx)


def events(env: Env) -> Stream:
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    return env.from_collection(EVENTS, strategy.with_timestamp_assigner("at"))


def keyed(stream: Stream) -> am.KeyedStream[str, Event]:
    return stream.key_by("key")


def windowed(stream: Stream) -> Any:
    return keyed(stream).window(am.TumblingEventTimeWindows.of(am.seconds(1)))


def timestamps(function: Callable[[Any], Any], **given: Any) -> Any:
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    return lambda s: s.assign_timestamps_and_watermarks(
        strategy.with_timestamp_assigner(function), **given
    )


def whole(event: Event) -> Event:
    return event


def key(event: Event) -> str:
    return event.key


def listed(event: Event) -> list[Event]:
    return [event]


def before(stream: Stream) -> Stream:
    return stream.filter(lambda event: event.number == 0)


RULES = am.MapStateDescriptor("rules")

# Operators that set the record aside, and give all others.
RECORDS: dict[str, Callable[[Stream, Any], Stream]] = {
    "map": lambda s, e: s.map(given(whole), on_error=e),
    "map async": lambda s, e: s.map(given_async(whole), on_error=e),
    "filter": lambda s, e: s.filter(given(bool), on_error=e),
    "filter async": lambda s, e: s.filter(given_async(bool), on_error=e),
    "flat_map": lambda s, e: s.flat_map(given(listed), on_error=e),
    "flat_map generator": lambda s, e: s.flat_map(items, on_error=e),
    "flat_map async": lambda s, e: s.flat_map(given_async(listed), on_error=e),
    "flat_map async generator": lambda s, e: s.flat_map(items_async, on_error=e),
    "flat_map, then map": lambda s, e: s.flat_map(listed).map(given(whole), on_error=e),
    "map_async": lambda s, e: s.map_async(given_async(whole), on_error=e),
    "process": lambda s, e: s.process(Process(), on_error=e),
    "process async": lambda s, e: s.process(AsyncProcess(), on_error=e),
    "keyed process": lambda s, e: keyed(s).process(Keyed(), on_error=e),
    "reduce": lambda s, e: keyed(s).reduce(latest, on_error=e),
    "reduce async": lambda s, e: keyed(s).reduce(latest_async, on_error=e),
    "aggregate": lambda s, e: keyed(s).aggregate(Straying(), on_error=e),
    "key_by": lambda s, e: s.key_by(given(key), on_error=e).process(Passing()),
    "timestamps": lambda s, e: timestamps(given(lambda v: v.at), on_error=e)(s),
    "connected map": lambda s, e: s.connect(before(s)).map(
        given(whole), whole, on_error=e
    ),
    "connected flat_map": lambda s, e: s.connect(before(s)).flat_map(
        given(listed), listed, on_error=e
    ),
    "co-process": lambda s, e: s.connect(before(s)).process(CoProcess(), on_error=e),
    "keyed co-process": lambda s, e: (
        keyed(s).connect(keyed(before(s))).process(KeyedCoProcess(), on_error=e)
    ),
    "broadcast": lambda s, e: s.connect(before(s).broadcast(RULES)).process(
        Broadcast(), on_error=e
    ),
    "keyed broadcast": lambda s, e: (
        keyed(s)
        .connect(before(s).broadcast(RULES))
        .process(KeyedBroadcast(), on_error=e)
    ),
    "lookup join": lambda s, e: s.lookup_join(
        given_async(whole), key=whole, join=lambda event, _: event, on_error=e
    ),
    "lookup join key": lambda s, e: s.lookup_join(
        same, key=given(key), join=lambda event, _: event, on_error=e
    ),
}


class Passing(am.KeyedProcessFunction):
    def process_element(self, value: Event, context: Any, out: Any) -> None:
        out.collect(value)


# Operators whose failure is about no record that could be set aside.
OTHERS: dict[str, Callable[[Stream], Stream]] = {
    "timer": lambda s: keyed(s).process(Timed()),
    "aggregate result": lambda s: keyed(s).aggregate(Straying("result")),
    "window reduce": lambda s: windowed(s).reduce(latest),
    "window add": lambda s: windowed(s).aggregate(Straying()),
    "window result": lambda s: windowed(s).aggregate(Straying("result")),
    "window where": lambda s: windowed(s).aggregate(am.count(where=given(bool))),
    "window process": lambda s: windowed(s).process(Windows()),
    "window trigger": lambda s: windowed(s).trigger(Straight()).reduce(latest),
    "window key": lambda s: (
        s.key_by(given(key))
        .window(am.TumblingEventTimeWindows.of(am.seconds(1)))
        .reduce(latest)
    ),
    "all windows": lambda s: s.window_all(
        am.TumblingEventTimeWindows.of(am.seconds(1))
    ).aggregate(Straying("result")),
    "sessions": lambda s: (
        keyed(s)
        .window(am.EventTimeSessionWindows.with_gap(am.seconds(5)))
        .aggregate(Straying())
    ),
    "session results": lambda s: (
        keyed(s)
        .window(am.EventTimeSessionWindows.with_gap(am.seconds(5)))
        .aggregate(Straying("result"))
    ),
    "match": lambda s: keyed(s).match(am.pattern("one", where=given(bool))),
    "interval join": lambda s: (
        keyed(s)
        .interval_join(keyed(s))
        .between(0, 0)
        .process(lambda left, right: given(whole)(left))
    ),
    "window join": lambda s: (
        s.join(s)
        .where("key")
        .equal_to("key")
        .window(am.TumblingEventTimeWindows.of(am.seconds(1)))
        .apply(lambda left, right: given(whole)(left))
    ),
    "session gap": lambda s: (
        keyed(s)
        .window(
            am.EventTimeSessionWindows.with_dynamic_gap(
                given(lambda event: am.seconds(5))
            )
        )
        .reduce(lambda a, b: b)
    ),
    "evictor": lambda s: (
        windowed(s)
        .evictor(am.DeltaEvictor.of(1, lambda a, b: given(lambda event: 0)(a)))
        .reduce(lambda a, b: b)
    ),
    "co-group": lambda s: (
        s.co_group(s)
        .where("key")
        .equal_to("key")
        .window(am.TumblingEventTimeWindows.of(am.seconds(1)))
        .apply(lambda left, right: [given(whole)(event) for event in left])
    ),
    "retry predicate": lambda s: s.map_async(
        same, retry=am.Retry(2, retry_if=given(lambda event: False))
    ),
    "weight": lambda s: s.map_async(
        same,
        limit=am.RateLimit(1_000_000),
        weight=given(lambda event: 1.0),
    ),
    "order key": lambda s: s.map_async(same, ordered="key", key=given(key)),
    "sink": lambda s: s.sink_to(given(whole)),
    "sink async": lambda s: s.sink_to(given_async(whole)),
}


def user_error_of(error: BaseException) -> am.UserFunctionError:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, am.UserFunctionError):
        cause = cause.__cause__
    assert cause is not None, f"no UserFunctionError behind {error!r}"
    return cause


def line_of(error: am.UserFunctionError) -> str:
    file, _, line = error.location.rpartition(":")
    assert file == __file__, error.location
    return inspect.getsource(inspect.getmodule(stray)).splitlines()[int(line) - 1]  # type: ignore[arg-type]


@pytest.fixture(params=STRAYS, ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> type[BaseException]:
    raised[0] = request.param
    return raised[0]


# What is raised does not ask where: one of them is raised in one of two subtasks, too.
PLACES = [*((kind, 1) for kind in STRAYS), (StopIteration, 2)]
everywhere = pytest.mark.parametrize(("kind", "parallelism"), PLACES, indirect=["kind"])


@pytest.mark.parametrize("case", [*RECORDS, *OTHERS])
@everywhere
@pytest.mark.usefixtures("kind")
async def test_an_end_out_of_a_function_fails_the_job_and_names_operator_and_line(
    case: str, parallelism: int
) -> None:
    env = Env(parallelism)
    stream = events(env)
    stream = RECORDS[case](stream, am.fail) if case in RECORDS else OTHERS[case](stream)
    stream = stream.name("culprit").uid("u-1")
    with pytest.raises(am.JobFailedError) as caught:
        await (env.execute() if case.startswith("sink") else stream.collect())
    error = user_error_of(caught.value)
    assert "culprit" in error.operator
    assert "raise raised[0]" in line_of(error)


@pytest.mark.parametrize("case", RECORDS)
@everywhere
@pytest.mark.usefixtures("kind")
async def test_on_error_decides_what_becomes_of_the_record(
    case: str, parallelism: int
) -> None:
    stream = RECORDS[case](events(Env(parallelism)), am.skip)
    numbers = []
    for found in await stream.collect():
        numbers.append(found.number)
    assert sorted(set(numbers)) == [n for n in range(COUNT) if n != BAD]


# A record without a key goes to the side output of what looks for it.
@pytest.mark.parametrize("case", sorted(RECORDS.keys() - {"key_by"}))
async def test_the_record_can_be_a_dead_letter(
    case: str, kind: type[BaseException]
) -> None:
    stream = RECORDS[case](events(Env()), am.dead_letter(FAILED))
    (letter,) = await stream.get_side_output(FAILED).collect()
    assert letter.record == EVENTS[BAD]
    assert kind.__name__ in letter.traceback
    assert "in stray" in letter.traceback


class Reading:
    """A record whose field is computed."""

    def __init__(self, event: Event) -> None:
        self.number = event.number
        self.at = event.at

    @property
    def key(self) -> str:
        stray(self)
        return "a"

    @property
    def time(self) -> int:
        stray(self)
        return self.at


@pytest.mark.parametrize("parallelism", [1, 2])
async def test_a_property_is_a_function_too(parallelism: int) -> None:
    raised[0] = StopIteration
    records = [Reading(event) for event in EVENTS]
    read = Env(parallelism).from_collection(records)
    with pytest.raises(am.JobFailedError) as caught:
        await read.key_by("key").aggregate(am.count()).collect()
    assert "raise raised[0]" in line_of(user_error_of(caught.value))
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    timed = strategy.with_timestamp_assigner("time")
    with pytest.raises(am.JobFailedError) as caught:
        await read.assign_timestamps_and_watermarks(timed).collect()
    assert "raise raised[0]" in line_of(user_error_of(caught.value))
