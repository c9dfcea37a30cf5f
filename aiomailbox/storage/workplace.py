"""The hidden directory beside a target where what becomes visible is prepared.

====================  ==================================================================
``.lock``             the claim
``<token>/``          what writers prepare; named after an execution, or after a job
``<token>/.owner``    whose it is, if the job can go on after this execution
``new/``              what becomes the target; after an exchange, what was it before
``old/``              what was the target, where the file system cannot exchange
====================  ==================================================================

It is on the target's file system, so that what is prepared becomes visible by renaming,
and claimed by one execution at a time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final

from aiomailbox.errors import SinkError, StorageClaimedError, TargetExistsError
from aiomailbox.storage.local import Disk, ExchangeNotSupportedError, LocalClaim, holder

SUCCESS: Final = "_SUCCESS"
_LOCK: Final = ".lock"
_OWNER: Final = ".owner"


def staging_directory(path: Path, token: str) -> Path:
    """Return where an execution prepares files of a target.

    Raises:
        SinkError: If it is the root of all paths.

    Example:
        >>> staging_directory(Path("/data/delays"), "4f1a").name
        '4f1a'
    """
    return _beside(_real(path)) / token


class Workplace:
    """The hidden directory beside a target; all calls block.

    Args:
        path: The target as the user gave it.
        disk: The file operations.

    Raises:
        SinkError: If ``path`` is the root of all paths.

    Attributes:
        target: The target, symbolic links followed.
    """

    def __init__(self, path: Path, disk: Disk) -> None:
        # Through links: beside the link would be another file system, maybe, where
        # nothing can be renamed to the target.
        self.target: Path = _real(path)
        self._path = _beside(self.target)
        self.new: Path = self._path / "new"
        self._old = self._path / "old"
        self._disk = disk
        self._claim: LocalClaim | None = None

    def __str__(self) -> str:
        return str(self._path)

    @property
    def is_claimed(self) -> bool:
        """Whether it is claimed by this object."""
        return self._claim is not None

    def staging(self, name: str) -> Path:
        """Return where a file is prepared, or what has a token: names begin with it."""
        return self._path / name

    def find(self, name: str) -> list[Path]:
        """Return the files of a name beside what any job has prepared."""
        return sorted(self._path.glob(f"*/{name}"))

    def claim(self, owner: str) -> None:
        """Claim the target, and put back what a crash left between two renames.

        Raises:
            SinkError: If another job writes it.
            OSError: If it cannot be written.
        """
        self._disk.make_directory(self.target.parent)
        self._claim = self._claimed(owner)
        # A crash between the two moves of a file system that can't exchange.
        is_between = self._old.exists() and self.new.exists()
        if is_between and not os.path.lexists(self.target):
            self._disk.move(self._old, self.target)
            self._disk.sync(self.target.parent)

    def check_target(self, *, overwrite: bool) -> None:
        """Refuse a target that is there and must or can not be replaced.

        Raises:
            TargetExistsError: If it is not to be replaced.
            SinkError: If it cannot be.
        """
        target = self.target
        if not os.path.lexists(target):
            return
        if not overwrite:
            raise self._exists()
        if not target.is_dir():
            raise SinkError(f"{str(target)!r} is not a directory.")
        if target.is_mount():
            raise SinkError(
                f"{str(target)!r} is a mount point, which cannot be replaced. Choose a "
                "directory in it."
            )

    def check_prepared(self, tokens: Collection[str]) -> None:
        """Refuse to remove what another job has prepared and may still commit.

        Raises:
            SinkError: If there is such a thing; says whose it is and what can be done.
        """
        for entry in self._entries():
            owner = entry / _OWNER
            if entry.name in tokens or not owner.exists():
                continue
            # It, and what a death left of writing it once more.
            if all(name.startswith(_OWNER) for name in os.listdir(entry)):
                continue
            raise SinkError(
                f"{str(entry)!r} holds what {owner.read_text()} has prepared for "
                f"{str(self.target)!r} and commits when it goes on. Let it go on, remove "
                'that directory, choose another path, or use mode="overwrite".'
            )

    def prepare(self, token: str, *, owner: str | None) -> None:
        """Make the staging directory of a token."""
        staging = self.staging(token)
        self._disk.make_directory(staging)
        if owner is not None:
            self._disk.write(staging / _OWNER, owner.encode())

    def publish(self, *, overwrite: bool, undo: list[Callable[[], None]]) -> None:
        """Make `new` the target, in one step where the file system can.

        Raises:
            TargetExistsError: If the target appeared meanwhile.
            OSError: If the disk refuses.
        """
        disk, target, new, old = self._disk, self.target, self.new, self._old

        def do(step: Callable[[Path, Path], None], one: Path, other: Path) -> None:
            step(one, other)
            undo.append(partial(step, other, one))

        if os.path.lexists(target):
            if not overwrite:
                raise self._exists()
            try:
                do(disk.exchange, new, target)
            except ExchangeNotSupportedError:
                # For a moment there is no target: the best that two renames can do.
                do(disk.move, target, old)
                do(disk.move, new, target)
        else:
            do(disk.move, new, target)
        self.sync()

    def sync(self) -> None:
        """Let what was renamed survive a loss of power."""
        self._disk.sync(self._path)
        self._disk.sync(self.target.parent)

    def final_name(self, name: str) -> str:
        """Return a prepared file's name in the target: without its token."""
        return str(PurePosixPath(*PurePosixPath(name).parts[1:]))

    def sweep(self, *, keep: str | None = None, mine: Collection[str] = ()) -> None:
        """Remove what is prepared, new and old.

        Raises:
            OSError: If what may be old data of the user's cannot be removed.
        """
        for entry in self._entries():
            # What has an owner may be committed by a job that goes on.
            is_others = entry.name not in mine and (entry / _OWNER).exists()
            if keep is not None and (entry.name == keep or is_others):
                continue
            self._remove(entry)

    def sweep_replaced(self) -> None:
        """Remove what was the target, and what never became it."""
        for entry in (self.new, self._old):
            if os.path.lexists(entry):
                self._disk.remove_tree(entry)

    def empty(self, token: str) -> None:
        """Remove what is prepared under a token, but not whose it is."""
        for entry in sorted(self.staging(token).iterdir()):
            if entry.name != _OWNER:
                self._remove(entry)

    def release(self) -> None:
        """Give up the claim. Idempotent."""
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.release(remove=True)
            # Not if something is left in it.
            with contextlib.suppress(OSError):
                self._disk.remove_directory(self._path)

    def _entries(self) -> list[Path]:
        return sorted(one for one in self._path.iterdir() if one.name != _LOCK)

    def _remove(self, entry: Path) -> None:
        try:
            self._disk.remove_tree(entry)
        except OSError:
            # A worker that outlives its job by a moment may still write its files.
            if entry in {self.new, self._old}:
                raise

    def _claimed(self, owner: str) -> LocalClaim:
        while True:
            self._disk.make_directory(self._path)
            try:
                return LocalClaim(self._path / _LOCK, owner)
            except FileNotFoundError:
                # The owner before has removed it meanwhile.
                continue
            except StorageClaimedError as error:
                by = f"{str(self.target)!r} is being written by {error.owner}"
                if error.owner == holder(owner):
                    raise SinkError(
                        f"{by}: by another sink of this job, or another job of the same "
                        "name. Give each sink a path of its own."
                    ) from None
                raise SinkError(
                    f"{by}. Wait for it to end, or choose another path."
                ) from None

    def _exists(self) -> TargetExistsError:
        return TargetExistsError(
            f"{str(self.target)!r} exists already. Choose another path, remove it, or "
            'use mode="overwrite" or mode="append".'
        )


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _beside(target: Path) -> Path:
    """Return the hidden directory beside a target; a long name leaves it room."""
    if not target.name:
        raise SinkError(f"{str(target)!r} cannot be replaced. Choose a path below it.")
    digest = hashlib.sha256(os.fsencode(target.name)).hexdigest()[:12]
    # Truncated, and made unique by the digest: names have at most 255 bytes.
    return target.with_name(f".{target.name[:40]}.{digest}")
