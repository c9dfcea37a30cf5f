"""Which operator, and which line of the user's code, a task stands in or failed in."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from contextlib import suppress
from traceback import StackSummary
from types import FrameType
from typing import Final

from aiomailbox.errors import MailFailedError, UserFunctionError
from aiomailbox.operators import users_line
from aiomailbox.task.chain import Link
from aiomailbox.task.context import TaskRuntimeContext

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
    return _described(stack, otherwise=otherwise) if stack else ""


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
    context = _context_in(frame for frame, _ in _stack(error))
    if context is None:
        return error
    stack = _stack(cause)
    if cause is error and isinstance(error, _AS_THEY_ARE):
        error.add_note(_described(stack, context))
        return error
    named = UserFunctionError(
        context.operator_name,
        context.uid,
        users_line(StackSummary.extract(stack)),
        cause,
    )
    named.__cause__ = cause
    return named


def _stack(error: BaseException) -> _Stack:
    return list(traceback.walk_tb(error.__traceback__))


def _described(
    stack: _Stack, context: TaskRuntimeContext | None = None, otherwise: str = ""
) -> str:
    found = context or _context_in(frame for frame, _ in stack)
    operator = otherwise
    if found is not None:
        operator = f"{found.operator_name!r} (uid {found.uid!r})"
    return f"in operator {operator} at {users_line(StackSummary.extract(stack))}"


def _context_in(frames: Iterable[FrameType]) -> TaskRuntimeContext | None:
    """Return the context of the innermost operator whose code is in a stack."""
    found: TaskRuntimeContext | None = None
    for frame in frames:
        link = frame.f_locals.get("link")
        owner = link.operator if isinstance(link, Link) else frame.f_locals.get("self")
        for name in ("context", "_context"):
            # A user's attribute may do anything.
            with suppress(Exception):
                context = getattr(owner, name, None)
                if isinstance(context, TaskRuntimeContext):
                    found = context
    return found
