"""Sinks that write at once: functions and callers; and the parts that writers share."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from operator import attrgetter, itemgetter, length_hint
from typing import Any, ClassVar, Final

from aiomailbox.errors import (
    RecordsRefusedError,
    RecordTypeError,
    SinkError,
    safe_repr,
)
from aiomailbox.logs import library_log
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.failures import USER_ERRORS, is_closing
from aiomailbox.operators.core.operator import Pending, RunInterruption
from aiomailbox.operators.core.user_code import (
    TAKEN_APART,
    UNMADE,
    check_function,
    check_run_in,
    describe,
    is_async_callable,
    refuse_unmade,
    shortened,
)
from aiomailbox.operators.sinks.sink import CommitterContext, SinkWriter
from aiomailbox.policies.retry import Retry
from aiomailbox.records.record_classes import fields_of
from aiomailbox.records.run import Run
from aiomailbox.supervision import run_in_thread
from aiomailbox.typevars import T


# What the writers of sinks have in common that write at once.
class ImmediateSink:
    """Base of sinks with such writers."""

    keeps_nothing: ClassVar[bool] = True

    def create_committer(self, context: CommitterContext) -> None:
        """Return None: nothing is committed."""
        return


class ImmediateWriter:
    """Base of writers for which a record is written when ``write_run`` has ended.

    They buffer and prepare nothing, keep nothing for a restart, and hold nothing open.

    Attributes:
        keeps_nothing: Whether a snapshot has nothing of the sink, so that a program
            may leave it out or put an operator before it.
    """

    keeps_nothing: ClassVar[bool] = True

    acts_on_records_only = True

    def flush(self, *, end_of_input: bool) -> Pending:
        """Nothing is buffered."""
        return None

    def prepare_commit(self) -> list[Any]:
        """Nothing to commit."""
        return []

    def snapshot(self) -> list[Any]:
        """Nothing to keep."""
        return []

    def restore(self, elements: list[Any]) -> None:
        """Nothing to take over."""

    def close(self) -> Pending:
        """Nothing to release."""
        return None


# Methods that take what they are given for several elements, and whose objects they fill.
_EXTENDING: Final = ("extend", "update", "extendleft")
_EXTENDED: Final = (list, set, deque)


# A function as a sink.
class FunctionSink(ImmediateSink):
    """Calls a function with every record, in order.

    An ``async def`` function is awaited before it gets the next record, so the pipeline
    goes at its pace. Guarantee: at least once. In a job with checkpoints, the function
    gets the records since the newest one again after a failure: make it idempotent.
    Without checkpoints a job that fails has called it for some of its records. The
    process that starts the job calls it, wherever the rest of the job runs, so it can
    fill the caller's lists and print.

    Args:
        function: A function of one record. The sink ignores its result, but a coroutine
            from a function that is not ``async def`` fails the job.
        run_in: ``"thread"`` for a function that blocks; see `DataStream.sink_to`.

    Raises:
        InvalidArgumentError: If ``run_in`` is not known, or the function ``async def``.
        WrongTypeError: If it is not callable with one argument.

    Example:
        >>> sink = FunctionSink(print)
    """

    # A copy of the function in another process would fill a copy of what it fills.
    stays_in_parent = True

    def __init__(
        self, function: Callable[[Any], object], *, run_in: str = "loop"
    ) -> None:
        self.function: Callable[..., Any] = check_function(
            function, "function", arity=1
        )
        check_run_in(run_in, function)
        self.run_in = run_in
        self.may_leave_rest: bool = run_in == "thread" or is_async_callable(
            self.function
        )

    def create_writer(self, context: RuntimeContext) -> _FunctionWriter:
        """Create the writer of one subtask."""
        if self.run_in == "thread":
            return _FunctionWriter(partial(run_in_thread, self.function), is_async=True)
        return _FunctionWriter(self.function, is_async=self.may_leave_rest)


class _FunctionWriter(ImmediateWriter):
    def __init__(self, function: Callable[[Any], object], *, is_async: bool) -> None:
        self.interruption: RunInterruption | None = None
        self._function = function
        self._is_async = is_async
        self._named = getattr(function, "args", (function,))[0]
        self._has_warned = False
        own = getattr(function, "__self__", None)
        # Of lists of records it is right: only the records say.
        self._extends = isinstance(own, _EXTENDED) and function.__name__ in _EXTENDING

    def _check_extended(self, run: Run) -> None:
        """Refuse records that a method such as `list.extend` would take apart.

        Raises:
            RecordTypeError: For text, bytes and dicts.
        """
        for value in run.values:
            if type(value) in TAKEN_APART:
                raise RecordTypeError(
                    "sink",
                    f"{describe(self._named)} takes a record apart, as it is "
                    f"{type(value).__name__}: {shortened(value)}",
                    "Write sink_to(results.append).",
                )

    def _check_done(self, result: object) -> None:
        """Refuse what was not called; warn, once, of what goes on by itself.

        Raises:
            RecordTypeError: If the function has done nothing.
        """
        if hasattr(result, "add_done_callback"):
            if not self._has_warned:
                self._has_warned = True
                library_log().warning(
                    "a sink does not wait for what its function has begun: the job may "
                    "end before it, and does not see its error",
                    function=describe(self._named),
                    returned=type(result).__name__,
                    remedy="give the sink an async def function that awaits; for a "
                    'function that blocks, run_in="thread"',
                )
        elif type(result) in UNMADE:
            refuse_unmade(result, self._named)

    def write_run(self, run: Run) -> Pending:
        """Call the function with each record."""
        if self._is_async:
            return self._await_each(run)
        if self._extends:
            self._check_extended(run)
        function = self._function
        values = iter(run.values)
        try:
            for value in values:
                result = function(value)
                # One test per record; a call that is never made would be lost.
                if result is not None:
                    self._check_done(result)
        except USER_ERRORS as error:
            raise _refused(run, values, error) from error
        return None

    async def _await_each(self, run: Run) -> None:
        function: Any = self._function
        interruption = self.interruption
        if interruption is not None:
            interruption.start()
        values = iter(run.values)
        try:
            for value in values:
                result: object = await function(value)
                if result is not None:
                    self._check_done(result)
                if interruption is not None and interruption.watch.has_waited:
                    following = len(run) - length_hint(values)
                    if await interruption.look_around(run, following):
                        return
        except USER_ERRORS as error:
            if is_closing(error):
                raise
            raise _refused(run, values, error) from error


def _refused(
    run: Run, values: Iterator[Any], error: BaseException
) -> RecordsRefusedError:
    """Refuse the last record that was taken from a list's iterator.

    It knows how many are left: they need not be counted.
    """
    seen = len(run) - length_hint(values)
    return RecordsRefusedError({seen - 1: error}, seen)


# The sink behind ``collect``, ``take`` and ``async for``: hands runs to the caller.
class PullSink(ImmediateSink):
    """Leaves results in the job's hand-over of a name; the runner of the job pulls.

    Args:
        handover: The name.
    """

    # The caller that pulls is there.
    stays_in_parent = True
    takes_columns = True

    def __init__(self, handover: str) -> None:
        self._handover = handover

    def create_writer(self, context: RuntimeContext) -> SinkWriter:
        """Create the writer of one subtask."""
        return PullWriter(self._handover, context)


class PullWriter(ImmediateWriter):
    """Offers each run, and takes no input while the consumer has enough.

    Attributes:
        accepts: Available while there is room.
    """

    def __init__(self, name: str, context: RuntimeContext) -> None:
        self._context = context
        self._handover = context.handover(name)
        self.accepts = self._handover.room

    def write_run(self, run: Run) -> Pending:
        """Hand the run over; where one record led to many runs, wait for room."""
        if not self.accepts.available:
            return self._write_later(run)
        self._handover.offer(run)
        return None

    async def _write_later(self, run: Run) -> None:
        while not self.accepts.available:
            await self._context.mailbox.yield_until(self._handover.writable())
        self._handover.offer(run)


# What a writer returns for a run of which it takes only some records.
def refuse(refused: dict[int, BaseException], seen: int, pending: Pending) -> Pending:
    """Say which records of a run are refused, after what is pending for the others.

    Returns:
        Raises `RecordsRefusedError` when it is awaited.

    Raises:
        RecordsRefusedError: At once, if nothing is pending.

    Example:
        >>> refuse({1: ValueError("no price")}, 2, None)
        Traceback (most recent call last):
        aiomailbox.errors.RecordsRefusedError: 1 of 2 records refused, ...
    """
    error = RecordsRefusedError(refused, seen)
    if pending is None:
        raise error
    return _raise_after(pending, error)


async def _raise_after(pending: Awaitable[None], error: Exception) -> None:
    await pending
    raise error


# Calls to servers that may be away for a moment.


# Half a minute at most, until the job's own restart has its turn.
_RETRY: Final = Retry(
    attempts=8, initial=0.1, maximum=10.0, retry_on=(ConnectionError, TimeoutError)
)
# From there on, a person would wonder.
_ATTEMPTS_IN_SILENCE: Final = 3


async def patient(
    call: Callable[[], Awaitable[T]],
    what: object,
    random: random.Random,
    line: str,
) -> T:
    """Call a function, and retry a few times while its server does not answer.

    A warning says so when it has failed several times.

    Raises:
        SinkError: If there is no answer.
    """
    attempt = 1
    while True:
        try:
            return await call()
        except (ConnectionError, TimeoutError) as error:
            if attempt == _RETRY.attempts:
                raise SinkError(f"{what} cannot be reached: {error}") from error
            if attempt == _ATTEMPTS_IN_SILENCE:
                library_log().warning(
                    "a sink cannot reach its server, and tries again",
                    target=str(what),
                    line=line,
                    attempt=attempt,
                    attempts=_RETRY.attempts,
                    error=safe_repr(error),
                    remedy="start the server, or check the address of the sink",
                )
            await asyncio.sleep(_RETRY.delay_s(attempt, random))
            attempt += 1


# Turns records into rows.


def field_names(record: Any) -> tuple[str, ...]:
    """Return the names of a record's fields.

    Raises:
        RecordTypeError: If they have none.
    """
    if isinstance(record, Mapping):
        return tuple(str(name) for name in record)
    names = fields_of(record)
    if names:
        return names
    raise RecordTypeError(
        "record",
        f"{record!r} of type {type(record).__name__} has no named fields",
        "Use a dict, NamedTuple, dataclass or msgspec.Struct.",
    )


class RowReader:
    """Reads the fields of records, in the order of columns.

    Args:
        columns: The columns.
        is_exact: Whether a dict must have no other fields.

    Attributes:
        columns: The columns.
    """

    def __init__(self, columns: tuple[str, ...], *, is_exact: bool) -> None:
        self.columns = columns
        self._width = len(columns) if is_exact else None
        self._of_mapping = _as_tuple(itemgetter(*columns), len(columns))
        self._of_object = _as_tuple(attrgetter(*columns), len(columns))

    def row(self, record: Any) -> tuple[Any, ...]:
        """Return a record's row.

        Raises:
            RecordTypeError: If it has other fields.
        """
        try:
            if not isinstance(record, Mapping):
                return self._of_object(record)
            if self._width is None or len(record) == self._width:
                return self._of_mapping(record)
        except (KeyError, AttributeError):
            pass
        raise RecordTypeError(
            "record",
            f"its fields are {list(field_names(record))}, not {list(self.columns)}",
            "All records of a sink must have the columns of the first one.",
        )


def _as_tuple(
    read: Callable[[Any], Any], width: int
) -> Callable[[Any], tuple[Any, ...]]:
    # With one name, the getters of `operator` return the value alone.
    return read if width > 1 else lambda record: (read(record),)
