"""Contents between an operator and the database: read in batches, written in batches.

Theory of operation: two generations of contents, as objects. What is used moves to the
young one; when that is full it becomes the old one, and what was left in the old one
leaves: it is written in small batches, one with each further read. So whatever was used
lately stays for at least one generation, nothing has to be counted per use, and no
single record pays for a whole generation. A content that could have been changed in
place is always written; any other one only if it was put here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from aiomailbox.state.rocksdb.database import Database
from aiomailbox.state.snapshot import IMMUTABLE_TYPES

__all__ = ["GENERATION_MIN", "CacheLimit", "ContentCache"]

# More than the keys of a run, so that what was read for one stays while it is used.
GENERATION_MIN: Final = 4096
# A content, its key and its place with their entries in dicts and sets, beside what
# the bytes of the content would take.
_OVERHEAD_BYTES: Final = 400
_OBJECT_PER_BYTE: Final = 6
_ABSENT: Final = object()
# Reads after which a batch leaves, when they are made one by one.
_READS_PER_BATCH: Final = 256


class CacheLimit:
    """How many contents the caches of a store may hold together.

    Args:
        memory_bytes: What they may take, about.

    Attributes:
        caches: How many caches share it.
        per_generation: How many contents each of them may have in a generation.
    """

    __slots__ = ("_average_bytes", "_memory_bytes", "caches", "per_generation")

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._average_bytes = 16.0
        self.caches = 0
        self.per_generation = GENERATION_MIN

    def add_cache(self) -> None:
        """Share with one more."""
        self.caches += 1
        self._divide()

    def observe(self, count: int, size_bytes: int) -> None:
        """Take note how large contents are as bytes."""
        if count:
            self._average_bytes += (size_bytes / count - self._average_bytes) / 4
            self._divide()

    def _divide(self) -> None:
        each = _OVERHEAD_BYTES + self._average_bytes * _OBJECT_PER_BYTE
        total = int(self._memory_bytes / each)
        self.per_generation = max(total // (2 * self.caches), GENERATION_MIN)


class ContentCache:
    """The contents of one state, by address: a key, or a key and a namespace.

    Args:
        database: Where contents are that are not here.
        limit: How many may be here.
        place: Where the content of an address is.
        places: The same for many addresses.
        encode: Makes a content bytes.
        decode: Makes bytes a content.
    """

    __slots__ = (
        "_database",
        "_decode",
        "_encode",
        "_known_places",
        "_leaving",
        "_limit",
        "_old",
        "_place",
        "_places",
        "_put",
        "_reads",
        "_young",
    )

    def __init__(
        self,
        database: Database,
        limit: CacheLimit,
        *,
        place: Callable[[Any], bytes],
        places: Callable[[list[Any]], list[bytes]],
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes], Any],
    ) -> None:
        self._database = database
        self._limit = limit
        self._place = place
        self._places = places
        self._encode = encode
        self._decode = decode
        self._young: dict[Any, Any] = {}
        self._old: dict[Any, Any] = {}
        self._leaving: dict[Any, Any] = {}
        # Places that were computed to read: most of them are needed again to write.
        self._known_places: dict[Any, bytes] = {}
        self._reads = 0
        # Addresses whose content here is newer than that in the database.
        self._put: set[Any] = set()
        limit.add_cache()

    def get(self, address: Any, default: Any = None) -> Any:
        """Return the content of an address."""
        content = self._young.get(address)
        if content is None:
            content = self._find(address)
        return default if content is _ABSENT else content

    def put(self, address: Any, content: Any) -> None:
        """Set the content of an address; None is no content."""
        self._young[address] = _ABSENT if content is None else content
        self._put.add(address)
        if len(self._young) > self._limit.per_generation:
            self._age()

    def remove(self, address: Any) -> None:
        """Forget the content of an address."""
        self.put(address, _ABSENT)

    def prefetch(self, addresses: Iterable[Any]) -> None:
        """Read what is not here yet in one go, because it is about to be asked for."""
        young, old = self._young, self._old
        missing = [one for one in dict.fromkeys(addresses) if one not in young]
        if not missing:
            return
        if len(young) + len(missing) > self._limit.per_generation:
            self._age()
            young, old = self._young, self._old
            missing = [*dict.fromkeys(addresses)]
        unread = []
        for address in missing:
            content = old.get(address)
            if content is None:
                content = self._leaving.pop(address, None)
            if content is None:
                unread.append(address)
            else:
                young[address] = content
        self._leave(2 * len(missing))
        places = self._places(unread)
        self._known_places.update(zip(unread, places, strict=True))
        found = self._database.get_all(places) if unread else []
        decode = self._decode
        for address, data in zip(unread, found, strict=True):
            young[address] = _ABSENT if data is None else decode(data)

    def flush(self) -> None:
        """Write everything that is newer here; it stays here."""
        self._leave(len(self._leaving))
        self._write([*self._old.items(), *self._young.items()])

    def clear(self) -> None:
        """Forget everything here without writing it."""
        self._young = {}
        self._old = {}
        self._leaving = {}
        self._put.clear()
        self._known_places.clear()

    def _find(self, address: Any) -> Any:
        content = self._old.get(address)
        if content is None:
            content = self._leaving.pop(address, None)
        if content is None:
            data = self._database.get(self._place(address))
            content = _ABSENT if data is None else self._decode(data)
        self._young[address] = content
        self._reads += 1
        if self._reads >= _READS_PER_BATCH:
            self._reads = 0
            self._leave(2 * _READS_PER_BATCH)
        if len(self._young) > self._limit.per_generation:
            self._age()
        return content

    def _age(self) -> None:
        self._leave(len(self._leaving))
        self._leaving = self._old
        self._old = self._young
        self._young = {}

    def _leave(self, count: int) -> None:
        """Write so many of those that leave, unless they have come back."""
        if not self._leaving:
            return
        young, old, take = self._young, self._old, self._leaving.popitem
        going = []
        for _ in range(min(count, len(self._leaving))):
            item = take()
            if item[0] not in young and item[0] not in old:
                going.append(item)
        self._write(going)
        forget = self._known_places.pop
        for address, _ in going:
            forget(address, None)

    def _write(self, items: list[tuple[Any, Any]]) -> None:
        """Write addresses with their contents, the later of two for one address."""
        put, known_place, encode = self._put, self._known_places.get, self._encode
        batch = self._database.new_batch()
        write, delete = batch.put, batch.delete
        count = size_bytes = 0
        for address, content in items:
            if address not in put and not _may_have_changed(content):
                continue
            place = known_place(address) or self._place(address)
            if content is _ABSENT:
                delete(place)
            else:
                data = encode(content)
                write(place, data)
                count += 1
                size_bytes += len(data)
        self._database.write(batch)
        put.difference_update([address for address, _ in items])
        self._limit.observe(count, size_bytes)


def _may_have_changed(content: Any) -> bool:
    """Say whether a content that was read may be another one now."""
    kind = type(content)
    if kind is tuple:
        return not IMMUTABLE_TYPES.issuperset(map(type, content))
    return kind not in IMMUTABLE_TYPES and content is not _ABSENT
