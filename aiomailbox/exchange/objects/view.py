"""What a consumer on this loop may do with a subpartition."""

from __future__ import annotations

from collections.abc import Callable

from aiomailbox.exchange.core.contract import (
    ChannelStatistics,
    DataListener,
    PolledBuffer,
)
from aiomailbox.exchange.core.reading_end import ReadingEnd
from aiomailbox.exchange.objects.subpartition import PipelinedSubpartition

__all__ = ["SubpartitionView"]


class SubpartitionView(ReadingEnd[PipelinedSubpartition]):
    """A consumer's end of one subpartition; see `ReadingEnd`."""

    __slots__ = ("poll",)

    def __init__(
        self,
        subpartition: PipelinedSubpartition,
        listener: DataListener,
        on_released: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(subpartition, listener, on_released)
        self.poll: Callable[[], PolledBuffer | None] = subpartition.poll

    def statistics(self) -> ChannelStatistics:
        """Return a snapshot for metrics; counting what is queued takes a walk."""
        return self._subpartition.statistics()
