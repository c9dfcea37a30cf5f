"""Why a job failed: the first error, whose it is, on which line, and again or not."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple

from aiomailbox.errors import (
    AioMailboxError,
    JobFailedError,
    RemoteFailureError,
    RemoteTaskError,
    TransportError,
    UserFunctionError,
    add_note,
    named_operator,
    safe_repr,
)
from aiomailbox.operators.core.user_code import is_own_line, is_users, user_location

# Where in a user's job an error happened.


class FailurePlace(NamedTuple):
    """What an error says of its place; each is None if it does not say it.

    Attributes:
        operator: The operator's name.
        uid: The operator's uid.
        location: ``file:line`` of the innermost line of the user's code.
        record: The record as text.
    """

    operator: str | None
    uid: str | None
    location: str | None
    record: str | None


def place_of_error(error: BaseException) -> FailurePlace:
    """Return where an error happened.

    Example:
        >>> place_of_error(ValueError("never raised"))
        FailurePlace(operator=None, uid=None, location=None, record=None)
    """
    place = FailurePlace(
        *(_text(error, name) for name in ("operator", "uid", "location", "record"))
    )
    if not place.location:
        line = user_location(error)
        place = place._replace(location=line if is_users(line) else None)
    return place


def job_failure(
    job: str, cause: BaseException, engine_traceback: str, remark: str = ""
) -> JobFailedError:
    """Return the failure of a job, whose last lines say where in it that was.

    Its message may be long, and what its cause says stands above all frames.

    Args:
        job: The job's name.
        cause: What failed first.
        engine_traceback: See `JobFailedError`.
        remark: What else there is to say.
    """
    failure = JobFailedError(job, cause, engine_traceback, remark)
    failure.__cause__ = cause
    place = place_of_error(cause)
    failure.operator, failure.uid, failure.location, failure.record = place
    where: list[str] = []
    if place.operator is not None:
        where.append(f"in {named_operator(place.operator, place.uid)}")
    if place.location is not None:
        where.append(f"at {place.location}{_source(place.location)}")
    if where:
        add_note(failure, ", ".join(where))
    if place.record is not None:
        add_note(failure, f"the record: {place.record}")
    return failure


def _source(location: str) -> str:
    """Return the text of a line of the user's, as far as it can be read here."""
    file, _, line = location.rpartition(":")
    text = linecache.getline(file, int(line)).strip() if line.isdecimal() else ""
    return f": {text}" if text else ""


def _text(error: BaseException, name: str) -> str | None:
    """Return an attribute of an error, which may be of a type of the user's."""
    try:
        value = getattr(error, name, None)
    except Exception:  # noqa: BLE001 -- a property of the user's
        return None
    return value if isinstance(value, str) else None


# Which of several errors counts: the first one that is not an echo.


class FirstError:
    """The error that counts; the others are its notes.

    Attributes:
        error: The error, or None.

    Example:
        >>> first = FirstError()
        >>> first.add(ValueError("a"))
        >>> first.add(KeyError("b"))
        >>> first.error, first.error.__notes__
        (ValueError('a'), ["later error: KeyError('b')"])
    """

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def add(self, error: BaseException, note: str | None = None) -> None:
        """Keep an error if it counts, else note it.

        Args:
            error: The error.
            note: What to say about it if it counts.
        """
        first = self.error
        # A broken connection often arrives before the reason why it broke.
        if first is None or (is_echo(first) and not is_echo(error)):
            if note is not None:
                add_note(error, note)
            self.error = error
            if first is not None:
                add_note(error, f"also: {safe_repr(first)}")
        elif error is not first:
            add_note(first, f"later error: {safe_repr(error)}")


def is_echo(error: BaseException) -> bool:
    """Say whether an error may only report another one.

    What tells of a failure travels on other ways than what follows from it, and may
    come later.
    """
    if isinstance(error, RemoteTaskError):
        return error.is_echo
    return isinstance(error, RemoteFailureError | TransportError)


# What a user is shown of a failure: the lines of the user's own, and one of ours.


def shorten(failure: BaseException) -> str:
    """Leave out the engine's frames of a failure and of what led to it.

    Of a failure that is no `AioMailboxError`, which is one of the engine itself, all
    stay.

    Returns:
        The text of all frames, as they were.
    """
    texts = [traceback_text(failure)]
    if not isinstance(failure, AioMailboxError):
        return texts[0]
    waiting: list[BaseException | None] = [failure]
    # Errors may refer to each other in a ring.
    seen: set[int] = set()
    while waiting:
        error = waiting.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        if isinstance(error, RemoteTaskError) and error.remote_traceback:
            texts.append(f"Traceback of {error.worker}:\n{error.remote_traceback}")
        # A user's error may have attributes of its own making; then it stays as it is.
        with suppress(BaseException):
            error.__traceback__ = _from_the_users_first(error.__traceback__)
            # Its one line is ours: the user's are those of its cause, shown before it.
            if isinstance(error, UserFunctionError) and error.__cause__ is not None:
                error.__traceback__ = users_part(error.__traceback__)
            waiting += [error.__cause__, error.__context__]
            if isinstance(error, BaseExceptionGroup):
                waiting += error.exceptions
    return "\n".join(texts)


def short_text(failure: BaseException) -> str:
    """Return a failure as text as `shorten` leaves it, and leave it as it is.

    The engine's own failures have all of their frames.
    """
    if not isinstance(failure, AioMailboxError):
        return traceback_text(failure)
    try:
        text = traceback.TracebackException.from_exception(failure)
        waiting: list[traceback.TracebackException | None] = [text]
        while waiting:
            each = waiting.pop()
            if each is None:
                continue
            first = _first_shown([frame.filename for frame in each.stack])
            each.stack = traceback.StackSummary.from_list(each.stack[first:])
            waiting += [each.__cause__, each.__context__, *(each.exceptions or ())]
        return "".join(text.format())
    except BaseException:  # noqa: BLE001 -- a user's error may raise anything
        return traceback_text(failure)


def traceback_text(failure: BaseException) -> str:
    """Return a failure and what led to it as text, also if the user's error cannot."""
    try:
        return "".join(traceback.format_exception(failure))
    except BaseException as broken:  # noqa: BLE001 -- a user's error may raise anything
        return f"<the traceback cannot be shown: {type(broken).__name__}>"


def users_part(first: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the user's first frame on, None if there is none."""
    while first is not None and not is_users(first.tb_frame.f_code.co_filename):
        first = first.tb_next
    return first


def _from_the_users_first(first: TracebackType | None) -> TracebackType | None:
    each, files = first, list[str]()
    while each is not None:
        files.append(each.tb_frame.f_code.co_filename)
        each = each.tb_next
    for _ in range(_first_shown(files)):
        assert first is not None, "there are as many frames as files"
        first = first.tb_next
    return first


def _first_shown(files: Sequence[str]) -> int:
    """Return the index of the user's first frame, of a library's, or of the last one."""
    for is_shown in (is_users, lambda file: not is_own_line(file)):
        for index, file in enumerate(files):
            if is_shown(file):
                return index
    return max(len(files) - 1, 0)
