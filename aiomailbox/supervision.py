"""Tasks, calls in threads, and loops in threads that end before their waiter goes on.

Theory of operation: cancelling an asyncio task asks, and code may refuse. A supervised
task is interrupted, interrupted again after a while, and when its time is up its
coroutine is closed from outside: that raises GeneratorExit where it stands. A caller
that waits for it is not interrupted: cancellations of the waiter are raised afterwards.

Cancelling a coroutine that awaits ``loop.run_in_executor`` ends the coroutine and not
the thread. Two threads then use one object, and where that is an object of C code the
interpreter crashes. So the waiter outlasts the thread, too, however often it is cancelled
meanwhile.

Concept:
    Flink, ``Task.TaskInterrupter`` and ``Task.TaskCancelerWatchDog``.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import os
import sys
import threading
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
)
from concurrent.futures import Future
from inspect import isasyncgen
from types import FrameType
from typing import Any, Final, Generic

import anyio

from aiomailbox.errors import IllegalStateError
from aiomailbox.typevars import T

# Flink interrupts every 30 s of the 180 s that a task has.
INTERRUPTS: Final = 6
_GRACE_S: Final = 1.0
# When time is up: enough for what does not really wait.
_MOMENT_S: Final = 0.05

Step = Callable[[], Awaitable[None] | None]


async def outlast(
    future: asyncio.Future[Any], on_interrupt: Callable[[], None] | None = None
) -> None:
    """Wait until a future is done, however often the caller is cancelled meanwhile.

    The caller looks at the result of the future.

    Args:
        future: A future or an asyncio task; it is not cancelled.
        on_interrupt: Called each time that the caller is cancelled.

    Raises:
        asyncio.CancelledError: If the caller was cancelled; after the future is done.
    """
    interrupt: asyncio.CancelledError | None = None
    # Cancel scopes of anyio cancel at each await anew; with the shield there is only
    # `cancel()` to outlast, which comes once.
    with anyio.CancelScope(shield=True):
        while not future.done():
            try:
                # `wait` leaves what it waits for alone when the waiter is cancelled.
                await asyncio.wait((future,))
            except asyncio.CancelledError as error:
                interrupt = error
                if on_interrupt is not None:
                    on_interrupt()
    if interrupt is not None:
        raise interrupt


class SupervisedTask:
    """A coroutine in an asyncio task of its own, whose end can be forced.

    Args:
        work: The code that runs. It keeps every exception, also those that would end
            the loop.
        name: Of the asyncio task.
        timeout_s: How long it may go on after the first `interrupt` or `limit`.
        grace_s: How long it may take to unwind after that.
        on_late: Called with its task when its time is up, before a last interrupt.

    Attributes:
        name: Of the asyncio task.
        task: The asyncio task, once it has started.
        error: The exception of the work.
        is_late: Whether its time is up; it should do nothing more that takes time.
        is_given_up: Whether it was closed by force.
    """

    def __init__(
        self,
        work: Coroutine[Any, Any, None],
        *,
        name: str,
        timeout_s: float,
        grace_s: float = _GRACE_S,
        on_late: Callable[[asyncio.Task[Any]], None] | None = None,
    ) -> None:
        self.task: asyncio.Task[None] | None = None
        self.error: BaseException | None = None
        self.is_late: bool = False
        self.is_given_up: bool = False
        self.name = name
        self._work = work
        self._timeout_s = timeout_s
        self._grace_s = grace_s
        self._on_late = on_late
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._deadline: asyncio.TimerHandle | None = None
        self._repetition: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the work; call it once."""
        loop = asyncio.get_running_loop()
        self.task = loop.create_task(self._keep(), name=self.name)
        self.task.add_done_callback(self._on_done)

    def interrupt(self) -> None:
        """Interrupt the work, again and again until it ends, is calm or out of time."""
        if self._repetition is None:
            # Again is a no-op: the time that is left must not begin anew.
            self.limit()
            self._interrupt()

    def limit(self) -> None:
        """Let the time run in which the work has to end; again is a no-op."""
        if self._deadline is None and not self._over.done():
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(self._timeout_s, self._expire)

    async def calm(self) -> None:
        """Interrupt the work no more until its time is up; called by itself.

        Takes delivery of an interrupt that is under way: it must not hit what follows.
        """
        task = self.task
        assert task is not None, "the work is calm while it runs"
        self._end_repetition()
        if not task.cancelling():
            return
        try:
            # A cancel of this slice is delivered at the next await: here, where it
            # harms nothing.
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            # Swallowed: it was meant for what the work has finished by now.
            pass
        finally:
            forget_cancellation(task)

    async def outlast(self, on_interrupt: Callable[[], None] | None = None) -> None:
        """Wait until the work has ended or was given up; see `outlast`."""
        await outlast(self._over, on_interrupt)

    async def _keep(self) -> None:
        # An eager task begins before its creator has it.
        self.task = asyncio.current_task()
        try:
            await self._work
        except BaseException as error:  # noqa: BLE001 -- kept for the waiting caller
            self.error = error

    def _interrupt(self) -> None:
        self._cancel()
        loop = asyncio.get_running_loop()
        # asyncio delivers a cancellation once, and code may have swallowed it.
        self._repetition = loop.call_later(
            self._timeout_s / INTERRUPTS, self._interrupt
        )

    def _expire(self) -> None:
        self._end_repetition()
        self.is_late = True
        if self._on_late is not None and self.task is not None:
            self._on_late(self.task)
        self._cancel()
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self._grace_s, self._give_up)

    def _give_up(self) -> None:
        self.is_given_up = True
        if self.task is not None:
            close_by_force(self.task)
        self._finish()

    def _cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() and self.error is None:
            # Before it began, or in the step in which it ended.
            self.error = asyncio.CancelledError()
            # It never began, and Python would warn that it was never awaited.
            self._work.close()
        self._finish()

    def _finish(self) -> None:
        self._end_repetition()
        if self._deadline is not None:
            self._deadline.cancel()
        if not self._over.done():
            self._over.set_result(None)

    def _end_repetition(self) -> None:
        repetition, self._repetition = self._repetition, None
        if repetition is not None:
            repetition.cancel()


class Closing:
    """Takes steps one by one; a caller that continues after another one repeats none.

    Args:
        steps: The steps, in order.
        errors: Where it is added what they raise; None for a new list.

    Attributes:
        errors: The exceptions of the steps, in order.
        is_interrupted: Whether the caller of `run_within` was cancelled.
    """

    def __init__(
        self, steps: Iterator[Step], errors: list[BaseException] | None = None
    ) -> None:
        self.errors: list[BaseException] = [] if errors is None else errors
        self.is_interrupted: bool = False
        self._steps = steps

    async def run(self, runner: SupervisedTask) -> None:
        """Take the steps, until the time of the task that runs them is up."""
        # One iterator for all: a step that has begun is never taken again.
        while not runner.is_late and (step := next(self._steps, None)) is not None:
            await self._take(step, runner)

    async def run_late(self, name: str) -> None:
        """Take the steps that are left, and let none of them wait for long.

        Args:
            name: Of the asyncio tasks that take them.
        """
        for step in self._steps:
            late = SupervisedTask(
                self._done(step), name=name, timeout_s=_MOMENT_S, grace_s=_MOMENT_S
            )
            late.start()
            late.limit()
            try:
                await late.outlast()
            except asyncio.CancelledError as error:
                self.errors.append(error)
            if late.error is not None and not late.is_late:
                self.errors.append(late.error)

    async def _take(self, step: Step, runner: SupervisedTask) -> None:
        try:
            await self._done(step)
        except BaseException as error:
            if runner.is_given_up:
                # Closed by force: nothing can be awaited any more.
                raise
            # Cancelled because its time is up: that has been reported already.
            if not (runner.is_late and isinstance(error, asyncio.CancelledError)):
                self.errors.append(error)
        # A cancellation has been delivered; the next one would come from outside.
        forget_cancellation(runner.task)

    async def run_within(
        self, timeout_s: float, name: str, on_late: Callable[[asyncio.Task[Any]], None]
    ) -> None:
        """Take the steps, in a task of its own that has so long.

        Args:
            timeout_s: After that what is left is not waited for.
            name: Of the asyncio tasks.
            on_late: Called with the task when its time is up, while it stands there.
        """

        async def run() -> None:
            await self.run(runner)

        runner = SupervisedTask(run(), name=name, timeout_s=timeout_s, on_late=on_late)
        runner.start()
        runner.limit()
        try:
            await runner.outlast()
        except asyncio.CancelledError as error:
            self.is_interrupted = True
            self.errors.append(error)
        await self.run_late(name)

    async def _done(self, step: Step) -> None:
        pending: Awaitable[None] | None = step()
        if pending is not None:
            await pending


async def end_tasks(tasks: Iterable[asyncio.Task[Any]], *, every_s: float) -> None:
    """Cancel asyncio tasks until all have ended; what they raise is left to them.

    Args:
        tasks: They may have ended.
        every_s: When to tell one again that swallowed its cancellation.
    """
    # In their order: a set's goes by addresses, which are others in each process.
    running = [task for task in tasks if not task.done()]
    # A task that was notified may be cleaning up: the end of the loop notifies all.
    untold = [task for task in running if not task.cancelling()]
    while running:
        for task in untold:
            task.cancel()
        await asyncio.wait(running, timeout=every_s)
        untold = running = [task for task in running if not task.done()]


def close_by_force(task: asyncio.Task[Any]) -> None:
    """End a suspended asyncio task that does not heed its cancellation.

    Its code gets GeneratorExit where it stands and cannot await anything any more. Code
    that catches even that is left to itself and not waited for, even at the end of the
    loop.
    """
    try:
        work: Any = task.get_coro()
        work.close()
    except BaseException:  # noqa: BLE001 -- what unwinding raises has no reader
        pass
    task.cancel()
    task.add_done_callback(_retrieve)
    # Asyncio's end of the loop waits for all tasks it knows.
    asyncio._unregister_task(task)


def frames_of(task: asyncio.Task[Any]) -> list[FrameType]:
    """Return the frames in which a suspended asyncio task stands, outermost first."""
    frames: list[FrameType] = []
    work: object = task.get_coro()
    while work is not None:
        frame = getattr(work, "cr_frame", None) or getattr(work, "ag_frame", None)
        if frame is None:
            work = _generator_behind(work)
            continue
        frames.append(frame)
        work = getattr(work, "cr_await", None) or getattr(work, "ag_await", None)
    return frames


def _generator_behind(step: object) -> AsyncGenerator[Any, Any] | None:
    """Return the asynchronous generator of which a step is awaited, if it is one."""
    # No attribute of ``__anext__()`` or ``aclose()`` leads to it, and they have no type
    # that could be asked for: only the garbage collector knows whose step it is.
    if isinstance(step, asyncio.Future):
        return None
    generators = [one for one in gc.get_referents(step) if isasyncgen(one)]
    return generators[0] if generators else None


def forget_cancellation(task: asyncio.Task[Any] | None) -> None:
    """Make a task look as if it had not been cancelled; it has dealt with that."""
    while task is not None and task.cancelling():
        task.uncancel()


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


# Calls in other threads: they have ended when their waiter resumes.


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
