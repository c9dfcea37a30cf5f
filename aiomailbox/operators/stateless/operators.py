"""Map, filter and flat_map: operators that keep nothing between records."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, ClassVar

from aiomailbox.eventtime.generators import (
    NoWatermarks,
    OutputGuard,
    check_before_end_of_time,
    follow_run,
)
from aiomailbox.eventtime.strategy import TimestampAssigner, WatermarkStrategy
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.event_progress import (
    WATERMARK_INTERVAL_MS,
    WatermarkTicks,
    assign_timestamps,
    emit_progress,
    rows_for_times,
    warn_of_units,
)
from aiomailbox.operators.core.failures import USER_ERRORS, RecordFailures
from aiomailbox.operators.core.fields import RecordFields
from aiomailbox.operators.core.operator import (
    Operator,
    Output,
    Pending,
    await_each,
    finished,
    in_turn,
    then,
)
from aiomailbox.operators.core.user_code import (
    UNDECIDED,
    UNMADE,
    CallableKind,
    ErrorAction,
    OnError,
    callable_kind,
    check_function,
    check_on_error,
    check_run_in,
    check_sync_function,
    checkpoint_listener,
    fail,
    is_async_callable,
    items_of,
    refuse_generator,
    refuse_resultless,
    refuse_unmade,
)
from aiomailbox.operators.core.watched import (
    LookedAtOperator,
    noted,
    repeated_objects,
    watched_function,
)
from aiomailbox.operators.stateless.fused import (
    FusedLoop,
    StageKind,
    is_compilable,
    next_piece_length,
)
from aiomailbox.operators.stateless.thread_operator import ThreadOperator
from aiomailbox.records.events import (
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    LatencyMarker,
    WatermarkStatus,
)
from aiomailbox.records.run import ListRun, Run
from aiomailbox.state.operator_state import OperatorStateSnapshot, RedistributionMode


# Map, filter and flat_map with ``async def`` functions, one record at a time.
class AsyncStatelessOperator(LookedAtOperator):
    """An ``async def`` function awaited for one record after the other.

    It is made by `stateless`, which has looked at the function. Each result goes out before the next call, so order is kept and nothing is held
    back; `map_async` runs many calls at once.

    Args:
        kind: What is done with the function's result. A flat_map's is an iterable, or
            the function is an asynchronous generator.
        function: Called with each value.
        on_error: How to handle a record for which it raises.

    Raises:
        InvalidArgumentError: If an asynchronous generator is not used as flat_map.

    Example:
        >>> import asyncio
        >>> from aiomailbox.testing import OneInputHarness
        >>> async def greet(name):
        ...     return f"hello {name}"
        >>> async def main():
        ...     with OneInputHarness(
        ...         AsyncStatelessOperator(StageKind.MAP, greet)
        ...     ) as harness:
        ...         await harness.run(harness.process_element, "you")
        ...         return harness.values
        >>> asyncio.run(main())
        ['hello you']
    """

    def __init__(
        self,
        kind: StageKind,
        function: Callable[[Any], Any],
        *,
        on_error: OnError = fail,
    ) -> None:
        self.kind = kind
        self.function: Callable[..., Any] = function
        self.listener = checkpoint_listener(function)
        self.on_error: OnError = check_on_error(on_error)
        self._piece_length = 1
        self._generates = callable_kind(function) is CallableKind.ASYNC_GENERATOR
        if kind is not StageKind.FLAT_MAP:
            refuse_generator(function, "function", "Use it with flat_map.")

    def open(self) -> Pending:
        self._failures = RecordFailures(self, self.function)
        if self.kind is not StageKind.FILTER:
            self._seen = repeated_objects(self.context, self.function)
        return None

    def may_leave_rest(self, index: int) -> bool:
        return True

    def process_run(self, run: Run) -> Pending:
        """Await the function for each record, in order."""
        return await_each(self, run, self._process) if len(run) else None

    async def _process(self, index: int, value: Any, timestamp: int | None) -> None:
        process = self._process_generated if self._generates else self._process_awaited
        await process(value, timestamp)
        if self._failures.waiting:
            await finished(self._failures.report())

    async def _process_awaited(self, value: Any, timestamp: int | None) -> None:
        try:
            result = await self.function(value)
            is_flat = self.kind is StageKind.FLAT_MAP
            if type(result) in UNDECIDED and not is_flat:
                self._check(result)
            items = items_of(self.function, result) if is_flat else None
            if items is not None and self.context.mutations is not None:
                items = noted(items, self.context.mutations)
        except USER_ERRORS as error:
            self._failures.take(value, timestamp, error)
            return
        if items is not None:
            await self._emit_items(value, timestamp, items)
        elif self.kind is StageKind.MAP:
            await self._emit([result], timestamp)
        elif result:
            await self._emit([value], timestamp)

    def _check(self, result: object) -> None:
        if type(result) in UNMADE or self.kind is StageKind.FILTER:
            refuse_unmade(result, self.function, is_awaited=True)

    async def _emit_items(
        self, value: Any, timestamp: int | None, items: Iterator[Any]
    ) -> None:
        """Emit items in pieces, and pause while the output is full: they may not end."""
        while True:
            length, piece = self._piece_length, list[Any]()
            try:
                # What islice has taken when it raises is in the list nevertheless.
                piece.extend(islice(items, length))
            except USER_ERRORS as error:
                await self._emit(piece, timestamp)
                self._failures.take(value, timestamp, error)
                return
            await self._emit(piece, timestamp)
            available = self.output.availability.available
            self._piece_length = next_piece_length(length, len(piece), fitted=available)
            if len(piece) < length:
                return
            # An endless iterator of ready items would keep the event loop.
            await asyncio.sleep(0)
            await self._wait_for_room()

    async def _process_generated(self, value: Any, timestamp: int | None) -> None:
        # Closed also if the task ends in the middle, so that its `finally` runs now and
        # not at some collection of garbage.
        async with contextlib.aclosing(self.function(value)) as items:
            while True:
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    return
                except USER_ERRORS as error:
                    self._failures.take(value, timestamp, error)
                    return
                await self._emit([item], timestamp)
                await self._wait_for_room()

    async def _wait_for_room(self) -> None:
        """Wait in the middle of a record, while those behind go on with theirs."""
        availability = self.output.availability
        if not availability.available:
            await self.context.mailbox.wait_until(availability)

    async def _emit(self, results: list[Any], timestamp: int | None) -> None:
        if not results:
            return
        seen = self._seen
        if seen is not None and not seen.is_over:
            seen.look_at(results)
        stamps = None if timestamp is None else [timestamp] * len(results)
        pending = self.output.emit_run(ListRun(results, stamps))
        if pending is not None:
            await pending


class StatelessOperator(Operator):
    """A synchronous function applied to each record; adjacent ones can be fused.

    Args:
        function: Called with each value.
        on_error: How to handle a record for which it raises.

    Raises:
        WrongTypeError: If ``function`` cannot be called with one argument, or is
            asynchronous (see `stateless`), or ``on_error`` is not an `OnError`.
        InvalidArgumentError: If ``function`` is a generator and this is no flat_map.
    """

    kind: ClassVar[StageKind]

    def __init__(
        self, function: Callable[[Any], Any], *, on_error: OnError = fail
    ) -> None:
        self.function: Callable[..., Any] = check_sync_function(
            function, "function", arity=1, may_yield=self.kind is StageKind.FLAT_MAP
        )
        self.listener = checkpoint_listener(function)
        self.on_error: OnError = check_on_error(on_error)

    def open(self) -> Pending:
        """Prepare the loop; it is compiled when the first run shows its form."""
        check = self.context.mutations
        if check is not None and self.kind is StageKind.FLAT_MAP:
            self.function = watched_function(self.function, check)
        self._loop = FusedLoop([self], self.output)
        return None

    def process_run(self, run: Run) -> Pending:
        """Apply the function to each record and emit the results as one run."""
        return self._loop.process(run)


class MapOperator(StatelessOperator):
    """Replaces each record by what a function returns for it.

    Concept:
        Flink, ``MapFunction`` and ``StreamMap``.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> with OneInputHarness(MapOperator(str.upper)) as harness:
        ...     harness.process_element("a", 1)
        ...     harness.output
        [StreamRecord(value='A', timestamp=1)]
    """

    kind = StageKind.MAP


class FilterOperator(StatelessOperator):
    """Keeps the records for which a function returns something true.

    Concept:
        Flink, ``FilterFunction`` and ``StreamFilter``.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> with OneInputHarness(FilterOperator(str.isupper)) as harness:
        ...     harness.process_run(["a", "B"])
        ...     harness.output
        [StreamRecord(value='B', timestamp=None)]
    """

    kind = StageKind.FILTER


class FlatMapOperator(StatelessOperator):
    """Replaces each record by the items of what a function returns for it.

    The function returns an iterable, or is a generator function: then it is paused
    between its items while the output cannot take more.

    Concept:
        Flink, ``FlatMapFunction`` and ``StreamFlatMap``.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> with OneInputHarness(FlatMapOperator(str.split)) as harness:
        ...     harness.process_run(["to be", "or"])
        ...     [record.value for record in harness.output]
        ['to', 'be', 'or']
    """

    kind = StageKind.FLAT_MAP


_OPERATORS: dict[StageKind, type[StatelessOperator]] = {
    operator.kind: operator
    for operator in (MapOperator, FilterOperator, FlatMapOperator)
}


def stateless(
    kind: StageKind,
    function: Callable[[Any], Any],
    *,
    on_error: OnError = fail,
    run_in: str = "loop",
) -> StatelessOperator | AsyncStatelessOperator | ThreadOperator:
    """Return the operator for a function, whether it is sync or ``async def``.

    Args:
        kind: What is done with the function's result.
        function: Called with each value.
        on_error: How to handle a record for which it raises.
        run_in: ``"thread"`` for a synchronous function that blocks.

    Raises:
        InvalidArgumentError: If ``run_in`` is not known, or does not fit the function.
        WrongTypeError: If ``function`` cannot be called with one argument.

    Example:
        >>> stateless(StageKind.MAP, str.upper).kind.value
        'map'
    """
    check_run_in(run_in, function)
    if kind is StageKind.FILTER:
        refuse_resultless(function, "function")
    if run_in == "thread":
        return ThreadOperator(kind, function, on_error=on_error)
    checked = check_function(function, "function", arity=1)
    if is_async_callable(checked):
        return AsyncStatelessOperator(kind, checked, on_error=on_error)
    return _OPERATORS[kind](checked, on_error=on_error)


# Adjacent stateless operators of a chain as one.


class FusedOperator(Operator):
    """Adjacent map, filter and flat_map operators as one loop over a run.

    Errors, skipped records and dead letters are those of the part whose function
    raised: each part that was given a ``setup`` of its own uses its own context and
    its own side outputs.

    Args:
        parts: The operators, in order; no more than `is_compilable` allows.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> fused = FusedOperator([MapOperator(str.upper), FilterOperator(str.isalpha)])
        >>> with OneInputHarness(fused) as harness:
        ...     harness.process_run(["a", "1"])
        ...     harness.values
        ['A']
    """

    def __init__(self, parts: Sequence[StatelessOperator]) -> None:
        self.parts: list[StatelessOperator] = list(parts)

    def setup(self, context: RuntimeContext, output: Output) -> None:
        """Take what the task provides, also for parts that have nothing yet."""
        super().setup(context, output)
        for part in self.parts:
            if not hasattr(part, "context"):
                part.setup(context, output)

    def open(self) -> Pending:
        """Prepare the loop; it is compiled when the first run shows its form."""
        self._loop = FusedLoop(self.parts, self.output)
        return None

    def record_latency(self, marker: LatencyMarker) -> None:
        """Observe how long ago a source has sent a marker, for each of the operators."""
        for part in self.parts:
            part.record_latency(marker)

    @property
    def acts_at_checkpoints(self) -> bool:
        """Whether one of the operators does."""
        return any(part.acts_at_checkpoints for part in self.parts)

    def _notify(self, hook: str, checkpoint_id: int) -> Pending:
        told = [(part, hook, checkpoint_id) for part in self.parts if part.listener]
        return in_turn(StatelessOperator._notify, told)

    def process_run(self, run: Run) -> Pending:
        """Apply all functions to each record and emit the results as one run."""
        return self._loop.process(run)


def fused(first: Operator, following: Operator) -> FusedOperator | None:
    """Return both as one operator; None if they cannot be.

    Args:
        first: An operator whose results go to ``following`` and nowhere else (side
            outputs apart).
        following: The next one, which may be fused itself.

    Example:
        >>> [
        ...     type(part).__name__
        ...     for part in fused(MapOperator(abs), MapOperator(str)).parts
        ... ]
        ['MapOperator', 'MapOperator']
        >>> fused(MapOperator(abs), Operator())
    """
    if not isinstance(first, StatelessOperator):
        return None
    # Chains are built from their end, so what follows may be fused already.
    if isinstance(following, FusedOperator):
        parts = [first, *following.parts]
    elif isinstance(following, StatelessOperator):
        parts = [first, following]
    else:
        return None
    return (
        FusedOperator(parts) if is_compilable([part.kind for part in parts]) else None
    )


# Event times and watermarks in the middle of a stream.


class TimestampsAndWatermarksOperator(Operator):
    """Gives records event times, and the stream watermarks of its own.

    Watermarks and statuses from upstream end here, except the last watermark of all.
    A watermark follows each run in which event time advanced.

    Args:
        strategy: Where event times come from, and how late records may be.
        interval_ms: How often the generator looks at the time; only with a strategy
            that has an idle timeout, or a generator of the user's.
        on_error: How to handle a record for which the timestamp assigner raises, or
            gives no event time.

    Attributes:
        strategy: What it was given.

    Concept:
        Flink, ``TimestampsAndWatermarksOperator``.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> strategy = WatermarkStrategy.for_monotonous_timestamps()
        >>> strategy = strategy.with_timestamp_assigner(lambda value: value)
        >>> with OneInputHarness(TimestampsAndWatermarksOperator(strategy)) as harness:
        ...     harness.process_run([3, 5])
        ...     harness.output[-1]
        Watermark(timestamp_ms=4)
    """

    def __init__(
        self,
        strategy: WatermarkStrategy,
        *,
        interval_ms: int = WATERMARK_INTERVAL_MS,
        on_error: OnError = fail,
    ) -> None:
        self.strategy: WatermarkStrategy = strategy
        self.takes_columns = not callable(strategy.assigner)
        if strategy.idleness_ms is not None:
            self.live_clock_need = "with_idleness(...)"
        self.on_error: OnError = check_on_error(on_error)
        self._interval_ms = interval_ms
        self._ticks: WatermarkTicks | None = None
        self._guard = OutputGuard()

    def rows_reason(self) -> str:
        """Return the timestamp assigner that needs rows."""
        return rows_for_times(self.strategy)

    def result_fields(self, *fields: RecordFields | None) -> RecordFields | None:
        """Return the fields of the records, which stay what they are."""
        return fields[0]

    def hold_watermarks(self) -> None:
        """Let event time move at the end of the input only; before `setup`."""
        self.strategy = replace(self.strategy, generator_factory=NoWatermarks)

    def snapshot_own(self) -> OperatorStateSnapshot:
        """Return the watermark emitted last, and whether the stream is idle."""
        progress = (self._guard.watermark, self._guard.is_idle)
        mode = RedistributionMode.MERGE
        return super().snapshot_own().with_list("progress", [progress], mode)

    def restore_own(self, own: OperatorStateSnapshot) -> None:
        """Go on with the watermark; of several, with that which was behind."""
        progress = own.elements("progress")
        if progress:
            # The one behind: of the others' records some are still to come.
            self._guard.watermark = min(watermark for watermark, _ in progress)
            self._guard.is_idle = all(is_idle for _, is_idle in progress)

    def open(self) -> Pending:
        """Begin, and look at the time now and then if the strategy needs it."""
        self._ticks = WatermarkTicks(
            self.strategy, self._interval_ms, self.context, self.output, self._tick
        )
        self._assigner = self.strategy.create_assigner()
        self._failures = RecordFailures(self, self._function())
        self._generator = self.strategy.create_generator(self._ticks.clock)
        return None

    def process_run(self, run: Run) -> Pending:
        """Emit the records with their event times, and the watermark after them."""
        reported: Pending = None
        if self.on_error.action is ErrorAction.FAIL:
            run = assign_timestamps(self, self._assigner, run)
        else:
            run = self._assign_or_take(run)
            if self._assigner is not None and self._assigner.is_new:
                self._assigner.is_new = False
                warn_of_units(self.context, run)
            reported = self._failures.report() if self._failures.waiting else None
        pending = then(reported, self.output.emit_run, run)
        follow_run(self._generator, run, self._guard)
        self._generator.on_periodic_emit(self._guard)
        return then(pending, self._emit_progress)

    def on_watermark(self, timestamp_ms: int) -> Pending:
        """Ignore a watermark from upstream, unless it is the last of all."""
        # As in Flink: watermarks are made anew here, but the end of time is the end.
        if timestamp_ms != MAX_TIMESTAMP:
            return None
        self._stop_ticks()
        self._guard.emit_watermark(MAX_TIMESTAMP)
        return self._emit_progress()

    def repeat_progress(self) -> Pending:
        """Pass on once more how far the stream's own event time had come."""
        self._guard.repeat()
        return self._emit_progress()

    def process_status(self, status: WatermarkStatus) -> Pending:
        """Ignore the status: idleness is found out here."""
        return None

    def close(self) -> Pending:
        """Look at the time no more."""
        self._stop_ticks()
        return None

    def _assign_or_take(self, run: Run) -> Run:
        """Return the run with event times, without the records that failed."""
        assigner = self._assigner
        if assigner is None:
            return run
        if assigner.field is None:
            # What a function of the user's has done cannot be undone: one call a record.
            return self._assign_each(assigner, run)
        try:
            timed = assigner.timed(run)
            check_before_end_of_time(max(timed.timestamps or (), default=0))
            return timed
        except USER_ERRORS:
            return self._assign_each(assigner, run)

    def _assign_each(self, assigner: TimestampAssigner, run: Run) -> Run:
        before = run.timestamps
        values: list[Any] = []
        times: list[int] = []
        for index, value in enumerate(run.values):
            stamp = None if before is None else before[index]
            previous = None if stamp == MIN_TIMESTAMP else stamp
            try:
                time = assigner.assign_one(value, previous)
                check_before_end_of_time(time)
            except USER_ERRORS as error:
                self._failures.take(value, stamp, error)
            else:
                values.append(value)
                times.append(time)
        return ListRun(values, times)

    def _function(self) -> Callable[..., Any]:
        """Return the user's assigner, for errors; a field's name has no line."""
        spec = self.strategy.assigner
        return spec if callable(spec) else self.process_run

    def _tick(self) -> Pending:
        self._generator.on_periodic_emit(self._guard)
        return self._emit_progress()

    def _emit_progress(self) -> Pending:
        return emit_progress(self.output, self._guard.take())

    def _stop_ticks(self) -> None:
        if self._ticks is not None:
            self._ticks.stop()
