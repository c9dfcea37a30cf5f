"""Finds files, and deals them out to readers that ask."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from aiomailbox.connectors.files.row_count import RowCount
from aiomailbox.errors import safe_repr
from aiomailbox.logs import library_log
from aiomailbox.operators.sources.source import EnumeratorContext
from aiomailbox.state.state_classes import kept_in_state
from aiomailbox.threads import begin_in_thread

__all__ = ["FileEnumerator", "FileSplit", "FilesSeen"]


@kept_in_state("FileSplit")
@dataclass(frozen=True, slots=True)
class FileSplit:
    """A file, from a position on.

    Attributes:
        split_id: The file's name.
        position: Where to go on; a byte or a row, as the format says.
    """

    split_id: str
    position: int = 0


@kept_in_state("FilesSeen")
@dataclass(frozen=True, slots=True)
class FilesSeen:
    """What an enumerator needs to resume.

    Attributes:
        splits: The files that no reader has yet.
        seen: All files that the last listing found that found any.
    """

    splits: list[FileSplit]
    seen: list[str]


class FileEnumerator:
    """Deals files out in their order; with an interval it goes on looking for new ones.

    A listing that fails once the job runs is logged, the first one in a row, and made
    again after the interval: the directory may be there again.

    Args:
        context: The job.
        find: Returns the names of all files; blocks, and is called in a thread when it
            is called again.
        name: What the files are called in the log.
        interval_s: How often to look, in seconds; None to look once.
        state: What `snapshot` of an earlier one returned, or None.
        row_count: Counts the rows of all files, where they say it.

    Raises:
        OSError: If there is nothing to read.
    """

    def __init__(
        self,
        context: EnumeratorContext[FileSplit],
        find: Callable[[], list[str]],
        name: str,
        interval_s: float | None,
        state: list[FilesSeen] | None,
        row_count: RowCount | None = None,
    ) -> None:
        self._context = context
        self._find = find
        self._name = name
        self._interval_s = interval_s
        self._row_count = row_count
        self._counting: asyncio.Future[None] | None = None
        self._unassigned: deque[FileSplit] = deque()
        self._seen: set[str] = set()
        self._waiting: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._search: asyncio.Future[list[str]] | None = None
        self._failures = 0
        for one in state or ():
            self._unassigned += one.splits
            self._seen |= set(one.seen)
        # A watched directory may have got files since; a bounded source keeps to its
        # snapshot.
        if state is None or interval_s is not None:
            self._add(find())

    def start(self) -> None:
        """Begin to look for new files, or to count rows, if that is wanted."""
        if self._row_count is not None:
            self._counting = self._row_count.begin(sorted(self._seen))
        if self._interval_s is not None:
            self._arm(self._interval_s)

    def add_reader(self, subtask_index: int) -> None:
        """Nothing: readers ask."""

    def handle_split_request(self, subtask_index: int) -> None:
        """Give a reader the next file, now or when there is one."""
        if self._unassigned:
            self._context.assign_splits(subtask_index, [self._unassigned.popleft()])
        elif self._interval_s is None:
            self._context.signal_no_more_splits(subtask_index)
        elif subtask_index not in self._waiting:
            # One that asked again, after it was restored, waits only once.
            self._waiting.append(subtask_index)

    def add_splits_back(self, splits: list[FileSplit], subtask_index: int) -> None:
        """Take back files that a failed reader had; they come next."""
        self._unassigned.extendleft(reversed(splits))
        self._serve()

    def snapshot(self) -> list[FilesSeen]:
        """Return the files that no reader has yet, and all that were seen."""
        return [FilesSeen(list(self._unassigned), sorted(self._seen))]

    def close(self) -> None:
        """Stop looking, and counting."""
        if self._row_count is not None:
            self._row_count.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._search is not None:
            self._search.cancel()
        # Tells a search that is under way in a thread that its result is not wanted.
        self._interval_s = None

    def _arm(self, interval_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(interval_s, self._look)

    def _look(self) -> None:
        # A listing of a large or remote directory would hold up the loop.
        self._search = begin_in_thread(self._find)
        self._search.add_done_callback(self._on_found)

    def _on_found(self, search: asyncio.Future[list[str]]) -> None:
        if search.cancelled() or self._interval_s is None:
            return
        error = search.exception()
        if error is None:
            self._note_success()
            self._add(search.result())
            self._serve()
        else:
            self._note_failure(error)
        self._arm(self._interval_s)

    def _note_failure(self, error: BaseException) -> None:
        # Once in a row: the interval may be 10 ms, and the disk away for a day.
        if self._failures == 0:
            library_log().warning(
                "files cannot be listed; the source looks again",
                source=self._name,
                interval_s=self._interval_s,
                error=safe_repr(error),
            )
        self._failures += 1

    def _note_success(self) -> None:
        if self._failures:
            library_log().info(
                "files can be listed again",
                source=self._name,
                failed=self._failures,
            )
        self._failures = 0

    def _add(self, names: list[str]) -> None:
        self._unassigned += [
            FileSplit(name) for name in names if name not in self._seen
        ]
        # Those that were deleted need not be remembered. If all are gone, a disk may be: it
        # comes back with files that were read.
        if names:
            self._seen = set(names)

    def _serve(self) -> None:
        waiting, self._waiting = self._waiting, []
        for subtask_index in waiting:
            self.handle_split_request(subtask_index)
