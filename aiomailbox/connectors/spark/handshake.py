"""Only peers that know the pipeline's secret talk to a driver or a director.

Both sides prove it, each to the other's random number, and the secret itself is never
sent. It encrypts nothing: that is TLS's.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import ssl
from typing import Final

from aiomailbox.errors import HandshakeError

__all__ = ["HANDSHAKE_S", "IDENTITY_BYTES", "admit", "connect_as"]

IDENTITY_BYTES: Final = 16
HANDSHAKE_S: Final = 10.0
_NONCE_BYTES: Final = 16
_PROOF_BYTES: Final = 32


async def connect_as(
    identity: bytes,
    secret: bytes,
    host: str,
    port: int,
    context: ssl.SSLContext | None = None,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect with a listener, and prove who this is.

    Args:
        identity: 16 bytes that say who this is.
        secret: What both know.
        host: Where the listener is.
        port: Its port.
        context: Encrypts; None for no encryption.

    Raises:
        HandshakeError: If the listener does not know the secret.
        OSError: If it cannot be reached.
        EOFError: If it refused.
    """
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        await _introduce(reader, writer, secret, identity)
    except BaseException:
        writer.close()
        raise
    return reader, writer


async def admit(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes
) -> bytes | None:
    """Let the connecting peer prove that it knows the secret.

    Returns:
        Its identity, 16 bytes; None for a stranger.

    Raises:
        EOFError: If it went away.
    """
    ours = os.urandom(_NONCE_BYTES)
    writer.write(ours)
    content = await reader.readexactly(IDENTITY_BYTES + _NONCE_BYTES + _PROOF_BYTES)
    identity, theirs = content[:IDENTITY_BYTES], content[IDENTITY_BYTES:-_PROOF_BYTES]
    expected = _proof(secret, b"worker", identity + ours + theirs)
    if not hmac.compare_digest(content[-_PROOF_BYTES:], expected):
        return None
    writer.write(_proof(secret, b"driver", identity + theirs + ours))
    return identity


async def _introduce(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    secret: bytes,
    identity: bytes,
) -> None:
    theirs = await reader.readexactly(_NONCE_BYTES)
    ours = os.urandom(_NONCE_BYTES)
    writer.write(identity + ours + _proof(secret, b"worker", identity + theirs + ours))
    answer = await reader.readexactly(_PROOF_BYTES)
    expected = _proof(secret, b"driver", identity + ours + theirs)
    if not hmac.compare_digest(answer, expected):
        raise HandshakeError(
            "the process that answers does not know the secret of the pipeline"
        )


def _proof(secret: bytes, role: bytes, content: bytes) -> bytes:
    return hmac.digest(secret, role + content, "sha256")
