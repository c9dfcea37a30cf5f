"""Noticing a peer whose machine has gone without a word."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

__all__ = ["keep_alive"]

# Seconds of silence before the first probe, seconds between probes, and how many may
# stay unanswered: a dead machine is noticed within two minutes.
_PROBES: Final = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Let the kernel probe an idle TCP connection; nothing to do for others."""
    connected = transport.get_extra_info("socket")
    if connected is None or connected.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PROBES:
        option = getattr(socket, name, None)
        if option is not None:
            connected.setsockopt(socket.IPPROTO_TCP, option, value)
