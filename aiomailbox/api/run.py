"""The blocking door for scripts."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, cast

from aiomailbox.api.job import held_jobs
from aiomailbox.errors import UsageError, WrongTypeError, safe_repr
from aiomailbox.typevars import ResultT


def run(work: Awaitable[ResultT]) -> ResultT:
    """Run a coroutine to its end, from a script that has no event loop.

    An interrupt (Ctrl-C) cancels the work, waits for its clean-up and raises
    KeyboardInterrupt, even where Spark has replaced Python's interrupt handler. SIGTERM,
    which service managers send, does the same and raises SystemExit, unless the program
    handles that signal itself. SIGUSR1 prints what the jobs wait for to standard error.

    Raises:
        SystemExit: If it was ended by SIGTERM; with 143, the exit status of shells.
        UsageError: If an event loop is already running; use ``await`` there.

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
    given: object = work
    if not isinstance(given, Coroutine):
        raise WrongTypeError(
            "work",
            f"{safe_repr(work)} is not a coroutine",
            "Write am.run(main()) for an async function, and "
            "am.run(stream.collect()) for the records of a stream.",
        )
    return _run_interruptible(work)


def _tell_what_is_awaited() -> None:
    for job in held_jobs():
        sys.stderr.write(f"{job.await_tree()}\n")


def _run_interruptible(work: Awaitable[ResultT]) -> ResultT:
    # The first signal that came.
    received: list[signal.Signals] = []

    async def main() -> ResultT:
        task = asyncio.get_running_loop().create_task(
            cast("Coroutine[Any, Any, ResultT]", work)
        )

        def interrupt(number: signal.Signals) -> None:
            received.append(number)
            task.cancel()

        if threading.current_thread() is not threading.main_thread():
            return await task
        # Spark's own handler would raise in the middle of the loop.
        actions: dict[signal.Signals, Callable[[], None]] = {
            signal.SIGINT: partial(interrupt, signal.SIGINT)
        }
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            actions[signal.SIGTERM] = partial(interrupt, signal.SIGTERM)
        tells = getattr(signal, "SIGUSR1", None)
        if tells is not None and signal.getsignal(tells) is signal.SIG_DFL:
            actions[tells] = _tell_what_is_awaited
        with _handling(actions):
            return await task

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        if not received:
            raise
        if received[0] is signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM) from None
        raise KeyboardInterrupt from None


@contextmanager
def _handling(actions: dict[signal.Signals, Callable[[], None]]) -> Iterator[None]:
    """Let signals call functions in the running loop for as long as the block is."""
    loop = asyncio.get_running_loop()
    (first, action), *others = actions.items()
    # A loop that handles one signal is woken by all: one that comes just before it sleeps
    # would wait for whatever wakes it next. For each that it is asked to handle it lists
    # those of the system, twice, which takes as long as to make the loop.
    previous = {first: signal.getsignal(first)}
    loop.add_signal_handler(first, action)
    for number, each in others:
        previous[number] = signal.signal(number, _called_soon(loop, each))
    try:
        yield
    finally:
        loop.remove_signal_handler(first)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _called_soon(
    loop: asyncio.AbstractEventLoop, action: Callable[[], None]
) -> Callable[[int, FrameType | None], None]:
    def handle(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(action)

    return handle
