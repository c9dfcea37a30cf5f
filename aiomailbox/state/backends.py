"""State backends: where a job keeps its keyed state, and the one in memory."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, ItemsView, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Final, Protocol

from aiomailbox.clock import Clock
from aiomailbox.errors import InvalidArgumentError, MissingExtraError, WrongTypeError
from aiomailbox.keygroups.assignment import KeyGroupRange
from aiomailbox.signatures import check_type, local_path
from aiomailbox.state.layers import (
    DictSnapshot,
    Layer,
    Layered,
    LayeredDict,
    frozen_items,
    most_keys,
    size_hint,
)
from aiomailbox.state.snapshot import (
    Entries,
    KeyedStateSnapshot,
    SnapshotRows,
    StateMeta,
    copy_content,
)
from aiomailbox.state.store import RunContents
from aiomailbox.state.table_store import KeyedStateStore

# Keyed state in the process's own memory: dicts of Python objects.
#
# Theory of operation: per state one dict, ``key -> content``, or for namespaced state
# ``key -> {namespace: content}``. Run-form operators get the dict's own methods. Key
# groups matter only at the edges: a snapshot's reader sorts the keys into groups, a
# restore takes the groups of its range, and nothing in between hashes a key as Flink
# does.


# The dicts of the heap store, as tables.
#
# Theory of operation: a table's dict is a `LayeredDict`. Its methods are the table's
# own as long as no snapshot is read, and those of a layer while one is.


_SAMPLED = 64


_DICT_ENTRY_BYTES = 100


class _HeapTable(Layered):
    """The part that both kinds of tables share.

    Attributes:
        rows: By key.
    """

    def _bind(self) -> None:
        self.rows: dict[Any, Any] | Layer[Any, Any] = self._layers.live

    def clear(self) -> None:
        """Forget all contents."""
        self._layers.clear()
        self._bind()

    def all_keys(self) -> list[Any]:
        """Return all keys as a new list."""
        return list(self.rows)

    def keys_to_sweep(self) -> list[Any]:
        """Return the keys as a new list, while there is a snapshot those that it has."""
        return most_keys(self.rows)


class HeapStateTable(_HeapTable):
    """One state of all keys: a dict, and that dict's own methods.

    ``get``, ``put`` and ``rows`` are others after `snapshot` and `settle`, between which
    they may be kept in local variables.

    Attributes:
        rows: ``key -> content``.
    """

    def __init__(self) -> None:
        super().__init__(LayeredDict(copy_content))

    def _bind(self) -> None:
        super()._bind()
        # The dict's own methods: an access by a record is one call into C.
        self.get: Callable[..., Any] = self.rows.get
        self.put: Callable[[Any, Any], None] = self.rows.__setitem__

    def frozen_rows(self) -> SnapshotRows:
        """Return all that is here now, for a thread to read."""
        return SnapshotRows(2, self.snapshot().columns)

    def prefetch(self, keys: Iterable[Any]) -> None:
        """Do nothing: all contents are here."""

    def for_run(self, keys: list[Any]) -> RunContents:
        """Return all rows, or those of the layer once it has these keys."""
        rows = self.rows
        return rows if isinstance(rows, dict) else rows.for_run(keys)

    def namespaces_of(self, key: Any) -> tuple[None]:
        """Return the one namespace that is none."""
        return (None,)

    def __len__(self) -> int:
        return len(self.rows)

    def remove(self, key: Any) -> None:
        """Forget the content of ``key``; a no-op if there is none."""
        self.rows.pop(key, None)

    def items(self) -> ItemsView[Any, Any]:
        """Return all keys with their contents, live: change nothing meanwhile."""
        return self.rows.items()

    def drain(self, count: int) -> list[tuple[Any, Any]]:
        """Take out so many entries, or all."""
        rows = self.rows
        return [rows.popitem() for _ in range(min(count, len(rows)))]

    def load(self, entries: Entries) -> None:
        """Set the keys of ``entries`` to their contents."""
        self.rows.update(zip(*entries.columns, strict=True))

    def read(self, key: Any, namespace: Any) -> Any:
        """Return the content of ``key``, or None; there are no namespaces here."""
        return self.rows.get(key)

    def write(self, key: Any, namespace: Any, content: Any) -> None:
        """Set the content of ``key``."""
        self.rows[key] = content

    def forget(self, key: Any, namespace: Any) -> None:
        """Forget the content of ``key``."""
        self.rows.pop(key, None)


class HeapNamespacedTable(_HeapTable):
    """One state of all keys and namespaces.

    Attributes:
        rows: ``key -> {namespace: content}``; no inner dict is empty.
    """

    def __init__(self) -> None:
        super().__init__(LayeredDict(_copy_row))

    def frozen_rows(self) -> SnapshotRows:
        """Return all that is here now, for a thread to read."""
        return SnapshotRows.of(3, partial(_entries_in, self.snapshot()))

    def __len__(self) -> int:
        return sum(len(row) for _, row in frozen_items(self.rows))

    def get(self, key: Any, namespace: Any, default: Any = None) -> Any:
        """Return the content of ``key`` in ``namespace``."""
        row = self.rows.get(key)
        return default if row is None else row.get(namespace, default)

    def put(self, key: Any, namespace: Any, content: Any) -> None:
        """Set the content of ``key`` in ``namespace``."""
        row = self.rows.get(key)
        if row is None:
            self.rows[key] = {namespace: content}
        else:
            row[namespace] = content

    def remove(self, key: Any, namespace: Any) -> None:
        """Forget the content of ``key`` in ``namespace``; a no-op if there is none."""
        row = self.rows.get(key)
        if row is not None:
            row.pop(namespace, None)
            if not row:
                del self.rows[key]

    def namespaces(self, key: Any) -> list[Any]:
        """Return the namespaces in which ``key`` has content, as a new list."""
        return list(self.rows.get(key, ()))

    def items(self) -> Iterator[tuple[Any, Any, Any]]:
        """Return all ``(key, namespace, content)``, live: change nothing meanwhile."""
        for key, row in self.rows.items():
            for namespace, content in row.items():
                yield key, namespace, content

    def load(self, entries: Entries) -> None:
        """Set the keys and namespaces of ``entries`` to their contents."""
        for key, namespace, content in entries:
            self.put(key, namespace, content)

    def drain(self, count: int) -> list[tuple[Any, Any, Any]]:
        """Take out entries until there are so many, those of a key together."""
        taken: list[tuple[Any, Any, Any]] = []
        while self.rows and len(taken) < count:
            key, row = self.rows.popitem()
            taken += [(key, *item) for item in row.items()]
        return taken

    read = get
    write = put
    forget = remove
    namespaces_of = namespaces


HeapTable = HeapStateTable | HeapNamespacedTable


def estimated_bytes(table: HeapTable) -> int:
    """Return about how many bytes the contents of a table take, keys included."""
    # Counting in layers takes a walk, and this is an estimate.
    count = size_hint(table.rows) if table.has_snapshot else len(table)
    sample = list(itertools.islice(frozen_items(table.rows), _SAMPLED))
    if not sample:
        return 0
    sampled = sum(_size(part) for entry in sample for part in entry)
    return count * (_DICT_ENTRY_BYTES + sampled // len(sample))


def _entries_in(snapshot: DictSnapshot) -> Iterator[tuple[Any, Any, Any]]:
    for key, row in snapshot.items():
        for namespace, content in frozen_items(row):
            yield key, namespace, content


def _copy_row(row: dict[Any, Any]) -> dict[Any, Any]:
    return {namespace: copy_content(content) for namespace, content in row.items()}


def _size(value: Any) -> int:
    """Return the bytes of a value and of what is in it, two levels deep."""
    size = sys.getsizeof(value)
    if isinstance(value, dict):
        return size + sum(map(sys.getsizeof, itertools.chain(value, value.values())))
    if isinstance(value, list | tuple):
        return size + sum(map(sys.getsizeof, value))
    return size


class HeapStateStore(KeyedStateStore[HeapTable]):
    """The keyed state of one operator in one subtask, on the heap.

    Args:
        max_parallelism: Number of key groups of the job.
        key_group_range: The key groups of this subtask.
        clock: Read only for state with a time to live.

    Concept:
        Flink, ``HeapKeyedStateBackend``.

    Example:
        >>> from aiomailbox.clock import SystemClock
        >>> from aiomailbox.keygroups.assignment import KeyGroupRange
        >>> from aiomailbox.state.descriptors import ValueStateDescriptor
        >>> store = HeapStateStore(128, KeyGroupRange(0, 127), SystemClock())
        >>> count = store.get_value(ValueStateDescriptor("count", default=0))
        >>> store.set_current_key("a")
        >>> count.update(count.value() + 1)
        >>> store.table(ValueStateDescriptor("count", default=0)).get("a")
        1
    """

    def estimated_keys(self) -> int:
        """Return the number of keys of the state that has most of them.

        While a snapshot is read, it is that of the moment of the snapshot.
        """
        entries = self._registry.entries.values()
        return max((size_hint(state.table.rows) for state in entries), default=0)

    def prefetch(self, keys: Iterable[Any]) -> None:
        """Do nothing: all contents are here."""

    def size_bytes(self) -> int:
        """Return about how many bytes the contents take, from a sample of them."""
        return sum(
            estimated_bytes(state.table) for state in self._registry.entries.values()
        )

    def close(self) -> None:
        """Do nothing: the memory goes with the store."""

    def snapshot(self) -> KeyedStateSnapshot:
        """Return a snapshot of all state that later changes do not touch.

        It is taken at once, and read in any thread; see `aiomailbox.state.layers`.
        """
        entries = self._registry.entries.values()
        return KeyedStateSnapshot.of_rows(
            self._max_parallelism,
            [entry.meta for entry in entries],
            [entry.table.frozen_rows() for entry in entries],
        )

    @property
    def has_snapshot(self) -> bool:
        """Whether layers lie over the dicts."""
        return any(
            entry.table.has_snapshot for entry in self._registry.entries.values()
        )

    def settle(self, count: int) -> int:
        """Remove layers that no snapshot needs; see `LayeredDict.settle`."""
        for entry in self._registry.entries.values():
            count = entry.table.settle(count)
        return count

    def _new_table(self, meta: StateMeta) -> HeapTable:
        return HeapNamespacedTable() if meta.namespaced else HeapStateTable()


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

    def placed(self, scratch: Callable[[str], str]) -> StateBackend:
        """Return a backend like this one that keeps its files in a job's directories.

        Args:
            scratch: Makes a directory below a place, "" for the system's place for
                temporary files, and returns it; not called by one that keeps no files.
        """


@dataclass(frozen=True, slots=True)
class HeapStateBackend:
    """Keeps state as Python objects in the process's memory: the default, and fastest.

    Concept:
        Flink, ``HashMapStateBackend``.

    Example:
        >>> import aiomailbox as am
        >>> am.JobConfig().state_backend
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

    Needs ``aiomailbox[rocksdb]``. The files are temporary, and the task removes them at
    its end. If a process was killed, the next job of the same user that keeps state
    there removes its files.

    Args:
        path: The place in which each job creates a directory; None for the system's
            directory for temporary files.
        memory_bytes: The approximate limit for the caches and buffers of one keyed
            operator in one subtask, in bytes; at least 1 MiB. A single list or map has
            to fit in it.

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
        check_type(
            path, str | PathLike | None, "path", "Give a str or a Path.", "a path"
        )
        if path is not None:
            local_path(path, "path")
        _load()

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
        # A worker process gets the backend pickled.
        _load()
        place = "" if self.path is None else str(Path(self.path).absolute())
        return replace(self, path=scratch(place))


def _load() -> None:
    """Import RocksDB before a job runs, whose loop the import would hold.

    Raises:
        MissingExtraError: If it is not installed.
    """
    try:
        importlib.import_module("rocksdict")
        importlib.import_module("aiomailbox.state.rocksdb.store")
    except ImportError as error:
        raise MissingExtraError("RocksDBStateBackend", "rocksdb") from error
