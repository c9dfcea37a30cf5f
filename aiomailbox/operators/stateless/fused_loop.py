"""Runs a chain of stateless functions over runs, in one compiled loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator, Sequence
from types import CoroutineType
from typing import Any, Final, NoReturn, Protocol

from aiomailbox.errors import RecordTypeError
from aiomailbox.operators.core.callables import TAKEN_APART, describe, taken_apart
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.contract import Output, Pending, then
from aiomailbox.operators.core.failures import RecordFailures, report_all
from aiomailbox.operators.core.on_error import ErrorAction, OnError
from aiomailbox.operators.stateless.fused_source import (
    LoopShape,
    StageKind,
    compile_loop,
    last_change,
)
from aiomailbox.operators.stateless.pieces import next_piece_length
from aiomailbox.records.run import RUN_LENGTH_MAX, ListRun, Run

# About a millisecond of emitting: then the event loop gets its turn.
_RECORDS_PER_TURN: Final = 4 * RUN_LENGTH_MAX

_ASYNC_REMEDY: Final = (
    "An async def function: pass the function itself instead of calling it in a "
    "lambda, or use map_async."
)

# Values, timestamps, and whether another piece follows.
_Piece = tuple[list[Any], list[int] | None, bool]


class Stage(Protocol):
    """One function of the chain, with what is done when it raises."""

    function: Callable[..., Any]
    on_error: OnError
    context: RuntimeContext

    @property
    def kind(self) -> StageKind:
        """What is done with the function's result."""
        ...

    def failures(self) -> RecordFailures:
        """Return a collector of the stage's failed records."""
        ...


class _StageCounts:
    """Counts what goes from each stage to the next, as operators on their own would.

    Args:
        stages: The chain, at least two.

    Attributes:
        taken: How many records the first stage was given.
        passed: Of each filter before the last change those that it dropped, of each
            flat_map those that it added.
        failed: The records of each stage for which its function raised.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.taken = 0
        self.passed = [0] * len(stages)
        self.failed = [0] * len(stages)
        self._emitted = 0
        self._kinds = [stage.kind for stage in stages]
        self._last_change = last_change(self._kinds)
        metrics = [stage.context.metrics for stage in stages]
        # The first stage's input and the last one's output are counted by the task.
        self._out = [one.counter("num_records_out") for one in metrics[:-1]]
        self._in = [one.counter("num_records_in") for one in metrics[1:]]

    def emit(self, count: int) -> None:
        """Add what the last stage has emitted, and show all counts."""
        self._emitted += count
        flow = self.taken
        for stage in range(self._last_change):
            if self._kinds[stage] is StageKind.FLAT_MAP:
                flow = self.passed[stage]
            else:
                flow -= self.passed[stage] + self.failed[stage]
            self._show(stage, flow)
        flow = self._emitted
        for stage in range(len(self._kinds) - 2, self._last_change - 1, -1):
            flow += self.failed[stage + 1]
            self._show(stage, flow)

    def _show(self, stage: int, count: int) -> None:
        self._out[stage].value = count
        self._in[stage].value = count


class FusedLoop:
    """A chain of synchronous map, filter and flat_map functions as one loop.

    Args:
        stages: The chain, at least one.
        output: Where the last stage's results go.

    Attributes:
        stages: The chain.

    Cost:
        Per record only the calls of the functions and one ``list.append``.
    """

    def __init__(self, stages: Sequence[Stage], output: Output) -> None:
        self.stages: list[Stage] = list(stages)
        self._kinds = tuple(stage.kind for stage in stages)
        self._failures = [stage.failures() for stage in stages]
        self._output = output
        self._mailbox = self.stages[0].context.mailbox
        self._counts = _StageCounts(self.stages) if len(self.stages) > 1 else None
        self._expands = StageKind.FLAT_MAP in self._kinds
        # Timestamps of a chain that neither drops nor adds records stay as they are.
        self._keeps_all = all(
            stage.kind is StageKind.MAP and stage.on_error.action is ErrorAction.FAIL
            for stage in stages
        )
        self._fatal: BaseException | None = None
        self._waiting = False
        self._checked = False
        self._piece_length = 1
        self._plain_loop: Callable[..., Any] | None = None
        self._timed_loop: Callable[..., Any] | None = None

    def process(self, run: Run) -> Pending:
        """Process a run and emit what became of it."""
        timestamps = run.timestamps
        if self._counts is not None:
            self._counts.taken += len(run)
        if timestamps is None or self._keeps_all:
            loop = self._plain_loop or self._loop(timed=False)
        else:
            loop = self._timed_loop or self._loop(timed=True)
        if self._expands:
            return self._emit_pieces(loop(run.values, timestamps))
        values, timestamps = loop(run.values, timestamps)
        return self._emit(values, timestamps)

    def _loop(self, *, timed: bool) -> Callable[..., Any]:
        # Only a loop of the first run is checked, and it is not kept.
        checked = not self._checked
        self._checked = True
        factory = compile_loop(LoopShape(self._kinds, timed, checked))
        functions = [stage.function for stage in self.stages]
        loop = factory(
            self._failed,
            self._wrong,
            self._iterable,
            lambda: self._piece_length,
            [] if self._counts is None else self._counts.passed,
            functions,
        )
        if checked:
            return loop
        if timed:
            self._timed_loop = loop
        else:
            self._plain_loop = loop
        return loop

    def _emit(self, values: list[Any], timestamps: list[int] | None) -> Pending:
        pending: Pending = None
        if self._waiting:
            self._waiting = False
            pending = report_all(self._failures)
        if self._counts is not None:
            self._counts.emit(len(values))
        if not values:
            return pending
        run = ListRun(values, timestamps)
        if pending is None:
            return self._output.emit_run(run)
        return then(pending, self._output.emit_run, run)

    def _emit_pieces(self, pieces: Generator[_Piece]) -> Pending:
        pending: Pending = None
        emitted = 0
        # A flat_map of a huge record must not block the event loop.
        while emitted < _RECORDS_PER_TURN and pending is None:
            values, timestamps, has_more = next(pieces)
            emitted += len(values)
            pending = self._emit_piece(values, timestamps)
            if not has_more:
                return pending
            # Asked between pieces: what a piece gives was bounded before it began.
            if not self._output.availability.available:
                break
        return self._emit_later(pieces, pending)

    def _emit_piece(self, values: list[Any], timestamps: list[int] | None) -> Pending:
        pending = self._emit(values, timestamps)
        self._piece_length = next_piece_length(
            self._piece_length,
            len(values),
            fitted=self._output.availability.available,
        )
        return pending

    async def _emit_later(self, pieces: Generator[_Piece], pending: Pending) -> None:
        # Closed here: the functions' `finally` must run now, not with the garbage.
        with contextlib.closing(pieces):
            has_more = True
            while has_more:
                if pending is not None:
                    await pending
                await asyncio.sleep(0)
                if not self._output.availability.available:
                    await self._mailbox.wait_until(self._output.availability)
                values, timestamps, has_more = next(pieces)
                pending = self._emit_piece(values, timestamps)
            if pending is not None:
                await pending

    def _failed(
        self, stage: int, record: Any, timestamp: int | None, error: BaseException
    ) -> None:
        if error is self._fatal:
            # Raised for a later stage, inside the results of this one.
            raise error
        # A function before has given it; the failure here is only what came of that.
        if type(record) is CoroutineType:
            self._wrong(self._maker_of(stage), record, [])
        if self._counts is not None:
            self._counts.failed[stage] += 1
        try:
            self._failures[stage].take(record, timestamp, error)
        except Exception as fatal:
            self._fatal = fatal
            raise
        self._waiting = True

    def _wrong(self, stage: int, value: Any, out: list[Any]) -> None:
        for coroutine in (value, *out):
            if type(coroutine) is CoroutineType:
                coroutine.close()
        problem = "a record is a coroutine, which can be awaited only once"
        if stage >= 0:
            function = describe(self.stages[stage].function)
            problem = f"{function} returned a coroutine where a value is expected"
        self._raise_record_type(max(stage, 0), problem, _ASYNC_REMEDY)

    def _iterable(self, stage: int, results: Any) -> Any:
        if type(results) is CoroutineType:
            self._wrong(stage, results, [])
        if not hasattr(results, "__iter__") and not hasattr(results, "__getitem__"):
            function = describe(self.stages[stage].function)
            self._raise_record_type(
                stage,
                f"{function} returned {results!r}, which is not iterable",
                "Return a list (an empty one for no records) or write a generator.",
            )
        if isinstance(results, TAKEN_APART):
            problem, remedy = taken_apart(results)
            function = describe(self.stages[stage].function)
            self._raise_record_type(stage, f"{function} returned {problem}", remedy)
        return results

    def _raise_record_type(self, stage: int, problem: str, remedy: str) -> NoReturn:
        name = self.stages[stage].context.operator_name
        self._fatal = RecordTypeError(f"operator {name!r}", problem, remedy)
        raise self._fatal

    def _maker_of(self, stage: int) -> int:
        made = [k for k in range(stage) if self._kinds[k] is not StageKind.FILTER]
        return made[-1] if made else -1
