"""What is in which window or pane, by its start and then by key."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import Any

from aiomailbox.state import StateTable

# ``key -> content`` of one window.
Contents = dict[Any, Any]


class ContentsByStart:
    """Contents of stretches of time of one length, earliest first.

    Attributes:
        contents: ``start -> {key: content}``; may be empty for a start.

    Invariants:
        The heap holds each start of ``contents`` exactly once.

    Example:
        >>> panes = ContentsByStart()
        >>> panes.of(60_000)["a"] = 7
        >>> list(panes.pop_until(60_000)), list(panes.pop_until(60_000))
        ([(60000, {'a': 7})], [])
    """

    __slots__ = ("_heap", "contents")

    def __init__(self) -> None:
        self.contents: dict[int, Contents] = {}
        self._heap: list[int] = []

    def of(self, start: int) -> Contents:
        """Return what begins there, to be changed; it may be new and empty."""
        contents = self.contents.get(start)
        if contents is None:
            contents = self.contents[start] = {}
            heapq.heappush(self._heap, start)
        return contents

    def pop_until(self, limit: int) -> Iterator[tuple[int, Contents]]:
        """Take out what begins at or before ``limit``, earliest first."""
        heap = self._heap
        while heap and heap[0] <= limit:
            start = heapq.heappop(heap)
            yield start, self.contents.pop(start)


class OpenWindows(ContentsByStart):
    """The contents of windows, in the order of the windows.

    They are laid out by window, because all contents of one are emitted and forgotten
    at once; a snapshot wants them by key, so a table of the store holds them while one
    is taken.

    Args:
        table: Where a snapshot finds them, ``key -> {window start: content}``; what a
            restore left there is taken out.

    Invariants:
        The table is empty except while a snapshot is taken.

    Example:
        >>> from aiomailbox.state.heap_table import HeapStateTable
        >>> table = HeapStateTable()
        >>> table.put("a", {60_000: 7})
        >>> OpenWindows(table).contents, table.get("a")
        ({60000: {'a': 7}}, None)
    """

    __slots__ = ("_table",)

    def __init__(self, table: StateTable) -> None:
        super().__init__()
        self._table = table
        for key, row in table.items():
            for start, content in row.items():
                self.of(start)[key] = content
        self.clear_table()

    def fill_table(self, windows: Mapping[int, Contents]) -> None:
        """Put the contents of windows into the table, for a snapshot."""
        rows: dict[Any, Contents] = {}
        for start, contents in windows.items():
            for key, content in contents.items():
                rows.setdefault(key, {})[start] = content
        for key, row in rows.items():
            self._table.put(key, row)

    def clear_table(self) -> None:
        """Take everything out of the table."""
        for key, _ in list(self._table.items()):
            self._table.remove(key)
