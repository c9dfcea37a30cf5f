"""Functions of ours for Spark's workers, which may not have what these need."""

from __future__ import annotations

import asyncio
import datetime as dt
import hmac
import os
import pickle  # noqa: TID251 -- from the driver to its workers
import shutil
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from aiomailbox.connectors.spark.packing import (
    NO_CHECK_TIME,
    NONCE_BYTES,
    PROOF_BYTES,
)
from aiomailbox.errors import HandshakeError, UsageError, WorldError, install_command
from aiomailbox.exchange.remote.handshake import Security
from aiomailbox.exchange.remote.wire import FRAME_HEADER
from aiomailbox.runtime.peers.messages import body_bytes
from aiomailbox.scratch import ScratchDirectory

MessageT = TypeVar("MessageT")


def shipped(
    work: Callable[[Any, Iterator[Any]], Iterator[Any]], part: Any
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a function of batches for ``mapInArrow``.

    A worker that cannot run it says what it has, and what it should have.
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
                "this Spark worker cannot import a module of the pipeline: install "
                "aiomailbox[spark] on the executors, or send it there first with "
                f"aiomailbox.connectors.spark.ship_library(spark). ({error})"
            ) from error
        import pyarrow as pa

        # Its first array imports pandas, for a third of a second: not on a loop.
        pa.array([])
        yield from there(part, batches)

    return run


# Only peers that know the pipeline's secret talk to a driver or a director.
#
# Both sides prove it, each to the other's random number, and the secret itself is never
# sent. It encrypts nothing: that is TLS's.


IDENTITY_BYTES: Final = 16
HANDSHAKE_S: Final = 10.0


async def connect_as(
    identity: bytes,
    secret: bytes,
    host: str,
    port: int,
    context: ssl.SSLContext | None = None,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect with a listener, and prove who this is."""
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
    """Let a peer prove that it knows the secret; say who it is, None for a stranger."""
    ours = os.urandom(NONCE_BYTES)
    writer.write(ours)
    content = await reader.readexactly(IDENTITY_BYTES + NONCE_BYTES + PROOF_BYTES)
    identity, theirs = content[:IDENTITY_BYTES], content[IDENTITY_BYTES:-PROOF_BYTES]
    expected = proof_of(secret, b"worker", identity + ours + theirs)
    if not hmac.compare_digest(content[-PROOF_BYTES:], expected):
        return None
    writer.write(proof_of(secret, b"driver", identity + theirs + ours))
    return identity


async def read_message(
    reader: asyncio.StreamReader,
    decode: Callable[[bytes], tuple[int, MessageT]],
    bytes_max: int,
) -> MessageT:
    """Return the next message between a parent and its workers; see `encode`."""
    header = await reader.readexactly(FRAME_HEADER.size)
    _, message = decode(await reader.readexactly(body_bytes(header, bytes_max)))
    return message


async def _introduce(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    secret: bytes,
    identity: bytes,
) -> None:
    theirs = await reader.readexactly(NONCE_BYTES)
    ours = os.urandom(NONCE_BYTES)
    writer.write(
        identity + ours + proof_of(secret, b"worker", identity + theirs + ours)
    )
    answer = await reader.readexactly(PROOF_BYTES)
    expected = proof_of(secret, b"driver", identity + ours + theirs)
    if not hmac.compare_digest(answer, expected):
        raise HandshakeError(
            "the process that answers does not know the secret of the pipeline"
        )


def proof_of(secret: bytes, role: bytes, content: bytes) -> bytes:
    """Return what shows that a side, which its role names, knows a secret."""
    return hmac.digest(secret, role + content, "sha256")


# A certificate for one job: its workers show it to each other, and trust no other.
#
# Made by the ``cryptography`` package where it is installed, else by the ``openssl``
# program. It is valid as long as the job's secret is: its dates are not looked at.


_NAME: Final = "aiomailbox"
_DAYS: Final = 365


class Credentials(msgspec.Struct, frozen=True):
    """A certificate and its private key, in PEM."""

    certificate: bytes
    key: bytes


def new_credentials() -> Credentials:
    """Return a new certificate that signs itself, and its key."""
    try:
        return _by_cryptography()
    except ImportError:
        pass
    program = shutil.which("openssl")
    if program is None:
        raise UsageError(
            "connections between machines are encrypted, and nothing is installed that "
            f"makes a certificate: {install_command('tls')}, or install openssl. On a "
            "network that you trust, pass encrypt=False."
        )
    return _by_openssl(program)


def security_of(secret: bytes, credentials: Credentials | None) -> Security:
    """Return how the workers of a job know each other."""
    if credentials is None:
        return Security(secret=secret)
    with _in_files(credentials) as (certificate, key):
        security = Security.mutual_tls(
            certificate=certificate,
            key=key,
            authority=certificate,
            secret=secret,
            # Only workers of this job have the certificate: the host need not be checked.
            check_hostname=False,
        )
    for context in (security.server_context, security.client_context):
        assert context is not None, "mutual TLS has both"
        context.verify_flags |= ssl.VerifyFlags(NO_CHECK_TIME)
    return security


def listener_context(credentials: Credentials) -> ssl.SSLContext:
    """Return what a listener encrypts with; who connects proves itself otherwise."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Nobody comes back.
    context.num_tickets = 0
    with _in_files(credentials) as files:
        context.load_cert_chain(*files)
    return context


@contextmanager
def _in_files(credentials: Credentials) -> Iterator[tuple[Path, Path]]:
    """Give the files of a certificate and its key: the module ssl reads no others."""
    folder = ScratchDirectory()
    try:
        certificate, key = folder.path / "certificate.pem", folder.path / "key.pem"
        certificate.write_bytes(credentials.certificate)
        key.write_bytes(credentials.key)
        yield certificate, key
    finally:
        folder.remove()


def _by_cryptography() -> Credentials:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _NAME)])
    # Its dates are not looked at, but it has to have some.
    begin = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + dt.timedelta(days=_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    return Credentials(
        certificate.public_bytes(encoding),
        key.private_bytes(
            encoding,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def _by_openssl(program: str) -> Credentials:
    folder = ScratchDirectory()
    certificate, key = folder.path / "certificate.pem", folder.path / "key.pem"
    try:
        _run(
            [program, "req", "-x509", "-newkey", "ec"],
            ["-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"],
            ["-days", str(_DAYS), "-subj", f"/CN={_NAME}"],
            ["-keyout", str(key), "-out", str(certificate)],
        )
        return Credentials(certificate.read_bytes(), key.read_bytes())
    finally:
        folder.remove()


def _run(*parts: list[str]) -> None:
    command = [word for part in parts for word in part]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WorldError(f"openssl could not make a certificate: {done.stderr.strip()}")
