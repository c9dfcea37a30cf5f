"""State of an operator that belongs to no key: lists and broadcast maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from aiomailbox.errors import StateError
from aiomailbox.state.descriptors import VOID, ListStateDescriptor, MapStateDescriptor
from aiomailbox.state.heap_state import Cell, CurrentKey, HeapListState, HeapMapState
from aiomailbox.state.heap_table import HeapStateTable
from aiomailbox.state.rescale import (
    OperatorStateEntry,
    OperatorStateSnapshot,
    RedistributionMode,
)
from aiomailbox.state.snapshot import copy_contents
from aiomailbox.state.store import ListState, MapState

__all__ = ["OperatorStateStore", "ReadOnlyBroadcastState"]


class ReadOnlyBroadcastState:
    """Broadcast state as the side that is not broadcast may use it.

    Concept:
        Flink, ``ReadOnlyBroadcastState``.
    """

    __slots__ = ("_state",)

    def __init__(self, state: MapState) -> None:
        self._state = state

    def get(self, map_key: Any, default: Any = None) -> Any:
        """Return the value of ``map_key``, or ``default``."""
        return self._state.get(map_key, default)

    def contains(self, map_key: Any) -> bool:
        """Say whether ``map_key`` is there."""
        return self._state.contains(map_key)

    def items(self) -> list[tuple[Any, Any]]:
        """Return all entries."""
        return self._state.items()

    def put(self, map_key: Any, value: Any) -> NoReturn:
        """Refuse to change broadcast state from this side.

        Raises:
            StateError: Always.
        """
        raise _read_only()

    def remove(self, map_key: Any) -> NoReturn:
        """Refuse to change broadcast state from this side; raises as `put`."""
        raise _read_only()


class OperatorStateStore:
    """The state without keys of one operator in one subtask.

    Elements and values are shared with whoever reads them, and with no snapshot.

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
        self._modes: dict[str, RedistributionMode] = {}
        # One table for all states: the state's name plays the part of the key.
        self._table = HeapStateTable()
        self.is_restored = False

    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState:
        """Return a list that is split evenly when the parallelism changes.

        Raises:
            StateError: If the name is in use for state of another mode.
        """
        return HeapListState(self._cell(descriptor.name, RedistributionMode.SPLIT))

    def get_union_list_state(self, descriptor: ListStateDescriptor) -> ListState:
        """Return a list that every subtask gets in full when the job is restored."""
        return HeapListState(self._cell(descriptor.name, RedistributionMode.UNION))

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> MapState:
        """Return a map of which every subtask keeps an equal copy."""
        return HeapMapState(self._cell(descriptor.name, RedistributionMode.BROADCAST))

    def get_read_only_broadcast_state(
        self, descriptor: MapStateDescriptor
    ) -> ReadOnlyBroadcastState:
        """Return the same map for reading."""
        return ReadOnlyBroadcastState(self.get_broadcast_state(descriptor))

    def snapshot(self) -> OperatorStateSnapshot:
        """Return a cut of all state that later changes do not touch."""
        entries = {}
        for name, mode in self._modes.items():
            content = self._table.get(name, ())
            elements = content.items() if isinstance(content, dict) else content
            entries[name] = OperatorStateEntry(mode, copy_contents(elements))
        return OperatorStateSnapshot(entries)

    def restore(self, snapshots: Sequence[OperatorStateSnapshot]) -> None:
        """Replace all state by what the snapshots hold together.

        Lists are joined, of broadcast state the last copy of an entry counts.

        Raises:
            StateError: If two of them hold a state in different modes.
        """
        self.is_restored = True
        self._table.rows.clear()
        for snapshot in snapshots:
            for name, entry in snapshot.states.items():
                cell = self._cell(name, entry.mode)
                # Several subtasks may be given the same entry.
                elements = copy_contents(entry.elements)
                if entry.mode is RedistributionMode.BROADCAST:
                    HeapMapState(cell).put_all(dict(elements))
                else:
                    HeapListState(cell).add_all(elements)

    def _cell(self, name: str, mode: RedistributionMode) -> Cell:
        known = self._modes.setdefault(name, mode)
        if known is not mode:
            raise StateError(
                f"operator state {name!r} is {known.value} state and cannot be used "
                f"as {mode.value} state. Give the second state a name of its own."
            )
        key = CurrentKey()
        key.key = name
        return Cell(key, self._table, VOID)


def _read_only() -> StateError:
    return StateError(
        "broadcast state is read-only here, or its copies would differ between "
        "subtasks. Change it in process_broadcast_element."
    )
