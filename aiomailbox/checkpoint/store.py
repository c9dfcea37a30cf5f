"""The checkpoints of one job: which there are, which is complete, which goes.

Theory of operation: a job claims its directory, so that no other one writes there. Then
the store removes checkpoints that never became complete. A checkpoint counts from the
moment when its metadata is durable, and that is written last; when it goes, the
metadata goes first. Beside them one small file says which attempt is the newest and
which checkpoint was the last to complete, so that a checkpoint that has vanished is
told from one that never was. Each checkpoint names the savepoints that the job has gone
on from, so that a job that is started again with the same savepoint resumes from its
own newest checkpoint. It passes over checkpoints that it does not resume from, and
deletes them when a checkpoint of its own is complete.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from aiomailbox.checkpoint.layout import (
    METADATA_NAME,
    CheckpointMetadata,
    JobNumbers,
    checkpoint_directory,
    checkpoint_id_of,
    delete_files,
    job_directory,
    metadata_chunks,
    read_job_file,
    write_job_file,
)
from aiomailbox.checkpoint.reader import CheckpointFiles, RestoredJob
from aiomailbox.checkpoint.shared_files import remove_unused
from aiomailbox.clock import Clock
from aiomailbox.errors import (
    CorruptStreamError,
    DamagedFileError,
    NoCheckpointError,
    StateError,
    add_note,
)
from aiomailbox.storage import open_storage
from aiomailbox.storage.contract import Storage
from aiomailbox.storage.local import PRIVATE

LATEST: Final = "latest"
# What an attempt's number is raised by if the last one cannot be read any more.
_LOST_EPOCHS: Final = 1_000
_BEYOND_ALL: Final = 2**63
# How often files are deleted again of a checkpoint that failed: a task may have been
# writing still.
_LATE_SWEEPS: Final = 3
# So many upgrades back a job knows which savepoints it has gone on from.
_ANCESTORS_MAX: Final = 100
# Numbers of checkpoints that are not written are used up so many at once.
_USED_AHEAD: Final = 63


class CheckpointStore:
    """The checkpoints of one job, their only writer; all calls block.

    Args:
        storage: Where checkpoints are.
        job_id: The identity of the job.
        clock: Tells when a claim runs out.
        log: A structlog logger.
        owner: The claimant's name, for the error that others get.
        file_mode: The mode of a savepoint's new files; that of checkpoints is the
            storage's.

    Raises:
        StorageClaimedError: If another job with this identity runs.
        OSError: If the place cannot be written.

    Concept:
        Flink, ``FsCheckpointStorageAccess`` and ``CompletedCheckpointStore``.

    Example:
        >>> import tempfile
        >>> from aiomailbox.clock import SystemClock
        >>> from aiomailbox.storage.local import LocalStorage
        >>> from aiomailbox.testing import RecordingLog
        >>> storage = LocalStorage(tempfile.mkdtemp())
        >>> store = CheckpointStore(storage, "delays", SystemClock(), RecordingLog())
        >>> store.load("latest", []) is None, store.next_checkpoint_id
        (True, 1)
        >>> store.close()
    """

    def __init__(
        self,
        storage: Storage,
        job_id: str,
        clock: Clock,
        log: Any,
        *,
        owner: str | None = None,
        file_mode: int = PRIVATE,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._log = log
        self._file_mode = file_mode
        self._below = job_directory(job_id)
        # By the numbers of complete checkpoints the shared files that each has; None
        # where that is unknown.
        self._shared: dict[int, set[str] | None] = {}
        self.has_completed: bool = False
        # Complete ones that the job does not go on from.
        self._passed_over: set[int] = set()
        # Checkpoints and savepoints that this execution has written.
        self._own: set[int] = set()
        # By their numbers checkpoints that failed, and how often to look there again.
        self._failed: dict[int, int] = {}
        # Before anything is read: another job may be deleting here.
        self._claim = storage.claim(
            self._below, owner or f"job {job_id!r}", clock.now_ms()
        )
        try:
            storage.sweep(self._below)
            found, self._complete = self._scan()
            self._job = self._read_job(found)
            # Also beyond what failed: a number is never used twice, or late files of
            # one would look like the other's.
            self._newest = max(self._job.last_id, *found, 0)
            for checkpoint_id in sorted(found - self._complete):
                self.discard(checkpoint_id)
            self._shared = {one: self._shared_of(one) for one in self._complete}
            # There is no writer yet.
            self._remove_unused(_BEYOND_ALL)
        except BaseException:
            self._claim.release()
            raise

    @property
    def place(self) -> str:
        """The path or URL of the job's directory."""
        return f"{self._storage.place}/{self._below}"

    @property
    def next_checkpoint_id(self) -> int:
        """A number beyond those of all that ever completed, or of which there is a file."""
        return max(self._newest, self._job.last_id) + 1

    def is_used_up(self, checkpoint_id: int) -> bool:
        """Say whether no later life gives a number away again."""
        return checkpoint_id <= self._job.last_id

    def use_up(self, checkpoint_id: int) -> None:
        """Let no later life give a number away again, nor some that follow it; durable.

        Raises:
            OSError: If it cannot be written.
        """
        if not self.is_used_up(checkpoint_id):
            self._write_job(last_id=checkpoint_id + _USED_AHEAD)

    def join_lineage(self, execution_id: str) -> str:
        """Return what names all executions that go on from each other here; durable.

        Raises:
            OSError: If it cannot be written.
        """
        if not self._job.lineage:
            self._write_job(lineage=execution_id)
        return self._job.lineage

    def newest_first(self) -> list[int]:
        """Return the numbers of complete checkpoints, but not of those passed over."""
        return sorted(self._complete - self._passed_over, reverse=True)

    def new_epoch(self) -> int:
        """Begin an attempt: return its number, above all that there were; durable."""
        epoch = self._job.epoch + 1
        self._write_job(epoch=epoch, finished_ms=0, finished_from=())
        return self._job.epoch

    def renew(self) -> None:
        """Hold the claim for longer; needed more often than every `LEASE_MS`.

        Raises:
            StorageClaimedError: If another owner has taken over.
        """
        self._claim.renew(self._clock.now_ms())

    def complete(
        self,
        metadata: CheckpointMetadata,
        location: str | os.PathLike[str] | None = None,
    ) -> str:
        """Make a checkpoint count: write its metadata, durably.

        Returns:
            Its path or URL, to restore from.

        Raises:
            StorageClaimedError: If another owner has taken over.
            OSError: If it cannot be written; then it is not complete.
        """
        # A writer that lost the claim meanwhile must not complete a checkpoint.
        self.renew()
        checkpoint_id = metadata.checkpoint_id
        chunks = metadata_chunks(metadata)
        if location is not None:
            storage = open_storage(location, file_mode=self._file_mode)
            storage.write(METADATA_NAME, chunks)
            numbers: dict[str, Any] = {}
            if metadata.kind.is_synchronous:
                numbers = {"savepoint": storage.place, "savepoint_id": checkpoint_id}
                self._own.add(checkpoint_id)
            self._write_job(last_id=max(checkpoint_id, self._job.last_id), **numbers)
            return storage.place
        directory = self._directory(checkpoint_id)
        # The last thing that is written: from here on it counts, also after a crash.
        self._storage.write(f"{directory}/{METADATA_NAME}", chunks)
        self._complete.add(checkpoint_id)
        self._own.add(checkpoint_id)
        self.has_completed = True
        self._shared[checkpoint_id] = metadata.shared_files
        newest = max(checkpoint_id, self._job.completed)
        last_id = max(checkpoint_id, self._job.last_id)
        self._write_job(completed=newest, last_id=last_id)
        # It was kept to resume from, and something newer is there.
        if checkpoint_id > self._job.savepoint_id:
            self._forget_savepoint()
        # What cannot be deleted now is swept by the next life.
        with contextlib.suppress(OSError):
            self._sweep_failed()
            if metadata.shared_files:
                self._remove_unused(checkpoint_id)
        return f"{self._storage.place}/{directory}"

    def discard(
        self,
        checkpoint_id: int,
        location: str | os.PathLike[str] | None = None,
    ) -> None:
        """Delete everything that was written for a checkpoint.

        Raises:
            OSError: If it cannot be deleted; it does not count any more then.
        """
        storage, directory = self._storage, self._directory(checkpoint_id)
        had: set[str] | None = None
        if location is not None:
            storage, directory = open_storage(location), ""
            if checkpoint_id == self._job.savepoint_id:
                self._forget_savepoint()
        elif checkpoint_id in self._complete:
            self._complete.remove(checkpoint_id)
            had = self._shared.pop(checkpoint_id, None)
            if checkpoint_id == self._job.completed:
                # It must not be taken for lost.
                self._write_job(completed=max(self._complete, default=0))
        else:
            self._failed[checkpoint_id] = _LATE_SWEEPS
        # First the books and then the files: a crash in between leaves unused files,
        # not entries without files.
        delete_files(storage, directory)
        if had:
            # What a later one has not taken over by now, none will.
            self._remove_unused(max(self._complete, default=self.next_checkpoint_id))

    def discard_all(self) -> int:
        """Delete all checkpoints: nothing resumes from this job.

        The newest goes last: should the program die meanwhile, nothing is done again.

        Returns:
            How many there were.

        Raises:
            OSError: If one cannot be deleted.
        """
        found = sorted(self._complete)
        for checkpoint_id in found:
            self.discard(checkpoint_id)
        self._forget_savepoint()
        return len(found)

    def finish(self, ancestors: tuple[str, ...], savepoint_id: int | None) -> None:
        """Record that the job has ended well; its checkpoints are deleted after that.

        A second time is a no-op: the first one counts.

        Raises:
            OSError: If that cannot be written.
        """
        if self._job.finished_ms:
            return
        numbers: dict[str, Any] = {}
        if savepoint_id is None:
            numbers = {"savepoint": "", "savepoint_id": 0}
        self._write_job(
            finished_ms=self._clock.now_ms(), finished_from=ancestors, **numbers
        )

    def finished(self, which: str | os.PathLike[str] | None) -> datetime | None:
        """Return when a run ended well that another one would repeat; None if none did."""
        if not self._job.finished_ms:
            return None
        if which is not None and which != LATEST:
            try:
                origin = CheckpointFiles.at(which).identity()
            except FileNotFoundError:
                return None
            # A run that ended with this savepoint has not done what follows it.
            if origin not in self._job.finished_from:
                return None
        return datetime.fromtimestamp(self._job.finished_ms / 1000, UTC)

    @property
    def is_left_half_deleted(self) -> bool:
        """Whether the program died while it cleaned up after a job that ended well."""
        return (
            bool(self._job.finished_ms and self._complete) and not self._job.savepoint
        )

    @property
    def ended_with(self) -> int | None:
        """The savepoint that was to end the job, and has not been resumed from."""
        return self._job.savepoint_id if self._job.savepoint else None

    def go_on_from(self, restored: RestoredJob | None) -> None:
        """Be notified of what the job begins with; pass over what is newer, and say so.

        This life does not resume from a checkpoint that is passed over, and deletes it
        when a checkpoint is complete.
        """
        candidates = dict(self._candidates())
        began_id = 0
        if restored is not None:
            began_id = next(
                (
                    one
                    for one, files in candidates.items()
                    if files.place == restored.place
                ),
                0,
            )
        self._passed_over = {
            one for one in (*candidates, self._job.completed) if one > began_id
        }
        # What a job that ended well has left is not missed; what is damaged was named.
        if not candidates or began_id or self._job.finished_ms:
            return
        newest = candidates[max(candidates)].place
        if restored is None:
            self._log.warning(
                "the job starts without state, although there is a checkpoint of it: "
                'restore_from="latest" would resume from that; checkpoints of earlier '
                "runs are deleted when a new one is complete",
                newest=newest,
            )
        else:
            self._log.warning(
                "the job does not go on from its newest checkpoint, which does not "
                "descend from the one that restore_from names; checkpoints of earlier "
                "runs are deleted when a new one is complete",
                newest=newest,
                restored=restored.place,
            )

    @property
    def passed_over(self) -> list[int]:
        """The numbers of checkpoints that the job has not gone on from."""
        return sorted(self._passed_over & self._complete)

    def load(
        self,
        which: int | str | os.PathLike[str],
        classes: Iterable[Any],
        *,
        allow_pickled_state: bool = False,
    ) -> RestoredJob | None:
        """Return what a checkpoint or savepoint holds.

        Returns:
            None if the latest is asked for and none was ever complete.

        Raises:
            NoCheckpointError: If there is none there, or none that can be read.
            DamagedFileError: If the one that was named is not what was written.
            StateError: If state does not fit its classes, or needs pickle.
        """
        declared = list(classes)
        if which == LATEST:
            return self._load_latest(declared, allow_pickled_state=allow_pickled_state)
        if isinstance(which, int):
            files = CheckpointFiles(self._storage, self._directory(which))
        else:
            files = CheckpointFiles.at(which)
        try:
            origin = files.identity()
            own = self._load_descendant(
                origin, files.place, declared, allow_pickled_state=allow_pickled_state
            )
            if own is not None:
                return own
            if self.finished(files.place) is not None:
                self._warn_of_repetition(f"starts again from {files.place}")
            restored = files.restored(declared, allow_pickled_state=allow_pickled_state)
            return _named(restored, origin)
        except FileNotFoundError as error:
            raise NoCheckpointError(files.place, files.absence) from error

    def other_jobs(self) -> list[str]:
        """Return the jobs beside this one that have checkpoints; blocks.

        None of them if this job has taken some itself: it is known by its name.
        """
        found = set()
        for name in [] if self._newest else self._storage.names(""):
            job, _, rest = name.partition("/")
            checkpoint, _, file = rest.partition("/")
            if file == METADATA_NAME and checkpoint_id_of(checkpoint) is not None:
                found.add(unquote(job))
        return sorted(found)

    def close(self) -> None:
        """Give the claim back. Idempotent."""
        self._claim.release()

    def _shared_of(self, checkpoint_id: int) -> set[str] | None:
        files = CheckpointFiles(self._storage, self._directory(checkpoint_id))
        try:
            return files.metadata().shared_files
        except (DamagedFileError, FileNotFoundError, StateError):
            return None

    def _remove_unused(self, before_id: int) -> None:
        """Delete shared files that are older than a checkpoint, and in no complete one.

        Nothing is deleted while there is one of which this is unknown.
        """
        used: set[str] = set()
        for files in self._shared.values():
            if files is None:
                return
            used |= files
        remove_unused(self._storage, self._below, used, before_id)

    def _sweep_failed(self) -> None:
        for checkpoint_id, sweeps in list(self._failed.items()):
            delete_files(self._storage, self._directory(checkpoint_id))
            self._failed[checkpoint_id] = sweeps - 1
            if sweeps == 1:
                del self._failed[checkpoint_id]

    def _candidates(self) -> Iterator[tuple[int, CheckpointFiles]]:
        """Yield what the job may go on from, newest first."""
        found = {
            one: CheckpointFiles(self._storage, self._directory(one))
            for one in self._complete
        }
        if self._job.savepoint:
            found[self._job.savepoint_id] = CheckpointFiles.at(self._job.savepoint)
        for checkpoint_id in sorted(found.keys() - self._passed_over, reverse=True):
            yield checkpoint_id, found[checkpoint_id]

    def _load_newest(
        self, classes: list[Any], *, allow_pickled_state: bool, origin: str = ""
    ) -> tuple[RestoredJob | None, bool]:
        """Return the newest that can be read, and whether a newer one cannot."""
        is_damaged = False
        # A damaged one costs what came after the one before, not the job.
        for checkpoint_id, files in self._candidates():
            if origin and not self._descends(checkpoint_id, files, origin):
                continue
            try:
                # What is in it has come from this very process.
                allow = allow_pickled_state or checkpoint_id in self._own
                restored = files.restored(classes, allow_pickled_state=allow)
                if files.storage is not self._storage:
                    # The savepoint that was to end the job.
                    restored = _named(restored, files.identity())
            except (DamagedFileError, CorruptStreamError, FileNotFoundError) as error:
                self._warn(checkpoint_id, files.place, str(error))
                is_damaged = True
            else:
                return restored, is_damaged
        return None, is_damaged

    def _descends(
        self, checkpoint_id: int, files: CheckpointFiles, origin: str
    ) -> bool:
        try:
            return origin in files.metadata().ancestors
        except (DamagedFileError, FileNotFoundError, StateError) as error:
            self._warn(checkpoint_id, files.place, str(error))
            return False

    def _load_descendant(
        self, origin: str, place: str, classes: list[Any], *, allow_pickled_state: bool
    ) -> RestoredJob | None:
        """Return the newest of this job's that descends from one; None if none does.

        Raises:
            NoCheckpointError: If there are some, and none can be read.
        """
        remedy = (
            f"to begin from {place} again, delete the checkpoints in {self.place}, or "
            "give the job another job_id"
        )
        try:
            own, is_damaged = self._load_newest(
                classes, allow_pickled_state=allow_pickled_state, origin=origin
            )
        except StateError as error:
            add_note(error, f"It is of this job, and newer than {place}: {remedy}.")
            raise
        if own is not None:
            self._log.warning(
                "the job goes on from its own checkpoint, which is newer than the one "
                "that restore_from names and descends from it; " + remedy,
                restored=own.place,
                restore_from=place,
            )
        elif is_damaged:
            raise NoCheckpointError(
                self.place,
                f"checkpoints that descend from {place} were completed, and none of "
                f"them can be read any more; {remedy}",
            )
        return own

    def _load_latest(
        self, classes: list[Any], *, allow_pickled_state: bool
    ) -> RestoredJob | None:
        expected = self._job.completed
        if expected in self._passed_over:
            expected = 0
        if expected and expected not in self._complete:
            place = f"{self._storage.place}/{self._directory(expected)}"
            self._warn(expected, place, "its metadata is missing")
        restored, _ = self._load_newest(
            classes, allow_pickled_state=allow_pickled_state
        )
        if restored is not None:
            return restored
        savepoint_id = self.ended_with
        if expected or (
            savepoint_id is not None and savepoint_id not in self._passed_over
        ):
            raise NoCheckpointError(
                self.place,
                "checkpoints were completed, and none of them can be read any "
                "more; to start without state, give the job another job_id, or "
                "remove the directory. enable_checkpointing(..., retained=2) keeps "
                "one to fall back to",
            )
        # What was torn while it was written never counted, and nothing of it was
        # committed: the job has not come that far.
        if self._job.finished_ms:
            self._warn_of_repetition("starts without state")
        return None

    def _warn_of_repetition(self, what: str) -> None:
        when = datetime.fromtimestamp(self._job.finished_ms / 1000, UTC)
        self._log.warning(
            f"the job had finished before, and {what}",
            place=self.place,
            finished=when.isoformat(timespec="seconds"),
        )

    def _warn(self, checkpoint_id: int, place: str, problem: str) -> None:
        self._log.warning(
            "checkpoint skipped",
            checkpoint=checkpoint_id,
            place=place,
            problem=problem,
        )

    def _scan(self) -> tuple[set[int], set[int]]:
        """Return the numbers that were used, and those of complete checkpoints."""
        found: set[int] = set()
        complete: set[int] = set()
        for name in self._storage.names(self._below):
            directory, _, file = name.removeprefix(f"{self._below}/").partition("/")
            checkpoint_id = checkpoint_id_of(directory)
            if checkpoint_id is not None:
                found.add(checkpoint_id)
                if file == METADATA_NAME:
                    complete.add(checkpoint_id)
        return found, complete

    def _directory(self, checkpoint_id: int) -> str:
        return f"{self._below}/{checkpoint_directory(checkpoint_id)}"

    def _read_job(self, found: set[int]) -> JobNumbers:
        try:
            return read_job_file(self._storage, self._below)
        except FileNotFoundError as error:
            if not found:
                return JobNumbers()
            problem = str(error)
        except DamagedFileError as error:
            problem = str(error)
        self._log.warning("the number of the last attempt is lost", problem=problem)
        # One of them may have been complete: without any, the job does not begin anew.
        newest = max(found, default=0)
        numbers = JobNumbers(_LOST_EPOCHS + self._newest_epoch(), newest, newest)
        write_job_file(self._storage, self._below, numbers)
        return numbers

    def _newest_epoch(self) -> int:
        newest = 0
        for checkpoint_id in self._complete:
            files = CheckpointFiles(self._storage, self._directory(checkpoint_id))
            try:
                newest = max(newest, files.metadata().epoch)
            except (DamagedFileError, FileNotFoundError):
                continue
        return newest

    def _forget_savepoint(self) -> None:
        self._write_job(savepoint="", savepoint_id=0)

    def _write_job(self, **numbers: Any) -> None:
        job = msgspec.structs.replace(self._job, **numbers)
        if job != self._job:
            write_job_file(self._storage, self._below, job)
            self._job = job


def _named(restored: RestoredJob, origin: str) -> RestoredJob:
    """Return what a savepoint holds, as an ancestor of what goes on from it."""
    ancestors = (*restored.ancestors, origin)[-_ANCESTORS_MAX:]
    return replace(restored, ancestors=ancestors)
