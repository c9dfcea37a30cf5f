"""What a keyed async function is called for: a row, or a timer."""

from __future__ import annotations

from typing import Any

from aiomailbox.operators.functions.contexts import TimeDomain

__all__ = ["KeyedEvent"]


class KeyedEvent:
    """A row of a key, or a timer of it that is due.

    Attributes:
        value: The row; None for a timer.
        timestamp: The row's event time in milliseconds or None; the timer's time.
        key: The key.
        watermark: The watermark that came before the row, or that fires the timer.
        domain: The timer's domain; None for a row.
    """

    __slots__ = ("domain", "key", "timestamp", "value", "watermark")

    def __init__(
        self,
        value: Any,
        timestamp: int | None,
        key: Any,
        watermark: int,
        domain: TimeDomain | None = None,
    ) -> None:
        self.value: Any = value
        self.timestamp: int | None = timestamp
        self.key: Any = key
        self.watermark: int = watermark
        self.domain: TimeDomain | None = domain

    @property
    def result_timestamp(self) -> int | None:
        """The event time that results get, or None."""
        if self.domain is TimeDomain.PROCESSING_TIME:
            return None
        return self.timestamp

    def __repr__(self) -> str:
        if self.domain is not None:
            return f"timer {self.timestamp} of key {self.key!r}"
        return f"{self.value!r} of key {self.key!r}"
