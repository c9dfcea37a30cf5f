"""State and data in flight of a task, as one checkpoint holds them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeAlias

from aiomailbox.availability import Availability
from aiomailbox.barriers.handler import AlignmentStatistics
from aiomailbox.barriers.machine import ChannelInfo
from aiomailbox.clock import Clock
from aiomailbox.errors import (
    CheckpointDeclinedError,
    IllegalStateError,
    InFlightRecordsError,
    InvalidArgumentError,
    RejectedMailError,
    WrongTypeError,
)
from aiomailbox.eventtime.valve import ValveSnapshot
from aiomailbox.exchange.core.contract import encode_in_flight
from aiomailbox.exchange.input.gate import InputGate
from aiomailbox.exchange.partition import ResultPartition
from aiomailbox.exchange.writer import RecordWriter
from aiomailbox.ids import OperatorId
from aiomailbox.mailbox.executor import MailboxExecutor
from aiomailbox.mailbox.mail import MailOptions
from aiomailbox.operators.core.operator import Pending
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.records import Element
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.events import CancelCheckpoint, CheckpointBarrier

# The data in flight that belongs to a task's unaligned checkpoints.
#
# Theory of operation: a checkpoint's data is collected while its barriers overtake: at
# the outputs what a barrier jumped over, at the inputs what came before the barriers
# that are still missing. It is complete when every input has its barrier and no
# output's barrier can time out any more; the task acknowledges the checkpoint after
# that. Only one checkpoint collects at a time, for unaligned ones do not run
# concurrently.
#
# Concept:
#     Flink, ``ChannelStateWriter`` and ``ChannelStateCheckpointWriter``.


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
        self._partition: ResultPartition | None = None
        partition = writer.partition
        if may_overtake and isinstance(partition, ResultPartition):
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


# Barriers that leave a task, on edges where they may overtake and on others.
#
# Theory of operation: on each edge a barrier goes as it is wished, or forced to align:
# where no barrier may overtake, and where one would overtake records that cannot be
# kept. The receiver restores the wish there. A barrier that waits in the queue for its
# alignment overtakes when its time is over.
#
# Concept:
#     Flink, ``CheckpointOptions.forceAligned`` and the output timer of
#     ``SubtaskCheckpointCoordinatorImpl``.


# What a record that has no form as bytes makes of its encoding.
_NOT_KEPT = (WrongTypeError, InvalidArgumentError)


class OutputBarriers:
    """Sends barriers to all outputs of a task, and keeps what they overtake.

    Args:
        channels: The names of the channels, and which barriers may overtake on.
        writers: The outputs.
        states: Where the data is collected.
        mailbox: Where the end of a barrier's time is mail.
        clock: Measures that time.
        log: Gets one warning per edge whose records cannot be kept.
    """

    def __init__(
        self,
        channels: TaskChannels,
        writers: Sequence[RecordWriter],
        states: ChannelStates,
        mailbox: MailboxExecutor,
        clock: Clock,
        log: Any,
    ) -> None:
        self._states = states
        self._mailbox = mailbox
        self._clock = clock
        self._log = log
        self._timer: asyncio.TimerHandle | None = None
        self._outputs = [
            OutputState(
                states, writer, names, channels.codec, may_overtake=may_overtake
            )
            for writer, names, may_overtake in zip(
                writers, channels.outputs, channels.may_overtake, strict=True
            )
        ]

    def broadcast(self, barrier: CheckpointBarrier) -> None:
        """Send a barrier to every output."""
        if barrier.needs_channel_state:
            self._states.begin(barrier.checkpoint_id)
        for output in self._outputs:
            self._send(output, barrier)
        if barrier.is_timeoutable and self._outputs:
            self._set_timer(barrier)

    async def collected(self, checkpoint_id: int) -> ChannelState:
        """Wait until the data of a checkpoint is complete, and return it."""
        return await self._states.collected(checkpoint_id)

    def abort(self, checkpoint_id: int) -> None:
        """Keep nothing for a checkpoint any more."""
        cause = CheckpointDeclinedError(checkpoint_id, "it was aborted")
        for output in self._outputs:
            output.abort_checkpoint(checkpoint_id, cause)
        self._states.drop(checkpoint_id)

    def close(self) -> None:
        """Let no barrier time out any more."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _send(self, output: OutputState, barrier: CheckpointBarrier) -> None:
        if not barrier.needs_channel_state:
            output.writer.broadcast_event(barrier)
            return
        if output.may_overtake:
            try:
                output.writer.broadcast_event(barrier)
            except _NOT_KEPT as error:
                self._align_from_now_on(output, error)
            else:
                return
        output.writer.broadcast_event(barrier.as_forced_aligned())

    def _align_from_now_on(self, output: OutputState, error: BaseException) -> None:
        output.may_overtake = False
        self._log.warning(
            "barriers do not overtake on an edge: its records cannot be serialized",
            edge=output.writer.partitioner.name,
            partition=str(output.writer.partition.partition_id),
            error=str(error),
        )

    def _set_timer(self, barrier: CheckpointBarrier) -> None:
        self.close()
        due_ms = barrier.timestamp_ms + barrier.aligned_timeout_ms
        delay_ms = max(0, due_ms - self._clock.now_ms())
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(
            delay_ms / 1000, self._send_timeout, barrier.checkpoint_id
        )

    def _send_timeout(self, checkpoint_id: int) -> None:
        self._timer = None
        # A mailbox that takes no more mail needs no timeout.
        try:
            self._mailbox.execute(
                self._on_timeout,
                checkpoint_id,
                description="end of a barrier's time",
                options=MailOptions.URGENT,
            )
        except RejectedMailError:
            return

    def _on_timeout(self, checkpoint_id: int) -> None:
        for output in self._outputs:
            try:
                output.time_out_barrier(checkpoint_id)
            except _NOT_KEPT as error:
                self._align_from_now_on(output, error)


# What one task resumes from: the snapshots of its operators, and its inputs' times.


# The number of a checkpoint, and what a sink's writer prepared for it.
Prepared = tuple[int, Any]


@dataclass(frozen=True, slots=True)
class TaskSnapshot:
    """What a subtask's operators resume from, wherever chaining has put them.

    Attributes:
        operators: By the id of the operator. Those that a task does not have are left
            alone; an operator without a snapshot begins anew.
        inputs: For each input of an operator that was the head of its task, how far
            event time had come on its channels.
        committables: Per sink what its writer has prepared and is not committed yet,
            each with the number of the checkpoint that it was prepared for.
        is_finished: Whether the task had nothing more to do but to wait.
        channel_state: The buffers that the barrier of an unaligned checkpoint
            overtook, in order, by the name of their channel.

    Example:
        >>> TaskSnapshot().operators
        {}
    """

    operators: Mapping[OperatorId, OperatorSnapshot] = field(default_factory=dict)
    inputs: Mapping[OperatorId, tuple[ValveSnapshot, ...]] = field(default_factory=dict)
    committables: Mapping[OperatorId, tuple[Prepared, ...]] = field(
        default_factory=dict
    )
    is_finished: bool = False
    channel_state: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict)


# What a task does with a checkpoint: barrier on, state captured, result said.
#
# Theory of operation: `SubtaskCheckpoints.perform` runs on the mailbox, so that no
# record, timer or mail comes between its steps: operators emit what belongs before the
# barrier, the barrier leaves, and only then is the state captured, on the loop. It is
# written off the loop, by a coroutine of its own that says at the end how it went: with
# the data in flight of an unaligned checkpoint, once that is complete. Numbers only
# grow; one that is late, or was aborted before it came, is not performed.
#
# Concept:
#     Flink, ``SubtaskCheckpointCoordinatorImpl``.


# Flink's number. Aborts of checkpoints that never come here must not pile up.
_ABORTED_MAX: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatistics:
    """What one checkpoint took at one task.

    Attributes:
        start_delay_ms: From the trigger at the coordinator to the first barrier.
        alignment_ms: From the first barrier to the last.
        alignment_bytes: What was read meanwhile.
        sync_ms: How long the task stood still to capture its state.
        async_ms: How long it took to write that.

    Concept:
        Flink, ``CheckpointMetrics``.
    """

    start_delay_ms: float = 0.0
    alignment_ms: float = 0.0
    alignment_bytes: int = 0
    sync_ms: float = 0.0
    async_ms: float = 0.0


class CheckpointedChain(Protocol):
    """What a checkpoint needs of a task's operators."""

    async def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        """Let the operators emit what must precede a barrier, head first."""
        ...

    async def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Notify the operators, tail first; all are notified, the first error is raised."""
        ...

    async def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Notify the operators, tail first; all are notified, the first error is raised."""
        ...


class CheckpointResponder(Protocol):
    """Keeps a task's snapshots, and notifies the coordinator."""

    async def write(self, barrier: CheckpointBarrier, snapshot: TaskSnapshot) -> Any:
        """Write a snapshot off the loop; return what finds it again."""
        ...

    def acknowledge(
        self, checkpoint_id: int, written: Any, statistics: TaskStatistics
    ) -> None:
        """Say that the task's part is complete, and what it took."""
        ...

    def decline(self, checkpoint_id: int, error: BaseException) -> None:
        """Say that the task has no part in a checkpoint, and why."""
        ...


class SubtaskCheckpoints:
    """The checkpoints of one task; every method runs on its mailbox.

    Args:
        chain: The task's operators.
        capture: Returns their state as it is now.
        writers: The task's outputs.
        responder: Keeps the snapshots.
        clock: Measures what they take.
        spawn: Starts a coroutine that the task owns, and returns how to cancel it.
        outputs: Sends barriers where they may overtake; None where none ever does.
        aborted_max: How many aborted checkpoints that have not come are remembered.

    Attributes:
        last_id: The newest checkpoint that came here, -1 before the first.
        completed_id: The newest one that is known to be complete, -1 before the first.
    """

    def __init__(
        self,
        chain: CheckpointedChain,
        capture: Callable[[], TaskSnapshot],
        writers: Sequence[RecordWriter],
        responder: CheckpointResponder,
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None]], Callable[[], object]],
        *,
        outputs: OutputBarriers | None = None,
        restored_id: int = -1,
        aborted_max: int = _ABORTED_MAX,
    ) -> None:
        self.last_id: int = restored_id
        self.completed_id: int = restored_id
        self._chain = chain
        self._capture = capture
        self._writers = writers
        self._outputs = outputs
        self._responder = responder
        self._clock = clock
        self._spawn = spawn
        self._aborted_max = aborted_max
        # In the order they were aborted; none is at or before `last_id`.
        self._aborted: dict[int, None] = {}
        self._idle: list[Callable[[], None]] = []
        self._writing: dict[int, Callable[[], object]] = {}

    @property
    def aborted_ids(self) -> list[int]:
        """The checkpoints that were aborted and have not come."""
        return list(self._aborted)

    @property
    def is_writing(self) -> bool:
        """Whether snapshots are on their way to where they are kept."""
        return bool(self._writing)

    async def perform(
        self, barrier: CheckpointBarrier, alignment: AlignmentStatistics | None = None
    ) -> bool:
        """Take a checkpoint now.

        Args:
            barrier: What the task is to do.
            alignment: How its barriers met, if there were several.

        Returns:
            Whether a snapshot was taken; False for one that is late or was aborted.

        Raises whatever an operator raises before the barrier has left; the task cannot
        go on then. A snapshot that fails is declined.
        """
        checkpoint_id = barrier.checkpoint_id
        if checkpoint_id <= self.last_id:
            return False
        self.last_id = checkpoint_id
        was_aborted = checkpoint_id in self._aborted
        self._forget_aborted()
        if was_aborted:
            # A reader of this output may have the barriers of others already.
            self._broadcast(CancelCheckpoint(checkpoint_id))
            return False
        # What operators emit here belongs to this checkpoint: it leaves before the barrier.
        await self._chain.prepare_snapshot_pre_barrier(checkpoint_id)
        # No await from the barrier to the capture: no record comes between the two. The
        # barrier is first, so that consumers need not wait for the capture.
        if self._outputs is None:
            self._broadcast(barrier)
        else:
            self._outputs.broadcast(barrier.with_wish_restored())
        started_s = self._clock.monotonic()
        try:
            snapshot = self._capture()
        except Exception as error:  # noqa: BLE001 -- the coordinator decides
            self._drop_in_flight(checkpoint_id)
            self._responder.decline(checkpoint_id, error)
            return False
        sync_ms = (self._clock.monotonic() - started_s) * 1000
        statistics = _statistics(barrier, alignment, sync_ms)
        # The coroutine may be done before its canceller is known here.
        self._writing[checkpoint_id] = _nothing
        cancel = self._spawn(self._write(barrier, snapshot, statistics))
        if checkpoint_id in self._writing:
            self._writing[checkpoint_id] = cancel
        return True

    def decline(self, checkpoint_id: int, error: BaseException) -> None:
        """Refuse a checkpoint, so that no task downstream waits for its barrier."""
        if checkpoint_id > self.last_id:
            self.last_id = checkpoint_id
            self._forget_aborted()
            self._broadcast(CancelCheckpoint(checkpoint_id))
        # Its data in flight will not be complete.
        cancel = self._end_writing(checkpoint_id)
        if cancel is not None:
            cancel()
        self._drop_in_flight(checkpoint_id)
        self._responder.decline(checkpoint_id, error)

    def notify_complete(self, checkpoint_id: int) -> Pending:
        """Be notified that a checkpoint is complete; one older than known is ignored."""
        if checkpoint_id <= self.completed_id:
            return None
        self.completed_id = checkpoint_id
        return self._chain.notify_checkpoint_complete(checkpoint_id)

    def notify_aborted(self, checkpoint_id: int, latest_completed_id: int) -> Pending:
        """Be notified that a checkpoint will not complete, and which one did before."""
        if checkpoint_id <= self.completed_id:
            return None
        cancel = self._end_writing(checkpoint_id)
        if cancel is not None:
            cancel()
            self._drop_in_flight(checkpoint_id)
        elif checkpoint_id > self.last_id:
            # Others need no mark: what is not newer than `last_id` is refused by its
            # number.
            self._aborted[checkpoint_id] = None
            while len(self._aborted) > self._aborted_max:
                del self._aborted[next(iter(self._aborted))]
        return self._aborted_after(checkpoint_id, latest_completed_id)

    def when_written(self, callback: Callable[[], None]) -> None:
        """Call back once, when no snapshot is on its way any more."""
        if self._writing:
            self._idle.append(callback)
        else:
            callback()

    def close(self) -> None:
        """Cancel what is being written."""
        for cancel in self._writing.values():
            cancel()
        self._writing.clear()
        if self._outputs is not None:
            self._outputs.close()

    async def _aborted_after(self, checkpoint_id: int, latest_id: int) -> None:
        # The notification of that one may have been lost; an abort makes up for it, as
        # in Flink.
        completed = self.notify_complete(latest_id) if latest_id > 0 else None
        if completed is not None:
            await completed
        if checkpoint_id > self.completed_id:
            await self._chain.notify_checkpoint_aborted(checkpoint_id)

    async def _write(
        self,
        barrier: CheckpointBarrier,
        snapshot: TaskSnapshot,
        statistics: TaskStatistics,
    ) -> None:
        checkpoint_id = barrier.checkpoint_id
        started_s = self._clock.monotonic()
        try:
            if self._outputs is not None:
                in_flight = await self._outputs.collected(checkpoint_id)
                snapshot = replace(snapshot, channel_state=in_flight)
            written = await self._responder.write(barrier, snapshot)
        except asyncio.CancelledError:
            # The canceller has taken it out of `_writing` already.
            raise
        except Exception as error:  # noqa: BLE001 -- the coordinator decides
            if self._end_writing(checkpoint_id) is not None:
                self._responder.decline(checkpoint_id, error)
            return
        # One that was aborted in the meantime is not acknowledged.
        if self._end_writing(checkpoint_id) is not None:
            async_ms = (self._clock.monotonic() - started_s) * 1000
            statistics = replace(statistics, async_ms=async_ms)
            self._responder.acknowledge(checkpoint_id, written, statistics)

    def _end_writing(self, checkpoint_id: int) -> Callable[[], object] | None:
        cancel = self._writing.pop(checkpoint_id, None)
        if not self._writing:
            idle, self._idle = self._idle, []
            for callback in idle:
                callback()
        return cancel

    def _broadcast(self, event: CheckpointBarrier | CancelCheckpoint) -> None:
        for writer in self._writers:
            writer.broadcast_event(event)

    def _drop_in_flight(self, checkpoint_id: int) -> None:
        if self._outputs is not None:
            self._outputs.abort(checkpoint_id)

    def _forget_aborted(self) -> None:
        for checkpoint_id in [one for one in self._aborted if one <= self.last_id]:
            del self._aborted[checkpoint_id]


def _statistics(
    barrier: CheckpointBarrier, alignment: AlignmentStatistics | None, sync_ms: float
) -> TaskStatistics:
    if alignment is None or alignment.checkpoint_id != barrier.checkpoint_id:
        return TaskStatistics(sync_ms=sync_ms)
    return TaskStatistics(
        start_delay_ms=alignment.start_delay_ms,
        alignment_ms=alignment.duration_ms or 0.0,
        alignment_bytes=alignment.processed_bytes or 0,
        sync_ms=sync_ms,
    )


def _nothing() -> None:
    """Nothing can be cancelled yet."""


# The data in flight at a task's inputs that belongs to an unaligned checkpoint.
#
# Theory of operation: once the task's state has been captured, what its channels still
# bring before their barriers is processed as ever, and kept for the checkpoint as well:
# the rest of the buffer in hand first, then every buffer that is read, and when the
# barrier of a channel overtakes, what has arrived there before it. Nothing of a channel
# is kept after its barrier.
#
# Concept:
#     Flink, ``ChannelStatePersister`` of each input channel.


# What an input has taken from its gate and not processed, per channel and in order.
Rest = Callable[[], list[tuple[int, list[Element]]]]


_INPUTS = "all inputs"


class InputState:
    """Keeps the data in flight that barriers have overtaken at the inputs.

    Args:
        channels: The names of the channels.
        gates: What the task reads, in order.
        states: Where the data is collected.
    """

    def __init__(
        self,
        channels: TaskChannels,
        gates: Sequence[InputGate],
        states: ChannelStates,
    ) -> None:
        self._codec = channels.codec
        self._names = channels.inputs
        self._gates = gates
        self._states = states
        self._rests: dict[int, Rest] = {}
        self._checkpoint_id: int | None = None
        # Of the checkpoint that is being kept: the channels without their barrier.
        self._open: set[ChannelInfo] = set()
        # Of the newest checkpoint that was heard of: the channels with it.
        self._arrived_id = -1
        self._arrived: set[ChannelInfo] = set()

    def attach(self, gate: int, rest: Rest) -> None:
        """Ask an input for what it has in hand, from now on."""
        self._rests[gate] = rest

    def start(self, barrier: CheckpointBarrier) -> None:
        """Keep what every channel brings until its barrier arrives."""
        checkpoint_id = barrier.checkpoint_id
        self._checkpoint_id = checkpoint_id
        self._states.begin(checkpoint_id)
        self._states.expect(checkpoint_id, _INPUTS)
        if self._arrived_id != checkpoint_id:
            self._arrived.clear()
        self._open = {
            ChannelInfo(gate_index, channel)
            for gate_index, gate in enumerate(self._gates)
            for channel in gate.unfinished_channels
        } - self._arrived
        for gate_index, rest in self._rests.items():
            for channel, elements in rest():
                self._keep(ChannelInfo(gate_index, channel), elements)
        # Their barriers have been read, but not the data that those jumped over.
        for info in self._arrived:
            self._keep_queued(info)

    def on_data(self, info: ChannelInfo, elements: Iterable[Element]) -> None:
        """Keep a buffer that was read, if its channel's barrier is still to come."""
        if info in self._open:
            self._keep(info, elements)

    def on_barrier(self, info: ChannelInfo, checkpoint_id: int) -> None:
        """Hear that a channel's barrier was read, before anything is done about it."""
        if checkpoint_id > self._arrived_id:
            self._arrived_id = checkpoint_id
            self._arrived.clear()
        if checkpoint_id == self._arrived_id:
            self._arrived.add(info)
        if checkpoint_id == self._checkpoint_id and info in self._open:
            self._open.discard(info)
            self._keep_queued(info)

    def stop(self, checkpoint_id: int) -> None:
        """Keep nothing more for the checkpoint, or for an older one."""
        kept, self._checkpoint_id = self._checkpoint_id, None
        still_open, self._open = self._open, set()
        if kept is None:
            return
        if kept < checkpoint_id:
            error = CheckpointDeclinedError(kept, "a newer one was aborted")
            self._states.fail(kept, error)
            return
        self._checkpoint_id = kept
        for info in still_open:
            self._keep_queued(info)
        self._checkpoint_id = None
        self._states.settle(kept, _INPUTS)

    def _keep(self, info: ChannelInfo, elements: Iterable[Element]) -> None:
        checkpoint_id = self._checkpoint_id
        assert checkpoint_id is not None, "data is kept for a checkpoint"
        name = self._names[info.gate_index][info.channel_index]
        try:
            data = encode_in_flight(self._codec, elements)
        except (WrongTypeError, InvalidArgumentError) as error:
            self._states.fail(
                checkpoint_id, InFlightRecordsError(checkpoint_id, name, error)
            )
            # The checkpoint has failed: what still comes need not be encoded.
            self._open.clear()
        else:
            if data:
                self._states.add(checkpoint_id, name, [data])

    def _keep_queued(self, info: ChannelInfo) -> None:
        checkpoint_id = self._checkpoint_id
        assert checkpoint_id is not None, "data is kept for a checkpoint"
        gate = self._gates[info.gate_index]
        if gate.is_closed or info.channel_index not in gate.unfinished_channels:
            return
        try:
            data = gate.in_flight(info.channel_index, checkpoint_id)
        except IllegalStateError as error:
            # A newer barrier has arrived behind: this checkpoint is given up.
            self._states.fail(checkpoint_id, error)
        else:
            if data:
                name = self._names[info.gate_index][info.channel_index]
                self._states.add(checkpoint_id, name, data)
