"""A deque whose priority elements come first and keep their own order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

__all__ = ["PrioritizedDeque"]

ItemT = TypeVar("ItemT")


class PrioritizedDeque(Generic[ItemT]):
    """Priority elements first, in their order; then the others, in theirs.

    Elements are compared by identity.

    Invariants:
        ``0 <= priority_count <= len(self)``.

    Concept:
        Flink, ``PrioritizedDeque``.

    Example:
        >>> queue = PrioritizedDeque()
        >>> queue.append("data")
        >>> queue.append_priority("barrier")
        >>> queue.popleft(), queue.popleft()
        ('barrier', 'data')
    """

    __slots__ = ("_items", "priority_count")

    def __init__(self) -> None:
        self._items: deque[ItemT] = deque()
        self.priority_count: int = 0

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[ItemT]:
        return iter(self._items)

    def append(self, item: ItemT) -> None:
        """Add an element behind all others."""
        self._items.append(item)

    def append_priority(self, item: ItemT) -> None:
        """Add an element behind the priority elements and before the others."""
        self._items.insert(self.priority_count, item)
        self.priority_count += 1

    def prioritize(self, item: ItemT) -> None:
        """Move a queued element behind the last priority element.

        A no-op if it is a priority element already.

        Raises:
            ValueError: If the element is not queued.
        """
        index = self.index(item)
        if index < self.priority_count:
            return
        # At the border counting is enough: it already stands where it belongs.
        if index > self.priority_count:
            del self._items[index]
            self._items.insert(self.priority_count, item)
        self.priority_count += 1

    def popleft(self) -> ItemT:
        """Remove and return the first element.

        Raises:
            IndexError: If there is none.
        """
        item = self._items.popleft()
        if self.priority_count:
            self.priority_count -= 1
        return item

    def peek(self) -> ItemT | None:
        """Return the first element without removing it, or None."""
        return self._items[0] if self._items else None

    def peek_last(self) -> ItemT | None:
        """Return the last element without removing it, or None."""
        return self._items[-1] if self._items else None

    def remove(self, item: ItemT) -> bool:
        """Remove an element wherever it is; say whether it was there."""
        for index, candidate in enumerate(self._items):
            if candidate is item:
                del self._items[index]
                if index < self.priority_count:
                    self.priority_count -= 1
                return True
        return False

    def index(self, item: ItemT) -> int:
        """Return an element's place, from 0.

        Raises:
            ValueError: If the element is not queued.
        """
        for index, candidate in enumerate(self._items):
            if candidate is item:
                return index
        raise ValueError(f"{item!r} is not queued")

    def clear(self) -> list[ItemT]:
        """Remove all elements and return them in order."""
        items = list(self._items)
        self._items.clear()
        self.priority_count = 0
        return items
