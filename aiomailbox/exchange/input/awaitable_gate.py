"""The part of a gate that can be awaited, shared by single and union gates."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from aiomailbox.availability import Availability
from aiomailbox.exchange.core.buffer import ObjectBuffer
from aiomailbox.exchange.core.contract import ChannelCredit, ChannelStatistics
from aiomailbox.memory import PoolStatistics
from aiomailbox.records import StopMode

__all__ = ["Gate"]


class Gate(ABC):
    """What a task reads: polled without waiting, awaited, or iterated.

    Attributes:
        availability: True while `poll_next` is worth calling, and for ever once the
            gate is finished or closed.
        priority_availability: True while a priority event is the next buffer.
        debloated_buffer_size_bytes: The size of buffers that producers were asked for,
            None if they were asked for none.

    Concept:
        Flink, ``InputGate``.
    """

    availability: Availability
    priority_availability: Availability
    # Only a gate whose buffers are bytes has them made smaller.
    debloated_buffer_size_bytes: int | None = None

    @property
    @abstractmethod
    def channel_count(self) -> int:
        """Number of channels."""

    @property
    @abstractmethod
    def is_finished(self) -> bool:
        """Whether every channel has come to the end of its partition."""

    @property
    @abstractmethod
    def end_of_data(self) -> StopMode | None:
        """How data ended, or None while some channel still has data to come.

        It ended with `StopMode.DRAIN` only if it did so on every channel.
        """

    @abstractmethod
    def request_partitions(self) -> None:
        """Connect every channel to its producer; an error surfaces at a poll."""

    @abstractmethod
    def poll_next(self) -> tuple[int, ObjectBuffer] | None:
        """Take the next buffer and the index of its channel, or None."""

    @abstractmethod
    def resume_consumption(self, channel_index: int) -> None:
        """Go on reading a channel after an event that blocked upstream."""

    @abstractmethod
    def acknowledge_all_data_processed(self, channel_index: int) -> None:
        """Tell a channel's producer that all its records have been processed."""

    @abstractmethod
    def statistics(self) -> list[ChannelStatistics]:
        """Return a snapshot per channel, in order."""

    def credits(self) -> list[ChannelCredit | None]:
        """Return each channel's credit for metrics, None for one that needs none."""
        return [None] * self.channel_count

    def pools(self) -> list[PoolStatistics]:
        """Return the pools of the gate's own; on one loop it has none."""
        return []

    @abstractmethod
    def close(self) -> None:
        """Release every channel and wake whoever waits. Idempotent."""

    def available(self) -> asyncio.Future[None]:
        """Return a fresh future that completes when polling is worth it.

        Cancelling it affects no other waiter. Whoever was woken looks again.
        """
        return self.availability.waiter()

    def __aiter__(self) -> Gate:
        return self

    async def __anext__(self) -> tuple[int, ObjectBuffer]:
        """Wait for the next buffer; whoever iterates recycles it.

        Ends when the gate is finished.
        """
        while (item := self.poll_next()) is None:
            if self.is_finished:
                raise StopAsyncIteration
            await self.availability.wait()
        return item
