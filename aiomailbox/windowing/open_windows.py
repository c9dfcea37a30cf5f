"""What is in which window or pane, by its start and then by key."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any, Final

from aiomailbox.state import StateTable

# ``key -> content`` of one window.
Contents = dict[Any, Any]

_TURNED_MAX: Final = 16_384


class ContentsByStart:
    """Contents of stretches of time of one length, earliest first.

    Attributes:
        contents: ``start -> {key: content}``; may be empty for a start.

    Invariants:
        The heap holds each start of ``contents`` exactly once.

    Example:
        >>> panes = ContentsByStart()
        >>> panes.of(60_000)["a"] = 7
        >>> panes.first_until(60_000), panes.pop(60_000), panes.first_until(60_000)
        (60000, {'a': 7}, None)
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

    def first_until(self, limit: int) -> int | None:
        """Return the earliest start if it is not after ``limit``."""
        heap = self._heap
        return heap[0] if heap and heap[0] <= limit else None

    def pop(self, start: int) -> Contents:
        """Take out what begins there, which must be the earliest."""
        first = heapq.heappop(self._heap)
        assert first == start, "contents are taken out earliest first"
        return self.contents.pop(start)

    def forget_until(self, limit: int, count: int) -> bool:
        """Forget at most so many contents of what begins at or before ``limit``.

        Returns:
            Whether all of that is forgotten.
        """
        while (start := self.first_until(limit)) is not None:
            contents = self.contents[start]
            if len(contents) > count:
                for _ in range(count):
                    contents.popitem()
                return False
            count -= len(contents)
            self.pop(start)
        return True


class EndingWindow:
    """A window that is being emitted: what is left of it.

    Args:
        start: Where it begins.
        contents: What is to be emitted; it is used up.

    Attributes:
        start: Where it begins.
        contents: What has not been emitted yet.

    Example:
        >>> window = EndingWindow(60_000, dict(a=1, b=2, c=3, d=4, e=5))
        >>> window.take(2), window.take(2), window.contents
        ({'a': 1, 'b': 2}, {'c': 3, 'd': 4, 'e': 5}, {})
    """

    __slots__ = ("_is_turned", "contents", "start")

    def __init__(self, start: int, contents: Contents) -> None:
        self.start: int = start
        self.contents = contents
        self._is_turned = False

    def take(self, count: int) -> Contents:
        """Take out about so many contents; all of them if there are not twice as many.

        They come in the order in which they were put in, but for windows of very many
        keys, which come the other way round.
        """
        contents = self.contents
        if len(contents) <= 2 * count:
            self.contents = {}
            return dict(reversed(contents.items())) if self._is_turned else contents
        if not self._is_turned:
            self._is_turned = True
            # The only cheap end of a dict is its end. Turning it around takes 60 ns
            # per key, and that in one piece.
            if len(contents) <= _TURNED_MAX:
                self.contents = contents = dict(reversed(contents.items()))
        popitem = contents.popitem
        return dict([popitem() for _ in range(count)])


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
