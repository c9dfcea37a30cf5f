"""Workers of one attempt know each other, and nobody else gets in."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aiomailbox.connectors.spark import shipped
from aiomailbox.connectors.spark.inside.member import (
    MARKER,
    Arrivals,
    BarrierPart,
    _check_place,
    identity_of,
)
from aiomailbox.connectors.spark.inside.partitions import Wrapping
from aiomailbox.connectors.spark.shipped import (
    Credentials,
    connect_as,
    new_credentials,
    security_of,
)
from aiomailbox.errors import HandshakeError, UsageError, WorldError
from aiomailbox.exchange.remote.connection import ConnectionOptions
from aiomailbox.exchange.remote.handshake import PeerAddress, Security
from aiomailbox.runtime.peers.placement import PeerPlace

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(240)]

SECRET = bytes(range(32))


def by_openssl() -> Credentials:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("there is no openssl")
    return shipped._by_openssl(program)


MAKERS: dict[str, Callable[[], Credentials | None]] = {
    "nothing": lambda: None,
    "cryptography": shipped._by_cryptography,
    "openssl": by_openssl,
}


def place(security: Security) -> PeerPlace:
    return PeerPlace(PeerAddress("127.0.0.1", 0), security, ConnectionOptions(), str)


async def arrive(security: Security, port: int, peer: int, secret: bytes) -> Any:
    _, writer = await connect_as(
        identity_of(peer), secret, "127.0.0.1", port, security.client_context
    )
    return writer


@pytest.mark.parametrize("maker", MAKERS)
async def test_workers_get_in_with_the_secret_and_strangers_do_not(maker: str) -> None:
    made = MAKERS[maker]()
    security = security_of(SECRET, made)
    assert security.has_tls == (made is not None)
    arrivals = Arrivals(place(security), workers=2)
    bound = socket.create_server(("127.0.0.1", 0))
    await arrivals.listen(bound)
    port = bound.getsockname()[1]
    try:
        mine = await arrive(security, port, 2, SECRET)
        theirs = await arrivals.wait(2)
        for peer, secret in (
            (1, secrets.token_bytes(32)),
            (0, SECRET),
            (3, SECRET),
            (2, SECRET),
        ):
            try:
                writer = await arrive(security, port, peer, secret)
            except (OSError, EOFError, HandshakeError):
                continue
            # It knew the secret, and there is no place for it: it is sent away.
            with pytest.raises((OSError, EOFError)):
                while True:
                    await asyncio.sleep(0.01)
                    writer.write(b"x")
                    await writer.drain()
                    if writer.is_closing():
                        raise EOFError
            writer.close()
        mine.close()
        theirs.close()
    finally:
        arrivals.close()


async def test_who_has_another_certificate_does_not_get_in() -> None:
    ours = security_of(SECRET, new_credentials())
    other = security_of(SECRET, new_credentials())
    arrivals = Arrivals(place(ours), workers=1)
    bound = socket.create_server(("127.0.0.1", 0))
    await arrivals.listen(bound)
    try:
        with pytest.raises((OSError, EOFError)):
            await arrive(other, bound.getsockname()[1], 1, SECRET)
    finally:
        arrivals.close()


def test_without_anything_that_makes_certificates_the_user_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing() -> Credentials:
        raise ImportError

    monkeypatch.setattr(shipped, "_by_cryptography", missing)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UsageError, match="encrypt=False"):
        new_credentials()


def part_of(place: Path, epoch: int) -> BarrierPart:
    return BarrierPart(
        b"", [], 1, Wrapping(None, 1, "check"), SECRET, None, str(place), epoch
    )


def test_an_older_attempt_and_an_executor_without_the_storage_are_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(WorldError, match="does not see"):
        _check_place(part_of(tmp_path, 0))
    (tmp_path / MARKER).write_text("3")
    _check_place(part_of(tmp_path, 3))
    with pytest.raises(WorldError, match="attempt 2 is over"):
        _check_place(part_of(tmp_path, 2))
