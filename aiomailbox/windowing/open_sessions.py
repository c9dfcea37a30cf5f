"""The sessions of all keys, and the order in which they end."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any, Final

from aiomailbox.records.elements import MAX_TIMESTAMP
from aiomailbox.state.layers import DictSnapshot, LayeredDict
from aiomailbox.state.snapshot import copy_content
from aiomailbox.state.store import StateTable

# ``[start, end, content, stage]``: a list, for it is changed in place as it grows.
Session = list[Any]

# Stages: takes records; has fired and takes late ones; is forgotten, or not yet known.
OPEN: Final = 0
FIRED: Final = 1
GONE: Final = 2

start_of: itemgetter[int] = itemgetter(0)


class OpenSessions:
    """The sessions that still take records.

    The queue holds one point in time per key: when its first session is due. A session
    that grew is not moved there: its key is looked at when it comes up, and put back
    where it belongs by then, so that a record which merely prolongs a session costs
    nothing here.

    Args:
        table: Where a restore has put them, ``key -> [session, …]``.
        lateness_ms: How long after their end sessions take late records.

    Attributes:
        by_key: The sessions of each key, by their start; those of a key do not touch.
            It is another mapping after `snapshot` and `settle`, and has other sessions then.

    Invariants:
        Each key of ``by_key`` has an entry in the queue that counts, no later than its
        first session is due.

    Example:
        >>> from aiomailbox.state.heap_table import HeapStateTable
        >>> sessions = OpenSessions(HeapStateTable(), 0)
        >>> session = [0, 10, "content", GONE]
        >>> sessions.by_key["a"] = [session]
        >>> sessions.schedule("a", session, OPEN)
        >>> session[1] = 20
        >>> sessions.pop_ended(9, 5), sessions.pop_ended(19, 5)
        (([], True), ([('a', [0, 20, 'content', 2])], True))
    """

    __slots__ = (
        "_due",
        "_entries",
        "_lateness_ms",
        "_layers",
        "_queue",
        "_table",
        "by_key",
    )

    def __init__(self, table: StateTable, lateness_ms: int) -> None:
        self._layers: LayeredDict[Any, list[Session]] = LayeredDict(_copied)
        self.by_key = self._layers.live
        self._queue: list[tuple[int, int, Any]] = []
        # When the entry of a key that counts comes up.
        self._due: dict[Any, int] = {}
        self._entries = 0
        self._table = table
        self._lateness_ms = lateness_ms

    def emptied(self) -> OpenSessions:
        """Return the same without any session, and without what is due."""
        return OpenSessions(self._table, self._lateness_ms)

    def take_over(self, count: int) -> bool:
        """Take the sessions of so many keys out of the table; say if none are left."""
        entries = self._table.drain(count)
        for key, sessions in entries:
            # Unscheduled, so that `schedule` puts each where it comes up.
            self.by_key[key] = [[*content, GONE] for *content, _ in sessions]
            for session, (*_, stage) in zip(self.by_key[key], sessions, strict=True):
                self.schedule(key, session, stage)
        return not entries

    def snapshot(self) -> DictSnapshot:
        """Return all there is now, for a thread to read."""
        snapshot = self._layers.snapshot()
        self.by_key = self._layers.live
        return snapshot

    @property
    def has_snapshot(self) -> bool:
        """Whether a snapshot makes every access cost more."""
        return self._layers.has_snapshot

    def settle(self, count: int) -> int:
        """Remove layers that no snapshot needs; see `LayeredDict.settle`."""
        left = self._layers.settle(count)
        self.by_key = self._layers.live
        return left

    def schedule(self, key: Any, session: Session, stage: int) -> None:
        """Let a session be in a stage, and come up when that is over."""
        if session[3] == stage:
            return
        session[3] = stage
        self._push(key, self._due_of(session))

    def remove(self, key: Any, session: Session) -> None:
        """Forget a session."""
        session[3] = GONE
        sessions = self.by_key[key]
        if len(sessions) == 1:
            del self.by_key[key]
        else:
            sessions[:] = [one for one in sessions if one is not session]

    def pop_ended(
        self, watermark_ms: int, count: int
    ) -> tuple[list[tuple[Any, Session]], bool]:
        """Return the sessions that end now, earliest first; forget those that are over.

        Args:
            watermark_ms: How far event time has come.
            count: How many entries of the queue to look at.

        Returns:
            Sessions with their keys, and whether these were the last that end now.
        """
        queue = self._queue
        ended: list[tuple[Any, Session]] = []
        for _ in range(count):
            if not queue or queue[0][0] > watermark_ms:
                return ended, True
            due, _, key = heapq.heappop(queue)
            # A later entry counts, or the key has none any more: entries are not
            # deleted from the middle of a heap.
            if self._due.get(key) != due:
                continue
            del self._due[key]
            sessions = self.by_key.get(key)
            if not sessions:
                continue
            session = min(sessions, key=self._due_of)
            # One that grew comes behind those that end before it.
            if self._due_of(session) == due:
                if session[3] == OPEN:
                    session[3] = FIRED
                    ended.append((key, session))
                    is_over = self._due_of(session) <= watermark_ms
                else:
                    is_over = True
                if is_over:
                    self.remove(key, session)
            if key in self.by_key:
                open_until = [self._due_of(one) for one in self.by_key[key]]
                self._push(key, min(open_until))
        return ended, False

    def _due_of(self, session: Session) -> int:
        """Return at which watermark the session's stage is over."""
        last: int = session[1] - 1
        if session[3] == OPEN:
            return last
        return min(last + self._lateness_ms, MAX_TIMESTAMP)

    def _push(self, key: Any, due: int) -> None:
        """Let a key come up by then."""
        known = self._due.get(key)
        if known is not None and known <= due:
            return
        self._due[key] = due
        # The number keeps keys, which need not be comparable, out of comparisons.
        self._entries += 1
        heapq.heappush(self._queue, (due, self._entries, key))


class SessionRows:
    """The sessions of all keys as a snapshot has them.

    Args:
        snapshot: Of `OpenSessions`.
    """

    __slots__ = ("_snapshot",)
    width = 2

    def __init__(self, snapshot: DictSnapshot) -> None:
        self._snapshot = snapshot

    def columns(self, count: int) -> Iterator[tuple[list[Any], list[Any]]]:
        """Yield keys and their sessions, so many at a time."""
        for keys, contents in self._snapshot.columns(count):
            yield keys, [[tuple(one) for one in sessions] for sessions in contents]


def converted_sessions(
    sessions: list[Any], convert: Callable[[Any], Any]
) -> list[Any] | None:
    """Return the sessions of a key, as a snapshot has them, with other accumulators.

    Those that are None are left out, and so is a key without any.
    """
    made = [
        (start, end, content, stage)
        for start, end, before, stage in sessions
        if (content := convert(before)) is not None
    ]
    return made or None


def _copied(sessions: list[Session]) -> list[Session]:
    return [
        [start, end, copy_content(content), stage]
        for start, end, content, stage in sessions
    ]
