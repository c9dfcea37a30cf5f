"""Writes the source of one loop that applies a chain of functions to a run.

Theory of operation: the functions become ``f0``, ``f1``, … and the value after stage
``k`` is ``v{k+1}``. Each call has a ``try`` of its own, which costs nothing until
something is raised (CPython 3.11 and later): the stage that failed and what it was
called with are known exactly, and the loop simply goes on with the next record.
A chain with a flat_map becomes a generator of bounded pieces, so that it can be paused
in the middle of a record; how many records the next piece has is asked before it.

How many records passed each stage follows from what went in and came out, but between
two stages that drop or add records. Only there they are counted: those that a filter
drops, and those that a flat_map adds.

With ``checked`` every result is looked at, which is done for the first run; afterwards
the last value of a run speaks for all.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from aiomailbox.operators.core.generated import compiled

_INDENT: Final = "    "
# CPython nests 20 blocks; each flat_map is a loop inside a try.
_NESTED_MAX: Final = 4
_STAGES_MAX: Final = 64


class StageKind(Enum):
    """What is done with the result of a stage's function."""

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
    """What a loop depends on besides the functions themselves.

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

    @property
    def last_change(self) -> int:
        """The last stage that drops or adds records; the last one if none does."""
        return last_change(self.kinds)


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
    """Return the source of ``make(failed, wrong, iterable, coroutine, length, counts, f0, …)``.

    ``make`` returns ``loop(values, timestamps)``. Without a flat_map that returns the
    new values and timestamps; with one it is a generator of these and of whether more
    pieces follow, and ``length()`` says how many records the next one has at most.

    Example:
        >>> print(loop_source(LoopShape((StageKind.MAP,), False, False)))
        def make(failed, wrong, iterable, coroutine, length, counts, f0):
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
                if type(v1) is coroutine:
                    wrong(0, v1, out)
                return out, timestamps
            return loop
    """
    return _Writer(shape).source()


def compile_loop(shape: LoopShape) -> LoopFactory:
    """Return ``make`` of `loop_source`, compiled; its lines appear in tracebacks."""
    flags = f"{'t' if shape.timed else ''}{'c' if shape.checked else ''}"
    kinds = " ".join(kind.value for kind in shape.kinds)
    namespace: dict[str, Any] = {}
    exec(compiled(f"fused {kinds} {flags}", loop_source(shape)), namespace)
    make: LoopFactory = namespace["make"]
    return functools.partial(_make, make)


def _make(
    make: LoopFactory,
    failed: Callable[..., None],
    wrong: Callable[..., None],
    iterable: Callable[..., Any],
    length: Callable[[], int],
    counts: list[int],
    functions: list[Callable[..., Any]],
) -> Callable[..., Any]:
    return make(
        failed, wrong, iterable, types.CoroutineType, length, counts, *functions
    )


class _Writer:
    """Writes one loop, line by line."""

    def __init__(self, shape: LoopShape) -> None:
        self._shape = shape
        self._lines: list[str] = []
        self._depth = 0
        self._results: list[tuple[int, str]] = []

    def source(self) -> str:
        kinds = self._shape.kinds
        parameters = ["failed", "wrong", "iterable", "coroutine", "length", "counts"]
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
        names = " = ".join(name for _, name in self._results)
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
        self._check(stage, verdict)
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
        return stage < self._shape.last_change

    def _failure(self, stage: int, value: str) -> None:
        time = "t" if self._shape.timed else "None"
        # GeneratorExit, too: it is told apart by whether the loop itself is being
        # closed.
        self._write("except (Exception, GeneratorExit) as error:")
        self._write(f"{_INDENT}failed({stage}, {value}, {time}, error)")
        self._write(f"{_INDENT}continue")

    def _check(self, stage: int, result: str) -> None:
        self._results.append((stage, result))
        if self._shape.checked:
            self._write(f"if type({result}) is coroutine:")
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
        for stage, result in self._results:
            self._write(f"if type({result}) is coroutine:")
            self._write(f"{_INDENT}wrong({stage}, {result}, out)")
        if self._shape.expands:
            self._write(f"yield {self._produced()}, False")
        else:
            self._write(f"return {self._produced()}")

    def _produced(self) -> str:
        if self._shape.timed:
            return "out, times"
        return "out, None" if self._shape.expands else "out, timestamps"
