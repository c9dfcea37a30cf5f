"""Several processes of one machine as the place where a job runs."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Mapping
from typing import Literal

from aiomailbox.clock import Clock, SystemClock, clock_of
from aiomailbox.errors import InvalidArgumentError, MissingExtraError
from aiomailbox.graph.job_graph import JobGraph
from aiomailbox.policies.arguments import check_count
from aiomailbox.runtime.config import JobConfig
from aiomailbox.runtime.handover import PullHandover
from aiomailbox.runtime.master import JobMaster

__all__ = ["Processes"]


class Processes:
    """Runs a job in worker processes of this machine, to use more than one core.

    Subtask i of every operator is in one process; records that others need go there
    over unix sockets that only the user can reach. Functions are sent with cloudpickle,
    so it does not matter where they are defined, and no worker imports the program.

    What belongs to the process that starts the job stays there: a `SparkSource`,
    asynchronous iterables and generators, functions as sinks, results that are pulled.

    Args:
        count: Worker processes at most; no more are started than there are subtasks.
        transport: ``"unix"`` sockets, or ``"tcp"`` of this machine alone.

    Raises:
        InvalidArgumentError: If ``count`` is below 1, or ``transport`` unknown.
        WrongTypeError: If ``count`` is not an int.
        MissingExtraError: If cloudpickle is not installed.

    Concept:
        Flink, a local cluster: task managers, slots and slot sharing.

    Example:
        >>> import aiomailbox as am
        >>> env = am.StreamExecutionEnvironment(parallelism=2)
        >>> env.deployment = am.Processes(2)
        >>> total = env.from_collection(range(1000)).map(lambda n: n * n)
        >>> sum(am.run(total.collect()))
        332833500
    """

    parent_apart = True

    def __init__(
        self, count: int, *, transport: Literal["unix", "tcp"] = "unix"
    ) -> None:
        self.count: int = check_count(count, "count")
        if transport not in {"unix", "tcp"}:
            raise InvalidArgumentError(
                "transport", f"{transport!r} is unknown", 'Use "unix" or "tcp".'
            )
        self.transport: Literal["unix", "tcp"] = transport
        if importlib.util.find_spec("cloudpickle") is None:
            raise MissingExtraError("Processes", "processes")

    def __repr__(self) -> str:
        return f"Processes({self.count}, transport={self.transport!r})"

    def deploy(
        self,
        graph: JobGraph,
        config: JobConfig,
        *,
        clock: Clock | None,
        handovers: Mapping[str, PullHandover],
    ) -> JobMaster:
        """Start the job and return it; needs a running loop.

        Raises:
            InvalidArgumentError: If the job has a clock of its own.
            NotShippableError: If an operator cannot be pickled; names it and what of it.
        """
        # What only such jobs need is looked up when there is one.
        from aiomailbox.runtime.declared import state_classes
        from aiomailbox.runtime.peers.assembly import assemble
        from aiomailbox.runtime.processes.starter import ProcessStarter

        used_clock = clock or clock_of(asyncio.get_running_loop())
        if not isinstance(used_clock, SystemClock):
            raise InvalidArgumentError(
                "clock",
                f"{type(used_clock).__name__} ticks in this process only, and "
                "Processes runs the job in several",
                "Leave the clock and the virtual-time loop out, or run the job in one "
                "process.",
            )
        starter = ProcessStarter(config, self.transport)
        classes = (
            state_classes(graph, config.state_names)
            if config.needs_state_classes
            else ()
        )
        job = assemble(graph, config, self.count, starter, handovers, classes)
        job.start()
        return job
