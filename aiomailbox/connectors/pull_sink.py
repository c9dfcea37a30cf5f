"""The sink behind ``collect``, ``take`` and ``async for``: hands runs to the caller."""

from __future__ import annotations

from aiomailbox.connectors.immediate_writer import ImmediateWriter
from aiomailbox.operators import (
    Committer,
    CommitterContext,
    Pending,
    RuntimeContext,
    SinkWriter,
)
from aiomailbox.records import Run


class PullSink:
    """Leaves results in the job's hand-over of a name; whoever runs the job pulls.

    Args:
        handover: The name.
    """

    # Whoever pulls is there.
    stays_in_parent = True

    def __init__(self, handover: str) -> None:
        self._handover = handover

    def create_writer(self, context: RuntimeContext) -> SinkWriter:
        """Create the writer of one subtask."""
        return PullWriter(self._handover, context)

    def create_committer(self, context: CommitterContext) -> Committer | None:
        """Nothing to commit: what is pulled is gone."""
        return None


class PullWriter(ImmediateWriter):
    """Offers each run, and waits while the consumer has enough."""

    __slots__ = ("_context", "_handover")

    def __init__(self, name: str, context: RuntimeContext) -> None:
        self._context = context
        self._handover = context.handover(name)

    def write_run(self, run: Run) -> Pending:
        """Hand the run over; the awaitable waits until there is room for the next."""
        return None if self._handover.offer(run) else self._wait_for_room()

    async def _wait_for_room(self) -> None:
        await self._context.mailbox.yield_until(self._handover.writable())
