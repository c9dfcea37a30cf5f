"""Noticing a peer whose machine has gone without a word."""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import suppress
from typing import Final

__all__ = ["keep_alive", "means_gone"]

# Seconds of silence before the first probe, seconds between probes, and how many may
# stay unanswered: a dead machine is noticed within two minutes.
_PROBES: Final = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
# Of these, some are no ConnectionError.
_GONE: Final = frozenset(
    {errno.ECONNRESET, errno.EPIPE, errno.ETIMEDOUT, errno.EHOSTUNREACH}
)


def keep_alive(transport: asyncio.BaseTransport, stall_timeout: float) -> None:
    """Let the kernel notice that a TCP connection is dead; nothing to do for others.

    Args:
        transport: Its transport.
        stall_timeout: Seconds that something sent may stay unconfirmed; it is not
            probed for meanwhile.
    """
    connected = transport.get_extra_info("socket")
    if connected is None or connected.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    # Of a connection that was reset meanwhile, some systems refuse any option.
    with suppress(OSError):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        unconfirmed_ms = max(1, round(1000 * stall_timeout))
        for name, value in (*_PROBES, ("TCP_USER_TIMEOUT", unconfirmed_ms)):
            option = getattr(socket, name, None)
            if option is not None:
                connected.setsockopt(socket.IPPROTO_TCP, option, value)


def means_gone(error: Exception) -> bool:
    """Say whether a connection was lost with its peer, and not by our own trouble."""
    if isinstance(error, ConnectionError):
        return True
    return isinstance(error, OSError) and error.errno in _GONE
