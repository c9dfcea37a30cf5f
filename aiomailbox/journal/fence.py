"""Which epoch may write: a number for each subtask, in one file; 0 for none.

Theory of operation: a new epoch raises the number first and reads the logs afterwards. A
writer looks at the number before it appends, and again when what it has appended is
durable: if it still is the writer's own, the entry was there before the logs were read.
So no lock is held that a stopped process would keep.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from aiomailbox.errors import FencedError
from aiomailbox.storage.contract import Storage
from aiomailbox.storage.local import PRIVATE, open_file, sync_directory

FENCE: Final = "fence"
_SLOT: Final = struct.Struct("<Q")


class Fence:
    """A writer's view of its number; this one lets every attempt pass."""

    def check(self) -> None:
        """Raise if it is known that a later epoch has begun; touches no disk.

        Raises:
            FencedError: If so.
        """

    def check_anew(self) -> None:
        """Raise if a later epoch has begun.

        Raises:
            FencedError: If so.
            OSError: If that cannot be read.
        """

    def close(self) -> None:
        """Close what is open. Idempotent."""


class MappedFence(Fence):
    """A writer's view of its number in a file that is mapped into memory.

    Args:
        operator: The operator's directory.
        epoch: The writer's epoch.
        subtask: The writer's subtask.

    Raises:
        FencedError: If a later epoch has begun.
        OSError: If there is no such file.
    """

    def __init__(self, operator: Path, epoch: int, subtask: int) -> None:
        self._epoch = epoch
        # One more than the epoch: 0 is for subtasks that never had one.
        self._expected = _SLOT.pack(epoch + 1)
        self._slot = slice(subtask * _SLOT.size, (subtask + 1) * _SLOT.size)
        self._operator = operator
        file = os.open(operator / FENCE, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # Looked at for every call: a mapping needs no system call for that.
            self._numbers = mmap.mmap(file, 0, prot=mmap.PROT_READ)
        finally:
            os.close(file)
        try:
            self.check()
        except BaseException:
            self.close()
            raise

    def check(self) -> None:
        """Raise if a later epoch has begun.

        Raises:
            FencedError: If so.
        """
        if self._numbers[self._slot] != self._expected:
            raise FencedError(str(self._operator), self._epoch)

    def check_anew(self) -> None:
        """Raise if a later epoch has begun, also on another machine that shares the file.

        A mapping may lag behind there; a read after opening does not.

        Raises:
            FencedError: If so.
            OSError: If the file cannot be read.
        """
        # First what needs no file: a later attempt may have removed it with the journal.
        self.check()
        data = (self._operator / FENCE).read_bytes()
        if data[self._slot] != self._expected:
            raise FencedError(str(self._operator), self._epoch)

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._numbers.close()


class RemoteFence(Fence):
    """A writer's view of its number in a file that only whole reads tell of.

    Args:
        storage: Where the file is.
        name: Its name.
        epoch: The writer's epoch.
        subtask: The writer's subtask.

    Raises:
        FencedError: If a later epoch has begun.
        OSError: If there is no such file.
    """

    def __init__(self, storage: Storage, name: str, epoch: int, subtask: int) -> None:
        self._storage = storage
        self._name = name
        self._epoch = epoch
        self._expected = _SLOT.pack(epoch + 1)
        self._slot = slice(subtask * _SLOT.size, (subtask + 1) * _SLOT.size)
        self._is_raised = False
        self.check_anew()

    def check(self) -> None:
        """Raise if a later epoch had begun when that was read last."""
        if self._is_raised:
            raise FencedError(f"{self._storage.place}/{self._name}", self._epoch)

    def check_anew(self) -> None:
        """Raise if a later epoch has begun."""
        data = bytes(self._storage.view(self._name)[self._slot])
        self._is_raised = data != self._expected
        self.check()


def fenced_epochs(operator: Path) -> list[int]:
    """Return the epoch of each subtask that ever was, -1 before its first one."""
    try:
        data = (operator / FENCE).read_bytes()
    except FileNotFoundError:
        return []
    # A number that a crash has cut off was never written, so no attempt has that epoch.
    whole = len(data) // _SLOT.size * _SLOT.size
    return [number - 1 for (number,) in _SLOT.iter_unpack(data[:whole])]


def raise_fence(
    operator: Path, epoch: int, subtasks: Iterable[int], *, file_mode: int = PRIVATE
) -> None:
    """Let only an epoch write for some subtasks, from now on.

    The file is changed in place: writers have it open.

    Args:
        operator: The operator's directory.
        epoch: The epoch.
        subtasks: The subtasks.
        file_mode: The file's mode, if it is not there yet.

    Raises:
        FencedError: If that epoch, or a later one, has begun for one of them.
        OSError: If the file cannot be written.
    """
    wanted = set(subtasks)
    known = fenced_epochs(operator)
    if any(known[index] >= epoch for index in wanted if index < len(known)):
        raise FencedError(str(operator), epoch)
    count = max(wanted, default=-1) + 1
    file = open_file(operator / FENCE, os.O_RDWR | os.O_CREAT, file_mode)
    try:
        for index in range(len(known), count):
            os.pwrite(file, _SLOT.pack(0), index * _SLOT.size)
        for index in sorted(wanted):
            os.pwrite(file, _SLOT.pack(epoch + 1), index * _SLOT.size)
        # Durable before the logs are read: a fence that a crash takes down lets old
        # writers in.
        os.fsync(file)
    finally:
        os.close(file)
    sync_directory(operator)
