"""One row or timer of a key at a time, with timers that find their place."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from aiomailbox.operators.async_io.entry import Entry
from aiomailbox.operators.async_io.key_gate import KeyGate

__all__ = ["TimerGate"]


class TimerGate(KeyGate):
    """A key gate into which timers are put between rows, and out of which they go.

    Example:
        >>> gate = TimerGate(waiting_max=10)
        >>> first, timer, later = (Entry(name, None) for name in ("a", "timer", "b"))
        >>> gate.enter(first, "key"), gate.enter(later, "key")
        (True, False)
        >>> gate.insert(timer, "key", lambda entry: entry is later)
        >>> gate.leave(first).value
        'timer'
    """

    __slots__ = ()

    def insert(
        self, entry: Entry, key: Hashable, goes_after: Callable[[Entry], bool]
    ) -> None:
        """Let an entry wait before the first one that goes after it.

        The key is busy: a row of it has gone through and has not left.
        """
        entry.key = key
        # None: the key's row is the only one; there is a list only if others wait.
        behind = self._rows[key]
        if behind is None:
            self.enter(entry, key)
            return
        index = next(
            (place for place, other in enumerate(behind) if goes_after(other)),
            len(behind),
        )
        behind.insert(index, entry)
        self.waiting += 1

    def withdraw(self, entry: Entry) -> bool:
        """Take an entry out that waits; say whether it was waiting."""
        behind = self._rows.get(entry.key)
        if not behind or entry not in behind:
            return False
        behind.remove(entry)
        self.waiting -= 1
        return True
