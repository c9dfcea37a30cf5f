"""States in the database, as tables over its cached contents."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from aiomailbox.keygroups.assignment import KeyGroupRange
from aiomailbox.state.entries import Entries
from aiomailbox.state.rocksdb.cache import CacheLimit, ContentCache
from aiomailbox.state.rocksdb.database import Database
from aiomailbox.state.rocksdb.encoding import KeyCodec
from aiomailbox.state.serializers import StateSerializer, encode_all
from aiomailbox.state.store import RunContents

__all__ = ["RocksDBNamespacedTable", "RocksDBStateTable", "RocksDBTable", "Rows"]

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
