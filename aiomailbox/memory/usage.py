"""When to say that the local pools could want more than there is (pure)."""

from __future__ import annotations

__all__ = ["UsageWatch"]


class UsageWatch:
    """Turns a changing percentage into the few messages worth reading.

    Example:
        >>> watch = UsageWatch()
        >>> [watch.observe(percent) is not None for percent in (60, 120, 120, 80, 80)]
        [False, True, False, True, False]
    """

    __slots__ = ("_percent",)

    def __init__(self) -> None:
        self._percent = 0

    def observe(self, percent: int) -> str | None:
        """Return what to say now, or None if there is nothing new."""
        before, self._percent = self._percent, percent
        if percent == before:
            return None
        if percent >= 100:
            return (
                f"the estimated usage of network buffers is {percent} %: tasks may get "
                "fewer than they could use. Raise total_segments for more throughput."
            )
        if before >= 100:
            return (
                f"the estimated usage of network buffers is {percent} %, normal again"
            )
        return None
