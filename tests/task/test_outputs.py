"""Outputs inside a task: availability of several, side outputs, counting."""

from __future__ import annotations

import asyncio
from itertools import chain
from types import SimpleNamespace
from typing import Any

from aiomailbox.availability import Availability
from aiomailbox.metrics.instruments import Counter
from aiomailbox.records.events import OutputTag, WatermarkStatus
from aiomailbox.records.run import ListRun
from aiomailbox.task.outputs import (
    BroadcastingOutput,
    OperatorOutput,
    PartingOutput,
    all_of,
    main_output,
)
from aiomailbox.testing import ManualClock


class Sink:
    """Keeps what it is given; waits once for each if asked to."""

    def __init__(self, name: str, log: list[Any], *, slow: bool = False) -> None:
        self.name = name
        self.log = log
        self.slow = slow
        self.availability = Availability(available=True)

    def _take(self, item: Any) -> Any:
        if self.slow:
            return self._later(item)
        self.log.append((self.name, item))
        return None

    async def _later(self, item: Any) -> None:
        await asyncio.sleep(1)
        self.log.append((self.name, item))

    def emit_run(self, run: Any) -> Any:
        return self._take(run.values)

    emit_watermark = emit_status = emit_latency_marker = _take


def test_all_are_available_when_each_is() -> None:
    sources = [Availability(available=True), Availability(), Availability()]
    together = all_of(sources)
    woken: list[int] = []
    together.on_available(lambda: woken.append(1))
    sources[1].set_available()
    assert (together.available, woken) == (False, [])
    sources[2].set_available()
    assert (together.available, woken) == (True, [1])
    sources[0].reset()
    assert not together.available


def test_nothing_to_wait_for_is_always_available() -> None:
    assert all_of([]).available
    single = Availability()
    assert all_of([single]) is single


async def test_waiting_for_all_waits_until_all_are_available_at_once() -> None:
    first, second = Availability(), Availability()
    waiting = asyncio.get_running_loop().create_task(all_of([first, second]).wait())
    await asyncio.sleep(0)
    first.set_available()
    first.reset()
    second.set_available()
    await asyncio.sleep(0.1)
    assert not waiting.done()
    first.set_available()
    await waiting


async def test_a_cancelled_waiter_harms_nobody() -> None:
    first, second = Availability(), Availability()
    both = all_of([first, second])
    one, other = both.waiter(), both.waiter()
    one.cancel()
    first.set_available()
    second.set_available()
    await other


async def test_cancelled_waiters_leave_nothing_with_the_sources() -> None:
    first, second = Availability(), Availability()
    both = all_of([first, second])
    for _ in range(100):
        both.waiter().cancel()
    await asyncio.sleep(0)
    assert len(both._callbacks) == 0
    assert len(first._callbacks) + len(second._callbacks) <= 1
    woken: list[int] = []
    both.on_available(lambda: woken.append(1))
    first.set_available()
    second.set_available()
    assert woken == [1]
    first.reset()
    both.on_available(lambda: woken.append(2))
    first.set_available()
    assert woken == [1, 2]


async def test_several_outputs_get_everything_in_order_also_if_one_waits() -> None:
    log: list[Any] = []
    output = BroadcastingOutput([Sink("a", log, slow=True), Sink("b", log)])
    pending = output.emit_run(ListRun([1]))
    assert log == []
    assert pending is not None
    await pending
    assert log == [("a", [1]), ("b", [1])]


def test_a_latency_marker_goes_one_way() -> None:
    log: list[Any] = []
    BroadcastingOutput([Sink("a", log), Sink("b", log)]).emit_latency_marker(
        "marker"  # type: ignore[arg-type]
    )
    assert log == [("a", "marker")]
    assert BroadcastingOutput([]).emit_latency_marker("x") is None  # type: ignore[arg-type]


def operator_output(log: list[Any]) -> tuple[OperatorOutput, Counter, OutputTag]:
    tag, counter = OutputTag("side"), Counter()
    side = BroadcastingOutput([Sink("side", log)])
    return OperatorOutput(Sink("main", log), {tag: side}, counter), counter, tag


def test_records_of_the_main_output_are_counted() -> None:
    log: list[Any] = []
    output, counter, tag = operator_output(log)
    output.emit_run(ListRun([1, 2]))
    output.emit_run(ListRun([]))
    output.emit_side(tag, ListRun([3]))
    output.emit_side(tag, ListRun([]))
    output.emit_side(OutputTag("unknown"), ListRun([4]))
    assert log == [("main", [1, 2]), ("side", [3])]
    assert counter.value == 2


def test_side_outputs_hear_of_event_time_and_idleness_too() -> None:
    log: list[Any] = []
    output, _, _ = operator_output(log)
    output.emit_watermark(5)
    output.emit_status(WatermarkStatus.IDLE)
    assert log == [
        ("main", 5),
        ("side", 5),
        ("main", WatermarkStatus.IDLE),
        ("side", WatermarkStatus.IDLE),
    ]


def test_the_only_way_is_taken_without_a_detour() -> None:
    sink = Sink("a", [])
    assert main_output([sink]) is sink
    assert isinstance(main_output([]), BroadcastingOutput)


async def test_any_number_of_outputs_may_have_to_be_awaited() -> None:
    """They are awaited one after the other, and not inside each other."""
    log: list[Any] = []
    sinks = [Sink(str(number), log, slow=True) for number in range(2_000)]
    pending = BroadcastingOutput(sinks).emit_run(ListRun([1]))
    assert pending is not None
    await pending
    assert len(log) == 2_000


class Rows:
    """An operator that takes its time for each row, and may have no room behind it."""

    def __init__(self, clock: ManualClock, row_s: float) -> None:
        self.clock = clock
        self.row_s = row_s
        self.room = Availability(available=True)
        self.runs: list[list[Any]] = []

    def process_run(self, run: Any) -> None:
        self.clock.advance(self.row_s * len(run))
        self.runs.append(run.values)

    async def process_watermark(self, timestamp_ms: int) -> None: ...

    process_status = process_latency_marker = process_watermark


class Mailbox:
    """Waits; runs no mail."""

    def __init__(self) -> None:
        self.waited = 0

    async def wait_until(self, availability: Availability) -> None:
        self.waited += 1
        await availability.wait()


def parting(rows: Rows) -> tuple[PartingOutput, Mailbox]:
    mailbox = Mailbox()
    context: Any = SimpleNamespace(mailbox=mailbox, clock=rows.clock)
    target: Any = rows
    return PartingOutput(target, rows.room, Counter(), context), mailbox


def test_rows_that_take_no_time_come_a_thousand_at_a_time() -> None:
    rows = Rows(ManualClock(), 0.0)
    output, _ = parting(rows)
    for _ in range(3):
        assert output.emit_run(ListRun(list(range(16_384)))) is None
    assert list(chain.from_iterable(rows.runs)) == [*range(16_384)] * 3
    assert [len(run) for run in rows.runs[-16:]] == [1024] * 16
    assert max(map(len, rows.runs)) == 1024


async def test_the_loop_goes_on_between_parts_of_slow_rows() -> None:
    rows = Rows(ManualClock(), 0.01)
    output, _ = parting(rows)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    pending = output.emit_run(ListRun(list(range(3000))))
    assert pending is not None
    assert rows.runs == [[0]]
    await pending
    assert rows.runs == [[number] for number in range(3000)]
    assert turns >= 2999
    beside.cancel()


async def test_parts_wait_for_room_behind_the_operator() -> None:
    rows = Rows(ManualClock(), 0.0)
    output, mailbox = parting(rows)
    rows.room.reset()
    pending = output.emit_run(ListRun([1, 2, 3]))
    assert pending is not None
    waiting = asyncio.ensure_future(pending)
    await asyncio.sleep(1)
    assert (rows.runs, mailbox.waited) == ([[1]], 1)
    rows.room.set_available()
    await waiting
    assert list(chain.from_iterable(rows.runs)) == [1, 2, 3]
