"""What a local pool needs of the pool that it takes its segments from."""

from __future__ import annotations

from typing import Protocol

from aiomailbox.availability import Availability
from aiomailbox.memory.segment import MemorySegment

__all__ = ["SegmentSource"]


class SegmentSource(Protocol):
    """Where segments come from, and where they go back to."""

    availability: Availability
    request_timeout_s: float

    def try_take(self) -> MemorySegment | None:
        """Take a free segment, or None."""
        ...

    def give_back(self, segment: MemorySegment) -> None:
        """Return a segment that `try_take` gave."""
        ...

    def extra_segment(self) -> MemorySegment:
        """Make a segment beyond the total, for an elastic request."""
        ...
