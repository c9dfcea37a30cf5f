"""What a user is shown of a failure: the lines of the user's own, and one of ours."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType

from aiomailbox.errors import AioMailboxError, RemoteTaskError, UserFunctionError
from aiomailbox.operators.core.locate import is_own_line, is_users

__all__ = ["short_text", "shorten", "traceback_text", "users_part"]


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
