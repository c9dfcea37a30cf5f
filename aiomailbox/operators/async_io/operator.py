"""The operator behind map_async: many calls at once, results where they belong.

Theory of operation: a row takes a place in the queue when it arrives and gives it back
when its result has been emitted. There are fewer slots for calls than places: rows
beyond them wait their turn, so that a call that ends is followed at once by the next.
When all places are taken the operator does not take more rows: it yields to its own
mail, which emits results and frees places, until there is room again. To take rows has
its price for each group of them, so it takes no small groups while enough rows wait
for a slot: calls that end one after the other free their places one by one.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from aiomailbox.errors import WrongTypeError
from aiomailbox.keygroups.assignment import KeyGroupAssigner
from aiomailbox.operators.async_io.calls import CallEntry
from aiomailbox.operators.async_io.ordering import (
    Emitter,
    OrderedQueue,
    ResultQueue,
    SegmentedQueue,
)
from aiomailbox.operators.async_io.rows import KeyGate, RowFlow
from aiomailbox.operators.async_io.segment import QueuedControl
from aiomailbox.operators.async_io.settings import (
    CallSettings,
    Order,
    RecordIds,
    Weight,
    check_bounds,
    check_key,
    share,
)
from aiomailbox.operators.async_io.workers import Caller
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.failures import RecordFailures
from aiomailbox.operators.core.fields import field_or_function
from aiomailbox.operators.core.operator import (
    Blocked,
    OpenCalls,
    Operator,
    Pending,
    finished,
    pending_of,
    then,
)
from aiomailbox.operators.core.user_code import (
    CallableKind,
    OnError,
    callable_kind,
    check_function,
    check_methods,
    check_on_error,
    checkpoint_listener,
    describe,
    fail,
    method_of,
    refuse_generator,
)
from aiomailbox.operators.core.watched import repeated_objects
from aiomailbox.operators.snapshots.codec import held_elements, with_held_elements
from aiomailbox.policies.batch import Batch
from aiomailbox.policies.cache import Cache
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.policies.retry import Retry
from aiomailbox.records.events import MIN_TIMESTAMP, Watermark, WatermarkStatus
from aiomailbox.records.run import Run
from aiomailbox.state.operator_state import OperatorStateSnapshot

# The user's asynchronous function, and its life.


class AsyncFunction:
    """The function of the user, which is called for each record, or for each list of them.

    Args:
        function: An ``async def`` function; or a function that returns an awaitable; or
            an object with ``async def __call__``, and with ``open(context)`` and
            ``close()``, sync or async, or an asynchronous context manager, for what it
            needs as long as it runs; or a class of such objects, called without
            arguments for one object a subtask.

    Attributes:
        call: What makes a call; ready after `open`.

    Raises:
        WrongTypeError: If ``function`` cannot be called with one argument, or is an
            asynchronous generator.
    """

    def __init__(self, function: Any) -> None:
        is_class = inspect.isclass(function)
        if not is_class:
            check_function(function, "function", arity=1)
        called = _call_of_objects(function) if is_class else function
        if callable_kind(called) is CallableKind.ASYNC_GENERATOR:
            raise WrongTypeError(
                "function",
                f"{describe(function)} is an asynchronous generator",
                "Return one value per record, or use flat_map.",
            )
        if not is_class:
            refuse_generator(function, "function", "Return one value a record.")
            check_methods(function, "function", {"open": ("context",), "close": ()})
        self.given: Callable[..., Any] = function
        self._exit: Callable[[], Any] | None = None
        self.call: Callable[[Any], Awaitable[Any]] = function

    def open(self, context: RuntimeContext) -> Pending:
        """Make the object if a class was given, and acquire what it needs."""
        given = self.given
        instance: Any = given() if inspect.isclass(given) else given
        self.call = instance
        if inspect.isfunction(instance) or inspect.ismethod(instance):
            return None
        if hasattr(type(instance), "__aenter__"):
            return self._enter(instance)
        self._exit = method_of(instance, "close")
        acquire = method_of(instance, "open")
        return None if acquire is None else pending_of(acquire(context))

    def close(self) -> Pending:
        """Release what `open` acquired; once."""
        release, self._exit = self._exit, None
        return None if release is None else pending_of(release())

    async def _enter(self, instance: Any) -> None:
        entered = await instance.__aenter__()
        self._exit = lambda: instance.__aexit__(None, None, None)
        self.call = entered if callable(entered) else instance


def _call_of_objects(given: type) -> Callable[..., Any]:
    for base in given.__mro__:
        if "__call__" in vars(base):
            call: Callable[..., Any] = vars(base)["__call__"]
            return call
    raise WrongTypeError(
        "function",
        f"objects of the class {given.__qualname__} cannot be called",
        "Define async def __call__(self, record); a class that makes one record of "
        "another is given to map.",
    )


class CallsOperator(Operator):
    """The base of operators that hold rows while asynchronous calls are made for them."""

    fills_up = True
    _rows: RowFlow | None = None
    _gate: KeyGate | None = None
    # How many rows it holds at most.
    _places: int
    # How many free places make it take rows again after it was full, and how many calls
    # that wait for a slot let it wait for these places.
    _refill: tuple[int, int]
    _queue: ResultQueue
    _emitter: Emitter
    settings: CallSettings
    concurrency: int

    def _connect(self, rows: RowFlow, function: Any, *more: Any) -> None:
        """Give rows what makes their calls, and show how far these are."""
        context = self.context
        slots = share(self.concurrency, context.parallelism, context.subtask_index)
        caller = Caller(context, function, self.settings, slots, rows.outcomes, *more)
        rows.connect(caller, self.settings, self._places)
        called = slots * self.settings.batch_size
        free = min(called, (self._places - called) // 2)
        self._refill = free, free // self.settings.batch_size
        caller.pool.on_idle = self._emitter.notify
        metrics = context.metrics
        metrics.gauge("in_flight", lambda: caller.pool.in_flight)
        metrics.gauge("buffered", lambda: self._queue.held)
        metrics.gauge("buffer_max", lambda: self._places)
        metrics.gauge("waiting_for_slot", lambda: caller.pool.waiting)
        metrics.gauge("waiting_for_limit", lambda: caller.waiting_for_limit)
        metrics.gauge("waiting_for_retry", lambda: caller.waiting_for_retry)
        if self._gate is not None:
            metrics.gauge("waiting_for_key", lambda: self._waiting_for_key)

    @property
    def _waiting_for_key(self) -> int:
        return 0 if self._gate is None else self._gate.waiting

    @property
    def room(self) -> int:
        # Those that wait for their key have places of their own.
        return self._places - self._queue.held + self._waiting_for_key

    def open_calls(self, count_max: int) -> OpenCalls | None:
        return None if self._rows is None else self._rows.caller.open_calls(count_max)

    def blocked(self) -> Blocked | None:
        if self._rows is None:
            return None
        return self._rows.caller.blocked(self._waiting_for_key)

    def pass_watermark(self, timestamp_ms: int) -> Pending:
        """Pass the watermark on after all that came before it."""
        return self._take_control(Watermark(timestamp_ms))

    def process_status(self, status: WatermarkStatus) -> Pending:
        """Pass the status on after the rows that came before it."""
        return self._take_control(status)

    def _take_control(self, control: QueuedControl) -> Pending:
        raise TypeError(f"{type(self).__name__} defines no _take_control")

    def end_input(self) -> Pending:
        """Wait until all that was taken has taken effect."""
        return self._empty() if self._queue.held else None

    def settle(self) -> Pending:
        """Wait as at the end of the input: a row that was taken is finished."""
        return self.end_input()

    async def _empty(self) -> None:
        while self._queue.held:
            await self._room()

    async def _room(self) -> None:
        """Wait until there may be room."""
        await self._emitter.wait_for_change()

    def owns(self, key: Any) -> bool:
        """Say whether the rows of a key belong to this subtask."""
        groups = KeyGroupAssigner(1, self.context.max_parallelism)
        return groups.key_group_of(key) in self.context.key_group_range.key_groups

    def close(self) -> Pending:
        """Cancel the calls that are being made, then release what the function has."""
        return self._close()

    async def _close(self) -> None:
        try:
            super().close()
            # First what would make calls, then the calls, then the journal that they
            # write to.
            if self._rows is not None:
                if self._rows.gatherer is not None:
                    self._rows.gatherer.close()
                self._emitter.close()
                await self._rows.caller.close()
                if self._rows.journal is not None:
                    await self._rows.journal.close()
        finally:
            # Nothing waits here any more, and metrics are looked at after the end, too.
            self._queue, self._gate = OrderedQueue(), None
            await finished(self._release())

    def _release(self) -> Pending:
        """Close the function."""
        raise TypeError(f"{type(self).__name__} defines no _release")


class AsyncMapOperator(CallsOperator):
    """Replaces each record by what an asynchronous function returns for it.

    Args:
        function: See `AsyncFunction`.
        concurrency: Calls at a time in the whole job, divided over the subtasks; each
            has at least one.
        ordered: True: results come out as their records came in. False: as they are
            done, but never across a watermark. ``"key"``: one call a key at a time, so
            that results of a key keep their order; a watermark waits for all rows
            before it, and rows after it do not wait for the watermark.
        key: With ``ordered="key"``: a field's name, or a function of a record. With a
            ``limit``: what the units of calls are added up by, `partition_key` if it is
            left out.
        timeout: How long one attempt may take: a timedelta or seconds. Waiting for
            the limit does not count.
        deadline: How long all attempts of a call may take, with every wait between.
        retry: Whether and when a call is made again. While it waits it keeps its place
            in the order, but not its slot.
        limit: How many units may be used in a window of time. Each attempt uses some.
        weight: Units of a record: a number, or a function of the record. None: 1 unit
            a call.
        batch: Calls take lists of records and return lists of results; a result that
            is an exception is a failure of its record alone.
        cache: Keeps results by key; equal calls at one time are made once.
        on_error: How to handle a record whose last attempt failed.
        capacity: Records held at most in the whole job: called, waiting for a slot or a
            retry, or done and waiting for their place. 4 times as many as can be
            called, if left out.
        key_capacity: With ``ordered="key"``: records that may wait behind an earlier one
            of their key, beside ``capacity``. The larger of 16 times ``concurrency`` and
            4,096, if left out. At that bound a record of a busy key stops the input.
        journal: Whether what calls came to is kept, so that a call that has ended is not
            made again when the job is started again; needs ``id``.
        id: Which call a record means: a field's name, or a function of the record.
        partition_key: The key that the stream is partitioned by, if it is: records that
            wait go where their keys go when the parallelism changes.

    Raises:
        InvalidArgumentError: If an argument has a value that cannot work.
        WrongTypeError: If an argument has the wrong type.

    At the end of a bounded input all calls are finished with all their retries: there
    is no hurry, and Flink's single last attempt at once would fail records that a
    server has asked us to send later.

    Concept:
        Flink, ``AsyncWaitOperator``.

    Example:
        >>> import asyncio
        >>> from aiomailbox.testing import OneInputHarness
        >>> async def look_up(city):
        ...     await asyncio.sleep(0)
        ...     return city.upper()
        >>> async def main():
        ...     operator = AsyncMapOperator(look_up, concurrency=10)
        ...     async with OneInputHarness(operator) as harness:
        ...         await harness.run(harness.process_run, ["oslo", "rome"])
        ...         await harness.run(harness.end_input)
        ...         return harness.values
        >>> asyncio.run(main())
        ['OSLO', 'ROME']
    """

    # The run that rows are parts of, where functions are not called with all of them.
    _whole: Run | None = None

    def __init__(
        self,
        function: Callable[[Any], Any],
        *,
        concurrency: int,
        ordered: Order = True,
        key: str | Callable[[Any], Any] | None = None,
        timeout: timedelta | float | None = None,
        deadline: timedelta | float | None = None,
        retry: Retry | None = None,
        limit: RateLimit | None = None,
        weight: Weight = None,
        batch: Batch | None = None,
        cache: Cache | None = None,
        on_error: OnError = fail,
        capacity: int | None = None,
        key_capacity: int | None = None,
        journal: bool = False,
        id: str | Callable[[Any], Any] | None = None,  # noqa: A002 -- the user's word
        partition_key: str | Callable[[Any], Any] | None = None,
    ) -> None:
        self.function: AsyncFunction = AsyncFunction(function)
        self.listener = checkpoint_listener(function)
        self.settings: CallSettings = CallSettings(
            timeout=timeout,
            deadline=deadline,
            retry=retry,
            limit=limit,
            weight=weight,
            batch=batch,
            cache=cache,
            journal=journal,
            id=id,
        )
        self.concurrency, self.capacity, self.key_capacity = check_bounds(
            concurrency, capacity, key_capacity, self.settings.batch_size
        )
        self.on_error: OnError = check_on_error(on_error)
        read_key = check_key(ordered, key, has_limit=limit is not None)
        self._read_key = read_key if ordered == "key" else None
        self._partition_key = (
            None
            if partition_key is None
            else field_or_function(partition_key, "partition_key")
        )
        self._total_key = None if limit is None else read_key or self._partition_key
        self._queue: ResultQueue = (
            OrderedQueue()
            if ordered is True
            else SegmentedQueue(rows_may_overtake=ordered == "key")
        )
        self._restored: list[Any] = []

    def repeat_order(self) -> bool:
        """Emit in the order of the records, whatever ``ordered`` says."""
        self._queue = OrderedQueue()
        return True

    def open(self) -> Pending:
        """Acquire what the function needs, then make the restored calls again."""
        context = self.context
        self._failures = RecordFailures(self, self.function.given)
        self._emitter = self._new_emitter(self._queue, self._failures)
        self._emitter.seen = repeated_objects(context, self.function.given)
        opened = self._failures.guard(self.function.open, context)
        return then(then(opened, self._prepare), self._begin)

    def _prepare(self) -> Pending:
        """Make what rows go through; a journal has to be read first."""
        context = self.context
        # A class was given, or it has entered another object.
        self.listener = checkpoint_listener(self.function.call)
        subtask = context.parallelism, context.subtask_index
        self._places = share(self.capacity, *subtask)
        if self._read_key is not None:
            self._gate = KeyGate(share(self.key_capacity, *subtask))
        self._rows = rows = self._row_flow(
            self._emitter,
            self.settings,
            self._gate,
            self._read_key,
            self._record_ids(),
        )
        self._connect(rows, self.function.call, self._scope, self._total_key)
        return None if rows.journal is None else rows.journal.open()

    def _begin(self) -> Pending:
        rows = self._rows
        assert rows is not None, "it has just been made"
        # They had places in an earlier instance: they need not wait for them again.
        restored, self._restored = self._restored, []
        records = [element for element in restored if isinstance(element, tuple)]
        entries = iter(self._entries_of(records))
        pending: Pending = None
        for element in restored:
            if isinstance(element, tuple):
                rows.take(next(entries))
            elif self._queue.held:
                # Behind rows it waits for them; before the first one there is nothing
                # to wait for.
                self._queue.put_control(element)
            else:
                pending = then(pending, self._emitter.emit_control, element)
        return pending

    @property
    def _scope(self) -> str | None:
        """The owner of ids: a job's operator, in all its runs."""
        if self.settings.read_id is None:
            return None
        return f"{self.context.job_id}\0{self.context.operator_id}"

    def _record_ids(self) -> RecordIds | None:
        read_id = self.settings.read_id
        if read_id is None:
            return None
        return RecordIds(read_id, with_fingerprints=self.settings.journal)

    def _row_flow(self, *parts: Any) -> RowFlow:
        return RowFlow(*parts)

    def _new_emitter(self, *parts: Any) -> Emitter:
        return Emitter(*parts)

    def _entries_of(self, held: list[Any]) -> list[CallEntry]:
        """Return rows that an earlier instance held."""
        return [CallEntry(*record) for record in held]

    def _records_of(self, entries: list[CallEntry]) -> list[Any]:
        """Return the whole records of rows."""
        return [entry.value for entry in entries]

    def process_run(self, run: Run) -> Pending:
        """Take the rows and begin their calls, as far as there is room."""
        taken = self._take_rows(run, 0)
        return None if taken == len(run) else self._take_the_rest(run, taken)

    @property
    def acts_at_checkpoints(self) -> bool:
        """Whether it says in a journal what they may ask for, or the function wants to hear."""
        has_journal = self._rows is not None and self._rows.journal is not None
        return super().acts_at_checkpoints or has_journal

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> Pending:
        """Say in the journal which of its entries the checkpoint may ask for."""
        # Before the barrier: what is appended after it belongs to the next checkpoint.
        if self._rows is not None and self._rows.journal is not None:
            held = self._queue.elements()
            rows = [one for one in held if isinstance(one, CallEntry)]
            self._rows.journal.mark(checkpoint_id, rows)
        return None

    def snapshot_own(self) -> OperatorStateSnapshot:
        """Return the rows that have not been emitted, called or not, as they came."""
        elements = self._queue.elements()
        entries = [element for element in elements if isinstance(element, CallEntry)]
        records = iter(self._records_of(entries))
        held = [
            _held_record(next(records), element)
            if isinstance(element, CallEntry)
            else element
            for element in elements
        ]
        return with_held_elements(
            super().snapshot_own(),
            [*self._restored, *held],
            follow_keys=self._partition_key is not None,
        )

    def restore_own(self, own: OperatorStateSnapshot) -> None:
        """Take over rows; their calls are made again before new rows are taken."""
        held = held_elements(own, self.watermark_ms)
        self._restored = [
            element
            for element in held
            if not isinstance(element, tuple) or self._is_here(element[0])
        ]

    def _is_here(self, value: Any) -> bool:
        """Say whether a row belongs to this subtask, by the stream's key."""
        return self._partition_key is None or self.owns(self._partition_key(value))

    def _take_rows(self, run: Run, start: int) -> int:
        """Take rows while there is room; return the index of the first one left."""
        rows, queue, places, gate = self._rows, self._queue, self._places, self._gate
        assert rows is not None, "process_run before open"
        values, timestamps, whole = run.values, run.timestamps, self._whole
        for index in range(start, len(values)):
            value = values[index]
            if gate is None:
                if queue.held >= places:
                    return index
            elif not rows.has_room(gate, value, places):
                return index
            timestamp = None if timestamps is None else timestamps[index]
            entry = CallEntry(value, None if timestamp == MIN_TIMESTAMP else timestamp)
            if whole is not None:
                entry.run, entry.place = whole, index
            rows.take(entry)
        return len(values)

    async def _take_the_rest(self, run: Run, start: int) -> None:
        while start < len(run):
            await self._room()
            if self._is_worth_taking():
                start = self._take_rows(run, start)

    def _is_worth_taking(self) -> bool:
        """Whether there is room for a group of rows, or slots will soon have no rows."""
        free, waiting = self._refill
        rows = self._rows
        assert rows is not None, "process_run before open"
        return self.room >= free or rows.caller.pool.waiting < waiting

    def _take_control(self, control: QueuedControl) -> Pending:
        # Nothing is before it, so it need not take a place.
        if not self._queue.held:
            return self._emitter.emit_control(control)
        # A watermark takes a place, as in Flink: otherwise many of them had no bound.
        if self._gate is None and self._queue.held >= self._places:
            return self._take_control_later(control)
        self._queue.put_control(control)
        return None

    async def _take_control_later(self, control: QueuedControl) -> None:
        while self._queue.held >= self._places:
            await self._room()
        await finished(self._take_control(control))

    def _release(self) -> Pending:
        return self.function.close()

    async def _room(self) -> None:
        if self._rows is not None and self._rows.gatherer is not None:
            # Nothing more can come: the batch is as full as it gets.
            self._rows.gatherer.flush()
        await super()._room()


def _held_record(record: Any, entry: CallEntry) -> Any:
    """Return a row to be held, with the attempts that have ended if there are any."""
    if not entry.attempts:
        return record, entry.timestamp
    return record, entry.timestamp, entry.attempts
