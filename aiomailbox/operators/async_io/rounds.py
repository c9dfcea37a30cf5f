"""Work that is done in rounds: one at a time, each for all that came since the last."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

__all__ = ["Rounds"]


class Rounds:
    """Does something again and again, as often as it is asked for.

    Args:
        work: One round.

    Attributes:
        pause_s: From the beginning of one round to that of the next, unless an urgent
            one is requested.
    """

    __slots__ = ("_is_urgent", "_is_wanted", "_next_s", "_waiter", "_work", "pause_s")

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work
        self.pause_s: float = 0.0
        self._next_s = 0.0
        self._is_wanted = False
        self._is_urgent = False
        self._waiter: asyncio.Future[None] | None = None

    def request(self, *, is_urgent: bool = False) -> None:
        """Ask for a round that begins after this, soon or at once."""
        self._is_wanted = True
        self._is_urgent |= is_urgent
        self._wake()

    async def run(self) -> None:
        """Do rounds, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            while not self._is_wanted:
                self._waiter = loop.create_future()
                await self._waiter
            while not self._is_urgent and loop.time() < self._next_s:
                await self._sleep_until(self._next_s)
            self._next_s = loop.time() + self.pause_s
            self._is_wanted = self._is_urgent = False
            await self._work()

    async def _sleep_until(self, time_s: float) -> None:
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        timer = loop.call_at(time_s, self._wake)
        try:
            await waiter
        finally:
            timer.cancel()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
