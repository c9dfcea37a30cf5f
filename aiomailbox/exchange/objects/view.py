"""What a consumer on this loop may do with a subpartition."""

from __future__ import annotations

from aiomailbox.exchange.core.contract import ChannelStatistics, PolledBuffer
from aiomailbox.exchange.core.reading_end import ReadingEnd
from aiomailbox.exchange.objects.subpartition import PipelinedSubpartition

__all__ = ["SubpartitionView"]


class SubpartitionView(ReadingEnd[PipelinedSubpartition]):
    """A consumer's end of one subpartition; see `ReadingEnd`."""

    __slots__ = ()

    def poll(self) -> PolledBuffer | None:
        """Take the next buffer, or None; the caller recycles it."""
        return self._subpartition.poll()

    def statistics(self) -> ChannelStatistics:
        """Return a snapshot for metrics; counting what is queued takes a walk."""
        return self._subpartition.statistics()
