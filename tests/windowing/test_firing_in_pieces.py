"""Windows fire in pieces, and a snapshot between two of them resumes the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.operators.aggregates.functions import aggregates, count, sum_
from aiomailbox.records.events import StreamRecord, Watermark
from aiomailbox.records.run import RUN_LENGTH_MAX, ListRun
from aiomailbox.testing import OneInputHarness
from aiomailbox.testing.context import HarnessMailbox, TestRuntimeContext
from aiomailbox.windowing.assigners import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from aiomailbox.windowing.build import window_operator
from aiomailbox.windowing.triggers import EventTimeTrigger

_KEYS = 150
_RECORDS = [(key, stamp) for stamp in (1, 4, 12, 23, 24) for key in range(_KEYS)]
_LATE = [(key, 4) for key in range(0, _KEYS, 3)]

_OPERATORS: dict[str, Callable[[int], Any]] = {
    "tumbling": lambda late: _operator(TumblingEventTimeWindows(10), late),
    "sliding": lambda late: _operator(
        SlidingEventTimeWindows(10, 5), late, aggregate=_Listed()
    ),
    "panes": lambda late: _operator(SlidingEventTimeWindows(20, 5), late),
    "sessions": lambda late: _operator(EventTimeSessionWindows(5), late),
    "all others": lambda late: _operator(
        TumblingEventTimeWindows(10), late, trigger=_GeneralTrigger()
    ),
}


class _Listed(am.AggregateFunction):
    """Cannot be merged, so that windows share no panes."""

    def create_accumulator(self) -> list[Any]:
        return []

    def add(self, value: Any, accumulator: list[Any]) -> list[Any]:
        return [*accumulator, value]

    def get_result(self, accumulator: list[Any]) -> Any:
        return tuple(accumulator)


class _GeneralTrigger(EventTimeTrigger):
    """The default trigger, but not by name: so no fast way applies."""


def _operator(assigner: Any, late: int, **settings: Any) -> Any:
    settings.setdefault(
        "aggregate", aggregates(number=count(), total=sum_(lambda record: record[1]))
    )
    return window_operator(
        lambda record: record[0], assigner, allowed_lateness=am.millis(late), **settings
    )


class _Busy(HarnessMailbox):
    """A mailbox in which mail always waits, so that every piece is followed by a pause."""

    def __init__(self) -> None:
        super().__init__()
        self.in_pause: Callable[[], None] = lambda: None
        self.pauses = 0

    def should_interrupt(self, *, any_mail: bool = False) -> bool:
        return True

    async def pause(self) -> None:
        self.pauses += 1
        self.in_pause()


def _harness(operator: Any, mailbox: HarnessMailbox | None = None) -> OneInputHarness:
    context = TestRuntimeContext(keyed=True)
    if mailbox is not None:
        context.run_mail = context.mailbox = mailbox  # type: ignore[assignment]
    return OneInputHarness(operator, context=context)


async def _feed(harness: OneInputHarness, records: list[Any]) -> None:
    run = ListRun(records, [stamp for _, stamp in records])
    await harness.run(harness.process_run, run)


def _take(harness: OneInputHarness, taken: list[Any]) -> None:
    taken.append(harness.snapshot())


def _results(elements: list[Any]) -> Counter[Any]:
    return Counter(
        (element.value, element.timestamp)
        for element in elements
        if isinstance(element, StreamRecord)
    )


@pytest.mark.parametrize("lateness", [0, 50])
@pytest.mark.parametrize("kind", list(_OPERATORS))
async def test_results_of_pieces_are_those_of_the_whole(
    kind: str, lateness: int
) -> None:
    busy = _Busy()
    async with (
        _harness(_OPERATORS[kind](lateness)) as whole,
        _harness(_OPERATORS[kind](lateness), busy) as pieces,
    ):
        for harness in (whole, pieces):
            for watermark in (11, 40):
                await _feed(harness, _RECORDS if watermark == 11 else _LATE)
                await harness.run(harness.process_watermark, watermark)
            await harness.run(harness.process_watermark, 1_000)
            assert [one for one in harness.output if isinstance(one, Watermark)] == [
                Watermark(11),
                Watermark(40),
                Watermark(1_000),
            ]
        assert busy.pauses > 5
        assert _results(pieces.output) == _results(whole.output)


@pytest.mark.parametrize("lateness", [0, 50])
@pytest.mark.parametrize("kind", list(_OPERATORS))
async def test_a_snapshot_between_two_pieces_resumes_the_rest(
    kind: str, lateness: int
) -> None:
    """Wherever it is taken: what had gone out and what follows is the whole."""
    busy = _Busy()
    taken: list[tuple[Any, int]] = []
    async with _harness(_OPERATORS[kind](lateness), busy) as harness:
        await _feed(harness, _RECORDS)
        busy.in_pause = lambda: taken.append((harness.snapshot(), len(harness.output)))
        await harness.run(harness.process_watermark, 40)
        busy.in_pause = lambda: None
        fired = list(harness.output)
        await _feed(harness, _LATE)
        await harness.run(harness.process_watermark, 1_000)
        whole = list(harness.output)
    assert len(taken) > 5
    for snapshot, emitted in taken[:: len(taken) // 5]:
        resumed = _harness(_OPERATORS[kind](lateness))
        resumed.restore(snapshot)
        async with resumed:
            assert resumed.output[-1] == Watermark(40)
            # By name: showing how they differ takes minutes.
            is_equal = _results(fired[:emitted] + resumed.output) == _results(fired)
            assert is_equal
            await _feed(resumed, _LATE)
            await resumed.run(resumed.process_watermark, 1_000)
            after = whole[:emitted] + resumed.output
            is_equal = _results(after) == _results(fired[:emitted] + whole[emitted:])
            assert is_equal


@pytest.mark.parametrize("kind", list(_OPERATORS))
async def test_what_fires_again_after_a_restore_is_in_a_snapshot_once(
    kind: str,
) -> None:
    """Event time is behind what had fired: the state of several subtasks is in one."""

    def resumed(
        snapshot: Any, mailbox: HarnessMailbox | None = None
    ) -> OneInputHarness:
        harness = _harness(_OPERATORS[kind](50), mailbox)
        if snapshot is not None:
            harness.restore(replace(snapshot, watermark=0))
        return harness

    busy = _Busy()
    taken: list[Any] = [None]
    for stamp in (1, 2):
        async with resumed(taken[-1], busy) as harness:
            await _feed(harness, [(key, stamp) for key in range(_KEYS)])
            taken = []
            busy.in_pause = partial(_take, harness, taken)
            await harness.run(harness.process_watermark, 40)
            taken.append(harness.snapshot())
            busy.in_pause = lambda: None
    assert len(taken) > 5
    for snapshot in taken[:: len(taken) // 5]:
        async with resumed(snapshot) as harness:
            await _feed(harness, [(key, 3) for key in range(_KEYS)])
            await harness.run(harness.process_watermark, 1_000)
            # A list has the records, the others have the sum of their times.
            found = {
                sum(stamp for _, stamp in result) if kind == "sliding" else result.total
                for result in harness.values
            }
        assert found == {1 + 2 + 3}


async def test_a_snapshot_after_the_last_piece_resumes_nothing() -> None:
    async with _harness(_OPERATORS["tumbling"](0), _Busy()) as harness:
        await _feed(harness, _RECORDS)
        await harness.run(harness.process_watermark, 40)
        snapshot = harness.snapshot()
    resumed = _harness(_OPERATORS["tumbling"](0))
    resumed.restore(snapshot)
    async with resumed:
        assert resumed.output == []


class _NoRoom(HarnessMailbox):
    """A mailbox that gives its operator room once it waits for it."""

    emitted_before: list[int]

    async def pause_until(self, availability: Any) -> None:
        self.emitted_before.append(self.count())
        availability.set_available()

    def count(self) -> int:
        return 0


@pytest.mark.parametrize("kind", list(_OPERATORS))
async def test_what_fires_waits_for_room_in_the_output(kind: str) -> None:
    """It was OverdraftCeilingError: all results of a watermark went out at once."""
    mailbox = _NoRoom()
    mailbox.emitted_before = []
    async with _harness(_OPERATORS[kind](0), mailbox) as harness:
        recorded = harness.recorded
        mailbox.count = lambda: len(recorded.elements)  # type: ignore[method-assign]
        for first in range(0, 8_000, 4_000):
            keys = [(key, 1) for key in range(first, first + 4_000)]
            await _feed(harness, keys)
        emit_run = recorded.emit_run

        def emit(run: Any) -> Any:
            recorded.availability.reset()
            return emit_run(run)

        recorded.emit_run = emit  # type: ignore[method-assign]
        await harness.run(harness.process_watermark, 40)
        count = len(harness.values)
    assert count >= 8_000
    between = [b - a for a, b in pairwise([0, *mailbox.emitted_before, count])]
    assert max(between) <= 2 * RUN_LENGTH_MAX
