"""A job's journal as its master sees it: made ready for an attempt, pruned, removed.

Theory of operation: when an attempt begins, the one before is shut out and what it has
left is put together with what was left before, without what can no longer be asked for.
So there is one base and, beside it, what the present attempt appends. An entry of the
base is needed until its row has come again and has left its operator before the oldest
retained checkpoint; then the logs say so in a segment that is about to be deleted.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from aiomailbox.errors import DamagedFileError
from aiomailbox.journal.entries import (
    EntryKind,
    LogDirectory,
    base_directories,
    base_directory,
    check_finished,
    entries_in,
    first_needed,
    log_directories,
    operator_directory,
)
from aiomailbox.journal.fence import FENCE, fenced_epochs, raise_fence
from aiomailbox.journal.place import JournalPlace
from aiomailbox.storage.append_log import AppendLog, LogSegment
from aiomailbox.storage.local import LocalStorage, make_directories, sync_directory

_PRUNED: Final = "pruned"
# Of the base, the keys of rows that have left before the oldest checkpoint.
_RELEASED: Final = "released"
_CHUNK_ENTRIES: Final = 256

_Places = dict[bytes, tuple[LogSegment, int]]


class JobJournal:
    """The journal of one job; all methods block.

    The caller has claimed the job's directory.

    Args:
        place: Where it is.
    """

    def __init__(self, place: JournalPlace) -> None:
        self._place = place
        self._directory = self._place.path
        # By operator the keys of its base that may still be asked for.
        self._base_keys: dict[Path, set[bytes]] = {}

    def next_epoch(self, at_least: int = 0) -> int:
        """Return the number for a new attempt: above that of every attempt so far."""
        self._place.fetch(self._directory)
        epochs = [
            epoch for operator in self._operators() for epoch in fenced_epochs(operator)
        ]
        return max([at_least - 1, *epochs]) + 1

    def begin(
        self,
        epoch: int,
        operators: Mapping[str, Collection[int]],
        oldest: int | None = None,
        *,
        is_whole: bool = True,
    ) -> None:
        """Shut out the attempt before, and put together what it has left.

        Args:
            epoch: The new attempt's number.
            operators: By the id of each operator with a journal its subtasks that begin
                anew.
            oldest: The oldest checkpoint that a job may resume from, retained or being
                restored; None if the job may begin from its beginning.
            is_whole: Whether all subtasks begin: then what more the operators had is
                over as well. Else the others go on.

        Raises:
            FencedError: If this attempt, or a later one, has begun before.
            DamagedFileError: If what was left is not what was written.
            OSError: If the directory cannot be read or written.
        """
        for operator_id, subtasks in operators.items():
            operator = operator_directory(self._directory, operator_id)
            make_directories(operator, self._place.file_mode)
            self._place.fetch(operator)
            known = fenced_epochs(operator)
            beginning = set(subtasks)
            if is_whole:
                # Those of a time with more subtasks are over.
                beginning |= set(range(len(known)))
            raise_fence(operator, epoch, beginning, file_mode=self._place.file_mode)
            self._place.publish(operator / FENCE)
            # What comes later does not count.
            self._place.fetch(operator)
            over = [
                one for one in log_directories(operator) if one.subtask in beginning
            ]
            # The base is made anew; which keys it has is found out by the next `prune`.
            self._base_keys.pop(operator, None)
            needless = _put_together(self._place, operator, epoch, over, oldest)
            self._place.begin_logs(operator, epoch, beginning)
            # After the base is published: a crash in between leaves entries twice, and
            # none lost.
            self._place.delete(needless)
            sync_directory(operator)

    def prune(self, oldest: int) -> None:
        """Delete what can no longer be asked for.

        Args:
            oldest: The oldest checkpoint that is retained, or may still be.

        Raises:
            OSError: If the directory cannot be read or written.
        """
        # First, so that readers know that not all is there any more.
        if oldest > self.pruned_to:
            here = LocalStorage(self._directory, file_mode=self._place.file_mode)
            here.write(_PRUNED, [b"%d" % oldest])
            self._place.publish(self._directory / _PRUNED)
        for operator in self._operators():
            self._place.fetch(operator)
            for log in log_directories(operator):
                self._prune(operator, log, oldest)

    @property
    def pruned_to(self) -> int:
        """The checkpoint before which nothing is kept, 0 if all is.

        A job that resumes from an older one, such as a savepoint, repeats calls that
        were made between the two.

        Raises:
            DamagedFileError: If that is not what was written.
        """
        path = self._directory / _PRUNED
        try:
            return int(path.read_bytes())
        except FileNotFoundError:
            return 0
        except ValueError as error:
            raise DamagedFileError(str(path), "it is not a number") from error

    def remove(self) -> None:
        """Delete all of it: the job has ended well."""
        self._place.delete([self._directory])

    def _operators(self) -> list[Path]:
        return sorted(self._directory.glob("op-*"))

    def _prune(self, operator: Path, log: LogDirectory, oldest: int) -> None:
        segments = log.segments
        needed = first_needed(segments, oldest)
        # Never the last one, which is being written.
        over = [segment for segment in segments[:-1] if segment.number < needed]
        for segment in over:
            self._release(operator, segment)
        if over:
            self._place.delete([segment.path for segment in over])

    def _release(self, operator: Path, segment: LogSegment) -> None:
        """Release what the base has of rows that left before the oldest checkpoint."""
        bases = base_directories(operator)
        if not bases:
            return
        keys = self._base_keys.get(operator)
        if keys is None:
            keys = {
                entry.key
                for base in bases
                for one in LogSegment.all_in(base)
                for _, entry in entries_in(one)
            }
            self._base_keys[operator] = keys
        released = keys.intersection(entry.key for _, entry in entries_in(segment))
        keys -= released
        if not keys:
            del self._base_keys[operator]
            self._place.delete([*bases, operator / _RELEASED])
        elif released:
            # The segment that says so is about to go, and the base stays.
            log = AppendLog(operator / _RELEASED, file_mode=self._place.file_mode)
            log.append(sorted(released))
            log.close()
            self._place.publish(operator / _RELEASED)


def _put_together(
    place: JournalPlace,
    operator: Path,
    epoch: int,
    logs: list[LogDirectory],
    oldest: int | None,
) -> list[Path]:
    """Make one base of the bases and the logs of earlier epochs.

    Returns:
        The segments that are no longer needed.
    """
    bases = base_directories(operator)
    if not logs and len(bases) <= 1:
        return []
    before: _Places = {}
    for base in bases:
        for segment in LogSegment.all_in(base):
            check_finished(segment, is_last=False)
            for start, entry in entries_in(segment):
                before[entry.key] = segment, start
    for segment in LogSegment.all_in(operator / _RELEASED):
        segment.check(is_last=place.tears)
        for _, key in segment.entries():
            before.pop(key, None)
    since: _Places = {}
    for log in logs:
        _add(log, oldest, before, since, tears=place.tears)
    made = base_directory(operator, epoch)
    before.update(since)
    if before:
        _write_base(made, before, place.file_mode)
        place.publish(made)
    return [operator / _RELEASED, *bases, *(log.path for log in logs)]


def _add(
    log: LogDirectory,
    oldest: int | None,
    before: _Places,
    since: _Places,
    *,
    tears: bool,
) -> None:
    segments = log.segments
    for segment in segments:
        check_finished(segment, is_last=tears and segment is segments[-1])
    needed = first_needed(segments, oldest)
    for segment in segments:
        for place, entry in entries_in(segment):
            if segment.number < needed:
                # Its row has come again, and has left.
                before.pop(entry.key, None)
            elif entry.kind in {EntryKind.RESULT, EntryKind.FAILURE}:
                since[entry.key] = segment, place


def _write_base(path: Path, places: _Places, file_mode: int) -> None:
    # Under a name that is no base, and renamed when it is whole.
    temporary = path.with_name(f"{path.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)
    log = AppendLog(temporary, file_mode=file_mode)
    try:
        chunk: list[bytes] = []
        for segment, place in places.values():
            chunk.append(segment.entry_at(place))
            if len(chunk) == _CHUNK_ENTRIES:
                log.append(chunk)
                chunk = []
        log.append(chunk)
    finally:
        log.close()
    shutil.rmtree(path, ignore_errors=True)
    os.rename(temporary, path)
    sync_directory(path.parent)
