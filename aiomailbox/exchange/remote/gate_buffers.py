"""The segments that a gate's remote channels receive into."""

from __future__ import annotations

from collections.abc import Callable

from aiomailbox.errors import (
    IllegalStateError,
    InsufficientBuffersError,
    InvalidArgumentError,
)
from aiomailbox.exchange.remote.credit import ChannelBuffers
from aiomailbox.memory.local_pool import LocalBufferPool
from aiomailbox.memory.network_pool import NetworkBufferPool
from aiomailbox.memory.segment import MemorySegment

__all__ = ["GateBuffers"]


class GateBuffers:
    """Exclusive segments for each remote channel of a gate, and a floating pool for all.

    When the last channel has released it, everything returns to the global pool by itself;
    `close` is for a gate that was never read.

    Args:
        memory: The global pool.
        channels: How many remote channels there are, at least 1.
        exclusive_per_channel: Segments that a channel keeps for itself. With none, a
            channel has to ask for each.
        floating: Segments that the channels borrow at most together, at least 1.
        owner: Whose they are, for messages and leak reports.

    Attributes:
        pool: The floating segments.

    Raises:
        InsufficientBuffersError: If the global pool has not enough.

    Concept:
        Flink, ``SingleInputGate.setupChannels`` and ``BufferPoolFactory``.

    Example:
        >>> memory = NetworkBufferPool(16)
        >>> buffers = GateBuffers(memory, 2, owner="window.0")
        >>> memory.available_segments  # two exclusive ones each, one floating
        11
        >>> buffers.close()
        >>> memory.available_segments
        16
    """

    __slots__ = ("_exclusive_per_channel", "_memory", "_unclaimed", "_users", "pool")

    def __init__(
        self,
        memory: NetworkBufferPool,
        channels: int,
        *,
        exclusive_per_channel: int = 2,
        floating: int = 8,
        owner: str = "",
    ) -> None:
        for name, value, minimum in (
            ("channels", channels, 1),
            ("exclusive_per_channel", exclusive_per_channel, 0),
            ("floating", floating, 1),
        ):
            if value < minimum:
                raise InvalidArgumentError(name, f"{value} is less than {minimum}")
        count = channels * exclusive_per_channel
        # Asked for now and not waited for: a gate is made while its job is built, where
        # an error can still say what is missing.
        unclaimed = memory.try_request_unpooled(count)
        if unclaimed is None:
            raise InsufficientBuffersError(
                f"the gate of {owner!r} needs {count} segments for its {channels} "
                f"remote channels, and {memory.available_segments} are free"
            )
        try:
            self.pool: LocalBufferPool = memory.create_local_pool(
                1, floating, owner=owner
            )
        except InsufficientBuffersError:
            memory.recycle_unpooled(unclaimed)
            raise
        self._memory = memory
        self._unclaimed = unclaimed
        self._exclusive_per_channel = exclusive_per_channel
        self._users = channels

    def claim(self, on_credit: Callable[[], None]) -> ChannelBuffers:
        """Return the buffers of one more channel, which calls `release` in the end.

        Args:
            on_credit: See `ChannelBuffers`.

        Raises:
            IllegalStateError: If all channels have theirs, or these were closed.
        """
        count = self._exclusive_per_channel
        if self.pool.is_destroyed or len(self._unclaimed) < count:
            raise IllegalStateError(
                f"the gate of {self.pool.owner!r} has no buffers for another channel"
            )
        exclusive = [self._unclaimed.pop() for _ in range(count)]
        return ChannelBuffers(
            self.pool,
            exclusive,
            on_credit=on_credit,
            return_exclusive=self._return_exclusive,
        )

    def release(self) -> None:
        """Be notified that a channel was released; the last one closes."""
        self._users -= 1
        if not self._users:
            self.close()

    def close(self) -> None:
        """Lend nothing more, and return what no channel has. Idempotent."""
        unclaimed, self._unclaimed = self._unclaimed, []
        if unclaimed:
            self._return_exclusive(unclaimed)
        self.pool.lazy_destroy()

    def _return_exclusive(self, segments: list[MemorySegment]) -> None:
        self._memory.recycle_unpooled(segments)
