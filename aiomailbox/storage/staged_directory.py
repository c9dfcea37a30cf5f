"""A directory that readers see whole: as it was before, or with all that was committed.

Theory of operation: everything of ours is in one hidden directory beside the target, the
*workplace*, on the same file system and claimed by one execution at a time.

====================  ==================================================================
``.lock``             the claim
``<token>/``          what the writers of an execution prepare
``new/``              what becomes the target; after an exchange, what was it before
``old/``              what was the target, where the file system cannot exchange
====================  ==================================================================

The first commit makes ``new`` the target, in one step where the file system can exchange
two directories. Where it cannot, it takes two, and between them there is no target; the
next start puts the old one back then. What was done is undone in reverse order if the job
fails. Whoever claims a workplace removes everything that dead executions left in it.

Names that a retained checkpoint refers to will have to be left out there: ``_sweep``.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from aiomailbox.errors import SinkError, StorageClaimedError, TargetExistsError
from aiomailbox.storage.disk import Disk, ExchangeNotSupportedError
from aiomailbox.storage.local import LocalClaim

__all__ = ["StagedDirectory", "staging_directory"]

_LOCK: Final = ".lock"
_SUCCESS: Final = "_SUCCESS"


def staging_directory(path: Path, token: str) -> Path:
    """Return where an execution prepares files of a target.

    Args:
        path: The target as the user gave it; may be a symbolic link, or lead to one.
        token: Of the execution.

    Raises:
        SinkError: If it is the root of all paths.

    Example:
        >>> staging_directory(Path("/data/delays"), "4f1a").name
        '4f1a'
    """
    return _workplace(_real(path)) / token


class StagedDirectory:
    """The target of one execution, from its check to its commit; all calls block.

    Args:
        path: The target; may be a symbolic link, whose destination it is then.
        token: Names the execution.
        overwrite: Whether a target that exists is replaced.
        disk: The file operations.

    Raises:
        SinkError: If ``path`` is the root of all paths.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "out"
        >>> directory = StagedDirectory(target, "4f1a", overwrite=False)
        >>> directory.begin("job 'delays'")
        >>> (staging_directory(target, "4f1a") / "part-0").touch()
        >>> directory.commit(["part-0"], is_final=True)
        >>> directory.end(succeeded=True)
        >>> sorted(entry.name for entry in target.iterdir())
        ['_SUCCESS', 'part-0']
    """

    def __init__(
        self, path: Path, token: str, *, overwrite: bool, disk: Disk | None = None
    ) -> None:
        self._target = _real(path)
        self._workplace = _workplace(self._target)
        self._staging = self._workplace / token
        self._new = self._workplace / "new"
        self._old = self._workplace / "old"
        self._overwrite = overwrite
        self._disk = disk or Disk()
        self._claim: LocalClaim | None = None
        # Invariant: newest last; all of them together give back what was there.
        self._undo: list[Callable[[], None]] = []
        self._is_visible = False

    def begin(self, owner: str) -> None:
        """Claim the target, put right what a crash left, and make the staging directory.

        Args:
            owner: Who asks, for the message to others who want to write there.

        Raises:
            TargetExistsError: If the target is there and is not to be replaced.
            SinkError: If somebody else writes it, or it cannot be replaced.
            OSError: If it cannot be written.
        """
        try:
            self._disk.make_directory(self._target.parent)
            self._claim = self._claimed(owner)
            self._recover()
            self._sweep()
            self._check()
            self._disk.make_directory(self._staging)
        except BaseException:
            self._leave()
            raise

    def commit(self, names: Sequence[str], *, is_final: bool) -> None:
        """Make files of the staging directory visible; those that are already, stay.

        Args:
            names: The files.
            is_final: Whether everything is there then, which ``_SUCCESS`` says.

        Raises:
            TargetExistsError: If the target appeared meanwhile.
            OSError: If the disk refuses.
        """
        disk = self._disk
        into = self._target if self._is_visible else self._new
        if not self._is_visible:
            disk.make_directory(into)
        for name in names:
            staged, final = self._staging / name, into / name
            if staged.exists() or not final.exists():
                disk.move(staged, final)
        if is_final:
            disk.create(into / _SUCCESS)
        disk.sync(into)
        if not self._is_visible:
            self._publish()

    def end(self, *, succeeded: bool) -> None:
        """Give up the claim and what is not committed; after a failure, all.

        Raises:
            SinkError: If what was there before cannot be given back; says where it is.
        """
        if self._claim is None:
            return
        if not succeeded:
            self._take_back()
        self._leave()

    def _claimed(self, owner: str) -> LocalClaim:
        while True:
            self._disk.make_directory(self._workplace)
            try:
                return LocalClaim(self._workplace / _LOCK, owner)
            except FileNotFoundError:
                # Who had it before has removed it meanwhile.
                continue
            except StorageClaimedError as error:
                raise SinkError(
                    f"{str(self._target)!r} is being written by {error.owner}. Wait for "
                    "it to end, or choose another path."
                ) from None

    def _check(self) -> None:
        target = self._target
        if not os.path.lexists(target):
            return
        if not self._overwrite:
            raise self._exists()
        if not target.is_dir():
            raise SinkError(f"{str(target)!r} is not a directory.")
        if target.is_mount():
            raise SinkError(
                f"{str(target)!r} is a mount point, which cannot be replaced. Choose a "
                "directory in it."
            )

    def _exists(self) -> TargetExistsError:
        return TargetExistsError(
            f"{str(self._target)!r} exists already. Choose another path, remove it, or "
            'use mode="overwrite".'
        )

    def _recover(self) -> None:
        """Give back a target that a crash left between the two steps of replacing it."""
        is_between = self._old.exists() and self._new.exists()
        if is_between and not os.path.lexists(self._target):
            self._disk.move(self._old, self._target)
            self._disk.sync(self._target.parent)

    def _sweep(self) -> None:
        """Remove what executions left that are dead: their claim has ended."""
        for entry in sorted(self._workplace.iterdir()):
            if entry.name == _LOCK:
                continue
            try:
                self._disk.remove_tree(entry)
            except OSError:
                # A worker that outlives its job by a moment may still write its files.
                if entry in {self._new, self._old}:
                    raise

    def _publish(self) -> None:
        disk, target, new, old = self._disk, self._target, self._new, self._old
        if os.path.lexists(target):
            if not self._overwrite:
                raise self._exists()
            try:
                self._do(disk.exchange, new, target)
            except ExchangeNotSupportedError:
                self._do(disk.move, target, old)
                self._do(disk.move, new, target)
        else:
            self._do(disk.move, new, target)
        self._is_visible = True
        self._sync_places()

    def _do(self, step: Callable[[Path, Path], None], one: Path, other: Path) -> None:
        step(one, other)
        self._undo.append(partial(step, other, one))

    def _take_back(self) -> None:
        if not self._undo:
            return
        self._is_visible = False
        try:
            while self._undo:
                self._undo[-1]()
                self._undo.pop()
            self._sync_places()
        except OSError as error:
            self._give_up_claim()
            raise SinkError(
                f"what was in {str(self._target)!r} before cannot be put back: {error}. "
                f"It is in {str(self._workplace)!r} until a job writes there again."
            ) from error

    def _sync_places(self) -> None:
        self._disk.sync(self._workplace)
        self._disk.sync(self._target.parent)

    def _leave(self) -> None:
        """Remove what is ours; what cannot be removed is left to the next start."""
        if self._claim is not None:
            with contextlib.suppress(OSError):
                self._sweep()
            self._give_up_claim()

    def _give_up_claim(self) -> None:
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.release(remove=True)
            # Not if something is left in it.
            with contextlib.suppress(OSError):
                self._disk.remove_directory(self._workplace)


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _workplace(target: Path) -> Path:
    """Return the hidden directory beside a target; a long name leaves it room."""
    if not target.name:
        raise SinkError(f"{str(target)!r} cannot be replaced. Choose a path below it.")
    digest = hashlib.sha256(os.fsencode(target.name)).hexdigest()[:12]
    return target.with_name(f".{target.name[:40]}.{digest}")
