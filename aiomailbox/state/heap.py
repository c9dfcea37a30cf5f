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
from aiomailbox.state.heap_table import (
    HeapNamespacedTable,
    HeapStateTable,
    HeapTable,
    estimated_bytes,
)
from aiomailbox.state.registry import check_max_parallelism
from aiomailbox.state.snapshot import KeyedStateSnapshot, StateMeta, copy_contents
from aiomailbox.state.table_store import TableStateStore

__all__ = ["HeapStateStore"]


class HeapStateStore(TableStateStore[HeapTable]):
    """The keyed state of one operator in one subtask, on the heap.

    Args:
        max_parallelism: Number of key groups of the job.
        key_group_range: The key groups of this subtask.
        clock: Read only for state with a time to live.

    Concept:
        Flink, ``HeapKeyedStateBackend``.

    Example:
        >>> from aiomailbox.clock import SystemClock
        >>> from aiomailbox.state import ValueStateDescriptor
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
        super().__init__(_new_table, clock)

    def estimated_keys(self) -> int:
        """Return the number of keys of the state that has most of them."""
        entries = self._registry.entries.values()
        return max((len(state.table.rows) for state in entries), default=0)

    def prefetch(self, keys: Iterable[Any]) -> None:
        """Do nothing: all contents are here."""

    def size_bytes(self) -> int:
        """Return about how many bytes the contents take, from a sample of them."""
        return sum(
            estimated_bytes(state.table) for state in self._registry.entries.values()
        )

    def close(self) -> None:
        """Do nothing: the memory goes with the store."""

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
            contents = copy_contents(entry[-1] for entry in entries)
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
                contents = copy_contents(entry[-1] for entry in entries)
                tables[position].load(entries, contents)


def _new_table(meta: StateMeta) -> HeapTable:
    return HeapNamespacedTable() if meta.namespaced else HeapStateTable()
