"""The aligned barrier in a queue that may still time out and overtake."""

from __future__ import annotations

from collections.abc import Iterable

from aiomailbox.errors import IllegalStateError
from aiomailbox.exchange.core.channel_state import ChannelStateWriter
from aiomailbox.exchange.frames.queue import QueuedBuffer
from aiomailbox.records.event_codec import decode_event
from aiomailbox.records.events import CheckpointBarrier

__all__ = ["PendingBarrier", "barrier_of"]


def barrier_of(item: QueuedBuffer) -> CheckpointBarrier:
    """Return the barrier that a queued event is.

    Raises:
        IllegalStateError: If it is another event: nothing else has priority or times
            out.
    """
    # A copy, for looking must not take anything from the queue.
    built = item.copy_unread()
    try:
        event = decode_event(built.readable())
    finally:
        built.recycle()
    if not isinstance(event, CheckpointBarrier):
        raise IllegalStateError(
            f"{event!r} cannot be queued with priority: only barriers overtake"
        )
    return event


class PendingBarrier:
    """Which barrier the channel state waits for; at most one at a time.

    Args:
        subpartition_index: Of the subpartition that queues it.

    Attributes:
        checkpoint_id: The barrier's checkpoint, None without one.
    """

    __slots__ = ("_subpartition_index", "checkpoint_id")

    def __init__(self, subpartition_index: int) -> None:
        self._subpartition_index = subpartition_index
        self.checkpoint_id: int | None = None

    def expect(self, writer: ChannelStateWriter, barrier: CheckpointBarrier) -> None:
        """Let the channel state wait for a barrier; an older one has failed then."""
        if self.checkpoint_id is not None:
            self.fail(
                writer,
                IllegalStateError(
                    f"checkpoint {barrier.checkpoint_id} began while the barrier of "
                    f"{self.checkpoint_id} could still time out: unaligned checkpoints "
                    "do not run concurrently"
                ),
            )
        self.checkpoint_id = barrier.checkpoint_id
        writer.expect_output_data(barrier.checkpoint_id, self._subpartition_index)

    def left(self, writer: ChannelStateWriter, barrier: CheckpointBarrier) -> None:
        """Be notified that a barrier was taken in time: it has overtaken nothing."""
        if self.checkpoint_id == barrier.checkpoint_id:
            self.complete(writer, [])

    def complete(self, writer: ChannelStateWriter, overtaken: list[bytes]) -> None:
        """Give the channel state what the barrier has overtaken."""
        checkpoint_id, self.checkpoint_id = self.checkpoint_id, None
        assert checkpoint_id is not None
        writer.complete_output_data(checkpoint_id, self._subpartition_index, overtaken)

    def fail(self, writer: ChannelStateWriter, error: BaseException) -> None:
        """End the expectation, if there is one."""
        checkpoint_id, self.checkpoint_id = self.checkpoint_id, None
        if checkpoint_id is not None:
            writer.fail_output_data(checkpoint_id, self._subpartition_index, error)

    def find(self, items: Iterable[QueuedBuffer]) -> tuple[list[bytes], QueuedBuffer]:
        """Find the barrier in the queue.

        Returns:
            The data before it, and the barrier.

        Raises:
            IllegalStateError: If it is not there, although it was not taken.
        """
        overtaken: list[bytes] = []
        for item in items:
            if item.is_data:
                overtaken.append(item.unread_bytes())
            elif (
                item.data_type.requires_announcement
                and barrier_of(item).checkpoint_id == self.checkpoint_id
            ):
                return overtaken, item
        raise IllegalStateError(
            f"the barrier of checkpoint {self.checkpoint_id} is not queued"
        )
