"""How all mailbox loops of one event loop share its time: the governor.

Theory of operation: all mailbox loops of an event loop together get one slice, whichever
job they belong to, and then the event loop has two turns without them. The first that
works opens the slice and asks the event loop, by `call_soon`, to close it in its next
turn. A task that finds the slice used up is queued. The turn after the one that closes
a slice admits the first of the line, and more of them as long as the admitted ones
leave time over; they work a turn later. So what is ready besides (timers, sockets, tasks
of the program around) waits for one slice, however many jobs there are: a timer that
became due in a slice is called in the first turn after it, and wakes its task in the
second, before the next slice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final
from weakref import WeakKeyDictionary

__all__ = ["LoopGovernor", "governor_of"]

# Loops that are admitted and find no time left cost about 5 us each.
_ADMITTED_MAX: Final = 16


class LoopGovernor:
    """Shares the slices of one event loop among the mailbox loops that run on it.

    Belongs to that event loop: all methods are called while it runs.

    Attributes:
        began: When the slice of this turn of the event loop began, seconds; None before
            a task opens one. An object of its own for each slice.

    Invariants:
        While a slice is open its end is scheduled. While a task is queued, that
        is so or an admission is scheduled.
    """

    __slots__ = ("_admitted", "_is_admitting", "_line", "began")

    def __init__(self) -> None:
        self._line: deque[asyncio.Future[None]] = deque()
        self.began: float | None = None
        self._is_admitting = False
        self._admitted = 1

    def begun(self, now: float) -> float:
        """Return when the slice of this turn of the event loop began, maybe ``now``.

        Args:
            now: The time, in seconds.
        """
        if self.began is None:
            self.began = now
            asyncio.get_running_loop().call_soon(self._close_slice)
        return self.began

    async def next_turn(self, *, first: bool = False) -> None:
        """Wait until the event loop has had its turn and it is the caller's.

        Args:
            first: Whether the caller goes before all other waiters: it was admitted
                and found no time left.
        """
        admission: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if first:
            self._line.appendleft(admission)
        else:
            self._line.append(admission)
            # A slice was used up: as many as the last time would not find room in one.
            self._admitted = max(1, self._admitted // 2)
        if self.began is None:
            self._schedule_admission()
        await admission

    def _close_slice(self) -> None:
        self.began = None
        if self._line:
            self._schedule_admission()
        else:
            self._admitted = min(2 * self._admitted, _ADMITTED_MAX)

    def _schedule_admission(self) -> None:
        if not self._is_admitting:
            self._is_admitting = True
            asyncio.get_running_loop().call_soon(self._admit)

    def _admit(self) -> None:
        self._is_admitting = False
        if self.began is not None:
            # A loop works without having waited; closing that slice leads here again.
            return
        line = self._line
        for _ in range(self._admitted):
            if not line:
                break
            admission = line.popleft()
            # One that was cancelled while it stood in line.
            if not admission.done():
                admission.set_result(None)
        self._admitted = min(2 * self._admitted, _ADMITTED_MAX)
        if line:
            # After the admitted ones: they may all have been cancelled.
            self._schedule_admission()


# A governor knows nothing of its loop, or the loop would never be forgotten.
_governors: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopGovernor] = (
    WeakKeyDictionary()
)


def governor_of(loop: asyncio.AbstractEventLoop) -> LoopGovernor:
    """Return the governor of an event loop, always the same one."""
    governor = _governors.get(loop)
    if governor is None:
        governor = _governors[loop] = LoopGovernor()
    return governor
