"""A worker's part of a job: its tasks, and what the parent says and is told."""

from __future__ import annotations

import asyncio
import os
import pickle  # noqa: TID251 -- the parent has sent the whole job, and made this process
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import anyio

from aiomailbox.availability import Availability
from aiomailbox.checkpoint import TaskHandle
from aiomailbox.clock import SystemClock
from aiomailbox.errors import InvalidArgumentError, WorkerDiedError, WrongTypeError
from aiomailbox.exchange import PartitionRegistry
from aiomailbox.ids import OperatorId, SubtaskId
from aiomailbox.metrics import MetricGroup
from aiomailbox.policies import RateLimit
from aiomailbox.records import StopMode
from aiomailbox.records.values import PythonSerializer
from aiomailbox.runtime.attempt_plan import AttemptPlan
from aiomailbox.runtime.builder import TaskBuilder
from aiomailbox.runtime.local_tasks import LocalTasks
from aiomailbox.runtime.peers.alignment import RemoteAlignmentGroups
from aiomailbox.runtime.peers.codecs import element_codec
from aiomailbox.runtime.peers.control import PARENT_BYTES_MAX, ControlChannel
from aiomailbox.runtime.peers.errors_as_text import text_of_error
from aiomailbox.runtime.peers.limits import RemoteLimits
from aiomailbox.runtime.peers.liveness import Heart
from aiomailbox.runtime.peers.messages import (
    COMMITTABLES_BYTES_MAX,
    Acknowledged,
    AlignmentLimit,
    Begin,
    Cancel,
    CheckpointAborted,
    CheckpointComplete,
    DataEnded,
    Declined,
    Deploy,
    Ended,
    Failed,
    FromParent,
    Granted,
    Prepared,
    Ready,
    Shutdown,
    Snapshot,
    SplitRequest,
    Splits,
    Stopped,
    StopSources,
    TaskEnded,
    TaskRunning,
    TriggerCheckpoint,
    decode_from_parent,
)
from aiomailbox.runtime.peers.network import PeerNetwork, new_pool
from aiomailbox.runtime.peers.place import PeerPlace
from aiomailbox.runtime.peers.placement import peer_name
from aiomailbox.runtime.peers.record_types import RECORDS_OF_OURS, record_classes
from aiomailbox.runtime.peers.shipping import Shipment
from aiomailbox.runtime.services import CommittableCollector, JobServices
from aiomailbox.task import TaskStatistics

__all__ = ["WorkerJob"]

_SNAPSHOT_S: Final = 0.25
# A look that would only wait behind others is left out.
_UNSENT_BYTES_MAX: Final = 1 << 20


class WorkerJob:
    """Runs the tasks that are placed at one worker.

    Args:
        shipment: The job.
        limits: Its rate limits, in the parent's order.
        begin: What else the parent has said.
        place: Where this is.
        heart: Is told which loop to watch.
        on_running: Called once, when all that the tasks need is there.
        log: A structlog logger.
    """

    def __init__(
        self,
        shipment: Shipment,
        limits: list[RateLimit],
        begin: Begin,
        place: PeerPlace,
        heart: Heart,
        on_running: Callable[[], None],
        log: Any,
    ) -> None:
        self._heart = heart
        self._on_running = on_running
        self._shipment = shipment
        self._peer = begin.peer
        self._name = peer_name(begin.peer)
        self._channel: ControlChannel[FromParent] = ControlChannel(
            decode_from_parent, PARENT_BYTES_MAX, self._on_message, self._on_lost
        )
        self._limits = RemoteLimits(limits, self._channel.send)
        self._alignments = RemoteAlignmentGroups(self._channel.send)
        self._services = self._new_services(log)
        self._network = PeerNetwork(shipment, begin.peer, self._services, place)
        # The parent has made them, and removes them.
        backend = shipment.config.state_backend.placed(place.directory)
        self._config = replace(shipment.config, state_backend=backend)
        self._tasks: LocalTasks | None = None
        # Those that are to be run next.
        self._deployed_tasks: LocalTasks | None = None
        self._reporting: asyncio.TimerHandle | None = None
        self._deployed = Availability()
        self._ended = Availability()
        self._dismissed = Availability()
        self._is_cancelled = False
        self._connecting: asyncio.Task[None] | None = None

    async def run(self, end: socket.socket) -> None:
        """Do what the parent says until it says that everything is over."""
        self._heart.watch(asyncio.get_running_loop())
        await self._channel.connect(end)
        try:
            address = await self._network.listen()
            digest = self._network.codec_digest
            self._channel.send(Ready(address.host, address.port, digest))
        except Exception as error:  # noqa: BLE001 -- the parent is told, whatever it is
            self._channel.send(Failed(text_of_error(error)))
        while not self._dismissed.available:
            await self._deployed.wait()
            self._deployed.reset()
            await self._run_attempt()
        self._limits.close()
        await self._network.close()
        self._services.release()
        self._channel.close()

    async def _run_attempt(self) -> None:
        """Run the tasks that were deployed, if any were, and say when all have ended."""
        tasks, self._deployed_tasks = self._deployed_tasks, None
        if tasks is None:
            return
        try:
            await self._connect()
            await self._run_tasks(tasks)
        except Exception as error:  # noqa: BLE001 -- the parent is told, whatever it is
            self._channel.send(Failed(text_of_error(error)))
            # They have not started.
            tasks.cancel()
            tasks.on_interrupt()
        self._channel.send(self._snapshot())
        self._channel.send(Ended())

    async def _connect(self) -> None:
        """Let peers know who this is while no function of the user holds the loop."""
        loop = asyncio.get_running_loop()
        self._connecting = loop.create_task(self._network.connect())
        await asyncio.wait([self._connecting])
        if not self._connecting.cancelled():
            self._connecting.result()

    async def _run_tasks(self, tasks: LocalTasks) -> None:
        if self._reporting is not None:
            self._reporting.cancel()
        self._report_later()
        self._on_running()
        async with anyio.create_task_group() as group:
            tasks.start(group)
            while not tasks.is_over:
                await self._ended.wait()
                self._ended.reset()

    def on_told_to_end(self) -> None:
        """Tell the parent that somebody else wants this process to end."""
        how = "was told to end by signal SIGTERM"
        error = WorkerDiedError(self._name, os.getpid(), None, how)
        self._channel.send(Failed(text_of_error(error)))

    def on_task_ended(
        self, error: BaseException | None, task: str, subtask: SubtaskId
    ) -> None:
        """Tell the parent that a task ended."""
        text = None if error is None else text_of_error(error)
        self._channel.send(TaskEnded(task, subtask, text))
        self._ended.set_available()

    def on_task_running(self, task: SubtaskId) -> None:
        """Tell the parent that a task has been restored and runs."""
        self._channel.send(TaskRunning(task))

    def on_end_of_data(self, task: SubtaskId) -> None:
        """Tell the parent that no more records will come out of a task."""
        self._channel.send(DataEnded(task))

    def on_acknowledged(
        self,
        task: SubtaskId,
        checkpoint_id: int,
        handle: TaskHandle,
        statistics: TaskStatistics,
    ) -> None:
        """Give the parent a task's part of a checkpoint."""
        self._channel.send(Acknowledged(task, checkpoint_id, handle, statistics))

    def on_declined(
        self, task: SubtaskId, checkpoint_id: int, error: BaseException
    ) -> None:
        """Tell the parent that a task takes no part in a checkpoint."""
        self._channel.send(Declined(task, checkpoint_id, text_of_error(error)))

    def on_split_request(self, vertex: int, subtask_index: int) -> None:
        """Ask the parent for another split."""
        self._channel.send(SplitRequest(vertex, subtask_index))

    def on_cancelled(self) -> None:
        """Tell the parent that a task ended itself; it has said so if it cancelled."""
        if not self._is_cancelled:
            self._channel.send(Stopped())

    def _on_message(self, attempt: int, message: FromParent) -> None:
        if attempt < self._channel.attempt:
            # It was on its way when the parent began another one.
            return
        try:
            self._handle(attempt, message)
        except Exception as error:  # noqa: BLE001 -- the parent is told, whatever it is
            self._channel.send(Failed(text_of_error(error)))

    def _handle(self, attempt: int, message: FromParent) -> None:
        match message:
            case Deploy():
                self._channel.attempt = attempt
                plan = AttemptPlan(
                    attempt,
                    pickle.loads(message.restored),
                    message.restored_id,
                    message.checkpoint_place,
                )
                self._deploy(message.addresses, plan)
            case Splits():
                tasks = self._tasks
                if tasks is not None:
                    tasks.deliver_splits(
                        message.vertex,
                        message.subtask_index,
                        pickle.loads(message.splits),
                        no_more=message.no_more,
                    )
            case TriggerCheckpoint(tasks=subtasks, barrier=barrier):
                if self._tasks is not None:
                    self._tasks.trigger_checkpoint(subtasks, barrier)
            case CheckpointComplete(tasks=subtasks, checkpoint_id=checkpoint_id):
                if self._tasks is not None:
                    self._tasks.notify_checkpoint_complete(subtasks, checkpoint_id)
            case CheckpointAborted(tasks=subtasks, checkpoint_id=checkpoint_id):
                if self._tasks is not None:
                    self._tasks.notify_checkpoint_aborted(
                        subtasks, checkpoint_id, message.latest_completed_id
                    )
            case Granted():
                self._limits.on_granted(message)
            case AlignmentLimit():
                self._alignments.on_limit(message)
            case StopSources(drain=drain):
                if self._tasks is not None:
                    self._tasks.stop(StopMode.DRAIN if drain else StopMode.NO_DRAIN)
            case Cancel():
                self._is_cancelled = True
                if self._connecting is not None:
                    self._connecting.cancel()
                if self._tasks is not None:
                    self._tasks.cancel()
            case Shutdown():
                self._dismissed.set_available()
                self._deployed.set_available()
            case Begin():
                raise AssertionError("a worker begins once")

    def _deploy(
        self, addresses: list[tuple[str, int | None]], plan: AttemptPlan
    ) -> None:
        """Make the tasks now: what comes next may be for them."""
        self._network.know(addresses)
        self._services.begin_attempt()
        self._limits.begin_attempt()
        self._is_cancelled = False
        try:
            if not self._dismissed.available:
                builder = TaskBuilder(
                    self._shipment.graph,
                    self._config,
                    self._services,
                    plan,
                    self,
                    wiring=self._network,
                )
                self._tasks = LocalTasks(builder.build(), self)
                self._deployed_tasks = self._tasks
        finally:
            self._deployed.set_available()

    def _report(self) -> None:
        if self._tasks is None or self._tasks.is_over:
            return
        if self._channel.unsent_bytes < _UNSENT_BYTES_MAX:
            self._channel.send(self._snapshot())
        self._report_later()

    def _report_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._reporting = loop.call_later(_SNAPSHOT_S, self._report)

    def _snapshot(self) -> Snapshot:
        tasks = self._tasks
        return Snapshot([] if tasks is None else tasks.views(with_stacks=True))

    def _on_lost(self, reason: BaseException | None) -> None:
        # The lifeline ends with the parent, and this with it; a parent that lives and has
        # closed the channel ends it too. Nothing more is to be said.
        if self._tasks is not None:
            self._tasks.cancel()

    def _new_services(self, log: Any) -> JobServices:
        shipment = self._shipment
        return JobServices(
            execution_id=shipment.job_id.hex(),
            clock=SystemClock(),
            seed=shipment.seed,
            log=log.bind(job=shipment.graph.name, worker=self._name),
            metrics=MetricGroup(shipment.graph.name),
            pool=new_pool(shipment, self._peer),
            registry=PartitionRegistry(),
            limiters=self._limits,
            committables=_SentCommittables(self._channel, shipment.record_types),
            alignments=self._alignments,
            job_id=shipment.config.job_id or shipment.graph.name,
            commits_at_checkpoints=shipment.config.checkpoints is not None,
            is_resumable=shipment.config.is_resumable,
            state_classes=(*RECORDS_OF_OURS, *shipment.record_types),
            codec=(
                element_codec(shipment.record_types, has_arrow=shipment.has_arrow)
                if shipment.config.has_data_in_flight
                else None
            ),
        )


class _SentCommittables(CommittableCollector):
    """Sends what sinks prepared to the parent, which commits it."""

    def __init__(
        self, channel: ControlChannel[FromParent], types: tuple[type, ...]
    ) -> None:
        super().__init__()
        self._channel = channel
        self._serializer = PythonSerializer(record_classes(types, has_arrow=False))

    def add(self, operator_id: OperatorId, committables: list[Any]) -> None:
        output = bytearray()
        try:
            self._serializer.write_many(committables, output)
        except WrongTypeError as error:
            raise InvalidArgumentError(
                "committables",
                "prepare_commit returned what cannot be sent to the committer; its types "
                f"are {_types_in(committables)}",
                "Use Python's own types, or dataclasses and NamedTuples that the "
                "writer's methods name.",
            ) from error
        if len(output) > COMMITTABLES_BYTES_MAX:
            raise InvalidArgumentError(
                "committables",
                f"prepare_commit returned what takes {len(output):,} bytes, and "
                f"{COMMITTABLES_BYTES_MAX:,} can be sent to the committer",
                "Write what is large where it is to be, and let committables name it.",
            )
        self._channel.send(Prepared(operator_id, len(committables), bytes(output)))


def _types_in(committables: list[Any]) -> str:
    return ", ".join(sorted({type(each).__qualname__ for each in committables}))
