"""`explain` names the state that is kept for ever."""

from __future__ import annotations

from typing import Any

import pytest

import aiomailbox as am

SEEN = am.ValueStateDescriptor("seen", int)
SHORT = am.ListStateDescriptor("short", int, ttl=am.StateTtlConfig(am.seconds(60)))


class Remembers(am.KeyedProcessFunction):
    def open(self, context: Any) -> None:
        self.seen = context.keyed_state.get_value(SEEN)
        self.short = context.keyed_state.get_list(SHORT)

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        out.collect(value)


class HasItsOwn(am.KeyedProcessFunction):
    def __init__(self) -> None:
        self.descriptor = am.MapStateDescriptor("own", str, int)

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        context.keyed_state.get_map(self.descriptor).put("a", 1)


class DescribesInside(am.KeyedProcessFunction):
    def process_element(self, value: Any, context: Any, out: Any) -> None:
        context.keyed_state.get_value(am.ValueStateDescriptor("inside", int)).update(1)


class MakesUpNames(am.KeyedProcessFunction):
    def process_element(self, value: Any, context: Any, out: Any) -> None:
        context.keyed_state.get_value(
            am.ValueStateDescriptor(f"of {value}", int)
        ).update(1)


class DescribesSeveral(am.KeyedProcessFunction):
    def open(self, context: Any) -> None:
        short = am.StateTtlConfig(am.seconds(60))
        for descriptor in (
            am.ValueStateDescriptor("lives for a minute", int, ttl=short),
            am.ListStateDescriptor("also", int, ttl=short),
            am.MapStateDescriptor(name="for ever", ttl=None),
        ):
            self.last = descriptor

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        out.collect(value)


class KeepsNothing(am.KeyedProcessFunction):
    def process_element(self, value: Any, context: Any, out: Any) -> None:
        out.collect(value)


def explained(function: Any) -> str:
    env = am.StreamExecutionEnvironment()
    env.from_collection([1]).key_by(str).process(function).sink_to(print)
    return str(env.explain())


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (Remembers(), "unbounded: state 'seen' has no TTL\n"),
        (HasItsOwn(), "unbounded: state 'own' has no TTL\n"),
        (DescribesInside(), "unbounded: state 'inside' has no TTL\n"),
        (MakesUpNames(), "unbounded: state that is described inside the function"),
        (DescribesSeveral(), "unbounded: state 'for ever' has no TTL\n"),
    ],
)
def test_explain_names_state_without_ttl_that_a_function_reaches(
    function: Any, line: str
) -> None:
    text = explained(function)
    assert line in text
    assert "short" not in text
    assert text.count("unbounded") == 1


def test_explain_says_nothing_of_a_function_without_state() -> None:
    assert "unbounded" not in explained(KeepsNothing())


def test_explain_names_state_around_an_async_function() -> None:
    around = am.ValueStateDescriptor("around", int)

    async def count(value: Any, context: Any, out: Any) -> None:
        context.keyed_state.get_value(around)

    env = am.StreamExecutionEnvironment()
    env.from_collection([1]).key_by(str).process_async(count).sink_to(print)
    assert "unbounded: state 'around' has no TTL" in str(env.explain())


def test_both_sides_of_a_function_name_its_state_once() -> None:
    class Both(am.KeyedCoProcessFunction):
        def process_element1(self, value: Any, context: Any, out: Any) -> None:
            context.keyed_state.get_value(SEEN)

        def process_element2(self, value: Any, context: Any, out: Any) -> None:
            context.keyed_state.get_value(SEEN)

    env = am.StreamExecutionEnvironment()
    left = env.from_collection([1]).key_by(str)
    right = env.from_collection([1]).key_by(str)
    left.connect(right).process(Both()).sink_to(print)
    assert str(env.explain()).count("state 'seen' has no TTL") == 1


@pytest.mark.parametrize(
    ("trigger", "stays"),
    [
        (am.CountTrigger.of(2), True),
        (am.PurgingTrigger.of(am.CountTrigger.of(2)), False),
    ],
)
def test_explain_names_global_windows_that_nothing_purges(
    trigger: Any, stays: bool
) -> None:
    env = am.StreamExecutionEnvironment()
    windows = env.from_collection([1]).key_by(str).window(am.GlobalWindows.create())
    windows.trigger(trigger).aggregate(am.count()).sink_to(print)
    assert ("unbounded: a global window keeps" in str(env.explain())) is stays


async def test_state_on_a_stream_without_keys_is_refused_with_the_reason() -> None:
    class Keeps(am.ProcessFunction):
        def process_element(self, value: Any, context: Any, out: Any) -> None:
            context.keyed_state.get_value(SEEN)

    stream = am.StreamExecutionEnvironment().from_collection([1]).process(Keeps())
    with pytest.raises(am.JobFailedError, match="no keyed state here"):
        await stream.collect()


async def test_a_name_for_state_of_two_types_is_refused_in_one_row() -> None:
    async def twice(value: Any, context: Any, out: Any) -> None:
        context.keyed_state.get_value(am.ValueStateDescriptor("x", int))
        context.keyed_state.get_value(am.ValueStateDescriptor("x", str))

    stream = am.StreamExecutionEnvironment().from_collection([1]).key_by(str)
    with pytest.raises(am.JobFailedError, match=r"'x'.* cannot be read as str"):
        await stream.process_async(twice).collect()


def test_state_of_a_function_without_source_is_seen_but_not_named() -> None:
    names: dict[str, Any] = {"am": am, "__name__": "typed"}
    source = """
class Typed(am.KeyedProcessFunction):
    def process_element(self, value, context, out):
        context.keyed_state.get_value(am.ValueStateDescriptor("typed", int)).update(1)
"""
    exec(compile(source, "<console>", "exec"), names)
    assert "state that is described inside" in explained(names["Typed"]())
