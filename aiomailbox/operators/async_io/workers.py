"""A pool of coroutines that make calls, so that a call needs no task of its own."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from types import CoroutineType
from typing import Any, Final

from aiomailbox.errors import (
    AsyncTimeoutError,
    BadResultError,
    BudgetExceededError,
    CallCancelledError,
    DeadlineExceededError,
    StopTask,
    UsageError,
    WrongTypeError,
    safe_str,
)
from aiomailbox.metrics.instruments import KeyTotals
from aiomailbox.operators.async_io.calls import (
    Call,
    CallEntry,
    CallResults,
    CallWorker,
    LimitShown,
    Outcomes,
    Verdict,
    look_at_calls,
)
from aiomailbox.operators.async_io.settings import CallSettings, announce
from aiomailbox.operators.core.context import Limiter, RuntimeContext
from aiomailbox.operators.core.failures import USER_ERRORS, is_closing
from aiomailbox.operators.core.operator import BlockCause, Blocked, OpenCalls
from aiomailbox.operators.core.user_code import describe, shortened
from aiomailbox.policies.retry import retry_after_s
from aiomailbox.supervision import end_tasks

# What is said of a call that fails when nobody can hear of it any more.
CLOSING: Final = "call failed while closing"
_INTERRUPT_EVERY_S: Final = 1.0
# A wait between two attempts that is told: a job may seem to hang.
_LONG_WAIT_S: Final = 60.0


class WorkerPool:
    """Makes calls in the order given, at most ``size`` of them at a time.

    A worker takes the next call as soon as its own has ended, without a turn of the
    event loop between; one without work sleeps until there is some. Workers are
    started when they are needed.

    Args:
        context: Starts the workers.
        size: Calls at a time.
        attempt: Makes one attempt of a call, and does not raise except to end the
            worker.

    Attributes:
        on_idle: Called when a worker finds no call to make.
    """

    def __init__(
        self,
        context: RuntimeContext,
        size: int,
        attempt: Callable[[CallWorker, Call], Awaitable[None]],
    ) -> None:
        self._context = context
        self.size: int = size
        self._attempt = attempt
        self._todo: deque[Call] = deque()
        self._idle: list[asyncio.Future[None]] = []
        # In the order in which they were started.
        self.workers: dict[CallWorker, None] = {}
        self.in_flight: int = 0
        self.closing: bool = False
        self.on_idle: Callable[[], None] | None = None

    @property
    def waiting(self) -> int:
        """Calls that wait for a worker."""
        return len(self._todo)

    def submit(self, call: Call) -> None:
        """Make a call after those that wait already."""
        self._todo.append(call)
        self._wake_one()

    def submit_first(self, call: Call) -> None:
        """Make a call before those that wait already."""
        self._todo.appendleft(call)
        self._wake_one()

    async def close(self) -> None:
        """Cancel all calls and wait until they have ended."""
        self.closing = True
        tasks = [worker.task for worker in self.workers]
        await end_tasks(tasks, every_s=_INTERRUPT_EVERY_S)
        # Also those that a call which has just ended let go before.
        self._todo.clear()

    def _wake_one(self) -> None:
        if self._idle:
            waiter = self._idle.pop()
            if not waiter.done():
                waiter.set_result(None)
        elif len(self.workers) < self.size and not self.closing:
            self._start_worker()

    def _start_worker(self) -> None:
        worker = CallWorker()
        self.workers[worker] = None
        worker.task = self._context.spawn(
            self._work(worker), name=f"call {len(self.workers)}"
        )
        worker.task.add_done_callback(lambda _: self.workers.pop(worker, None))

    async def _work(self, worker: CallWorker) -> None:
        todo = self._todo
        attempt = self._attempt
        # A call that is cancelled may have a result, or an error of its own.
        while not self.closing:
            if not todo:
                await self._sleep()
                continue
            call = todo.popleft()
            if call.settled:
                continue
            self.in_flight += 1
            worker.call = call
            try:
                await attempt(worker, call)
            finally:
                worker.call = None
                self.in_flight -= 1

    async def _sleep(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(waiter)
        if self.on_idle is not None:
            self.on_idle()
        await waiter


# One OpenTelemetry span for each asynchronous call, with its retries as events.
#
# Only the API is used, and only by a job that asks for it: where it goes is up to the
# program. The spans of a job belong to the trace of the code that started it, also in
# workers, which get it in the W3C format.


class CallSpans:
    """Makes the spans of one operator's calls.

    Args:
        context: The operator's context.
        carrier: The trace that they belong to, in the W3C format.
    """

    def __init__(self, context: RuntimeContext, carrier: Mapping[str, str]) -> None:
        from opentelemetry import propagate, trace

        self._trace = trace
        self._tracer = trace.get_tracer("aiomailbox")
        self._parent = propagate.extract(dict(carrier))
        self._name = context.operator_name
        self._about: dict[str, Any] = {
            "aiomailbox.job": context.job_name,
            "aiomailbox.operator": context.operator_name,
            "aiomailbox.subtask_index": context.subtask_index,
        }
        if context.uid is not None:
            self._about["aiomailbox.uid"] = context.uid

    async def attempt(
        self, call: Call, function: Callable[[Any], Awaitable[Any]], argument: Any
    ) -> Any:
        """Await one attempt; spans that the function begins are below the call's."""
        if call.span is None:
            call.span = self._tracer.start_span(
                self._name,
                context=self._parent,
                attributes={**self._about, "aiomailbox.rows": len(call.entries)},
            )
        with self._trace.use_span(
            call.span, record_exception=False, set_status_on_exception=False
        ):
            return await function(argument)

    def retry(self, call: Call, reason: Any, delay_s: float) -> None:
        """Say that a call is made again."""
        if call.span is not None:
            what = (
                type(reason).__name__ if isinstance(reason, BaseException) else "result"
            )
            call.span.add_event(
                "retry",
                {
                    "attempt": call.attempts,
                    "delay_s": delay_s,
                    "reason": f"{what}: {safe_str(reason)}"[:500],
                },
            )

    def end(self, call: Call, error: BaseException | None = None) -> None:
        """End the span of a call, once."""
        span, call.span = call.span, None
        if span is None:
            return
        span.set_attribute("aiomailbox.attempts", call.attempts)
        if error is not None:
            span.record_exception(error)
            span.set_status(
                self._trace.Status(self._trace.StatusCode.ERROR, type(error).__name__)
            )
        span.end()


# Makes calls: their attempts, timeouts, leases, waits and retries.
#
# Theory of operation: a call is attempted by a worker. Whatever happens first decides
# what becomes of an attempt: its result, its failure, or a timer. A timer does not rely
# on the function to obey: it decides, and then cancels the worker, whose late result is
# ignored. A retry waits on a timer of its own, without a worker, and goes to the front.
#
# Waiting for a lease belongs to an attempt and counts for the deadline; the attempt's
# timeout starts when the lease is there.


class Caller:
    """Makes the calls of one operator.

    Args:
        context: The operator's context.
        function: What to call, with a value, or with a list if there are batches.
        settings: How to call it.
        slots: Calls at a time.
        outcomes: Notified of the outcome of each row.
        scope: What the ids of records belong to, None if they have none.
        total_key: Reads the key that units are added up by, where rows do not have one.

    Attributes:
        waiting_for_limit: Attempts that wait for a lease.
        waiting_for_retry: Calls that wait for their next attempt.
        units_used: What the attempts have used of their limit.
    """

    def __init__(
        self,
        context: RuntimeContext,
        function: Callable[[Any], Awaitable[Any]],
        settings: CallSettings,
        slots: int,
        outcomes: Outcomes,
        scope: str | None = None,
        total_key: Callable[[Any], Any] | None = None,
    ) -> None:
        self._context = context
        self._scope = scope
        self._total_key = total_key
        self._clock = context.clock
        check = context.mutations
        self._function = function if check is None else check.watched(function)
        self._settings = settings
        self._outcomes = outcomes
        self._batched = settings.batch is not None
        self._timeout_s = settings.timeout_s
        self._deadline_s = settings.deadline_s
        self._retry = settings.retry
        self._limiter: Limiter | None = (
            None if settings.limit is None else context.limiter(settings.limit)
        )
        # As sets that keep their order.
        self._retrying: dict[Call, None] = {}
        self._deadlines: dict[Call, None] = {}
        self.waiting_for_limit: int = 0
        metrics = context.metrics
        self._totals = KeyTotals()
        self.units_used: float = 0.0
        if self._limiter is not None:
            metrics.gauge("units_used", lambda: self.units_used)
            metrics.key_totals = self._totals
        self._calls = metrics.counter("calls")
        self._retries = metrics.counter("retries")
        self._timeouts = metrics.counter("timeouts")
        carrier = context.trace_carrier
        self._spans = None if carrier is None else CallSpans(context, carrier)
        self._has_told_of_wait = False
        self._answers = CallResults(function, settings, context)
        self.pool: WorkerPool = WorkerPool(context, slots, self._attempt)

    @property
    def waiting_for_retry(self) -> int:
        """Calls that wait for their next attempt."""
        return len(self._retrying)

    def open_calls(self, count_max: int) -> OpenCalls:
        """Return the calls that are being made, and those that wait to be made again."""
        limiter, limit = self._limiter, self._settings.limit
        shown = LimitShown(
            limit, None if limiter is None else limiter.free, self.waiting_for_limit
        )
        return look_at_calls(
            self.pool.workers,
            self._retrying,
            shown,
            waiting_for_slot=self.pool.waiting,
            now_s=self._clock.monotonic(),
            count_max=count_max,
        )

    def blocked(self, waiting_for_key: int) -> Blocked | None:
        """Return what the calls wait for, None if none is open.

        Args:
            waiting_for_key: Rows whose call cannot begin before that of another row.
        """
        if self.waiting_for_limit:
            limit = self._settings.limit
            return Blocked(BlockCause.LIMIT, "" if limit is None else limit.title)
        in_flight, retrying = self.pool.in_flight, self.waiting_for_retry
        if retrying > in_flight:
            return Blocked(BlockCause.RETRY)
        if waiting_for_key and in_flight < self.pool.size:
            return Blocked(BlockCause.KEY)
        if in_flight:
            return Blocked(BlockCause.CALLS, f"{self.pool.size} at once")
        return None

    def submit(self, entries: list[CallEntry]) -> None:
        """Call the function for one row, or for a batch."""
        self.pool.submit(Call(entries))

    async def close(self) -> None:
        """Cancel everything and wait until no call is running."""
        for call in self._retrying | self._deadlines:
            self._end(call)
        self._retrying.clear()
        # Those that are being made end when their function does: no time is up meanwhile.
        for worker in self.pool.workers:
            if worker.call is not None:
                worker.call.settle()
        await self.pool.close()

    async def _attempt(self, worker: CallWorker, call: Call) -> None:
        call.attempts += 1
        call.begun_s = self._clock.monotonic()
        call.worker = worker
        try:
            if self._deadline_s is not None and call.deadline is None:
                self._arm_deadline(call, self._deadline_s)
            if self._limiter is not None:
                await self._lease(self._limiter, call)
            # What its budget refuses is not made.
            self._calls.value += 1
            if self._timeout_s is not None:
                loop = asyncio.get_running_loop()
                call.timer = loop.call_later(self._timeout_s, self._time_out, call)
            entries = call.entries
            if self._scope is not None:
                announce(self._scope, entries, call.attempts)
            argument = (
                [entry.value for entry in entries]
                if self._batched
                else entries[0].value
            )
            if self._spans is None:
                result = await self._call(argument)
            else:
                result = await self._spans.attempt(call, self._call, argument)
        except asyncio.CancelledError as error:
            self._on_cancelled(worker, call, error)
        except USER_ERRORS as error:  # Retries and on_error decide.
            if is_closing(error):
                raise
            if not self._is_current(worker, call):
                self._context.repeated.answered_too_late(shortened(error))
            else:
                self._failed(call, error)
        else:
            if self._is_current(worker, call):
                self._returned(call, result)
            else:
                self._context.repeated.answered_too_late(shortened(result))

    def _call(self, argument: Any) -> Awaitable[Any]:
        awaitable = self._function(argument)
        if type(awaitable) is not CoroutineType and not inspect.isawaitable(awaitable):
            raise WrongTypeError(
                "function",
                f"{describe(self._function)} returned {type(awaitable).__name__}, "
                "which cannot be awaited",
                "Give an async def function; a plain one belongs into map.",
            )
        return awaitable

    def _is_current(self, worker: CallWorker, call: Call) -> bool:
        """End the attempt; say whether its outcome counts."""
        if worker.abandoned:
            worker.abandoned = False
            # The cancel was ours: the worker goes on and must not look cancelled.
            worker.task.uncancel()
            return False
        call.worker = None
        call.cancel_timer()
        return True

    def _on_cancelled(
        self, worker: CallWorker, call: Call, error: asyncio.CancelledError
    ) -> None:
        if self.pool.closing:
            self._end(call)
            raise error
        if not self._is_current(worker, call):
            return
        failure = CallCancelledError(
            f"{describe(self._function)} was cancelled by something other than the job"
        )
        failure.__cause__ = error
        failure.__traceback__ = error.__traceback__
        if worker.task.cancelling():
            # The worker itself was meant: it has to end, and makes no more calls.
            call.settle()
            self._outcomes.on_fatal(failure)
            raise error
        self._failed(call, failure)

    async def _lease(self, limiter: Limiter, call: Call) -> None:
        used = self._weights(call)
        keys = [self._key_of(entry) for entry in call.entries]
        # Not what the parts of one add up to.
        weight = 1.0 if self._settings.weight is None else sum(used)
        self.waiting_for_limit += 1
        call.is_leasing = True
        try:
            await limiter.lease(weight)
        finally:
            call.is_leasing = False
            self.waiting_for_limit -= 1
        self.units_used += weight
        for key, units in zip(keys, used, strict=True):
            if key is not None:
                self._totals.add(key, units)

    def _key_of(self, entry: CallEntry) -> Any:
        if entry.key is not None or self._total_key is None:
            return entry.key
        return self._total_key(entry.value)

    def _weights(self, call: Call) -> list[float]:
        """Return what each row of a call uses."""
        weight, count = self._settings.weight, len(call.entries)
        if weight is None:
            return [1.0 / count] * count
        if callable(weight):
            used = [weight(entry.value) for entry in call.entries]
            for one in used:
                # NaN is not 0 or more.
                if not (isinstance(one, int | float) and one >= 0):
                    raise BadResultError(
                        describe(weight),
                        f"{shortened(one)} as the weight of a record",
                        "Return a number of units, 0 or more.",
                    )
            return used
        return [weight] * count

    def _arm_deadline(self, call: Call, deadline_s: float) -> None:
        loop = asyncio.get_running_loop()
        call.deadline_s = self._clock.monotonic() + deadline_s
        call.deadline = loop.call_later(deadline_s, self._on_deadline, call)
        self._deadlines[call] = None

    def _time_out(self, call: Call) -> None:
        call.timer = None
        self._abandon(call)
        self._timeouts.value += 1
        self._failed(
            call,
            AsyncTimeoutError(
                f"attempt {call.attempts} of {describe(self._function)} took longer "
                f"than its timeout of {self._timeout_s} s"
            ),
        )

    def _on_deadline(self, call: Call) -> None:
        self._retrying.pop(call, None)
        if call.worker is not None:
            self._abandon(call)
        self._timeouts.value += 1
        self._give_up(call, self._too_late(call))

    def _too_late(self, call: Call) -> DeadlineExceededError:
        return DeadlineExceededError(
            f"{call.attempts} attempts of {describe(self._function)} and the delays "
            f"between them took longer than the deadline of {self._deadline_s} s"
        )

    def _abandon(self, call: Call) -> None:
        worker, call.worker = call.worker, None
        assert worker is not None, "only a running attempt is abandoned"
        # Marked first: what the cancel brings back is no outcome.
        worker.abandoned = True
        worker.task.cancel()

    def _returned(self, call: Call, result: Any) -> None:
        if self._answers.is_final(result):
            self._end(call)
            self._outcomes.on_result(call.entries[0], result)
            return
        is_last = self._is_last(call)
        try:
            verdict = self._answers.judge(call, result, is_last=is_last)
        except USER_ERRORS as error:  # A wrong result, or a predicate raised.
            self._conclude(call, Verdict.failed(call, error), error)
            return
        self._conclude(call, verdict)

    def _failed(self, call: Call, error: BaseException) -> None:
        retry = self._retry
        try:
            again = (
                retry is not None
                and not self._is_last(call)
                and not isinstance(error, UsageError | StopTask | BudgetExceededError)
                and retry.wants_error(error)
            )
        except USER_ERRORS as raised:  # By the user's predicate.
            # What the function raised is not lost over what the predicate did.
            raised.__context__ = error
            error, again = raised, False
        if again:
            verdict = Verdict([], [], call.entries, error)
        else:
            verdict = Verdict.failed(call, error)
        self._conclude(call, verdict, error)

    def _is_last(self, call: Call) -> bool:
        """Whether no attempt may follow: while closing, one does where a job resumes."""
        if self._retry is None:
            return True
        return call.attempts >= self._retry.attempts and not self.pool.closing

    def _conclude(
        self, call: Call, verdict: Verdict, error: BaseException | None = None
    ) -> None:
        """Tell what came of an attempt, and plan the next one for rows that need it.

        Args:
            call: The call.
            verdict: What becomes of its rows.
            error: What the attempt failed with as a whole, or None.
        """
        results, failures, again, reason = verdict
        if self.pool.closing and (failures or again):
            # Only results count: whatever else answers the end of the job says nothing
            # of its row, which is in the last snapshot, and called again.
            failures, again = [], []
            self._context.repeated.add(CLOSING, 1, self._error_of(reason))
        if not again:
            self._end(call, error)
        for entry, result in results:
            self._outcomes.on_result(entry, result)
        for entry, failure in failures:
            self._outcomes.on_failure(entry, failure, call.attempts)
        if again:
            call.entries = again
            self._plan_retry(call, reason)
        elif failures:
            self._pause(reason)

    def _error_of(self, reason: Any) -> BaseException:
        """Return an error that says what is wrong with an answer."""
        if isinstance(reason, BaseException):
            return reason
        return BadResultError(
            describe(self._function),
            f"{shortened(reason)} when it was cancelled, which retry_if wants again",
            "Let asyncio.CancelledError pass.",
        )

    def _plan_retry(self, call: Call, reason: Any) -> None:
        """Wait for the next attempt, if the deadline leaves time for it."""
        assert self._retry is not None, "without a policy nothing is retried"
        delay_s = self._retry.delay_s(
            call.attempts, self._context.random, self._pause(reason)
        )
        # A retry that begins after the deadline would only be cancelled.
        if call.deadline and self._clock.monotonic() + delay_s >= call.deadline_s:
            error = self._too_late(call)
            error.__cause__ = reason if isinstance(reason, Exception) else None
            self._timeouts.value += 1
            self._give_up(call, error)
            return
        for entry in call.entries:
            entry.attempts = call.attempts
        # A snapshot holds how many there were, and a retry may be hours away.
        self._context.mailbox.count_change()
        if self._spans is not None:
            self._spans.retry(call, reason, delay_s)
        self._retrying[call] = None
        loop = asyncio.get_running_loop()
        call.timer = loop.call_later(delay_s, self._again, call)

    def _pause(self, reason: Any) -> float | None:
        """Pause all calls under the limit if a server asked for it; return how long."""
        delay_s = retry_after_s(reason, self._clock.now_ms())
        if delay_s and delay_s >= _LONG_WAIT_S and not self._has_told_of_wait:
            self._has_told_of_wait = True
            self._context.log.warning(
                "a call waits before its next attempt, as its error or its server asked",
                wait_s=delay_s,
                reason=shortened(reason),
                remedy="retry_after= counts seconds; deadline= is how long a call may "
                "take with all its attempts",
            )
        if delay_s and self._limiter is not None:
            self._limiter.pause(delay_s)
        return delay_s

    def _again(self, call: Call) -> None:
        call.timer = None
        self._retrying.pop(call, None)
        self._retries.value += 1
        self.pool.submit_first(call)

    def _give_up(self, call: Call, error: BaseException) -> None:
        self._end(call, error)
        for entry in call.entries:
            self._outcomes.on_failure(entry, error, call.attempts)

    def _end(self, call: Call, error: BaseException | None = None) -> None:
        call.settle()
        if self._spans is not None:
            self._spans.end(call, error)
        self._deadlines.pop(call, None)
