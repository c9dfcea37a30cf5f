"""Keyed state in RocksDB, behind a cache of objects.

Theory of operation: the database is opened with the first state and lies in a temporary
directory, because what outlives the process are snapshots. A snapshot shares the
database's files, and its contents are read on request, key group by key group.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from aiomailbox.clock import Clock
from aiomailbox.errors import StateError
from aiomailbox.keygroups.assignment import KeyGroupRange
from aiomailbox.state.entries import Entries
from aiomailbox.state.registry import check_max_parallelism
from aiomailbox.state.rocksdb.cache import CacheLimit
from aiomailbox.state.rocksdb.database import Database, PendingSnapshot
from aiomailbox.state.rocksdb.encoding import KeyCodec
from aiomailbox.state.rocksdb.tables import (
    RocksDBNamespacedTable,
    RocksDBStateTable,
    Rows,
    new_table,
)
from aiomailbox.state.schema import ClassSchema
from aiomailbox.state.serializers import ObjectSerializer, serializer_of
from aiomailbox.state.snapshot import KeyedStateSnapshot, StateFile, StateMeta
from aiomailbox.state.table_store import TableStateStore

__all__ = ["DEFAULT_MEMORY_BYTES", "RocksDBStateStore"]

DEFAULT_MEMORY_BYTES: Final = 128 << 20

_Table = RocksDBStateTable | RocksDBNamespacedTable
_NUMBERS = ("estimate-num-keys", "estimate-live-data-size", "cur-size-all-mem-tables")
_Entries = dict[int, Entries]
# So many are read at a time.
_PIECE: Final = 1024


class RocksDBStateStore(TableStateStore[_Table]):
    """The keyed state of one operator in one subtask, on disk.

    Contents are objects while they are in use, as on the heap, and bytes when they are
    not. A content is one entry, also that of list and map state.

    Args:
        max_parallelism: Number of key groups of the job.
        key_group_range: The key groups of this subtask.
        clock: Read only for state with a time to live.
        path: Where to make a temporary directory; None for the system's place.
        memory_bytes: What caches and buffers may take, about.

    Raises:
        MissingExtraError: With the first state, if ``rocksdict`` is not installed.

    Concept:
        Flink, ``RocksDBKeyedStateBackend`` (``EmbeddedRocksDBStateBackend``).
    """

    def __init__(
        self,
        max_parallelism: int,
        key_group_range: KeyGroupRange,
        clock: Clock,
        *,
        path: Path | None = None,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
    ) -> None:
        super().__init__(self._new_table, clock)
        self._max_parallelism = max_parallelism
        self._key_group_range = key_group_range
        self._path = path
        self._memory_bytes = memory_bytes
        self._limit = CacheLimit(memory_bytes // 2)
        self._objects = ObjectSerializer()
        self._codec = KeyCodec(max_parallelism, self._objects.codec)
        self._database: Database | None = None
        self._closed = False
        self._last: dict[str, int] = {}

    def key_count(self) -> int:
        """Return how many keys have state; reads them all."""
        self._flush()
        return super().key_count()

    def estimated_keys(self) -> int:
        """Return RocksDB's estimate of its entries, over all states and namespaces."""
        return self._number("estimate-num-keys")

    def size_bytes(self) -> int:
        """Return RocksDB's estimate of what the state takes on disk and in buffers."""
        return sum(map(self._number, _NUMBERS[1:]))

    def prefetch(self, keys: Iterable[Any]) -> None:
        """Read the state of these keys that is not cached, in one go per state."""
        known = [*keys]
        for entry in self._registry.entries.values():
            if isinstance(entry.table, RocksDBStateTable):
                entry.table.prefetch(known)

    def snapshot(self) -> KeyedStateSnapshot:
        """Return a snapshot, which shares the files and reads a key group when asked.

        What is cached and buffered is written by the thread that first asks for a key
        group. Until then nothing else is written.
        """
        metas = [entry.meta for entry in self._registry.entries.values()]
        database = self._database
        if database is None:
            return KeyedStateSnapshot(self._max_parallelism, metas)
        tables = [entry.table for entry in self._registry.entries.values()]
        database.end_snapshot()
        for table in tables:
            table.cache.freeze()
        codec = KeyCodec(self._max_parallelism, self._objects.codec)

        def write() -> None:
            for table in tables:
                table.cache.write_frozen(table.rows_of.places(codec))

        def forget() -> None:
            for table in tables:
                table.cache.forget_frozen()

        pending = database.begin_snapshot(write, forget)
        rows = [table.rows_of for table in tables]
        # One codec for all states: which of them has objects of a class is not known.
        met = self._objects.codec.classes.schemas
        groups = SnapshotKeyGroups(pending, rows, self._key_group_range, met)
        pending.reader = weakref.ref(groups)
        return KeyedStateSnapshot(self._max_parallelism, metas, groups)

    @property
    def has_snapshot(self) -> bool:
        """False: snapshots cost the store nothing."""
        return False

    def settle(self, count: int) -> int:
        """Do nothing."""
        return count

    def restoring(self, snapshots: Sequence[KeyedStateSnapshot]) -> Iterator[None]:
        """Do as `restore`, in pieces; raises as that does."""
        if self._database is not None:
            # It may be this very snapshot that is restored.
            self._database.end_snapshot()
            self._database.clear()
        for entry in self._registry.entries.values():
            entry.table.forget_all()
        for snapshot in snapshots:
            check_max_parallelism(snapshot, self._max_parallelism)
            states = self._restored_states(snapshot)
            for position, entries in snapshot.entries_of(self._key_group_range):
                states[position].load(entries)
                if entries:
                    self.restored_key = entries.columns[0][0]
                # At once: all of it at the end would hold the loop.
                states[position].table.cache.flush()
                states[position].table.cache.clear()
                yield

    def close(self) -> None:
        """Close the database and remove its directory; again is a no-op."""
        if self._database is not None and not self._closed:
            # Metrics are looked at after the end, too.
            self._last = {name: self._number(name) for name in _NUMBERS}
            self._database.close()
        self._closed = True

    def _number(self, name: str) -> int:
        if self._database is None:
            return 0
        return self._last[name] if self._closed else self._database.number(name)

    def _flush(self) -> None:
        for entry in self._registry.entries.values():
            entry.table.cache.flush()

    def _new_table(self, meta: StateMeta) -> _Table:
        if self._closed:
            raise StateError(f"state {meta.name!r} was asked for after the end")
        if self._database is None:
            self._database = Database(self._path, self._memory_bytes // 2)
        return new_table(
            self._database,
            self._limit,
            self._codec,
            serializer_of(meta.serializer, self._objects),
            self._key_group_range,
            len(self._registry.entries),
            namespaced=meta.namespaced,
        )


class SnapshotKeyGroups(Mapping[int, _Entries]):
    """The entries of a snapshot by key group, read when they are asked for.

    Args:
        snapshot: The database at the moment of the snapshot, once that is made.
        states: Reads the entries of each state.
        key_group_range: The key groups of its store.
        met: Returns the classes that occur, once the snapshot is made.
    """

    makes_new = True

    __slots__ = ("__weakref__", "_met", "_range", "_snapshot", "_states")

    def __init__(
        self,
        snapshot: PendingSnapshot,
        states: list[Rows],
        key_group_range: KeyGroupRange,
        met: Callable[[], dict[str, ClassSchema]],
    ) -> None:
        self._snapshot = snapshot
        self._met = met
        self._states = states
        self._range = key_group_range

    def __getitem__(self, group: int) -> _Entries:
        found: _Entries = {}
        for position, entries in self.pieces(group):
            if position in found:
                found[position].extend(entries)
            else:
                found[position] = entries
        if not found:
            raise KeyError(group)
        return found

    def files(self) -> tuple[StateFile, ...]:
        """Return the files of the database; see `KeyedStateSnapshot.files`."""
        return self._snapshot.made().files()

    def classes(self) -> dict[str, ClassSchema]:
        """Return the classes that occur in the files."""
        self._snapshot.made()
        return self._met()

    def pieces(self, group: int) -> Iterator[tuple[int, Entries]]:
        """Yield positions and entries of a key group, a piece at a time."""
        snapshot = self._snapshot.made()
        for position, rows in enumerate(self._states):
            read = (rows.entry(*row) for row in snapshot.items(rows.prefix(group)))
            while piece := list(islice(read, _PIECE)):
                yield position, Entries.of(piece, len(piece[0]))

    def __iter__(self) -> Iterator[int]:
        return (group for group in self._range.key_groups if self._holds(group))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __reduce__(self) -> tuple[Any, ...]:
        # Its files are this machine's: what travels are the contents.
        return dict, (dict(self),)

    def _holds(self, group: int) -> bool:
        return any(
            next(self._snapshot.made().items(rows.prefix(group)), None) is not None
            for rows in self._states
        )
