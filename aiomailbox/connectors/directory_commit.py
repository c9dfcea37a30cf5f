"""Makes files of a directory visible, off the loop."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final

from aiomailbox.errors import AioMailboxError, SinkError
from aiomailbox.operators.sinks.sink import CommitterContext
from aiomailbox.storage.growing_directory import GrowingDirectory
from aiomailbox.storage.staged_directory import StagedDirectory
from aiomailbox.threads import ThreadTurns

__all__ = ["GrowingCommitter", "WholeCommitter"]

# Subtask, token, attempt, number.
_NAME: Final = re.compile(r"part-(\d+)-.+-(\d+)-\d+(\.|$)")


def is_left_behind(name: str, *, subtasks: Collection[int], before: int) -> bool:
    """Say whether a file is of an attempt of some subtasks that is over.

    Args:
        name: The file's, as `DirectoryTarget` names it.
        subtasks: The subtasks.
        before: The number of their attempt that is not over.

    Example:
        >>> name = "part-00001-0123abcd-7-00000.parquet"
        >>> is_left_behind(name, subtasks={1}, before=8)
        True
        >>> is_left_behind(name, subtasks={1}, before=7)
        False
    """
    found = _NAME.match(name)
    return found is not None and int(found[1]) in subtasks and int(found[2]) < before


class _DirectoryCommitter:
    """Runs steps in a thread, and says of errors which directory they are about."""

    def __init__(self, place: str, context: CommitterContext) -> None:
        self._place = place
        self._turns = ThreadTurns()
        self._owner = f"job {context.job_name!r}"

    async def _run(self, step: Callable[[], None], remedy: str = "") -> None:
        try:
            await self._turns.run(step)
        except OSError as error:
            if isinstance(error, AioMailboxError):
                raise
            message = f"{self._place!r} cannot be written: {error}. {remedy}"
            raise SinkError(message.rstrip()) from error

    async def _begin(self, step: Callable[[], None]) -> None:
        await self._run(step, "Choose a path where this process may create files.")


class WholeCommitter(_DirectoryCommitter):
    """Makes a directory visible at the end of a job; see `StagedDirectory`.

    Args:
        place: The target, for messages.
        directory: The target.
        context: Whose it is.
    """

    def __init__(
        self, place: str, directory: StagedDirectory, context: CommitterContext
    ) -> None:
        super().__init__(place, context)
        self._directory = directory

    async def begin(self, *, restored: bool) -> None:
        """Claim the target and make the staging directory.

        Raises:
            TargetExistsError: If the target is already there.
            SinkError: If it cannot be written, or another job writes it.
        """
        await self._begin(partial(self._directory.begin, self._owner))

    async def commit(
        self, committables: list[Any], *, checkpoint_id: int, is_final: bool
    ) -> None:
        """Make everything visible.

        Raises:
            TargetExistsError: If the target appeared since `begin`.
            SinkError: If the disk refuses.
        """
        await self._run(partial(self._directory.commit, committables))

    async def end(self, *, succeeded: bool) -> None:
        """Leave nothing behind; after a failure the target is as it was.

        Raises:
            SinkError: If it cannot be put back; says where it is.
        """
        await self._run(partial(self._directory.end, succeeded=succeeded))


class GrowingCommitter(_DirectoryCommitter):
    """Adds files to a directory with every checkpoint; see `GrowingDirectory`.

    Args:
        place: The target, for messages.
        directory: The target.
        context: Whose it is.
    """

    def __init__(
        self, place: str, directory: GrowingDirectory, context: CommitterContext
    ) -> None:
        super().__init__(place, context)
        self._directory = directory

    async def begin(self, *, restored: bool) -> None:
        """Claim the target and make the staging directory, or find what is prepared.

        Raises:
            TargetExistsError: If the target is already there, and not this job's.
            SinkError: If it cannot be written, or another job writes it.
        """
        begin = partial(self._directory.begin, self._owner, restored=restored)
        await self._begin(begin)

    async def commit(
        self, committables: list[Any], *, checkpoint_id: int, is_final: bool
    ) -> None:
        """Make files visible; those that are visible already stay.

        Raises:
            TargetExistsError: If the target appeared since `begin`.
            SinkError: If a file is gone, or the disk refuses.
        """
        commit = partial(
            self._directory.commit,
            committables,
            checkpoint_id=checkpoint_id,
            is_final=is_final,
        )
        await self._run(commit)

    async def recover(self) -> None:
        """Remove what was prepared and is in no checkpoint.

        Raises:
            SinkError: If the disk refuses.
        """
        await self._run(self._directory.recover)

    async def recover_writers(self, subtasks: Collection[int], before: int) -> None:
        """Remove what attempts of some subtasks before one have prepared.

        Raises:
            SinkError: If the disk refuses.
        """
        is_left = partial(is_left_behind, subtasks=subtasks, before=before)
        await self._run(partial(self._directory.remove_prepared, is_left))

    async def end(self, *, succeeded: bool) -> None:
        """Leave behind what was committed, and what may be committed yet.

        Raises:
            SinkError: If the disk refuses.
        """
        await self._run(partial(self._directory.end, succeeded=succeeded))
