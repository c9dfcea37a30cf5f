"""A bounded memory of results, which forgets the least recently used."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from aiomailbox.durations import above_zero, duration_s
from aiomailbox.errors import WrongTypeError
from aiomailbox.signatures import accepts, check_count


@dataclass(frozen=True, slots=True)
class Cache:
    """Results of calls are cached by key, and concurrent equal calls are made once.

    Each subtask has its own cache. Failures are not cached.

    Args:
        key: A field's name, or a function of a record; its result must be hashable.
            None in a lookup join, which has its own key.
        size: The maximum number of results; the least recently used is evicted first.
        ttl: How long a result is valid: a timedelta or seconds; None for no limit.

    Raises:
        InvalidArgumentError: If ``size`` is below 1, or ``ttl`` not above 0.
        WrongTypeError: If ``key`` is neither a name nor a function.

    Example:
        >>> Cache("city", size=1_000, ttl=60).ttl_s
        60.0
    """

    key: str | Callable[[Any], Hashable] | None = None
    size: int = 10_000
    ttl: timedelta | float | None = None

    def __post_init__(self) -> None:
        given = self.key
        if given is not None and not isinstance(given, str) and not callable(given):
            raise WrongTypeError(
                "key",
                f"{self.key!r} is neither a field name nor a function",
                'Write "name" or lambda record: record[0].',
            )
        if callable(given) and not accepts(given, 1):
            raise WrongTypeError(
                "key",
                f"{given!r} cannot be called with a record",
                f"Its signature is {inspect.signature(given)}.",
            )
        check_count(self.size, "size")
        above_zero(self.ttl_s, "ttl", ", which keeps nothing")

    @property
    def ttl_s(self) -> float | None:
        """How long a result is valid, seconds; None for no limit."""
        return None if self.ttl is None else duration_s(self.ttl, "ttl")


class LruCache:
    """The last used results by key, at most ``size``, none older than ``ttl_s``.

    Args:
        size: Entries at most.
        ttl_s: Seconds that an entry is good for after `put`; None for ever.

    Invariants:
        ``len(cache) <= size``

    Example:
        >>> cache = LruCache(size=2, ttl_s=10.0)
        >>> cache.put("a", 1, now_s=0.0)
        >>> cache.get("a", now_s=9.9), cache.get("a", now_s=10.0)
        ((True, 1), (False, None))
    """

    def __init__(self, size: int, ttl_s: float | None = None) -> None:
        self._size = size
        self._ttl_s = ttl_s
        self._entries: OrderedDict[Hashable, tuple[float, Any]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable, now_s: float) -> tuple[bool, Any]:
        """Return whether there is a good entry, and its value or None."""
        entry = self._entries.get(key)
        if entry is None:
            return False, None
        put_s, value = entry
        if self._ttl_s is not None and now_s - put_s >= self._ttl_s:
            del self._entries[key]
            return False, None
        self._entries.move_to_end(key)
        return True, value

    def put(self, key: Hashable, value: Any, now_s: float) -> None:
        """Keep a value; the least recently used one goes if there are too many."""
        self._entries[key] = (now_s, value)
        self._entries.move_to_end(key)
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)
