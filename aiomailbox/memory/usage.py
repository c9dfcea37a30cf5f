"""When to say that the local pools could want more than there is (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from aiomailbox.memory.redistribution import Demand

__all__ = ["UsageWatch", "usage_percent"]


def usage_percent(total: int, demands: Iterable[Demand]) -> int:
    """Estimate how much of the pool would be used if every share were busy.

    A bounded share counts with its maximum, an unbounded one with twice what it
    requires.

    Returns:
        Whole percent of ``total``; above 100 if the shares could want more.

    Concept:
        Flink, ``NetworkBufferPool.getEstimatedSegmentsUsage``.

    Example:
        >>> usage_percent(50, [Demand(10, 20), Demand(5, None)])
        60
    """
    wished = sum(
        2 * demand.required if demand.maximum is None else demand.maximum
        for demand in demands
    )
    return 100 * wished // total


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
