"""Where a job graph runs: the seam between the API and the runtimes."""

from __future__ import annotations

import asyncio
import random
import secrets
import sys
from collections.abc import Callable, Mapping
from typing import Protocol

from aiomailbox.clock import Clock, clock_of
from aiomailbox.graph.job_graph import JobGraph
from aiomailbox.graph.regions import has_blocking
from aiomailbox.logs import library_log
from aiomailbox.memory.local_pool import NetworkBufferPool
from aiomailbox.metrics.instruments import MetricGroup
from aiomailbox.runtime.builder import total_segments
from aiomailbox.runtime.config import JobConfig
from aiomailbox.runtime.declared import state_classes
from aiomailbox.runtime.host import EmbeddedHost, Host
from aiomailbox.runtime.limiter import LimiterService, limits_of
from aiomailbox.runtime.master import JobMaster
from aiomailbox.runtime.peers.record_types import element_codec
from aiomailbox.runtime.services import JobServices, PullHandover


class Deployment(Protocol):
    """Runs job graphs somewhere.

    Attributes:
        parent_apart: Whether operators that need the process that starts the job must
            not share a task with others.
    """

    @property
    def parent_apart(self) -> bool:
        """Whether operators that need this process get tasks of their own."""

    def deploy(
        self,
        graph: JobGraph,
        config: JobConfig,
        *,
        clock: Clock | None,
        handovers: Mapping[str, PullHandover],
    ) -> JobMaster:
        """Start the job and return it; needs a running loop."""


class Embedded:
    """Runs all tasks of a job on the loop that starts it: the default."""

    parent_apart = False

    def deploy(
        self,
        graph: JobGraph,
        config: JobConfig,
        *,
        clock: Clock | None,
        handovers: Mapping[str, PullHandover],
    ) -> JobMaster:
        """Start the job on the running loop and return it."""
        job = new_embedded_job(graph, config, clock=clock, handovers=handovers)
        job.start()
        return job


def new_embedded_job(
    graph: JobGraph,
    config: JobConfig,
    *,
    clock: Clock | None,
    handovers: Mapping[str, PullHandover],
    new_host: Callable[[JobGraph, JobConfig, JobServices], Host] = EmbeddedHost,
) -> JobMaster:
    """Return a job for the running loop that has not started."""
    loop = asyncio.get_running_loop()
    used_clock = clock or clock_of(loop)
    seed = config.seed
    # Needed as soon as records leave the loop as bytes, to a file or into a checkpoint.
    is_encoded = config.has_data_in_flight or has_blocking(graph)
    needs_classes = config.needs_state_classes or is_encoded
    classes = state_classes(graph, config.state_names) if needs_classes else ()
    services = JobServices(
        job_name=graph.name,
        execution_id=secrets.token_hex(16),
        clock=used_clock,
        seed=random.SystemRandom().getrandbits(32) if seed is None else seed,
        log=library_log(job=graph.name),
        metrics=MetricGroup(graph.name),
        pool=NetworkBufferPool(total_segments(graph, config)),
        limiters=LimiterService(used_clock, limits_of(graph)),
        handovers=dict(handovers),
        job_id=config.job_id or graph.name,
        state_backend=config.state_backend,
        commits_at_checkpoints=config.checkpoints is not None,
        is_resumable=config.is_resumable,
        state_classes=classes,
        codec=(
            element_codec(classes, has_arrow="pyarrow" in sys.modules)
            if is_encoded
            else None
        ),
    )
    for item, tag in graph.unread_side_outputs:
        services.log.warning(
            "records of a side output are dropped, as no operator reads it",
            side_output=tag.id,
            operator=item.name,
            remedy="read it with get_side_output(tag) of the stream that the operator "
            "returns",
        )
    return JobMaster(graph, config, services, new_host(graph, config, services))
