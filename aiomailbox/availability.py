"""The latch that says when waiting is over.

Theory of operation: availability is a plain attribute that hot paths read, plus
one-shot callbacks that run synchronously when it turns true. Nothing waits on a
shared future: each waiter gets one of its own, so cancelling one affects no other.
"Available" is a hint that holds until the next change of state; a waiter that resumes
looks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Availability:
    """A hint that waiting would be over, with callbacks for the moment it becomes so.

    Loop-local: all methods belong to the loop's thread.

    Invariants:
        Callbacks are pending only while ``available`` is False; each runs once.

    Concept:
        Flink, ``AvailabilityProvider.AvailabilityHelper``.

    Example:
        >>> ready = Availability()
        >>> ready.on_available(lambda: print("go"))
        >>> ready.set_available()
        go
        >>> ready.available
        True
    """

    __slots__ = ("_callbacks", "available")

    def __init__(self, *, available: bool = False) -> None:
        self.available: bool = available
        self._callbacks: list[Callable[[], None]] = []

    def set_available(self) -> None:
        """Turn the hint true and run every pending callback once, in order."""
        # Before the callbacks run: one that resets the latch again has the last word.
        self.available = True
        if self._callbacks:
            # Swapped out first: a callback may reset the latch and register anew, and
            # must not run twice in this round.
            callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                callback()

    def reset(self) -> None:
        """Turn the hint false; callbacks registered from now on wait."""
        self.available = False

    def on_available(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` once: now if available, else when it becomes so."""
        if self.available:
            callback()
        else:
            self._callbacks.append(callback)

    def discard(self, callback: Callable[[], None]) -> None:
        """Forget a pending callback; a no-op if it has run or was never given."""
        if callback in self._callbacks:
            self._callbacks.remove(callback)

    def waiter(self) -> asyncio.Future[None]:
        """Return a fresh future that completes when available.

        Cancelling it affects no other waiter.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def complete() -> None:
            if not future.done():
                future.set_result(None)

        self.on_available(complete)
        # Only a future that waits leaves a callback behind; without this a quiet source
        # would collect one for each waiter that was cancelled (FLINK-25728).
        if not future.done():
            future.add_done_callback(lambda _: self.discard(complete))
        return future

    async def wait(self) -> None:
        """Suspend until available; returns at once if it is."""
        # A loop: another task may have used it up between the wake and this task's
        # turn.
        while not self.available:
            await self.waiter()


def when_all_available(
    sources: list[Availability], callback: Callable[[], None]
) -> None:
    """Run ``callback`` once, when each of ``sources`` has been seen available.

    The callback must look again: an early source may have changed back meanwhile.
    """
    pending = [source for source in sources if not source.available]
    if not pending:
        callback()
        return
    # On one source at a time: callbacks on all of them would pile up on the quiet ones.
    pending[0].on_available(lambda: when_all_available(pending[1:], callback))
