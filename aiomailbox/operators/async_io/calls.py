"""Calls on their way: their rows, what came of them, and how they are told of."""

from __future__ import annotations

import asyncio
import heapq
import reprlib
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from aiomailbox.errors import WrongTypeError
from aiomailbox.operators.async_io.segment import RowSegment
from aiomailbox.operators.async_io.settings import CallSettings, Identity
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.operator import OpenCall, OpenCalls
from aiomailbox.operators.core.user_code import (
    UNMADE,
    DeadLetter,
    describe,
    refuse_unmade,
    shortened,
    users_line_of,
)
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.policies.retry import retry_after_s
from aiomailbox.records.run import Run
from aiomailbox.supervision import frames_of

# Rows that are on their way through an async operator, and the calls made for them.


@dataclass(slots=True, eq=False)
class CallEntry:
    """One row, from its arrival until its result has been emitted.

    Attributes:
        value: The record, or what of it the function is called with.
        timestamp: Its event time in milliseconds, as its run carried it, or None.
        done: Whether it has been decided what comes out.
        result: What the function returned; meaningless while not ``done``.
        dropped: Whether nothing comes out on the main output.
        letter: What goes to the side output of dead letters, or None.
        segment: The stretch between two watermarks that it belongs to, if order is
            kept by segments.
        key: Its key, where order is kept by key.
        cache_key: The key of its result in the cache, if it makes the call itself.
        identity: Which call it means, where records have ids.
        attempts: Attempts that have ended without an outcome.
        run: The run that has the whole record, where ``value`` is a part of it, or None.
        place: Where in that run; meaningless without one.
    """

    value: Any
    timestamp: int | None
    attempts: int = 0
    done: bool = False
    dropped: bool = False
    result: Any = None
    letter: DeadLetter | None = None
    key: Hashable = None
    cache_key: tuple[Hashable] | None = None
    identity: Identity | None = None
    run: Run | None = None
    segment: RowSegment = field(init=False)
    place: int = field(init=False)

    @property
    def record(self) -> Any:
        """The whole record."""
        if self.run is None:
            return self.value
        return self.run.slice(self.place, self.place + 1).values[0]


class CallWorker:
    """A coroutine that makes one call after the other.

    Attributes:
        task: The task it runs in.
        call: The call that it makes, or None.
        abandoned: Whether the call it makes has been given up by others: whatever
            comes of it is ignored.
    """

    __slots__ = ("abandoned", "call", "task")

    task: asyncio.Task[None]

    def __init__(self) -> None:
        self.call: Call | None = None
        self.abandoned: bool = False


class Call:
    """One call of the user's function: all its attempts, for one row or a batch.

    Attributes:
        entries: The rows that still need a result.
        attempts: Attempts begun.
        begun_s: When the last one began, by the job's monotonic clock.
        is_leasing: Whether it waits for its limit.
        worker: Makes the current attempt; None between attempts.
        timer: The current attempt's timeout, or the wait before the next one.
        deadline: The timer of all attempts together.
        deadline_s: The time at which it fires, by the job's monotonic clock.
        settled: Whether all rows have a result or have failed.
        span: Its span in a trace, None without one.
    """

    __slots__ = (
        "attempts",
        "begun_s",
        "deadline",
        "deadline_s",
        "entries",
        "is_leasing",
        "settled",
        "span",
        "timer",
        "worker",
    )

    def __init__(self, entries: list[CallEntry]) -> None:
        self.entries: list[CallEntry] = entries
        # Rows of a batch may have been in others before: none gets fewer than it may.
        self.attempts: int = entries[0].attempts
        if len(entries) > 1:
            self.attempts = min(entry.attempts for entry in entries)
        self.begun_s: float = 0.0
        self.is_leasing: bool = False
        self.worker: CallWorker | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.deadline: asyncio.TimerHandle | None = None
        self.deadline_s: float = 0.0
        self.settled: bool = False
        self.span: Any = None

    def cancel_timer(self) -> None:
        """Stop the timeout, or the wait before the next attempt."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def settle(self) -> None:
        """End the call: no timer of it fires any more."""
        self.settled = True
        self.cancel_timer()
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None


# What came of a call, row by row.


@dataclass(slots=True, eq=False)
class Outcomes:
    """Is notified of what came of a row; each row exactly once.

    Args:
        on_result: Told the row and its result.
        on_failure: Told the row, the error and how many attempts there were.
        on_fatal: Told of an error that no row is to blame for.
    """

    on_result: Callable[[CallEntry, Any], None]
    on_failure: Callable[[CallEntry, BaseException, int], None]
    on_fatal: Callable[[BaseException], None]


class Verdict(NamedTuple):
    """What an attempt means for each row of its call.

    Attributes:
        results: Rows that are done, with their results.
        failures: Rows that failed for the last time, with their errors.
        again: Rows whose call should be made again.
        reason: What is wrong with a row without a result: the exception or result that
            asks for the longest wait, or the first one of those that are called again.
            None if nothing is wrong.
    """

    results: list[tuple[CallEntry, Any]]
    failures: list[tuple[CallEntry, BaseException]]
    again: list[CallEntry]
    reason: Any = None

    @classmethod
    def failed(cls, call: Call, error: BaseException) -> Verdict:
        """Return that all rows failed for the last time."""
        return cls([], [(entry, error) for entry in call.entries], [], error)


class CallResults:
    """Judges what the function returned.

    Args:
        function: The function, for messages.
        settings: Whether there are batches, and which results are to be asked again.
        context: The operator's context.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        settings: CallSettings,
        context: RuntimeContext,
    ) -> None:
        self._function = function
        self._retry = retry = settings.retry
        self._batched = settings.batch is not None
        self._plain = not self._batched and (retry is None or retry.retry_if is None)
        self._log = context.log
        self._clock = context.clock
        self._has_told = False
        self._unwanted = context.metrics.counter("unwanted_results")

    def is_final(self, result: Any) -> bool:
        """Whether a result is its row's, and there is nothing more to ask."""
        return (
            self._plain
            and type(result) not in UNMADE
            and not isinstance(result, Exception)
        )

    def judge(self, call: Call, result: Any, *, is_last: bool) -> Verdict:
        """Return what becomes of each row; nobody is told of it yet.

        Args:
            call: The call.
            result: What the function returned.
            is_last: Whether no attempt may follow.

        Raises:
            WrongTypeError: If a batch was not answered with as many results, or a
                result is a coroutine.

        Raises what ``retry_if`` and ``retry_on`` raise, too.
        """
        entries = call.entries
        results = self._each(result, len(entries)) if self._batched else [result]
        for one in results:
            self._check(one)
        verdict = Verdict([], [], [])
        reasons: list[Any] = []
        for entry, one in zip(entries, results, strict=True):
            if self._wants_again(call, one, is_last=is_last):
                verdict.again.append(entry)
                reasons.append(one)
            elif self._batched and isinstance(one, Exception):
                verdict.failures.append((entry, one))
            else:
                if isinstance(one, Exception):
                    self._warn_of_error(one)
                verdict.results.append((entry, one))
        reasons += [error for _, error in verdict.failures]
        # No row may be called sooner than the server asked for any of them.
        return verdict._replace(reason=max(reasons, key=self._wait_s, default=None))

    def _wait_s(self, answer: Any) -> float:
        """Return how long a server asks to wait before the next call."""
        return retry_after_s(answer, self._clock.now_ms()) or 0.0

    def _each(self, result: Any, count: int) -> list[Any]:
        if isinstance(result, list | tuple):
            if len(result) == count:
                return list(result)
            got = f"{len(result)} results"
        else:
            got = type(result).__name__
        raise WrongTypeError(
            "function",
            f"{describe(self._function)} returned {got} for a batch of {count}",
            "Return a list with one result for each record, in their order.",
        )

    def _check(self, result: Any) -> None:
        if type(result) in UNMADE:
            refuse_unmade(result, self._function, is_awaited=True)

    def _wants_again(self, call: Call, result: Any, *, is_last: bool) -> bool:
        retry = self._retry
        if retry is None:
            return False
        if self._batched and isinstance(result, Exception):
            return not is_last and retry.wants_error(result)
        if not retry.wants_result(result):
            return False
        if is_last:
            self._count_unwanted(call, result)
        return not is_last

    def _count_unwanted(self, call: Call, result: Any) -> None:
        """Count a result that goes on although ``retry_if`` wants another one."""
        self._unwanted.value += 1
        # The counter says how many there are.
        if self._unwanted.value == 1:
            self._log.warning(
                "a result goes on that retry_if wants again: its last attempt is over",
                function=describe(self._function),
                attempts=call.attempts,
                result=shortened(result),
                remedy="raise an error in the function for such a result: on_error= "
                "then says what becomes of the record",
            )

    def _warn_of_error(self, error: Exception) -> None:
        """Say, once, that an exception is a record and no failure."""
        if not self._has_told:
            self._has_told = True
            self._log.warning(
                "a call returned an exception: it is a result like any other",
                function=describe(self._function),
                result=shortened(error),
                remedy="raise it: retry= and on_error= are for what a function raises",
            )


# Describes calls that have not ended; nothing is prepared for it while they run.


_TEXT_MAX: Final = 200


# What is long is not written out first.
_SHORT: Final = reprlib.Repr()


_SHORT.maxstring = _SHORT.maxother = _TEXT_MAX


_SHORT.maxdict = _SHORT.maxlist = _SHORT.maxtuple = 8


class LimitShown(NamedTuple):
    """The limit of an operator's calls.

    Attributes:
        limit: The limit, or None.
        free: Units that may be used now; None if they are counted in another process.
        waiting: Attempts of this operator that wait for it.
    """

    limit: RateLimit | None
    free: float | None
    waiting: int

    @property
    def text(self) -> str:
        """The limit and its tokens in words, "" without one."""
        limit = self.limit
        if limit is None:
            return ""
        free = "" if self.free is None else f"{self.free:g} of "
        return (
            f"{limit.label}: {free}{limit.count:g} {limit.unit} free in {limit.per_s:g} s, "
            f"{self.waiting} calls wait for it"
        )


def look_at_calls(
    workers: Iterable[CallWorker],
    retrying: Collection[Call],
    limit: LimitShown,
    *,
    waiting_for_slot: int,
    now_s: float,
    count_max: int,
) -> OpenCalls:
    """Return the oldest calls; of the very oldest, where its code stands, too.

    Args:
        workers: They make the calls.
        retrying: Those that wait for their next attempt.
        limit: What they share.
        waiting_for_slot: Calls that no worker makes yet.
        now_s: The time by the job's monotonic clock.
        count_max: How many are described.
    """
    made: list[tuple[Call, CallWorker | None]] = [
        (worker.call, worker) for worker in workers if worker.call is not None
    ]
    made += [(call, None) for call in retrying]
    oldest = [
        _describe(call, worker, limit, now_s, with_line=place == 0)
        for place, (call, worker) in enumerate(
            heapq.nsmallest(count_max, made, key=lambda each: each[0].begun_s)
        )
    ]
    return OpenCalls(len(made), oldest, waiting_for_slot, limit.text)


def _describe(
    call: Call,
    worker: CallWorker | None,
    limit: LimitShown,
    now_s: float,
    *,
    with_line: bool,
) -> OpenCall:
    line = ""
    if worker is None:
        waits_for = "its next attempt"
    elif worker.abandoned:
        waits_for = "its function, which goes on after it was cancelled"
    elif call.is_leasing and limit.limit is not None:
        waits_for = limit.limit.label
    else:
        waits_for = "its function"
    if with_line and worker is not None and not call.is_leasing:
        line = users_line_of(frames_of(worker.task))
    return OpenCall(
        _records(call), call.attempts, max(0.0, now_s - call.begun_s), waits_for, line
    )


def _records(call: Call) -> str:
    first = _text(call.entries[0].value)
    more = len(call.entries) - 1
    return f"{first} and {more} more" if more else first


def _text(value: Any) -> str:
    try:
        text = _SHORT.repr(value)
    except Exception:  # noqa: BLE001 -- the user's own type
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 3]}..."
