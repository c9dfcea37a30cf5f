"""Results that are shared: kept for later, and for equal rows at the same time."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from aiomailbox.clock import Clock
from aiomailbox.metrics.instruments import Counter
from aiomailbox.operators.async_io.entry import Entry
from aiomailbox.operators.core.selectors import field_or_function
from aiomailbox.policies.cache import Cache, LruCache

__all__ = ["SharedResults"]


class SharedResults:
    """Knows which results there are, and which are on their way.

    Args:
        cache: What to keep.
        clock: Tells how old results are.
        hits: Counts the rows that needed no call.
    """

    __slots__ = ("_clock", "_followers", "_hits", "_key", "_results")

    def __init__(self, cache: Cache, clock: Clock, hits: Counter) -> None:
        assert cache.key is not None, "checked where the settings are made"
        self._key: Callable[[Any], Hashable] = field_or_function(cache.key, "key")
        self._results = LruCache(cache.size, cache.ttl_s)
        self._clock = clock
        self._hits = hits
        self._followers: dict[Hashable, list[Entry]] = {}

    def find(self, entry: Entry) -> tuple[bool, Any, bool]:
        """Look for a row's result, and let the row wait if it is on its way.

        Returns:
            Whether it is there, the result, and whether the row waits for another one.

        Raises whatever the key function raises.
        """
        key = self._key(entry.value)
        found, result = self._results.get(key, self._clock.monotonic())
        if found:
            self._hits.value += 1
            return True, result, False
        followers = self._followers.get(key)
        if followers is not None:
            self._hits.value += 1
            followers.append(entry)
            return False, None, True
        self._followers[key] = []
        entry.cache_key = (key,)
        return False, None, False

    def keep(self, entry: Entry, result: Any) -> list[Entry]:
        """Keep a row's result; return the rows that waited for it."""
        if entry.cache_key is None:
            return []
        (key,) = entry.cache_key
        self._results.put(key, result, self._clock.monotonic())
        return self._leave(entry)

    def fail(self, entry: Entry) -> list[Entry]:
        """Be notified that a row has no result; return the rows that waited for it."""
        return [] if entry.cache_key is None else self._leave(entry)

    def _leave(self, entry: Entry) -> list[Entry]:
        assert entry.cache_key is not None, "only the row that makes the call leaves"
        (key,) = entry.cache_key
        entry.cache_key = None
        return self._followers.pop(key, [])
