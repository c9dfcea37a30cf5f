"""Says of an error in a hook of the user's whose hook it was, and on which line."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from aiomailbox.errors import AioMailboxError, UserFunctionError
from aiomailbox.operators.core.locate import user_location


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
        operator: The operator's name.
        uid: The operator's uid, or None.

    Raises:
        UserFunctionError: From whatever the user's code raises, also from a
            cancellation that is not the running task's own; but what ends the process
            is raised as it is.
    """
    place = f"in {hook}() of operator {operator!r} (uid {uid!r})"
    try:
        yield
    except (AioMailboxError, KeyboardInterrupt, SystemExit) as error:
        error.add_note(place)
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and not is_foreign(error):
            raise
        location = user_location(error)
        failure = UserFunctionError(operator, uid, location, error)
        failure.add_note(place)
        raise failure from error
