"""What is in which tumbling window, by the window's start and then by key."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

from aiomailbox.state import StateTable


class OpenWindows:
    """The contents of windows, in the order of the windows.

    They are laid out by window, because all contents of one are emitted and forgotten
    at once; a snapshot wants them by key, so a table of the store holds them while one
    is taken.

    Args:
        table: Where a snapshot finds them, ``key -> {window start: content}``; what a
            restore left there is taken out.

    Attributes:
        contents: ``window start -> {key: content}``; may be empty for a start.

    Invariants:
        The heap holds each start of ``contents`` exactly once.
        The table is empty except while a snapshot is taken.

    Example:
        >>> from aiomailbox.state.heap_table import HeapStateTable
        >>> windows = OpenWindows(HeapStateTable())
        >>> windows.of(60_000)["a"] = 7
        >>> list(windows.pop_until(60_000)), list(windows.pop_until(60_000))
        ([(60000, {'a': 7})], [])
    """

    __slots__ = ("_heap", "_table", "contents")

    def __init__(self, table: StateTable) -> None:
        self.contents: dict[int, dict[Any, Any]] = {}
        self._heap: list[int] = []
        self._table = table
        for key, row in table.items():
            for start, content in row.items():
                self.of(start)[key] = content
        self.clear_table()

    def of(self, start: int) -> dict[Any, Any]:
        """Return the contents of a window, to be changed; they may be new and empty."""
        contents = self.contents.get(start)
        if contents is None:
            contents = self.contents[start] = {}
            heapq.heappush(self._heap, start)
        return contents

    def pop_until(self, limit: int) -> Iterator[tuple[int, dict[Any, Any]]]:
        """Take out the windows that start at or before ``limit``, earliest first."""
        heap = self._heap
        while heap and heap[0] <= limit:
            start = heapq.heappop(heap)
            yield start, self.contents.pop(start)

    def fill_table(self) -> None:
        """Put everything into the table, for a snapshot."""
        get, put = self._table.get, self._table.put
        for start, contents in self.contents.items():
            for key, content in contents.items():
                put(key, {**get(key, {}), start: content})

    def clear_table(self) -> None:
        """Take everything out of the table."""
        for key, _ in list(self._table.items()):
            self._table.remove(key)
