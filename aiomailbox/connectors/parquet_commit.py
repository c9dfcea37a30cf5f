"""Makes Parquet files visible, off the loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from aiomailbox.errors import AioMailboxError, SinkError
from aiomailbox.operators import CommitterContext
from aiomailbox.storage import StagedDirectory
from aiomailbox.threads import ThreadTurns

__all__ = ["ParquetCommitter"]


class ParquetCommitter:
    """Runs the steps of a `StagedDirectory` in a thread.

    Args:
        path: The target, for messages.
        directory: The target.
        context: Whose it is.
    """

    def __init__(
        self, path: Path, directory: StagedDirectory, context: CommitterContext
    ) -> None:
        self._path = path
        self._directory = directory
        self._turns = ThreadTurns()
        self._owner = f"job {context.job_name!r}"

    async def begin(self, *, restored: bool) -> None:
        """Claim the target and make the staging directory.

        Raises:
            TargetExistsError: If the target is already there.
            SinkError: If it cannot be written, or another job writes it.
        """
        await self._run(
            partial(self._directory.begin, self._owner),
            "Choose a path where this process may create files.",
        )

    async def commit(
        self, committables: list[Any], *, checkpoint_id: int, is_final: bool
    ) -> None:
        """Make files visible; those that are visible already stay.

        Raises:
            TargetExistsError: If the target appeared since `begin`.
            SinkError: If the disk refuses.
        """
        commit = partial(self._directory.commit, committables, is_final=is_final)
        await self._run(commit)

    async def end(self, *, succeeded: bool) -> None:
        """Leave nothing behind; after a failure the target is as it was.

        Raises:
            SinkError: If it cannot be put back; says where it is.
        """
        await self._run(partial(self._directory.end, succeeded=succeeded))

    async def _run(self, step: Callable[[], None], remedy: str = "") -> None:
        try:
            await self._turns.run(step)
        except OSError as error:
            if isinstance(error, AioMailboxError):
                raise
            message = f"{str(self._path)!r} cannot be written: {error}. {remedy}"
            raise SinkError(message.rstrip()) from error
