"""The entries of a snapshot, by columns, and how they come into key groups.

Theory of operation: a million tuples take longer to make than to encode, and make
Python's collector look at each of them. So entries are kept as a list of keys and a list
of contents, and become tuples only when they are read one by one. Which key
group a key is in is computed when the snapshot is first read, in the thread that reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Protocol

from aiomailbox.keygroups.assigner import KeyGroupAssigner
from aiomailbox.state.layers import DictSnapshot, frozen_items

__all__ = ["Entries", "GroupedEntries", "SnapshotRows", "pieces_of"]

# Of so many entries at a time the key groups are computed, and a store is restored.
_PIECE: Final = 1024


class Entries(Sequence[tuple[Any, ...]]):
    """Entries of one state: ``(key, content)``, or ``(key, namespace, content)``.

    Args:
        columns: All keys, all namespaces if there are any, and all contents.

    Attributes:
        columns: The same.

    Example:
        >>> entries = Entries(["a", "b"], [1, 2])
        >>> list(entries), entries[1], entries == [("a", 1), ("b", 2)]
        ([('a', 1), ('b', 2)], ('b', 2), True)
    """

    __slots__ = ("columns",)

    def __init__(self, *columns: list[Any]) -> None:
        self.columns: tuple[list[Any], ...] = columns

    @classmethod
    def of(cls, rows: Iterable[tuple[Any, ...]], width: int) -> Entries:
        """Return rows, which have so many columns, as entries."""
        if isinstance(rows, Entries):
            return rows
        listed = list(rows)
        return cls(*([row[index] for row in listed] for index in range(width)))

    def extend(self, others: Entries) -> None:
        """Add others behind these."""
        for column, other in zip(self.columns, others.columns, strict=True):
            column += other

    def part(self, start: int, stop: int) -> Entries:
        """Return those from one position up to another."""
        return Entries(*(column[start:stop] for column in self.columns))

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return zip(*self.columns, strict=True)

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return list(self)[index]
        return tuple(column[index] for column in self.columns)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Entries | list):
            return list(self) == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))


class SnapshotRows(Protocol):
    """What a snapshot has of one state.

    Attributes:
        width: Three if there are namespaces, else two.
    """

    width: int

    def columns(self, count: int) -> Iterator[tuple[list[Any], ...]]:
        """Yield the columns of about so many entries at a time."""
        ...


class TableRows:
    """The snapshot of a table without namespaces.

    Args:
        snapshot: Holds ``key -> content``.
    """

    __slots__ = ("_snapshot",)
    width = 2

    def __init__(self, snapshot: DictSnapshot) -> None:
        self._snapshot = snapshot

    def columns(self, count: int) -> Iterator[tuple[list[Any], ...]]:
        """Yield keys and contents."""
        return self._snapshot.columns(count)


class NamespacedRows:
    """The snapshot of a table with namespaces.

    Args:
        snapshot: Holds ``key -> {namespace: content}``.
    """

    __slots__ = ("_snapshot",)
    width = 3

    def __init__(self, snapshot: DictSnapshot) -> None:
        self._snapshot = snapshot

    def columns(self, count: int) -> Iterator[tuple[list[Any], ...]]:
        """Yield keys, namespaces and contents."""
        entries = (
            (key, namespace, content)
            for key, row in self._snapshot.items()
            for namespace, content in frozen_items(row)
        )
        while some := list(islice(entries, count)):
            keys, namespaces, contents = zip(*some, strict=True)
            yield list(keys), list(namespaces), list(contents)


class GroupedEntries(Mapping[int, dict[int, Entries]]):
    """What a snapshot has of several states, by key group; see `KeyedStateSnapshot`.

    It may be read in any thread.

    Args:
        states: What it has of each.
        max_parallelism: The number of key groups.
    """

    __slots__ = ("_found", "_known", "_lock", "_max_parallelism", "_states")

    def __init__(self, states: Sequence[SnapshotRows], max_parallelism: int) -> None:
        # The snapshots must live as long as contents of them are used.
        self._states = states
        self._max_parallelism = max_parallelism
        self._lock = threading.Lock()
        self._found: dict[int, dict[int, Entries]] | None = None
        self._known: tuple[int, ...] = ()

    def __getitem__(self, group: int) -> dict[int, Entries]:
        found = self._groups().get(group)
        if found is None and group in self._known:
            with self._lock:
                self._found = None
            found = self._groups()[group]
        if found is None:
            raise KeyError(group)
        return found

    def pieces(self, group: int) -> Iterator[tuple[int, Entries]]:
        """Yield positions and entries, and forget them: all at once would take long.

        What is asked for again is found again.
        """
        with self._lock:
            found = self._found
            taken = found.pop(group, None) if found is not None else None
        for position, entries in (self[group] if taken is None else taken).items():
            for start in range(0, len(entries), _PIECE):
                yield position, entries.part(start, start + _PIECE)

    def __iter__(self) -> Iterator[int]:
        self._groups()
        return iter(self._known)

    def __len__(self) -> int:
        self._groups()
        return len(self._known)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def _groups(self) -> dict[int, dict[int, Entries]]:
        with self._lock:
            if self._found is None:
                self._found = self._grouped()
                self._known = tuple(self._found)
            return self._found

    def _grouped(self) -> dict[int, dict[int, Entries]]:
        groups: dict[int, dict[int, Entries]] = {}
        assigner = KeyGroupAssigner(1, self._max_parallelism)
        for position, rows in enumerate(self._states):
            mine = _Spread(rows.width)
            for columns in rows.columns(_PIECE):
                mine.add(assigner.key_groups_once(columns[0]), columns)
            for group, entries in mine.groups.items():
                groups.setdefault(group, {})[position] = entries
        return groups


class _Spread:
    """The entries of one state, as they come into their key groups."""

    def __init__(self, width: int) -> None:
        self.groups: dict[int, Entries] = {}
        self._adders: dict[int, tuple[Callable[[Any], None], ...]] = {}
        self._width = width

    def add(self, placed: list[int], columns: tuple[list[Any], ...]) -> None:
        """Add entries, given the key group of each."""
        adders = self._adders
        for group in set(placed) - adders.keys():
            entries = self.groups[group] = Entries(*([] for _ in columns))
            adders[group] = tuple(column.append for column in entries.columns)
        if self._width == 2:
            for group, key, content in zip(placed, *columns, strict=True):
                add_key, add_content = adders[group]
                add_key(key)
                add_content(content)
            return
        for group, key, namespace, content in zip(placed, *columns, strict=True):
            add_key, add_namespace, add_content = adders[group]
            add_key(key)
            add_namespace(namespace)
            add_content(content)


def pieces_of(
    key_groups: Mapping[int, Mapping[int, Iterable[tuple[Any, ...]]]],
    group: int,
    widths: Sequence[int],
) -> Iterator[tuple[int, Entries]]:
    """Yield the entries of a key group, a piece at a time, with their state's position.

    Args:
        key_groups: Of a snapshot; what is read from bytes is read piece by piece.
        group: One of them.
        widths: Of the entries of each state.
    """
    read: Any = getattr(key_groups, "pieces", None)
    if read is not None:
        yield from read(group)
        return
    for position, rows in key_groups[group].items():
        entries = Entries.of(rows, widths[position])
        for start in range(0, len(entries), _PIECE):
            yield position, entries.part(start, start + _PIECE)
