"""Keyed state in RocksDB, behind a cache of objects.

Theory of operation: the database is opened with the first state and lies in a temporary
directory, because what outlives the process are snapshots. A snapshot shares the
database's files, and its contents are read on request, key group by key group.
"""

from __future__ import annotations

import itertools
import shutil
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, compress, islice
from pathlib import Path
from typing import Any, Final

from aiomailbox.clock import Clock
from aiomailbox.errors import CorruptStreamError, MissingExtraError, StateError
from aiomailbox.keygroups.assignment import KeyGroupRange
from aiomailbox.state.rocksdb.database import (
    DatabaseSnapshot,
    PendingSnapshot,
    RocksDatabase,
    new_directory,
)
from aiomailbox.state.rocksdb.encoding import KeyCodec
from aiomailbox.state.schema import ClassSchema
from aiomailbox.state.serializers import (
    ObjectSerializer,
    StateSerializer,
    encode_all,
    serializer_of,
)
from aiomailbox.state.snapshot import (
    IMMUTABLE_TYPES,
    Entries,
    FetchFile,
    KeyedStateSnapshot,
    LazyEntries,
    StateFile,
    StateMeta,
    copy_content,
)
from aiomailbox.state.store import RunContents
from aiomailbox.state.table_store import KeyedStateStore

# Contents between an operator and the database: read in batches, written in batches.
#
# Theory of operation: two generations of contents, as objects. What is used moves to
# the young one; when that is full it becomes the old one, and what was left in the old
# one leaves: it is written in small batches, one with some further reads. So whatever
# was used lately stays for at least one generation, nothing has to be counted per use,
# and no single record pays for a whole generation. A content that could have been
# changed in place is always written; any other one only if it was put here. The places
# that were computed to read go from generation to generation with the contents, because
# most of them are needed again to write. Whatever is done for a run of keys is done by
# calls for all of them: an own line of Python per key costs as much as the database
# does.
#
# For a snapshot, what is here is frozen: a thread writes it, and until it has, nothing
# else is written. What is asked for meanwhile is copied, for it may be changed in
# place.


# More than the keys of a run, so that what was read for one stays while it is used.
GENERATION_MIN: Final = 4096


# A content, its key and its place with their entries in dicts and sets, beside what
# the bytes of the content would take.
_OVERHEAD_BYTES: Final = 400


_OBJECT_PER_BYTE: Final = 6


# Reads after which a batch leaves.
_READS_PER_BATCH: Final = 256


# By a thread, which does not let others run meanwhile.
_WRITTEN_AT_ONCE: Final = 512


class CacheLimit:
    """How many contents the caches of a store may hold together.

    Args:
        memory_bytes: The bytes that they may take, approximately.

    Attributes:
        caches: How many caches share it.
        per_generation: How many contents each of them may have in a generation.
    """

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._average_bytes = 16.0
        self.caches: int = 0
        self.per_generation: int = GENERATION_MIN

    def add_cache(self) -> None:
        """Share with one more."""
        self.caches += 1
        self._divide()

    def observe(self, count: int, size_bytes: int) -> None:
        """Keep how large contents are as bytes."""
        if count:
            self._average_bytes += (size_bytes / count - self._average_bytes) / 4
            self._divide()

    def _divide(self) -> None:
        each = _OVERHEAD_BYTES + self._average_bytes * _OBJECT_PER_BYTE
        total = int(self._memory_bytes / each)
        self.per_generation = max(total // (2 * self.caches), GENERATION_MIN)


class _Generation:
    """Contents by address, None for one that is known to have none, and places."""

    def __init__(self) -> None:
        self.contents: dict[Any, Any] = {}
        self.places: dict[Any, bytes] = {}

    def take(
        self, addresses: list[Any], origin: _Generation, *, copied: bool = False
    ) -> list[Any]:
        """Take those of the addresses that another one has; return all others."""
        contents, places = origin.contents, origin.places
        if not contents:
            return addresses
        here = [one in contents for one in addresses]
        if True not in here:
            return addresses
        for one in compress(addresses, here):
            content = contents[one]
            self.contents[one] = copy_content(content) if copied else content
            if one in places:
                self.places[one] = places[one]
        return [
            one for one, is_here in zip(addresses, here, strict=True) if not is_here
        ]


class _Frozen:
    """A cache as it was when a snapshot was taken: a thread is about to write it.

    Args:
        generations: The newest first; no longer changed.
        put: The addresses whose content is newer than that in the database.
    """

    def __init__(self, generations: list[_Generation], put: set[Any]) -> None:
        self.generations = generations
        self.put = put

    def batches(self) -> Iterator[tuple[list[tuple[Any, Any]], dict[Any, bytes]]]:
        """Yield addresses with contents, some at a time, and the places of these."""
        newer: list[dict[Any, Any]] = []
        for generation in self.generations:
            items = iter(generation.contents.items())
            while some := list(islice(items, _WRITTEN_AT_ONCE)):
                for other in newer:
                    some = [item for item in some if item[0] not in other]
                yield some, generation.places
            newer.append(generation.contents)


class ContentCache:
    """The contents of one state, by address: a key, or a key and a namespace.

    Args:
        database: Where contents are that are not here.
        limit: How many may be here.
        places: Where the contents of addresses are.
        encode_all: Makes contents bytes.
        decode: Makes bytes a content.
    """

    def __init__(
        self,
        database: RocksDatabase,
        limit: CacheLimit,
        *,
        places: Callable[[list[Any]], list[bytes]],
        encode_all: Callable[[list[Any]], list[bytes]],
        decode: Callable[[bytes], Any],
    ) -> None:
        self._database = database
        self._limit = limit
        self._places = places
        self._encode_all = encode_all
        self._decode = decode
        self._young = _Generation()
        self._old = _Generation()
        # Written, bit by bit; may hold what has come back since, older than that.
        self._leaving = _Generation()
        # Older than all of these, and about to be written.
        self._frozen: _Frozen | None = None
        self._reads = 0
        # Addresses whose content here is newer than that in the database.
        self._put: set[Any] = set()
        limit.add_cache()

    def get(self, address: Any, default: Any = None) -> Any:
        """Return the content of an address."""
        contents = self._young.contents
        content = contents.get(address)
        # None is kept, too, for what is known to have no content.
        if content is None:
            if address not in contents:
                self.prefetch((address,))
                content = self._young.contents[address]
            if content is None:
                return default
        return content

    def put(self, address: Any, content: Any) -> None:
        """Set the content of an address; None is no content."""
        contents = self._young.contents
        contents[address] = content
        self._put.add(address)
        if len(contents) > self._limit.per_generation:
            self._age()

    def remove(self, address: Any) -> None:
        """Forget the content of an address."""
        self.put(address, None)

    def prefetch(self, addresses: Iterable[Any]) -> None:
        """Read what is not here yet in one go, because it is about to be asked for."""
        contents = self._young.contents
        missing = [one for one in addresses if one not in contents]
        if not missing:
            return
        if len(contents) + len(missing) > self._limit.per_generation:
            self._age()
            # All of them again: what was young a moment ago may be old now.
            missing = [*addresses]
        missing = [*dict.fromkeys(missing)]
        self._reads += len(missing)
        young = self._young
        unread = young.take(young.take(missing, self._old), self._leaving)
        # A thread may let it go meanwhile.
        frozen = self._frozen
        if frozen is not None:
            # Copies: a thread reads the frozen ones.
            for generation in frozen.generations:
                unread = young.take(unread, generation, copied=True)
        if unread:
            self._read(unread)
        if self._reads >= _READS_PER_BATCH:
            self._leave(2 * self._reads)
            self._reads = 0

    def for_run(self, keys: list[Any]) -> dict[Any, Any]:
        """Return contents in which all of these keys are, None for no content.

        Each of them may be set in it, until something else of the cache is used.
        """
        self.prefetch(keys)
        # Taken as written: the operator may change any of them in place.
        self._put.update(keys)
        return self._young.contents

    def freeze(self) -> None:
        """Leave everything to a thread, which is going to call `write_frozen`."""
        assert self._frozen is None, "one is written before the next"
        generations = [self._young, self._old, self._leaving]
        self._frozen = _Frozen(generations, self._put)
        self._young, self._old, self._leaving = (_Generation() for _ in range(3))
        self._put = set()

    def write_frozen(self, places: Callable[[list[Any]], list[bytes]]) -> None:
        """Write what was frozen, in any thread; again changes nothing.

        Args:
            places: Where the contents of addresses are, for the same thread.
        """
        frozen = self._frozen
        if frozen is not None:
            for items, known in frozen.batches():
                self._store(items, frozen.put, known, places)

    def forget_frozen(self) -> None:
        """Release what was frozen: it is in the database."""
        self._frozen = None

    def addresses(self) -> list[Any]:
        """Return the addresses of what is here, as a new list; some twice."""
        generations = (self._young, self._old, self._leaving)
        return [*chain.from_iterable(one.contents for one in generations)]

    def flush(self) -> None:
        """Write everything that is newer here; it stays here."""
        self._database.end_snapshot()
        self._leave(len(self._leaving.contents))
        young = self._young.contents
        old = [item for item in self._old.contents.items() if item[0] not in young]
        self._write(old, self._old.places)
        self._write([*young.items()], self._young.places)

    def clear(self) -> None:
        """Forget everything here without writing it."""
        self._database.end_snapshot()
        self._young = _Generation()
        self._old = _Generation()
        self._leaving = _Generation()
        self._put.clear()

    def _read(self, addresses: list[Any]) -> None:
        places = self._places(addresses)
        young, decode = self._young, self._decode
        young.places.update(zip(addresses, places, strict=True))
        young.contents.update(
            (address, None if data is None else decode(data))
            for address, data in zip(
                addresses, self._database.get_all(places), strict=True
            )
        )

    def _age(self) -> None:
        # What leaves has to be in the database before the next generation does.
        if self._leaving.contents:
            self._database.end_snapshot()
            self._leave(len(self._leaving.contents))
        self._leaving = self._old
        self._old = self._young
        self._young = _Generation()

    def _leave(self, count: int) -> None:
        """Write so many of those that leave, unless they have come back."""
        leaving = self._leaving.contents
        # Until a snapshot is made the database stays as it is, so what leaves waits.
        if not leaving or self._database.is_taking_snapshot:
            return
        young, old, take = self._young.contents, self._old.contents, leaving.popitem
        items = [take() for _ in range(min(count, len(leaving)))]
        going = [one for one in items if one[0] not in young and one[0] not in old]
        self._write(going, self._leaving.places)
        if not leaving:
            self._leaving = _Generation()

    def _write(self, items: list[tuple[Any, Any]], places: dict[Any, bytes]) -> None:
        """Write those of addresses and contents that are newer than the database."""
        datas = self._store(items, self._put, places, self._places)
        self._put.difference_update([address for address, _ in items])
        if datas:
            self._limit.observe(len(datas), sum(map(len, datas)))

    def _store(
        self,
        items: list[tuple[Any, Any]],
        put: set[Any],
        known: dict[Any, bytes],
        places: Callable[[list[Any]], list[bytes]],
    ) -> list[bytes]:
        addresses = [address for address, _ in items]
        # What was only read is written as well if it could have been changed in place.
        if not put.issuperset(addresses):
            items = [one for one in items if one[0] in put or _may_have_changed(one[1])]
            addresses = [address for address, _ in items]
        if not items:
            return []
        contents = [content for _, content in items]
        datas = self._encode_all(contents)
        found = _known_places(addresses, known, places)

        def fill(batch: Any) -> None:
            write, delete = batch.put, batch.delete
            for place, content, data in zip(found, contents, datas, strict=True):
                if content is None:
                    delete(place)
                else:
                    write(place, data)

        self._database.write(fill)
        return datas


def _known_places(
    addresses: list[Any],
    known: dict[Any, bytes],
    compute: Callable[[list[Any]], list[bytes]],
) -> list[bytes]:
    places: list[Any] = list(map(known.get, addresses))
    if None in places:
        rest = iter(compute([one for one in addresses if one not in known]))
        places = [next(rest) if place is None else place for place in places]
    return places


def _may_have_changed(content: Any) -> bool:
    """Say whether a content that was read may be another one now."""
    kind = type(content)
    if kind is tuple:
        return not IMMUTABLE_TYPES.issuperset(map(type, content))
    return kind not in IMMUTABLE_TYPES


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

    def key_place(self, key: Any) -> bytes:
        """Return what all places of a key, which have a namespace, begin with."""
        return self._codec.encode(self._state, key)

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
    """The part that both kinds of tables share.

    Args:
        database: Where the contents are.
        rows: Reads them all.
        key_groups: The key groups of the store.
        cache: Holds those in use.
    """

    _is_namespaced = False

    def __init__(
        self,
        database: RocksDatabase,
        rows: Rows,
        key_groups: KeyGroupRange,
        cache: ContentCache,
    ) -> None:
        self._database = database
        self._key_groups = key_groups
        self.rows_of: Rows = rows
        self.cache: ContentCache = cache
        self._bind()

    def _bind(self) -> None:
        """Be notified that all attributes are set."""

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

    def clear(self) -> None:
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

    def _bind(self) -> None:
        cache = self.cache
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

    _is_namespaced = True

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
        rows = self._database.items(self.rows_of.key_place(key))
        return [self.rows_of.address(place)[1] for place in _places(rows)]

    def load(self, entries: Entries) -> None:
        """Set the keys and namespaces of ``entries`` to their contents."""
        for key, namespace, content in entries:
            self.put(key, namespace, content)

    read = get
    write = put
    forget = remove
    namespaces_of = namespaces


def _places(rows: Iterator[tuple[bytes, bytes]]) -> Iterator[bytes]:
    return (place for place, _ in rows)


DEFAULT_MEMORY_BYTES: Final = 128 << 20


_Table = RocksDBStateTable | RocksDBNamespacedTable


_NUMBERS = ("estimate-num-keys", "estimate-live-data-size", "cur-size-all-mem-tables")


# So many are read at a time.
_PIECE: Final = 1024


class RocksDBStateStore(KeyedStateStore[_Table]):
    """The keyed state of one operator in one subtask, on disk.

    Contents are objects while they are in use, as on the heap, and bytes when they are
    not. A content is one entry, also that of list and map state.

    Args:
        max_parallelism: Number of key groups of the job.
        key_group_range: The key groups of this subtask.
        clock: Read only for state with a time to live.
        path: Where to make a temporary directory; None for the system's place.
        memory_bytes: The bytes that caches and buffers may take, approximately.

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
        super().__init__(max_parallelism, key_group_range, clock)
        self._path = path
        self._memory_bytes = memory_bytes
        self._limit = CacheLimit(memory_bytes // 2)
        self._objects = ObjectSerializer()
        self._codec = KeyCodec(max_parallelism, self._objects.codec)
        self._database: RocksDatabase | None = None
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

        The thread that first asks for a key group writes the cached and buffered
        contents. Until then nothing else is written.
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
        groups = SnapshotKeyGroups(pending, rows, self._key_group_range.key_groups, met)
        pending.reader = weakref.ref(groups)
        return KeyedStateSnapshot(self._max_parallelism, metas, groups)

    @property
    def has_snapshot(self) -> bool:
        """False: snapshots cost the store nothing."""
        return False

    def settle(self, count: int) -> int:
        """Do nothing."""
        return count

    def _clear(self) -> None:
        if self._database is not None:
            # It may be this very snapshot that is restored.
            self._database.end_snapshot()
            self._database.clear()
        super()._clear()

    def _keep_loaded(self, table: _Table) -> None:
        # At once: all of it at the end would hold the loop.
        table.cache.flush()
        table.cache.clear()

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
            self._database = RocksDatabase(self._path, self._memory_bytes // 2)
        serializer = serializer_of(meta.serializer, self._objects)
        state = len(self._registry.entries)
        rows = Rows(state, self._codec, serializer, namespaced=meta.namespaced)
        cache = ContentCache(
            self._database,
            self._limit,
            places=rows.places(self._codec),
            encode_all=partial(encode_all, serializer),
            decode=serializer.decode,
        )
        kind = RocksDBNamespacedTable if meta.namespaced else RocksDBStateTable
        return kind(self._database, rows, self._key_group_range, cache)


class _DatabaseGroups(LazyEntries):
    """The entries of a database by key group.

    Args:
        rows: Read the entries of each state, by its position.
        key_groups: Those that there may be.
    """

    def __init__(self, rows: Mapping[int, Rows], key_groups: range) -> None:
        self._rows = rows
        self._key_groups = key_groups

    @abstractmethod
    def opened(self) -> DatabaseSnapshot:
        """Return the database."""

    def pieces(self, group: int) -> Iterator[tuple[int, Entries]]:
        """Yield positions and entries of a key group, a piece at a time."""
        for position, rows in self._rows.items():
            found = self.opened().items(rows.prefix(group))
            read = (rows.entry(*row) for row in found)
            while piece := list(islice(read, _PIECE)):
                yield position, Entries.of(piece, len(piece[0]))

    def __iter__(self) -> Iterator[int]:
        return (group for group in self._key_groups if self._holds(group))

    def _holds(self, group: int) -> bool:
        return any(
            next(self.opened().items(rows.prefix(group)), None) is not None
            for rows in self._rows.values()
        )


class SnapshotKeyGroups(_DatabaseGroups):
    """The entries of a snapshot, read when they are asked for.

    Args:
        snapshot: The database at the moment of the snapshot, once that is made.
        states: Reads the entries of each state.
        key_groups: The key groups of its store.
        met: Returns the classes that occur, once the snapshot is made.
    """

    def __init__(
        self,
        snapshot: PendingSnapshot,
        states: list[Rows],
        key_groups: range,
        met: Callable[[], dict[str, ClassSchema]],
    ) -> None:
        super().__init__(dict(enumerate(states)), key_groups)
        self._snapshot = snapshot
        self._met = met

    def opened(self) -> DatabaseSnapshot:
        return self._snapshot.made()

    def files(self) -> tuple[StateFile, ...]:
        """Return the files of the database; see `KeyedStateSnapshot.files`."""
        return self.opened().files()

    def classes(self) -> dict[str, ClassSchema]:
        """Return the classes that occur in the files."""
        self.opened()
        return self._met()


class FilesKeyGroups(_DatabaseGroups):
    """State that was kept as the files of a database; they are fetched when it is read.

    Args:
        files: By the names that the database has for them.
        max_parallelism: The number of key groups.
        metas: The states, in their order.
        objects: Read the objects of each; None for a state that is not wanted.
    """

    def __init__(
        self,
        files: Mapping[str, FetchFile],
        max_parallelism: int,
        metas: Sequence[StateMeta],
        objects: Sequence[ObjectSerializer | None],
    ) -> None:
        rows = {
            position: Rows(
                position,
                KeyCodec(max_parallelism, own.codec),
                serializer_of(meta.serializer, own),
                namespaced=meta.namespaced,
            )
            for position, (meta, own) in enumerate(zip(metas, objects, strict=True))
            if own is not None
        }
        super().__init__(rows, range(max_parallelism))
        self._files = files
        self._snapshot: DatabaseSnapshot | None = None

    def opened(self) -> DatabaseSnapshot:
        if self._snapshot is None:
            directory = new_directory(None)
            try:
                (directory / "db").mkdir()
                for name, fetch in self._files.items():
                    fetch(directory / "db" / name)
                self._snapshot = _snapshot_of(directory)
            except BaseException:
                shutil.rmtree(directory, ignore_errors=True)
                raise
        return self._snapshot


def _snapshot_of(directory: Path) -> DatabaseSnapshot:
    try:
        return DatabaseSnapshot(directory)
    except MissingExtraError:
        raise
    except Exception as error:
        # Whatever the library raises.
        raise CorruptStreamError(f"a database cannot be opened: {error}") from error
