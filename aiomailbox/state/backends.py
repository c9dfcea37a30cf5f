"""State backends: where a job keeps its keyed state."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Final, Protocol

from aiomailbox.clock import Clock
from aiomailbox.errors import InvalidArgumentError, MissingExtraError, WrongTypeError
from aiomailbox.keygroups.assignment import KeyGroupRange
from aiomailbox.policies.arguments import local_path
from aiomailbox.state.heap import HeapStateStore
from aiomailbox.state.store import KeyedStateStore

_MIB: Final = 1 << 20


class StateBackend(Protocol):
    """Creates the keyed state stores of a job: one per keyed operator and subtask.

    Concept:
        Flink, ``StateBackend``.
    """

    def create_store(
        self, max_parallelism: int, key_group_range: KeyGroupRange, clock: Clock
    ) -> KeyedStateStore:
        """Return a new, empty store; the caller closes it."""
        ...

    def placed(self, scratch: Callable[[str], str]) -> StateBackend:
        """Return a backend like this one that keeps its files in a job's directories.

        Args:
            scratch: Makes a directory below a place, "" for the system's place for
                temporary files, and returns it; not called by one that keeps no files.
        """
        ...


@dataclass(frozen=True, slots=True)
class HeapStateBackend:
    """Keeps state as Python objects in the process's memory: the default, and fastest.

    Concept:
        Flink, ``HashMapStateBackend``.

    Example:
        >>> import aiomailbox as am
        >>> env = am.StreamExecutionEnvironment()
        >>> env.state_backend
        HeapStateBackend()
    """

    def create_store(
        self, max_parallelism: int, key_group_range: KeyGroupRange, clock: Clock
    ) -> KeyedStateStore:
        """Return a new, empty store."""
        return HeapStateStore(max_parallelism, key_group_range, clock)

    def placed(self, scratch: Callable[[str], str]) -> HeapStateBackend:
        """Return this backend, which keeps no files."""
        return self


@dataclass(frozen=True, slots=True)
class RocksDBStateBackend:
    """Keeps state in RocksDB on the local disk, for state that is larger than memory.

    Needs ``aiomailbox[rocksdb]``. The files are temporary and removed with the task;
    what a process that was killed has left is removed by the next job of the same user
    that keeps state there.

    Args:
        path: Where each job creates a directory of its own; None for the system's
            directory for temporary files.
        memory_bytes: What the caches and buffers of one keyed operator in one subtask
            may take, about; at least 1 MiB. A single list or map has to fit in it.

    Raises:
        InvalidArgumentError: If ``memory_bytes`` is too small, or the path a URL.
        MissingExtraError: If ``rocksdict`` is not installed.

    Concept:
        Flink, ``EmbeddedRocksDBStateBackend``.

    Example:
        >>> import aiomailbox as am
        >>> env = am.StreamExecutionEnvironment()
        >>> env = env.configure(
        ...     state_backend=am.RocksDBStateBackend(memory_bytes=64 << 20)
        ... )
        >>> am.run(env.from_collection([1, 2]).key_by(str).reduce(max).collect())
        [1, 2]
    """

    path: str | PathLike[str] | None = None
    memory_bytes: int = 128 * _MIB

    def __post_init__(self) -> None:
        size: Any = self.memory_bytes
        if isinstance(size, bool) or not isinstance(size, int):
            raise WrongTypeError(
                "memory_bytes", f"{size!r} is not an int", "Give bytes, e.g. 256 << 20."
            )
        if size < _MIB:
            raise InvalidArgumentError(
                "memory_bytes", f"{size} is too small", "Use 1 MiB or more."
            )
        path: Any = self.path
        if path is not None and not isinstance(path, str | PathLike):
            raise WrongTypeError(
                "path", f"{path!r} is not a path", "Give a str or a Path."
            )
        if path is not None:
            local_path(path, "path")
        if importlib.util.find_spec("rocksdict") is None:
            raise MissingExtraError("RocksDBStateBackend", "rocksdb")

    def create_store(
        self, max_parallelism: int, key_group_range: KeyGroupRange, clock: Clock
    ) -> KeyedStateStore:
        """Return a new, empty store; its files are created with the first state."""
        from aiomailbox.state.rocksdb.store import RocksDBStateStore

        return RocksDBStateStore(
            max_parallelism,
            key_group_range,
            clock,
            path=None if self.path is None else Path(self.path),
            memory_bytes=self.memory_bytes,
        )

    def placed(self, scratch: Callable[[str], str]) -> RocksDBStateBackend:
        """Return a backend that creates its directories in one of the job's."""
        place = "" if self.path is None else str(Path(self.path).absolute())
        return replace(self, path=scratch(place))
