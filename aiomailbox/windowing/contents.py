"""What a window holds of its records: an accumulator, or a list."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aiomailbox.records import StreamRecord
from aiomailbox.state import (
    AggregatingStateDescriptor,
    KeyedStateStore,
    ListStateDescriptor,
    NamespacedTable,
    StateDescriptor,
    ValueStateDescriptor,
)
from aiomailbox.windowing.time_window import Window

# The name is in snapshots.
_NAME = "window-contents"


class WindowContents:
    """The contents of all windows; the base of the kinds.

    Args:
        descriptor: Describes the state that holds them.
    """

    def __init__(self, descriptor: StateDescriptor) -> None:
        self._descriptor = descriptor
        self._store: KeyedStateStore
        self._table: NamespacedTable

    def bind(self, store: KeyedStateStore) -> None:
        """Use the state of this store."""
        self._store = store
        self._table = store.namespaced(self._descriptor)

    def add(self, key: Any, window: Window, value: Any, timestamp: int | None) -> None:
        """Add a record."""
        raise TypeError(f"{type(self).__name__} does not define add")

    def get(self, key: Any, window: Window) -> Any:
        """Return what is held, or None."""
        return self._table.get(key, window)

    def put(self, key: Any, window: Window, content: Any) -> None:
        """Replace what is held."""
        self._table.put(key, window, content)

    def clear(self, key: Any, window: Window) -> None:
        """Forget what is held."""
        self._table.remove(key, window)

    def merge(self, target: Window, sources: Iterable[Window]) -> None:
        """Move what other windows of the current key hold into one."""
        self._store.merge_namespaces(self._descriptor, target, sources)


class AccumulatedContents(WindowContents):
    """An accumulator per window.

    Args:
        aggregate: A plain aggregate function.
        merging: Whether windows merge.
    """

    def __init__(self, aggregate: Any, *, merging: bool) -> None:
        super().__init__(
            AggregatingStateDescriptor(_NAME, aggregate)
            if merging
            else ValueStateDescriptor(_NAME)
        )
        self._aggregate = aggregate

    def add(self, key: Any, window: Window, value: Any, timestamp: int | None) -> None:
        """Add a record to the accumulator."""
        accumulator = self._table.get(key, window)
        if accumulator is None:
            accumulator = self._aggregate.create_accumulator()
        self._table.put(key, window, self._aggregate.add(value, accumulator))


class ListedContents(WindowContents):
    """All records of a window.

    Args:
        with_timestamps: Whether they are kept as `StreamRecord`.
    """

    def __init__(self, *, with_timestamps: bool) -> None:
        super().__init__(ListStateDescriptor(_NAME))
        self._with_timestamps = with_timestamps

    def add(self, key: Any, window: Window, value: Any, timestamp: int | None) -> None:
        """Append a record."""
        record = StreamRecord(value, timestamp) if self._with_timestamps else value
        records = self._table.get(key, window)
        if records is None:
            self._table.put(key, window, [record])
        else:
            records.append(record)
            self._table.put(key, window, records)
