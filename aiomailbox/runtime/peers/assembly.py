"""Puts the parent's part of a job together."""

from __future__ import annotations

import random
import secrets
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from aiomailbox.clock import SystemClock
from aiomailbox.exchange.input.gate import PartitionRegistry
from aiomailbox.graph.job_graph import JobGraph
from aiomailbox.logs import library_log
from aiomailbox.metrics.instruments import MetricGroup
from aiomailbox.runtime.config import JobConfig
from aiomailbox.runtime.handover import PullHandover
from aiomailbox.runtime.limiter import LimiterService, limits_of
from aiomailbox.runtime.master import JobMaster
from aiomailbox.runtime.peers.alignment import ParentAlignmentGroups
from aiomailbox.runtime.peers.codecs import element_codec
from aiomailbox.runtime.peers.host import PeersHost
from aiomailbox.runtime.peers.messages import AlignmentLimit
from aiomailbox.runtime.peers.network import new_pool
from aiomailbox.runtime.peers.placement import PARENT, place
from aiomailbox.runtime.peers.shipping import Shipment, pack
from aiomailbox.runtime.peers.workers import Starter
from aiomailbox.runtime.services import JobServices

__all__ = ["assemble"]


def assemble(
    graph: JobGraph,
    config: JobConfig,
    workers: int,
    starter: Starter,
    handovers: Mapping[str, PullHandover],
    state_classes: Sequence[Any] = (),
) -> JobMaster:
    """Return a job that has not started; no worker is there yet.

    Args:
        graph: The job.
        config: Its settings.
        workers: At most so many; none is without a subtask.
        starter: Starts them.
        handovers: Where results are pulled, by name.
        state_classes: The classes that the job's state may hold.

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
    clock = SystemClock()

    def broadcast(limit: AlignmentLimit) -> None:
        host.broadcast(limit)

    services = JobServices(
        execution_id=shipment.job_id.hex(),
        clock=clock,
        seed=shipment.seed,
        log=library_log(job=graph.name),
        metrics=MetricGroup(graph.name),
        pool=new_pool(shipment, PARENT),
        registry=PartitionRegistry(),
        limiters=LimiterService(clock, limits_of(graph)),
        handovers=dict(handovers),
        alignments=ParentAlignmentGroups(broadcast),
        job_id=config.job_id or graph.name,
        commits_at_checkpoints=config.checkpoints is not None,
        is_resumable=config.is_resumable,
        state_classes=state_classes,
        codec=(
            element_codec(shipment.record_types, has_arrow=shipment.has_arrow)
            if config.has_data_in_flight
            else None
        ),
    )
    host = PeersHost(shipment, payload, limits, services, starter)
    return JobMaster(graph, config, services, host)
