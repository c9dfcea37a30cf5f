"""Noticing a peer whose machine has gone without a word."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Final

__all__ = ["keep_alive"]

# Seconds of silence before the first probe, seconds between probes, and how many may
# stay unanswered; and, since there are no probes while something sent is not confirmed,
# the milliseconds for that: a dead machine is noticed within two minutes.
_PROBES: Final = (
    ("TCP_KEEPIDLE", 60),
    ("TCP_KEEPINTVL", 15),
    ("TCP_KEEPCNT", 4),
    ("TCP_USER_TIMEOUT", 120_000),
)


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Let the kernel notice that a TCP connection is dead; nothing to do for others."""
    connected = transport.get_extra_info("socket")
    if connected is None or connected.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    # Of a connection that was reset meanwhile, some systems refuse to be told anything.
    with suppress(OSError):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _PROBES:
            option = getattr(socket, name, None)
            if option is not None:
                connected.setsockopt(socket.IPPROTO_TCP, option, value)
