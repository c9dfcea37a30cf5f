"""Event-time sessions with incremental aggregation: the fast way.

Theory of operation: most records prolong the newest session of their key, which is
found and changed in the loop. All that is less simple, such as sessions that merge and
records that come late, is left to one method. `aiomailbox.windowing.operator` gives
the same results for all windows.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from typing import Any

from aiomailbox.operators.core.contract import Pending, then
from aiomailbox.operators.core.on_error import USER_ERRORS
from aiomailbox.operators.core.pieces import in_pieces
from aiomailbox.operators.keyed.stateful import Layered
from aiomailbox.records.elements import MAX_TIMESTAMP
from aiomailbox.state.descriptors import AccumulatorDescriptor
from aiomailbox.state.entries import GroupedEntries
from aiomailbox.state.registry import state_meta
from aiomailbox.state.snapshot import KeyedStateSnapshot
from aiomailbox.windowing.assigners import required_timestamp
from aiomailbox.windowing.open_sessions import (
    FIRED,
    GONE,
    OPEN,
    OpenSessions,
    Session,
    SessionRows,
    converted_sessions,
    start_of,
)
from aiomailbox.windowing.time_window import TimeWindow
from aiomailbox.windowing.tumbling import AggregateWindowsOperator
from aiomailbox.windowing.window_spec import WindowSpec


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

    def open(self) -> Pending:
        """Bind the state."""
        table = self.context.keyed_state.table(self._state)
        self._sessions = OpenSessions(table, self._lateness)
        return then(in_pieces(self._sessions.take_over), super().open)

    def expect_accumulators(self) -> None:
        """Ask for the sessions."""
        self.context.keyed_state.table(self._state)

    def snapshot_apart(self) -> Iterable[KeyedStateSnapshot]:
        """Capture all sessions."""
        groups = self.context.max_parallelism
        rows = GroupedEntries([SessionRows(self._sessions.snapshot())], groups)
        states = [state_meta(self._state, namespaced=False)]
        return [KeyedStateSnapshot(groups, states, rows)]

    def layered(self) -> list[Layered]:
        """Return all that a snapshot is taken of."""
        return [*super().layered(), self._sessions]

    def _take_ended(self, count: int, results: list[Any], stamps: list[int]) -> bool:
        """Take the sessions that end."""
        ended, done = self._sessions.pop_ended(self.watermark_ms, count)
        for key, session in ended:
            window = TimeWindow(session[0], session[1])
            try:
                results.append(self._result(key, window, session[2]))
            except USER_ERRORS as error:
                self._failures.take_window(key, window, [session[2]], error)
            else:
                stamps.append(window.max_timestamp)
        return done

    def _add_all(
        self, keys: Iterator[Any], values: Iterator[Any], stamps: Iterator[int]
    ) -> None:
        """Add record by record until something raises."""
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
