"""Jobs that were cut, and what they had in their state: see `tests.saved.write`.

What is saved here is restored by all later versions. So nothing in this module that a
fixture was written with is changed afterwards: no class, uid, name or function. New
kinds of state get new jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import aiomailbox as am
from aiomailbox.testing import ScriptedSource

COUNT = 120
KEYS = 4
STEP_MS = 10
# Where a job is cut: in the middle of its 1.2 seconds, and of its windows.
CUT_S = 0.655
START_MS = 1_000_000
# None for readers of files when they are restored: their threads hold up virtual time.
PACE_S = [STEP_MS / 1000]
# The lives of a job: up to the cut, from there on, and one without a cut.
FIRST, NEXT, WHOLE = range(3)


class Event(NamedTuple):
    """A record: at ``at`` milliseconds; the sizes are in no order."""

    number: int
    key: str
    at: int
    size: int


EVENTS = [
    Event(i, f"k{i * 7 % KEYS}", START_MS + i * STEP_MS, i * 37 % 101)
    for i in range(COUNT)
]
# With gaps, so that there are sessions.
BURSTS = [one for one in EVENTS if one.number % 30 < 22]


class Level(Enum):
    LOW = "low"
    HIGH = "high"


class Grade(IntEnum):
    ONE = 1
    TWO = 2


@dataclass(frozen=True)
class Place:
    row: int
    level: Level


class Cart(msgspec.Struct):
    grade: Grade
    places: list[Place]
    price: Decimal


class Pair(NamedTuple):
    left: int
    right: Place | None


@dataclass
class Total:
    """What an aggregate of the user's has as its accumulator."""

    count: int = 0
    pairs: list[Pair] = field(default_factory=list)


class Odd:
    """What only pickle can keep."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Sink:
    """Commits in two phases into a dict that outlives the job.

    Args:
        committed: What was committed, by the names of committables.
        life: Which program writes, for the names.
    """

    guarantee = am.Guarantee.EXACTLY_ONCE

    def __init__(self, committed: dict[str, list[Any]], life: int) -> None:
        self.committed, self.life = committed, life

    def create_writer(self, context: Any) -> Any:
        return _Writer(f"{context.operator_id}/{context.subtask_index}/{self.life}")

    def create_committer(self, context: Any) -> Any:
        return _Committer(self.committed)


class Staged(NamedTuple):
    """A committable: rows are in it, so that it has objects of all their classes."""

    name: str
    rows: list[Any]


class _Writer:
    def __init__(self, name: str) -> None:
        self.name, self.count = name, 0
        self.rows: list[Any] = []

    def write_run(self, run: Any) -> None:
        self.rows += run.values

    def flush(self, *, end_of_input: bool) -> None: ...

    def prepare_commit(self) -> list[Staged]:
        rows, self.rows = self.rows, []
        self.count += 1
        return [Staged(f"{self.name}/{self.count}", rows)] if rows else []

    def snapshot(self) -> list[Any]:
        return []

    def restore(self, elements: list[Any]) -> None: ...

    def close(self) -> None: ...


class _Committer:
    def __init__(self, committed: dict[str, list[Any]]) -> None:
        self.committed = committed

    def begin(self, *, restored: bool) -> None: ...

    async def commit(
        self, committables: list[Staged], *, checkpoint_id: int, is_final: bool
    ) -> None:
        for one in committables:
            self.committed.setdefault(one.name, [repr(row) for row in one.rows])

    def end(self, *, succeeded: bool) -> None: ...


STRATEGY: Any = am.WatermarkStrategy.for_monotonous_timestamps()
IN_TIME = STRATEGY.with_timestamp_assigner("at")


def paced(
    env: Any, name: str = "events", events: list[Event] = EVENTS, step: int = 1
) -> Any:
    """Start a stream of events, each at its time."""

    async def read(after: int | None) -> AsyncIterator[Event]:
        loop = asyncio.get_running_loop()
        first = 0 if after is None else after + 1
        begin = loop.time() - first * STEP_MS / 1000
        for event in events:
            if event.number >= first and event.number % step == 0:
                due = begin + event.number * STEP_MS / 1000
                await asyncio.sleep(due - loop.time())
                yield event

    source = am.AsyncIterableSource(read, offset="number")
    return env.from_source(source, IN_TIME, name=name).uid(name)


def paced_and_waiting(env: Any) -> Any:
    """Start a stream that ends behind all timers of processing time: others would be lost."""

    async def read(after: int | None) -> AsyncIterator[Event]:
        for event in EVENTS[0 if after is None else after + 1 :]:
            await asyncio.sleep(STEP_MS / 1000)
            yield event
        await asyncio.sleep(2.0)

    source = am.AsyncIterableSource(read, offset="number")
    return env.from_source(source, name="events").uid("events")


async def pace(value: Any) -> Any:
    """Take as long as records have between them, for each; also for batches of 10."""
    rows = value.num_rows if isinstance(value, pa.RecordBatch) else 1
    await asyncio.sleep(rows * PACE_S[0])
    return value


def keyed(env: Any, **options: Any) -> Any:
    return paced(env, **options).key_by("key")


# Sources.


async def briefly(value: Any) -> Any:
    await asyncio.sleep(0.001)
    return value


def source_collection(env: Any, sink: Any) -> None:
    many = [e._replace(number=e.number + i * COUNT) for i in range(10) for e in EVENTS]
    source = env.from_collection(many).uid("source").set_parallelism(1)
    slow = source.rebalance().map(briefly).uid("pace").set_parallelism(1)
    slow.key_by("key").aggregate(am.count(), include_key=True).uid("n").sink_to(sink)


def source_arrow(env: Any, sink: Any) -> None:
    batches = [pa.RecordBatch.from_pylist([e._asdict()]) for e in EVENTS]
    rows = env.from_arrow(batches, IN_TIME).uid("source").map_batches(pace).uid("pace")
    rows.key_by("key").aggregate(am.aggregates(n=am.count())).uid("n").sink_to(sink)


def write_files() -> None:
    """Write what the file sources read."""
    place = Path("in")
    place.mkdir()
    for name, part in (("a", EVENTS[:80]), ("b", EVENTS[80:])):
        lines = [msgspec.json.encode(one._asdict()) + b"\n" for one in part]
        (place / f"{name}.jsonl").write_bytes(b"".join(lines))
        rows = [",".join(map(str, one)) + "\n" for one in (Event._fields, *part)]
        (place / f"{name}.csv").write_text("".join(rows))
        table = pa.Table.from_pylist([one._asdict() for one in part])
        pq.write_table(table, place / f"{name}.parquet")


def _source_files(ending: str) -> Any:
    def build(env: Any, sink: Any) -> None:
        source = am.FileSource(f"in/*.{ending}", records=Event, batch_rows=10)
        rows = env.from_source(source, IN_TIME).uid("source").set_parallelism(1)
        slow = rows.map(pace).uid("pace").set_parallelism(1)
        counts = slow.key_by("key").aggregate(am.count(), include_key=True)
        counts.uid("n").sink_to(sink)

    return build


def source_inbox(env: Any, sink: Any) -> None:
    # It gives what another puts: each life of the job gets a part.
    inbox: am.Inbox[Event] = am.Inbox(size=COUNT)
    parts = {FIRST: EVENTS[: COUNT // 2], NEXT: EVENTS[COUNT // 2 :], WHOLE: EVENTS}
    for event in parts[sink.life]:
        assert inbox.try_put(event)
    if sink.life != FIRST:
        inbox.close()
    counts = env.from_source(inbox, IN_TIME).uid("source").key_by("key")
    counts.aggregate(am.count(), include_key=True).uid("n").sink_to(sink)


def source_scripted(env: Any, sink: Any) -> None:
    scripts = {
        name: [e.number for e in EVENTS if e.key == name] for name in ["k0", "k1"]
    }
    rows = env.from_source(ScriptedSource(scripts, run_length=5)).uid("source")
    rows.rebalance().map(slowly).uid("pace").set_parallelism(1).sink_to(sink)


# State of functions.

TTL = am.StateTtlConfig(am.days(1))


class _Sizes(am.AggregateFunction):
    def create_accumulator(self) -> Total:
        return Total()

    def add(self, value: Event, accumulator: Total) -> Total:
        place = Place(value.number, Level.HIGH if value.size > 50 else Level.LOW)
        accumulator.count += 1
        accumulator.pairs.append(Pair(value.size, place))
        return accumulator

    def get_result(self, accumulator: Total) -> tuple[int, int]:
        return accumulator.count, sum(pair.left for pair in accumulator.pairs)

    def merge(self, one: Total, two: Total) -> Total:
        return Total(one.count + two.count, one.pairs + two.pairs)


def _larger(one: Pair, two: Pair) -> Pair:
    return max(one, two, key=lambda pair: pair.left)


class KeyedStates(am.KeyedProcessFunction):
    """Has state of every kind, of classes of every kind, and timers of both times."""

    def open(self, context: Any) -> None:
        state = context.keyed_state
        self.cart = state.get_value(am.ValueStateDescriptor("cart", Cart))
        self.untyped = state.get_value(am.ValueStateDescriptor("untyped"))
        self.pairs = state.get_list(am.ListStateDescriptor("pairs", Pair))
        self.places = state.get_map(am.MapStateDescriptor("places", Level, Place))
        self.most = state.get_reducing(
            am.ReducingStateDescriptor("most", _larger, Pair)
        )
        self.total = state.get_aggregating(
            am.AggregatingStateDescriptor("total", _Sizes())
        )
        self.last = state.get_value(am.ValueStateDescriptor("last", Place, ttl=TTL))
        self.recent = state.get_list(am.ListStateDescriptor("recent", int, ttl=TTL))
        self.seen = state.get_map(am.MapStateDescriptor("seen", str, int, ttl=TTL))

    def process_element(self, value: Event, context: Any, out: Any) -> None:
        place = Place(value.number, Level.HIGH if value.size > 50 else Level.LOW)
        cart = self.cart.value() or Cart(Grade.ONE, [], Decimal(0))
        price = cart.price + Decimal(value.size) / 100
        self.cart.update(Cart(Grade.TWO, [*cart.places, place], price))
        self.untyped.update((self.untyped.value() or 0) + value.size)
        self.pairs.add(Pair(value.number, None if value.number % 2 else place))
        self.places.put(place.level, place)
        self.most.add(Pair(value.size, place))
        self.total.add(value)
        self.last.update(place)
        self.recent.add(value.number)
        self.seen.put(f"s{value.size % 5}", value.number)
        timers = context.timer_service
        timers.register_event_time_timer(value.at // 400 * 400 + 399)

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        cart, places = self.cart.value(), dict(self.places.items())
        out.collect(
            (
                *(context.current_key, timestamp, len(cart.places), cart.price),
                *(cart.grade, self.untyped.value(), list(self.pairs.get())),
                *(sorted(places.items(), key=repr), self.most.get()),
                *(self.total.get(), self.last.value(), sum(self.recent.get())),
                sorted(self.seen.items()),
            )
        )


def keyed_states(env: Any, sink: Any) -> None:
    keyed(env).process(KeyedStates()).uid("states").sink_to(sink)


class PickledStates(am.KeyedProcessFunction):
    """Has objects of ours and of the user's in pickled state."""

    ODD = am.ValueStateDescriptor("odd", serializer=am.PickleSerializer())

    def open(self, context: Any) -> None:
        self.odd = context.keyed_state.get_value(self.ODD)

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        before = self.odd.value()
        rows = [] if before is None else before.value
        window = am.TimeWindow(0, value.n)
        self.odd.update(Odd([*rows[-3:], (value, window)]))
        out.collect((value.n, [row[0] for row in rows]))


def pickled_states(env: Any, sink: Any) -> None:
    counts = keyed(env).aggregate(am.aggregates(n=am.count())).uid("n")
    counts.key_by(lambda one: one.key).process(PickledStates()).uid("odd").sink_to(sink)


class ProcessingTimers(am.KeyedProcessFunction):
    """Sets timers of processing time, which are due after the cut."""

    COUNTS = am.ValueStateDescriptor("n", int, default=0)

    def open(self, context: Any) -> None:
        self.count = context.keyed_state.get_value(self.COUNTS)

    def process_element(self, value: Event, context: Any, out: Any) -> None:
        self.count.update(self.count.value() + 1)
        timers = context.timer_service
        if value.number < 60:
            timers.register_processing_time_timer(
                timers.current_processing_time() + 1_000 + value.number
            )

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        out.collect((context.current_key, "fired"))


def processing_timers(env: Any, sink: Any) -> None:
    events = paced_and_waiting(env).key_by("key")
    events.process(ProcessingTimers()).uid("timers").sink_to(sink)


def keys(env: Any, sink: Any) -> None:
    """Keys of all types that keys may have."""
    events = paced(env)
    made: dict[str, Callable[[Event], Any]] = {
        "tuples": lambda event: (event.number % 3, event.key),
        "bytes": lambda event: event.key.encode(),
        "floats": lambda event: event.number % 3 / 2,
        "bools": lambda event: event.number % 3 == 0,
    }
    for name, key in made.items():
        counts = events.key_by(key).aggregate(am.count(), include_key=True)
        counts.uid(name).sink_to(sink)


class OperatorStates(am.ProcessFunction):
    """Has state without keys: split, united and broadcast."""

    def initialize_state(self, context: Any) -> None:
        state = context.operator_state
        self.held = state.get_list_state(am.ListStateDescriptor("held", Pair))
        self.all = state.get_union_list_state(am.ListStateDescriptor("all", Place))
        self.rows = list(self.held.get())
        self.places = list(self.all.get())

    def snapshot_state(self, context: Any) -> None:
        self.held.update(self.rows)
        self.all.update(self.places)

    def process_element(self, value: Event, context: Any, out: Any) -> None:
        place = Place(value.number, Level.LOW)
        self.rows.append(Pair(value.number, place))
        self.places.append(place)
        if value.number == COUNT - 1:
            out.collect((self.rows, self.places))


def operator_states(env: Any, sink: Any) -> None:
    paced(env).process(OperatorStates()).uid("lists").set_parallelism(1).sink_to(sink)


RULES = am.MapStateDescriptor("rules", str, Place)


class Rules(am.BroadcastProcessFunction):
    def process_element(self, value: Event, context: Any, out: Any) -> None:
        rules = context.get_broadcast_state(RULES)
        out.collect((value.number, sum(1 for _ in rules.items())))

    def process_broadcast_element(self, value: Event, context: Any, out: Any) -> None:
        place = Place(value.number, Level.HIGH)
        context.get_broadcast_state(RULES).put(str(value.number), place)


class KeyedRules(am.KeyedBroadcastProcessFunction):
    COUNTS = am.ValueStateDescriptor("count", int, default=0)

    def open(self, context: Any) -> None:
        self.count = context.keyed_state.get_value(self.COUNTS)

    def process_element(self, value: Event, context: Any, out: Any) -> None:
        self.count.update(self.count.value() + 1)
        rules = sum(1 for _ in context.get_broadcast_state(RULES).items())
        out.collect((value.key, self.count.value(), rules))

    process_broadcast_element = Rules.process_broadcast_element


def broadcast(env: Any, sink: Any) -> None:
    # All rules come before the cut, and the counts of them after.
    rules = paced(env, "rules", EVENTS[:30], 3).broadcast(RULES)
    events = paced(env, events=EVENTS[40:])
    events.connect(rules).process(Rules()).uid("rules of all").sink_to(sink)
    both = events.key_by("key").connect(rules).process(KeyedRules())
    both.uid("rules of keys").sink_to(sink)


# Aggregates, in rows.


def every_aggregate() -> Any:
    return am.aggregates(
        n=am.count(),
        large=am.count(where=lambda event: event.size > 50),
        total=am.sum_("size"),
        average=am.mean("size"),
        least=am.min_("size"),
        most=am.max_("size"),
        sizes=am.collect_list("size"),
        kinds=am.count_distinct("size"),
        first=am.first("number", by="at"),
        last=am.last("number", by="at"),
        top=am.top_n(3, by="size"),
        half=am.quantile(0.5, "size"),
        own=_Sizes(),
    )


def some_aggregates() -> Any:
    return am.aggregates(
        n=am.count(),
        total=am.sum_("size"),
        average=am.mean("size"),
        most=am.max_("size"),
    )


def single(env: Any, sink: Any) -> None:
    """Aggregates that are one alone, and reductions."""
    events = keyed(env)
    for name, one in (
        *(("n", am.count()), ("mean", am.mean("size")), ("own", _Sizes())),
        ("top", am.top_n(2, by="size")),
    ):
        events.aggregate(one, include_key=True).uid(name).sink_to(sink)
    events.reduce(lambda a, b: a if a.size > b.size else b).uid("most").sink_to(sink)


def aggregates_of_rows(env: Any, sink: Any) -> None:
    keyed(env).aggregate(every_aggregate()).uid("all").sink_to(sink)


TUMBLING = am.TumblingEventTimeWindows.of(am.millis(200))
SLIDING = am.SlidingEventTimeWindows.of(am.millis(300), am.millis(100))
# Panes cannot be shared.
UNEVEN = am.SlidingEventTimeWindows.of(am.millis(250), am.millis(100))
SESSIONS = am.EventTimeSessionWindows.with_gap(am.millis(60))


def aggregates_in_windows(env: Any, sink: Any) -> None:
    windows = {"tumbling": TUMBLING, "sliding": SLIDING, "sessions": SESSIONS}
    for name, assigner in windows.items():
        events = keyed(env, name=f"{name} events", events=BURSTS)
        found = events.window(assigner).aggregate(every_aggregate())
        found.uid(name).sink_to(sink)


# Windows of rows.


def numbers_of(key: str, window: Any, values: Any) -> Any:
    return [(key, window, sorted(one.number for one in values))]


def windows_of_lists(env: Any, sink: Any) -> None:
    windows = {"tumbling": TUMBLING, "sliding": SLIDING, "sessions": SESSIONS}
    for name, assigner in windows.items():
        events = keyed(env, name=f"{name} events", events=BURSTS)
        events.window(assigner).apply(numbers_of).uid(name).sink_to(sink)


def windows_of_reductions(env: Any, sink: Any) -> None:
    windows = {"tumbling": TUMBLING, "uneven": UNEVEN, "sessions": SESSIONS}
    for name, assigner in windows.items():
        events = keyed(env, name=f"{name} events", events=BURSTS)
        most = events.window(assigner).reduce(lambda a, b: a if a.size > b.size else b)
        most.uid(name).sink_to(sink)


def windows_by_count(env: Any, sink: Any) -> None:
    events = keyed(env)
    counted = events.window(am.GlobalWindows()).trigger(
        am.PurgingTrigger.of(am.CountTrigger(7))
    )
    counted.aggregate(some_aggregates()).uid("counted").sink_to(sink)
    growing = events.window(am.GlobalWindows()).trigger(am.CountTrigger(7))
    growing.apply(numbers_of).uid("growing").sink_to(sink)
    evicted = events.window(am.GlobalWindows()).trigger(am.CountTrigger(5))
    evicted.evictor(am.CountEvictor(3)).apply(numbers_of).uid("evicted").sink_to(sink)


def windows_with_lateness(env: Any, sink: Any) -> None:
    """Windows that have fired are kept, and fire once more for what is late."""
    late = [e._replace(at=e.at - 150) if e.number % 9 == 8 else e for e in EVENTS]
    events = keyed(env, events=late).window(TUMBLING).allowed_lateness(am.millis(300))
    events.aggregate(some_aggregates()).uid("late").sink_to(sink)
    trigger = am.ContinuousEventTimeTrigger(50)
    often = keyed(env, name="often").window(TUMBLING).trigger(trigger)
    often.aggregate(am.count(), include_key=True).uid("continuous").sink_to(sink)


def windows_of_all(env: Any, sink: Any) -> None:
    """Windows without keys, of records of ours: results, and what failed."""
    results = keyed(env).aggregate(am.aggregates(n=am.count())).uid("n")
    listed = results.window_all(TUMBLING).apply(
        # Two subtasks sent them.
        lambda key, window, values: [sorted(values)]
    )
    listed.uid("all").sink_to(sink)


def windows_in_processing_time(env: Any, sink: Any) -> None:
    events = paced_and_waiting(env)
    windows = events.key_by("key").window(
        am.TumblingProcessingTimeWindows.of(am.seconds(0.8))
    )
    lists = windows.aggregate(am.aggregates(numbers=am.collect_list("number")))
    lists.uid("windows").flat_map(lambda row: row.numbers).uid("flat").sink_to(sink)


class LateNumbers(am.ProcessWindowFunction):
    """Has state of each window, and of its key over all of them."""

    def process(self, key: Any, context: Any, values: Any, out: Any) -> None:
        total = am.ValueStateDescriptor("total", Pair)
        before = context.global_state.get_value(total)
        left = 0 if before.value() is None else before.value().left
        left += sum(one.size for one in values)
        before.update(Pair(left, Place(left, Level.LOW)))
        out.collect((key, context.window, left))


def windows_with_state(env: Any, sink: Any) -> None:
    keyed(env).window(TUMBLING).process(LateNumbers()).uid("own").sink_to(sink)


# Joins, patterns and their like.


def number_pairs(one: Event, two: Event) -> tuple[int, int]:
    return (one.number, two.number)


def joins(env: Any, sink: Any) -> None:
    left, right = paced(env, "left", step=2), paced(env, "right", step=3)
    keyed_left, keyed_right = left.key_by("key"), right.key_by("key")
    near = keyed_left.interval_join(keyed_right).between(
        am.seconds(-0.1), am.seconds(0.1)
    )
    near.process(number_pairs).uid("near").sink_to(sink)
    asof = keyed_left.as_of_join(keyed_right, number_pairs)
    asof.uid("as of").sink_to(sink)
    joined = left.join(right).where("key").equal_to("key").window(TUMBLING)
    joined.apply(number_pairs).uid("joined").sink_to(sink)
    grouped = left.co_group(right).where("key").equal_to("key").window(SESSIONS)
    grouped.apply(
        lambda one, two: [
            (sorted(e.number for e in one), sorted(e.number for e in two))
        ]
    ).uid("grouped").sink_to(sink)


def patterns(env: Any, sink: Any) -> None:
    low_high = (
        am.pattern("low", where=lambda event: event.size < 30)
        .followed_by("high", where=lambda event: event.size > 85)
        .within(am.seconds(2.0))
    )
    matches = keyed(env).match(low_high).uid("match")
    matches.map(
        lambda found: (found.key, *(one.number for one in found.events.values()))
    ).uid("rows").sink_to(sink)


def verbs(env: Any, sink: Any) -> None:
    """What keeps state by itself."""
    events = paced(env)
    by_tens = events.key_by(lambda event: event.number % 50)
    by_tens.deduplicate().uid("first").sink_to(sink)
    by_tens.deduplicate(ttl=am.days(1)).uid("first a day").sink_to(sink)
    events.batch(7, within=5.0).uid("batch").set_parallelism(1).sink_to(sink)
    bursts = keyed(env, name="bursts", events=BURSTS)
    found = bursts.sessionise(am.millis(60)).uid("sessions")
    found.map(lambda one: (one.key, len(one.records), one.start)).uid("rows").sink_to(
        sink
    )


# Calls in flight.


async def looked_up(event: Event) -> tuple[int, Place]:
    """Take so long that many are in flight at the cut."""
    await asyncio.sleep(0.2 + event.number % 7 / 10)
    return event.number, Place(event.number, Level.LOW)


async def all_looked_up(events: list[Event]) -> list[int]:
    await asyncio.sleep(0.3)
    return [event.number for event in events]


def calls(env: Any, sink: Any) -> None:
    events = paced(env)
    one = events.map_async(looked_up, concurrency=60).uid("ordered")
    one.sink_to(sink)
    two = events.map_async(looked_up, concurrency=60, ordered=False).uid("unordered")
    two.sink_to(sink)
    keyed_calls = events.key_by("key").map_async(looked_up, ordered="key")
    keyed_calls.uid("by key").sink_to(sink)
    batched = events.map_async(all_looked_up, batch=am.Batch(7, 0.1), concurrency=3)
    batched.uid("batched").sink_to(sink)


# The numbers of calls that were made by this process.
ASKED: list[int] = []


async def asked(event: Event) -> tuple[int, Place, Pair]:
    ASKED.append(event.number)
    place = Place(event.number, Level.LOW)
    # The first one takes long: all others finish behind it, and wait in the journal.
    await asyncio.sleep(1.0 if event.number == 5 else 0.05)
    return event.number, place, Pair(event.number, place)


def calls_with_journal(env: Any, sink: Any) -> None:
    calls = paced(env).map_async(asked, concurrency=60, journal=True, id="number")
    calls.uid("calls").sink_to(sink)


async def counted(event: Event, context: Any, out: Any) -> None:
    seen = context.keyed_state.get_value(am.ValueStateDescriptor("seen", Pair))
    before = seen.value()
    await asyncio.sleep(event.number % 5 / 20)
    left = 1 if before is None else before.left + 1
    seen.update(Pair(left, Place(left, Level.LOW)))
    out.collect((event.key, left))


def calls_with_state(env: Any, sink: Any) -> None:
    keyed(env).process_async(counted, concurrency=8).uid("counts").sink_to(sink)


class FailsAtSome:
    async def __call__(self, event: Event) -> int:
        await asyncio.sleep(0.01)
        if event.number % 4 == 3:
            raise ValueError("no answer")
        return event.number


DEAD = am.OutputTag[Any]("dead")


def dead_letters(env: Any, sink: Any) -> None:
    failing = paced(env).map_async(FailsAtSome(), on_error=am.dead_letter(DEAD))
    calls = failing.uid("calls")
    calls.sink_to(sink)
    letters = calls.get_side_output(DEAD).window_all(TUMBLING)
    letters.apply(
        lambda key, window, values: [sorted(letter.record.number for letter in values)]
    ).uid("letters").sink_to(sink)


# Columns.


def batches() -> list[Any]:
    rows = [one._asdict() for one in EVENTS]
    return [pa.RecordBatch.from_pylist(rows[i : i + 10]) for i in range(0, COUNT, 10)]


def batches_of(env: Any) -> Any:
    """Start columns of 10 rows each, every 100 ms."""
    rows = env.from_arrow(batches(), IN_TIME, name="rows").uid("rows")
    return (
        rows.set_parallelism(1)
        .map_batches(pace)
        .uid("pace")
        .set_parallelism(1)
        .with_columns(net=pc.field("size") - 3)
        .uid("net")
        .set_parallelism(1)
    )


def column_aggregates() -> Any:
    return am.aggregates(
        n=am.count(),
        large=am.count(where=pc.field("size") > 50),
        total=am.sum_("net"),
        average=am.mean("size"),
        least=am.min_("size"),
        most=am.max_("key"),
    )


def columns_windows(env: Any, sink: Any) -> None:
    rows = batches_of(env)
    windows = {"tumbling": TUMBLING, "sliding": SLIDING, "sessions": SESSIONS}
    for name, assigner in windows.items():
        found = rows.key_by("key").window(assigner).aggregate(column_aggregates())
        found.uid(name).sink_to(sink)
    rows.window_all(TUMBLING).aggregate(column_aggregates()).uid("all").sink_to(sink)


def columns_running(env: Any, sink: Any) -> None:
    rows = batches_of(env)
    running = rows.key_by("key").aggregate(column_aggregates())
    running.uid("running").sink_to(sink)
    rows.key_by("key", "size").deduplicate().uid("distinct").sink_to(sink)


def columns_joins(env: Any, sink: Any) -> None:
    rows = batches_of(env)
    small = rows.filter(pc.field("size") < 50).uid("small").set_parallelism(1)
    large = rows.filter(pc.field("size") >= 50).uid("large").set_parallelism(1)
    what = {
        "other": "right.number",
        "gain": pc.field("right.net") - pc.field("left.net"),
    }
    near = small.key_by("key").interval_join(large.key_by("key"))
    near.between(am.millis(-40), am.millis(40)).select(
        "key", "left.number", **what
    ).uid("near").sink_to(sink)
    joined = small.join(large).where("key").equal_to("key").window(TUMBLING)
    joined.select("key", "left.number", **what).uid("joined").sink_to(sink)


def rows_of_columns(env: Any, sink: Any) -> None:
    """Rows that were made from columns are kept in lists."""
    rows = batches_of(env).map(lambda record: record).uid("as rows").set_parallelism(1)
    windows = rows.key_by("key").window(TUMBLING)
    windows.apply(lambda key, window, values: [list(values)]).uid("lists").sink_to(sink)


async def slow_batch(batch: Any) -> Any:
    await asyncio.sleep(0.25)
    return batch.num_rows


async def slow_number(record: Any) -> Any:
    await asyncio.sleep(0.25)
    return -record.number


def columns_calls(env: Any, sink: Any) -> None:
    """Calls in flight for records that are batches, and for rows of columns."""

    async def read(after: int | None) -> AsyncIterator[Any]:
        for batch in batches()[0 if after is None else after // 10 + 1 :]:
            await asyncio.sleep(0.1)
            yield batch

    source = am.AsyncIterableSource(
        read, offset=lambda batch: batch["number"][9].as_py()
    )
    whole = env.from_source(source, name="batches").uid("batches")
    whole.map_async(slow_batch, concurrency=4).uid("sizes").sink_to(sink)
    rows = batches_of(env)
    numbers = rows.map_async(
        slow_number, concurrency=40, into="less", columns=["number"]
    )
    numbers.uid("numbers").sink_to(sink)


# In flight between tasks.


async def slowly(value: Any) -> Any:
    await asyncio.sleep(0.03)
    return value


def in_flight(env: Any, sink: Any) -> None:
    """Records of the user's classes, and of ours, wait for a slow task."""
    events = paced(env)
    events.rebalance().map(slowly).uid("slow events").set_parallelism(1).sink_to(sink)
    results = keyed(env, name="more").aggregate(am.aggregates(n=am.count())).uid("n")
    slow = results.rebalance().map(slowly).uid("slow results").set_parallelism(1)
    slow.sink_to(sink)
    carts = events.map(
        lambda e: Cart(Grade.ONE, [Place(e.number, Level.LOW)], Decimal(1))
    )
    carts.uid("carts").rebalance().map(slowly).uid("slow carts").set_parallelism(
        1
    ).sink_to(sink)


async def slow_columns(batch: Any) -> Any:
    await asyncio.sleep(batch.num_rows * 0.03)
    return batch


def columns_in_flight(env: Any, sink: Any) -> None:
    """Batches, and rows that were made from them, wait for a slow task."""
    rows = batches_of(env)
    kept = rows.map(lambda record: record).uid("as rows").set_parallelism(1)
    kept.rebalance().map(slowly).uid("slow rows").set_parallelism(1).sink_to(sink)
    slow = rows.rebalance().map_batches(slow_columns).uid("slow").set_parallelism(1)
    slow.sink_to(sink)


# Sinks.


def file_sinks(env: Any, sink: Any) -> None:
    rows = paced(env)
    rows.sink_to(am.FileSink("out-jsonl", "jsonl")).uid("jsonl").set_parallelism(1)
    rows.sink_to(am.ParquetSink("out-parquet")).uid("parquet").set_parallelism(1)
    rows.sink_to(sink)


def files_written() -> dict[str, list[str]]:
    """Return the rows that the file sinks made visible."""
    lines = [
        line
        for file in sorted(Path("out-jsonl").glob("part-*"))
        for line in file.read_text().splitlines()
    ]
    table = pq.read_table("out-parquet").to_pylist()
    return {"jsonl": sorted(lines), "parquet": sorted(map(repr, table))}


@dataclass(frozen=True)
class Job:
    """A job to be cut.

    Attributes:
        build: Describes it.
        how: What is taken of it at the cut: a savepoint, or a checkpoint after which
            it is cancelled.
        parallelism: Subtasks.
        on_disk: Whether state is in RocksDB.
        reads_files: Whether it reads those of `write_files`.
    """

    build: Callable[[Any, Any], None]
    how: Literal["savepoint", "checkpoint", "unaligned"] = "savepoint"
    parallelism: int = 2
    on_disk: bool = False
    reads_files: bool = False

    def environment(self, life: int) -> Any:
        """Return where one life of it runs."""
        env = am.StreamExecutionEnvironment(
            self.parallelism,
            128,
            config=am.JobConfig(
                seed=life, buffers_per_channel=1, floating_buffers=0,
                buffer_size_bytes=256, allow_pickled_state=True,
            ),
        )  # fmt: skip
        if self.on_disk:
            env.configure(state_backend=am.RocksDBStateBackend())
        env.configure(restart=am.restart.none())
        is_replayable = self.build is not source_inbox
        mode = am.CheckpointingMode
        return env.enable_checkpointing(
            None,
            directory="checkpoints",
            mode=mode.EXACTLY_ONCE if is_replayable else mode.AT_LEAST_ONCE,
            unaligned=self.how == "unaligned",
            retention=am.Retention.ON_CANCELLATION,
        )


JOBS: dict[str, Job] = {
    "aggregates-in-windows": Job(aggregates_in_windows),
    "aggregates-of-rows": Job(aggregates_of_rows, "checkpoint"),
    "broadcast": Job(broadcast),
    "calls": Job(calls, "checkpoint"),
    "calls-with-journal": Job(calls_with_journal, "checkpoint"),
    "calls-with-state": Job(calls_with_state),
    "columns-calls": Job(columns_calls, "checkpoint"),
    "columns-in-flight": Job(columns_in_flight, "unaligned"),
    "columns-joins": Job(columns_joins),
    "columns-running": Job(columns_running, "checkpoint"),
    "columns-windows": Job(columns_windows),
    "dead-letters": Job(dead_letters),
    "file-sinks": Job(file_sinks, "checkpoint"),
    "in-flight": Job(in_flight, "unaligned"),
    "joins": Job(joins),
    "keyed-states": Job(keyed_states, "checkpoint"),
    "keys": Job(keys),
    "operator-states": Job(operator_states),
    "patterns": Job(patterns),
    "pickled-states": Job(pickled_states),
    "processing-timers": Job(processing_timers),
    "rocksdb-aggregates": Job(aggregates_in_windows, "checkpoint", 1, on_disk=True),
    "rocksdb-joins": Job(joins, "savepoint", 1, on_disk=True),
    "rocksdb-states": Job(keyed_states, "checkpoint", 1, on_disk=True),
    "rows-of-columns": Job(rows_of_columns),
    "single": Job(single),
    "source-arrow": Job(source_arrow, parallelism=1),
    "source-collection": Job(source_collection),
    "source-csv": Job(_source_files("csv"), reads_files=True),
    "source-inbox": Job(source_inbox, parallelism=1),
    "source-jsonl": Job(_source_files("jsonl"), reads_files=True),
    "source-parquet": Job(_source_files("parquet"), reads_files=True),
    "source-scripted": Job(source_scripted),
    "verbs": Job(verbs),
    "windows-by-count": Job(windows_by_count),
    "windows-in-processing-time": Job(windows_in_processing_time),
    "windows-of-all": Job(windows_of_all),
    "windows-of-lists": Job(windows_of_lists, "checkpoint"),
    "windows-of-reductions": Job(windows_of_reductions),
    "windows-with-lateness": Job(windows_with_lateness),
    "windows-with-state": Job(windows_with_state),
}
