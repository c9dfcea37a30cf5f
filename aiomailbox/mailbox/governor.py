"""How all mailbox loops of one event loop share its time: the governor.

Theory of operation: all mailbox loops of an event loop together get one slice per turn
of it, whichever job they belong to. The first that works in a turn opens the slice and
asks the event loop, by `call_soon`, to close it in its next turn. Whoever finds the
slice used up stands in line; each turn admits the first of the line, and more of them
as long as those who were admitted leave time over. So what is ready besides (timers,
sockets, tasks of the program around) waits for one slice, however many jobs there are.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final
from weakref import WeakKeyDictionary

__all__ = ["LoopGovernor", "governor_of"]

# Those who are admitted and find no time left cost about 5 us each.
_ADMITTED_MAX: Final = 16


class LoopGovernor:
    """Shares the slices of one event loop among the mailbox loops that run on it.

    Belongs to that event loop: all methods are called while it runs.

    Invariants:
        While somebody stands in line or a slice is open, the end of the turn is
        scheduled. The first who is admitted in a turn finds a slice that is not open.
    """

    __slots__ = ("_admitted", "_began", "_is_scheduled", "_line")

    def __init__(self) -> None:
        self._line: deque[asyncio.Future[None]] = deque()
        self._began: float | None = None
        self._is_scheduled = False
        self._admitted = 1

    def begun(self, now: float) -> float:
        """Return when the slice of this turn of the event loop began, maybe ``now``.

        Args:
            now: The time, in seconds.
        """
        if self._began is None:
            self._began = now
            self._schedule_end_of_turn()
        return self._began

    async def next_turn(self, *, first: bool = False) -> None:
        """Wait until the event loop has had its turn and it is the caller's.

        Args:
            first: Whether the caller goes before all others who wait: it was admitted
                and found no time left.
        """
        admission: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if first:
            self._line.appendleft(admission)
        else:
            self._line.append(admission)
            self._admitted = max(1, self._admitted // 2)
        self._schedule_end_of_turn()
        await admission

    def _schedule_end_of_turn(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._on_turn)

    def _on_turn(self) -> None:
        self._is_scheduled = False
        self._began = None
        line = self._line
        if not line:
            self._admitted = min(2 * self._admitted, _ADMITTED_MAX)
            return
        # Scheduled before anybody is admitted, and so it runs before they do: they
        # find that the slice of the turn before is closed.
        self._schedule_end_of_turn()
        for _ in range(self._admitted):
            if not line:
                break
            admission = line.popleft()
            # One that was cancelled while it stood in line.
            if not admission.done():
                admission.set_result(None)
        self._admitted = min(2 * self._admitted, _ADMITTED_MAX)


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
