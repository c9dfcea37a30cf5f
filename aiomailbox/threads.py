"""Calls in other threads that have ended when their waiter resumes; loops in other threads.

Theory of operation: cancelling a coroutine that awaits ``loop.run_in_executor`` ends the
coroutine and not the thread. Two threads then use one object, and where that is an object
of C code the interpreter crashes. So the waiter outlasts the thread, however often it is
cancelled meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, Generic

from aiomailbox.errors import IllegalStateError
from aiomailbox.supervision import outlast
from aiomailbox.typevars import T


async def run_in_thread(call: Callable[..., T], *args: Any) -> T:
    """Call a function in a thread of the loop's default executor, and outlast it.

    Cancelling the waiter does not shorten the wait: the cancellation is raised when the
    thread is done with the call. Whatever the function uses may be used again from then
    on, however this ended.

    Args:
        call: The function; sees the waiter's context variables.
        *args: Its arguments.

    Returns:
        The result of the function. Its exception is raised.

    Raises:
        CancelledError: If the waiter was cancelled, whatever the function did.

    Example:
        >>> asyncio.run(run_in_thread(sum, [1, 2]))
        3
    """
    loop = asyncio.get_running_loop()
    result: Future[T] = Future()
    # As `asyncio.to_thread` does: the thread sees the caller's context variables.
    context = contextvars.copy_context()
    ended = loop.run_in_executor(None, context.run, _call, result, call, *args)
    await outlast(ended)
    # Raises if the executor was shut down before it came to the call.
    ended.result()
    try:
        return result.result()
    finally:
        # An exception has this frame in its traceback.
        del result


def begin_in_thread(call: Callable[..., T], *args: Any) -> asyncio.Future[T]:
    """Call a function in a thread of the default executor, for callers that cannot wait.

    Args:
        call: The function; the caller keeps what it uses until the future is done.
        *args: Its arguments.

    Returns:
        Ends as the call does; with an error, later, also where no thread could be
        started, so that callers have one place in which they handle errors.

    Example:
        >>> async def main() -> int:
        ...     return await begin_in_thread(sum, [1, 2])
        >>> asyncio.run(main())
        3
    """
    loop = asyncio.get_running_loop()
    try:
        return loop.run_in_executor(None, call, *args)
    except RuntimeError as error:
        # No thread can be started, or the executor was shut down.
        failed: asyncio.Future[T] = loop.create_future()
        failed.set_exception(error)
        return failed


class ThreadTurns:
    """Calls in threads about one object: one after the other, in the order of the calls.

    A waiter outlasts its thread unless its coroutine is closed by force. Even then the
    next call begins when the one before has ended: it waits in its own thread.

    Example:
        >>> turns = ThreadTurns()
        >>> asyncio.run(turns.run(sum, [1, 2]))
        3
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        """Call a function in a thread, in its turn; see `run_in_thread`."""
        return await run_in_thread(self._run, call, args)

    def _run(self, call: Callable[..., T], args: tuple[Any, ...]) -> T:
        with self._lock:
            return call(*args)


def _call(result: Future[T], call: Callable[..., T], *args: Any) -> None:
    try:
        result.set_result(call(*args))
    except BaseException as error:  # noqa: BLE001 -- the waiter gets it
        # Not through the loop's future: that one refuses StopIteration and never ends.
        result.set_exception(error)


def check_loop(
    loop: asyncio.AbstractEventLoop | None, what: str, *, awaited: bool = True
) -> None:
    """Raise if this is not the loop of a job: what is awaited here would never be woken.

    Raises:
        IllegalStateError: Saying how to call it.
    """
    running = asyncio._get_running_loop()
    if loop is None or loop is running:
        return
    if loop.is_closed():
        text = "ran on an event loop that is closed: start it again on this one"
    elif awaited:
        text = (
            "runs on another event loop: from here, call "
            "asyncio.run_coroutine_threadsafe(..., loop) with the loop of the job, or use "
            "one asyncio.run for all of the program"
        )
    else:
        text = (
            "runs on another event loop: from here, call "
            "loop.call_soon_threadsafe(...) of the loop of the job"
        )
    raise IllegalStateError(f"{what} {text}")


# A loop of its own, in a program whose main thread is not asyncio's.


class LoopThread(Generic[T]):
    """A thread with an event loop, which runs one coroutine and closes.

    Args:
        name: The thread's name.

    Attributes:
        loop: The loop.

    Example:
        >>> async def add() -> int:
        ...     return sum([1, 2])
        >>> LoopThread("adder").start(add).result()
        3
    """

    def __init__(self, name: str) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self._name = name
        self._ended: Future[T] = Future()
        self._main: asyncio.Task[Any] | None = None
        self._is_cancelled = False

    def start(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Run a coroutine; return what becomes of it, once the loop is closed."""
        # A daemon: what never returns must not keep the program from ending.
        threading.Thread(
            target=self._run, args=(work,), name=self._name, daemon=True
        ).start()
        return self._ended

    def call(self, call: Callable[..., object], *args: Any) -> None:
        """Call a function on the loop soon, unless it has closed; from any thread."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(call, *args)

    def cancel(self) -> None:
        """Cancel the coroutine, also before it has begun; from any thread."""
        self._is_cancelled = True
        self.call(self._cancel)

    def wait(self, timeout_s: float) -> bool:
        """Wait so long for the end; say whether it came."""
        with contextlib.suppress(TimeoutError):
            self._ended.exception(timeout_s)
        return self._ended.done()

    def _cancel(self) -> None:
        if self._main is not None:
            self._main.cancel()

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
                result = runner.run(self._supervised(work))
        except BaseException as error:  # noqa: BLE001 -- who waits for it gets it
            self._ended.set_exception(error)
        else:
            self._ended.set_result(result)

    async def _supervised(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._main = asyncio.current_task()
        if self._is_cancelled:
            raise asyncio.CancelledError
        return await work()


# Frames of another thread, which runs meanwhile.
#
# Theory of operation: Python makes the object of a frame when somebody asks for it, and
# CPython 3.11 may collect garbage to make room. A collection runs code: callbacks,
# finalizers. So the other thread gets its turn and leaves the frame, of which the object
# is made nevertheless: it writes into memory that is in use for something else, and the
# process crashes, then or at a later collection. From 3.12 on a collection waits for the
# end of the instruction.


class _NoCollections:
    """Lets no collection begin by itself for as long as one of several threads asks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._was_enabled = False

    def __enter__(self) -> None:
        if _COLLECTS_ANYWHERE:
            with self._lock:
                self._users += 1
                if self._users == 1:
                    self._was_enabled = gc.isenabled()
                    gc.disable()

    def __exit__(self, *_: object) -> None:
        if _COLLECTS_ANYWHERE:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._allow()

    def forget(self) -> None:
        """Be called in a copy of the process, which has none of the threads that ask."""
        if self._users:
            self._users = 0
            self._allow()
        self._lock = threading.Lock()

    def _allow(self) -> None:
        if self._was_enabled:
            gc.enable()


_COLLECTS_ANYWHERE: Final = sys.version_info < (3, 12)
# To be held while frames of another thread, or of its coroutines, are looked at.
frames_stay: Final = _NoCollections()
os.register_at_fork(after_in_child=frames_stay.forget)
