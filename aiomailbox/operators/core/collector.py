"""Collects what functions emit while they process a run."""

from __future__ import annotations

from typing import Any

from aiomailbox.operators.core.contract import Output, Pending, then
from aiomailbox.records import MIN_TIMESTAMP, ListRun, OutputTag


class Collector:
    """Takes results one by one and passes them on as runs.

    Results get the event time of the record or timer that is being processed.

    Args:
        output: Where `emit` passes the results on to.

    Attributes:
        timestamp: The event time that results get, milliseconds; `MIN_TIMESTAMP` for
            none. Set by the operator before each call of the function.

    Concept:
        Flink, ``Collector`` and ``TimestampedCollector``.

    Example:
        >>> from aiomailbox.testing.harness import RecordingOutput
        >>> output = RecordingOutput()
        >>> collector = Collector(output)
        >>> collector.timestamp = 7
        >>> collector.collect("a")
        >>> collector.emit()
        >>> output.elements
        [StreamRecord(value='a', timestamp=7)]
    """

    __slots__ = ("_output", "_sides", "_timestamps", "_values", "timestamp")

    def __init__(self, output: Output) -> None:
        self._output = output
        self._values: list[Any] = []
        self._timestamps: list[int] = []
        self._sides: dict[OutputTag, tuple[list[Any], list[int]]] = {}
        self.timestamp = MIN_TIMESTAMP

    def collect(self, value: Any) -> None:
        """Take a result."""
        self._values.append(value)
        self._timestamps.append(self.timestamp)

    def collect_side(self, tag: OutputTag, value: Any) -> None:
        """Take a result for a side output."""
        side = self._sides.get(tag)
        if side is None:
            side = self._sides[tag] = ([], [])
        side[0].append(value)
        side[1].append(self.timestamp)

    def emit(self) -> Pending:
        """Pass on what was taken since the last time, side outputs first."""
        pending: Pending = None
        if self._sides:
            pending = self._emit_sides()
        if not self._values:
            return pending
        run = _run(self._values, self._timestamps)
        self._values = []
        self._timestamps = []
        return then(pending, self._output.emit_run, run)

    def _emit_sides(self) -> Pending:
        sides, self._sides = self._sides, {}
        pending: Pending = None
        for tag, (values, timestamps) in sides.items():
            run = _run(values, timestamps)
            pending = then(pending, self._output.emit_side, tag, run)
        return pending


def _run(values: list[Any], timestamps: list[int]) -> ListRun:
    # Nearly always the first one tells; counting is for records with and without.
    has_none = timestamps[0] == MIN_TIMESTAMP
    if has_none and timestamps.count(MIN_TIMESTAMP) == len(timestamps):
        return ListRun(values, None)
    return ListRun(values, timestamps)
