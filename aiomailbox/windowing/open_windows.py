"""What is in which window or pane, by its start and then by key."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

from aiomailbox.state.layers import DictSnapshot, Layer, LayeredDict, frozen_items
from aiomailbox.state.snapshot import copy_content
from aiomailbox.state.store import NamespacedTable

# ``key -> content`` of one window.
Contents = dict[Any, Any]

_TURNED_MAX: Final = 16_384


class ContentsByStart:
    """Contents of stretches of time of one length, earliest first.

    Attributes:
        contents: ``start -> {key: content}``; may be empty for a start. It is another
            mapping after `snapshot` and `settle`.

    Invariants:
        The heap holds each start of ``contents`` exactly once.

    Example:
        >>> panes = ContentsByStart()
        >>> panes.of(60_000)["a"] = 7
        >>> panes.first_until(60_000), panes.pop(60_000), panes.first_until(60_000)
        (60000, {'a': 7}, None)
    """

    __slots__ = ("_heap", "_layers", "contents")

    def __init__(self) -> None:
        self._layers: LayeredDict[int, Contents] = LayeredDict(layer_over)
        self.contents: Any = self._layers.live
        self._heap: list[int] = []

    def snapshot(self) -> DictSnapshot:
        """Return all there is now, for a thread to read."""
        snapshot = self._layers.snapshot()
        self.contents = self._layers.live
        return snapshot

    @property
    def has_snapshot(self) -> bool:
        """Whether a snapshot makes every access cost more."""
        return self._layers.has_snapshot

    def settle(self, count: int) -> int:
        """Remove layers that no snapshot needs; see `LayeredDict.settle`."""
        left = self._layers.settle(count)
        self.contents = self._layers.live
        return left

    def peek(self, start: int) -> Contents | None:
        """Return what begins there, to be read and not changed."""
        contents = self.contents
        found: Contents | None = (
            contents.peek(start) if self.has_snapshot else contents.get(start)
        )
        return found

    def of(self, start: int) -> Contents:
        """Return what begins there, to be changed; it may be new and empty."""
        # For a reader: with a snapshot, `get` would copy what is only looked at.
        contents: Contents | None = self.contents.get(start)
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
        found: Contents = self.contents.pop(start)
        return found

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

    __slots__ = ("_is_turned", "_layers", "start")

    def __init__(self, start: int, contents: Contents) -> None:
        self.start: int = start
        self._layers: LayeredDict[Any, Any] = LayeredDict(copy_content, contents)
        self._is_turned = False

    @property
    def contents(self) -> Any:
        """What has not been emitted yet."""
        return self._layers.live

    def snapshot(self) -> DictSnapshot:
        """Return what has not been emitted yet, for a thread to read."""
        return self._layers.snapshot()

    def take(self, count: int) -> Contents:
        """Take out about so many contents; all of them if there are not twice as many.

        They come in the order in which they were put in, but for windows of very many
        keys, which come the other way round.
        """
        contents = self.contents
        # Not worth another round: the rest goes with it.
        if len(contents) <= 2 * count:
            self._layers.live = {}
            if type(contents) is not dict:
                return dict(contents)
            return dict(reversed(contents.items())) if self._is_turned else contents
        if type(contents) is dict and not self._is_turned:
            self._is_turned = True
            # The only cheap end of a dict is its end. Turning it around takes 60 ns
            # per key, and that in one piece.
            if len(contents) <= _TURNED_MAX:
                self._layers.live = contents = dict(reversed(contents.items()))
        popitem = contents.popitem
        return dict([popitem() for _ in range(count)])


class OpenWindows(ContentsByStart):
    """The contents of windows, in the order of the windows.

    They are laid out by window, because all contents of one are emitted and forgotten
    at once.

    Args:
        table: Where a restore has put them, by key and window start.

    Example:
        >>> from aiomailbox.state.heap_table import HeapNamespacedTable
        >>> table = HeapNamespacedTable()
        >>> table.put("a", 60_000, 7)
        >>> windows = OpenWindows(table)
        >>> windows.take_over(100), windows.contents, table.get("a", 60_000)
        (False, {60000: {'a': 7}}, None)
    """

    __slots__ = ("_table",)

    def __init__(self, table: NamespacedTable) -> None:
        super().__init__()
        self._table = table

    def take_over(self, count: int) -> bool:
        """Take about so many contents out of the table; say whether none are left."""
        entries = self._table.drain(count)
        for key, start, content in entries:
            self.of(start)[key] = content
        return not entries


class WindowRows:
    """The contents of windows as a snapshot has them: key, window start, content.

    Args:
        windows: Yields ``(start, {key: content})``, when they are read.
    """

    __slots__ = ("_windows",)
    width = 3

    def __init__(self, windows: Callable[[], Iterable[tuple[int, Contents]]]) -> None:
        self._windows = windows

    def columns(self, count: int) -> Iterator[tuple[list[Any], list[Any], list[Any]]]:
        """Yield keys, starts and contents, so many at a time."""
        for start, contents in self._windows():
            items = iter(frozen_items(contents))
            while some := list(islice(items, count)):
                keys, found = zip(*some, strict=True)
                yield list(keys), [start] * len(keys), list(found)


def layer_over(contents: Contents) -> Any:
    """Return what may be changed, while the contents of a window must stay."""
    return Layer(contents, copy_content)


def readable(windows: Iterable[tuple[int, Contents]]) -> dict[int, Contents]:
    """Return the contents of a snapshot's windows as dicts, which must not be changed."""
    return {
        start: contents if type(contents) is dict else dict(frozen_items(contents))
        for start, contents in windows
    }
