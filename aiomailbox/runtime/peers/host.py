"""Workers and their parent as one place where a job's tasks run.

Theory of operation: the parent is a peer like its workers: it has tasks, a data server
and connections of its own. Everything that workers do arrives as calls on the loop. A
deadline runs from the first cancel; a worker that has not ended by then is killed.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from aiomailbox.availability import Availability
from aiomailbox.checkpoint.restored import RestoredTasks
from aiomailbox.clock import SystemClock
from aiomailbox.errors import (
    CorruptStreamError,
    HandshakeError,
    InvalidArgumentError,
    WorkerDiedError,
)
from aiomailbox.eventtime.alignment import AlignmentGroups
from aiomailbox.eventtime.strategy import AlignmentConfig
from aiomailbox.graph.job_graph import JobGraph
from aiomailbox.ids import OperatorId, SubtaskId, VertexId
from aiomailbox.logs import library_log
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.policies.restart import NoRestart
from aiomailbox.records.byte_reader import ByteReader
from aiomailbox.records.run_columns import PythonSerializer
from aiomailbox.runtime.builder import AttemptPlan
from aiomailbox.runtime.config import JobConfig
from aiomailbox.runtime.host import AttemptEvents, Host
from aiomailbox.runtime.limiter import LimiterService, limits_of
from aiomailbox.runtime.master import JobMaster
from aiomailbox.runtime.peers.control import Starter, Worker
from aiomailbox.runtime.peers.limits import LimitDesk, text_of
from aiomailbox.runtime.peers.messages import (
    AlignmentLimit,
    AlignmentReport,
    Beat,
    Begin,
    Cancel,
    Deploy,
    Ended,
    Failed,
    FromWorker,
    Lease,
    Pause,
    Prepared,
    Ready,
    Shutdown,
    Snapshot,
    Tell,
    Used,
)
from aiomailbox.runtime.peers.network import PeerNetwork, shared_services
from aiomailbox.runtime.peers.placement import PARENT, place
from aiomailbox.runtime.peers.record_types import record_classes
from aiomailbox.runtime.peers.shipping import Shipment, pack, pickled
from aiomailbox.runtime.services import JobServices, PullHandover
from aiomailbox.runtime.views import TaskView, view_of_lost
from aiomailbox.supervision import outlast, run_in_thread
from aiomailbox.task.messages import Command, TaskEnded, TaskEvent

# Where the messages of workers are checked and dispatched.


# What a worker said of its tasks counts for two of its looks: one that says no more may
# have begun to do something, and holds its loop.
_FRESH_S: Final = 0.5


class WorkerDesk:
    """Keeps what workers have reported, and passes on what others need.

    Args:
        shipment: The job.
        services: Those of the parent: where limits and committables are.
        limits: The rate limits that workers know by number.

    Attributes:
        codec_digest: How records are written; compared with what workers say.
        addresses: Where peers listen, as far as they have said so.
        running: The tasks at workers of which there is still something to come.
        views: The last look at the tasks of each worker.
    """

    def __init__(
        self, shipment: Shipment, services: JobServices, limits: list[RateLimit]
    ) -> None:
        self.codec_digest = b""
        self.addresses: dict[int, tuple[str, int | None]] = {}
        self.running: set[SubtaskId] = set()
        # Those of them that have ended: others of their attempt run at their worker.
        self._over: set[SubtaskId] = set()
        self.views: dict[int, list[TaskView]] = {}
        self._looked_s: dict[int, float] = {}
        self._attempt = 0
        # The attempt in which all tasks began; of some, a later one has begun.
        self._whole = 0
        self._epochs: dict[SubtaskId, int] = {}
        self._placement = shipment.placement
        self._services = services
        self._limits = LimitDesk(services.limiters, limits)
        self._sinks = {
            node.operator_id
            for node in shipment.graph.nodes
            if node.transformation.sink is not None
        }
        types = record_classes(shipment.record_types, has_arrow=False)
        # The types of the job only: bytes of a worker don't choose which classes are
        # made.
        self._serializer = PythonSerializer(types)

    @property
    def are_ready(self) -> bool:
        """Whether all workers know the job and listen."""
        return len(self.addresses) == self._placement.workers + 1

    def addresses_in_order(self) -> list[tuple[str, int | None]]:
        """Return where the peers listen, in the order of their numbers."""
        return [self.addresses[peer] for peer in sorted(self.addresses)]

    def begin_attempt(
        self,
        number: int,
        tasks: Collection[SubtaskId] | None = None,
        *,
        is_first: bool = True,
    ) -> None:
        """Take of tasks from now on only what is about this attempt; older are over."""
        self._attempt = number
        everything = [
            SubtaskId(VertexId(vertex), index)
            for vertex, peers in self._placement.peers.items()
            for index, peer in enumerate(peers)
            if peer != PARENT
        ]
        beginning = [one for one in everything if tasks is None or one in tasks]
        self._epochs.update(dict.fromkeys(beginning, number))
        self.running.update(beginning)
        self._over.difference_update(beginning)
        if is_first:
            self._whole = number
            self._limits.begin_attempt()
            self.views.clear()

    def placed_at(self, peer: int) -> list[SubtaskId]:
        """Return the tasks of a worker that have begun, whether they run or not."""
        return [one for one in self._epochs if self._placement.is_at(peer, *one)]

    def is_at(self, peer: int, tasks: Collection[SubtaskId]) -> bool:
        """Say whether a worker has some of the tasks."""
        return any(self._placement.is_at(peer, *one) for one in tasks)

    def have_ended(self, tasks: Collection[SubtaskId]) -> bool:
        """Say whether none of some tasks runs at a worker."""
        return (self.running - self._over).isdisjoint(tasks)

    def running_at(self, peer: int) -> list[SubtaskId]:
        """Return the tasks of a worker that have not ended."""
        running = self.running - self._over
        return [one for one in running if self._placement.is_at(peer, *one)]

    def are_unchanged_since(
        self, checkpoint_id: int, tasks: Collection[SubtaskId]
    ) -> bool:
        """Say whether workers have just said so of all of the tasks that they have."""
        since_s = self._services.clock.monotonic() - _FRESH_S
        unchanged = {
            (view.vertex, view.subtask_index)
            for peer, views in self.views.items()
            if self._looked_s[peer] >= since_s
            for view in views
            if view.unchanged_id == checkpoint_id
        }
        return self._epochs.keys() & tasks <= unchanged

    def epochs_of(self, tasks: Collection[SubtaskId]) -> dict[SubtaskId, int]:
        """Return the attempts of tasks at workers."""
        return {one: self._epochs[one] for one in tasks if one in self._epochs}

    def forget(self, worker: Worker) -> None:
        """Be notified that a worker is gone, and its tasks with it.

        What it has counted stays to be seen, until its successor counts; what it did
        and held in its last moment does not.
        """
        self.running.difference_update(self.placed_at(worker.peer))
        # It may have been lost before it said anything.
        if (views := self.views.get(worker.peer)) is not None:
            self.views[worker.peer] = [view_of_lost(view) for view in views]
        self._limits.forget(worker)

    def take(
        self,
        worker: Worker,
        attempt: int,
        message: FromWorker,
        events: AttemptEvents | None,
    ) -> BaseException | None:
        """Take a message, and return what it fails the worker's tasks with, if it does.

        What is about an older attempt of a task is dropped: it was declared over.

        Raises:
            CorruptStreamError: If the worker cannot have meant it.
            InvalidArgumentError: If the user's functions disagree about a limit.
        """
        # One that takes the place of another has heard of no attempt yet.
        is_new = worker.peer not in self.addresses
        if self._is_over(worker, attempt, message) and not (
            is_new and isinstance(message, Ready | Failed)
        ):
            return None
        # Only numbers that were given may come back: this one was made up.
        if attempt > self._attempt:
            raise CorruptStreamError(
                f"{worker.name} speaks of attempt {attempt}, and there are "
                f"{self._attempt + 1}"
            )
        match message:
            case Ready(host=host, port=port):
                if message.codec_digest != self.codec_digest:
                    return _other_records(worker.name)
                # Once: a worker has one address, so a second one is not its own.
                self.addresses.setdefault(worker.peer, (host, port))
            case Failed(error=error):
                return error
            case Snapshot(tasks=tasks):
                self.views[worker.peer] = tasks
                self._looked_s[worker.peer] = self._services.clock.monotonic()
            case Ended():
                self.running -= {
                    one
                    for one in self.placed_at(worker.peer)
                    if self._epochs[one] == attempt
                }
            case Lease():
                self._limits.on_lease(message, worker, _of_running(events).fail)
            case Used():
                self._limits.on_used(message, worker)
            case Pause():
                self._limits.on_pause(message)
            case AlignmentReport():
                # The interval is the reader's own business.
                config = AlignmentConfig(message.group, message.max_drift_ms, 1)
                group = self._services.alignments.get(config)
                group.report(message.reader, message.watermark_ms)
            case Prepared(task=task):
                self._check_has(worker, task)
                self._keep(message)
            case _:
                self._check_has(worker, message.task)
                running = _of_running(events)
                if isinstance(message, TaskEnded):
                    # In `running` still, until the worker says that the whole attempt
                    # is over.
                    self._over.add(message.task)
                running.on_event(message)
        return None

    async def close(self) -> None:
        """Grant nothing any more."""
        await self._limits.close()

    def _is_over(self, worker: Worker, attempt: int, message: FromWorker) -> bool:
        """Say whether a message is about an attempt that was followed by another one."""
        if isinstance(message, TaskEvent):
            return attempt < self._epochs.get(message.task, 0)
        # What is about no task counts from the attempt in which all began.
        return attempt < self._whole

    def _keep(self, message: Prepared) -> None:
        if message.sink not in self._sinks:
            raise CorruptStreamError(f"there is no sink {message.sink!r} to commit to")
        source = ByteReader(message.values)
        values = self._serializer.read_many(source, message.count)
        source.expect_end("what a sink prepared")
        self._services.committables.add(message.task, OperatorId(message.sink), values)

    def _check_has(self, worker: Worker, task: SubtaskId) -> None:
        if worker.peer == PARENT or not self._placement.is_at(worker.peer, *task):
            raise CorruptStreamError(
                f"{worker.name} has no subtask {task.subtask_index} of vertex "
                f"{task.vertex}"
            )


def _other_records(worker: str) -> HandshakeError:
    return HandshakeError(
        f"{worker} and its parent would serialize records differently: the modules "
        "that the worker imported define other classes or fields. Do not change "
        "modules while a program that uses them runs."
    )


def _of_running(events: AttemptEvents | None) -> AttemptEvents:
    if events is None:
        raise CorruptStreamError("a worker speaks of tasks before it has any")
    return events


# A worker's own deadline for clean-up comes first.
_GRACE_S: Final = 2.0
_EXIT_S: Final = 5.0


class PeersHost(Host):
    """Runs a job's tasks at workers, and in this process what has to stay.

    Args:
        shipment: The job.
        payload: The same as bytes.
        limits: The rate limits that the bytes name by number.
        services: What the tasks of this process share.
        starter: Starts the workers.
    """

    def __init__(
        self,
        shipment: Shipment,
        payload: bytes,
        limits: list[RateLimit],
        services: JobServices,
        starter: Starter,
    ) -> None:
        super().__init__(shipment.graph, shipment.config, services)
        self._shipment = shipment
        self._payload = payload
        self._limits = limits
        services.alignments = AlignmentGroups(on_moved=self._on_limit_moved)
        self._changed = Availability()
        self._workers = [
            starter.new_worker(peer, self)
            for peer in range(1, shipment.placement.workers + 1)
        ]
        self._desk = WorkerDesk(shipment, services, limits)
        self._events: AttemptEvents | None = None
        self._early: BaseException | None = None
        self._starter = starter
        self._network: PeerNetwork | None = None
        self._deadlines: list[asyncio.TimerHandle] = []
        self._is_cancelled = False
        # How workers ended that have no follower yet, by their numbers.
        self._deaths: dict[int, WorkerDiedError] = {}

    @property
    def is_over(self) -> bool:
        """Whether no task runs any more, here or in a worker."""
        return super().is_over and not self._desk.running

    def has_ended(self, tasks: Collection[SubtaskId]) -> bool:
        """Say whether none of some tasks runs any more."""
        return super().has_ended(tasks) and self._desk.have_ended(tasks)

    async def prepare(self) -> None:
        """Start the workers, and wait until all know the job and listen.

        Raises:
            RemoteTaskError: If a worker cannot load the job.
            WorkerDiedError: If a worker ended.
            OSError: If there can be no more processes or sockets.
        """
        if not self._workers:
            return
        if self._network is not None:
            await self._replace_workers(self._network)
            return
        # What a killed job has left may be a lot to remove.
        place = await run_in_thread(self._starter.prepare)
        services = self._services
        services.state_backend = services.state_backend.placed(place.directory)
        network = PeerNetwork(self._shipment, PARENT, self._services, place)
        self._network = network
        self._desk.codec_digest = network.codec_digest
        address = await network.listen()
        self._desk.addresses[PARENT] = (address.host, address.port)
        for worker in self._workers:
            await self._start(worker)
        # No worker restarts, so what may be megabytes is not sent again.
        if isinstance(self._config.restart_strategy, NoRestart):
            self._payload = b""
        await self._connect(network)

    async def _replace_workers(self, network: PeerNetwork) -> None:
        """Start new workers for those that are gone; tasks may run at the others."""
        self._early = None
        if self.is_over:
            self._end_deadlines()
            self._events = None
            self._is_cancelled = False
        for index, worker in enumerate(self._workers):
            if worker.has_exited:
                worker.release()
                self._deaths.pop(worker.peer, None)
                self._desk.addresses.pop(worker.peer, None)
                follower = self._starter.new_worker(worker.peer, self)
                self._workers[index] = follower
                await self._start(follower)
        await self._connect(network)

    async def _connect(self, network: PeerNetwork) -> None:
        """Wait until all workers are there, and connect with those that send."""
        await self._until(lambda: self._desk.are_ready)
        network.know(self._desk.addresses_in_order())
        # Before any task: a function of the user's that holds a loop would hold its
        # handshake, too.
        connecting = asyncio.get_running_loop().create_task(network.connect())
        connecting.add_done_callback(self._on_connected)
        try:
            await self._until(connecting.done)
        finally:
            connecting.cancel()

    def _on_connected(self, connecting: asyncio.Task[None]) -> None:
        if not connecting.cancelled() and self._early is None:
            self._early = connecting.exception()
        self._changed.set_available()

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for something to be so, unless a worker fails before."""
        while self._early is None and not condition():
            await self._changed.wait()
            self._changed.reset()
        if self._early is not None:
            raise self._early

    def deploy(self, plan: AttemptPlan, events: AttemptEvents) -> None:
        """Make the tasks of this process, and let the workers make theirs."""
        self._events = events
        self._desk.begin_attempt(plan.number, plan.tasks, is_first=plan.is_first)
        self._make_tasks(plan, events, wiring=self._network)
        for worker in self._workers:
            if plan.is_first or self._desk.is_at(worker.peer, plan.tasks or ()):
                self._deploy_at(worker, plan)
        if self._early is not None:
            events.fail(self._early)
        for worker in self._workers:
            # It was there when everything was prepared, and is not any more.
            error = self._deaths.get(worker.peer)
            if error is not None and worker.has_exited:
                self._on_gone(worker, error)

    def _deploy_at(self, worker: Worker, plan: AttemptPlan) -> None:
        worker.begin_attempt(plan.number)
        worker.send(
            Deploy(
                self._desk.addresses_in_order(),
                pickled(replace(plan, restored=self._restored_at(worker.peer, plan))),
            )
        )
        # It may be a new one, and limits are sent to others only when they move.
        for group, limit_ms in self._services.alignments.limits().items():
            worker.send(AlignmentLimit(group, limit_ms))

    def cancel(self, tasks: Collection[SubtaskId] | None = None) -> None:
        """Ask tasks to end; workers that take too long are killed."""
        super().cancel(tasks)
        if self._is_cancelled:
            return
        if tasks is None:
            self._is_cancelled = True
            for worker in self._workers:
                worker.send(Cancel())
            tasks = frozenset(self._desk.running)
        else:
            for worker, mine in self._by_worker(sorted(tasks)):
                worker.send(Cancel(mine))
        if self._workers:
            timeout_s = self._config.cancel_timeout_s
            loop = asyncio.get_running_loop()
            now_s = loop.time()
            self._deadlines = [one for one in self._deadlines if one.when() > now_s]
            self._deadlines.append(
                loop.call_later(
                    timeout_s + _GRACE_S,
                    self._on_deadline,
                    timeout_s,
                    self._desk.epochs_of(tasks),
                )
            )

    def are_unchanged_since(
        self, checkpoint_id: int, tasks: Collection[SubtaskId]
    ) -> bool:
        """Say whether tasks are as they were at a complete checkpoint, or were just now.

        What a task elsewhere has done since it said so is in the next checkpoint, as if
        the barrier of this one had come before it.
        """
        return super().are_unchanged_since(
            checkpoint_id, tasks
        ) and self._desk.are_unchanged_since(checkpoint_id, tasks)

    def tell(self, tasks: Collection[SubtaskId] | None, command: Command) -> None:
        """Tell tasks a command, wherever they are; None for all."""
        super().tell(tasks, command)
        told = (
            [(worker, None) for worker in self._workers]
            if tasks is None
            else [*self._by_worker(tasks)]
        )
        if told:
            message = pickled(command)
            for worker, mine in told:
                worker.send(Tell(mine, message))

    def _by_worker(
        self, tasks: Collection[SubtaskId]
    ) -> Iterator[tuple[Worker, list[SubtaskId]]]:
        placement = self._shipment.placement
        for worker in self._workers:
            mine = [task for task in tasks if placement.is_at(worker.peer, *task)]
            if mine:
                yield worker, mine

    def views(self, *, with_stacks: bool) -> list[TaskView]:
        """Return the statistics of every task; those of workers are up to 0.25 s old."""
        order: dict[int, int] = {
            vertex.id: place for place, vertex in enumerate(self._graph.vertices)
        }
        views = [
            *super().views(with_stacks=with_stacks),
            *(view for tasks in self._desk.views.values() for view in tasks),
        ]
        return sorted(
            views, key=lambda view: (order.get(view.vertex, -1), view.subtask_index)
        )

    async def release(self) -> None:
        """End all processes and remove what they used; interrupts only hurry it."""
        self._end_deadlines()
        for worker in self._workers:
            worker.may_exit = True
            # Those that were given nothing to run are not worth waiting for.
            if self._events is None:
                worker.kill(None)
            else:
                worker.send(Shutdown())
        await self._outlast_workers()
        for worker in self._workers:
            worker.release()
        try:
            await self._close_network()
        finally:
            self._services.release()
            await run_in_thread(self._starter.release)

    def on_message(self, worker: Worker, attempt: int, message: FromWorker) -> None:
        """Take a worker's message about an attempt.

        Raises:
            CorruptStreamError: If it is about what the worker does not have.
        """
        try:
            error = self._desk.take(worker, attempt, message, self._events)
        except InvalidArgumentError as refused:
            error = refused
        if error is not None:
            self._fail(error, worker)
        self._tell()

    def on_held(self, worker: Worker, beat: Beat) -> None:
        """Warn that code of the user holds a worker's loop: nothing else runs there."""
        held = beat.held
        assert held is not None
        self._services.log.warning(
            "the loop of a worker is held",
            worker=worker.name,
            held_s=beat.held_s,
            operator=held.operator,
            uid=held.uid,
            line=held.line,
            task=held.task,
            # As structlog prints a stack: as one text.
            stack="\n".join(held.stack),
        )

    def on_exit(self, worker: Worker, error: WorkerDiedError | None) -> None:
        """Be notified that a worker's process is gone."""
        if error is not None:
            self._deaths[worker.peer] = error
            self._on_gone(worker, error)
        else:
            self._desk.forget(worker)
        self._tell()

    def _on_gone(self, worker: Worker, error: WorkerDiedError) -> None:
        """Let its tasks begin again: another one will take its place."""
        self._fail(error, worker)
        self._desk.forget(worker)

    def _on_limit_moved(self, group: str, limit_ms: int) -> None:
        for worker in self._workers:
            worker.send(AlignmentLimit(group, limit_ms))

    async def _start(self, worker: Worker) -> None:
        await worker.start()
        limits = [text_of(limit, number) for number, limit in enumerate(self._limits)]
        worker.send(Begin(worker.peer, limits, self._payload))

    def _restored_at(self, peer: int, plan: AttemptPlan) -> RestoredTasks:
        return {
            subtask: snapshot
            for subtask, snapshot in plan.restored.items()
            if self._shipment.placement.is_at(peer, *subtask)
        }

    def _fail(self, error: BaseException, worker: Worker) -> None:
        # Of a worker that is not known as ready: `prepare` waits for it.
        if self._events is None or worker.peer not in self._desk.addresses:
            self._early = self._early or error
        elif worker.has_exited:
            self._events.on_lost(error, self._desk.placed_at(worker.peer))
        else:
            self._events.fail(error, tasks=self._desk.running_at(worker.peer))

    def _tell(self) -> None:
        self._changed.set_available()
        if self._events is not None:
            self._events.on_changed()

    def _on_deadline(self, timeout_s: float, epochs: dict[SubtaskId, int]) -> None:
        late = [
            one
            for one, epoch in self._desk.epochs_of(epochs).items()
            if epochs[one] == epoch and not self._desk.have_ended([one])
        ]
        for worker, _ in self._by_worker(late):
            worker.kill(
                f"did not end within {timeout_s} s after it was cancelled, and was "
                "killed"
            )

    def _end_deadlines(self) -> None:
        for deadline in self._deadlines:
            deadline.cancel()
        self._deadlines.clear()

    async def _outlast_workers(self) -> None:
        loop = asyncio.get_running_loop()
        hurry = loop.call_later(_EXIT_S, self._kill_all)
        try:
            while not all(worker.has_exited for worker in self._workers):
                self._changed.reset()
                try:
                    await self._changed.wait()
                except asyncio.CancelledError:
                    self._kill_all()
        finally:
            hurry.cancel()

    def _kill_all(self) -> None:
        for worker in self._workers:
            worker.kill(None)

    async def _close_network(self) -> None:
        await self._desk.close()
        if self._network is not None:
            closing = asyncio.get_running_loop().create_task(self._network.close())
            await outlast(closing)
            closing.result()


# Puts the parent's part of a job together.


def assemble(
    graph: JobGraph,
    config: JobConfig,
    workers: int,
    starter: Starter,
    handovers: Mapping[str, PullHandover],
    state_classes: Sequence[Any] = (),
) -> JobMaster:
    """Return a job that has not started; no worker is there yet.

    Raises:
        NotShippableError: If an operator cannot be pickled; names it and what of it.
    """
    seed = config.seed
    shipment, payload, limits = pack(
        Shipment(
            graph,
            config,
            place(graph, workers),
            random.SystemRandom().getrandbits(32) if seed is None else seed,
            secrets.token_bytes(16),
            "pyarrow" in sys.modules,
        )
    )
    services = shared_services(
        shipment,
        PARENT,
        log=library_log(job=graph.name),
        limiters=LimiterService(SystemClock(), limits_of(graph)),
        handovers=dict(handovers),
        state_backend=config.state_backend,
        state_classes=state_classes,
    )
    host = PeersHost(shipment, payload, limits, services, starter)
    return JobMaster(graph, config, services, host)
