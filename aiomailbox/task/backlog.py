"""The backlog of an operator: the rest of a run that it left, and elements after it.

Theory of operation: an operator that awaits its records leaves the rest of a run where
that takes too long, see `RunInterruption`. The rest stands here then, and the task takes
no more input. The operator goes on by mail of its own, a slice at a time, so that other
mail has its turn in between; what operators before it emit meanwhile stands behind the
rest. All of it is a part of the operator's snapshot, and barriers need not wait for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable
from contextlib import suppress
from typing import Final

from aiomailbox.availability import Availability
from aiomailbox.clock import Clock
from aiomailbox.errors import RejectedMailError
from aiomailbox.keygroups.assignment import KeyGroupAssigner
from aiomailbox.mailbox.executor import MailboxExecutor
from aiomailbox.operators.core.operator import Input, Operator, Pending, finished
from aiomailbox.operators.core.watched import watched_input
from aiomailbox.operators.snapshots.codec import (
    HeldElement,
    held_elements,
    with_held_elements,
)
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.records.events import (
    MIN_TIMESTAMP,
    LatencyMarker,
    Watermark,
    WatermarkStatus,
)
from aiomailbox.records.run import RUN_LENGTH_MAX, ListRun, Run
from aiomailbox.state.operator_state import OperatorStateSnapshot
from aiomailbox.task.outputs import SliceSize

_Element = Run | Watermark | WatermarkStatus | LatencyMarker

# Above the results of a slice of input; only an emitter of more has to wait.
_RECORDS_MAX: Final = 4 * RUN_LENGTH_MAX


class Backlog:
    """The elements before one operator that it has not processed.

    Args:
        operator: The operator, which has been set up.
        mailbox: Of the operator.
        clock: Tells how long a slice took.

    Attributes:
        availability: False while something stands here.
        records: How many records stand here.
    """

    def __init__(
        self, operator: Operator, mailbox: MailboxExecutor, clock: Clock
    ) -> None:
        self.availability: Availability = Availability(available=True)
        self.records: int = 0
        self._operator = operator
        self._mailbox = mailbox
        self._elements: deque[tuple[BacklogInput, _Element]] = deque()
        self._size = SliceSize(clock)
        self.inputs: list[BacklogInput] = [
            BacklogInput(
                self,
                index,
                watched_input(operator, index),
                may_leave=operator.may_leave_rest(index),
            )
            for index in range(len(operator.inputs))
        ]

    def put(self, source: BacklogInput, element: _Element) -> Pending:
        """Let an element stand behind the others; waits where there are too many."""
        self._elements.append((source, element))
        if not isinstance(element, Watermark | WatermarkStatus | LatencyMarker):
            self.records += len(element)
        if self.records <= _RECORDS_MAX:
            return None
        # Mail must run meanwhile, for it is mail that works this off.
        return self._mailbox.wait_until(self.availability)

    def put_back(self, source: BacklogInput, rest: Run) -> None:
        """Let the rest of a run stand before the others."""
        self._elements.appendleft((source, rest))
        self.records += len(rest)
        # Only the first rest starts the mail, which sends itself again after that.
        if self.availability.available:
            self.availability.reset()
            self._send()

    async def emptied(self) -> None:
        """Wait until nothing stands here; mail of the operator runs meanwhile."""
        if not self.availability.available:
            await self._mailbox.wait_until(self.availability)

    def snapshot(self, taken: OperatorSnapshot) -> OperatorStateSnapshot:
        """Return what the operator keeps, with what stands here."""
        own = taken.own
        if not self._elements:
            return own
        # A list per input: each is redistributed by that input's own key function.
        for source in self.inputs:
            held: list[HeldElement] = []
            for input_of, element in self._elements:
                if input_of is not source or isinstance(element, LatencyMarker):
                    continue
                if isinstance(element, Watermark | WatermarkStatus):
                    held.append(element)
                else:
                    stamps = element.timestamps or [MIN_TIMESTAMP] * len(element)
                    held += zip(element.values, stamps, strict=True)
            follow_keys = self._operator.key_of_input(source.index) is not None
            own = with_held_elements(
                own, held, follow_keys=follow_keys, name=_name_of(source.index)
            )
        return own

    def restore(self, snapshot: OperatorSnapshot) -> None:
        """Let stand here what stood before the operator when a snapshot was taken."""
        for source in self.inputs:
            name = _name_of(source.index)
            for element in held_elements(snapshot.own, snapshot.watermark, name):
                if not isinstance(element, tuple):
                    self._elements.append((source, element))
                elif self._is_here(source.index, element[0]):
                    value, stamp = element
                    stamps = [MIN_TIMESTAMP if stamp is None else stamp]
                    self._elements.append((source, ListRun([value], stamps)))
                    self.records += 1
        if self._elements:
            self.availability.reset()

    def resume(self) -> None:
        """Go on with what was restored."""
        if not self.availability.available:
            self._send()

    def _is_here(self, index: int, value: object) -> bool:
        """Say whether a record belongs to this subtask, by its key."""
        key = self._operator.key_of_input(index)
        if key is None:
            return True
        context = self._operator.context
        # As if for one subtask: only the key group is asked for, not its owner.
        groups = KeyGroupAssigner(1, context.max_parallelism)
        return groups.key_group_of(key(value)) in context.key_group_range.key_groups

    def _send(self) -> None:
        # The mailbox of a task that is being cancelled may be closed.
        with suppress(RejectedMailError):
            self._mailbox.execute(self._work_off, description="go on with a backlog")

    def _work_off(self) -> Pending:
        """Process the elements until something must be awaited, or mail waits.

        Mail that has waited for the last of them is not to wait for more input: that
        nothing is left is seen in the next mail.
        """
        room, size = self._operator.output.availability, self._size
        if not self._elements:
            self.availability.set_available()
            return None
        while self._elements:
            if not room.available:
                # Not awaited in here: that would hold up all other mail.
                room.on_available(self._send)
                return None
            source, element = self._next()
            started = size.start()
            if isinstance(element, Watermark | WatermarkStatus | LatencyMarker):
                count, pending = 0, source.process_control(element)
            else:
                count, pending = len(element), source.process_piece(element)
            if pending is not None:
                return self._finish(source, pending, started, count)
            if count:
                size.stop(started, count)
            if self._mailbox.should_interrupt(any_mail=True):
                break
        self._send()
        return None

    def _next(self) -> tuple[BacklogInput, _Element]:
        """Take the next element, or as much of a run as a slice may be long."""
        source, element = self._elements.popleft()
        if isinstance(element, Watermark | WatermarkStatus | LatencyMarker):
            return source, element
        length = self._size.records
        if len(element) > length:
            self._elements.appendleft((source, element.slice(length, len(element))))
            element = element.slice(0, length)
        self.records -= len(element)
        return source, element

    async def _finish(
        self,
        source: BacklogInput,
        pending: Awaitable[None],
        started: float,
        count: int,
    ) -> None:
        since = self._size.start()
        await pending
        count -= source.take_rest()
        if count > 0:
            self._size.stop(started, count, awaited_from=since)
        self._send()


class BacklogInput:
    """An input of an operator, behind what stands before the operator.

    Args:
        backlog: What stands before the operator.
        index: Of the input.
        target: The input.
        may_leave: Whether the operator may leave the rest of a run of this input.
    """

    def __init__(
        self, backlog: Backlog, index: int, target: Input, *, may_leave: bool
    ) -> None:
        self.index = index
        self._backlog = backlog
        self._availability = backlog.availability
        self._interruption = backlog._operator.interruption
        self._target = target
        self._process_run = target.process_run
        self._may_leave = may_leave

    def process_run(self, run: Run) -> Pending:
        """Process records, or let them stand behind what stands there already."""
        if not self._availability.available:
            return self._backlog.put(self, run)
        pending = self.process_piece(run)
        return None if pending is None else self._finish(pending)

    def process_watermark(self, timestamp_ms: int) -> Pending:
        """Advance event time, after what stands there already."""
        if self._availability.available:
            return self._target.process_watermark(timestamp_ms)
        return self._backlog.put(self, Watermark(timestamp_ms))

    def process_status(self, status: WatermarkStatus) -> Pending:
        """Be notified that the input became idle or active, after all that is queued."""
        if self._availability.available:
            return self._target.process_status(status)
        return self._backlog.put(self, status)

    def process_latency_marker(self, marker: LatencyMarker) -> Pending:
        """Pass a latency marker on, after what stands there already."""
        if self._availability.available:
            return self._target.process_latency_marker(marker)
        return self._backlog.put(self, marker)

    def end_input(self) -> Pending:
        """Be notified that no more records come, after what stands there already."""
        if self._availability.available:
            return self._target.end_input()
        return self._end_later()

    def process_piece(self, run: Run) -> Pending:
        """Process records, of which the operator may leave some: see `take_rest`."""
        self._interruption.may_leave = self._may_leave
        return self._process_run(run)

    def process_control(
        self, element: Watermark | WatermarkStatus | LatencyMarker
    ) -> Pending:
        """Process what is no record."""
        if isinstance(element, Watermark):
            return self._target.process_watermark(element.timestamp_ms)
        if isinstance(element, WatermarkStatus):
            return self._target.process_status(element)
        return self._target.process_latency_marker(element)

    def take_rest(self) -> int:
        """Take from the operator what it has left of a run; return how much."""
        rest = self._interruption.rest
        if rest is None:
            return 0
        self._interruption.rest = None
        self._backlog.put_back(self, rest)
        return len(rest)

    async def _finish(self, pending: Awaitable[None]) -> None:
        await pending
        self.take_rest()

    async def _end_later(self) -> None:
        await self._backlog.emptied()
        await finished(self._target.end_input())


def has_backlog(snapshot: OperatorSnapshot) -> bool:
    """Say whether something stood before an operator when a snapshot was taken."""
    return any(name.startswith(_PREFIX) for name in snapshot.own.states)


_PREFIX: Final = "backlog-"


def _name_of(index: int) -> str:
    return f"{_PREFIX}{index}"
