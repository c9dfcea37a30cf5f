"""What operators on columns raise where only rows will do."""

from __future__ import annotations

__all__ = ["RowsNeededError"]


class RowsNeededError(Exception):
    """Only rows give the right result: nothing has been changed, and why."""
