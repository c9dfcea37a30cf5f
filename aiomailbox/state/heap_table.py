"""The dicts of the heap store, as tables."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, ItemsView, Iterable, Iterator
from typing import Any

__all__ = ["HeapNamespacedTable", "HeapStateTable", "HeapTable", "estimated_bytes"]

_SAMPLED = 64
_DICT_ENTRY_BYTES = 100


class HeapStateTable:
    """One state of all keys: a dict, and that dict's own methods.

    ``get`` and ``put`` are bound to the dict, which lives as long as the table, so
    they may be kept in local variables.

    Attributes:
        rows: ``key -> content``.
    """

    __slots__ = ("get", "put", "rows")

    def __init__(self) -> None:
        self.rows: dict[Any, Any] = {}
        self.get: Callable[..., Any] = self.rows.get
        self.put: Callable[[Any, Any], None] = self.rows.__setitem__

    def prefetch(self, keys: Iterable[Any]) -> None:
        """Do nothing: all contents are here."""

    def for_run(
        self, keys: list[Any]
    ) -> tuple[Callable[..., Any], Callable[[Any, Any], None]]:
        """Return ``get`` and ``put`` as they are."""
        return self.get, self.put

    def all_keys(self) -> list[Any]:
        """Return all keys as a new list."""
        return list(self.rows)

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

    def entries(self) -> list[tuple[Any, ...]]:
        """Return all ``(key, content)`` as a new list."""
        return list(self.rows.items())

    def load(self, entries: Iterable[tuple[Any, ...]], contents: list[Any]) -> None:
        """Set the keys of ``entries`` to ``contents``."""
        self.rows.update(zip((entry[0] for entry in entries), contents, strict=True))

    def read(self, key: Any, namespace: Any) -> Any:
        """Return the content of ``key``, or None; there are no namespaces here."""
        return self.rows.get(key)

    def write(self, key: Any, namespace: Any, content: Any) -> None:
        """Set the content of ``key``."""
        self.rows[key] = content

    def forget(self, key: Any, namespace: Any) -> None:
        """Forget the content of ``key``."""
        self.rows.pop(key, None)


class HeapNamespacedTable:
    """One state of all keys and namespaces.

    Attributes:
        rows: ``key -> {namespace: content}``; no inner dict is empty.
    """

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows: dict[Any, dict[Any, Any]] = {}

    def __len__(self) -> int:
        return sum(map(len, self.rows.values()))

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

    def entries(self) -> list[tuple[Any, ...]]:
        """Return all ``(key, namespace, content)`` as a new list."""
        return list(self.items())

    def load(self, entries: Iterable[tuple[Any, ...]], contents: list[Any]) -> None:
        """Set the keys and namespaces of ``entries`` to ``contents``."""
        for (key, namespace, _), content in zip(entries, contents, strict=True):
            self.put(key, namespace, content)

    def all_keys(self) -> list[Any]:
        """Return all keys as a new list."""
        return list(self.rows)

    read = get
    write = put
    forget = remove
    namespaces_of = namespaces


HeapTable = HeapStateTable | HeapNamespacedTable


def estimated_bytes(table: HeapTable) -> int:
    """Return about how many bytes the contents of a table take, keys included."""
    count = len(table)
    sample = list(itertools.islice(table.items(), _SAMPLED))
    if not sample:
        return 0
    sampled = sum(_size(part) for entry in sample for part in entry)
    return count * (_DICT_ENTRY_BYTES + sampled // len(sample))


def _size(value: Any) -> int:
    """Return the bytes of a value and of what is in it, two levels deep."""
    size = sys.getsizeof(value)
    if isinstance(value, dict):
        return size + sum(map(sys.getsizeof, itertools.chain(value, value.values())))
    if isinstance(value, list | tuple):
        return size + sum(map(sys.getsizeof, value))
    return size
