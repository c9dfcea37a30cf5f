"""State that expires: every content carries the time at which it was last touched.

Theory of operation: a value, a reduced value and an accumulator are kept as one pair
``(content, touched)``, a list as pairs, a map as a dict of pairs. Reading an
expired content removes it. What is never read is found by a sweep: every write looks at
a few other keys, so that a state as large as its live keys stays that large.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from aiomailbox.clock import Clock
from aiomailbox.state.descriptors import StateTtlConfig, StateVisibility, TtlUpdate
from aiomailbox.state.heap_state import Cell, ContentTable

__all__ = ["Expiry", "Sweep", "TtlCell", "TtlListState", "TtlMapState"]

_SWEPT_PER_WRITE = 2


class Expiry:
    """When content of one state has expired, and whether it is still visible then.

    Args:
        config: The state's time to live.
        kind: The state's kind: what its contents look like.
        clock: Wall-clock time.
    """

    __slots__ = (
        "_clock",
        "_grace_ms",
        "_is_pair",
        "_ttl_ms",
        "refreshes_on_read",
        "returns_expired",
    )

    def __init__(self, config: StateTtlConfig, kind: str, clock: Clock) -> None:
        self._clock = clock
        self._ttl_ms = config.ttl_ms
        self._is_pair = kind not in {"list", "map"}
        self.refreshes_on_read: bool = config.update is TtlUpdate.ON_READ_AND_WRITE
        self.returns_expired: bool = (
            config.visibility is StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP
        )
        # As long as it has lived, what has expired may still be read.
        self._grace_ms = config.ttl_ms if self.returns_expired else 0

    def now_ms(self) -> int:
        """Return wall-clock time, milliseconds."""
        return self._clock.now_ms()

    def is_expired(self, touched_ms: int, now_ms: int) -> bool:
        """Say whether content that was touched then is expired now."""
        # With `<=`, as in Flink: at exactly its time to live it has expired.
        return touched_ms + self._ttl_ms <= now_ms

    def size_of(self, content: Any) -> int:
        """Return how many elements or entries there are that expire one by one."""
        return 1 if self._is_pair else len(content)

    def live(self, content: Any, now_ms: int) -> Any:
        """Return what of a content has not expired, or None if all of it has."""
        if self._is_pair:
            return None if self.is_expired(content[1], now_ms) else content
        if isinstance(content, dict):
            kept: Any = {
                key: pair
                for key, pair in content.items()
                if not self.is_expired(pair[1], now_ms)
            }
        else:
            kept = [pair for pair in content if not self.is_expired(pair[1], now_ms)]
        return kept or None

    def readable(self, content: Any, now_ms: int) -> Any:
        """Return what of a content a sweep leaves, or None if that is nothing."""
        return self.live(content, now_ms - self._grace_ms)


class Sweep:
    """Walks over all keys of a state, a few at a time, and drops what has expired.

    Where expired content may still be read, it drops what has been expired for as long
    again as the time to live.

    Cost:
        Two keys, or elements of a list or map, per call on average, and one list of all
        keys per round.
    """

    __slots__ = ("_expiry", "_keys", "_owed", "_table")

    def __init__(self, table: ContentTable, expiry: Expiry) -> None:
        self._table = table
        self._expiry = expiry
        self._keys: Iterator[Any] = iter(())
        # Elements that were looked at in advance: as many calls look at nothing.
        self._owed = 0

    def step(self) -> None:
        """Look at the next keys."""
        self._owed -= _SWEPT_PER_WRITE
        if self._owed >= 0:
            return
        now_ms = self._expiry.now_ms()
        while self._owed < 0:
            key = next(self._keys, None)
            if key is None:
                self._owed = 0
                self._keys = iter(self._table.keys_to_sweep())
                return
            self._owed += self._drop_expired(key, now_ms)

    def _drop_expired(self, key: Any, now_ms: int) -> int:
        """Drop what has expired of a key; return how much there was to look at."""
        table, expiry = self._table, self._expiry
        looked_at = 0
        for namespace in table.namespaces_of(key):
            content = table.read(key, namespace)
            if content is None:
                continue
            looked_at += expiry.size_of(content)
            kept = expiry.readable(content, now_ms)
            if kept is None:
                table.forget(key, namespace)
            # A key in use never expires as a whole, and what is in it may for years.
            elif expiry.size_of(kept) < expiry.size_of(content):
                table.write(key, namespace, kept)
        return looked_at or 1


class TtlCell:
    """A `Cell` whose content expires as a whole.

    Args:
        cell: Keeps ``(content, touched)``.
        expiry: When that has expired.
        sweep: Drops what is never read.
    """

    __slots__ = ("_cell", "_expiry", "_sweep")

    def __init__(self, cell: Cell, expiry: Expiry, sweep: Sweep) -> None:
        self._cell = cell
        self._expiry = expiry
        self._sweep = sweep

    def read(self) -> Any:
        """Return the content, or None if there is none or it may not be seen."""
        pair = self._cell.read()
        if pair is None:
            return None
        content, touched = pair
        expiry = self._expiry
        now_ms = expiry.now_ms()
        if expiry.is_expired(touched, now_ms):
            # Removed when it is read, also if it is still returned.
            self._cell.forget()
            return content if expiry.returns_expired else None
        if expiry.refreshes_on_read:
            self._cell.write((content, now_ms))
        return content

    def write(self, content: Any) -> None:
        """Set the content, touched now."""
        self._cell.write((content, self._expiry.now_ms()))
        self._sweep.step()

    def forget(self) -> None:
        """Remove the content."""
        self._cell.forget()


class _Elements:
    """What list and map state with a time to live have in common."""

    __slots__ = ("_cell", "_expiry", "_sweep")

    def __init__(self, cell: Cell, expiry: Expiry, sweep: Sweep) -> None:
        self._cell = cell
        self._expiry = expiry
        self._sweep = sweep

    def clear(self) -> None:
        """Forget everything."""
        self._cell.forget()

    def _keep(self, content: Any) -> None:
        if content:
            self._cell.write(content)
        else:
            self._cell.forget()


class TtlListState(_Elements):
    """A list of the current key whose elements expire one by one."""

    __slots__ = ()

    def get(self) -> list[Any]:
        """Return the elements as a new list; empty when there are none."""
        pairs = self._cell.read()
        if not pairs:
            return []
        expiry = self._expiry
        now_ms = expiry.now_ms()
        live = [pair for pair in pairs if not expiry.is_expired(pair[1], now_ms)]
        seen = pairs if expiry.returns_expired else live
        if expiry.refreshes_on_read:
            self._keep([(element, now_ms) for element, _ in live])
        elif len(live) < len(pairs):
            self._keep(live)
        return [element for element, _ in seen]

    def add(self, value: Any) -> None:
        """Append an element."""
        self.add_all([value])

    def add_all(self, values: Iterable[Any]) -> None:
        """Append elements."""
        now_ms = self._expiry.now_ms()
        added = [(value, now_ms) for value in values]
        pairs = self._cell.read()
        if pairs is None:
            self._keep(added)
        else:
            pairs.extend(added)
        self._sweep.step()

    def update(self, values: Iterable[Any]) -> None:
        """Replace all elements."""
        now_ms = self._expiry.now_ms()
        self._keep([(value, now_ms) for value in values])
        self._sweep.step()


class TtlMapState(_Elements):
    """A map of the current key whose entries expire one by one."""

    __slots__ = ()

    def get(self, map_key: Any, default: Any = None) -> Any:
        """Return the value of ``map_key``, or ``default``."""
        found = self._look([map_key])
        return found[0][1] if found else default

    def put(self, map_key: Any, value: Any) -> None:
        """Set the value of ``map_key``."""
        self.put_all({map_key: value})

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        """Set several values."""
        now_ms = self._expiry.now_ms()
        added = {key: (value, now_ms) for key, value in entries.items()}
        pairs = self._cell.read()
        if pairs is None:
            self._keep(added)
        else:
            pairs.update(added)
        self._sweep.step()

    def remove(self, map_key: Any) -> None:
        """Forget ``map_key``; a no-op if it is not there."""
        pairs = self._cell.read()
        if pairs is not None:
            pairs.pop(map_key, None)
            self._keep(pairs)

    def contains(self, map_key: Any) -> bool:
        """Say whether ``map_key`` is there."""
        return bool(self._look([map_key]))

    def items(self) -> list[tuple[Any, Any]]:
        """Return all entries."""
        return self._look(list(self._cell.read() or ()))

    def keys(self) -> list[Any]:
        """Return all keys of the map."""
        return [key for key, _ in self.items()]

    def values(self) -> list[Any]:
        """Return all values of the map."""
        return [value for _, value in self.items()]

    def is_empty(self) -> bool:
        """Say whether the map has no entry, expired or not; that is no access to any.

        Concept:
            Flink, ``TtlMapState.isEmpty``, which asks the map that it wraps.
        """
        return not self._cell.read()

    def _look(self, map_keys: Iterable[Any]) -> list[tuple[Any, Any]]:
        """Read entries: drop those that have expired, refresh the others."""
        pairs = self._cell.read()
        if not pairs:
            return []
        expiry = self._expiry
        now_ms = expiry.now_ms()
        found = []
        for key in map_keys:
            if key not in pairs:
                continue
            value, touched = pairs[key]
            if expiry.is_expired(touched, now_ms):
                del pairs[key]
                if not expiry.returns_expired:
                    continue
            elif expiry.refreshes_on_read:
                pairs[key] = (value, now_ms)
            found.append((key, value))
        self._keep(pairs)
        return found
