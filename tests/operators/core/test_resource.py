"""What ``open`` of a function acquires: once a subtask, for all calls, released at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from aiomailbox.errors import UserFunctionError
from aiomailbox.operators.core.operator import Operator
from aiomailbox.operators.core.resources import FunctionLife
from aiomailbox.operators.functions.process import (
    BroadcastProcessFunction,
    BroadcastProcessOperator,
    CoProcessFunction,
    CoProcessOperator,
    KeyedBroadcastProcessFunction,
    KeyedBroadcastProcessOperator,
    KeyedCoProcessFunction,
    KeyedCoProcessOperator,
    KeyedProcessFunction,
    KeyedProcessOperator,
    ProcessFunction,
    ProcessOperator,
)
from aiomailbox.state.descriptors import MapStateDescriptor
from aiomailbox.testing import OneInputHarness, OperatorHarness

RULES = MapStateDescriptor("rules")


class Client:
    """Something that is entered and left."""

    def __init__(self) -> None:
        self.events: list[str] = []

    async def __aenter__(self) -> Client:
        self.events.append("entered")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.events.append("left")


class Opens:
    """Opens the client and shows that calls have it."""

    client: Client

    def open(self, context: Any) -> Any:
        return self.client

    def show(self, value: Any, context: Any, out: Any) -> None:
        out.collect((value, context.resource is self.client))

    process_element = process_element1 = process_element2 = show
    process_broadcast_element = show

    def close(self) -> None:
        self.client.events.append("closed")


def made(kind: type) -> Any:
    function: Any = type("Function", (Opens, kind), {})()
    function.client = Client()
    return function


MAKERS: list[tuple[type, Callable[[Any], Operator]]] = [
    (ProcessFunction, ProcessOperator),
    (KeyedProcessFunction, lambda f: KeyedProcessOperator(str, f)),
    (CoProcessFunction, CoProcessOperator),
    (KeyedCoProcessFunction, lambda f: KeyedCoProcessOperator(str, str, f)),
    (BroadcastProcessFunction, lambda f: BroadcastProcessOperator(f, [RULES])),
    (
        KeyedBroadcastProcessFunction,
        lambda f: KeyedBroadcastProcessOperator(str, f, [RULES]),
    ),
]


@pytest.mark.parametrize(("kind", "maker"), MAKERS)
async def test_every_process_function_has_what_its_open_returned(
    kind: type, maker: Any
) -> None:
    function = made(kind)
    async with OperatorHarness(maker(function), keyed=True) as harness:
        for one in harness.inputs:
            await harness.run(one.process_run, ["a", "b"])
        assert len(harness.values) == 2 * len(harness.inputs)
        assert all(has_it for _, has_it in harness.values)
        assert function.client.events == ["entered"]
    assert function.client.events == ["entered", "left", "closed"]


@pytest.mark.parametrize("form", ["async def", "generator", "sync manager"])
async def test_open_may_be_async_or_a_generator_or_give_a_sync_manager(
    form: str,
) -> None:
    events: list[str] = []

    class Function(ProcessFunction):
        if form == "async def":

            async def open(self, context: Any) -> Any:
                return Client()

        elif form == "generator":

            @contextlib.asynccontextmanager
            async def open(self, context: Any) -> Any:
                events.append("entered")
                yield "client"
                events.append("left")

        else:

            @contextlib.contextmanager
            def open(self, context: Any) -> Any:
                events.append("entered")
                yield "client"
                events.append("left")

        def process_element(self, value: Any, context: Any, out: Any) -> None:
            out.collect(context.resource)

    async with OneInputHarness(ProcessOperator(Function())) as harness:
        await harness.run(harness.process_element, 1)
        (resource,) = harness.values
    assert isinstance(resource, Client) or resource == "client"
    assert events in ([], ["entered", "left"])
    if isinstance(resource, Client):
        assert resource.events == ["entered", "left"]


async def test_another_result_of_open_is_refused() -> None:
    class Function(ProcessFunction):
        def open(self, context: Any) -> Any:
            return 5

        def process_element(self, value: Any, context: Any, out: Any) -> None:
            """Do nothing."""

    harness = OneInputHarness(ProcessOperator(Function()))
    with pytest.raises(UserFunctionError, match="a context manager"):
        await harness.run(harness.open)
    await harness.run(harness.close)


async def test_a_function_is_closed_even_if_its_resource_cannot_be_left() -> None:
    class Stuck:
        async def __aenter__(self) -> None: ...

        async def __aexit__(self, *_: object) -> None:
            raise OSError("stuck")

    closed = []

    class Function:
        def open(self, context: Any) -> Any:
            return Stuck()

        def close(self) -> None:
            closed.append(True)

    life = FunctionLife(Function())
    opened = life.open(None)
    assert opened is not None
    await opened
    with pytest.raises(OSError, match="stuck"):
        await life.close()  # type: ignore[misc]
    assert closed == [True]
    assert life.close() is None


def test_what_was_never_opened_is_not_closed() -> None:
    assert FunctionLife(made(ProcessFunction)).close() is None
