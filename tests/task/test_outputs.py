"""Outputs inside a task: availability of several, side outputs, counting."""

from __future__ import annotations

import asyncio
from typing import Any

from aiomailbox.availability import Availability
from aiomailbox.metrics import Counter
from aiomailbox.records import ListRun, OutputTag, WatermarkStatus
from aiomailbox.task.outputs import (
    BroadcastingOutput,
    OperatorOutput,
    all_of,
    main_output,
)


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
