"""The blocking door for scripts."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar, cast

from aiomailbox.errors import UsageError

ResultT = TypeVar("ResultT")


def run(work: Awaitable[ResultT]) -> ResultT:
    """Run a coroutine to its end, from a script that has no event loop.

    An interrupt (Ctrl-C) cancels the work, waits for its clean-up and raises
    KeyboardInterrupt, also where Spark has replaced Python's interrupt handler.

    Raises:
        UsageError: If an event loop runs already: there, use ``await``.

    Example:
        >>> import aiomailbox as am
        >>> env = am.StreamExecutionEnvironment()
        >>> am.run(env.from_collection([1, 2, 3]).map(str).collect())
        ['1', '2', '3']
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        close = getattr(work, "close", None)
        if close is not None:
            close()
        message = (
            "am.run() was called where an event loop runs already (a notebook, or "
            "inside async code): write `await ...` instead"
        )
        raise UsageError(message)
    return _run_interruptible(work)


def _run_interruptible(work: Awaitable[ResultT]) -> ResultT:
    interrupted = False

    async def main() -> ResultT:
        nonlocal interrupted
        loop = asyncio.get_running_loop()
        task = loop.create_task(cast("Coroutine[Any, Any, ResultT]", work))

        def interrupt() -> None:
            nonlocal interrupted
            interrupted = True
            task.cancel()

        if threading.current_thread() is not threading.main_thread():
            return await task
        # Spark's own handler would raise in the middle of the loop.
        previous = signal.getsignal(signal.SIGINT)
        loop.add_signal_handler(signal.SIGINT, interrupt)
        try:
            return await task
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            signal.signal(signal.SIGINT, previous)

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        if interrupted:
            raise KeyboardInterrupt from None
        raise
