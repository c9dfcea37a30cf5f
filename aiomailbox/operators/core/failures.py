"""Errors in the user's code: handled by ``on_error``, or named after their hook."""

from __future__ import annotations

import asyncio
import difflib
import inspect
import signal
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import FrozenInstanceError
from functools import partial
from types import FrameType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    NamedTuple,
    NoReturn,
    Protocol,
)

from aiomailbox.errors import (
    AioMailboxError,
    BadResultError,
    OverdraftCeilingError,
    RecordMutatedError,
    StopTask,
    UserFunctionError,
    add_note,
    named_operator,
    safe_str,
)
from aiomailbox.mailbox.task_mailbox import current_task_or_none
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.operator import Output, Pending, then
from aiomailbox.operators.core.user_code import (
    DeadLetter,
    ErrorAction,
    OnError,
    check_tag,
    collected,
    describe,
    line_of,
    shortened,
    user_location,
)
from aiomailbox.records.events import MIN_TIMESTAMP, OutputTag, Question
from aiomailbox.records.record_classes import fields_of
from aiomailbox.records.run import ListRun
from aiomailbox.signatures import no_such_name
from aiomailbox.state.store import STATE_OF_ELSEWHERE, NoKeysStateStore
from aiomailbox.typevars import ValueT

# What a function may raise for a record. A GeneratorExit of its own, from a generator
# that it uses, is a failure like others.
USER_ERRORS: Final = (Exception, GeneratorExit)


# What fails the task whatever on_error says.
FATAL_ERRORS: Final = (StopTask, OverdraftCeilingError, RecordMutatedError)


def is_closing(error: BaseException) -> bool:
    """Say whether ``error`` came to close the coroutine or generator that caught it.

    Such a ``GeneratorExit`` begins in the frame that catches it, and one of a user's
    function begins in the function.

    Example:
        >>> def paused():
        ...     try:
        ...         yield
        ...     except GeneratorExit as error:
        ...         print(is_closing(error))
        >>> generator = paused()
        >>> next(generator)
        >>> generator.close()
        True
    """
    traceback = error.__traceback__
    return type(error) is GeneratorExit and (
        traceback is None or traceback.tb_next is None
    )


# What is meant, by the words of Python's error.
_OF_PYTHON: Final = {
    "offset-naive and offset-aware": "One of the datetimes has a time zone, the other has "
    "none: write datetime(..., tzinfo=UTC).",
    "object NoneType can't be used in 'await' expression": "That has returned None: "
    "out.collect(...), context.output(...) and the methods of a state are written "
    "without await.",
    "'TimeWindow' object is not callable": "Write context.window, without parentheses.",
}
_NAMES_MAX: Final = 20
_OF_STATE: Final = {
    **dict.fromkeys(
        ("'ValueHandle' and", "and 'ValueHandle'"),
        "A state is not its value: write state.update(state.value() + 1).",
    ),
    "'method'": "A method is used there without parentheses: a state's value is "
    "state.value().",
    "has no attribute 'register_": "A timer belongs to a key, and open has none: register "
    "it in process_element.",
    "attribute 'value' is read-only": "Write state.update(value).",
    "StateDescriptor' object has no attribute": "A descriptor only describes a state, whose object "
    "context.keyed_state.get_value(descriptor) returns, in open.",
    "'NoneType' and": "If that is the value of a state: it is None before the first "
    "update, unless its descriptor has a default=. If it is context.timestamp: the record "
    "has no event time.",
    "'int' and 'datetime.timedelta'": "Event times are milliseconds: write "
    "register_event_time_timer(after=am.seconds(10)), or add 10_000.",
}
# What is meant, by Python's words for a loop that runs already.
_ON_THE_LOOP: Final = (
    "asyncio.run() cannot be called from a running event loop",
    "This event loop is already running",
)
_OF_ANOTHER_LOOP: Final = ("is bound to a different event loop", "to a different loop")


def _hint(error: BaseException, record: Any, *, is_keyed: bool) -> str:
    """Say what was meant, where a record or a state was used as one of another kind.

    Example:
        >>> try:
        ...     {"price": 3}.price
        ... except AttributeError as error:
        ...     _hint(error, error.obj, is_keyed=False)
        "A dict has its fields by name: write record['price']."
    """
    if isinstance(error, AttributeError | TypeError | KeyError):
        return _of_record(error, record) or next(
            (
                hint
                for part, hint in (
                    _OF_PYTHON | _OF_STATE if is_keyed else _OF_PYTHON
                ).items()
                if part in str(error)
            ),
            "",
        )
    if isinstance(error, RuntimeError) and str(error) in _ON_THE_LOOP:
        return (
            "This function runs on the event loop of the job: give map_async an async "
            'def that awaits, or write run_in="thread" here.'
        )
    if isinstance(error, RuntimeError) and any(
        part in str(error) for part in _OF_ANOTHER_LOOP
    ):
        return (
            "It was used on another event loop, such as that of an earlier asyncio.run: "
            "make it anew for each job, in open or in __aenter__ of a function object."
        )
    return ""


def _of_record(error: BaseException, record: Any) -> str:
    """Say how a record's fields are read, and which it has; "" if it is not about that."""
    text, kind = str(error), type(record)
    names = [
        name
        for name in (record if kind is dict else fields_of(record) or ())
        if isinstance(name, str)
    ]
    if isinstance(error, KeyError):
        # Perhaps of another dict, unless the name is hardly misspelt.
        wanted = error.args[0] if error.args else None
        if not isinstance(wanted, str) or wanted in names:
            return ""
        close = difflib.get_close_matches(wanted, names, n=1)
        return f"Is {close[0]!r} meant? {_has(names)}" if close else ""
    if kind is dict:
        name = getattr(error, "name", None)
        is_read = isinstance(error, AttributeError) and error.obj is record
        if is_read and name in names:
            return f"A dict has its fields by name: write record[{name!r}]."
        return ""
    if not names:
        return ""
    if isinstance(error, FrozenInstanceError) or text.startswith("can't set attribute"):
        make = (
            f"record._replace({names[0]}=...)"
            if isinstance(record, tuple)
            else f"dataclasses.replace(record, {names[0]}=...)"
        )
        return f"A record does not change: make another one, {make}."
    if isinstance(error, AttributeError) and error.obj is record:
        return _has(names)
    is_index = text.startswith("tuple indices must be integers")
    if is_index or text == f"{kind.__name__!r} object is not subscriptable":
        # Records around another one, whose fields are meant.
        if isinstance(record, Question):
            return "The question has what was asked: write question.value."
        if isinstance(record, DeadLetter):
            return "The dead letter has the record that failed: write letter.record."
        return f"The fields of this record are attributes: write record.{names[0]}."
    return ""


def _has(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMES_MAX])
    return f"The record has the fields {shown}{', ...' if names[_NAMES_MAX:] else ''}."


def raise_as(failure: BaseException, error: BaseException) -> NoReturn:
    """Raise what an error was made into, with the error as its cause.

    Raises:
        BaseException: ``failure``; as it is, if that is the error itself.
    """
    if failure is error:
        raise error
    raise failure from error


class Fallible(Protocol):
    """An operator whose records may fail, or a part of one.

    Attributes:
        on_error: How to handle a record whose function raised.
        context: Its context.
        output: Its output, for dead letters.
    """

    on_error: OnError
    context: RuntimeContext
    output: Output


class RecordFailures:
    """The records of one operator that failed since the last `report`.

    A synchronous loop calls `take` in its middle, so `take` cannot wait. `report` can:
    it sends the collected records out.

    Args:
        operator: The operator, with what its task provides.
        function: The user's function; names the place if a traceback does not.

    Attributes:
        waiting: Whether there is something to report.
    """

    def __init__(self, operator: Fallible, function: Callable[..., Any]) -> None:
        self.on_error: OnError = operator.on_error
        self.context: RuntimeContext = operator.context
        self.output: Output = operator.output
        self._function = function
        self._letters: list[DeadLetter] = []
        self._timestamps: list[int] = []
        self._skipped = 0
        self._first_skipped: BaseException | None = None
        self.waiting: bool = False

    def take(self, record: Any, timestamp: int | None, error: BaseException) -> None:
        """Do with a failed record what ``on_error`` says.

        Args:
            record: The argument of the function.
            timestamp: Its event time in milliseconds; None or `MIN_TIMESTAMP` if none.
            error: The exception that the function raised.

        Raises:
            UserFunctionError: From ``error``, if records may not fail, or this one
                emitted more than may be lent.
        """
        if not self.forgives(error):
            self.fail(error, record)
        letter = self.dropped(record, timestamp, error)
        if letter is not None:
            self.waiting = True
            self._timestamps.append(MIN_TIMESTAMP if timestamp is None else timestamp)
            self._letters.append(letter)

    def dropped(
        self,
        record: Any,
        timestamp: int | None,
        error: BaseException,
        attempts: int = 1,
    ) -> DeadLetter | None:
        """Return the dead letter of a record that is dropped; None if it is skipped."""
        if self.on_error.action is not ErrorAction.SKIP:
            return self.letter(record, timestamp, error, attempts)
        self.waiting = True
        self._skipped += 1
        # The first of many is enough for the log; the count says the rest.
        self._first_skipped = self._first_skipped or error
        return None

    def forgives(self, error: BaseException) -> bool:
        """Say whether the job goes on after what a function raised.

        Raises:
            BaseException: ``error`` itself, if it ends the task and is no failure.
        """
        # What ends the task, or closes the coroutine, is no failure of a record.
        if isinstance(error, StopTask | RecordMutatedError) or is_closing(error):
            raise error
        fails = self.on_error.action is ErrorAction.FAIL
        return not (fails or isinstance(error, FATAL_ERRORS))

    def fail(self, error: BaseException, *record: Any) -> NoReturn:
        """Raise what names the operator, the user's line and the record, if there is one.

        Raises:
            UserFunctionError: From ``error``, unless that is one.
        """
        failure = self.user_error(error)
        for each in record:
            text = shortened(each)
            self._add_hint(failure, error, each)
            add_note(failure, f"the record: {text}")
            if isinstance(failure, UserFunctionError):
                failure.record = text
        raise_as(failure, error)

    def _add_hint(
        self, failure: BaseException, error: BaseException, record: Any
    ) -> None:
        is_keyed = not isinstance(self.context.keyed_state, NoKeysStateStore)
        hint = _hint(error, record, is_keyed=is_keyed)
        if hint and isinstance(failure, UserFunctionError):
            failure.args = (f"{failure}. {hint}",)

    def user_error(
        self, error: BaseException
    ) -> UserFunctionError | RecordMutatedError | StopTask:
        """Return the error that names the operator and the user's line."""
        if isinstance(error, (UserFunctionError, RecordMutatedError, StopTask)):
            return error
        context = self.context
        # A function of a library, a built-in one, or the name of a field: the call that
        # it was given to.
        is_other = isinstance(error, BadResultError)
        function = "" if is_other else line_of(self._function)
        location = user_location(error) or function or context.line
        location = location or describe(self._function)
        return UserFunctionError(context.operator_name, context.uid, location, error)

    def guard(self, call: Callable[..., Pending], *args: Any) -> Pending:
        """Call a method of the user's that is about no record in particular.

        Raises:
            UserFunctionError: If it raises, at once or while it is awaited.
        """
        try:
            pending = call(*args)
        except USER_ERRORS as error:
            failure = self.user_error(error)
            self._add_hint(failure, error, None)
            raise_as(failure, error)
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
        tag = self.on_error.tag
        if tag is None or not self._letters:
            return None
        return self._emit_letters(tag)

    def _report_skipped(self, first: BaseException) -> None:
        count, self._skipped, self._first_skipped = self._skipped, 0, None
        self.context.metrics.counter("skipped").add(count)
        self.context.repeated.add("records skipped", count, first)

    def _emit_letters(self, tag: OutputTag) -> Pending:
        self.context.metrics.counter("dead_letters").add(len(self._letters))
        has_time = any(stamp != MIN_TIMESTAMP for stamp in self._timestamps)
        run = ListRun(self._letters, self._timestamps if has_time else None)
        self._letters = []
        self._timestamps = []
        return self.output.emit_side(tag, run)

    def letter(
        self,
        record: Any,
        timestamp: int | None,
        error: BaseException,
        attempts: int = 1,
    ) -> DeadLetter:
        """Return what a dead-letter output gets of a record that failed."""
        context = self.context
        return DeadLetter(
            record=record,
            timestamp=None if timestamp == MIN_TIMESTAMP else timestamp,
            operator=context.operator_name,
            uid=context.uid,
            attempts=attempts,
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


# Says of an error in a hook of the user's whose hook it was, and on which line.


def is_foreign(error: BaseException) -> bool:
    """Say whether a CancelledError comes from something awaited, not from this task.

    Left alone it would look like a clean end.
    """
    task: asyncio.Task[object] | None = asyncio.current_task()
    is_cancelling = task is not None and task.cancelling() > 0
    return isinstance(error, asyncio.CancelledError) and not is_cancelling


def ends_program(error: BaseException) -> bool:
    """Say whether an error ends the program, and is no failure of what it came through.

    An interrupt does, and so does SystemExit where a handler of a signal raised it, in
    the middle of anything. A function of a job that calls ``sys.exit()`` has failed:
    nobody would see that, or which one it was, if the program ended as if all were done.
    """
    if not isinstance(error, SystemExit):
        return isinstance(error, KeyboardInterrupt)
    handlers = {_code_of(signal.getsignal(each)) for each in signal.valid_signals()}
    return any(
        frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__)
    )


def _code_of(handler: object) -> object:
    while isinstance(handler, partial):
        handler = handler.func
    return getattr(handler, "__code__", None)


class naming_hook:  # noqa: N801 -- like `suppress`: what it does, not what it is
    """Name operator, uid and hook in what the body raises, awaits included.

    Args:
        hook: The hook's name.
        operator: The operator's name. Code of another one may run inside the hook; its
            errors name that one.
        uid: The operator's uid, or None.

    Raises:
        UserFunctionError: From whatever the user's code raises, also from a
            cancellation that is not the running task's own. One that is its own is
            raised with such an error as its cause, and what ends the process as it is.
    """

    # No generator: each checkpoint enters a dozen of them.
    __slots__ = ("_hook", "_operator", "_uid")

    def __init__(self, hook: str, operator: str, uid: str | None) -> None:
        self._hook = hook
        self._operator = operator
        self._uid = uid

    def __enter__(self) -> None:
        """Enter the body."""

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        """Name them, if it has raised."""
        if error is not None:
            self._name(error)

    def _name(self, error: BaseException) -> None:
        operator, uid = self._operator, self._uid
        place = f"in {self._hook}() of {named_operator(operator, uid)}"
        location = user_location(error)
        if isinstance(error, AioMailboxError) or ends_program(error):
            add_note(error, f"{place} at {location}" if location else place)
            return
        owner = owner_of(frame for frame, _ in traceback.walk_tb(error.__traceback__))
        if owner is not None:
            operator, uid, _ = owner
        failure = UserFunctionError(operator, uid, location, error)
        add_note(failure, place)
        if isinstance(error, asyncio.CancelledError) and not is_foreign(error):
            # The cause says whose it was.
            error.__cause__ = error.__cause__ or failure
            return
        raise failure from error


def call_hook(
    hook: str, operator: str, uid: str | None, call: Callable[..., Any], *args: Any
) -> Any:
    """Call a hook of the user's, and name operator, uid and hook in what it raises.

    The caller awaits its result; see `naming_hook`, also for the arguments.

    Raises:
        UserFunctionError: From whatever it raises.
        asyncio.CancelledError: If it cancels the asyncio task that it runs in, at once
            and not where that next waits. The cause names it.
    """
    task: asyncio.Task[object] | None = current_task_or_none()
    cancels = 0 if task is None else task.cancelling()
    with naming_hook(hook, operator, uid):
        result = call(*args)
    if task is None or task.cancelling() <= cancels:
        return result
    if inspect.iscoroutine(result):
        result.close()
    cancelled = asyncio.CancelledError("it cancelled the task that runs it")
    failure = UserFunctionError(operator, uid, describe(call), cancelled)
    add_note(failure, f"in {hook}() of {named_operator(operator, uid)}")
    raise cancelled from failure


class Owner(NamedTuple):
    """An operator whose code is in a stack.

    Attributes:
        operator: Its name.
        uid: Its uid, or None.
        line: The user's call that made it; "" if that is not known.
    """

    operator: str
    uid: str | None
    line: str


def owner_of(frames: Iterable[FrameType]) -> Owner | None:
    """Return the innermost operator whose code is in a stack.

    Args:
        frames: Outermost first.
    """
    found: Owner | None = None
    for frame in frames:
        owner = frame.f_locals.get("self")
        # A user's attribute may do anything.
        with suppress(BaseException):
            # What works for an operator knows it by what takes its failed records.
            for holder in (getattr(owner, "_failures", None), owner):
                for name in ("_context", "context"):
                    context = getattr(holder, name, None)
                    operator = getattr(context, "operator_name", None)
                    if isinstance(operator, str):
                        uid = getattr(context, "uid", None)
                        found = Owner(operator, uid, getattr(context, "line", ""))
    return found


# Says what is meant by a name that an object of the library does not have.


# What Flink and PyFlink call it.
_LOG: Final = " keep that of open: `def open(self, context): self.log = context.log`"
_MEANT: Final = {
    "log": _LOG,
    "logger": _LOG,
    **{name: f"keyed_state.{method}" for name, method in STATE_OF_ELSEWHERE.items()},
    "state": "keyed_state",
    "get_current_key": "current_key",
    "get_timer_service": "timer_service",
    "timers": "timer_service",
    "element_timestamp": "timestamp",
    "get_metrics_group": "metrics",
    "get_metric_group": "metrics",
    "get_index_of_this_subtask": "subtask_index",
    "get_number_of_parallel_subtasks": "parallelism",
    "get_max_number_of_parallel_subtasks": "max_parallelism",
    "get_attempt_number": "attempt",
    "get_task_name": "task_name",
}


class Context:
    """The base of contexts of function objects; it knows names of other libraries."""

    __slots__ = ()
    # The names that are meant here, by what others call them.
    _meant: ClassVar[Mapping[str, str]] = _MEANT

    # Takes what goes to side outputs.
    _collector: Any

    def output(self, tag: OutputTag[ValueT], value: ValueT) -> None:
        """Emit to a side output, with the event time of the record, timer or window.

        Raises:
            WrongTypeError: If ``tag`` is not an `OutputTag`.
        """
        self._collector.collect_side(check_tag(tag), value)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Say what is meant.

            Raises:
                AttributeError: Always.
            """
            names = dir(type(self)) if name.startswith("_") else dir(self)
            meant = {
                other: here
                for other, here in self._meant.items()
                if here[0] == " " or here.partition(".")[0] in names
            }
            text = no_such_name(self, name, "context", meant)
            raise AttributeError(text, name=name, obj=None)
