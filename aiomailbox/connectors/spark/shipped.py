"""Functions of ours for Spark's workers, which may not have what these need."""

from __future__ import annotations

import asyncio
import hmac
import os
import pickle  # noqa: TID251 -- from the driver to its workers
import ssl
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from aiomailbox.errors import HandshakeError


def shipped(
    work: Callable[[Any, Iterator[Any]], Iterator[Any]], part: Any
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a function of batches for ``mapInArrow``.

    A worker that cannot run it says what it has, and what it should have.

    Args:
        work: The function of ours that does the work, given ``part`` and an iterator of
            batches.
        part: What it gets.
    """
    # By its name: Spark would send a function as code, with all that it refers to.
    module, name = work.__module__, work.__name__
    packed = pickle.dumps(part)
    python = sys.version_info[:2]
    ours = msgspec.__version__

    # Nested, and with nothing of ours in it, so that a worker without us can say so.
    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import importlib
        import pickle  # noqa: TID251 -- not the module's: nothing of it is sent
        import sys

        found = sys.version_info[:2]
        if found != python:
            raise RuntimeError(
                f"this Spark worker runs Python {found[0]}.{found[1]}, and the pipeline "
                f"comes from Python {python[0]}.{python[1]}: its functions are sent as "
                "code of that version. Set PYSPARK_PYTHON, or spark.pyspark.python, to "
                "a Python of that version on the executors."
            )
        try:
            import msgspec

            theirs = msgspec.__version__
        except ImportError as error:
            raise RuntimeError(
                f"this Spark worker has no msgspec that its Python can import: install "
                f"msgspec=={ours} on the executors; it is compiled, so it cannot be sent "
                f"there. ({error})"
            ) from error
        if theirs.split(".")[:2] != ours.split(".")[:2]:
            raise RuntimeError(
                f"this Spark worker has msgspec {theirs}, and the pipeline comes from "
                f"msgspec {ours}: install msgspec=={ours} on the executors."
            )
        try:
            there = getattr(importlib.import_module(module), name)
            part = pickle.loads(packed)
        except ImportError as error:
            raise RuntimeError(
                "this Spark worker cannot import what the pipeline needs: install "
                "aiomailbox[spark] on the executors, or send it there first with "
                f"aiomailbox.connectors.spark.ship_library(spark). ({error})"
            ) from error
        yield from there(part, batches)

    return run


# Only peers that know the pipeline's secret talk to a driver or a director.
#
# Both sides prove it, each to the other's random number, and the secret itself is never
# sent. It encrypts nothing: that is TLS's.


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
