"""How a connection begins: versions, the job, what is written, and the secret."""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from aiomailbox.errors import HandshakeError
from aiomailbox.exchange.remote.messages import Hello, HelloProof
from aiomailbox.exchange.remote.wire import encode_message

__all__ = ["PROTOCOL_VERSION", "agree", "check_proof", "prove"]

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
    """Return the proof that one knows the secret: it covers both greetings.

    Args:
        secret: Shared, at least 16 bytes.
        mine: What the prover has sent.
        theirs: What the prover was sent.
    """
    # The prover's greeting first, so that a proof cannot be sent back as one's own.
    covered = encode_message(mine) + encode_message(theirs)
    return HelloProof(hmac.digest(secret, covered, hashlib.sha256))


def check_proof(secret: bytes, mine: Hello, theirs: Hello, proof: HelloProof) -> None:
    """Check the peer's proof, in a time that does not depend on it.

    Args:
        secret: Shared, at least 16 bytes.
        mine: What the checking side has sent.
        theirs: What the peer has sent.
        proof: What the peer has proved with.

    Raises:
        HandshakeError: If the peer does not know the secret, or sent
            back our own greeting.
    """
    expected = prove(secret, theirs, mine)
    if mine == theirs or not hmac.compare_digest(expected.proof, proof.proof):
        raise HandshakeError(
            f"worker {theirs.worker!r} did not prove that it knows the secret"
        )
