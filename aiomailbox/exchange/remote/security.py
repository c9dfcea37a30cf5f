"""How peers are authenticated: a shared secret, mutual TLS, or only this machine."""

from __future__ import annotations

import ipaddress
import os
import ssl
from dataclasses import dataclass, field
from typing import Final

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.exchange.remote.endpoints import PeerAddress

__all__ = ["SECRET_BYTES_MIN", "Security", "check_listener"]

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

        Args:
            certificate: PEM file with this worker's certificate and its chain.
            key: PEM file with the certificate's private key.
            authority: PEM file with the authority that signed all workers'.
            secret: To be proved as well.
            check_hostname: Whether a server's certificate has to name the host, or the
                number, that is connected to.

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

    Args:
        address: Where a worker is to listen.
        security: Its settings.

    Raises:
        InvalidArgumentError: If the address is neither a unix socket nor of this
            machine alone, and there is neither a secret nor TLS.

    Example:
        >>> check_listener(PeerAddress("127.0.0.1", 0), Security())
        >>> check_listener(PeerAddress("0.0.0.0", 0), Security())
        Traceback (most recent call last):
        aiomailbox.errors.InvalidArgumentError: address: 0.0.0.0:0 can be reached ...
    """
    if address.is_unix or security.guards or _is_loopback(address.host):
        return
    raise InvalidArgumentError(
        "address",
        f"{address} can be reached from other machines, and nothing asks who connects",
        "Give a secret or mutual TLS, or listen on 127.0.0.1 or on a unix socket.",
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
