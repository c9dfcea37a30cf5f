"""What waits to be emitted, and in which order it may be.

Theory of operation: a queue learns of rows and control elements as they arrive, and of
rows as they are done; `take_ready` takes out what may be emitted now. Control elements
end a batch, so that what is taken together is emitted as one run and one watermark.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from aiomailbox.operators.async_io.entry import Entry
from aiomailbox.operators.async_io.segment import QueuedControl, Segment
from aiomailbox.operators.core.on_error import DeadLetter
from aiomailbox.records.elements import MIN_TIMESTAMP
from aiomailbox.records.run import ListRun

__all__ = ["OrderedQueue", "Ready", "ResultQueue", "SegmentedQueue"]


class Ready:
    """What may be emitted together: results and dead letters, then control elements.

    Attributes:
        entries: The rows that lead to results, in their order.
        controls: Watermarks and statuses to be emitted after the rows.
        count: Places that were freed, rows and control elements.
    """

    __slots__ = (
        "_letter_stamps",
        "_letters",
        "controls",
        "count",
        "entries",
    )

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._letters: list[DeadLetter] = []
        self._letter_stamps: list[int | None] = []
        self.controls: list[QueuedControl] = []
        self.count: int = 0

    def add(self, entry: Entry) -> None:
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
        ...

    def put(self, entry: Entry) -> None:
        """Take a row, at its arrival."""
        ...

    def put_control(self, control: QueuedControl) -> None:
        """Take a watermark or a status; only if the queue is not empty."""
        ...

    def on_done(self, entry: Entry) -> bool:
        """Be notified that a row is done; say whether something may be emitted now."""
        ...

    def take_ready(self, rows_max: int) -> Ready | None:
        """Take out what may be emitted, at most so many rows; None if nothing."""
        ...

    def elements(self) -> list[Entry | QueuedControl]:
        """Return the rows and control elements that are held, as they arrived."""
        ...


class OrderedQueue:
    """Everything comes out in the order in which it came in.

    Example:
        >>> queue, first, second = OrderedQueue(), Entry("a", None), Entry("b", None)
        >>> queue.put(first), queue.put(second)
        (None, None)
        >>> second.done = first.done = True
        >>> queue.on_done(second), queue.on_done(first)
        (False, True)
        >>> queue.take_ready(10).count
        2
    """

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: deque[Entry | QueuedControl] = deque()

    @property
    def held(self) -> int:
        """Places taken."""
        return len(self._items)

    def put(self, entry: Entry) -> None:
        """Take a row."""
        self._items.append(entry)

    def put_control(self, control: QueuedControl) -> None:
        """Take a watermark or a status."""
        self._items.append(control)

    def on_done(self, entry: Entry) -> bool:
        """Say whether the row is the next one."""
        return self._items[0] is entry

    def take_ready(self, rows_max: int) -> Ready | None:
        """Take out the rows at the head that are done, up to a control element."""
        items = self._items
        ready: Ready | None = None
        for _ in range(rows_max):
            if not items:
                break
            head = items[0]
            if isinstance(head, Entry):
                if not head.done:
                    break
                ready = ready or Ready()
                ready.add(head)
                items.popleft()
                continue
            ready = ready or Ready()
            items.popleft()
            ready.count += 1
            ready.controls.append(head)
            break
        return ready

    def elements(self) -> list[Entry | QueuedControl]:
        """Return rows and control elements, in order."""
        return list(self._items)


class SegmentedQueue:
    """Rows come out as they are done, a control element after all rows before it.

    Args:
        rows_may_overtake: Whether a row may be emitted before a control element that
            came earlier and is still held back. Then control elements take no place;
            neighbours become one.
    """

    __slots__ = (
        "_done",
        "_early",
        "_first",
        "_last",
        "_rows",
        "_rows_may_overtake",
        "held",
    )

    def __init__(self, *, rows_may_overtake: bool) -> None:
        self._rows_may_overtake = rows_may_overtake
        self._first = self._last = Segment(None)
        # In order of arrival, for snapshots.
        self._rows: dict[Entry, None] = {}
        # Done and free to go; done, but behind a control element.
        self._done: deque[Entry] = deque()
        self._early: dict[Segment, list[Entry]] = {}
        self.held: int = 0

    def put(self, entry: Entry) -> None:
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
        elif closed.held == 0 and closed is not self._first:
            closed.merge_into_before()

    def on_done(self, entry: Entry) -> bool:
        """Say whether the row may go."""
        if self._rows_may_overtake or entry.segment is self._first:
            self._done.append(entry)
            return True
        self._early.setdefault(entry.segment, []).append(entry)
        return False

    def take_ready(self, rows_max: int) -> Ready | None:
        """Take out the rows that may go, and what follows the last one of a segment."""
        done = self._done
        ready = Ready()
        while done and ready.count < rows_max:
            entry = done.popleft()
            del self._rows[entry]
            ready.add(entry)
            self._left(entry.segment)
        self.held -= ready.count
        if not self._first.held and self._first.controls:
            self._pass_control(ready)
        return ready if ready.count or ready.controls else None

    def put_into(self, entry: Entry, segment: Segment) -> None:
        """Take a row that belongs to an earlier stretch, one that still holds rows."""
        entry.segment = segment
        segment.held += 1
        self._rows[entry] = None
        self.held += 1

    def elements(self) -> list[Entry | QueuedControl]:
        """Return rows and control elements in order of arrival, stretch by stretch."""
        by_segment: dict[Segment, list[Entry]] = {}
        for entry in self._rows:
            by_segment.setdefault(entry.segment, []).append(entry)
        elements: list[Entry | QueuedControl] = []
        segment: Segment | None = self._first
        while segment is not None:
            elements += by_segment.get(segment, ())
            elements += segment.controls
            segment = segment.after
        return elements

    def _left(self, segment: Segment) -> None:
        segment.held -= 1
        if segment.held or segment is self._first or segment is self._last:
            return
        segment.merge_into_before()

    def _pass_control(self, ready: Ready) -> None:
        ready.controls = self._first.controls
        if not self._rows_may_overtake:
            self.held -= len(ready.controls)
            ready.count += len(ready.controls)
        following = self._first.after
        assert following is not None, "a closed segment has one after it"
        following.before = None
        self._first = following
        self._done.extend(self._early.pop(following, ()))


def _timestamps(stamps: list[int | None]) -> list[int] | None:
    if all(stamp is None for stamp in stamps):
        return None
    return [MIN_TIMESTAMP if stamp is None else stamp for stamp in stamps]
