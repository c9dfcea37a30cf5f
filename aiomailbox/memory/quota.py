"""How many segments each channel holds, and how many channels are at their quota."""

from __future__ import annotations

__all__ = ["ChannelQuota"]


class ChannelQuota:
    """A soft bound per channel: it decides about availability, not about grants.

    Args:
        channels: Number of channels that are counted.
        per_channel_max: Segments that put a channel at its quota; None for no quota.

    Invariants:
        ``at_quota`` is the number of channels with ``used >= per_channel_max``.

    Example:
        >>> quota = ChannelQuota(2, 1)
        >>> quota.count_up(0)
        >>> quota.at_quota
        1
    """

    __slots__ = ("_per_channel_max", "at_quota", "used")

    def __init__(self, channels: int, per_channel_max: int | None) -> None:
        self._per_channel_max = per_channel_max
        self.used: list[int] = [0] * channels
        self.at_quota: int = 0

    def count_up(self, channel: int | None) -> None:
        """Count one more segment for a channel; None counts for none."""
        if channel is not None:
            used = self.used[channel] + 1
            self.used[channel] = used
            if used == self._per_channel_max:
                self.at_quota += 1

    def count_down(self, channel: int | None) -> None:
        """Count one segment less for a channel; None counts for none."""
        if channel is not None:
            used = self.used[channel]
            self.used[channel] = used - 1
            if used == self._per_channel_max:
                self.at_quota -= 1
