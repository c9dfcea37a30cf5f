"""The environment that a job gives to the tasks that it deploys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aiomailbox.clock import Clock
from aiomailbox.errors import IllegalStateError
from aiomailbox.eventtime.alignment import AlignmentGroups
from aiomailbox.exchange.gate import InputGate
from aiomailbox.exchange.writer import RecordWriter
from aiomailbox.ids import OperatorId, TaskId
from aiomailbox.journal.journals import Journals
from aiomailbox.memory.local_pool import LocalBufferPool
from aiomailbox.metrics.instruments import MetricGroup
from aiomailbox.operators.core.context import Handover, Limiter
from aiomailbox.operators.core.mutations import SharedRecords
from aiomailbox.operators.core.operator import Operator
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.records.events import OutputTag
from aiomailbox.state.backends import HeapStateBackend, StateBackend
from aiomailbox.task.in_flight import TaskChannels, TaskSnapshot
from aiomailbox.task.messages import TaskEvent, TaskHandle
from aiomailbox.task.outputs import SLICE_TARGET_S


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCheckpointing:
    """How a task takes checkpoints.

    Attributes:
        write: Writes the snapshot for a checkpoint, at the place of a savepoint if it is
            one, off the loop; returns what finds it again.
        write_little: Returns that at once for a little snapshot, None for any other.
        is_exactly_once: Whether channels wait for each other's barriers.
        may_overtake: Whether barriers may overtake data.
        after_end: Whether checkpoints go on once some tasks have finished; a task
            whose data has ended then waits for the one that commits its results.
        restored_id: The checkpoint that the task resumes from, -1 for none.
    """

    write: Callable[[int, TaskSnapshot, str | None], Awaitable[TaskHandle]]
    write_little: Callable[[int, TaskSnapshot], TaskHandle | None]
    is_exactly_once: bool = True
    may_overtake: bool = False
    after_end: bool = True
    restored_id: int = -1


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """The settings of a job that its tasks follow; `JobConfig` says what they mean.

    ``shares_records`` is a fact: whether an operator's results go more than one way.
    """

    cancel_timeout_s: float
    latency_interval_ms: int | None = None
    trace_carrier: Mapping[str, str] | None = None
    stall_threshold_s: float | None = None
    check_mutations: bool = False
    shares_records: bool = False


@dataclass(slots=True, kw_only=True)
class JobEnvironment:
    """The part of the environment that all tasks of a job share.

    Attributes:
        job_name: The job's name.
        execution_id: Names this execution of the job, and no other: 32 hexadecimal
            digits.
        job_id: Names the job, also when its program is started again.
        clock: The job's clock.
        seed: Seeds the random sources of operators.
        log: A structlog logger with the job bound.
        metrics: The job's metrics; tasks get children of it.
        state_backend: Makes the stores of operators with keys.
        handovers: Where results are pulled, by name.
        alignments: The groups of sources that wait for each other.
        commits_at_checkpoints: Whether the job takes checkpoints, and sinks commit at
            each; else they commit at its success.
        is_resumable: Whether a checkpoint may outlive this execution.
        no_processing_time: Why operators can have no timers in processing time; "" if
            they can.
        slice_target_s: How long a task should process records before it looks up
            again.
        shared: Watches over the first records that several operators have.
    """

    job_name: str
    execution_id: str
    job_id: str
    clock: Clock
    seed: int
    log: Any
    metrics: MetricGroup
    state_backend: StateBackend = field(default_factory=HeapStateBackend)
    handovers: Mapping[str, Handover] = field(default_factory=dict)
    alignments: AlignmentGroups = field(default_factory=AlignmentGroups)
    commits_at_checkpoints: bool = False
    is_resumable: bool = False
    no_processing_time: str = ""
    slice_target_s: float = SLICE_TARGET_S
    shared: SharedRecords = field(init=False)

    def __post_init__(self) -> None:
        self.shared = SharedRecords(self.log)

    def handover(self, name: str) -> Handover:
        """Return the hand-over of this name.

        Raises:
            IllegalStateError: If no caller pulls under this name.
        """
        try:
            return self.handovers[name]
        except KeyError:
            message = (
                "a stream whose records are pulled can only be run by the call "
                f"that pulls them ({name!r})"
            )
            raise IllegalStateError(message) from None


@dataclass(slots=True, kw_only=True)
class TaskEnvironment:
    """One attempt of a subtask, and what it is given.

    Attributes:
        job: What all tasks of the job are given.
        settings: The job's.
        task_id: Vertex, subtask and attempt.
        task_name: For people: the chain's name with the subtask.
        parallelism: Subtasks of this vertex.
        max_parallelism: Key groups of the job.
        lineage: Names the executions that go on from each other in one directory.
        log: A structlog logger with the job and the task bound.
        metrics: The task's metrics; operators get children of it.
        prepared: Takes what the writer of a sink prepared, for the job to commit.
        limiter: Finds the job-wide limiter of a rate limit.
        report: Takes what the task reports.
        journals: Where finished calls are kept; None for a job without.
        checkpointing: How it takes checkpoints; None for a job without.
    """

    job: JobEnvironment
    settings: TaskSettings
    task_id: TaskId
    task_name: str
    parallelism: int
    max_parallelism: int
    log: Any
    metrics: MetricGroup
    prepared: Callable[[OperatorId, list[Any]], None]
    limiter: Callable[[RateLimit], Limiter]
    report: Callable[[TaskEvent], None]
    lineage: str = ""
    checkpointing: TaskCheckpointing | None = None
    journals: Journals | None = None


# What a task is to run, as the job's graph decided it: operators and how they chain.
#
# The graph is a layer above: it describes chains in these terms.


_NO_ID: Final = OperatorId("")


@dataclass(slots=True)
class OutgoingEdge:
    """One way out of an operator: to a chained operator or into a writer.

    Attributes:
        target: The index of the next operator in the chain, or None.
        writer: The writer, or None.
        tag: The side output that goes this way, None for the main output.
    """

    target: int | None = None
    writer: RecordWriter | None = None
    tag: OutputTag | None = None


@dataclass(slots=True)
class OperatorPlan:
    """One operator of a chain.

    Attributes:
        name: The operator's name.
        uid: The user's stable name for it, or None.
        factory: Makes it.
        is_keyed: Whether it has keyed state.
        outgoing: Its ways out.
        metrics_name: What its metrics are called, unique in the chain; "" for its name.
        operator_id: By what its state is found again; "" for its uid or its name.
        functions: The user's functions in it, as text.
        tags_given: Its side outputs that are named when the job starts if nothing reads
            them; those that its functions emit to are not known before they do.
        line: Where the user made it; "" if that is not known.
    """

    name: str
    uid: str | None
    factory: Callable[[], Operator]
    is_keyed: bool = False
    outgoing: list[OutgoingEdge] = field(default_factory=list)
    metrics_name: str = ""
    operator_id: OperatorId = _NO_ID
    functions: str = ""
    tags_given: frozenset[OutputTag] = frozenset()
    line: str = ""

    def __post_init__(self) -> None:
        self.operator_id = self.operator_id or OperatorId(self.uid or self.name)


@dataclass(slots=True)
class TaskPlan:
    """Everything that one subtask consists of.

    Attributes:
        operators: The chain, head first, each after the one that feeds it.
        gates: For each input of the head, its gate; none for a source.
        writers: All writers of the task.
        pools: Where the writers' buffers come from, for metrics.
        channels: What keeps data in flight; None where barriers never overtake, and
            nothing is restored that has any.
    """

    operators: list[OperatorPlan]
    gates: list[InputGate] = field(default_factory=list)
    writers: list[RecordWriter] = field(default_factory=list)
    pools: list[LocalBufferPool] = field(default_factory=list)
    channels: TaskChannels | None = None
