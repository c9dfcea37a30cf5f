"""Map, filter and flat_map in a thread, so that the event loop goes on meanwhile.

Theory of operation: the way to a thread and back costs some 100 µs, so records go there
together. The thread comes back after a few milliseconds, whatever is left of the run: a
barrier or a cancellation waits for these and for the record that is being worked on.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from aiomailbox.operators.core.failures import USER_ERRORS, RecordFailures
from aiomailbox.operators.core.operator import (
    BlockCause,
    Blocked,
    OpenCall,
    OpenCalls,
    Pending,
    finished,
)
from aiomailbox.operators.core.user_code import (
    UNDECIDED,
    UNMADE,
    OnError,
    check_on_error,
    check_sync_function,
    checkpoint_listener,
    fail,
    items_of,
    refuse_unmade,
    shortened,
    users_line_of,
)
from aiomailbox.operators.core.watched import (
    LookedAtOperator,
    repeated_objects,
    watched_function,
)
from aiomailbox.operators.stateless.fused import StageKind
from aiomailbox.records.run import RUN_LENGTH_MAX, ListRun, Run
from aiomailbox.supervision import ThreadTurns, frames_stay

# The way there and back is a fiftieth of it.
_PIECE_S: Final = 0.005


class ThreadOperator(LookedAtOperator):
    """A synchronous function that blocks, called in a thread for each record.

    Calls of one operator follow each other, in order, so that the function needs no lock.
    A cancelled call outlasts its thread: nothing is used twice at a time.

    Args:
        kind: What is done with the function's result; the items of a flat_map are
            collected in the thread.
        function: Called with each value.
        on_error: How to handle a record for which it raises.

    Raises:
        WrongTypeError: If ``function`` cannot be called with one argument.
        InvalidArgumentError: If it is asynchronous, or a generator and this no flat_map.

    Example:
        >>> import asyncio
        >>> from aiomailbox.testing import OneInputHarness
        >>> async def main():
        ...     with OneInputHarness(
        ...         ThreadOperator(StageKind.MAP, str.upper)
        ...     ) as harness:
        ...         await harness.run(harness.process_run, ["a", "b"])
        ...         return harness.values
        >>> asyncio.run(main())
        ['A', 'B']
    """

    def __init__(
        self,
        kind: StageKind,
        function: Callable[[Any], Any],
        *,
        on_error: OnError = fail,
    ) -> None:
        self.kind = kind
        self.function: Callable[..., Any] = check_sync_function(
            function, "function", arity=1, may_yield=kind is StageKind.FLAT_MAP
        )
        self.listener = checkpoint_listener(function)
        self.on_error: OnError = check_on_error(on_error)
        self._turns = ThreadTurns()
        self._piece: _Piece | None = None

    def open(self) -> Pending:
        self._failures = RecordFailures(self, self.function)
        check = self.context.mutations
        if check is not None and self.kind is StageKind.FLAT_MAP:
            self.function = watched_function(self.function, check)
        if self.kind is not StageKind.FILTER:
            self._seen = repeated_objects(self.context, self.function)
        return None

    def may_leave_rest(self, index: int) -> bool:
        return True

    def open_calls(self, count_max: int) -> OpenCalls | None:
        """Return the record that the thread works on, and where it stands."""
        piece = self._piece
        call = None if piece is None else piece.describe()
        return OpenCalls(0, [], 0, "") if call is None else OpenCalls(1, [call], 0, "")

    def blocked(self) -> Blocked | None:
        """Return that its function runs, while it does."""
        piece = self._piece
        if piece is None:
            return None
        return Blocked(BlockCause.FUNCTION, piece.line() or "in a thread")

    def process_run(self, run: Run) -> Pending:
        """Call the function for each record, in order."""
        return self._process(run) if len(run) else None

    async def _process(self, run: Run) -> None:
        values, timestamps = run.values, run.timestamps
        availability, interruption = self.output.availability, self.interruption
        watch = interruption.start()
        piece = _Piece(self, run)
        while piece.index < len(values):
            if not availability.available:
                if piece.items is None and interruption.leave(run, piece.index):
                    return
                await self.context.mailbox.wait_until(availability)
            self._piece = piece
            try:
                await self._turns.run(piece.work)
            finally:
                self._piece = None
            if piece.results:
                if self._seen is not None and not self._seen.is_over:
                    self._seen.look_at(piece.results)
                await finished(
                    self.output.emit_run(ListRun(piece.results, piece.stamps))
                )
            if piece.error is not None:
                index = piece.index
                stamp = None if timestamps is None else timestamps[index]
                self._failures.take(values[index], stamp, piece.error)
                await finished(self._failures.report())
                piece.index += 1
            # Items of which some have been emitted cannot be left for later.
            if piece.items is not None or not watch.has_waited:
                continue
            if await interruption.look_around(run, piece.index):
                return


class _Piece:
    """Some records of a run, for which the function is called in a thread.

    Args:
        operator: Whose they are.
        run: The run.

    Attributes:
        index: The next record; the one for which the function raised, if it did.
        items: What is left of that record's items, if it is half-way (`flat_map`).
        results: What goes out.
        stamps: Their event times, None without.
        error: What the function raised.
    """

    def __init__(self, operator: ThreadOperator, run: Run) -> None:
        self._kind = operator.kind
        self._function = operator.function
        # Of the job: in virtual time a run is one piece.
        self._clock = operator.context.clock
        self._values = run.values
        self._timestamps = run.timestamps
        self._record_s = self._clock.monotonic()
        self._thread: int | None = None
        self.index = 0
        self.items: Iterator[Any] | None = None
        self.results: list[Any] = []
        self.stamps: list[int] | None = None
        self.error: BaseException | None = None

    def work(self) -> None:
        """Call the function until the time is over, or it raises; in the thread."""
        self._thread = threading.get_ident()
        count = len(self._values)
        results: list[Any] = []
        self.results, self.error = results, None
        self.stamps = None if self._timestamps is None else []
        now_s = self._clock.monotonic()
        until_s = now_s + _PIECE_S
        if self.items is None:
            self._record_s = now_s
        try:
            while self.index < count:
                before = len(results)
                try:
                    self._work_on(self._values[self.index], until_s)
                except USER_ERRORS as error:
                    self.error, self.items = error, None
                if self.stamps is not None and self._timestamps is not None:
                    stamp = self._timestamps[self.index]
                    self.stamps += [stamp] * (len(results) - before)
                if self.error is not None or self.items is not None:
                    return
                self.index += 1
                self._record_s = self._clock.monotonic()
                if self._record_s >= until_s or len(results) >= RUN_LENGTH_MAX:
                    return
        finally:
            self._thread = None

    def _work_on(self, value: Any, until_s: float) -> None:
        if self._kind is StageKind.FLAT_MAP:
            self._collect(value, until_s)
            return
        result = self._function(value)
        is_map = self._kind is StageKind.MAP
        if type(result) in (UNMADE if is_map else UNDECIDED):
            refuse_unmade(result, self._function)
        if is_map:
            self.results.append(result)
        elif result:
            self.results.append(value)

    def _collect(self, value: Any, until_s: float) -> None:
        # What it has given when it raises is in the list nevertheless.
        results, monotonic = self.results, self._clock.monotonic
        items = self.items
        if items is None:
            items = items_of(self._function, self._function(value))
        self.items = items
        for item in items:
            results.append(item)
            # They may be without end, or be slow to come.
            if len(results) >= RUN_LENGTH_MAX or monotonic() >= until_s:
                return
        self.items = None

    def describe(self) -> OpenCall | None:
        """Return the record that the thread works on; from another thread."""
        index = self.index
        if index >= len(self._values):
            return None
        age_s = max(0.0, self._clock.monotonic() - self._record_s)
        waits_for = "its function, in a thread"
        return OpenCall(
            shortened(self._values[index]), 1, age_s, waits_for, self.line()
        )

    def line(self) -> str:
        """Return ``file:line`` where the user's function stands; "" if it does not run."""
        thread = self._thread
        frames = []
        with frames_stay:
            frame = None if thread is None else sys._current_frames().get(thread)
            while frame is not None:
                frames.append(frame)
                frame = frame.f_back
        return users_line_of(reversed(frames))
