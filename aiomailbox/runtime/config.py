"""The settings of a job's runtime."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from os import PathLike, path
from typing import Any, Final, Literal, get_args

from aiomailbox.checkpoint.settings import CheckpointSettings
from aiomailbox.errors import InvalidArgumentError, WrongTypeError
from aiomailbox.exchange.core.buffer import BUFFER_SIZE_BYTES
from aiomailbox.policies.restart import (
    ExponentialDelayRestart,
    NoRestart,
    RestartStrategy,
)
from aiomailbox.state.backends import HeapStateBackend, StateBackend
from aiomailbox.state.serializers import check_state_names

_HEARTBEAT_TIMEOUT_S_MIN: Final = 3.0


_STALL_THRESHOLD_MS_MIN: Final = 50.0


IfFinished = Literal["run", "return", "refuse"]


_LEAST: Final = {
    "buffers_per_channel": 1,
    "floating_buffers": 0,
    "overdraft_buffers": 0,
    "buffer_size_bytes": 1,
}


@dataclass(frozen=True, slots=True)
class JobConfig:
    """The settings of a job's runtime.

    Attributes:
        flush_interval_ms: How long an unfinished buffer may wait for more records;
            0 flushes after every run, None only when the task has nothing else to do.
        buffers_per_channel: Buffers that each channel may fill, at least 1.
        floating_buffers: Buffers that the channels of a partition share, if some of them
            lead to other processes, or to files.
        overdraft_buffers: Additional buffers for the output of a single record.
        buffer_size_bytes: The maximum size of a buffer, in estimated bytes.
        buffer_debloat: Whether buffers from other processes shrink where a task is
            slow, so that it processes the data in flight within the target time.
        buffer_debloat_target_ms: That target time, at least 1.
        cancel_timeout_s: How long a task may take to end, including clean-up, once it is
            asked to end; a sixth of it passes between two interrupts.
        heartbeat_timeout_s: How long a worker process may send no heartbeat before
            it is killed and the job fails; at least 3, infinite for no
            limit. A function that keeps the process busy does not stop heartbeats; a C call
            that holds Python's global lock all that time does.
        latency_interval_ms: How often each source sends a latency marker through the job,
            which every operator measures: at least 1, None for never. Markers queue
            like records, but bypass functions.
        trace_calls: Whether each asynchronous call is an OpenTelemetry span, with its
            retries as events, in the trace of the code that starts the job.
        trace_carrier: The context of that trace, set by the job when it starts.
        stall_threshold_ms: How many milliseconds a function may block the event loop
            before a warning names it; at least 50, None to watch no loop.
        stuck_after_s: How long a task with work to do may make no progress, or a
            barrier may be in flight, before a warning reports what the job waits for:
            seconds above 0, None for never.
        check_mutations: Whether to detect operators that change records after they
            were emitted, which raises `RecordMutatedError`. For tests: each operator
            traverses each record twice, and functions are not fused.
        state_backend: Where keyed state is kept.
        seed: The seed of the operators' random generators; None for a random one.
        checkpoints: The settings of checkpoints; None for a
            job without. `StreamExecutionEnvironment.enable_checkpointing` sets it.
        restart: Whether a failed job is restarted; None for Flink's default: with
            exponential delay if it takes checkpoints, else not at all.
        job_id: The identity of the job, by which its checkpoints are found; None
            for its name.
        restore_from: What the job resumes from: ``"latest"``, or the path or URL of a
            checkpoint or savepoint; None to start without state.
        if_finished: What happens if the job has finished before: ``"run"`` runs it again,
            ``"return"`` ends it at once, as finished, ``"refuse"`` fails it.
        allow_unmatched_state: Whether state that belongs to no operator, or to no aggregate
            of one, may be dropped, and new aggregates begin empty.
        allow_pickled_state: Whether pickled state may be read that another execution has
            written, which executes code that its bytes define.
        state_names: Classes that state, data in flight and kept results were saved with
            under other names, by these: ``{"__main__:Acc": Acc}``.

    Raises:
        InvalidArgumentError: If a number is out of its range, or a name in
            ``state_names`` is none that a class of yours can have.
        WrongTypeError: If ``state_names`` gives something that is no class.

    Concept:
        Flink, ``metrics.latency.interval``, ``taskmanager.network.memory.buffer-debloat.enabled`` and ``.target``,
        ``heartbeat.timeout``.
    """

    flush_interval_ms: int | None = 100
    buffers_per_channel: int = 2
    floating_buffers: int = 8
    overdraft_buffers: int = 5
    buffer_size_bytes: int = BUFFER_SIZE_BYTES
    buffer_debloat: bool = False
    buffer_debloat_target_ms: int = 1_000
    cancel_timeout_s: float = 30.0
    heartbeat_timeout_s: float = 50.0
    latency_interval_ms: int | None = None
    trace_calls: bool = False
    trace_carrier: Mapping[str, str] | None = None
    stall_threshold_ms: float | None = 100.0
    stuck_after_s: float | None = 60.0
    check_mutations: bool = False
    state_backend: StateBackend = field(default_factory=HeapStateBackend)
    seed: int | None = None
    checkpoints: CheckpointSettings | None = None
    restart: RestartStrategy | None = None
    job_id: str | None = None
    restore_from: str | PathLike[str] | None = None
    if_finished: IfFinished = "run"
    allow_unmatched_state: bool = False
    allow_pickled_state: bool = False
    state_names: Mapping[str, type] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_state_names(self.state_names)
        for name, least in _LEAST.items():
            count = getattr(self, name)
            if count < least:
                raise InvalidArgumentError(
                    name, f"{count} is too few", f"Use {least} or more."
                )
        _check_restore_from(self.restore_from)
        if self.if_finished not in get_args(IfFinished):
            raise InvalidArgumentError(
                "if_finished",
                f"{self.if_finished!r} is not known",
                'Use "run", "return" or "refuse".',
            )
        # Not `<=`: it would take NaN.
        if not 0 < self.cancel_timeout_s < math.inf:
            raise InvalidArgumentError(
                "cancel_timeout_s",
                f"{self.cancel_timeout_s} is too short for a task to end",
                "Give seconds above 0; 30 is usual.",
            )
        if self.buffer_debloat_target_ms < 1:
            raise InvalidArgumentError(
                "buffer_debloat_target_ms",
                f"{self.buffer_debloat_target_ms} is less than 1",
                "Give milliseconds; 1,000 is usual.",
            )
        # Not `<`: it would take NaN.
        if not self.heartbeat_timeout_s >= _HEARTBEAT_TIMEOUT_S_MIN:
            raise InvalidArgumentError(
                "heartbeat_timeout_s",
                f"{self.heartbeat_timeout_s} is less than {_HEARTBEAT_TIMEOUT_S_MIN:g}",
                "Workers send one heartbeat a second; 50 is usual.",
            )

        if self.latency_interval_ms is not None and self.latency_interval_ms < 1:
            raise InvalidArgumentError(
                "latency_interval_ms",
                f"{self.latency_interval_ms} is less than 1",
                "Give milliseconds; 1,000 is usual, None is off.",
            )
        if self.stall_threshold_ms is not None and not (
            _STALL_THRESHOLD_MS_MIN <= self.stall_threshold_ms < math.inf
        ):
            raise InvalidArgumentError(
                "stall_threshold_ms",
                f"{self.stall_threshold_ms} is less than {_STALL_THRESHOLD_MS_MIN:g}",
                "The loop is checked 40 times a second; 100 is usual, None is off.",
            )
        # Not `<=`: it would take NaN.
        if self.stuck_after_s is not None and not 0 < self.stuck_after_s < math.inf:
            raise InvalidArgumentError(
                "stuck_after_s",
                f"{self.stuck_after_s} is too short for a task to make progress",
                "Give seconds above 0; 60 is usual, None is off.",
            )

    @property
    def stall_threshold_s(self) -> float | None:
        """After how many seconds a loop counts as blocked; None for never."""
        threshold_ms = self.stall_threshold_ms
        return None if threshold_ms is None else threshold_ms / 1000

    @property
    def is_resumable(self) -> bool:
        """Whether checkpoints outlive the program."""
        return self.checkpoints is not None and self.checkpoints.is_durable

    @property
    def needs_state_classes(self) -> bool:
        """Whether state may be restored."""
        return self.checkpoints is not None or self.restore_from is not None

    @property
    def has_data_in_flight(self) -> bool:
        """Whether checkpoints may hold data in flight, taken or restored."""
        takes = self.checkpoints is not None and self.checkpoints.unaligned
        return takes or self.restore_from is not None

    @property
    def restart_strategy(self) -> RestartStrategy:
        """Whether a failed job is restarted."""
        if self.restart is not None:
            return self.restart
        return NoRestart() if self.checkpoints is None else ExponentialDelayRestart()


# What a job may resume from.


# What else users call it; a path may have such a name, too.
_LATEST: Final = frozenset({"last", "latest", "most recent", "newest", "recent"})


def _check_restore_from(given: Any) -> None:
    """Refuse what names no checkpoint.

    Raises:
        WrongTypeError: If it is neither a path nor a URL.
        InvalidArgumentError: If it is another word for the newest one.
    """
    if given is None or given == "latest":
        return
    if not isinstance(given, str | PathLike):
        place = getattr(given, "place", None)
        raise WrongTypeError(
            "restore_from",
            f"{type(given).__name__} is what was completed, and not where it is"
            if place is not None
            else f"{given!r} is not a path",
            "Write restore_from=checkpoint.place."
            if place is not None
            else 'Give the path or URL of a checkpoint or savepoint, or "latest".',
        )
    if isinstance(given, str) and given.lower() in _LATEST and not path.exists(given):
        raise InvalidArgumentError(
            "restore_from",
            f"there is no checkpoint at {given!r}",
            'Write "latest" for the newest one of the job.',
        )


# The life of a job, as a table.


class JobState(Enum):
    """Where a job is in its life.

    Concept:
        Flink, ``JobStatus``.
    """

    CREATED = "created"
    RUNNING = "running"
    RESTARTING = "restarting"
    CANCELLING = "cancelling"
    FAILING = "failing"
    FINISHED = "finished"
    CANCELED = "canceled"
    FAILED = "failed"


_NEXT: Final[dict[JobState, frozenset[JobState]]] = {
    JobState.CREATED: frozenset(
        {
            JobState.RUNNING,
            JobState.RESTARTING,
            JobState.CANCELLING,
            JobState.FAILING,
        }
    ),
    JobState.RUNNING: frozenset(
        {
            JobState.FINISHED,
            JobState.RESTARTING,
            JobState.CANCELLING,
            JobState.FAILING,
        }
    ),
    JobState.RESTARTING: frozenset(
        {JobState.RUNNING, JobState.CANCELLING, JobState.FAILING}
    ),
    JobState.CANCELLING: frozenset({JobState.CANCELED, JobState.FAILING}),
    JobState.FAILING: frozenset({JobState.FAILED}),
    JobState.FINISHED: frozenset(),
    JobState.CANCELED: frozenset(),
    JobState.FAILED: frozenset(),
}


class JobLifecycle:
    """The state of one job; it only moves along the table.

    Example:
        >>> life = JobLifecycle()
        >>> life.advance(JobState.RUNNING), life.advance(JobState.CANCELED)
        (True, False)
    """

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state: JobState = JobState.CREATED

    @property
    def is_terminal(self) -> bool:
        """Whether the life is over."""
        return not _NEXT[self.state]

    @property
    def is_cancelling(self) -> bool:
        """Whether the end was asked for, and has not come."""
        return self.state is JobState.CANCELLING

    def advance(self, target: JobState) -> bool:
        """Move on to ``target`` if it may follow, and say whether it did."""
        if target not in _NEXT[self.state]:
            return False
        self.state = target
        return True
