"""What a keyed async operator resumes from, besides its state and its timers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["RowsInFlight"]


@dataclass(frozen=True, slots=True)
class RowsInFlight:
    """Rows, watermarks and timers that had not taken effect.

    Attributes:
        elements: ``("row", value, timestamp, watermark at its arrival, attempts that
            have ended)``, ``("watermark", timestamp)`` and ``("status", status)``, as they came.
        timers: Timers that were due: ``(domain, key, timestamp)``.
    """

    elements: list[tuple[Any, ...]] = field(default_factory=list)
    timers: list[tuple[str, Any, int]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.elements or self.timers)
