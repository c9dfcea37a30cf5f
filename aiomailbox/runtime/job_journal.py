"""A job's journal of finished calls: where it is, and what its master does with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path

from aiomailbox.checkpoint.layout import job_directory
from aiomailbox.checkpoint.settings import CheckpointConfig
from aiomailbox.errors import InvalidArgumentError
from aiomailbox.graph.job_graph import JobGraph
from aiomailbox.ids import SubtaskId
from aiomailbox.journal.job import JobJournal
from aiomailbox.journal.place import JournalPlace, RemotePlace
from aiomailbox.runtime.services import JobServices
from aiomailbox.scratch import ScratchDirectories
from aiomailbox.storage import open_storage
from aiomailbox.storage.contract import Claim
from aiomailbox.storage.local import PRIVATE, LocalStorage
from aiomailbox.supervision import ThreadTurns


def journal_place(
    settings: CheckpointConfig | None, place: str, job_id: str
) -> JournalPlace | Callable[[Path], JournalPlace]:
    """Return where the journal of a job is, or what makes that.

    Args:
        settings: Say if it is apart from checkpoints, and who may read it.
        place: Where these are kept: a path or a URL.
        job_id: The job's identity.

    Returns:
        On storage that appends to nothing a function of a directory of this machine, to
        work in, that is for its caller alone.
    """
    if settings is not None and settings.journal_directory is not None:
        place = os.fspath(settings.journal_directory)
    file_mode = PRIVATE if settings is None else settings.file_mode
    storage = open_storage(place)
    name = f"{job_directory(job_id)}/journal"
    if isinstance(storage, LocalStorage):
        return JournalPlace(Path(storage.place) / name, file_mode=file_mode)
    return lambda path: RemotePlace(storage, name, path)


class FinishedCalls:
    """The journal of one job, of which an operator keeps finished calls.

    Args:
        graph: The job.
        settings: Of its checkpoints.
        services: What its tasks share.
    """

    def __init__(
        self,
        graph: JobGraph,
        settings: CheckpointConfig | None,
        services: JobServices,
    ) -> None:
        self._settings = settings
        self._services = services
        self._subtasks = {
            str(node.operator_id): [
                SubtaskId(vertex.id, index) for index in range(vertex.parallelism)
            ]
            for vertex in graph.vertices
            for node in vertex.nodes
            if node.transformation.has_journal
        }
        self._names = [
            node.name for node in graph.nodes if node.transformation.has_journal
        ]
        self._owner = f"job {graph.name!r} of process {os.getpid()}"
        self._journal: JobJournal | None = None
        self._claim: Claim | None = None
        self._turns = ThreadTurns()

    async def open(self, place: str | None, scratch: ScratchDirectories) -> None:
        """Hear where checkpoints are kept, None for a job without.

        Args:
            place: A path or a URL.
            scratch: Where the job keeps what is not needed after it.

        Raises:
            InvalidArgumentError: If an operator keeps finished calls, and there is no
                place for them.
            StorageClaimedError: If they are apart from checkpoints, and another job with
                this identity keeps its own there.
        """
        if place is None:
            raise InvalidArgumentError(
                "journal",
                f"operator {self._names[0]!r} has journal=True, and the job has no "
                "directory for the journal",
                "Call env.enable_checkpointing(interval, directory=...).",
            )
        settings = self._settings
        if settings is not None and not (
            settings.directory or settings.journal_directory
        ):
            self._services.log.warning(
                "the journal of calls ends with this program: it is in a temporary "
                "directory",
                operators=self._names,
                remedy="env.enable_checkpointing(interval, directory=...), if no "
                "finished call may be repeated by the next program",
            )
        if self._settings is not None and self._settings.journal_directory is not None:
            # Two jobs of one name may have checkpoints that are apart, and this in common.
            apart = os.fspath(self._settings.journal_directory)
            await self._turns.run(partial(self._take, apart))
        found = journal_place(self._settings, place, self._services.job_id)
        if callable(found):
            below = await self._turns.run(scratch.below, "")
            self._journal = JobJournal(found(Path(below, "journal")))
        else:
            self._journal = JobJournal(found)

    async def begin_attempt(
        self,
        epoch: int,
        restored_id: int | None,
        retained: Iterable[int],
        tasks: Collection[SubtaskId] | None = None,
    ) -> int:
        """Shut out the attempt before, and make ready what it has left.

        Args:
            epoch: The number of the new attempt, at least.
            restored_id: The checkpoint that it resumes from, None for none.
            retained: The checkpoints that others may resume from later.
            tasks: Those that begin; None for all.

        Returns:
            The number of the new attempt.

        Raises:
            DamagedFileError: If what was left is not what was written.
            OSError: If the journal cannot be read or written.
        """
        if self._journal is None:
            return epoch
        return await self._turns.run(
            self._begin, self._journal, epoch, restored_id, list(retained), tasks
        )

    async def prune(self, oldest: int) -> None:
        """Delete what is from before the oldest checkpoint that is retained."""
        if self._journal is None:
            return
        # What is not deleted now is deleted with the next checkpoint.
        try:
            await self._turns.run(self._journal.prune, oldest)
        except OSError as error:
            self._services.log.warning(
                "finished calls could not be deleted", reason=str(error)
            )

    async def end(self, savepoint_id: int | None) -> None:
        """Delete what nothing needs once the job has finished.

        Args:
            savepoint_id: The savepoint that it may go on from; None if nothing resumes
                from this job any more, which deletes all.
        """
        if savepoint_id is not None:
            await self.prune(savepoint_id)
        elif self._journal is not None:
            await self._turns.run(self._journal.remove)

    async def renew(self) -> None:
        """Hold the claim for longer.

        Raises:
            StorageClaimedError: If another job has taken over.
        """
        if self._claim is not None:
            now_ms = self._services.clock.now_ms()
            await self._turns.run(partial(self._claim.renew, now_ms))

    async def close(self) -> None:
        """Give the claim back. Idempotent."""
        claim, self._claim = self._claim, None
        if claim is not None:
            await self._turns.run(claim.release)

    def _take(self, apart: str) -> None:
        # Set here: the waiter may be cancelled, and the claim is to be released.
        below = f"{job_directory(self._services.job_id)}/journal"
        now_ms = self._services.clock.now_ms()
        self._claim = open_storage(apart).claim(below, self._owner, now_ms)

    def _begin(
        self,
        journal: JobJournal,
        epoch: int,
        restored_id: int | None,
        retained: list[int],
        tasks: Collection[SubtaskId] | None,
    ) -> int:
        # Above whatever a former attempt, maybe one that is still running, has written
        # with.
        epoch = journal.next_epoch(epoch)
        if restored_id is not None and restored_id < journal.pruned_to:
            self._services.log.warning(
                "the journal does not reach back to the checkpoint that the job "
                "resumes from: it repeats calls that finished between the two",
                checkpoint_id=restored_id,
                covered_from=journal.pruned_to,
            )
        # What any retained checkpoint may need: a job may resume from an older one.
        oldest = None if restored_id is None else min([restored_id, *retained])
        beginning = {
            operator_id: [
                task.subtask_index for task in found if tasks is None or task in tasks
            ]
            for operator_id, found in self._subtasks.items()
        }
        journal.begin(
            epoch,
            {name: found for name, found in beginning.items() if found},
            oldest,
            is_whole=tasks is None,
        )
        return epoch
