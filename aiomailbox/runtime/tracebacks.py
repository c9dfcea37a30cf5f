"""What a user is shown of a failure: the lines of the user's own, and one of ours."""

from __future__ import annotations

import traceback
from contextlib import suppress
from types import TracebackType

from aiomailbox.errors import AioMailboxError, RemoteTaskError
from aiomailbox.operators import is_own_line, is_users

__all__ = ["shorten", "traceback_text", "users_part"]


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
            waiting += [error.__cause__, error.__context__]
            if isinstance(error, BaseExceptionGroup):
                waiting += error.exceptions
    return "\n".join(texts)


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


def _from_the_users_first(last: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the user's first frame on; its last one if there is none."""
    users = users_part(last)
    if users is not None:
        return users
    each = last
    while each is not None:
        if not is_own_line(each.tb_frame.f_code.co_filename):
            return each
        last, each = each, each.tb_next
    return last
