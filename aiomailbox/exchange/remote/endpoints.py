"""What a connection asks of its two ends: the reader's channel, the producer's view.

Theory of operation: connections know no tasks. On the reader's side a channel hands in a
`Receiver` and gets a `Channel` of its connection back; on the producer's side the
`PartitionRegistry` turns a partition request into a `BytesView`. Everything here is
called on the loop that owns the connection, and returns at once.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, Protocol

from aiomailbox.exchange.remote.wire import PartitionAddress
from aiomailbox.ids import PartitionId, TaskId, VertexId
from aiomailbox.memory.buffer import NetworkBuffer

_PADDED: Final = struct.Struct(">12xI")


class PeerAddress(NamedTuple):
    """Where a worker's data server listens.

    Attributes:
        host: A name or number, or the path of a unix socket.
        port: A TCP port; None for a unix socket.

    Example:
        >>> str(PeerAddress("127.0.0.1", 6121)), str(PeerAddress("/run/w0.sock"))
        ('127.0.0.1:6121', 'unix:/run/w0.sock')
    """

    host: str
    port: int | None = None

    @property
    def is_unix(self) -> bool:
        """Whether it is a unix socket."""
        return self.port is None

    def __str__(self) -> str:
        return f"unix:{self.host}" if self.port is None else f"{self.host}:{self.port}"


class Receiver(Protocol):
    """The reader's end of one channel, as its connection sees it.

    Attributes:
        receiver_id: 16 bytes, unique on the connection.
        is_released: Whether the channel has released it; what still arrives is skipped.
    """

    receiver_id: bytes
    is_released: bool

    def request_buffer(self) -> NetworkBuffer | None:
        """Return a buffer for data that arrives; None if it was sent without credit."""
        ...

    def on_buffer(
        self, buffer: NetworkBuffer, sequence_number: int, backlog: int
    ) -> None:
        """Take a buffer with its content; it is recycled there in any case."""
        ...

    def on_empty_buffer(self, sequence_number: int, backlog: int) -> None:
        """Be notified of a data buffer without content."""
        ...

    def on_sender_backlog(self, backlog: int) -> None:
        """Be notified of how many buffers wait at the producer."""
        ...

    def take_credit(self) -> int:
        """Return the credit to announce now, and count it as announced."""
        ...

    def on_partition_not_found(self) -> None:
        """Be notified that the partition is not there (yet): request it again later."""
        ...

    def fail(self, error: BaseException) -> None:
        """Let the task that reads trip over an error; the first one stays."""
        ...


def partition_address(job_id: bytes, partition_id: PartitionId) -> PartitionAddress:
    """Return a partition's name on the wire; `partition_id_of` is the way back.

    Args:
        job_id: 16 bytes.
        partition_id: The partition.

    Example:
        >>> partition_id = PartitionId(TaskId(VertexId(3), 1, 0), 2)
        >>> address = partition_address(bytes(16), partition_id)
        >>> partition_id_of(address) == partition_id
        True
    """
    task, edge_index = partition_id
    return PartitionAddress(
        _PADDED.pack(edge_index),
        task.subtask_index,
        job_id,
        _PADDED.pack(task.vertex),
        task.subtask_index,
        task.attempt,
    )


def partition_id_of(address: PartitionAddress) -> PartitionId:
    """Return the partition that an address names."""
    (vertex,) = _PADDED.unpack(address.job_vertex_id)
    (edge_index,) = _PADDED.unpack(address.data_set_id)
    task_id = TaskId(VertexId(vertex), address.subtask_index, address.attempt_number)
    return PartitionId(task_id, edge_index)
