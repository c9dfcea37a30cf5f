"""Calls in other threads that are over when whoever waits for them goes on.

Theory of operation: cancelling a coroutine that awaits ``loop.run_in_executor`` ends the
coroutine and not the thread. Two threads then use one object, and where that is an object
of C code the interpreter crashes. So the waiter outlasts the thread, however often it is
cancelled meanwhile.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import anyio

__all__ = ["run_in_thread"]

T = TypeVar("T")


async def run_in_thread(call: Callable[..., T], *args: Any) -> T:
    """Call a function in a thread of the loop's default executor, and outlast it.

    Cancelling the waiter does not shorten the wait: the cancellation is raised when the
    thread is done with the call. Whatever the function uses may be used again from then
    on, however this ended.

    Args:
        call: The function; sees the waiter's context variables.
        *args: Its arguments.

    Returns:
        What the function returned. What it raised is raised.

    Raises:
        CancelledError: If the waiter was cancelled, whatever the function did.

    Example:
        >>> asyncio.run(run_in_thread(sum, [1, 2]))
        3
    """
    loop = asyncio.get_running_loop()
    result: Future[T] = Future()
    context = contextvars.copy_context()
    ended = loop.run_in_executor(None, context.run, _call, result, call, *args)
    interrupt: asyncio.CancelledError | None = None
    # Shielded too: a cancel scope would wake us in every iteration of the loop.
    with anyio.CancelScope(shield=True):
        while not ended.done():
            try:
                await asyncio.wait([ended])
            except asyncio.CancelledError as error:
                interrupt = error
    if interrupt is not None:
        raise interrupt
    # Raises if the executor was shut down before it came to the call.
    ended.result()
    try:
        return result.result()
    finally:
        # An exception has this frame in its traceback.
        del result


def _call(result: Future[T], call: Callable[..., T], *args: Any) -> None:
    try:
        result.set_result(call(*args))
    except BaseException as error:  # noqa: BLE001 -- the waiter gets it
        # Not through the loop's future: that one refuses StopIteration and never ends.
        result.set_exception(error)
