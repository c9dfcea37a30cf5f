"""A worker's part of a job: its tasks, and its messages from and to the parent."""

from __future__ import annotations

import asyncio
import os
import pickle  # noqa: TID251 -- the parent has sent the whole job, and made this process
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any, Final

import anyio

from aiomailbox.availability import Availability
from aiomailbox.errors import InvalidArgumentError, WorkerDiedError, WrongTypeError
from aiomailbox.eventtime.alignment import AlignmentGroups
from aiomailbox.eventtime.strategy import AlignmentConfig
from aiomailbox.ids import OperatorId, SubtaskId
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.records.run_columns import PythonSerializer
from aiomailbox.runtime.builder import AttemptPlan, TaskBuilder
from aiomailbox.runtime.host import LocalTasks
from aiomailbox.runtime.peers.control import PARENT_BYTES_MAX, ControlChannel
from aiomailbox.runtime.peers.limits import RemoteLimits
from aiomailbox.runtime.peers.messages import (
    COMMITTABLES_BYTES_MAX,
    AlignmentLimit,
    AlignmentReport,
    Begin,
    Cancel,
    Deploy,
    Ended,
    Failed,
    FromParent,
    FromWorker,
    Granted,
    Prepared,
    Ready,
    Shutdown,
    Snapshot,
    Tell,
    decode_from_parent,
)
from aiomailbox.runtime.peers.network import PeerNetwork, shared_services
from aiomailbox.runtime.peers.placement import PeerPlace, peer_name
from aiomailbox.runtime.peers.record_types import (
    RECORDS_OF_OURS,
    record_classes,
)
from aiomailbox.runtime.peers.shipping import Shipment
from aiomailbox.runtime.services import CommittableCollector, JobServices
from aiomailbox.runtime.views import TaskView
from aiomailbox.task.messages import TaskCancelled, TaskEnded, TaskEvent

# Tasks of a worker that begin together, and what they tell the parent.


class WorkerAttempt(LocalTasks):
    """One attempt of some tasks at a worker; what they say is said under its number.

    Args:
        plan: Which attempt it is.
        send: Sends a message about an attempt to the parent.

    Attributes:
        number: The attempt's.
    """

    def __init__(
        self, plan: AttemptPlan, send: Callable[[FromWorker | TaskEvent, int], None]
    ) -> None:
        super().__init__()
        self.number: int = plan.number
        self._send = send
        self._changed = Availability()
        self._cancelled: set[SubtaskId] = set()
        self._is_cancelled = False

    async def run(self, connect: Callable[[], Awaitable[None]]) -> None:
        """Run the tasks to their end, and say then that all is said."""
        try:
            # Before any function of the user's runs, which may hold the loop.
            await connect()
            async with anyio.create_task_group() as group:
                self.start(group)
                while not self.is_over:
                    await self._changed.wait()
                    self._changed.reset()
        except Exception as error:  # noqa: BLE001 -- the parent gets it, whatever it is
            self._send(Failed(error), self.number)
            # They have not started.
            super().cancel()
            self.on_interrupt()

    def end(self) -> None:
        """Say that nothing more comes of these tasks."""
        self._send(Ended(), self.number)

    def cancel(self, tasks: Collection[SubtaskId] | None = None) -> None:
        """Ask tasks to end; None for all."""
        if tasks is None:
            self._is_cancelled = True
        else:
            self._cancelled.update(tasks)
        super().cancel(tasks)

    @property
    def is_cancelled(self) -> bool:
        """Whether nothing of it is wanted any more."""
        return self._is_cancelled or all(
            task.lifecycle.is_cancelling or task.lifecycle.is_terminal
            for task in self.tasks
        )

    def on_event(self, event: TaskEvent) -> None:
        """Pass on to the parent what it does not know."""
        # It has asked for the other ends itself.
        if isinstance(event, TaskCancelled) and (
            self._is_cancelled or event.task in self._cancelled
        ):
            return
        self._send(event, self.number)
        if isinstance(event, TaskEnded):
            self._changed.set_available()


_SNAPSHOT_S: Final = 0.25
# The loop of a worker has nothing but its job: it may be held longer than that of a
# program. With a function of 20 us per record, the records that another worker gets come
# in runs of a hundred and not of twenty, and each run costs its frame.
_SLICE_TARGET_S: Final = 0.004
# A look that would only wait behind others is left out.
_UNSENT_BYTES_MAX: Final = 1 << 20


class WorkerJob:
    """Runs the tasks that are placed at one worker.

    Args:
        shipment: The job.
        limits: Its rate limits, in the parent's order.
        begin: What else the parent has said.
        place: Where this is.
        on_running: Called once, when all that the tasks need is there.
        log: A structlog logger.

    Attributes:
        is_orphaned: Whether the parent was gone before it had said that all is over.
    """

    def __init__(
        self,
        shipment: Shipment,
        limits: list[RateLimit],
        begin: Begin,
        place: PeerPlace,
        on_running: Callable[[], None],
        log: Any,
    ) -> None:
        self.is_orphaned: bool = False
        self._on_running = on_running
        self._shipment = shipment
        self._peer = begin.peer
        self._name = peer_name(begin.peer)
        self._channel: ControlChannel[FromParent] = ControlChannel(
            decode_from_parent, PARENT_BYTES_MAX, self._on_message, self._on_lost
        )
        self._limits = RemoteLimits(limits, self._channel.send)
        self._committables = _SentCommittables(self._channel, shipment.record_types)
        self._services = self._new_services(log)
        self._network = PeerNetwork(shipment, begin.peer, self._services, place)
        # The parent has made them, and removes them.
        backend = shipment.config.state_backend.placed(place.directory)
        self._services.state_backend = backend
        # Those that run, and the last ones that have; and those to be run next.
        self._attempts: list[WorkerAttempt] = []
        self._waiting: deque[WorkerAttempt] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._reporting: asyncio.TimerHandle | None = None
        self._deployed = Availability()
        self._dismissed = Availability()
        self._connecting: dict[WorkerAttempt, asyncio.Task[None]] = {}

    async def run(
        self, connect: Callable[[ControlChannel[FromParent]], Awaitable[None]]
    ) -> None:
        """Do what the parent says until it says that everything is over, or is gone."""
        await connect(self._channel)
        try:
            address = await self._network.listen()
            digest = self._network.codec_digest
            self._channel.send(Ready(address.host, address.port, digest))
        except Exception as error:  # noqa: BLE001 -- the parent gets it, whatever it is
            self._channel.send(Failed(error))
        while not self._dismissed.available:
            await self._deployed.wait()
            self._deployed.reset()
            self._run_deployed()
        if self._running:
            await asyncio.wait(self._running)
        if self._reporting is not None:
            self._reporting.cancel()
        self._limits.close()
        await self._network.close()
        self._services.release()
        self._channel.close()

    def _run_deployed(self) -> None:
        """Run the attempts that were deployed, each beside the others."""
        loop = asyncio.get_running_loop()
        while self._waiting:
            attempt = self._waiting.popleft()
            running = loop.create_task(
                self._run_attempt(attempt), name=f"attempt {attempt.number}"
            )
            self._running.add(running)
            running.add_done_callback(self._running.discard)

    async def _run_attempt(self, attempt: WorkerAttempt) -> None:
        """Run an attempt to its end, and say that it has come."""
        await attempt.run(partial(self._connect, attempt))
        # The last numbers, before the parent is notified that nothing follows.
        self._channel.send(self._snapshot())
        attempt.end()

    async def _connect(self, attempt: WorkerAttempt) -> None:
        """Authenticate with the peers while no function of the user holds the loop."""
        loop = asyncio.get_running_loop()
        connecting = loop.create_task(self._network.connect())
        self._connecting[attempt] = connecting
        try:
            # One that is not wanted any more has tasks that end at once.
            if not attempt.is_cancelled:
                await asyncio.wait([connecting])
        finally:
            del self._connecting[attempt]
            connecting.cancel()
        if connecting.done() and not connecting.cancelled():
            connecting.result()
        if self._reporting is None:
            self._report_later()
        self._on_running()

    def on_told_to_end(self) -> None:
        """Tell the parent that this process was told to end, and not by it."""
        how = "was told to end by signal SIGTERM"
        error = WorkerDiedError(self._name, os.getpid(), None, how)
        self._channel.send(Failed(error))

    def _on_message(self, attempt: int, message: FromParent) -> None:
        try:
            self._handle(attempt, message)
        except Exception as error:  # noqa: BLE001 -- the parent gets it, whatever it is
            self._channel.send(Failed(error))

    def _handle(self, attempt: int, message: FromParent) -> None:
        match message:
            case Deploy():
                # From now on under this number: the parent drops what is of an older
                # one.
                self._channel.attempt = attempt
                self._deploy(message.addresses, pickle.loads(message.plan))
            case Tell(tasks=subtasks):
                command = pickle.loads(message.command)
                for each in self._attempts:
                    each.tell(subtasks, command)
            case Granted():
                self._limits.on_granted(message)
            case AlignmentLimit():
                self._services.alignments.on_limit(message.group, message.limit_ms)
            case Cancel(tasks=subtasks):
                self._cancel(subtasks)
            case Shutdown():
                self._dismiss()
            case Begin():
                raise AssertionError("a worker begins once")

    def _cancel(self, subtasks: list[SubtaskId] | None = None) -> None:
        for each in self._attempts:
            each.cancel(subtasks)
            if each in self._connecting and each.is_cancelled:
                self._connecting[each].cancel()

    def _deploy(
        self, addresses: list[tuple[str, int | None]], plan: AttemptPlan
    ) -> None:
        """Make the tasks now: what comes next may be for them."""
        self._network.know(addresses)
        self._services.begin_attempt(plan.beginning)
        if plan.is_first:
            self._limits.begin_attempt()
        # Of one whose tasks have begun again there is nothing to tell any more.
        self._attempts = [each for each in self._attempts if not each.is_over]
        try:
            # Dismissed in between: the parent wants no more runs.
            if not self._dismissed.available:
                self._begin(WorkerAttempt(plan, self._channel.send), plan)
        finally:
            self._deployed.set_available()

    def _begin(self, attempt: WorkerAttempt, plan: AttemptPlan) -> None:
        self._attempts.append(attempt)
        try:
            builder = TaskBuilder(
                self._shipment.graph,
                self._shipment.config,
                self._services,
                plan,
                attempt.on_event,
                wiring=self._network,
            )
            attempt.add(builder.build(), attempt.on_event)
        except Exception as error:  # noqa: BLE001 -- the parent gets it, whatever it is
            self._channel.send(Failed(error))
            attempt.end()
            return
        self._committables.attempts.update(
            dict.fromkeys(
                (one.subtask for one in attempt.tasks),
                plan.number,
            )
        )
        self._waiting.append(attempt)

    def _report(self) -> None:
        self._reporting = None
        if not self._running:
            return
        # While the parent reads slowly, statistics would be out of date on arrival.
        if self._channel.unsent_bytes < _UNSENT_BYTES_MAX:
            self._channel.send(self._snapshot())
        self._report_later()

    def _report_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._reporting = loop.call_later(_SNAPSHOT_S, self._report)

    def _snapshot(self) -> Snapshot:
        # By place: of a task that has begun again the last attempt counts.
        last: dict[tuple[int, int], TaskView] = {
            (view.vertex, view.subtask_index): view
            for attempt in self._attempts
            for view in attempt.views(with_stacks=True)
        }
        return Snapshot(list(last.values()))

    def _on_watermark(
        self, config: AlignmentConfig, reader: str, watermark_ms: int
    ) -> None:
        self._channel.send(
            AlignmentReport(config.group, config.max_drift_ms, reader, watermark_ms)
        )

    def _on_lost(self, reason: BaseException | None) -> None:
        if self._dismissed.available:
            return
        # The parent is gone: nothing more can be reported.
        self.is_orphaned = True
        self._cancel()
        self._dismiss()

    def _dismiss(self) -> None:
        self._dismissed.set_available()
        self._deployed.set_available()

    def _new_services(self, log: Any) -> JobServices:
        shipment = self._shipment
        return shared_services(
            shipment,
            self._peer,
            log=log.bind(job=shipment.graph.name, worker=self._name),
            limiters=self._limits,
            committables=self._committables,
            alignments=AlignmentGroups(self._on_watermark),
            state_classes=(*RECORDS_OF_OURS, *shipment.record_types),
            slice_target_s=_SLICE_TARGET_S,
        )


class _SentCommittables(CommittableCollector):
    """Sends what sinks prepared to the parent, which commits it.

    Attributes:
        attempts: The present attempt of each task here.
    """

    def __init__(
        self, channel: ControlChannel[FromParent], types: tuple[type, ...]
    ) -> None:
        super().__init__()
        self.attempts: dict[SubtaskId, int] = {}
        self._channel = channel
        self._serializer = PythonSerializer(record_classes(types, has_arrow=False))

    def add(
        self, task: SubtaskId, operator_id: OperatorId, committables: list[Any]
    ) -> None:
        output = bytearray()
        # Here, where the writer is known, and not at the parent, in the middle of a
        # checkpoint.
        try:
            self._serializer.write_many(committables, output)
        except WrongTypeError as error:
            raise InvalidArgumentError(
                "committables",
                "prepare_commit returned committables that cannot be sent to the "
                f"committer, of the types {_types_in(committables)}",
                "Use Python's own types, or dataclasses and NamedTuples that the "
                "writer's methods name.",
            ) from error
        if len(output) > COMMITTABLES_BYTES_MAX:
            raise InvalidArgumentError(
                "committables",
                f"prepare_commit returned {len(output):,} bytes, and at most "
                f"{COMMITTABLES_BYTES_MAX:,} can be sent to the committer",
                "Write large data to its storage, and let committables refer to it.",
            )
        prepared = Prepared(task, operator_id, len(committables), bytes(output))
        # Under the number of its task: several attempts may run beside each other.
        self._channel.send(prepared, self.attempts[task])


def _types_in(committables: list[Any]) -> str:
    return ", ".join(sorted({type(each).__qualname__ for each in committables}))
