"""Operators: the contract, and the one class that implements it."""

from __future__ import annotations

import enum
import inspect
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

from aiomailbox.availability import Availability
from aiomailbox.errors import (
    InvalidArgumentError,
    RecordMutatedError,
    StateError,
    StopTask,
    UserFunctionError,
    named_operator,
)
from aiomailbox.eventtime.generators import InputWatermarks
from aiomailbox.mailbox.budget import SliceWatch
from aiomailbox.mailbox.executor import MailboxExecutor
from aiomailbox.metrics.catalogue import LATENCY_FROM
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.fields import RecordFields
from aiomailbox.operators.core.user_code import user_location
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.records.events import (
    MIN_TIMESTAMP,
    LatencyMarker,
    OutputTag,
    Watermark,
    WatermarkStatus,
)
from aiomailbox.records.run import Run
from aiomailbox.state.operator_state import OperatorStateSnapshot, RedistributionMode

# Why an operator or its task does not go on.


class BlockCause(enum.Enum):
    """The thing that an operator waits for, or does.

    Attributes:
        INPUT: The task waits for input.
        SOURCE: The source waits for what it reads.
        OUTPUT: The task waits for room in its outputs.
        LOOP: The task could go on, and others use the event loop.
        LIMIT: Calls wait for their rate limit.
        CALLS: As many calls are being made as are allowed.
        RETRY: Calls wait for their next attempt.
        KEY: Records wait for others of their key.
        AWAIT: A function is awaited, for one record at a time.
        FUNCTION: A function runs: it computes, or blocks.
    """

    INPUT = "input"
    SOURCE = "source"
    OUTPUT = "output"
    LOOP = "loop"
    LIMIT = "limit"
    CALLS = "calls"
    RETRY = "retry"
    KEY = "key"
    AWAIT = "await"
    FUNCTION = "function"


class Blocked(NamedTuple):
    """The reason why an operator waits.

    Attributes:
        cause: The thing itself.
        what: Which one, for people: the name of a limit, a line.
    """

    cause: BlockCause
    what: str = ""


# Leaving the rest of a run where its records, which are awaited, take too long.


class RunInterruption:
    """Looks, between two records of a run that are awaited, for what waits.

    Theory of operation: how long the next record takes is not known. An operator that
    awaits its records asks after each one whether the event loop had a turn meanwhile,
    which costs no clock. If it had, mail runs; and where the slice is over the operator
    leaves the rest of the run here and returns. Its caller keeps the rest in front of
    the operator, as a part of the task's state, so that all mail of the task can run,
    a checkpoint's included.

    Args:
        mailbox: The operator's.

    Attributes:
        watch: Says whether it is time for `look_around`.
        may_leave: Whether the caller keeps a rest.
        rest: The rest of the run that the operator left; the caller takes it away.
    """

    def __init__(self, mailbox: MailboxExecutor) -> None:
        self._mailbox = mailbox
        self.watch: SliceWatch = mailbox.watch()
        self.may_leave: bool = False
        self.rest: Run | None = None

    def start(self) -> SliceWatch:
        """Begin to watch, before the first record that is awaited."""
        self.watch.start()
        return self.watch

    async def look_around(self, run: Run, following: int) -> bool:
        """Let the operator's mail run, or leave the rest of the run.

        Args:
            run: The run that is being processed.
            following: The index of the next record.

        Returns:
            Whether the rest was left: the operator is to return.
        """
        if self.watch.is_over() and self.leave(run, following):
            return True
        if self._mailbox.has_mail:
            await self._mailbox.run_waiting()
        return False

    def leave(self, run: Run, following: int) -> bool:
        """Leave the rest of a run, if there is one and the caller keeps it.

        Args:
            run: The run.
            following: The index of the next record.
        """
        if not self.may_leave or following >= len(run):
            return False
        self.rest = run.slice(following, len(run))
        return True


# What can be seen of the asynchronous calls that an operator has begun.


@dataclass(frozen=True, slots=True)
class OpenCall:
    """One call that has not ended.

    Attributes:
        record: The argument of the function as text, truncated if it is long.
        attempt: Which attempt it is, from 1.
        age_s: How long ago this attempt began, seconds, waiting for the limit included.
        waits_for: The reason why it waits, in words.
        line: ``file:line`` of the innermost line of the user's; "" if it was not asked
            for.
    """

    record: str
    attempt: int
    age_s: float
    waits_for: str
    line: str = ""


@dataclass(frozen=True, slots=True)
class OpenCalls:
    """The calls that an operator has begun.

    Attributes:
        count: How many there are.
        oldest: The first of them, oldest first.
        waiting_for_slot: Calls that wait until fewer are being made.
        limit: The limit that they share and how much of it is free, in words; "" if
            there is none.
    """

    count: int
    oldest: list[OpenCall]
    waiting_for_slot: int
    limit: str


# What an operator is: inputs of runs and control elements, one output, a life.
#
# Theory of operation: every method that passes something on is synchronous and
# returns `Pending`: None on the fast path, an awaitable when something downstream
# must wait. The caller finishes the awaitable before the next call. An operator
# works on whole runs; `process_element` is the per-record form that the default
# `process_run` calls.


Pending = Awaitable[None] | None


def then(pending: Pending, action: Callable[..., Pending], *args: Any) -> Pending:
    """Run ``action(*args)`` after ``pending``: at once if there is nothing to await.

    Example:
        >>> then(None, print, "now")
        now
    """
    if pending is None:
        return action(*args)
    return _after(pending, action, args)


async def _after(
    pending: Awaitable[None], action: Callable[..., Pending], args: tuple[Any, ...]
) -> None:
    await pending
    following = action(*args)
    if following is not None:
        await following


def pending_of(result: object) -> Pending:
    """Return what is to be awaited of what a hook returned, if anything is."""
    return result if inspect.isawaitable(result) else None


def in_turn(
    action: Callable[..., Pending], arguments: Iterable[tuple[Any, ...]]
) -> Pending:
    """Run ``action`` with each arguments, when what came before is done.

    However many there are: `then` in a loop would nest a coroutine in each other one.

    Example:
        >>> in_turn(print, [("one",), ("two",)])
        one
        two
    """
    remaining = iter(arguments)
    for given in remaining:
        pending = action(*given)
        if pending is not None:
            return _rest_in_turn(pending, action, remaining)
    return None


async def _rest_in_turn(
    pending: Awaitable[None],
    action: Callable[..., Pending],
    remaining: Iterator[tuple[Any, ...]],
) -> None:
    await pending
    for given in remaining:
        following = action(*given)
        if following is not None:
            await following


async def finished(pending: Pending) -> None:
    """Await what a call left to be awaited, if it did."""
    if pending is not None:
        await pending


async def awaited(result: Any) -> Any:
    """Return a result, or what it gives if it has to be awaited."""
    waiting: Awaitable[Any] | Any = result
    return await waiting if inspect.isawaitable(waiting) else waiting


class Output(Protocol):
    """Where an operator's results go: the next operator, a writer, or both.

    Attributes:
        availability: True while results can be taken without exceeding the bounds.
            The results of one record always fit; an operator that emits more (a
            generator) checks it between its items and waits with `Availability.wait`.
    """

    availability: Availability

    def emit_run(self, run: Run) -> Pending:
        """Pass on records; an empty run is allowed and ignored."""

    def emit_watermark(self, timestamp_ms: int) -> Pending:
        """Pass on a watermark."""

    def emit_status(self, status: WatermarkStatus) -> Pending:
        """Pass on that the stream became idle or active."""

    def emit_latency_marker(self, marker: LatencyMarker) -> Pending:
        """Pass on a latency marker, to one randomly chosen consumer."""

    def emit_side(self, tag: OutputTag, run: Run) -> Pending:
        """Pass on records to the side output ``tag``; dropped if it has no consumer."""


class Input(Protocol):
    """One input of an operator, as the task's input processor or an upstream sees it."""

    def process_run(self, run: Run) -> Pending:
        """Process records."""

    def process_watermark(self, timestamp_ms: int) -> Pending:
        """Advance event time to ``timestamp_ms`` (already the minimum of channels)."""

    def process_status(self, status: WatermarkStatus) -> Pending:
        """Be notified that the input became idle or active."""

    def process_latency_marker(self, marker: LatencyMarker) -> Pending:
        """Pass a latency marker on."""

    def end_input(self) -> Pending:
        """Be notified that no more records come on this input (drain only)."""


class Operator:
    """An operator with one input, which is itself; the base of all operators.

    Life: ``setup`` (wiring, no user code) → ``restore`` (maybe) → ``open`` →
    ``process_*`` … → ``end_input`` → ``finish`` (drain only) → ``close`` (always).
    ``snapshot`` may be called between any two process calls after ``open``.

    Concept:
        Flink, ``AbstractStreamOperator`` and ``OneInputStreamOperator``.
    """

    context: RuntimeContext
    output: Output
    # How far event time had come when the last watermark was taken, milliseconds.
    watermark_ms: int = MIN_TIMESTAMP
    # Whether, as the head of a task, it gets input also while its output has no room.
    takes_input_always = False
    # What the task waits for before it takes more input, beside its outputs; known
    # once the operator is open.
    accepts: Availability | None = None
    # Whether it keeps records back, up to a bound: then `room` says how many more fit.
    fills_up = False
    # Whether it works on columns where it gets any, and never asks for their rows.
    takes_columns: bool = False
    # Whether each run costs it a round trip, say, however few records the run has.
    has_fixed_cost: bool = False
    # Lets the rest of a run wait; made by `setup`.
    interruption: RunInterruption
    # The user's function object that is notified of checkpoints; None for none.
    listener: Any = None
    # What in it wants callbacks at points of wall-clock time; "" for nothing known.
    live_clock_need: str = ""
    # The side outputs of records that came in: columns where these were.
    late_tags: Sequence[OutputTag] = ()

    def rows_reason(self) -> str:
        """Return which of its arguments asks for the rows of columns; "" if none does."""
        return ""

    def result_fields(self, *fields: RecordFields | None) -> RecordFields | None:
        """Return the fields of the records that it emits; None if they are not known.

        Args:
            fields: Those of each input's records; None for one where they are not known.

        Raises:
            RecordTypeError: If it is known that a record lacks a field that it reads.
        """
        return None

    def setup(self, context: RuntimeContext, output: Output) -> None:
        """Take what the task provides. Called once, before anything else."""
        self.context = context
        self.output = output
        self.interruption = RunInterruption(context.mailbox)

    def repeat_order(self) -> bool:
        """Let results come in an order that follows from the input; before `setup`.

        Returns:
            Whether they do: another attempt on the same input then repeats them.
        """
        return True

    def may_leave_rest(self, index: int) -> bool:
        """Whether it may leave the rest of a run of an input; see `RunInterruption`.

        A caller of `process_run` that keeps no rest is never left one.
        """
        # An override of `process_run` knows best whether the rest of a run can wait.
        return type(self).process_run is Operator.process_run

    def key_of_input(self, index: int) -> Callable[[Any], Any] | None:
        """Return what reads the key of an input's records; None if they have none."""
        return None

    @property
    def room(self) -> int:
        """How many records fit before `process_run` has to wait; see ``fills_up``."""
        return sys.maxsize

    def open_calls(self, count_max: int) -> OpenCalls | None:
        """Return the asynchronous calls it has begun; None if it makes none.

        Args:
            count_max: How many are looked at, the oldest ones.
        """
        return None

    def blocked(self) -> Blocked | None:
        """Return what its calls wait for; None if it makes none, or none is open.

        Called from another thread: it reads numbers, and changes nothing.
        """
        return None

    @property
    def inputs(self) -> list[Input]:
        """The operator's inputs, in order; a source has none."""
        return [self]

    def warm_up(self) -> Pending:
        """Import in a thread what would hold the loop at the first record; before `open`."""
        return None

    def restore(self, snapshot: OperatorSnapshot) -> None:
        """Take over what `snapshot` of an earlier instance returned; before `open`.

        Args:
            snapshot: That, or what `redistribute` made of those of several subtasks.

        Raises:
            StateError: If it is one of an operator with keys, and this one has none, or
                of another number of key groups.
        """
        for _ in self.restoring(snapshot):
            pass

    def check_restored(self) -> None:
        """Look, once it is open, for state that was restored and is not read.

        Raises:
            StateError: If what is unread would be missed.
        """

    def restoring(self, snapshot: OperatorSnapshot) -> Iterator[None]:
        """Do as `restore`, a piece of about a millisecond at a time."""
        self.watermark_ms = snapshot.watermark
        self.context.operator_state.restore([snapshot.operator])
        yield from self.restore_keyed(snapshot)
        self.restore_own(snapshot.own)

    def snapshot(self) -> OperatorSnapshot:
        """Return everything that a new instance needs to resume from here.

        It shares nothing with the operator that could change.
        """
        self.fill_state()
        return self.capture()

    @property
    def acts_at_checkpoints(self) -> bool:
        """Whether a checkpoint does more with it than to keep what its task has done.

        If not, its state changes only by what its task gives it to do, and where that is
        nothing no checkpoint need ask it. One that overrides a hook of checkpoints
        overrides this, too.
        """
        # A function may fill a list at any time: it needs no key for that.
        return self.listener is not None or self.context.operator_state.is_used

    def settle_snapshots(self) -> None:
        """Be notified that a snapshot was taken, and may have been read already."""

    def fill_state(self) -> None:
        """Put into state what is kept outside of it, right before it is captured."""

    def capture(self) -> OperatorSnapshot:
        """Return all state as it is now."""
        return OperatorSnapshot(
            operator=self.context.operator_state.snapshot(),
            own=self.snapshot_own(),
            watermark=self.watermark_ms,
        )

    def snapshot_own(self) -> OperatorStateSnapshot:
        """Return what the operator itself keeps, as lists; nothing by default.

        An override adds to what the base returns. A list that belongs to the
        subtask as a whole has the mode ``MERGE`` and one element.
        """
        return OperatorStateSnapshot()

    @property
    def place(self) -> str:
        """The operator, as errors name it."""
        return named_operator(self.context.operator_name, self.context.uid)

    def restore_own(self, own: OperatorStateSnapshot) -> None:
        """Take over what `snapshot_own` returned, maybe of several subtasks."""

    def restore_keyed(self, snapshot: OperatorSnapshot) -> Iterable[None]:
        """Refuse keyed state and timers: there are no keys here."""
        if snapshot.timers or any(piece.states for piece in snapshot.keyed):
            raise StateError(
                f"{self.place} has no keys, "
                "and is to be restored from the state of one that had. Was the uid given "
                "to another operator before?"
            )
        return ()

    def open(self) -> Pending:
        """Acquire resources; downstream operators are open already."""
        return None

    def resume(self) -> Pending:
        """Go on with what a snapshot interrupted; called once all operators are open."""
        return None

    def process_run(self, run: Run) -> Pending:
        """Process records; by default one by one through `process_element`."""
        advance = partial(_advance, self.process_element, run)
        return go_through(run, advance, self.interruption)

    def process_element(self, value: Any, timestamp: int | None) -> Pending:
        """Process one record."""
        raise TypeError(
            f"{type(self).__name__} defines neither process_run nor process_element"
        )

    def process_watermark(self, timestamp_ms: int) -> Pending:
        """Advance event time; a watermark that is not beyond the last says nothing new.

        Inputs give only watermarks that advance. One is repeated after a restore, for
        operators that are new: see `repeat_progress`.
        """
        if timestamp_ms <= self.watermark_ms:
            return None
        self.watermark_ms = timestamp_ms
        return self.on_watermark(timestamp_ms)

    def on_watermark(self, timestamp_ms: int) -> Pending:
        """React to a watermark that advances event time, and pass it on."""
        return self.pass_watermark(timestamp_ms)

    def pass_watermark(self, timestamp_ms: int) -> Pending:
        """Pass a watermark on, behind the records that came before it."""
        return self.output.emit_watermark(timestamp_ms)

    def repeat_progress(self) -> Pending:
        """Pass on once more how far event time had come: its readers may be new.

        Called after a restore, when `resume` has gone on with what was interrupted.
        """
        if self.watermark_ms == MIN_TIMESTAMP:
            return None
        return self.pass_watermark(self.watermark_ms)

    def process_status(self, status: WatermarkStatus) -> Pending:
        """Pass the status on."""
        return self.output.emit_status(status)

    def process_latency_marker(self, marker: LatencyMarker) -> Pending:
        """Pass the marker on."""
        self.record_latency(marker)
        return self.output.emit_latency_marker(marker)

    def record_latency(self, marker: LatencyMarker) -> None:
        """Observe how long ago a source has sent a marker."""
        context = self.context
        latency = context.metrics.histogram(
            f"{LATENCY_FROM}{marker.operator}",
            unit="ms",
            text=f"How long records wait on their way from {marker.operator!r} to here.",
        )
        latency.observe(context.clock.now_ms() - marker.marked_ms)

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> Pending:
        """Emit what must go out before the barrier of a checkpoint; `snapshot` follows.

        Nothing is processed between the two.
        """
        return None

    def notify_checkpoint_complete(self, checkpoint_id: int) -> Pending:
        """Be notified that a checkpoint is complete, which nothing takes back."""
        return self._notify("notify_checkpoint_complete", checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> Pending:
        """Be notified that a checkpoint will not complete; the next one holds all."""
        return self._notify("notify_checkpoint_aborted", checkpoint_id)

    def _notify(self, hook: str, checkpoint_id: int) -> Pending:
        notify = getattr(self.listener, hook, None)
        return None if notify is None else pending_of(notify(checkpoint_id))

    def end_input(self) -> Pending:
        """Be notified that no more records come."""
        return None

    def settle(self) -> Pending:
        """Finish and hand over what is on its way: the job stops without drain.

        The input has not ended: windows, timers and batches that are not complete stay
        as they are, and go with the state.
        """
        return None

    def finish(self) -> Pending:
        """Emit what is still held back; no more input follows."""
        return None

    def close(self) -> Pending:
        """Release resources; called also after a failure and if open never ran."""
        return None

    def user_error(
        self, error: BaseException
    ) -> UserFunctionError | RecordMutatedError | StopTask:
        """Return the error to raise (``from error``) when the user's function raised.

        A `StopTask` stays what it is: it is not an error of the function.

        Example:
            ``except Exception as error: raise self.user_error(error) from error``
        """
        if isinstance(error, UserFunctionError | RecordMutatedError | StopTask):
            return error
        context = self.context
        location = user_location(error) or context.line
        return UserFunctionError(context.operator_name, context.uid, location, error)


def _advance(
    process: Callable[[Any, int | None], Pending], run: Run, start: int
) -> tuple[Pending, int]:
    """Process records until one must be awaited; return that and its index."""
    values, timestamps = run.values, run.timestamps
    for index in range(start, len(values)):
        timestamp = None if timestamps is None else timestamps[index]
        if timestamp == MIN_TIMESTAMP:
            timestamp = None
        pending = process(values[index], timestamp)
        if pending is not None:
            return pending, index
    return None, len(values)


def go_through(
    run: Run,
    advance: Callable[[int], tuple[Pending, int]],
    interruption: RunInterruption,
    emit: Callable[[], Pending] | None = None,
) -> Pending:
    """Process the records of a run in order: at once, up to those to be awaited.

    Args:
        run: The run.
        advance: Processes records from an index on until one must be awaited; returns
            what is awaited, and the record's index.
        interruption: The operator's, asked between two records that are awaited.
        emit: Passes on what was collected: at the end, and before mail may see the
            operator's state.
    """
    pending, index = advance(0)
    if pending is None:
        return None if emit is None else emit()
    return _rest_of_run(pending, index, run, advance, interruption, emit)


async def _rest_of_run(
    pending: Pending,
    index: int,
    run: Run,
    advance: Callable[[int], tuple[Pending, int]],
    interruption: RunInterruption,
    emit: Callable[[], Pending] | None,
) -> None:
    watch = interruption.start()
    while pending is not None:
        await pending
        if watch.has_waited:
            emitted = None if emit is None else emit()
            if emitted is not None:
                await emitted
            if await interruption.look_around(run, index + 1):
                return
        pending, index = advance(index + 1)
    emitted = None if emit is None else emit()
    if emitted is not None:
        await emitted


async def await_each(
    operator: Operator,
    run: Run,
    process: Callable[[int, Any, int | None], Awaitable[None]],
) -> None:
    """Await ``process(index, value, timestamp)`` for each record, when there is room."""
    values, timestamps = run.values, run.timestamps
    availability, interruption = operator.output.availability, operator.interruption
    watch = interruption.start()
    for index, value in enumerate(values):
        # Before each record: what one emits always fits.
        if not availability.available:
            if interruption.leave(run, index):
                return
            await operator.context.mailbox.wait_until(availability)
        await process(index, value, None if timestamps is None else timestamps[index])
        if watch.has_waited and await interruption.look_around(run, index + 1):
            return


# What an operator on columns notes for people when it has to go on with rows.


class RowsNote:
    """Why an operator on columns works on rows since it was opened last.

    The operators of all subtasks in this process share it with the description of the job.

    Attributes:
        reason: The event; "" for none.

    Example:
        >>> note = RowsNote()
        >>> note.take("a sum leaves 64 bits")
        >>> note.take("records came as rows")
        >>> note.reason
        'a sum leaves 64 bits'
    """

    def __init__(self) -> None:
        self.reason: str = ""

    def take(self, reason: str) -> None:
        """Note a reason, if it is the first one."""
        self.reason = self.reason or reason

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process has operators of its own.
        return RowsNote, ()


# Operators with two inputs.


class ForwardingOutput:
    """Passes on all but runs.

    Args:
        output: The output.
        emit_run: Takes the runs.
    """

    def __init__(self, output: Output, emit_run: Callable[[Run], Pending]) -> None:
        self.availability = output.availability
        self.emit_run = emit_run
        self.emit_watermark = output.emit_watermark
        self.emit_status = output.emit_status
        self.emit_latency_marker = output.emit_latency_marker
        self.emit_side = output.emit_side


class TwoInputOperator(Operator):
    """The base of operators with two inputs, the first and the second.

    Subclasses define `process_input`. The operator's event time is the minimum over the
    inputs that are not idle; `process_watermark` and `process_status` get what follows
    from both.

    Concept:
        Flink, ``TwoInputStreamOperator``.
    """

    # Makes records of the pairs that a join emits; None to emit pairs.
    selection: Operator | None = None

    def __init__(self) -> None:
        self._watermarks = InputWatermarks(2)
        self._inputs: list[Input] = [_OneInput(self, 0), _OneInput(self, 1)]

    def setup(self, context: RuntimeContext, output: Output) -> None:
        """Take what the task provides, and let a selection take the results."""
        if self.selection is not None:
            self.selection.setup(context, output)
            output = ForwardingOutput(output, self.selection.process_run)
        super().setup(context, output)

    def result_fields(self, *fields: RecordFields | None) -> RecordFields | None:
        """Return the fields of what a selection makes."""
        return None if self.selection is None else self.selection.result_fields(*fields)

    @property
    def inputs(self) -> list[Input]:
        """The first and the second input."""
        return self._inputs

    @property
    def current_watermark(self) -> int:
        """The operator's event time, milliseconds."""
        return self._watermarks.watermark

    def snapshot_own(self) -> OperatorStateSnapshot:
        """Return how far each input is."""
        return (
            super()
            .snapshot_own()
            .with_list(
                "inputs", [self._watermarks.snapshot()], RedistributionMode.MERGE
            )
        )

    def restore_own(self, own: OperatorStateSnapshot) -> None:
        """Go on with each input where it was."""
        super().restore_own(own)
        self._watermarks.restore(own.elements("inputs"))

    def may_leave_rest(self, index: int) -> bool:
        """Whether it may leave the rest of a run: on both inputs."""
        return True

    def process_input(self, index: int, run: Run) -> Pending:
        """Process records of the first input, 0, or of the second, 1."""
        raise TypeError(f"{type(self).__name__} defines no process_input")

    def input_ended(self, index: int) -> Pending:
        """Be notified that no more records come on an input."""
        return None

    def repeat_progress(self) -> Pending:
        """Pass on once more how far event time had come, and whether it stands still."""
        pending = super().repeat_progress()
        if not self._watermarks.is_idle:
            return pending
        return then(pending, self.process_status, WatermarkStatus.IDLE)

    def input_watermark(self, timestamp_ms: int, index: int) -> Pending:
        """Take the watermark of an input."""
        return self._process(self._watermarks.input_watermark(timestamp_ms, index))

    def input_status(self, status: WatermarkStatus, index: int) -> Pending:
        """Take the status of an input."""
        return self._process(self._watermarks.input_status(status, index))

    def _process(self, progress: tuple[Watermark | WatermarkStatus, ...]) -> Pending:
        pending: Pending = None
        for element in progress:
            if isinstance(element, Watermark):
                pending = then(pending, self.process_watermark, element.timestamp_ms)
            else:
                pending = then(pending, self.process_status, element)
        return pending


class _OneInput:
    """One of the two inputs."""

    def __init__(self, operator: TwoInputOperator, index: int) -> None:
        self._operator = operator
        self._index = index

    def process_run(self, run: Run) -> Pending:
        return self._operator.process_input(self._index, run)

    def process_watermark(self, timestamp_ms: int) -> Pending:
        return self._operator.input_watermark(timestamp_ms, self._index)

    def process_status(self, status: WatermarkStatus) -> Pending:
        return self._operator.input_status(status, self._index)

    def process_latency_marker(self, marker: LatencyMarker) -> Pending:
        return self._operator.process_latency_marker(marker)

    def end_input(self) -> Pending:
        return self._operator.input_ended(self._index)


# Which of its inputs an operator wants to read next.


@dataclass(frozen=True, slots=True)
class InputSelection:
    """A set of inputs.

    Attributes:
        mask: Has the bit ``1 << index`` for each input in it; -1 for all.

    Concept:
        Flink, ``InputSelection``.

    Example:
        >>> InputSelection.of(0, 2).includes(2), InputSelection.FIRST.includes(1)
        (True, False)
    """

    mask: int

    ALL: ClassVar[InputSelection]
    FIRST: ClassVar[InputSelection]
    SECOND: ClassVar[InputSelection]

    @classmethod
    def of(cls, *indexes: int) -> InputSelection:
        """Return the set of these inputs, counted from 0.

        Raises:
            InvalidArgumentError: If there is none, or an index is negative.
        """
        if not indexes or min(indexes) < 0:
            raise InvalidArgumentError(
                "indexes",
                f"{indexes} select no input",
                "Give the index of each input, counted from 0.",
            )
        mask = 0
        for index in indexes:
            mask |= 1 << index
        return cls(mask)

    def includes(self, index: int) -> bool:
        """Say whether an input is in the set."""
        return bool(self.mask >> index & 1)


InputSelection.ALL = InputSelection(-1)


InputSelection.FIRST = InputSelection.of(0)


InputSelection.SECOND = InputSelection.of(1)
