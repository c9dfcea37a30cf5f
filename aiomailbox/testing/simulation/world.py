"""All that outlives a simulated program: time, files, committed results, its fate."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.sinks.sink import (
    Committer,
    CommitterContext,
    Guarantee,
    SinkWriter,
)
from aiomailbox.records.run import Run

# Calls to a server outside of a simulated program, counted where they are paid.


@dataclass(slots=True)
class SimulatedCalls:
    """The calls of a server, by the key that came with each.

    Attributes:
        begun: How often each key was asked for.
        answered: How often it was answered; the others were cut off by a crash.
        repeated: The keys, in order, that were asked for again although the program had
            got an answer.

    Example:
        >>> calls = SimulatedCalls()
        >>> calls.begin("a")
        >>> calls.begin("a")
        >>> calls.answer("a")
        >>> calls.begin("a")
        >>> calls.begun["a"], calls.in_flight_again, calls.repeated
        (3, 1, ['a'])
    """

    begun: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    repeated: list[str] = field(default_factory=list)

    @property
    def in_flight_again(self) -> int:
        """How many calls were made again that had not been answered."""
        return self.begun.total() - len(self.begun) - len(self.repeated)

    def begin(self, key: str) -> None:
        """Count a call."""
        self.begun[key] += 1
        if self.answered[key]:
            self.repeated.append(key)

    def answer(self, key: str) -> None:
        """Count an answer."""
        self.answered[key] += 1


# The faults of a simulated run, and how often they happen.


class Blow(Enum):
    """The exception that ends the tasks of a job, or the whole program."""

    TASK_CRASH = "task_crashes"
    PROGRAM_CRASH = "program_crashes"
    CANCELLATION = "cancellations"
    RESCALE = "rescales"
    SAVEPOINT = "savepoints"


_WEIGHTS: Final = {blow.value for blow in Blow}


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The faults of a simulated run, and how often they happen.

    A run gets from 1 to ``blows_max`` blows, each of a kind that is drawn by these
    weights; 0 for a kind that is not wanted. Smaller faults, up to ``small_max``, come with a
    probability at each occasion.

    Attributes:
        blows_max: How many blows a run gets at most; then it may come to its end.
        task_crashes: A task fails between two callbacks of the loop: while it is
            restored or opened, while it runs, or while it ends.
        program_crashes: From one moment to the next nothing that the program does
            counts any more; after a while it is started again and resumes from its
            latest checkpoint. The moment may be within a file operation or a commit,
            also of those with which a program or an attempt begins.
        cancellations: The job is cancelled, and started again from its latest
            checkpoint.
        rescales: Likewise, with another parallelism.
        savepoints: The job is stopped with a savepoint, and started again from it with
            another parallelism.
        small_max: How many smaller faults a run gets at most.
        slow_call: A call in a thread, such as writing a snapshot, takes up to seconds.
        failing_write: A file of a checkpoint cannot be written.
        failing_metadata: The metadata of a checkpoint cannot be written, or an error is
            raised after it was written.
        lost_acknowledgement: A task's acknowledgement never arrives.
        late_acknowledgement: It arrives up to seconds later.
        late_notification: Tasks are notified of a complete checkpoint seconds later.
        failing_commit: A commit is not answered, before or after it has been done, or
            fails the job.
        failing_sink: A writer of the sink fails while it takes records.

    Raises:
        InvalidArgumentError: If a number is negative, or a probability above 1.

    Example:
        >>> Faults(program_crashes=0, rescales=0).task_crashes
        4.0
    """

    blows_max: int = 4
    task_crashes: float = 4.0
    program_crashes: float = 2.0
    cancellations: float = 1.0
    rescales: float = 1.0
    savepoints: float = 1.0
    small_max: int = 10
    slow_call: float = 0.02
    failing_write: float = 0.03
    failing_metadata: float = 0.05
    lost_acknowledgement: float = 0.02
    late_acknowledgement: float = 0.05
    late_notification: float = 0.05
    failing_commit: float = 0.05
    failing_sink: float = 0.005

    def __post_init__(self) -> None:
        for one in fields(self):
            number = getattr(self, one.name)
            is_chance = not one.name.endswith("_max") and one.name not in _WEIGHTS
            if not number >= 0 or (is_chance and number > 1):
                wanted = "a probability from 0 to 1" if is_chance else "0 or more"
                raise InvalidArgumentError(
                    one.name, f"{number} is out of range", f"Give {wanted}."
                )

    @classmethod
    def none(cls) -> Faults:
        """Return faults that never happen."""
        return cls(blows_max=0, small_max=0)


_TRACE_MAX: Final = 20_000


# So many callbacks or notes, about, are the beginning of an attempt.
_BEGINNING: Final = 40


class SimulatedFaultError(OSError):
    """A fault that the simulation has caused; the job is to survive it."""


class ProgramDiedError(SimulatedFaultError):
    """The program is dead: what it still does counts no more."""


class SimulatedSavepoint(NamedTuple):
    """The savepoint that has ended a life of the program."""

    checkpoint_id: int
    path: str


@dataclass(slots=True)
class _Fuse:
    """Says when the next blow comes: after so many callbacks, or notes."""

    blow: Blow
    counts_notes: bool
    left: int


class World:
    """Everything about a run that a crash of the program leaves.

    Args:
        seed: Decides everything.
        faults: The faults that may happen.
        steps: Callbacks of the run without faults.
        notes: Notes of the run without faults.

    Attributes:
        trace: The events, in order.
        taken: The faults among it.
        log: The warnings and errors that were logged.
        files: Contents by name.
        staged: The prepared results of writers, by identity.
        committed: The committed ones, likewise.
        is_complete: Whether the job has said that it succeeded.
        steps: How many callbacks there were.
        notes: How much was noted.
        ended_s: When the last life ended, seconds since it began.
        savepoint: The savepoint that has ended the last life, if one has.
        calls: The calls of an outside server.
        attempts: How often tasks were started.
        journal_appends: Whether finished calls are kept in files, not as objects of the
            store that has the checkpoints.
        journals: Where these files are: a directory for each life.
    """

    def __init__(
        self, seed: int | str, faults: Faults, *, steps: int = 1, notes: int = 1
    ) -> None:
        self.random: random.Random = random.Random(f"aiomailbox {seed}")
        self.faults = faults
        self.trace: list[str] = []
        self.taken: list[str] = []
        self.log: list[str] = []
        self.files: dict[str, bytes] = {}
        self.staged: dict[str, list[Any]] = {}
        self.committed: dict[str, list[Any]] = {}
        self.is_complete: bool = False
        self.steps = 0
        self.notes: int = 0
        self.savepoint: SimulatedSavepoint | None = None
        self.ended_s: float = 0.0
        self.calls: SimulatedCalls = SimulatedCalls()
        self.attempts: int = 0
        self.journal_appends: bool = self.random.random() < 0.5
        self.journals: Path | None = None
        self._parts = 0
        self._steps_expected = max(1, steps)
        self._notes_expected = max(1, notes)
        self._blows_left = (
            self.random.randint(1, faults.blows_max) if faults.blows_max else 0
        )
        self._small_left = faults.small_max
        self._fuse: _Fuse | None = None

    def note(self, time_s: float, what: str) -> None:
        """Keep what happened."""
        self.notes += 1
        if len(self.trace) < _TRACE_MAX:
            self.trace.append(f"{time_s:.6f} {what}")

    def take(self, time_s: float, what: str) -> None:
        """Keep a fault."""
        self.note(time_s, f"fault: {what}")
        self.taken.append(f"{what} at {time_s:.6f} s")

    def chance(self, probability: float) -> bool:
        """Say whether a smaller fault happens now."""
        if self.is_complete or not self._small_left:
            return False
        if self.random.random() >= probability:
            return False
        self._small_left -= 1
        return True

    def burn(self, *, counts_notes: bool) -> Blow | None:
        """Count one callback or note; return the blow that comes now, if one does."""
        fuse = self._fuse
        if fuse is None or fuse.counts_notes is not counts_notes or self.is_complete:
            return None
        fuse.left -= 1
        if fuse.left > 0:
            return None
        self._fuse = None
        return fuse.blow

    def light(self) -> None:
        """Decide when the next blow comes, and which, unless that is decided.

        Called when a life begins, when tasks are started, and when a blow has fallen.
        """
        if self._fuse is not None or not self._blows_left:
            return
        weights = [getattr(self.faults, blow.value) for blow in Blow]
        if not any(weights):
            return
        self._blows_left -= 1
        blow = self.random.choices(list(Blow), weights)[0]
        counts_notes = self.random.random() < 0.5
        expected = self._notes_expected if counts_notes else self._steps_expected
        soon = self.random.random()
        if soon < 0.2:
            # While checkpoints are read, commits made again, or tasks restored.
            expected = min(expected, _BEGINNING)
        elif soon < 0.4:
            expected = max(1, expected // 10)
        self._fuse = _Fuse(blow, counts_notes, self.random.randint(1, expected))

    def stage(self, sink: str, rows: list[Any]) -> str:
        """Keep what a writer of a sink prepared, and return its identity."""
        # Never one that was there before: an old checkpoint may still name it.
        self._parts += 1
        name = f"{sink}/part-{self._parts}"
        self.staged[name] = rows
        return name


@dataclass(slots=True, eq=False)
class Life:
    """One life of the program.

    Attributes:
        world: Its world.
        number: Which life it is, from 0.
        parallelism: Of the environment.
        strike: Carries out a blow.
        now: Tells the time without moving it.
        is_alive: Whether what it does counts.
        wish: Why the program ended its job, if it did.
        savepoint: The savepoint that ended it.
    """

    world: World
    number: int
    parallelism: int
    now: Callable[[], float] = field(default=lambda: 0.0)
    strike: Callable[[Blow], None] = field(default=lambda _: None)
    is_alive: bool = True
    wish: Blow | None = None
    savepoint: SimulatedSavepoint | None = None

    def check(self) -> None:
        """Raise if the program is dead.

        Raises:
            ProgramDiedError: If it is.
        """
        if not self.is_alive:
            raise ProgramDiedError("the simulated program has crashed")

    def note(self, what: str) -> None:
        """Keep what happened; a blow may come with it.

        Raises:
            ProgramDiedError: If the program is dead, perhaps since this moment.
        """
        self.check()
        self.world.note(self.now(), f"life {self.number}: {what}")
        blow = self.world.burn(counts_notes=True)
        if blow is not None:
            self.strike(blow)
            self.check()

    def fault(self, what: str) -> SimulatedFaultError:
        """Keep a fault, and return it as an error."""
        self.world.take(self.now(), what)
        return SimulatedFaultError(f"simulated: {what}")

    def step(self) -> None:
        """Count a callback of the loop."""
        self.world.steps += 1
        if self.is_alive:
            blow = self.world.burn(counts_notes=False)
            if blow is not None:
                self.strike(blow)


# A sink that commits in two phases to a world that outlives the program.


class SimulatedSink:
    """The end of a simulated pipeline: the rows that are committed here are compared.

    A pipeline may end several streams in it: each is a sink of its own.

    Attributes:
        guarantee: Exactly once.
    """

    guarantee: Guarantee = Guarantee.EXACTLY_ONCE

    def __init__(self, life: Life) -> None:
        self._life: Life = life

    async def call(self, key: str, seconds: float = 0.01) -> None:
        """Call a server outside, which counts calls by key and takes a while.

        `SimulatedRun.calls` has the counts: for example whether a call that was answered
        was made again.

        Args:
            key: Of the call, such as its idempotency key.
            seconds: How long the answer takes.
        """
        life = self._life
        life.note(f"call {key}")
        life.world.calls.begin(key)
        await asyncio.sleep(seconds)
        life.check()
        life.world.calls.answer(key)

    def create_writer(self, context: RuntimeContext) -> SinkWriter:
        """Create the writer of one subtask."""
        return _Writer(self._life, str(context.operator_id))

    def create_committer(self, context: CommitterContext) -> Committer:
        """Create the committer."""
        return _Committer(self._life, context.operator_id)


class _Writer:
    """Buffers rows until a barrier, then stages them."""

    def __init__(self, life: Life, sink: str) -> None:
        self._life = life
        self._sink = sink
        self._rows: list[Any] = []

    def write_run(self, run: Run) -> None:
        life = self._life
        life.check()
        if life.world.chance(life.world.faults.failing_sink):
            raise life.fault("the sink failed while it took records")
        self._rows += run.values

    def flush(self, *, end_of_input: bool) -> None:
        """Do nothing: rows are staged as they are."""

    def prepare_commit(self) -> list[str]:
        if not self._rows:
            return []
        rows, self._rows = self._rows, []
        self._life.note(f"stage {len(rows)} rows")
        return [self._life.world.stage(self._sink, rows)]

    def snapshot(self) -> list[Any]:
        return []

    def restore(self, elements: list[Any]) -> None:
        """Do nothing: what was staged is in the checkpoint."""

    def close(self) -> None:
        """Do nothing: nothing is held."""


class _Committer:
    """Moves what was staged to what is committed, once."""

    def __init__(self, life: Life, sink: str) -> None:
        self._life = life
        self._sink = sink

    def begin(self, *, restored: bool) -> None:
        self._life.note(f"begin to commit, restored {restored}")

    async def commit(
        self, committables: list[str], *, checkpoint_id: int, is_final: bool
    ) -> None:
        life, world = self._life, self._life.world
        await asyncio.sleep(world.random.choice((0.0, 0.001, 0.1)))
        what = f"commit of checkpoint {checkpoint_id}"
        if wrong := [one for one in committables if not self._owns(one)]:
            raise LookupError(f"{wrong} were prepared for another sink")
        life.note(f"{what}: {' '.join(committables)}, final {is_final}")
        if world.chance(world.faults.failing_commit):
            life.fault(f"the {what} got no answer")
            raise ConnectionError("simulated: no answer")
        for name in committables:
            if name in world.committed:
                continue
            if name not in world.staged:
                raise LookupError(
                    f"{name} is to be committed, and was removed as what nothing refers "
                    "to, or never staged"
                )
            world.committed[name] = world.staged.pop(name)
            # Each by itself: a crash may come in between.
            life.note(f"committed {name}")
        if world.chance(world.faults.failing_commit):
            fault = life.fault(f"the {what} was made and not confirmed")
            if world.random.random() < 0.5:
                raise fault
            raise ConnectionError("simulated: the answer was lost")

    def recover(self) -> None:
        self._life.note("remove what nothing refers to")
        staged = self._life.world.staged
        for name in [one for one in staged if self._owns(one)]:
            del staged[name]

    def _owns(self, name: str) -> bool:
        return name.rpartition("/")[0] == self._sink

    def end(self, *, succeeded: bool) -> None:
        # After a savepoint the job goes on in another life.
        if succeeded and self._life.savepoint is None:
            self._life.note("the job has succeeded")
            self._life.world.is_complete = True
