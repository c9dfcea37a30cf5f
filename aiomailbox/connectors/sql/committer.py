"""Moves staged rows into their table, once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any, Final, TypeVar

from aiomailbox.connectors.patient import patient
from aiomailbox.connectors.sql.contract import (
    LEASE_S,
    Database,
    StagedBatch,
    TableTarget,
)
from aiomailbox.errors import AioMailboxError
from aiomailbox.logs import library_log
from aiomailbox.operators.sinks.sink import CommitterContext

__all__ = ["SqlCommitter"]

T = TypeVar("T")

# Four times, so that one that fails is no reason to lose the lease.
_RENEW_S: Final = LEASE_S / 4
_AWAY: Final = (AioMailboxError, ConnectionError, TimeoutError)


class SqlCommitter:
    """Commits the batches of a checkpoint in one transaction, and keeps the lease.

    Args:
        database: A connection of its own.
        keeper: Another one, that says that the execution lives while the first works.
        target: What is written.
        context: Whose it is.
        token: How the names of the sink's writers begin.
    """

    def __init__(
        self,
        database: Database,
        keeper: Database,
        target: TableTarget,
        context: CommitterContext,
        token: str,
    ) -> None:
        self._database = database
        self._keeper = keeper
        self._target = target
        self._context = context
        self._token = token
        self._random = random.Random(context.execution_id)
        self._keeping: asyncio.Task[None] | None = None

    async def begin(self, *, restored: bool) -> None:
        """Check the table; a job that begins anew gives up what it had staged.

        Raises:
            SinkError: If the table is missing or does not fit.
            StorageClaimedError: If another job of this ``job_id`` writes to it.
        """
        former = await self._database.begin()
        self._keeping = asyncio.get_running_loop().create_task(
            self._keep(), name=f"lease of {self._target}"
        )
        if former:
            self._warn(
                "another job of this job_id is taken for dead: what it has staged is "
                "given up",
                job_id=self._context.job_id,
                former=former,
            )
        if not restored:
            await self._clean()

    async def commit(
        self, committables: list[Any], *, checkpoint_id: int, is_final: bool
    ) -> None:
        """Move rows into the table, those of all subtasks or none.

        Raises:
            SinkError: If rows are lost, the table refuses them, or the database does not
                answer.
            StorageClaimedError: If another execution writes for the job now.
        """
        # In one order for all: two committers that meet can't lock each other out.
        batches = sorted(StagedBatch.of(one) for one in committables)
        if batches:
            job = self._context.job_id or self._context.job_name
            sink = self._context.operator_id
            await self._patient(
                partial(self._database.commit, job, sink, checkpoint_id, batches)
            )

    async def recover(self) -> None:
        """Remove what was staged and is in no checkpoint."""
        await self._patient(partial(self._database.sweep, self._token))

    async def recover_writers(self, subtasks: Collection[int], before: int) -> None:
        """Remove what attempts of some subtasks before one have staged."""
        left = []
        for writer in await self._patient(partial(self._database.writers, self._token)):
            # From the right: a token may have anything in it.
            _, attempt, subtask = writer.rpartition("/")[2].rsplit("-", 2)
            if int(subtask) in subtasks and int(attempt) < before:
                left.append(writer)
        if left:
            await self._patient(partial(self._database.drop, left))

    async def end(self, *, succeeded: bool) -> None:
        """Leave behind what was committed, and what may be committed yet."""
        # Only if it began: otherwise there may be no tables to sweep.
        keeping, self._keeping = self._keeping, None
        if keeping is None:
            await self._database.close()
            return
        keeping.cancel()
        await asyncio.wait((keeping,))
        try:
            if not self._context.commits_at_checkpoints:
                await self._clean()
            elif succeeded or not self._context.is_resumable:
                # The ledger stays: a savepoint that ended the job names these batches.
                await self.recover()
            await self._release()
        finally:
            await self._keeper.close()
            await self._database.close()

    async def _clean(self) -> None:
        await self.recover()
        await self._patient(partial(self._database.forget, self._token))

    async def _keep(self) -> None:
        """Renew the lease; if it is lost, whoever writes next says so."""
        while True:
            await asyncio.sleep(_RENEW_S)
            try:
                await self._keeper.renew()
            except _AWAY as error:
                self._warn("a lease was not renewed", problem=str(error))

    async def _release(self) -> None:
        try:
            await self._database.release()
        except _AWAY as error:
            # It runs out, and who goes on from this execution does not wait for that.
            self._warn("a lease was not given back", problem=str(error))

    def _warn(self, what: str, **facts: str) -> None:
        library_log(job=self._context.job_name).warning(
            what, sink=self._context.operator_name, table=str(self._target), **facts
        )

    async def _patient(self, call: Callable[[], Awaitable[T]]) -> T:
        return await patient(call, self._target, self._random)
