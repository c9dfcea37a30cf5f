"""What held an event loop, as values, and when that is logged."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import msgspec

from aiomailbox.logs import library_log

__all__ = ["Stall", "StallLog"]

_STALLS_MAX: Final = 20
_PLACES_MAX: Final = 256
_STACK_SHOWN: Final = 12


class Stall(msgspec.Struct, frozen=True, kw_only=True):
    """An event loop was held: nothing else on it could run.

    Attributes:
        at_ms: When it ended, milliseconds since the epoch.
        duration_ms: How long it was held; right within two looks of the watch.
        gc_ms: Of that, what the garbage collector took.
        cpu_ms: Of that, how long the thread computed; what is left it waited, in a call
            that blocks or for a processor. None where the system does not tell.
        task: The asyncio task, "" outside of one.
        operator: The operator whose code ran; several, joined by arrows, where functions
            run as one; "" outside of operators.
        uid: The operator's uid, None if it has none.
        mail: What the mail that was run was for; "" if it was input.
        function: The function that stood there.
        line: ``file:line`` of the innermost line of the user's own.
        stack: Where the code stood at that moment, outermost call first.
    """

    at_ms: int
    duration_ms: float
    gc_ms: float
    cpu_ms: float | None
    task: str
    operator: str
    uid: str | None
    mail: str
    function: str
    line: str
    stack: list[str]

    @property
    def is_garbage_collection(self) -> bool:
        """Whether most of the time went into the collection of garbage."""
        return self.gc_ms * 2 > self.duration_ms

    def __str__(self) -> str:
        who = f"operator {self.operator!r}" if self.operator else "code of no operator"
        text = (
            f"{who} held the event loop for {self.duration_ms:.0f} ms "
            f"in {self.function} ({self.line})"
        )
        if self.is_garbage_collection:
            return f"{text}: {self.gc_ms:.0f} ms of it collected garbage"
        return text


class StallLog:
    """The last stalls, and a log of them that does not repeat itself.

    Theory of operation: of each place the first stall is logged, then the second, the
    fourth, the eighth, so that a function that blocks for each record costs few lines.
    """

    def __init__(self) -> None:
        self.last: deque[Stall] = deque(maxlen=_STALLS_MAX)
        self._counts: dict[tuple[str, str], int] = {}

    def add(self, stall: Stall, contexts: list[Any]) -> None:
        """Keep a stall, count it for its operators, and log it if it is time.

        Args:
            stall: The stall.
            contexts: Those of its operators.
        """
        self.last.append(stall)
        for context in contexts:
            if stall.is_garbage_collection:
                context.metrics.counter("gc_stalls").add()
            else:
                context.metrics.counter("stalls").add()
                context.metrics.counter("stalled_ms").add(int(stall.duration_ms))
        place = (stall.operator, stall.line)
        # Lines may come out of generated code without end.
        if len(self._counts) == _PLACES_MAX and place not in self._counts:
            self._counts.clear()
        count = self._counts[place] = self._counts.get(place, 0) + 1
        # The 1st, 2nd, 4th, 8th … time: the log does not fill, and growth is seen.
        if count & (count - 1) == 0:
            self._write(stall, count, contexts)

    def tell_still_held(self, stall: Stall, contexts: list[Any]) -> None:
        """Log a stall that has not ended yet.

        Args:
            stall: The stall so far, with where the code stands now.
            contexts: Those of its operators.
        """
        self._write(stall, 1, contexts, "the event loop is still held")

    def _write(
        self,
        stall: Stall,
        count: int,
        contexts: list[Any],
        what: str = "the event loop was held",
    ) -> None:
        log = contexts[0].log if len(contexts) == 1 else library_log()
        if stall.is_garbage_collection:
            remedy = "garbage was collected: keep fewer objects, or gc.freeze() them"
        elif stall.operator:
            remedy = 'give it run_in="thread", or await instead of blocking'
        else:
            remedy = "run it in a thread, or await instead of blocking"
        about: dict[str, Any] = {"mail": stall.mail} if stall.mail else {}
        if count > 1:
            about["times"] = count
        log.warning(
            what,
            duration_ms=round(stall.duration_ms),
            gc_ms=round(stall.gc_ms),
            function=stall.function,
            line=stall.line,
            **about,
            remedy=remedy,
            stack="\n".join(stall.stack[-_STACK_SHOWN:]),
        )
