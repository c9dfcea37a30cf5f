"""A certificate for one job: its workers show it to each other, and trust no other.

Made by the ``cryptography`` package where it is installed, else by the ``openssl``
program. It is valid as long as the job's secret is: its dates are not looked at.
"""

from __future__ import annotations

import datetime as dt
import shutil
import ssl
import subprocess
from typing import Final

import msgspec

from aiomailbox.errors import UsageError, WorldError, install_command
from aiomailbox.exchange.remote.handshake import Security
from aiomailbox.scratch import ScratchDirectory

_NAME: Final = "aiomailbox"
_DAYS: Final = 365
# OpenSSL's X509_V_FLAG_NO_CHECK_TIME: the clocks of two machines differ.
_NO_CHECK_TIME: Final = 0x200000


class Credentials(msgspec.Struct, frozen=True):
    """A certificate and its private key, in PEM."""

    certificate: bytes
    key: bytes


def new_credentials() -> Credentials:
    """Return a new certificate that signs itself, and its key.

    Raises:
        UsageError: If there is neither ``cryptography`` nor ``openssl``.
        WorldError: If ``openssl`` fails.
    """
    try:
        return _by_cryptography()
    except ImportError:
        pass
    program = shutil.which("openssl")
    if program is None:
        raise UsageError(
            "workers on several machines encrypt their connections, and nothing is "
            f"installed that makes a certificate: {install_command('tls')}, or "
            "install openssl. On a network that you trust, pass run_on(..., "
            "encrypt=False)."
        )
    return _by_openssl(program)


def security_of(secret: bytes, credentials: Credentials | None) -> Security:
    """Return how the workers of a job know each other.

    Args:
        secret: What all of them know.
        credentials: What they show; None for no encryption.
    """
    if credentials is None:
        return Security(secret=secret)
    # The module ssl reads from files only.
    folder = ScratchDirectory()
    try:
        certificate, key = folder.path / "certificate.pem", folder.path / "key.pem"
        certificate.write_bytes(credentials.certificate)
        key.write_bytes(credentials.key)
        security = Security.mutual_tls(
            certificate=certificate,
            key=key,
            authority=certificate,
            secret=secret,
            # Only workers of this job have the certificate: the host need not be checked.
            check_hostname=False,
        )
    finally:
        folder.remove()
    for context in (security.server_context, security.client_context):
        assert context is not None, "mutual TLS has both"
        context.verify_flags |= ssl.VerifyFlags(_NO_CHECK_TIME)
    return security


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
