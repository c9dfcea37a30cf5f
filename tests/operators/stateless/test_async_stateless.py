from __future__ import annotations

import asyncio

import pytest

from aiomailbox.errors import InvalidArgumentError, UserFunctionError, WrongTypeError
from aiomailbox.operators.core.user_code import dead_letter, skip
from aiomailbox.operators.stateless.fused import StageKind
from aiomailbox.operators.stateless.operators import (
    AsyncStatelessOperator,
    MapOperator,
    stateless,
)
from aiomailbox.records.events import OutputTag, StreamRecord
from aiomailbox.testing import OneInputHarness

FAILED = OutputTag("failed")


async def doubled(value):
    await asyncio.sleep(0.01)
    return value * 2


async def is_even(value):
    return value % 2 == 0


async def repeated(value):
    return [value] * value


async def counted(value):
    for number in range(value):
        await asyncio.sleep(0)
        yield number


async def failing(value):
    if value == 2:
        raise ValueError("two")
    return value


async def failing_late(value):
    yield value
    if value == 2:
        raise ValueError("two")


@pytest.mark.parametrize(
    ("kind", "function", "expected"),
    [
        (StageKind.MAP, doubled, [StreamRecord(2, 10), StreamRecord(4, 20)]),
        (StageKind.FILTER, is_even, [StreamRecord(2, 20)]),
        (
            StageKind.FLAT_MAP,
            repeated,
            [StreamRecord(1, 10), *[StreamRecord(2, 20)] * 2],
        ),
        (
            StageKind.FLAT_MAP,
            counted,
            [StreamRecord(0, 10), StreamRecord(0, 20), StreamRecord(1, 20)],
        ),
    ],
)
async def test_an_async_function_does_what_a_sync_one_does(kind, function, expected):
    async with OneInputHarness(stateless(kind, function)) as harness:
        await harness.run(harness.process_run, [1, 2], [10, 20])
        assert harness.output == expected


async def test_records_are_awaited_one_at_a_time_in_order():
    running, most = 0, 0

    async def watched(value):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1 / value)
        running -= 1
        return value

    async with OneInputHarness(stateless(StageKind.MAP, watched)) as harness:
        await harness.run(harness.process_run, [1, 2, 3])
        assert harness.values == [1, 2, 3]
    assert most == 1


async def test_each_result_goes_out_before_the_next_call():
    async with OneInputHarness(stateless(StageKind.MAP, doubled)) as harness:
        seen = []

        async def watch(value):
            seen.append(len(harness.output))
            return value

        harness.operator.function = watch
        await harness.run(harness.process_run, [1, 2, 3])
    assert seen == [0, 1, 2]


async def test_nothing_is_called_while_the_output_is_full():
    async with OneInputHarness(stateless(StageKind.FLAT_MAP, counted)) as harness:
        harness.recorded.availability.reset()
        running = asyncio.get_running_loop().create_task(
            harness.run(harness.process_element, 3)
        )
        await asyncio.sleep(1)
        assert harness.output == []
        harness.recorded.availability.set_available()
        await running
        assert harness.values == [0, 1, 2]


@pytest.mark.parametrize(
    ("kind", "function", "kept"),
    [(StageKind.MAP, failing, [1, 3]), (StageKind.FLAT_MAP, failing_late, [1, 2, 3])],
)
async def test_a_failing_record_follows_the_policy(kind, function, kept):
    operator = stateless(kind, function, on_error=dead_letter(FAILED))
    async with OneInputHarness(operator) as harness:
        await harness.run(harness.process_run, [1, 2, 3], [10, 20, 30])
        assert harness.values == kept
        (letter,) = harness.side_output(FAILED)
        assert (letter.value.record, letter.timestamp) == (2, 20)
    async with OneInputHarness(stateless(kind, function, on_error=skip)) as harness:
        await harness.run(harness.process_run, [1, 2, 3])
        assert harness.values == kept
        assert harness.context.metrics.counter("skipped").value == 1
    async with OneInputHarness(stateless(kind, function)) as harness:
        with pytest.raises(UserFunctionError, match="two") as raised:
            await harness.run(harness.process_run, [1, 2, 3])
        assert raised.value.location.startswith(__file__)


async def test_an_error_of_a_consumer_is_not_the_functions():
    async with OneInputHarness(
        stateless(StageKind.MAP, doubled, on_error=skip)
    ) as harness:

        def refuse(run):
            raise OSError("downstream")

        harness.recorded.emit_run = refuse
        with pytest.raises(OSError, match="downstream"):
            await harness.run(harness.process_element, 1)


async def test_cancelling_ends_the_call_and_loses_only_its_record():
    async with OneInputHarness(stateless(StageKind.MAP, doubled)) as harness:
        running = asyncio.get_running_loop().create_task(
            harness.run(harness.process_run, [1, 2])
        )
        await asyncio.sleep(0.015)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert harness.values == [2]


def test_a_sync_function_makes_a_sync_operator():
    assert type(stateless(StageKind.MAP, abs)) is MapOperator


def test_wrong_functions_are_refused_where_they_are_given():
    with pytest.raises(WrongTypeError, match="coroutine"):
        MapOperator(doubled)
    with pytest.raises(InvalidArgumentError, match="flat_map"):
        AsyncStatelessOperator(StageKind.MAP, counted)
    with pytest.raises(WrongTypeError, match="on_error"):
        MapOperator(abs, on_error="skip")


async def test_a_cut_anywhere_changes_nothing():
    async with OneInputHarness(stateless(StageKind.MAP, doubled)) as before:
        await before.run(before.process_run, [1, 2])
        state = before.snapshot()
    after = OneInputHarness(stateless(StageKind.MAP, doubled))
    after.restore(state)
    async with after:
        await after.run(after.process_run, [3])
    assert before.values + after.values == [2, 4, 6]
