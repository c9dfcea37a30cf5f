"""How long a mailbox loop may keep its event loop: the slice.

Theory of operation: without suspending, no timer, socket or sibling task of the event
loop runs. A slice is shared by all mailbox loops of an event loop, see
`aiomailbox.mailbox.governor`; it ends by time, or by the number of turns where time
stands still (a virtual clock). The clock is read every ``stride`` turns, and the
stride follows from how long turns took, so that a loop of tiny actions does not pay
for it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiomailbox.clock import Clock, clock_of
from aiomailbox.mailbox.governor import LoopGovernor, governor_of

__all__ = ["LoopClock", "SliceBudget", "SliceWatch"]

# Releasing the loop costs about 8 us: under 10 ns per turn at this many.
_TURNS_MAX: Final = 1024
# Bounds what one slice can overrun when actions suddenly become slow.
_STRIDE_MAX: Final = 16


class LoopClock:
    """A clock that is found at its first reading, on the loop it is read on.

    Args:
        clock: The clock to use; None for that of the running event loop.
    """

    __slots__ = ("_clock",)

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock

    def now_ms(self) -> int:
        """Return wall-clock time, integer milliseconds since the epoch."""
        return self._found().now_ms()

    def monotonic(self) -> float:
        """Return a time that never goes back, in seconds."""
        return self._found().monotonic()

    def _found(self) -> Clock:
        if self._clock is None:
            self._clock = clock_of(asyncio.get_running_loop())
        return self._clock


class SliceBudget:
    """The slice of one mailbox loop, shared with the others on its event loop.

    Args:
        clock: Read for durations only.
        slice_ms: How long a slice lasts, in milliseconds.

    Attributes:
        stride: How many turns to spend before asking `is_over` again.

    Invariants:
        ``1 <= stride <= 16``.
    """

    __slots__ = ("_clock", "_governor", "_slice_s", "_started", "_turns", "stride")

    def __init__(self, clock: Clock, slice_ms: float) -> None:
        self._clock = clock
        self._governor: LoopGovernor | None = None
        self._slice_s = slice_ms / 1000
        self._turns = 0
        self._started = 0.0
        self.stride: int = 1

    def restart(self) -> None:
        """Begin to work on the running event loop, after a wait or a turn of it.

        Another may have used up the slice of this turn: then `is_over` says so.
        """
        if self._governor is None:
            self._governor = governor_of(asyncio.get_running_loop())
        self._turns = 0
        self._started = now = self._clock.monotonic()
        self._governor.begun(now)

    async def begin(self) -> None:
        """Begin to work after a wait, once there is time left for it."""
        self.restart()
        if self.is_over(0):
            await self.yield_to_loop()

    def is_over(self, turns: int = 1) -> bool:
        """Spend ``turns`` and say whether the slice is used up.

        It is also if what is left is less than half of a turn: those of a task are often
        nearly as long as a slice, and the second one would make two of it.
        """
        self._turns += turns
        if self._turns >= _TURNS_MAX:
            return True
        governor = self._governor
        if governor is None:
            self.restart()
            return False
        now = self._clock.monotonic()
        began = governor.begun(now)
        left_s = self._slice_s - (now - began)
        # What was waited for before this slice is no turn.
        spent_s = now - max(began, self._started)
        # Before the first turn nothing is known of them.
        return left_s <= 0 or 0 < 2 * self._turns * left_s <= spent_s

    @property
    def is_spent_on_nothing(self) -> bool:
        """Whether a slice had as many turns as it may, in less than its time."""
        elapsed_s = self._clock.monotonic() - self._started
        return self._turns >= _TURNS_MAX and elapsed_s < self._slice_s

    async def yield_to_loop(self) -> None:
        """Let the event loop run everything that is ready, and begin a new slice."""
        self._fit_stride(self._clock.monotonic() - self._started)
        governor = self._governor or governor_of(asyncio.get_running_loop())
        # A call_later that has become due is queued behind us by the first turn of
        # the event loop and runs in the second, which is the one that we work in.
        await governor.next_turn()
        self.restart()
        while self.is_over(0):
            await governor.next_turn(first=True)
            self.restart()

    def now_on_loop(self) -> tuple[float, LoopGovernor]:
        """Return the time, in seconds, and the governor; a slice is open then."""
        governor = self._governor
        if governor is None:
            governor = self._governor = governor_of(asyncio.get_running_loop())
        now = self._clock.monotonic()
        governor.begun(now)
        return now, governor

    @property
    def slice_s(self) -> float:
        """How long a slice lasts, in seconds."""
        return self._slice_s

    def _fit_stride(self, elapsed_s: float) -> None:
        """Let a stride take a sixteenth of a slice; it grows slowly and falls at once."""
        turn_s = elapsed_s / max(1, self._turns)
        longest = min(2 * self.stride, _STRIDE_MAX)
        if turn_s * longest * _STRIDE_MAX <= self._slice_s:
            self.stride = longest
        else:
            self.stride = max(1, int(self._slice_s / (turn_s * _STRIDE_MAX)))


class SliceWatch:
    """Tells whether work that awaits now and then has taken longer than a slice.

    The event loop closes the slice of a turn as soon as it gets one: where that has not
    happened nothing was waited for, and no clock is read.

    Args:
        budget: Of the mailbox loop that does the work.
    """

    __slots__ = ("_began", "_budget", "_governor", "_started")

    def __init__(self, budget: SliceBudget) -> None:
        self._budget = budget

    def start(self) -> None:
        """Begin to watch."""
        self._started, self._governor = self._budget.now_on_loop()
        self._began = self._governor.began

    @property
    def has_waited(self) -> bool:
        """Whether the event loop has had a turn since `start`, or since `is_over`."""
        # By identity: on a clock that stands still two slices begin at equal times.
        return self._governor.began is not self._began

    def is_over(self) -> bool:
        """Say whether the work has taken longer than a slice."""
        now, governor = self._budget.now_on_loop()
        self._began = governor.began
        return now - self._started >= self._budget.slice_s
