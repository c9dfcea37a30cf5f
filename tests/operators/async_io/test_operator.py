"""Laws of map_async: order, watermarks, bounds, snapshots, life."""

from __future__ import annotations

import asyncio
import gc
import random
from typing import Any

import pytest

from aiomailbox.errors import (
    IllegalStateError,
    InvalidArgumentError,
    UserFunctionError,
    WrongTypeError,
)
from aiomailbox.keygroups.assignment import KeyGroupAssigner
from aiomailbox.operators.async_io.operator import AsyncMapOperator
from aiomailbox.operators.async_io.segment import RowSegment
from aiomailbox.operators.async_io.settings import current_call
from aiomailbox.operators.core.user_code import dead_letter, skip
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.policies.batch import Batch
from aiomailbox.policies.cache import Cache
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.policies.retry import Retry
from aiomailbox.records.events import (
    MIN_TIMESTAMP,
    OutputTag,
    StreamRecord,
    WatermarkStatus,
)
from aiomailbox.records.run import RUN_LENGTH_MAX, ListRun
from aiomailbox.state.operator_state import OperatorStateSnapshot

FAILED = OutputTag("failed")


async def tick() -> None:
    await asyncio.sleep(0.001)


async def double(value: int) -> int:
    await asyncio.sleep(0.01)
    return 2 * value


async def test_ordered_results_wait_for_those_before_them(
    drive: Any, gates: Any
) -> None:
    """SEM-110."""
    driven = await drive(gates)
    driven.send("ab")
    await tick()
    await gates.finish("b")
    assert driven.values == []
    await gates.finish("a")
    assert driven.values == ["a", "b"]


async def test_unordered_results_come_as_they_are_done_but_not_across_a_watermark(
    drive: Any, gates: Any
) -> None:
    """SEM-111."""
    driven = await drive(gates, ordered=False)
    driven.send("ab")
    driven.watermark(10)
    driven.send("c")
    await tick()
    await gates.finish("c")
    assert driven.shown == []
    await gates.finish("b")
    assert driven.shown == ["b"]
    await gates.finish("a")
    assert driven.shown == ["b", "a", "wm 10", "c"]


async def test_by_key_rows_of_a_key_follow_each_other_and_keys_run_at_once(
    drive: Any, gates: Any
) -> None:
    driven = await drive(gates, ordered="key", key=lambda value: value[0])
    driven.send(["a1", "a2", "b1"])
    await tick()
    assert gates.called == ["a1", "b1"]
    # What waits for its key has a place of its own.
    assert driven.metrics["waiting_for_key"] == 1
    assert driven.operator.room == driven.metrics["buffer_max"] - 2
    await gates.finish("b1")
    assert driven.values == ["b1"]
    await gates.finish("a1")
    assert gates.called == ["a1", "b1", "a2"]
    await gates.finish("a2")
    assert driven.values == ["b1", "a1", "a2"]


async def test_an_operator_has_settled_when_each_row_that_it_took_is_emitted(
    drive: Any, gates: Any
) -> None:
    settled: list[list[Any]] = []

    async def settle(_: Any) -> None:
        await driven.operator.settle()
        settled.append(driven.values)

    driven = await drive(gates)
    driven.send("ab")
    driven._give(settle)
    await tick()
    await gates.finish("b")
    assert settled == []
    await gates.finish("a")
    assert settled == [["a", "b"]]


async def test_by_key_a_watermark_waits_for_all_rows_before_it_and_holds_no_row(
    drive: Any, gates: Any
) -> None:
    driven = await drive(gates, ordered="key", key=lambda value: value[0])
    driven.send(["a1", "b1"])
    driven.watermark(10)
    driven.send(["b2"])
    driven.watermark(20)
    driven.send(["c1"])
    await tick()
    for value in ["b1", "b2", "c1"]:
        await gates.finish(value)
    assert driven.shown == ["b1", "b2", "c1"]
    driven.watermark(30)
    await tick()
    await gates.finish("a1")
    # 10 and 20 have no row between them any more: what stays is the last of them.
    assert driven.shown == ["b1", "b2", "c1", "a1", "wm 30"]


@pytest.mark.parametrize("ordered", [True, False])
async def test_watermarks_without_a_row_between_them_are_all_passed_on(
    drive: Any, gates: Any, ordered: bool
) -> None:
    driven = await drive(gates, ordered=ordered)
    driven.send("a")
    for timestamp in (10, 20, 30):
        driven.watermark(timestamp)
    await tick()
    assert driven.metrics["buffered"] == 4
    await gates.finish("a")
    assert driven.shown == ["a", "wm 10", "wm 20", "wm 30"]
    assert driven.metrics["buffered"] == 0


async def test_by_key_a_watermark_waits_for_the_last_of_the_rows_between_it_and_another(
    drive: Any, gates: Any
) -> None:
    driven = await drive(gates, ordered="key", key=lambda value: value)
    driven.send("a")
    driven.watermark(10)
    driven.send("bc")
    driven.watermark(20)
    driven.send("d")
    await tick()
    await gates.finish("b")
    await gates.finish("a")
    assert driven.shown == ["b", "a", "wm 10"]
    await gates.finish("c")
    assert driven.shown == ["b", "a", "wm 10", "c", "wm 20"]


@pytest.mark.parametrize("ordered", [False, "key"])
async def test_of_watermarks_that_were_passed_on_nothing_is_kept(
    drive: Any, ordered: Any
) -> None:
    """A stream has as many as it has time."""

    def kept() -> int:
        return sum(isinstance(one, RowSegment) for one in gc.get_objects())

    key = (lambda value: value) if ordered == "key" else None
    driven = await drive(double, ordered=ordered, key=key)
    before = kept()
    for value in range(50):
        driven.send([value])
        driven.watermark(value)
        await asyncio.sleep(0.1)
    assert driven.shown[-1] == "wm 49"
    # What a coroutine has called last has not left it.
    assert kept() <= before + 10


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_watermark_at_an_empty_queue_is_passed_on_at_once(
    drive: Any, gates: Any, ordered: bool
) -> None:
    driven = await drive(gates, ordered=ordered)
    assert driven.operator.process_watermark(5) is None
    assert driven.shown == ["wm 5"]


async def test_status_and_watermark_keep_their_places(drive: Any, gates: Any) -> None:
    driven = await drive(gates)
    driven.send("a")
    driven.watermark(1)
    driven._give(lambda _: driven.operator.process_status(WatermarkStatus.IDLE))
    await tick()
    assert driven.shown == []
    await gates.finish("a")
    assert driven.shown == ["a", "wm 1", WatermarkStatus.IDLE]


async def test_timestamps_stay_with_their_records(drive: Any) -> None:
    driven = await drive(double)
    driven.send([1, 2], [10, 20])
    driven.send([3])
    await driven.finish()
    assert driven.output.elements == [
        StreamRecord(2, 10),
        StreamRecord(4, 20),
        StreamRecord(6, None),
    ]
    # As runs say it, also that none of them has one.
    assert [run.timestamps for run in driven.output.runs] == [[10, 20, MIN_TIMESTAMP]]
    driven = await drive(double)
    driven.send([1, 2])
    await driven.finish()
    assert [run.timestamps for run in driven.output.runs] == [None]


async def test_no_more_calls_run_than_the_concurrency_and_no_more_rows_are_held(
    drive: Any,
) -> None:
    running = peak = 0

    async def call(value: int) -> int:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(random.Random(value).random())
        running -= 1
        return value

    driven = await drive(call, concurrency=5, capacity=8)
    driven.send(range(200))
    held = []
    for _ in range(100):
        await asyncio.sleep(0.05)
        held.append(driven.metrics["buffered"])
    assert peak == 5
    assert max(held) == 8
    assert await driven.finish() == list(range(200))


async def test_a_place_is_free_when_its_row_was_emitted_not_when_it_was_done(
    drive: Any, gates: Any
) -> None:
    """SEM-112, without a watermark."""
    driven = await drive(gates, concurrency=2, capacity=2)
    driven.send("abc")
    await tick()
    await gates.finish("b")
    assert gates.called == ["a", "b"]
    await gates.finish("a")
    assert gates.called == ["a", "b", "c"]


async def test_a_full_operator_takes_rows_in_groups_while_enough_wait_for_a_slot(
    drive: Any, gates: Any
) -> None:
    driven = await drive(gates, concurrency=2, capacity=8)
    driven.send(range(20))
    await tick()
    await gates.finish(0)
    assert driven.metrics["buffered"] == 7
    await gates.finish(1)
    assert driven.metrics["buffered"] == 8


async def test_a_full_operator_takes_rows_when_half_of_those_beyond_its_calls_are_gone(
    drive: Any, gates: Any
) -> None:
    driven = await drive(gates, concurrency=4, capacity=8)
    driven.send(range(20))
    await tick()
    await gates.finish(0)
    assert driven.metrics["buffered"] == 7
    await gates.finish(1)
    assert driven.metrics["buffered"] == 8


async def test_a_full_operator_takes_as_many_rows_at_once_as_its_calls_have(
    drive: Any, gates: Any
) -> None:
    async def call(values: list[int]) -> list[int]:
        await gates(values[0])
        return values

    batch = Batch(2, within=100)
    driven = await drive(call, concurrency=4, capacity=32, batch=batch)
    driven.send(range(100))
    await tick()
    for first, held in ((0, 30), (2, 28), (4, 26), (6, 32)):
        await gates.finish(first)
        assert driven.metrics["buffered"] == held


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_slot_without_a_row_gets_one_where_a_single_place_is_free(
    drive: Any, gates: Any, ordered: bool
) -> None:
    driven = await drive(gates, concurrency=2, capacity=8, ordered=ordered)
    driven.send(range(20))
    await tick()
    # The second one is not done for long: behind it no place becomes free, in order.
    for done in (0, 2, 3, 4, 5, 6, 7):
        await gates.finish(done)
    assert 8 in gates.called


async def test_a_watermark_takes_a_place(drive: Any, gates: Any) -> None:
    """SEM-112."""
    driven = await drive(gates, concurrency=2, capacity=2)
    driven.send("a")
    driven.watermark(1)
    driven.send("b")
    await tick()
    assert gates.called == ["a"]
    await gates.finish("a")
    assert gates.called == ["a", "b"]


async def test_by_key_a_watermark_takes_no_place(drive: Any, gates: Any) -> None:
    bounds = {"concurrency": 2, "capacity": 2}
    driven = await drive(gates, ordered="key", key=lambda value: value, **bounds)
    driven.send("ab")
    await tick()
    assert driven.operator.process_watermark(1) is None
    assert driven.metrics["buffered"] == 2
    await gates.finish("a")
    await gates.finish("b")
    assert driven.shown == ["a", "b", "wm 1"]


async def test_a_watermark_waits_for_a_place(drive: Any, gates: Any) -> None:
    driven = await drive(gates, concurrency=2, capacity=2)
    driven.send("ab")
    driven.watermark(1)
    await tick()
    assert driven.metrics["buffered"] == 2
    await gates.finish("a")
    assert driven.metrics["buffered"] == 2
    await gates.finish("b")
    assert driven.shown == ["a", "b", "wm 1"]


@pytest.mark.parametrize("ordered", [True, False])
async def test_one_mail_emits_all_results_that_are_there(
    drive: Any, ordered: bool
) -> None:
    driven = await drive(double, concurrency=100, ordered=ordered)
    driven.send(range(100))
    await asyncio.sleep(1)
    assert driven.processor.metrics.mails_processed == 1
    assert [len(run) for run in driven.output.runs] == [100]


@pytest.mark.parametrize("awaits", [True, False])
@pytest.mark.parametrize("ordered", [True, False])
async def test_more_results_than_a_run_may_have_are_several_runs(
    drive: Any, ordered: bool, awaits: bool
) -> None:
    places = 2 * RUN_LENGTH_MAX + 10
    driven = await drive(double, concurrency=places, capacity=places, ordered=ordered)
    emit = driven.output.emit_run

    async def emit_later(run: Any) -> None:
        await asyncio.sleep(0.001)
        emit(run)

    if awaits:
        driven.output.emit_run = emit_later
    driven.send(range(places))
    await asyncio.sleep(1)
    runs = driven.output.runs
    assert [len(run) for run in runs] == [RUN_LENGTH_MAX, RUN_LENGTH_MAX, 10]
    assert sorted(driven.values) == [2 * value for value in range(places)]


@pytest.mark.parametrize("ordered", [True, False])
async def test_whenever_the_output_has_no_room_results_wait_and_the_input_stops(
    drive: Any, ordered: bool
) -> None:
    async def call(value: int) -> int:
        await asyncio.sleep(0.01 * (1 + value % 4))
        return 2 * value

    driven = await drive(call, concurrency=4, capacity=4, ordered=ordered)
    for start in (0, 20):
        driven.output.availability.reset()
        driven.send(range(start, start + 20))
        await asyncio.sleep(1)
        assert len(driven.values) == start
        # It waits for room once, however many calls end meanwhile.
        assert len(driven.output.availability._callbacks) == 1
        assert driven.metrics["buffered"] == 4
        driven.output.availability.set_available()
        await asyncio.sleep(1)
    results = await driven.finish()
    assert sorted(results) == [2 * value for value in range(40)]
    assert results == sorted(results) or not ordered


async def test_cancelled_while_the_output_is_full_nothing_hangs_and_no_task_is_left(
    drive: Any,
) -> None:
    driven = await drive(double, concurrency=2, capacity=2)
    driven.output.availability.reset()
    driven.send(range(20))
    await asyncio.sleep(1)
    assert len(driven.values) < 20
    await driven.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("ordered", [True, False, "key"])
async def test_a_snapshot_holds_every_row_not_emitted_and_a_new_instance_goes_on(
    drive: Any, gates: Any, ordered: Any
) -> None:
    """SEM-106, SEM-117."""
    key = (lambda value: value % 2) if ordered == "key" else None
    driven = await drive(gates, ordered=ordered, key=key, concurrency=3)
    driven.send([1, 2, 3, 4], [1, 2, 3, 4])
    await tick()
    # 2 is done: in an ordered stream it has not been emitted.
    await gates.finish(2)
    state = driven.operator.snapshot()
    before = driven.values
    rows = state.own.elements("held-records")
    assert [value for value, _ in rows] == [v for v in [1, 2, 3, 4] if v not in before]
    await driven.close()
    again = await drive(double, state=state, ordered=ordered, key=key, concurrency=3)
    again.send([5, 6, 7, 8], [5, 6, 7, 8])
    values = await again.finish()
    assert sorted([*values, *(2 * value for value in before)]) == list(range(2, 17, 2))
    if ordered is True:
        assert again.output.elements == [StreamRecord(2 * i, i) for i in range(1, 9)]


async def test_rows_that_are_held_go_to_the_subtask_of_their_key_and_to_no_other(
    drive: Any, gates: Any
) -> None:
    key = {"partition_key": lambda value: value}
    driven = await drive(gates, **key)
    driven.send(range(20))
    await tick()
    state = driven.operator.snapshot()
    parts = []
    for index in range(2):
        place = {"parallelism": 2, "subtask_index": index}
        driven = await drive(double, state=state, context=place, **key)
        values = await driven.finish()
        group = KeyGroupAssigner(1, driven.context.max_parallelism).key_group_of
        mine = driven.context.key_group_range.key_groups
        assert all(group(value // 2) in mine for value in values)
        parts.append(values)
    assert all(parts)
    assert sorted(parts[0] + parts[1]) == [2 * value for value in range(20)]


@pytest.mark.parametrize("ordered", [True, False, "key"])
async def test_watermarks_that_are_held_keep_their_places_in_a_new_instance(
    drive: Any, gates: Any, ordered: Any
) -> None:
    key = (lambda value: value) if ordered == "key" else None
    driven = await drive(gates, ordered=ordered, key=key)
    driven.send([1])
    driven.watermark(10)
    driven.send([2])
    driven.watermark(20)
    await tick()
    state = driven.operator.snapshot()
    await driven.close()
    again = await drive(double, state=state, ordered=ordered, key=key)
    await again.finish()
    if ordered == "key":
        # A row does not wait for the watermark before it, nor is that one told alone.
        assert again.shown[-1] == "wm 20"
        assert sorted(again.values) == [2, 4]
    else:
        assert again.shown == [2, "wm 10", 4, "wm 20"]


async def test_a_watermark_waits_in_a_new_instance_only_for_rows_that_went_there(
    drive: Any, gates: Any
) -> None:
    key = {"partition_key": lambda value: value}
    driven = await drive(gates, **key)
    driven.send([1])
    driven.watermark(10)
    driven.send([2])
    await tick()
    state = driven.operator.snapshot()
    await driven.close()
    shown = []
    for index in range(8):
        place = {"parallelism": 8, "subtask_index": index}
        driven = await drive(double, state=state, context=place, **key)
        began = list(driven.shown)
        await driven.finish()
        shown.append(driven.shown)
        # Before the first row there is nothing to wait for.
        assert began == ([] if 2 in driven.values else ["wm 10"])
    assert shown.count(["wm 10"]) == 6
    assert sorted(map(str, shown))[:2] == ["['wm 10', 4]", "['wm 10']"]
    assert [2, "wm 10"] in shown


async def test_more_restored_rows_than_places_do_not_deadlock(drive: Any) -> None:
    """SEM-118, MB-132."""
    rows = [(value, value) for value in range(3)]
    own = OperatorStateSnapshot().with_list("held-records", rows)
    state = OperatorSnapshot(own=own)
    driven = await drive(double, state=state, concurrency=2, capacity=2)
    assert driven.operator.snapshot() == state
    driven.send([3])
    assert await driven.finish() == [0, 2, 4, 6]


async def test_a_failed_row_is_in_the_snapshot_until_the_task_has_failed(
    drive: Any, gates: Any
) -> None:
    driven = await drive(gates)
    driven.send("abc")
    await tick()
    # The mail that emits "a" is on its way when "b" fails.
    gates._open["a"].set_result("a")
    gates._open["b"].set_exception(ValueError("broken"))
    with pytest.raises(UserFunctionError):
        await driven.runner
    assert driven.values == ["a"]
    held = driven.operator.snapshot().own.elements("held-records")
    assert held == [("b", None), ("c", None)]


async def test_closing_cancels_calls_and_waits_for_their_clean_up(drive: Any) -> None:
    cleaned = []

    async def call(value: int) -> int:
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0.5)
            cleaned.append(value)

    driven = await drive(call)
    driven.send([1, 2])
    await tick()
    await driven.close()
    assert sorted(cleaned) == [1, 2]


@pytest.mark.parametrize("fails", [True, False])
async def test_no_call_is_begun_by_an_operator_that_closes(
    drive: Any, fails: bool
) -> None:
    """Neither the next one, nor one again that fails when it is cancelled."""
    called: list[int] = []

    async def stubborn(value: int) -> int:
        called.append(value)
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            if fails:
                raise ValueError(value) from None
        return value

    retry = Retry(attempts=3, initial=0.1)
    driven = await drive(stubborn, concurrency=1, retry=retry)
    driven.send([1, 2])
    await asyncio.sleep(0.1)
    await driven.close()
    await asyncio.sleep(60)
    assert called == [1]


async def test_what_would_come_after_the_end_of_a_call_does_not_come_after_closing(
    drive: Any,
) -> None:
    """Neither deadlines nor the next attempts: their timers go with the calls."""

    async def call(value: int) -> int:
        if value == 2:
            raise ValueError(value)
        return await asyncio.get_running_loop().create_future()

    retry = Retry(attempts=3, initial=10)
    driven = await drive(call, retry=retry, deadline=30)
    driven.send([1, 2])
    await asyncio.sleep(1)
    await driven.close()
    await asyncio.sleep(60)
    assert (driven.metrics["calls"], driven.metrics["retries"]) == (2, 0)
    assert driven.metrics["timeouts"] == 0


async def test_a_call_is_made_once_if_two_workers_are_free_for_it_at_one_moment(
    drive: Any, gates: Any
) -> None:
    """One has just ended its call, and the other one is woken for nothing."""
    driven = await drive(gates, concurrency=2)
    driven.send("ab")
    await tick()
    await gates.finish("b")
    gates._open["a"].set_result("a")
    driven.operator.process_run(ListRun(["c"]))
    await tick()
    assert gates.called == ["a", "b", "c"]
    assert not any(task.done() for task in driven.context.tasks)
    # Both are there for more.
    driven.send("de")
    await tick()
    assert gates.called == ["a", "b", "c", "d"]
    for value in "cde":
        await gates.finish(value)
    assert await driven.finish() == list("abcde")


async def test_concurrency_is_divided_over_the_subtasks(drive: Any, gates: Any) -> None:
    slots = []
    for index in range(3):
        driven = await drive(
            gates,
            concurrency=7,
            context={"parallelism": 3, "subtask_index": index},
        )
        driven.send([f"{index}/{row}" for row in range(5)])
        await tick()
        slots.append(driven.metrics["in_flight"])
    assert slots == [3, 2, 2]


async def test_chained_async_operators_keep_order_and_timestamps(
    chain: Any,
) -> None:
    first, second = await chain(
        [
            {"function": double, "concurrency": 3, "capacity": 3},
            {"function": double, "concurrency": 2, "capacity": 2},
        ]
    )
    for start in range(0, 200, 50):
        values = list(range(start, start + 50))
        first.send(values, values)
        first.watermark(start)
    await first.finish()
    records = [e for e in second.output.elements if isinstance(e, StreamRecord)]
    assert records == [StreamRecord(4 * value, value) for value in range(200)]
    assert [e for e in second.shown if isinstance(e, str)] == [
        f"wm {start}" for start in range(0, 200, 50)
    ]


async def test_closing_chained_operators_of_which_the_last_is_full_does_not_hang(
    chain: Any, gates: Any
) -> None:
    """MB-131."""
    first, _ = await chain(
        [
            {"function": double, "concurrency": 3, "capacity": 3},
            {"function": gates, "concurrency": 1, "capacity": 1},
        ]
    )
    first.send(range(20))
    await asyncio.sleep(1)
    assert gates.called == [0]
    await first.close()


class Client:
    """A function with resources."""

    log: list[str] = []

    def __init__(self) -> None:
        self.log.append("made")

    async def open(self, context: Any) -> None:
        self.log.append(f"open in {context.operator_name}")

    async def close(self) -> None:
        self.log.append("closed")

    async def __call__(self, value: int) -> int:
        return value + 1


async def test_a_class_is_made_opened_and_closed_once_a_subtask(drive: Any) -> None:
    Client.log = []
    driven = await drive(Client)
    driven.send([1])
    assert await driven.finish() == [2]
    await driven.close()
    await driven.close()
    assert Client.log == ["made", "open in enrich", "closed"]


async def test_an_attribute_named_as_a_method_may_be_data(drive: Any) -> None:
    class Price:
        open, close = 100, 101

        async def __call__(self, value: int) -> int:
            return self.close - self.open + value

    driven = await drive(Price())
    driven.send([1])
    assert await driven.finish() == [2]
    await driven.close()


async def test_an_asynchronous_context_manager_is_entered_and_left(drive: Any) -> None:
    log = []

    class Session:
        async def __aenter__(self) -> Session:
            log.append("entered")
            return self

        async def __aexit__(self, *_: object) -> None:
            log.append("left")

        async def __call__(self, value: int) -> int:
            return value

    driven = await drive(Session())
    driven.send([1])
    assert await driven.finish() == [1]
    await driven.close()
    assert log == ["entered", "left"]


async def test_what_a_context_manager_enters_is_called_if_it_can_be(drive: Any) -> None:
    class Session:
        def __init__(self, entered: Any) -> None:
            self.entered = entered

        async def __aenter__(self) -> Any:
            return self.entered

        async def __aexit__(self, *_: object) -> None:
            pass

        async def __call__(self, value: int) -> int:
            return value

    for entered, result in ((double, 2), (None, 1)):
        driven = await drive(Session(entered))
        driven.send([1])
        assert await driven.finish() == [result]


async def test_what_could_not_be_opened_is_closed(drive: Any) -> None:
    class Broken:
        closed = 0

        async def open(self, context: Any) -> None:
            raise OSError("no such server")

        async def close(self) -> None:
            self.closed += 1

        async def __call__(self, value: int) -> int:
            return value

    function = Broken()
    driven = await drive(function)
    with pytest.raises(UserFunctionError, match="no such server"):
        await driven.runner
    await driven.close()
    assert function.closed == 1


async def test_a_function_that_returns_an_awaitable_will_do(drive: Any) -> None:
    driven = await drive(lambda value: double(value))
    driven.send([1])
    assert await driven.finish() == [2]


async def test_batches_are_full_or_as_old_as_allowed(drive: Any) -> None:
    calls = []

    async def call(values: list[int]) -> list[int]:
        calls.append((asyncio.get_running_loop().time(), values))
        return [value * 2 for value in values]

    driven = await drive(call, batch=Batch(3, within=0.5))
    driven.send(range(5))
    await asyncio.sleep(1)
    assert [values for _, values in calls] == [[0, 1, 2], [3, 4]]
    assert calls[1][0] - calls[0][0] == pytest.approx(0.5, abs=0.01)
    assert await driven.finish() == [0, 2, 4, 6, 8]


async def test_the_age_of_a_batch_is_that_of_its_first_row(drive: Any) -> None:
    calls = []

    async def call(values: list[str]) -> list[str]:
        calls.append((asyncio.get_running_loop().time() - start_s, values))
        return values

    driven = await drive(call, batch=Batch(3, within=1))
    start_s = asyncio.get_running_loop().time()
    # Neither that of a later row, nor of one of an earlier batch, full or not.
    for pause_s, values in ((0.8, "a"), (0.6, "b"), (0.2, "cde"), (0.3, "f"), (9, "")):
        driven.send(values)
        await asyncio.sleep(pause_s)
    assert calls == [
        (pytest.approx(1.0, abs=0.01), ["a", "b"]),
        (pytest.approx(1.4, abs=0.01), ["c", "d", "e"]),
        (pytest.approx(2.6, abs=0.01), ["f"]),
    ]


async def test_no_batch_is_called_after_closing(drive: Any) -> None:
    async def call(values: list[int]) -> list[int]:
        return values

    driven = await drive(call, batch=Batch(3, within=1))
    driven.send([1])
    await tick()
    await driven.close()
    await asyncio.sleep(60)
    assert driven.metrics["waiting_for_slot"] == 0
    assert driven.metrics["calls"] == 0


async def test_the_end_of_input_does_not_wait_for_a_fuller_batch(drive: Any) -> None:
    async def call(values: list[int]) -> list[int]:
        return values

    driven = await drive(call, batch=Batch(10, within=1000))
    driven.send(range(5))
    assert await driven.finish() == [0, 1, 2, 3, 4]
    assert asyncio.get_running_loop().time() < 1


async def test_equal_rows_share_a_call_and_later_ones_its_result(
    drive: Any, gates: Any
) -> None:
    driven = await drive(gates, cache=Cache(str.lower, size=10, ttl=5))
    driven.send(["a", "A", "b"])
    await tick()
    assert gates.called == ["a", "b"]
    await gates.finish("a", "result")
    assert driven.values == ["result", "result"]
    await gates.finish("b")
    driven.send(["A"])
    await tick()
    assert driven.values == ["result", "result", "b", "result"]
    assert driven.metrics["cache_hits"] == 2
    await asyncio.sleep(5)
    driven.send(["A"])
    await tick()
    assert gates.called == ["a", "b", "A"]


async def test_thousands_of_cached_rows_of_one_key_do_not_recurse(drive: Any) -> None:
    driven = await drive(
        double, ordered="key", key=lambda _: 0, cache=Cache(lambda _: 0)
    )
    driven.send([1] * 4000)
    assert await driven.finish() == [2] * 4000
    assert driven.metrics["calls"] == 1


async def test_by_key_so_many_rows_wait_behind_their_key_and_others_have_their_places(
    drive: Any, gates: Any
) -> None:
    """A row of a key that cannot be read has to have a place, too."""

    def key(value: str) -> str:
        if value == "bad":
            raise ValueError(value)
        return value[0]

    bounds = {"concurrency": 2, "capacity": 2, "key_capacity": 3}
    driven = await drive(gates, ordered="key", key=key, on_error=skip, **bounds)
    driven.send(["a1", "a2", "a3", "a4", "a5", "b1", "bad", "c1"])
    await tick()
    names = ("buffered", "waiting_for_key")
    assert [driven.metrics[name] for name in names] == [4, 3]
    assert gates.called == ["a1"]
    # The fifth row of the key has a place now, and those behind it.
    await gates.finish("a1")
    assert [driven.metrics[name] for name in names] == [5, 3]
    assert gates.called == ["a1", "a2", "b1"]
    assert "skipped" not in driven.metrics
    await gates.finish("b1")
    assert gates.called == ["a1", "a2", "b1", "c1"]
    assert driven.metrics["skipped"] == 1
    for value in ("c1", "a2", "a3", "a4", "a5"):
        await gates.finish(value)
    assert await driven.finish() == ["a1", "b1", "c1", "a2", "a3", "a4", "a5"]
    assert [driven.metrics[name] for name in names] == [0, 0]


async def test_order_by_key_cache_batches_and_ids_go_together(drive: Any) -> None:
    calls: list[list[str]] = []
    attempts: list[int] = []

    async def call(values: list[str]) -> list[Any]:
        calls.append(values)
        attempts.append(current_call().attempt)
        await asyncio.sleep(1)
        return [ValueError(one) if one == "c1" else one.upper() for one in values]

    driven = await drive(
        call,
        ordered="key",
        key=lambda value: value[0],
        cache=Cache(lambda value: value),
        batch=Batch(2, within=0.1),
        id=lambda value: value,
        on_error=dead_letter(FAILED),
    )
    driven.send(["a1", "b1", "b1", "a1", "c1", "c2", "a2"])
    results = await driven.finish()
    assert sorted(results) == ["A1", "A1", "A2", "B1", "B1", "C2"]
    assert results.index("A2") > 1
    assert calls == [["a1", "b1"], ["c1"], ["a2", "c2"]]
    assert attempts == [1, 1, 1]
    letters = [record.value for record in driven.output.sides[FAILED]]
    assert [(one.record, one.attempts) for one in letters] == [("c1", 1)]


async def test_a_call_of_a_record_without_an_id_has_no_key(drive: Any) -> None:
    async def call(value: int) -> Any:
        with pytest.raises(IllegalStateError, match="has id="):
            current_call()
        return value

    driven = await drive(call)
    driven.send([1])
    assert await driven.finish() == [1]


async def test_one_key_blocked_for_ever_leaves_the_others_their_throughput(
    drive: Any,
) -> None:
    rows, keys, concurrency = 8_000, 100, 32
    rng = random.Random(3)

    async def run(blocked: int | None) -> float:
        held = 0

        async def call(value: tuple[int, int]) -> tuple[int, int]:
            if value[0] == blocked:
                await asyncio.get_running_loop().create_future()
            await asyncio.sleep(0.005)
            return value

        loop = asyncio.get_running_loop()
        driven = await drive(
            call, concurrency=concurrency, ordered="key", key=lambda value: value[0]
        )
        start = loop.time()
        values = [(rng.randrange(keys), row) for row in range(rows)]
        others = [value for value in values if value[0] != blocked]
        for index in range(0, rows, 500):
            driven.send(values[index : index + 500])
            driven.watermark(index)
        while len(driven.values) < len(others):
            await asyncio.sleep(0.05)
            held = max(held, driven.metrics["buffered"])
        for key in range(keys):
            if key != blocked:
                mine = [row for k, row in driven.values if k == key]
                assert mine == sorted(mine)
        assert held <= 4 * concurrency + 4096
        elapsed = loop.time() - start
        await driven.close()
        return len(others) / elapsed

    free = await run(None)
    assert await run(7) >= 0.95 * free


@pytest.mark.parametrize(
    ("wrong", "parameter"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": 2.0}, "concurrency"),
        ({"concurrency": 4, "capacity": 3}, "capacity"),
        ({"ordered": "keys"}, "ordered"),
        ({"ordered": "key"}, "key"),
        ({"ordered": True, "key": "id"}, "key"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": 100_000}, "timeout"),
        ({"deadline": -1}, "deadline"),
        ({"retry": 3}, "retry"),
        ({"limit": 100}, "limit"),
        ({"weight": 2}, "weight"),
        ({"weight": 20, "limit": RateLimit(10)}, "weight"),
        ({"weight": double, "limit": RateLimit(10)}, "weight"),
        ({"batch": 10}, "batch"),
        ({"cache": 10}, "cache"),
        ({"on_error": "skip"}, "on_error"),
        ({"function": 5}, "function"),
        ({"function": lambda: None}, "function"),
        ({"function": object}, "function"),
        ({"key_capacity": 0}, "key_capacity"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(
    wrong: dict[str, Any], parameter: str
) -> None:
    arguments = {"function": double, "concurrency": 10, **wrong}
    with pytest.raises((InvalidArgumentError, WrongTypeError), match=parameter):
        AsyncMapOperator(arguments.pop("function"), **arguments)


def test_an_asynchronous_generator_is_refused() -> None:
    async def generate(value: int) -> Any:
        yield value

    with pytest.raises(WrongTypeError, match="function"):
        AsyncMapOperator(generate, concurrency=1)


async def test_an_operator_restored_into_an_open_one_behind_it_loses_nothing(
    chain: Any,
) -> None:
    """SEM-109: 2x, then + 1, then 2x in any order, replayed when both are open."""

    async def doubled_and_one(value: int) -> int:
        return await double(value) + 1

    first, second = await chain(
        [
            {"function": doubled_and_one, "concurrency": 2},
            {"function": double, "concurrency": 2, "ordered": False},
        ],
        OperatorSnapshot(
            own=OperatorStateSnapshot().with_list(
                "held-records", [(value, value) for value in range(5, 10)]
            )
        ),
    )
    await first.finish()
    records = [e for e in second.output.elements if isinstance(e, StreamRecord)]
    assert sorted(records, key=lambda record: record.value) == [
        StreamRecord(2 * (2 * value + 1), value) for value in range(5, 10)
    ]
