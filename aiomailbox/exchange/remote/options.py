"""The limits of connections, and where they write what happened to them."""

from __future__ import annotations

from typing import NamedTuple

from aiomailbox.memory.segment import DEFAULT_SEGMENT_SIZE_BYTES

__all__ = ["ConnectionOptions"]


class ConnectionOptions(NamedTuple):
    """Limits of connections; durations in seconds.

    Attributes:
        segment_bytes_max: A data buffer of more bytes is refused.
        handshake_timeout: How long a connected peer may take to greet and to
            authenticate; time in which the server's loop was held is no part of it.
        strangers_max: How many connections a server holds that have not done so.
        stall_timeout: How long a peer may read nothing at all of what it is sent, or
            its machine confirm nothing.
        linger: How long a closing connection may take to send what it has written.
        receivers_max: How many channels may share a connection.
        connections_max: How many connections of peers a server holds.
        connect_timeout: After which no further attempt to connect and to be let in is
            made.
        connect_backoff: Between the first two attempts; doubles.
        connect_backoff_max: Where it ends.
    """

    segment_bytes_max: int = DEFAULT_SEGMENT_SIZE_BYTES
    handshake_timeout: float = 10.0
    strangers_max: int = 32
    stall_timeout: float = 120.0
    linger: float = 2.0
    receivers_max: int = 16_384
    connections_max: int = 1_024
    connect_timeout: float = 30.0
    connect_backoff: float = 0.05
    connect_backoff_max: float = 2.0
