"""A source's reader as the input of a task."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence

from aiomailbox.availability import Availability
from aiomailbox.eventtime.valve import ValveSnapshot
from aiomailbox.operators.core.contract import Pending
from aiomailbox.operators.sources.operator import SourceOperator
from aiomailbox.operators.sources.source import InputStatus
from aiomailbox.records import Element
from aiomailbox.task.slices import SliceSize


class SourceInput:
    """Polls a source operator, one run at a time.

    Concept:
        Flink, ``StreamTaskSourceInput``.
    """

    def __init__(self, operator: SourceOperator, size: SliceSize) -> None:
        self.availability = Availability(available=True)
        self.pending: Pending = None
        self._operator = operator
        self._size = size
        self._emitted = operator.context.metrics.counter("num_records_out")
        metrics = operator.context.metrics
        metrics.gauge("current_output_watermark", lambda: operator.watermark)
        metrics.gauge("is_idle", lambda: int(operator.is_idle))

    def start(self) -> None:
        """Take the reader's availability, which exists once the operator is open."""
        self.availability = self._operator.availability

    def emit_next(self) -> InputStatus:
        """Read and process at most one run."""
        size, emitted = self._size, self._emitted
        before = emitted.value
        self._operator.limit_runs(size.allowed())
        started = size.start()
        status, pending = self._operator.poll()
        if pending is not None:
            self.pending = self._stop_after(pending, started, before)
        elif emitted.value != before:
            size.stop(started, emitted.value - before)
        return status

    async def _stop_after(
        self, pending: Awaitable[None], started: float, before: int
    ) -> None:
        await pending
        count = self._emitted.value - before
        if count:
            self._size.stop(started, count, awaited=True)

    def end_of_event_time(self) -> Pending:
        """Emit the last watermark."""
        return self._operator.emit_max_watermark()

    def event_times(self) -> tuple[ValveSnapshot, ...]:
        """Return nothing: a source keeps its event time itself."""
        return ()

    def restore(self, times: tuple[ValveSnapshot, ...]) -> None:
        """Take over nothing."""

    def repeat_status(self) -> Pending:
        """Say nothing: a source does it itself, with how far event time had come."""
        return None

    def restore_in_flight(self, channels: Sequence[Iterable[Element]]) -> None:
        """Take over nothing: a source has no channels."""

    @property
    def is_recovered(self) -> Availability:
        """Always true."""
        return Availability(available=True)

    def close(self) -> Pending:
        """The chain closes the operator, and it the reader: nothing to do."""
        return None
