"""An operator's output that gets other runs than the operator emits."""

from __future__ import annotations

from aiomailbox.operators.core.contract import Output, Pending
from aiomailbox.records.elements import LatencyMarker, OutputTag, WatermarkStatus
from aiomailbox.records.run import Run

__all__ = ["ForwardingOutput"]


class ForwardingOutput:
    """Passes on all but runs; a subclass says by ``emit_run`` what becomes of these.

    Args:
        output: The output.
    """

    def __init__(self, output: Output) -> None:
        self.availability = output.availability
        self._output = output

    def emit_watermark(self, timestamp_ms: int) -> Pending:
        """Pass on a watermark."""
        return self._output.emit_watermark(timestamp_ms)

    def emit_status(self, status: WatermarkStatus) -> Pending:
        """Pass on a status."""
        return self._output.emit_status(status)

    def emit_latency_marker(self, marker: LatencyMarker) -> Pending:
        """Pass on a latency marker."""
        return self._output.emit_latency_marker(marker)

    def emit_side(self, tag: OutputTag, run: Run) -> Pending:
        """Pass on records to a side output."""
        return self._output.emit_side(tag, run)
