"""What the two ends of a connection say to each other.

Identifiers are 16 bytes. Messages of the first group go from the reader of data to its
producer, those of the second the other way, and those of the third open a connection.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from aiomailbox.memory.data_type import DataType

__all__ = [
    "PARTITION_NOT_FOUND",
    "AckAllUserRecordsProcessed",
    "AddCredit",
    "BacklogAnnouncement",
    "BufferResponse",
    "CancelPartitionRequest",
    "CloseRequest",
    "ErrorResponse",
    "Hello",
    "HelloProof",
    "Message",
    "NewBufferSize",
    "PartitionAddress",
    "PartitionRequest",
    "RemoteCause",
    "ResumeConsumption",
    "SegmentId",
]


# The kind of a cause that says: not there (yet), request it again later.
PARTITION_NOT_FOUND: Final = "PartitionNotFoundError"


class PartitionAddress(NamedTuple):
    """Which attempt's output is asked for.

    Concept:
        Flink, ``ResultPartitionID``.
    """

    data_set_id: bytes
    partition_number: int
    execution_graph_id: bytes
    job_vertex_id: bytes
    subtask_index: int
    attempt_number: int


class PartitionRequest(NamedTuple):
    """Send me these subpartitions; I have room for so many buffers."""

    partition: PartitionAddress
    subpartition_first: int
    subpartition_last: int
    receiver: bytes
    credit: int


class AddCredit(NamedTuple):
    """I have room for so many buffers more."""

    credit: int
    receiver: bytes


class ResumeConsumption(NamedTuple):
    """Go on after the event that blocks."""

    receiver: bytes


class AckAllUserRecordsProcessed(NamedTuple):
    """All records before the end of data were processed."""

    receiver: bytes


class NewBufferSize(NamedTuple):
    """Buffers should have so many bytes."""

    size_bytes: int
    receiver: bytes


class SegmentId(NamedTuple):
    """Send this segment of tiered storage next."""

    subpartition: int
    segment: int
    receiver: bytes


class CancelPartitionRequest(NamedTuple):
    """Send me nothing more."""

    receiver: bytes


class CloseRequest(NamedTuple):
    """I close the connection."""


class BufferResponse(NamedTuple):
    """The header of a buffer; ``size_bytes`` of its content follow."""

    receiver: bytes
    subpartition: int
    sequence_number: int
    backlog: int
    data_type: DataType
    compressed: bool
    size_bytes: int


class BacklogAnnouncement(NamedTuple):
    """So many buffers wait for credit."""

    backlog: int
    receiver: bytes


class RemoteCause(NamedTuple):
    """A peer's exception as text: nothing of it is ever executed here."""

    kind: str
    text: str
    traceback: str = ""


class ErrorResponse(NamedTuple):
    """One channel failed; without a receiver, everything did."""

    cause: RemoteCause
    receiver: bytes | None = None


class Hello(NamedTuple):
    """The first message of each side.

    Attributes:
        version_min: The oldest version of the protocol that is spoken.
        version_max: The newest.
        job_id: Both sides have to be of one job.
        worker: The sender's name, for messages to people.
        nonce: 16 random bytes, for a proof to be fresh.
        codec_digest: 16 bytes: both sides have to read what the other one writes.
    """

    version_min: int
    version_max: int
    job_id: bytes
    worker: str
    nonce: bytes
    codec_digest: bytes


class HelloProof(NamedTuple):
    """The second message of each side: the secret is known, 32 bytes prove it."""

    proof: bytes


Message = (
    PartitionRequest
    | AddCredit
    | ResumeConsumption
    | AckAllUserRecordsProcessed
    | NewBufferSize
    | SegmentId
    | CancelPartitionRequest
    | CloseRequest
    | BufferResponse
    | BacklogAnnouncement
    | ErrorResponse
    | Hello
    | HelloProof
)
