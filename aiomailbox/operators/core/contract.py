"""What an operator is: inputs of runs and control elements, one output, a life.

Theory of operation: every method that passes something on is synchronous and
returns `Pending`: None on the fast path, an awaitable when something downstream
must wait. The caller finishes the awaitable before the next call. An operator
works on whole runs; `process_element` is the per-record form that the default
`process_run` calls.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Protocol

from aiomailbox.availability import Availability
from aiomailbox.errors import (
    RecordMutatedError,
    StateError,
    UserFunctionError,
    named_operator,
)
from aiomailbox.operators.core.blocked import Blocked
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.interruption import RunInterruption
from aiomailbox.operators.core.locate import user_location
from aiomailbox.operators.core.open_calls import OpenCalls
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.records.elements import (
    MIN_TIMESTAMP,
    LatencyMarker,
    OutputTag,
    WatermarkStatus,
)
from aiomailbox.records.run import Run
from aiomailbox.state.rescale import OperatorStateSnapshot

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


async def awaited(result: Any) -> Any:
    """Return a result, or what it gives if it has to be awaited."""
    waiting: Awaitable[Any] | Any = result
    return await waiting if inspect.isawaitable(waiting) else waiting


class Output(Protocol):
    """Where an operator's results go: the next operator, a writer, or both.

    Attributes:
        availability: True while results can be taken without exceeding the bounds.
            What one record emits always fits; an operator that emits more (a generator)
            checks it between its items and waits with `Availability.wait`.
    """

    availability: Availability

    def emit_run(self, run: Run) -> Pending:
        """Pass on records; an empty run is allowed and ignored."""
        ...

    def emit_watermark(self, timestamp_ms: int) -> Pending:
        """Pass on a watermark."""
        ...

    def emit_status(self, status: WatermarkStatus) -> Pending:
        """Pass on that the stream became idle or active."""
        ...

    def emit_latency_marker(self, marker: LatencyMarker) -> Pending:
        """Pass on a latency marker, to one randomly chosen consumer."""
        ...

    def emit_side(self, tag: OutputTag, run: Run) -> Pending:
        """Pass on records to the side output ``tag``; dropped if it has no consumer."""
        ...


class Input(Protocol):
    """One input of an operator, as the task's input processor or an upstream sees it."""

    def process_run(self, run: Run) -> Pending:
        """Process records."""
        ...

    def process_watermark(self, timestamp_ms: int) -> Pending:
        """Advance event time to ``timestamp_ms`` (already the minimum of channels)."""
        ...

    def process_status(self, status: WatermarkStatus) -> Pending:
        """Be notified that the input became idle or active."""
        ...

    def process_latency_marker(self, marker: LatencyMarker) -> Pending:
        """Pass a latency marker on."""
        ...

    def end_input(self) -> Pending:
        """Be notified that no more records come on this input (drain only)."""
        ...


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
    # Lets the rest of a run wait; made by `setup`.
    interruption: RunInterruption
    # What in it wants callbacks at points of wall-clock time; "" for nothing known.
    live_clock_need: str = ""

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
        return _each(self.process_element, run, self.interruption)

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
        """Pass on once more how far event time had come: what follows may be new.

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
            f"latency_ms_from_{marker.operator}",
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
        return None

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> Pending:
        """Be notified that a checkpoint will not complete; the next one holds all."""
        return None

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
    ) -> UserFunctionError | RecordMutatedError:
        """Return the error to raise (``from error``) when the user's function raised.

        Example:
            ``except Exception as error: raise self.user_error(error) from error``
        """
        if isinstance(error, UserFunctionError | RecordMutatedError):
            return error
        context = self.context
        return UserFunctionError(
            context.operator_name, context.uid, user_location(error), error
        )


def _each(
    process: Callable[[Any, int | None], Pending],
    run: Run,
    interruption: RunInterruption,
) -> Pending:
    pending, index = _advance(process, run, 0)
    if pending is None:
        return None
    return _each_after(pending, process, run, index, interruption)


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


async def _each_after(
    pending: Pending,
    process: Callable[[Any, int | None], Pending],
    run: Run,
    index: int,
    interruption: RunInterruption,
) -> None:
    watch = interruption.start()
    while pending is not None:
        await pending
        if watch.has_waited and await interruption.look_around(run, index + 1):
            return
        pending, index = _advance(process, run, index + 1)
