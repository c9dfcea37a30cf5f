"""The life of a function object, as its user sees it."""

from __future__ import annotations

from typing import Any, Generic

from aiomailbox.operators.core.collector import Collector
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.contract import Pending
from aiomailbox.typevars import OutT

__all__ = ["RichFunction"]


class RichFunction(Generic[OutT]):
    """The base of functions that are opened, may hold something back, and are closed.

    Each method may be ``async def``.

    Concept:
        Flink, ``RichFunction``.
    """

    def open(self, context: RuntimeContext, /) -> Any:
        """Acquire resources, before the first record.

        A context manager that is returned, such as an HTTP client, is entered now and
        left at the end; what it gives is ``context.resource`` of the other methods.
        """
        return None

    def finish(self, out: Collector[OutT], /) -> Pending:
        """Emit what is still held back; no record follows."""
        return None

    def close(self) -> Pending:
        """Release resources; called also after a failure."""
        return None
