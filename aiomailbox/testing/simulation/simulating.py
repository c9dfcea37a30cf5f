"""Runs a user's pipeline under faults of many seeds, and compares what was committed."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from aiomailbox.checkpoint.settings import CheckpointingMode
from aiomailbox.connectors.sinks import FunctionSink
from aiomailbox.errors import (
    AioMailboxError,
    InvalidArgumentError,
    MissingExtraError,
    UsageError,
    WrongTypeError,
)
from aiomailbox.graph.transformation import Transformation
from aiomailbox.logs import LOGGER_NAME, library_log
from aiomailbox.state.backends import StateBackend
from aiomailbox.testing.simulation.world import Faults, SimulatedCalls, World

if TYPE_CHECKING:
    from aiomailbox.testing.simulation.run import Pipeline


Check = Callable[[list[Any], list[Any]], None]

# How often a run without faults takes a checkpoint.
_CHECKPOINTS: Final = 10
_STEPS_PER_STEP: Final = 100
_STEPS_LEAST: Final = 200_000
_SHOWN_MAX: Final = 5
_LINES_MAX: Final = 1_000
_LINES_SHOWN_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """One run with faults, which ended as the run without.

    Attributes:
        seed: Its seed.
        faults: The faults that it survived, in order.
        trace: The events, line by line; the same for the same seed.
        calls: The calls of `SimulatedSink.call`.
        attempts: How often the tasks were started, the first time included.
        log: The warnings and errors that the library, or the pipeline's ``context.log``,
            logged; at most 1,000. They go to ``logging`` at level DEBUG only.
        journal_appends: Whether finished calls were kept in files: none of those is made
            again. Else an object store kept them: calls that were not yet uploaded are
            made again.
    """

    seed: int
    faults: tuple[str, ...]
    trace: tuple[str, ...] = field(repr=False)
    calls: SimulatedCalls = field(repr=False)
    attempts: int
    journal_appends: bool
    log: tuple[str, ...] = field(default=(), repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """The report of `simulate`: it has found nothing wrong.

    Attributes:
        outputs: The rows that the run without faults committed.
        runs: The runs with faults, in the order of their seeds.
    """

    outputs: list[Any]
    runs: list[SimulatedRun]

    @property
    def faults(self) -> int:
        """How many faults there were in all runs."""
        return sum(len(run.faults) for run in self.runs)


class SimulationError(AioMailboxError, AssertionError):
    """A run under faults did not end as the run without.

    Attributes:
        seed: The seed of the run; None if the run without faults failed.
        faults: The faults until then, in order.
        missing: Rows that were to be committed and were not, with their counts.
        unexpected: Rows that were committed and were not to be, or too often.
        trace: The events, line by line.
        log: The warnings and errors that were logged, as of `SimulatedRun`.
    """

    def __init__(
        self,
        problem: str,
        *,
        seed: int | None,
        faults: Sequence[str] = (),
        missing: Counter[Any] | None = None,
        unexpected: Counter[Any] | None = None,
        trace: Sequence[str] = (),
        log: Sequence[str] = (),
    ) -> None:
        self.seed: int | None = seed
        self.faults: list[str] = list(faults)
        self.missing: Counter[Any] = missing or Counter()
        self.unexpected: Counter[Any] = unexpected or Counter()
        self.trace: list[str] = list(trace)
        self.log: list[str] = list(log)
        lines = [problem if seed is None else f"seed {seed}: {problem}"]
        lines += _shown("missing", self.missing) + _shown("unexpected", self.unexpected)
        if faults:
            lines += ["faults:", *(f"  {fault}" for fault in faults)]
        if log:
            shown = self.log[-_LINES_SHOWN_MAX:]
            lines += ["logged last:", *(f"  {line}" for line in shown)]
        if seed is not None:
            lines.append(f"Replay it with simulate(..., seeds=[{seed}]).")
        super().__init__("\n".join(lines))


def simulate(
    pipeline: Pipeline,
    *,
    seeds: Iterable[int] = range(100),
    faults: Faults | None = None,
    parallelisms: Sequence[int] = (2, 1, 3),
    check: Check | None = None,
    steps_max: int = 1_000_000,
    mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE,
    backends: Sequence[StateBackend] = (),
) -> SimulationReport:
    """Run a pipeline under faults, and compare what it committed with a run without.

    Each run is on virtual time, in this thread, and its seed decides everything. It
    decides when tasks and the program crash, which writes fail, when the job is
    rescaled, and how long everything takes. It also decides how large buffers are, and
    whether barriers are aligned, overtake data, or do so after a while. Checkpoints are
    in memory, journals of finished calls in a temporary directory, and nothing is left
    behind. The warnings of a run with faults are in
    its ``log``, and reach ``logging`` at level DEBUG only.

    The program is a deterministic one: its committed rows are the same in any order of
    arrival at operators with several inputs or subtasks. Where they are not, give a
    ``check``. Its sources can be replayed. Threads that it starts by itself, other
    processes and sockets are not simulated: do without.

    Args:
        pipeline: Called with a `StreamExecutionEnvironment` and a `SimulatedSink`,
            describes the job: it ends streams with ``sink_to(sink)``, and starts nothing. It is called again for
            each life of the program, and keeps nothing that such a crash would lose.
        seeds: Of the runs with faults.
        faults: The faults that may happen; None for a few of each kind.
        parallelisms: The parallelisms of the environment: the first one at the
            beginning, then any of them after a rescale.
        check: Called with what was committed and with what was in the run without
            faults, raises AssertionError if that is not right; None to compare them as
            multisets.
        steps_max: How many callbacks of the loop the run without faults may take: a
            longer one counts as one that never ends.
        mode: Exactly once; or at least once, where nothing may be missing, and rows may
            be committed more often than without faults.
        backends: Where keyed state is kept, another one perhaps after each crash of the
            program; nothing for what the pipeline says.

    Raises:
        SimulationError: If a run did not commit what it should, failed or hung.
        InvalidArgumentError: If there is no parallelism.
        UsageError: If an event loop runs in this thread.
        MissingExtraError: If fsspec is not installed.

    Concept:
        FoundationDB's simulation: the whole system in one thread, with a seed.

    Example:
        >>> import aiomailbox as am
        >>> from aiomailbox.testing import simulate
        >>> def counts(env, sink):
        ...     ones = env.from_collection(range(100)).map(lambda n: (n % 3, 1))
        ...     keyed = ones.key_by(lambda one: one[0])
        ...     sums = keyed.reduce(lambda one, two: (one[0], one[1] + two[1]))
        ...     sums.uid("sums").sink_to(sink)
        >>> report = simulate(counts, seeds=range(3))
        >>> len(report.outputs), max(report.outputs), len(report.runs)
        (100, (2, 33), 3)
    """
    _check_arguments(parallelisms)
    if isinstance(seeds, int):
        raise WrongTypeError(
            "seeds", f"{seeds} is a number", f"Give each seed: range({seeds})."
        )
    seeds = list(seeds)
    if not seeds:
        raise InvalidArgumentError(
            "seeds", "there is none, so nothing is tried", "Give some, as range(20)."
        )

    def checked(env: Any, sink: Any) -> None:
        pipeline(env, sink)
        _check_ends(env._definition.sinks)

    # Late: it needs the whole engine, and fsspec.
    try:
        from aiomailbox.testing.simulation.run import RunFailedError, Setting, run_world
    except ImportError as error:
        raise MissingExtraError("a simulation", "storage") from error

    def run(world: World, setting: Setting, seed: int | None) -> list[Any]:
        try:
            if world is still:
                return run_world(checked, world, setting)
            # What there is to say of the pipeline itself, the run before has said.
            with _kept(world.log):
                return run_world(checked, world, setting)
        except RunFailedError as error:
            without = ", without any fault" if seed is None else ""
            problem = f"{error}{without}: {_why(error)}"
            raise _failed(problem, seed, world) from error.__cause__

    still = World("without faults", Faults.none())
    # Long enough for any job: it is measured, then divided.
    setting = Setting(10.0, list(parallelisms), steps_max, mode, list(backends))
    outputs = run(still, setting, None)
    if not outputs:
        library_log().warning(
            "a simulation compares nothing: the pipeline commits no row without faults",
            remedy="give its source records that come through to the sink",
        )
    setting = replace(
        setting,
        interval_s=max(0.001, still.ended_s / _CHECKPOINTS),
        steps_max=_STEPS_LEAST + _STEPS_PER_STEP * still.steps,
    )
    # Once more, with other timing: it tells what is usual, and a pipeline that is not
    # deterministic.
    usual = World("without faults, with checkpoints", Faults.none())
    check = check or (_all_there if mode is CheckpointingMode.AT_LEAST_ONCE else None)
    _compare(run(usual, setting, None), outputs, check, None, usual)
    runs = []
    for seed in seeds:
        world = World(seed, faults or Faults(), steps=usual.steps, notes=usual.notes)
        found = run(world, setting, seed)
        _compare(found, outputs, check, seed, world)
        runs.append(
            SimulatedRun(
                seed,
                tuple(world.taken),
                tuple(world.trace),
                world.calls,
                world.attempts,
                world.journal_appends,
                tuple(world.log),
            )
        )
    return SimulationReport(outputs, runs)


@contextmanager
def _kept(lines: list[str]) -> Iterator[None]:
    """Keep what this thread warns of: it comes from faults that are meant to be."""
    logger, thread = logging.getLogger(LOGGER_NAME), threading.get_ident()

    def keep(record: logging.LogRecord) -> bool:
        if threading.get_ident() == thread and record.levelno >= logging.WARNING:
            if len(lines) < _LINES_MAX:
                lines.append(f"{record.levelname} {record.getMessage()}")
            record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        return True

    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


def _check_arguments(parallelisms: Sequence[int]) -> None:
    if not parallelisms:
        raise InvalidArgumentError(
            "parallelisms", "there is none", "Give some, such as (2, 1, 3)."
        )
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(
        "simulate() makes event loops of its own, and one runs in this thread "
        "already: call it in a test without async"
    )


def _check_ends(sinks: Sequence[Transformation]) -> None:
    """Raise if all streams of a pipeline end in functions, and none in a sink.

    Raises:
        UsageError: If so: there would be no rows to compare.
    """
    if all(isinstance(item.sink, FunctionSink) for item in sinks):
        raise UsageError(
            "the pipeline ends no stream in the sink that simulate() gives it, so there "
            "are no rows to compare: write stream.sink_to(sink), with its second argument"
        )


def _compare(
    found: list[Any],
    outputs: list[Any],
    check: Check | None,
    seed: int | None,
    world: World,
) -> None:
    if check is not None:
        try:
            check(found, outputs)
        except AssertionError as error:
            problem = f"the committed rows are not right: {error}"
            raise _failed(problem, seed, world) from error
        return
    expected, counted = _counted(outputs), _counted(found)
    if expected != counted:
        problem = f"{len(found)} rows were committed, and {len(outputs)} without faults"
        if seed is None:
            problem = (
                "the pipeline is not deterministic: two runs without faults, of different "
                "timing, committed different rows. Give a check=, or parallelisms=[1]"
            )
        missing, unexpected = expected - counted, counted - expected
        raise _failed(problem, seed, world, missing=missing, unexpected=unexpected)


def _failed(
    problem: str, seed: int | None, world: World, **rows: Counter[Any]
) -> SimulationError:
    return SimulationError(
        problem,
        seed=seed,
        faults=world.taken,
        trace=world.trace,
        log=world.log,
        **rows,
    )


def _all_there(found: list[Any], expected: list[Any]) -> None:
    missing = _counted(expected) - _counted(found)
    assert not missing, "; ".join(_shown("missing", missing))


def _counted(rows: list[Any]) -> Counter[Any]:
    try:
        return Counter(rows)
    except TypeError:
        return Counter(map(repr, rows))


def _why(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"


def _shown(name: str, rows: Counter[Any]) -> list[str]:
    if not rows:
        return []
    shown = ", ".join(
        f"{row!r}" if count == 1 else f"{count} × {row!r}"
        for row, count in rows.most_common(_SHOWN_MAX)
    )
    more = len(rows) - _SHOWN_MAX
    return [f"{name}: {shown}{f' and {more} others' if more > 0 else ''}"]
