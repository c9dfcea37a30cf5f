"""Where a job graph runs: the seam between API and runtimes; and which jobs run nowhere."""

from __future__ import annotations

import asyncio
import random
import secrets
import sys
from collections.abc import Callable, Mapping
from typing import Protocol

from aiomailbox.checkpoint.settings import CheckpointingMode
from aiomailbox.clock import Clock, clock_of
from aiomailbox.errors import InvalidArgumentError
from aiomailbox.graph.describe import unreplayable_sources
from aiomailbox.graph.job_graph import JobGraph
from aiomailbox.graph.regions import (
    check_blocking,
    endless_source,
    has_blocking,
    source_without_watermarks,
)
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


# Which jobs run nowhere.


def check_deployable(graph: JobGraph, config: JobConfig) -> None:
    """Refuse what a job of these settings could not keep, wherever it runs.

    Raises:
        InvalidArgumentError: Then; names the setting.
    """
    _check_replayable(graph, config)
    _check_blocking(graph, config)
    _check_ends(graph, config)
    _check_finished(config)


def _check_replayable(graph: JobGraph, config: JobConfig) -> None:
    """Refuse to promise what a source cannot keep.

    Raises:
        InvalidArgumentError: If each record is to count exactly once, and a source
            cannot give again what it gave.
    """
    settings = config.checkpoints
    if settings is None or settings.mode is not CheckpointingMode.EXACTLY_ONCE:
        return
    for source in unreplayable_sources(graph):
        raise InvalidArgumentError(
            "mode",
            f"it is EXACTLY_ONCE, and source {source!r} cannot replay: the records "
            "that it emitted after the last checkpoint are lost when the job fails",
            "Use a source that resumes from an offset, e.g. "
            "env.from_async_iterable(factory, offset=...), or call "
            "env.enable_checkpointing(..., "
            "mode=am.CheckpointingMode.AT_LEAST_ONCE).",
        )


def _check_blocking(graph: JobGraph, config: JobConfig) -> None:
    """Refuse exchanges that would wait for ever, and checkpoints of what waits.

    Raises:
        InvalidArgumentError: If there is such an exchange, or one that blocks in a job
            that takes checkpoints.
    """
    blocking = [
        edge
        for vertex in graph.vertices
        for edge in vertex.out_edges
        if edge.is_blocking
    ]
    if not blocking:
        return
    check_blocking(graph)
    if config.checkpoints is not None or config.restore_from is not None:
        raise InvalidArgumentError(
            "blocking",
            f"the operators after {blocking[0].source.name!r} read their records from "
            "files when it has finished, and a checkpoint needs all tasks to run at the "
            "same time",
            "Leave env.enable_checkpointing(...) and restore_from= out: with a "
            "restart strategy, a task that fails after a blocking exchange reads "
            "its files again. Or leave blocking() out.",
        )


def _check_ends(graph: JobGraph, config: JobConfig) -> None:
    """Look at operators that wait for the end of their input.

    Raises:
        InvalidArgumentError: If one keeps what no checkpoint has, in a job that takes
            checkpoints.
    """
    for node in graph.nodes:
        item = node.transformation
        if item.emits_at_end and (endless := endless_source(node)):
            library_log().warning(
                "an operator emits when its input has ended, and a source never ends",
                operator=node.name,
                source=endless,
                remedy="use windows, a bounded source, or job.stop(drain=True)",
            )
        if item.waits_for_watermarks and (still := source_without_watermarks(node)):
            library_log().warning(
                "an operator emits nothing, as event time never moves",
                operator=node.name,
                line=item.line,
                without_watermarks=still,
                remedy="give that one a strategy with watermarks, as "
                "am.WatermarkStrategy.for_monotonous_timestamps(), or use windows of "
                "processing time",
            )
        has_checkpoints = config.checkpoints is not None or config.restore_from
        if item.no_checkpoints and has_checkpoints:
            raise InvalidArgumentError(
                "checkpoints",
                f"{item.no_checkpoints} (operator {node.name!r})",
                "Leave env.enable_checkpointing(...) and restore_from= out.",
            )


def _check_finished(config: JobConfig) -> None:
    """Refuse to promise what nothing remembers.

    Raises:
        InvalidArgumentError: If it matters whether the job has finished before, and that
            is written nowhere.
    """
    if config.if_finished != "run" and not config.is_resumable:
        raise InvalidArgumentError(
            "if_finished",
            f"it is {config.if_finished!r}, and whether a job has finished is written "
            "beside its checkpoints",
            "Give checkpoints a directory: "
            "env.enable_checkpointing(interval, directory=...).",
        )
