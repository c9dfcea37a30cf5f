"""How many rows files have, where they say it themselves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final

__all__ = ["RowCount"]

# Each is opened for it.
_FILES_MAX: Final = 1_000


class RowCount:
    """Adds up the rows of files in a thread, beside their reading.

    Args:
        rows_of: Returns how many rows a file has; blocks.

    Attributes:
        value: The sum; None before it is known, and where it will not be.
    """

    def __init__(self, rows_of: Callable[[str], int]) -> None:
        self.value: int | None = None
        self._rows_of = rows_of
        self._is_over = False

    def begin(self, names: Sequence[str]) -> asyncio.Future[None] | None:
        """Begin to count, unless it is known, on the running loop.

        Args:
            names: The files; of very many none is counted.

        Returns:
            Is done when they are counted; None if they need not or will not be.
        """
        self._is_over = False
        if self.value is not None or len(names) > _FILES_MAX:
            return None
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(None, self._count, list(names))

    def close(self) -> None:
        """Count no further."""
        self._is_over = True

    def _count(self, names: list[str]) -> None:
        # What is wrong with a file, its reader says.
        with contextlib.suppress(Exception):
            rows = 0
            for name in names:
                if self._is_over:
                    return
                rows += self._rows_of(name)
            self.value = rows
