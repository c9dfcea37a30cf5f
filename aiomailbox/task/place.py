"""Which operator, and which line of the user's code, a task stands in or failed in."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from traceback import StackSummary
from types import FrameType
from typing import Final

from aiomailbox.errors import MailFailedError, UserFunctionError
from aiomailbox.operators import owner_of, users_line
from aiomailbox.task.chain import Link

__all__ = ["name_place", "place_of"]

_AS_THEY_ARE: Final = (Exception, KeyboardInterrupt, SystemExit)

_Stack = list[tuple[FrameType, int]]


def place_of(frames: Iterable[FrameType], otherwise: str) -> str:
    """Return the operator and the user's line where suspended code stands.

    Args:
        frames: Outermost first.
        otherwise: Which operators it may be, if the frames do not tell.
    """
    stack = [(frame, frame.f_lineno) for frame in frames]
    if not stack:
        return ""
    links = [frame.f_locals.get("link") for frame, _ in stack]
    contexts = [link.operator.context for link in links if isinstance(link, Link)]
    owner = owner_of(frame for frame, _ in stack)
    if owner is None and contexts:
        owner = contexts[-1].operator_name, contexts[-1].uid
    return f"in operator {_named(owner) if owner else otherwise} at {_line(stack)}"


def name_place(error: BaseException) -> BaseException:
    """Return an error that names the operator and the line that raised it.

    One that does so already, or that no operator raised, is returned as it is. What the
    interpreter means by something else than an error, such as the cancellation of what
    was awaited, becomes a `UserFunctionError`; others get a note.
    """
    if isinstance(error, UserFunctionError):
        return error
    cause: BaseException = error
    if isinstance(error, MailFailedError) and error.__cause__ is not None:
        cause = error.__cause__
    stack = list(traceback.walk_tb(cause.__traceback__))
    owner = owner_of(frame for frame, _ in stack)
    if owner is None:
        return error
    if cause is error and isinstance(error, _AS_THEY_ARE):
        error.add_note(f"in operator {_named(owner)} at {_line(stack)}")
        return error
    named = UserFunctionError(*owner, _line(stack), cause)
    named.__cause__ = cause
    return named


def _named(owner: tuple[str, str | None]) -> str:
    name, uid = owner
    return f"{name!r} (uid {uid!r})"


def _line(stack: _Stack) -> str:
    return users_line(StackSummary.extract(stack))
