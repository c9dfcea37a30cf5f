"""A keyed async operator on a real mailbox loop, driven step by step."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import pytest

from aiomailbox.clock import clock_of
from aiomailbox.mailbox.control import MailboxController
from aiomailbox.mailbox.processor import MailboxProcessor
from aiomailbox.operators.async_state.operator import KeyedAsyncProcessOperator
from aiomailbox.operators.core.operator import Pending
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.records.events import StreamRecord, Watermark
from aiomailbox.records.run import ListRun
from aiomailbox.testing.context import TestRuntimeContext
from aiomailbox.testing.harness import RecordingOutput


class Driven:
    """An operator that runs as the only one of a task."""

    def __init__(self, operator: KeyedAsyncProcessOperator, **settings: Any) -> None:
        self.operator = operator
        self.context = TestRuntimeContext("async", keyed=True, **settings)
        self.context.clock = clock_of(asyncio.get_running_loop())  # type: ignore[assignment]
        self.output = RecordingOutput()
        self.processor = MailboxProcessor(self._action)
        self.context.mailbox = self.processor.executor(0)
        self.waiting: deque[Callable[[], Pending]] = deque()
        self.busy = False
        self._resume: Callable[[], None] | None = None
        operator.setup(self.context, self.output)  # type: ignore[arg-type]
        self.runner: asyncio.Task[None] | None = None

    def start(self, state: OperatorSnapshot | None = None) -> Driven:
        if state is not None:
            self.operator.restore(state)
        self.runner = asyncio.create_task(self._run(), name="runner")
        return self

    async def _run(self) -> None:
        self.processor.mailbox.bind_owner()
        opened = self.operator.open()
        if opened is not None:
            await opened
        await self.processor.run_mailbox_loop()

    def _action(self, controller: MailboxController) -> Pending:
        if not self.waiting:
            self._resume = controller.suspend_default_action().resume
            return None
        pending = self.waiting.popleft()()
        if pending is None:
            return None
        self.busy = True
        return self._wait(pending)

    async def _wait(self, pending: Awaitable[None]) -> None:
        await pending
        self.busy = False

    def give(self, step: Callable[[], Pending]) -> None:
        self.waiting.append(step)
        resume, self._resume = self._resume, None
        if resume is not None:
            resume()

    def send(self, values: Iterable[Any], timestamps: list[int] | None = None) -> None:
        run = ListRun(list(values), timestamps)
        self.give(lambda: self.operator.process_run(run))

    def watermark(self, timestamp_ms: int) -> None:
        self.give(lambda: self.operator.process_watermark(timestamp_ms))

    def end(self) -> asyncio.Future[None]:
        """End the input; the future is done when everything has been emitted."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def end() -> None:
            pending = self.operator.end_input()
            if pending is not None:
                await pending
            ended.set_result(None)

        self.give(end)
        return ended

    @property
    def values(self) -> list[Any]:
        return [e.value for e in self.output.elements if isinstance(e, StreamRecord)]

    @property
    def shown(self) -> list[Any]:
        """Values, and watermarks as ``wm 5``."""
        return [
            f"wm {element.timestamp_ms}"
            if isinstance(element, Watermark)
            else element.value
            for element in self.output.elements
        ]

    async def close(self) -> None:
        if self.runner is not None and not self.runner.done():
            self.processor.cancel()
            self.runner.cancel()
            await asyncio.wait([self.runner])
        pending = self.operator.close()
        if pending is not None:
            await pending


@pytest.fixture
async def drive() -> AsyncIterator[Callable[..., Driven]]:
    """Start an operator; it is closed at the end of the test."""
    started: list[Driven] = []

    def start(
        function: Any,
        *,
        state: OperatorSnapshot | None = None,
        subtask: Any = None,
        **settings: Any,
    ) -> Driven:
        settings.setdefault("concurrency", 8)
        settings.setdefault("key", lambda value: value[0])
        key = settings.pop("key")
        operator = KeyedAsyncProcessOperator(key, function, **settings)
        driven = Driven(operator, **(subtask or {})).start(state)
        started.append(driven)
        return driven

    yield start
    for driven in started:
        await driven.close()


class Gates:
    """A function that waits for each record until a test lets it go on."""

    def __init__(self) -> None:
        self.called: list[Any] = []
        self.cancelled: list[Any] = []
        self._open: dict[Any, asyncio.Future[None]] = {}

    async def wait(self, value: Any) -> None:
        self.called.append(value)
        gate = self._open[value] = asyncio.get_running_loop().create_future()
        try:
            await gate
        except asyncio.CancelledError:
            self.cancelled.append(value)
            raise

    async def finish(self, value: Any, error: Exception | None = None) -> None:
        gate = self._open.pop(value)
        if error is None:
            gate.set_result(None)
        else:
            gate.set_exception(error)
        await asyncio.sleep(0.001)


@pytest.fixture
def gates() -> Gates:
    return Gates()
