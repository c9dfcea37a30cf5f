"""An event loop on which waiting takes no time.

Theory of operation: asyncio's selector loop computes how long it may sleep until its
next timer and asks the selector to wait that long. Ours waits only for what happens
outside the loop (executor work, threads, sockets); if there is none it moves the
loop's clock to the timer and returns at once. If there is no timer either, nothing
can ever happen, and it says so instead of hanging.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import selectors
import threading
import weakref
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVarTuple

from aiomailbox.errors import UsageError
from aiomailbox.testing.context import DEFAULT_START, ManualClock

if TYPE_CHECKING:
    pass


_Ts = TypeVarTuple("_Ts")
_Events = list[tuple[selectors.SelectorKey, int]]

# How long one look at the outside lasts, in real seconds. Bytes that this process
# has sent to itself are there at once; a dying thread is noticed this much later.
_LOOK_S = 0.002


class DeadlockError(UsageError):
    """Every task waits, and nothing is left that could wake one of them."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose time jumps to the next timer instead of waiting for it.

    Work outside the loop is awaited in real time, and virtual time stands still
    meanwhile: calls in an executor for as long as they take, other threads started
    since the loop was made for up to ``real_wait_limit`` at each jump.

    Args:
        start: Wall-clock time at the start, an aware datetime.
        real_wait_limit: Real seconds to wait for other threads before time jumps, or
            before a deadlock is declared.

    Attributes:
        clock: The `ManualClock` that ``time()`` reads. It moves with the loop.

    Invariants:
        ``loop.time() == loop.clock.monotonic()``, and it never goes back.

    Example:
        >>> async def nap() -> float:
        ...     await asyncio.sleep(3600)
        ...     return asyncio.get_running_loop().time()
        >>> with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        ...     runner.run(nap())
        3600.0
    """

    def __init__(
        self, *, start: datetime = DEFAULT_START, real_wait_limit: float = 1.0
    ) -> None:
        self.clock: ManualClock = ManualClock(start)
        self._real_wait_limit = real_wait_limit
        self._older_threads = weakref.WeakSet(threading.enumerate())
        self._executors: weakref.WeakSet[concurrent.futures.Executor] = (
            weakref.WeakSet()
        )
        self._executor_calls = 0
        super().__init__(_VirtualTimeSelector(self))

    def time(self) -> float:
        """Return virtual seconds since the loop was made."""
        return self.clock.monotonic()

    def run_in_executor(
        self,
        executor: concurrent.futures.Executor | None,
        func: Callable[[*_Ts], Any],
        *args: *_Ts,
    ) -> asyncio.Future[Any]:
        """Run a function in an executor; virtual time stands still meanwhile."""
        future: asyncio.Future[Any] = super().run_in_executor(executor, func, *args)
        default: concurrent.futures.Executor = vars(self)["_default_executor"]
        self._executors.add(executor or default)
        self._executor_calls += 1
        future.add_done_callback(self._executor_call_done)
        return future

    def _executor_call_done(self, _: asyncio.Future[Any]) -> None:
        self._executor_calls -= 1

    def _may_be_woken_by_thread(self) -> bool:
        # An executor's threads live on, idle, after their work, or without ever having
        # had any; they are not waited for.
        of_executors = {
            thread
            for executor in self._executors
            for thread in getattr(executor, "_threads", ())
        }
        return any(
            thread not in self._older_threads
            and thread not in of_executors
            and not _is_idle_worker(thread)
            for thread in threading.enumerate()
        )

    def _describe_deadlock(self) -> str:
        tasks = sorted(asyncio.all_tasks(self), key=lambda task: task.get_name())
        lines = [f"  {task.get_name()}: {_where(task)}" for task in tasks]
        waiting = "\n".join(lines) or "  (no task)"
        return (
            f"nothing can ever happen at virtual time {self.time():g} s: no callback "
            f"is ready, no timer is set, no thread or socket is open. Waiting:\n{waiting}"
        )


class _VirtualTimeSelector(selectors.DefaultSelector):
    """The machine's selector, except that waiting for a timer is a jump."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> _Events:
        events = super().select(0)
        if events or (timeout is not None and timeout <= 0):
            return events
        if self._loop._executor_calls:
            return super().select(None)
        return self._wait_outside(timeout) or self._jump(timeout)

    def _wait_outside(self, timeout: float | None) -> _Events:
        # The loop's own self-pipe is always registered.
        has_sockets = len(self.get_map()) > 1
        if has_sockets and timeout is None:
            return super().select(None)
        if has_sockets and (events := super().select(_LOOK_S)):
            return events
        # Looks are counted, and no clock is asked: in a process that was paused, other
        # threads have had no time either.
        looks = self._loop._real_wait_limit / _LOOK_S
        while looks > 0 and self._loop._may_be_woken_by_thread():
            if events := super().select(_LOOK_S):
                return events
            looks -= 1
        # A thread that has just died may have put its last callback before.
        return super().select(0)

    def _jump(self, timeout: float | None) -> _Events:
        if timeout is None:
            raise DeadlockError(self._loop._describe_deadlock())
        self._loop.clock.advance(timeout)
        return []


def virtual_time_loop_factory(
    *, start: datetime = DEFAULT_START, real_wait_limit: float = 1.0
) -> Callable[[], VirtualTimeLoop]:
    """Return a loop factory, as ``asyncio.Runner`` and pytest-asyncio take one.

    Args:
        start: Wall-clock time at the start of each loop, an aware datetime.
        real_wait_limit: See `VirtualTimeLoop`.

    Example:
        >>> factory = virtual_time_loop_factory()
        >>> with asyncio.Runner(loop_factory=factory) as runner:
        ...     runner.get_loop().clock.now_ms()
        1356998400000
    """

    def factory() -> VirtualTimeLoop:
        return VirtualTimeLoop(start=start, real_wait_limit=real_wait_limit)

    return factory


def _is_idle_worker(thread: threading.Thread) -> bool:
    # anyio keeps its worker threads for a while; their inbox says if they have work.
    inbox = getattr(thread, "queue", None)
    return isinstance(inbox, queue.Queue) and inbox.unfinished_tasks == 0


def _where(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack(limit=1)
    if not frames:
        return repr(task.get_coro())
    code = frames[0].f_code
    return f"{code.co_qualname} ({code.co_filename}:{frames[0].f_lineno})"
