"""An async operator on a real mailbox loop, driven step by step."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from aiomailbox.clock import clock_of
from aiomailbox.mailbox.control import MailboxController
from aiomailbox.mailbox.processor import MailboxProcessor
from aiomailbox.operators.async_io.operator import AsyncMapOperator
from aiomailbox.operators.core.operator import Operator, Pending
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.records.events import StreamRecord, Watermark
from aiomailbox.records.run import ListRun
from aiomailbox.runtime.limiter import LimiterService
from aiomailbox.testing.context import TestRuntimeContext
from aiomailbox.testing.harness import RecordingOutput


class DrivenContext(TestRuntimeContext):
    """A context whose clock, limiters and mailbox are real."""

    __test__ = False

    def __init__(self, limiters: LimiterService, **settings: Any) -> None:
        super().__init__("enrich", uid="enrich-1", **settings)
        self.clock = clock_of(asyncio.get_running_loop())  # type: ignore[assignment]
        self._service = limiters

    def limiter(self, limit: RateLimit) -> Any:
        return self._service.get(limit)


class Driven:
    """An operator that runs as the only one of a task."""

    def __init__(self, operator: Operator, limiters: LimiterService, **settings: Any):
        self.operator = operator
        self.context = DrivenContext(limiters, **settings)
        self.output = RecordingOutput()
        self.processor = MailboxProcessor(self._action)
        self.context.mailbox = self.processor.executor(0)
        self._inputs: deque[Callable[[MailboxController], Pending]] = deque()
        self._resume: Callable[[], None] | None = None
        operator.setup(self.context, self.output)  # type: ignore[arg-type]
        self.runner: asyncio.Task[None] | None = None
        self.after: Driven | None = None

    async def start(self, state: OperatorSnapshot | None = None) -> Driven:
        if state is not None:
            self.operator.restore(state)
        self.runner = asyncio.create_task(self._run(), name="runner")
        await asyncio.sleep(0)
        return self

    async def _run(self) -> None:
        self.processor.mailbox.bind_owner()
        opened = self.operator.open()
        if opened is not None:
            await opened
        await self.processor.run_mailbox_loop()

    def _action(self, controller: MailboxController) -> Pending:
        if not self._inputs:
            self._resume = controller.suspend_default_action().resume
            return None
        return self._inputs.popleft()(controller)

    def _give(self, step: Callable[[MailboxController], Pending]) -> None:
        self._inputs.append(step)
        resume, self._resume = self._resume, None
        if resume is not None:
            resume()

    def send(self, values: Iterable[Any], timestamps: list[int] | None = None) -> None:
        run = ListRun(list(values), timestamps)
        self._give(lambda _: self.operator.process_run(run))

    def watermark(self, timestamp_ms: int) -> None:
        self._give(lambda _: self.operator.process_watermark(timestamp_ms))

    def end(self) -> None:
        self._give(self._end)

    async def _end(self, controller: MailboxController) -> None:
        for driven in (self, self.after):
            pending = None if driven is None else driven.operator.end_input()
            if pending is not None:
                await pending
        controller.all_actions_completed()

    async def finish(self) -> list[Any]:
        """End the input, wait for everything, and return the values."""
        self.end()
        assert self.runner is not None
        await self.runner
        return self.values

    async def close(self) -> None:
        if self.runner is not None and not self.runner.done():
            self.processor.cancel()
            self.runner.cancel()
            await asyncio.wait([self.runner])
        closed = self.operator.close()
        if closed is not None:
            await closed
        assert all(task.done() for task in self.context.tasks), "a task is left"

    @property
    def values(self) -> list[Any]:
        elements = self.output.elements
        return [item.value for item in elements if isinstance(item, StreamRecord)]

    @property
    def shown(self) -> list[Any]:
        """Values, and watermarks as ``"wm 5"``."""
        return [
            f"wm {item.timestamp_ms}"
            if isinstance(item, Watermark)
            else item.value
            if isinstance(item, StreamRecord)
            else item
            for item in self.output.elements
        ]

    @property
    def metrics(self) -> dict[str, Any]:
        return self.context.metrics.snapshot()


Drive = Callable[..., Awaitable[Driven]]


@pytest.fixture
async def limiters() -> LimiterService:
    return LimiterService(clock_of(asyncio.get_running_loop()))


@pytest.fixture
async def drive(limiters: LimiterService, tmp_path: Path) -> AsyncIterator[Drive]:
    """Return what starts an operator; all are closed at the end, and leave no task.

    Args:
        limiters: The job's.
        tmp_path: Where some keep files, which go when the operators are closed.
    """
    started: list[Driven] = []
    # What a timer or a callback raises would only be logged.
    raised: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: raised.append(context)
    )

    async def start(
        fn: Any,
        *,
        state: OperatorSnapshot | None = None,
        context: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> Driven:
        arguments.setdefault("concurrency", 10)
        operator = AsyncMapOperator(fn, **arguments)
        driven = Driven(operator, limiters, **(context or {}))
        started.append(driven)
        return await driven.start(state)

    yield start
    for driven in started:
        await driven.close()
    limiters.close()
    assert raised == []


class ChainedOutput:
    """Hands everything to the next operator, by call."""

    def __init__(self, target: Driven) -> None:
        self.availability = target.output.availability
        self.emit_run = target.operator.process_run
        self.emit_watermark = target.operator.process_watermark
        self.emit_status = target.operator.process_status


@pytest.fixture
async def chain(limiters: LimiterService) -> AsyncIterator[Any]:
    """Return what starts two operators in one task, the second behind the first."""
    started: list[Driven] = []

    async def start(
        arguments: list[dict[str, Any]], state: OperatorSnapshot | None = None
    ) -> list[Driven]:
        first, second = (
            Driven(AsyncMapOperator(**each), limiters) for each in arguments
        )
        second.context.mailbox = first.processor.executor(1)
        first.operator.output = ChainedOutput(second)  # type: ignore[assignment]
        second.operator.open()
        started.extend([first, second])
        first.after = second
        await first.start(state)
        return [first, second]

    yield start
    for driven in started:
        await driven.close()


class Gates:
    """A function whose calls end when the test says so."""

    def __init__(self) -> None:
        self.called: list[Any] = []
        self._open: dict[Any, asyncio.Future[Any]] = {}

    async def __call__(self, value: Any) -> Any:
        self.called.append(value)
        future = self._open[value] = asyncio.get_running_loop().create_future()
        return await future

    async def finish(self, value: Any, result: Any = None) -> None:
        self._open[value].set_result(value if result is None else result)
        await asyncio.sleep(0.001)

    async def fail(self, value: Any, error: BaseException) -> None:
        self._open[value].set_exception(error)
        await asyncio.sleep(0.001)

    async def cancel(self, value: Any) -> None:
        self._open[value].cancel()
        await asyncio.sleep(0.001)


@pytest.fixture
def gates() -> Gates:
    return Gates()
