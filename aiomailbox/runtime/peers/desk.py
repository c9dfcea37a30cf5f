"""Where the messages of workers are checked and dispatched."""

from __future__ import annotations

from collections.abc import Collection

from aiomailbox.errors import CorruptStreamError, HandshakeError
from aiomailbox.graph.job_graph import JobGraph
from aiomailbox.ids import OperatorId, SubtaskId, VertexId
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.records.byte_reader import ByteReader
from aiomailbox.records.values import PythonSerializer
from aiomailbox.runtime.host import AttemptEvents
from aiomailbox.runtime.peers.alignment import ParentAlignmentGroups
from aiomailbox.runtime.peers.errors_as_text import error_from_text
from aiomailbox.runtime.peers.limits import LimitDesk
from aiomailbox.runtime.peers.messages import (
    Acknowledged,
    AlignmentReport,
    DataEnded,
    Declined,
    Ended,
    Failed,
    FromWorker,
    Lease,
    Pause,
    Prepared,
    Ready,
    Snapshot,
    SplitRequest,
    Stopped,
    TaskEnded,
    TaskRunning,
)
from aiomailbox.runtime.peers.placement import PARENT
from aiomailbox.runtime.peers.record_types import record_classes
from aiomailbox.runtime.peers.shipping import Shipment
from aiomailbox.runtime.peers.workers import Worker
from aiomailbox.runtime.services import JobServices
from aiomailbox.runtime.views import TaskView

__all__ = ["WorkerDesk"]


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
        self._attempt = 0
        # The attempt in which all tasks began; of some, a later one has begun.
        self._whole = 0
        self._epochs: dict[SubtaskId, int] = {}
        self._placement = shipment.placement
        self._services = services
        self._limits = LimitDesk(services.limiters, limits)
        self._sinks = _sinks(shipment.graph)
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
        """Take of tasks from now on only what is about this attempt; older are over.

        Args:
            number: The attempt.
            tasks: Which tasks begin; None for all.
            is_first: Whether all others are over, too.
        """
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

    def epochs_of(self, tasks: Collection[SubtaskId]) -> dict[SubtaskId, int]:
        """Return the attempts of tasks at workers."""
        return {one: self._epochs[one] for one in tasks if one in self._epochs}

    def forget(self, worker: Worker) -> None:
        """Be notified that a worker is gone, and its tasks with it.

        What it has counted stays to be seen, until its successor counts.
        """
        self.running.difference_update(self.placed_at(worker.peer))
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
            case Failed(error=text):
                return error_from_text(worker.name, text)
            case Snapshot(tasks=tasks):
                self.views[worker.peer] = tasks
            case Ended():
                self.running -= {
                    one
                    for one in self.placed_at(worker.peer)
                    if self._epochs[one] == attempt
                }
            case Lease():
                self._limits.on_lease(message, worker, _of_running(events).on_failed)
            case Pause():
                self._limits.on_pause(message)
            case AlignmentReport():
                groups = self._services.alignments
                assert isinstance(groups, ParentAlignmentGroups)
                groups.on_report(message)
            case Prepared(task=subtask):
                self._check_has(worker, *subtask)
                self._keep(message)
            case TaskEnded(task=task, subtask=subtask, error=text):
                self._check_has(worker, *subtask)
                failure = None if text is None else error_from_text(worker.name, text)
                running = _of_running(events)
                # In `running` still, until the worker says that the whole attempt is
                # over.
                self._over.add(subtask)
                running.on_task_ended(failure, task, subtask)
            case TaskRunning(task=subtask):
                self._check_has(worker, *subtask)
                _of_running(events).on_task_running(subtask)
            case DataEnded(task=subtask):
                self._check_has(worker, *subtask)
                _of_running(events).on_end_of_data(subtask)
            case Acknowledged(task=subtask):
                self._check_has(worker, *subtask)
                _of_running(events).on_acknowledged(
                    subtask, message.checkpoint_id, message.handle, message.statistics
                )
            case Declined(task=subtask):
                self._check_has(worker, *subtask)
                failure = error_from_text(worker.name, message.error)
                _of_running(events).on_declined(subtask, message.checkpoint_id, failure)
            case Stopped(task=subtask):
                self._check_has(worker, *subtask)
                _of_running(events).on_cancelled(subtask)
            case SplitRequest(vertex=vertex, subtask_index=subtask_index):
                self._check_has(worker, vertex, subtask_index)
                _of_running(events).on_split_request(vertex, subtask_index)
        return None

    async def close(self) -> None:
        """Grant nothing any more."""
        await self._limits.close()

    def _is_over(self, worker: Worker, attempt: int, message: FromWorker) -> bool:
        """Say whether a message is about an attempt that was followed by another one."""
        match message:
            case SplitRequest(vertex=vertex, subtask_index=subtask_index):
                task = SubtaskId(VertexId(vertex), subtask_index)
            case TaskEnded(subtask=task):
                pass
            case (
                TaskRunning(task=task)
                | DataEnded(task=task)
                | Acknowledged(task=task)
                | Declined(task=task)
                | Prepared(task=task)
                | Stopped(task=task)
            ):
                pass
            # What is about no task counts from the attempt in which all began.
            case _:
                return attempt < self._whole
        return attempt < self._epochs.get(task, 0)

    def _keep(self, message: Prepared) -> None:
        if message.sink not in self._sinks:
            raise CorruptStreamError(f"there is no sink {message.sink!r} to commit to")
        source = ByteReader(message.values)
        values = self._serializer.read_many(source, message.count)
        source.expect_end("what a sink prepared")
        self._services.committables.add(message.task, OperatorId(message.sink), values)

    def _check_has(self, worker: Worker, vertex: int, subtask_index: int) -> None:
        if worker.peer == PARENT or not self._placement.is_at(
            worker.peer, vertex, subtask_index
        ):
            raise CorruptStreamError(
                f"{worker.name} has no subtask {subtask_index} of vertex {vertex}"
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


def _sinks(graph: JobGraph) -> set[str]:
    return {
        node.operator_id
        for vertex in graph.vertices
        for node in vertex.nodes
        if node.transformation.sink is not None
    }
