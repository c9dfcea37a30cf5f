"""How many segments each local pool may have (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

__all__ = ["Demand", "redistribute"]


class Demand(NamedTuple):
    """What one pool must have, and what it could use at most (None: any number)."""

    required: int
    maximum: int | None

    @property
    def is_resizable(self) -> bool:
        """Whether the pool could use more than it must have."""
        return self.maximum is None or self.maximum > self.required

    @property
    def wished(self) -> int:
        """What it counts for in the estimated usage: unbounded twice what it must have.

        Concept:
            Flink, ``NetworkBufferPool.getEstimatedSegmentsUsage``.
        """
        return 2 * self.required if self.maximum is None else self.maximum


def redistribute(spare: int, demands: Sequence[Demand]) -> list[int]:
    """Share spare segments in proportion to how many more each pool could use.

    Rounding goes by running sums, so that no segment is lost; which pool gets a
    remainder depends on the order of the pools only.

    Args:
        spare: Segments that no pool requires, at least 0.
        demands: Shape ``(n,)``, in order of creation.

    Returns:
        The size of each pool, shape ``(n,)``.

    Invariants:
        ``required <= size <= maximum`` for each pool, and the sizes add up to at most
        ``spare`` more than the requirements.

    Concept:
        Flink 2.3, ``NetworkBufferPool.redistributeBuffers``, there in hash-set order.

    Example:
        >>> redistribute(25, [Demand(5, 12), Demand(9, 24), Demand(17, 40)])
        [8, 18, 30]
    """
    headrooms = [_headroom(spare, demand) for demand in demands]
    shares = _shares(min(spare, sum(headrooms)), headrooms)
    return [
        demand.required + share for demand, share in zip(demands, shares, strict=True)
    ]


def _headroom(spare: int, demand: Demand) -> int:
    if demand.maximum is None:
        return spare
    return min(spare, demand.maximum - demand.required)


def _shares(distributable: int, headrooms: list[int]) -> Iterator[int]:
    total, used, given = sum(headrooms), 0, 0
    for headroom in headrooms:
        used += headroom
        share = distributable * used // total - given if total else 0
        given += share
        yield share
