"""Writes the snapshots of one process's tasks, off the loop."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import chain
from typing import Any

from aiomailbox.checkpoint.handles import TaskHandle
from aiomailbox.checkpoint.layout import checkpoint_directory, job_directory
from aiomailbox.checkpoint.settings import MEMORY_THRESHOLD
from aiomailbox.checkpoint.shared_files import SharedFilesWriter
from aiomailbox.checkpoint.task_bytes import (
    TaskBytes,
    encode_prepared,
    serializers_in,
)
from aiomailbox.ids import SubtaskId
from aiomailbox.state.rescale import RedistributionMode
from aiomailbox.storage import open_storage
from aiomailbox.storage.contract import Storage
from aiomailbox.storage.local import PRIVATE
from aiomailbox.task.in_flight import TaskSnapshot

__all__ = ["CheckpointWriter"]


class CheckpointWriter:
    """Writes what tasks resume from; all calls block, in any thread.

    Args:
        storage: Where checkpoints are.
        job_id: The identity of the job.
        classes: The classes that state may hold, or type hints that name them; state
            of others is refused: it could not be read again. None for all that occur.
        memory_threshold: What has at most so many bytes goes with the metadata.
        file_mode: The mode of a savepoint's new files; that of checkpoints is the
            storage's.

    Example:
        >>> import tempfile
        >>> from aiomailbox.ids import VertexId
        >>> from aiomailbox.storage.local import LocalStorage
        >>> writer = CheckpointWriter(LocalStorage(tempfile.mkdtemp()), "delays")
        >>> task = SubtaskId(VertexId(0), 0)
        >>> writer.write_task(1, task, 1, TaskSnapshot()).file is None
        True
    """

    def __init__(
        self,
        storage: Storage,
        job_id: str,
        classes: Iterable[Any] | None = None,
        *,
        memory_threshold: int = MEMORY_THRESHOLD,
        file_mode: int = PRIVATE,
    ) -> None:
        self._storage = storage
        self._below = job_directory(job_id)
        self._classes = None if classes is None else list(classes)
        self._memory_threshold = memory_threshold
        self._file_mode = file_mode
        self._shared = SharedFilesWriter(storage, self._below)

    def write_task(
        self,
        checkpoint_id: int,
        task: SubtaskId,
        epoch: int,
        snapshot: TaskSnapshot,
        location: str | os.PathLike[str] | None = None,
    ) -> TaskHandle:
        """Write the snapshot of a task, durably, and return where it is.

        Args:
            checkpoint_id: The checkpoint.
            task: The task.
            epoch: The attempt: one that is dead never writes what a later one did.
            snapshot: What the task resumes from.
            location: The place of a savepoint; None for a checkpoint.

        Raises:
            OSError: If it cannot be written; nothing of it is left then.
            StateError: If something in it cannot be kept as bytes.
        """
        name = f"{task}-{epoch}"
        # First of all: what cannot be encoded fails before a file is there.
        prepared = encode_prepared(snapshot, task.subtask_index, self._classes)
        # A savepoint stands alone, and any backend can read it.
        is_own = location is None
        shared = (
            self._shared.write(checkpoint_id, task, epoch, snapshot) if is_own else ()
        )
        made = TaskBytes(snapshot, self._classes, with_files=is_own)
        chunks = iter(made)
        head: list[bytes] = []
        for chunk in chunks:
            head.append(chunk)
            # Only then it gets a file: most tasks have little, and a file costs a sync.
            if made.size > self._memory_threshold:
                break
        is_inline = made.size <= self._memory_threshold
        if not is_inline:
            storage, below = self._place(checkpoint_id, location)
            storage.write(f"{below}{name}", chain(head, chunks))
        return TaskHandle(
            checkpoint_id=checkpoint_id,
            vertex=task.vertex,
            subtask_index=task.subtask_index,
            epoch=epoch,
            size=made.size,
            file=None if is_inline else name,
            inline=b"".join(head) if is_inline else b"",
            sections=tuple(made.sections),
            serializers=serializers_in(snapshot),
            prepared=prepared,
            is_finished=snapshot.is_finished,
            shared=shared,
            has_union_state=_has_union_state(snapshot),
        )

    def _place(
        self, checkpoint_id: int, location: str | os.PathLike[str] | None
    ) -> tuple[Storage, str]:
        if location is not None:
            return open_storage(location, file_mode=self._file_mode), ""
        below = f"{self._below}/{checkpoint_directory(checkpoint_id)}/"
        return self._storage, below


def _has_union_state(snapshot: TaskSnapshot) -> bool:
    return any(
        entry.mode is RedistributionMode.UNION and bool(entry.elements)
        for one in snapshot.operators.values()
        for entry in one.operator.states.values()
    )
