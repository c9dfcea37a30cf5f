"""Keyed state in the process's own memory: dicts of Python objects.

Theory of operation: per state one dict, ``key -> content``, or for namespaced state
``key -> {namespace: content}``. Run-form operators get the dict's own methods. Key
groups matter only at the edges: a snapshot's reader sorts the keys into groups, a
restore takes the groups of its range, and nothing in between hashes a key as Flink
does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from aiomailbox.clock import Clock
from aiomailbox.keygroups.assignment import KeyGroupRange
from aiomailbox.state.entries import (
    GroupedEntries,
    NamespacedRows,
    SnapshotRows,
    TableRows,
)
from aiomailbox.state.heap_table import (
    HeapNamespacedTable,
    HeapStateTable,
    HeapTable,
    estimated_bytes,
)
from aiomailbox.state.layers import size_hint
from aiomailbox.state.registry import check_max_parallelism
from aiomailbox.state.snapshot import KeyedStateSnapshot, StateMeta
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
        >>> from aiomailbox.state.descriptors import ValueStateDescriptor
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
        """Return the number of keys of the state that has most of them.

        While a snapshot is read, it is that of the moment of the snapshot.
        """
        entries = self._registry.entries.values()
        return max((size_hint(state.table.rows) for state in entries), default=0)

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
        """Return a snapshot of all state that later changes do not touch.

        It is taken at once, and read in any thread; see `aiomailbox.state.layers`.
        """
        entries = self._registry.entries.values()
        rows: list[SnapshotRows] = [
            NamespacedRows(entry.table.snapshot())
            if entry.meta.namespaced
            else TableRows(entry.table.snapshot())
            for entry in entries
        ]
        return KeyedStateSnapshot(
            self._max_parallelism,
            [entry.meta for entry in entries],
            GroupedEntries(rows, self._max_parallelism),
        )

    @property
    def has_snapshot(self) -> bool:
        """Whether layers lie over the dicts."""
        return any(
            entry.table.has_snapshot for entry in self._registry.entries.values()
        )

    def settle(self, count: int) -> int:
        """Remove layers that no snapshot needs; see `LayeredDict.settle`."""
        for entry in self._registry.entries.values():
            count = entry.table.settle(count)
        return count

    def restoring(self, snapshots: Sequence[KeyedStateSnapshot]) -> Iterator[None]:
        """Do as `restore`, in pieces; raises as that does."""
        for entry in self._registry.entries.values():
            entry.table.clear()
        for snapshot in snapshots:
            check_max_parallelism(snapshot, self._max_parallelism)
            states = self._restored_states(snapshot)
            for position, entries in snapshot.entries_of(self._key_group_range):
                states[position].load(entries)
                if entries:
                    self.restored_key = entries.columns[0][0]
                yield


def _new_table(meta: StateMeta) -> HeapTable:
    return HeapNamespacedTable() if meta.namespaced else HeapStateTable()
