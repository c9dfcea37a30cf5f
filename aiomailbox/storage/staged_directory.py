"""A directory that readers see whole: as it was before, or with all that was committed.

Theory of operation: the commit collects the files in ``new`` beside the target, and makes
that the target, in one step where the file system can exchange two directories. Where it
cannot, it takes two, and between them there is no target; the next start puts the old one
back then. If the job fails, the steps are undone in reverse order. A job that claims
the target removes everything that dead executions left beside it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from aiomailbox.errors import SinkError
from aiomailbox.storage.commit_log import DirectoryLog
from aiomailbox.storage.local import Disk
from aiomailbox.storage.workplace import SUCCESS, Workplace


class StagedDirectory:
    """The target of one execution, from its check to its commit; all calls block.

    Args:
        path: The target; may be a symbolic link, whose destination it is then.
        token: Names the execution.
        overwrite: Whether a target that exists is replaced.
        disk: The file operations.
        logs: Tell readers of commits.

    Raises:
        SinkError: If ``path`` is the root of all paths.

    Example:
        >>> import tempfile
        >>> from aiomailbox.storage.workplace import staging_directory
        >>> target = Path(tempfile.mkdtemp()) / "out"
        >>> directory = StagedDirectory(target, "4f1a", overwrite=False)
        >>> directory.begin("job 'delays'")
        >>> (staging_directory(target, "4f1a") / "part-0").touch()
        >>> directory.commit(["4f1a/part-0"])
        >>> directory.end(succeeded=True)
        >>> sorted(entry.name for entry in target.iterdir())
        ['_SUCCESS', 'part-0']
    """

    def __init__(
        self,
        path: Path,
        token: str,
        *,
        overwrite: bool,
        disk: Disk | None = None,
        logs: Sequence[DirectoryLog] = (),
    ) -> None:
        self._disk = disk or Disk()
        self._logs = tuple(logs)
        self._workplace = Workplace(path, self._disk)
        self._token = token
        self._overwrite = overwrite
        # Invariant: newest last; all of them together restore what was there.
        self._undo: list[Callable[[], None]] = []
        self._is_visible = False

    def begin(self, owner: str) -> None:
        """Claim the target, put right what a crash left, and make the staging directory.

        Raises:
            TargetExistsError: If the target is there and is not to be replaced.
            SinkError: If another job writes it or can still commit to it, or it cannot
                be replaced.
            OSError: If it cannot be written.
        """
        workplace = self._workplace
        try:
            workplace.claim(owner)
            workplace.check_target(overwrite=self._overwrite)
            if not self._overwrite:
                workplace.check_prepared((self._token,))
            workplace.sweep()
            workplace.prepare(self._token, owner=None)
        except BaseException:
            workplace.release()
            raise

    def commit(self, names: Sequence[str]) -> None:
        """Make the files visible, all of them and ``_SUCCESS``; may be called again.

        Raises:
            TargetExistsError: If the target appeared meanwhile.
            OSError: If the disk refuses.
        """
        if self._is_visible:
            return
        disk, workplace, new = self._disk, self._workplace, self._workplace.new
        disk.make_directory(new)
        changed = {new}
        for name in names:
            staged, final = workplace.staging(name), new / workplace.final_name(name)
            if final.parent not in changed:
                disk.make_directory(final.parent)
                changed.add(final.parent)
            # Unless a commit that failed has got so far.
            if not final.exists():
                disk.move(staged, final)
        final_names = [workplace.final_name(name) for name in names]
        for log in self._logs:
            log.create(new)
            log.append(new, 0, final_names)
        disk.create(new / SUCCESS)
        for directory in sorted(changed):
            disk.sync(directory)
        workplace.publish(overwrite=self._overwrite, undo=self._undo)
        self._is_visible = True

    def end(self, *, succeeded: bool) -> None:
        """Give up the claim and what is not committed; after a failure, all.

        Raises:
            SinkError: If what was there before cannot be restored; says where it is.
        """
        if not self._workplace.is_claimed:
            return
        if not succeeded:
            self._take_back()
        # What cannot be removed is left to the next start.
        with contextlib.suppress(OSError):
            self._workplace.sweep()
        self._workplace.release()

    def _take_back(self) -> None:
        if not self._undo:
            return
        workplace = self._workplace
        try:
            while self._undo:
                self._undo[-1]()
                self._undo.pop()
            workplace.sync()
        except OSError as error:
            workplace.release()
            raise SinkError(
                f"the former files of {str(workplace.target)!r} cannot be put back: "
                f"{error}. It is in {str(workplace)!r} until a job writes there again."
            ) from error


# A directory that gets more files with every checkpoint, each of them whole.
#
# Theory of operation: writers prepare files beside the target, under names that no
# other attempt uses. A commit moves them into the target one by one: renaming what is
# there is the only thing that may be done again, and so a commit may be repeated after
# a crash at any moment. The first one makes the target, empty but for a hidden file
# which says that it is the job's; this is one step, and takes the place of an older
# target if it may.
#
# The hidden file also says what was committed last. A file that is neither prepared nor
# in the target was committed and then taken away if it is mentioned there, or if its
# checkpoint is not newer; otherwise it is lost, and the job is notified.


_MARKER: Final = ".aiomailbox"
# Beside what an execution without checkpoints has prepared: what it is committing.
_INTENT: Final = ".committing"


@dataclass(frozen=True, slots=True)
class _Committed:
    """The contents of a target's hidden file.

    Attributes:
        token: Of the job and sink.
        checkpoint_id: The newest checkpoint that was committed.
        names: The files that were committed with it.
    """

    token: str
    checkpoint_id: int
    names: tuple[str, ...]

    def has(self, name: str, checkpoint_id: int) -> bool:
        """Say whether a file was committed, as far as is known."""
        # Of another token, checkpoints are counted apart.
        is_older = (
            self.token == _token_of(name) and 0 < checkpoint_id <= self.checkpoint_id
        )
        return is_older or name in self.names


class GrowingDirectory:
    """The target of a job that takes checkpoints; all calls block.

    Args:
        path: The target; may be a symbolic link, whose destination it is then.
        token: Names job and sink, the same for every execution that goes on.
        overwrite: Whether a target is replaced that is not this job's.
        append: Whether files are added to one that is not.
        former: The former name of job and sink; "" for none. Files that are prepared
            under it are this job's, too.
        is_resumable: Whether what is prepared outlives an execution that fails.
        disk: The file operations.
        logs: Tell readers of commits.

    Raises:
        SinkError: If ``path`` is the root of all paths.

    Example:
        >>> import tempfile
        >>> from aiomailbox.storage.workplace import staging_directory
        >>> target = Path(tempfile.mkdtemp()) / "out"
        >>> directory = GrowingDirectory(target, "4f1a", overwrite=False)
        >>> directory.begin("job 'delays'", restored=False)
        >>> (staging_directory(target, "4f1a") / "part-0").touch()
        >>> directory.commit(["4f1a/part-0"], checkpoint_id=1, is_final=False)
        >>> [entry.name for entry in target.glob("part-*")]
        ['part-0']
        >>> directory.end(succeeded=True)
    """

    def __init__(
        self,
        path: Path,
        token: str,
        *,
        overwrite: bool,
        append: bool = False,
        former: str = "",
        is_resumable: bool = False,
        disk: Disk | None = None,
        logs: Sequence[DirectoryLog] = (),
    ) -> None:
        self._disk = disk or Disk()
        self._logs = tuple(logs)
        self._workplace = Workplace(path, self._disk)
        self._marker = self._workplace.target / _MARKER
        self._token = token
        self._overwrite = overwrite
        self._append = append
        self._tokens = (token, former)
        self._is_resumable = is_resumable
        # Of an execution without checkpoints, what it takes back if it fails.
        self._moved: list[Path] = []
        # None as long as the target is not the job's.
        self._committed: _Committed | None = None

    def begin(self, owner: str, *, restored: bool) -> None:
        """Claim the target, put right what a crash left, and make the staging directory.

        A job that begins anew gives up what it has prepared before. One that goes on
        finds all of it.

        Raises:
            TargetExistsError: If the target is there, not the job's, and not to be
                replaced.
            SinkError: If another job writes it or can still commit to it, or it cannot
                be replaced.
            OSError: If it cannot be written.
        """
        workplace = self._workplace
        try:
            workplace.claim(owner)
            if restored:
                self._go_on()
            else:
                self._begin_anew()
            kept_for = owner if self._is_resumable else None
            workplace.prepare(self._token, owner=kept_for)
        except BaseException:
            workplace.release()
            raise

    def commit(
        self, names: Sequence[str], *, checkpoint_id: int, is_final: bool
    ) -> None:
        """Move files into the target; those that are there already, stay.

        Raises:
            TargetExistsError: If the target appeared meanwhile.
            SinkError: If a file is neither prepared nor committed.
            OSError: If the disk refuses.
        """
        committed = self._committed or self._make_target()
        disk, target = self._disk, self._workplace.target
        intent = self._workplace.staging(self._token) / _INTENT
        if not checkpoint_id:
            disk.write(intent, msgspec.json.encode(list(names)))
        changed = {target}
        for name in names:
            staged = self._workplace.staging(name)
            final = target / self._workplace.final_name(name)
            if staged.exists():
                if final.exists():
                    # Renaming is one step, so this is another file: not to be lost.
                    raise SinkError(
                        f"{str(target)!r} has a file {final.name!r} already that is "
                        "not the one which was prepared. Was the job resumed twice "
                        "from one checkpoint? Choose another path."
                    )
                if final.parent not in changed:
                    disk.make_directory(final.parent)
                    changed.add(final.parent)
                disk.move(staged, final)
                if not checkpoint_id:
                    self._moved.append(final)
            elif not final.exists() and not committed.has(name, checkpoint_id):
                raise SinkError(
                    f"{str(staged)!r} was prepared for {str(target)!r} and is gone. "
                    "Its records are lost: resume from an older checkpoint, or "
                    "start without one."
                )
        # The files are there before anything says that they were committed.
        for directory in sorted(changed):
            disk.sync(directory)
        if names:
            # Of those who prepared them, which may be an earlier execution of the job.
            token, newest = _token_of(names[0]), checkpoint_id
            if committed.token == token:
                newest = max(newest, committed.checkpoint_id)
            self._mark(_Committed(token, newest, tuple(names)))
        # Not before: readers may delete what they have passed, and only what is
        # marked may be missing.
        final_names = [self._workplace.final_name(name) for name in names]
        for log in self._logs:
            log.append(target, checkpoint_id, final_names)
        # Last: a reader that waits for it finds all that was committed.
        if is_final:
            disk.create(target / SUCCESS)
            disk.sync(target)
        if not checkpoint_id:
            disk.remove_file(intent)

    def recover(self) -> None:
        """Remove what was prepared and is in no checkpoint; there must be no writer.

        The files of a restored checkpoint must have been committed.
        """
        self._workplace.empty(self._token)
        self._workplace.sweep(keep=self._token, mine=self._tokens)

    def remove_prepared(self, is_left: Callable[[str], bool]) -> None:
        """Remove some of what was prepared and is in no checkpoint; others may write."""
        for file in sorted(self._workplace.staging(self._token).rglob("*")):
            if is_left(file.name):
                self._disk.remove_file(file)

    def end(self, *, succeeded: bool) -> None:
        """Give up the claim; what was committed stays.

        Prepared files stay if the execution failed and another one can go on. A failed
        execution without checkpoints takes back what it has committed.
        """
        if not self._workplace.is_claimed:
            return
        if not succeeded:
            self._take_back(self._moved)
        # What cannot be removed is left to the next start.
        with contextlib.suppress(OSError):
            if succeeded or not self._is_resumable:
                self._disk.remove_tree(self._workplace.staging(self._token))
                self._workplace.sweep(keep=self._token)
        self._workplace.release()

    def _begin_anew(self) -> None:
        workplace = self._workplace
        self._check_target()
        if not self._overwrite:
            workplace.check_prepared(self._tokens)
        if self._append:
            # Of an execution that died while it committed all it had.
            for intent in workplace.find(_INTENT):
                names = msgspec.json.decode(intent.read_bytes(), type=list[str])
                final_names = [workplace.final_name(name) for name in names]
                self._take_back([workplace.target / name for name in final_names])
        elif self._marker.exists():
            # It is replaced at the first commit, also by an execution that goes on then.
            self._disk.remove_file(self._marker)
            self._disk.sync(self._marker.parent)
        workplace.sweep()

    def _check_target(self) -> None:
        target = self._workplace.target
        if not self._append:
            self._workplace.check_target(overwrite=self._overwrite)
        elif target.exists():
            if not target.is_dir():
                raise SinkError(f"{str(target)!r} is not a directory.")
            for log in self._logs:
                log.check(target)

    def _take_back(self, files: list[Path]) -> None:
        for file in files:
            if file.exists():
                self._disk.remove_file(file)
        for directory in sorted({file.parent for file in files}):
            if directory.exists():
                self._disk.sync(directory)
        for log in self._logs if files else ():
            log.take_back(self._workplace.target)
        self._moved = []

    def _go_on(self) -> None:
        target = self._workplace.target
        if self._marker.exists():
            self._committed = self._read_marker()
            for log in self._logs:
                log.check(target)
            if (target / SUCCESS).exists():
                self._disk.remove_file(target / SUCCESS)
        else:
            self._check_target()
        self._workplace.sweep_replaced()

    def _make_target(self) -> _Committed:
        disk, workplace = self._disk, self._workplace
        if self._marker.exists():
            # A commit that failed has got so far.
            return self._read_marker()
        # With 0: nothing of this job is in it yet.
        first = _Committed(self._token, 0, ())
        if self._append and workplace.target.exists():
            self._mark(first)
            disk.sync(workplace.target)
            return first
        disk.make_directory(workplace.new)
        disk.write(workplace.new / _MARKER, msgspec.json.encode(first))
        for log in self._logs:
            log.create(workplace.new)
        disk.sync(workplace.new)
        undo: list[Callable[[], None]] = []
        workplace.publish(overwrite=self._overwrite, undo=undo)
        # What was there before is no longer needed: what is committed stays.
        with contextlib.suppress(OSError):
            workplace.sweep_replaced()
        return first

    def _read_marker(self) -> _Committed:
        return msgspec.json.decode(self._marker.read_bytes(), type=_Committed)

    def _mark(self, committed: _Committed) -> None:
        self._disk.write(self._marker, msgspec.json.encode(committed))
        self._committed = committed


def _token_of(name: str) -> str:
    """Return the token before the name of a prepared file."""
    return name.partition("/")[0]
