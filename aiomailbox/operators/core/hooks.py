"""Says of an error in a hook of the user's whose hook it was, and on which line."""

from __future__ import annotations

import asyncio
import inspect
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any

from aiomailbox.errors import (
    AioMailboxError,
    UserFunctionError,
    add_note,
    named_operator,
)
from aiomailbox.mailbox.ownership import current_task_or_none
from aiomailbox.operators.core.callables import describe
from aiomailbox.operators.core.locate import is_own_line, user_location


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


@contextmanager
def naming_hook(hook: str, operator: str, uid: str | None) -> Iterator[None]:
    """Name operator, uid and hook in what the body raises, awaits included.

    Args:
        hook: The hook's name.
        operator: The operator's name. Code of another one may run inside the hook: what
            that raises is reported to be its.
        uid: The operator's uid, or None.

    Raises:
        UserFunctionError: From whatever the user's code raises, also from a
            cancellation that is not the running task's own. One that is its own is
            raised with such an error as its cause, and what ends the process as it is.
    """
    place = f"in {hook}() of {named_operator(operator, uid)}"
    try:
        yield
    except AioMailboxError as error:
        location = user_location(error)
        add_note(error, place if is_own_line(location) else f"{place} at {location}")
        raise
    except BaseException as error:
        if ends_program(error):
            add_note(error, f"{place} at {user_location(error)}")
            raise
        owner = owner_of(frame for frame, _ in traceback.walk_tb(error.__traceback__))
        if owner is not None:
            operator, uid = owner
        location = user_location(error)
        if is_own_line(location):
            location = ""
        failure = UserFunctionError(operator, uid, location, error)
        add_note(failure, place)
        if isinstance(error, asyncio.CancelledError) and not is_foreign(error):
            # The cause says whose it was.
            error.__cause__ = error.__cause__ or failure
            raise
        raise failure from error


def call_hook(
    hook: str, operator: str, uid: str | None, call: Callable[..., Any], *args: Any
) -> Any:
    """Call a hook of the user's, and name operator, uid and hook in what it raises.

    What it awaits is left to the caller; see `naming_hook`, also for the arguments.

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


def owner_of(frames: Iterable[FrameType]) -> tuple[str, str | None] | None:
    """Return name and uid of the innermost operator whose code is in a stack.

    Args:
        frames: Outermost first.
    """
    found: tuple[str, str | None] | None = None
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
                        found = operator, getattr(context, "uid", None)
    return found
