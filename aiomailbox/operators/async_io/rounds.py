"""Work that is done in rounds: one at a time, each for all that came since the last."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

__all__ = ["Rounds"]


class Rounds:
    """Does something again and again, as often as it is asked for.

    Args:
        work: One round.
        pause_s: From the beginning of one round to that of the next, at least.
    """

    __slots__ = ("_is_wanted", "_next_s", "_pause_s", "_waiter", "_work")

    def __init__(
        self, work: Callable[[], Awaitable[None]], *, pause_s: float = 0.0
    ) -> None:
        self._work = work
        self._pause_s = pause_s
        self._next_s = 0.0
        self._is_wanted = False
        self._waiter: asyncio.Future[None] | None = None

    def request(self) -> None:
        """Ask for a round that begins after this."""
        self._is_wanted = True
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def run(self) -> None:
        """Do rounds, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            if not self._is_wanted:
                self._waiter = loop.create_future()
                await self._waiter
            delay_s = self._next_s - loop.time()
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            self._next_s = loop.time() + self._pause_s
            self._is_wanted = False
            await self._work()
