"""Drives one operator by hand, without a task.

Theory of operation: a method of a harness gives something to the operator and returns
when it has been processed. Where the operator must wait for something, the method is
run by `OperatorHarness.run` instead, which is awaited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from inspect import iscoroutine
from typing import Any, Self, cast

from aiomailbox.availability import Availability
from aiomailbox.errors import IllegalStateError, WrongTypeError
from aiomailbox.eventtime.generators import warn_of_watermark
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.operator import Input, Operator, Pending, then
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot, redistribute
from aiomailbox.records.events import (
    MIN_TIMESTAMP,
    LatencyMarker,
    OutputTag,
    StreamRecord,
    Watermark,
    WatermarkStatus,
)
from aiomailbox.records.run import ListRun, Run
from aiomailbox.signatures import accepts
from aiomailbox.testing.context import TestRuntimeContext

Emitted = StreamRecord | Watermark | WatermarkStatus | LatencyMarker


class RecordingOutput:
    """An `Output` that keeps what it is given, element by element.

    Attributes:
        availability: Always available, unless a test resets it.
        elements: The emitted elements, in order.
        runs: The runs that were emitted, in order.
        sides: The records of the side outputs, in order.
    """

    def __init__(self) -> None:
        self.availability: Availability = Availability(available=True)
        self.elements: list[Emitted] = []
        self.runs: list[Run] = []
        self.sides: dict[OutputTag, list[StreamRecord]] = {}

    def emit_run(self, run: Run) -> Pending:
        """Keep the run's records."""
        if len(run):
            self.runs.append(run)
            self.elements += stream_records(run)
        return None

    def emit_watermark(self, timestamp_ms: int) -> Pending:
        """Keep the watermark."""
        self.elements.append(Watermark(timestamp_ms))
        return None

    def emit_status(self, status: WatermarkStatus) -> Pending:
        """Keep the status."""
        self.elements.append(status)
        return None

    def emit_latency_marker(self, marker: LatencyMarker) -> Pending:
        """Keep the marker."""
        self.elements.append(marker)
        return None

    def emit_side(self, tag: OutputTag, run: Run) -> Pending:
        """Keep the run's records under their tag."""
        self.sides.setdefault(tag, []).extend(stream_records(run))
        return None


class HarnessInput:
    """One input of an operator that is driven by hand.

    Args:
        harness: The harness of the operator.
        index: Which input, from 0.
    """

    def __init__(self, harness: OperatorHarness, index: int) -> None:
        self._harness = harness
        self._index = index

    @property
    def _input(self) -> Input:
        return self._harness.operator.inputs[self._index]

    def process_element(self, value: Any, timestamp: int | None = None) -> None:
        """Process one record.

        Args:
            value: The record.
            timestamp: Its event time in milliseconds.
        """
        self.process_run([value], None if timestamp is None else [timestamp])

    def process_run(
        self, values: Run | Iterable[Any], timestamps: Iterable[int] | None = None
    ) -> None:
        """Process several records at once.

        Args:
            values: The records, or a run.
            timestamps: Their event times in milliseconds, unless ``values`` is a run.
        """
        if hasattr(values, "with_timestamps"):
            run = cast("Run", values)
        else:
            stamps = None if timestamps is None else list(timestamps)
            run = ListRun(list(values), stamps)
        if run.timestamps:
            self._harness.latest_ms = run.timestamps[-1]
        self._harness.do(self._input.process_run, run)

    def process_watermark(self, timestamp_ms: int) -> None:
        """Advance event time."""
        warn_of_watermark(self._harness.latest_ms, timestamp_ms)
        self._harness.do(self._input.process_watermark, timestamp_ms)

    def process_status(self, status: WatermarkStatus) -> None:
        """Make the input idle or active."""
        self._harness.do(self._input.process_status, status)

    def process_latency_marker(self, marker: LatencyMarker) -> None:
        """Let a latency marker through."""
        self._harness.do(self._input.process_latency_marker, marker)

    def end_input(self) -> None:
        """End the input."""
        self._harness.do(self._input.end_input)


def _operator(given: Any) -> Operator:
    """Return an operator, or what a factory of operators makes.

    Raises:
        WrongTypeError: If it is none.
    """
    if isinstance(given, Operator):
        return given
    problem = f"{given!r} is not an operator"
    if callable(given) and accepts(given, 0):
        made = given()
        if isinstance(made, Operator):
            return made
        problem = f"{given!r} makes {type(made).__name__}, which is no operator"
    raise WrongTypeError(
        "operator",
        problem,
        "Give one, as MapOperator(function), or a function without arguments that makes "
        "one; a stream is tested with am.run(stream.collect()).",
    )


class OperatorHarness:
    """Drives an operator with any number of inputs; a context manager that opens it.

    Args:
        operator: The operator, or a function that makes it. Not set up yet.
        context: The context to set it up with; made from ``settings`` by default.
        **settings: Arguments of `TestRuntimeContext`, as ``keyed=True``.

    Attributes:
        operator: The operator.
        context: Its context.
        recorded: Its output.
        inputs: Its inputs.
        latest_ms: The event time of the last record that had one.
    """

    def __init__(
        self,
        operator: Operator | Callable[[], Operator],
        *,
        context: TestRuntimeContext | None = None,
        **settings: Any,
    ) -> None:
        self.operator: Operator = _operator(operator)
        self.context: TestRuntimeContext = context or TestRuntimeContext(**settings)
        self.recorded: RecordingOutput = RecordingOutput()
        self.operator.setup(cast("RuntimeContext", self.context), self.recorded)
        self.inputs: list[HarnessInput] = [
            HarnessInput(self, index) for index in range(len(self.operator.inputs))
        ]
        self.latest_ms: int = MIN_TIMESTAMP
        self._is_open = False
        self._awaiting = False
        self._pending: Pending = None

    def __enter__(self) -> Self:
        if not self._is_open:
            self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        if not self._is_open:
            await self.run(self.open)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.run(self.close)

    @property
    def output(self) -> list[Emitted]:
        """The emitted elements, in order."""
        return self.recorded.elements

    @property
    def values(self) -> list[Any]:
        """The values of the records that were emitted, in order."""
        return [e.value for e in self.output if isinstance(e, StreamRecord)]

    def side_output(self, tag: OutputTag) -> list[StreamRecord]:
        """Return the records of a side output, in order."""
        return self.recorded.sides.get(tag, [])

    def take_output(self) -> list[Emitted]:
        """Return what was emitted since the last call, and clear it."""
        taken, self.recorded.elements = self.recorded.elements, []
        return taken

    def restore(self, snapshot: OperatorSnapshot | None) -> None:
        """Restore a new operator from the `snapshot` of an earlier one.

        Args:
            snapshot: The snapshot; None to start without state.

        Raises:
            IllegalStateError: If the operator is open already.
        """
        if self._is_open:
            raise IllegalStateError("restore() comes before open()")
        if snapshot is not None:
            self.operator.restore(snapshot)

    def open(self) -> None:
        """Open the operator."""
        self._is_open = True
        self.do(self.operator.open)
        self.do(self.operator.resume)

    def finish(self) -> None:
        """Let the operator emit what it holds back, after all inputs ended."""
        self.do(self.operator.finish)

    def prepare_snapshot(self, checkpoint_id: int = 1) -> None:
        """Let the operator emit what must precede the barrier of a checkpoint."""
        self.do(self.operator.prepare_snapshot_pre_barrier, checkpoint_id)

    def snapshot(self) -> OperatorSnapshot:
        """Return what a new operator needs to resume.

        Only an operator that does something before a barrier needs `prepare_snapshot`
        first: a sink, and calls with a journal.
        """
        taken = self.operator.snapshot()
        self.operator.settle_snapshots()
        return taken

    def close(self) -> None:
        """Close the operator."""
        self.do(self.operator.close)

    def set_processing_time(self, now_ms: int) -> None:
        """Advance wall-clock time and fire the timers that are due.

        Args:
            now_ms: Milliseconds; a harness starts at 0.
        """
        self.context.clock.advance_to(now_ms)
        if self._awaiting:
            self.do(self.context.manual_time.advance_to, now_ms)
        else:
            self.context.manual_time.set_current_time(now_ms)

    def do(self, action: Callable[..., Pending], *args: Any) -> None:
        """Call something that may have to wait; all other methods use it.

        Raises:
            IllegalStateError: If it has to wait and is not run by `run`, or the operator
                is not open.
        """
        if not self._is_open and action != self.operator.close:
            raise IllegalStateError(
                "the operator is not open: use the harness in a block, "
                "`with harness:`, or call harness.open()"
            )
        if self._awaiting:
            self._pending = then(self._pending, action, *args)
            return
        pending = action(*args)
        if pending is None:
            return
        if iscoroutine(pending):
            pending.close()
        raise IllegalStateError(
            "the operator has to wait here: write `await harness.run(harness.method, …)`"
        )

    async def run(self, method: Callable[..., None], *args: Any, **named: Any) -> None:
        """Run a method of the harness or of one of its inputs, and wait for it.

        Example: ``await harness.run(harness.process_element, "a", 1)``.
        """
        self._awaiting = True
        try:
            method(*args, **named)
        finally:
            self._awaiting = False
            pending, self._pending = self._pending, None
        if pending is not None:
            await pending

    def run_mail(self) -> None:
        """Run the mail that the operator has sent to itself."""
        if self._awaiting:
            self.do(self.context.run_mail.run_all)
            return
        while self.context.run_mail.try_run():
            pass

    async def settle(self) -> None:
        """Run mail until there is none and nothing spawned is running any more.

        An operator of asynchronous calls keeps its workers until it is closed, so this
        would wait for ever: ``await harness.run(harness.end_input)`` waits for calls.

        Raises whatever spawned work raised.
        """
        mailbox = self.context.run_mail
        while True:
            await mailbox.run_all()
            running = [task for task in self.context.tasks if not task.done()]
            if not running:
                break
            await mailbox.yield_until_any(running)
        for task in self.context.tasks:
            if not task.cancelled():
                task.result()


class OneInputHarness(OperatorHarness, HarnessInput):
    """Drives an operator with one input, and is that input.

    See `OperatorHarness` and `HarnessInput`.

    Example:
        >>> import aiomailbox as am
        >>> from aiomailbox.operators import ProcessOperator
        >>> class Upper(am.ProcessFunction):
        ...     def process_element(self, value, context, out):
        ...         out.collect(value.upper())
        >>> with OneInputHarness(ProcessOperator(Upper())) as harness:
        ...     harness.process_element("a", 5)
        ...     harness.process_watermark(5)
        ...     harness.output
        [StreamRecord(value='A', timestamp=5), Watermark(timestamp_ms=5)]
    """

    def __init__(
        self,
        operator: Operator | Callable[[], Operator],
        *,
        context: TestRuntimeContext | None = None,
        **settings: Any,
    ) -> None:
        OperatorHarness.__init__(self, operator, context=context, **settings)
        HarnessInput.__init__(self, self, 0)


class TwoInputHarness(OperatorHarness):
    """Drives an operator with two inputs; see `OperatorHarness` for the rest.

    Example:
        >>> from aiomailbox.operators import CoMapOperator
        >>> with TwoInputHarness(CoMapOperator(str.upper, str.lower)) as harness:
        ...     harness.first.process_element("a")
        ...     harness.second.process_element("B")
        ...     harness.values
        ['A', 'b']
    """

    @property
    def first(self) -> HarnessInput:
        """The first input."""
        return self.inputs[0]

    @property
    def second(self) -> HarnessInput:
        """The second input."""
        return self.inputs[1]


def stream_records(run: Run) -> list[StreamRecord]:
    """Return a run's records one by one.

    Example:
        >>> stream_records(ListRun(["a"], [1]))
        [StreamRecord(value='a', timestamp=1)]
    """
    if run.timestamps is None:
        return [StreamRecord(value) for value in run.values]
    return [
        StreamRecord(value, None if timestamp == MIN_TIMESTAMP else timestamp)
        for value, timestamp in zip(run.values, run.timestamps, strict=True)
    ]


# Snapshots of an operator's subtasks, spread over another number of them.


def redistributed(
    snapshots: Sequence[OperatorSnapshot], parallelism: int
) -> list[OperatorSnapshot]:
    """Return what each of ``parallelism`` new subtasks is restored from.

    Lists are split, union lists and broadcast maps handed round, as when a job is
    restored with another parallelism; of keyed state and timers each takes its own.

    Args:
        snapshots: The results of `OperatorHarness.snapshot`, one for each subtask, in
            order.
        parallelism: How many new subtasks.

    Returns:
        For each new subtask what `OperatorHarness.restore` takes.

    Example:
        >>> import aiomailbox as am
        >>> from aiomailbox.operators import ProcessOperator
        >>> from aiomailbox.testing import OneInputHarness
        >>> class Keep(am.ProcessFunction):
        ...     def open(self, context):
        ...         kept = am.ListStateDescriptor("kept")
        ...         self.kept = context.operator_state.get_list_state(kept)
        ...
        ...     def process_element(self, value, context, out):
        ...         self.kept.add(value)
        >>> with OneInputHarness(ProcessOperator(Keep())) as harness:
        ...     harness.process_run(["a", "b", "c"])
        ...     cut = harness.snapshot()
        >>> for subtask, snapshot in enumerate(redistributed([cut], 2)):
        ...     harness = OneInputHarness(
        ...         ProcessOperator(keep := Keep()),
        ...         parallelism=2,
        ...         subtask_index=subtask,
        ...     )
        ...     harness.restore(snapshot)
        ...     with harness:
        ...         print(keep.kept.get())
        ['a', 'b']
        ['c']
    """
    return redistribute(snapshots, parallelism)
