"""The order of greetings and proofs: bytes and sockets are not its part.

Theory of operation: the connecting peer greets first, and is answered only if it belongs
to the job. With a secret it also proves first: a stranger never sees a proof of ours
to guess the secret by.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from aiomailbox.errors import HandshakeError
from aiomailbox.exchange.remote.hello import (
    PROTOCOL_VERSION,
    agree,
    check_proof,
    prove,
)
from aiomailbox.exchange.remote.messages import Hello, HelloProof, Message

__all__ = ["Handshake", "WorkerIdentity"]


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

    __slots__ = (
        "_connects",
        "_identity",
        "_mine",
        "_new_nonce",
        "_secret",
        "_theirs",
        "is_complete",
        "version",
    )

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
        self.version: int = 0

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
        self.version = agree(self._mine, theirs)
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
