"""Moves staged rows into their table, once."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from aiomailbox.connectors.sql.contract import Database, StagedBatch
from aiomailbox.operators import CommitterContext

__all__ = ["SqlCommitter"]


class SqlCommitter:
    """Commits the batches of a checkpoint in one transaction.

    Args:
        database: A connection of its own.
        context: Whose it is.
        token: How the names of the sink's writers begin.
    """

    def __init__(
        self, database: Database, context: CommitterContext, token: str
    ) -> None:
        self._database = database
        self._context = context
        self._token = token
        self._has_begun = False

    async def begin(self, *, restored: bool) -> None:
        """Check the table; a job that begins anew gives up what it had staged.

        Raises:
            SinkError: If the table is missing or does not fit.
        """
        await self._database.begin()
        self._has_begun = True
        if not restored:
            await self._clean()

    async def commit(
        self, committables: list[Any], *, checkpoint_id: int, is_final: bool
    ) -> None:
        """Move rows into the table, those of all subtasks or none.

        Raises:
            ConnectionError: If it may succeed when called again.
            SinkError: If rows are lost, or the table refuses them.
        """
        # In one order for all: two committers that meet can't lock each other out.
        batches = sorted(StagedBatch.of(one) for one in committables)
        if batches:
            job = self._context.job_id or self._context.job_name
            sink = self._context.operator_id
            await self._database.commit(job, sink, checkpoint_id, batches)

    async def recover(self) -> None:
        """Remove what was staged and is in no checkpoint."""
        await self._database.sweep(self._token)

    async def recover_writers(self, subtasks: Collection[int], before: int) -> None:
        """Remove what attempts of some subtasks before one have staged."""
        left = []
        for writer in await self._database.writers(self._token):
            # From the right: a token may have anything in it.
            _, attempt, subtask = writer.rpartition("/")[2].rsplit("-", 2)
            if int(subtask) in subtasks and int(attempt) < before:
                left.append(writer)
        if left:
            await self._database.drop(left)

    async def end(self, *, succeeded: bool) -> None:
        """Leave behind what was committed, and what may be committed yet."""
        try:
            # Only if it began: otherwise there may be no tables to sweep.
            if not self._has_begun:
                return
            if not self._context.commits_at_checkpoints:
                await self._clean()
            elif succeeded or not self._context.is_resumable:
                # The ledger stays: a savepoint that ended the job names these batches.
                await self._database.sweep(self._token)
        finally:
            await self._database.close()

    async def _clean(self) -> None:
        await self._database.sweep(self._token)
        await self._database.forget(self._token)
