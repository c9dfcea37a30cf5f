"""Every exception of aiomailbox, in two families.

`UsageError` means the caller has to change the code; `WorldError` means something
outside went wrong (a task, a peer, a disk) and the restart strategy decides.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

# The classes that programs catch; the others are causes, and stand below them.
__all__ = [
    "AioMailboxError",
    "AsyncTimeoutError",
    "BudgetExceededError",
    "CancelTimeoutError",
    "CheckpointFailedError",
    "DamagedFileError",
    "DeadlineExceededError",
    "IllegalStateError",
    "InvalidArgumentError",
    "JobCancelledError",
    "JobFailedError",
    "JobFinishedError",
    "MailboxClosedError",
    "MissingExtraError",
    "NoCheckpointError",
    "RecordTypeError",
    "RecordsRefusedError",
    "RemoteTaskError",
    "RetryLater",
    "SinkError",
    "SourceChangedError",
    "SparkJobError",
    "StateError",
    "StopTask",
    "StorageClaimedError",
    "TargetExistsError",
    "UnsupportedColumnError",
    "UsageError",
    "UserFunctionError",
    "WorkerDiedError",
    "WorldError",
    "WrongTypeError",
]


def safe_str(error: object) -> str:
    """Return ``str(error)``, or what is wrong with it: a user's type may raise there.

    Example:
        >>> class Broken(Exception):
        ...     def __str__(self):
        ...         return 1 / 0
        >>> safe_str(Broken())
        '<Broken.__str__ raised ZeroDivisionError>'
    """
    try:
        return str(error)
    except BaseException as broken:  # noqa: BLE001 -- the error itself must not be lost
        return f"<{type(error).__name__}.__str__ raised {type(broken).__name__}>"


def safe_repr(error: object) -> str:
    """Return ``repr(error)``, or what is wrong with it; see `safe_str`."""
    try:
        return repr(error)
    except BaseException as broken:  # noqa: BLE001 -- the error itself must not be lost
        return f"<{type(error).__name__}.__repr__ raised {type(broken).__name__}>"


def named_operator(name: str, uid: str | None) -> str:
    """Return how a message names an operator: with its uid, if it was given one.

    Example:
        >>> named_operator("map", None)
        "operator 'map'"
    """
    return f"operator {name!r}" if uid is None else f"operator {name!r} (uid {uid!r})"


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an error, once; a user's type that takes none goes without.

    Example:
        >>> error = ValueError("bad")
        >>> add_note(error, "in operator 'parse'")
        >>> error.__notes__
        ["in operator 'parse'"]
    """
    with suppress(BaseException):
        if note not in getattr(error, "__notes__", ()):
            BaseException.add_note(error, note)


class AioMailboxError(Exception):
    """Base of everything that aiomailbox raises on purpose.

    Attributes:
        operator: Of an error in a running job, the operator's name; else None.
        uid: The operator's uid, None if it has none.
        fault: Whose fault it is, which decides about a restart: ``"caller"``,
            ``"program"``, ``"lasting"`` or ``"world"``; None where the family says it.
    """

    operator: str | None = None
    uid: str | None = None
    # Another attempt meets what is "lasting" again.
    fault: str | None = None

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: the frames that are not of this package.

        IPython asks an exception for this, and shows five lines of source for each
        frame. The exception keeps all of them.
        """
        shell: Any = sys.modules["IPython"].get_ipython()
        shown = _without_own(self.__traceback__) or self.__traceback__
        return shell.InteractiveTB.structured_traceback(type(self), self, shown)


ErrorT = TypeVar("ErrorT", bound=AioMailboxError)

_OWN: Final = f"{Path(__file__).parent}/"
# Between the user's line and ours, where `async with` enters what a generator does.
_PASSED: Final = contextlib.__file__


def _without_own(each: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of this package."""
    kept = []
    while each is not None:
        file = each.tb_frame.f_code.co_filename
        if file != _PASSED and not file.startswith(_OWN):
            kept.append(each)
        each = each.tb_next
    shown: TracebackType | None = None
    for one in reversed(kept):
        shown = TracebackType(shown, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return shown


def lasting(error: ErrorT) -> ErrorT:
    """Return an error that another attempt would meet again, so that the job ends.

    Example:
        >>> lasting(SinkError("the columns have changed")).fault
        'lasting'
    """
    error.fault = "lasting"
    return error


class UsageError(AioMailboxError):
    """The call is wrong: change the code that made it."""


class WorldError(AioMailboxError):
    """Something outside the program's text went wrong."""


class InvalidArgumentError(UsageError, ValueError):
    """An argument has a value that cannot work.

    Args:
        parameter: The parameter's name as the caller wrote it.
        problem: The fault of the value.
        remedy: A correct value or call.
    """

    def __init__(self, parameter: str, problem: str, remedy: str = "") -> None:
        self.parameter = parameter
        tail = f" {remedy}" if remedy else ""
        super().__init__(f"{parameter}: {problem}.{tail}")


class WrongTypeError(UsageError, TypeError):
    """An argument or a record has a type that cannot work.

    Args:
        parameter: The parameter's (or the value's) name as the caller knows it.
        problem: The fault of the type.
        remedy: A correct value or call.
    """

    def __init__(self, parameter: str, problem: str, remedy: str = "") -> None:
        self.parameter = parameter
        tail = f" {remedy}" if remedy else ""
        super().__init__(f"{parameter}: {problem}.{tail}")


class WrongTaskError(UsageError):
    """An operation that belongs to one asyncio task was called from another one."""

    def __init__(self, operation: str, owner: str, caller: str) -> None:
        self.operation = operation
        super().__init__(
            f"{operation}() belongs to task {owner!r} but was called from {caller!r}. "
            "Submit the work with MailboxExecutor.execute() instead."
        )


class IllegalStateError(UsageError):
    """An operation was called in a state of its lifecycle that does not allow it."""


class MailboxClosedError(IllegalStateError):
    """Mail was put into, or taken from, a mailbox that no longer allows it."""

    def __init__(self, operation: str, state: str) -> None:
        self.operation = operation
        self.state = state
        super().__init__(
            f"cannot {operation}: the mailbox is {state}. "
            "Stop submitting once the task is draining."
        )


class RejectedMailError(MailboxClosedError):
    """A mailbox executor could not hand its mail to a mailbox that has closed."""


class YieldDepthError(UsageError):
    """Mails yielded to mails which yielded to mails, deeper than the limit."""


class StopTask(AioMailboxError):  # noqa: N818 -- a signal, not a failure
    """Raised by a user function or a default action to end its task as cancelled.

    Concept:
        Flink, ``CancelTaskException``.
    """


class PoolDestroyedError(IllegalStateError):
    """A buffer pool was used after it had been destroyed."""


class InsufficientBuffersError(WorldError):
    """A buffer pool cannot get the buffers it must have."""


class OverdraftCeilingError(WorldError):
    """One record emitted more than the overdraft ceiling allows."""


class BufferRecycledError(IllegalStateError):
    """A buffer was used after its last reference had been recycled."""


class PartitionNotFoundError(WorldError):
    """A channel asked for a partition that does not exist."""


class PartitionStorageError(WorldError):
    """A partition cannot write its files on disk, or cannot read them again."""


class GateClosedError(IllegalStateError):
    """An input gate was polled after it had been closed."""


class CorruptStreamError(WorldError):
    """Bytes or elements arrived that the protocol does not allow here."""


class HandshakeError(WorldError):
    """A peer speaks another version, belongs to another job, or knows no secret."""


class TransportError(WorldError):
    """Two workers cannot exchange data any more, or never could.

    Args:
        local: This end of the connection, as people know it.
        peer: The other end.
        reason: The event.
    """

    def __init__(self, local: str, peer: str, reason: str) -> None:
        self.local = local
        self.peer = peer
        self.reason = reason
        super().__init__(f"the connection of {local} with {peer} ended: {reason}")


class LocalTransportError(TransportError):
    """A connection ended by something on this side."""


class RemoteTransportError(TransportError):
    """A connection ended by its peer: it went away, refused, or broke the protocol."""


class RemoteFailureError(WorldError):
    """The producer of a channel failed at another worker; all of it is text.

    Args:
        peer: The other worker.
        kind: The name of its exception.
        text: Its message.
        traceback: Where it happened.
    """

    def __init__(self, peer: str, kind: str, text: str, traceback: str = "") -> None:
        self.peer = peer
        self.kind = kind
        self.remote_traceback = traceback
        super().__init__(f"at {peer}: {kind}: {text}")


class KeyTypeError(WrongTypeError):
    """A key has a type that a keyed stream cannot place."""


class RecordTypeError(WrongTypeError):
    """A record has another type than its stream declares."""


class TimestampError(UsageError):
    """A record has no event time, or one that is not an int or an aware datetime."""


class StateError(UsageError):
    """Keyed state was used outside a keyed context, or described in two ways."""

    fault: str | None = "lasting"


class UserFunctionError(WorldError):
    """A user's function raised; names the operator and the line.

    The function's own exception is the ``__cause__``.

    Attributes:
        operator: The operator's name.
        uid: The operator's uid, or None when none was given.
        location: ``file:line`` of the innermost line of the user's code; empty if none
            of it was running.
        record: The record as text, truncated if it is long; None if it is about none.
    """

    def __init__(
        self, operator: str, uid: str | None, location: str, cause: BaseException
    ) -> None:
        self.operator: str = operator
        self.uid = uid
        self.location = location
        self.record: str | None = None
        place = f" at {location}" if location else ""
        # sys.exit() is meant to end something.
        remedy = (
            ". A function of a job does not end the program: raise another error, or "
            "stop the job: `await job.stop()`"
            if isinstance(cause, SystemExit)
            else ""
        )
        super().__init__(
            f"{named_operator(operator, uid)} failed{place}: "
            f"{type(cause).__name__}: {safe_str(cause)}{_first_of(cause)}{remedy}"
        )


def _first_of(error: BaseException) -> str:
    """Return the first error of a group, whose own text only counts them."""
    first: BaseException = error
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return "" if first is error else f": {type(first).__name__}: {safe_str(first)}"


class RecordMutatedError(UsageError):
    """A record was changed after it had been emitted; raised with ``check_mutations``.

    Attributes:
        operator: The name of the operator that changed it.
        uid: The operator's uid, or None when none was given.

    Args:
        operator: The operator's name.
        uid: Its uid.
        kind: The name of the record's type.
        change: The difference.
    """

    def __init__(self, operator: str, uid: str | None, kind: str, change: str) -> None:
        self.operator: str = operator
        self.uid = uid
        super().__init__(
            f"{named_operator(operator, uid)} changed a record, a {kind}, that had "
            f"been emitted: {change}. Others may have the same record, or a copy, "
            "depending on where they run. Make a new one instead, e.g. "
            "{**record, 'n': 1}, [*record, 1] or dataclasses.replace(record, n=1)."
        )


class BadResultError(UsageError, ValueError):
    """A user's function returned something that cannot be used.

    Args:
        function: The function's name and line.
        problem: Its result, the argument, and why the result cannot be used.
        remedy: A correct value or call.
    """

    def __init__(self, function: str, problem: str, remedy: str) -> None:
        self.function = function
        super().__init__(f"{function} returned {problem}. {remedy}")


class AsyncTimeoutError(WorldError, TimeoutError):
    """One attempt of an asynchronous call took longer than its ``timeout``."""


class BudgetExceededError(WorldError):
    """The budget of a limit is exhausted: this call was not made.

    Attributes:
        limit: The name of the limit.
        budget: Its units.
    """

    def __init__(self, limit: str, budget: float, unit: str = "units") -> None:
        self.limit = limit
        self.budget = budget
        super().__init__(f"the budget of {budget:g} {unit} of {limit} is exhausted")


class DeadlineExceededError(WorldError, TimeoutError):
    """All attempts of an asynchronous call took longer than its ``deadline``."""


class CallCancelledError(WorldError):
    """An asynchronous call was cancelled by something other than the job.

    The original ``CancelledError`` is the ``__cause__``: the user's function, or
    something that it awaited, was cancelled from outside the operator.
    """


class RetryLater(WorldError):  # noqa: N818 -- an instruction, not only a failure
    """Raised by a user's function: the call should be made again, after a while.

    Args:
        retry_after: How long to wait at least: a timedelta, a number of seconds, or
            the text of a Retry-After header. None leaves it to the retry policy.
        message: Why, for people.
    """

    def __init__(
        self,
        message: str = "the call should be made again later",
        *,
        retry_after: timedelta | float | str | None = None,
    ) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class CancelTimeoutError(WorldError, TimeoutError):
    """Something did not end in time, and was ended by force.

    Attributes:
        place: The operator and the user's line where its code stood; "" if unknown.

    Args:
        what: The code that did not end.
        timeout_s: The time that it had, seconds.
        place: Where its code stood.

    Concept:
        Flink, ``task.cancellation.timeout``.
    """

    fault: str | None = "lasting"

    def __init__(self, what: str, timeout_s: float, place: str) -> None:
        self.place = place
        tail = f"; it stood {place}" if place else ""
        super().__init__(f"{what} took longer than {timeout_s} s{tail}")


class RemoteTaskError(WorldError):
    """A task failed in another process; its exception came as text.

    Attributes:
        worker: The process, as people know it.
        kind: The name of the exception's type.
        text: The message of the exception.
        remote_traceback: Where it was raised, and what caused it.
        is_echo: Whether it only says that another task had failed before.
        operator: The name of the operator that failed, None if it was none.
        uid: The operator's uid, or None.
        location: ``file:line`` of the innermost line of the user's code, or None.
        record: The record as text, or None.
        culprit: The name of the type of the exception that began it.
    """

    def __init__(
        self,
        worker: str,
        kind: str,
        text: str,
        remote_traceback: str = "",
        *,
        is_echo: bool = False,
        fault: str = "world",
        culprit: str = "",
        operator: str | None = None,
        uid: str | None = None,
        location: str | None = None,
        record: str | None = None,
    ) -> None:
        self.worker = worker
        self.kind = kind
        self.text = text
        self.remote_traceback = remote_traceback
        self.is_echo = is_echo
        self.fault: str | None = fault
        self.culprit: str = culprit or kind
        self.operator = operator
        self.uid = uid
        self.location = location
        self.record = record
        super().__init__(f"at {worker}: {kind}: {text}")


class WorkerDiedError(WorldError):
    """A worker process ended, or had to be ended, before its tasks did.

    Attributes:
        worker: The process, as people know it.
        pid: Its process id; 0 if it is not known here.
        exit_code: Its exit code; minus the signal's number if a signal ended it.
    """

    def __init__(self, worker: str, pid: int, exit_code: int | None, how: str) -> None:
        self.worker = worker
        self.pid = pid
        self.exit_code = exit_code
        which = f"{worker} (process {pid})" if pid else worker
        super().__init__(f"{which} {how}")


class NotShippableError(UsageError, TypeError):
    """Something of a job cannot be pickled, so no other process can run it.

    Attributes:
        operator: The operator's name, or what else it is of the job.
        uid: The operator's uid, or None.
    """

    def __init__(self, operator: str, uid: str | None, problem: str) -> None:
        self.operator: str = operator
        self.uid = uid
        # A sentence says what to do.
        if not problem.endswith("."):
            problem += (
                ". Create live objects, such as clients, in `open`, which runs in the "
                "worker, instead of keeping them in the function."
            )
        super().__init__(
            f"{named_operator(operator, uid)} cannot be sent to a worker process: "
            f"{problem}"
        )


class JobFailedError(WorldError):
    """A job failed; the ``__cause__`` is the first error, later ones are notes.

    Attributes:
        job: The job's name.
        engine_traceback: The traceback with all frames of the engine, as text; the
            raised error shows only the user's frames.
        operator: The name of the operator that failed, None if it was none.
        uid: The operator's uid, or None.
        location: ``file:line`` of the innermost line of the user's code, or None.
        record: The record as text, or None.
    """

    location: str | None = None
    record: str | None = None

    def __init__(
        self,
        job: str,
        cause: BaseException,
        engine_traceback: str = "",
        remark: str = "",
    ) -> None:
        self.job = job
        self.engine_traceback = engine_traceback
        text = safe_str(cause)
        about = f"{'' if text.endswith('.') else '.'} {remark}" if remark else ""
        # Errors of the library's own have their place beside the text, others in it.
        operator = cause.operator if isinstance(cause, AioMailboxError) else None
        is_unnamed = operator is not None and repr(operator) not in text
        where = f" in operator {operator!r}" if is_unnamed else ""
        super().__init__(f"job {job!r} failed{where}: {text}{about}")


class JobCancelledError(AioMailboxError):
    """The result of a job was requested after the job had been cancelled."""


class SparkJobError(WorldError):
    """A Spark job that feeds or drains a pipeline failed on Spark's side."""


class SourceChangedError(WorldError):
    """The data of a source have changed since a checkpoint recorded a position in them."""

    fault: str | None = "lasting"


class UnsupportedColumnError(UsageError):
    """A DataFrame has a column of an unsupported type; names the column."""


class SinkError(WorldError):
    """A sink's target cannot be written."""


class RecordsRefusedError(WorldError):
    """A sink's writer did not take some records; the sink's ``on_error`` says what then.

    Raised by ``write_run`` of a writer that can tell which ones. It gets the rest of the
    run then, from ``seen`` on, if ``on_error`` lets the job go on.

    Args:
        errors: Why, by the record's index in the run; at least one.
        seen: The records before this index are dealt with: those not in ``errors``
            are taken.
        fault: ``"program"`` if they will be refused whenever they come; see
            `AioMailboxError`.

    Raises:
        InvalidArgumentError: If there are no errors, or one is not before ``seen``.

    Example:
        >>> RecordsRefusedError({1: ValueError("no price")}, seen=2)
        RecordsRefusedError("1 of 2 records refused, first ValueError('no price')")
    """

    def __init__(
        self,
        errors: Mapping[int, BaseException],
        seen: int,
        *,
        fault: str | None = None,
    ) -> None:
        if not errors or max(errors) >= seen:
            raise InvalidArgumentError(
                "errors", f"{dict(errors)!r} are not errors of {seen} records"
            )
        self.errors = errors
        self.seen = seen
        self.fault: str | None = fault
        first = errors[min(errors)]
        super().__init__(f"{len(errors)} of {seen} records refused, first {first!r}")


class TargetExistsError(UsageError, FileExistsError):
    """A sink's target exists, and the sink may not replace it."""


class JavaNotFoundError(WorldError):
    """No Java runtime of the needed version was found; says what to install."""


class MissingExtraError(UsageError, ImportError):
    """A feature needs an optional dependency that is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        self.extra = extra
        super().__init__(
            f"{feature} needs an optional dependency: {install_command(extra)}"
        )


def install_command(extra: str) -> str:
    """Return the command that adds an extra to this installation of the library.

    It names where the library was installed from, for it may be on no index, and the
    interpreter that runs.
    """
    # Late: only who is about to fail needs them.
    import json
    import shlex
    from importlib.metadata import PackageNotFoundError, distribution
    from importlib.util import find_spec
    from urllib.parse import unquote, urlsplit

    python = shlex.quote(sys.executable or "python3")
    pip = f"{python} -m pip install"
    if find_spec("pip") is None:
        pip = f"uv pip install --python {python}"
    name, checkout = "aiomailbox", Path(__file__).parents[1]
    try:
        origin = distribution(name).read_text("direct_url.json")
    except PackageNotFoundError:
        # Imported from where it lies.
        wanted = (
            f"{checkout}[{extra}]" if (checkout / "pyproject.toml").exists() else ""
        )
        return f"{pip} {shlex.quote(wanted or f'{name}[{extra}]')}"
    if origin is None:
        return f"{pip} {shlex.quote(f'{name}[{extra}]')}"
    found = json.loads(origin)
    url = urlsplit(found["url"])
    if url.scheme == "file" and "dir_info" in found:
        editable = "-e " if found["dir_info"].get("editable") else ""
        return f"{pip} {editable}{shlex.quote(f'{unquote(url.path)}[{extra}]')}"
    vcs = found.get("vcs_info")
    address = f"{vcs['vcs']}+{found['url']}@{vcs['commit_id']}" if vcs else found["url"]
    return f"{pip} {shlex.quote(f'{name}[{extra}] @ {address}')}"


class MailFailedError(WorldError):
    """A mail ended in a way that cannot cross an await as it is.

    Either it raised ``StopIteration``, or something it awaited was cancelled from
    outside: that is a failure, not a clean cancel of the task. The original is the
    ``__cause__``.
    """

    def __init__(self, mail: str, cause: BaseException) -> None:
        self.mail = mail
        super().__init__(
            f"mail {mail!r} ended with {type(cause).__name__}: {safe_str(cause)}"
        )


class BufferFullError(WorldError):
    """A buffer that may not drop records was full."""

    def __init__(self, operator: str, size: int) -> None:
        super().__init__(
            f"the buffer {operator!r} of {size} records is full: the consumer is slower "
            "than the source. Use a larger size, or a policy that drops records."
        )


class DamagedFileError(WorldError):
    """A file is damaged: truncated, changed, or written by another release.

    Args:
        name: The file.
        problem: The damage or fault.
    """

    fault: str | None = "lasting"

    def __init__(self, name: str, problem: str) -> None:
        self.name = name
        self.problem = problem
        super().__init__(f"{name} cannot be read: {problem}")


class NoCheckpointError(WorldError):
    """The job should resume, but there is no checkpoint.

    Args:
        place: The directory or URL.
        problem: The contents of the place.
    """

    fault: str | None = "lasting"

    def __init__(self, place: str, problem: str) -> None:
        self.place = place
        super().__init__(f"no checkpoint can be restored from {place}: {problem}")


class JobFinishedError(UsageError):
    """A job with ``if_finished="refuse"`` has finished before.

    Args:
        job_id: The identity of the job.
        finished: When it had finished.
    """

    def __init__(self, job_id: str, finished: datetime) -> None:
        self.job_id = job_id
        self.finished = finished
        when = finished.isoformat(timespec="seconds")
        super().__init__(
            f"job {job_id!r} has finished before, at {when}. To run it again, use "
            'if_finished="run", or give this run a job_id of its own; '
            'if_finished="return" ends it at once, without an error.'
        )


class StorageClaimedError(WorldError):
    """Another job writes to the same place.

    Args:
        place: The directory or URL.
        owner: The name of the holder, as it gave it.
        left_s: Where it cannot be known whether the holder still runs: how long its
            claim lasts, unless it is renewed.
        remedy: A way to let both run, as text that continues a sentence after "or".
    """

    fault: str | None = "lasting"

    def __init__(
        self,
        place: str,
        owner: str,
        left_s: float | None = None,
        *,
        remedy: str = "give each job a place of its own",
    ) -> None:
        self.place = place
        self.owner = owner
        self.left_s = left_s
        who = owner or "another job"
        if left_s is None:
            message = (
                f"{place} belongs to {who}, which still runs. Wait until that one has "
                f"ended, or {remedy}."
            )
        else:
            message = (
                f"{place} belongs to {who} for another {left_s:.0f} s, and for longer if "
                "that one still runs. If it was killed, start again after that; else "
                f"{remedy}."
            )
        super().__init__(message)


class FencedError(WorldError):
    """Another attempt has replaced the one to which this writer belongs.

    Args:
        place: The place that it tried to write to.
        epoch: The attempt's number.
    """

    def __init__(self, place: str, epoch: int) -> None:
        self.place = place
        self.epoch = epoch
        super().__init__(
            f"attempt {epoch} may not write to {place} any more: a later attempt of "
            "the job has begun"
        )


class JournalError(WorldError):
    """The outcomes of calls cannot be stored, or cannot be read again.

    Args:
        operator: The name of the operator whose calls they are.
        uid: Its uid.
        problem: The fault.
    """

    def __init__(self, operator: str, uid: str | None, problem: str) -> None:
        self.operator: str = operator
        self.uid = uid
        super().__init__(f"the journal of {named_operator(operator, uid)}: {problem}")


class FinishedCallError(WorldError):
    """A call failed permanently before the job was started again, and is not retried.

    Args:
        error_type: The class of the exception.
        error: Its text.
    """

    def __init__(self, error_type: str, error: str) -> None:
        self.error_type = error_type
        super().__init__(f"{error_type}: {error}")


class RecordIdReusedError(UsageError):
    """Two records have one id and differ, so that one would get the other's result.

    Attributes:
        record: The later one as text, truncated if it is long.

    Args:
        operator: The name of the operator whose ``id=`` it is.
        uid: Its uid.
        identity: The id.
    """

    def __init__(self, operator: str, uid: str | None, identity: object) -> None:
        self.operator: str = operator
        self.uid = uid
        self.identity = identity
        self.record: str | None = None
        super().__init__(
            f"{named_operator(operator, uid)}: two records with the id {safe_repr(identity)} differ. An "
            "id stands for one call, so different records need different ids; "
            "leave out of the record any value that changes from run to run, such as "
            "the time of reading."
        )


class CheckpointDeclinedError(WorldError):
    """A task takes no part in a checkpoint.

    Args:
        checkpoint_id: Its number.
        reason: Why.
    """

    def __init__(self, checkpoint_id: int, reason: str) -> None:
        self.checkpoint_id = checkpoint_id
        super().__init__(f"checkpoint {checkpoint_id} was declined: {reason}")


class InFlightRecordsError(CheckpointDeclinedError):
    """Records in flight cannot be kept, so barriers must not overtake them.

    Args:
        checkpoint_id: The number of the checkpoint that was to hold them.
        channel: On which channel they are.
        error: Why they cannot be kept.
    """

    def __init__(self, checkpoint_id: int, channel: str, error: BaseException) -> None:
        super().__init__(
            checkpoint_id,
            f"records in flight on {channel} cannot be kept ({error}): checkpoints are "
            "aligned from now on. Give the functions type hints that name the records' "
            "classes",
        )


class CheckpointFailedError(WorldError):
    """A checkpoint or savepoint did not complete.

    Args:
        reason: Why.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"there is no new checkpoint: {reason}")


class InvalidRecordError(WorldError):
    """A file has something at a place where a record should be.

    A restart would read it again, so the job ends, whichever strategy it has.

    Attributes:
        told: The place and the problem, without a remedy.

    Args:
        name: The file.
        line: The line where it begins, from 1.
        position: The byte where it begins.
        problem: The damage or fault.
    """

    fault: str | None = "lasting"

    def __init__(self, name: str, line: int, position: int, problem: str) -> None:
        self.name = name
        self.line = line
        self.position = position
        self.told: str = f"{name}, line {line}, at byte {position}: {problem}"
        super().__init__(
            f"{self.told}. Repair the line, or skip such lines: "
            "am.FileSource(..., on_error=am.skip)"
        )
