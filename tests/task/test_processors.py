"""Which input is read next, and what the inputs together have come to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiomailbox.availability import Availability
from aiomailbox.errors import IllegalStateError
from aiomailbox.operators.core.operator import InputSelection
from aiomailbox.operators.sources.source import InputStatus
from aiomailbox.task.processors import (
    AnyAvailability,
    MultiInput,
)

S = InputStatus


class ScriptedInput:
    """Returns statuses one by one; available as long as there are some."""

    def __init__(self, *statuses: InputStatus) -> None:
        self.statuses = list(statuses)
        self.availability = Availability(available=bool(statuses))
        self.pending: Any = None
        self.reads = 0
        self.calls: list[str] = []

    def offer(self, *statuses: InputStatus) -> None:
        self.statuses += statuses
        self.availability.set_available()

    def start(self) -> None:
        self.calls.append("start")

    def emit_next(self) -> InputStatus:
        self.reads += 1
        status = self.statuses.pop(0)
        # A finished gate says for ever that it is available.
        if not self.statuses and status is not S.END_OF_INPUT:
            self.availability.reset()
        return status

    def end_of_event_time(self) -> None:
        self.calls.append("end of event time")

    def close(self) -> None:
        self.calls.append("close")


def statuses(processor: Any, times: int) -> list[InputStatus]:
    return [processor.emit_next() for _ in range(times)]


def test_inputs_are_read_in_turn() -> None:
    """MB-118."""
    order: list[int] = []
    inputs = [ScriptedInput(*[S.MORE_AVAILABLE] * 4) for _ in range(3)]
    processor = MultiInput(inputs)
    for _ in range(9):
        before = [each.reads for each in inputs]
        processor.emit_next()
        after = [each.reads for each in inputs]
        order += [i for i in range(3) if after[i] != before[i]]
    assert order == [0, 1, 2] * 3


def test_an_input_that_becomes_available_is_read_within_two_steps() -> None:
    """MB-122."""
    busy = ScriptedInput(*[S.MORE_AVAILABLE] * 100)
    other = ScriptedInput(*[S.MORE_AVAILABLE] * 100)
    late = ScriptedInput()
    processor = MultiInput([busy, late, other])
    statuses(processor, 10)
    assert late.reads == 0
    late.offer(S.NOTHING_AVAILABLE)
    statuses(processor, 3)
    assert late.reads == 1


def test_more_is_available_while_any_input_is() -> None:
    first, second = ScriptedInput(S.NOTHING_AVAILABLE), ScriptedInput()
    processor = MultiInput([first, second])
    assert processor.emit_next() is S.NOTHING_AVAILABLE
    assert not processor.availability.available
    second.offer(S.MORE_AVAILABLE, S.NOTHING_AVAILABLE)
    assert processor.availability.available
    assert statuses(processor, 2) == [S.MORE_AVAILABLE, S.NOTHING_AVAILABLE]
    assert processor.emit_next() is S.NOTHING_AVAILABLE
    assert (first.reads, second.reads) == (1, 2)


def test_data_ends_when_all_inputs_ended_theirs() -> None:
    first = ScriptedInput(S.END_OF_DATA, S.END_OF_INPUT)
    second = ScriptedInput(S.MORE_AVAILABLE, S.END_OF_DATA, S.END_OF_INPUT)
    processor = MultiInput([first, second])
    assert statuses(processor, 5) == [
        S.MORE_AVAILABLE,  # first: its data ended
        S.MORE_AVAILABLE,  # second
        S.MORE_AVAILABLE,  # first: all read
        S.END_OF_DATA,
        S.END_OF_INPUT,
    ]
    assert processor.emit_next() is S.END_OF_INPUT


def test_one_stopped_input_stops_the_task_whichever_is_last() -> None:
    """SEM-228, D9."""
    for first, second in [(S.STOPPED, S.END_OF_DATA), (S.END_OF_DATA, S.STOPPED)]:
        processor = MultiInput([ScriptedInput(first), ScriptedInput(second)])
        assert statuses(processor, 2) == [S.MORE_AVAILABLE, S.STOPPED]


def test_a_finished_input_does_not_keep_the_task_awake() -> None:
    first = ScriptedInput(S.END_OF_DATA, S.END_OF_INPUT)
    second = ScriptedInput()
    processor = MultiInput([first, second])
    assert statuses(processor, 2)[-1] is S.NOTHING_AVAILABLE
    assert first.availability.available
    assert not processor.availability.available
    woken: list[int] = []
    processor.availability.on_available(lambda: woken.append(1))
    second.offer(S.END_OF_DATA)
    assert woken == [1]


async def test_starting_ending_and_closing_reach_every_input() -> None:
    inputs = [ScriptedInput(), ScriptedInput()]
    processor = MultiInput(inputs)
    processor.start()
    await processor.end_of_event_time()
    await processor.close()
    for each in inputs:
        assert each.calls == ["start", "end of event time", "close"]


def test_what_is_pending_is_handed_on_once() -> None:
    task_input = ScriptedInput(S.MORE_AVAILABLE, S.MORE_AVAILABLE)
    awaitable = object()
    task_input.pending = awaitable
    processor = MultiInput([task_input])
    processor.emit_next()
    assert processor.pending is awaitable
    assert task_input.pending is None


def test_a_quiet_input_collects_no_callbacks() -> None:
    busy, quiet = Availability(), Availability()
    either = AnyAvailability([busy, quiet])
    woken: list[int] = []
    for number in range(1000):
        either.on_available(lambda number=number: woken.append(number))
        busy.set_available()
        busy.reset()
    assert woken == list(range(1000))
    assert len(quiet._callbacks) == 1
    assert len(busy._callbacks) <= 1
    quiet.set_available()
    assert len(woken) == 1000


def test_a_callback_may_ask_again_at_once() -> None:
    first, second = Availability(), Availability()
    either = AnyAvailability([first, second])
    woken: list[str] = []

    def again() -> None:
        woken.append("again")
        first.reset()
        either.on_available(lambda: woken.append("later"))

    either.on_available(again)
    first.set_available()
    assert woken == ["again"]
    second.set_available()
    assert woken == ["again", "later"]


async def test_a_waiter_that_is_cancelled_leaves_nothing_behind() -> None:
    first, second = Availability(), Availability()
    either = AnyAvailability([first, second])
    for _ in range(100):
        either.waiter().cancel()
        await asyncio.sleep(0)
    assert len(either._callbacks) == 0
    assert len(first._callbacks) + len(second._callbacks) <= 2


class Chooses:
    """Selects as told; counts how often it was asked."""

    def __init__(self, selection: InputSelection) -> None:
        self.selection = selection
        self.asked = 0

    def __call__(self) -> InputSelection:
        self.asked += 1
        return self.selection


def reads(processor: Any, inputs: list[ScriptedInput], times: int) -> list[int]:
    """Return which input was read in each of so many steps."""
    order = []
    for _ in range(times):
        before = [each.reads for each in inputs]
        processor.emit_next()
        order += [n for n, each in enumerate(inputs) if each.reads != before[n]]
    return order


def test_a_selection_of_all_reads_in_turn() -> None:
    """MB-118, with a rule."""
    inputs = [ScriptedInput(*[S.MORE_AVAILABLE] * 3) for _ in range(2)]
    choose = Chooses(InputSelection.ALL)
    processor = MultiInput(inputs, choose)
    assert reads(processor, inputs, 6) == [0, 1, 0, 1, 0, 1]
    # Once at first, then after each step; not when there was nothing to read.
    processor.emit_next()
    assert choose.asked == 7


def test_the_first_input_can_be_read_to_its_end_before_the_second() -> None:
    """MB-119: also the end itself, which comes after the end of its data."""
    first = ScriptedInput(S.MORE_AVAILABLE, S.MORE_AVAILABLE, S.END_OF_DATA)
    second = ScriptedInput(S.MORE_AVAILABLE, S.END_OF_DATA, S.END_OF_INPUT)

    def choose() -> InputSelection:
        return InputSelection.FIRST if first.reads < 3 else InputSelection.SECOND

    processor = MultiInput([first, second], choose)
    assert statuses(processor, 3) == [S.MORE_AVAILABLE] * 3
    assert (first.reads, second.reads) == (3, 0)
    assert processor.emit_next() is S.MORE_AVAILABLE
    first.offer(S.END_OF_INPUT)
    assert statuses(processor, 3) == [S.MORE_AVAILABLE, S.END_OF_DATA, S.END_OF_INPUT]
    assert (first.reads, second.reads) == (4, 3)


def test_a_rule_may_change_its_mind_after_every_two_reads() -> None:
    """MB-120."""
    inputs = [ScriptedInput(*[S.MORE_AVAILABLE] * 9) for _ in range(2)]
    counted: list[int] = []

    def choose() -> InputSelection:
        done = sum(each.reads for each in inputs)
        counted.append(done)
        return InputSelection.of(done // 2 % 2)

    processor = MultiInput(inputs, choose)
    assert counted == []  # Not before the operator was opened.
    assert reads(processor, inputs, 8) == [0, 0, 1, 1, 0, 0, 1, 1]


def test_selecting_only_an_input_that_has_ended_is_an_error() -> None:
    """MB-121."""
    first = ScriptedInput(S.END_OF_DATA, S.END_OF_INPUT)
    second = ScriptedInput(S.MORE_AVAILABLE)
    processor = MultiInput([first, second], Chooses(InputSelection.FIRST))
    processor.emit_next()
    with pytest.raises(IllegalStateError, match="only inputs that have ended"):
        processor.emit_next()
    assert second.reads == 0


def test_a_selected_input_is_not_starved_and_another_one_is_not_read() -> None:
    """MB-122."""
    busy = ScriptedInput(*[S.MORE_AVAILABLE] * 100)
    late = ScriptedInput()
    unselected = ScriptedInput(*[S.MORE_AVAILABLE] * 100)
    processor = MultiInput([busy, late, unselected], Chooses(InputSelection.of(0, 1)))
    statuses(processor, 10)
    late.offer(S.NOTHING_AVAILABLE)
    statuses(processor, 2)
    assert (late.reads, unselected.reads) == (1, 0)


def test_a_task_waits_only_for_what_is_selected() -> None:
    first, second = ScriptedInput(), ScriptedInput(S.MORE_AVAILABLE)
    choose = Chooses(InputSelection.FIRST)
    processor = MultiInput([first, second], choose)
    assert processor.emit_next() is S.NOTHING_AVAILABLE
    assert not processor.availability.available
    woken: list[int] = []
    processor.availability.on_available(lambda: woken.append(1))
    second.offer(S.MORE_AVAILABLE)
    assert woken == []
    first.offer(S.MORE_AVAILABLE)
    assert woken == [1]


def test_what_is_awaited_may_change_the_selection() -> None:
    first = ScriptedInput(S.MORE_AVAILABLE)
    second = ScriptedInput(S.MORE_AVAILABLE)
    choose = Chooses(InputSelection.FIRST)
    processor = MultiInput([first, second], choose)
    first.pending = object()
    # Nothing is said before it was awaited: the task has to ask again.
    assert processor.emit_next() is S.MORE_AVAILABLE
    assert choose.asked == 1
    processor.pending = None
    choose.selection = InputSelection.SECOND
    assert processor.emit_next() is S.NOTHING_AVAILABLE
    assert second.reads == 1


def test_a_task_that_is_stopped_reads_all_inputs_to_their_end() -> None:
    first = ScriptedInput(S.STOPPED, S.END_OF_INPUT)
    second = ScriptedInput(S.STOPPED, S.END_OF_INPUT)
    processor = MultiInput([first, second], Chooses(InputSelection.FIRST))
    assert statuses(processor, 4) == [
        *[S.MORE_AVAILABLE, S.STOPPED, S.MORE_AVAILABLE, S.END_OF_INPUT]
    ]
