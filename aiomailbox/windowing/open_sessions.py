"""The sessions of all keys, and the order in which they end."""

from __future__ import annotations

import heapq
from operator import itemgetter
from typing import Any, Final

from aiomailbox.records import MAX_TIMESTAMP
from aiomailbox.state import StateTable

# ``[start, end, content, stage]``: a list, for it is changed in place as it grows.
Session = list[Any]

# Stages: takes records; has fired and takes late ones; is forgotten, or not yet known.
OPEN: Final = 0
FIRED: Final = 1
GONE: Final = 2

start_of: itemgetter[int] = itemgetter(0)


class OpenSessions:
    """The sessions that still take records.

    A session that grew is not moved in the queue: its entry is looked at when it comes
    up, and put back where it belongs by then, so that a record which merely prolongs a
    session costs nothing here.

    Args:
        table: Where a snapshot finds them, ``key -> [session, …]``; what a restore
            left there is taken out.
        lateness_ms: How long after their end sessions take late records.

    Attributes:
        by_key: The sessions of each key, by their start; those of a key do not touch.

    Invariants:
        Each session of ``by_key`` has an entry in the queue, no later than it is due.
        The table is empty except while a snapshot is taken.

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

    __slots__ = ("_entries", "_lateness_ms", "_queue", "_table", "by_key")

    def __init__(self, table: StateTable, lateness_ms: int) -> None:
        self.by_key: dict[Any, list[Session]] = {}
        self._queue: list[tuple[int, int, Any, Session]] = []
        self._entries = 0
        self._table = table
        self._lateness_ms = lateness_ms
        for key, sessions in table.items():
            self.by_key[key] = [[*content, GONE] for *content, _ in sessions]
            for session, (*_, stage) in zip(self.by_key[key], sessions, strict=True):
                self.schedule(key, session, stage)
        self.clear_table()

    def schedule(self, key: Any, session: Session, stage: int) -> None:
        """Let a session be in a stage, and come up when that is over."""
        if session[3] == stage:
            return
        session[3] = stage
        self._push(key, session)

    def remove(self, key: Any, session: Session) -> None:
        """Forget a session; its entries in the queue mean nothing any more."""
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
            _, _, key, session = heapq.heappop(queue)
            stage = session[3]
            if stage == GONE:
                continue
            if self._due(session) > watermark_ms:
                self._push(key, session)
                continue
            if stage == OPEN:
                # One that grew comes behind those that end before it.
                if queue and queue[0][0] < self._due(session):
                    self._push(key, session)
                    continue
                self._leave_open(key, session, watermark_ms)
                ended.append((key, session))
            else:
                self.remove(key, session)
        return ended, False

    def fill_table(self) -> None:
        """Put everything into the table, for a snapshot."""
        for key, sessions in self.by_key.items():
            self._table.put(key, [tuple(session) for session in sessions])

    def clear_table(self) -> None:
        """Take everything out of the table."""
        for key, _ in list(self._table.items()):
            self._table.remove(key)

    def _leave_open(self, key: Any, session: Session, watermark_ms: int) -> None:
        session[3] = FIRED
        if self._due(session) <= watermark_ms:
            self.remove(key, session)
        else:
            self._push(key, session)

    def _due(self, session: Session) -> int:
        """Return at which watermark the session's stage is over."""
        last: int = session[1] - 1
        if session[3] == OPEN:
            return last
        return min(last + self._lateness_ms, MAX_TIMESTAMP)

    def _push(self, key: Any, session: Session) -> None:
        # The number keeps keys, which need not be comparable, out of comparisons.
        self._entries += 1
        entry = (self._due(session), self._entries, key, session)
        heapq.heappush(self._queue, entry)
