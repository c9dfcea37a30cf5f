"""A thread that watches an event loop: what holds it, and for how long.

Theory of operation: forty times a second the thread looks at the frames of the loop's
thread. The loop calls each of its handles through one Python frame; the same frame object
in two looks is the same call, and one that stays longer than the threshold has held the
loop. So nothing is added to what the loop does, and a loop that sleeps is not woken. While
the frame object is kept it cannot be another call's. A loop of other code (uvloop) has no
such frame: there the thread asks it to answer.

A loop in virtual time is not watched: its time is not that of threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
import time
from asyncio import events
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, Final
from weakref import WeakKeyDictionary

from aiomailbox.clock import Clock, SystemClock
from aiomailbox.runtime.block_shares import BlockShare, TaskShares, block_of
from aiomailbox.runtime.held_loop import (
    HeldLoop,
    contexts_of,
    describe_frames,
    frames_outwards,
)
from aiomailbox.runtime.stalls import Stall, StallLog
from aiomailbox.task.stream_task import StreamTask

__all__ = ["LoopWatch", "shares_of", "stalls_of", "watching"]

_LOOK_S: Final = 0.025
# Five times a second; a job with more tasks is judged by the first ones.
_LOOKS_PER_SAMPLE: Final = 8
_TASKS_MAX: Final = 64
# Of each task; a worker sends them four times a second.
_SHOWN_MAX: Final = 3
# A call that blocks the loop for so long is named before it ends: it may never do so.
_STILL_HELD_S: Final = 10.0
_HANDLE: Final[CodeType] = events.Handle._run.__code__


class GarbageTime:
    """How long the garbage collector has held one thread, seconds."""

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._since: float | None = None
        self.total_s: float = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """Be called by the collector before and after its work."""
        if threading.get_ident() != self._thread:
            return
        now_s = time.perf_counter()
        if phase == "start":
            self._since = now_s
        elif self._since is not None:
            self.total_s += now_s - self._since
            self._since = None


class LoopWatch:
    """Watches one event loop from a thread, from `start` to `stop`.

    Args:
        loop: The loop; it runs in the thread that makes this.
        threshold_s: From here on it counts as held.
        log: Gets what has held it.
        clock: The machine's.
        still_held_s: From here on it is reported although it has not ended.

    Attributes:
        tasks: The tasks of the loop, and what they have waited for.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        threshold_s: float,
        log: StallLog,
        clock: Clock | None = None,
        still_held_s: float = _STILL_HELD_S,
    ) -> None:
        self._loop = loop
        self._thread_id = threading.get_ident()
        self._threshold_s = threshold_s
        self._clock = clock or SystemClock()
        self._garbage = GarbageTime(self._thread_id)
        self._cpu_clock = _cpu_clock(self._thread_id)
        # Free once it is to stop. A wait for an Event costs the thread, forty times a
        # second, and the loop that it interrupts half as much again.
        self._stopped = threading.Lock()
        self._stopped.acquire()
        self._thread: threading.Thread | None = None
        self._log = log
        self._still_held_s = still_held_s
        self._is_reported = False
        # What is being called: its frame, since when, and what was found out of it.
        self._call: Any = None
        self._since_s = 0.0
        self._garbage_s = 0.0
        self._cpu_s: float | None = None
        self._held: HeldLoop | None = None
        self._contexts: list[Any] = []
        self._has_turned = True
        self._looks = 0
        self.tasks: dict[StreamTask, TaskShares] = {}
        self._asks = not isinstance(loop, asyncio.BaseEventLoop)

    def start(self) -> None:
        """Begin to watch."""
        gc.callbacks.append(self._garbage)
        self._thread = threading.Thread(
            target=self._run, name="watch of an event loop", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Watch no more, and wait for the thread; it holds nothing up."""
        # Joined: the thread must not look at frames of a loop that is being closed.
        if self._stopped.locked():
            self._stopped.release()
        if self._thread is not None:
            self._thread.join()
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._garbage)
        self._finish(self._clock.monotonic())
        self._call = None

    def _run(self) -> None:
        while not self._stopped.acquire(timeout=_LOOK_S):
            # What stands there is the user's; a task that cannot be described works on.
            with contextlib.suppress(Exception):
                self.look(self._clock.monotonic())

    def look(self, now_s: float) -> None:
        """Look once at what the loop does.

        Args:
            now_s: The time, seconds.
        """
        frame = sys._current_frames().get(self._thread_id)
        self._looks += 1
        if self._looks % _LOOKS_PER_SAMPLE == 0:
            self._sample(frame, now_s)
        call = self._answer() if self._asks else _call_of(frame)
        # The same frame object, which is kept so that no other can get its address.
        if call is None or call is not self._call:
            self._finish(now_s)
            self._call = call
            if call is not None:
                self._since_s = now_s
                self._garbage_s = self._garbage.total_s
                self._cpu_s = self._cpu()
        elif self._held is None and now_s - self._since_s >= self._threshold_s:
            # Once for each call: walking a deep stack costs more than a sample.
            frames = list(frames_outwards(frame))
            self._contexts = contexts_of(frames)
            self._held = describe_frames(frames, self._task())
        elif not self._is_reported and now_s - self._since_s >= self._still_held_s:
            self._is_reported = True
            frames = list(frames_outwards(frame))
            contexts = contexts_of(frames)
            held = describe_frames(frames, self._task())
            self._log.tell_still_held(self._stall(held, now_s), contexts)

    def _sample(self, frame: FrameType | None, now_s: float) -> None:
        """Note of each task what it does or waits for."""
        frames = [] if _call_of(frame) is None else list(frames_outwards(frame))
        contexts = contexts_of(frames)
        # A copy: tasks come and go on the loop meanwhile.
        for task, shares in list(self.tasks.items())[:_TASKS_MAX]:
            shares.add(now_s, block_of(task, frames, contexts))

    def _finish(self, now_s: float) -> None:
        """Report the call that has ended, if it held the loop."""
        held, self._held = self._held, None
        self._is_reported = False
        if held is None:
            return
        contexts, self._contexts = self._contexts, []
        self._log.add(self._stall(held, now_s), contexts)

    def _stall(self, held: HeldLoop, now_s: float) -> Stall:
        """Return what the present call has held up until now."""
        cpu_s, before_s = self._cpu(), self._cpu_s
        return Stall(
            at_ms=self._clock.now_ms(),
            duration_ms=(now_s - self._since_s) * 1000,
            gc_ms=(self._garbage.total_s - self._garbage_s) * 1000,
            cpu_ms=(
                None if cpu_s is None or before_s is None else (cpu_s - before_s) * 1000
            ),
            task=held.task,
            operator=held.operator,
            uid=held.uid,
            mail=held.mail,
            function=held.function,
            line=held.line,
            stack=held.stack,
        )

    def _task(self) -> str:
        """Return the name of the task of ours that runs, or of the asyncio task."""
        for context in self._contexts:
            if isinstance(name := getattr(context, "task_name", None), str):
                return name
        task = asyncio.current_task(self._loop)
        return "" if task is None else task.get_name()

    def _cpu(self) -> float | None:
        if self._cpu_clock is None:
            return None
        try:
            return time.clock_gettime(self._cpu_clock)
        except OSError:
            # The thread has ended.
            return None

    def _answer(self) -> Any:
        # One question at a time: a loop that is held would collect them.
        """Return what stands for a call, None if the loop has answered since."""
        if not self._has_turned:
            return self._call or object()
        self._has_turned = False
        with contextlib.suppress(RuntimeError):  # It is closed: the end is near.
            self._loop.call_soon_threadsafe(self._on_turn)
        return None

    def _on_turn(self) -> None:
        self._has_turned = True


def _call_of(frame: FrameType | None) -> FrameType | None:
    """Return the frame in which the loop calls what runs now; None if it sleeps."""
    while frame is not None:
        if frame.f_code is _HANDLE:
            return frame
        frame = frame.f_back
    return None


def _cpu_clock(thread: int) -> int | None:
    find: Callable[[int], int] | None = getattr(time, "pthread_getcpuclockid", None)
    return None if find is None else find(thread)


class _Watched:
    """A loop, how many want it to be watched, and what has held it so far."""

    def __init__(self) -> None:
        self.users = 0
        self.watch: LoopWatch | None = None
        self.log = StallLog()


_watched: WeakKeyDictionary[asyncio.AbstractEventLoop, _Watched] = WeakKeyDictionary()


@contextlib.contextmanager
def watching(task: StreamTask, threshold_s: float | None) -> Iterator[None]:
    """Let the running loop be watched for as long as the block is; all share one watch.

    Args:
        task: What it waits for is watched, too.
        threshold_s: From here on it counts as held, if this is the first block of the
            loop; None for not to be watched for this.
    """
    loop = asyncio.get_running_loop()
    # Virtual time is not the time of threads.
    if threshold_s is None or getattr(loop, "clock", None) is not None:
        yield
        # Per loop and not per task: one thread looks for all of them.
        return
    watched = _watched.setdefault(loop, _Watched())
    if watched.watch is None:
        # On the loop's thread, which is the one to be watched.
        watched.watch = LoopWatch(loop, threshold_s, watched.log)
        watched.watch.start()
    watched.users += 1
    watched.watch.tasks[task] = TaskShares()
    try:
        yield
    finally:
        watched.users -= 1
        watched.watch.tasks.pop(task, None)
        # The last one: no thread is left behind, and none is needed between jobs.
        if not watched.users:
            watched.watch.stop()
            watched.watch = None


def shares_of(task: StreamTask) -> list[BlockShare]:
    """Return what a task of the running loop has waited for lately, and for how long."""
    try:
        watched = _watched.get(asyncio.get_running_loop())
    except RuntimeError:
        return []
    if watched is None or watched.watch is None:
        return []
    shares = watched.watch.tasks.get(task)
    return [] if shares is None else shares.shares()


def stalls_of(task: str) -> list[Stall]:
    """Return what has held the running loop lately: in a task, or in no operator."""
    try:
        watched = _watched.get(asyncio.get_running_loop())
    except RuntimeError:
        return []
    last = [] if watched is None else list(watched.log.last)
    found = [
        one
        for one in last
        if not one.operator or one.task == task or one.task.startswith(f"{task}/")
    ]
    return found[-_SHOWN_MAX:]
