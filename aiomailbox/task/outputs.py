"""Outputs of operators inside a task: to the next operator, to a writer, to many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from aiomailbox.availability import Availability, when_all_available
from aiomailbox.clock import Clock
from aiomailbox.errors import AioMailboxError, UserFunctionError, add_note
from aiomailbox.exchange.writer import RecordWriter
from aiomailbox.metrics.instruments import Counter
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.failures import USER_ERRORS
from aiomailbox.operators.core.mutations import NOTED_MAX, SharedRecords, Worker
from aiomailbox.operators.core.operator import Input, Pending, in_turn
from aiomailbox.operators.core.user_code import user_location
from aiomailbox.operators.core.watched import watched_write
from aiomailbox.records.events import (
    MIN_TIMESTAMP,
    LatencyMarker,
    OutputTag,
    Watermark,
    WatermarkStatus,
)
from aiomailbox.records.run import COLUMN_RUN_LENGTH_MAX, RUN_LENGTH_MAX, ListRun, Run

# How many records a task processes before it looks up again.


# A slice should last about as long as the loop may be held; see decision 20.
SLICE_TARGET_S: Final = 0.001
# Of records that are awaited: the next one may take a thousand times as long as the
# last. Longer slices of them are not measurably faster.
_AWAITED_MAX: Final = 64
# How much longer than others a slice of columns may take: a full run of them takes a
# millisecond or two, and cutting it would cost more than it brings.
_COLUMN_STRETCH: Final = 8


class SliceForm(NamedTuple):
    """The limits of slices, known before the first one.

    Attributes:
        records_max: The longest slice, in records.
        has_fixed_cost: Whether a slice costs something however few records it has, as
            calls into kernels do.
        records_min: The shortest slice, and the first one.
        stretch: How many times as long as others it may take.
    """

    records_max: int = RUN_LENGTH_MAX
    has_fixed_cost: bool = False
    records_min: int = 1
    stretch: int = 1


ROW_SLICES: Final = SliceForm()
# Kernels run for rows, too: columns are made of them. And there are sinks that send each
# run to a server, and wait for its answer.
COSTLY_ROW_SLICES: Final = SliceForm(has_fixed_cost=True)
# Rows are made of what comes out of kernels; what makes them yields to the loop itself.
MIXED_SLICES: Final = SliceForm(
    COLUMN_RUN_LENGTH_MAX,
    has_fixed_cost=True,
    records_min=_AWAITED_MAX,
    stretch=_COLUMN_STRETCH,
)
# A kernel is not interrupted: there is nothing to find out record by record. Fewer records
# save no time, of which most is that of calls.
COLUMN_SLICES: Final = SliceForm(
    COLUMN_RUN_LENGTH_MAX,
    has_fixed_cost=True,
    records_min=4 * RUN_LENGTH_MAX,
    stretch=_COLUMN_STRETCH,
)


class SliceSize:
    """Adapts the length of slices so that one takes about a millisecond.

    Two clock reads a slice, none a record. It starts with one record, doubles at most
    and falls at once: what a record costs is not known before it was paid. What was
    awaited in a slice is part of it: mail, timers and barriers wait meanwhile.

    What a slice costs however short it is cannot be saved by shorter ones. Where there
    is such a cost, it is taken to be that of the shortest slice, or of the quickest since,
    and only what comes on top is to fit into the millisecond. Where it was awaited, the
    loop was free: there what comes on top may last as long as the cost itself, as long as
    what was done before the wait fits into the millisecond.

    Args:
        clock: Tells how long a slice took.
        target_s: How long it should take, seconds.
        form: The longest slice, and what one costs.
        room: How many records the operators can take without waiting; None if they
            never have to.
        left: How many records of the last slice operators have left; None if they
            never leave any.

    Attributes:
        records: How long the next slice should be, 1 to the longest.

    Example:
        >>> from aiomailbox.testing import ManualClock
        >>> clock = ManualClock()
        >>> size = SliceSize(clock)
        >>> started = size.start()
        >>> size.stop(started, 1)
        >>> size.records
        2
        >>> started = size.start()
        >>> clock.advance(0.010)
        >>> size.stop(started, 2)
        >>> size.records
        1
    """

    def __init__(
        self,
        clock: Clock,
        target_s: float = SLICE_TARGET_S,
        *,
        form: SliceForm = ROW_SLICES,
        room: Callable[[], int] | None = None,
        left: Callable[[], int] | None = None,
    ) -> None:
        self.records: int = form.records_min
        self._left = left
        self._room = room
        self._records_min = form.records_min
        self._records_max = form.records_max
        self._has_fixed_cost = form.has_fixed_cost
        self._fixed_s = 0.0
        self._target_s = target_s * form.stretch
        self._monotonic = clock.monotonic

    def allowed(self) -> int:
        """Return how long the next slice may be: 1 where there is room for none."""
        if self._room is None:
            return self.records
        return max(1, min(self.records, self._room()))

    def start(self) -> float:
        """Return the start of a slice, to give to `stop`."""
        return self._monotonic()

    def stop(
        self, started: float, count: int, *, awaited_from: float | None = None
    ) -> None:
        """Adapt to ``count`` records having taken from ``started`` until now.

        Args:
            started: What `start` gave.
            count: How many records the slice had.
            awaited_from: When it began to be awaited; None if it was not.
        """
        elapsed = self._monotonic() - started
        longest = self._records_max
        awaited = awaited_from is not None
        if awaited:
            # Making rows of columns also awaits the loop's turns in between.
            is_parting = self._has_fixed_cost and self._left is None
            longest = min(RUN_LENGTH_MAX if is_parting else _AWAITED_MAX, longest)
            longest = max(longest, self._records_min)
        longest = min(2 * self.records, longest)
        # What the operator put back was not processed in this slice.
        if awaited and self._left is not None:
            count = max(1, count - self._left())
        if self._has_fixed_cost:
            if count <= self._records_min or elapsed < self._fixed_s:
                self._fixed_s = elapsed
            elapsed -= self._fixed_s
        target_s = self._target_s
        if elapsed * longest <= target_s * count:
            self.records = longest
            return
        fitting = target_s / elapsed
        if awaited_from is not None and self._fixed_s > target_s:
            # So long it held the loop, which a clock need not see.
            held_s = max(awaited_from - started, 1e-9)
            fitting = max(fitting, min(self._fixed_s / elapsed, target_s / held_s))
        self.records = max(self._records_min, min(longest, int(fitting * count)))


class Availabilities(Availability):
    """Several availabilities as one: available when each of them is.

    However many wait, its sources know of one callback; a cancelled waiter leaves
    nothing behind in them.
    """

    __slots__ = ("_is_watching", "_sources")

    def __init__(self, sources: Sequence[Availability]) -> None:
        self._sources = list(sources)
        self._callbacks = []
        self._is_watching = False

    @property
    def available(self) -> bool:  # type: ignore[override]
        """Whether all sources are available now."""
        return all(source.available for source in self._sources)

    def on_available(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` once, when each source has been available."""
        if self.available:
            callback()
            return
        self._callbacks.append(callback)
        if not self._is_watching:
            self._is_watching = True
            when_all_available(self._sources, self._wake)

    def _wake(self) -> None:
        self._is_watching = False
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


def all_of(sources: Sequence[Availability]) -> Availability:
    """Return one availability for several; always available for none."""
    if not sources:
        return Availability(available=True)
    return sources[0] if len(sources) == 1 else Availabilities(sources)


class _MainOutput(Protocol):
    """The way on for an operator's main output."""

    availability: Availability

    def emit_run(self, run: Run) -> Pending: ...
    def emit_watermark(self, timestamp_ms: int) -> Pending: ...
    def emit_status(self, status: WatermarkStatus) -> Pending: ...
    def emit_latency_marker(self, marker: LatencyMarker) -> Pending: ...


class ChainingOutput:
    """Hands everything to the next operator of the chain, by call, and counts it."""

    def __init__(
        self, target: Input, availability: Availability, records_in: Counter
    ) -> None:
        self.availability: Availability = availability
        self._records_in = records_in
        # Bound methods: a hop inside a chain costs one call.
        self._process_run: Callable[[Run], Pending] = target.process_run
        self.emit_watermark = target.process_watermark
        self.emit_status = target.process_status
        self.emit_latency_marker = target.process_latency_marker

    def watch(self, shared: SharedRecords, worker: Worker) -> None:
        """Let the operator be looked at, until all that watches steps aside."""
        plain = self._process_run
        self._process_run = shared.watched(plain, worker)
        shared.at_end(lambda: setattr(self, "_process_run", plain))

    def emit_run(self, run: Run) -> Pending:
        """Count the records and hand them over."""
        self._records_in.value += len(run)
        return self._process_run(run)


class PartingOutput(ChainingOutput):
    """Hands runs of columns over in parts, to an operator that makes rows of them.

    Runs are as long as kernels like them, and the time that a function takes for a row
    is not known. Between two parts, of a millisecond if that is enough for a row, the
    event loop goes on. Mail of the task waits: what is left of the run is in no state.

    Args:
        target: As in `ChainingOutput`.
        availability: As in `ChainingOutput`; waited for between two parts.
        records_in: As in `ChainingOutput`.
        context: Of the operator that gets the runs: its clock and its mailbox.
    """

    def __init__(
        self,
        target: Input,
        availability: Availability,
        records_in: Counter,
        context: RuntimeContext,
    ) -> None:
        super().__init__(target, availability, records_in)
        self._mailbox = context.mailbox
        self._monotonic = context.clock.monotonic
        self._size = SliceSize(context.clock)

    def emit_run(self, run: Run) -> Pending:
        length = len(run)
        self._records_in.value += length
        if not length:
            return self._process_run(run)
        start, pending = self._some(run, 0)
        if start == length:
            return pending
        return self._rest(run, start, pending)

    def _some(self, run: Run, start: int) -> tuple[int, Pending]:
        """Hand over what fits into a slice, from ``start`` on.

        Returns:
            Where the rest begins, and what has to be awaited before.
        """
        size, length = self._size, len(run)
        slice_started = size.start()
        while True:
            stop = min(start + size.records, length)
            started = size.start()
            pending = self._process_run(run.slice(start, stop))
            if pending is not None:
                return stop, pending
            size.stop(started, stop - start)
            is_over = self._monotonic() - slice_started > SLICE_TARGET_S
            if stop == length or is_over or not self.availability.available:
                return stop, None
            start = stop

    async def _rest(self, run: Run, start: int, pending: Pending) -> None:
        while True:
            if pending is not None:
                await pending
            if start == len(run):
                return
            if self.availability.available:
                # Nothing is waited for: others have their turn.
                await asyncio.sleep(0)
            else:
                await self._mailbox.wait_until(self.availability)
            start, pending = self._some(run, start)


class WriterOutput:
    """Puts everything into a writer; never has to wait.

    Args:
        writer: Where to.
        context: Of the operator that emits, named when a key function raises.
    """

    def __init__(self, writer: RecordWriter, context: RuntimeContext) -> None:
        self._writer = writer
        self._write: Callable[[Run], None] = writer.emit_run
        self._context = context
        if context.mutations is not None:
            self._write = watched_write(
                writer.emit_run, self._partitioner_name, context.uid
            )
        self._idle = False
        self.availability: Availability = writer.availability

    def emit_run(self, run: Run) -> Pending:
        """Write records, each to the channel that the partitioner says."""
        try:
            self._write(run)
        except AioMailboxError as error:
            add_note(error, f"in {self._partitioner_name}")
            raise
        except USER_ERRORS as error:
            name, line = self._partitioner_name, self._writer.partitioner.line
            location = user_location(error) or line
            raise UserFunctionError(name, self._context.uid, location, error) from error
        return None

    @property
    def _partitioner_name(self) -> str:
        partitioner = self._writer.partitioner
        name = f"{partitioner.name} after {self._context.operator_name}"
        consumer = getattr(partitioner, "consumer", "")
        return f"{name} before {consumer}" if consumer else name

    def emit_watermark(self, timestamp_ms: int) -> Pending:
        """Broadcast a watermark, unless the stream is idle."""
        # As Flink's `RecordWriterOutput`: behind IDLE a watermark would contradict it,
        # and consumers would ignore it anyway.
        if not self._idle:
            self._writer.emit_control(Watermark(timestamp_ms))
        return None

    def emit_status(self, status: WatermarkStatus) -> Pending:
        """Broadcast a change of status; repeats are dropped."""
        idle = status is WatermarkStatus.IDLE
        if idle is not self._idle:
            self._idle = idle
            self._writer.emit_control(status)
        return None

    def emit_latency_marker(self, marker: LatencyMarker) -> Pending:
        """Send the marker to one channel."""
        self._writer.emit_latency_marker(marker)
        return None


class BroadcastingOutput:
    """Gives everything to several outputs, one after the other.

    Attributes:
        ways: How many there are.
    """

    def __init__(self, outputs: Sequence[_MainOutput]) -> None:
        self._outputs = list(outputs)
        self.ways: int = len(self._outputs)
        self.availability: Availability = all_of(
            [output.availability for output in outputs]
        )

    def emit_run(self, run: Run) -> Pending:
        """Give the run to each; they share it, for a run is immutable."""
        return _each([output.emit_run for output in self._outputs], run)

    def emit_watermark(self, timestamp_ms: int) -> Pending:
        """Give the watermark to each."""
        return _each([output.emit_watermark for output in self._outputs], timestamp_ms)

    def emit_status(self, status: WatermarkStatus) -> Pending:
        """Give the status to each."""
        return _each([output.emit_status for output in self._outputs], status)

    def emit_latency_marker(self, marker: LatencyMarker) -> Pending:
        """Give the marker to the first: one consumer is enough."""
        return self._outputs[0].emit_latency_marker(marker) if self._outputs else None


def _each(actions: list[Callable[[Any], Pending]], item: Any) -> Pending:
    return in_turn(_call, [(action, item) for action in actions])


def _call(action: Callable[[Any], Pending], item: Any) -> Pending:
    return action(item)


def _ignore(tag: OutputTag, count: int) -> None:
    """Drop records of a side output without a word."""


class _NotingOutput:
    """A way on whose first records are noted, as several functions may get them."""

    def __init__(
        self,
        output: _MainOutput,
        shared: SharedRecords,
        *,
        is_shared: bool,
        done: Callable[[], None],
    ) -> None:
        self.availability: Availability = output.availability
        self._shared = shared
        self._is_shared = is_shared
        self._done = done
        self._left = NOTED_MAX
        self._emit_run = output.emit_run
        self.emit_watermark = output.emit_watermark
        self.emit_status = output.emit_status
        self.emit_latency_marker = output.emit_latency_marker

    def emit_run(self, run: Run) -> Pending:
        """Note the records and pass them on."""
        if type(run) is ListRun and not self._shared.is_over:
            noted = run.values[: self._left]
            self._shared.note(noted, self, is_shared=self._is_shared)
        self._left -= len(run)
        if self._left <= 0:
            self._done()
        return self._emit_run(run)


class OperatorOutput:
    """An operator's output: its main output counted, its side outputs by tag.

    Watermarks and statuses go to the side outputs' consumers as well, because they
    are streams of their own.

    Args:
        main: Where the main output goes.
        sides: Where each side output goes that has a consumer.
        records_out: Counts the records of the main output.
        on_unread: Told of the records of any other side output, which are dropped.

    Attributes:
        watermark_ms: The watermark passed on last, `MIN_TIMESTAMP` before the first.
        is_idle: Whether the status passed on last is idle.
    """

    def __init__(
        self,
        main: _MainOutput,
        sides: Mapping[OutputTag, _MainOutput],
        records_out: Counter,
        on_unread: Callable[[OutputTag, int], None] = _ignore,
    ) -> None:
        self._on_unread = on_unread
        self._main = main
        self._sides = dict(sides)
        self._records_out = records_out
        self._everywhere: list[_MainOutput] = [main, *sides.values()]
        self.availability: Availability = all_of(
            [output.availability for output in self._everywhere]
        )
        self.watermark_ms: int = MIN_TIMESTAMP
        self.is_idle: bool = False

    def note_shared(self, shared: SharedRecords, *, is_broadcast: bool) -> None:
        """Note the first records of each way on, and then go on as if nothing was."""
        main = self._main

        def reset() -> None:
            self._main = main

        self._main = _NotingOutput(
            main, shared, is_shared=is_broadcast or _is_split(main), done=reset
        )
        for tag, side in list(self._sides.items()):
            self._sides[tag] = _NotingOutput(
                side,
                shared,
                is_shared=is_broadcast or _is_split(side),
                done=partial(self._sides.__setitem__, tag, side),
            )

    def emit_run(self, run: Run) -> Pending:
        """Count the records and pass them on; an empty run ends here."""
        count = len(run)
        if not count:
            return None
        self._records_out.value += count
        return self._main.emit_run(run)

    def emit_watermark(self, timestamp_ms: int) -> Pending:
        """Pass the watermark on to all consumers, unless they have had it."""
        # A firing that was interrupted passes it on, and after that it is repeated.
        if timestamp_ms <= self.watermark_ms:
            return None
        self.watermark_ms = timestamp_ms
        if not self._sides:
            return self._main.emit_watermark(timestamp_ms)
        return _each([out.emit_watermark for out in self._everywhere], timestamp_ms)

    def emit_status(self, status: WatermarkStatus) -> Pending:
        """Pass the status on to all consumers."""
        self.is_idle = status is WatermarkStatus.IDLE
        return _each([out.emit_status for out in self._everywhere], status)

    def emit_latency_marker(self, marker: LatencyMarker) -> Pending:
        """Pass the marker on the main output."""
        return self._main.emit_latency_marker(marker)

    def get_watermark(self) -> int:
        """Return the watermark passed on last, for the metrics."""
        return self.watermark_ms

    def get_idle(self) -> int:
        """Return 1 if what follows is idle, else 0."""
        return int(self.is_idle)

    def emit_side(self, tag: OutputTag, run: Run) -> Pending:
        """Pass records to a side output; dropped if it has no consumer."""
        side = self._sides.get(tag)
        if side is None:
            self._on_unread(tag, len(run))
            return None
        return side.emit_run(run) if len(run) else None


def _is_split(output: _MainOutput) -> bool:
    return isinstance(output, BroadcastingOutput) and output.ways > 1


def main_output(outputs: Sequence[_MainOutput]) -> _MainOutput:
    """Return what carries a main output to all its consumers."""
    return outputs[0] if len(outputs) == 1 else BroadcastingOutput(outputs)
