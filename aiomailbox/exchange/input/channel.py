"""Input channels: one per subpartition that a gate reads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Protocol

from aiomailbox.errors import PartitionNotFoundError, StopTask
from aiomailbox.exchange.core.contract import (
    ChannelCredit,
    ChannelStatistics,
    PolledBuffer,
)
from aiomailbox.exchange.core.views import ObjectView
from aiomailbox.exchange.input.registry import PartitionRegistry
from aiomailbox.ids import PartitionId
from aiomailbox.memory.local_pool import LocalBufferPool

__all__ = [
    "ChannelListener",
    "InputChannel",
    "LocalInputChannel",
    "retry_delays_ms",
]


class ChannelListener(Protocol):
    """The gate, as its channels see it."""

    def on_channel_data(self, channel: InputChannel) -> None:
        """Be notified that a channel has something to take, an error included."""
        ...

    def on_channel_priority(self, channel: InputChannel, sequence_number: int) -> None:
        """Be notified that a channel's next buffer, of that number, has priority."""
        ...


class InputChannel:
    """Base of channels: their place in the gate, and their first error.

    Concept:
        Flink, ``InputChannel``.
    """

    index: int
    error: BaseException | None
    is_released: bool
    _gate: ChannelListener

    def __init__(self) -> None:
        self.index = 0
        self.error = None
        self.is_released = False

    def attach(self, gate: ChannelListener, index: int) -> None:
        """Take a place in a gate; called once, by the gate."""
        self._gate = gate
        self.index = index

    def request_subpartition(self) -> None:
        """Connect to the producer. An error surfaces at the next `poll`."""
        raise TypeError(f"{type(self).__name__} does not define request_subpartition")

    def poll(self) -> PolledBuffer | None:
        """Take the next buffer, or None; raises the channel's error if it has one."""
        raise TypeError(f"{type(self).__name__} does not define poll")

    @property
    def has_priority(self) -> bool:
        """Whether the next buffer is a priority event."""
        return False

    def resume_consumption(self) -> None:
        """Go on after an event that blocked upstream."""
        raise TypeError(f"{type(self).__name__} does not define resume_consumption")

    def prioritize(self, sequence_number: int) -> None:
        """Let the barrier of that number overtake what is queued before it.

        Only barriers of other processes are announced before they can be read.
        """

    def in_flight(self, checkpoint_id: int) -> list[bytes]:
        """Return what has arrived here before a checkpoint's barrier, to be kept.

        On one loop nothing is on its way: what was not taken is the producer's.
        """
        return []

    def acknowledge_all_data_processed(self) -> None:
        """Tell the producer that all its records have been processed."""

    def release(self) -> None:
        """Release the producer; recycles what is queued. Idempotent."""
        self.is_released = True

    def statistics(self) -> ChannelStatistics:
        """Return a snapshot for metrics."""
        return ChannelStatistics()

    def credit(self) -> ChannelCredit | None:
        """Return the credit of the channel for metrics; None if it needs none.

        On one loop buffers are handed over: the producer's permits are the bound.
        """
        return None

    def floating_pool(self) -> LocalBufferPool | None:
        """Return the pool that the channel borrows from with others of its gate."""
        return None

    def set_error(self, error: BaseException) -> None:
        """Let the task trip over an error at its next poll; the first one wins."""
        # The first is the cause; what follows is usually its echo.
        if self.error is None:
            self.error = error
        # As if it had data: the task trips over it where it may raise.
        self._gate.on_channel_data(self)


class LocalInputChannel(InputChannel):
    """Reads a subpartition of the same loop: buffers are handed over, not copied.

    Args:
        registry: Where the partition is found.
        partition_id: Which partition.
        subpartition_index: Which of its subpartitions.
        retry_initial_ms: First wait if the partition is not there yet; 0 never waits.
        retry_max_ms: Longest wait; after it the partition counts as missing.

    Concept:
        Flink, ``LocalInputChannel``.
    """

    def __init__(
        self,
        registry: PartitionRegistry,
        partition_id: PartitionId,
        subpartition_index: int,
        *,
        retry_initial_ms: int = 100,
        retry_max_ms: int = 10_000,
    ) -> None:
        super().__init__()
        self.partition_id = partition_id
        self.subpartition_index = subpartition_index
        self._registry = registry
        self._delays_ms = retry_delays_ms(retry_initial_ms, retry_max_ms)
        self._retry: asyncio.TimerHandle | None = None
        self._view: ObjectView | None = None

    def __repr__(self) -> str:
        return (
            f"<LocalInputChannel {self.index}: "
            f"{self.partition_id}[{self.subpartition_index}]>"
        )

    def request_subpartition(self) -> None:
        """Connect to the producer, again and again until it is there.

        A partition that never appears makes the next `poll` raise.
        """
        self._retry = None
        if self.is_released or self._view is not None:
            return
        try:
            self._view = self._registry.create_view(
                self.partition_id, self.subpartition_index, self
            )
        except PartitionNotFoundError as error:
            delay_ms = next(self._delays_ms, None)
            if delay_ms is None:
                self.set_error(error)
                return
            loop = asyncio.get_running_loop()
            self._retry = loop.call_later(delay_ms / 1000, self.request_subpartition)
            return
        except Exception as error:  # noqa: BLE001 -- in a timer it would vanish
            self.set_error(error)
            return
        # Of what was queued before the view existed, nothing was notified.
        self._view.tell_again()

    def poll(self) -> PolledBuffer | None:
        """Take the next buffer.

        Returns:
            What was taken, or None if nothing can be taken now.

        Raises:
            StopTask: If the producer has released its partition before the end.
            BaseException: The channel's own error, if it has one.
        """
        if self.error is not None:
            raise self.error
        view = self._view
        if view is None:
            return None
        polled = view.poll()
        if polled is None and view.is_released and not self.is_released:
            # No failure of this task's: the failed task reports it itself, and the job
            # names that one.
            raise StopTask(
                f"the producer of {self.partition_id} released it before its end"
            ) from view.failure
        return polled

    @property
    def has_priority(self) -> bool:
        """Whether the next buffer is a priority event."""
        view = self._view
        return view is not None and not view.is_released and view.has_priority

    def resume_consumption(self) -> None:
        """Go on after an event that blocked upstream.

        Raises:
            IllegalStateError: If nothing blocks.
        """
        view = self._view
        if view is not None and not view.is_released:
            view.resume_consumption()

    def acknowledge_all_data_processed(self) -> None:
        """Tell the producer that all its records have been processed."""
        # The partition may be gone when the last acknowledgement comes.
        if self.partition_id in self._registry:
            partition = self._registry.find(self.partition_id)
            partition.acknowledge_all_data_processed(self.subpartition_index)

    def release(self) -> None:
        """Release the producer; recycles what is queued. Idempotent."""
        self.is_released = True
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._view is not None:
            self._view.release()

    def statistics(self) -> ChannelStatistics:
        """Return a snapshot for metrics; counting what is queued takes a walk."""
        if self._view is None:
            return ChannelStatistics()
        return self._view.statistics()

    def on_data_available(self) -> None:
        """Pass on to the gate that something can be taken."""
        self._gate.on_channel_data(self)

    def on_priority_event(self, sequence_number: int) -> None:
        """Pass on to the gate that the next buffer has priority."""
        self._gate.on_channel_priority(self, sequence_number)


def retry_delays_ms(initial_ms: int, maximum_ms: int) -> Iterator[int]:
    """Yield waits that double up to a maximum, which is the last one.

    Concept:
        Flink, ``InputChannel.increaseBackoff``.

    Example:
        >>> list(retry_delays_ms(500, 3000))
        [500, 1000, 2000, 3000]
        >>> list(retry_delays_ms(0, 3000))
        []
    """
    delay_ms = min(initial_ms, maximum_ms)
    while 0 < delay_ms < maximum_ms:
        yield delay_ms
        delay_ms = min(2 * delay_ms, maximum_ms)
    if delay_ms > 0:
        yield delay_ms
