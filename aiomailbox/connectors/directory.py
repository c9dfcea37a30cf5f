"""Directories as targets: prepared files, which become visible at once."""

from __future__ import annotations

import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, Literal, TypeVar

from aiomailbox.errors import (
    AioMailboxError,
    InvalidArgumentError,
    SinkError,
)
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.operator import Pending
from aiomailbox.operators.sinks.sink import CommitterContext
from aiomailbox.signatures import check_choice, check_type, local_path
from aiomailbox.storage.commit_log import CommitLog, DirectoryLog, Following
from aiomailbox.storage.local import make_directories, sync_directory
from aiomailbox.storage.spark_log import SparkLog
from aiomailbox.storage.staged_directory import GrowingDirectory, StagedDirectory
from aiomailbox.storage.workplace import staging_directory
from aiomailbox.supervision import ThreadTurns

# Makes files of a directory visible, off the loop.


# Subtask, token, attempt, number.
_NAME: Final = re.compile(r"part-(\d+)-.+-(\d+)-\d+(\.|$)")


def is_left_behind(name: str, *, subtasks: Collection[int], before: int) -> bool:
    """Say whether a file is of an attempt of some subtasks that is over.

    Example:
        >>> name = "part-00001-0123abcd-7-00000.parquet"
        >>> is_left_behind(name, subtasks={1}, before=8)
        True
        >>> is_left_behind(name, subtasks={1}, before=7)
        False
    """
    found = _NAME.match(name)
    return found is not None and int(found[1]) in subtasks and int(found[2]) < before


DirectoryT = TypeVar("DirectoryT", bound=StagedDirectory | GrowingDirectory)


class _DirectoryCommitter(Generic[DirectoryT]):
    """Runs steps in a thread, and says of errors which directory they are about."""

    def __init__(
        self, place: str, directory: DirectoryT, context: CommitterContext
    ) -> None:
        self._place = place
        self._directory = directory
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

    async def end(self, *, succeeded: bool) -> None:
        """Give up the claim, and what nothing goes on from; see the directory's `end`.

        Raises:
            SinkError: If the disk refuses, or what was there cannot be put back.
        """
        await self._run(partial(self._directory.end, succeeded=succeeded))


class WholeCommitter(_DirectoryCommitter[StagedDirectory]):
    """Makes a directory visible at the end of a job; see `StagedDirectory`."""

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


class GrowingCommitter(_DirectoryCommitter[GrowingDirectory]):
    """Adds files to a directory with every checkpoint; see `GrowingDirectory`."""

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


# What sinks of files have in common: a directory, and how its files are named.
#
# Files are named after the job, its directory of checkpoints and the sink (or, if
# nothing goes on from it, the execution), the subtask, the attempt, and how many the
# subtask wrote before: no two attempts write to one name, and what an attempt left that
# is no more is known by it.


WriteMode = Literal["error", "overwrite", "append"]


@dataclass(frozen=True, slots=True)
class DirectoryTarget:
    """A directory that a job writes.

    Attributes:
        path: Where it is, or will be.
        mode: What becomes of what is there.
        follow: Whether a log notifies readers of commits, and what becomes of files
            that all have passed.
        has_spark_log: Whether Spark's own readers see commits at once.
    """

    path: Path
    mode: WriteMode
    follow: Following | None = None
    has_spark_log: bool = False

    @classmethod
    def of(cls, path: str | os.PathLike[str], mode: WriteMode) -> DirectoryTarget:
        """Return the target of two arguments of a sink.

        Raises:
            InvalidArgumentError: If one has a value that cannot work.
            WrongTypeError: If ``path`` is no path.
        """
        check_choice(mode, "mode", "error", "overwrite", "append")
        check_type(path, str | os.PathLike, "path", "Give a directory.", "a path")
        if not str(path):
            raise InvalidArgumentError("path", "it is empty", "Give a directory.")
        return cls(local_path(path, "path"), mode)

    def create_committer(
        self, context: CommitterContext
    ) -> GrowingCommitter | WholeCommitter:
        """Create the committer: one that adds with each checkpoint, or one at the end."""
        path, token = self.path, token_of(context)
        logs: list[DirectoryLog] = []
        if self.follow is not None:
            logs.append(CommitLog(self.follow))
        if self.has_spark_log:
            # Resolved: Spark's log has absolute paths.
            logs.append(SparkLog(path.resolve()))
        overwrite, append = self.mode == "overwrite", self.mode == "append"
        if not context.commits_at_checkpoints and not append:
            whole = StagedDirectory(path, token, overwrite=overwrite, logs=logs)
            return WholeCommitter(str(path), whole, context)
        growing = GrowingDirectory(
            path,
            token,
            overwrite=overwrite,
            append=append,
            former=former_token_of(context),
            is_resumable=context.is_resumable,
            logs=logs,
        )
        return GrowingCommitter(str(path), growing, context)

    def segments(self, context: RuntimeContext, ending: str) -> Segments:
        """Return the names of a subtask's files."""
        token = token_of(context)
        prefix = f"part-{context.subtask_index:05d}-{token}-{context.attempt}"
        if self.mode == "append":
            # Beside files of an earlier execution of the same job.
            prefix = f"{prefix}-{context.execution_id[:8]}"
        segments = Segments(staging_directory(self.path, token), prefix, ending)
        if self.mode == "append":
            segments.joined = partial(_first_file, self.path, ending)
            segments.log = context.log
        return segments


class Segments:
    """The files of one writer, in the staging directory.

    Args:
        directory: Where they are prepared; the committer made it.
        prefix: How their names begin; no other writer has it.
        ending: How their names end.

    Attributes:
        directory: Where they are prepared.
        count: How many have been begun.
        joined: Finds one of the files that they are added to; None once it was asked
            for, and if there are none.
        log: Where a warning goes about those.
    """

    def __init__(self, directory: Path, prefix: str, ending: str) -> None:
        self.directory = directory
        self.count: int = 0
        self.joined: Callable[[], Path | None] | None = None
        self.log: Any = None
        self._prefix = prefix
        self._ending = ending
        self._finished: list[str] = []

    def begin(self, folder: str = "") -> Path:
        """Return the path of a new file."""
        place = self.directory / folder
        if folder:
            make_directories(place)
        name = f"{self._prefix}-{self.count:05d}{self._ending}"
        # Counted also if it is never finished: no name is ever used twice.
        self.count += 1
        return place / name

    def finish(self, path: Path) -> None:
        """Let a file, which is closed, survive a loss of power; blocks."""
        # File, then directory: a name without its content is what must never be seen.
        with path.open("rb") as file:
            os.fsync(file.fileno())
        sync_directory(path.parent)
        self._finished.append(str(path.relative_to(self.directory.parent)))

    def take_joined(self) -> Path | None:
        """Return one of the files that these are added to, once; None if there are none.

        Blocks.
        """
        find, self.joined = self.joined, None
        return None if find is None else find()

    def warn_of_columns(self, joined: Path, differences: list[str]) -> None:
        """Say that the files that these are added to have other columns."""
        self.log.warning(
            "files are added to a directory whose files have other columns",
            directory=str(self.directory.parent),
            compared_with=str(joined),
            differences="; ".join(differences),
            remedy="write records with the same columns and types, or into another "
            "directory: who reads it as one table fails, or reads None",
        )

    def take_finished(self) -> list[str]:
        """Return the names of the files finished since the last call."""
        finished, self._finished = self._finished, []
        return finished


def _first_file(directory: Path, ending: str) -> Path | None:
    """Return the first file of an ending that readers of a directory see, if there is one."""
    for place, folders, names in os.walk(directory):
        folders[:] = sorted(name for name in folders if name[0] not in "._")
        for name in sorted(names):
            if name[0] not in "._" and name.endswith(ending):
                return Path(place, name)
    return None


class SegmentWriter(ABC):
    """The base of writers of files: their names, and their turns in a thread.

    Args:
        segments: The files.
    """

    # What is written, for messages.
    kind = "files"
    acts_on_records_only = True

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._turns = ThreadTurns()
        self._has_written = False

    def prepare_commit(self) -> list[Any]:
        """Return the names of the files finished since the last call."""
        return self._segments.take_finished()

    def snapshot(self) -> list[Any]:
        """Return how many files there are, so that names do not come again."""
        return [self._segments.count]

    def restore(self, elements: list[Any]) -> None:
        """Take over the number of files; of several writers, the largest."""
        self._segments.count = max(elements)

    def close(self) -> Pending:
        """Close the files; they stay in the staging directory."""
        return self._turns.run(self._abandon) if self._has_written else None

    async def _in_thread(self, work: Callable[[], None]) -> None:
        try:
            self._has_written = True
            await self._turns.run(work)
        except OSError as error:
            place = str(self._segments.directory)
            message = f"cannot write {self.kind} into {place!r}: {error}"
            raise SinkError(message) from error

    @abstractmethod
    def _abandon(self) -> None:
        """Close what is open, whatever becomes of it; called in a thread."""


def token_of(context: RuntimeContext | CommitterContext) -> str:
    """Return what names the files of a sink that can be committed together.

    Writers and committer, wherever they are, find each other's files by it.
    """
    if not (context.commits_at_checkpoints and context.is_resumable):
        return context.execution_id[:12]
    # What the next execution finds again, too; and no job of the same name whose
    # checkpoints are elsewhere, and count alike.
    return _token(context.job_id, context.operator_id, context.lineage)


def former_token_of(context: RuntimeContext | CommitterContext) -> str:
    """Return the token of versions before lineages; "" if nothing goes on from it."""
    if not (context.commits_at_checkpoints and context.is_resumable):
        return ""
    return _token(context.job_id, context.operator_id)


def _token(*names: str) -> str:
    # One without a lineage is named as versions before lineages did.
    identity = "\0".join(one for one in names if one).encode()
    return hashlib.sha256(identity).hexdigest()[:12]
