"""A function that blocks is called in a thread, for many records on one way there."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.errors import UserFunctionError
from aiomailbox.operators.core.user_code import dead_letter, skip
from aiomailbox.operators.stateless.fused import StageKind
from aiomailbox.operators.stateless.thread_operator import ThreadOperator
from aiomailbox.records.events import OutputTag, StreamRecord
from aiomailbox.records.run import RUN_LENGTH_MAX, ListRun
from aiomailbox.testing import OneInputHarness

FAILED = OutputTag("failed")


def failing(value: int) -> int:
    if value == 2:
        raise ValueError("two")
    return value


def gives_then_fails(value: int) -> Any:
    yield value
    if value == 2:
        raise ValueError("two")
    yield -value


async def outputs(operator: ThreadOperator, *values: int) -> list[Any]:
    with OneInputHarness(operator) as harness:
        times = [10 * value for value in values]
        await harness.run(harness.process_run, ListRun(list(values), times))
        return [*harness.output, *harness.side_output(FAILED)]


@pytest.mark.parametrize(
    ("kind", "function", "expected"),
    [
        (StageKind.MAP, lambda value: -value, [(-1, 10), (-2, 20), (-3, 30)]),
        (StageKind.FILTER, lambda value: value % 2, [(1, 10), (3, 30)]),
        (
            StageKind.FLAT_MAP,
            lambda value: [value] * (value - 1),
            [(2, 20), (3, 30), (3, 30)],
        ),
    ],
)
async def test_order_and_event_times_are_kept(
    kind: StageKind, function: Any, expected: Any
) -> None:
    found = await outputs(ThreadOperator(kind, function), 1, 2, 3)
    assert found == [StreamRecord(value, at) for value, at in expected]


async def test_records_before_and_behind_a_failed_one_go_on() -> None:
    skipping = ThreadOperator(StageKind.MAP, failing, on_error=skip)
    assert await outputs(skipping, 1, 2, 3) == [
        StreamRecord(1, 10),
        StreamRecord(3, 30),
    ]
    kept = ThreadOperator(StageKind.MAP, failing, on_error=dead_letter(FAILED))
    *good, letter = await outputs(kept, 1, 2, 3)
    assert [one.value for one in good] == [1, 3]
    assert (letter.value.record, letter.timestamp) == (2, 20)
    with pytest.raises(UserFunctionError, match="two"):
        await outputs(ThreadOperator(StageKind.MAP, failing), 1, 2, 3)


async def test_what_a_generator_gave_before_it_failed_goes_out() -> None:
    operator = ThreadOperator(StageKind.FLAT_MAP, gives_then_fails, on_error=skip)
    found = await outputs(operator, 1, 2, 3)
    assert [one.value for one in found] == [1, -1, 2, 3, -3]


async def test_many_results_of_one_record_go_out_before_the_next() -> None:
    operator = ThreadOperator(StageKind.FLAT_MAP, lambda value: range(5_000))
    with OneInputHarness(operator) as harness:
        await harness.run(harness.process_run, [1, 2, 3])
        assert len(harness.values) == 15_000


@pytest.mark.parametrize("takes_s", [0.0, 0.002])
async def test_items_without_end_go_out_in_pieces(takes_s: float) -> None:
    given = 0

    def forever(value: int) -> Any:
        nonlocal given
        while given < 1_000_000:
            given += 1
            harness.context.clock.advance(takes_s)
            if given == 2 * pieces:
                loop.call_soon_threadsafe(running.cancel)
            yield given

    pieces = 3 if takes_s else RUN_LENGTH_MAX
    loop = asyncio.get_running_loop()
    operator = ThreadOperator(StageKind.FLAT_MAP, forever)
    with OneInputHarness(operator) as harness:
        running = loop.create_task(harness.run(harness.process_run, [1, 2]))
        with pytest.raises(asyncio.CancelledError):
            await running
        assert harness.values == list(range(1, len(harness.values) + 1))
    assert given <= 5 * pieces


async def test_items_go_on_where_they_were_after_a_piece() -> None:
    def gives(value: int) -> Any:
        for item in range(value):
            harness.context.clock.advance(0.002)
            yield item
        if value == 5:
            raise ValueError("five")

    operator = ThreadOperator(StageKind.FLAT_MAP, gives, on_error=skip)
    with OneInputHarness(operator) as harness:
        await harness.run(harness.process_run, ListRun([4, 5, 0, 7], [1, 2, 3, 4]))
        found = [(one.value, one.timestamp) for one in harness.output]
    assert found == [
        (item, at) for at, count in [(1, 4), (2, 5), (4, 7)] for item in range(count)
    ]


class Ways:
    """Counts the ways to a thread, and records."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from aiomailbox.supervision import ThreadTurns

        self.count = 0
        run = ThreadTurns.run

        async def counted(turns: Any, call: Any, *args: Any) -> Any:
            self.count += 1
            return await run(turns, call, *args)

        monkeypatch.setattr(ThreadTurns, "run", counted)


async def test_records_go_to_the_thread_together_for_five_milliseconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ways = Ways(monkeypatch)
    with OneInputHarness(ThreadOperator(StageKind.MAP, abs)) as harness:
        await harness.run(harness.process_run, list(range(1_000)))
        assert harness.values == list(range(1_000))
    assert ways.count == 1
    ways.count = 0

    def takes_3_ms(value: int) -> int:
        harness.context.clock.advance(0.003)
        return value

    with OneInputHarness(ThreadOperator(StageKind.MAP, takes_3_ms)) as harness:
        await harness.run(harness.process_run, list(range(10)))
        assert harness.values == list(range(10))
    assert ways.count == 5


async def test_a_cancellation_waits_for_the_piece_and_not_for_the_run() -> None:
    entered: list[int] = []

    def takes_6_ms(value: int) -> int:
        entered.append(value)
        harness.context.clock.advance(0.006)
        loop.call_soon_threadsafe(running.cancel)
        return value

    loop = asyncio.get_running_loop()
    with OneInputHarness(ThreadOperator(StageKind.MAP, takes_6_ms)) as harness:
        running = loop.create_task(harness.run(harness.process_run, list(range(100))))
        with pytest.raises(asyncio.CancelledError):
            await running
    # The cancellation may come while the second one is being worked on.
    assert len(entered) <= 2


@pytest.mark.real_time
@pytest.mark.timeout(180)
async def test_the_await_tree_shows_record_and_line_of_the_thread() -> None:
    stuck = threading.Event()

    def hang(city: str) -> str:
        stuck.wait(50)
        return city

    line = f"{__file__}:{hang.__code__.co_firstlineno + 1}"
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection(["oslo"]).map(hang, run_in="thread").name("hang")
    stream.sink_to(lambda city: None)
    async with env.start() as job:
        tree = ""
        while "attempt" not in tree:
            await asyncio.sleep(0.01)
            tree = job.await_tree()
        stuck.set()
        await job.result()
        ended = job.await_tree()
    assert "operator 'hang': 1 calls are open" in tree
    assert "attempt 1 for 'oslo' waits " in tree
    assert f" s for its function, in a thread at {line}" in tree
    assert "oslo" not in ended
