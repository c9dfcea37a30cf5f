"""A sink that commits in two phases to a world that outlives the program."""

from __future__ import annotations

import asyncio
from typing import Any

from aiomailbox.operators import (
    Committer,
    CommitterContext,
    Guarantee,
    RuntimeContext,
    SinkWriter,
)
from aiomailbox.records import Run
from aiomailbox.testing.simulation.world import Life

__all__ = ["SimulatedSink"]


class SimulatedSink:
    """Where a simulated pipeline ends: what is committed here is compared.

    Attributes:
        guarantee: Exactly once.
    """

    guarantee: Guarantee = Guarantee.EXACTLY_ONCE

    def __init__(self, life: Life) -> None:
        self._life: Life = life

    def create_writer(self, context: RuntimeContext) -> SinkWriter:
        """Create the writer of one subtask."""
        del context
        return _Writer(self._life)

    def create_committer(self, context: CommitterContext) -> Committer:
        """Create the committer."""
        del context
        return _Committer(self._life)


class _Writer:
    """Buffers rows until a barrier, then stages them."""

    def __init__(self, life: Life) -> None:
        self._life = life
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
        return [self._life.world.stage(rows)]

    def snapshot(self) -> list[Any]:
        return []

    def restore(self, elements: list[Any]) -> None:
        """Do nothing: what was staged is in the checkpoint."""

    def close(self) -> None:
        """Do nothing: nothing is held."""


class _Committer:
    """Moves what was staged to what is committed, once."""

    def __init__(self, life: Life) -> None:
        self._life = life

    def begin(self, *, restored: bool) -> None:
        self._life.note(f"begin to commit, restored {restored}")

    async def commit(
        self, committables: list[str], *, checkpoint_id: int, is_final: bool
    ) -> None:
        life, world = self._life, self._life.world
        await asyncio.sleep(world.random.choice((0.0, 0.001, 0.1)))
        what = f"commit of checkpoint {checkpoint_id}"
        life.note(f"{what}: {' '.join(committables)}, final {is_final}")
        if world.chance(world.faults.failing_commit):
            life.fault(f"the {what} found nobody")
            raise ConnectionError("simulated: nobody answers")
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
        self._life.world.staged.clear()

    def end(self, *, succeeded: bool) -> None:
        # After a savepoint the job goes on in another life.
        if succeeded and self._life.savepoint is None:
            self._life.note("the job has succeeded")
            self._life.world.is_complete = True
