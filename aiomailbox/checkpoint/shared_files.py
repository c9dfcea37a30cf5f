"""Files that several checkpoints of a job consist of: written once, deleted when unused.

Theory of operation: a file that a store will not change again is written with the first
snapshot that has it. The next snapshots of the same task name it again, as long as each
one before had it: so if any checkpoint refers to it, all complete ones since it was
written do. Its name begins with the number of the checkpoint it was written for; once a
later one is complete, what no complete checkpoint refers to is unused.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from aiomailbox.ids import OperatorId, SubtaskId
from aiomailbox.state.snapshot import StateFile
from aiomailbox.storage.contract import Storage
from aiomailbox.task.in_flight import TaskSnapshot
from aiomailbox.task.messages import SharedFile

SHARED: Final = "shared"
_CHUNK_BYTES: Final = 1 << 20
_DIGEST_BYTES: Final = 16

# A file of a store: the operator, the piece of its state, what the store calls it.
_Key = tuple[OperatorId, int, str]


class SharedFilesWriter:
    """Writes files of stores, those that are not there yet; any thread.

    Args:
        storage: Where checkpoints are.
        below: The name of the job's directory there.
    """

    def __init__(self, storage: Storage, below: str) -> None:
        self._storage = storage
        self._below = below
        self._lock = threading.Lock()
        # Per task the attempt, and what its newest snapshot consists of.
        self._newest: dict[SubtaskId, tuple[int, int, Mapping[_Key, SharedFile]]] = {}

    def write(
        self, checkpoint_id: int, task: SubtaskId, epoch: int, snapshot: TaskSnapshot
    ) -> tuple[SharedFile, ...]:
        """Write what is new of a task's files, durably; return all of them.

        Raises:
            OSError: If one cannot be written.
        """
        known = self._known(task, epoch)
        found: dict[_Key, SharedFile] = {}
        for (operator, piece, name), file in _files_of(snapshot):
            key = (operator, piece, name)
            # One that may still grow is written each time.
            before = known.get(key) if file.is_final else None
            if before is None:
                stored = f"{checkpoint_id}-{task}-{epoch}-{len(found)}"
                before = self._write(key, file.path, stored)
            found[key] = before
        if found:
            self._remember(checkpoint_id, task, epoch, found)
        return tuple(found.values())

    def _known(self, task: SubtaskId, epoch: int) -> Mapping[_Key, SharedFile]:
        with self._lock:
            _, found_epoch, files = self._newest.get(task, (0, -1, {}))
        return files if found_epoch == epoch else {}

    def _remember(
        self,
        checkpoint_id: int,
        task: SubtaskId,
        epoch: int,
        files: Mapping[_Key, SharedFile],
    ) -> None:
        with self._lock:
            newest, found_epoch, _ = self._newest.get(task, (0, -1, {}))
            # One that was slow must not bring back what is unused since.
            if epoch != found_epoch or checkpoint_id > newest:
                self._newest[task] = (checkpoint_id, epoch, files)

    def _write(self, key: _Key, path: Path, stored: str) -> SharedFile:
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)

        def chunks() -> Iterator[bytes]:
            with open(path, "rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    yield chunk

        size = self._storage.write(f"{self._below}/{SHARED}/{stored}", chunks())
        operator, piece, name = key
        return SharedFile(operator, piece, name, stored, size, digest.hexdigest())


def remove_unused(
    storage: Storage, below: str, used: Iterable[str], before_id: int
) -> None:
    """Delete files of checkpoints before one that none of the complete ones has.

    Raises:
        OSError: If one cannot be deleted.
    """
    place = f"{below}/{SHARED}" if below else SHARED
    kept = set(used)
    unused = []
    for path in storage.names(place):
        name = path.rpartition("/")[2]
        number = name.partition("-")[0]
        # By number: what is newer may belong to a checkpoint that is being written.
        if name not in kept and number.isdecimal() and int(number) < before_id:
            unused.append(path)
    storage.delete(unused)


def shared_digest(chunks: Iterable[bytes]) -> tuple[int, str]:
    """Return the size and the digest of a file's contents."""
    digest, size = hashlib.blake2b(digest_size=_DIGEST_BYTES), 0
    for chunk in chunks:
        digest.update(chunk)
        size += len(chunk)
    return size, digest.hexdigest()


def _files_of(snapshot: TaskSnapshot) -> Iterator[tuple[_Key, StateFile]]:
    for operator, one in snapshot.operators.items():
        for piece, keyed in enumerate(one.keyed):
            for file in keyed.files:
                yield (operator, piece, file.name), file
