"""A directory that readers see whole: as it was before, or with all that was committed.

Theory of operation: the commit collects the files in ``new`` beside the target, and makes
that the target, in one step where the file system can exchange two directories. Where it
cannot, it takes two, and between them there is no target; the next start puts the old one
back then. What was done is undone in reverse order if the job fails. A job that claims the
target removes everything that dead executions left beside it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from aiomailbox.errors import SinkError
from aiomailbox.storage.commit_log import DirectoryLog
from aiomailbox.storage.disk import Disk
from aiomailbox.storage.workplace import SUCCESS, Workplace

__all__ = ["StagedDirectory"]


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

        Args:
            owner: The caller's name, for the error that other writers get.

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

        Args:
            names: The files, each with its token before it.

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
            staged, final = workplace.staged(name), new / workplace.final_name(name)
            if final.parent not in changed:
                disk.make_directory(final.parent)
                changed.add(final.parent)
            if staged.exists() or not final.exists():
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
        self._is_visible = False
        try:
            while self._undo:
                self._undo[-1]()
                self._undo.pop()
            workplace.sync()
        except OSError as error:
            workplace.release()
            raise SinkError(
                f"what was in {str(workplace.target)!r} before cannot be put back: "
                f"{error}. It is in {str(workplace)!r} until a job writes there again."
            ) from error
