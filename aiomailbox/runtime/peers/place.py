"""Where a peer of a job runs, as its starter says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aiomailbox.exchange.remote.connection import ConnectionOptions
from aiomailbox.exchange.remote.endpoints import PeerAddress
from aiomailbox.exchange.remote.handshake import Security

__all__ = ["PeerPlace"]


@dataclass(frozen=True, slots=True)
class PeerPlace:
    """What a peer needs to know of the place it runs at.

    Attributes:
        listen_at: Where other peers ask it for data; port 0 takes a free one.
        security: What peers prove themselves with.
        options: Limits and timeouts of the connections between peers.
        directory: Returns the job's directory below a place for files, "" for that of
            temporary files.
    """

    listen_at: PeerAddress
    security: Security
    options: ConnectionOptions
    directory: Callable[[str], str]
