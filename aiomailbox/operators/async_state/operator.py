"""The operator behind process_async: keyed state, timers, and many calls at once.

Theory of operation: the parts of map_async with order by key make the calls; see
`KeyedFlow` for what is different: state, timers, and when they take effect.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Hashable
from datetime import timedelta
from operator import attrgetter
from typing import Any

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.eventtime.timers import InternalTimerService, Timer
from aiomailbox.operators.async_io.calls import CallEntry
from aiomailbox.operators.async_io.operator import CallsOperator
from aiomailbox.operators.async_io.ordering import Emitter, ReadyRows, SegmentedQueue
from aiomailbox.operators.async_io.rows import KeyGate, RowFlow
from aiomailbox.operators.async_io.segment import QueuedControl, RowSegment
from aiomailbox.operators.async_io.settings import CallSettings, check_bounds, share
from aiomailbox.operators.async_state.function import KeyedAsyncFunction
from aiomailbox.operators.async_state.row_state import (
    KeyedEvent,
    RowChanges,
    StateHandles,
    TimerChange,
)
from aiomailbox.operators.core.collector import Collector
from aiomailbox.operators.core.failures import FATAL_ERRORS, RecordFailures
from aiomailbox.operators.core.fields import field_or_function
from aiomailbox.operators.core.operator import Pending, then
from aiomailbox.operators.core.user_code import (
    ErrorAction,
    OnError,
    check_on_error,
    checkpoint_listener,
    fail,
)
from aiomailbox.operators.functions.contexts import TimeDomain
from aiomailbox.operators.keyed.operators import (
    KeyReader,
    KeySelector,
    StatefulOperator,
)
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.policies.retry import Retry
from aiomailbox.records.events import MIN_TIMESTAMP, Watermark, WatermarkStatus
from aiomailbox.records.run import RUN_LENGTH_MAX, Run
from aiomailbox.state.descriptors import VOID
from aiomailbox.state.operator_state import OperatorStateSnapshot, RedistributionMode

# One row or timer of a key at a time, with timers that find their place.


class TimerGate(KeyGate):
    """A key gate into which timers are put between rows, and out of which they go.

    Example:
        >>> gate = TimerGate(waiting_max=10)
        >>> first, timer, later = (
        ...     CallEntry(name, None) for name in ("a", "timer", "b")
        ... )
        >>> gate.enter(first, "key"), gate.enter(later, "key")
        (True, False)
        >>> gate.insert(timer, "key", lambda entry: entry is later)
        >>> gate.leave(first).value
        'timer'
    """

    def insert(
        self, entry: CallEntry, key: Hashable, goes_after: Callable[[CallEntry], bool]
    ) -> None:
        """Let an entry wait before the first one that goes after it.

        The key is busy: a row of it has gone through and has not left.
        """
        entry.key = key
        # None: the key's row is the only one; there is a list only if others wait.
        behind = self._rows[key]
        if behind is None:
            self.enter(entry, key)
            return
        index = next(
            (place for place, other in enumerate(behind) if goes_after(other)),
            len(behind),
        )
        behind.insert(index, entry)
        self.waiting += 1

    def withdraw(self, entry: CallEntry) -> bool:
        """Take an entry out that waits; say whether it was waiting."""
        behind = self._rows.get(entry.key)
        if not behind or entry not in behind:
            return False
        behind.remove(entry)
        self.waiting -= 1
        return True


# What happens to rows and timers from their arrival until they have taken effect.
#
# Theory of operation: a call ends in a coroutine of its own, which only marks its row
# as finished. One mail then commits what is finished: it applies the changes of state
# and timers, takes the rows out of the queue, emits their results and lets the next of
# their keys begin. A snapshot comes between mails: it holds a row as input, or
# everything that came of it.
#
# A watermark that arrives takes the timers it has reached out of the timer service and
# puts them behind the rows of their keys that came before it. A row that registers a
# timer which such a watermark has reached meanwhile puts it there itself.


_TimerKey = tuple[TimeDomain, Any, int]


class KeyedFlow(RowFlow):
    """Leads rows and timers through the gate of their key to their call and commit.

    Args:
        emitter: As of `RowFlow`.
        settings: How calls are made.
        queue: The emitter's.
        gate: One row or timer of a key at a time.
        timers: The operator's timers.
    """

    _queue: SegmentedQueue

    def __init__(
        self,
        emitter: Emitter,
        settings: CallSettings,
        gate: TimerGate,
        timers: InternalTimerService,
    ) -> None:
        super().__init__(emitter, settings)
        self._keys = gate
        self._timers = timers
        self._finished: deque[CallEntry] = deque()
        self._flying: dict[_TimerKey, CallEntry] = {}

    def take_row(
        self,
        value: Any,
        timestamp: int | None,
        key: Any,
        watermark: int,
        attempts: int = 0,
    ) -> None:
        """Give a row its place, and begin its call as soon as its key is free."""
        entry = CallEntry(KeyedEvent(value, timestamp, key, watermark), timestamp)
        entry.attempts = attempts
        self._enter(entry, key)

    def take_timer(self, timer: Timer, domain: TimeDomain, watermark: int) -> None:
        """Let a timer that is due follow the rows of its key."""
        entry = self._timer_entry(timer.key, timer.timestamp, domain, watermark)
        self._enter(entry, timer.key)

    def _enter(self, entry: CallEntry, key: Any) -> None:
        self._queue.put(entry)
        if self._keys.enter(entry, key):
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

    def _commit(self, entry: CallEntry) -> None:
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
        self._queue.on_done(entry)
        following = self._keys.leave(entry)
        if following is not None:
            self.caller.submit([following])

    def _change_timer(self, entry: CallEntry, key: Any, change: TimerChange) -> None:
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
            self._queue.on_done(flying)
        if domain is TimeDomain.EVENT_TIME:
            self._timers.delete_event_time_timer(key, VOID, timestamp)
        else:
            self._timers.delete_processing_time_timer(key, VOID, timestamp)

    def _register(
        self, entry: CallEntry, key: Any, domain: TimeDomain, timestamp: int
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
        self._queue.put_into(timer, segment)
        self._keys.insert(
            timer, key, lambda other: _comes_after(other, segment, timestamp)
        )

    def _timer_entry(
        self, key: Any, timestamp: int, domain: TimeDomain, watermark: int
    ) -> CallEntry:
        entry = CallEntry(
            KeyedEvent(None, timestamp, key, watermark, domain), timestamp
        )
        self._flying[domain, key, timestamp] = entry
        return entry

    def _done(self, entry: CallEntry) -> None:
        entry.done = True
        self._finished.append(entry)
        self._emitter.request()

    def _drop(self, entry: CallEntry, error: BaseException, attempts: int) -> bool:
        event: KeyedEvent = entry.value
        is_timer = event.domain is not None
        fails = self._failures.on_error.action is ErrorAction.FAIL
        if is_timer or fails or isinstance(error, FATAL_ERRORS):
            # The row keeps its place: a snapshot before the failure must hold it.
            self._fail_task(error, *(() if is_timer else (event.value,)))
            return False
        entry.dropped = True
        entry.letter = self._failures.dropped(
            event.value, entry.timestamp, error, attempts
        )
        return True


class ChangesEmitter(Emitter):
    """Commits finished rows and emits what they collected."""

    flow: KeyedFlow

    def _take(self) -> ReadyRows | None:
        # What is committed must be emitted in the same mail: so everything is taken.
        self.flow.commit(RUN_LENGTH_MAX)
        return self.queue.take_ready(sys.maxsize)

    def _emit_results(self, ready: ReadyRows) -> Pending:
        collector = Collector(self._output)
        for changes in ready.results.values:
            timestamp = changes.event.result_timestamp
            collector.timestamp = MIN_TIMESTAMP if timestamp is None else timestamp
            for value in changes.values:
                collector.collect(value)
            for tag, value in changes.sides:
                collector.collect_side(tag, value)
        return collector.emit()


def _reached_by(start: RowSegment, timestamp: int) -> tuple[RowSegment, int] | None:
    """Find the first watermark after a row that has reached a timer, if it came."""
    segment: RowSegment | None = start
    while segment is not None:
        for control in segment.controls:
            if isinstance(control, Watermark) and control.timestamp_ms >= timestamp:
                return segment, control.timestamp_ms
        segment = segment.after
    return None


def _comes_after(other: CallEntry, segment: RowSegment, timestamp: int) -> bool:
    """Whether an entry of the same key comes after a timer of a stretch."""
    if other.segment.number != segment.number:
        return other.segment.number > segment.number
    event: KeyedEvent = other.value
    return (
        event.domain is TimeDomain.EVENT_TIME
        and event.timestamp is not None
        and event.timestamp > timestamp
    )


# What a keyed async operator resumes from, besides its state and its timers.


# Rows, watermarks and timers that had not taken effect: ``("row", value, timestamp,
# watermark at its arrival, attempts that have ended)``, ``("watermark", timestamp)`` and
# ``("status", status)``, as they came; then timers that were due: ``(domain, key,
# timestamp)``.
_InFlight = tuple[list[tuple[Any, ...]], list[tuple[str, Any, int]]]


class KeyedAsyncProcessOperator(CallsOperator, StatefulOperator):
    """Runs a keyed async function: rows of a key in order, keys at once.

    Args:
        key: A field's name or a function of a record.
        function: A `KeyedAsyncProcessFunction`, or an ``async def`` function
            ``(value, context, out)``.
        concurrency: Calls at a time in the whole job.
        timeout: Limit of one attempt, a timedelta or seconds.
        deadline: Limit of all attempts of a row with their waits.
        retry: Whether and when a row that failed is tried again, from its state before.
        limit: A rate that all operators that name it keep together.
        on_error: How to handle a row after its last attempt; nothing that it changed
            stays. A timer that fails always fails the task.
        capacity: Rows held at most in the whole job, 4 times ``concurrency`` if left out.
        key_capacity: Rows that may wait for their key, beside ``capacity``.

    Raises:
        InvalidArgumentError: If an argument has a value that cannot work.
        WrongTypeError: If an argument has the wrong type.

    Concept:
        Flink, ``AsyncExecutionController`` with ``AsyncKeyedProcessOperator``.

    Example:
        >>> import asyncio
        >>> from aiomailbox.state.descriptors import ValueStateDescriptor
        >>> from aiomailbox.testing import OneInputHarness
        >>> async def number(value, context, out):
        ...     seen = context.keyed_state.get_value(
        ...         ValueStateDescriptor("seen", default=0)
        ...     )
        ...     await asyncio.sleep(0)
        ...     seen.update(seen.value() + 1)
        ...     out.collect((value, seen.value()))
        >>> async def main():
        ...     operator = KeyedAsyncProcessOperator(str.lower, number, concurrency=8)
        ...     async with OneInputHarness(operator, keyed=True) as harness:
        ...         await harness.run(harness.process_run, ["a", "A"])
        ...         await harness.run(harness.end_input)
        ...         return harness.values
        >>> asyncio.run(main())
        [('a', 1), ('A', 2)]
    """

    _rows: KeyedFlow | None
    _gate: TimerGate

    def __init__(
        self,
        key: KeySelector,
        function: Any,
        *,
        concurrency: int = 16,
        timeout: timedelta | float | None = None,
        deadline: timedelta | float | None = None,
        retry: Retry | None = None,
        limit: RateLimit | None = None,
        on_error: OnError = fail,
        capacity: int | None = None,
        key_capacity: int | None = None,
    ) -> None:
        super().__init__()
        self._key = field_or_function(key, "key")
        self.function: KeyedAsyncFunction = KeyedAsyncFunction(function)
        self.listener = checkpoint_listener(function)
        self.settings: CallSettings = CallSettings(
            timeout=timeout, deadline=deadline, retry=retry, limit=limit
        )
        _refuse_retry_if(retry)
        self.concurrency, self.capacity, self.key_capacity = check_bounds(
            concurrency, capacity, key_capacity, 1
        )
        self.on_error: OnError = check_on_error(on_error)
        self._restored: list[_InFlight] = []

    def repeat_order(self) -> bool:
        """Say that it does not: keys are independent, and emit as their calls end."""
        return False

    def open(self) -> Pending:
        """Open the function, then begin with what was in flight in the snapshot."""
        context = self.context
        self._failures = RecordFailures(self, self.function.given)
        self._timers = self.timer_service("timers", self)
        handles = StateHandles(context.keyed_state)
        opened = self._failures.guard(self.function.open, context, handles)
        return then(opened, self._begin)

    def _begin(self) -> Pending:
        context = self.context
        subtask = context.parallelism, context.subtask_index
        self._keys = KeyReader(self._key, self)
        self._places = share(self.capacity, *subtask)
        self._gate = TimerGate(share(self.key_capacity, *subtask))
        self._queue = queue = SegmentedQueue(rows_may_overtake=True)
        self._emitter = ChangesEmitter(queue, self._failures)
        self._rows = self._emitter.flow = KeyedFlow(
            self._emitter, self.settings, self._gate, self._timers
        )
        self._connect(self._rows, self.function.call)
        return self._take_restored(self._rows)

    def process_run(self, run: Run) -> Pending:
        """Take the rows and begin their calls, as far as there is room."""
        keys = self._keys.read(run.values)
        taken = self._take_rows(run, keys, 0)
        return None if taken == len(run) else self._take_the_rest(run, keys, taken)

    def fire(self, timestamp_ms: int) -> Pending:
        """Let due timers follow the rows before them, as far as there is room."""
        # Calls on_event_time, which only puts the timers behind the rows of their keys.
        return self._timers.advance_watermark(timestamp_ms)

    def on_event_time(self, timer: Timer) -> Pending:
        """Take a timer that the watermark has reached."""
        return self._take_timer(timer, TimeDomain.EVENT_TIME)

    def on_processing_time(self, timer: Timer) -> Pending:
        """Take a timer that wall-clock time has passed."""
        return self._take_timer(timer, TimeDomain.PROCESSING_TIME)

    def _take_timer(self, timer: Timer, domain: TimeDomain) -> Pending:
        assert self._rows is not None, "timers fire after open"
        # Taken in any case: a timer that has left its service can't be put back.
        self._rows.take_timer(timer, domain, self.watermark_ms)
        return None if self._queue.held < self._places else self._some_room()

    async def _some_room(self) -> None:
        while self._queue.held >= self._places:
            await self._emitter.wait_for_change()

    @property
    def acts_at_checkpoints(self) -> bool:
        """Whether the function holds what belongs into its state, or wants to hear."""
        return super().acts_at_checkpoints or self.function.life.fills_state

    def fill_state(self) -> None:
        """Let the function put what it holds into its state."""
        if self._rows is not None:
            self._failures.guard(self.function.life.snapshot)

    def snapshot_own(self) -> OperatorStateSnapshot:
        """Return the rows and timers that have not taken effect."""
        in_flight = self._restored if self._rows is None else [self._in_flight()]
        pieces = [one for one in in_flight if any(one)]
        mode = RedistributionMode.MERGE
        return super().snapshot_own().with_list("in-flight", pieces, mode)

    def restore_own(self, own: OperatorStateSnapshot) -> None:
        """Take over rows and timers; they come before new rows."""
        super().restore_own(own)
        self._restored = own.elements("in-flight")

    def _in_flight(self) -> _InFlight:
        assert self._rows is not None, "only an open operator has rows in flight"
        elements = [
            _element(element)
            for element in self._queue.elements()
            # Timers are in a list of their own, as they are registered again.
            if not (isinstance(element, CallEntry) and element.value.domain is not None)
        ]
        return elements, self._rows.timers_in_flight()

    def _take_rows(self, run: Run, keys: list[Any], start: int) -> int:
        """Take rows while there is room; return the index of the first one left."""
        flow, watermark = self._rows, self.watermark_ms
        assert flow is not None, "process_run before open"
        values, timestamps = run.values, run.timestamps
        for index in range(start, len(values)):
            key = keys[index]
            if not self._has_room(key):
                return index
            stamp = None if timestamps is None else timestamps[index]
            # A run has one list of times; this marks those that have none.
            if stamp == MIN_TIMESTAMP:
                stamp = None
            flow.take_row(values[index], stamp, key, watermark)
        return len(values)

    def _has_room(self, key: Any) -> bool:
        gate = self._gate
        if gate.is_busy(key):
            return not gate.is_full
        return self._queue.held - gate.waiting < self._places

    async def _take_the_rest(self, run: Run, keys: list[Any], start: int) -> None:
        while start < len(run):
            await self._emitter.wait_for_change()
            start = self._take_rows(run, keys, start)

    def _take_control(self, control: QueuedControl) -> Pending:
        if not self._queue.held:
            return self._emitter.emit_control(control)
        self._queue.put_control(control)
        return None

    def _release(self) -> Pending:
        return self.function.life.close()

    def _take_restored(self, flow: KeyedFlow) -> Pending:
        restored, self._restored = self._restored, []
        due = self._due_again(restored)
        elements = [element for piece, _ in restored for element in piece]
        if len(restored) > 1:
            # Of several subtasks each had watermarks of its own: what they have in
            # common follows the rows of all.
            rows = [element for element in elements if element[0] == "row"]
            is_held = len(rows) < len(elements)
            elements = rows
            if is_held and self.watermark_ms != MIN_TIMESTAMP:
                elements = [*rows, ("watermark", self.watermark_ms)]
        pending: Pending = None
        for kind, *facts in elements:
            if kind == "row":
                self._take_restored_row(flow, *facts)
            elif kind == "watermark":
                (watermark,) = facts
                self._take_due(flow, due, watermark)
                pending = then(pending, self.pass_watermark, watermark)
            else:
                status = WatermarkStatus(*facts)
                pending = then(pending, self.process_status, status)
        self._take_due(flow, due, self.watermark_ms)
        return pending

    def _take_restored_row(
        self,
        flow: KeyedFlow,
        value: Any,
        timestamp: int | None,
        watermark: int,
        attempts: int,
    ) -> None:
        (key,) = self._keys.read([value])
        # The rows of all subtasks come to each after rescaling: it takes its own.
        if self.owns(key):
            flow.take_row(value, timestamp, key, watermark, attempts)

    def _due_again(self, restored: list[_InFlight]) -> deque[Timer]:
        """Return the timers that a watermark had fired, by time; register the others."""
        timers = self._timers
        due: list[Timer] = []
        for domain, key, timestamp in (
            one for _, timers_of in restored for one in timers_of
        ):
            if not self.owns(key):
                continue
            if domain != TimeDomain.EVENT_TIME.value:
                timers.register_processing_time_timer(key, VOID, timestamp)
            elif timestamp > self.watermark_ms:
                # It was due in a subtask whose event time was ahead of what is now.
                timers.register_event_time_timer(key, VOID, timestamp)
            else:
                due.append(Timer(timestamp, key, VOID))
        return deque(sorted(due, key=attrgetter("timestamp")))

    def _take_due(self, flow: KeyedFlow, due: deque[Timer], watermark: int) -> None:
        # They had places in an earlier instance: they need not wait for them again.
        while due and due[0].timestamp <= watermark:
            flow.take_timer(due.popleft(), TimeDomain.EVENT_TIME, watermark)


def _element(element: Any) -> tuple[Any, ...]:
    if isinstance(element, CallEntry):
        # With the watermark of its arrival: what it sees must not depend on a restart.
        event: KeyedEvent = element.value
        row = (event.value, element.timestamp, event.watermark, element.attempts)
        return ("row", *row)
    if isinstance(element, WatermarkStatus):
        return ("status", element.value)
    return ("watermark", element.timestamp_ms)


def _refuse_retry_if(retry: Retry | None) -> None:
    if retry is not None and retry.retry_if is not None:
        raise InvalidArgumentError(
            "retry",
            "retry_if checks results, and the function of process_async returns none",
            "Raise an exception in the function, and name it in retry_on.",
        )
