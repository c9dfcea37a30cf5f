"""One case or more for every operator of the package: how it is made, and fed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from aiomailbox.columnar.aligned import (
    ColumnarPartitionOperator,
    ColumnarSlidingOperator,
    ColumnarTumblingOperator,
)
from aiomailbox.columnar.async_column import AsyncColumnOperator
from aiomailbox.columnar.interval_join import ColumnarIntervalJoin
from aiomailbox.columnar.key_check import ColumnarKeyCheck
from aiomailbox.columnar.making import made
from aiomailbox.columnar.map_batches import MapBatchesOperator
from aiomailbox.columnar.paned import ColumnarPanedOperator
from aiomailbox.columnar.rolling import ColumnarAggregateOperator
from aiomailbox.columnar.sessions import ColumnarSessionOperator
from aiomailbox.columnar.window_join import ColumnarWindowJoin
from aiomailbox.durations import seconds
from aiomailbox.eventtime.strategy import WatermarkStrategy
from aiomailbox.operators.aggregates.functions import aggregates, count, sum_
from aiomailbox.operators.async_io.operator import AsyncMapOperator
from aiomailbox.operators.async_state.operator import KeyedAsyncProcessOperator
from aiomailbox.operators.core.fields import field_or_function
from aiomailbox.operators.core.operator import Operator, RowsNote
from aiomailbox.operators.functions.process import (
    BroadcastProcessFunction,
    BroadcastProcessOperator,
    CoFlatMapOperator,
    CoMapOperator,
    CoProcessFunction,
    CoProcessOperator,
    KeyedBroadcastProcessFunction,
    KeyedBroadcastProcessOperator,
    KeyedCoProcessFunction,
    KeyedCoProcessOperator,
    KeyedProcessFunction,
    KeyedProcessOperator,
    ProcessFunction,
    ProcessOperator,
)
from aiomailbox.operators.joins.interval import IntervalJoinOperator
from aiomailbox.operators.joins.keyed import pair
from aiomailbox.operators.joins.lookup import AsOfJoinOperator, LookupJoinOperator
from aiomailbox.operators.keyed.operators import (
    KeyedAggregateOperator,
    KeyedReduceOperator,
)
from aiomailbox.operators.sinks.sink import SinkOperator
from aiomailbox.operators.sources.operator import SourceOperator
from aiomailbox.operators.stateless.fused import StageKind
from aiomailbox.operators.stateless.operators import (
    AsyncStatelessOperator,
    FilterOperator,
    FlatMapOperator,
    FusedOperator,
    MapOperator,
    TimestampsAndWatermarksOperator,
)
from aiomailbox.operators.stateless.thread_operator import ThreadOperator
from aiomailbox.operators.useful.operators import (
    BatchOperator,
    BufferOperator,
    DeduplicateOperator,
    SampleOperator,
    WithLatestOperator,
)
from aiomailbox.operators.useful.patterns import MatchOperator, pattern
from aiomailbox.records.events import MAX_TIMESTAMP
from aiomailbox.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from aiomailbox.testing import (
    OneInputHarness,
    OperatorHarness,
    ScriptedSource,
    TwoInputHarness,
)
from aiomailbox.testing.scripted_source import ScriptSplit
from aiomailbox.windowing.assigners import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowStagger,
)
from aiomailbox.windowing.build import window_operator
from aiomailbox.windowing.co_group import SidedKey
from aiomailbox.windowing.evictors import CountEvictor
from aiomailbox.windowing.functions import ProcessWindowFunction
from aiomailbox.windowing.partition import partition_operator
from aiomailbox.windowing.triggers import (
    ContinuousEventTimeTrigger,
    CountTrigger,
    EventTimeTrigger,
)
from aiomailbox.windowing.window_join import WindowJoinOperator
from tests.operators.aggregates.kept import columnar_windows

Step = tuple[Any, ...]


class Row(NamedTuple):
    """What is fed: a key, a number."""

    key: str
    number: int


def key_of(row: Any) -> Any:
    return row[0]


# What the snapshots may hold, as a job would declare it.
CLASSES: list[Any] = [Row]


def runs(*numbers: int, late: int = 0) -> list[Step]:
    """Three keys, event time in milliseconds; a watermark now and then, and a late one."""
    steps: list[Step] = []
    for number in numbers:
        rows = [Row(key, number) for key in "abc"]
        steps.append(("run", 0, rows, [number, number + 1, number]))
        if number % 3 == 0:
            steps.append(("watermark", 0, number - 1))
        if late and number > late:
            steps.append(("run", 0, [Row("a", -number)], [number - late]))
    return steps


def as_columns(steps: list[Step]) -> list[Step]:
    """The same, with the first two of three runs as columns: the rest comes as rows."""
    places = [place for place, step in enumerate(steps) if step[0] == "run"]
    columns = set(places[: 2 * len(places) // 3])
    return [
        ("columns", *step[1:]) if place in columns else step
        for place, step in enumerate(steps)
    ]


ONE = [*runs(*range(1, 16, 2)), ("watermark", 0, 40)]
LATE = [*runs(*range(1, 22, 2), late=8), ("watermark", 0, 60)]
WHOLE = [*LATE, ("watermark", 0, MAX_TIMESTAMP)]
TWO: list[Step] = [
    step
    for number in range(1, 14, 2)
    for step in (
        ("run", 0, [Row(key, number) for key in "abc"], [number] * 3),
        ("run", 1, [Row(key, -number) for key in "bcd"], [number + 1] * 3),
        ("watermark", number % 2, number),
        ("watermark", (number // 2) % 2, number - 2),
    )
] + [("watermark", 0, 50), ("watermark", 1, 60), ("watermark", 0, 55)]
TIMES: list[Step] = [
    step
    for number in range(1, 10)
    for step in (
        ("run", 0, [Row(key, number) for key in "abc"], None),
        ("time", number * 7),
    )
]


@dataclass
class Case:
    """How an operator is made and fed.

    Attributes:
        kind: Its class.
        make: Makes it.
        steps: What is done to it: see `Step`.
        keys: Per input, what its records are keyed by; None for what everybody gets.
            Empty for an operator without keys.
        harness: Drives it.
        begin: Called with the harness when it is open, and whether it was restored.
        seen: What came out, where that is not its output.
        name: Beside the class.
    """

    kind: type[Operator]
    make: Callable[[], Operator]
    steps: list[Step]
    keys: tuple[Callable[[Any], Any] | None, ...] = ()
    harness: Callable[..., OperatorHarness] = OneInputHarness
    begin: Callable[[OperatorHarness, bool], None] = lambda harness, restored: None
    seen: Callable[[OperatorHarness], list[Any]] = lambda harness: list(harness.output)
    name: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind.__name__}{self.name and ' ' + self.name}"


def one(
    kind: Any, make: Any, steps: list[Step] = ONE, name: str = "", **facts: Any
) -> Case:
    return Case(kind, make, steps, name=name, **facts)


def keyed(kind: Any, make: Any, steps: list[Step] = ONE, name: str = "") -> Case:
    return Case(kind, make, steps, keys=(key_of,), name=name)


def two(
    kind: Any, make: Any, *keys: Any, steps: list[Step] = TWO, name: str = ""
) -> Case:
    return Case(kind, make, steps, keys=keys, harness=TwoInputHarness, name=name)


class Remember(ProcessFunction):
    """Keeps state without keys in each of its ways, and in itself."""

    def initialize_state(self, context: Any) -> None:
        store = context.operator_state
        self.kept = store.get_list_state(ListStateDescriptor("kept", Row))
        self.union = store.get_union_list_state(ListStateDescriptor("union"))
        self.own = [*self.kept.get()]

    def snapshot_state(self, context: Any) -> None:
        self.kept.update(self.own)

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        self.own.append(value)
        self.union.add([value.number])
        out.collect((len(self.own), self.own[0], len(self.union.get())))
        out.collect(context.current_watermark)


class Reminders(KeyedProcessFunction):
    """Uses all kinds of state, changes contents in place, and sets timers."""

    carts = ValueStateDescriptor("cart", default=[])
    seen = MapStateDescriptor("seen")
    rows = ListStateDescriptor("rows", Row)
    old = ValueStateDescriptor("old", ttl=StateTtlConfig(ttl=seconds(0.02)))

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        state, timers = context.keyed_state, context.timer_service
        cart = state.get_value(self.carts)
        content = cart.value()
        content.append(value.number)
        cart.update(content)
        state.get_map(self.seen).put(value.number % 3, value)
        state.get_list(self.rows).add(value)
        old = state.get_value(self.old)
        out.collect((value.key, old.value(), context.current_watermark))
        old.update(value.number)
        timers.register_event_time_timer(value.number + 4)
        timers.register_processing_time_timer(value.number * 7 + 10)

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        state = context.keyed_state
        values = state.get_value(self.carts).value()
        entries = sorted(state.get_map(self.seen).items())
        domain = context.time_domain.value
        out.collect((context.current_key, timestamp, domain, list(values), entries))


class Both(KeyedCoProcessFunction):
    total = ValueStateDescriptor("total", int, default=0)

    def process_element1(self, value: Any, context: Any, out: Any) -> None:
        state = context.keyed_state.get_value(self.total)
        state.update(state.value() + value.number)
        context.timer_service.register_event_time_timer(value.number + 3)

    def process_element2(self, value: Any, context: Any, out: Any) -> None:
        total = context.keyed_state.get_value(self.total).value()
        out.collect((value.key, total, context.current_watermark))

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        out.collect((context.current_key, timestamp))


class BothWithoutKeys(CoProcessFunction):
    def open(self, context: Any) -> None:
        self.kept = context.operator_state.get_list_state(ListStateDescriptor("kept"))

    def process_element1(self, value: Any, context: Any, out: Any) -> None:
        self.kept.add(value.number)

    def process_element2(self, value: Any, context: Any, out: Any) -> None:
        out.collect((value, sum(self.kept.get()), context.current_watermark))


RULES = MapStateDescriptor("rules", str, int)


class Ruled(BroadcastProcessFunction):
    def process_element(self, value: Any, context: Any, out: Any) -> None:
        rule = context.get_broadcast_state(RULES).get("last")
        out.collect((value, rule, context.current_watermark))

    def process_broadcast_element(self, value: Any, context: Any, out: Any) -> None:
        context.get_broadcast_state(RULES).put("last", value.number)


class KeyedRuled(KeyedBroadcastProcessFunction):
    seen = ValueStateDescriptor("seen", int, default=0)

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        state = context.keyed_state.get_value(self.seen)
        state.update(state.value() + 1)
        rule = context.get_broadcast_state(RULES).get("last")
        out.collect((value.key, state.value(), rule))
        context.timer_service.register_event_time_timer(value.number + 3)

    def process_broadcast_element(self, value: Any, context: Any, out: Any) -> None:
        context.get_broadcast_state(RULES).put("last", value.number)

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        out.collect((context.current_key, timestamp))


class Visits(ProcessWindowFunction):
    """Remembers something of each key over its windows."""

    windows = ValueStateDescriptor("windows", int, default=0)

    def process(self, key: Any, context: Any, elements: list[Any], out: Any) -> None:
        state = context.global_state.get_value(self.windows)
        state.update(state.value() + 1)
        window = context.window
        out.collect((key, [*elements], window.max_timestamp, state.value()))


class General(EventTimeTrigger):
    """The default trigger, but not by name: so the fast ways do not apply."""


async def slow(row: Any) -> Any:
    await asyncio.sleep(row[1] % 5 + 1)
    return (row, "done")


async def slow_process(row: Any, context: Any, out: Any) -> None:
    state = context.keyed_state.get_value(ValueStateDescriptor("seen", default=0))
    await asyncio.sleep(row.number % 5 + 1)
    state.update(state.value() + 1)
    out.collect((row, state.value(), context.current_watermark))


async def at_once(row: Any) -> Any:
    return row


def in_flight(steps: list[Step]) -> list[Step]:
    """Let calls end now and then, so that some are in flight at most cuts."""
    return [
        extra
        for number, step in enumerate(steps)
        for extra in ((step, ("sleep", 2)) if number % 3 else (step,))
    ]


class Lines:
    """A sink whose writer holds records back until it is flushed."""

    def create_writer(self, context: Any) -> Any:
        return LinesWriter()

    def create_committer(self, context: Any) -> None:
        return None


class LinesWriter:
    def __init__(self) -> None:
        self.held: list[Any] = []
        self.ready: list[Any] = []

    def write_run(self, run: Any) -> None:
        self.held += run.values

    def flush(self, *, end_of_input: bool) -> None:
        self.ready += self.held
        self.held = []

    def prepare_commit(self) -> list[Any]:
        ready, self.ready = self.ready, []
        return ready

    def snapshot(self) -> list[Any]:
        return [*self.held]

    def restore(self, elements: list[Any]) -> None:
        self.held = [*elements]

    def close(self) -> None:
        pass


def committed(harness: OperatorHarness) -> list[Any]:
    return list(harness.context.prepared)


ORDERED = (
    WatermarkStrategy.for_bounded_out_of_orderness(seconds(0.003))
    .with_timestamp_assigner(lambda row: row.number)
    .with_idleness(seconds(0.05))
)
SCRIPTS = {
    name: [(Row(name, number), number) for number in range(start, 40, 7)]
    for name, start in (("x", 1), ("y", 3), ("z", 20))
}


def source() -> SourceOperator:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(seconds(0.002))
    return SourceOperator(ScriptedSource(SCRIPTS, timed=True), strategy)


def assign(harness: OperatorHarness, restored: bool) -> None:
    operator = harness.operator
    assert isinstance(operator, SourceOperator)
    if not restored:
        operator.add_splits([ScriptSplit(name) for name in SCRIPTS])
    operator.notify_no_more_splits()


def windows(assigner: Any, **options: Any) -> Operator:
    return window_operator(key_of, assigner, **options)


def total() -> Any:
    return sum_("number")


def fused() -> Operator:
    return FusedOperator([MapOperator(lambda row: row[1]), FilterOperator(bool)])


def joined(left: Any, right: Any) -> Any:
    return (left, right)


def window_cases() -> list[Case]:
    from aiomailbox.windowing.aggregate import (
        SlidingAggregateOperator,
        TumblingAggregateOperator,
    )
    from aiomailbox.windowing.operator import WindowOperator
    from aiomailbox.windowing.panes import PanedAggregateOperator
    from aiomailbox.windowing.partition import (
        PartitionAggregateOperator,
        PartitionWindowOperator,
    )
    from aiomailbox.windowing.session_aggregate import SessionAggregateOperator

    tumbling, sliding = TumblingEventTimeWindows(10), SlidingEventTimeWindows(12, 4)
    sessions = EventTimeSessionWindows(5)
    staggered = TumblingEventTimeWindows(10, 0, WindowStagger.RANDOM)
    lateness = {"allowed_lateness": seconds(0.006)}
    general: dict[str, dict[str, Any]] = {
        "staggered": {"assigner": staggered, "window_function": Visits()},
        "tumbling": {"assigner": tumbling, "window_function": Visits()},
        "sliding": {"assigner": sliding, "aggregate": total(), "trigger": General()},
        "sessions": {"assigner": sessions, "window_function": Visits()},
        "evicting": {
            "assigner": tumbling,
            "window_function": Visits(),
            "evictor": CountEvictor(2),
        },
        "counting": {
            "assigner": tumbling,
            "window_function": Visits(),
            "trigger": CountTrigger(2),
        },
        "continuous": {
            "assigner": sessions,
            "aggregate": total(),
            "trigger": ContinuousEventTimeTrigger(3),
        },
    }
    return [
        keyed(
            TumblingAggregateOperator,
            lambda: windows(staggered, aggregate=total()),
            LATE,
            "staggered",
        ),
        keyed(
            TumblingAggregateOperator,
            lambda: windows(tumbling, aggregate=total(), **lateness),
            LATE,
        ),
        keyed(
            PanedAggregateOperator,
            lambda: windows(sliding, aggregate=total(), **lateness),
            LATE,
        ),
        keyed(
            SlidingAggregateOperator,
            lambda: windows(
                SlidingEventTimeWindows(10, 7), aggregate=total(), **lateness
            ),
            LATE,
        ),
        keyed(
            SessionAggregateOperator,
            lambda: windows(sessions, aggregate=total(), **lateness),
            LATE,
        ),
        *(
            keyed(
                WindowOperator,
                lambda options=options: windows(**lateness, **options),
                LATE,
                name,
            )
            for name, options in general.items()
        ),
        keyed(
            WindowOperator,
            lambda: windows(
                TumblingProcessingTimeWindows(20), window_function=Visits()
            ),
            TIMES,
            "of processing time",
        ),
        keyed(
            PartitionAggregateOperator,
            lambda: partition_operator(key_of, aggregate=total(), include_key=True),
            WHOLE,
        ),
        keyed(
            PartitionWindowOperator,
            lambda: partition_operator(key_of, function=lambda rows: [[*rows]]),
            WHOLE,
        ),
    ]


def cases() -> list[Case]:
    """Return a case or more for each operator."""
    is_even, first = (lambda row: row.number % 4 == 1), {"key": key_of}
    async_steps = in_flight(ONE)
    found = pattern("big", where=is_even).followed_by("next").within(seconds(0.01))
    return [
        one(MapOperator, lambda: MapOperator(key_of)),
        one(FilterOperator, lambda: FilterOperator(is_even)),
        one(FlatMapOperator, lambda: FlatMapOperator(lambda row: [row, row])),
        one(FusedOperator, fused),
        one(
            AsyncStatelessOperator,
            lambda: AsyncStatelessOperator(StageKind.MAP, at_once),
        ),
        one(ThreadOperator, lambda: ThreadOperator(StageKind.MAP, key_of)),
        one(ProcessOperator, lambda: ProcessOperator(Remember())),
        one(
            TimestampsAndWatermarksOperator,
            lambda: TimestampsAndWatermarksOperator(ORDERED),
            [*runs(5, 9, 1), ("time", 300), ("time", 600), ("time", 900), *runs(3, 20)],
        ),
        one(
            BatchOperator,
            lambda: BatchOperator(4, within=0.03),
            [
                *runs(1, 2, 3),
                ("time", 20),
                *runs(4),
                ("time", 40),
                ("watermark", 0, 9),
                *runs(12),
            ],
        ),
        one(
            BufferOperator,
            lambda: BufferOperator(50),
            [*runs(1, 2), ("full",), *runs(3, 4, 6, 7), ("room",), *runs(9)],
        ),
        one(SampleOperator, lambda: SampleOperator(0.5)),
        one(
            SinkOperator,
            lambda: SinkOperator(Lines()),
            [*ONE[:5], ("prepare",), *ONE[5:]],
            seen=committed,
        ),
        one(
            SourceOperator,
            source,
            [("poll",)] * 25,
            harness=OperatorHarness,
            begin=assign,
        ),
        *(
            one(
                AsyncMapOperator,
                lambda order=order: AsyncMapOperator(
                    slow,
                    concurrency=4,
                    capacity=100,
                    ordered=order,
                    key=key_of if order == "key" else None,
                ),
                async_steps,
                f"ordered={order}",
            )
            for order in (True, False, "key")
        ),
        one(
            LookupJoinOperator,
            lambda: LookupJoinOperator(
                lambda key: slow((key, 3)), concurrency=9, **first
            ),
            async_steps,
        ),
        Case(
            AsyncMapOperator,
            lambda: AsyncMapOperator(
                slow, concurrency=4, capacity=100, partition_key=key_of
            ),
            async_steps,
            keys=(key_of,),
            name="of a keyed stream",
        ),
        keyed(
            KeyedReduceOperator,
            lambda: KeyedReduceOperator(
                key_of, lambda a, b: Row(a.key, a.number + b.number)
            ),
        ),
        keyed(KeyedAggregateOperator, lambda: KeyedAggregateOperator(key_of, count())),
        keyed(
            KeyedProcessOperator,
            lambda: KeyedProcessOperator(key_of, Reminders()),
            [*ONE[:6], ("time", 30), *ONE[6:], ("time", 200)],
        ),
        keyed(
            KeyedAsyncProcessOperator,
            lambda: KeyedAsyncProcessOperator(
                key_of, slow_process, concurrency=4, capacity=100
            ),
            async_steps,
        ),
        keyed(DeduplicateOperator, lambda: DeduplicateOperator(key_of)),
        keyed(MatchOperator, lambda: MatchOperator(key_of, found)),
        two(CoMapOperator, lambda: CoMapOperator(key_of, key_of)),
        two(CoFlatMapOperator, lambda: CoFlatMapOperator(lambda row: [row], list)),
        two(CoProcessOperator, lambda: CoProcessOperator(BothWithoutKeys())),
        two(
            BroadcastProcessOperator, lambda: BroadcastProcessOperator(Ruled(), [RULES])
        ),
        two(WithLatestOperator, WithLatestOperator),
        two(
            KeyedCoProcessOperator,
            lambda: KeyedCoProcessOperator(key_of, key_of, Both()),
            key_of,
            key_of,
        ),
        two(
            KeyedBroadcastProcessOperator,
            lambda: KeyedBroadcastProcessOperator(key_of, KeyedRuled(), [RULES]),
            key_of,
            None,
        ),
        two(
            IntervalJoinOperator,
            lambda: IntervalJoinOperator(key_of, key_of, -3, 3, joined),
            key_of,
            key_of,
        ),
        two(
            AsOfJoinOperator,
            lambda: AsOfJoinOperator(key_of, key_of, joined, keep_unmatched=True),
            key_of,
            key_of,
        ),
        *window_cases(),
        *columnar_cases(),
    ]


def columnar_cases() -> list[Case]:
    import pyarrow as pa

    def doubled(batch: Any) -> Any:
        doubles = pa.compute.multiply(batch["number"], 2)
        return batch.set_column(1, "number", doubles)

    async def square(row: Any) -> int:
        await asyncio.sleep(row.number % 5 + 1)
        return int(row.number) ** 2

    key: Any = field_or_function("key", "key")
    return [
        one(MapBatchesOperator, lambda: MapBatchesOperator(doubled), as_columns(ONE)),
        one(
            AsyncColumnOperator,
            lambda: AsyncColumnOperator(
                square, into="square", columns=["number"], concurrency=4, capacity=100
            ),
            as_columns(in_flight(ONE)),
        ),
        keyed(
            ColumnarAggregateOperator,
            lambda: ColumnarAggregateOperator(key, sum_("number"), include_key=True),
            as_columns(ONE),
        ),
        one(ColumnarKeyCheck, lambda: ColumnarKeyCheck(key), as_columns(ONE)),
        two(
            ColumnarIntervalJoin,
            lambda: ColumnarIntervalJoin(key, key, -3, 3, pair),
            key_of,
            key_of,
            steps=as_columns(TWO),
        ),
        *(
            two(
                kind,
                partial(
                    kind,
                    SidedKey(key, key),
                    TumblingEventTimeWindows(4),
                    allowed_lateness=lateness,
                ),
                key_of,
                key_of,
                steps=steps,
            )
            for kind, steps, lateness in (
                (WindowJoinOperator, TWO, 0),
                (ColumnarWindowJoin, as_columns(TWO), 0),
                (ColumnarWindowJoin, as_columns(TWO), seconds(0.006)),
            )
        ),
        *(
            keyed(
                kind,
                partial(
                    columnar_windows,
                    "key",
                    windows,
                    allowed_lateness=seconds(0.006),
                    aggregate=aggregates(sum=sum_("number")),
                ),
                as_columns(LATE),
            )
            for kind, windows in (
                (ColumnarTumblingOperator, TumblingEventTimeWindows(10)),
                (ColumnarPanedOperator, SlidingEventTimeWindows(10, 5)),
                (ColumnarSlidingOperator, SlidingEventTimeWindows(10, 7)),
                (ColumnarSessionOperator, EventTimeSessionWindows(5)),
            )
        ),
        keyed(
            ColumnarPartitionOperator,
            partial(
                made,
                partition_operator,
                key,
                aggregate=aggregates(sum=sum_("number")),
                columns=RowsNote(),
            ),
            as_columns(WHOLE),
        ),
    ]
