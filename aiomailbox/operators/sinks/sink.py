"""Sinks: writers in the tasks, one committer per job.

Theory of operation: writers prepare, the committer makes visible. In a job that takes
checkpoints, what was prepared before a barrier is part of the checkpoint and is committed
when that is complete; without, everything is committed once, at the job's success. After
a crash the committer begins with ``restored=True``, commits what the restored checkpoint
has, perhaps again, and then removes what nothing refers to.

Concept:
    Flink, SinkV2 (FLIP-143): ``Sink``, ``SinkWriter``, ``Committer``. Ours commits at
    the job.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Protocol

from aiomailbox.errors import RecordsRefusedError, UserFunctionError
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.failures import RecordFailures, call_hook, naming_hook
from aiomailbox.operators.core.operator import Operator, Pending, finished, then
from aiomailbox.operators.core.user_code import (
    OnError,
    check_on_error,
    checkpoint_listener,
    fail,
)
from aiomailbox.records.run import Run
from aiomailbox.state.operator_state import OperatorStateSnapshot, RedistributionMode


class SinkWriter(Protocol):
    """Writes records; one per subtask, called from its mailbox only.

    One that has nothing to flush and to prepare unless records came since the last
    checkpoint says so with an attribute ``acts_on_records_only`` that is True: where
    nothing has happened in a job, periodic checkpoints do not call it.
    """

    def write_run(self, run: Run, /) -> Pending:
        """Write records.

        Raises:
            RecordsRefusedError: If it cannot take some of them and knows which, at once
                or while it is awaited; any other error fails the job.
        """

    def flush(self, *, end_of_input: bool) -> Pending:
        """Write out what is buffered; before a barrier, and at the end of input."""

    def prepare_commit(self) -> list[Any]:
        """Return what the committer has to make visible since the last call."""

    def snapshot(self) -> list[Any]:
        """Return what a new writer needs to resume, as elements; usually none.

        When the parallelism changes, the elements of all writers are split evenly.
        """

    def restore(self, elements: list[Any], /) -> None:
        """Take over what `snapshot` of earlier writers returned, if that was anything."""

    def close(self) -> Pending:
        """Release resources; uncommitted data stays invisible."""


@dataclass(frozen=True, slots=True)
class CommitterContext:
    """Whose committer it is.

    Attributes:
        job_name: The job's name.
        execution_id: As `RuntimeContext.execution_id` of the sink's writers.
        operator_name: The sink's name.
        uid: The sink's uid as the user gave it, or None.
        operator_id: As `RuntimeContext.operator_id` of the sink's writers.
        job_id: As `RuntimeContext.job_id` of the sink's writers.
        commits_at_checkpoints: Whether the job takes checkpoints, and commits at each.
        is_resumable: Whether a checkpoint may outlive this execution, so that another
            one resumes from it.
        lineage: As `RuntimeContext.lineage` of the sink's writers.
    """

    job_name: str
    execution_id: str
    operator_name: str
    uid: str | None
    operator_id: str = ""
    job_id: str = ""
    commits_at_checkpoints: bool = False
    is_resumable: bool = False
    lineage: str = ""


class Committer(Protocol):
    """Makes results visible; one per sink and job, called by the job.

    A committer whose writers leave something durable before it is committed has a method
    ``recover()``, without arguments. It is called after `begin` and after what a restored
    checkpoint holds was committed, before writers start, and at each later restart of the
    tasks; it removes what writers prepared and nothing refers to any more. If it also has
    ``recover_writers(subtasks, before)``, that is called where only some tasks start again:
    it removes what attempts with a number below ``before`` of these subtasks prepared,
    while other writers go on.
    """

    def begin(self, *, restored: bool) -> Pending:
        """Claim and check the target, before any task starts.

        Args:
            restored: Whether the job resumes from a checkpoint: the target holds the
                commits of earlier executions, and their prepared data must stay.

        Raises:
            TargetExistsError: If the target is already there.
            SinkError: If the target cannot be written.
        """

    def commit(
        self, committables: list[Any], /, *, checkpoint_id: int, is_final: bool
    ) -> Pending:
        """Make visible what writers prepared; may be called again with the same.

        A ``ConnectionError`` or ``TimeoutError`` makes the job call it again, a few
        times; any other error fails the job.

        Args:
            committables: The prepared results of the writers of all subtasks; may be
                empty if final.
            checkpoint_id: The checkpoint that has it; 0 in a job without checkpoints.
            is_final: Whether everything is there then. The job may still fail, if
                another of its sinks does.
        """

    def end(self, *, succeeded: bool) -> Pending:
        """Clean up, also if `begin` failed; called once.

        Args:
            succeeded: Whether the job did. If not, a job without checkpoints leaves
                nothing behind, and may take back what it committed. A job with them
                keeps what it committed; if `CommitterContext.is_resumable`, also what
                it prepared, for the execution that resumes.
        """


class Sink(Protocol):
    """A description of where results go; picklable, nothing live in it.

    A sink that gives results to objects of the process that starts the job says so with
    an attribute ``stays_in_parent`` that is True: its writers then run in that process.
    Its attribute ``guarantee`` declares how often rows appear after failures; without,
    that is `Guarantee.AT_LEAST_ONCE`. If its writers make one call for a whole run, such as
    a transaction, its attribute ``has_fixed_cost`` is True: slow calls then do not make
    runs shorter. One that makes columns of records may have a
    method ``for_fields(fields)``, which returns the sink for these `RecordFields`.
    """

    def create_writer(self, context: RuntimeContext, /) -> SinkWriter:
        """Create the writer of one subtask."""

    def create_committer(self, context: CommitterContext, /) -> Committer | None:
        """Create the committer, or None if writing is all there is."""


# The tail of a stream: gives records to a sink's writer.


class SinkOperator(Operator):
    """Writes records with a sink's writer and hands over what is to be committed.

    Before each barrier, and at the end of input, the writer is flushed and what it
    prepared goes to the job, which commits it.

    Args:
        sink: The sink; this operator makes its writer.
        on_error: How to handle a record that the writer refuses.

    Raises:
        WrongTypeError: If ``on_error`` is not an `OnError`.

    Concept:
        Flink, ``SinkWriterOperator``.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> class Printer:
        ...     def create_writer(self, context):
        ...         return self
        ...
        ...     def write_run(self, run):
        ...         print(run.values)
        ...
        ...     def close(self): ...
        >>> with OneInputHarness(SinkOperator(Printer())) as harness:
        ...     harness.process_run([1, 2])
        [1, 2]
    """

    def __init__(self, sink: Sink, *, on_error: OnError = fail) -> None:
        self.sink = sink
        self.takes_columns = getattr(sink, "takes_columns", False)
        self.has_fixed_cost = getattr(sink, "has_fixed_cost", False)
        self.on_error: OnError = check_on_error(on_error)
        self.listener = checkpoint_listener(getattr(sink, "function", None))
        self._writer: SinkWriter | None = None
        self._restored: list[Any] = []
        self._ended = False

    @property
    def writer(self) -> SinkWriter:
        """The writer, from `open` on."""
        assert self._writer is not None, "a sink has no writer before open()"
        return self._writer

    def restore_own(self, own: OperatorStateSnapshot) -> None:
        """Keep the state for the writer."""
        self._restored = own.elements("writer")
        ended = own.elements("ended")
        # All: one subtask may stand for several now, of which some had more to write.
        self._ended = bool(ended) and all(ended)

    def open(self) -> Pending:
        """Make the writer."""
        function = getattr(self.sink, "function", type(self.sink))
        self._failures = RecordFailures(self, function)
        self._writer = self._call(
            "create_writer", self.sink.create_writer, self.context
        )
        # The writer looks around while it awaits, so it needs what the operator was
        # given.
        if self.may_leave_rest(0):
            awaiting: Any = self._writer
            awaiting.interruption = self.interruption
        self.accepts = getattr(self._writer, "accepts", None)
        restored, self._restored = self._restored, []
        if restored:
            self._call("restore", self._writer.restore, restored)
        return None

    def may_leave_rest(self, index: int) -> bool:
        """Whether it may leave the rest of a run: if its writer awaits each record."""
        return getattr(self.sink, "may_leave_rest", False)

    def process_run(self, run: Run) -> Pending:
        """Write records; those that the writer refuses go where ``on_error`` says."""
        rest, pending = self._write(run)
        if pending is not None:
            return self._write_on(rest, pending)
        return self._failures.report() if self._failures.waiting else None

    @property
    def acts_at_checkpoints(self) -> bool:
        """Whether the writer is flushed, or the function wants to hear of them."""
        needs_records = getattr(self._writer, "acts_on_records_only", False)
        return super().acts_at_checkpoints or not needs_records

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> Pending:
        """Flush the writer and hand over what it prepared."""
        return self.settle()

    def settle(self) -> Pending:
        """Flush the writer and hand over what it prepared, without a checkpoint."""
        if self._ended:
            return None
        return self._flush(end_of_input=False)

    def finish(self) -> Pending:
        """Write out everything and hand it over; done once, also across restarts."""
        if self._ended:
            return None
        self._ended = True
        return self._flush(end_of_input=True)

    def snapshot_own(self) -> OperatorStateSnapshot:
        """Return the writer's state and whether all is written and handed over."""
        own = super().snapshot_own()
        if getattr(self.writer, "keeps_nothing", False):
            # With state but no uid, no operator could be put before it later.
            return own
        mode = RedistributionMode.MERGE
        own = own.with_list("ended", [self._ended], mode)
        return own.with_list("writer", self._call("snapshot", self.writer.snapshot))

    def close(self) -> Pending:
        """Close the writer."""
        writer = self._writer
        return None if writer is None else self._guard("close", writer.close)

    def _write(self, run: Run) -> tuple[Run, Pending]:
        """Write records until there is something to await; return what it is about."""
        # In a loop: each call may refuse some, and those after them are still
        # unwritten.
        while True:
            try:
                return run, self.writer.write_run(run)
            except RecordsRefusedError as refused:
                run = self._without_refused(run, refused)
                if not len(run):
                    return run, None
            except BaseException:
                # Only here: one context manager a run would be felt.
                with self._naming("write_run"):
                    raise

    async def _write_on(self, rest: Run, pending: Pending) -> None:
        while pending is not None:
            try:
                await self._guarded("write_run", pending)
                pending = None
            except RecordsRefusedError as refused:
                rest = self._without_refused(rest, refused)
                rest, pending = self._write(rest) if len(rest) else (rest, None)
        if self._failures.waiting:
            await finished(self._failures.report())

    def _without_refused(self, run: Run, refused: RecordsRefusedError) -> Run:
        """Do with refused records what ``on_error`` says; return what is to be written.

        Raises:
            UserFunctionError: If no record may be refused.
        """
        values, timestamps = run.values, run.timestamps
        with self._naming("write_run"):
            for index, error in sorted(refused.errors.items()):
                timestamp = None if timestamps is None else timestamps[index]
                try:
                    self._failures.take(values[index], timestamp, error)
                except UserFunctionError as failure:
                    failure.fault = refused.fault
                    raise
        return run.slice(refused.seen, len(run))

    def _flush(self, *, end_of_input: bool) -> Pending:
        flush = partial(self.writer.flush, end_of_input=end_of_input)
        pending = self._guard("flush", flush)
        return then(pending, self._hand_over)

    def _hand_over(self) -> Pending:
        committables = self._call("prepare_commit", self.writer.prepare_commit)
        if committables:
            self._call("prepare_commit", self.context.commit_later, committables)
        return None

    def _guard(self, hook: str, call: Callable[..., Pending], *args: Any) -> Pending:
        pending = self._call(hook, call, *args)
        return None if pending is None else self._guarded(hook, pending)

    async def _guarded(self, hook: str, pending: Awaitable[None]) -> None:
        with self._naming(hook):
            await pending

    def _call(self, hook: str, call: Callable[..., Any], *args: Any) -> Any:
        context = self.context
        return call_hook(hook, context.operator_name, context.uid, call, *args)

    def _naming(self, hook: str) -> AbstractContextManager[None]:
        context = self.context
        return naming_hook(hook, context.operator_name, context.uid)


# The guarantee of a sink for records that the job processes again after a failure.


class Guarantee(Enum):
    """How often a record reaches a sink's target, in a job that takes checkpoints.

    Attributes:
        EXACTLY_ONCE: Once, and when a checkpoint that has it is complete.
        IDEMPOTENT: At once, and after a failure again under the same key: in the end the
            target is as if it had been once, but readers may see it go back in between.
        AT_LEAST_ONCE: At once, and after a failure again.

    Concept:
        Flink, ``DeliveryGuarantee``.
    """

    EXACTLY_ONCE = "exactly_once"
    IDEMPOTENT = "idempotent"
    AT_LEAST_ONCE = "at_least_once"


def guarantee_of(sink: Any) -> Guarantee:
    """Return what a sink promises: its attribute ``guarantee``, or else the least.

    Example:
        >>> guarantee_of(object())
        <Guarantee.AT_LEAST_ONCE: 'at_least_once'>
    """
    guarantee = getattr(sink, "guarantee", Guarantee.AT_LEAST_ONCE)
    assert isinstance(guarantee, Guarantee), f"{sink!r} promises {guarantee!r}"
    return guarantee
