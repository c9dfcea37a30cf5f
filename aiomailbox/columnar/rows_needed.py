"""What operators on columns raise where only rows will do."""

from __future__ import annotations

from typing import Final

__all__ = ["NOT_ON_THE_HEAP", "RowsNeededError"]

NOT_ON_THE_HEAP: Final = "its state is not kept on the heap"


class RowsNeededError(Exception):
    """Only rows give the right result: nothing has been changed, and why."""
