"""One process' part in the exchange between the processes of a job."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from aiomailbox.clock import SystemClock
from aiomailbox.exchange.blocking.partition import BlockingResultPartition
from aiomailbox.exchange.core.contract import BUFFER_SIZE_BYTES, OutputPartition
from aiomailbox.exchange.gate import InputChannel, InputGate
from aiomailbox.exchange.partition import ResultPartition
from aiomailbox.exchange.remote.channel import (
    DebloatingGate,
    GateBuffers,
    RemoteInputChannel,
)
from aiomailbox.exchange.remote.client import Connections
from aiomailbox.exchange.remote.handshake import PeerAddress, WorkerIdentity
from aiomailbox.exchange.remote.server import DataServer
from aiomailbox.graph.job_graph import Edge, JobGraph
from aiomailbox.ids import PartitionId, TaskId
from aiomailbox.logs import silenced
from aiomailbox.memory.buffer import DEFAULT_SEGMENT_SIZE_BYTES
from aiomailbox.memory.debloat import DebloatOptions
from aiomailbox.memory.local_pool import LocalBufferPool, NetworkBufferPool
from aiomailbox.metrics.instruments import MetricGroup
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.runtime.builder import ChannelFactory, pool_size, producer_targets
from aiomailbox.runtime.config import JobConfig
from aiomailbox.runtime.peers.placement import PARENT, PeerPlace, Placement
from aiomailbox.runtime.peers.record_types import (
    element_codec,
    serializer_and_forms,
)
from aiomailbox.runtime.peers.shipping import Shipment
from aiomailbox.runtime.services import JobServices

# What a buffer of objects may hold as well. Each costs the same, whatever is in it, so
# that those of 32 KiB make records of 1 KiB cost twice as much; fewer float instead.
_SEGMENT_BYTES: Final = BUFFER_SIZE_BYTES
_FLOATING_SHARE: Final = _SEGMENT_BYTES // DEFAULT_SEGMENT_SIZE_BYTES
# A buffer costs Python more than it costs Flink, whose least has 256 bytes.
_DEBLOATED_BYTES_MIN: Final = 1024
_DIGEST_BYTES: Final = 16


class PeerNetwork:
    """The data server, the connections and the codecs of one process.

    It is the `Wiring` of that process' tasks.

    Args:
        shipment: The job.
        peer: This process; `PARENT` or a worker.
        services: What the tasks here share.
        place: Where it runs.

    Attributes:
        codec_digest: Equal in all processes that read and write records alike.
    """

    def __init__(
        self, shipment: Shipment, peer: int, services: JobServices, place: PeerPlace
    ) -> None:
        self._peer = peer
        self._graph = shipment.graph
        self._placement = shipment.placement
        self._config = shipment.config
        self._services = services
        self._place = place
        self._addresses: list[PeerAddress] = []
        name = "parent" if peer == PARENT else str(peer)
        self.codec_digest: bytes
        self._codec, self.codec_digest = _codec_and_digest(shipment)
        identity = WorkerIdentity(shipment.job_id, name, self.codec_digest)
        security = place.security
        options = place.options._replace(segment_bytes_max=_SEGMENT_BYTES)
        log = silenced(services.log, _is_of_every_job)
        self._server = DataServer(
            identity,
            services.registry,
            security=security,
            options=options,
            log=log,
        )
        self._connections = Connections(
            identity, security=security, options=options, log=log
        )

    async def listen(self) -> PeerAddress:
        """Listen for remote readers, and return where.

        Raises:
            OSError: If there can be no socket.
        """
        return await self._server.listen(self._place.listen_at)

    def know(self, addresses: list[tuple[str, int | None]]) -> None:
        """Learn where all peers listen, in the order of their numbers."""
        self._addresses = [PeerAddress(host, port) for host, port in addresses]

    async def connect(self) -> None:
        """Connect with all peers that send data here, before any of it is requested.

        Raises:
            TransportError: If one cannot be reached, or does not let this process in.
        """
        peers = producers_of(self._graph, self._placement, self._peer)
        await self._connections.open([self._addresses[peer] for peer in peers])

    async def close(self) -> None:
        """Close everything. Idempotent."""
        await self._connections.close()
        await self._server.close()

    def is_here(self, task: TaskId) -> bool:
        """Say whether a task runs in this process."""
        return self._placement.peer_of(task) == self._peer

    def new_partition(
        self,
        edge: Edge,
        partition_id: PartitionId,
        pool: LocalBufferPool,
        count: int,
        remote_channels: list[int],
    ) -> OutputPartition:
        """Return a partition with channels to other processes."""
        return ResultPartition(
            partition_id,
            pool,
            count,
            remote_channels=remote_channels,
            codec=self._codec,
            buffer_size_bytes=self._config.buffer_size_bytes,
            frame_bytes_wished=_SEGMENT_BYTES,
        )

    def new_blocking_partition(
        self, edge: Edge, partition_id: PartitionId, pool: LocalBufferPool, count: int
    ) -> OutputPartition:
        """Return a partition that is read when it is complete."""
        return BlockingResultPartition(
            partition_id,
            pool,
            count,
            codec=self._codec,
            directory=self._place.directory(""),
        )

    def open_gate(self, owner: str, remote_channels: int) -> ChannelFactory:
        """Return what makes a gate's channels from other processes."""
        buffers = GateBuffers(
            self._services.pool,
            remote_channels,
            exclusive_per_channel=self._config.buffers_per_channel,
            floating=_floating(self._config),
            owner=owner,
        )

        def new_channel(
            edge: Edge, partition_id: PartitionId, index: int
        ) -> InputChannel:
            return RemoteInputChannel(
                self._connections,
                self._addresses[self._placement.peer_of(partition_id.producer)],
                partition_id,
                index,
                buffers,
                self._codec,
                spill_directory=self._place.directory(""),
                is_kept=edge.is_blocking,
            )

        return new_channel

    def new_gate(self, channels: list[InputChannel], name: str) -> InputGate:
        """Return a gate of channels, some of them from other processes."""
        if not self._config.buffer_debloat:
            return InputGate(channels, name=name)
        options = DebloatOptions(
            target_ms=self._config.buffer_debloat_target_ms,
            size_bytes_min=_DEBLOATED_BYTES_MIN,
            size_bytes_max=_SEGMENT_BYTES,
        )
        return DebloatingGate(channels, options, name=name)


def segments_at(shipment: Shipment, peer: int) -> int:
    """Return the permits that let every partition and gate here have its maximum."""
    config, placement = shipment.config, shipment.placement
    total = 1
    for vertex in shipment.graph.vertices:
        for edge in vertex.out_edges:
            consumer = shipment.graph.vertex_of(edge.target).id
            for index, targets in enumerate(producer_targets(edge)):
                is_here = placement.is_at(peer, vertex.id, index)
                if is_here:
                    size = pool_size(len(targets), config)
                    total += size.maximum + config.overdraft_buffers
                else:
                    # What comes from there to readers here.
                    readers = sum(
                        placement.is_at(peer, consumer, target) for target in targets
                    )
                    total += readers * (config.buffers_per_channel + _floating(config))
    return total


def producers_of(graph: JobGraph, placement: Placement, peer: int) -> list[int]:
    """Return the other peers whose subtasks send data to subtasks of a peer."""
    found: set[int] = set()
    for vertex in graph.vertices:
        for edge in vertex.out_edges:
            consumer = graph.vertex_of(edge.target).id
            for index, targets in enumerate(producer_targets(edge)):
                if any(placement.is_at(peer, consumer, target) for target in targets):
                    found.add(placement.peers[vertex.id][index])
    return sorted(found - {peer})


def shared_services(shipment: Shipment, peer: int, **own: Any) -> JobServices:
    """Return what the tasks of one process share."""
    config, name = shipment.config, shipment.graph.name
    codec = None
    if config.has_data_in_flight:
        codec = element_codec(shipment.record_types, has_arrow=shipment.has_arrow)
    return JobServices(
        job_name=name,
        execution_id=shipment.job_id.hex(),
        clock=SystemClock(),
        seed=shipment.seed,
        metrics=MetricGroup(name),
        pool=NetworkBufferPool(
            segments_at(shipment, peer), segment_size_bytes=_SEGMENT_BYTES
        ),
        job_id=config.job_id or name,
        commits_at_checkpoints=config.checkpoints is not None,
        is_resumable=config.is_resumable,
        codec=codec,
        **own,
    )


def _floating(config: JobConfig) -> int:
    """Return how many segments float towards a gate."""
    return max(1, config.floating_buffers // _FLOATING_SHARE)


def _is_of_every_job(method: str, fields: Mapping[str, Any]) -> bool:
    """Say whether a line is neither an error nor about a refused connection.

    Connections come and go with every job, and its tasks are notified of how one ends.
    """
    return method != "error" and fields.get("was_open") is not False


def _codec_and_digest(shipment: Shipment) -> tuple[ElementCodec, bytes]:
    """Return the codec of all edges, and 16 bytes that are equal where it is the same."""
    serializer, forms = serializer_and_forms(
        shipment.record_types, has_arrow=shipment.has_arrow
    )
    tags = sorted(form.tag for form in forms)
    described = repr((serializer.serializer_id, serializer.schema_version, tags))
    digest = hashlib.blake2b(described.encode(), digest_size=_DIGEST_BYTES).digest()
    return ElementCodec(serializer, forms=forms), digest
