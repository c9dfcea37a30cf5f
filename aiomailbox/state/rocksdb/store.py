"""Keyed state in RocksDB, behind a cache of objects.

Theory of operation: the database is opened with the first state and lies in a temporary
directory, because what outlives the process are snapshots. A snapshot shares the
database's files, and its contents are read on request, key group by key group.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

from aiomailbox.clock import Clock
from aiomailbox.errors import StateError
from aiomailbox.keygroups.assignment import KeyGroupRange
from aiomailbox.state.rocksdb.cache import CacheLimit, ContentCache
from aiomailbox.state.rocksdb.database import Database, PendingSnapshot
from aiomailbox.state.rocksdb.encoding import KeyCodec
from aiomailbox.state.serializers import (
    ClassSchema,
    ObjectSerializer,
    StateSerializer,
    encode_all,
    serializer_of,
)
from aiomailbox.state.snapshot import Entries, KeyedStateSnapshot, StateFile, StateMeta
from aiomailbox.state.store import RunContents, check_max_parallelism
from aiomailbox.state.table_store import TableStateStore

# States in the database, as tables over its cached contents.


_KEYS_PER_READ = 256


class Rows:
    """Reads all entries of one state from a database or a snapshot.

    Args:
        state: The state's number.
        codec: Decodes places.
        serializer: Decodes contents.
        namespaced: Whether places hold a namespace.
    """

    __slots__ = ("_codec", "_decode", "_namespaced", "_state")

    def __init__(
        self,
        state: int,
        codec: KeyCodec,
        serializer: StateSerializer,
        *,
        namespaced: bool,
    ) -> None:
        self._state = state
        self._codec = codec
        self._decode = serializer.decode
        self._namespaced = namespaced

    def prefix(self, group: int) -> bytes:
        """Return what all places of the state in a key group begin with."""
        return self._codec.prefix(group, self._state)

    def places(self, codec: KeyCodec) -> Callable[[list[Any]], list[bytes]]:
        """Return what tells the places of addresses; codecs belong to one thread."""
        state = self._state
        if not self._namespaced:
            return partial(codec.encode_all, state)
        return lambda addresses: [
            codec.encode_pair(state, *address) for address in addresses
        ]

    def address(self, place: bytes) -> tuple[Any, ...]:
        """Return key, or key and namespace, of a place."""
        if self._namespaced:
            return self._codec.decode_pair(place)
        return (self._codec.decode(place),)

    def entry(self, place: bytes, data: bytes) -> tuple[Any, ...]:
        """Return address and content."""
        return (*self.address(place), self._decode(data))


class RocksDBTable:
    """What both kinds of tables have in common.

    Args:
        database: Where the contents are.
        rows: Reads them all.
        key_groups: The key groups of the store.
        cache: Holds those in use.
    """

    __slots__ = ("_database", "_key_groups", "cache", "rows_of")
    _is_namespaced = False

    def __init__(
        self,
        database: Database,
        rows: Rows,
        key_groups: KeyGroupRange,
        cache: ContentCache,
    ) -> None:
        self._database = database
        self._key_groups = key_groups
        self.rows_of: Rows = rows
        self.cache: ContentCache = cache

    def __len__(self) -> int:
        return sum(1 for _ in self._places())

    def items(self) -> Iterator[tuple[Any, ...]]:
        """Return all entries as they are now, copied; reads the whole state."""
        self.cache.flush()
        for group in self._key_groups.key_groups:
            for place, data in self._database.items(self.rows_of.prefix(group)):
                yield self.rows_of.entry(place, data)

    def all_keys(self) -> Iterator[Any]:
        """Return all keys, some twice; the state may be changed meanwhile."""
        self.cache.flush()
        yield from self._written_keys()

    def keys_to_sweep(self) -> Iterator[Any]:
        """Return all keys, some twice, without writing any; see `all_keys`."""
        addresses = self.cache.addresses()
        yield from [one[0] for one in addresses] if self._is_namespaced else addresses
        yield from self._written_keys()

    def _written_keys(self) -> Iterator[Any]:
        for group in self._key_groups.key_groups:
            prefix = self.rows_of.prefix(group)
            start: bytes | None = prefix
            while start is not None:
                places = self._some_places(prefix, start)
                start = places[-1] + b"\0" if len(places) == _KEYS_PER_READ else None
                for place in places:
                    yield self.rows_of.address(place)[0]

    def drain(self, count: int) -> list[Any]:
        """Take out so many entries, or all."""
        taken = list(itertools.islice(self.items(), count))
        for *address, _ in taken:
            self._remove(*address)
        return taken

    def _remove(self, *address: Any) -> None:
        self.cache.remove(address if len(address) > 1 else address[0])

    def forget_all(self) -> None:
        """Forget what is cached; the database was cleared."""
        self.cache.clear()

    def _some_places(self, prefix: bytes, start: bytes) -> list[bytes]:
        rows = self._database.items(prefix, start)
        return list(itertools.islice(_places(rows), _KEYS_PER_READ))

    def _places(self) -> Iterator[bytes]:
        self.cache.flush()
        for group in self._key_groups.key_groups:
            yield from _places(self._database.items(self.rows_of.prefix(group)))


class RocksDBStateTable(RocksDBTable):
    """One state of all keys.

    Attributes:
        get: ``get(key, default=None)`` returns the content.
        put: ``put(key, content)`` sets it.
        prefetch: ``prefetch(keys)`` reads the contents of keys in one go.
    """

    __slots__ = ("get", "prefetch", "put", "remove")

    def __init__(
        self,
        database: Database,
        rows: Rows,
        key_groups: KeyGroupRange,
        cache: ContentCache,
    ) -> None:
        super().__init__(database, rows, key_groups, cache)
        self.get: Callable[..., Any] = cache.get
        self.put: Callable[[Any, Any], None] = cache.put
        self.prefetch: Callable[[Iterable[Any]], None] = cache.prefetch
        self.remove: Callable[[Any], None] = cache.remove

    def for_run(self, keys: list[Any]) -> RunContents:
        """Return the contents of the keys of a run, which are written."""
        return self.cache.for_run(keys)

    def load(self, entries: Entries) -> None:
        """Set the keys of ``entries`` to their contents."""
        for key, content in entries:
            self.put(key, content)

    def namespaces_of(self, key: Any) -> tuple[None]:
        """Return the one namespace that is none."""
        return (None,)

    def read(self, key: Any, namespace: Any) -> Any:
        """Return the content of ``key``, or None; there are no namespaces here."""
        return self.get(key)

    def write(self, key: Any, namespace: Any, content: Any) -> None:
        """Set the content of ``key``."""
        self.put(key, content)

    def forget(self, key: Any, namespace: Any) -> None:
        """Forget the content of ``key``."""
        self.remove(key)


class RocksDBNamespacedTable(RocksDBTable):
    """One state of all keys and namespaces."""

    __slots__ = ("_key_place",)
    _is_namespaced = True

    def __init__(
        self,
        database: Database,
        rows: Rows,
        key_groups: KeyGroupRange,
        cache: ContentCache,
        key_place: Callable[[Any], bytes],
    ) -> None:
        super().__init__(database, rows, key_groups, cache)
        self._key_place = key_place

    def get(self, key: Any, namespace: Any, default: Any = None) -> Any:
        """Return the content of ``key`` in ``namespace``."""
        return self.cache.get((key, namespace), default)

    def put(self, key: Any, namespace: Any, content: Any) -> None:
        """Set the content of ``key`` in ``namespace``."""
        self.cache.put((key, namespace), content)

    def remove(self, key: Any, namespace: Any) -> None:
        """Forget the content of ``key`` in ``namespace``; a no-op if there is none."""
        self.cache.remove((key, namespace))

    def namespaces(self, key: Any) -> list[Any]:
        """Return the namespaces in which ``key`` has content; writes what is new."""
        self.cache.flush()
        rows = self._database.items(self._key_place(key))
        return [self.rows_of.address(place)[1] for place in _places(rows)]

    def load(self, entries: Entries) -> None:
        """Set the keys and namespaces of ``entries`` to their contents."""
        for key, namespace, content in entries:
            self.put(key, namespace, content)

    read = get
    write = put
    forget = remove
    namespaces_of = namespaces


def new_table(
    database: Database,
    limit: CacheLimit,
    codec: KeyCodec,
    serializer: StateSerializer,
    key_groups: KeyGroupRange,
    state: int,
    *,
    namespaced: bool,
) -> RocksDBStateTable | RocksDBNamespacedTable:
    """Return the table of a state, by its number."""
    rows = Rows(state, codec, serializer, namespaced=namespaced)
    cache = ContentCache(
        database,
        limit,
        places=rows.places(codec),
        encode_all=partial(encode_all, serializer),
        decode=serializer.decode,
    )
    if namespaced:
        key_place = partial(codec.encode, state)
        return RocksDBNamespacedTable(database, rows, key_groups, cache, key_place)
    return RocksDBStateTable(database, rows, key_groups, cache)


def _places(rows: Iterator[tuple[bytes, bytes]]) -> Iterator[bytes]:
    return (place for place, _ in rows)


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
