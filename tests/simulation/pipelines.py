"""Deterministic pipelines: what they commit does not depend on order or timing.

Where order matters, all records of a key come from one reader, in order; windows are of
one stream in event time, or of several with watermarks that wait for the slowest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import aiomailbox as am
from aiomailbox.operators.sources.source import InputStatus, StaticEnumerator
from aiomailbox.testing import ScriptedSource
from aiomailbox.testing.scripted_source import ScriptedReader, ScriptSplit

COUNT = 240
KEYS = 5

Pipeline = Callable[[am.StreamExecutionEnvironment, Any], object]


class Event(NamedTuple):
    """Something that happened at ``at``, milliseconds."""

    number: int
    key: int
    at: int


# Out of order by up to 40 ms, and each 31st comes 500 ms late.
EVENTS = [
    Event(
        number,
        number % KEYS,
        max(0, number * 10 - number % 5 * 10 - 500 * late(number)),
    )
    for late in [lambda number: number % 31 == 30]
    for number in range(COUNT)
]
IN_ORDER = [Event(number, number % KEYS, number * 10) for number in range(COUNT)]
LATE = am.OutputTag("late")
ODD = am.OutputTag("odd")
RULES = am.MapStateDescriptor("rules", str, int)


def key_of(event: Event) -> int:
    return event.key


def time_of(event: Event) -> int:
    return event.at


def disordered(env: am.StreamExecutionEnvironment) -> am.DataStream[Event]:
    strategy = am.WatermarkStrategy.for_bounded_out_of_orderness(am.seconds(0.05))
    source = env.from_collection(EVENTS, strategy.with_timestamp_assigner("at"))
    return source.uid("events").set_parallelism(1)


def ordered(
    env: am.StreamExecutionEnvironment, name: str = "ordered", step: int = 1
) -> am.DataStream[Event]:
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    events = IN_ORDER[::step]
    source = env.from_collection(events, strategy.with_timestamp_assigner("at"))
    return source.uid(name)


def one_reader(env: am.StreamExecutionEnvironment) -> am.DataStream[Event]:
    return ordered(env).set_parallelism(1)


def window_row(row: Any) -> tuple[Any, ...]:
    return (row.key, row.window_start.timestamp(), row.window_end.timestamp(), row.n)


def stateless(env: Any, sink: Any) -> None:
    ordered(env).filter(lambda event: event.number % 3 != 0).flat_map(
        lambda event: [event.number] * (event.number % 3)
    ).sink_to(sink)


def unchained(env: Any, sink: Any) -> None:
    env.configure(operator_chaining=False)
    ordered(env).rebalance().map(lambda event: event.number).shuffle().map(
        lambda number: number * number
    ).sink_to(sink)


def keyed_reduce(env: Any, sink: Any) -> None:
    ones = ordered(env).map(lambda event: (event.key, 1))
    sums = ones.key_by(lambda one: one[0]).reduce(
        lambda one, two: (one[0], one[1] + two[1])
    )
    sums.uid("sums").sink_to(sink)


def keyed_aggregate(env: Any, sink: Any) -> None:
    counts = ordered(env).key_by("key").aggregate(am.count(), include_key=True)
    counts.uid("counts").sink_to(sink)


class Timers(am.KeyedProcessFunction):
    """Says at some later event time how many there were by then."""

    def open(self, context: Any) -> None:
        descriptor = am.ListStateDescriptor("numbers", int)
        self.numbers = context.keyed_state.get_list(descriptor)

    def process_element(self, value: Event, context: Any, out: Any) -> None:
        self.numbers.add(value.number)
        context.timer_service.register_event_time_timer(value.at - value.at % 300 + 299)

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        numbers = sorted(self.numbers.get())
        past = [number for number in numbers if number * 10 <= timestamp]
        out.collect((context.current_key, timestamp, sum(past), len(past)))


def timers(env: Any, sink: Any) -> None:
    ordered(env).key_by("key").process(Timers()).uid("timers").sink_to(sink)


def tumbling(env: Any, sink: Any) -> None:
    (
        ordered(env)
        .key_by("key")
        .window(am.TumblingEventTimeWindows.of(am.seconds(0.2)))
        .aggregate(am.aggregates(n=am.count()))
        .uid("windows")
        .map(window_row)
        .sink_to(sink)
    )


def sliding(env: Any, sink: Any) -> None:
    (
        ordered(env)
        .key_by("key")
        .window(am.SlidingEventTimeWindows.of(am.seconds(0.3), am.seconds(0.1)))
        .aggregate(am.aggregates(n=am.count()))
        .uid("windows")
        .map(window_row)
        .sink_to(sink)
    )


def window_functions(env: Any, sink: Any) -> None:
    (
        ordered(env)
        .key_by("key")
        .window(am.TumblingEventTimeWindows.of(am.seconds(0.2)))
        .apply(
            lambda key, window, values: [
                (key, window.start, sorted(one.number for one in values))
            ]
        )
        .uid("windows")
        .map(str)
        .sink_to(sink)
    )


def sessions(env: Any, sink: Any) -> None:
    (
        ordered(env)
        .filter(lambda event: event.number % 60 < 40)
        .key_by("key")
        .window(am.EventTimeSessionWindows.with_gap(am.seconds(0.1)))
        .aggregate(am.aggregates(n=am.count()))
        .uid("sessions")
        .map(window_row)
        .sink_to(sink)
    )


def late_data(env: Any, sink: Any) -> None:
    """Count what windows count and what is late: each record is one of both."""
    windows = (
        disordered(env)
        .key_by("key")
        .window(am.TumblingEventTimeWindows.of(am.seconds(0.2)))
        .side_output_late_data(LATE)
        .apply(lambda key, window, values: [one.number for one in values])
        .uid("windows")
    )
    windows.sink_to(sink)
    windows.get_side_output(LATE).map(lambda event: event.number).sink_to(sink)


# After 30 in order come 30 that are late, and no watermark with them.
LATE_FOR_LONG = [
    Event(number, number % KEYS, number * 10 if number // 30 % 2 == 0 else number * 3)
    for number in range(COUNT)
]


def late_for_long(env: Any, sink: Any) -> None:
    """Let late records come for a while in which event time stands still."""
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    timed = strategy.with_timestamp_assigner("at")
    source = env.from_collection(LATE_FOR_LONG, timed).uid("events").set_parallelism(1)
    windows = (
        source.map(awaiting)
        .set_parallelism(1)
        .key_by("key")
        .window(am.TumblingEventTimeWindows.of(am.seconds(0.1)))
        .side_output_late_data(LATE)
        .apply(lambda key, window, values: [one.number for one in values])
        .uid("windows")
    )
    windows.map(lambda number: ("in time", number)).sink_to(sink)
    late = windows.get_side_output(LATE)
    late.map(lambda event: ("late", event.number)).sink_to(sink)


def interval_join(env: Any, sink: Any) -> None:
    left = ordered(env, "left", 2).key_by("key")
    right = ordered(env, "right", 3).key_by("key")
    joined = left.interval_join(right).between(am.seconds(-0.1), am.seconds(0.1))
    pairs = joined.process(lambda one, two: (one.number, two.number))
    pairs.uid("join").sink_to(sink)


def as_of_join(env: Any, sink: Any) -> None:
    left = ordered(env, "left").key_by("key")
    right = ordered(env, "right", 7).key_by("key")
    pairs = left.as_of_join(right, lambda one, two: (one.number, two.number))
    pairs.uid("join").sink_to(sink)


def window_join(env: Any, sink: Any) -> None:
    left, right = ordered(env, "left", 2), ordered(env, "right", 3)
    (
        left.join(right)
        .where(key_of)
        .equal_to(key_of)
        .window(am.TumblingEventTimeWindows.of(am.seconds(0.2)))
        .apply(lambda one, two: (one.number, two.number))
        .uid("join")
        .sink_to(sink)
    )


def window_join_of_fields(env: Any, sink: Any) -> None:
    left, right = ordered(env, "left", 2), ordered(env, "right", 3)
    (
        left.join(right)
        .where("key")
        .equal_to("key")
        .window(am.TumblingEventTimeWindows.of(am.seconds(0.2)))
        .select(one="left.number", two="right.number")
        .uid("join")
        .map(tuple)
        .sink_to(sink)
    )


def partition_totals(env: Any, sink: Any) -> None:
    keyed = ordered(env).key_by(lambda event: event.number % 24)
    totals = keyed.full_window_partition()
    totals.aggregate(am.count(), include_key=True).uid("totals").sink_to(sink)


def partition_lists(env: Any, sink: Any) -> None:
    lists = ordered(env).key_by("key").full_window_partition()
    lists.map_partition(lambda events: sorted(one.number for one in events)).uid(
        "lists"
    ).sink_to(sink)


def union_of_unequal(env: Any, sink: Any) -> None:
    """One source ends at once, the other one goes on for long."""

    async def slow(after: int | None) -> AsyncIterator[Event]:
        for event in IN_ORDER[0 if after is None else after + 1 :: 1][:120]:
            if event.number % 20 == 0:
                await asyncio.sleep(0.5)
            if event.number < 120:
                yield event

    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    long = env.from_async_iterable(
        slow, strategy.with_timestamp_assigner("at"), offset="number"
    ).uid("long")
    short = ordered(env, "short", 20)
    (
        short.union(long)
        .key_by("key")
        .window(am.TumblingEventTimeWindows.of(am.seconds(0.2)))
        .aggregate(am.aggregates(n=am.count()))
        .uid("windows")
        .map(window_row)
        .sink_to(sink)
    )


async def looked_up(event: Event) -> int:
    await asyncio.sleep(event.number % 7 / 100)
    return event.number


class Dealt(ScriptedSource):
    """Hands out pieces one by one, to readers that have nothing left."""

    def create_enumerator(self, context: Any, state: Any = None) -> Any:
        splits = (
            [ScriptSplit(name) for name in self.scripts] if state is None else state
        )
        return StaticEnumerator(context, list(splits), on_request=True)

    def create_reader(self, context: Any) -> Any:
        return DealtReader(self, context)


class DealtReader(ScriptedReader):
    def __init__(self, source: Dealt, context: Any) -> None:
        super().__init__(source)
        self.context = context
        self.has_asked = False

    def add_splits(self, splits: list[ScriptSplit]) -> None:
        self.has_asked = False
        super().add_splits(splits)

    def poll_next(self, output: Any) -> InputStatus:
        status = super().poll_next(output)
        if status is InputStatus.NOTHING_AVAILABLE and not self.has_asked:
            self.has_asked = True
            self.context.request_split()
        return status


def dealt(env: Any, sink: Any) -> None:
    pieces = {str(start): EVENTS[start : start + 10] for start in range(0, COUNT, 10)}
    source = Dealt(pieces, run_length=5)
    events = env.from_source(source, name="pieces").uid("pieces")
    there = events.map(awaiting).map(lambda event: event.number, run_in="thread")
    there.sink_to(sink)


async def awaiting(event: Event) -> Event:
    await asyncio.sleep(event.number % 3 / 100)
    return event


def map_async_ordered(env: Any, sink: Any) -> None:
    ordered(env).map_async(looked_up, concurrency=8).uid("calls").sink_to(sink)


def map_async_unordered(env: Any, sink: Any) -> None:
    calls = ordered(env).map_async(looked_up, concurrency=8, ordered=False)
    calls.uid("calls").sink_to(sink)


def map_async_by_key(env: Any, sink: Any) -> None:
    calls = ordered(env).key_by("key").map_async(looked_up, ordered="key")
    calls.uid("calls").sink_to(sink)


def map_async_batched(env: Any, sink: Any) -> None:
    async def all_of(events: list[Event]) -> list[int]:
        await asyncio.sleep(0.05)
        return [event.number for event in events]

    calls = ordered(env).map_async(all_of, batch=am.Batch(7, 0.1), concurrency=3)
    calls.uid("calls").sink_to(sink)


CONCURRENCY, BUFFER = 4, 16


def asking(sink: Any) -> Callable[[Event], Any]:
    async def ask(event: Event) -> int:
        key = am.current_call().idempotency_key
        await sink.call(key, event.number % 7 / 100)
        return event.number

    return ask


def journalled(env: Any, sink: Any) -> None:
    calls = ordered(env).map_async(
        asking(sink),
        concurrency=CONCURRENCY,
        capacity=BUFFER,
        journal=True,
        id="number",
    )
    calls.uid("calls").sink_to(sink)


def journalled_unordered(env: Any, sink: Any) -> None:
    spread = ordered(env).rebalance().map(lambda event: event)
    calls = spread.map_async(
        asking(sink),
        concurrency=CONCURRENCY,
        capacity=BUFFER,
        ordered=False,
        journal=True,
        id="number",
    )
    calls.uid("calls").rebalance().map(lambda number: number).sink_to(sink)


def journalled_failures(env: Any, sink: Any) -> None:
    """Calls that fail for good are finished as well: their rows go to dead letters."""
    ask = asking(sink)
    dead = am.OutputTag("dead")

    async def ask_or_fail(event: Event) -> int:
        number: int = await ask(event)
        if number % 5 == 0:
            message = "no answer for this one"
            raise ValueError(message)
        return number

    calls = (
        ordered(env)
        .map_async(
            ask_or_fail,
            concurrency=CONCURRENCY,
            capacity=BUFFER,
            journal=True,
            id="number",
            on_error=am.dead_letter(dead),
        )
        .uid("calls")
    )
    calls.sink_to(sink)
    letters = calls.get_side_output(dead)
    letters.map(lambda letter: -letter.record.number).sink_to(sink)


def lookup_join(env: Any, sink: Any) -> None:
    async def find(key: int) -> str | None:
        await asyncio.sleep(0.01)
        return None if key == 3 else f"key {key}"

    joined = ordered(env).lookup_join(find, key="key", cache=am.Cache(size=3))
    joined.map(lambda pair: (pair[0].number, pair[1])).uid("join").sink_to(sink)


async def running_count(event: Event, context: Any, out: Any) -> None:
    await asyncio.sleep(event.number % 3 / 100)
    seen = context.keyed_state.get_value(
        am.ValueStateDescriptor("seen", int, default=0)
    )
    seen.update(seen.value() + 1)
    out.collect((event.key, seen.value()))


def process_async(env: Any, sink: Any) -> None:
    counts = ordered(env).key_by("key").process_async(running_count, concurrency=4)
    counts.uid("counts").sink_to(sink)


class Collect(am.BroadcastProcessFunction):
    """Tells of each rule once a subtask, and of each record once."""

    def process_element(self, value: Event, context: Any, out: Any) -> None:
        out.collect(value.number)

    def process_broadcast_element(self, value: Event, context: Any, out: Any) -> None:
        context.get_broadcast_state(RULES).put(str(value.number), value.number)


def broadcast_state(env: Any, sink: Any) -> None:
    rules = ordered(env, "rules", 10).broadcast(RULES)
    ordered(env).connect(rules).process(Collect()).uid("check").sink_to(sink)


class Padded(am.KeyedProcessFunction):
    """Keeps more than fits into the metadata of a checkpoint."""

    def open(self, context: Any) -> None:
        self.seen = context.keyed_state.get_list(am.ListStateDescriptor("seen", str))

    def process_element(self, value: Event, context: Any, out: Any) -> None:
        self.seen.add(f"{value.number:0500}")
        out.collect((value.key, len(list(self.seen.get()))))


def large_state(env: Any, sink: Any) -> None:
    ordered(env).key_by("key").process(Padded()).uid("padded").sink_to(sink)


class Split(am.ProcessFunction):
    def process_element(self, value: Event, context: Any, out: Any) -> None:
        if value.number % 2:
            context.output(ODD, value.number)
        else:
            out.collect(value.number)


def side_outputs(env: Any, sink: Any) -> None:
    even = ordered(env).process(Split()).uid("split")
    even.sink_to(sink)
    odd = even.get_side_output(ODD).map(lambda number: (number % 3, 1))
    counts = odd.key_by(lambda one: one[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
    counts.uid("counts").sink_to(sink)


def patterns(env: Any, sink: Any) -> None:
    pattern = (
        am.pattern("low", where=lambda event: event.number % 4 == 0)
        .followed_by("high", where=lambda event: event.number % 4 == 3)
        .within(am.seconds(1.0))
    )
    matches = ordered(env).key_by("key").match(pattern).uid("match")
    matches.map(
        lambda found: (found.key, *(one.number for one in found.events.values()))
    ).sink_to(sink)


def deduplicate(env: Any, sink: Any) -> None:
    keyed = ordered(env).key_by(lambda event: event.number // 7)
    keyed.deduplicate().uid("first").map(lambda event: event.number // 7).sink_to(sink)


def batched(env: Any, sink: Any) -> None:
    lists = ordered(env).batch(7, within=0.05).uid("batch")
    lists.flat_map(lambda events: [event.number for event in events]).sink_to(sink)


def buffered(env: Any, sink: Any) -> None:
    events = ordered(env).buffer(10_000).uid("buffer")
    events.map(lambda event: event.number).sink_to(sink)


class Either(am.KeyedCoProcessFunction):
    """Counts both streams by key together."""

    def open(self, context: Any) -> None:
        descriptor = am.ValueStateDescriptor("count", int, default=0)
        self.count = context.keyed_state.get_value(descriptor)

    def process_element1(self, value: Event, context: Any, out: Any) -> None:
        self.count.update(self.count.value() + 1)
        out.collect((value.key, self.count.value()))

    process_element2 = process_element1


def connected(env: Any, sink: Any) -> None:
    left, right = ordered(env, "left", 2), ordered(env, "right", 3)
    both = left.key_by("key").connect(right.key_by("key"))
    both.process(Either()).uid("either").sink_to(sink)


def sessionised(env: Any, sink: Any) -> None:
    events = ordered(env).filter(lambda event: event.number % 60 < 40)
    found = events.key_by("key").sessionise(am.seconds(0.1)).uid("sessions")
    found.map(
        lambda one: (one.key, one.start.timestamp(), one.end.timestamp())
    ).sink_to(sink)


def watermarks_on_the_way(env: Any, sink: Any) -> None:
    """Event times are assigned behind the source, by an operator."""
    events = env.from_collection(IN_ORDER).uid("bare").set_parallelism(1)
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    timed = events.assign_timestamps_and_watermarks(
        strategy.with_timestamp_assigner("at")
    ).set_parallelism(1)
    (
        timed.key_by("key")
        .window(am.TumblingEventTimeWindows.of(am.seconds(0.2)))
        .aggregate(am.aggregates(n=am.count()))
        .uid("windows")
        .map(window_row)
        .sink_to(sink)
    )


def sliding_unevenly(env: Any, sink: Any) -> None:
    """A reduction that cannot share panes."""
    ones = ordered(env).map(lambda event: (event.key, 1))
    windows = ones.key_by(lambda one: one[0]).window(
        am.SlidingEventTimeWindows.of(am.seconds(0.25), am.seconds(0.1))
    )
    counts = windows.reduce(lambda one, two: (one[0], one[1] + two[1]))
    counts.uid("windows").sink_to(sink)


class KeyedRules(am.KeyedBroadcastProcessFunction):
    """Counts the records of a key; rules are only kept."""

    def open(self, context: Any) -> None:
        descriptor = am.ValueStateDescriptor("count", int, default=0)
        self.count = context.keyed_state.get_value(descriptor)

    def process_element(self, value: Event, context: Any, out: Any) -> None:
        self.count.update(self.count.value() + 1)
        out.collect((value.key, self.count.value()))

    def process_broadcast_element(self, value: Event, context: Any, out: Any) -> None:
        context.get_broadcast_state(RULES).put(str(value.number), value.number)


def keyed_broadcast(env: Any, sink: Any) -> None:
    rules = ordered(env, "rules", 10).broadcast(RULES)
    both = ordered(env).key_by("key").connect(rules)
    both.process(KeyedRules()).uid("check").sink_to(sink)


class Both(am.CoProcessFunction):
    def process_element1(self, value: Event, context: Any, out: Any) -> None:
        out.collect(value.number)

    process_element2 = process_element1


def connected_without_keys(env: Any, sink: Any) -> None:
    left, right = ordered(env, "left", 2), ordered(env, "right", 3)
    left.connect(right).process(Both()).uid("both").sink_to(sink)
    left.connect(right).flat_map(
        lambda event: [event.number], lambda event: [-event.number]
    ).uid("flat").sink_to(sink)


def awaited(env: Any, sink: Any) -> None:
    ordered(env).map(looked_up).uid("awaited").sink_to(sink)


PIPELINES: dict[str, Pipeline] = {
    made.__name__: made
    for made in (
        stateless,
        unchained,
        keyed_reduce,
        keyed_aggregate,
        timers,
        tumbling,
        sliding,
        window_functions,
        sessions,
        late_data,
        late_for_long,
        interval_join,
        as_of_join,
        window_join,
        window_join_of_fields,
        partition_totals,
        partition_lists,
        union_of_unequal,
        dealt,
        map_async_ordered,
        map_async_unordered,
        map_async_by_key,
        map_async_batched,
        lookup_join,
        process_async,
        broadcast_state,
        side_outputs,
        patterns,
        deduplicate,
        batched,
        buffered,
        connected,
        sessionised,
        watermarks_on_the_way,
        sliding_unevenly,
        keyed_broadcast,
        large_state,
        connected_without_keys,
        awaited,
        journalled,
        journalled_unordered,
        journalled_failures,
    )
}
