"""A function as a sink."""

from __future__ import annotations

import asyncio

import pytest

from aiomailbox.connectors.function_sink import FunctionSink
from aiomailbox.errors import UserFunctionError, WrongTypeError
from aiomailbox.records import ListRun
from aiomailbox.testing import TestRuntimeContext


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


async def test_a_coroutine_that_nobody_would_await_is_refused() -> None:
    async def keep(value: int) -> None:
        """Never runs."""

    context = TestRuntimeContext("alert")
    writer = FunctionSink(lambda value: keep(value)).create_writer(context)
    with pytest.raises(UserFunctionError, match=r"'alert'.*coroutine"):
        writer.write_run(ListRun([1]))


async def test_a_failure_names_the_operator() -> None:
    def fail(value: int) -> None:
        raise ValueError(value)

    writer = FunctionSink(fail).create_writer(TestRuntimeContext("alert", uid="a1"))
    with pytest.raises(UserFunctionError, match="'alert'"):
        writer.write_run(ListRun([1]))


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(WrongTypeError, match="function"):
        FunctionSink(5)
