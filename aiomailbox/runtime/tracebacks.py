"""What a user is shown of a failure: the lines of the user's own, and one of ours."""

from __future__ import annotations

import traceback
from contextlib import suppress
from types import TracebackType

from aiomailbox.errors import AioMailboxError
from aiomailbox.operators import is_own_line, is_users

__all__ = ["shorten", "users_part"]


def shorten(failure: BaseException) -> str:
    """Leave out the engine's frames of a failure and of what led to it.

    Of a failure that is no `AioMailboxError`, which is one of the engine itself, all
    stay.

    Returns:
        The text of all frames, as they were.
    """
    text = _text_of(failure)
    if not isinstance(failure, AioMailboxError):
        return text
    waiting: list[BaseException | None] = [failure]
    # Errors may refer to each other in a ring.
    seen: set[int] = set()
    while waiting:
        error = waiting.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        # A user's error may have attributes of its own making; then it stays as it is.
        with suppress(BaseException):
            error.__traceback__ = _from_the_users_first(error.__traceback__)
            waiting += [error.__cause__, error.__context__]
            if isinstance(error, BaseExceptionGroup):
                waiting += error.exceptions
    return text


def _text_of(failure: BaseException) -> str:
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
