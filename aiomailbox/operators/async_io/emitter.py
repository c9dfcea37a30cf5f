"""Emits what is ready, from mail of the operator and never beside it.

Theory of operation: calls end at any time, in coroutines of their own. They only mark
rows as done; emission is one mail that takes all that is ready by then, however many
calls ended meanwhile. No second mail is sent while one is on its way. While the output
has no room nothing is emitted, and the mail is sent again when it has.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable

from aiomailbox.errors import RejectedMailError
from aiomailbox.operators.async_io.queues import Ready, ResultQueue
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.contract import Output, Pending, then
from aiomailbox.operators.core.failures import RecordFailures
from aiomailbox.operators.core.on_error import OnError
from aiomailbox.records.elements import Watermark
from aiomailbox.records.run import RUN_LENGTH_MAX

__all__ = ["Emitter"]


class Emitter:
    """Takes what is ready out of a queue and passes it on.

    Args:
        context: The operator's context.
        output: The operator's output.
        queue: What is to be emitted.
        failures: The rows that were skipped, to be reported.
        on_error: Says where dead letters go.
    """

    def __init__(
        self,
        context: RuntimeContext,
        output: Output,
        queue: ResultQueue,
        failures: RecordFailures,
        on_error: OnError,
    ) -> None:
        self._context = context
        self._output = output
        self._queue = queue
        self._failures = failures
        self._tag = on_error.tag
        self._dead_letters = context.metrics.counter("dead_letters")
        self._mailed = False
        self._waiting_for_output = False
        self._changed: asyncio.Future[None] | None = None

    def request(self) -> None:
        """Emit what is ready, soon."""
        if self._mailed:
            return
        self._mailed = True
        # While the task is closing, what was not emitted is in its last snapshot.
        with contextlib.suppress(RejectedMailError):
            self._context.mailbox.execute(self._emit_ready, description="emit results")

    async def wait_for_change(self) -> None:
        """Run mail until something was emitted."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changed = changed
        await self._context.mailbox.yield_until(changed)

    def emit_control(self, control: object) -> Pending:
        """Pass a watermark or a status on."""
        if isinstance(control, Watermark):
            return self._output.emit_watermark(control.timestamp_ms)
        return self._output.emit_status(control)  # type: ignore[arg-type]

    def close(self) -> None:
        """Do not wait for the output any more."""
        self._output.availability.discard(self._on_output)

    def _emit_ready(self) -> Pending:
        self._mailed = False
        pending = self._emit_some()
        if pending is not None:
            return self._emit_after(pending)
        self._notify()
        return None

    async def _emit_after(self, pending: Awaitable[None] | None) -> None:
        while pending is not None:
            await pending
            pending = self._emit_some()
        self._notify()

    def _emit_some(self) -> Pending:
        """Emit until there is nothing ready, no room, or something to be awaited."""
        availability = self._output.availability
        while True:
            if not availability.available:
                if not self._waiting_for_output:
                    self._waiting_for_output = True
                    availability.on_available(self._on_output)
                return None
            ready = self._take()
            if ready is None:
                return None
            pending = self._emit(ready)
            if pending is not None:
                return pending

    def _take(self) -> Ready | None:
        return self._queue.take_ready(RUN_LENGTH_MAX)

    def _emit(self, ready: Ready) -> Pending:
        if self._failures.waiting:
            self._failures.report()
        pending = then(self._emit_letters(ready), self._emit_results, ready)
        for control in ready.controls:
            pending = then(pending, self.emit_control, control)
        return pending

    def _emit_results(self, ready: Ready) -> Pending:
        results = ready.results
        return self._output.emit_run(results) if len(results) else None

    def _emit_letters(self, ready: Ready) -> Pending:
        letters = ready.letters
        if self._tag is None or not len(letters):
            return None
        self._dead_letters.value += len(letters)
        return self._output.emit_side(self._tag, letters)

    def _on_output(self) -> None:
        self._waiting_for_output = False
        self.request()

    def _notify(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)
