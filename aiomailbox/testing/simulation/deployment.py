"""Runs a job on the loop of a simulation, where acknowledgements may get lost."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from aiomailbox.checkpoint.handles import TaskHandle
from aiomailbox.clock import Clock
from aiomailbox.graph.job_graph import JobGraph
from aiomailbox.ids import SubtaskId
from aiomailbox.runtime.attempt_plan import AttemptPlan
from aiomailbox.runtime.config import JobConfig
from aiomailbox.runtime.deployment import new_embedded_job
from aiomailbox.runtime.handover import PullHandover
from aiomailbox.runtime.host import AttemptEvents, EmbeddedHost
from aiomailbox.runtime.master import JobMaster
from aiomailbox.runtime.services import JobServices
from aiomailbox.task.in_flight import TaskStatistics
from aiomailbox.testing.simulation.world import Life

__all__ = ["SimulatedDeployment"]


class SimulatedDeployment:
    """Runs all tasks on the loop that starts the job.

    Args:
        life: The life of the program.

    Attributes:
        job: The job that was deployed last.
    """

    parent_apart = False

    def __init__(self, life: Life) -> None:
        self._life = life
        self.job: JobMaster | None = None

    def deploy(
        self,
        graph: JobGraph,
        config: JobConfig,
        *,
        clock: Clock | None,
        handovers: Mapping[str, PullHandover],
    ) -> JobMaster:
        """Start the job on the running loop and return it."""
        job = new_embedded_job(
            graph, config, clock=clock, handovers=handovers, new_host=self._new_host
        )
        self.job = job
        job.start()
        return job

    def _new_host(
        self, graph: JobGraph, config: JobConfig, services: JobServices
    ) -> EmbeddedHost:
        return _SimulatedHost(graph, config, services, self._life)


class _SimulatedHost(EmbeddedHost):
    """Tells of what tasks have to say, or does not."""

    def __init__(
        self, graph: JobGraph, config: JobConfig, services: JobServices, life: Life
    ) -> None:
        super().__init__(graph, config, services)
        self._life = life

    def deploy(self, plan: AttemptPlan, events: AttemptEvents) -> None:
        """Make the tasks of an attempt."""
        life = self._life
        life.note(f"attempt {plan.number} from checkpoint {plan.restored_id}")
        # The job goes on, whatever became of the savepoint that was to end it.
        life.savepoint = None
        life.world.attempts += 1
        super().deploy(plan, _SimulatedEvents(events, life))
        life.world.light()

    def notify_checkpoint_complete(
        self, tasks: Sequence[SubtaskId], checkpoint_id: int
    ) -> None:
        """Tell tasks that a checkpoint is complete, now or later."""
        life, world = self._life, self._life.world
        if not life.is_alive or not world.chance(world.faults.late_notification):
            super().notify_checkpoint_complete(tasks, checkpoint_id)
            return
        world.take(life.now(), f"late notification of checkpoint {checkpoint_id}")
        asyncio.get_running_loop().call_later(
            world.random.uniform(0, 5),
            self._notify_late,
            world.attempts,
            tasks,
            checkpoint_id,
        )

    def _notify_late(
        self, attempt: int, tasks: Sequence[SubtaskId], checkpoint_id: int
    ) -> None:
        # What was said to an attempt that is over is not said to the next one.
        if self._life.world.attempts == attempt:
            super().notify_checkpoint_complete(tasks, checkpoint_id)


class _SimulatedEvents:
    """Passes on the events of an attempt; acknowledgements late, or never."""

    def __init__(self, events: AttemptEvents, life: Life) -> None:
        self._events = events
        self._life = life

    def __getattr__(self, name: str) -> Any:
        return getattr(self._events, name)

    def on_acknowledged(
        self,
        task: SubtaskId,
        checkpoint_id: int,
        handle: TaskHandle,
        statistics: TaskStatistics,
    ) -> None:
        """Take a task's part of a checkpoint."""
        life, world = self._life, self._life.world
        if not life.is_alive:
            return
        what = f"acknowledgement of checkpoint {checkpoint_id} by task {task}"
        life.note(what)
        tell = self._events.on_acknowledged
        if world.chance(world.faults.lost_acknowledgement):
            world.take(life.now(), f"lost {what}")
        elif world.chance(world.faults.late_acknowledgement):
            world.take(life.now(), f"late {what}")
            asyncio.get_running_loop().call_later(
                world.random.uniform(0, 5),
                tell,
                task,
                checkpoint_id,
                handle,
                statistics,
            )
        else:
            tell(task, checkpoint_id, handle, statistics)
