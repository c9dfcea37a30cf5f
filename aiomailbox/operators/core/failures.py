"""Applies ``on_error`` to records whose function raised."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from aiomailbox.errors import (
    RecordMutatedError,
    StopTask,
    UserFunctionError,
    add_note,
    safe_str,
)
from aiomailbox.operators.core.callables import collected, describe, shortened
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.contract import Output, Pending, then
from aiomailbox.operators.core.locate import is_own_line, user_location
from aiomailbox.operators.core.on_error import (
    FATAL_ERRORS,
    USER_ERRORS,
    DeadLetter,
    ErrorAction,
    OnError,
    is_closing,
    raise_as,
)
from aiomailbox.records.elements import MIN_TIMESTAMP, OutputTag
from aiomailbox.records.run import ListRun


class RecordFailures:
    """The records of one operator that failed since the last `report`.

    `take` is called in the middle of a synchronous loop and cannot wait; what it
    collects goes out with `report`, which may.

    Args:
        on_error: What to do with a record whose function raised.
        function: The user's function; names the place if a traceback does not.
        context: The operator's context.
        output: The operator's output, for dead letters.

    Attributes:
        waiting: Whether there is something to report.
    """

    __slots__ = (
        "_context",
        "_first_skipped",
        "_function",
        "_letters",
        "_on_error",
        "_output",
        "_skipped",
        "_timestamps",
        "waiting",
    )

    def __init__(
        self,
        on_error: OnError,
        function: Callable[..., Any],
        context: RuntimeContext,
        output: Output,
    ) -> None:
        self._on_error = on_error
        self._function = function
        self._context = context
        self._output = output
        self._letters: list[DeadLetter] = []
        self._timestamps: list[int] = []
        self._skipped = 0
        self._first_skipped: BaseException | None = None
        self.waiting: bool = False

    def take(self, record: Any, timestamp: int | None, error: BaseException) -> None:
        """Do with a failed record what ``on_error`` says.

        Args:
            record: What the function was called with.
            timestamp: Its event time in milliseconds; None or `MIN_TIMESTAMP` if none.
            error: What the function raised.

        Raises:
            UserFunctionError: From ``error``, if records may not fail, or this one
                emitted more than may be lent.
        """
        action = self._on_error.action
        if not self.forgives(error):
            self.fail(error, record)
        self.waiting = True
        if action is ErrorAction.SKIP:
            self._skipped += 1
            # The first of many is enough for the log; the count says the rest.
            self._first_skipped = self._first_skipped or error
            return
        self._timestamps.append(MIN_TIMESTAMP if timestamp is None else timestamp)
        self._letters.append(self._dead_letter(record, timestamp, error))

    def forgives(self, error: BaseException) -> bool:
        """Say whether the job goes on after what a function raised.

        Raises:
            BaseException: ``error`` itself, if it ends the task and is no failure.
        """
        # What ends the task, or closes the coroutine, is no failure of a record.
        if isinstance(error, StopTask | RecordMutatedError) or is_closing(error):
            raise error
        fails = self._on_error.action is ErrorAction.FAIL
        return not (fails or isinstance(error, FATAL_ERRORS))

    def fail(self, error: BaseException, *record: Any) -> NoReturn:
        """Raise what names the operator, the user's line and the record, if there is one.

        Raises:
            UserFunctionError: From ``error``, unless that is one.
        """
        failure = self.user_error(error)
        for each in record:
            text = shortened(each)
            add_note(failure, f"the record: {text}")
            if isinstance(failure, UserFunctionError):
                failure.record = text
        raise_as(failure, error)

    def user_error(
        self, error: BaseException
    ) -> UserFunctionError | RecordMutatedError | StopTask:
        """Return the error that names the operator and the user's line."""
        if isinstance(error, (UserFunctionError, RecordMutatedError, StopTask)):
            return error
        context = self._context
        location = user_location(error)
        if is_own_line(location):
            # The function has no line of its own, as built-in ones.
            location = describe(self._function)
            if is_own_line(location.partition("(")[2]):
                location = ""
        return UserFunctionError(context.operator_name, context.uid, location, error)

    def guard(self, call: Callable[..., Pending], *args: Any) -> Pending:
        """Call a method of the user's that is about no record in particular.

        Raises:
            UserFunctionError: If it raises, at once or while it is awaited.
        """
        try:
            pending = call(*args)
        except USER_ERRORS as error:
            raise_as(self.user_error(error), error)
        return None if pending is None else self._guarded(call, pending)

    async def _guarded(self, call: Callable[..., Pending], pending: object) -> None:
        try:
            await collected(call, pending)
        except USER_ERRORS as error:
            if is_closing(error):
                raise
            raise_as(self.user_error(error), error)

    def report(self) -> Pending:
        """Count, log and emit what was taken since the last time."""
        self.waiting = False
        if self._first_skipped is not None:
            self._report_skipped(self._first_skipped)
        tag = self._on_error.tag
        if tag is None or not self._letters:
            return None
        return self._emit_letters(tag)

    def _report_skipped(self, first: BaseException) -> None:
        count, self._skipped, self._first_skipped = self._skipped, 0, None
        self._context.metrics.counter("skipped").add(count)
        self._context.repeated.add("records skipped", count, first)

    def _emit_letters(self, tag: OutputTag) -> Pending:
        self._context.metrics.counter("dead_letters").add(len(self._letters))
        has_time = any(stamp != MIN_TIMESTAMP for stamp in self._timestamps)
        run = ListRun(self._letters, self._timestamps if has_time else None)
        self._letters = []
        self._timestamps = []
        return self._output.emit_side(tag, run)

    def _dead_letter(
        self, record: Any, timestamp: int | None, error: BaseException
    ) -> DeadLetter:
        context = self._context
        return DeadLetter(
            record=record,
            timestamp=None if timestamp == MIN_TIMESTAMP else timestamp,
            operator=context.operator_name,
            uid=context.uid,
            attempts=1,
            error_type=type(error).__qualname__,
            error=safe_str(error),
            traceback="".join(traceback.format_exception(error)),
        )


def report_all(failures: list[RecordFailures]) -> Pending:
    """Report the failures of several operators, in order."""
    pending: Pending = None
    for failed in failures:
        if failed.waiting:
            pending = then(pending, failed.report)
    return pending
