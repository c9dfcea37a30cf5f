"""The blocking door for scripts, with a dashboard beside it."""

from __future__ import annotations

import sys
from collections.abc import Awaitable

from aiomailbox.api.run import run as run_work
from aiomailbox.errors import AioMailboxError
from aiomailbox.observe.dashboard import serving_dashboard
from aiomailbox.runtime.failures import users_part
from aiomailbox.typevars import ResultT


def run(
    work: Awaitable[ResultT], *, dashboard: int | None = None, token: str | None = None
) -> ResultT:
    """Run a coroutine to its end, from a script that has no event loop.

    An interrupt (Ctrl-C) cancels the work, waits for its clean-up and raises
    KeyboardInterrupt, even where Spark has replaced Python's interrupt handler. SIGTERM,
    which service managers send, does the same and raises SystemExit, unless the program
    handles that signal itself. SIGUSR1 prints what the jobs wait for to standard error,
    unless the program handles it.

    Args:
        work: The coroutine.
        dashboard: A local port on which a page shows the job that the program
            has started last, see `aiomailbox.observe.dashboard`; None for no page.
        token: The secret that is required to change a job on that page.

    Raises:
        InvalidArgumentError: If the port is taken.
        MissingExtraError: If the page needs packages that are not installed.
        SystemExit: If it was ended by SIGTERM; with 143, the exit status of shells.
        UsageError: If an event loop is already running; use ``await`` there.

    Example:
        >>> import aiomailbox as am
        >>> env = am.StreamExecutionEnvironment()
        >>> am.run(env.from_collection([1, 2, 3]).map(str).collect())
        ['1', '2', '3']
    """
    shown = work if dashboard is None else _with_dashboard(work, dashboard, token)
    try:
        return run_work(shown)
    except BaseException as error:
        # Without the frames of the engine and of asyncio before those of the user; this
        # one is left out, too, for a bare `raise` adds none. Only a fault of the engine
        # itself, through which no frame of the user's goes, keeps all.
        users = users_part(error.__traceback__)
        if users is not None or isinstance(error, AioMailboxError | KeyboardInterrupt):
            error.__traceback__ = users
        raise


async def _with_dashboard(
    work: Awaitable[ResultT], port: int, token: str | None
) -> ResultT:
    try:
        async with serving_dashboard(port, token=token) as address:
            sys.stderr.write(f"dashboard at {address}\n")
            return await work
    finally:
        close = getattr(work, "close", None)
        if close is not None:
            # It has not begun if the page could not be served.
            close()
