"""How a local pool behaves, and what it says about itself."""

from __future__ import annotations

from dataclasses import dataclass

from aiomailbox.errors import InvalidArgumentError

# Far above what one record emits, far below what would exhaust a process.
DEFAULT_OVERDRAFT_CEILING = 1_000


@dataclass(frozen=True, slots=True)
class LocalPoolOptions:
    """How one local pool behaves; `NetworkBufferPool.create_local_pool` explains."""

    required_segments: int
    segments_max: int | None = None
    owner: str = ""
    subpartitions: int = 0
    per_channel_max: int | None = None
    overdraft_max: int = 0
    overdraft_ceiling: int = DEFAULT_OVERDRAFT_CEILING

    def __post_init__(self) -> None:
        if self.required_segments < 1:
            raise InvalidArgumentError(
                "required_segments", f"{self.required_segments} is less than 1"
            )
        if self.segments_max is not None and self.segments_max < self.required_segments:
            raise InvalidArgumentError(
                "segments_max",
                f"{self.segments_max} is less than the {self.required_segments} "
                "required segments",
            )
        for name in ("subpartitions", "overdraft_max", "overdraft_ceiling"):
            if getattr(self, name) < 0:
                raise InvalidArgumentError(name, f"{getattr(self, name)} is negative")
        if self.per_channel_max is not None and self.per_channel_max < 1:
            raise InvalidArgumentError(
                "per_channel_max", f"{self.per_channel_max} is less than 1"
            )


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """A snapshot of a local pool, all in segments.

    ``used`` counts what is lent out of the pool's own; ``overdraft`` is how many of
    those exceed its size; ``elastic`` is lent out beyond all of them.
    """

    owner: str
    size: int
    requested: int
    idle: int
    used: int
    overdraft: int
    elastic: int
    waiting: int
    available: bool
    used_by_channel: tuple[int, ...]
