"""Neighbouring stateless operators as one loop, written at run time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from enum import Enum
from types import CoroutineType
from typing import Any, Final, NoReturn, Protocol

from aiomailbox.errors import RecordTypeError
from aiomailbox.operators.core.failures import Fallible, RecordFailures, report_all
from aiomailbox.operators.core.mutations import Worker
from aiomailbox.operators.core.operator import Output, Pending, then
from aiomailbox.operators.core.user_code import (
    UNDECIDED,
    UNMADE,
    ErrorAction,
    compiled,
    describe,
    is_one_record,
    looks_like_record,
    taken_apart,
    unmade,
    warn_of_tuple,
)
from aiomailbox.operators.core.watched import Verdicts, looked_at, repeated_objects
from aiomailbox.records.run import RUN_LENGTH_MAX, ListRun, Run

# Writes the source of one loop that applies a chain of functions to a run.
#
# Theory of operation: the functions become ``f0``, ``f1``, … and the value after stage
# ``k`` is ``v{k+1}``. Each call has a ``try`` of its own, which costs nothing until
# something is raised (CPython 3.11 and later): the stage that failed and what it was
# called with are known exactly, and the loop simply goes on with the next record. A
# chain with a flat_map becomes a generator of bounded pieces, so that it can be paused
# in the middle of a record; how many records the next piece has is asked before it.
#
# How many records passed each stage follows from what went in and came out, but between
# two stages that drop or add records. Only there they are counted: those that a filter
# drops, and those that a flat_map adds.
#
# With ``checked`` every result is looked at, which is done for the first run;
# afterwards the last value of a run speaks for all.


_INDENT: Final = "    "


# CPython nests 20 blocks; each flat_map is a loop inside a try.
_NESTED_MAX: Final = 4


_STAGES_MAX: Final = 64


class StageKind(Enum):
    """The use that a stage makes of its function's result."""

    MAP = "map"
    FILTER = "filter"
    FLAT_MAP = "flat_map"


def is_compilable(kinds: Sequence[StageKind]) -> bool:
    """Say whether one loop may have these stages; longer chains take several loops.

    Example:
        >>> is_compilable([StageKind.MAP] * 20), is_compilable([StageKind.FLAT_MAP] * 9)
        (True, False)
    """
    return len(kinds) <= _STAGES_MAX and kinds.count(StageKind.FLAT_MAP) <= _NESTED_MAX


@dataclass(frozen=True, slots=True)
class LoopShape:
    """The facts that a loop depends on, besides the functions themselves.

    Attributes:
        kinds: The stages, in order.
        timed: The loop carries the timestamps along.
        checked: The result of each call is looked at.
    """

    kinds: tuple[StageKind, ...]
    timed: bool
    checked: bool

    @property
    def expands(self) -> bool:
        """Whether one record may become many."""
        return StageKind.FLAT_MAP in self.kinds


def last_change(kinds: Sequence[StageKind]) -> int:
    """Return the last stage that drops or adds records; the last one if none does.

    Example:
        >>> last_change([StageKind.FILTER, StageKind.FLAT_MAP, StageKind.MAP])
        1
    """
    changing = [i for i, kind in enumerate(kinds) if kind is not StageKind.MAP]
    return changing[-1] if changing else len(kinds) - 1


LoopFactory = Callable[..., Callable[..., Any]]


def loop_source(shape: LoopShape) -> str:
    """Return the source of ``make(failed, wrong, iterable, length, counts, f0, …)``.

    ``make`` returns ``loop(values, timestamps)``. Without a flat_map that returns the
    new values and timestamps; with one it is a generator of these and of whether more
    pieces follow, and ``length()`` says how many records the next one has at most.

    Example:
        >>> print(loop_source(LoopShape((StageKind.MAP,), False, False)))
        def make(failed, wrong, iterable, length, counts, f0):
            def loop(values, timestamps):
                v1 = None
                out = []
                for v0 in values:
                    try:
                        v1 = f0(v0)
                    except (Exception, GeneratorExit) as error:
                        failed(0, v0, None, error)
                        continue
                    out.append(v1)
                if type(v1) in unmade:
                    wrong(0, v1, out)
                return out, timestamps
            return loop
    """
    return _Writer(shape).source()


def compile_loop(shape: LoopShape) -> LoopFactory:
    """Return ``make`` of `loop_source`, compiled; its lines appear in tracebacks."""
    flags = f"{'t' if shape.timed else ''}{'c' if shape.checked else ''}"
    kinds = " ".join(kind.value for kind in shape.kinds)
    namespace: dict[str, Any] = {"unmade": UNMADE, "undecided": UNDECIDED}
    exec(compiled(f"fused {kinds} {flags}", loop_source(shape)), namespace)
    make: LoopFactory = namespace["make"]
    return make


class _Writer:
    """Writes one loop, line by line."""

    def __init__(self, shape: LoopShape) -> None:
        self._shape = shape
        self._last_change = last_change(shape.kinds)
        self._lines: list[str] = []
        self._depth = 0
        # The stage, the name of its result, and the types of which that may not be.
        self._results: list[tuple[int, str, str]] = []

    def source(self) -> str:
        kinds = self._shape.kinds
        parameters = ["failed", "wrong", "iterable", "length", "counts"]
        parameters += [f"f{stage}" for stage in range(len(kinds))]
        self._write(f"def make({', '.join(parameters)}):")
        self._depth = 1
        self._write("def loop(values, timestamps):")
        self._depth = 2
        body_start = len(self._lines)
        self._fresh_lists()
        self._record_loop()
        self._depth = 2
        self._ending()
        names = " = ".join(name for _, name, _ in self._results)
        # Unbound otherwise, if the run is empty or nothing gets so far.
        self._lines.insert(body_start, f"{_INDENT * 2}{names} = None")
        self._depth = 1
        self._write("return loop")
        return "\n".join(self._lines)

    def _write(self, line: str) -> None:
        self._lines.append(f"{_INDENT * self._depth}{line}")

    def _fresh_lists(self) -> None:
        self._write("out = []")
        if self._shape.timed:
            self._write("times = []")
        if self._shape.expands:
            self._write("most = length()")

    def _record_loop(self) -> None:
        if self._shape.timed:
            self._write("for v0, t in zip(values, timestamps):")
        else:
            self._write("for v0 in values:")
        self._depth += 1
        self._stage(0, "v0")

    def _stage(self, stage: int, value: str) -> None:
        kinds = self._shape.kinds
        if stage == len(kinds):
            self._append(value)
        elif kinds[stage] is StageKind.MAP:
            self._map(stage, value)
        elif kinds[stage] is StageKind.FILTER:
            self._filter(stage, value)
        else:
            self._flat_map(stage, value)

    def _map(self, stage: int, value: str) -> None:
        result = f"v{stage + 1}"
        self._write("try:")
        self._write(f"{_INDENT}{result} = f{stage}({value})")
        self._failure(stage, value)
        self._check(stage, result)
        self._stage(stage + 1, result)

    def _filter(self, stage: int, value: str) -> None:
        verdict = f"c{stage + 1}"
        self._write("try:")
        self._write(f"{_INDENT}{verdict} = f{stage}({value})")
        self._write(f"{_INDENT}if not {verdict}:")
        if self._counts(stage):
            self._write(f"{_INDENT * 2}counts[{stage}] += 1")
        self._write(f"{_INDENT * 2}continue")
        self._failure(stage, value)
        self._check(stage, verdict, "undecided")
        self._stage(stage + 1, value)

    def _flat_map(self, stage: int, value: str) -> None:
        results = f"f{stage}({value})"
        if self._shape.checked:
            results = f"iterable({stage}, {results})"
        self._write("try:")
        self._depth += 1
        result = f"v{stage + 1}"
        self._write(f"for {result} in {results}:")
        self._depth += 1
        self._check(stage, result)
        if self._counts(stage):
            self._write(f"counts[{stage}] += 1")
        self._stage(stage + 1, result)
        self._depth -= 2
        self._failure(stage, value)

    def _counts(self, stage: int) -> bool:
        # Behind the last change all is known by what came out.
        """Say whether nothing else tells how many records pass a stage."""
        return stage < self._last_change

    def _failure(self, stage: int, value: str) -> None:
        time = "t" if self._shape.timed else "None"
        # GeneratorExit, too: it is told apart by whether the loop itself is being
        # closed.
        self._write("except (Exception, GeneratorExit) as error:")
        self._write(f"{_INDENT}failed({stage}, {value}, {time}, error)")
        self._write(f"{_INDENT}continue")

    def _check(self, stage: int, result: str, refused: str = "unmade") -> None:
        self._results.append((stage, result, refused))
        if self._shape.checked:
            self._write(f"if type({result}) in {refused}:")
            self._write(f"{_INDENT}wrong({stage}, {result}, out)")

    def _append(self, value: str) -> None:
        # A method that is looked up on a list is faster than one that is kept.
        self._write(f"out.append({value})")
        if self._shape.timed:
            self._write("times.append(t)")
        if self._shape.expands:
            self._write("if len(out) == most:")
            self._depth += 1
            self._write(f"yield {self._produced()}, True")
            self._fresh_lists()
            self._depth -= 1

    def _ending(self) -> None:
        # Of each run the last record is checked: a lambda that gives a coroutine always
        # does.
        for stage, result, refused in self._results:
            self._write(f"if type({result}) in {refused}:")
            self._write(f"{_INDENT}wrong({stage}, {result}, out)")
        if self._shape.expands:
            self._write(f"yield {self._produced()}, False")
        else:
            self._write(f"return {self._produced()}")

    def _produced(self) -> str:
        if self._shape.timed:
            return "out, times"
        return "out, None" if self._shape.expands else "out, timestamps"


# How many of a record's results go out together where they can be paused.


def next_piece_length(length: int, emitted: int, *, fitted: bool) -> int:
    """Return how long the next piece of a record's results may be.

    Their size is not known: pieces get longer while they fit, and shorter when one did
    not. A thousand records of a megabyte each would be far beyond what may be lent.

    Args:
        length: How long the last piece could have been.
        emitted: How long it was.
        fitted: Whether the output could take more after it.

    Example:
        >>> next_piece_length(4, 4, fitted=True), next_piece_length(4, 4, fitted=False)
        (8, 2)
    """
    if not fitted:
        return max(1, emitted // 2)
    return min(2 * length, RUN_LENGTH_MAX) if emitted == length else length


# Runs a chain of stateless functions over runs, in one compiled loop.


# About a millisecond of emitting: then the event loop gets its turn.
_RECORDS_PER_TURN: Final = 4 * RUN_LENGTH_MAX


# Values, timestamps, and whether another piece follows.
_Piece = tuple[list[Any], list[int] | None, bool]


class FusedStage(Fallible, Protocol):
    """One function of the chain, with what is done when it raises."""

    function: Callable[..., Any]

    @property
    def kind(self) -> StageKind:
        """The use that is made of the function's result."""


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

    def __init__(self, stages: Sequence[FusedStage]) -> None:
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

    def __init__(self, stages: Sequence[FusedStage], output: Output) -> None:
        self.stages: list[FusedStage] = list(stages)
        self._kinds = tuple(stage.kind for stage in stages)
        self._failures = [RecordFailures(stage, stage.function) for stage in stages]
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
        # What looks at the first results of the functions, for each stage.
        self._seen = [
            Verdicts(stage.context, stage.function)
            if stage.kind is StageKind.FILTER
            else repeated_objects(stage.context, stage.function)
            for stage in stages
        ]
        self._told_of_tuple: set[int] = set()
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
        shared = self.stages[0].context.shared
        if shared is not None and not shared.is_over and len(functions) > 1:
            # Each by itself, as only so it is known which of them changes a record.
            functions = [
                shared.watched_function(stage.function, _worker(stage))
                for stage in self.stages
            ]
            shared.at_end(self._forget)
        functions = [
            looked_at(function, seen, self._forget, expands=kind is StageKind.FLAT_MAP)
            if seen is not None and not seen.is_over
            else function
            for function, seen, kind in zip(
                functions, self._seen, self._kinds, strict=True
            )
        ]
        loop = factory(
            self._failed,
            self._wrong,
            self._iterable,
            lambda: self._piece_length,
            [] if self._counts is None else self._counts.passed,
            *functions,
        )
        if checked:
            return loop
        if timed:
            self._timed_loop = loop
        else:
            self._plain_loop = loop
        return loop

    def _forget(self) -> None:
        self._plain_loop = self._timed_loop = None

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
        what, remedy = unmade(value)
        for coroutine in out:
            if type(coroutine) is CoroutineType:
                coroutine.close()
        problem = "a record is a coroutine, which can be awaited only once"
        if stage >= 0:
            function = describe(self.stages[stage].function)
            problem = f"{function} returned {what} where a value is expected"
        self._raise_record_type(max(stage, 0), problem, remedy)

    def _iterable(self, stage: int, results: Any) -> Any:
        if type(results) is CoroutineType:
            self._wrong(stage, results, [])
        function = self.stages[stage].function
        if not hasattr(results, "__iter__") and not hasattr(results, "__getitem__"):
            self._raise_record_type(
                stage,
                f"{describe(function)} returned {results!r}, which is not iterable",
                "Return a list (an empty one for no records) or write a generator.",
            )
        if is_one_record(results):
            problem, remedy = taken_apart(results)
            returned = f"{describe(function)} returned {problem}"
            self._raise_record_type(stage, returned, remedy)
        if looks_like_record(results) and stage not in self._told_of_tuple:
            self._told_of_tuple.add(stage)
            log = self.stages[stage].context.log
            warn_of_tuple(log, function, results, "flat_map")
        return results

    def _raise_record_type(self, stage: int, problem: str, remedy: str) -> NoReturn:
        name = self.stages[stage].context.operator_name
        self._fatal = RecordTypeError(f"operator {name!r}", problem, remedy)
        raise self._fatal

    def _maker_of(self, stage: int) -> int:
        made = [k for k in range(stage) if self._kinds[k] is not StageKind.FILTER]
        return made[-1] if made else -1


def _worker(stage: FusedStage) -> Worker:
    context = stage.context
    return Worker(context.operator_name, context.uid, describe(stage.function))
