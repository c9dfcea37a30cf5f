"""A pool of coroutines that make calls, so that a call needs no task of its own."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from aiomailbox.operators.async_io.entry import Call, Worker
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.supervision import end_tasks

__all__ = ["WorkerPool"]

_INTERRUPT_EVERY_S: Final = 1.0


class WorkerPool:
    """Makes calls in the order given, at most ``size`` of them at a time.

    A worker takes the next call as soon as its own has ended, without a turn of the
    event loop between; one without work sleeps until there is some. Workers are
    started when they are needed.

    Args:
        context: Starts the workers.
        size: Calls at a time.
        attempt: Makes one attempt of a call, and does not raise except to end the
            worker.
    """

    __slots__ = (
        "_attempt",
        "_context",
        "_idle",
        "_size",
        "_todo",
        "_workers",
        "closing",
        "in_flight",
    )

    def __init__(
        self,
        context: RuntimeContext,
        size: int,
        attempt: Callable[[Worker, Call], Awaitable[None]],
    ) -> None:
        self._context = context
        self._size = size
        self._attempt = attempt
        self._todo: deque[Call] = deque()
        self._idle: list[asyncio.Future[None]] = []
        # In the order in which they were started.
        self._workers: dict[Worker, None] = {}
        self.in_flight: int = 0
        self.closing: bool = False

    @property
    def size(self) -> int:
        """Calls at a time."""
        return self._size

    @property
    def waiting(self) -> int:
        """Calls that wait for a worker."""
        return len(self._todo)

    @property
    def workers(self) -> Iterable[Worker]:
        """Those that have been started, with or without a call."""
        return self._workers

    def submit(self, call: Call) -> None:
        """Make a call after those that wait already."""
        self._todo.append(call)
        self._wake_one()

    def submit_first(self, call: Call) -> None:
        """Make a call before those that wait already."""
        self._todo.appendleft(call)
        self._wake_one()

    async def close(self) -> None:
        """Cancel all calls and wait until they have ended."""
        self.closing = True
        self._todo.clear()
        tasks = [worker.task for worker in self._workers]
        await end_tasks(tasks, every_s=_INTERRUPT_EVERY_S)

    def _wake_one(self) -> None:
        if self._idle:
            waiter = self._idle.pop()
            if not waiter.done():
                waiter.set_result(None)
        elif len(self._workers) < self._size and not self.closing:
            self._start_worker()

    def _start_worker(self) -> None:
        worker = Worker()
        self._workers[worker] = None
        worker.task = self._context.spawn(
            self._work(worker), name=f"call {len(self._workers)}"
        )
        worker.task.add_done_callback(lambda _: self._workers.pop(worker, None))

    async def _work(self, worker: Worker) -> None:
        todo = self._todo
        attempt = self._attempt
        while True:
            if not todo:
                await self._sleep()
                continue
            call = todo.popleft()
            if call.settled:
                continue
            self.in_flight += 1
            worker.call = call
            try:
                await attempt(worker, call)
            finally:
                worker.call = None
                self.in_flight -= 1

    async def _sleep(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(waiter)
        await waiter
