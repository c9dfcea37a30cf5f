"""Contents between an operator and the database: read in batches, written in batches.

Theory of operation: two generations of contents, as objects. What is used moves to the
young one; when that is full it becomes the old one, and what was left in the old one
leaves: it is written in small batches, one with some further reads. So whatever was used
lately stays for at least one generation, nothing has to be counted per use, and no
single record pays for a whole generation. A content that could have been changed in
place is always written; any other one only if it was put here. The places that were
computed to read go from generation to generation with the contents, because most of
them are needed again to write. Whatever is done for a run of keys is done by calls for
all of them: an own line of Python per key costs as much as the database does.

For a snapshot, what is here is frozen: a thread writes it, and until it has, nothing else is
written. What is asked for meanwhile is copied, for it may be changed in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, compress, islice
from typing import Any, Final

from aiomailbox.state.rocksdb.database import Database
from aiomailbox.state.snapshot import IMMUTABLE_TYPES, copy_content

__all__ = ["GENERATION_MIN", "CacheLimit", "ContentCache"]

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
        memory_bytes: What they may take, about.

    Attributes:
        caches: How many caches share it.
        per_generation: How many contents each of them may have in a generation.
    """

    __slots__ = ("_average_bytes", "_memory_bytes", "caches", "per_generation")

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

    __slots__ = ("contents", "places")

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
    """What was in a cache when a snapshot was taken: a thread is about to write it.

    Args:
        generations: The newest first; no longer changed.
        put: The addresses whose content is newer than that in the database.
    """

    __slots__ = ("generations", "put")

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

    __slots__ = (
        "_database",
        "_decode",
        "_encode_all",
        "_frozen",
        "_leaving",
        "_limit",
        "_old",
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
