"""Which input a task reads next, and what the inputs together have come to.

Concept:
    Flink, ``StreamOneInputProcessor`` and ``StreamMultipleInputProcessor``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from aiomailbox.availability import Availability
from aiomailbox.errors import CorruptStreamError, IllegalStateError
from aiomailbox.eventtime.valve import StatusWatermarkValve, ValveSnapshot
from aiomailbox.exchange.core.contract import CONTROL, ObjectBuffer
from aiomailbox.exchange.gate import InputGate
from aiomailbox.metrics.instruments import MetricGroup
from aiomailbox.operators.core.operator import (
    Input,
    InputSelection,
    Operator,
    Pending,
    finished,
    then,
)
from aiomailbox.operators.sources.operator import SourceOperator
from aiomailbox.operators.sources.source import InputStatus
from aiomailbox.records import Element
from aiomailbox.records.events import (
    MIN_TIMESTAMP,
    CancelCheckpoint,
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    EventAnnouncement,
    LatencyMarker,
    StopMode,
    Watermark,
    WatermarkStatus,
)
from aiomailbox.task.checkpoints import TaskCheckpoints
from aiomailbox.task.environment import TaskEnvironment
from aiomailbox.task.outputs import ROW_SLICES, SliceForm, SliceSize, all_of

# Where a task's head gets its input from: a gate, or a source's reader.
#
# Theory of operation: `emit_next` does one slice of work and says what it found. When
# something downstream must be waited for it leaves the awaitable in ``pending``; the
# caller finishes it before the next call.


BARRIER_EVENTS: Final = (CheckpointBarrier, CancelCheckpoint, EventAnnouncement)
CHECKPOINT_EVENTS: Final = (*BARRIER_EVENTS, EndOfPartition)


class TaskInput:
    """The input of a task: a gate, a source, or several inputs in turn.

    Attributes:
        availability: True when `emit_next` may find something.
        pending: What the last `emit_next` left to be awaited, or None.
        steps: How often it has read something: where that stays, it has given nothing.
        is_recovered: Turns true when what was in flight has been processed.
    """

    availability: Availability
    pending: Pending = None
    steps: int
    is_recovered: Availability

    def start(self) -> None:
        """Begin to read."""

    def emit_next(self) -> InputStatus:
        """Process one slice."""
        raise TypeError(f"{type(self).__name__} does not define emit_next")

    def end_of_event_time(self) -> Pending:
        """Advance event time to its end, if nothing upstream does."""
        return None

    def event_times(self) -> tuple[ValveSnapshot, ...]:
        """Return how far event time has come on the channels, per gate."""
        return ()

    def restore(self, times: tuple[ValveSnapshot, ...]) -> None:
        """Resume event time from what `event_times` returned; before `start`."""

    def repeat_status(self) -> Pending:
        """Say once more that the input is idle, if it was: its readers may be new."""
        return None

    def restore_in_flight(self, gates: Sequence[Sequence[Iterable[Element]]]) -> None:
        """Process what was in flight on each gate's channels first; before `start`."""

    def close(self) -> Pending:
        """Stop reading."""
        return None


class InputAvailability(Availability):
    """A gate's availability; available also while the rest of a buffer is in hand.

    Attributes:
        has_rest: Whether the input has a buffer that is not processed to its end.
    """

    __slots__ = ("_gate", "has_rest")

    def __init__(self, gate: Availability) -> None:
        self._gate = gate
        self.has_rest: bool = False

    @property
    def available(self) -> bool:  # type: ignore[override]
        """Whether there is something to process or to take."""
        return self.has_rest or self._gate.available

    def on_available(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` once: now if available, else when the gate is."""
        if self.has_rest:
            callback()
        else:
            self._gate.on_available(callback)

    def discard(self, callback: Callable[[], None]) -> None:
        self._gate.discard(callback)


class NetworkInput(TaskInput):
    """Reads a gate: takes buffers, and gives their elements to an input of the head.

    A run that is longer than the present slice is processed in pieces; the rest of the
    buffer waits here, and before everything else what a restored checkpoint has in
    flight. Barriers that overtake are read by urgent mail, whatever is in hand.

    Concept:
        Flink, ``AbstractStreamTaskNetworkInput``.
    """

    def __init__(
        self,
        gate: InputGate,
        target: Input,
        size: SliceSize,
        metrics: MetricGroup,
        checkpoints: TaskCheckpoints | None = None,
        gate_index: int = 0,
    ) -> None:
        self._rest = InputAvailability(gate.availability)
        self.availability: Availability = self._rest
        self.steps: int = 0
        self.watermark_ms: int = MIN_TIMESTAMP
        self.is_idle: bool = False
        self._gate = gate
        self._target = target
        self._checkpoints = checkpoints
        self._gate_index = gate_index
        self._size = size
        self._records_in = metrics.counter("num_records_in")
        self._valve = StatusWatermarkValve(gate.channel_count)
        self._buffer: ObjectBuffer | None = None
        self._channel = 0
        self._elements: list[Element] = []
        self._position = 0
        self._offset = 0
        self._restored: deque[tuple[int, ObjectBuffer]] = deque()
        self.is_recovered: Availability = Availability(available=True)
        self._reads_priority = checkpoints is not None and checkpoints.may_overtake
        if checkpoints is not None:
            checkpoints.attach(gate_index, self._in_hand)

    def start(self) -> None:
        """Connect to the producers."""
        self._gate.request_partitions()
        if self._reads_priority:
            self._await_priority()

    def emit_next(self) -> InputStatus:
        """Process the next slice of the current buffer, or take the next buffer.

        Raises:
            CorruptStreamError: If a channel brings an event that is not handled here.
        """
        if self._buffer is None:
            if self._restored:
                self._channel, buffer = self._restored.popleft()
            else:
                polled = self._gate.poll_next()
                if polled is None:
                    if self._gate.is_finished:
                        return InputStatus.END_OF_INPUT
                    return InputStatus.NOTHING_AVAILABLE
                self._channel, buffer = polled
                if buffer.event is not None:
                    return self._on_event(self._channel, buffer)
                if self._checkpoints is not None:
                    self._checkpoints.on_data(self._gate_index, self._channel, buffer)
            self._buffer = buffer
            self._rest.has_rest = True
            self._elements = buffer.elements
            self._position = self._offset = 0
        self._process_elements()
        if self.availability.available:
            return InputStatus.MORE_AVAILABLE
        return InputStatus.NOTHING_AVAILABLE

    def event_times(self) -> tuple[ValveSnapshot, ...]:
        """Return how far event time has come on the channels."""
        return (self._valve.snapshot(),)

    def restore(self, times: tuple[ValveSnapshot, ...]) -> None:
        """Resume event time from there."""
        for snapshot in times:
            self._valve.restore(snapshot)
            self.watermark_ms = snapshot.watermark
            self.is_idle = self._valve.status is WatermarkStatus.IDLE

    def repeat_status(self) -> Pending:
        """Say once more that the input is idle, if it was: its readers may be new."""
        if not self.is_idle:
            return None
        return self._target.process_status(WatermarkStatus.IDLE)

    def restore_in_flight(self, gates: Sequence[Sequence[Iterable[Element]]]) -> None:
        """Process what was in flight on each channel first; before `start`."""
        [channels] = gates
        self._restored = deque(
            (channel, ObjectBuffer.of_elements([element]))
            for channel, elements in enumerate(channels)
            for element in elements
        )
        if self._restored:
            # The task does not wait for its producers to process these.
            self._rest.has_rest = True
            self.is_recovered.reset()

    def close(self) -> Pending:
        """Release the buffer in hand; the task closes the gate."""
        self._reads_priority = False
        self._restored.clear()
        self._release_buffer()
        return None

    def _in_hand(self) -> list[tuple[int, list[Element]]]:
        """Return what was taken and not processed, per channel and in order."""
        found: list[tuple[int, list[Element]]] = []
        if self._buffer is not None:
            rest = self._elements[self._position :]
            if rest and self._offset:
                run = rest[0]
                assert not isinstance(run, CONTROL), "only runs are cut"
                rest[0] = run.slice(self._offset, len(run))
            found.append((self._channel, rest))
        found += [(channel, buffer.elements) for channel, buffer in self._restored]
        return found

    def _await_priority(self) -> None:
        # A callback is called once; `_read_priority` sets this one again.
        self._gate.priority_availability.on_available(self._send_priority)

    def _send_priority(self) -> None:
        if self._reads_priority and self._checkpoints is not None:
            self._checkpoints.execute(self._read_priority)

    async def _read_priority(self) -> None:
        """Read the priority events there are; none if they were read meanwhile."""
        if self._checkpoints is not None:
            # What it reads counts by itself.
            self._checkpoints.disregard_mail()
        while self._reads_priority and (polled := self._gate.poll_priority()):
            channel, buffer = polled
            self._on_event(channel, buffer)
            pending, self.pending = self.pending, None
            if pending is not None:
                await pending
        if self._reads_priority and not self._gate.is_closed:
            self._await_priority()

    def _process_elements(self) -> None:
        """Process elements until one slice is full or something must be awaited."""
        self.steps += 1
        elements, target, size = self._elements, self._target, self._size
        left = size.allowed()
        while left > 0 and self._position < len(elements):
            element = elements[self._position]
            if isinstance(element, Watermark | WatermarkStatus | LatencyMarker):
                self._position += 1
                pending = self._on_control(element)
            else:
                length = len(element)
                start = self._offset
                stop = min(length, start + left)
                run = element if stop - start == length else element.slice(start, stop)
                count = stop - start
                left -= count
                # Moved on before it is processed: a barrier that overtakes while this
                # is awaited must not keep what is in the state already.
                if stop == length:
                    self._position += 1
                    self._offset = 0
                else:
                    self._offset = stop
                self._records_in.value += count
                started = size.start()
                pending = target.process_run(run)
                if pending is None:
                    size.stop(started, count)
                else:
                    pending = self._stop_after(pending, started, count)
            if pending is not None:
                self.pending = pending
                break
        if self._position >= len(elements):
            # Also while its last run is awaited: what goes back is the permit, and a
            # run holds its values itself.
            self._release_buffer()

    async def _stop_after(
        self, pending: Awaitable[None], started: float, count: int
    ) -> None:
        since = self._size.start()
        await pending
        self._size.stop(started, count, awaited_from=since)

    def _release_buffer(self) -> None:
        buffer, self._buffer = self._buffer, None
        self._rest.has_rest = bool(self._restored)
        self._elements = []
        if buffer is not None:
            buffer.recycle()
        if not self.is_recovered.available and not self._restored:
            self.is_recovered.set_available()

    def _on_control(
        self, element: Watermark | WatermarkStatus | LatencyMarker
    ) -> Pending:
        if isinstance(element, LatencyMarker):
            return self._target.process_latency_marker(element)
        if isinstance(element, Watermark):
            outputs = self._valve.input_watermark(element.timestamp_ms, self._channel)
        else:
            outputs = self._valve.input_status(element, self._channel)
        pending: Pending = None
        for output in outputs:
            if isinstance(output, Watermark):
                self.watermark_ms = output.timestamp_ms
                pending = then(
                    pending, self._target.process_watermark, output.timestamp_ms
                )
            else:
                self.is_idle = output is WatermarkStatus.IDLE
                pending = then(pending, self._target.process_status, output)
        return pending

    def _on_event(self, channel: int, buffer: ObjectBuffer) -> InputStatus:
        event = buffer.event
        buffer.recycle()
        # Barriers change nothing that a snapshot holds: where they do not align, those of
        # other channels come after it was taken.
        self.steps += not isinstance(event, BARRIER_EVENTS)
        checkpoints = self._checkpoints
        if checkpoints is not None and isinstance(event, CHECKPOINT_EVENTS):
            self.pending = checkpoints.on_event(self._gate_index, channel, event)
        elif checkpoints is not None and isinstance(event, EndOfData):
            self._gate.acknowledge_all_data_processed(channel)
        elif not isinstance(event, EndOfData | EndOfPartition):
            # Recycled in silence, a barrier would block its channel for ever.
            raise CorruptStreamError(
                f"channel {channel} of {self._gate!r} brought {event!r}, which "
                "this task does not handle"
            )
        if isinstance(event, EndOfData) and self._gate.end_of_data is not None:
            if self._gate.end_of_data is StopMode.NO_DRAIN:
                return InputStatus.STOPPED
            self.pending = self._target.end_input()
            return InputStatus.END_OF_DATA
        if self._gate.is_finished:
            return InputStatus.END_OF_INPUT
        if self.availability.available:
            return InputStatus.MORE_AVAILABLE
        return InputStatus.NOTHING_AVAILABLE


# A source's reader as the input of a task.


class SourceInput(TaskInput):
    """Polls a source operator, one run at a time.

    Concept:
        Flink, ``StreamTaskSourceInput``.
    """

    def __init__(self, operator: SourceOperator, size: SliceSize) -> None:
        # Its operator resumes event time and what else there is by itself.
        self.availability = self.is_recovered = Availability(available=True)
        self.steps = 0
        self._operator = operator
        self._size = size
        self._emitted = operator.context.metrics.counter("num_records_out")
        metrics = operator.context.metrics
        metrics.gauge("current_output_watermark", lambda: operator.watermark)
        metrics.gauge("is_idle", lambda: int(operator.is_idle))

    def start(self) -> None:
        """Take the reader's availability, which exists once the operator is open."""
        self.availability = self._operator.availability

    def emit_next(self) -> InputStatus:
        """Read and process at most one run."""
        self.steps += 1
        size, emitted = self._size, self._emitted
        before = emitted.value
        self._operator.limit_runs(size.allowed())
        started = size.start()
        status, pending = self._operator.poll()
        if pending is not None:
            self.pending = self._stop_after(pending, started, before)
        elif emitted.value != before:
            size.stop(started, emitted.value - before)
        return status

    async def _stop_after(
        self, pending: Awaitable[None], started: float, before: int
    ) -> None:
        since = self._size.start()
        await pending
        count = self._emitted.value - before
        if count:
            self._size.stop(started, count, awaited_from=since)

    def end_of_event_time(self) -> Pending:
        """Emit the last watermark."""
        return self._operator.emit_max_watermark()


_ALL: Final = InputSelection.ALL.mask


class AnyAvailability(Availability):
    """Several availabilities as one: available when at least one of them is."""

    __slots__ = ("_armed", "_sources")

    def __init__(self, sources: list[Availability]) -> None:
        self._sources = sources
        self._callbacks = []
        self._armed: set[int] = set()

    @property
    def available(self) -> bool:  # type: ignore[override]
        """Whether one of the sources is available now."""
        return any(source.available for source in self._sources)

    def on_available(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` once, when one of the sources becomes available."""
        if self.available:
            callback()
            return
        self._callbacks.append(callback)
        # One callback per source at a time, or a quiet source would collect them.
        for index, source in enumerate(self._sources):
            if index not in self._armed:
                self._armed.add(index)
                source.on_available(lambda index=index: self._fired(index))  # type: ignore[misc]

    def _fired(self, index: int) -> None:
        self._armed.discard(index)
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


class MultiInput(TaskInput):
    """Reads several inputs in turn, one slice each.

    An input that has nothing is passed over; one whose data has ended is read on only
    for its last events.

    Args:
        inputs: What there is to read.
        select: Asked before the first slice and after each one which inputs may be
            read; None for all. Inputs whose data has ended are read to their end
            whatever it says.
    """

    def __init__(
        self,
        inputs: list[TaskInput],
        select: Callable[[], InputSelection] | None = None,
    ) -> None:
        self._inputs = inputs
        self._select = select
        self._mask = _ALL
        self._is_chosen = False
        self._by_mask: dict[int, Availability] = {}
        self._data_ended = [False] * len(inputs)
        self._finished = [False] * len(inputs)
        self._any_stopped = False
        # So that input 0 is read first. Flink starts behind input 1, however many there
        # are, which with three inputs begins with the last.
        self._last = len(inputs) - 1
        self.availability: Availability = self._any_of(_ALL)

    @property
    def steps(self) -> int:  # type: ignore[override]
        """How often the inputs have read something, together."""
        return sum(task_input.steps for task_input in self._inputs)

    def start(self) -> None:
        """Begin to read all inputs."""
        for task_input in self._inputs:
            task_input.start()

    def emit_next(self) -> InputStatus:
        """Process one slice of the next input that has something.

        Raises:
            IllegalStateError: If only inputs are selected that have ended.
        """
        # Not when it is made: `next_selection` may need what `open` prepares.
        if self._select is not None and not self._is_chosen:
            self._choose(self._select)
        for step in range(1, len(self._inputs) + 1):
            index = (self._last + step) % len(self._inputs)
            task_input = self._inputs[index]
            if self._finished[index] or not task_input.availability.available:
                continue
            if not self._mask >> index & 1:
                continue
            self._last = index
            self._is_chosen = False
            status = task_input.emit_next()
            if task_input.pending is not None:
                self.pending, task_input.pending = task_input.pending, None
            return self._overall(index, status)
        return self._nothing()

    async def end_of_event_time(self) -> None:
        """Advance event time to its end on inputs where nothing upstream does."""
        for task_input in self._inputs:
            await finished(task_input.end_of_event_time())

    def event_times(self) -> tuple[ValveSnapshot, ...]:
        """Return how far event time has come on the channels, per input."""
        return tuple(time for one in self._inputs for time in one.event_times())

    def restore(self, times: tuple[ValveSnapshot, ...]) -> None:
        """Resume event time from there."""
        for task_input, time in zip(self._inputs, times, strict=False):
            task_input.restore((time,))

    async def repeat_status(self) -> None:
        """Say once more which inputs are idle: their readers may be new."""
        for task_input in self._inputs:
            await finished(task_input.repeat_status())

    def restore_in_flight(self, gates: Sequence[Sequence[Iterable[Element]]]) -> None:
        """Process what was in flight on each gate's channels first."""
        for task_input, channels in zip(self._inputs, gates, strict=True):
            task_input.restore_in_flight([channels])

    @property
    def is_recovered(self) -> Availability:  # type: ignore[override]
        """Turns true when what was in flight has been processed."""
        return all_of([task_input.is_recovered for task_input in self._inputs])

    async def close(self) -> None:
        """Stop reading all inputs."""
        for task_input in self._inputs:
            await finished(task_input.close())

    def _overall(self, index: int, status: InputStatus) -> InputStatus:
        if status is InputStatus.END_OF_INPUT:
            self._finish_input(index)
            return self._nothing()
        if status in {InputStatus.END_OF_DATA, InputStatus.STOPPED}:
            self._any_stopped |= status is InputStatus.STOPPED
            self._data_ended[index] = True
            if all(self._data_ended):
                # Whichever input ends last: one that was stopped stops the task.
                if self._any_stopped:
                    return InputStatus.STOPPED
                return InputStatus.END_OF_DATA
        return self._nothing()

    def _finish_input(self, index: int) -> None:
        self._finished[index] = True
        # A finished gate says "available" for ever: it must not keep the task awake.
        self._by_mask.clear()
        self.availability = self._any_of(self._mask)

    def _nothing(self) -> InputStatus:
        if all(self._finished):
            return InputStatus.END_OF_INPUT
        if self._select is not None and not self._is_chosen:
            if self.pending is not None:
                # What is awaited may change the selection: ask after it.
                return InputStatus.MORE_AVAILABLE
            self._choose(self._select)
        if self.availability.available:
            return InputStatus.MORE_AVAILABLE
        return InputStatus.NOTHING_AVAILABLE

    def _choose(self, select: Callable[[], InputSelection]) -> None:
        """Read only what is selected; asked once between two slices."""
        self._is_chosen = True
        mask = _ALL
        if not self._any_stopped and not all(self._data_ended):
            mask = select().mask
            for index, ended in enumerate(self._data_ended):
                mask |= ended << index
            self._check_progress(mask)
        if mask != self._mask:
            self._mask = mask
            self.availability = self._any_of(mask)

    def _check_progress(self, mask: int) -> None:
        if any(
            mask >> index & 1 and not finished
            for index, finished in enumerate(self._finished)
        ):
            return
        raise IllegalStateError(
            "next_selection() selects only inputs that have ended, so that nothing can "
            "ever be read again. Select the other ones when end_input says so."
        )

    def _any_of(self, mask: int) -> Availability:
        """Return the availability of the unfinished inputs of a selection."""
        known = self._by_mask.get(mask)
        if known is None:
            known = self._by_mask[mask] = AnyAvailability(
                [
                    task_input.availability
                    for index, task_input in enumerate(self._inputs)
                    if mask >> index & 1 and not self._finished[index]
                ]
            )
        return known


def create_input(
    head: Operator,
    input_of: Callable[[int], Input],
    gates: list[InputGate],
    environment: TaskEnvironment,
    room: Callable[[], int] | None = None,
    checkpoints: TaskCheckpoints | None = None,
    slices: SliceForm = ROW_SLICES,
    left: Callable[[], int] | None = None,
) -> TaskInput:
    """Return the input for a head operator: source, one input or several."""
    job = environment.job
    if isinstance(head, SourceOperator):
        size = SliceSize(
            job.clock, job.slice_target_s, form=slices, room=room, left=left
        )
        return SourceInput(head, size)
    select = getattr(head, "next_selection", None)
    # The function that selects is asked after each record: a slice must not be longer.
    form = slices if not select else slices._replace(records_min=1, records_max=1)
    size = SliceSize(job.clock, job.slice_target_s, form=form, room=room, left=left)
    metrics = head.context.metrics
    network = [
        NetworkInput(
            gate,
            input_of(index),
            size,
            metrics,
            checkpoints,
            index,
        )
        for index, gate in enumerate(gates)
    ]
    metrics.gauge(
        "current_input_watermark", lambda: min(one.watermark_ms for one in network)
    )
    metrics.gauge("is_idle", lambda: int(all(one.is_idle for one in network)))
    inputs: list[TaskInput] = [*network]
    return inputs[0] if len(inputs) == 1 else MultiInput(inputs, select)
