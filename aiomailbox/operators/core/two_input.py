"""Operators with two inputs."""

from __future__ import annotations

from typing import Any

from aiomailbox.eventtime.combined import InputWatermarks
from aiomailbox.operators.core.contract import Input, Operator, Pending, _each, then
from aiomailbox.records.elements import LatencyMarker, Watermark, WatermarkStatus
from aiomailbox.records.run import Run
from aiomailbox.state.rescale import OperatorStateSnapshot, RedistributionMode


class TwoInputOperator(Operator):
    """The base of operators with two inputs, the first and the second.

    Subclasses override `process_run1` and `process_run2`, or the per-record form. The
    operator's event time is the minimum over the inputs that are not idle;
    `process_watermark` and `process_status` get what follows from both.

    Concept:
        Flink, ``TwoInputStreamOperator``.
    """

    def __init__(self) -> None:
        self._watermarks = InputWatermarks(2)
        self._inputs: list[Input] = [_FirstInput(self), _SecondInput(self)]

    @property
    def inputs(self) -> list[Input]:
        """The first and the second input."""
        return self._inputs

    @property
    def current_watermark(self) -> int:
        """The operator's event time, milliseconds."""
        return self._watermarks.watermark

    def snapshot_own(self) -> OperatorStateSnapshot:
        """Return how far each input is."""
        return (
            super()
            .snapshot_own()
            .with_list(
                "inputs", [self._watermarks.snapshot()], RedistributionMode.MERGE
            )
        )

    def restore_own(self, own: OperatorStateSnapshot) -> None:
        """Go on with each input where it was."""
        super().restore_own(own)
        self._watermarks.restore(own.elements("inputs"))

    def may_leave_rest(self, index: int) -> bool:
        """Whether it may leave the rest of a run: on both inputs."""
        return True

    def process_run1(self, run: Run) -> Pending:
        """Process records of the first input; by default one by one."""
        return _each(self.process_element1, run, self.interruption)

    def process_run2(self, run: Run) -> Pending:
        """Process records of the second input; by default one by one."""
        return _each(self.process_element2, run, self.interruption)

    def process_element1(self, value: Any, timestamp: int | None) -> Pending:
        """Process one record of the first input."""
        raise TypeError(f"{type(self).__name__} does not process its first input")

    def process_element2(self, value: Any, timestamp: int | None) -> Pending:
        """Process one record of the second input."""
        raise TypeError(f"{type(self).__name__} does not process its second input")

    def end_input1(self) -> Pending:
        """Be notified that no more records come on the first input."""
        return None

    def end_input2(self) -> Pending:
        """Be notified that no more records come on the second input."""
        return None

    def repeat_progress(self) -> Pending:
        """Pass on once more how far event time had come, and whether it stands still."""
        pending = super().repeat_progress()
        if not self._watermarks.is_idle:
            return pending
        return then(pending, self.process_status, WatermarkStatus.IDLE)

    def input_watermark(self, timestamp_ms: int, index: int) -> Pending:
        """Take the watermark of an input."""
        return self._process(self._watermarks.input_watermark(timestamp_ms, index))

    def input_status(self, status: WatermarkStatus, index: int) -> Pending:
        """Take the status of an input."""
        return self._process(self._watermarks.input_status(status, index))

    def _process(self, progress: tuple[Watermark | WatermarkStatus, ...]) -> Pending:
        pending: Pending = None
        for element in progress:
            if isinstance(element, Watermark):
                pending = then(pending, self.process_watermark, element.timestamp_ms)
            else:
                pending = then(pending, self.process_status, element)
        return pending


class _OperatorInput:
    """What both inputs have in common."""

    __slots__ = ("_operator",)
    index: int

    def __init__(self, operator: TwoInputOperator) -> None:
        self._operator = operator

    def process_watermark(self, timestamp_ms: int) -> Pending:
        return self._operator.input_watermark(timestamp_ms, self.index)

    def process_status(self, status: WatermarkStatus) -> Pending:
        return self._operator.input_status(status, self.index)

    def process_latency_marker(self, marker: LatencyMarker) -> Pending:
        return self._operator.process_latency_marker(marker)


class _FirstInput(_OperatorInput):
    __slots__ = ()
    index = 0

    def process_run(self, run: Run) -> Pending:
        return self._operator.process_run1(run)

    def end_input(self) -> Pending:
        return self._operator.end_input1()


class _SecondInput(_OperatorInput):
    __slots__ = ()
    index = 1

    def process_run(self, run: Run) -> Pending:
        return self._operator.process_run2(run)

    def end_input(self) -> Pending:
        return self._operator.end_input2()
