"""Who is given the data in flight that belongs to a checkpoint."""

from __future__ import annotations

from typing import Final, Protocol

from aiomailbox.memory import ReadOnlySlice

__all__ = ["NO_CHANNEL_STATE", "ChannelStateWriter"]


class ChannelStateWriter(Protocol):
    """Keeps output that a barrier has overtaken; every buffer given is its to recycle.

    Concept:
        Flink, ``ChannelStateWriter``; its futures are `expect_output_data` and one of
        the two calls that end the expectation.
    """

    def add_output_data(
        self, checkpoint_id: int, subpartition_index: int, buffers: list[ReadOnlySlice]
    ) -> None:
        """Keep buffers that an unaligned barrier has overtaken."""
        ...

    def expect_output_data(self, checkpoint_id: int, subpartition_index: int) -> None:
        """Wait: a queued barrier may still time out and overtake buffers."""
        ...

    def complete_output_data(
        self, checkpoint_id: int, subpartition_index: int, buffers: list[ReadOnlySlice]
    ) -> None:
        """Keep what the expected barrier has overtaken: nothing if it was in time."""
        ...

    def fail_output_data(
        self, checkpoint_id: int, subpartition_index: int, error: BaseException
    ) -> None:
        """Stop waiting: the barrier will neither be taken nor overtake."""
        ...


class _NoChannelState:
    """Releases everything: for jobs that keep no data in flight."""

    def add_output_data(
        self, checkpoint_id: int, subpartition_index: int, buffers: list[ReadOnlySlice]
    ) -> None:
        for buffer in buffers:
            buffer.recycle()

    def expect_output_data(self, checkpoint_id: int, subpartition_index: int) -> None:
        pass

    complete_output_data = add_output_data

    def fail_output_data(
        self, checkpoint_id: int, subpartition_index: int, error: BaseException
    ) -> None:
        pass


NO_CHANNEL_STATE: Final[ChannelStateWriter] = _NoChannelState()
