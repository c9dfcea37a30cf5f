"""The job's memory of calls that were paid for, in this process."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

from aiomailbox.policies import check_count

__all__ = ["MemoryJournal"]

_SIZE_DEFAULT: Final = 100_000


class MemoryJournal:
    """A `Journal` that lives and dies with the process, and forgets the oldest.

    It saves a repeated call only within one process: after a crash nothing is known.

    Args:
        size: Results kept at most.

    Raises:
        InvalidArgumentError: If ``size`` is below 1.

    Example:
        >>> journal = MemoryJournal()
        >>> journal.record("enrich", "42", "answer")
        >>> journal.lookup("enrich", "42"), journal.lookup("enrich", "43")
        ((True, 'answer'), (False, None))
    """

    __slots__ = ("_results", "_size")

    def __init__(self, size: int = _SIZE_DEFAULT) -> None:
        self._size = check_count(size, "size")
        self._results: OrderedDict[tuple[str, str], Any] = OrderedDict()

    def __len__(self) -> int:
        return len(self._results)

    def lookup(self, operator: str, key: str) -> tuple[bool, Any]:
        """Return whether a result is recorded, and the result."""
        found = (operator, key) in self._results
        return found, self._results.get((operator, key))

    def record(self, operator: str, key: str, result: Any) -> None:
        """Record the result of a call; the oldest is forgotten if there are too many."""
        self._results[operator, key] = result
        self._results.move_to_end((operator, key))
        if len(self._results) > self._size:
            self._results.popitem(last=False)
