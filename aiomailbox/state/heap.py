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
from aiomailbox.errors import StateError
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
        self._tables: dict[tuple[str, bool], tuple[StateMeta, _Table]] = {}

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
        _refuse_ttl(descriptor)
        table = self._table(descriptor, namespaced=False)
        assert isinstance(table, HeapStateTable)
        return table

    def namespaced(self, descriptor: StateDescriptor) -> HeapNamespacedTable:
        """Return the state of all keys and namespaces; raises as `table` does."""
        _refuse_ttl(descriptor)
        table = self._table(descriptor, namespaced=True)
        assert isinstance(table, HeapNamespacedTable)
        return table

    def keys(self, descriptor: StateDescriptor) -> list[Any]:
        """Return the keys that have content in any namespace, as a new list."""
        found: dict[Any, None] = {}
        for namespaced in (False, True):
            entry = self._tables.get((descriptor.name, namespaced))
            if entry is not None:
                found.update(dict.fromkeys(entry[1].rows))
        return list(found)

    def key_count(self) -> int:
        """Return how many keys have state; costs a walk over all keys."""
        keys: set[Any] = set()
        for _, table in self._tables.values():
            keys.update(table.rows)
        return len(keys)

    def snapshot(self) -> KeyedStateSnapshot:
        """Return a cut of all state that later changes do not touch.

        See `aiomailbox.state.snapshot` for what is copied. Costs a walk over all
        state, and one hash per key.
        """
        snapshot = KeyedStateSnapshot(self._max_parallelism)
        groups = KeyGroupAssigner(1, self._max_parallelism)
        for position, (meta, table) in enumerate(self._tables.values()):
            snapshot.states.append(meta)
            entries = table.entries()
            contents = copier(meta.kind, ttl=meta.ttl)(entry[-1] for entry in entries)
            placed = groups.key_groups([entry[0] for entry in entries])
            for group, entry, content in zip(placed, entries, contents, strict=True):
                of_group = snapshot.key_groups.setdefault(group, {})
                of_group.setdefault(position, []).append((*entry[:-1], content))
        return snapshot

    def restore(self, snapshots: Sequence[KeyedStateSnapshot]) -> None:
        """Replace all state by what the snapshots hold for this store's key groups.

        Raises:
            StateError: If a snapshot was made with another number of key groups, or
                two of them describe a state in two ways.
        """
        for _, table in self._tables.values():
            table.rows.clear()
        for snapshot in snapshots:
            self._restore_one(snapshot)

    def _restore_one(self, snapshot: KeyedStateSnapshot) -> None:
        if snapshot.max_parallelism != self._max_parallelism:
            raise StateError(
                f"the state was written with max_parallelism "
                f"{snapshot.max_parallelism} and cannot be read with "
                f"{self._max_parallelism}: every key would be looked for in another "
                f"place. Set max_parallelism to {snapshot.max_parallelism}."
            )
        tables = [self._register(meta) for meta in snapshot.states]
        for group, states in snapshot.key_groups.items():
            if group not in self._key_group_range.key_groups:
                continue
            for position, entries in states.items():
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
        ttl = descriptor.ttl_config is not None
        return self._register(
            StateMeta(descriptor.name, descriptor.kind, namespaced, ttl)
        )

    def _register(self, meta: StateMeta) -> _Table:
        known = self._tables.get((meta.name, meta.namespaced))
        if known is not None and known[0] == meta:
            return known[1]
        for other in (known, self._tables.get((meta.name, not meta.namespaced))):
            if other is not None:
                _refuse_other_kind(other[0], meta)
        table = HeapNamespacedTable() if meta.namespaced else HeapStateTable()
        self._tables[meta.name, meta.namespaced] = (meta, table)
        return table


def _refuse_ttl(descriptor: StateDescriptor) -> None:
    if descriptor.ttl_config is not None:
        raise StateError(
            f"state {descriptor.name!r} has a time to live, which a table of all keys "
            "does not look at. Use the state object of its kind, e.g. get_value()."
        )


def _refuse_other_kind(known: StateMeta, asked: StateMeta) -> None:
    if known.kind != asked.kind:
        raise StateError(
            f"state {asked.name!r} is {known.kind} state and cannot be used as "
            f"{asked.kind} state. Give the second state a name of its own."
        )
    if known.ttl != asked.ttl:
        had, has = ("a", "none") if known.ttl else ("no", "one")
        raise StateError(
            f"state {asked.name!r} had {had} time to live and now has {has}: its "
            f"contents do not fit. Give the state another name."
        )
