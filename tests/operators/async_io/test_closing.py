"""Laws of an operator that is closed while calls are open: they end, and nothing fails."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from aiomailbox.operators.core.user_code import skip
from aiomailbox.policies.batch import Batch
from aiomailbox.policies.retry import Retry


def raised_in(driven: Any) -> list[BaseException]:
    """Return what the coroutines that make calls have raised."""
    ended = [task for task in driven.context.tasks if not task.cancelled()]
    return [error for task in ended if (error := task.exception()) is not None]


def told(driven: Any) -> list[tuple[str, dict[str, Any]]]:
    return [(event, more) for _, event, more in driven.context.log.entries]


@pytest.mark.parametrize("idle", [0, 1, 2])
async def test_the_row_behind_a_call_that_ends_when_it_is_cancelled_is_not_called(
    drive: Any, idle: int
) -> None:
    """Whether a coroutine waits for it, was cancelled already, or is still to be made."""
    called = []

    async def stubborn(value: str) -> str:
        called.append(value)
        if value.startswith("short"):
            return value
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            await asyncio.sleep(0.5)
        return value

    driven = await drive(
        stubborn, concurrency=3, ordered="key", key=lambda value: value[-1]
    )
    driven.send(["long a", *(f"short {number}" for number in range(idle)), "next a"])
    await asyncio.sleep(1)
    before = list(called)
    await driven.close()
    await asyncio.sleep(60)
    assert called == before
    assert "next a" not in called
    assert raised_in(driven) == []
    assert told(driven) == []


async def test_a_call_that_ends_when_its_task_has_stopped_waiting_for_room_harms_nobody(
    drive: Any, gates: Any
) -> None:
    driven = await drive(gates, concurrency=1, capacity=1)
    driven.send("ab")
    await asyncio.sleep(1)
    driven.runner.cancel()
    await asyncio.wait([driven.runner])
    await gates.finish("a")
    await driven.close()
    assert raised_in(driven) == []


@pytest.mark.parametrize("closed_at_s", [5, 15])
async def test_a_call_between_two_attempts_does_not_reach_its_deadline(
    drive: Any, closed_at_s: int
) -> None:
    """It waits for the next one, from 10 s on for the one slot, which is taken."""

    async def call(value: int) -> int:
        if value == 1:
            raise ValueError(value)
        return await asyncio.get_running_loop().create_future()

    retry = Retry(attempts=9, initial=10, multiplier=1, jitter=0)
    driven = await drive(call, concurrency=1, retry=retry, deadline=30)
    driven.send([1, 2])
    await asyncio.sleep(closed_at_s)
    await driven.close()
    await asyncio.sleep(60)
    assert driven.metrics["timeouts"] == 0
    assert driven.metrics["waiting_for_retry"] == 0
    assert told(driven) == []


async def test_a_call_that_fails_when_it_is_cancelled_is_told_of(drive: Any) -> None:
    async def call(value: int) -> int:
        try:
            return await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            raise ValueError("cannot clean up") from None

    driven = await drive(call)
    driven.send([1, 2])
    await asyncio.sleep(1)
    await driven.close()
    driven.context.repeated.flush()
    (first, more), *_ = told(driven)
    assert first == "call failed while closing"
    assert "cannot clean up" in str(more)
    assert sum(facts["count"] for _, facts in told(driven)) == 2
    assert raised_in(driven) == []


@pytest.mark.parametrize("attempts", [1, 3])
async def test_a_result_that_is_not_wanted_is_not_asked_for_again(
    drive: Any, attempts: int
) -> None:
    """Nor does it count where the attempt was the last one: another one follows."""

    async def call(value: int) -> Any:
        try:
            return await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return None

    retry = Retry(attempts, initial=10, jitter=0, retry_if=lambda got: got is None)
    driven = await drive(call, retry=retry, deadline=100)
    driven.send([1])
    await asyncio.sleep(1)
    await driven.close()
    ended = driven.metrics
    assert ended["waiting_for_retry"] == 0
    assert ended["unwanted_results"] == 0
    await asyncio.sleep(200)
    assert driven.metrics == ended
    ((event, more),) = told(driven)
    assert event == "call failed while closing"
    assert "returned None when it was cancelled" in more["first_error"]
    assert raised_in(driven) == []


@pytest.mark.parametrize("limit_of_time", ["timeout", "deadline"])
async def test_a_call_that_takes_its_time_to_clean_up_does_not_fail_meanwhile(
    drive: Any, limit_of_time: str
) -> None:
    async def call(value: int) -> int:
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            # It is asked to end once a second.
            for _ in range(20):
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(60)

    driven = await drive(call, **{limit_of_time: 5})
    driven.send([1, 2])
    await asyncio.sleep(1)
    began_s = asyncio.get_running_loop().time()
    await driven.close()
    assert asyncio.get_running_loop().time() - began_s > 10
    assert driven.metrics["timeouts"] == 0
    assert told(driven) == []
    assert raised_in(driven) == []


async def test_only_the_results_of_a_batch_count(drive: Any) -> None:
    async def call(values: list[int]) -> list[Any]:
        try:
            return await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return [ValueError(value) if value == 2 else value for value in values]

    driven = await drive(call, batch=Batch(3, within=0), on_error=skip)
    driven.send([1, 2, 3])
    await asyncio.sleep(1)
    held = driven.operator._queue
    await driven.close()
    assert [entry.value for entry in held.elements() if not entry.done] == [2]
    assert told(driven) == [
        (
            "call failed while closing",
            {"count": 1, "total": 1, "first_error": "ValueError(2)"},
        )
    ]


async def test_a_call_whose_coroutine_is_closed_by_force_has_not_failed(
    drive: Any, gates: Any
) -> None:
    driven = await drive(gates)
    driven.send("a")
    await asyncio.sleep(1)
    (task,) = driven.context.tasks
    task.get_coro().close()
    await asyncio.sleep(1)
    assert not driven.runner.done()
    assert driven.values == []
    task.cancel()
