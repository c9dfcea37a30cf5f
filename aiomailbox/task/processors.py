"""Which input a task reads next, and what the inputs together have come to.

Concept:
    Flink, ``StreamOneInputProcessor`` and ``StreamMultipleInputProcessor``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from aiomailbox.availability import Availability
from aiomailbox.errors import IllegalStateError
from aiomailbox.eventtime.valve import ValveSnapshot
from aiomailbox.exchange.input.gate import InputGate
from aiomailbox.operators.core.contract import Input, Operator, Pending
from aiomailbox.operators.core.input_selection import InputSelection
from aiomailbox.operators.sources.operator import SourceOperator
from aiomailbox.operators.sources.source import InputStatus
from aiomailbox.records import Element
from aiomailbox.task.barriers import InputBarriers
from aiomailbox.task.environment import TaskEnvironment
from aiomailbox.task.inputs import NetworkInput, TaskInput
from aiomailbox.task.outputs import all_of
from aiomailbox.task.slices import ROW_SLICES, SliceForm, SliceSize
from aiomailbox.task.source_input import SourceInput

_ALL: Final = InputSelection.ALL.mask


class InputProcessor(Protocol):
    """What a task asks for its next slice of work.

    Attributes:
        availability: True when `process_input` may find something.
        pending: What the last slice left to be awaited, or None.
    """

    availability: Availability
    pending: Pending

    def start(self) -> None:
        """Begin to read."""
        ...

    def process_input(self) -> InputStatus:
        """Process one slice of one input."""
        ...

    async def end_of_event_time(self) -> None:
        """Advance event time to its end, where nothing upstream does."""
        ...

    def event_times(self) -> tuple[ValveSnapshot, ...]:
        """Return how far event time has come on the channels, per input."""
        ...

    def restore(self, times: tuple[ValveSnapshot, ...]) -> None:
        """Resume event time from what `event_times` returned; before `start`."""
        ...

    async def repeat_status(self) -> None:
        """Say once more which inputs are idle: what follows may be new."""
        ...

    def restore_in_flight(self, gates: Sequence[Sequence[Iterable[Element]]]) -> None:
        """Process what was in flight on each gate's channels first; before `start`."""
        ...

    @property
    def is_recovered(self) -> Availability:
        """Turns true when what was in flight has been processed."""
        ...

    async def close(self) -> None:
        """Stop reading."""
        ...


class OneInputProcessor:
    """Reads the only input of a task: a gate or a source."""

    def __init__(self, task_input: TaskInput) -> None:
        self._input = task_input
        self.availability: Availability = task_input.availability
        self.pending: Pending = None

    def start(self) -> None:
        """Begin to read."""
        self._input.start()
        self.availability = self._input.availability

    def process_input(self) -> InputStatus:
        """Process one slice."""
        status = self._input.emit_next()
        pending = self._input.pending
        if pending is not None:
            self._input.pending = None
            self.pending = pending
        return status

    async def end_of_event_time(self) -> None:
        """Advance event time to its end, where nothing upstream does."""
        await _finish(self._input.end_of_event_time())

    def event_times(self) -> tuple[ValveSnapshot, ...]:
        """Return how far event time has come on the channels of the input."""
        return self._input.event_times()

    def restore(self, times: tuple[ValveSnapshot, ...]) -> None:
        """Resume event time from there."""
        self._input.restore(times)

    async def repeat_status(self) -> None:
        """Say once more which inputs are idle: what follows may be new."""
        await _finish(self._input.repeat_status())

    def restore_in_flight(self, gates: Sequence[Sequence[Iterable[Element]]]) -> None:
        """Process what was in flight on the gate's channels first."""
        self._input.restore_in_flight(gates[0])

    @property
    def is_recovered(self) -> Availability:
        """Turns true when what was in flight has been processed."""
        return self._input.is_recovered

    async def close(self) -> None:
        """Stop reading."""
        await _finish(self._input.close())


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


class MultiInputProcessor:
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
        self.pending: Pending = None
        self.availability: Availability = self._any_of(_ALL)

    def start(self) -> None:
        """Begin to read all inputs."""
        for task_input in self._inputs:
            task_input.start()

    def process_input(self) -> InputStatus:
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
            await _finish(task_input.end_of_event_time())

    def event_times(self) -> tuple[ValveSnapshot, ...]:
        """Return how far event time has come on the channels, per input."""
        return tuple(time for one in self._inputs for time in one.event_times())

    def restore(self, times: tuple[ValveSnapshot, ...]) -> None:
        """Resume event time from there."""
        for task_input, time in zip(self._inputs, times, strict=False):
            task_input.restore((time,))

    async def repeat_status(self) -> None:
        """Say once more which inputs are idle: what follows may be new."""
        for task_input in self._inputs:
            await _finish(task_input.repeat_status())

    def restore_in_flight(self, gates: Sequence[Sequence[Iterable[Element]]]) -> None:
        """Process what was in flight on each gate's channels first."""
        for task_input, channels in zip(self._inputs, gates, strict=True):
            task_input.restore_in_flight(channels)

    @property
    def is_recovered(self) -> Availability:
        """Turns true when what was in flight has been processed."""
        return all_of([task_input.is_recovered for task_input in self._inputs])

    async def close(self) -> None:
        """Stop reading all inputs."""
        for task_input in self._inputs:
            await _finish(task_input.close())

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


def create_processor(
    head: Operator,
    input_of: Callable[[int], Input],
    gates: list[InputGate],
    environment: TaskEnvironment,
    room: Callable[[], int] | None = None,
    barriers: InputBarriers | None = None,
    slices: SliceForm = ROW_SLICES,
    left: Callable[[], int] | None = None,
) -> InputProcessor:
    """Return the processor for a head operator: source, one input or several.

    Args:
        head: The operator.
        input_of: Returns one of its inputs.
        gates: What it reads.
        environment: What the task was given.
        room: How many records the operators can take without waiting; None if they
            never have to.
        barriers: Takes the events of checkpoints; None for a job without.
        slices: The most records that the operators are given at once, and what that
            costs.
        left: How many records operators have left; None if they never leave any.
    """
    if isinstance(head, SourceOperator):
        size = SliceSize(environment.clock, form=slices, room=room, left=left)
        return OneInputProcessor(SourceInput(head, size))
    select = getattr(head, "next_selection", None)
    # The function that selects is asked after each record: a slice must not be longer.
    form = slices if not select else slices._replace(records_min=1, records_max=1)
    size = SliceSize(environment.clock, form=form, room=room, left=left)
    metrics = head.context.metrics
    network = [
        NetworkInput(
            gate,
            input_of(index),
            size,
            metrics,
            None if barriers is None else barriers.of_gate(index),
        )
        for index, gate in enumerate(gates)
    ]
    metrics.gauge(
        "current_input_watermark", lambda: min(one.watermark_ms for one in network)
    )
    metrics.gauge("is_idle", lambda: int(all(one.is_idle for one in network)))
    inputs: list[TaskInput] = [*network]
    return (
        OneInputProcessor(inputs[0])
        if len(inputs) == 1
        else MultiInputProcessor(inputs, select)
    )


async def _finish(pending: Pending) -> None:
    if pending is not None:
        await pending
