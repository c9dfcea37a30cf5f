"""Running results per key: every record leads to an updated one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import length_hint
from types import CoroutineType, FunctionType
from typing import Any, Final, NoReturn, Protocol

from aiomailbox.errors import KeyTypeError, RecordTypeError, add_note
from aiomailbox.eventtime.timers import (
    InternalTimerService,
    LoadedTimers,
    Results,
    Triggerable,
)
from aiomailbox.keygroups.assignment import KeyGroupAssigner
from aiomailbox.metrics.instruments import HotKeys
from aiomailbox.operators.aggregates.compiled import result_type
from aiomailbox.operators.aggregates.functions import (
    Aggregate,
    Reduced,
    check_aggregate,
    is_async_aggregate,
    warn_of_text,
)
from aiomailbox.operators.aggregates.undoing import undoable
from aiomailbox.operators.core.collector import Collector
from aiomailbox.operators.core.failures import USER_ERRORS, RecordFailures, raise_as
from aiomailbox.operators.core.fields import (
    FieldSelector,
    FieldsSelector,
    RecordFields,
    field_or_function,
    why_rows,
)
from aiomailbox.operators.core.operator import (
    Operator,
    Pending,
    await_each,
    awaited,
    then,
)
from aiomailbox.operators.core.slices import Slices
from aiomailbox.operators.core.user_code import (
    UNMADE,
    ErrorAction,
    OnError,
    check_function,
    check_on_error,
    describe,
    fail,
    is_async_callable,
    refuse_all_unmade,
    refuse_generator,
    refuse_none,
    refuse_unmade,
    shortened,
)
from aiomailbox.operators.keyed.reducing import first_reduced
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.records.run import ListRun, Run, map_all
from aiomailbox.state.descriptors import (
    AccumulatorDescriptor,
    AggregateFunction,
    StateDescriptor,
)
from aiomailbox.state.operator_state import OperatorStateSnapshot, RedistributionMode
from aiomailbox.state.snapshot import KeyedStateSnapshot, SnapshotRows
from aiomailbox.state.store import state_meta

# Reads the keys of a run and holds them to the stream's key type.


# Keys of these types are good whatever their value is.
_ALWAYS_PLACED: Final = frozenset({str, bytes, bool})


_FIELD_ERRORS: Final = (AttributeError, KeyError, TypeError)


class KeyCheck:
    """Reads the key of a record, raises if it has none, and else returns True.

    Before a keyed stream it finds the records whose key cannot be read, or has another
    type than the first, while they can still be set aside one by one.

    Args:
        key: A function of a record.
        assigner: Knows the type of keys; None for one of its own.

    Example:
        >>> KeyCheck(len)("abc")
        True
    """

    def __init__(
        self, key: Callable[[Any], Any], assigner: KeyGroupAssigner | None = None
    ) -> None:
        self.key: Callable[[Any], Any] = key
        self._assigner = assigner or KeyGroupAssigner(1, 1)

    def __call__(self, record: Any) -> bool:
        """Return True.

        Raises:
            KeyTypeError: If what the key function gave cannot be a key, or is of
                another type than the first.
        """
        key = self.key(record)
        if type(key) is CoroutineType:
            refuse_unmade(key, self.key)
        self._assigner.key_group_of(key)
        return True


class KeyReader:
    """Applies the key function of an operator to whole runs.

    The first key, or one that was restored, fixes the type of all others, and what may be a key at all is for
    `KeyGroupAssigner` to say.

    Args:
        key: A `FieldSelector` or a function of a record.
        operator: Named in errors.
        like: A reader of another input, whose keys are of the same type.

    Cost:
        One call of the key function per record, and one look at the type.

    Example:
        >>> from aiomailbox.operators.stateless.operators import MapOperator
        >>> from aiomailbox.testing import OneInputHarness
        >>> operator = OneInputHarness(MapOperator(str)).operator
        >>> KeyReader(str.lower, operator).read(["A", "b"])
        ['a', 'b']
    """

    def __init__(
        self,
        key: Callable[[Any], Any],
        operator: Operator,
        like: KeyReader | None = None,
    ) -> None:
        self._key = key
        self._operator = operator
        # One for all readers of an operator: both inputs have to have keys of one type.
        self._assigner: KeyGroupAssigner = (
            KeyGroupAssigner(1, operator.context.max_parallelism)
            if like is None
            else like._assigner
        )
        self._type: type | None = None
        self._types: set[type] = set()
        restored = operator.context.keyed_state.restored_key
        if restored is not None:
            # Keys of another type would find nothing of what was restored.
            self._assigner.expect(restored)
        self._hot: HotKeys = HotKeys() if like is None else like._hot
        operator.context.metrics.hot_keys = self._hot

    def read(self, values: list[Any]) -> list[Any]:
        """Return the key of each value, in order.

        Raises:
            KeyTypeError: If a key cannot be one, or has another type than the first.
            RecordTypeError: If a record has not the field that is the key.
            UserFunctionError: If the key function raises.
        """
        keys = self._apply(values)
        is_first = self._type is None and bool(values)
        self.check(keys)
        if is_first:
            self._check_stable(values[0], keys[0])
        self._hot.sample(keys)
        return keys

    def _check_stable(self, value: Any, key: Any) -> None:
        """Warn if the first record has another key when it is asked for again."""
        if isinstance(self._key, FieldSelector | FieldsSelector):
            return
        # What it raises, and what cannot be a key, others say.
        with contextlib.suppress(*USER_ERRORS):
            again = self._key(value)
            if type(again) is CoroutineType:
                again.close()
            elif again != key:
                self._operator.context.log.warning(
                    "a key function gives another key for the same record: its state "
                    "would not be found again",
                    function=describe(self._key),
                    keys=[shortened(key, 50), shortened(again, 50)],
                    remedy="compute what is random or counted in a map before key_by, "
                    "and key by that field",
                )
            elif self._operator.context.is_resumable and _hashes_text(self._key, value):
                self._operator.context.log.warning(
                    "a key function uses hash(), which gives text another number in each "
                    "program: a job that resumes does not find its state",
                    function=describe(self._key),
                    remedy="key by the text itself, or compute zlib.crc32(text.encode())",
                )

    def check(self, keys: list[Any]) -> None:
        """Hold keys to the stream's key type, and to what may be a key.

        Raises:
            KeyTypeError: If one cannot be a key, or has another type than the first.
        """
        # A set of the types costs much less than a check of each key.
        if set(map(type, keys)) != self._types or self._type not in _ALWAYS_PLACED:
            self._check(keys)

    def _apply(self, values: list[Any]) -> list[Any]:
        key = self._key
        try:
            # Fields are read in C, by a getter for records like the first one.
            if values and isinstance(key, FieldSelector | FieldsSelector):
                # Among records of several forms each is read, and blamed, by itself.
                with contextlib.suppress(*_FIELD_ERRORS):
                    return map_all(key.getter(values[0]), values)
            return [key(value) for value in values]
        except RecordTypeError as error:
            add_note(error, f"in {self._operator.place}")
            raise
        except USER_ERRORS as error:
            raise_as(self._operator.user_error(error), error)

    def _check(self, keys: list[Any]) -> None:
        if not keys:
            return
        types = set(map(type, keys))
        if CoroutineType in types:
            self._refuse_coroutines(keys)
        # Of these all are placed if one is.
        some = keys[:1] if len(types) == 1 and types <= _ALWAYS_PLACED else keys
        try:
            self._assigner.key_groups(some)
        except KeyTypeError as error:
            problem = str(error).removeprefix("key: ").removesuffix(".")
            raise KeyTypeError(
                self._operator.place,
                f"the key of {describe(self._key)}: {problem}",
            ) from None
        self._type = type(keys[0])
        self._types = {self._type}

    def _refuse_coroutines(self, keys: list[Any]) -> NoReturn:
        for key in keys:
            # Or Python would warn of a coroutine that was never awaited.
            if type(key) is CoroutineType:
                key.close()
        raise KeyTypeError(
            self._operator.place,
            f"{describe(self._key)} returned a coroutine where a key is expected",
            "A plain function is needed here: do the awaiting in map_async before.",
        )


# What operators with keys have in common: state, timers, and their snapshot.


# Steps of about half a microsecond, and how long to wait before and between them.
_SETTLE_STEPS: Final = 2048


_SETTLE_MS: Final = 10


_SETTLE_MAX_MS: Final = 1000


# The name is in snapshots.
_FIRING: Final = "firing"


class Settled(Protocol):
    """Something that a snapshot is taken of; see `aiomailbox.state.layers`."""

    @property
    def has_snapshot(self) -> bool:
        """Whether a snapshot makes every access cost more."""

    def settle(self, count: int) -> int:
        """Remove layers that no snapshot needs any more; return the steps not needed."""


class RunExpression(Protocol):
    """An expression that is evaluated for a whole run; see `with_expressions`."""

    def begin(self, run: Run) -> None:
        """Be notified that the records of a run are asked for next."""

    def check_reads(self, names: Sequence[str]) -> None:
        """Refuse records with these fields if it reads another one."""


class StatefulOperator(Operator):
    """The base of operators with keyed state and timers.

    A watermark first fires timers; then what they emitted goes out; then the watermark.

    Attributes:
        conditions: The expressions of its aggregate, each told of a run before it.

    Concept:
        Flink, ``AbstractStreamOperator`` with its ``InternalTimeServiceManager``.
    """

    conditions: Sequence[RunExpression] = ()
    # Of those that may fail; what has a collector has them, too.
    _failures: RecordFailures

    def __init__(self) -> None:
        super().__init__()
        self._timer_services: dict[str, InternalTimerService] = {}
        self._restored_timers: dict[str, LoadedTimers] = {}
        self._is_firing = False
        self._is_settling = False

    def timer_service(
        self, name: str, target: Triggerable, results: Results | None = None
    ) -> InternalTimerService:
        """Return a new timer service, with the timers that were restored under a name.

        Args:
            name: Unique in the operator; its timers are kept under it.
            target: Called when timers are due.
            results: Where it collects results, if it does; `emit_collected` passes
                them on.
        """
        service = self.context.timer_service(target)
        pieces = Slices(self.context, self.output, self.emit_collected)
        service.in_slices = pieces.run
        if results is not None:
            service.results = results
        self._timer_services[name] = service
        service.current_watermark = self.watermark_ms
        restored = self._restored_timers.pop(name, None)
        if restored is not None:
            service.take_over(restored)
        return service

    def begin_run(self, run: Run) -> None:
        """Tell the expressions of an aggregate which records come next."""
        for condition in self.conditions:
            condition.begin(run)

    def result_fields(self, *fields: RecordFields | None) -> RecordFields | None:
        """Refuse records that lack what an expression reads."""
        if (known := fields[0]) is not None:
            for condition in self.conditions:
                condition.check_reads(known.names)
        # Of an operator with two inputs, that of the next base.
        return super().result_fields(*fields)

    def capture(self) -> OperatorSnapshot:
        """Return all state as it is now, with that of keys and the timers.

        It is taken now, and read later, in a thread; see `aiomailbox.state.layers`.
        """
        timers = {
            name: service.snapshot() for name, service in self._timer_services.items()
        }
        keyed = (self.context.keyed_state.snapshot(), *self.snapshot_apart())
        other = super().capture()
        return OperatorSnapshot(
            keyed, other.operator, timers, other.own, other.watermark
        )

    def snapshot_apart(self) -> Iterable[KeyedStateSnapshot]:
        """Capture what is kept by key, but not in the store; nothing by default."""
        return ()

    def snapshot_of(
        self, rows: Iterable[tuple[StateDescriptor, SnapshotRows]], *, namespaced: bool
    ) -> KeyedStateSnapshot:
        """Return rows that are kept beside the store, each with its state."""
        found = list(rows)
        return KeyedStateSnapshot.of_rows(
            self.context.max_parallelism,
            [state_meta(state, namespaced=namespaced) for state, _ in found],
            [kept for _, kept in found],
        )

    def layered(self) -> list[Settled]:
        """Return all that a snapshot is taken of."""
        return [self.context.keyed_state, *self._timer_services.values()]

    def restore_keyed(self, snapshot: OperatorSnapshot) -> Iterator[None]:
        """Take over the keyed state and the timers of this subtask's key groups.

        Raises:
            StateError: If they are of another number of key groups.
        """
        context = self.context
        self.expect_accumulators()
        yield from context.keyed_state.restoring(snapshot.keyed)
        for name, timers in snapshot.timers.items():
            loaded = self._restored_timers[name] = LoadedTimers(
                context.max_parallelism, context.key_group_range
            )
            yield from loaded.load(timers)

    def check_restored(self) -> None:
        """Warn of keyed state that nothing reads, beside one that begins empty.

        One alone is no sign: functions may ask for state later, and states come and go.
        """
        found = self.context.keyed_state.unmatched()
        if found.unread and found.empty:
            self.context.log.warning(
                "state was restored that no operator reads: if a descriptor was given "
                "another name, give it the old one; a name that is new begins empty",
                unread=list(found.unread),
                empty=list(found.empty),
            )

    def expect_accumulators(self) -> None:
        """Ask for state that holds accumulators, before a restore; nothing by default.

        Accumulators of an older aggregate are converted in pieces while they are
        restored; state that is asked for later is converted all at once.
        """

    def _settle_after(self, delay_ms: int) -> None:
        """Look, some time from now, whether snapshots still have to be read."""
        self._is_settling = True
        time = self.context.processing_time
        due = time.current_processing_time() + delay_ms
        time.register_timer(due, partial(self._settle_later, delay_ms))

    def settle_snapshots(self) -> None:
        """Take away what snapshots cost that nobody reads any more; look again later."""
        # One at a time: snapshots that follow each other quickly would pile up timers.
        if not self._is_settling:
            self._settle(_SETTLE_MS // 2)

    def _settle_later(self, delay_ms: int, _timestamp_ms: int) -> None:
        self.context.mailbox.disregard()
        self._settle(delay_ms)

    def _settle(self, delay_ms: int) -> None:
        self._is_settling = False
        layered = self.layered()
        left = _SETTLE_STEPS
        for one in layered:
            left = one.settle(left)
        if not any(one.has_snapshot for one in layered):
            return
        # Steps were needed, so a snapshot has just ended: there may be more to do.
        if left < _SETTLE_STEPS:
            self._settle_after(_SETTLE_MS)
        else:
            # Still being read: it is looked at less and less often.
            self._settle_after(min(2 * delay_ms, _SETTLE_MAX_MS))

    def emit_collected(self) -> Pending:
        """Pass on what was collected, and what failed; without a collector nothing."""
        collector: Collector | None = getattr(self, "_collector", None)
        if collector is None:
            return None
        failures = self._failures
        return then(failures.report() if failures.waiting else None, collector.emit)

    def on_watermark(self, timestamp_ms: int) -> Pending:
        """Fire what is due, then pass the watermark on.

        That may be in pieces, between which the operator may be snapshotted.
        """
        # Kept in snapshots: with timers left, the watermark has not gone on yet.
        self._is_firing = True
        return then(self.fire(timestamp_ms), self._all_fired, timestamp_ms)

    def fire(self, timestamp_ms: int) -> Pending:
        """Fire the timers that a watermark has reached, and pass on what they emitted."""
        pending: Pending = None
        for service in self._timer_services.values():
            pending = then(pending, service.advance_watermark, timestamp_ms)
        return then(pending, self.emit_collected)

    def resume(self) -> Pending:
        """Go on with a watermark that was firing when the snapshot was taken.

        If none was, what is due was set behind the watermark: it waits for the next.
        """
        return self.on_watermark(self.watermark_ms) if self._is_firing else None

    def snapshot_own(self) -> OperatorStateSnapshot:
        """Return whether the watermark is still firing."""
        own = super().snapshot_own()
        if not self._is_firing:
            return own
        return own.with_list(_FIRING, [True], RedistributionMode.MERGE)

    # Of any subtask: timers that are due may have come from it.
    def restore_own(self, own: OperatorStateSnapshot) -> None:
        """Take over whether a watermark was still firing, in any of the subtasks."""
        super().restore_own(own)
        self._is_firing = bool(own.elements(_FIRING))

    def _all_fired(self, timestamp_ms: int) -> Pending:
        self._is_firing = False
        return self.pass_watermark(timestamp_ms)

    def close(self) -> Pending:
        """Disarm the timers, and forget what could not be passed on."""
        for service in self._timer_services.values():
            service.close()
        collector: Collector | None = getattr(self, "_collector", None)
        if collector is not None:
            collector.discard()
        return None


_RETURN_ONE: Final = "Return the reduced record."


KeySelector = str | Callable[[Any], Any]


class RollingOperator(StatefulOperator):
    """The base of operators that keep one content per key and emit each update.

    Args:
        key: A field's name or a function of a record.
        function: The user's function, for error messages.
        is_async: Whether the function must be awaited.
        on_error: How to handle a record for which it raises; its key's content
            stays as it was.
        aggregate: What the contents are accumulators of.
    """

    def __init__(
        self,
        key: KeySelector,
        function: Callable[..., Any],
        *,
        is_async: bool,
        on_error: OnError,
        aggregate: Any,
    ) -> None:
        super().__init__()
        # The name is in snapshots.
        self._state = AccumulatorDescriptor("rolling", aggregate)
        self._key = field_or_function(key, "key")
        self._function = function
        self._is_async = is_async
        self._may_give_unmade = True
        self.on_error: OnError = check_on_error(on_error)

    def open(self) -> Pending:
        self._keys = KeyReader(self._key, self)
        self._table = self.context.keyed_state.table(self._state)
        self._failures = RecordFailures(self, self._function)
        return None

    def expect_accumulators(self) -> None:
        """Ask for the state."""
        self.context.keyed_state.table(self._state)

    def may_leave_rest(self, index: int) -> bool:
        """Whether it may leave the rest of a run: if its function is awaited."""
        return self._is_async

    def key_of_input(self, index: int) -> Callable[[Any], Any] | None:
        return self._key

    def process_run(self, run: Run) -> Pending:
        """Update the content of each record's key and emit the results as one run."""
        values = run.values
        if not values:
            return None
        self.begin_run(run)
        keys = self._keys.read(values)
        if self._is_async:
            # One read for all keys of the run, if the store is on a disk.
            self._table.prefetch(keys)
            return await_each(self, run, partial(self._process_awaited, keys))
        self._rows = self._table.for_run(keys)
        results: list[Any] = []
        # Iterators, so that after an error they stand right behind the record that
        # raised.
        remaining_keys, remaining = iter(keys), iter(values)
        try:
            self._update(remaining_keys, remaining, results)
        except USER_ERRORS as error:
            return self._process_rest(run, remaining_keys, remaining, results, error)
        # A lambda that calls an async function shows it only by what it returns.
        if self._may_give_unmade and not UNMADE.isdisjoint(
            map(type, self._given(results))
        ):
            return self._refuse(results)
        return self.output.emit_run(ListRun(results, run.timestamps))

    def _given(self, results: list[Any]) -> Iterable[Any]:
        """Return what the function gave, without what was added to it."""
        return results

    def _refuse(self, results: list[Any]) -> NoReturn:
        """Say that the function only looks as if it gave values."""
        try:
            refuse_all_unmade(self._given(results), self._function)
        except RecordTypeError as error:
            raise_as(self._failures.user_error(error), error)

    def _update(
        self, keys: Iterator[Any], values: Iterator[Any], results: list[Any]
    ) -> None:
        """Update key by key until something raises."""
        raise TypeError(f"{type(self).__name__} does not define _update")

    async def _update_one(self, key: Any, value: Any) -> Any:
        """Update one key and return the result."""
        raise TypeError(f"{type(self).__name__} does not define _update_one")

    def _process_rest(
        self,
        run: Run,
        keys: Iterator[Any],
        values: Iterator[Any],
        results: list[Any],
        error: BaseException,
    ) -> Pending:
        """Go on after a record that failed; the iterators stand behind it."""
        failed: list[int] = []
        stamps = run.timestamps
        following: BaseException | None = error
        while following is not None:
            # `zip` has taken the record that raised: what is left of the iterator tells
            # its place.
            index = len(run) - length_hint(values) - 1
            stamp = None if stamps is None else stamps[index]
            self._failures.take(run.values[index], stamp, following)
            failed.append(index)
            following = None
            try:
                self._update(keys, values, results)
            except USER_ERRORS as next_error:
                following = next_error
        # The times of a run without failures are passed on as they are.
        if stamps is not None:
            gone = set(failed)
            stamps = [stamp for i, stamp in enumerate(stamps) if i not in gone]
        reported = self._failures.report()
        # Reports first: they may wait, and results must not overtake what failed
        # before.
        return then(reported, self.output.emit_run, ListRun(results, stamps))

    async def _process_awaited(
        self, keys: list[Any], index: int, value: Any, stamp: int | None
    ) -> None:
        pending: Pending
        try:
            result = await self._update_one(keys[index], value)
        except USER_ERRORS as error:
            self._failures.take(value, stamp, error)
            pending = self._failures.report()
        else:
            taken = ListRun([result], None if stamp is None else [stamp])
            pending = self.output.emit_run(taken)
        if pending is not None:
            await pending


def _hashes_text(key: Callable[[Any], Any], value: Any) -> bool:
    """Say whether a key function makes its key with ``hash`` of text."""
    if key is hash:
        return _has_random_hash(value)
    if (
        not isinstance(key, FunctionType)
        or "hash" not in key.__code__.co_names
        or "hash" in key.__globals__
    ):
        return False
    hashed: list[Any] = []

    def noting(one: Any) -> int:
        hashed.append(one)
        return hash(one)

    noted = FunctionType(
        key.__code__,
        {**key.__globals__, "hash": noting},
        key.__name__,
        key.__defaults__,
        key.__closure__,
    )
    noted.__kwdefaults__ = key.__kwdefaults__
    noted(value)
    return any(map(_has_random_hash, hashed))


def _has_random_hash(value: Any) -> bool:
    if isinstance(value, tuple | frozenset):
        return any(map(_has_random_hash, value))
    # That of other objects is their address.
    of_object: Any = object.__hash__
    return isinstance(value, str | bytes) or type(value).__hash__ is of_object


class KeyedReduceOperator(RollingOperator):
    """Folds the records of each key into one, and emits it after every record.

    Args:
        key: A field's name or a function of a record.
        reduce_function: ``(reduced, record) -> reduced``, sync or ``async def``. The
            first record of a key is its first result.
        on_error: How to handle a record for which the function raises.

    Raises:
        WrongTypeError: If ``key`` or ``reduce_function`` cannot be called so.
        InvalidArgumentError: If ``reduce_function`` is a generator.

    Concept:
        Flink, ``KeyedStream.reduce`` and ``StreamGroupedReduceOperator``.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> operator = KeyedReduceOperator(str.lower, lambda old, new: old + new)
        >>> with OneInputHarness(operator, keyed=True) as harness:
        ...     harness.process_run(["a", "b", "A"])
        ...     harness.values
        ['a', 'b', 'aA']
    """

    def __init__(
        self,
        key: KeySelector,
        reduce_function: Callable[[Any, Any], Any],
        *,
        on_error: OnError = fail,
    ) -> None:
        self._reduce = check_function(
            reduce_function, "reduce_function", arity=2, gets="reduced, record"
        )
        refuse_generator(reduce_function, "reduce_function", _RETURN_ONE)
        super().__init__(
            key,
            self._reduce,
            is_async=is_async_callable(self._reduce),
            on_error=on_error,
            aggregate=Reduced,
        )

    def open(self) -> Pending:
        if self.context.mutations is not None:
            self._reduce = self.context.mutations.watched_call(self._reduce)
        elif not self._is_async:
            log = self.context.log
            self._reduce = first_reduced(self._reduce, log, self._put_in_place)
        return super().open()

    def _put_in_place(self) -> None:
        self._reduce = self._function

    def _update(
        self, keys: Iterator[Any], values: Iterator[Any], results: list[Any]
    ) -> None:
        reduce, rows = self._reduce, self._rows
        get = rows.get
        for key, value in zip(keys, values, strict=True):
            reduced = get(key)
            if reduced is None:
                reduced = value
            else:
                reduced = reduce(reduced, value)
                if reduced is None:
                    refuse_none(self._function, value)
            rows[key] = reduced
            results.append(reduced)

    async def _update_one(self, key: Any, value: Any) -> Any:
        reduced = self._table.get(key)
        if reduced is None:
            reduced = value
        else:
            reduced = await self._reduce(reduced, value)
            if reduced is None:
                refuse_none(self._reduce, value)
        self._table.put(key, reduced)
        return reduced


class KeyedAggregateOperator(RollingOperator):
    """Adds each record to its key's accumulator and emits the result so far.

    Args:
        key: A field's name or a function of a record.
        aggregate: What to compute: a ready-made aggregate or any `AggregateFunction`,
            whose methods may be ``async def``.
        include_key: Whether results are ``(key, result)``. That of several named
            aggregates has the field ``key`` in any case.
        on_error: How to handle a record for which the aggregate raises.

    Raises:
        WrongTypeError: If ``aggregate`` lacks a method.

    Example:
        >>> from aiomailbox.operators.aggregates.functions import sum_
        >>> from aiomailbox.testing import OneInputHarness
        >>> operator = KeyedAggregateOperator("user", sum_("amount"))
        >>> with OneInputHarness(operator, keyed=True) as harness:
        ...     harness.process_element({"user": "a", "amount": 2})
        ...     harness.process_element({"user": "a", "amount": 3})
        ...     harness.values
        [2, 5]
    """

    def __init__(
        self,
        key: KeySelector,
        aggregate: AggregateFunction,
        *,
        include_key: bool = False,
        on_error: OnError = fail,
    ) -> None:
        self._with_key = _joining(aggregate, include_key=include_key)
        if self._with_key is _pair and isinstance(aggregate, Aggregate):
            aggregate = aggregate.with_key()
        self._aggregate: Any = check_aggregate(aggregate)
        super().__init__(
            key,
            self._aggregate.add,
            is_async=is_async_aggregate(aggregate),
            on_error=on_error,
            aggregate=self._aggregate,
        )
        self._may_give_unmade = not isinstance(aggregate, Aggregate)
        self._undoable: Any = None
        self._rolls = isinstance(aggregate, Aggregate)
        if self.on_error.action is not ErrorAction.FAIL:
            self._undoable = undoable(aggregate)
            # Its pieces compute before any of them is changed.
            self._rolls = isinstance(aggregate, Aggregate) and (
                aggregate.always_has_result
            )

    def rows_reason(self) -> str:
        """Return the key function that asks for rows."""
        return why_rows(self._key)

    def open(self) -> Pending:
        warn_of_text(self._aggregate, self.context.log)
        return super().open()

    def _update(
        self, keys: Iterator[Any], values: Iterator[Any], results: list[Any]
    ) -> None:
        aggregate, rows = self._aggregate, self._rows
        if self._rolls and aggregate.roll is not None:
            aggregate.roll(keys, values, rows, results)
            return
        if self._undoable is not None:
            self._update_undoably(self._undoable, keys, values, results)
            return
        create, add = aggregate.create_accumulator, aggregate.add
        get_result, with_key = aggregate.get_result, self._with_key
        get = rows.get
        for key, value in zip(keys, values, strict=True):
            accumulator = get(key)
            if accumulator is None:
                accumulator = create()
            rows[key] = accumulator = add(value, accumulator)
            result = get_result(accumulator)
            results.append(result if with_key is None else with_key(key, result))

    def _given(self, results: list[Any]) -> Iterable[Any]:
        """Return what the aggregate gave, without the keys."""
        return results if self._with_key is None else (each[-1] for each in results)

    def _update_undoably(
        self,
        aggregate: Any,
        keys: Iterator[Any],
        values: Iterator[Any],
        results: list[Any],
    ) -> None:
        """Update key by key; a record for which there is no result changes nothing."""
        rows, with_key = self._rows, self._with_key
        get = rows.get
        for key, value in zip(keys, values, strict=True):
            held = get(key)
            if held is None:
                held = aggregate.create_accumulator()
            # Before the result is known: what cannot give one must leave no trace in
            # the state.
            mark = aggregate.mark(value, held)
            added = aggregate.add(value, held)
            try:
                result = aggregate.get_result(added)
                results.append(result if with_key is None else with_key(key, result))
            except USER_ERRORS:
                aggregate.reset(held, mark)
                raise
            rows[key] = added

    async def _update_one(self, key: Any, value: Any) -> Any:
        aggregate = self._undoable or self._aggregate
        accumulator = self._table.get(key)
        if accumulator is None:
            accumulator = await awaited(aggregate.create_accumulator())
        accumulator = await awaited(aggregate.add(value, accumulator))
        result = await awaited(aggregate.get_result(accumulator))
        self._table.put(key, accumulator)
        return result if self._with_key is None else self._with_key(key, result)


def _joining(
    aggregate: object, *, include_key: bool
) -> Callable[[Any, Any], Any] | None:
    """Return what makes a result of a key and of what the aggregate gives."""
    if not isinstance(aggregate, Aggregate) or aggregate.names is None:
        return _pair if include_key else None
    kind = result_type(("key", *aggregate.names))
    return lambda key, result: kind(key, *result)


def _pair(key: Any, result: Any) -> tuple[Any, Any]:
    return key, result
