"""Where a job's journal is: on a file system that appends, or in a storage that does not.

Theory of operation: an object store appends to nothing, so what each group commit made
durable becomes a file of its own there, with the place in its segment as the end of its
name. A reader joins the segments again on a disk of its own; what was put
together before is not fetched twice. All else in a journal is written as a whole, by the
job's master alone. The number of its epoch tells apart an upload by a writer that was
shut out, after its log was deleted: the place keeps the epochs that are over, by
subtask.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from aiomailbox.errors import DamagedFileError
from aiomailbox.journal.entries import LogDirectory, base_directories
from aiomailbox.journal.fence import FENCE, Fence, MappedFence, RemoteFence
from aiomailbox.storage.append_log import LogSegment
from aiomailbox.storage.contract import Storage
from aiomailbox.storage.local import PRIVATE

# A thread's turn costs as much as ten rows or more.
_SYNC_PAUSE_S: Final = 0.01
# An upload costs money and takes as long as a hundred calls or more.
_UPLOAD_PAUSE_S: Final = 0.1
# At the end of the name of a part of a segment: how many bytes are before it.
_DIGITS: Final = 12
# By subtask the first epoch whose logs are not in the base, as JSON.
_BEGUN: Final = "begun"


class JournalPlace:
    """A directory of this machine, or one that is mounted: what is there is published.

    All methods block and may raise `OSError`.

    Args:
        path: The directory.
        file_mode: The mode of new files; see `aiomailbox.storage.local.LocalStorage`.

    Attributes:
        path: The directory where the journal is read and written.
        file_mode: As given.
        commit_pause_s: The time from one group commit to the next, if few calls end.
        tears: Whether a crash may leave the end of a log torn.
    """

    commit_pause_s: float = _SYNC_PAUSE_S
    tears: bool = True

    def __init__(self, path: Path, *, file_mode: int = PRIVATE) -> None:
        self.path: Path = path
        self.file_mode: int = file_mode

    def fetch(self, below: Path) -> None:
        """Have at ``path`` what is in a directory of it."""

    def fetch_base(self, operator: Path) -> None:
        """Have at ``path`` what earlier epochs have left of an operator."""

    def publish(self, written: Path) -> None:
        """Let others see a file, or all files of a directory."""

    def delete(self, paths: Iterable[Path]) -> None:
        """Delete files and directories; those that are not there are passed over."""
        for path in paths:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def begin_logs(self, operator: Path, epoch: int, subtasks: Iterable[int]) -> None:
        """Be notified that what subtasks appended before an epoch is in the base.

        An attempt that was shut out writes to deleted files.
        """

    def fence(self, operator: Path, epoch: int, subtask: int) -> Fence:
        """Return what notifies a writer that a later epoch has begun."""
        return MappedFence(operator, epoch, subtask)

    def commits(self, log: Path) -> Callable[[], None]:
        """Return what makes durable what was appended to a log and synced."""
        return _nothing


class RemotePlace(JournalPlace):
    """A storage that appends to nothing, and a directory of this machine to work in.

    Args:
        storage: The storage.
        name: The journal's name in it.
        path: The directory, for this object alone.
    """

    commit_pause_s: float = _UPLOAD_PAUSE_S
    # An object is there as a whole or not at all.
    tears: bool = False

    def __init__(self, storage: Storage, name: str, path: Path) -> None:
        super().__init__(path)
        self._storage = storage
        self._name = name
        # By operator and subtask the first epoch whose logs are not in the base.
        self._begun: dict[Path, dict[int, int]] = {}

    def fetch(self, below: Path) -> None:
        """Fetch what is not here yet, and what others have added to logs."""
        late = []
        # In order: of a segment the parts.
        for name in self._storage.names(self._remote(below)):
            path = self._local(name)
            log = LogDirectory.parse(path.parent)
            if log is not None and self._is_over(log):
                # Of a writer that was shut out and went on: what it appended must not
                # count.
                late.append(name)
                continue
            start = path.suffix[1:]
            if len(start) == _DIGITS and start.isdecimal():
                self._fetch_part(name, path.with_suffix(""), int(start))
            elif path.name == FENCE or not path.exists():
                # The fence again each time: it is the one file that is changed in
                # place.
                _write(path, self._storage.view(name))
        self._storage.delete(late)

    def fetch_base(self, operator: Path) -> None:
        """Fetch the newest base that is not here yet."""
        prefix = f"{self._remote(operator)}/"
        names = self._storage.names(self._remote(operator))
        bases = [name for name in names if name[len(prefix) :].startswith("base-")]
        newest = max((name.rpartition("/")[0] for name in bases), default=None)
        for name in bases:
            path = self._local(name)
            if name.rpartition("/")[0] == newest and not path.exists():
                _write(path, self._storage.view(name))
        super().delete(
            base for base in base_directories(operator) if self._remote(base) != newest
        )

    # In order, so that of a log's parts none is there before the one it follows.
    def publish(self, written: Path) -> None:
        """Write a file, or all of a directory, to the storage."""
        files = sorted(written.iterdir()) if written.is_dir() else [written]
        for file in files:
            self._storage.write(self._remote(file), [file.read_bytes()])

    def delete(self, paths: Iterable[Path]) -> None:
        """Delete files and directories here and there."""
        paths = list(paths)
        names = [self._remote(path) for path in paths]
        for below in {name.rpartition("/")[0] for name in names}:
            # Of a segment the parts, of a directory the files.
            starts = tuple(
                one
                for name in names
                if name.rpartition("/")[0] == below
                for one in (f"{name}/", f"{name}.")
            )
            self._storage.delete(
                name
                for name in self._storage.names(below)
                if name.startswith(starts) or name in names
            )
        super().delete(paths)

    def begin_logs(self, operator: Path, epoch: int, subtasks: Iterable[int]) -> None:
        """Ignore from now on what comes to the logs of earlier epochs."""
        begun = self._begun_in(operator)
        begun.update(dict.fromkeys(subtasks, epoch))
        name = self._remote(operator / _BEGUN)
        self._storage.write(name, [msgspec.json.encode(begun)])

    def fence(self, operator: Path, epoch: int, subtask: int) -> Fence:
        """Return a reader of the fence's file."""
        name = self._remote(operator / FENCE)
        return RemoteFence(self._storage, name, epoch, subtask)

    def commits(self, log: Path) -> Callable[[], None]:
        """Return what writes the new part of each segment to the storage."""
        return _Uploads(self._storage, self._remote(log), log)

    def _fetch_part(self, name: str, segment: Path, start: int) -> None:
        here = segment.stat().st_size if segment.exists() else 0
        # With a hole the entries behind it would be at other places.
        if start > here:
            raise DamagedFileError(name, f"the part before its byte {start} is missing")
        # What is before `here` was fetched by an earlier look.
        if start == here:
            segment.parent.mkdir(parents=True, exist_ok=True)
            with open(segment, "ab") as file:
                file.write(self._storage.view(name))

    def _is_over(self, log: LogDirectory) -> bool:
        return log.epoch < self._begun_in(log.path.parent).get(log.subtask, 0)

    def _begun_in(self, operator: Path) -> dict[int, int]:
        if operator not in self._begun:
            self._begun[operator] = {}
            name = self._remote(operator / _BEGUN)
            if name in self._storage.names(self._remote(operator)):
                data = self._storage.view(name)
                self._begun[operator] = msgspec.json.decode(data, type=dict[int, int])
        return self._begun[operator]

    def _remote(self, path: Path) -> str:
        relative = path.relative_to(self.path).as_posix()
        return self._name if relative == "." else f"{self._name}/{relative}"

    def _local(self, name: str) -> Path:
        return self.path / name.removeprefix(self._name).lstrip("/")


class _Uploads:
    """Writes to a storage what was appended to a log since the last time."""

    def __init__(self, storage: Storage, name: str, log: Path) -> None:
        self._storage = storage
        self._name = name
        self._log = log
        # What comes next: the segment, and the place in it.
        self._segment = -1
        self._start = 0

    def __call__(self) -> None:
        """Write it.

        Raises:
            DamagedFileError: If a segment that is complete is not what was written.
            OSError: If it cannot be written.
        """
        # Listed once: if another segment begins meanwhile, this one is complete only
        # when it is read again.
        segments = LogSegment.all_in(self._log)
        for segment in segments:
            if segment.number < self._segment:
                continue
            if segment is not segments[-1]:
                # What is behind damage would not be uploaded, and nobody would know.
                segment.check(is_last=False)
            if segment.number > self._segment >= 0:
                self._sweep()
            start = self._start if segment.number == self._segment else 0
            # Whole entries only: what is appended meanwhile comes with the next part.
            data = segment.whole_entries(start)
            if data:
                name = f"{self._name}/{segment.path.name}.{start:0{_DIGITS}}"
                self._storage.write(name, [data])
            self._segment, self._start = segment.number, start + len(data)

    def _sweep(self) -> None:
        """Delete here what was pruned there."""
        kept = self._storage.names(self._name)
        oldest = min((Path(name).stem for name in kept), default="")
        for segment in LogSegment.all_in(self._log):
            if segment.path.name < oldest and segment.number < self._segment:
                segment.path.unlink(missing_ok=True)


def _nothing() -> None:
    pass


def _write(path: Path, data: memoryview) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
