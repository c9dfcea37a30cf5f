"""Makes the tasks of an attempt: their operators, their buffers, their channels."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from aiomailbox.checkpoint.restored import RestoredTasks, received, sent
from aiomailbox.checkpoint.settings import MEMORY_THRESHOLD, CheckpointingMode
from aiomailbox.checkpoint.writer import CheckpointWriter
from aiomailbox.exchange.blocking.partition import BlockingResultPartition
from aiomailbox.exchange.core.contract import OutputPartition
from aiomailbox.exchange.gate import InputChannel, InputGate, LocalInputChannel
from aiomailbox.exchange.partition import ResultPartition
from aiomailbox.exchange.writer import RecordWriter
from aiomailbox.graph.job_graph import (
    Edge,
    JobGraph,
    JobVertex,
    channel_name,
    consumers_of,
    why_never_unaligned,
)
from aiomailbox.ids import OperatorId, PartitionId, SubtaskId, TaskId, VertexId
from aiomailbox.journal.journals import Journals
from aiomailbox.memory.local_pool import LocalBufferPool
from aiomailbox.operators.core.context import Limiter
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.runtime.config import JobConfig
from aiomailbox.runtime.job_journal import journal_place
from aiomailbox.runtime.limiter import LimiterService
from aiomailbox.runtime.services import JobServices
from aiomailbox.state.schema import Misfit
from aiomailbox.storage import open_storage
from aiomailbox.storage.local import PRIVATE
from aiomailbox.supervision import run_in_thread
from aiomailbox.task.environment import (
    OperatorPlan,
    OutgoingEdge,
    TaskCheckpointing,
    TaskEnvironment,
    TaskPlan,
    TaskSettings,
)
from aiomailbox.task.in_flight import TaskChannels
from aiomailbox.task.messages import TaskEvent
from aiomailbox.task.stream_task import StreamTask

# How many buffers the exchanges of a job need (pure).


class PoolSize(NamedTuple):
    """Permits of one partition's pool: what it must have, and may have at most."""

    required: int
    maximum: int


def pool_size(
    subpartitions: int, config: JobConfig, *, stays_here: bool = False
) -> PoolSize:
    """Return the permits for a partition of so many subpartitions.

    Concept:
        Flink, ``NettyShuffleUtils``: one buffer in the making per subpartition and one
        more; at most the channels' own plus the floating ones.

    Example:
        >>> pool_size(2, JobConfig())
        PoolSize(required=3, maximum=12)
        >>> pool_size(2, JobConfig(), stays_here=True)
        PoolSize(required=3, maximum=4)
    """
    required = subpartitions + 1
    floating = 0 if stays_here else config.floating_buffers
    most = subpartitions * config.buffers_per_channel + floating
    return PoolSize(required, max(required, most))


def total_segments(graph: JobGraph, config: JobConfig) -> int:
    """Return the permits that let every partition have its maximum; at least 1."""
    return max(
        1,
        sum(
            pool_size(len(targets), config).maximum + config.overdraft_buffers
            for vertex in graph.vertices
            for edge in vertex.out_edges
            for targets in producer_targets(edge)
        ),
    )


def producer_targets(edge: Edge) -> list[list[int]]:
    """Return, per producer subtask, the consumer subtasks that it sends to."""
    producers, consumers = edge.source.parallelism, edge.target.parallelism
    return [
        consumers_of(edge.partitioner, index, producers, consumers)
        for index in range(producers)
    ]


# What an attempt of a job, or of some of its tasks, resumes from.


@dataclass(frozen=True, slots=True)
class AttemptPlan:
    """The facts about one attempt.

    Attributes:
        number: The epoch of its tasks: it only grows, so that what an older attempt
            still says can be told from what this one says.
        restored: What subtasks resume from; the others begin anew.
        restored_id: The checkpoint that they resume from, -1 for none.
        checkpoint_place: Where checkpoints are kept, a path or a URL; None for a job
            that takes none.
        tasks: The tasks that begin; None for all of the job.
        epochs: Those of the other tasks, which run or have run.
        is_first: Whether no other tasks run: a new attempt of the whole job begins.
        lineage: Names the executions that go on from each other in that place; "" if
            none goes on from this one.

    Example:
        >>> AttemptPlan(2).task_id(VertexId(1), 0)
        TaskId(vertex=1, subtask_index=0, attempt=2)
    """

    number: int = 0
    restored: RestoredTasks = field(default_factory=dict)
    restored_id: int = -1
    checkpoint_place: str | None = None
    tasks: Collection[SubtaskId] | None = None
    epochs: Mapping[SubtaskId, int] = field(default_factory=dict)
    is_first: bool = True
    lineage: str = ""

    @property
    def beginning(self) -> Collection[SubtaskId] | None:
        """The tasks that take the place of earlier attempts; None for all."""
        return None if self.is_first else self.tasks

    def has(self, vertex: VertexId, subtask_index: int) -> bool:
        """Say whether a task begins."""
        return self.tasks is None or SubtaskId(vertex, subtask_index) in self.tasks

    def task_id(self, vertex: VertexId, subtask_index: int) -> TaskId:
        """Return the name of a subtask's attempt, also of a remote one."""
        epoch = self.number
        # Tasks that go on keep the number of their attempt: partitions are found by it.
        if self.tasks is not None and not self.has(vertex, subtask_index):
            epoch = self.epochs.get(SubtaskId(vertex, subtask_index), epoch)
        return TaskId(vertex, subtask_index, epoch)


ChannelFactory = Callable[[Edge, PartitionId, int], InputChannel]


class Wiring(Protocol):
    """Which tasks are built here, and how they reach remote ones."""

    def is_here(self, task: TaskId) -> bool:
        """Say whether a task is built here."""

    def new_partition(
        self,
        edge: Edge,
        partition_id: PartitionId,
        pool: LocalBufferPool,
        count: int,
        remote_channels: list[int],
    ) -> OutputPartition:
        """Return a partition of ``count`` channels, some of them to other places."""

    def new_blocking_partition(
        self, edge: Edge, partition_id: PartitionId, pool: LocalBufferPool, count: int
    ) -> OutputPartition:
        """Return a partition that is read when it is complete, by local or remote tasks."""

    def open_gate(self, owner: str, remote_channels: int) -> ChannelFactory:
        """Return what makes the channels of a gate whose producers are remote."""

    def new_gate(self, channels: list[InputChannel], name: str) -> InputGate:
        """Return a gate of channels, some of them remote."""


class TaskBuilder:
    """Makes the tasks of one attempt of a job; all live on the running loop.

    Args:
        graph: The job.
        config: Its settings.
        services: What its tasks share.
        plan: Which attempt this is, and what its tasks resume from.
        on_event: Takes what the tasks report, on their loop.
        wiring: Says what is here; None for everything.
        directory: Where files of partitions go; None for the system's place.
    """

    def __init__(
        self,
        graph: JobGraph,
        config: JobConfig,
        services: JobServices,
        plan: AttemptPlan,
        on_event: Callable[[TaskEvent], None],
        *,
        wiring: Wiring | None = None,
        directory: str | None = None,
    ) -> None:
        self._graph = graph
        self._config = config
        self._settings = TaskSettings(
            config.cancel_timeout_s,
            config.latency_interval_ms,
            config.trace_carrier,
            config.stall_threshold_s,
            config.check_mutations,
            graph.shares_records,
        )
        self._services = services
        self._on_event = on_event
        place = plan.checkpoint_place
        settings = config.checkpoints
        threshold = MEMORY_THRESHOLD if settings is None else settings.memory_threshold
        file_mode = PRIVATE if settings is None else settings.file_mode
        self._writer_of_state = (
            None
            if place is None
            else CheckpointWriter(
                open_storage(place, file_mode=file_mode),
                services.job_id,
                services.state_classes,
                memory_threshold=threshold,
                file_mode=file_mode,
                on_misfit=self._warn_of_misfit,
            )
        )
        self._journals: Journals | None = (
            services.journals
            if place is None or not graph.has_journal
            else Journals(
                journal_place(settings, place, services.job_id),
                plan.number,
                services.state_classes,
            )
        )
        self._misfits: set[tuple[OperatorId, Misfit]] = set()
        self._of_attempt = plan
        self._wiring = wiring
        # Names are for people and metrics, ids for everything that is found again.
        self._directory = directory
        self._names = graph.vertex_names
        self._targets: dict[int, list[list[int]]] = {}
        self._edge_index: dict[int, int] = {}
        for vertex in graph.vertices:
            for index, edge in enumerate(vertex.out_edges):
                self._targets[id(edge)] = producer_targets(edge)
                self._edge_index[id(edge)] = index

    def _warn_of_misfit(self, operator: OperatorId, misfit: Misfit) -> None:
        """Say, once in an attempt, that state is not of the type that was declared."""
        if (operator, misfit) in self._misfits:
            return
        self._misfits.add((operator, misfit))
        [node] = [one for one in self._graph.nodes if one.operator_id == operator]
        self._services.log.warning(
            "state is of another type than was declared",
            operator=node.name,
            uid=node.transformation.uid,
            state=misfit.state,
            part=misfit.part,
            declared=misfit.declared,
            found=misfit.found,
            remedy="keep values of the declared type in it, or declare their type",
        )

    def build(self) -> list[StreamTask]:
        """Return all tasks that are here, those of sources first."""
        return [
            self._task(vertex, subtask_index)
            for vertex in self._graph.vertices
            for subtask_index in range(vertex.parallelism)
            if self._of_attempt.has(vertex.id, subtask_index)
            # In the order of the vertices: sources first, which is what users expect to
            # see.
            and self._is_here(vertex, subtask_index)
        ]

    def _is_here(self, vertex: JobVertex, subtask_index: int) -> bool:
        wiring = self._wiring
        return wiring is None or wiring.is_here(
            self._of_attempt.task_id(vertex.id, subtask_index)
        )

    def _task(self, vertex: JobVertex, subtask_index: int) -> StreamTask:
        task_id = self._of_attempt.task_id(vertex.id, subtask_index)
        name = f"{self._names[vertex.id]} ({subtask_index + 1}/{vertex.parallelism})"
        services = self._services
        subtask = SubtaskId(vertex.id, subtask_index)
        environment = TaskEnvironment(
            job=services,
            settings=self._settings,
            task_id=task_id,
            task_name=name,
            parallelism=vertex.parallelism,
            max_parallelism=vertex.head.max_parallelism,
            lineage=self._of_attempt.lineage,
            log=services.log.bind(task=name),
            metrics=services.metrics.child(name),
            prepared=partial(services.committables.add, subtask),
            limiter=_limiters_of_task(services),
            report=self._on_event,
            checkpointing=self._checkpointing(task_id),
            journals=self._journals,
        )
        restored = self._of_attempt.restored.get((vertex.id, subtask_index))
        plan = self._plan(vertex, task_id)
        plan.channels = self._channels(vertex, subtask_index)
        return StreamTask(environment, plan, restored)

    def _channels(self, vertex: JobVertex, subtask_index: int) -> TaskChannels | None:
        """Return how a task keeps data in flight, where it ever does."""
        codec = self._services.codec
        if codec is None:
            return None
        return TaskChannels(
            codec,
            inputs=[
                [
                    received(channel_name(edge, index, subtask_index))
                    for edge, index, _ in self._producers(united, subtask_index)
                ]
                for united in vertex.in_edges
                if united
            ],
            outputs=[
                [
                    sent(channel_name(edge, subtask_index, consumer))
                    for consumer in self._targets[id(edge)][subtask_index]
                ]
                for edge in vertex.out_edges
            ],
            may_overtake=[not why_never_unaligned(edge) for edge in vertex.out_edges],
        )

    def _producers(
        self, united: list[Edge], subtask_index: int
    ) -> list[tuple[Edge, int, int]]:
        """Return what feeds a gate: edge, producer's subtask, and its channel for it."""
        return [
            (edge, index, targets.index(subtask_index))
            for edge in united
            for index, targets in enumerate(self._targets[id(edge)])
            if subtask_index in targets
        ]

    def _checkpointing(self, task_id: TaskId) -> TaskCheckpointing | None:
        settings, writer = self._config.checkpoints, self._writer_of_state
        if settings is None or writer is None:
            return None
        subtask = SubtaskId(task_id.vertex, task_id.subtask_index)
        return TaskCheckpointing(
            write=partial(run_in_thread, writer.write_task, subtask, task_id.attempt),
            write_little=partial(writer.write_little, subtask, task_id.attempt),
            is_exactly_once=settings.mode is CheckpointingMode.EXACTLY_ONCE,
            may_overtake=settings.unaligned,
            after_end=settings.after_tasks_finish,
            restored_id=self._of_attempt.restored_id,
        )

    def _plan(self, vertex: JobVertex, task_id: TaskId) -> TaskPlan:
        positions = {node.index: place for place, node in enumerate(vertex.nodes)}
        writers: list[RecordWriter] = []
        pools: list[LocalBufferPool] = []
        operators = []
        for name, node in vertex.operators:
            outgoing = []
            for edge in node.out_edges:
                if edge.chained:
                    target = positions[edge.target.index]
                    outgoing.append(OutgoingEdge(target=target, tag=edge.tag))
                else:
                    writer = self._writer(edge, task_id, pools)
                    writers.append(writer)
                    outgoing.append(OutgoingEdge(writer=writer, tag=edge.tag))
            item = node.transformation
            operators.append(
                OperatorPlan(
                    item.name,
                    item.uid,
                    item.factory,
                    item.is_keyed,
                    outgoing,
                    name,
                    node.operator_id,
                    ", ".join(one.text for one in item.functions),
                    node.tags_given,
                    item.line,
                )
            )
        gates = [
            self._gate(vertex, united, task_id) for united in vertex.in_edges if united
        ]
        return TaskPlan(operators, [*gates], writers, pools)

    def _writer(
        self, edge: Edge, task_id: TaskId, pools: list[LocalBufferPool]
    ) -> RecordWriter:
        targets = self._targets[id(edge)][task_id.subtask_index]
        count = len(targets)
        consumer = self._graph.vertex_of(edge.target)
        away = [
            channel
            for channel, index in enumerate(targets)
            if not self._is_here(consumer, index)
        ]
        stays_here = not away and not edge.is_blocking
        size = pool_size(count, self._config, stays_here=stays_here)
        partition_id = PartitionId(task_id, self._edge_index[id(edge)])
        pool = self._services.pool.create_local_pool(
            size.required,
            size.maximum,
            owner=str(partition_id),
            subpartitions=count,
            overdraft_max=self._config.overdraft_buffers,
        )
        pools.append(pool)
        partition: OutputPartition
        if edge.is_blocking:
            partition = self._blocking_partition(edge, partition_id, pool, count)
        elif self._wiring is not None and away:
            partition = self._wiring.new_partition(
                edge, partition_id, pool, count, away
            )
        else:
            partition = ResultPartition(
                partition_id,
                pool,
                count,
                buffer_size_bytes=self._config.buffer_size_bytes,
            )
        self._services.registry.register(partition)
        # Seeded by its place: where a record goes does not depend on the order in
        # which tasks were built.
        return RecordWriter(
            partition,
            edge.partitioner,
            flush_interval_ms=self._config.buffer_timeout_ms,
            # From the seed of the job and the partition: the same records go the same
            # ways in each run.
            random=random.Random(f"{self._services.seed}/{partition_id}"),
        )

    def _blocking_partition(
        self, edge: Edge, partition_id: PartitionId, pool: LocalBufferPool, count: int
    ) -> OutputPartition:
        if self._wiring is not None:
            return self._wiring.new_blocking_partition(edge, partition_id, pool, count)
        codec = self._services.codec
        assert codec is not None, "a job with blocking exchanges has a codec"
        return BlockingResultPartition(
            partition_id, pool, count, codec=codec, directory=self._directory
        )

    def _gate(
        self, vertex: JobVertex, united: list[Edge], task_id: TaskId
    ) -> InputGate:
        name = f"{vertex.name}.{task_id.subtask_index}"
        inputs = [
            (edge, self._graph.vertex_of(edge.source), index, channel)
            for edge, index, channel in self._producers(united, task_id.subtask_index)
        ]
        away = sum(
            not self._is_here(producer, index) for _, producer, index, _ in inputs
        )
        wiring = self._wiring
        remote = None if wiring is None or not away else wiring.open_gate(name, away)
        channels: list[InputChannel] = []
        for edge, producer, index, channel in inputs:
            partition_id = PartitionId(
                self._of_attempt.task_id(producer.id, index), self._edge_index[id(edge)]
            )
            if remote is None or self._is_here(producer, index):
                registry = self._services.registry
                channels.append(LocalInputChannel(registry, partition_id, channel))
            else:
                channels.append(remote(edge, partition_id, channel))
        if wiring is not None and away:
            return wiring.new_gate(channels, name)
        return InputGate(channels, name=name)


def _limiters_of_task(services: JobServices) -> Callable[[RateLimit], Limiter]:
    """Return what finds a task's limiters: its own, or those of the job."""
    # Per task where that is asked for; else all tasks share one of the job.
    own = LimiterService(services.clock)

    def find(limit: RateLimit) -> Limiter:
        return own.get(limit) if limit.per_task else services.limiters.get(limit)

    return find
