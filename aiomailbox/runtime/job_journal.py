"""A job's journal of finished calls: where it is, and what its master does with it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from aiomailbox.checkpoint import job_directory
from aiomailbox.errors import InvalidArgumentError
from aiomailbox.graph import JobGraph
from aiomailbox.journal import JobJournal
from aiomailbox.runtime.services import JobServices
from aiomailbox.storage import LocalStorage, open_storage
from aiomailbox.threads import ThreadTurns

__all__ = ["FinishedCalls", "journal_directory"]


def journal_directory(place: str, job_id: str) -> Path:
    """Return where the journal of a job is.

    Args:
        place: Where checkpoints are kept: a path or a URL.
        job_id: The job's identity.

    Raises:
        InvalidArgumentError: If it is not on a file system of this machine.
    """
    storage = open_storage(place)
    if not isinstance(storage, LocalStorage):
        raise InvalidArgumentError(
            "directory",
            f"journal=True cannot keep finished calls at {place}. A call is finished "
            "when it has been appended to a file, and an object store appends to none: "
            "every call would wait for an upload",
            "Use a directory of this machine, or one that is mounted.",
        )
    return Path(storage.place) / job_directory(job_id) / "journal"


class FinishedCalls:
    """The journal of one job; without one where no operator keeps any.

    Args:
        graph: The job.
        services: What its tasks share.
    """

    def __init__(self, graph: JobGraph, services: JobServices) -> None:
        self._services = services
        self._subtasks = {
            str(node.operator_id): range(vertex.parallelism)
            for vertex in graph.vertices
            for node in vertex.nodes
            if node.transformation.has_journal
        }
        self._names = [
            node.transformation.name
            for vertex in graph.vertices
            for node in vertex.nodes
            if node.transformation.has_journal
        ]
        self._journal: JobJournal | None = None
        self._turns = ThreadTurns()

    def open(self, place: str | None) -> None:
        """Say where checkpoints are kept, None for a job without.

        Raises:
            InvalidArgumentError: If an operator keeps finished calls, and there is no
                place for them.
        """
        if not self._subtasks:
            return
        if place is None:
            raise InvalidArgumentError(
                "journal",
                f"{self._names[0]!r} keeps finished calls, and the job has no place for "
                "them",
                "Call env.enable_checkpointing(interval, directory=...).",
            )
        self._journal = JobJournal(journal_directory(place, self._services.job_id))

    async def begin_attempt(
        self, epoch: int, restored_id: int | None, retained: Iterable[int]
    ) -> int:
        """Shut out the attempt before, and make ready what it has left.

        Args:
            epoch: The number of the new attempt, at least.
            restored_id: The checkpoint that it goes on from, None for none.
            retained: The checkpoints that others may go on from later.

        Returns:
            The number of the new attempt.

        Raises:
            DamagedFileError: If what was left is not what was written.
            OSError: If the journal cannot be read or written.
        """
        if self._journal is None:
            return epoch
        return await self._turns.run(
            self._begin, self._journal, epoch, restored_id, list(retained)
        )

    async def prune(self, oldest: int) -> None:
        """Delete what is from before the oldest checkpoint that is retained."""
        if self._journal is None:
            return
        try:
            await self._turns.run(self._journal.prune, oldest)
        except OSError as error:
            self._services.log.warning(
                "finished calls could not be deleted", reason=str(error)
            )

    async def remove(self) -> None:
        """Delete all of it: nothing goes on from this job any more."""
        if self._journal is not None:
            await self._turns.run(self._journal.remove)

    def _begin(
        self,
        journal: JobJournal,
        epoch: int,
        restored_id: int | None,
        retained: list[int],
    ) -> int:
        if restored_id is not None and restored_id < journal.pruned_to:
            self._services.log.warning(
                "the journal does not cover the checkpoint that the job goes on from: "
                "calls that had ended between the two are made again",
                checkpoint_id=restored_id,
                covered_from=journal.pruned_to,
            )
        epoch = journal.next_epoch(epoch)
        oldest = None if restored_id is None else min([restored_id, *retained])
        journal.begin(epoch, self._subtasks, oldest)
        return epoch
