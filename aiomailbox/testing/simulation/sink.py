"""A sink that commits in two phases to a world that outlives the program."""

from __future__ import annotations

import asyncio
from typing import Any

from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.sinks.sink import (
    Committer,
    CommitterContext,
    Guarantee,
    SinkWriter,
)
from aiomailbox.records.run import Run
from aiomailbox.testing.simulation.world import Life

__all__ = ["SimulatedSink"]


class SimulatedSink:
    """Where a simulated pipeline ends: what is committed here is compared.

    A pipeline may end several streams in it: each is a sink of its own.

    Attributes:
        guarantee: Exactly once.
    """

    guarantee: Guarantee = Guarantee.EXACTLY_ONCE

    def __init__(self, life: Life) -> None:
        self._life: Life = life

    async def call(self, key: str, seconds: float = 0.01) -> None:
        """Call a server outside, which counts calls by key and takes a while.

        What it counted is in `SimulatedRun.calls`: whether a call that was answered was
        made again.

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
