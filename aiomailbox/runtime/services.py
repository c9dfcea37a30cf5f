"""The services that all tasks of a job share."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from aiomailbox.availability import Availability
from aiomailbox.exchange.gate import PartitionRegistry
from aiomailbox.ids import OperatorId, SubtaskId
from aiomailbox.journal.journals import SharedJournals
from aiomailbox.memory.local_pool import NetworkBufferPool
from aiomailbox.operators.core.context import Limiter
from aiomailbox.operators.core.mutations import SharedRecords
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.run import Run
from aiomailbox.task.environment import JobEnvironment

# Where a task leaves results for the caller that pulls them; bounded in runs.


HANDOVER_RUNS_MAX: Final = 4


class PullHandover:
    """A bounded queue of runs between tasks and one consumer on the same loop.

    A producer that found no room waits for `writable` before its next run: with
    n producers at most ``runs_max + n`` runs are held. The consumer's pace is thereby
    the job's.

    Example:
        >>> from aiomailbox.records import ListRun
        >>> handover = PullHandover(runs_max=1)
        >>> handover.offer(ListRun([1]))
        False
        >>> handover.try_take().values
        [1]
    """

    def __init__(self, runs_max: int = HANDOVER_RUNS_MAX) -> None:
        self._runs_max = runs_max
        self._runs: deque[Run] = deque()
        self.room: Availability = Availability(available=True)
        self._filled = Availability()
        self._ended = False
        self._abandoned = False

    def offer(self, run: Run) -> bool:
        """Take the run; False says that there is no room for another one yet."""
        if self._abandoned:
            return True
        # Taken in any case: the emitter could not keep it.
        self._runs.append(run)
        if len(self._runs) >= self._runs_max:
            self.room.reset()
        self._filled.set_available()
        return self.room.available

    def writable(self) -> asyncio.Future[None]:
        """Return a fresh future that completes when there is room again."""
        return self.room.waiter()

    def try_take(self) -> Run | None:
        """Return the oldest run, or None when there is none now."""
        if not self._runs:
            return None
        run = self._runs.popleft()
        if not self._runs and not self._ended:
            self._filled.reset()
        if len(self._runs) < self._runs_max and not self.room.available:
            self.room.set_available()
        return run

    async def take(self) -> Run | None:
        """Return the oldest run, waiting for it; None after the end."""
        while True:
            run = self.try_take()
            if run is not None or self._ended:
                return run
            await self._filled.wait()

    def end(self) -> None:
        """Say that no more runs come."""
        self._ended = True
        self._filled.set_available()

    def abandon(self) -> None:
        """Drop everything, also what still comes: it is no longer pulled."""
        self._abandoned = True
        self._runs.clear()
        self.room.set_available()


class CountingHandover(PullHandover):
    """Counts the records of all runs, and keeps none: there is always room.

    Attributes:
        records: How many there were.

    Example:
        >>> from aiomailbox.records import ListRun
        >>> handover = CountingHandover()
        >>> handover.offer(ListRun([1, 2])), handover.offer(ListRun([3]))
        (True, True)
        >>> handover.records
        3
    """

    def __init__(self) -> None:
        super().__init__()
        self.records: int = 0

    def offer(self, run: Run) -> bool:
        """Count the records."""
        self.records += len(run)
        return True


class Limiters(Protocol):
    """Finds the limiter that a limit means.

    Attributes:
        on_exhausted: Told of a limit whose budget is exhausted, once.
    """

    on_exhausted: Callable[[RateLimit], None] | None

    def get(self, limit: RateLimit) -> Limiter:
        """Return the limiter for a limit."""

    def close(self) -> None:
        """Close all limiters; at the end of the job."""


class CommittableCollector:
    """Keeps what sink writers prepared until the job commits it."""

    def __init__(self) -> None:
        self._by_task: dict[SubtaskId, dict[OperatorId, list[Any]]] = {}

    def add(
        self, task: SubtaskId, operator_id: OperatorId, committables: list[Any]
    ) -> None:
        """Take what ``prepare_commit`` of a task's writer returned."""
        by_operator = self._by_task.setdefault(task, {})
        by_operator.setdefault(operator_id, []).extend(committables)

    def take_all(self) -> dict[OperatorId, list[Any]]:
        """Return and forget what was collected, by sink."""
        taken, self._by_task = self._by_task, {}
        found: dict[OperatorId, list[Any]] = {}
        # Sorted, so that committers see one order whenever a job runs again.
        for task in sorted(taken):
            for operator_id, committables in taken[task].items():
                found.setdefault(operator_id, []).extend(committables)
        return found

    def drop(self, tasks: Collection[SubtaskId]) -> None:
        """Forget what tasks have prepared that begin again."""
        for task in tasks:
            self._by_task.pop(task, None)


@dataclass(slots=True, kw_only=True)
class JobServices(JobEnvironment):
    """The job-wide services, made on the job's loop: what its tasks share unseen, too.

    Attributes:
        pool: Permits for buffers.
        registry: Where consumers find partitions.
        limiters: The named limiters.
        committables: What sinks prepared.
        handovers: Where results are pulled, by name.
        state_classes: The classes that the state of the job may hold, or type hints
            that name them.
        codec: For data in flight; None for a job that neither keeps nor restores any.
        journals: Where calls are kept of tasks that no master directs; None for a job
            that keeps them beside its checkpoints, or not at all.
    """

    pool: NetworkBufferPool
    limiters: Limiters
    registry: PartitionRegistry = field(default_factory=PartitionRegistry)
    committables: CommittableCollector = field(default_factory=CommittableCollector)
    handovers: Mapping[str, PullHandover] = field(default_factory=dict)
    state_classes: Sequence[Any] = ()
    codec: ElementCodec | None = None
    journals: SharedJournals | None = None

    def begin_attempt(self, tasks: Collection[SubtaskId] | None = None) -> None:
        """Release what an attempt of tasks has left, for the next one; None for all."""
        self.shared.end()
        self.shared: SharedRecords = SharedRecords(self.log)
        if tasks is None:
            self.registry.release_all()
            self.pool.destroy_all_local_pools()
            self.committables.take_all()
        else:
            # Other tasks use the pool: each attempt has released its share at its end.
            self.registry.release_outputs(tasks)
            self.committables.drop(tasks)

    def release(self) -> None:
        """Release what tasks may have left, once none of them runs any more."""
        self.limiters.close()
        self.shared.end()
        # A task that never ran leaves what was sent to it with the producer.
        self.registry.release_all()
        self.pool.destroy_all_local_pools()
        self.pool.destroy()
