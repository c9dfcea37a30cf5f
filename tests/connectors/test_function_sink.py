"""A function as a sink."""

from __future__ import annotations

import asyncio
import threading
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


@pytest.mark.real_time
async def test_a_function_that_blocks_runs_in_a_thread_and_in_order() -> None:
    seen: list[tuple[int, str]] = []
    env = am.StreamExecutionEnvironment()

    def write(number: int) -> None:
        if number == 2:
            raise ValueError("no")
        seen.append((number, threading.current_thread().name))

    env.from_collection(range(4)).sink_to(write, run_in="thread", on_error=am.skip)
    await env.execute()
    assert [number for number, _ in seen] == [0, 1, 3]
    assert threading.main_thread().name not in {name for _, name in seen}


@pytest.mark.real_time
async def test_a_function_in_a_thread_that_gives_a_coroutine_fails_the_job() -> None:
    async def later(number: int) -> None: ...

    env = am.StreamExecutionEnvironment()
    env.from_collection([1]).sink_to(lambda number: later(number), run_in="thread")
    with pytest.raises(am.JobFailedError, match="coroutine"):
        await env.execute()


def test_what_no_thread_can_run_is_refused() -> None:
    async def later(number: int) -> None: ...

    stream = am.StreamExecutionEnvironment().from_collection([1])
    for sink in (later, FunctionSink(print)):
        with pytest.raises(am.UsageError):
            stream.sink_to(sink, run_in="thread")  # type: ignore[arg-type]
    with pytest.raises(am.InvalidArgumentError, match="run_in"):
        stream.sink_to(print, run_in="cellar")  # type: ignore[arg-type]
