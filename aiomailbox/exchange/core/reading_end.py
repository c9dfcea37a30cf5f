"""What every reader may do with its subpartition, whatever its buffers hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from aiomailbox.exchange.core.contract import DataListener
from aiomailbox.exchange.core.subpartition import ResultSubpartition

__all__ = ["ReadingEnd"]

S = TypeVar("S", bound=ResultSubpartition[Any])


class ReadingEnd(Generic[S]):
    """The end of one subpartition that is read; there is one at most.

    Args:
        subpartition: What is read.
        listener: Notified when something can be taken; about what is queued
            already only if `tell_again` is called.
        on_released: Called once, after the view was released.

    Raises:
        IllegalStateError: If the subpartition has a view already or was released.

    Concept:
        Flink, ``PipelinedSubpartitionView``.
    """

    __slots__ = ("_on_released", "_released", "_subpartition")

    def __init__(
        self,
        subpartition: S,
        listener: DataListener,
        on_released: Callable[[], None] | None = None,
    ) -> None:
        subpartition.attach(listener)
        self._subpartition = subpartition
        self._on_released = on_released
        self._released = False

    @property
    def is_released(self) -> bool:
        """Whether either side has released it."""
        return self._released or self._subpartition.is_released

    @property
    def failure(self) -> BaseException | None:
        """Why the producer released it, if it failed."""
        return self._subpartition.failure

    @property
    def backlog(self) -> int:
        """Data buffers that can be taken."""
        return self._subpartition.backlog

    @property
    def has_priority(self) -> bool:
        """Whether the next buffer is a priority event."""
        return self._subpartition.has_priority

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

    def tell_again(self) -> None:
        """Tell the listener if something can be taken now."""
        self._subpartition.tell_again()

    def release(self) -> None:
        """Release it: what is queued is recycled, what is still added is dropped."""
        if self._released:
            return
        self._released = True
        self._subpartition.detach()
        self._subpartition.release()
        if self._on_released is not None:
            self._on_released()
