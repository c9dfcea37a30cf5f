"""Laws of what is told of calls that have not ended: what they wait for, and how long."""

from __future__ import annotations

import asyncio
from typing import Any

from aiomailbox.operators.async_io.calls import LimitShown
from aiomailbox.operators.async_io.operator import AsyncMapOperator
from aiomailbox.operators.core.operator import BlockCause, Blocked
from aiomailbox.policies.batch import Batch
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.policies.retry import Retry


async def until(seconds: float) -> None:
    await asyncio.sleep(seconds - asyncio.get_running_loop().time())


async def test_an_operator_that_is_not_open_has_no_calls(
    drive: Any, gates: Any
) -> None:
    operator = AsyncMapOperator(gates, concurrency=1)
    assert operator.blocked() is None
    assert operator.open_calls(10) is None
    driven = await drive(gates)
    assert driven.operator.blocked() is None
    assert driven.operator.open_calls(10).count == 0


async def test_by_key_rows_wait_for_their_key_while_there_are_slots(
    drive: Any, gates: Any
) -> None:
    driven = await drive(
        gates, concurrency=2, ordered="key", key=lambda value: value[0]
    )
    driven.send(["a1", "a2"])
    await asyncio.sleep(1)
    assert driven.operator.blocked() == Blocked(BlockCause.KEY)
    driven.send(["b1"])
    await asyncio.sleep(1)
    assert driven.operator.blocked() == Blocked(BlockCause.CALLS, "2 at once")
    await gates.finish("a1")
    await gates.finish("b1")
    assert driven.operator.blocked() == Blocked(BlockCause.CALLS, "2 at once")
    await gates.finish("a2")
    assert driven.operator.blocked() is None


async def test_calls_wait_for_retries_when_more_of_them_wait_than_are_made(
    drive: Any,
) -> None:
    async def call(value: int) -> int:
        if value:
            raise ValueError(value)
        return await asyncio.get_running_loop().create_future()

    retry = Retry(attempts=2, initial=100, maximum=100, jitter=0)
    driven = await drive(call, concurrency=3, retry=retry)
    for value, cause in (
        (0, BlockCause.CALLS),
        (1, BlockCause.CALLS),
        (2, BlockCause.RETRY),
        (0, BlockCause.CALLS),
    ):
        driven.send([value])
        await asyncio.sleep(1)
        assert driven.operator.blocked().cause is cause


async def test_each_open_call_says_what_it_waits_for_and_since_when(drive: Any) -> None:
    async def call(value: int) -> int:
        if value == 1:
            raise ValueError(value)
        return await asyncio.get_running_loop().create_future()

    driven = await drive(
        call,
        concurrency=3,
        retry=Retry(attempts=2, initial=100, maximum=100, jitter=0),
        limit=RateLimit(2, per=50, name="api"),
    )
    start_s = asyncio.get_running_loop().time()
    driven.send([1])
    await until(start_s + 1)
    driven.send([2])
    await until(start_s + 2)
    driven.send([3, 4, 5])
    await until(start_s + 10)
    calls = driven.operator.open_calls(10)
    assert calls.waiting_for_slot == 1
    assert [
        (one.record, one.attempt, round(one.age_s), one.waits_for)
        for one in calls.oldest
    ] == [
        ("1", 1, 10, "its next attempt"),
        ("2", 1, 9, "its function"),
        ("3", 1, 8, "limit 'api'"),
        ("4", 1, 8, "limit 'api'"),
    ]
    # None runs a line of a function: one waits for its next attempt.
    assert [one.line for one in calls.oldest] == [""] * 4
    assert [one.record for one in driven.operator.open_calls(1).oldest] == ["1"]
    await until(start_s + 60)
    calls = driven.operator.open_calls(10)
    # The lease is there.
    assert {one.record: one.waits_for for one in calls.oldest}["3"] == "its function"
    await until(start_s + 250)
    # The first has failed. Of the oldest, its line is told.
    line = call.__code__.co_firstlineno + 3
    calls = driven.operator.open_calls(10)
    oldest, *others = (one.line for one in calls.oldest)
    assert oldest == f"{__file__}:{line}"
    assert not any(others)


async def test_a_call_that_waits_for_its_limit_has_no_line_yet(drive: Any) -> None:
    async def call(value: int) -> int:
        return value

    limit = RateLimit(1, per=50)
    driven = await drive(call, limit=limit)
    driven.send([1, 2])
    await asyncio.sleep(0.5)
    (waits,) = driven.operator.open_calls(10).oldest
    assert (waits.record, waits.waits_for, waits.line) == ("2", "the limit", "")
    assert driven.operator.blocked() == Blocked(BlockCause.LIMIT)
    assert round(waits.age_s, 2) == 0.5


async def test_records_are_shown_in_short_whatever_they_are(drive: Any) -> None:
    class Broken:
        def __repr__(self) -> str:
            raise ValueError("no")

        @property
        def __class__(self) -> Any:
            raise AttributeError("no")

    async def call(values: list[Any]) -> list[Any]:
        return await asyncio.get_running_loop().create_future()

    for values, text in (
        ([1], "1"),
        ([1, 2, 3], "1 and 2 more"),
        ([Broken()], "<Broken>"),
        ([["a" * 196]], f"['{'a' * 196}']"),
        ([["a" * 197]], f"['{'a' * 195}..."),
    ):
        driven = await drive(call, batch=Batch(len(values), within=0))
        driven.send(values)
        await asyncio.sleep(1)
        (one,) = driven.operator.open_calls(1).oldest
        assert one.record == text
        assert len(text) <= 200


def test_a_limit_whose_units_are_counted_elsewhere_says_nothing_of_what_is_free() -> (
    None
):
    limit = RateLimit(5, per=2)
    text = "5 units free in 2 s, 1 calls wait for it"
    assert LimitShown(limit, None, 1).text == f"the limit: {text}"
    assert LimitShown(limit, 3, 1).text == f"the limit: 3 of {text}"
    assert LimitShown(None, None, 0).text == ""
