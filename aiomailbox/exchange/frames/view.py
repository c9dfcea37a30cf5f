"""What a remote reader may do with a subpartition of bytes."""

from __future__ import annotations

from collections.abc import Callable

from aiomailbox.exchange.core.contract import DataListener, PolledBytes
from aiomailbox.exchange.core.reading_end import ReadingEnd
from aiomailbox.exchange.frames.subpartition import BytesSubpartition

__all__ = ["BytesSubpartitionView"]


class BytesSubpartitionView(ReadingEnd[BytesSubpartition]):
    """The end of one subpartition that a connection reads; see `ReadingEnd`.

    Args:
        subpartition: What is read.
        listener: Notified when something can be taken; about what is queued
            already it is not notified.
        on_acknowledged: Called when the reader has processed all records.
        on_released: Called once, after the view was released.
    """

    __slots__ = ("_on_acknowledged",)

    def __init__(
        self,
        subpartition: BytesSubpartition,
        listener: DataListener,
        *,
        on_acknowledged: Callable[[], None],
        on_released: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(subpartition, listener, on_released)
        self._on_acknowledged = on_acknowledged

    def poll(self) -> PolledBytes | None:
        """Take the next buffer, or None; the caller recycles it."""
        return self._subpartition.poll()

    def acknowledge_all_data_processed(self) -> None:
        """Be notified that the reader has processed all records."""
        self._on_acknowledged()

    def set_buffer_bytes(self, size_bytes: int) -> None:
        """Be notified of the reader's wish for the size of buffers.

        Raises:
            InvalidArgumentError: If it is less than 1.
        """
        self._subpartition.set_buffer_bytes(size_bytes)
