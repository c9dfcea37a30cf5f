"""What a snapshot of keyed state is, and how contents are copied for it.

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
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from aiomailbox.keygroups.assignment import KeyGroupRange
from aiomailbox.state.entries import Entries, pieces_of
from aiomailbox.state.schema import ClassSchema, StateSchema
from aiomailbox.state.serializers import ObjectSerializer

__all__ = [
    "IMMUTABLE_TYPES",
    "FetchFile",
    "KeyedStateSnapshot",
    "StateFile",
    "StateMeta",
    "copy_content",
    "copy_contents",
]

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
    """What a snapshot knows of one state besides its contents.

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


# Puts a file's contents at a path.
FetchFile = Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class StateFile:
    """A file that a snapshot consists of, on this machine while the snapshot lives.

    Attributes:
        name: What its store calls it.
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

    @property
    def files(self) -> tuple[StateFile, ...]:
        """The same entries as files of a database, if they are kept in one.

        They are made when they are asked for; that may be in any thread.
        """
        files: Any = getattr(self.key_groups, "files", tuple)
        found: tuple[StateFile, ...] = files()
        return found

    def classes_in_files(self) -> dict[str, ClassSchema]:
        """Return all classes that occur in the files, by their references."""
        classes: Any = getattr(self.key_groups, "classes", dict)
        found: dict[str, ClassSchema] = classes()
        return found

    def entries_of(self, key_groups: KeyGroupRange) -> Iterator[tuple[int, Entries]]:
        """Yield positions and entries in some key groups, about a thousand at a time.

        The contents belong to the caller.
        """
        widths = [3 if meta.namespaced else 2 for meta in self.states]
        # What was read from bytes is new each time.
        is_new = getattr(self.key_groups, "makes_new", False)
        for group in self.key_groups:
            if group not in key_groups.key_groups:
                continue
            for position, entries in pieces_of(self.key_groups, group, widths):
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
