"""The data in flight that belongs to a task's unaligned checkpoints.

Theory of operation: a checkpoint's data is collected while its barriers overtake: at the
outputs what a barrier jumped over, at the inputs what came before the barriers that are
still missing. It is complete when every input has its barrier and no output's barrier
can time out any more; the task acknowledges the checkpoint after that. Only one
checkpoint collects at a time, for unaligned ones do not run concurrently.

Concept:
    Flink, ``ChannelStateWriter`` and ``ChannelStateCheckpointWriter``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from aiomailbox.availability import Availability
from aiomailbox.exchange.frames.mixed_partition import MixedResultPartition
from aiomailbox.exchange.objects.partition import ResultPartition
from aiomailbox.exchange.writer import RecordWriter
from aiomailbox.records.element_codec import ElementCodec

__all__ = ["ChannelState", "ChannelStates", "OutputState", "TaskChannels"]

ChannelState: TypeAlias = dict[str, tuple[bytes, ...]]


@dataclass(frozen=True, slots=True)
class TaskChannels:
    """What a task needs in order to keep data in flight.

    Attributes:
        codec: For the elements of all its channels.
        inputs: The names of each gate's channels.
        outputs: The names of each writer's channels.
        may_overtake: Of each writer whether barriers may overtake there.
    """

    codec: ElementCodec
    inputs: Sequence[Sequence[str]]
    outputs: Sequence[Sequence[str]]
    may_overtake: Sequence[bool]


class _Collection:
    """The data of one checkpoint, and what of it is still to come."""

    __slots__ = ("complete", "data", "error", "missing")

    def __init__(self) -> None:
        self.data: dict[str, list[bytes]] = {}
        self.missing: set[str] = set()
        self.error: BaseException | None = None
        self.complete = Availability(available=True)

    def settle(self) -> None:
        is_complete = not self.missing or self.error is not None
        if is_complete and not self.complete.available:
            self.complete.set_available()
        elif not is_complete and self.complete.available:
            self.complete.reset()


class ChannelStates:
    """Collects what a task keeps of its channels, checkpoint by checkpoint."""

    def __init__(self) -> None:
        self._current: tuple[int, _Collection] | None = None

    def add(self, checkpoint_id: int, channel: str, data: list[bytes]) -> None:
        """Keep data of a channel, behind what was kept of it."""
        found = self._collection(checkpoint_id)
        if found is not None:
            found.data.setdefault(channel, []).extend(data)

    def expect(self, checkpoint_id: int, what: str) -> None:
        """Wait for something before the data is complete."""
        found = self._collection(checkpoint_id)
        if found is not None:
            found.missing.add(what)
            found.settle()

    def settle(self, checkpoint_id: int, what: str) -> None:
        """Wait no more for something."""
        found = self._collection(checkpoint_id)
        if found is not None:
            found.missing.discard(what)
            found.settle()

    def fail(self, checkpoint_id: int, error: BaseException) -> None:
        """Give up a checkpoint's data; the first error counts."""
        found = self._collection(checkpoint_id)
        if found is not None:
            found.error = found.error or error
            found.data.clear()
            found.settle()

    async def collected(self, checkpoint_id: int) -> ChannelState:
        """Wait until a checkpoint's data is complete, and return and forget it.

        Raises whatever it was failed with.
        """
        found = self._collection(checkpoint_id)
        if found is None:
            return {}
        await found.complete.wait()
        self.drop(checkpoint_id)
        if found.error is not None:
            raise found.error
        return {name: tuple(data) for name, data in found.data.items() if data}

    def drop(self, checkpoint_id: int) -> None:
        """Forget a checkpoint's data: it was aborted."""
        if self._current is not None and self._current[0] == checkpoint_id:
            self._current = None

    def begin(self, checkpoint_id: int) -> None:
        """Collect for a checkpoint from now on, unless it is collected for already."""
        # Ids only grow; one that is older than what is collected was given up.
        if self._current is None or self._current[0] < checkpoint_id:
            self._current = (checkpoint_id, _Collection())

    def _collection(self, checkpoint_id: int) -> _Collection | None:
        current = self._current
        return current[1] if current and current[0] == checkpoint_id else None


class OutputState:
    """One writer's part of the data in flight: its partition gives it.

    Args:
        states: Where it is collected.
        writer: The writer.
        names: Of its channels, in order.
        codec: For its elements.
        may_overtake: Whether barriers may overtake here.

    Attributes:
        may_overtake: As given; False from the first record on that cannot be kept.
    """

    def __init__(
        self,
        states: ChannelStates,
        writer: RecordWriter,
        names: Sequence[str],
        codec: ElementCodec,
        *,
        may_overtake: bool,
    ) -> None:
        self.writer: RecordWriter = writer
        self._states = states
        self._names = names
        self._partition: ResultPartition | MixedResultPartition | None = None
        partition = writer.partition
        if may_overtake and isinstance(
            partition, ResultPartition | MixedResultPartition
        ):
            self._partition = partition
            partition.keep_in_flight(self, codec)
        self.may_overtake: bool = self._partition is not None

    def time_out_barrier(self, checkpoint_id: int) -> None:
        """Let the barrier of a checkpoint overtake wherever it is still queued.

        Raises:
            WrongTypeError: If it would overtake a record that cannot be kept.
        """
        if self._partition is not None and self.may_overtake:
            self._partition.time_out_barrier(checkpoint_id)

    def abort_checkpoint(self, checkpoint_id: int, cause: BaseException) -> None:
        """Wait for the barrier of a checkpoint no more."""
        if self._partition is not None:
            self._partition.abort_checkpoint(checkpoint_id, cause)

    def add_output_data(
        self, checkpoint_id: int, subpartition_index: int, data: list[bytes]
    ) -> None:
        """Keep data that an unaligned barrier has overtaken."""
        self._states.add(checkpoint_id, self._names[subpartition_index], data)

    def expect_output_data(self, checkpoint_id: int, subpartition_index: int) -> None:
        """Wait: a queued barrier may still time out and overtake data."""
        self._states.expect(checkpoint_id, self._names[subpartition_index])

    def complete_output_data(
        self, checkpoint_id: int, subpartition_index: int, data: list[bytes]
    ) -> None:
        """Keep what the expected barrier has overtaken: nothing if it was in time."""
        name = self._names[subpartition_index]
        self._states.add(checkpoint_id, name, data)
        self._states.settle(checkpoint_id, name)

    def fail_output_data(
        self, checkpoint_id: int, subpartition_index: int, error: BaseException
    ) -> None:
        """Stop waiting: the barrier will neither be taken nor overtake."""
        self._states.fail(checkpoint_id, error)
