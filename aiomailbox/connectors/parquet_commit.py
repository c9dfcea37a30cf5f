"""Makes Parquet files visible: checks the target before, moves files, cleans up."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any, Final

from aiomailbox.errors import SinkError, TargetExistsError
from aiomailbox.operators import Pending
from aiomailbox.threads import run_in_thread

__all__ = ["ParquetCommitter"]

_SUCCESS: Final = "_SUCCESS"


class ParquetCommitter:
    """Moves finished files from the staging directory into the target.

    Args:
        target: The directory that readers look into.
        staging: The hidden directory beside it; made here, for the writers.
        overwrite: Whether a target that exists is replaced.
    """

    def __init__(self, target: Path, staging: Path, *, overwrite: bool) -> None:
        self._target = target
        self._staging = staging
        self._overwrite = overwrite
        self._has_target = False

    def begin(self) -> Pending:
        """Check the target and make the staging directory.

        Raises:
            TargetExistsError: If the target is already there.
            SinkError: If it cannot be written.
        """
        target = self._target
        if target.exists() and not self._overwrite:
            raise TargetExistsError(
                f"{str(target)!r} exists already. Choose another path, remove it, or "
                'use ParquetSink(..., mode="overwrite").'
            )
        if target.exists() and not target.is_dir():
            raise SinkError(f"{str(target)!r} is not a directory.")
        try:
            shutil.rmtree(self._staging, ignore_errors=True)
            self._staging.mkdir(parents=True)
            probe = self._staging / "probe"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise SinkError(
                f"{str(target)!r} cannot be written: {error}. Choose a path where this "
                "process may create files."
            ) from error
        return None

    def commit(self, committables: list[Any], *, is_final: bool) -> Pending:
        """Move files into the target; those that are there already stay."""
        return self._in_thread(self._move, committables)

    def end(self, *, succeeded: bool) -> Pending:
        """Say that all is there, or leave nothing uncommitted behind."""
        return self._in_thread(self._end, succeeded)

    async def _in_thread(self, work: Any, argument: Any) -> None:
        try:
            await run_in_thread(work, argument)
        except OSError as error:
            raise SinkError(
                f"cannot commit to {str(self._target)!r}: {error}"
            ) from error

    def _move(self, names: list[str]) -> None:
        self._make_target()
        for name in names:
            staged, final = self._staging / name, self._target / name
            if staged.exists() or not final.exists():
                staged.replace(final)

    def _end(self, succeeded: bool) -> None:
        if succeeded:
            self._make_target()
            (self._target / _SUCCESS).touch()
        elif self._has_target:
            # Only an empty directory goes: what was committed stays.
            with contextlib.suppress(OSError):
                self._target.rmdir()
        shutil.rmtree(self._staging, ignore_errors=True)

    def _make_target(self) -> None:
        if self._has_target:
            return
        if self._overwrite and self._target.exists():
            old = self._staging / "old"
            self._target.replace(old)
        self._target.mkdir(parents=True, exist_ok=True)
        self._has_target = True
