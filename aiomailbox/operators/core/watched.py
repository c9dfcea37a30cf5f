"""Inputs and outputs of operators that are watched for changes of records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from aiomailbox.operators.core.contract import Input, Operator, Output, Pending
from aiomailbox.operators.core.mutations import MutationCheck
from aiomailbox.records import ListRun, OutputTag, Run

__all__ = ["WatchedInput", "WatchedOutput", "watched_input"]


class WatchedInput:
    """An operator's input that is watched; everything else is as it was.

    Args:
        target: The input.
        check: The operator's.
    """

    def __init__(self, target: Input, check: MutationCheck) -> None:
        self._target = target
        self._check = check

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def process_run(self, run: Run) -> Pending:
        """Process records, and see what becomes of them."""
        if type(run) is ListRun:
            self._check.note(run.values)
        return self._work(self._target.process_run, run)

    def process_watermark(self, timestamp_ms: int) -> Pending:
        """Advance event time, and see what becomes of records that are kept."""
        return self._work(self._target.process_watermark, timestamp_ms)

    def _work(self, method: Callable[[Any], Pending], argument: Any) -> Pending:
        self._check.enter()
        try:
            pending = method(argument)
        except BaseException:
            self._check.leave_failed()
            raise
        if pending is not None:
            return self._finish(pending)
        self._check.leave()
        return None

    async def _finish(self, pending: Awaitable[None]) -> None:
        try:
            await pending
        except BaseException:
            self._check.leave_failed()
            raise
        self._check.leave()


def watched_input(operator: Operator, index: int) -> Input:
    """Return an input of an operator, watched if its records are."""
    target, check = operator.inputs[index], operator.context.mutations
    # It has all that an input has.
    return target if check is None else cast("Input", WatchedInput(target, check))


class WatchedOutput:
    """An operator's output that notes what is emitted; everything else is as it was.

    Args:
        output: The output.
        check: The operator's.
        is_source: Whether the operator has no input, so that it is always at work.

    Attributes:
        output: As given.
    """

    def __init__(
        self, output: Output, check: MutationCheck, *, is_source: bool
    ) -> None:
        self.output = output
        self._check = check
        self._is_source = is_source

    def __getattr__(self, name: str) -> Any:
        return getattr(self.output, name)

    def emit_run(self, run: Run) -> Pending:
        """Note the records and pass them on."""
        self._note(run)
        return self.output.emit_run(run)

    def emit_side(self, tag: OutputTag, run: Run) -> Pending:
        """Note the records and pass them on to a side output."""
        self._note(run)
        return self.output.emit_side(tag, run)

    def _note(self, run: Run) -> None:
        if type(run) is not ListRun:
            return
        if self._is_source:
            self._check.repeated(run.values)
        self._check.note(run.values)
