"""Puts the parent's part of a job together."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from aiomailbox.clock import SystemClock
from aiomailbox.exchange import PartitionRegistry
from aiomailbox.metrics import MetricGroup
from aiomailbox.runtime.handover import PullHandover
from aiomailbox.runtime.limiter import LimiterService
from aiomailbox.runtime.master import JobMaster
from aiomailbox.runtime.peers.alignment import ParentAlignmentGroups
from aiomailbox.runtime.peers.host import PeersHost
from aiomailbox.runtime.peers.messages import AlignmentLimit
from aiomailbox.runtime.peers.network import new_pool
from aiomailbox.runtime.peers.placement import PARENT
from aiomailbox.runtime.peers.shipping import Shipment, pack
from aiomailbox.runtime.processes.worker_process import WorkerProcess
from aiomailbox.runtime.services import JobServices

__all__ = ["assemble"]


def assemble(shipment: Shipment, handovers: Mapping[str, PullHandover]) -> JobMaster:
    """Return a job that has not started; no process is there yet.

    Raises:
        NotShippableError: If an operator cannot be pickled; names it and what of it.
    """
    # Its import takes longer than that of everything else, where rich is installed.
    import structlog

    shipment, payload, limits = pack(shipment)
    graph, clock = shipment.graph, SystemClock()

    def broadcast(limit: AlignmentLimit) -> None:
        host.broadcast(limit)

    services = JobServices(
        execution_id=shipment.job_id.hex(),
        clock=clock,
        seed=shipment.seed,
        log=structlog.get_logger("aiomailbox").bind(job=graph.name),
        metrics=MetricGroup(graph.name),
        pool=new_pool(shipment, PARENT),
        registry=PartitionRegistry(),
        limiters=LimiterService(clock),
        handovers=dict(handovers),
        alignments=ParentAlignmentGroups(broadcast),
    )
    new_worker = partial(
        WorkerProcess, heartbeat_timeout_s=shipment.config.heartbeat_timeout_s
    )
    host = PeersHost(shipment, payload, limits, services, new_worker)
    return JobMaster(graph, shipment.config, services, host)
