"""State of an operator that belongs to no key: lists and broadcast maps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Generic, NoReturn, overload

from aiomailbox.errors import StateError
from aiomailbox.state.descriptors import (
    VOID,
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
)
from aiomailbox.state.handles import (
    Cell,
    ContentCell,
    CurrentKey,
    ListHandle,
    MapHandle,
)
from aiomailbox.state.heap import HeapStateTable
from aiomailbox.state.layers import LayeredDict
from aiomailbox.state.rescale import (
    OperatorStateEntry,
    OperatorStateSnapshot,
    RedistributionMode,
)
from aiomailbox.state.snapshot import copy_content, copy_contents
from aiomailbox.state.store import ListState, MapState, check_same_contents
from aiomailbox.typevars import DefaultT, MapKeyT, ValueT

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


class OperatorStateStore:
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

    def __init__(self) -> None:
        self._entries: dict[str, OperatorStateEntry] = {}
        self._known: dict[str, StateDescriptor] = {}
        # One table for all lists: the state's name plays the part of the key.
        self._table = HeapStateTable()
        self._maps: dict[str, LayeredDict[Any, Any]] = {}
        self.is_restored: bool = False

    def get_list_state(
        self, descriptor: ListStateDescriptor[ValueT]
    ) -> ListState[ValueT]:
        """Return a list that is split evenly when the parallelism changes.

        Raises:
            StateError: If the name is in use for state of another mode.
        """
        return ListHandle(self._cell(descriptor, RedistributionMode.SPLIT))

    def get_union_list_state(
        self, descriptor: ListStateDescriptor[ValueT]
    ) -> ListState[ValueT]:
        """Return a list that every subtask gets in full when the job is restored."""
        return ListHandle(self._cell(descriptor, RedistributionMode.UNION))

    def get_broadcast_state(
        self, descriptor: MapStateDescriptor[MapKeyT, ValueT]
    ) -> MapState[MapKeyT, ValueT]:
        """Return a map of which every subtask keeps an equal copy."""
        return MapHandle(self._cell(descriptor, RedistributionMode.BROADCAST))

    def get_read_only_broadcast_state(
        self, descriptor: MapStateDescriptor[MapKeyT, ValueT]
    ) -> ReadOnlyBroadcastState[MapKeyT, ValueT]:
        """Return the same map for reading."""
        return ReadOnlyBroadcastState(self.get_broadcast_state(descriptor))

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
                    else copy_contents(self._table.get(name, ())),
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
        self._table.clear()
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
                    ListHandle(cell).add_all(elements)

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
        key = CurrentKey()
        key.key = name
        return Cell(key, self._table, VOID)


def _read_only() -> StateError:
    return StateError(
        "broadcast state is read-only here, or its copies would differ between "
        "subtasks. Change it in process_broadcast_element."
    )
