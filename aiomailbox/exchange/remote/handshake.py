"""How a connection begins: its ends say who they are, and check who may connect.

Theory of operation: the connecting peer greets first, and is answered only if it belongs
to the job. With a secret it also proves first: a stranger never sees a proof of ours
to guess the secret by.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from aiomailbox.errors import HandshakeError, InvalidArgumentError
from aiomailbox.exchange.remote.wire import (
    Hello,
    HelloProof,
    Message,
    PartitionAddress,
    encode_message,
)
from aiomailbox.ids import PartitionId, TaskId, VertexId
from aiomailbox.memory.buffer import NetworkBuffer

# What a connection asks of its two ends: the reader's channel, the producer's view.
#
# Theory of operation: connections know no tasks. On the reader's side a channel hands in a
# `Receiver` and gets a `Channel` of its connection back; on the producer's side the
# `PartitionRegistry` turns a partition request into a `BytesView`. Everything here is
# called on the loop that owns the connection, and returns at once.


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

    def on_buffer(
        self, buffer: NetworkBuffer, sequence_number: int, backlog: int
    ) -> None:
        """Take a buffer with its content; it is recycled there in any case."""

    def on_empty_buffer(self, sequence_number: int, backlog: int) -> None:
        """Be notified of a data buffer without content."""

    def on_sender_backlog(self, backlog: int) -> None:
        """Be notified of how many buffers wait at the producer."""

    def take_credit(self) -> int:
        """Return the credit to announce now, and count it as announced."""

    def on_partition_not_found(self) -> None:
        """Be notified that the partition is not there (yet): request it again later."""

    def fail(self, error: BaseException) -> None:
        """Let the task that reads trip over an error; the first one stays."""


def partition_address(job_id: bytes, partition_id: PartitionId) -> PartitionAddress:
    """Return a partition's name on the wire; `partition_id_of` is the way back.

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


# How a connection begins: versions, the job, what is written, and the secret.


PROTOCOL_VERSION: Final = 1


def agree(mine: Hello, theirs: Hello) -> int:
    """Return the version of the protocol that both sides speak, the newest.

    Raises:
        HandshakeError: If they have none in common, are of different
            jobs, or do not write records alike; says which.

    Example:
        >>> ids = {"job_id": bytes(16), "nonce": bytes(16), "codec_digest": bytes(16)}
        >>> agree(
        ...     Hello(1, 3, worker="a", **ids),
        ...     Hello(2, 2, worker="b", **ids),
        ... )
        2
    """
    version = min(mine.version_max, theirs.version_max)
    if version < max(mine.version_min, theirs.version_min):
        raise HandshakeError(
            f"worker {theirs.worker!r} speaks versions {theirs.version_min} to "
            f"{theirs.version_max} of the protocol, worker {mine.worker!r} "
            f"{mine.version_min} to {mine.version_max}: run the same release on both"
        )
    if mine.job_id != theirs.job_id:
        raise HandshakeError(
            f"worker {theirs.worker!r} belongs to job {theirs.job_id.hex()}, worker "
            f"{mine.worker!r} to job {mine.job_id.hex()}"
        )
    if mine.codec_digest != theirs.codec_digest:
        raise HandshakeError(
            f"workers {theirs.worker!r} and {mine.worker!r} serialize records "
            "differently: their code or their job graphs differ"
        )
    return version


def prove(secret: bytes, mine: Hello, theirs: Hello) -> HelloProof:
    """Return the proof that one knows the secret: it covers both greetings."""
    # The prover's greeting first, so that a proof cannot be sent back as one's own.
    covered = encode_message(mine) + encode_message(theirs)
    return HelloProof(hmac.digest(secret, covered, hashlib.sha256))


def check_proof(secret: bytes, mine: Hello, theirs: Hello, proof: HelloProof) -> None:
    """Check the peer's proof, in a time that does not depend on it.

    Raises:
        HandshakeError: If the peer does not know the secret, or sent
            back our own greeting.
    """
    expected = prove(secret, theirs, mine)
    if mine == theirs or not hmac.compare_digest(expected.proof, proof.proof):
        raise HandshakeError(
            f"worker {theirs.worker!r} did not prove that it knows the secret"
        )


class WorkerIdentity(NamedTuple):
    """The identity of a worker.

    Attributes:
        job_id: 16 bytes, the same on all workers of the job.
        worker: Its name, for people.
        codec_digest: 16 bytes; equal where records are written alike.
    """

    job_id: bytes
    worker: str
    codec_digest: bytes = bytes(16)


class Handshake:
    """One side of the beginning of a connection.

    Args:
        identity: This side's identity.
        secret: What both sides have to know; None if nothing is to be proved.
        connects: Whether this side has made the connection.
        new_nonce: Gives 16 bytes that cannot be predicted.

    Attributes:
        is_complete: Whether everything else may be said.
        version: What both speak, once it is complete.
        peer: The other side's name, once it is known.

    Example:
        >>> identity = WorkerIdentity(bytes(16), "w0")
        >>> client = Handshake(identity, None, connects=True)
        >>> server = Handshake(identity, None, connects=False)
        >>> answers = server.on_message(*client.start())
        >>> client.on_message(*answers), client.is_complete, server.is_complete
        ([], True, True)
    """

    def __init__(
        self,
        identity: WorkerIdentity,
        secret: bytes | None,
        *,
        connects: bool,
        new_nonce: Callable[[], bytes] = lambda: os.urandom(16),
    ) -> None:
        self._identity = identity
        self._secret = secret
        self._connects = connects
        self._new_nonce = new_nonce
        self._mine = Hello(
            PROTOCOL_VERSION,
            PROTOCOL_VERSION,
            identity.job_id,
            identity.worker,
            new_nonce(),
            identity.codec_digest,
        )
        self._theirs: Hello | None = None
        self.is_complete: bool = False

    @property
    def peer(self) -> str | None:
        """The other side's name, as it says; None before it has said so."""
        return None if self._theirs is None else self._theirs.worker

    def again(self) -> Handshake:
        """Return another one for the same side, from the beginning."""
        return Handshake(
            self._identity,
            self._secret,
            connects=self._connects,
            new_nonce=self._new_nonce,
        )

    def start(self) -> list[Message]:
        """Return what is to be sent at once."""
        return [self._mine] if self._connects else []

    def on_message(self, message: Message) -> list[Message]:
        """Take what the peer has sent, and return what is to be sent then.

        Raises:
            HandshakeError: If it is not what comes next, or not what it has to be.
        """
        if self._theirs is None and isinstance(message, Hello):
            return self._on_hello(message)
        if (
            self._theirs is not None
            and self._secret is not None
            and isinstance(message, HelloProof)
        ):
            return self._on_proof(self._secret, self._theirs, message)
        expected = "HelloProof" if self._theirs is not None else "Hello"
        raise HandshakeError(
            f"the peer has sent {type(message).__name__} where {expected} has to come"
        )

    def _on_hello(self, theirs: Hello) -> list[Message]:
        agree(self._mine, theirs)
        self._theirs = theirs
        self.is_complete = self._secret is None
        # The accepting peer answers only now, when the job was named.
        if not self._connects:
            return [self._mine]
        if self._secret is None:
            return []
        return [prove(self._secret, self._mine, theirs)]

    def _on_proof(
        self, secret: bytes, theirs: Hello, proof: HelloProof
    ) -> list[Message]:
        check_proof(secret, self._mine, theirs, proof)
        self.is_complete = True
        # The connecting peer proves first: a stranger gets no proof to work on.
        return [] if self._connects else [prove(secret, self._mine, theirs)]


# How peers are authenticated: a shared secret, mutual TLS, or only this machine.


SECRET_BYTES_MIN: Final = 16
StrPath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Security:
    """How the workers of a job know each other; the same on all of them.

    A secret authenticates both sides, and encrypts nothing. TLS encrypts, and both
    sides show a certificate. With both, both have to be right. A unix socket is guarded
    by the permissions of its file and never encrypted.

    Args:
        secret: At least 16 bytes that only the job's workers know.
        server_context: For TLS connections that are accepted; demands certificates.
        client_context: For TLS connections that are made; verifies certificates.

    Raises:
        InvalidArgumentError: If the secret is short, or TLS would leave out a side.

    Example:
        >>> Security(secret=bytes(range(32)))
        Security(secret and no TLS)
    """

    secret: bytes | None = field(default=None, repr=False)
    server_context: ssl.SSLContext | None = field(default=None, repr=False)
    client_context: ssl.SSLContext | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.secret is not None and len(self.secret) < SECRET_BYTES_MIN:
            raise InvalidArgumentError(
                "secret",
                f"it has {len(self.secret)} bytes",
                f"Take at least {SECRET_BYTES_MIN}, as secrets.token_bytes(32) gives.",
            )
        if (self.server_context is None) != (self.client_context is None):
            raise InvalidArgumentError(
                "server_context",
                "only one of server_context and client_context is given",
                "A worker both accepts and makes connections: give both.",
            )
        for name in ("server_context", "client_context"):
            context: ssl.SSLContext | None = getattr(self, name)
            if context is not None and context.verify_mode is not ssl.CERT_REQUIRED:
                raise InvalidArgumentError(
                    name,
                    "it does not demand a certificate of the other side",
                    "Set its verify_mode to ssl.CERT_REQUIRED.",
                )

    def __repr__(self) -> str:
        secret = "secret" if self.secret is not None else "no secret"
        return f"Security({secret} and {'mutual' if self.has_tls else 'no'} TLS)"

    @property
    def has_tls(self) -> bool:
        """Whether TCP connections are encrypted and both sides verified."""
        return self.server_context is not None

    @property
    def guards(self) -> bool:
        """Whether strangers are kept out without the help of the network."""
        return self.secret is not None or self.has_tls

    @classmethod
    def mutual_tls(
        cls,
        *,
        certificate: StrPath,
        key: StrPath,
        authority: StrPath,
        secret: bytes | None = None,
        check_hostname: bool = True,
    ) -> Security:
        """Return settings for TLS 1.3 where both sides show a certificate.

        Raises:
            OSError: If a file cannot be read.
            ssl.SSLError: If a file holds something else.
        """
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname = check_hostname
        for context in (server, client):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_cert_chain(certificate, key)
            context.load_verify_locations(authority)
        return cls(secret, server, client)


def check_listener(address: PeerAddress, security: Security) -> None:
    """Check that no peer can connect from another machine without authentication.

    Raises:
        InvalidArgumentError: If the address is neither a unix socket nor of this
            machine alone, and there is neither a secret nor TLS.

    Example:
        >>> check_listener(PeerAddress("127.0.0.1", 0), Security())
        >>> check_listener(PeerAddress("0.0.0.0", 0), Security())
        Traceback (most recent call last):
        aiomailbox.errors.InvalidArgumentError: address: 0.0.0.0:0 can be reached ...
    """
    if address.is_unix or security.guards or is_loopback(address.host):
        return
    raise InvalidArgumentError(
        "address",
        f"{address} can be reached from other machines, and peers are not authenticated",
        "Give a secret or mutual TLS, or listen on 127.0.0.1 or on a unix socket.",
    )


def is_loopback(host: str) -> bool:
    """Say whether an address is of this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
