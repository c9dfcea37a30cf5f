"""How long a mailbox loop may keep its event loop: the slice.

Theory of operation: without suspending, no timer, socket or sibling task of the event
loop runs. A slice is shared by all mailbox loops of an event loop, see
`aiomailbox.mailbox.budget`; it ends by time, or by the number of turns where time
stands still (a virtual clock). The clock is read every ``stride`` turns, and the
stride follows from how long turns took, so that a loop of tiny actions does not pay
for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

from aiomailbox.clock import Clock, clock_of

# How all mailbox loops of one event loop share its time: the governor.
#
# Theory of operation: all mailbox loops of an event loop together get one slice,
# whichever job they belong to, and then the event loop has two turns without them. The
# first that works opens the slice and asks the event loop, by `call_soon`, to close it
# in its next turn. A task that finds the slice used up is queued. The turn after the
# one that closes a slice admits the first of the line, and more of them as long as the
# admitted ones leave time over; they work a turn later. So what is ready besides
# (timers, sockets, tasks of the program around) waits for one slice, however many jobs
# there are: a timer that became due in a slice is called in the first turn after it,
# and wakes its task in the second, before the next slice.
#
# The readings of the clock that slices need also say whose the time was: from where a
# loop begins to work until it waits, or another one works, or, where it awaits something
# in the middle of its work, until the event loop closes the slice.


# Loops that are admitted and find no time left cost about 5 us each.
_ADMITTED_MAX: Final = 16


class LoopGovernor:
    """Shares the slices of one event loop among the mailbox loops that run on it.

    Belongs to that event loop: all methods are called while it runs.

    Attributes:
        began: When the slice of this turn of the event loop began, seconds; None before
            a task opens one. An object of its own for each slice.
        runner: The mailbox loop whose time it is now; None while none works.

    Invariants:
        While a slice is open its end is scheduled. While a task is queued, that
        is so or an admission is scheduled.
    """

    def __init__(self) -> None:
        self._line: deque[asyncio.Future[None]] = deque()
        self.began: float | None = None
        self.runner: SliceBudget | None = None
        self._is_admitting = False
        self._admitted = 1

    def begun(self, now: float) -> float:
        """Return when the slice of this turn of the event loop began, maybe ``now``."""
        if self.began is None:
            self.began = now
            asyncio.get_running_loop().call_soon(self._close_slice)
        return self.began

    def run(self, budget: SliceBudget, now: float) -> None:
        """Let the time from now on be that of a mailbox loop."""
        if self.runner is not None:
            self.runner.book(now)
        self.runner = budget
        budget.since = now

    async def next_turn(self, *, first: bool = False) -> None:
        """Wait until the event loop has had its turn and it is the caller's."""
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
        if self.runner is not None:
            # In the middle of its work: whatever it waits for, the event loop goes on.
            self.runner.pause()
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


# Releasing the loop costs about 8 us: under 10 ns per turn at this many.
_TURNS_MAX: Final = 1024
# Bounds what one slice can overrun when actions suddenly become slow.
_STRIDE_MAX: Final = 16
# Turns that took less on average have done nothing. One that only awaits takes about a
# microsecond, and two or three on a slow or loaded machine.
_NOTHING_S: Final = 4e-6
# So many turns tell their average.
_NOTHING_TURNS: Final = 128


class LoopClock:
    """The clock of the event loop that it is first read on."""

    def __init__(self) -> None:
        self._clock: Clock | None = None

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
        ran: Gets each stretch of time in which the loop worked: from when until when,
            seconds.

    Attributes:
        slice_s: How long a slice lasts, in seconds.
        stride: How many turns to spend before asking `is_over` again.
        since: From when on the time is the loop's, if it is the governor's runner.
        is_queued: Whether it waits for its turn.

    Invariants:
        ``1 <= stride <= 16``.
    """

    def __init__(
        self, clock: Clock, slice_ms: float, ran: Callable[[float, float], None]
    ) -> None:
        self._clock = clock
        self._ran = ran
        self._governor: LoopGovernor | None = None
        self.slice_s: float = slice_ms / 1000
        self._turns = 0
        self._started = 0.0
        self.since: float = 0.0
        self.is_queued: bool = False
        self.stride: int = 1

    def restart(self) -> bool:
        """Begin to work on the running event loop, after a wait or a turn of it.

        Returns:
            Whether the slice begins now. Else another may have used it up: then `is_over`
            says so.
        """
        governor = self._governor
        if governor is None:
            governor = self._governor = governor_of(asyncio.get_running_loop())
        self._turns = 0
        self._started = now = self._clock.monotonic()
        is_first = governor.began is None
        if is_first:
            governor.begun(now)
        if governor.runner is not self:
            governor.run(self, now)
        return is_first

    @property
    def is_running(self) -> bool:
        """Whether the loop works now, and has the event loop."""
        return self._governor is not None and self._governor.runner is self

    def pause(self) -> None:
        """Say that the loop waits from now on; no-op if it does not work."""
        governor = self._governor
        if governor is not None and governor.runner is self:
            governor.runner = None
            self._ran(self.since, self._clock.monotonic())

    def book(self, now: float) -> None:
        """Book the time until now; the governor's runner is somebody else then."""
        assert self._governor is not None, "it is the governor's runner"
        self._governor.runner = None
        self._ran(self.since, now)

    async def begin(self) -> None:
        """Begin to work after a wait, once there is time left for it."""
        if not self.restart() and self.is_over(0):
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
        began = governor.began
        if began is None:
            began = governor.begun(now)
        if governor.runner is not self:
            # It has awaited something in the middle of its work.
            governor.run(self, now)
        left_s = self.slice_s - (now - began)
        # What was waited for before this slice is no turn.
        spent_s = now - max(began, self._started)
        # Before the first turn nothing is known of them.
        return left_s <= 0 or 0 < 2 * self._turns * left_s <= spent_s

    @property
    def is_spent_on_nothing(self) -> bool:
        """Whether the turns of a slice were so short that none can have done anything."""
        elapsed_s = self._clock.monotonic() - self._started
        return self._turns >= _NOTHING_TURNS and elapsed_s < self._turns * _NOTHING_S

    async def yield_to_loop(self) -> None:
        """Let the event loop run everything that is ready, and begin a new slice."""
        now = self._clock.monotonic()
        self._fit_stride(now - self._started)
        governor = self._governor or governor_of(asyncio.get_running_loop())
        if governor.runner is self:
            self.book(now)
        # A call_later that has become due is queued behind us by the first turn of
        # the event loop and runs in the second, which is the one that we work in.
        self.is_queued = True
        try:
            await governor.next_turn()
            while not self.restart() and self.is_over(0):
                await governor.next_turn(first=True)
        finally:
            self.is_queued = False

    def now_on_loop(self) -> tuple[float, LoopGovernor]:
        """Return the time, in seconds, and the governor; a slice is open then."""
        governor = self._governor
        if governor is None:
            governor = self._governor = governor_of(asyncio.get_running_loop())
        now = self._clock.monotonic()
        governor.begun(now)
        return now, governor

    def _fit_stride(self, elapsed_s: float) -> None:
        """Let a stride take a sixteenth of a slice; it grows slowly and falls at once."""
        turn_s = elapsed_s / max(1, self._turns)
        longest = min(2 * self.stride, _STRIDE_MAX)
        if turn_s * longest * _STRIDE_MAX <= self.slice_s:
            self.stride = longest
        else:
            self.stride = max(1, int(self.slice_s / (turn_s * _STRIDE_MAX)))


class SliceWatch:
    """Tells whether work that awaits now and then has taken longer than a slice.

    The event loop closes the slice of a turn as soon as it gets one: where that has not
    happened nothing was waited for, and no clock is read.

    Args:
        budget: Of the mailbox loop that does the work.
    """

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
