"""What outlives a simulated program: time, files, committed results, and its fate."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from aiomailbox.testing.simulation.calls import Calls
from aiomailbox.testing.simulation.faults import Blow, Faults

__all__ = ["Life", "ProgramDiedError", "Savepoint", "SimulatedFaultError", "World"]

_TRACE_MAX: Final = 20_000
# So many callbacks or notes, about, are the beginning of an attempt.
_BEGINNING: Final = 40


class SimulatedFaultError(OSError):
    """A fault that the simulation has caused; the job is to survive it."""


class ProgramDiedError(SimulatedFaultError):
    """The program is dead: what it still does counts no more."""


class Savepoint(NamedTuple):
    """What a life of the program has ended with."""

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
        faults: What may go wrong.
        steps: Callbacks of the run without faults.
        notes: Notes of the run without faults.

    Attributes:
        trace: What has happened, in order.
        taken: The faults among it.
        files: Contents by name.
        staged: What writers prepared, by identity.
        committed: What was committed, likewise.
        is_complete: Whether the job has said that it succeeded.
        steps: How many callbacks there were.
        notes: How much was noted.
        ended_s: When the last life ended, seconds since it began.
        savepoint: What the last life has ended with, if it was that.
        calls: What a server outside was asked for.
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
        self.files: dict[str, bytes] = {}
        self.staged: dict[str, list[Any]] = {}
        self.committed: dict[str, list[Any]] = {}
        self.is_complete: bool = False
        self.steps = 0
        self.notes: int = 0
        self.savepoint: Savepoint | None = None
        self.ended_s: float = 0.0
        self.calls: Calls = Calls()
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
        world: What it lives in.
        number: Which life it is, from 0.
        parallelism: Of the environment.
        strike: Carries out a blow.
        now: Tells the time without moving it.
        is_alive: Whether what it does counts.
        wish: Why the program ended its job, if it did.
        savepoint: What it ended with.
    """

    world: World
    number: int
    parallelism: int
    now: Callable[[], float] = field(default=lambda: 0.0)
    strike: Callable[[Blow], None] = field(default=lambda _: None)
    is_alive: bool = True
    wish: Blow | None = None
    savepoint: Savepoint | None = None

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
