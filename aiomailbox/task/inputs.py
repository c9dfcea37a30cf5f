"""Where a task's head gets its input from: a gate, or a source's reader.

Theory of operation: `emit_next` does one slice of work and says what it found. When
something downstream must be waited for it leaves the awaitable in ``pending``; the
caller finishes it before the next call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol

from aiomailbox.availability import Availability
from aiomailbox.errors import CorruptStreamError
from aiomailbox.eventtime.valve import StatusWatermarkValve, ValveSnapshot
from aiomailbox.exchange.core.buffer import ObjectBuffer
from aiomailbox.exchange.input.gate import InputGate
from aiomailbox.metrics.instruments import MetricGroup
from aiomailbox.operators.core.contract import Input, Pending, then
from aiomailbox.operators.sources.source import InputStatus
from aiomailbox.records import Element
from aiomailbox.records.elements import (
    MIN_TIMESTAMP,
    LatencyMarker,
    Watermark,
    WatermarkStatus,
)
from aiomailbox.records.events import (
    CancelCheckpoint,
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    EventAnnouncement,
    RuntimeEvent,
    StopMode,
)
from aiomailbox.task.slices import SliceSize

CHECKPOINT_EVENTS: Final = (
    CheckpointBarrier,
    CancelCheckpoint,
    EventAnnouncement,
    EndOfPartition,
)

_CONTROL: Final = (Watermark, WatermarkStatus, LatencyMarker)


class TaskInput(Protocol):
    """One input of a task.

    Attributes:
        availability: True when `emit_next` may find something.
        pending: What the last `emit_next` left to be awaited, or None.
    """

    availability: Availability
    pending: Pending

    def start(self) -> None:
        """Begin to read."""
        ...

    def emit_next(self) -> InputStatus:
        """Process one slice."""
        ...

    def end_of_event_time(self) -> Pending:
        """Advance event time to its end, if nothing upstream does."""
        ...

    def event_times(self) -> tuple[ValveSnapshot, ...]:
        """Return how far event time has come on the channels; of a source nothing."""
        ...

    def restore(self, times: tuple[ValveSnapshot, ...]) -> None:
        """Resume event time from what `event_times` returned; before `start`."""
        ...

    def repeat_status(self) -> Pending:
        """Say once more that the input is idle, if it was: what follows may be new."""
        ...

    def restore_in_flight(self, channels: Sequence[Iterable[Element]]) -> None:
        """Process what was in flight on each channel first; before `start`."""
        ...

    @property
    def is_recovered(self) -> Availability:
        """Turns true when what was in flight has been processed."""
        ...

    def close(self) -> Pending:
        """Stop reading."""
        ...


class GateBarriers(Protocol):
    """Takes the events of a gate that belong to checkpoints."""

    def on_event(self, channel: int, event: RuntimeEvent) -> Pending:
        """Take an event that belongs to checkpoints, or the end of a channel."""
        ...

    def on_data(self, channel: int, buffer: ObjectBuffer) -> None:
        """Hear of a buffer of data that was read, before it is processed."""
        ...

    @property
    def may_overtake(self) -> bool:
        """Whether barriers may overtake data."""
        ...

    def attach(self, rest: Callable[[], list[tuple[int, list[Element]]]]) -> None:
        """Learn what the input has in hand, to ask for it when barriers overtake."""
        ...

    def execute(self, read: Callable[[], Pending]) -> None:
        """Read priority events as urgent mail."""
        ...


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
        """Forget a pending callback."""
        self._gate.discard(callback)


class NetworkInput:
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
        barriers: GateBarriers | None = None,
    ) -> None:
        self._rest = InputAvailability(gate.availability)
        self.availability: Availability = self._rest
        self.pending: Pending = None
        self.watermark_ms: int = MIN_TIMESTAMP
        self.is_idle: bool = False
        self._gate = gate
        self._target = target
        self._barriers = barriers
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
        self._reads_priority = barriers is not None and barriers.may_overtake
        if barriers is not None and barriers.may_overtake:
            barriers.attach(self._in_hand)

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
                if self._barriers is not None:
                    self._barriers.on_data(self._channel, buffer)
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
        """Say once more that the input is idle, if it was: what follows may be new."""
        if not self.is_idle:
            return None
        return self._target.process_status(WatermarkStatus.IDLE)

    def restore_in_flight(self, channels: Sequence[Iterable[Element]]) -> None:
        """Process what was in flight on each channel first; before `start`."""
        self._restored = deque(
            (channel, ObjectBuffer.of_elements([element]))
            for channel, elements in enumerate(channels)
            for element in elements
        )
        if self._restored:
            # The task does not wait for its producers to process these.
            self._rest.has_rest = True
            self.is_recovered.reset()

    def end_of_event_time(self) -> Pending:
        """The end of event time comes through the channels: nothing to do."""
        return None

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
                assert not isinstance(run, _CONTROL), "only runs are cut"
                rest[0] = run.slice(self._offset, len(run))
            found.append((self._channel, rest))
        found += [(channel, buffer.elements) for channel, buffer in self._restored]
        return found

    def _await_priority(self) -> None:
        # A callback is called once; `_read_priority` sets this one again.
        self._gate.priority_availability.on_available(self._send_priority)

    def _send_priority(self) -> None:
        if self._reads_priority and self._barriers is not None:
            self._barriers.execute(self._read_priority)

    async def _read_priority(self) -> None:
        """Read the priority events there are; none if they were read meanwhile."""
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
        await pending
        self._size.stop(started, count, awaited=True)

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
        barriers = self._barriers
        if barriers is not None and isinstance(event, CHECKPOINT_EVENTS):
            self.pending = barriers.on_event(channel, event)
        elif barriers is not None and isinstance(event, EndOfData):
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
