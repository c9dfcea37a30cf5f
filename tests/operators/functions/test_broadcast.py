"""The broadcast pattern: who may read and write which state, and what is kept of it."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

from aiomailbox.errors import (
    InvalidArgumentError,
    StateError,
    UserFunctionError,
    WrongTypeError,
)
from aiomailbox.operators.core.user_code import skip
from aiomailbox.operators.functions.process import (
    BroadcastProcessFunction,
    BroadcastProcessOperator,
    KeyedBroadcastProcessFunction,
    KeyedBroadcastProcessOperator,
)
from aiomailbox.records.events import OutputTag, StreamRecord, Watermark
from aiomailbox.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from aiomailbox.testing import TwoInputHarness, redistributed

RULES = MapStateDescriptor("rules", str, int)
SEEN = ValueStateDescriptor("seen", int, default=0)
SIDE = OutputTag("side")


class Limits(BroadcastProcessFunction):
    """Compares each record with the limit of its name."""

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        limit = context.get_broadcast_state(RULES).get(value[0], 10)
        out.collect((value, limit))

    def process_broadcast_element(self, value: Any, context: Any, out: Any) -> None:
        context.get_broadcast_state(RULES).put(*value)
        context.output(SIDE, (value, context.timestamp, context.current_watermark))


def opened(operator: Any, state: Any = None) -> TwoInputHarness:
    harness = TwoInputHarness(operator, keyed=True)
    if state is not None:
        harness.restore(state)
    harness.open()
    return harness


def test_each_side_sees_what_the_broadcast_side_wrote() -> None:
    with opened(BroadcastProcessOperator(Limits(), [RULES])) as harness:
        harness.first.process_element(("a", 1), 5)
        harness.first.process_watermark(3)
        harness.second.process_watermark(3)
        harness.second.process_run([("a", 20), ("b", 30)], [6, 7])
        harness.first.process_run([("a", 1), ("b", 2), ("c", 3)], [8, 8, 8])
        assert harness.output == [
            StreamRecord((("a", 1), 10), 5),
            Watermark(3),
            StreamRecord((("a", 1), 20), 8),
            StreamRecord((("b", 2), 30), 8),
            StreamRecord((("c", 3), 10), 8),
        ]
        assert harness.side_output(SIDE) == [
            StreamRecord((("a", 20), 6, 3), 6),
            StreamRecord((("b", 30), 7, 3), 7),
        ]


def test_a_new_operator_goes_on_with_the_copy_of_the_old_one() -> None:
    old = opened(BroadcastProcessOperator(Limits(), [RULES]))
    old.second.process_element(("a", 20))
    state = old.snapshot()
    old.second.process_element(("a", 99))
    new = opened(BroadcastProcessOperator(Limits(), [RULES]), state)
    new.first.process_element(("a", 1))
    assert new.values == [(("a", 1), 20)]
    # After a change of the parallelism there are several copies.
    (last,) = redistributed([state, old.snapshot()], 1)
    newer = opened(BroadcastProcessOperator(Limits(), [RULES]), last)
    newer.first.process_element(("a", 1))
    assert newer.values == [(("a", 1), 20)]


@pytest.mark.parametrize("method", ["put", "remove"])
def test_the_record_side_may_not_write(method: str) -> None:
    class Writes(Limits):
        def process_element(self, value: Any, context: Any, out: Any) -> None:
            state = context.get_broadcast_state(RULES)
            arguments = ("a", 1) if method == "put" else ("a",)
            getattr(state, method)(*arguments)

    with (
        opened(BroadcastProcessOperator(Writes(), [RULES])) as harness,
        pytest.raises(UserFunctionError, match="read-only here") as caught,
    ):
        harness.first.process_element(("a", 1))
    assert isinstance(caught.value.__cause__, StateError)


def test_state_that_was_not_declared_is_refused_with_what_was() -> None:
    class Other(Limits):
        def process_broadcast_element(self, value: Any, context: Any, out: Any) -> None:
            context.get_broadcast_state(MapStateDescriptor("other"))

    with (
        opened(BroadcastProcessOperator(Other(), [RULES])) as harness,
        pytest.raises(UserFunctionError, match=r"'other' was not declared .*: rules\)"),
    ):
        harness.second.process_element(("a", 1))


class Counts(KeyedBroadcastProcessFunction):
    """Counts records per key; a rule sets all counts, and timers tell them."""

    def open(self, context: Any) -> None:
        self.seen = context.keyed_state.get_value(SEEN)

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        self.seen.update(self.seen.value() + 1)
        context.timer_service.register_event_time_timer(100)

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        rule = context.get_broadcast_state(RULES).get("all")
        out.collect((context.current_key, self.seen.value(), rule))

    def process_broadcast_element(self, value: Any, context: Any, out: Any) -> None:
        context.get_broadcast_state(RULES).put(*value)
        context.apply_to_keyed_state(SEEN, lambda key, seen: seen.update(value[1]))
        context.apply_to_keyed_state(SEEN, lambda key, seen: out.collect(key))


def keyed(function: Any, **options: Any) -> KeyedBroadcastProcessOperator:
    return KeyedBroadcastProcessOperator(str.lower, function, [RULES], **options)


@pytest.mark.parametrize("restarts", [False, True])
def test_the_broadcast_side_may_change_the_state_of_all_keys(restarts: bool) -> None:
    harness = opened(keyed(Counts()))
    harness.first.process_run(["a", "A", "b"], [1, 2, 3])
    harness.second.process_element(("all", 7), 4)
    assert sorted(harness.values) == ["a", "b"]
    if restarts:
        harness = opened(keyed(Counts()), harness.snapshot())
    harness.first.process_element("b", 5)
    harness.take_output()
    harness.first.process_watermark(100)
    harness.second.process_watermark(100)
    output = harness.output
    assert sorted(element.value for element in output[:2]) == [("a", 7, 7), ("b", 8, 7)]
    assert output[2:] == [Watermark(100)]


def test_a_timer_that_nobody_would_hear_of_is_refused() -> None:
    class Forgetful(KeyedBroadcastProcessFunction):
        def process_element(self, value: Any, context: Any, out: Any) -> None:
            context.timer_service.register_event_time_timer(100)

        def process_broadcast_element(self, value: Any, context: Any, out: Any) -> None:
            pass

    harness = opened(keyed(Forgetful()))
    with pytest.raises(UserFunctionError, match="has no on_timer"):
        harness.first.process_element("a", 1)


def test_keyed_state_is_parted_and_broadcast_state_copied() -> None:
    whole = opened(keyed(Counts()))
    whole.first.process_run([*"abcdefgh"], [*range(8)])
    whole.second.process_element(("all", 3), 9)
    parts = []
    for index in (0, 1):
        part = TwoInputHarness(
            keyed(Counts()), keyed=True, parallelism=2, subtask_index=index
        )
        part.restore(whole.snapshot())
        part.open()
        parts.append(part.snapshot())
    again = opened(keyed(Counts()), redistributed(parts, 1)[0])
    again.first.process_watermark(100)
    again.second.process_watermark(100)
    assert sorted(again.values) == [(key, 3, 3) for key in "abcdefgh"]


class Forbidden(Counts):
    """Does on the broadcast side what only records of a key may do."""

    def process_broadcast_element(self, value: Any, context: Any, out: Any) -> None:
        if value == "timer":
            context.timer_service.register_event_time_timer(5)
        elif value == "state":
            self.seen.update(1)
        elif value == "after":
            context.apply_to_keyed_state(SEEN, lambda key, state: None)
            self.seen.update(1)
        else:
            context.apply_to_keyed_state(SEEN, self.later)

    async def later(self, key: Any, state: Any) -> None:
        """Never called."""


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("timer", "the broadcast side of operator 'operator' has no timers"),
        ("state", "no key is current"),
        ("after", "no key is current"),
        ("async", "gives a coroutine"),
    ],
)
def test_the_broadcast_side_has_no_key(value: str, message: str) -> None:
    with opened(keyed(Forbidden())) as harness:
        harness.first.process_element("a", 1)
        with pytest.raises(UserFunctionError, match=message):
            harness.second.process_element(value, 2)


def test_state_of_other_kinds_can_be_walked_too() -> None:
    visits = ListStateDescriptor("visits")

    class Visits(KeyedBroadcastProcessFunction):
        def process_element(self, value: Any, context: Any, out: Any) -> None:
            context.keyed_state.get_list(visits).add(value)

        def process_broadcast_element(self, value: Any, context: Any, out: Any) -> None:
            context.apply_to_keyed_state(
                visits, lambda key, state: out.collect((key, state.get()))
            )

    with opened(keyed(Visits())) as harness:
        harness.first.process_run(["a", "A"])
        harness.second.process_element("tell")
        assert harness.values == [("a", ["a", "A"])]


class Slow(KeyedBroadcastProcessFunction):
    """Waits on both sides."""

    async def process_element(self, value: Any, context: Any, out: Any) -> None:
        await asyncio.sleep(1)
        if value == "bad":
            raise ValueError(value)
        rules = context.get_broadcast_state(RULES).items()
        out.collect((context.current_key, value, rules))

    async def process_broadcast_element(
        self, value: Any, context: Any, out: Any
    ) -> None:
        await asyncio.sleep(1)
        context.get_broadcast_state(RULES).put(*value)

    async def end_input(self, index: int, out: Any) -> None:
        await asyncio.sleep(1)
        out.collect(f"end of {index}")

    async def finish(self, out: Any) -> None:
        out.collect("finished")


async def test_methods_may_be_async_and_on_error_applies() -> None:
    async with TwoInputHarness(keyed(Slow(), on_error=skip), keyed=True) as harness:
        run = harness.run
        await run(harness.second.process_element, ("a", 1))
        await run(harness.first.process_run, ["A", "bad", "B"])
        await run(harness.second.end_input)
        await run(harness.first.end_input)
        await run(harness.finish)
        assert harness.values == [
            ("a", "A", [("a", 1)]),
            ("b", "B", [("a", 1)]),
            *["end of 1", "end of 0", "finished"],
        ]


@pytest.mark.parametrize(
    "operator",
    [
        BroadcastProcessOperator(Limits(), [RULES]),
        KeyedBroadcastProcessOperator("name", Counts(), [RULES]),
    ],
)
def test_operators_can_be_pickled(operator: Any) -> None:
    with opened(pickle.loads(pickle.dumps(operator))) as harness:
        harness.second.process_element(("a", 20))
        state = harness.context.operator_state.get_broadcast_state(RULES)
        assert state.items() == [("a", 20)]


def test_wrong_arguments_are_refused_by_name() -> None:
    with pytest.raises(InvalidArgumentError, match="there is none"):
        BroadcastProcessOperator(Limits(), [])
    with pytest.raises(InvalidArgumentError, match="one name"):
        BroadcastProcessOperator(Limits(), [RULES, RULES])
    with pytest.raises(WrongTypeError, match="not a MapStateDescriptor"):
        BroadcastProcessOperator(Limits(), [SEEN])  # type: ignore[list-item]
    with pytest.raises(WrongTypeError, match="has no method process_element"):
        BroadcastProcessOperator(object(), [RULES])
