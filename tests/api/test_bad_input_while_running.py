"""What shows only while a job runs names the operator, the record and the user's line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest

import aiomailbox as am

Env = am.StreamExecutionEnvironment
Stream = am.DataStream[Any]
Failing = tuple[str, Callable[[Stream], Stream], list[str], Any]


class Click(NamedTuple):
    user: str
    at: int
    note: str = ""


DAY = am.TumblingEventTimeWindows.of(am.days(1))
NO_TIME = am.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
    lambda click: "soon"
)
CLICKS = [Click("a", 1_000), Click("a", 2_000, "x" * 500)]


def no_gap(click: Click) -> Any:
    return None


def negative_gap(click: Click) -> Any:
    return am.seconds(-1)


def no_number(click: Click) -> Any:
    return "soon"


class AllOf(am.ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any, out: Any) -> None:
        out.collect(elements)


class NoResult(am.Trigger):
    def on_element(self, *_: Any) -> Any:
        return None


class WrongResult(am.EventTimeTrigger):
    def on_event_time(self, *_: Any) -> Any:
        return True


class NoTimer(am.KeyedProcessFunction):
    def process_element(self, value: Any, context: Any, out: Any) -> None:
        context.timer_service.register_event_time_timer(5_000)


class NoProcessingTimer(am.KeyedCoProcessFunction):
    def process_element1(self, value: Any, context: Any, out: Any) -> None:
        context.timer_service.register_processing_time_timer(5_000)


class NoAsyncTimer(am.KeyedAsyncProcessFunction):
    async def process_element(self, value: Any, context: Any, out: Any) -> None:
        context.timer_service.register_event_time_timer(5_000)


class StateWithoutKey(am.ProcessFunction):
    def process_element(self, value: Any, context: Any, out: Any) -> None:
        context.keyed_state.get_value(am.ValueStateDescriptor("seen", int))


class OpenWithoutKey(am.ProcessFunction):
    def open(self, context: Any) -> None:
        context.keyed_state.get_value(am.ValueStateDescriptor("seen", int))

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        """Do nothing."""


class TimerWithoutKey(am.ProcessFunction):
    def process_element(self, value: Any, context: Any, out: Any) -> None:
        context.timer_service.register_event_time_timer(1)


class TwoTypesInOpen(am.KeyedProcessFunction):
    def open(self, context: Any) -> None:
        context.keyed_state.get_value(am.ValueStateDescriptor("seen", int))
        context.keyed_state.get_list(am.ListStateDescriptor("seen", int))

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        """Do nothing."""


def sessions(gap: Any) -> Callable[[Stream], Stream]:
    windows = am.EventTimeSessionWindows.with_dynamic_gap(gap)

    def build(stream: Stream) -> Stream:
        return stream.key_by("user").window(windows).aggregate(am.count())

    return build


def listed_sessions(stream: Stream) -> Stream:
    windows = am.EventTimeSessionWindows.with_dynamic_gap(negative_gap)
    keyed = stream.key_by("user").window(windows)
    return keyed.apply(lambda key, window, records: records)


def triggered(trigger: am.Trigger) -> Callable[[Stream], Stream]:
    windows = am.TumblingEventTimeWindows.of(am.seconds(5))

    def build(stream: Stream) -> Stream:
        keyed = stream.key_by("user").window(windows)
        return keyed.trigger(trigger).aggregate(am.count())

    return build


def same(click: Click) -> Any:
    return click


def wrong_key(stream: Stream) -> Stream:
    return stream.map(same).key_by("usr").aggregate(am.count())


def two_inputs(stream: Stream) -> Stream:
    keyed = stream.key_by("user")
    return keyed.connect(keyed).process(NoProcessingTimer())


FAILING: list[Failing] = [
    (
        "no gap",
        sessions(no_gap),
        ["returned None", "gap", "Click(user='a', at=1000", "more than 0"],
        no_gap,
    ),
    (
        "negative gap",
        sessions(negative_gap),
        ["returned datetime.timedelta(days=-1", "Click(user='a', at=1000"],
        negative_gap,
    ),
    (
        "negative gap, listed",
        listed_sessions,
        ["returned datetime.timedelta(days=-1", "Click(user='a', at=1000"],
        negative_gap,
    ),
    ("no number", sessions(no_number), ["returned 'soon'"], no_number),
    (
        "trigger returns nothing",
        triggered(NoResult()),
        ["returned None", "for the record Click(user='a'", "TriggerResult.CONTINUE"],
        NoResult.on_element,
    ),
    (
        "purging trigger returns nothing",
        triggered(am.PurgingTrigger(NoResult())),
        ["returned None", "for the record Click(user='a'"],
        NoResult.on_element,
    ),
    (
        "trigger returns something else",
        triggered(WrongResult()),
        ["returned True", "for the window TimeWindow(start=0, end=5000)"],
        WrongResult.on_event_time,
    ),
    (
        "timer without on_timer",
        lambda s: s.key_by("user").process(NoTimer()),
        ["NoTimer registers a timer", "no on_timer", "on_timer(self, timestamp"],
        NoTimer.process_element,
    ),
    (
        "timer without on_timer, two streams",
        two_inputs,
        ["NoProcessingTimer registers a timer", "no on_timer"],
        NoProcessingTimer.process_element1,
    ),
    (
        "timer without on_timer, async",
        lambda s: s.key_by("user").process_async(NoAsyncTimer()),
        ["NoAsyncTimer.process_element", "no on_timer"],
        NoAsyncTimer.process_element,
    ),
    (
        "state without key",
        lambda s: s.process(StateWithoutKey()),
        ["no keyed state", "key_by"],
        StateWithoutKey.process_element,
    ),
    (
        "state without key in open",
        lambda s: s.process(OpenWithoutKey()),
        ["no keyed state", "key_by"],
        OpenWithoutKey.open,
    ),
    (
        "timer without key",
        lambda s: s.process(TimerWithoutKey()),
        ["no timers", "key_by"],
        TimerWithoutKey.process_element,
    ),
    (
        "two types in open",
        lambda s: s.key_by("user").process(TwoTypesInOpen()),
        ["'seen'", "value state", "list state"],
        TwoTypesInOpen.open,
    ),
    (
        "key that is not there",
        wrong_key,
        ["'usr'", "user, at, note", "in operator 'bad input'"],
        wrong_key,
    ),
]


def clicks(env: Env) -> Stream:
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    return env.from_collection(CLICKS, strategy.with_timestamp_assigner("at"))


def lines_of(function: Any) -> list[str]:
    lines, first = inspect.getsourcelines(function)
    return [f"{__file__}:{first + index}" for index in range(len(lines))]


@pytest.mark.parametrize(
    ("build", "parts", "culprit"),
    [case[1:] for case in FAILING],
    ids=[case[0] for case in FAILING],
)
async def test_a_failure_names_the_operator_the_record_and_the_line(
    env: Env, build: Callable[[Stream], Stream], parts: list[str], culprit: Any
) -> None:
    stream = build(clicks(env)).name("bad input").uid("bad-input-1")
    with pytest.raises(am.JobFailedError) as caught:
        await stream.collect()
    message = _whole(caught.value)
    assert [part for part in parts if part not in message] == [], message
    assert "'bad input'" in message
    assert any(line in message for line in lines_of(culprit)), message
    assert "x" * 300 not in message


@pytest.mark.parametrize("parallelism", [1, 2])
async def test_a_key_that_is_not_there_is_named_wherever_it_is_read(
    parallelism: int,
) -> None:
    stream = wrong_key(clicks(Env(parallelism)))
    with pytest.raises(am.JobFailedError) as caught:
        await stream.collect()
    message = _whole(caught.value)
    assert "'usr'" in message
    assert any(line in message for line in lines_of(wrong_key)), message


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("at", "the key of 'at' ({file}:"),
        (lambda click: click.at, "the key of lambda ({file}:"),
    ],
)
@pytest.mark.parametrize("parallelism", [1, 2])
async def test_a_key_that_has_no_place_is_told_with_who_reads_it(
    parallelism: int, key: Any, place: str
) -> None:
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    records = Env(parallelism).from_collection([Click("a", moment)])  # type: ignore[arg-type]
    with pytest.raises(am.JobFailedError, match=r"key\.isoformat\(\)") as caught:
        await records.key_by(key).aggregate(am.count()).name("n").collect()
    assert str(caught.value).startswith("job 'collect' failed: operator 'n'")
    assert place.format(file=__file__) in str(caught.value)


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.key_by("user").window(DAY).aggregate(am.count()),
        lambda s: s.key_by("user").window(DAY).process(AllOf()),
        lambda s: s.assign_timestamps_and_watermarks(NO_TIME),
        lambda s: s.flat_map(lambda click: None),
        lambda s: s.map(lambda click: click).key_by("note").reduce(max),
    ],
    ids=["tumbling", "window", "event time", "flat_map", "key"],
)
async def test_no_line_of_the_library_passes_for_the_user_s(
    build: Callable[[Stream], Stream],
) -> None:
    records = Env().from_collection([Click("a", 1, None), Click("b", 2, None)])  # type: ignore[arg-type]
    stream = build(records).name("culprit")
    with pytest.raises(am.JobFailedError) as caught:
        await stream.collect()
    assert "'culprit'" in str(caught.value)
    cause = caught.value.__cause__
    assert cause is not None
    call = f"{__file__}:{build.__code__.co_firstlineno}"
    notes = {note for note in cause.__notes__ if "operator" in note}
    assert notes <= {"in operator 'culprit'", f"in operator 'culprit' at {call}"}
    assert __file__ in str(caught.value.location)


async def test_a_bad_gap_is_the_record_s_failure_where_records_may_fail(
    env: Env,
) -> None:
    windows = am.EventTimeSessionWindows.with_dynamic_gap(
        lambda click: am.seconds(click.at == 1_000)
    )
    keyed = clicks(env).key_by("user").window(windows)
    assert await keyed.aggregate(am.count(), on_error=am.skip).collect() == [1]


class SameName(am.KeyedProcessFunction):
    """Asks ``open`` and ``process_element`` for state by the same name."""

    def open(self, context: Any) -> None:
        self.seen = context.keyed_state.get_value(
            am.ValueStateDescriptor("n", default=0)
        )

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        self.seen.update(self.seen.value() + 1)
        again = context.keyed_state.get_value(am.ValueStateDescriptor("n", default=0))
        out.collect(again.value())


class SameNameAsync(am.KeyedAsyncProcessFunction):
    open = SameName.open

    async def process_element(self, value: Any, context: Any, out: Any) -> None:
        SameName.process_element(self, value, context, out)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.process(SameName()),
        lambda s: s.process_async(SameNameAsync()),
    ],
    ids=["process", "process_async"],
)
async def test_state_has_one_name_in_open_and_for_records(
    env: Env, build: Callable[[Any], Stream]
) -> None:
    assert await build(clicks(env).key_by("user")).collect() == [1, 2]


def _whole(error: BaseException) -> str:
    """Return the messages and notes of an error and of its causes."""
    parts: list[str] = []
    following: BaseException | None = error
    while following is not None:
        parts += [str(following), *getattr(following, "__notes__", ())]
        following = following.__cause__
    return "\n".join(parts)
