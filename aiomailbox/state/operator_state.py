"""State of an operator that belongs to no key, and how it is spread over subtasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, ClassVar, Final, Generic, NoReturn, overload

from aiomailbox.errors import InvalidArgumentError, StateError
from aiomailbox.keygroups.assignment import UPPER_BOUND_MAX_PARALLELISM, key_group_range
from aiomailbox.signatures import Misnamed
from aiomailbox.state.cells import ContentCell, CurrentKey
from aiomailbox.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
)
from aiomailbox.state.handles import ListHandle, MapHandle
from aiomailbox.state.layers import LayeredDict
from aiomailbox.state.lent import Lent
from aiomailbox.state.schema import StateSchema
from aiomailbox.state.serializers import ObjectSerializer
from aiomailbox.state.snapshot import copy_content, copy_contents
from aiomailbox.state.store import ListState, MapState, check_same_contents
from aiomailbox.typevars import DefaultT, MapKeyT, ValueT

# Which subtask gets which state when their number changes: pure.
#
# Keyed state goes by key group (`HeapStateStore.restore`). State without keys goes by
# the mode of each state, and records in flight by the partitioner they were sent with.


class RedistributionMode(Enum):
    """How a state without keys is spread over other subtasks.

    Attributes:
        SPLIT: The elements of all subtasks in a row, in even shares.
        UNION: All elements to every subtask.
        BROADCAST: One subtask's copy to each, for all copies are the same.
        MERGE: State of a subtask as a whole, such as its progress. It stays in place
            while the parallelism does not change; otherwise every subtask gets all of
            it, and merges it. For operators of ours, not for functions of users.
    """

    SPLIT = "split"
    UNION = "union"
    BROADCAST = "broadcast"
    MERGE = "merge"


@dataclass(frozen=True, slots=True)
class OperatorStateEntry:
    """One state without keys of one subtask.

    Attributes:
        mode: How it is spread over other subtasks.
        elements: Its elements; of broadcast state its ``(key, value)`` pairs, which may
            be read from a snapshot each time that they are asked for.
        serializer: The id of the serializer that makes them bytes.
        schema: Their types, as far as they are known.
    """

    mode: RedistributionMode
    elements: Sequence[Any]
    serializer: str = field(default=ObjectSerializer.id, compare=False)
    schema: StateSchema = field(default_factory=StateSchema, compare=False)


@dataclass(frozen=True, slots=True)
class OperatorStateSnapshot:
    """A snapshot of one subtask's state without keys: an entry per state name.

    Example:
        >>> kept = OperatorStateSnapshot().with_list("splits", ["a", "b"])
        >>> kept.elements("splits"), kept.elements("progress")
        (['a', 'b'], [])
    """

    states: dict[str, OperatorStateEntry] = field(default_factory=dict)

    def elements(self, name: str) -> list[Any]:
        """Return the elements of a state, none if there is no such state."""
        entry = self.states.get(name)
        return [] if entry is None else list(entry.elements)

    def with_list(
        self,
        name: str,
        elements: Iterable[Any],
        mode: RedistributionMode = RedistributionMode.SPLIT,
    ) -> OperatorStateSnapshot:
        """Return the same with one more list, copied; without it if it is empty."""
        copied = copy_contents(elements)
        if not copied:
            return self
        return OperatorStateSnapshot(
            {**self.states, name: OperatorStateEntry(mode, copied)}
        )


# Per new subtask what it gets, each part with the old subtask it comes from.
_Parts = list[tuple[int, str, OperatorStateEntry]]
_Old = Sequence[OperatorStateSnapshot | None]


def redistribute_operator_state(old: _Old, new_parallelism: int) -> list[_Parts]:
    """Spread the state of old subtasks over new ones.

    With unchanged parallelism split, merge and broadcast state stay where they are,
    however uneven; union state still goes to all, and a broadcast state that some
    subtask lacks (it had finished) is handed round.

    Args:
        old: Per old subtask its snapshot, or None if it had no state.
        new_parallelism: How many new subtasks.

    Returns:
        Per new subtask the parts it gets, as ``(old subtask, state name, entry)``.

    Concept:
        Flink, ``RoundRobinOperatorStateRepartitioner``.

    Example:
        >>> entry = OperatorStateEntry(RedistributionMode.SPLIT, [1, 2, 3])
        >>> redistributed = redistribute_operator_state(
        ...     [OperatorStateSnapshot({"s": entry})], 2
        ... )
        >>> [[part.elements for _, _, part in parts] for parts in redistributed]
        [[[1, 2]], [[3]]]
    """
    if new_parallelism < 1:
        raise InvalidArgumentError(
            "new_parallelism", f"{new_parallelism} is not positive", "Use 1 or more."
        )
    new: list[_Parts] = [[] for _ in range(new_parallelism)]
    unchanged = len(old) == new_parallelism
    start = 0
    for name, mode in sorted(_modes(old).items()):
        held = [
            (index, snapshot.states[name])
            for index, snapshot in enumerate(old)
            if snapshot is not None and name in snapshot.states
        ]
        if mode is RedistributionMode.UNION or (
            mode is RedistributionMode.MERGE and not unchanged
        ):
            for parts in new:
                parts += [(index, name, entry) for index, entry in held]
            continue
        if unchanged:
            for index, entry in held:
                new[index].append((index, name, entry))
        if mode is RedistributionMode.BROADCAST:
            if not unchanged or len(held) < len(old):
                _hand_round(new, name, held)
        elif mode is RedistributionMode.SPLIT and not unchanged:
            start = _split(new, name, held, start)
    return new


def _modes(old: _Old) -> dict[str, RedistributionMode]:
    modes: dict[str, RedistributionMode] = {}
    for snapshot in old:
        for name, entry in (snapshot.states if snapshot is not None else {}).items():
            if modes.setdefault(name, entry.mode) is not entry.mode:
                raise StateError(
                    f"operator state {name!r} is {modes[name].value} state in one "
                    f"subtask and {entry.mode.value} state in another"
                )
    return modes


def _hand_round(
    new: list[_Parts], name: str, held: list[tuple[int, OperatorStateEntry]]
) -> None:
    for subtask, parts in enumerate(new):
        index, entry = held[subtask % len(held)]
        if (index, name, entry) not in parts:
            parts.append((index, name, entry))


def _split(
    new: list[_Parts],
    name: str,
    held: list[tuple[int, OperatorStateEntry]],
    start: int,
) -> int:
    """Give even shares; return the first subtask that got no extra element."""
    base, extra = divmod(sum(len(entry.elements) for _, entry in held), len(new))
    rest = list(reversed(held))
    for step in range(len(new)):
        share = base + (1 if step < extra else 0)
        for index, elements in _take(rest, share):
            entry = replace(held[0][1], elements=elements)
            new[(start + step) % len(new)].append((index, name, entry))
    return (start + extra) % len(new)


def _take(
    rest: list[tuple[int, OperatorStateEntry]], share: int
) -> Iterator[tuple[int, Sequence[Any]]]:
    """Take ``share`` elements from the end of ``rest``, where the first ones are.

    Empty lists met on the way are handed out too: they say that there is such a state.
    """
    while share:
        index, entry = rest.pop()
        taken, left = entry.elements[:share], entry.elements[share:]
        share -= len(taken)
        if left:
            rest.append((index, replace(entry, elements=left)))
        yield index, taken


class SubtaskStateMapper(Enum):
    """Which old subtasks' records in flight a new subtask reads.

    Attributes:
        ARBITRARY: Any subtask may read them; as `ROUND_ROBIN`.
        FIRST: The first new subtask reads all.
        FULL: Every new subtask reads all, and drops what is not its own.
        RANGE: The new ones that share key groups with the old one, dropping likewise.
        ROUND_ROBIN: Old subtask i goes to new subtask ``i % parallelism``.
        UNSUPPORTED: No subtask can: the records were bound to the old one.

    Concept:
        Flink, ``SubtaskStateMapper``.
    """

    ARBITRARY = "arbitrary"
    FIRST = "first"
    FULL = "full"
    RANGE = "range"
    ROUND_ROBIN = "round_robin"
    UNSUPPORTED = "unsupported"

    @property
    def is_ambiguous(self) -> bool:
        """Whether a record is read by several subtasks, which then have to filter."""
        return self in {SubtaskStateMapper.FULL, SubtaskStateMapper.RANGE}

    def old_subtasks(
        self, new_subtask: int, old_parallelism: int, new_parallelism: int
    ) -> list[int]:
        """Return the old subtasks whose records in flight a new one reads.

        Raises:
            StateError: If they cannot be redistributed.
        """
        match self:
            case SubtaskStateMapper.FULL:
                return list(range(old_parallelism))
            case SubtaskStateMapper.FIRST:
                return [] if new_subtask else list(range(old_parallelism))
            case SubtaskStateMapper.RANGE:
                return _sharing_keys(new_subtask, old_parallelism, new_parallelism)
            case SubtaskStateMapper.ARBITRARY | SubtaskStateMapper.ROUND_ROBIN:
                return list(range(new_subtask, old_parallelism, new_parallelism))
            case SubtaskStateMapper.UNSUPPORTED:
                raise StateError(
                    "records in flight between two subtasks that are bound to each "
                    "other cannot be redistributed. Keep the parallelism, or stop "
                    "with a savepoint and use rebalance() instead of forward."
                )


def _sharing_keys(
    new_subtask: int, old_parallelism: int, new_parallelism: int
) -> list[int]:
    groups = UPPER_BOUND_MAX_PARALLELISM
    mine = key_group_range(groups, new_parallelism, new_subtask)
    return [
        old
        for old in range(old_parallelism)
        if key_group_range(groups, old_parallelism, old).intersection(mine) is not None
    ]


# Each takes about a microsecond.
_SETTLE_STEPS: Final = 64


class ReadOnlyBroadcastState(Generic[MapKeyT, ValueT]):
    """Broadcast state as the side that is not broadcast may use it.

    Concept:
        Flink, ``ReadOnlyBroadcastState``.
    """

    __slots__ = ("_state",)

    def __init__(self, state: MapState[MapKeyT, ValueT]) -> None:
        self._state = state

    @overload
    def get(self, map_key: MapKeyT) -> ValueT | None: ...

    @overload
    def get(self, map_key: MapKeyT, default: DefaultT) -> ValueT | DefaultT: ...

    def get(self, map_key: MapKeyT, default: Any = None) -> Any:
        """Return the value of ``map_key``, or ``default``."""
        return self._state.get(map_key, default)

    def contains(self, map_key: MapKeyT) -> bool:
        """Say whether ``map_key`` is there."""
        return self._state.contains(map_key)

    def items(self) -> list[tuple[MapKeyT, ValueT]]:
        """Return all entries."""
        return self._state.items()

    def put(self, map_key: MapKeyT, value: ValueT) -> NoReturn:
        """Refuse to change broadcast state from this side.

        Raises:
            StateError: Always.
        """
        raise _read_only()

    def remove(self, map_key: MapKeyT) -> NoReturn:
        """Refuse to change broadcast state from this side; raises as `put`."""
        raise _read_only()


class SnapshotPairs(Sequence[tuple[Any, Any]]):
    """The entries of a map at one moment; readable in any thread.

    Args:
        layers: The map.
    """

    __slots__ = ("_count", "_snapshot")

    def __init__(self, layers: LayeredDict[Any, Any]) -> None:
        self._count = len(layers.live)
        self._snapshot = layers.snapshot()

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self._snapshot.items()

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> tuple[Any, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> list[tuple[Any, Any]]: ...

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    # As of lists.
    __hash__ = None  # type: ignore[assignment]


class _LayeredCell:
    """The place of one map that may be large: snapshots take no time, however large."""

    __slots__ = ("_layers",)

    def __init__(self, layers: LayeredDict[Any, Any]) -> None:
        self._layers = layers

    def read(self) -> Any:
        """Return the map as it is to be used now."""
        layers = self._layers
        if layers.has_snapshot:
            # Each access removes a few entries of layers that no snapshot needs.
            layers.settle(_SETTLE_STEPS)
        return layers.live

    def write(self, content: Any) -> None:
        """Set all entries."""
        self._layers.clear()
        self._layers.live.update(content)

    def forget(self) -> None:
        """Remove all entries."""
        self._layers.clear()


class _ListCell:
    """The place of one list: under the state's name."""

    __slots__ = ("_lists", "_name")

    def __init__(self, lists: dict[str, Any], name: str) -> None:
        self._lists = lists
        self._name = name

    def read(self) -> Any:
        """Return the list, or None."""
        return self._lists.get(self._name)

    def write(self, content: Any) -> None:
        """Set the list."""
        self._lists[self._name] = content

    def forget(self) -> None:
        """Remove the list."""
        self._lists.pop(self._name, None)


def _list_at(cell: ContentCell, name: str) -> ListHandle:
    return ListHandle(cell, Lent(name, CurrentKey()))


class OperatorStateStore(Misnamed):
    """The state without keys of one operator in one subtask.

    Elements and values are shared with their readers, and with no snapshot.

    Attributes:
        is_restored: Whether it holds what a snapshot did, if only nothing.

    Concept:
        Flink, ``OperatorStateStore``.

    Example:
        >>> store = OperatorStateStore()
        >>> offsets = store.get_list_state(ListStateDescriptor("offsets"))
        >>> offsets.add(("file-1", 42))
        >>> restored = OperatorStateStore()
        >>> restored.restore([store.snapshot()])
        >>> restored.get_list_state(ListStateDescriptor("offsets")).get()
        [('file-1', 42)]
    """

    _called = "context.operator_state"
    _meant: ClassVar[Mapping[str, str]] = {
        "get_list": "get_list_state(descriptor)",
        "get_union_list": "get_union_list_state(descriptor)",
        "get_map": "get_broadcast_state(descriptor)",
        "get_map_state": "get_broadcast_state(descriptor)",
        **dict.fromkeys(
            ("get_value", "get_state", "get_value_state"),
            "get_list_state(descriptor): without keys, state is a list or a map",
        ),
    }

    def __init__(self) -> None:
        self._entries: dict[str, OperatorStateEntry] = {}
        self._known: dict[str, StateDescriptor] = {}
        self._lists: dict[str, Any] = {}
        self._maps: dict[str, LayeredDict[Any, Any]] = {}
        self.is_restored: bool = False

    def get_list_state(
        self, descriptor: ListStateDescriptor[ValueT]
    ) -> ListState[ValueT]:
        """Return a list that is split evenly when the parallelism changes.

        Raises:
            StateError: If the name is in use for state of another mode.
        """
        return self._list(descriptor, RedistributionMode.SPLIT)

    def get_union_list_state(
        self, descriptor: ListStateDescriptor[ValueT]
    ) -> ListState[ValueT]:
        """Return a list that every subtask gets in full when the job is restored."""
        return self._list(descriptor, RedistributionMode.UNION)

    def get_broadcast_state(
        self, descriptor: MapStateDescriptor[MapKeyT, ValueT]
    ) -> MapState[MapKeyT, ValueT]:
        """Return a map of which every subtask keeps an equal copy."""
        return MapHandle(self._cell(descriptor, RedistributionMode.BROADCAST))

    @property
    def is_used(self) -> bool:
        """Whether a state was asked for, or restored."""
        return bool(self._entries)

    def snapshot(self) -> OperatorStateSnapshot:
        """Return a snapshot of all state that later changes do not touch.

        Maps are read later, in any thread; lists are copied now.
        """
        return OperatorStateSnapshot(
            {
                name: replace(
                    entry,
                    elements=SnapshotPairs(layers)
                    if (layers := self._maps.get(name)) is not None
                    else copy_contents(self._lists.get(name, ())),
                )
                for name, entry in self._entries.items()
            }
        )

    def restore(self, snapshots: Sequence[OperatorStateSnapshot]) -> None:
        """Replace all state by what the snapshots hold together.

        Lists are joined, of broadcast state the last copy of an entry counts.

        Raises:
            StateError: If two of them hold a state in different modes.
        """
        self.is_restored = True
        self._lists.clear()
        self._maps.clear()
        for snapshot in snapshots:
            for name, entry in snapshot.states.items():
                self._register(name, replace(entry, elements=[]))
                cell = self._named(name)
                # Several subtasks may be given the same entry.
                elements = copy_contents(entry.elements)
                if entry.mode is RedistributionMode.BROADCAST:
                    MapHandle(cell).put_all(dict(elements))
                else:
                    _list_at(cell, name).add_all(elements)

    def _list(
        self, descriptor: StateDescriptor, mode: RedistributionMode
    ) -> ListHandle:
        return _list_at(self._cell(descriptor, mode), descriptor.name)

    def _cell(
        self, descriptor: StateDescriptor, mode: RedistributionMode
    ) -> ContentCell:
        name = descriptor.name
        # Functions ask for state per record: a descriptor is looked at once.
        if (
            self._known.get(name) is not descriptor
            or self._entries[name].mode is not mode
        ):
            self._describe(descriptor, mode)
        return self._named(name)

    def _describe(self, descriptor: StateDescriptor, mode: RedistributionMode) -> None:
        name, schema = descriptor.name, descriptor.schema
        asked = OperatorStateEntry(mode, [], descriptor.serializer_id, schema)
        known = self._register(name, asked)
        if known is not asked:
            check_same_contents(
                name, (known.serializer, known.schema), (asked.serializer, schema)
            )
            if schema.parts:
                self._entries[name] = asked
        self._known[name] = descriptor

    def _register(self, name: str, asked: OperatorStateEntry) -> OperatorStateEntry:
        known = self._entries.setdefault(name, asked)
        if known.mode is not asked.mode:
            raise StateError(
                f"operator state {name!r} is {known.mode.value} state and cannot be "
                f"used as {asked.mode.value} state. Give the second state a name of "
                "its own."
            )
        return known

    def _named(self, name: str) -> ContentCell:
        if self._entries[name].mode is RedistributionMode.BROADCAST:
            layers = self._maps.get(name)
            if layers is None:
                layers = self._maps[name] = LayeredDict(copy_content)
            return _LayeredCell(layers)
        return _ListCell(self._lists, name)


def _read_only() -> StateError:
    return StateError(
        "broadcast state is read-only here, or its copies would differ between "
        "subtasks. Change it in process_broadcast_element."
    )
