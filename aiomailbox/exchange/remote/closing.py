"""Waiting for connections to be gone, but not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from aiomailbox.exchange.remote.connection import Connection

__all__ = ["close_all"]


async def close_all(connections: Iterable[Connection], linger: float) -> None:
    """Wait until connections that were ended are gone; hurry them after a while.

    Args:
        connections: Which.
        linger: Seconds to wait for what was written.
    """
    waiting = {connection.closed: connection for connection in connections}
    if not waiting:
        return
    _, pending = await asyncio.wait(waiting, timeout=linger)
    for closed in pending:
        waiting[closed].abort()
    if pending:
        await asyncio.wait(pending)
