"""Event-time sessions with incremental aggregation: the fast way.

Theory of operation: most records prolong the newest session of their key, which is
found and changed in the loop. All that is less simple, such as sessions that merge and
records that come late, is left to one method. `aiomailbox.windowing.operator` gives
the same results for all windows.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import Any, Final

from aiomailbox.operators.core.failures import USER_ERRORS
from aiomailbox.operators.core.operator import Pending, then
from aiomailbox.operators.core.slices import in_slices
from aiomailbox.operators.core.user_code import describe
from aiomailbox.operators.keyed.operators import Settled
from aiomailbox.records.events import MAX_TIMESTAMP
from aiomailbox.state.descriptors import AccumulatorDescriptor
from aiomailbox.state.layers import Layer, Layered, LayeredDict
from aiomailbox.state.snapshot import KeyedStateSnapshot, SnapshotRows, copy_content
from aiomailbox.state.store import StateTable
from aiomailbox.windowing.aggregate import AggregateWindowsOperator
from aiomailbox.windowing.assigners import required_timestamp
from aiomailbox.windowing.spec import WindowSpec
from aiomailbox.windowing.time_window import TimeWindow

# The sessions of all keys, and the order in which they end.


# ``[start, end, content, stage]``: a list, for it is changed in place as it grows.
Session = list[Any]


# Stages: takes records; has fired and takes late ones; is forgotten, or not yet known.
OPEN: Final = 0


FIRED: Final = 1


GONE: Final = 2


start_of: itemgetter[int] = itemgetter(0)


class OpenSessions(Layered):
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
        >>> from aiomailbox.state.backends import HeapStateTable
        >>> sessions = OpenSessions(HeapStateTable(), 0)
        >>> session = [0, 10, "content", GONE]
        >>> sessions.by_key["a"] = [session]
        >>> sessions.schedule("a", session, OPEN)
        >>> session[1] = 20
        >>> sessions.pop_ended(9, 5), sessions.pop_ended(19, 5)
        (([], True), ([('a', [0, 20, 'content', 1])], True))
    """

    def __init__(self, table: StateTable, lateness_ms: int) -> None:
        super().__init__(LayeredDict(_copied))
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

    def _bind(self) -> None:
        self.by_key: dict[Any, list[Session]] | Layer[Any, list[Session]] = (
            self._layers.live
        )

    def schedule(self, key: Any, session: Session, stage: int) -> None:
        """Let a session be in a stage, and come up when that is over."""
        if session[3] == stage:
            return
        session[3] = stage
        self._push(key, self._due_of(session))

    def remove(self, key: Any, session: Session) -> None:
        """Forget a session."""
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


class SessionAggregateOperator(AggregateWindowsOperator):
    """Aggregates event-time sessions that fire when they end.

    Made by `window_operator` where it applies.

    Args:
        spec: Key, windows, lateness and errors; the trigger is the default one.
        aggregate: A plain (not ``async def``) aggregate function that can merge.

    Concept:
        Flink, ``WindowOperator`` with ``EventTimeSessionWindows``.
    """

    def __init__(self, spec: WindowSpec, aggregate: Any) -> None:
        super().__init__(spec, aggregate)
        self._gap = spec.assigner.gap_ms
        # The name is in snapshots.
        self._state = AccumulatorDescriptor(
            "open-sessions", aggregate, converted_sessions
        )

    def rows_reason(self) -> str:
        """Return also the function that gives the gap."""
        gap = "" if isinstance(self._gap, int) else f"gap {describe(self._gap)}"
        return gap or super().rows_reason()

    def open(self) -> Pending:
        table = self.context.keyed_state.table(self._state)
        self._sessions = OpenSessions(table, self._lateness)
        return then(in_slices(self._sessions.take_over), super().open)

    def expect_accumulators(self) -> None:
        """Ask for the sessions."""
        self.context.keyed_state.table(self._state)

    def snapshot_apart(self) -> Iterable[KeyedStateSnapshot]:
        """Capture all sessions."""
        snapshot = self._sessions.snapshot()
        rows = SnapshotRows.of(
            2,
            lambda: (
                (key, [tuple(one) for one in sessions])
                for key, sessions in snapshot.items()
            ),
        )
        return [self.snapshot_of([(self._state, rows)], namespaced=False)]

    def layered(self) -> list[Settled]:
        return [*super().layered(), self._sessions]

    def _take_ended(self, count: int, results: list[Any], stamps: list[int]) -> bool:
        """Take the sessions that end."""
        ended, done = self._sessions.pop_ended(self.watermark_ms, count)
        for key, session in ended:
            window = TimeWindow(session[0], session[1])
            try:
                results.append(self._result.of_one(key, window, session[2]))
            except USER_ERRORS as error:
                self._failures.take_window(key, window, [session[2]], error)
            else:
                stamps.append(window.max_timestamp)
        return done

    def _add_all(
        self, keys: Iterator[Any], values: Iterator[Any], stamps: Iterator[int]
    ) -> None:
        by_key, add = self._sessions.by_key, self._aggregate.add
        gap = self._gap
        gap_of = None if isinstance(gap, int) else gap
        for key, value, stamp in zip(keys, values, stamps, strict=True):
            end = stamp + (gap if gap_of is None else gap_of(value))
            sessions = by_key.get(key)
            if sessions is not None:
                # The newest: in order, a record can only belong to that one, or begin
                # another.
                session = sessions[-1]
                if session[0] <= stamp <= session[1] and session[3] == OPEN:
                    session[2] = add(value, session[2])
                    if end > session[1]:
                        session[1] = end
                    continue
            if not self._add(key, value, required_timestamp(stamp), end):
                self._skip(value, stamp)

    def _add(self, key: Any, value: Any, start: int, end: int) -> bool:
        """Add a record, whatever it touches; say whether it could be."""
        sessions = self._sessions.by_key.get(key, [])
        touched = [one for one in sessions if one[0] <= end and start <= one[1]]
        if touched:
            start = min(start, touched[0][0])
            end = max(end, touched[-1][1])
        # After merging, for a record that is late alone may prolong a session that is
        # open.
        if min(end - 1 + self._lateness, MAX_TIMESTAMP) <= self.watermark_ms:
            return False
        content = self._merged(touched)
        content = self._aggregate.add(value, content)
        if touched:
            session = touched[0]
            session[:3] = start, end, content
            for other in touched[1:]:
                self._sessions.remove(key, other)
        else:
            session = [start, end, content, GONE]
            # In the order of their beginnings, which the way above relies on.
            insort(self._sessions.by_key.setdefault(key, []), session, key=start_of)
        self._fire_or_wait(key, session)
        return True

    def _merged(self, sessions: list[Session]) -> Any:
        """Return the content of several sessions together, of none a new one."""
        if not sessions:
            return self._aggregate.create_accumulator()
        content = sessions[0][2]
        for other in sessions[1:]:
            content = self._aggregate.merge(content, other[2])
        return content

    def _fire_or_wait(self, key: Any, session: Session) -> None:
        """Emit a session that has ended already, else see to it that it will be."""
        window = TimeWindow(session[0], session[1])
        ended = window.max_timestamp <= self.watermark_ms
        self._sessions.schedule(key, session, FIRED if ended else OPEN)
        if ended:
            self._collect(key, window, session[2])
