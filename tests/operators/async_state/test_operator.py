"""Laws of process_async: order, isolation, timers, failures, snapshots."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
from functools import partial
from typing import Any

import pytest

from aiomailbox.durations import seconds
from aiomailbox.errors import (
    InvalidArgumentError,
    StateError,
    UserFunctionError,
    WrongTypeError,
)
from aiomailbox.operators.async_state.function import KeyedAsyncProcessFunction
from aiomailbox.operators.async_state.operator import KeyedAsyncProcessOperator
from aiomailbox.operators.core.user_code import dead_letter, skip
from aiomailbox.policies.retry import Retry
from aiomailbox.records.events import MIN_TIMESTAMP, OutputTag
from aiomailbox.state.backends import HeapStateBackend, RocksDBStateBackend
from aiomailbox.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from aiomailbox.state.operator_state import OperatorStateSnapshot

SEEN = ValueStateDescriptor("seen", default=0)


async def tick() -> None:
    await asyncio.sleep(0.001)


class Counting(KeyedAsyncProcessFunction):
    """Numbers the records of a key, with a wait between reading and writing."""

    def __init__(self, gates: Any) -> None:
        self.gates = gates

    def open(self, context: Any) -> None:
        self.seen = context.keyed_state.get_value(SEEN)

    async def process_element(self, value: Any, context: Any, out: Any) -> None:
        number = self.seen.value() + 1
        self.seen.update(number)
        await self.gates.wait(value)
        assert self.seen.value() == number
        out.collect(f"{value}={number}")


async def test_keys_run_at_once_and_rows_of_a_key_one_after_the_other(
    drive: Any, gates: Any
) -> None:
    driven = drive(Counting(gates))
    driven.send(["a1", "a2", "b1"])
    await tick()
    assert gates.called == ["a1", "b1"]
    await gates.finish("b1")
    await gates.finish("a1")
    assert gates.called == ["a1", "b1", "a2"]
    await gates.finish("a2")
    assert driven.values == ["b1=1", "a1=1", "a2=2"]


async def test_no_more_calls_than_concurrency_run_and_no_more_rows_than_buffer_are_held(
    drive: Any, gates: Any
) -> None:
    driven = drive(Counting(gates), concurrency=2, capacity=3)
    driven.send(["a", "b", "c", "d", "e"])
    await tick()
    assert gates.called == ["a", "b"]
    assert driven.context.metrics.snapshot()["buffered"] == 3
    await gates.finish("b")
    assert gates.called == ["a", "b", "c"]
    assert driven.context.metrics.snapshot()["buffered"] == 3


async def test_rows_of_a_busy_key_stop_the_input_only_at_their_own_bound(
    drive: Any, gates: Any
) -> None:
    driven = drive(Counting(gates), concurrency=1, capacity=1, key_capacity=2)
    driven.send(["a1", "a2", "a3", "a4"])
    await tick()
    assert driven.context.metrics.snapshot()["waiting_for_key"] == 2
    assert driven.busy


async def test_a_watermark_waits_for_the_rows_before_it_and_holds_back_none_after_it(
    drive: Any, gates: Any
) -> None:
    driven = drive(Counting(gates))
    driven.send(["a"])
    driven.watermark(10)
    driven.send(["b"])
    await tick()
    await gates.finish("b")
    assert driven.shown == ["b=1"]
    await gates.finish("a")
    assert driven.shown == ["b=1", "a=1", "wm 10"]


class Timed(KeyedAsyncProcessFunction):
    """Plans what its records say: ``(key, name, {"register": [...], "delete": [...]})``."""

    def __init__(self, gates: Any) -> None:
        self.gates = gates

    async def process_element(self, value: Any, context: Any, out: Any) -> None:
        _, name, plan = value
        await self.gates.wait(name)
        for timestamp in plan.get("register", ()):
            context.timer_service.register_event_time_timer(timestamp)
        for timestamp in plan.get("delete", ()):
            context.timer_service.delete_event_time_timer(timestamp)
        out.collect(name)

    async def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        await asyncio.sleep(0)
        out.collect(f"timer {timestamp} at {context.current_watermark}")


async def test_a_timer_waits_for_the_rows_of_its_key_that_came_before_the_watermark(
    drive: Any, gates: Any
) -> None:
    driven = drive(Timed(gates))
    driven.send([("k", "r1", {"register": [5]})])
    await tick()
    await gates.finish("r1")
    driven.send([("k", "r2", {})])
    driven.watermark(10)
    driven.send([("k", "r3", {})])
    await tick()
    assert driven.shown == ["r1"]
    await gates.finish("r2")
    await gates.finish("r3")
    assert driven.shown == ["r1", "r2", "timer 5 at 10", "wm 10", "r3"]


async def test_a_timer_registered_behind_a_waiting_watermark_fires_before_later_rows(
    drive: Any, gates: Any
) -> None:
    driven = drive(Timed(gates))
    driven.send([("k", "r1", {"register": [5, 15, 25]})])
    driven.watermark(10)
    driven.send([("k", "r2", {}), ("x", "x1", {})])
    driven.watermark(20)
    driven.send([("k", "r3", {})])
    await tick()
    await gates.finish("r1")
    await gates.finish("r2")
    await gates.finish("r3")
    assert driven.shown == [
        "r1", "timer 5 at 10", "wm 10", "r2", "timer 15 at 20", "r3",
    ]  # fmt: skip
    await gates.finish("x1")
    driven.watermark(30)
    await tick()
    assert driven.shown[-4:] == ["x1", "wm 20", "timer 25 at 30", "wm 30"]
    # Timers that were put between rows are held as these are, and no longer.
    assert driven.context.metrics.snapshot()["buffered"] == 0


async def test_a_timer_set_behind_a_watermark_that_waits_is_not_fired_by_a_restore(
    drive: Any, gates: Any
) -> None:
    driven = drive(Timed(gates))
    driven.send([("k", "r0", {"register": [7]})])
    await tick()
    await gates.finish("r0")
    driven.send([("k", "r1", {}), ("x", "x1", {})])
    driven.watermark(10)
    driven.send([("y", "y1", {"register": [5]})])
    await tick()
    await gates.finish("y1")
    assert driven.shown == ["r0", "y1"]
    snapshot = driven.operator.snapshot()
    await driven.close()
    again = drive(Timed(gates), state=snapshot)
    await tick()
    await gates.finish("r1")
    # The timer of 7 was due when the watermark came, that of 5 came after it.
    assert again.shown == ["r1", "timer 7 at 10"]
    await gates.finish("x1")
    again.watermark(20)
    await tick()
    assert again.shown[2:] == ["x1", "wm 10", "timer 5 at 20", "wm 20"]


async def test_timers_of_a_key_fire_by_time_whoever_registered_them(
    drive: Any, gates: Any
) -> None:
    driven = drive(Timed(gates))
    driven.send([("k", "r1", {"register": [8]})])
    await tick()
    await gates.finish("r1")
    driven.send([("k", "r2", {"register": [5]})])
    driven.watermark(10)
    await tick()
    await gates.finish("r2")
    assert driven.shown == ["r1", "r2", "timer 5 at 10", "timer 8 at 10", "wm 10"]


async def test_a_row_before_the_watermark_can_still_delete_a_due_timer(
    drive: Any, gates: Any
) -> None:
    driven = drive(Timed(gates))
    driven.send([("k", "r1", {"register": [5, 6]})])
    await tick()
    await gates.finish("r1")
    driven.send([("k", "r2", {"delete": [5]})])
    driven.watermark(10)
    await tick()
    await gates.finish("r2")
    assert driven.shown == ["r1", "r2", "timer 6 at 10", "wm 10"]


async def test_a_processing_time_timer_waits_for_the_row_of_its_key(
    drive: Any, gates: Any
) -> None:
    class Planning(Timed):
        async def process_element(self, value: Any, context: Any, out: Any) -> None:
            context.timer_service.register_processing_time_timer(100)
            await self.gates.wait(value)
            out.collect(value)

    driven = drive(Planning(gates))
    driven.send(["a1"])
    await tick()
    await gates.finish("a1")
    driven.send(["a2"])
    await tick()
    driven.context.manual_time.set_current_time(200)
    await tick()
    assert driven.values == ["a1"]
    await gates.finish("a2")
    assert driven.values[:2] == ["a1", "a2"]
    assert driven.values[2].startswith("timer 100")


async def test_state_between_awaits_is_that_of_the_row_in_child_tasks_too(
    drive: Any,
) -> None:
    class Nested(KeyedAsyncProcessFunction):
        def open(self, context: Any) -> None:
            self.names = context.keyed_state.get_list(ListStateDescriptor("names"))

        async def add(self, value: Any) -> None:
            await asyncio.sleep(0.001)
            self.names.add(value)

        async def process_element(self, value: Any, context: Any, out: Any) -> None:
            await asyncio.gather(self.add(value), self.add(value.upper()))
            assert (
                context.keyed_state.get_list(ListStateDescriptor("names")).get()
                == self.names.get()
            )
            out.collect((context.current_key, self.names.get()))

    driven = drive(Nested(), key=lambda value: value[0])
    driven.send(["a", "b", "c"])
    await driven.end()
    found = {key: sorted(names) for key, names in driven.values}
    assert found == {"a": ["A", "a"], "b": ["B", "b"], "c": ["C", "c"]}


async def test_nothing_of_a_row_that_failed_stays(drive: Any) -> None:
    lists, maps = ListStateDescriptor("list"), MapStateDescriptor("map")
    late = OutputTag("late")

    async def poison(value: Any, context: Any, out: Any) -> None:
        names, seen = (
            context.keyed_state.get_list(lists),
            context.keyed_state.get_map(maps),
        )
        names.add(value)
        seen.put(value, 1)
        out.collect(value)
        context.output(late, value)
        await asyncio.sleep(0.001)
        if value == "a-bad":
            raise ValueError(value)
        out.collect((names.get(), seen.items()))

    driven = drive(poison, on_error=skip)
    driven.send(["a1", "a-bad", "a2"])
    await driven.end()
    assert driven.values == [
        "a1", (["a1"], [("a1", 1)]),
        "a2", (["a1", "a2"], [("a1", 1), ("a2", 1)]),
    ]  # fmt: skip
    assert [record.value for record in driven.output.sides[late]] == ["a1", "a2"]
    assert driven.context.metrics.snapshot()["skipped"] == 1


async def test_a_value_changed_in_place_by_a_row_that_failed_is_as_it_was(
    drive: Any,
) -> None:
    bag = ValueStateDescriptor("bag")

    async def grow(value: Any, context: Any, out: Any) -> None:
        state = context.keyed_state.get_value(bag)
        items = state.value() or []
        items.append(value)
        if value == "a-bad":
            raise ValueError(value)
        state.update(items)
        out.collect(list(items))

    driven = drive(grow, on_error=skip)
    driven.send(["a1", "a-bad", "a2"])
    await driven.end()
    assert driven.values == [["a1"], ["a1", "a2"]]


async def test_a_retry_begins_with_the_state_before_the_row(drive: Any) -> None:
    attempts = []

    async def flaky(value: Any, context: Any, out: Any) -> None:
        seen = context.keyed_state.get_value(SEEN)
        attempts.append(seen.value())
        seen.update(seen.value() + 1)
        out.collect(seen.value())
        await asyncio.sleep(0.001)
        if len(attempts) < 3:
            raise OSError(value)

    driven = drive(flaky, retry=Retry(attempts=3))
    driven.send(["a"])
    await driven.end()
    assert (attempts, driven.values) == ([0, 0, 0], [1])


async def test_a_call_that_timed_out_cannot_change_anything_afterwards(
    drive: Any,
) -> None:
    refused = []

    async def stubborn(value: Any, context: Any, out: Any) -> None:
        seen = context.keyed_state.get_value(SEEN)
        seen.update(seen.value() + 1)
        if value == "a-slow":
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(10)
            seen.update(100)
            out.collect("too late")
            refused.append(value)
        out.collect((value, seen.value()))

    driven = drive(stubborn, timeout=0.1, on_error=skip)
    driven.send(["a-slow", "a2"])
    await driven.end()
    assert refused == ["a-slow"]
    assert driven.values == [("a2", 1)]


async def test_what_a_row_leaves_running_is_told_that_the_row_has_ended(
    drive: Any,
) -> None:
    left: list[asyncio.Task[None]] = []

    async def leak(value: Any, context: Any, out: Any) -> None:
        async def later() -> None:
            await asyncio.sleep(0.01)
            out.collect("leaked")

        left.append(asyncio.create_task(later()))

    driven = drive(leak)
    driven.send(["a"])
    await driven.end()
    with pytest.raises(StateError, match="after the row had ended"):
        await left[0]


async def test_dead_letters_hold_the_row_and_its_attempts(drive: Any) -> None:
    failed = OutputTag("failed")

    async def fails(value: Any, context: Any, out: Any) -> None:
        raise ValueError("no")

    driven = drive(fails, on_error=dead_letter(failed), retry=Retry(attempts=2))
    driven.send(["a"], [7])
    await driven.end()
    (letter,) = driven.output.sides[failed]
    assert (letter.value.record, letter.value.attempts, letter.timestamp) == ("a", 2, 7)


@pytest.mark.parametrize("on_error", [None, skip], ids=["row", "timer"])
async def test_a_row_may_fail_the_task_and_a_timer_always_does(
    drive: Any, gates: Any, on_error: Any
) -> None:
    class Failing(KeyedAsyncProcessFunction):
        async def process_element(self, value: Any, context: Any, out: Any) -> None:
            context.timer_service.register_event_time_timer(5)
            if on_error is None:
                raise ValueError("row")

        async def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
            raise ValueError("timer")

    driven = drive(Failing(), **({} if on_error is None else {"on_error": on_error}))
    driven.send(["a"])
    driven.watermark(10)
    with pytest.raises(UserFunctionError, match="row" if on_error is None else "timer"):
        await driven.runner


class Total:
    def create_accumulator(self) -> list[int]:
        return [0]

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        accumulator[0] += value
        return accumulator

    def get_result(self, accumulator: list[int]) -> int:
        return accumulator[0]

    def merge(self, first: list[int], second: list[int]) -> list[int]:
        return [first[0] + second[0]]


@pytest.mark.parametrize("backend", [HeapStateBackend, RocksDBStateBackend])
async def test_every_kind_of_state_shows_a_row_its_own_changes(
    drive: Any, backend: Any
) -> None:
    async def use(value: Any, context: Any, out: Any) -> None:
        largest = context.keyed_state.get_reducing(ReducingStateDescriptor("max", max))
        total = context.keyed_state.get_aggregating(
            AggregatingStateDescriptor("sum", Total())
        )
        entries = context.keyed_state.get_map(MapStateDescriptor("map"))
        number = value[1]
        largest.add(number)
        total.add(number)
        entries.put(number, None)
        entries.put("gone", 1)
        entries.remove("gone")
        await asyncio.sleep(0)
        if value[0] == "bad":
            raise ValueError(value)
        out.collect((largest.get(), total.get(), entries.keys(), entries.contains(1)))

    subtask = {"state_backend": backend()}
    driven = drive(use, key=lambda value: "k", on_error=skip, subtask=subtask)
    driven.send([("a", 3), ("bad", 9), ("b", 1)])
    await driven.end()
    assert driven.values == [(3, 3, [3], False), (3, 4, [3, 1], True)]


async def test_maps_and_lists_can_be_cleared_and_replaced(drive: Any) -> None:
    async def use(value: Any, context: Any, out: Any) -> None:
        names = context.keyed_state.get_list(ListStateDescriptor("list"))
        entries = context.keyed_state.get_map(MapStateDescriptor("map"))
        before = (names.get(), entries.items(), entries.get("x", 0), entries.is_empty())
        if value == "kb":
            entries.clear()
            names.clear()
            names.add("fresh")
            assert not entries.contains("x")
        else:
            entries.put_all({"x": value, "y": None})
            names.add_all([value])
        out.collect(before)

    driven = drive(use)
    driven.send(["ka", "kb", "kc"])
    await driven.end()
    assert driven.values == [
        ([], [], 0, True),
        (["ka"], [("x", "ka"), ("y", None)], "ka", False),
        (["fresh"], [], 0, True),
    ]


async def test_wrong_uses_are_refused_with_the_reason(drive: Any) -> None:
    async def plain(value: Any, context: Any, out: Any) -> None:
        if value == "timer":
            context.timer_service.register_event_time_timer(1)
        if value == "tag":
            context.output("tag", 1)
        if value == "kind":
            context.keyed_state.get_value(ValueStateDescriptor("one"))
            context.keyed_state.get_list(ListStateDescriptor("one"))
        if value == "ttl":
            ttl = StateTtlConfig(seconds(1))
            context.keyed_state.get_aggregating(
                AggregatingStateDescriptor("sum", Total(), ttl=ttl)
            )

    failed = OutputTag("failed")
    driven = drive(plain, on_error=dead_letter(failed), key=lambda value: value)
    driven.send(["timer", "tag", "kind", "ttl"])
    await driven.end()
    errors = {
        record.value.record: record.value.error
        for record in driven.output.sides[failed]
    }
    assert "no on_timer" in errors["timer"]
    assert "OutputTag" in errors["tag"]
    assert "'one' is value state" in errors["kind"]
    assert "time to live" in errors["ttl"]


async def test_state_objects_of_open_cannot_be_used_outside_of_rows(
    drive: Any,
) -> None:
    class Early(KeyedAsyncProcessFunction):
        def open(self, context: Any) -> None:
            context.keyed_state.get_value(SEEN).value()

        async def process_element(self, value: Any, context: Any, out: Any) -> None:
            """Do nothing."""

    driven = drive(Early())
    with pytest.raises(UserFunctionError, match="while no row is processed"):
        await driven.runner


def test_wrong_arguments_are_refused_when_they_are_written() -> None:
    async def plain(value: Any, context: Any, out: Any) -> None: ...

    def not_async(value: Any, context: Any, out: Any) -> None: ...

    async def generator(value: Any, context: Any, out: Any) -> Any:
        yield value

    for wrong in (not_async, generator, KeyedAsyncProcessFunction, lambda value: value):
        with pytest.raises(WrongTypeError, match="function"):
            KeyedAsyncProcessOperator("key", wrong)
    with pytest.raises(InvalidArgumentError, match="retry_if"):
        retry = Retry(retry_if=lambda result: True)
        KeyedAsyncProcessOperator("key", plain, retry=retry)
    with pytest.raises(InvalidArgumentError, match="capacity"):
        KeyedAsyncProcessOperator("key", plain, concurrency=5, capacity=2)


async def async_identity(value: Any, context: Any, out: Any) -> None:
    out.collect(value)


def test_the_factory_can_be_pickled() -> None:
    factory = partial(KeyedAsyncProcessOperator, "key", async_identity, concurrency=2)
    assert pickle.loads(pickle.dumps(factory))().concurrency == 2


async def test_open_enters_a_context_manager_once_and_leaves_it_after_the_calls(
    drive: Any, gates: Any
) -> None:
    events: list[str] = []

    class WithClient(KeyedAsyncProcessFunction):
        @contextlib.asynccontextmanager
        async def open(self, context: Any) -> Any:
            events.append("opened")
            yield "client"
            events.append("left")

        async def process_element(self, value: Any, context: Any, out: Any) -> None:
            try:
                await gates.wait(value)
            finally:
                events.append(f"ended with {context.resource}")

    driven = drive(WithClient())
    driven.send(["a"])
    await tick()
    await driven.close()
    assert gates.cancelled == ["a"]
    assert events == ["opened", "ended with client", "left"]


async def test_what_is_committed_together_is_emitted_together(
    drive: Any, gates: Any
) -> None:
    driven = drive(Counting(gates))
    emit = driven.output.emit_run

    def emit_and_be_full(run: Any) -> Any:
        driven.output.availability.reset()
        return emit(run)

    driven.output.emit_run = emit_and_be_full
    driven.send(["a", "b", "c1", "c2"])
    await tick()
    await asyncio.gather(*(gates.finish(value) for value in ("a", "b", "c1")))
    assert sorted(driven.values) == ["a=1", "b=1", "c1=1"]
    snapshot = driven.operator.snapshot()
    ((rows, _),) = snapshot.own.elements("in-flight")
    assert rows == [("row", "c2", None, MIN_TIMESTAMP, 0)]
    await gates.finish("c2")
    assert len(driven.values) == 3
    assert driven.operator.snapshot() == snapshot
    driven.output.availability.set_available()
    await tick()
    assert driven.values[-1] == "c2=2"
    assert driven.operator.snapshot().own == OperatorStateSnapshot()


async def test_a_restored_row_has_as_many_attempts_as_were_left(drive: Any) -> None:
    tried: list[str] = []

    async def fail(value: str, _context: Any, _out: Any) -> None:
        tried.append(value)
        await asyncio.sleep(1)
        message = "not now"
        raise ValueError(message)

    retry = Retry(attempts=3, initial=1.0, multiplier=1.0, jitter=0)
    driven = drive(fail, retry=retry, on_error=skip)
    driven.send(["a"])
    # The second attempt is being made, and counts only when it has ended.
    await asyncio.sleep(2.5)
    assert tried == ["a", "a"]
    snapshot = driven.operator.snapshot()
    await driven.close()
    del tried[:]
    again = drive(fail, retry=retry, on_error=skip, state=snapshot)
    await asyncio.sleep(60)
    assert tried == ["a", "a"]
    assert again.operator.snapshot().own == OperatorStateSnapshot()
