"""Drives a sink through checkpoints, failures and restarts, as a job does."""

from __future__ import annotations

import itertools
from typing import Any

from aiomailbox.operators.sinks.sink import CommitterContext
from aiomailbox.records.byte_reader import ByteReader
from aiomailbox.records.run import ListRun
from aiomailbox.records.run_columns import PythonSerializer
from aiomailbox.testing import TestRuntimeContext

# No two executions have one name, whatever program they are of.
_EXECUTIONS = itertools.count(1)


async def finish(pending: Any) -> None:
    """Await what a hook returned, if anything."""
    if pending is not None:
        await pending


class Program:
    """What survives programs: the newest complete checkpoint of a job with one sink.

    Committables go through bytes, as they do between processes and in checkpoints.

    Args:
        new_sink: Makes the sink anew for each execution, as a program that starts does.
        parallelism: Writers.
        job_id: Names the job.
        lineage: Names the directory of its checkpoints.
    """

    def __init__(
        self,
        new_sink: Any,
        *,
        parallelism: int = 1,
        job_id: str = "orders",
        lineage: str = "the directory",
    ) -> None:
        self.new_sink = new_sink
        self.parallelism = parallelism
        self.job_id = job_id
        self.lineage = lineage
        self.epoch = -1
        self.checkpoint_id = 0
        self.prepared: list[tuple[int, Any]] = []
        self.states: list[list[Any]] = []
        self.writers: list[Any] = []
        self.committer: Any = None
        self._pending: list[tuple[int, Any]] = []

    async def start(self) -> None:
        """Begin an execution: anew, or from the newest complete checkpoint."""
        sink = self.new_sink()
        self.execution_id = f"{next(_EXECUTIONS):032x}"[::-1]
        self.committer = sink.create_committer(
            CommitterContext(
                "orders job",
                self.execution_id,
                "sink",
                "s-1",
                operator_id="s-1",
                job_id=self.job_id,
                commits_at_checkpoints=True,
                is_resumable=True,
                lineage=self.lineage,
            )
        )
        self.sink = sink
        if self.committer is not None:
            await finish(self.committer.begin(restored=self.checkpoint_id > 0))
        await self.restart()

    async def restart(self) -> None:
        """Run the tasks again from the newest complete checkpoint."""
        self.epoch += 1
        self._pending = []
        if self.checkpoint_id:
            await self._commit(self.prepared)
        recover = getattr(self.committer, "recover", None)
        if recover is not None:
            await finish(recover())
        self.writers = [self._writer(index) for index in range(self.parallelism)]
        if self.states:
            for writer, state in zip(self.writers, self.states, strict=True):
                writer.restore(list(state))

    async def write(self, *values: Any, subtask: int = 0) -> None:
        """Give a writer records."""
        await finish(self.writers[subtask].write_run(ListRun(list(values))))

    async def prepare(self, *, end: bool = False) -> None:
        """Take the tasks' part of a checkpoint, which may never be complete."""
        self._next_id = self.checkpoint_id + 1
        self._states = []
        for writer in self.writers:
            await finish(writer.flush(end_of_input=end))
            for committable in through_bytes(writer.prepare_commit()):
                self._pending.append((self._next_id, committable))
            self._states.append(writer.snapshot())

    def complete(self) -> None:
        """Make the checkpoint complete, which is before anything is committed."""
        self.checkpoint_id = self._next_id
        self.prepared, self._pending = self._pending, []
        self.states = self._states

    async def commit(self, *, is_final: bool = False) -> None:
        """Commit what the newest complete checkpoint has."""
        await self._commit(self.prepared, is_final=is_final)

    async def checkpoint(self, *, end: bool = False) -> None:
        """Take a checkpoint and commit it."""
        await self.prepare(end=end)
        self.complete()
        await self.commit(is_final=end)

    async def crash(self) -> None:
        """End the execution as the death of its program does: writers may be anywhere."""
        for writer in self.writers:
            await finish(writer.close())
        await release(self.committer)

    async def end(self, *, succeeded: bool) -> None:
        """End the execution in an orderly way."""
        for writer in self.writers:
            await finish(writer.close())
        if self.committer is not None:
            await finish(self.committer.end(succeeded=succeeded))

    async def _commit(
        self, prepared: list[tuple[int, Any]], *, is_final: bool = False
    ) -> None:
        if self.committer is None:
            return
        by_checkpoint: dict[int, list[Any]] = {}
        for checkpoint_id, committable in prepared:
            by_checkpoint.setdefault(checkpoint_id, []).append(committable)
        if is_final:
            by_checkpoint.setdefault(self.checkpoint_id, [])
        for checkpoint_id, committables in sorted(by_checkpoint.items()):
            await finish(
                self.committer.commit(
                    committables,
                    checkpoint_id=checkpoint_id,
                    is_final=is_final and checkpoint_id == self.checkpoint_id,
                )
            )

    def _writer(self, subtask_index: int) -> Any:
        context = TestRuntimeContext(
            "sink",
            uid="s-1",
            parallelism=self.parallelism,
            subtask_index=subtask_index,
            attempt=self.epoch,
            commits_at_checkpoints=True,
            is_resumable=True,
        )
        context.job_id = self.job_id
        context.lineage = self.lineage
        context.execution_id = self.execution_id
        return self.sink.create_writer(context)


def through_bytes(values: list[Any]) -> list[Any]:
    """Return what comes out where committables are read again."""
    output = bytearray()
    serializer = PythonSerializer()
    serializer.write_many(values, output)
    return serializer.read_many(ByteReader(bytes(output)), len(values))


async def release(committer: Any) -> None:
    """Release a lock or connection as the system does when a process dies."""
    keeping = getattr(committer, "_keeping", None)
    if keeping is not None:
        keeping.cancel()
    for name in ("_database", "_keeper"):
        database = getattr(committer, name, None)
        if database is not None:
            await database.close()
    directory = getattr(committer, "_directory", None)
    if directory is not None:
        claim = directory._workplace._claim
        if claim is not None:
            claim._close()
