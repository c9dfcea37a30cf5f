"""Which operator, and which line of the user's code, a task stands in or failed in."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterable
from traceback import StackSummary
from types import FrameType
from typing import Any

from aiomailbox.errors import (
    AioMailboxError,
    MailFailedError,
    UserFunctionError,
    add_note,
    named_operator,
    safe_repr,
)
from aiomailbox.operators.core.hooks import ends_program, is_foreign, owner_of
from aiomailbox.operators.core.locate import is_own_line, is_users, users_line
from aiomailbox.supervision import frames_of
from aiomailbox.task.chain import Link

__all__ = ["failure_of", "name_place", "place_of", "places_of"]

_Stack = list[tuple[FrameType, int]]


def place_of(frames: Iterable[FrameType], otherwise: str) -> str:
    """Return the operator and the user's line where suspended code stands.

    Args:
        frames: Outermost first.
        otherwise: Which operators it may be, if the frames do not tell.
    """
    stack = _lines_of(frames)
    if not stack:
        return ""
    links = [frame.f_locals.get("link") for frame, _ in stack]
    contexts = [link.operator.context for link in links if isinstance(link, Link)]
    owner = owner_of(frame for frame, _ in stack)
    if owner is None and contexts:
        owner = contexts[-1].operator_name, contexts[-1].uid
    return f"in {named_operator(*owner) if owner else otherwise} at {_line(stack)}"


def places_of(tasks: Iterable[asyncio.Task[Any]], otherwise: str) -> str:
    """Return where suspended asyncio tasks stand; see `place_of`.

    One that only waits, on no line of the user's, is left out if another one is there.
    """
    stacks = [frames for task in tasks if (frames := frames_of(task))]
    own = [stack for stack in stacks if is_users(_line(_lines_of(stack)))]
    return "; ".join(place_of(stack, otherwise) for stack in own or stacks)


def failure_of(error: BaseException, what: str) -> BaseException:
    """Return the failure that an error is which ended something; never raises.

    It names operator and line where they can be found, and is no cancellation: the
    caller knows that the end was not asked for.

    Args:
        error: It may be a cancellation: of something awaited, or of the task by its own
            code.
        what: What ended.
    """
    if isinstance(error, asyncio.CancelledError) and error.__cause__ is not None:
        # A hook of the user's, which is named there.
        return error.__cause__
    is_alien = is_foreign(error) or _is_exit(error)
    failure = MailFailedError(what, error) if is_alien else error
    if failure is not error:
        failure.__cause__ = error
    try:
        failure = name_place(failure)
    except BaseException as fault:  # noqa: BLE001 -- the error itself must not be lost
        add_note(failure, f"its place was not found: {safe_repr(fault)}")
    if isinstance(failure, asyncio.CancelledError):
        failure = MailFailedError(what, error)
        failure.__cause__ = error
    return failure


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
    line = _line(stack)
    if cause is error and (isinstance(error, Exception) or ends_program(error)):
        # A line of the library's own would not lead to the mistake.
        where = "" if is_own_line(line) else f" at {line}"
        add_note(error, f"in {named_operator(*owner)}{where}")
        if isinstance(error, AioMailboxError) and error.operator is None:
            error.operator, error.uid = owner
        return error
    named = UserFunctionError(*owner, line, cause)
    named.__cause__ = cause
    return named


def _is_exit(error: BaseException) -> bool:
    return isinstance(error, SystemExit) and not ends_program(error)


def _lines_of(frames: Iterable[FrameType]) -> _Stack:
    return [(frame, frame.f_lineno) for frame in frames]


def _line(stack: _Stack) -> str:
    return users_line(StackSummary.extract(stack))
