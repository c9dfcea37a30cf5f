"""What the writers of sinks have in common that write at once."""

from __future__ import annotations

from typing import Any

from aiomailbox.operators.core.contract import Pending

__all__ = ["ImmediateWriter"]


class ImmediateWriter:
    """Base of writers for which a record is written when ``write_run`` has ended.

    They buffer and prepare nothing, keep nothing for a restart, and hold nothing open.
    """

    __slots__ = ()

    def flush(self, *, end_of_input: bool) -> Pending:
        """Nothing is buffered."""
        return None

    def prepare_commit(self) -> list[Any]:
        """Nothing to commit."""
        return []

    def snapshot(self) -> list[Any]:
        """Nothing to keep."""
        return []

    def restore(self, elements: list[Any]) -> None:
        """Nothing to take over."""

    def close(self) -> Pending:
        """Nothing to release."""
        return None
