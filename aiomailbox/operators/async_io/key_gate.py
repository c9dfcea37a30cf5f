"""One row of a key at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Final

from aiomailbox.operators.async_io.entry import Entry

__all__ = ["NO_KEY", "KeyGate"]

NO_KEY: Final = object()
"""The key of a row whose key could not be read: it waits behind no other."""


class KeyGate:
    """Lets the first row of each key through; the others wait behind it.

    Args:
        waiting_max: Rows that may wait behind their keys, all keys together.

    Attributes:
        waiting: Rows that wait.

    Example:
        >>> gate = KeyGate(waiting_max=10)
        >>> first, second = Entry("a", None), Entry("b", None)
        >>> gate.enter(first, "key"), gate.enter(second, "key")
        (True, False)
        >>> gate.leave(first) is second
        True
    """

    __slots__ = ("_rows", "waiting", "waiting_max")

    def __init__(self, waiting_max: int) -> None:
        self.waiting_max: int = waiting_max
        self.waiting: int = 0
        # The rows behind the one that went through; None for none, which is cheaper.
        self._rows: dict[Hashable, deque[Entry] | None] = {}

    def is_busy(self, key: Hashable) -> bool:
        """Whether a row of this key has gone through and has not left.

        Raises:
            TypeError: If the key cannot be hashed.
        """
        return key in self._rows

    @property
    def is_full(self) -> bool:
        """Whether no more rows may wait."""
        return self.waiting >= self.waiting_max

    def enter(self, entry: Entry, key: Hashable) -> bool:
        """Say whether the row goes through now; else it waits."""
        entry.key = key
        if key not in self._rows:
            self._rows[key] = None
            return True
        behind = self._rows[key]
        if behind is None:
            behind = self._rows[key] = deque()
        behind.append(entry)
        self.waiting += 1
        return False

    def leave(self, entry: Entry) -> Entry | None:
        """Be notified that a row is done; return the one that goes through now."""
        if entry.key is NO_KEY:
            return None
        behind = self._rows[entry.key]
        if not behind:
            del self._rows[entry.key]
            return None
        self.waiting -= 1
        return behind.popleft()
