"""What happens to rows and timers from their arrival until they have taken effect.

Theory of operation: a call ends in a coroutine of its own, which only marks its row as
finished. One mail then commits what is finished: it applies the changes of state and
timers, takes the rows out of the queue, emits their results and lets the next of their
keys begin. A snapshot comes between mails: it holds a row as input, or everything that
came of it.

A watermark that arrives takes the timers it has reached out of the timer service and
puts them behind the rows of their keys that came before it. A row that registers a
timer which such a watermark has reached meanwhile puts it there itself.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import deque
from typing import Any

from aiomailbox.eventtime.timer_queue import Timer
from aiomailbox.eventtime.timers import InternalTimerService
from aiomailbox.operators.async_io.emitter import Emitter
from aiomailbox.operators.async_io.entry import Entry
from aiomailbox.operators.async_io.queues import Ready, SegmentedQueue
from aiomailbox.operators.async_io.rows import RowFlow
from aiomailbox.operators.async_io.segment import Segment
from aiomailbox.operators.async_state.changes import RowChanges, TimerChange
from aiomailbox.operators.async_state.event import KeyedEvent
from aiomailbox.operators.async_state.gate import TimerGate
from aiomailbox.operators.core.collector import Collector
from aiomailbox.operators.core.contract import Pending
from aiomailbox.operators.core.on_error import FATAL_ERRORS, ErrorAction
from aiomailbox.operators.functions.keyed_context import TimeDomain
from aiomailbox.records.elements import MIN_TIMESTAMP, Watermark
from aiomailbox.records.run import RUN_LENGTH_MAX
from aiomailbox.state.descriptors import VOID

__all__ = ["ChangesEmitter", "KeyedFlow"]

_TimerKey = tuple[TimeDomain, Any, int]


class KeyedFlow(RowFlow):
    """Leads rows and timers through the gate of their key to their call and commit.

    Args:
        parts: The arguments of `RowFlow`, up to ``settings``.
        queue: Where rows keep their places.
        gate: One row or timer of a key at a time.
        timers: The operator's timers.
    """

    def __init__(
        self,
        *parts: Any,
        queue: SegmentedQueue,
        gate: TimerGate,
        timers: InternalTimerService,
    ) -> None:
        context, emitter, failures, on_error, settings = parts
        super().__init__(
            context, queue, emitter, failures, on_error, settings, None, None
        )
        self._segments = queue
        self._keys = gate
        self._timers = timers
        self._finished: deque[Entry] = deque()
        self._flying: dict[_TimerKey, Entry] = {}

    def take_row(
        self,
        value: Any,
        timestamp: int | None,
        key: Any,
        watermark: int,
        attempts: int = 0,
    ) -> None:
        """Give a row its place, and begin its call as soon as its key is free."""
        entry = Entry(KeyedEvent(value, timestamp, key, watermark), timestamp)
        entry.attempts = attempts
        self._segments.put(entry)
        if self._keys.enter(entry, key):
            self.caller.submit([entry])

    def take_timer(self, timer: Timer, domain: TimeDomain, watermark: int) -> None:
        """Let a timer that is due follow the rows of its key."""
        entry = self._timer_entry(timer.key, timer.timestamp, domain, watermark)
        self._segments.put(entry)
        if self._keys.enter(entry, timer.key):
            self.caller.submit([entry])

    def timers_in_flight(self) -> list[tuple[str, Any, int]]:
        """Return the timers that are due and have not taken effect, in any order."""
        return [
            (domain.value, key, timestamp) for domain, key, timestamp in self._flying
        ]

    def commit(self, rows_max: int) -> None:
        """Let finished rows take effect, at most so many."""
        finished = self._finished
        for _ in range(min(rows_max, len(finished))):
            self._commit(finished.popleft())

    def _commit(self, entry: Entry) -> None:
        event: KeyedEvent = entry.value
        if event.domain is not None:
            assert event.timestamp is not None, "a timer has a time"
            # Before its changes: a timer may register itself again for the same time.
            del self._flying[event.domain, event.key, event.timestamp]
        if not entry.dropped:
            changes: RowChanges = entry.result
            changes.apply_state()
            for change in changes.timers:
                self._change_timer(entry, event.key, change)
        self._segments.on_done(entry)
        following = self._keys.leave(entry)
        if following is not None:
            self.caller.submit([following])

    def _change_timer(self, entry: Entry, key: Any, change: TimerChange) -> None:
        domain, timestamp, registers = change
        flying = self._flying.get((domain, key, timestamp))
        if registers:
            # Already on its way: registered again it would fire twice.
            if flying is None:
                self._register(entry, key, domain, timestamp)
            return
        # It can be taken back while it waits; once its call runs it goes on.
        if flying is not None and self._keys.withdraw(flying):
            del self._flying[domain, key, timestamp]
            flying.done = flying.dropped = True
            self._segments.on_done(flying)
        if domain is TimeDomain.EVENT_TIME:
            self._timers.delete_event_time_timer(key, VOID, timestamp)
        else:
            self._timers.delete_processing_time_timer(key, VOID, timestamp)

    def _register(
        self, entry: Entry, key: Any, domain: TimeDomain, timestamp: int
    ) -> None:
        if domain is TimeDomain.PROCESSING_TIME:
            self._timers.register_processing_time_timer(key, VOID, timestamp)
            return
        # The watermark may have come behind this row: then the timer is due before it
        # goes on.
        reached = _reached_by(entry.segment, timestamp)
        if reached is None:
            self._timers.register_event_time_timer(key, VOID, timestamp)
            return
        segment, watermark = reached
        timer = self._timer_entry(key, timestamp, domain, watermark)
        self._segments.put_into(timer, segment)
        self._keys.insert(
            timer, key, lambda other: _comes_after(other, segment, timestamp)
        )

    def _timer_entry(
        self, key: Any, timestamp: int, domain: TimeDomain, watermark: int
    ) -> Entry:
        entry = Entry(KeyedEvent(None, timestamp, key, watermark, domain), timestamp)
        self._flying[domain, key, timestamp] = entry
        return entry

    def _done(self, entry: Entry) -> None:
        entry.done = True
        self._finished.append(entry)
        self._emitter.request()

    def _drop(self, entry: Entry, error: BaseException, attempts: int) -> bool:
        event: KeyedEvent = entry.value
        action = self._on_error.action
        is_timer = event.domain is not None
        if is_timer or isinstance(error, FATAL_ERRORS) or action is ErrorAction.FAIL:
            # The row keeps its place: a snapshot before the failure must hold it.
            self._fail_task(error, *(() if is_timer else (event.value,)))
            return False
        entry.dropped = True
        if action is ErrorAction.SKIP:
            self._failures.take(event.value, event.timestamp, error)
        else:
            letter = self._dead_letter(entry, error, attempts)
            entry.letter = dataclasses.replace(letter, record=event.value)
        return True


class ChangesEmitter(Emitter):
    """Commits finished rows and emits what they collected."""

    flow: KeyedFlow

    def _take(self) -> Ready | None:
        # What is committed must be emitted in the same mail: so everything is taken.
        self.flow.commit(RUN_LENGTH_MAX)
        return self._queue.take_ready(sys.maxsize)

    def _emit_results(self, ready: Ready) -> Pending:
        collector = Collector(self._output)
        for changes in ready.results.values:
            timestamp = changes.result_timestamp
            collector.timestamp = MIN_TIMESTAMP if timestamp is None else timestamp
            for value in changes.values:
                collector.collect(value)
            for tag, value in changes.sides:
                collector.collect_side(tag, value)
        return collector.emit()


def _reached_by(start: Segment, timestamp: int) -> tuple[Segment, int] | None:
    """Find the first watermark after a row that has reached a timer, if it came."""
    segment: Segment | None = start
    while segment is not None:
        for control in segment.controls:
            if isinstance(control, Watermark) and control.timestamp_ms >= timestamp:
                return segment, control.timestamp_ms
        segment = segment.after
    return None


def _comes_after(other: Entry, segment: Segment, timestamp: int) -> bool:
    """Whether an entry of the same key comes after a timer of a stretch."""
    if other.segment.number != segment.number:
        return other.segment.number > segment.number
    event: KeyedEvent = other.value
    return (
        event.domain is TimeDomain.EVENT_TIME
        and event.timestamp is not None
        and event.timestamp > timestamp
    )
