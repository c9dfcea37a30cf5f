"""In which order results leave an async operator, and when."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Protocol

from aiomailbox.errors import RejectedMailError
from aiomailbox.operators.async_io.calls import CallEntry
from aiomailbox.operators.async_io.segment import QueuedControl, RowSegment
from aiomailbox.operators.core.failures import RecordFailures
from aiomailbox.operators.core.mutations import RepeatedObjects
from aiomailbox.operators.core.operator import Pending, then
from aiomailbox.operators.core.user_code import DeadLetter
from aiomailbox.records.events import MIN_TIMESTAMP, Watermark
from aiomailbox.records.run import RUN_LENGTH_MAX, ListRun

# What waits to be emitted, and in which order it may be.
#
# Theory of operation: a queue learns of rows and control elements as they arrive, and
# of rows as they are done; `take_ready` takes out what may be emitted now. Control
# elements end a batch, so that what is taken together is emitted as one run and one
# watermark.


@dataclass(slots=True, eq=False)
class ReadyRows:
    """Rows that may be emitted together: results, dead letters, then control elements.

    Attributes:
        entries: The rows that lead to results, in their order.
        controls: Watermarks and statuses to be emitted after the rows.
        count: Rows, also those of which nothing is emitted.
    """

    entries: list[CallEntry] = field(default_factory=list)
    controls: list[QueuedControl] = field(default_factory=list)
    count: int = 0
    _letters: list[DeadLetter] = field(default_factory=list)
    _letter_stamps: list[int | None] = field(default_factory=list)

    def add(self, entry: CallEntry) -> None:
        """Take what came of a row."""
        self.count += 1
        if not entry.dropped:
            self.entries.append(entry)
        elif entry.letter is not None:
            self._letters.append(entry.letter)
            self._letter_stamps.append(entry.timestamp)

    @property
    def results(self) -> ListRun:
        """The results as a run, maybe an empty one."""
        stamps = [entry.timestamp for entry in self.entries]
        return ListRun([entry.result for entry in self.entries], _timestamps(stamps))

    @property
    def letters(self) -> ListRun:
        """The dead letters as a run, maybe an empty one."""
        return ListRun(self._letters, _timestamps(self._letter_stamps))


class ResultQueue(Protocol):
    """Rows and control elements between arrival and emission."""

    @property
    def held(self) -> int:
        """Places taken."""

    def put(self, entry: CallEntry) -> None:
        """Take a row, at its arrival."""

    def put_control(self, control: QueuedControl) -> None:
        """Take a watermark or a status; only if the queue is not empty."""

    def on_done(self, entry: CallEntry) -> bool:
        """Be notified that a row is done; say whether something may be emitted now."""

    def take_ready(self, rows_max: int) -> ReadyRows | None:
        """Take out what may be emitted, at most so many rows; None if nothing."""

    def elements(self) -> list[CallEntry | QueuedControl]:
        """Return the rows and control elements that are held, as they arrived."""


class OrderedQueue:
    """Everything comes out in the order in which it came in.

    Example:
        >>> queue, first, second = (
        ...     OrderedQueue(),
        ...     CallEntry("a", None),
        ...     CallEntry("b", None),
        ... )
        >>> queue.put(first), queue.put(second)
        (None, None)
        >>> second.done = first.done = True
        >>> queue.on_done(second), queue.on_done(first)
        (False, True)
        >>> queue.take_ready(10).count
        2
    """

    def __init__(self) -> None:
        self._items: deque[CallEntry | QueuedControl] = deque()

    @property
    def held(self) -> int:
        """Places taken."""
        return len(self._items)

    def put(self, entry: CallEntry) -> None:
        """Take a row."""
        self._items.append(entry)

    def put_control(self, control: QueuedControl) -> None:
        """Take a watermark or a status."""
        self._items.append(control)

    def on_done(self, entry: CallEntry) -> bool:
        """Say whether the row is the next one."""
        return self._items[0] is entry

    def take_ready(self, rows_max: int) -> ReadyRows | None:
        """Take out the rows at the head that are done, up to a control element."""
        items = self._items
        ready: ReadyRows | None = None
        for _ in range(rows_max):
            if not items:
                break
            head = items[0]
            if isinstance(head, CallEntry):
                if not head.done:
                    break
                ready = ready or ReadyRows()
                ready.add(head)
                items.popleft()
                continue
            ready = ready or ReadyRows()
            items.popleft()
            ready.controls.append(head)
            break
        return ready

    def elements(self) -> list[CallEntry | QueuedControl]:
        """Return rows and control elements, in order."""
        return list(self._items)


class SegmentedQueue:
    """Rows come out as they are done, a control element after all rows before it.

    Args:
        rows_may_overtake: Whether a row may be emitted before a control element that
            came earlier and is still held back. Then control elements take no place;
            neighbours become one.
    """

    def __init__(self, *, rows_may_overtake: bool) -> None:
        self._rows_may_overtake = rows_may_overtake
        self._first = self._last = RowSegment(None)
        # In order of arrival, for snapshots.
        self._rows: dict[CallEntry, None] = {}
        # Done and free to go; done, but behind a control element.
        self._done: deque[CallEntry] = deque()
        self._early: dict[RowSegment, list[CallEntry]] = {}
        self.held: int = 0

    def put(self, entry: CallEntry) -> None:
        """Take a row."""
        entry.segment = self._last
        self._last.held += 1
        self._rows[entry] = None
        self.held += 1

    def put_control(self, control: QueuedControl) -> None:
        """Take a watermark or a status."""
        closed = self._last
        self._last = closed.close(control)
        if not self._rows_may_overtake:
            self.held += 1
        elif closed.held == 0:
            closed.merge_into_before()

    def on_done(self, entry: CallEntry) -> bool:
        """Say whether the row may go."""
        if self._rows_may_overtake or entry.segment is self._first:
            self._done.append(entry)
            return True
        self._early.setdefault(entry.segment, []).append(entry)
        return False

    def take_ready(self, rows_max: int) -> ReadyRows | None:
        """Take out the rows that may go, and what follows the last one of a segment."""
        done = self._done
        ready = ReadyRows()
        while done and ready.count < rows_max:
            entry = done.popleft()
            del self._rows[entry]
            ready.add(entry)
            self._left(entry.segment)
        self.held -= ready.count
        if not self._first.held and self._first.controls:
            self._pass_control(ready)
        return ready if ready.count or ready.controls else None

    def put_into(self, entry: CallEntry, segment: RowSegment) -> None:
        """Take a row that belongs to an earlier stretch, one that still holds rows."""
        entry.segment = segment
        segment.held += 1
        self._rows[entry] = None
        self.held += 1

    def elements(self) -> list[CallEntry | QueuedControl]:
        """Return rows and control elements in order of arrival, stretch by stretch."""
        by_segment: dict[RowSegment, list[CallEntry]] = {}
        for entry in self._rows:
            by_segment.setdefault(entry.segment, []).append(entry)
        elements: list[CallEntry | QueuedControl] = []
        segment: RowSegment | None = self._first
        while segment is not None:
            elements += by_segment.get(segment, ())
            elements += segment.controls
            segment = segment.after
        return elements

    def _left(self, segment: RowSegment) -> None:
        segment.held -= 1
        if segment.held or segment is self._first or segment is self._last:
            return
        segment.merge_into_before()

    def _pass_control(self, ready: ReadyRows) -> None:
        ready.controls = self._first.controls
        if not self._rows_may_overtake:
            self.held -= len(ready.controls)
        following = self._first.after
        assert following is not None, "a closed segment has one after it"
        following.before = None
        self._first = following
        self._done.extend(self._early.pop(following, ()))


def _timestamps(stamps: list[int | None]) -> list[int] | None:
    if all(stamp is None for stamp in stamps):
        return None
    return [MIN_TIMESTAMP if stamp is None else stamp for stamp in stamps]


# Emits what is ready, from mail of the operator and never beside it.
#
# Theory of operation: calls end at any time, in coroutines of their own. They only mark
# rows as done; emission is one mail that takes all that is ready by then, however many
# calls ended meanwhile. No second mail is sent while one is on its way. While the
# output has no room nothing is emitted, and the mail is sent again when it has.


class Emitter:
    """Takes what is ready out of a queue and passes it on.

    Args:
        queue: What is to be emitted.
        failures: The rows that were skipped, to be reported.

    Attributes:
        seen: Looks at the first results, unless it is None.
    """

    def __init__(self, queue: ResultQueue, failures: RecordFailures) -> None:
        self.seen: RepeatedObjects | None = None
        self.queue: ResultQueue = queue
        self.failures: RecordFailures = failures
        self._context = failures.context
        self._output = failures.output
        self._dead_letters = self._context.metrics.counter("dead_letters")
        self._mailed = False
        self._waiting_for_output = False
        self._changed: asyncio.Future[None] | None = None

    def request(self) -> None:
        """Emit what is ready, soon."""
        if self._mailed:
            return
        self._mailed = True
        # While the task is closing, what was not emitted is in its last snapshot.
        with contextlib.suppress(RejectedMailError):
            self._context.mailbox.execute(self._emit_ready, description="emit results")

    async def wait_for_change(self) -> None:
        """Run mail until something was emitted, or `notify` was called."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changed = changed
        await self._context.mailbox.yield_until(changed)

    def emit_control(self, control: object) -> Pending:
        """Pass a watermark or a status on."""
        if isinstance(control, Watermark):
            return self._output.emit_watermark(control.timestamp_ms)
        return self._output.emit_status(control)  # type: ignore[arg-type]

    def close(self) -> None:
        """Do not wait for the output any more."""
        if self.seen is not None:
            self.seen.end()
        self._output.availability.discard(self._on_output)

    def _emit_ready(self) -> Pending:
        self._mailed = False
        pending = self._emit_some()
        if pending is not None:
            return self._emit_after(pending)
        self.notify()
        return None

    async def _emit_after(self, pending: Awaitable[None] | None) -> None:
        while pending is not None:
            await pending
            pending = self._emit_some()
        self.notify()

    def _emit_some(self) -> Pending:
        """Emit until there is nothing ready, no room, or something to be awaited."""
        availability = self._output.availability
        while True:
            if not availability.available:
                if not self._waiting_for_output:
                    self._waiting_for_output = True
                    availability.on_available(self._on_output)
                return None
            ready = self._take()
            if ready is None:
                return None
            pending = self._emit(ready)
            if pending is not None:
                return pending

    def _take(self) -> ReadyRows | None:
        return self.queue.take_ready(RUN_LENGTH_MAX)

    def _emit(self, ready: ReadyRows) -> Pending:
        if self.failures.waiting:
            self.failures.report()
        pending = then(self._emit_letters(ready), self._emit_results, ready)
        for control in ready.controls:
            pending = then(pending, self.emit_control, control)
        return pending

    def _emit_results(self, ready: ReadyRows) -> Pending:
        results, seen = ready.results, self.seen
        if seen is not None and not seen.is_over:
            seen.look_at(results.values)
        return self._output.emit_run(results) if len(results) else None

    def _emit_letters(self, ready: ReadyRows) -> Pending:
        letters = ready.letters
        tag = self.failures.on_error.tag
        if tag is None or not len(letters):
            return None
        self._dead_letters.value += len(letters)
        return self._output.emit_side(tag, letters)

    def _on_output(self) -> None:
        self._waiting_for_output = False
        self.request()

    def notify(self) -> None:
        """Let `wait_for_change` end."""
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)
