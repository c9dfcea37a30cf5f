"""Says of an error in a hook of the user's whose hook it was, and on which line."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from aiomailbox.errors import AioMailboxError, UserFunctionError
from aiomailbox.operators.core.locate import is_own_line, user_location


def is_foreign(error: BaseException) -> bool:
    """Say whether a CancelledError comes from something awaited, not from this task.

    Left alone it would look like a clean end.
    """
    task: asyncio.Task[object] | None = asyncio.current_task()
    is_cancelling = task is not None and task.cancelling() > 0
    return isinstance(error, asyncio.CancelledError) and not is_cancelling


@contextmanager
def naming_hook(hook: str, operator: str, uid: str | None) -> Iterator[None]:
    """Name operator, uid and hook in what the body raises, awaits included.

    Args:
        hook: The hook's name.
        operator: The operator's name. Code of another one may run inside the hook: what
            that raises is told to be its.
        uid: The operator's uid, or None.

    Raises:
        UserFunctionError: From whatever the user's code raises, also from a
            cancellation that is not the running task's own; but what ends the process
            is raised as it is.
    """
    place = f"in {hook}() of operator {operator!r} (uid {uid!r})"
    try:
        yield
    except AioMailboxError as error:
        location = user_location(error)
        error.add_note(place if is_own_line(location) else f"{place} at {location}")
        raise
    except (KeyboardInterrupt, SystemExit) as error:
        error.add_note(f"{place} at {user_location(error)}")
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and not is_foreign(error):
            raise
        owner = owner_of(frame for frame, _ in traceback.walk_tb(error.__traceback__))
        if owner is not None:
            operator, uid = owner
        location = user_location(error)
        failure = UserFunctionError(operator, uid, location, error)
        failure.add_note(place)
        raise failure from error


def owner_of(frames: Iterable[FrameType]) -> tuple[str, str | None] | None:
    """Return name and uid of the innermost operator whose code is in a stack.

    Args:
        frames: Outermost first.
    """
    found: tuple[str, str | None] | None = None
    for frame in frames:
        owner = frame.f_locals.get("self")
        # A user's attribute may do anything.
        with suppress(Exception):
            # What works for an operator knows it by what takes its failed records.
            for holder in (getattr(owner, "_failures", None), owner):
                for name in ("_context", "context"):
                    context = getattr(holder, name, None)
                    operator = getattr(context, "operator_name", None)
                    if isinstance(operator, str):
                        found = operator, getattr(context, "uid", None)
    return found
