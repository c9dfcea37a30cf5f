"""Laws of runs whose records are awaited: mail between two of them, and the rest that is left."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from aiomailbox.availability import Availability
from aiomailbox.operators.core.operator import (
    RunInterruption,
    await_each,
    go_through,
)
from aiomailbox.records.run import ListRun


class Loop:
    """A mailbox and its watch, of which a test says what they tell."""

    def __init__(self, *, is_over: bool = False, has_mail: bool = False) -> None:
        self.steps: list[object] = []
        self.over = is_over
        self.has_mail = has_mail
        self.has_waited = True

    def watch(self) -> Loop:
        return self

    def start(self) -> None:
        self.steps.append("start")

    def is_over(self) -> bool:
        return self.over

    async def run_waiting(self) -> None:
        self.steps.append("mail")

    async def wait_until(self, availability: Availability) -> None:
        self.steps.append("room")
        availability.set_available()


def interruption(loop: Loop, *, may_leave: bool = True) -> RunInterruption:
    made = RunInterruption(loop)  # type: ignore[arg-type]
    made.may_leave = may_leave
    return made


def values(run: Any) -> list[Any] | None:
    return None if run is None else list(run.values)


@pytest.mark.parametrize("is_over", [False, True])
@pytest.mark.parametrize("has_mail", [False, True])
@pytest.mark.parametrize("may_leave", [False, True])
@pytest.mark.parametrize("following", [1, 2, 3])
async def test_the_rest_is_left_if_there_is_one_and_time_is_up_else_mail_runs(
    is_over: bool, has_mail: bool, may_leave: bool, following: int
) -> None:
    loop = Loop(is_over=is_over, has_mail=has_mail)
    one = interruption(loop, may_leave=may_leave)
    is_left = await one.look_around(ListRun([1, 2, 3]), following)
    assert is_left == (is_over and may_leave and following < 3)
    assert values(one.rest) == ([1, 2, 3][following:] if is_left else None)
    assert loop.steps == (["mail"] if has_mail and not is_left else [])


def test_nobody_is_left_a_rest_who_did_not_say_so() -> None:
    one = RunInterruption(Loop())  # type: ignore[arg-type]
    assert not one.leave(ListRun([1, 2]), 1)
    assert one.rest is None


class Records:
    """Processes records, of which some are awaited, and collects what they lead to."""

    def __init__(self, loop: Loop, *awaited: int) -> None:
        self.steps = loop.steps
        self.awaited = awaited

    def advance(self, start: int) -> tuple[Any, int]:
        for index in range(start, 4):
            self.steps.append(index)
            if index in self.awaited:
                return asyncio.sleep(0), index
        return None, 4

    def emit(self) -> None:
        self.steps.append("emit")


async def run_through(loop: Loop, *awaited: int, may_leave: bool = True) -> Any:
    records = Records(loop, *awaited)
    one = interruption(loop, may_leave=may_leave)
    run = ListRun(["a", "b", "c", "d"])
    pending = go_through(run, records.advance, one, records.emit)
    if pending is not None:
        await pending
    return values(one.rest)


async def test_records_that_need_not_be_awaited_go_through_at_once() -> None:
    loop = Loop(is_over=True, has_mail=True)
    assert await run_through(loop) is None
    assert loop.steps == [0, 1, 2, 3, "emit"]


async def test_mail_runs_between_two_records_and_finds_what_was_emitted_before() -> (
    None
):
    loop = Loop(has_mail=True)
    assert await run_through(loop, 0, 2) is None
    emitted = ["emit", "mail"]
    assert loop.steps == [0, "start", *emitted, 1, 2, *emitted, 3, "emit"]


async def test_what_the_loop_has_not_waited_for_interrupts_nothing() -> None:
    loop = Loop(is_over=True, has_mail=True)
    loop.has_waited = False
    assert await run_through(loop, 0, 2) is None
    assert loop.steps == [0, "start", 1, 2, 3, "emit"]


async def test_the_rest_that_is_left_is_all_that_was_not_processed() -> None:
    loop = Loop(is_over=True, has_mail=True)
    assert await run_through(loop, 1, 2) == ["c", "d"]
    assert loop.steps == [0, 1, "start", "emit"]


@pytest.mark.parametrize(
    ("has_room", "may_leave", "expected", "rest"),
    [
        (True, True, ["start", "a", "b"], None),
        (False, True, ["start"], ["a", "b"]),
        (False, False, ["start", "room", "a", "b"], None),
    ],
)
async def test_a_record_that_is_awaited_begins_when_there_is_room_for_its_results(
    has_room: bool, may_leave: bool, expected: list[object], rest: list[str] | None
) -> None:
    loop = Loop()
    one = interruption(loop, may_leave=may_leave)
    operator: Any = SimpleNamespace(
        output=SimpleNamespace(availability=Availability(available=has_room)),
        interruption=one,
        context=SimpleNamespace(mailbox=loop),
    )
    seen: list[tuple[int, int | None]] = []

    async def process(index: int, value: str, timestamp: int | None) -> None:
        loop.steps.append(value)
        seen.append((index, timestamp))

    await await_each(operator, ListRun(["a", "b"], [5, 6]), process)
    assert loop.steps == expected
    assert values(one.rest) == rest
    assert seen == ([] if rest else [(0, 5), (1, 6)])
