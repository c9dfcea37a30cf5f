"""A function as a sink."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.connectors.sinks import FunctionSink
from aiomailbox.errors import (
    JobCancelledError,
    StopTask,
    UserFunctionError,
    WrongTypeError,
)
from aiomailbox.operators.sinks.sink import SinkOperator
from aiomailbox.records.run import ListRun
from aiomailbox.testing import OneInputHarness, TestRuntimeContext


async def test_a_function_is_called_in_order() -> None:
    seen: list[int] = []
    writer = FunctionSink(seen.append).create_writer(TestRuntimeContext())
    assert writer.write_run(ListRun([1, 2])) is None
    assert seen == [1, 2]


async def test_an_async_function_is_awaited_before_the_next_record() -> None:
    seen = []

    async def keep(value: int) -> None:
        await asyncio.sleep(3 - value)
        seen.append(value)

    writer = FunctionSink(keep).create_writer(TestRuntimeContext())
    pending = writer.write_run(ListRun([1, 2]))
    assert pending is not None
    await pending
    assert seen == [1, 2]


def refuse_twos(value: int) -> None:
    if value == 2:
        raise ValueError(value)


async def refuse_twos_later(value: int) -> None:
    await asyncio.sleep(1)
    refuse_twos(value)


async def test_a_coroutine_that_nobody_would_await_is_refused() -> None:
    async def keep(value: int) -> None:
        """Never runs."""

    operator = SinkOperator(FunctionSink(lambda value: keep(value)))
    with (
        OneInputHarness(operator, operator_name="alert") as harness,
        pytest.raises(UserFunctionError, match=r"'alert'.*coroutine"),
    ):
        harness.process_run([1])


@pytest.mark.parametrize("function", [refuse_twos, refuse_twos_later])
async def test_a_failure_names_operator_line_and_record(function: Any) -> None:
    operator = SinkOperator(FunctionSink(function))
    async with OneInputHarness(operator, operator_name="alert", uid="a1") as harness:
        with pytest.raises(UserFunctionError, match=r"'alert' \(uid 'a1'\)") as caught:
            await harness.run(harness.process_run, [1, 2, 3])
    assert caught.value.location.startswith(f"{__file__}:")
    assert "the record: 2" in caught.value.__notes__


@pytest.mark.parametrize("function", [refuse_twos, refuse_twos_later])
async def test_records_for_which_it_raises_go_where_on_error_says(
    function: Any,
) -> None:
    seen: list[int] = []
    refused = am.OutputTag("refused")

    def keep(value: int) -> Any:
        result = function(value)
        seen.append(value)
        return result

    async def keep_later(value: int) -> None:
        await function(value)
        seen.append(value)

    sink = keep if function is refuse_twos else keep_later
    env = am.StreamExecutionEnvironment()
    written = env.from_collection([1, 2, 3, 2, 5]).sink_to(
        sink, on_error=am.dead_letter(refused)
    )
    letters = await written.get_side_output(refused).collect()
    assert seen == [1, 3, 5]
    assert [letter.record for letter in letters] == [2, 2]


async def test_a_function_may_end_its_job_whatever_on_error_says() -> None:
    def stop(value: int) -> None:
        raise StopTask

    env = am.StreamExecutionEnvironment()
    env.from_collection([1]).sink_to(stop, on_error=am.skip)
    with pytest.raises(JobCancelledError):
        await env.execute()


def test_an_on_error_that_is_none_is_refused_where_it_is_written() -> None:
    stream = am.StreamExecutionEnvironment().from_collection([1])
    with pytest.raises(WrongTypeError, match="on_error"):
        stream.sink_to(print, on_error="skip")  # type: ignore[arg-type]


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(WrongTypeError, match="function"):
        FunctionSink(5)
