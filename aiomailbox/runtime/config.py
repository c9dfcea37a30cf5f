"""The settings of a job's runtime."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from os import PathLike, path
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    TypedDict,
    get_args,
)

from aiomailbox.checkpoint.settings import CheckpointConfig
from aiomailbox.durations import pipeline_ms
from aiomailbox.errors import InvalidArgumentError, WrongTypeError
from aiomailbox.exchange.core.contract import BUFFER_SIZE_BYTES
from aiomailbox.policies.restart import (
    ExponentialDelayRestart,
    NoRestart,
    RestartStrategy,
)
from aiomailbox.signatures import check_choice, explained
from aiomailbox.state.backends import HeapStateBackend, StateBackend
from aiomailbox.state.serializers import check_state_names

if TYPE_CHECKING:
    from aiomailbox.runtime.deployment import Deployment

_HEARTBEAT_TIMEOUT_MIN: Final = timedelta(seconds=3)
_STALL_THRESHOLD_MIN: Final = timedelta(milliseconds=50)
IfFinished = Literal["run", "return", "refuse"]
_LEAST: Final = {
    "buffers_per_channel": 1,
    "floating_buffers": 0,
    "overdraft_buffers": 0,
    "buffer_size_bytes": 1,
}

_MILLISECOND: Final = timedelta(milliseconds=1)


@explained(
    "See am.JobConfig for all of them.",
    flush_interval_ms="buffer_timeout=am.millis(...)",
    buffer_debloat_target_ms="buffer_debloat_target=am.millis(...)",
    cancel_timeout_s="cancel_timeout=am.seconds(...)",
    heartbeat_timeout_s="heartbeat_timeout=am.seconds(...)",
    latency_interval_ms="latency_interval=am.millis(...)",
    stall_threshold_ms="stall_threshold=am.millis(...)",
    stuck_after_s="stuck_after=am.seconds(...)",
    **{
        name: f" Write am.StreamExecutionEnvironment({name}=...)."
        for name in ("parallelism", "max_parallelism", "clock")
    },
    timeout=" Write `async with asyncio.timeout(seconds):` around it.",
    **dict.fromkeys(
        ("name", "job_name"),
        ' A job\'s name is the first argument: env.execute("name"), env.start("name").',
    ),
)
@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """All settings of a job. A timedelta is written as e.g. ``am.seconds(5)``.

    Given to an environment, it holds for all of its jobs; given to ``execute`` or
    ``start``, for one. `StreamExecutionEnvironment.configure` changes some of them.

    Attributes:
        buffer_timeout: How long an unfinished buffer may wait for more records: a
            timedelta; 0 sends every run at once, None waits until the task has nothing
            else to do.
        buffers_per_channel: Buffers that each channel may fill, at least 1.
        floating_buffers: Buffers that the channels of a partition share, if some of them
            lead to other processes, or to files.
        overdraft_buffers: Additional buffers for the output of a single record.
        buffer_size_bytes: The maximum size of a buffer, in estimated bytes.
        buffer_debloat: Whether buffers from other processes shrink where a task is
            slow, so that it processes the data in flight within the target time.
        buffer_debloat_target: That target time: a timedelta of at least 1 ms.
        cancel_timeout: How long a task may take to end, including clean-up, once it is
            asked to end: a timedelta; a sixth of it passes between two interrupts.
        heartbeat_timeout: How long a worker process may send no heartbeat before
            it is killed and the job fails: a timedelta of at least 3 s; None for no
            limit. A function that keeps the process busy does not stop heartbeats; a C call
            that holds Python's global lock all that time does.
        latency_interval: How often each source sends a latency marker through the job,
            which every operator measures: a timedelta of at least 1 ms, None for never.
            Markers queue like records, but bypass functions.
        trace_calls: Whether each asynchronous call is an OpenTelemetry span, with its
            retries as events, in the trace of the code that starts the job.
        trace_carrier: The context of that trace, set by the job when it starts.
        stall_threshold: How long a function may block the event loop before a warning
            names it: a timedelta of at least 50 ms, None to watch no loop.
        stuck_after: How long a task with work to do may make no progress, or a
            barrier may be in flight, before a warning reports what the job waits for: a
            timedelta above 0, None for never.
        check_mutations: Whether to detect operators that change records after they
            were emitted, which raises `RecordMutatedError`. For tests: each operator
            traverses each record twice, and functions are not fused.
        operator_chaining: Whether operators may share tasks.
        deployment: Where jobs run: None for the event loop that starts them, or e.g.
            ``am.Processes(4)``.
        state_backend: Where keyed state is kept: `HeapStateBackend` or
            `RocksDBStateBackend`.
        seed: The seed of the operators' random generators; None for a random one.
        checkpoints: The settings of checkpoints, a `CheckpointConfig`; None for a
            job without.
        restart: Whether and when a failed job is restarted: one of ``am.restart``; None for
            Flink's default: with growing delays if it takes checkpoints, else not at all.
            A mistake of the program that comes again ends the job all the same.
        job_id: The identity of the job, by which its checkpoints are found after the
            program has been restarted; None for its name.
        restore_from: The place from which the job resumes: ``"latest"`` for its newest
            checkpoint that can be read, if there is one, or the path or URL of any
            checkpoint or savepoint; None to start without state. If the job has
            checkpoints that descend from that one, it resumes from the newest of them,
            with a warning: a job that is started again with the same setting repeats
            nothing.
        if_finished: The behaviour if the job has finished before (``restore_from`` a
            savepoint: has finished after it went on from there): ``"run"`` runs it
            again, with a warning if it was to resume; ``"return"`` ends it at once, as
            finished, with `JobResult.finished_before`; ``"refuse"`` fails it with
            `JobFinishedError`. The last two need a checkpoint directory.
        allow_unmatched_state: Whether state that belongs to no operator, or to no aggregate
            of one, may be dropped, and new aggregates begin empty.
        allow_pickled_state: Whether pickled state may be read that another execution has
            written, which executes code that its bytes define.
        state_names: Classes that state, data in flight and kept results were saved with
            under other names, by these: ``{"__main__:Acc": Acc}`` for one that was in the
            program itself, and is in a module now.

    Raises:
        InvalidArgumentError: If a setting is out of its range, or a name in
            ``state_names`` is none that a class of yours can have.
        WrongTypeError: If a setting has the wrong type.

    Concept:
        Flink, ``execution.buffer-timeout.interval``, ``metrics.latency.interval``,
        ``taskmanager.network.memory.buffer-debloat.enabled`` and ``.target``,
        ``task.cancellation.timeout``, ``heartbeat.timeout``,
        ``pipeline.operator-chaining.enabled``.

    Example:
        >>> import aiomailbox as am
        >>> config = am.JobConfig(
        ...     checkpoints=am.CheckpointConfig(am.seconds(10)),
        ...     restart=am.restart.fixed_delay(3, 0.5),
        ... )
        >>> env = am.StreamExecutionEnvironment(config=config)
    """

    buffer_timeout: timedelta | None = timedelta(milliseconds=100)
    buffers_per_channel: int = 2
    floating_buffers: int = 8
    overdraft_buffers: int = 5
    buffer_size_bytes: int = BUFFER_SIZE_BYTES
    buffer_debloat: bool = False
    buffer_debloat_target: timedelta = timedelta(seconds=1)
    cancel_timeout: timedelta = timedelta(seconds=30)
    heartbeat_timeout: timedelta | None = timedelta(seconds=50)
    latency_interval: timedelta | None = None
    trace_calls: bool = False
    trace_carrier: Mapping[str, str] | None = None
    stall_threshold: timedelta | None = timedelta(milliseconds=100)
    stuck_after: timedelta | None = timedelta(seconds=60)
    check_mutations: bool = False
    operator_chaining: bool = True
    deployment: Deployment | None = None
    state_backend: StateBackend = field(default_factory=HeapStateBackend)
    seed: int | None = None
    checkpoints: CheckpointConfig | None = None
    restart: RestartStrategy | None = None
    job_id: str | None = None
    restore_from: str | PathLike[str] | None = None
    if_finished: IfFinished = "run"
    allow_unmatched_state: bool = False
    allow_pickled_state: bool = False
    state_names: Mapping[str, type] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.state_names != {}:
            check_state_names(self.state_names)
        for name, least in _LEAST.items():
            count = getattr(self, name)
            if count < least:
                raise InvalidArgumentError(
                    name, f"{count} is too few", f"Use {least} or more."
                )
        _check_restore_from(self.restore_from)
        check_choice(self.if_finished, "if_finished", *get_args(IfFinished))
        self._check_kinds()
        self._check_times()

    def _check_kinds(self) -> None:
        for name, method, what, remedy in _KINDS:
            value = getattr(self, name)
            if value is None and name != "state_backend":
                continue
            if isinstance(value, type) or not callable(getattr(value, method, None)):
                raise WrongTypeError(name, f"{value!r} is not {what}", remedy)
        if not isinstance(self.checkpoints, CheckpointConfig | None):
            raise WrongTypeError(
                "checkpoints",
                f"{self.checkpoints!r} is not a CheckpointConfig",
                "Write am.CheckpointConfig(am.seconds(10), directory=...).",
            )

    def _check_times(self) -> None:
        for name, least, usual in _TIMES:
            value = getattr(self, name)
            if value is None and name not in {
                "buffer_debloat_target",
                "cancel_timeout",
            }:
                continue
            pipeline_ms(value, name)
            if isinstance(value, int) or value < least:
                raise InvalidArgumentError(
                    name,
                    f"{value} is less than {least / _MILLISECOND:g} ms",
                    usual,
                )
        if self.buffer_timeout is not None:
            pipeline_ms(self.buffer_timeout, "buffer_timeout")

    @property
    def buffer_timeout_ms(self) -> int | None:
        """How long an unfinished buffer may wait, in milliseconds."""
        timeout = self.buffer_timeout
        return None if timeout is None else pipeline_ms(timeout, "buffer_timeout")

    @property
    def buffer_debloat_target_ms(self) -> int:
        """The target time of debloating, in milliseconds."""
        return pipeline_ms(self.buffer_debloat_target, "buffer_debloat_target")

    @property
    def cancel_timeout_s(self) -> float:
        """How long a task may take to end, in seconds."""
        return self.cancel_timeout.total_seconds()

    @property
    def heartbeat_timeout_s(self) -> float:
        """How long a worker may send no heartbeat, in seconds; infinite for no limit."""
        timeout = self.heartbeat_timeout
        return math.inf if timeout is None else timeout.total_seconds()

    @property
    def latency_interval_ms(self) -> int | None:
        """How often sources send latency markers, in milliseconds; None for never."""
        interval = self.latency_interval
        return None if interval is None else pipeline_ms(interval, "latency_interval")

    @property
    def stall_threshold_s(self) -> float | None:
        """After how many seconds a loop counts as blocked; None for never."""
        threshold = self.stall_threshold
        return None if threshold is None else threshold.total_seconds()

    @property
    def stuck_after_s(self) -> float | None:
        """After how many seconds without progress a task is stuck; None for never."""
        return None if self.stuck_after is None else self.stuck_after.total_seconds()

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


class JobSettings(TypedDict, total=False):
    """The settings of `JobConfig` by name, where some of them are given."""

    buffer_timeout: timedelta | None
    buffers_per_channel: int
    floating_buffers: int
    overdraft_buffers: int
    buffer_size_bytes: int
    buffer_debloat: bool
    buffer_debloat_target: timedelta
    cancel_timeout: timedelta
    heartbeat_timeout: timedelta | None
    latency_interval: timedelta | None
    trace_calls: bool
    trace_carrier: Mapping[str, str] | None
    stall_threshold: timedelta | None
    stuck_after: timedelta | None
    check_mutations: bool
    operator_chaining: bool
    deployment: Deployment | None
    state_backend: StateBackend
    seed: int | None
    checkpoints: CheckpointConfig | None
    restart: RestartStrategy | None
    job_id: str | None
    restore_from: str | PathLike[str] | None
    if_finished: IfFinished
    allow_unmatched_state: bool
    allow_pickled_state: bool
    state_names: Mapping[str, type]


# What each setting that is an object is called by.
_KINDS: Final = (
    ("deployment", "deploy", "a deployment", "Use e.g. am.Processes(4)."),
    (
        "state_backend",
        "create_store",
        "a state backend",
        "Use am.HeapStateBackend() or am.RocksDBStateBackend().",
    ),
    (
        "restart",
        "begin",
        "a restart strategy",
        "Use e.g. am.restart.fixed_delay(3), or am.restart.none().",
    ),
)
# The least that each time may be.
_TIMES: Final = (
    (
        "cancel_timeout",
        _MILLISECOND,
        "A task needs time to end: am.seconds(30) is usual.",
    ),
    ("buffer_debloat_target", _MILLISECOND, "am.seconds(1) is usual."),
    (
        "heartbeat_timeout",
        _HEARTBEAT_TIMEOUT_MIN,
        "Workers send one heartbeat a second: am.seconds(50) is usual.",
    ),
    ("latency_interval", _MILLISECOND, "am.seconds(1) is usual, None is off."),
    (
        "stall_threshold",
        _STALL_THRESHOLD_MIN,
        "The loop is checked 40 times a second: am.millis(100) is usual, None is off.",
    ),
    (
        "stuck_after",
        _MILLISECOND,
        "A task needs time to make progress: am.seconds(60) is usual, None is off.",
    ),
)


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
            f"{type(given).__name__} describes a checkpoint, but is not its place"
            if place is not None
            else f"{given!r} is not a path",
            "Write restore_from=checkpoint.place."
            if place is not None
            else 'Give the path or URL of a checkpoint or savepoint, or "latest".',
        )
    if given == "":
        raise InvalidArgumentError(
            "restore_from",
            "it is an empty text",
            'Give the path of a checkpoint or savepoint, "latest", or None to begin anew.',
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


# A job in one of them does nothing more.
ENDED: Final = frozenset({JobState.FINISHED, JobState.CANCELED, JobState.FAILED})
