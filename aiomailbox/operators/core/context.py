"""The context of an operator: its only access to everything outside."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Mapping
from typing import Any, Final, Protocol

from aiomailbox.availability import Availability
from aiomailbox.clock import Clock
from aiomailbox.errors import safe_repr
from aiomailbox.eventtime.alignment import AlignmentGroup
from aiomailbox.eventtime.processing_time import ProcessingTimeService
from aiomailbox.eventtime.strategy import AlignmentConfig
from aiomailbox.eventtime.timers import InternalTimerService, Triggerable
from aiomailbox.journal.journals import SubtaskJournal
from aiomailbox.keygroups.assignment import KeyGroupRange
from aiomailbox.mailbox.executor import MailboxExecutor
from aiomailbox.metrics.instruments import MetricGroup
from aiomailbox.operators.core.mutations import MutationCheck, SharedRecords
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.records.events import MAX_TIMESTAMP, MIN_TIMESTAMP, OutputTag
from aiomailbox.records.run import Run
from aiomailbox.state.operator_state import OperatorStateStore
from aiomailbox.state.table_store import KeyedStateStore

# Warnings that may come for every record, said at most once in a while.


_INTERVAL_S: Final = 1.0


_LATE_INTERVAL_S: Final = 60.0


_LATE: Final = "late records dropped"


_UNREAD: Final = "records of a side output are dropped, as no operator reads it"


_TOO_LATE: Final = "a call ended after its time was up: what it came to is dropped"


_UNFIRED: Final = "records are dropped: their window has ended before its trigger fired"


class RepeatedWarnings:
    """Logs what happens again and again: at once, then the sum of each interval.

    Args:
        log: A structlog logger.
        clock: Says when an interval is over.

    Example:
        >>> from aiomailbox.testing import ManualClock, RecordingLog
        >>> log = RecordingLog()
        >>> warnings = RepeatedWarnings(log, ManualClock())
        >>> for number in range(1000):
        ...     warnings.add("records skipped", 1, ValueError(number))
        >>> warnings.flush()
        >>> [(fields["count"], fields["total"]) for _, _, fields in log.entries]
        [(1, 1), (999, 1000)]
    """

    def __init__(self, log: Any, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        # By what happens, and where: texts of the program, so they are few.
        self._events: dict[tuple[str, str], _Event] = {}

    def add(self, event: str, count: int, error: BaseException) -> None:
        """Say that something happened, or say it later: at most once a second.

        Args:
            event: The event; one of few texts.
            count: How often it happened.
            error: Why, the first time of these.
        """
        found = self._found(event, _INTERVAL_S)
        if not found.count:
            # As text: an exception keeps all that was on its stack.
            found.fields = {"first_error": safe_repr(error)}
        self._count(event, found, count)

    def late(self, count: int, behind_ms: int | None) -> None:
        """Say that records came too late and are dropped: at most once a minute.

        Args:
            count: How many.
            behind_ms: How far the farthest of them is behind the watermark; None if
                event time has ended.
        """
        found = self._found(_LATE, _LATE_INTERVAL_S)
        found.fields["remedy"] = (
            "sort the source, or allow more: for_bounded_out_of_orderness, "
            "allowed_lateness; side_output_late_data keeps them"
        )
        if behind_ms is not None:
            behind_ms = max(behind_ms, found.fields.get("farthest_ms", 0))
            found.fields["farthest_ms"] = behind_ms
        self._count(_LATE, found, count)

    def unread(self, tag: OutputTag, count: int, emitted_by: str) -> None:
        """Say that records went to a side output that nothing reads: once a minute.

        Args:
            tag: The side output.
            count: How many.
            emitted_by: The functions that may have done so, as text.
        """
        found = self._found(_UNREAD, _LATE_INTERVAL_S, tag.id)
        found.fields = {
            "side_output": tag.id,
            "function": emitted_by,
            "remedy": "read it with get_side_output(tag) of the stream that the "
            "operator returns; of a pipeline that was applied to a DataFrame, with "
            "applied.side(tag, schema=...) before applied.result, or run_on(..., "
            "sides={tag: schema})",
        }
        self._count(_UNREAD, found, count)

    def answered_too_late(self, answer: str) -> None:
        """Say that a call ended by itself after it was given up: once a minute.

        Args:
            answer: The result or the error of the call, as text.
        """
        found = self._found(_TOO_LATE, _LATE_INTERVAL_S)
        found.fields = {
            "answer": answer,
            "remedy": "let asyncio.CancelledError pass: after timeout= or deadline= the "
            "call counts as failed, whatever it answers; or allow more time",
        }
        self._count(_TOO_LATE, found, 1)

    def unfired(self, count: int, *, has_timeout: bool) -> None:
        """Say that windows drop records that their trigger never fired for: once a minute.

        Args:
            count: How many.
            has_timeout: Whether a timeout would have fired the trigger later.
        """
        found = self._found(_UNFIRED, _LATE_INTERVAL_S)
        found.fields = {
            "remedy": "the window, or the input, ended before the timeout of "
            "am.ProcessingTimeoutTrigger: use windows of time for all records of an "
            "input that ends"
            if has_timeout
            else "a count trigger, as of count_window, fires for full counts only: "
            "wrap it in am.ProcessingTimeoutTrigger, or use windows of time",
        }
        self._count(_UNFIRED, found, count)

    def timer(self, event: str, at_ms: int, line: str, remedy: str) -> None:
        """Say what is wrong with the time of a timer: at most once a minute.

        Args:
            event: The event; one of few texts.
            at_ms: The time.
            line: The user's call that made the operator.
            remedy: The right way.
        """
        found = self._found(event, _LATE_INTERVAL_S)
        found.fields = {"at": at_ms, "line": line, "remedy": remedy}
        self._count(event, found, 1)

    def flush(self) -> None:
        """Say what was not yet said; at the end of the task."""
        for (event, _), found in self._events.items():
            if found.count:
                self._say(event, found)

    def _found(self, event: str, interval_s: float, where: str = "") -> _Event:
        found = self._events.get((event, where))
        if found is None:
            found = self._events[event, where] = _Event(interval_s)
        return found

    def _count(self, event: str, found: _Event, count: int) -> None:
        found.count += count
        now = self._clock.monotonic()
        if now >= found.silent_until:
            found.silent_until = now + found.interval_s
            self._say(event, found)

    def _say(self, event: str, found: _Event) -> None:
        found.total += found.count
        self._log.warning(event, count=found.count, total=found.total, **found.fields)
        found.count = 0


class _Event:
    __slots__ = ("count", "fields", "interval_s", "silent_until", "total")

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self.count = 0
        self.total = 0
        self.fields: dict[str, Any] = {}
        self.silent_until = float("-inf")


class LateRecords:
    """Counts the records of one operator that came too late, and says so.

    Args:
        metrics: The operator's.
        warnings: The operator's.
    """

    def __init__(self, metrics: MetricGroup, warnings: RepeatedWarnings) -> None:
        self._counter = metrics.counter("num_late_records_dropped")
        self._warnings = warnings

    def drop(self, stamp_ms: int, watermark_ms: int, count: int = 1) -> None:
        """Count records that are dropped.

        Args:
            stamp_ms: The event time of the oldest.
            watermark_ms: How far event time is.
            count: How many there are.
        """
        self._counter.value += count
        is_known = stamp_ms > MIN_TIMESTAMP and watermark_ms < MAX_TIMESTAMP
        self._warnings.late(count, watermark_ms - stamp_ms if is_known else None)


class Limiter(Protocol):
    """A job-wide rate limit, shared by all operators that name it.

    Concept:
        A token bucket whose leases are granted in the order asked for.
    """

    @property
    def free(self) -> float | None:
        """Units that may be used now; None if they are counted in another process."""

    async def lease(self, weight: float = 1.0) -> None:
        """Wait until ``weight`` more units may be used; cancelling takes none."""

    def pause(self, delay_s: float) -> None:
        """Grant nothing for ``delay_s`` seconds (a server's Retry-After)."""


class Handover(Protocol):
    """A bounded place where a task leaves runs for the consumer of results.

    Attributes:
        room: Available while there is room for another run.
    """

    room: Availability

    def offer(self, run: Run) -> bool:
        """Take the run; False says that there is no room for another one yet."""

    def writable(self) -> asyncio.Future[None]:
        """Return a fresh future that completes when there is room again."""


class RuntimeContext(Protocol):
    """The services of its task and job that an operator may use.

    Attributes:
        job_name: The job's name.
        execution_id: Names this execution of the job, and no other: hexadecimal
            digits, the same in all tasks and after restarts.
        job_id: Names the job, also when its program is started again.
        task_name: The task's name, with subtask.
        operator_name: The operator's name.
        uid: The operator's uid as the user gave it, or None.
        line: The user's call that made the operator, as ``file:line``; "" if it is not
            known.
        operator_id: Names the operator in the job: from its uid, or else from its place
            in the graph.
        subtask_index: From 0.
        parallelism: Subtasks of this operator.
        max_parallelism: Key groups of the job.
        attempt: From 0; grows with every restart, also of the program if the job goes
            on from a checkpoint.
        commits_at_checkpoints: Whether the job takes checkpoints: then what a sink's
            writer prepared is committed at each, and else at the job's success.
        is_resumable: Whether a checkpoint may outlive this execution, so that another
            one resumes from it.
        lineage: Names the executions that go on from each other's checkpoints in one
            directory, of which one at a time runs; "" if this execution's do not
            outlive it.
        cancel_timeout_s: How long something may take to end once asked to, seconds.
        latency_interval_ms: How often a source marks the time, None for never.
        trace_carrier: The trace that the calls of this job belong to, in the W3C format;
            None for a job without spans.
        key_group_range: The key groups of this subtask.
        clock: The job's clock.
        random: A random source seeded per operator and subtask.
        log: A structlog logger with job, task and operator bound.
        repeated: Logs there what may happen for every record.
        metrics: The operator's metrics.
        mailbox: The mailbox, at the operator's priority.
        processing_time: Processing-time timers as mail of this operator.
        keyed_state: The keyed state of this operator; on an operator without keys
            every access raises `StateError`.
        operator_state: State of the operator that belongs to no key.
        mutations: Watches over the operator's records, or None; see
            ``JobConfig.check_mutations``.
        shared: Watches over the first records that several operators have; None if
            none do, or if all are watched over.
    """

    job_name: str
    execution_id: str
    job_id: str
    task_name: str
    operator_name: str
    uid: str | None
    line: str
    operator_id: str
    subtask_index: int
    parallelism: int
    max_parallelism: int
    attempt: int
    commits_at_checkpoints: bool
    is_resumable: bool
    lineage: str
    cancel_timeout_s: float
    latency_interval_ms: int | None
    trace_carrier: Mapping[str, str] | None
    key_group_range: KeyGroupRange
    clock: Clock
    random: random.Random
    log: Any
    repeated: RepeatedWarnings
    metrics: MetricGroup
    mailbox: MailboxExecutor
    processing_time: ProcessingTimeService
    keyed_state: KeyedStateStore
    operator_state: OperatorStateStore
    mutations: MutationCheck | None
    shared: SharedRecords | None

    def commit_later(self, committables: list[Any]) -> None:
        """Hand over what a sink's writer prepared, for the job to commit."""

    def limiter(self, limit: RateLimit) -> Limiter:
        """Return the job-wide limiter that this limit names."""

    def journal(self) -> SubtaskJournal:
        """Return this operator's journal of finished calls, to be opened by it.

        Raises:
            IllegalStateError: If the job has no place for one.
        """

    def alignment(self, config: AlignmentConfig) -> AlignmentGroup:
        """Return the job-wide group of sources that wait for each other."""

    def handover(self, name: str) -> Handover:
        """Return the job's hand-over of this name, for sinks that are pulled from."""

    def timer_service(self, target: Triggerable) -> InternalTimerService:
        """Return a new timer service; the operator advances and snapshots it."""

    def spawn(
        self, work: Coroutine[Any, Any, None], *, name: str
    ) -> asyncio.Task[None]:
        """Start a coroutine that belongs to this task.

        It is cancelled and awaited when the task ends; if it fails the task fails.
        """
