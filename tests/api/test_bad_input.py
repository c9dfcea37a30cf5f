"""What cannot work is refused where it is written, with the reason and what would do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

import aiomailbox as am

Env = am.StreamExecutionEnvironment
Stream = am.DataStream[Any]
Refused = tuple[str, Callable[[Stream], object], list[str]]

TAG = am.OutputTag("late")
EVENT_TIME = am.TumblingEventTimeWindows.of(am.seconds(5))
PROCESSING_TIME = am.TumblingProcessingTimeWindows.of(am.seconds(5))


class Click(NamedTuple):
    user: str
    at: int


@dataclass
class Order:
    user: str

    @property
    def initial(self) -> str:
        return self.user[0]


@dataclass
class Bill:
    """Its constructor sets more than its fields."""

    net: int

    def __post_init__(self) -> None:
        self.gross = self.net * 12


@dataclass
class PaidOrder(Order):
    paid_by: str = "card"


def tipped(order: Any) -> Any:
    order.tip = 1
    return order


CLICKS = [Click("a", 1_000), Click("b", 2_000)]


class Quiet:
    """The parts of functions that nobody looks at here."""

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        """Do nothing."""


class NoElements(am.ProcessFunction):
    """Has not what it is for."""


class NoElementsAsync(am.KeyedAsyncProcessFunction):
    """Has not what it is for."""


class NoWindows(am.ProcessWindowFunction):
    """Has not what it is for."""


class NoPairs(am.ProcessJoinFunction):
    """Has not what it is for."""


class TwoTypes(Quiet, am.KeyedProcessFunction):
    """One name for state of two kinds, in the class."""

    first = am.ValueStateDescriptor("seen", int)
    second = am.ListStateDescriptor("seen", int)


class TwoValues(Quiet, am.KeyedProcessFunction):
    """One name for values of two types, in the instance."""

    def __init__(self) -> None:
        self.states = [
            am.ValueStateDescriptor("seen", int),
            am.ValueStateDescriptor("seen", str),
        ]


class TwoLives(Quiet, am.KeyedProcessFunction):
    """One name for state with and without a time to live."""

    states = {
        "a": am.ValueStateDescriptor("seen", int),
        "b": am.ValueStateDescriptor(
            "seen", int, ttl=am.StateTtlConfig(ttl=am.seconds(5))
        ),
    }


class TwoTypesOfTwoStreams(am.KeyedCoProcessFunction):
    first = am.ValueStateDescriptor("seen", int)
    second = am.MapStateDescriptor("seen", str, int)


class TwoTypesAsync(am.KeyedAsyncProcessFunction):
    first = am.ValueStateDescriptor("seen", int)
    second = am.MapStateDescriptor("seen", str, int)


class TwoTypesOfWindows(am.ProcessWindowFunction):
    first = am.ValueStateDescriptor("seen", int)
    second = am.MapStateDescriptor("seen", str, int)

    def process(self, key: Any, context: Any, elements: Any, out: Any) -> None:
        """Do nothing."""


class HasTimer(Quiet, am.ProcessFunction):
    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        """Wait for ever."""


class HasState(Quiet, am.ProcessFunction):
    seen = am.ValueStateDescriptor("seen", int)


class HasStateInside(Quiet, am.ProcessFunction):
    def __init__(self) -> None:
        self.total = am.ReducingStateDescriptor("total", max)


class CoTimer(am.CoProcessFunction):
    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        """Wait for ever."""


class BroadcastState(Quiet, am.BroadcastProcessFunction):
    seen = am.ValueStateDescriptor("seen", int)

    def process_broadcast_element(self, value: Any, context: Any, out: Any) -> None:
        """Do nothing."""


class NoMerge(am.Trigger):
    def on_element(self, *_: Any) -> am.TriggerResult:
        return am.TriggerResult.FIRE


class NoMergeAggregate:
    create_accumulator = staticmethod(int)
    add = staticmethod(lambda value, accumulator: accumulator + 1)
    get_result = staticmethod(int)


def keyed(stream: Stream) -> Any:
    return stream.key_by("user")


def both(stream: Stream) -> Any:
    return keyed(stream).connect(keyed(stream))


def rules(stream: Stream) -> Any:
    return stream.connect(stream.broadcast(am.MapStateDescriptor("rules", str, int)))


def window(stream: Stream, assigner: Any) -> Any:
    return keyed(stream).window(assigner)


REFUSED: list[Refused] = [
    # The sizes of windows.
    (
        "tumbling size 0",
        lambda s: am.TumblingEventTimeWindows.of(0),
        ["size", "0 ms", "abs(offset) < size"],
    ),
    (
        "sliding size 0",
        lambda s: am.SlidingEventTimeWindows.of(0, am.seconds(1)),
        ["size 0 ms", "size > 0"],
    ),
    (
        "sliding slide 0",
        lambda s: am.SlidingProcessingTimeWindows.of(am.seconds(5), 0),
        ["slide 0 ms", "abs(offset) < slide"],
    ),
    (
        "sliding offset",
        lambda s: am.SlidingEventTimeWindows.of(
            am.seconds(20), am.seconds(10), am.seconds(11)
        ),
        ["offset 11000 ms", "abs(offset) < slide"],
    ),
    (
        "gap 0",
        lambda s: am.EventTimeSessionWindows.with_gap(0),
        ["gap", "0 ms is not positive"],
    ),
    (
        "gap below 0",
        lambda s: am.ProcessingTimeSessionWindows.with_gap(am.seconds(-1)),
        ["gap", "-1000 ms"],
    ),
    # What does not go together.
    (
        "trigger without on_merge",
        lambda s: (
            window(s, am.EventTimeSessionWindows.with_gap(am.seconds(5)))
            .trigger(NoMerge())
            .aggregate(am.count())
        ),
        ["trigger", "NoMerge", "on_merge"],
    ),
    (
        "aggregate without merge",
        lambda s: window(
            s, am.EventTimeSessionWindows.with_gap(am.seconds(5))
        ).aggregate(NoMergeAggregate()),
        ["aggregate", "merge"],
    ),
    (
        "event-time trigger",
        lambda s: (
            window(s, PROCESSING_TIME)
            .trigger(am.EventTimeTrigger())
            .aggregate(am.count())
        ),
        ["EventTimeTrigger", "TumblingProcessingTimeWindows", "ProcessingTimeTrigger"],
    ),
    (
        "continuous event-time trigger",
        lambda s: (
            window(s, am.ProcessingTimeSessionWindows.with_gap(am.seconds(5)))
            .trigger(am.PurgingTrigger(am.ContinuousEventTimeTrigger.of(am.seconds(1))))
            .aggregate(am.count())
        ),
        ["ContinuousEventTimeTrigger", "watermarks"],
    ),
    (
        "processing-time trigger",
        lambda s: (
            window(s, EVENT_TIME)
            .trigger(am.ProcessingTimeTrigger())
            .aggregate(am.count())
        ),
        ["ProcessingTimeTrigger", "TumblingEventTimeWindows", "EventTimeTrigger"],
    ),
    (
        "lateness",
        lambda s: (
            window(s, PROCESSING_TIME)
            .allowed_lateness(am.seconds(1))
            .aggregate(am.count())
        ),
        ["allowed_lateness", "no record is late", "TumblingProcessingTimeWindows"],
    ),
    (
        "late tag",
        lambda s: (
            window(s, PROCESSING_TIME).side_output_late_data(TAG).aggregate(am.count())
        ),
        ["late_tag", "no record is late"],
    ),
    # One name for two states.
    (
        "two kinds",
        lambda s: keyed(s).process(TwoTypes()),
        ["TwoTypes", "'seen'", "value state", "list state", "name of its own"],
    ),
    (
        "two types",
        lambda s: keyed(s).process(TwoValues()),
        ["TwoValues", "'seen'", "int", "str"],
    ),
    (
        "with and without TTL",
        lambda s: keyed(s).process(TwoLives()),
        ["TwoLives", "'seen'", "time to live"],
    ),
    (
        "two kinds, two streams",
        lambda s: both(s).process(TwoTypesOfTwoStreams()),
        ["TwoTypesOfTwoStreams", "'seen'"],
    ),
    (
        "two kinds, async",
        lambda s: keyed(s).process_async(TwoTypesAsync()),
        ["TwoTypesAsync", "'seen'"],
    ),
    (
        "two kinds, windows",
        lambda s: window(s, EVENT_TIME).process(TwoTypesOfWindows()),
        ["TwoTypesOfWindows", "'seen'"],
    ),
    # State and timers without a key.
    (
        "timer without key",
        lambda s: s.process(HasTimer()),
        ["HasTimer", "on_timer", "no keys", "key_by"],
    ),
    (
        "state without key",
        lambda s: s.process(HasState()),
        ["HasState", "value state 'seen'", "no keys", "key_by"],
    ),
    (
        "state of the object without key",
        lambda s: s.process(HasStateInside()),
        ["HasStateInside", "reducing state 'total'"],
    ),
    (
        "timer of two streams without key",
        lambda s: s.connect(s).process(CoTimer()),
        ["CoTimer", "on_timer", "KeyedCoProcessFunction"],
    ),
    (
        "state beside a broadcast stream without key",
        lambda s: rules(s).process(BroadcastState()),
        ["BroadcastState", "'seen'", "KeyedBroadcastProcessFunction"],
    ),
    # A class, a function or a number where an object is wanted.
    (
        "class of a function",
        lambda s: keyed(s).process(TwoLives),  # type: ignore[arg-type]
        ["function: TwoLives is a class", "TwoLives(...)"],
    ),
    (
        "function without process_element",
        lambda s: s.process(NoElements()),
        ["NoElements defines no process_element", "self, value, context, out"],
    ),
    (
        "asynchronous function without process_element",
        lambda s: keyed(s).process_async(NoElementsAsync()),
        ["NoElementsAsync defines no process_element"],
    ),
    (
        "window function without process",
        lambda s: window(s, EVENT_TIME).process(NoWindows()),
        ["NoWindows defines no process", "key, context, elements, out"],
    ),
    (
        "join function without process_element",
        lambda s: (
            keyed(s)
            .interval_join(keyed(s))
            .between(0, am.seconds(1))
            .process(NoPairs())
        ),
        ["NoPairs defines no process_element", "left, right, context, out"],
    ),
    (
        "number as a sink",
        lambda s: s.sink_to(3),
        ["sink: 3 is neither a sink nor a function"],
    ),
    (
        "class of a sink",
        lambda s: s.sink_to(am.FileSink),  # type: ignore[arg-type]
        ["sink", "FileSink", "is a class"],
    ),
    (
        "aggregate that was not called",
        lambda s: keyed(s).aggregate(am.sum_),  # type: ignore[arg-type]
        ["aggregate: sum_ is a function", "am.sum_(...)"],
    ),
    # Keys that are not there.
    (
        "key of named tuples",
        lambda s: s.key_by("usr"),
        ["key", "'usr'", "user, at"],
    ),
    (
        "key after a filter",
        lambda s: s.filter(bool).rebalance().key_by("usr"),
        ["'usr'", "user, at"],
    ),
    (
        "key of dicts",
        lambda s: (
            Env().from_collection([{"user": "a"}, {"user": "b", "at": 1}]).key_by("usr")
        ),
        ["'usr'", "user, at"],
    ),
    (
        "key of declared dataclasses",
        lambda s: s.map(PaidOrder, output_type=PaidOrder).key_by("at"),
        ["'at'", "fields are: user, paid_by"],
    ),
    (
        "key of a union",
        lambda s: s.union(s.filter(bool)).key_by("usr"),
        ["'usr'", "user, at"],
    ),
]


@pytest.mark.parametrize(
    ("build", "parts"),
    [case[1:] for case in REFUSED],
    ids=[case[0] for case in REFUSED],
)
def test_bad_input_is_refused_while_the_job_is_described(
    env: Env, build: Callable[[Stream], object], parts: list[str]
) -> None:
    with pytest.raises(am.UsageError) as caught:
        build(env.from_collection(CLICKS))
    message = str(caught.value)
    assert [part for part in parts if part not in message] == [], message


@pytest.mark.parametrize(
    "verb", ["window", "reduce", "aggregate", "process_async", "interval_join", "match"]
)
def test_a_verb_that_needs_a_key_says_so(env: Env, verb: str) -> None:
    stream: Any = env.from_collection(CLICKS)
    assert not hasattr(stream, verb)
    assert hasattr(stream.key_by("user"), verb)
    with pytest.raises(AttributeError, match=rf"key_by\(\.\.\.\)\.{verb}"):
        getattr(stream, verb)


def test_other_names_are_missing_as_anywhere(env: Env) -> None:
    stream: Any = env.from_collection(CLICKS)
    with pytest.raises(AttributeError, match="'DataStream' object has no attribute 'x"):
        _ = stream.x
    with pytest.raises(AttributeError, match="'KeyedStream' object has no attribute"):
        _ = stream.key_by("user").window_by


ALLOWED: dict[str, Callable[[Stream], object]] = {
    "slide above size": lambda s: am.SlidingEventTimeWindows.of(
        am.seconds(3), am.seconds(5)
    ),
    "early results by the clock": lambda s: (
        window(s, EVENT_TIME)
        .trigger(am.ContinuousProcessingTimeTrigger.of(am.seconds(1)))
        .aggregate(am.count())
    ),
    "any trigger of a global window": lambda s: (
        window(s, am.GlobalWindows.create())
        .trigger(am.ContinuousProcessingTimeTrigger.of(am.seconds(1)))
        .aggregate(am.count())
    ),
    "lists without keys": lambda s: s.process(ListsWithoutKeys()),
    "one descriptor in two places": lambda s: keyed(s).process(OneState()),
    "a property": lambda s: s.map(str, output_type=Order).key_by("initial"),
    "an attribute of a field": lambda s: s.key_by("user.__class__"),
    "a field of some dicts": lambda s: (
        Env().from_collection([{"a": 1}, {"b": 1}]).filter(bool).key_by("b")
    ),
    "a field of unknown records": lambda s: s.map(str).key_by("usr"),
    "a method": lambda s: s.key_by("count"),
    "what a constructor sets": lambda s: (
        Env().from_collection([Bill(5)]).key_by("gross")
    ),
    "what a declared class's constructor sets": lambda s: s.map(
        lambda c: Bill(c.at), output_type=Bill
    ).key_by("gross"),
    "what was set on a record": lambda s: (
        Env().from_collection([tipped(Order("a"))]).key_by("tip")
    ),
    "a field of a subclass of the declared class": lambda s: s.map(
        PaidOrder, output_type=Order
    ).key_by("paid_by"),
    "a descriptor that hides one of a base class": lambda s: keyed(s).process(
        OtherState()
    ),
    "a descriptor that hides one of its class": lambda s: keyed(s).process(OwnState()),
}


class ListsWithoutKeys(Quiet, am.ProcessFunction):
    """State that may be without keys, and is a list."""

    offsets = am.ListStateDescriptor("offsets")


class OneState(Quiet, am.KeyedProcessFunction):
    first = am.ValueStateDescriptor("seen", int)

    def __init__(self) -> None:
        self.second = self.first


class OtherState(OneState):
    first = am.ValueStateDescriptor("seen", str)

    def __init__(self) -> None:
        """Describe nothing more."""


class OwnState(Quiet, am.KeyedProcessFunction):
    first = am.ValueStateDescriptor("seen", int)

    def __init__(self) -> None:
        self.first = am.ListStateDescriptor("seen")  # type: ignore[assignment]


@pytest.mark.parametrize("build", ALLOWED.values(), ids=ALLOWED)
def test_what_can_work_is_not_refused(
    env: Env, build: Callable[[Stream], object]
) -> None:
    assert build(env.from_collection(CLICKS)) is not None
