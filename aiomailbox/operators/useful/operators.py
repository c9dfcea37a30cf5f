"""Operators of one idea each: batches, buffers, duplicates, latest values, samples."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable
from datetime import timedelta
from random import Random
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from aiomailbox.durations import above_zero, duration_ms
from aiomailbox.errors import BufferFullError, RejectedMailError
from aiomailbox.eventtime.processing_time import TimerHandle
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.event_progress import emit_progress
from aiomailbox.operators.core.fields import field_or_function, why_rows
from aiomailbox.operators.core.operator import (
    Operator,
    Output,
    Pending,
    TwoInputOperator,
    then,
)
from aiomailbox.operators.keyed.operators import (
    KeyReader,
    KeySelector,
    StatefulOperator,
)
from aiomailbox.operators.snapshots.codec import held_elements, with_held_elements
from aiomailbox.records.events import (
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    Watermark,
    WatermarkStatus,
)
from aiomailbox.records.run import ListRun, Run, take_records
from aiomailbox.signatures import check_choice, check_count, check_number
from aiomailbox.state.descriptors import (
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from aiomailbox.state.operator_state import OperatorStateSnapshot, RedistributionMode

# Puts records together in lists.


class BatchOperator(Operator):
    """Replaces records by lists of them, in their order.

    Theory of operation: a list goes out when it is full, when its first record has
    waited long enough, when the stream becomes idle, and at the end. Its event time is
    the latest one of its records. A watermark that comes while a list is open follows
    that list, so no list is late; of several the last one counts.

    Args:
        size: Records in a list at most.
        within: How long the first record of a list waits for others, in processing
            time: a timedelta or seconds; None for as long as it takes.

    Raises:
        InvalidArgumentError: If ``size`` is below 1, or ``within`` not above zero.
        WrongTypeError: If one has the wrong type.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> with OneInputHarness(BatchOperator(2, within=1)) as harness:
        ...     harness.process_run(["a", "b", "c"])
        ...     harness.set_processing_time(1001)
        ...     harness.values
        [['a', 'b'], ['c']]
    """

    def __init__(self, size: int, within: timedelta | float | None = None) -> None:
        self.size: int = check_count(size, "size")
        self.within_ms: int | None = (
            None if within is None else duration_ms(within, "within")
        )
        above_zero(self.within_ms, "within")
        self._values: list[Any] = []
        self._stamps: list[int] = []
        self._timer: TimerHandle | None = None
        self._due = 0
        self._held_watermark: int | None = None

    def open(self) -> Pending:
        """Go on with the open lists of earlier instances."""
        if self._values:
            self._arm(self._due)
        return None

    def snapshot_own(self) -> OperatorStateSnapshot:
        """Return the open list, when it is due, and the watermark that waits for it."""
        records = zip(self._values, self._stamps, strict=True)
        own = super().snapshot_own().with_list("open-batch", records)
        if not self._values:
            return own
        waiting = (len(self._values), self._due, self._held_watermark)
        return own.with_list("waiting", [waiting], RedistributionMode.MERGE)

    def restore_own(self, own: OperatorStateSnapshot) -> None:
        """Take over the open list, or what of several lists has come here."""
        for value, stamp in own.elements("open-batch"):
            self._values.append(value)
            self._stamps.append(stamp)
        if not self._values:
            return
        waiting = own.elements("waiting")
        # The earliest: no record may wait longer than was promised to it.
        self._due = min(due for _, due, _ in waiting)
        held = [watermark for _, _, watermark in waiting if watermark is not None]
        # It came whole to one subtask, so its own watermark is still right.
        if len(waiting) == 1 and waiting[0][0] == len(self._values):
            self._held_watermark = waiting[0][2]
        elif held and self.watermark_ms != MIN_TIMESTAMP:
            # Of several lists each had watermarks of its own.
            self._held_watermark = self.watermark_ms

    def process_run(self, run: Run) -> Pending:
        """Take the records, and pass on the lists that are full."""
        if not len(run):
            return None
        was_empty = not self._values
        self._values += run.values
        self._stamps += run.timestamps or [MIN_TIMESTAMP] * len(run)
        if len(self._values) < self.size:
            if was_empty:
                self._arm()
            return None
        return self._emit(len(self._values) // self.size * self.size)

    def pass_watermark(self, timestamp_ms: int) -> Pending:
        """Hold the watermark back while a list is open."""
        # Nothing comes after it that could fill the list.
        if timestamp_ms == MAX_TIMESTAMP:
            self._held_watermark = None
            pending = self._emit(len(self._values))
            return then(pending, self.output.emit_watermark, timestamp_ms)
        if not self._values:
            return self.output.emit_watermark(timestamp_ms)
        self._held_watermark = timestamp_ms
        return None

    def process_status(self, status: WatermarkStatus) -> Pending:
        """Pass the status on after the open list."""
        return then(self._emit(len(self._values)), self.output.emit_status, status)

    def end_input(self) -> Pending:
        """Pass on the open list."""
        return self._emit(len(self._values))

    def close(self) -> Pending:
        """Wait no more."""
        self._disarm()
        return None

    def _emit(self, count: int) -> Pending:
        """Pass on lists of the first ``count`` records, then the held watermark."""
        if not count:
            return None
        self._disarm()
        lists, stamps = [], []
        for start in range(0, count, self.size):
            end = min(start + self.size, count)
            lists.append(self._values[start:end])
            stamps.append(max(self._stamps[start:end]))
        del self._values[:count], self._stamps[:count]
        if self._values:
            self._arm()
        has_times = any(stamp != MIN_TIMESTAMP for stamp in stamps)
        pending = self.output.emit_run(ListRun(lists, stamps if has_times else None))
        held = self._held_watermark
        # What is left of the last run came after the watermark.
        self._held_watermark = None
        if held is None:
            return pending
        return then(pending, self.output.emit_watermark, held)

    def _arm(self, due: int | None = None) -> None:
        if self.within_ms is None:
            return
        time = self.context.processing_time
        # A restored list keeps its due time: restarts must not put it off for ever.
        self._due = due or time.current_processing_time() + self.within_ms
        self._timer = time.register_timer(self._due, self._on_timer)

    def _disarm(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _on_timer(self, _: int) -> Pending:
        self._timer = None
        return self._emit(len(self._values))


# Takes records as fast as they come, and loses some rather than wait.


BufferPolicy = Literal["drop_oldest", "latest", "error"]


class BufferOperator(Operator):
    """Keeps records while the output takes none, up to a bound.

    Theory of operation: records are numbered, and a watermark or status remembers the
    number of the record that follows it. It goes out when all records before it have
    gone out or were dropped; of watermarks that meet in one place the last one counts.

    Args:
        size: Records that wait at most.
        policy: What happens to one too many: ``"drop_oldest"``: the one that waits
            longest is dropped; ``"latest"``: all that wait are dropped, and the new one
            waits; ``"error"``: the job fails.

    Raises:
        InvalidArgumentError: If ``size`` is below 1 or the policy is unknown.
        WrongTypeError: If ``size`` is not an int.

    Concept:
        Reactive Streams, ``onBackpressureBuffer``, ``onBackpressureLatest``.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> with OneInputHarness(BufferOperator(2)) as harness:
        ...     harness.recorded.availability.reset()
        ...     harness.process_run(["a", "b", "c"])
        ...     harness.recorded.availability.set_available()
        ...     harness.run_mail()
        ...     harness.values
        ['b', 'c']
    """

    takes_input_always = True

    def __init__(self, size: int, policy: BufferPolicy = "drop_oldest") -> None:
        self.size: int = check_count(size, "size")
        check_choice(policy, "policy", *get_args(BufferPolicy))
        self.policy = policy
        self._records: deque[tuple[Any, int]] = deque()
        # With the number of the record that follows each.
        self._controls: deque[tuple[int, Watermark | WatermarkStatus]] = deque()
        # Numbers go on over the whole run, so that controls keep their place as records
        # go.
        self._first = 0
        self._waiting = False

    def open(self) -> Pending:
        """Go on with the records that waited."""
        metrics = self.context.metrics
        self._dropped = metrics.counter("records_dropped")
        metrics.gauge("buffered", lambda: len(self._records))
        if self._records:
            self._wait()
        return None

    def snapshot_own(self) -> OperatorStateSnapshot:
        """Return the records that wait, and what waits among them."""
        controls = deque(self._controls)
        elements: list[Any] = []
        for number, record in enumerate(self._records, self._first):
            # Controls stand before the record with their number.
            while controls and controls[0][0] <= number:
                elements.append(controls.popleft()[1])
            elements.append(record)
        elements += [control for _, control in controls]
        return with_held_elements(super().snapshot_own(), elements)

    def restore_own(self, own: OperatorStateSnapshot) -> None:
        """Take over the records that waited."""
        for element in held_elements(own, self.watermark_ms):
            if isinstance(element, tuple):
                value, stamp = element
                self._records.append((value, MIN_TIMESTAMP if stamp is None else stamp))
            else:
                self._put_control(element)

    def process_run(self, run: Run) -> Pending:
        """Pass records on while there is room, and keep the others."""
        stamps = run.timestamps or [MIN_TIMESTAMP] * len(run)
        for record in zip(run.values, stamps, strict=True):
            if not self._records and self.output.availability.available:
                # Nothing waits for a writer, which is all that can follow here.
                self._emit(record)
            else:
                self._keep(record)
        self._wait()
        return None

    def pass_watermark(self, timestamp_ms: int) -> Pending:
        """Pass the watermark on after the records before it."""
        self._put_control(Watermark(timestamp_ms))
        return self._drain()

    def process_status(self, status: WatermarkStatus) -> Pending:
        """Pass the status on after the records before it."""
        self._put_control(status)
        return self._drain()

    def end_input(self) -> Pending:
        """Wait until all records have gone out."""
        return self._empty() if self._records else None

    def close(self) -> Pending:
        """Wait for the output no more, and hold nothing."""
        self.output.availability.discard(self._on_output)
        self._records.clear()
        self._controls.clear()
        return None

    def _keep(self, record: tuple[Any, int]) -> None:
        if len(self._records) == self.size:
            if self.policy == "error":
                raise BufferFullError(self.context.operator_name, self.size)
            # `latest`: all that waited is older than the record that comes.
            count = 1 if self.policy == "drop_oldest" else self.size
            for _ in range(count):
                self._records.popleft()
            self._first += count
            self._dropped.value += count
            self._merge_controls()
        self._records.append(record)

    def _put_control(self, control: Watermark | WatermarkStatus) -> None:
        self._controls.append((self._first + len(self._records), control))
        if len(self._controls) > 1:
            place, before = self._controls[-2]
            # Only next to each other: a status in between belongs where it is.
            if place == self._controls[-1][0] and _are_watermarks(before, control):
                del self._controls[-2]

    def _merge_controls(self) -> None:
        """Let watermarks that nothing holds back any more become one."""
        controls = self._controls
        while len(controls) > 1 and controls[1][0] <= self._first:
            if not _are_watermarks(controls[0][1], controls[1][1]):
                return
            controls.popleft()

    def _drain(self) -> Pending:
        """Emit what can be emitted."""
        while True:
            # Also without room: controls take none, and nothing is before these.
            while self._controls and self._controls[0][0] <= self._first:
                _, control = self._controls.popleft()
                self._done(emit_progress(self.output, (control,)))
            if not self._records:
                return None
            if not self.output.availability.available:
                self._wait()
                return None
            record = self._records.popleft()
            self._first += 1
            self._emit(record)

    def _emit(self, record: tuple[Any, int]) -> None:
        value, stamp = record
        self._done(
            self.output.emit_run(
                ListRun([value], None if stamp == MIN_TIMESTAMP else [stamp])
            )
        )

    def _done(self, pending: Pending) -> None:
        # The operator is alone in its task, and writers never have to wait.
        assert pending is None, "a buffer is followed by a writer only"

    def _wait(self) -> None:
        if self._records and not self._waiting:
            self._waiting = True
            self.output.availability.on_available(self._on_output)

    def _on_output(self) -> None:
        if self._waiting:
            # While the task is closing, what waits is in its last snapshot.
            with contextlib.suppress(RejectedMailError):
                self.context.mailbox.execute(self._on_room, description="emit records")

    def _on_room(self) -> Pending:
        self._waiting = False
        return self._drain()

    async def _empty(self) -> None:
        while self._records:
            waiter = self.output.availability.waiter()
            # With mail: the consumer that makes room may need this task to go on.
            await self.context.mailbox.yield_until(waiter)
            self._drain()


def _are_watermarks(*controls: Watermark | WatermarkStatus) -> bool:
    return all(isinstance(control, Watermark) for control in controls)


# Passes on the first record of each key.


@runtime_checkable
class DistinctRun(Protocol):
    """A run that can find its keys without rows."""

    def first_of_keys(self, key: Any) -> tuple[list[Any], list[int]] | None:
        """Return each key once, with the place of its first record, ascending."""


class DeduplicateOperator(StatefulOperator):
    """Passes on the first record of each key and drops the others.

    Args:
        key: A field's name or a function of a record.
        ttl: After how long, in processing time since its first record, a key counts as
            new again: a timedelta; None for never.

    Raises:
        InvalidArgumentError: If ``ttl`` is zero or negative.

    Concept:
        Flink SQL, deduplication that keeps the first row.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> with OneInputHarness(DeduplicateOperator(str.lower), keyed=True) as harness:
        ...     harness.process_run(["a", "b", "A"])
        ...     harness.values
        ['a', 'b']
    """

    takes_columns = True

    def __init__(self, key: KeySelector, *, ttl: timedelta | None = None) -> None:
        super().__init__()
        self._key = field_or_function(key, "key")
        self._ttl = None if ttl is None else StateTtlConfig(ttl)

    def rows_reason(self) -> str:
        """Return the key function that asks for rows."""
        return why_rows(self._key)

    def open(self) -> Pending:
        self._keys = KeyReader(self._key, self)
        self._seen = self.context.keyed_state.get_value(
            # The name is in snapshots.
            ValueStateDescriptor("seen", bool, ttl=self._ttl)
        )
        self._dropped = self.context.metrics.counter("duplicates_dropped")
        return None

    def process_run(self, run: Run) -> Pending:
        """Pass on the records whose keys are new."""
        if not len(run):
            return None
        keys, places = self._first_of_keys(run)
        self.context.keyed_state.prefetch(keys)
        kept = [
            place for key, place in zip(keys, places, strict=True) if self._is_new(key)
        ]
        if len(kept) == len(run):
            return self.output.emit_run(run)
        self._dropped.value += len(run) - len(kept)
        return self.output.emit_run(take_records(run, kept)) if kept else None

    def _first_of_keys(self, run: Run) -> tuple[list[Any], Iterable[int]]:
        """Return keys and the places of their records; of columns each key once."""
        # A column finds its distinct values without making rows.
        if type(run) is not ListRun and isinstance(run, DistinctRun):
            found = run.first_of_keys(self._key)
            if found is not None:
                self._keys.check(found[0])
                return found
        keys = self._keys.read(run.values)
        return keys, range(len(keys))

    def _is_new(self, key: Any) -> bool:
        self.context.keyed_state.set_current_key(key)
        if self._seen.value():
            return False
        self._seen.update(True)
        return True


# Pairs each record with the latest one of another stream.


_LATEST = MapStateDescriptor("latest")


class WithLatestOperator(TwoInputOperator):
    """Replaces each record of the first input by a pair with the second's latest one.

    "Latest" is the one that arrived last; event time plays no part (see
    `AsOfJoinOperator` for that). Records that come before the second input's first one
    are dropped and counted. Every subtask has to get the whole second input.

    Concept:
        ReactiveX, ``withLatestFrom``.

    Example:
        >>> from aiomailbox.testing import TwoInputHarness
        >>> with TwoInputHarness(WithLatestOperator()) as harness:
        ...     harness.first.process_element("early")
        ...     harness.second.process_run([1, 2])
        ...     harness.first.process_element("a")
        ...     harness.values
        [('a', 2)]
    """

    def open(self) -> Pending:
        self._latest = self.context.operator_state.get_broadcast_state(_LATEST)
        self._dropped = self.context.metrics.counter("records_without_latest")
        return None

    def process_input(self, index: int, run: Run) -> Pending:
        """Keep the last record of the second input, and pair those of the first."""
        if not len(run):
            return None
        if index:
            # In a tuple, for the record may be None.
            self._latest.put("latest", (run.values[-1],))
            return None
        kept: Any = self._latest.get("latest")
        if kept is None:
            self._dropped.value += len(run)
            return None
        pairs = [(value, kept[0]) for value in run.values]
        return self.output.emit_run(ListRun(pairs, run.timestamps))


# Passes on a random part of the records.


class SampleOperator(Operator):
    """Passes on each record with the same probability, independently of the others.

    The choice follows from the job's seed, the operator and the subtask: the same input
    in the same order gives the same sample, also across a restored snapshot. With
    another parallelism it is another sample.

    Args:
        fraction: The probability, from 0 to 1.

    Raises:
        InvalidArgumentError: If it is not from 0 to 1.
        WrongTypeError: If it is not a number.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> with OneInputHarness(SampleOperator(0.5)) as harness:
        ...     harness.process_run(range(1000))
        ...     450 < len(harness.values) < 550
        True
    """

    takes_columns = True

    def __init__(self, fraction: float) -> None:
        self.fraction: float = check_number(fraction, "fraction", minimum=0, maximum=1)

    def setup(self, context: RuntimeContext, output: Output) -> None:
        """Take what the task provides, and begin with the job's seed."""
        super().setup(context, output)
        # A generator of its own: others of the operator's context must not shift it.
        self._random = Random(context.random.getrandbits(64))

    def snapshot_own(self) -> OperatorStateSnapshot:
        """Return the state of the random generator."""
        state, mode = self._random.getstate(), RedistributionMode.MERGE
        return super().snapshot_own().with_list("random-state", [state], mode)

    def restore_own(self, own: OperatorStateSnapshot) -> None:
        """Go on where the earlier instance stopped, if there was only one."""
        kept = own.elements("random-state")
        if len(kept) == 1:
            self._random.setstate(kept[0])

    def process_run(self, run: Run) -> Pending:
        """Pass on the records that are chosen."""
        draw, fraction = self._random.random, self.fraction
        kept = [index for index in range(len(run)) if draw() < fraction]
        return self.output.emit_run(take_records(run, kept)) if kept else None
