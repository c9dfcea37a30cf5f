"""Snapshots of keyed state, and how contents are copied for them.

Theory of operation: a snapshot must not change when the operator goes on, and neither may
two restored operators share anything that one of them could change. Immutable
contents are shared, containers are copied, and of everything else a deep copy is
made, of elements of lists and maps too: a user may change what ``get`` returned.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import decimal
import functools
import threading
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from aiomailbox.keygroups.assignment import KeyGroupAssigner, KeyGroupRange
from aiomailbox.state.schema import ClassSchema, StateSchema
from aiomailbox.state.serializers import ObjectSerializer

# The entries of a snapshot, by columns, and how they come into key groups.
#
# Theory of operation: a million tuples take longer to make than to encode, and make
# Python's collector look at each of them. So entries are kept as a list of keys and a
# list of contents, and become tuples only when they are read one by one. Which key
# group a key is in is computed when the snapshot is first read, in the thread that
# reads.


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


class SnapshotRows(NamedTuple):
    """One state in a snapshot; it may be read in any thread, and again.

    Attributes:
        width: Three if there are namespaces, else two.
        columns: Yields the columns of about so many entries at a time.
    """

    width: int
    columns: Callable[[int], Iterator[tuple[list[Any], ...]]]

    @classmethod
    def of(
        cls, width: int, entries: Callable[[], Iterable[tuple[Any, ...]]]
    ) -> SnapshotRows:
        """Return what a function returns, entry by entry, when it is read."""

        def columns(count: int) -> Iterator[tuple[list[Any], ...]]:
            rows = iter(entries())
            while some := list(islice(rows, count)):
                yield tuple(map(list, zip(*some, strict=True)))

        return cls(width, columns)


GroupT = TypeVar("GroupT")


class LazyGroups(Mapping[int, GroupT]):
    """Contents by key group, found when they are asked for."""

    @abstractmethod
    def pieces(self, group: int) -> Iterator[Any]:
        """Yield the contents of a key group, some at a time."""

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __reduce__(self) -> tuple[Any, ...]:
        # What travels are the contents, to a subtask that reads them anyway.
        return dict, (dict(self),)


class LazyEntries(LazyGroups[dict[int, Entries]]):
    """Entries by key group and by the position of their state, read in pieces."""

    makes_new = True

    def __getitem__(self, group: int) -> dict[int, Entries]:
        found: dict[int, Entries] = {}
        for position, entries in self.pieces(group):
            if position in found:
                found[position].extend(entries)
            else:
                found[position] = entries
        if not found and group not in list(self):
            raise KeyError(group)
        return found


class LazyTimers(LazyGroups[list[tuple[int, Any, Any]]]):
    """Timers by key group: their times, keys and namespaces."""

    def __getitem__(self, group: int) -> list[tuple[int, Any, Any]]:
        return [row for rows in self.pieces(group) for row in rows]


class GroupedEntries(LazyGroups[dict[int, Entries]]):
    """Several states in a snapshot, by key group; see `KeyedStateSnapshot`.

    It may be read in any thread.

    Args:
        states: The contents of each.
        max_parallelism: The number of key groups.
    """

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

        The same question again finds the same contents.
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


IMMUTABLE_TYPES = frozenset(
    {
        bool,
        bytes,
        complex,
        dt.date,
        dt.datetime,
        dt.time,
        dt.timedelta,
        decimal.Decimal,
        float,
        int,
        str,
        type(None),
        uuid.UUID,
    }
)


@dataclass(frozen=True, slots=True)
class StateMeta:
    """The description of one state in a snapshot.

    Attributes:
        name: The state's name.
        kind: ``value``, ``list``, ``map``, ``reducing`` or ``aggregating``.
        namespaced: Whether the contents belong to a key and a namespace.
        ttl: Whether the contents carry the time they were last touched.
        serializer: The id of the serializer that turns contents into bytes.
        schema: The types of the contents, as far as they are known.
    """

    name: str
    kind: str
    namespaced: bool
    ttl: bool
    serializer: str = ObjectSerializer.id
    schema: StateSchema = field(default_factory=StateSchema, compare=False)

    @property
    def width(self) -> int:
        """How many columns entries have: key and content, maybe with a namespace."""
        return 3 if self.namespaced else 2


# Puts a file's contents at a path.
FetchFile = Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class StateFile:
    """A file that a snapshot consists of, on this machine while the snapshot lives.

    Attributes:
        name: Its name in its store.
        path: Where it is.
        is_final: Whether, as long as the store lives, another snapshot of it that has a
            file of this name has the same contents there.
    """

    name: str
    path: Path
    is_final: bool


@dataclass(frozen=True, slots=True)
class KeyedStateSnapshot:
    """A snapshot of keyed state: plain values, grouped by key group.

    Attributes:
        max_parallelism: The number of key groups that the keys were placed in.
        states: One entry per state.
        key_groups: Per key group that has state, and per position in ``states``, the
            entries: ``(key, content)``, or ``(key, namespace, content)``. Key groups
            may be made, or read, when they are asked for; that may be in any thread.
        allow_unmatched: Whether who restores it may leave what nothing asks for.
    """

    max_parallelism: int
    states: list[StateMeta] = field(default_factory=list)
    key_groups: Mapping[int, Mapping[int, Sequence[tuple[Any, ...]]]] = field(
        default_factory=dict
    )
    allow_unmatched: bool = field(default=False, compare=False)

    @classmethod
    def of_rows(
        cls,
        max_parallelism: int,
        states: list[StateMeta],
        rows: Sequence[SnapshotRows],
    ) -> KeyedStateSnapshot:
        """Return a snapshot of states whose rows are read when they are asked for."""
        entries = GroupedEntries(rows, max_parallelism)
        return cls(max_parallelism, states, entries)

    @property
    def files(self) -> tuple[StateFile, ...]:
        """The same entries as files of a database, if they are kept in one.

        They are made when they are asked for; that may be in any thread.
        """
        files: Any = getattr(self.key_groups, "files", tuple)
        return files()

    def classes_in_files(self) -> dict[str, ClassSchema]:
        """Return all classes that occur in the files, by their references."""
        classes: Any = getattr(self.key_groups, "classes", dict)
        return classes()

    def pieces(self, group: int) -> Iterator[tuple[int, Entries]]:
        """Yield the entries of a key group, a piece at a time, with their positions.

        What is read from bytes is read piece by piece.
        """
        read: Any = getattr(self.key_groups, "pieces", None)
        if read is not None:
            yield from read(group)
            return
        for position, rows in self.key_groups[group].items():
            entries = Entries.of(rows, self.states[position].width)
            for start in range(0, len(entries), _PIECE):
                yield position, entries.part(start, start + _PIECE)

    def entries_of(self, key_groups: KeyGroupRange) -> Iterator[tuple[int, Entries]]:
        """Yield positions and entries in some key groups, about a thousand at a time.

        The contents belong to the caller.
        """
        # What was read from bytes is new each time.
        is_new = getattr(self.key_groups, "makes_new", False)
        for group in self.key_groups:
            if group not in key_groups.key_groups:
                continue
            for position, entries in self.pieces(group):
                if not is_new:
                    *address, contents = entries.columns
                    entries = Entries(*address, copy_contents(contents))
                yield position, entries


def copy_contents(contents: Iterable[Any]) -> list[Any]:
    """Return copies of many contents in the same order; see `copy_content`."""
    listed = list(contents)
    if IMMUTABLE_TYPES.issuperset(map(type, listed)):
        return listed
    return [copy_content(content) for content in listed]


def copy_content(content: Any) -> Any:
    """Return a copy that shares nothing that could change with the original.

    Example:
        >>> original = {"counts": [1, 2]}
        >>> copied = copy_content(original)
        >>> original["counts"].append(3)
        >>> copied
        {'counts': [1, 2]}
    """
    kind: Any = type(content)
    if kind in IMMUTABLE_TYPES:
        return content
    if kind is list:
        return copy_contents(content)
    if kind is dict:
        return dict(zip(content, copy_contents(content.values()), strict=True))
    if isinstance(content, tuple):
        if IMMUTABLE_TYPES.issuperset(map(type, content)):
            return content
        if kind is tuple:
            return tuple(copy_contents(content))
    is_frozen = _is_frozen_record(kind)
    if is_frozen is not None and _has_flat_fields(kind, content):
        return content if is_frozen else copy.copy(content)
    return copy.deepcopy(content)


@functools.lru_cache(maxsize=1024)
def _is_frozen_record(kind: Any) -> bool | None:
    """Say whether a class of records is frozen; None if it is none, or copies itself."""
    if hasattr(kind, "__deepcopy__"):
        return None
    if issubclass(kind, msgspec.Struct):
        return bool(kind.__struct_config__.frozen)
    if not dataclasses.is_dataclass(kind) or hasattr(kind, "__copy__"):
        return None
    described: Any = kind
    return bool(described.__dataclass_params__.frozen)


def _has_flat_fields(kind: Any, content: Any) -> bool:
    """Say whether a record holds nothing that could change; not even beside its fields."""
    attributes = getattr(content, "__dict__", None)
    if attributes is not None and not IMMUTABLE_TYPES.issuperset(
        map(type, attributes.values())
    ):
        return False
    names = getattr(kind, "__struct_fields__", None) or kind.__dataclass_fields__
    values = [getattr(content, name, None) for name in names]
    return IMMUTABLE_TYPES.issuperset(map(type, values))
