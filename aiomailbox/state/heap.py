"""Keyed state in the process's own memory: dicts of Python objects.

Theory of operation: per state one dict, ``key -> content``, or for namespaced state
``key -> {namespace: content}``. Run-form operators get the dict's own methods. Key
groups matter only at the edges: a snapshot sorts the keys into groups, a restore takes
the groups of its range, and nothing in between hashes a key as Flink does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from aiomailbox.clock import Clock
from aiomailbox.keygroups import KeyGroupAssigner, KeyGroupRange
from aiomailbox.state.descriptors import (
    VOID,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from aiomailbox.state.heap_state import (
    NO_KEY,
    Cell,
    ContentCell,
    CurrentKey,
    HeapAggregatingState,
    HeapListState,
    HeapMapState,
    HeapReducingState,
    HeapValueState,
)
from aiomailbox.state.heap_table import HeapNamespacedTable, HeapStateTable
from aiomailbox.state.merging import merge_contents, merge_expiring
from aiomailbox.state.registry import (
    StateRegistry,
    check_max_parallelism,
    refuse_ttl,
)
from aiomailbox.state.snapshot import KeyedStateSnapshot, StateMeta, copier
from aiomailbox.state.store import (
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)
from aiomailbox.state.ttl import Expiry, Sweep, TtlCell, TtlListState, TtlMapState

__all__ = ["HeapStateStore"]

_Table = HeapStateTable | HeapNamespacedTable


class HeapStateStore:
    """The keyed state of one operator in one subtask, on the heap.

    A descriptor may be used with and without namespaces; the two do not mix.

    Args:
        max_parallelism: Number of key groups of the job.
        key_group_range: The key groups of this subtask.
        clock: Read only for state with a time to live.

    Concept:
        Flink, ``HeapKeyedStateBackend``.

    Example:
        >>> from aiomailbox.clock import SystemClock
        >>> store = HeapStateStore(128, KeyGroupRange(0, 127), SystemClock())
        >>> count = store.get_value(ValueStateDescriptor("count", default=0))
        >>> store.set_current_key("a")
        >>> count.update(count.value() + 1)
        >>> store.table(ValueStateDescriptor("count", default=0)).get("a")
        1
    """

    def __init__(
        self, max_parallelism: int, key_group_range: KeyGroupRange, clock: Clock
    ) -> None:
        self._max_parallelism = max_parallelism
        self._key_group_range = key_group_range
        self._clock = clock
        self._current = CurrentKey()
        self._sweeps: dict[int, Sweep] = {}
        self._registry: StateRegistry[_Table] = StateRegistry(_new_table)

    @property
    def current_key(self) -> Any:
        """The key that state objects refer to; `StateError` if there is none."""
        return self._current.required()

    def set_current_key(self, key: Any) -> None:
        """Make ``key`` the key that state objects refer to; None for no key."""
        self._current.key = NO_KEY if key is None else key

    def get_value(
        self, descriptor: ValueStateDescriptor, namespace: Any = VOID
    ) -> ValueState:
        """Return the value state that ``descriptor`` names."""
        cell = self._expiring_cell(descriptor, namespace)
        return HeapValueState(cell, descriptor.default)

    def get_list(
        self, descriptor: ListStateDescriptor, namespace: Any = VOID
    ) -> ListState:
        """Return the list state that ``descriptor`` names."""
        cell = self._cell(descriptor, namespace)
        expiry = self._expiry(descriptor, namespace)
        return HeapListState(cell) if expiry is None else TtlListState(cell, *expiry)

    def get_map(
        self, descriptor: MapStateDescriptor, namespace: Any = VOID
    ) -> MapState:
        """Return the map state that ``descriptor`` names."""
        cell = self._cell(descriptor, namespace)
        expiry = self._expiry(descriptor, namespace)
        return HeapMapState(cell) if expiry is None else TtlMapState(cell, *expiry)

    def get_reducing(
        self, descriptor: ReducingStateDescriptor, namespace: Any = VOID
    ) -> ReducingState:
        """Return the reducing state that ``descriptor`` names."""
        cell = self._expiring_cell(descriptor, namespace)
        return HeapReducingState(cell, descriptor.reduce_function)

    def get_aggregating(
        self, descriptor: AggregatingStateDescriptor, namespace: Any = VOID
    ) -> AggregatingState:
        """Return the aggregating state that ``descriptor`` names."""
        cell = self._expiring_cell(descriptor, namespace)
        return HeapAggregatingState(cell, descriptor.aggregate_function)

    def merge_namespaces(
        self, descriptor: StateDescriptor, target: Any, sources: Iterable[Any]
    ) -> None:
        """Move the current key's contents of ``sources`` into ``target``."""
        key = self._current.required()
        table = self._table(descriptor, namespaced=True)
        assert isinstance(table, HeapNamespacedTable)
        expiry = self._expiry(descriptor, target)
        if expiry is None:
            merge_contents(table, descriptor, key, target, sources)
        else:
            merge_expiring(table, descriptor, key, target, sources, expiry[0])

    def table(self, descriptor: StateDescriptor) -> HeapStateTable:
        """Return the state of all keys, without namespaces.

        Raises:
            StateError: If the state has a time to live: a table does not look at it.
        """
        refuse_ttl(descriptor)
        table = self._table(descriptor, namespaced=False)
        assert isinstance(table, HeapStateTable)
        return table

    def namespaced(self, descriptor: StateDescriptor) -> HeapNamespacedTable:
        """Return the state of all keys and namespaces; raises as `table` does."""
        refuse_ttl(descriptor)
        table = self._table(descriptor, namespaced=True)
        assert isinstance(table, HeapNamespacedTable)
        return table

    def keys(self, descriptor: StateDescriptor) -> list[Any]:
        """Return the keys that have content in any namespace, as a new list."""
        found: dict[Any, None] = {}
        for namespaced in (False, True):
            entry = self._registry.entries.get((descriptor.name, namespaced))
            if entry is not None:
                found.update(dict.fromkeys(entry.table.rows))
        return list(found)

    def key_count(self) -> int:
        """Return how many keys have state; costs a walk over all keys."""
        keys: set[Any] = set()
        for entry in self._registry.entries.values():
            keys.update(entry.table.rows)
        return len(keys)

    def snapshot(self) -> KeyedStateSnapshot:
        """Return a cut of all state that later changes do not touch.

        See `aiomailbox.state.snapshot` for what is copied. Costs a walk over all
        state, and one hash per key.
        """
        states: list[StateMeta] = []
        groups = KeyGroupAssigner(1, self._max_parallelism)
        key_groups: dict[int, dict[int, list[tuple[Any, ...]]]] = {}
        for position, state in enumerate(self._registry.entries.values()):
            meta = state.meta
            states.append(meta)
            entries = state.table.entries()
            contents = copier(meta.kind, ttl=meta.ttl)(entry[-1] for entry in entries)
            placed = groups.key_groups([entry[0] for entry in entries])
            for group, entry, content in zip(placed, entries, contents, strict=True):
                of_group = key_groups.setdefault(group, {})
                of_group.setdefault(position, []).append((*entry[:-1], content))
        return KeyedStateSnapshot(self._max_parallelism, states, key_groups)

    def restore(self, snapshots: Sequence[KeyedStateSnapshot]) -> None:
        """Replace all state by what the snapshots hold for this store's key groups.

        Raises:
            StateError: If a snapshot was made with another number of key groups, or
                two of them describe a state in two ways.
        """
        for entry in self._registry.entries.values():
            entry.table.rows.clear()
        for snapshot in snapshots:
            self._restore_one(snapshot)

    def _restore_one(self, snapshot: KeyedStateSnapshot) -> None:
        check_max_parallelism(snapshot, self._max_parallelism)
        tables = [self._registry.restored(meta) for meta in snapshot.states]
        for group in snapshot.key_groups:
            if group not in self._key_group_range.key_groups:
                continue
            for position, entries in snapshot.key_groups[group].items():
                meta = snapshot.states[position]
                contents = copier(meta.kind, ttl=meta.ttl)(
                    entry[-1] for entry in entries
                )
                tables[position].load(entries, contents)

    def _cell(self, descriptor: StateDescriptor, namespace: Any) -> Cell:
        table = self._table(descriptor, namespaced=namespace is not VOID)
        return Cell(self._current, table, namespace)

    def _expiring_cell(
        self, descriptor: StateDescriptor, namespace: Any
    ) -> ContentCell:
        cell = self._cell(descriptor, namespace)
        expiry = self._expiry(descriptor, namespace)
        return cell if expiry is None else TtlCell(cell, *expiry)

    def _expiry(
        self, descriptor: StateDescriptor, namespace: Any
    ) -> tuple[Expiry, Sweep] | None:
        """Return when the state's contents expire; one sweep serves all its objects."""
        config = descriptor.ttl_config
        if config is None:
            return None
        table = self._table(descriptor, namespaced=namespace is not VOID)
        expiry = Expiry(config, descriptor.kind, self._clock)
        sweep = self._sweeps.setdefault(id(table), Sweep(table, expiry))
        return expiry, sweep

    def _table(self, descriptor: StateDescriptor, *, namespaced: bool) -> _Table:
        return self._registry.table(descriptor, namespaced=namespaced)


def _new_table(meta: StateMeta) -> _Table:
    return HeapNamespacedTable() if meta.namespaced else HeapStateTable()
