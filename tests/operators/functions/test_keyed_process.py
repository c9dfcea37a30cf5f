"""Process functions with state and timers."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from aiomailbox.errors import (
    AioMailboxError,
    KeyTypeError,
    StateError,
    TimestampError,
    UserFunctionError,
    WrongTypeError,
)
from aiomailbox.operators.core.user_code import skip
from aiomailbox.operators.functions.contexts import TimeDomain
from aiomailbox.operators.functions.process import (
    KeyedCoProcessFunction,
    KeyedCoProcessOperator,
    KeyedProcessFunction,
    KeyedProcessOperator,
)
from aiomailbox.records.events import OutputTag, StreamRecord, Watermark
from aiomailbox.state.descriptors import ListStateDescriptor, ValueStateDescriptor
from aiomailbox.testing import OneInputHarness, TwoInputHarness

SEEN = ListStateDescriptor("seen")
SIDE = OutputTag("side")


def first(record: Any) -> Any:
    return record[0]


class Remind(KeyedProcessFunction):
    """Keeps numbers, and emits them at the times that records ask for."""

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        _, number, domain, times = value
        context.keyed_state.get_list(SEEN).add(number)
        for time in times:
            getattr(context.timer_service, f"register_{domain}_time_timer")(time)

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        seen = context.keyed_state.get_list(SEEN).get()
        out.collect((context.current_key, timestamp, seen, context.time_domain))
        context.output(SIDE, context.timestamp)


def harness_of(function: Any, state: object = None, **options: Any) -> OneInputHarness:
    operator = KeyedProcessOperator(first, function, **options)
    harness = OneInputHarness(operator, keyed=True)
    harness.restore(state)
    harness.open()
    return harness


def test_timer_output_precedes_the_watermark_and_has_the_timers_time() -> None:
    harness = harness_of(Remind())
    harness.process_run(
        [("a", 1, "event", [10, 20]), ("b", 2, "event", [10]), ("a", 3, "event", [10])]
    )
    harness.process_watermark(9)
    harness.process_watermark(15)
    event = TimeDomain.EVENT_TIME
    assert harness.output == [
        Watermark(9),
        StreamRecord(("a", 10, [1, 3], event), 10),
        StreamRecord(("b", 10, [2], event), 10),
        Watermark(15),
    ]
    assert harness.side_output(SIDE) == [StreamRecord(10, 10)] * 2


def test_processing_time_timers_emit_without_event_time_and_at_once() -> None:
    harness = harness_of(Remind())
    harness.process_element(("a", 1, "processing", [10]), 5)
    harness.set_processing_time(9)
    assert harness.output == []
    harness.set_processing_time(10)
    processing = TimeDomain.PROCESSING_TIME
    assert harness.output == [StreamRecord(("a", 10, [1], processing), None)]


def test_an_event_timer_in_the_past_waits_for_the_next_watermark() -> None:
    """SEM-47."""
    harness = harness_of(Remind())
    harness.process_watermark(50)
    harness.process_element(("a", 1, "event", [40]))
    assert harness.values == []
    harness.process_watermark(51)
    assert [value[1] for value in harness.values] == [40]


def test_state_timers_and_the_watermark_survive_a_restart() -> None:
    """SEM-48, SEM-51."""
    before = harness_of(Remind())
    before.process_run(
        [("a", 1, "event", [10]), ("a", 2, "processing", [10]), ("b", 3, "event", [10])]
    )
    before.process_watermark(5)
    state = before.snapshot()
    before.process_element(("a", 99, "event", [10]))

    after = harness_of(Remind(), state)
    after.set_processing_time(10)
    after.process_watermark(10)
    found = [value[:3] for value in after.values]
    assert found == [("a", 10, [1, 2]), ("a", 10, [1, 2]), ("b", 10, [3])]

    class Ask(KeyedProcessFunction):
        def process_element(self, value: Any, context: Any, out: Any) -> None:
            out.collect(context.timer_service.current_watermark)
            out.collect(context.current_watermark)

    asking = harness_of(Ask(), state)
    asking.process_element(("a",))
    assert asking.values == [5, 5]
    asking.process_watermark(7)
    asking.process_element(("a",))
    assert asking.values[2:] == [7, 7]


def test_a_timer_that_was_deleted_does_not_fire_and_datetimes_are_times() -> None:
    class Forget(KeyedProcessFunction):
        def process_element(self, value: Any, context: Any, out: Any) -> None:
            timers = context.timer_service
            time = datetime(1970, 1, 1, 0, 0, 10, tzinfo=UTC)
            for kind in ("event", "processing"):
                getattr(timers, f"register_{kind}_time_timer")(time)
                if value[1]:
                    getattr(timers, f"delete_{kind}_time_timer")(10_000)

        def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
            out.collect((context.current_key, timestamp))

    harness = harness_of(Forget())
    harness.process_run([("a", True), ("b", False)])
    harness.process_watermark(10_000)
    harness.set_processing_time(10_000)
    assert harness.values == [("b", 10_000), ("b", 10_000)]
    with pytest.raises(UserFunctionError) as caught:
        harness_of(Remind()).process_element(("a", 1, "event", ["soon"]))
    assert isinstance(caught.value.__cause__, TimestampError)


def test_a_timer_registered_by_a_timer_fires_in_the_same_advance() -> None:
    """SEM-46."""

    class Chain(Remind):
        def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
            out.collect(timestamp)
            context.timer_service.register_event_time_timer(timestamp + 2)

    harness = harness_of(Chain())
    harness.process_element(("a", 1, "event", [10]))
    harness.process_watermark(15)
    assert harness.output[-1] == Watermark(15)
    assert harness.values == [10, 12, 14]


def test_there_is_no_state_without_a_key() -> None:
    class Early(KeyedProcessFunction):
        def open(self, context: Any) -> None:
            context.keyed_state.get_value(ValueStateDescriptor("x")).value()

        def process_element(self, value: Any, context: Any, out: Any) -> None:
            """Do nothing."""

    with pytest.raises(UserFunctionError) as caught:
        harness_of(Early())
    assert isinstance(caught.value.__cause__, StateError)


def test_a_function_that_raises_names_its_line_for_records_and_timers() -> None:
    class Fails(Remind):
        def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
            raise ValueError("no")

    harness = harness_of(Fails(), on_error=skip)
    harness.process_run([("a", 1), ("b", 1, "event", [10])])
    assert harness.context.metrics.counter("skipped").value == 1
    with pytest.raises(UserFunctionError, match=r"test_keyed_process\.py"):
        harness.process_watermark(10)


class Slow(KeyedProcessFunction):
    """Awaits everywhere, and keeps a sum."""

    def __init__(self) -> None:
        self.life: list[str] = []

    async def open(self, context: Any) -> None:
        await asyncio.sleep(1)
        self.total = context.keyed_state.get_value(
            ValueStateDescriptor("total", default=0)
        )
        self.life.append("open")

    async def process_element(self, value: Any, context: Any, out: Any) -> None:
        old = self.total.value()
        await asyncio.sleep(1)
        self.total.update(old + value[1])
        context.timer_service.register_event_time_timer(10)
        context.timer_service.register_processing_time_timer(10)

    async def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        await asyncio.sleep(1)
        out.collect((context.current_key, self.total.value()))

    async def finish(self, out: Any) -> None:
        await asyncio.sleep(1)
        out.collect("finished")

    async def close(self) -> None:
        self.life.append("close")


async def test_async_methods_are_awaited_one_after_the_other() -> None:
    function = Slow()
    operator = KeyedProcessOperator(first, function)
    async with OneInputHarness(operator, keyed=True) as harness:
        await harness.run(harness.process_run, [("a", 1), ("b", 5), ("a", 2)])
        await harness.run(harness.process_watermark, 10)
        assert harness.output == [
            StreamRecord(("a", 3), 10),
            StreamRecord(("b", 5), 10),
            Watermark(10),
        ]
        await harness.run(harness.set_processing_time, 10)
        await harness.run(harness.finish)
        assert harness.values[2:] == [("a", 3), ("b", 5), "finished"]
    assert function.life == ["open", "close"]


def test_what_cannot_work_is_refused_when_it_is_written() -> None:
    class Generates(KeyedProcessFunction):
        def process_element(self, value: Any, context: Any, out: Any) -> Any:
            yield value

    class NoTimer:
        def process_element(self, value: Any, context: Any, out: Any) -> None: ...

    with pytest.raises(WrongTypeError, match=r"out\.collect"):
        KeyedProcessOperator(first, Generates())
    with pytest.raises(WrongTypeError, match="on_timer"):
        KeyedProcessOperator(first, NoTimer())
    with pytest.raises(WrongTypeError, match="key"):
        KeyedProcessOperator(3, Remind())  # type: ignore[arg-type]


class Match(KeyedCoProcessFunction):
    """Holds orders back until the payment comes, or time runs out."""

    def open(self, context: Any) -> None:
        self.order = context.keyed_state.get_value(ValueStateDescriptor("order"))

    def process_element1(self, value: Any, context: Any, out: Any) -> None:
        self.order.update(value[1])
        context.timer_service.register_event_time_timer(context.timestamp + 10)

    def process_element2(self, value: Any, context: Any, out: Any) -> None:
        if self.order.value() is not None:
            out.collect((context.current_key, self.order.value(), value[1]))
            self.order.clear()

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        if self.order.value() is not None:
            out.collect((context.current_key, self.order.value(), None))


def matching() -> KeyedCoProcessOperator:
    return KeyedCoProcessOperator(first, first, Match())


def test_two_keyed_streams_share_state_and_timers_also_across_a_restart() -> None:
    before = TwoInputHarness(matching(), keyed=True)
    before.open()
    before.first.process_run([("a", "book"), ("b", "pen")], [1, 2])
    harness = TwoInputHarness(matching(), keyed=True)
    harness.restore(before.snapshot())
    with harness:
        harness.second.process_element(("a", "paid"), 3)
        harness.first.process_watermark(50)
        assert harness.output == [StreamRecord(("a", "book", "paid"), 3)]
        harness.second.process_watermark(12)
        assert harness.output[1:] == [
            StreamRecord(("b", "pen", None), 12),
            Watermark(12),
        ]


def test_keys_of_both_streams_are_of_one_type() -> None:
    with TwoInputHarness(matching(), keyed=True) as harness:
        harness.first.process_element(("1", "book"), 1)
        with pytest.raises(KeyTypeError, match="operator 'operator'"):
            harness.second.process_element((1, "paid"), 1)


def test_a_timer_that_runs_within_a_record_leaves_the_record_its_key() -> None:
    """As when the function yields to mail."""
    harness: OneInputHarness

    class Nested(Remind):
        def process_element(self, value: Any, context: Any, out: Any) -> None:
            super().process_element(value, context, out)
            harness.context.manual_time.set_current_time(10)
            out.collect((context.current_key, context.timestamp))
            context.keyed_state.get_list(SEEN).add("own")

    harness = harness_of(Remind())
    harness.process_element(("a", 1, "processing", [10]))
    harness = harness_of(Nested(), harness.snapshot())
    harness.process_run([("b", 2, "event", [20])], [5])
    assert harness.output[-1] == StreamRecord(("b", 5), 5)
    harness.process_watermark(20)
    assert harness.values[-1][:3] == ("b", 20, [2, "own"])


class Late(KeyedProcessFunction):
    """Keeps what uses its state and its timers, to be called when it has returned."""

    def open(self, context: Any) -> None:
        self.seen = context.keyed_state.get_list(SEEN)

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        self.seen.add(value)
        self.uses = {
            "state": lambda: self.seen.add("late"),
            "event time": lambda: context.timer_service.register_event_time_timer(9),
            "wall-clock time": lambda: (
                context.timer_service.register_processing_time_timer(9)
            ),
            "a result": lambda: out.collect("late"),
            "a bound method": partial(out.collect, "late"),
            "a side output": lambda: context.output(SIDE, "late"),
        }
        context.timer_service.register_event_time_timer(5)
        context.timer_service.register_processing_time_timer(5)

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        out.collect((context.current_key, self.seen.get()))


class LateAwaiting(Late):
    async def process_element(self, value: Any, context: Any, out: Any) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().process_element(value, context, out)


@pytest.mark.parametrize("kind", [Late, LateAwaiting])
@pytest.mark.parametrize(
    ("use", "told"),
    [
        ("state", r"no key is current.*process_async"),
        ("event time", r"a timer was registered.*no key is current.*process_async"),
        (
            "wall-clock time",
            r"a timer was registered.*no key is current.*process_async",
        ),
        ("a result", r"a result was collected.*had returned.*process_async"),
        ("a bound method", r"a result was collected.*had returned.*process_async"),
        ("a side output", r"a result was collected.*had returned.*process_async"),
    ],
)
@pytest.mark.parametrize("after", ["a record", "a timer", "a timer of the clock"])
async def test_what_is_used_when_the_function_has_returned_is_refused_and_changes_no_key(
    after: str, use: str, told: str, kind: type[Late]
) -> None:
    function = kind()
    async with OneInputHarness(
        KeyedProcessOperator(first, function), keyed=True
    ) as harness:
        await harness.run(harness.process_run, [("a", 1), ("b", 2)], [1, 2])
        if after == "a timer":
            await harness.run(harness.process_watermark, 5)
        elif after == "a timer of the clock":
            await harness.run(harness.set_processing_time, 6)
        before = len(harness.values)
        with pytest.raises(AioMailboxError, match=told):
            function.uses[use]()
        await harness.run(harness.process_watermark, 20)
        await harness.run(harness.set_processing_time, 20)
        assert harness.values[before:] == [
            (key, [(key, number)])
            for _ in range(2 if after == "a record" else 1)
            for key, number in (("a", 1), ("b", 2))
        ]
    with pytest.raises(AioMailboxError, match=told):
        function.uses[use]()
    assert harness.side_output(SIDE) == []


USES_OF_A_KEY = {
    "reads": lambda function, timers: function.seen.get(),
    "writes": lambda function, timers: function.seen.add("late"),
    "event time": lambda function, timers: timers.register_event_time_timer(7),
    "wall-clock time": lambda function, timers: timers.register_processing_time_timer(
        7
    ),
}


class Overlapping(KeyedProcessFunction):
    """Its call for the first record starts a task that goes on during the second."""

    def __init__(self, use: str) -> None:
        self.use = USES_OF_A_KEY[use]
        self.second = asyncio.Event()

    def open(self, context: Any) -> None:
        self.seen = context.keyed_state.get_list(SEEN)

    async def process_element(self, value: Any, context: Any, out: Any) -> None:  # type: ignore[override]
        key, number = value
        if key == "a":
            self.late = asyncio.create_task(self.go_on(context.timer_service))
        else:
            self.second.set()
            with pytest.raises(StateError, match=r"another record.*process_async"):
                await self.late
        # Its own tasks, and its own threads, may do all.
        await asyncio.gather(
            self.keep(number, context.timer_service), asyncio.to_thread(self.seen.get)
        )
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(None, self.seen.get) == [number]
        assert self.seen.get() == [number]

    async def keep(self, number: int, timers: Any) -> None:
        await asyncio.sleep(0)
        self.seen.add(number)
        timers.register_event_time_timer(5)

    async def go_on(self, timers: Any) -> None:
        await self.second.wait()
        self.use(self, timers)

    async def on_timer(self, timestamp: int, context: Any, out: Any) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        out.collect((context.current_key, timestamp, self.seen.get()))


@pytest.mark.parametrize("use", USES_OF_A_KEY)
async def test_a_task_of_another_records_call_has_no_key_while_a_call_is_awaited(
    use: str,
) -> None:
    operator = KeyedProcessOperator(first, Overlapping(use))
    async with OneInputHarness(operator, keyed=True) as harness:
        await harness.run(harness.process_run, [("a", 1), ("b", 2)], [1, 2])
        await harness.run(harness.process_watermark, 20)
        await harness.run(harness.set_processing_time, 20)
        assert harness.values == [("a", 5, [1]), ("b", 5, [2])]
