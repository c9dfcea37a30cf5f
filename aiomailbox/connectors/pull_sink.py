"""The sink behind ``collect``, ``take`` and ``async for``: hands runs to the caller."""

from __future__ import annotations

from aiomailbox.connectors.immediate_writer import ImmediateWriter
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.contract import Pending
from aiomailbox.operators.sinks.sink import Committer, CommitterContext, SinkWriter
from aiomailbox.records.run import Run


class PullSink:
    """Leaves results in the job's hand-over of a name; the runner of the job pulls.

    Args:
        handover: The name.
    """

    # The caller that pulls is there.
    stays_in_parent = True
    takes_columns = True

    def __init__(self, handover: str) -> None:
        self._handover = handover

    def create_writer(self, context: RuntimeContext) -> SinkWriter:
        """Create the writer of one subtask."""
        return PullWriter(self._handover, context)

    def create_committer(self, context: CommitterContext) -> Committer | None:
        """Nothing to commit: what is pulled is gone."""
        return None


class PullWriter(ImmediateWriter):
    """Offers each run, and takes no input while the consumer has enough.

    Attributes:
        accepts: Available while there is room.
    """

    __slots__ = ("_context", "_handover", "accepts")

    def __init__(self, name: str, context: RuntimeContext) -> None:
        self._context = context
        self._handover = context.handover(name)
        self.accepts = self._handover.room

    def write_run(self, run: Run) -> Pending:
        """Hand the run over; where one record led to many runs, wait for room."""
        if not self.accepts.available:
            return self._write_later(run)
        self._handover.offer(run)
        return None

    async def _write_later(self, run: Run) -> None:
        while not self.accepts.available:
            await self._context.mailbox.yield_until(self._handover.writable())
        self._handover.offer(run)
