"""What a reader elsewhere may do with a subpartition of bytes."""

from __future__ import annotations

from collections.abc import Callable

from aiomailbox.exchange.bytes_subpartition import BytesSubpartition, PolledBytes
from aiomailbox.exchange.contract import DataListener

__all__ = ["BytesSubpartitionView"]


class BytesSubpartitionView:
    """The end of one subpartition that a connection reads; there is one at most.

    Args:
        subpartition: What is read.
        listener: Who is told when something can be taken; about what is queued
            already it is not told.
        on_acknowledged: Called when the reader has processed all records.
        on_released: Called once, after the view let go.

    Raises:
        IllegalStateError: If the subpartition has a view already or was released.

    Concept:
        Flink, ``PipelinedSubpartitionView``.
    """

    __slots__ = (
        "_has_let_go",
        "_on_acknowledged",
        "_on_released",
        "_subpartition",
        "poll",
    )

    def __init__(
        self,
        subpartition: BytesSubpartition,
        listener: DataListener,
        *,
        on_acknowledged: Callable[[], None],
        on_released: Callable[[], None] | None = None,
    ) -> None:
        subpartition.attach(listener)
        self._subpartition = subpartition
        self._on_acknowledged = on_acknowledged
        self._on_released = on_released
        self._has_let_go = False
        self.poll: Callable[[], PolledBytes | None] = subpartition.poll

    @property
    def is_released(self) -> bool:
        """Whether either side has let go."""
        return self._has_let_go or self._subpartition.is_released

    @property
    def failure(self) -> BaseException | None:
        """Why the producer let go, if it failed."""
        return self._subpartition.failure

    @property
    def backlog(self) -> int:
        """Data buffers that can be taken."""
        return self._subpartition.backlog

    def is_available(self, *, has_credit: bool = True) -> bool:
        """Say whether something can be taken; without credit only an event can."""
        return self._subpartition.is_available(has_credit=has_credit)

    def resume_consumption(self) -> None:
        """Lift the block of an event, and tell the listener what came meanwhile.

        Raises:
            IllegalStateError: If nothing blocks.
        """
        self._subpartition.resume_consumption()
        self._subpartition.tell_again()

    def acknowledge_all_data_processed(self) -> None:
        """Take note that the reader has processed all records."""
        self._on_acknowledged()

    def set_buffer_bytes(self, size_bytes: int) -> None:
        """Take note of the reader's wish for the size of buffers.

        Raises:
            InvalidArgumentError: If it is less than 1.
        """
        self._subpartition.set_buffer_bytes(size_bytes)

    def release(self) -> None:
        """Let go: what is queued is recycled, what is still added is dropped."""
        if self._has_let_go:
            return
        self._has_let_go = True
        self._subpartition.detach()
        self._subpartition.release()
        if self._on_released is not None:
            self._on_released()
