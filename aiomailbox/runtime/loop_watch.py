"""A thread that looks at an event loop: who holds it, and why its tasks wait.

Theory of operation: ten times a second the thread looks at the frames of the loop's
thread. The loop calls each of its handles through one Python frame; the same frame object
in two looks is the same call, and one that stays longer than the threshold has held the
loop. So nothing is added to what the loop does, and a loop that sleeps is not woken. While
the frame object is kept it cannot be another call's. A loop of other code (uvloop) has no
such frame: there the thread asks it to answer, if it is not asleep.

How long each task works, waits for input and waits for room is measured by the task; a
look says only which operator does, and what it waits for. A thread that waits for Python's
lock mostly gets it where the loop asks for events, and would never see a function of a
millisecond. So before every other look at a loop that computes, the thread sleeps for a
moment that nobody can foresee, with a short switch interval: then it wakes in the middle
of whatever runs.

A loop in virtual time is not watched: its time is not that of threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import gc
import random
import sys
import threading
import time
from asyncio import events
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict
from types import CodeType, FrameType
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec

from aiomailbox.clock import Clock, SystemClock
from aiomailbox.logs import library_log
from aiomailbox.mailbox.budget import governor_of
from aiomailbox.operators.core.operator import BlockCause, Blocked
from aiomailbox.operators.core.user_code import users_line_of
from aiomailbox.operators.sources.operator import SourceOperator
from aiomailbox.runtime.held_loop import (
    HeldLoop,
    Stall,
    contexts_of,
    describe_frames,
    frames_outwards,
)
from aiomailbox.supervision import frames_of, frames_stay
from aiomailbox.task.stream_task import StreamTask

# What each task did in the last seconds: how long is measured, and looks say what.
#
# Theory of operation: the meters of a task's mailbox divide its time into four kinds.
# Each look counts, for the kind that the task is in, which operator it is about and what
# it waits for: whose code is in the frames of the loop's thread, else what stands in the
# frames of the task's coroutines. What was counted of a kind divides the time of it.


class _Kind(enum.IntEnum):
    RUNS = 0
    IDLE = 1
    ROOM = 2
    # It awaits something in the middle of its work, or its turn.
    AWAITS = 3


_BUCKET_S: Final = 5.0
# Of one bucket: lines are the user's, and as many as there are.
_BLOCKS_MAX: Final = 32
# Which operator, and what it waits for; "" where it is the whole task.
Block = tuple[str, Blocked]


class BlockShare(msgspec.Struct, frozen=True):
    """How much of the last seconds a task waited for one thing.

    Attributes:
        operator: The operator that does, "" if it is the whole task.
        cause: What it waits for, or does.
        what: Which one: the name of a limit, a line.
        share: From 0 to 1.
        observed_s: The seconds that this is about: about five, or since the start.
    """

    operator: str
    cause: BlockCause
    what: str
    share: float
    observed_s: float


class TaskLooks:
    """The work of a task over some seconds: those of this bucket and the last."""

    def __init__(self) -> None:
        self._since_s = 0.0
        self._counts: list[dict[Block, int]] = [{} for _ in _Kind]
        self._before = self._counts
        self._last: tuple[int, Block] | None = None

    def again(self, now_s: float) -> None:
        """Count what was seen last once more: nothing was done since."""
        if self._last is not None:
            self.add(now_s, *self._last)

    def add(self, now_s: float, kind: int, block: Block) -> None:
        """Count one look."""
        if now_s - self._since_s >= _BUCKET_S:
            self._before, self._counts = self._counts, [{} for _ in _Kind]
            self._since_s = now_s
        self._last = kind, block
        counts = self._counts[kind]
        # Lines are the user's, and there may be many: the cause alone is kept then.
        if block not in counts and len(counts) >= _BLOCKS_MAX:
            operator, blocked = block
            block = operator, Blocked(blocked.cause)
        counts[block] = counts.get(block, 0) + 1

    def of(self, kind: int) -> dict[Block, int]:
        """Return what was seen in a kind of time, and how often."""
        # It may be counted in another thread meanwhile.
        found = dict(list(self._before[kind].items()))
        if self._before is not self._counts:
            for block, count in list(self._counts[kind].items()):
                found[block] = found.get(block, 0) + count
        return found


def _kind_of(task: StreamTask) -> _Kind:
    metrics = task.processor.metrics
    # In this order: a task that waits for room waits for nothing else.
    if metrics.hard_backpressured.is_running or metrics.backpressured.is_running:
        return _Kind.ROOM
    if metrics.idle.is_running:
        return _Kind.IDLE
    return _Kind.RUNS if task.processor.has_loop else _Kind.AWAITS


def _block_of(
    task: StreamTask, kind: _Kind, running: list[FrameType], contexts: list[Any]
) -> Block:
    """Return what a task does or waits for now; from any thread."""
    if contexts and _has(task, contexts[0]):
        operator = " -> ".join(context.metrics.name for context in contexts)
        return operator, Blocked(BlockCause.FUNCTION, users_line_of(running[::-1]))
    if kind is _Kind.ROOM:
        return _full_operator(task) or ("", Blocked(BlockCause.OUTPUT))
    if kind is _Kind.AWAITS:
        return _awaited(task) or ("", Blocked(BlockCause.LOOP))
    return _usual(task, kind)


def _usual(task: StreamTask, kind: _Kind) -> Block:
    """Return what a task does in a kind of time, as far as that alone says it."""
    chain = task.chain
    if kind is _Kind.RUNS:
        # By its engine's code, or an operator that nobody saw.
        alone = chain is not None and len(chain.operators) == 1
        operator = chain.operators[0].context.metrics.name if chain and alone else ""
        return operator, Blocked(BlockCause.FUNCTION)
    if kind is _Kind.IDLE:
        head = None if chain is None else chain.head
        if isinstance(head, SourceOperator):
            return head.context.metrics.name, Blocked(BlockCause.SOURCE)
        return "", Blocked(BlockCause.INPUT)
    cause = BlockCause.OUTPUT if kind is _Kind.ROOM else BlockCause.LOOP
    return "", Blocked(cause)


def _has(task: StreamTask, context: Any) -> bool:
    return getattr(context, "task_name", task.name) == task.name and any(
        group is context.metrics for group in task.environment.metrics.children
    )


def _full_operator(task: StreamTask) -> Block | None:
    """Return the operator that takes no more because of its calls."""
    for operator in () if task.chain is None else task.chain.operators:
        if operator.accepts is not None and not operator.accepts.available:
            blocked = operator.blocked() or Blocked(BlockCause.AWAIT)
            return operator.context.metrics.name, blocked
    return None


def _awaited(task: StreamTask) -> Block | None:
    """Return the operator in which the task awaits something; None if it is ready."""
    # For which no operator is to blame.
    if task.processor.waits_for_turn:
        return None
    runner = task.runner
    # No future to wait for: it is ready, and others have the loop.
    if runner is None or runner.done() or getattr(runner, "_fut_waiter", 0) is None:
        # Private to asyncio: without it a task counts as one that waits for something.
        return None
    frames = frames_of(runner)
    for context in contexts_of(frames[::-1]):
        for operator in () if task.chain is None else task.chain.operators:
            if operator.context is context:
                blocked = operator.blocked()
                if blocked is not None:
                    return context.metrics.name, blocked
        return context.metrics.name, Blocked(BlockCause.AWAIT, users_line_of(frames))
    return None


_looks: WeakKeyDictionary[StreamTask, TaskLooks] = WeakKeyDictionary()


def shares_of(task: StreamTask) -> list[BlockShare]:
    """Return what a task of the running loop did in the last seconds, most of it first."""
    metrics = task.processor.metrics
    now_s = metrics.now_s()
    observed_s = metrics.elapsed_s(now_s)
    if observed_s <= 0:
        return []
    looks = _looks.get(task)
    if looks is None:
        looks = _looks[task] = TaskLooks()
    # One more look, and the only ones where no thread looks.
    kind = _kind_of(task)
    looks.add(now_s, kind, _block_of(task, kind, [], []))
    ran_s, idle_s, room_s = (
        metrics.ran.within_s(now_s),
        metrics.idle.within_s(now_s),
        metrics.backpressured.within_s(now_s)
        + metrics.hard_backpressured.within_s(now_s),
    )
    rest_s = max(0.0, observed_s - ran_s - idle_s - room_s)
    whole_s = ran_s + idle_s + room_s + rest_s
    shares: dict[Block, float] = {}
    for kind, spent_s in zip(_Kind, (ran_s, idle_s, room_s, rest_s), strict=True):
        seen = looks.of(kind) or {_usual(task, kind): 1}
        share = spent_s / whole_s / sum(seen.values())
        for block, count in seen.items():
            shares[block] = shares.get(block, 0.0) + share * count
    return [
        BlockShare(operator, blocked.cause, blocked.what, share, observed_s)
        for (operator, blocked), share in sorted(
            shares.items(), key=lambda item: -item[1]
        )
        if share > 0
    ]


_LOOK_S: Final = 0.1
# While the loop is held: how long is known to within this.
_HELD_LOOK_S: Final = 0.025
# Of one core: from here on the loop computes, and the thread sees it by chance only.
_COMPUTES: Final = 0.2
# Longer than most slices, so that each part of one is seen as often as it lasts.
_SURPRISE_S: Final = 0.01
_SWITCH_S: Final = 0.0001
# Of the processor, since tasks were looked at: less changes nothing of what they do.
_NEWS_S: Final = 0.0005
# A job with more tasks is judged by the first ones.
_TASKS_MAX: Final = 64
# Of each task; a worker sends them four times a second.
_SHOWN_MAX: Final = 3
# Of collections, the last ones: as many as may be within one stall.
_COLLECTIONS_MAX: Final = 64
# A call that blocks the loop for so long is named before it ends: it may never do so.
_STILL_HELD_S: Final = 10.0
_HANDLE: Final[CodeType] = events.Handle._run.__code__


class GarbageTime:
    """When the garbage collector has held one thread lately."""

    def __init__(self, thread: int, clock: Clock) -> None:
        self._thread = thread
        self._clock = clock
        self._since_s: float | None = None
        self._last: deque[tuple[float, float]] = deque(maxlen=_COLLECTIONS_MAX)

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """Be called by the collector before and after its work."""
        if threading.get_ident() != self._thread:
            return
        now_s = self._clock.monotonic()
        if phase == "start":
            self._since_s = now_s
        elif self._since_s is not None:
            self._last.append((self._since_s, now_s))
            self._since_s = None

    def within_s(self, since_s: float, until_s: float) -> float:
        """Return the seconds of a stretch of time that it took."""
        periods = list(self._last)
        # The one that has not ended, if the thread is looked at in the middle.
        if self._since_s is not None:
            periods.append((self._since_s, until_s))
        return sum(
            max(0.0, min(until_s, end_s) - max(since_s, begin_s))
            for begin_s, end_s in periods
        )


_COLLECTED: Final = GarbageTime.__call__.__code__


class _QuickSwitches:
    """Lets threads take turns quickly, for as long as one of several asks for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before_s = 0.0
        self._ours_s = 0.0

    def __enter__(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._before_s = sys.getswitchinterval()
                sys.setswitchinterval(min(_SWITCH_S, self._before_s))
                self._ours_s = sys.getswitchinterval()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            # Unless the program has set another one meanwhile.
            if not self._users and sys.getswitchinterval() == self._ours_s:
                sys.setswitchinterval(self._before_s)


_quick_switches = _QuickSwitches()


class LoopWatch:
    """Watches one event loop from a thread, from `start` to `stop`.

    Args:
        loop: The loop; it runs in the thread that makes this.
        threshold_s: From here on it counts as held.
        log: Gets what has held it.
        still_held_s: From here on it is reported although it has not ended.

    Attributes:
        tasks: The tasks of the loop, and what they were seen to do.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        threshold_s: float,
        log: StallLog,
        still_held_s: float = _STILL_HELD_S,
    ) -> None:
        self._loop = loop
        self._governor = governor_of(loop)
        self._thread_id = threading.get_ident()
        self._threshold_s = threshold_s
        self._clock = SystemClock()
        self._garbage = GarbageTime(self._thread_id, self._clock)
        self._cpu_clock = _cpu_clock(self._thread_id)
        self._cpu_sampled_s = 0.0
        self._is_settled = False
        self._random = random.Random(self._thread_id)
        # Free once it is to stop. A wait for an Event costs the thread, and the loop
        # that it interrupts, half as much again.
        self._stopped = threading.Lock()
        self._stopped.acquire()
        self._thread: threading.Thread | None = None
        self._log = log
        self._still_held_s = still_held_s
        self._is_reported = False
        # What is being called: its frame, since when, and what was found out of it.
        self._call: Any = None
        self._since_s = 0.0
        self._looked_s = self._clock.monotonic()
        self._seen_s = 0.0
        self._cpu_s: float | None = None
        self._held: HeldLoop | None = None
        self._contexts: list[Any] = []
        self._has_turned = True
        self.tasks: dict[StreamTask, TaskLooks] = {}
        self._asks = not isinstance(loop, asyncio.BaseEventLoop)
        # Where its thread stands while the loop sleeps, or is in code of its own.
        self._outside = _caller_of_loop(loop)

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
        self._call = self._outside = None

    def _run(self) -> None:
        delay_s, cpu_s, is_unforeseen = _LOOK_S, self._cpu(), False
        while not self._stopped.acquire(timeout=delay_s):
            before_s, cpu_s = cpu_s, self._cpu()
            computes = (
                before_s is None
                or cpu_s is None
                or cpu_s - before_s > _COMPUTES * delay_s
            )
            # Every other look is enough to see what runs. Each one takes the lock away
            # from the loop, and costs it far more than the look.
            is_unforeseen = computes and not is_unforeseen
            if is_unforeseen:
                surprise_s = self._random.random() * _SURPRISE_S
                with _quick_switches:
                    if self._stopped.acquire(timeout=surprise_s):
                        return
            # What stands there is the user's; a task that cannot be described works on.
            with contextlib.suppress(Exception):
                self.look(self._clock.monotonic())
            delay_s = self._delay_s()

    def _delay_s(self) -> float:
        """Return when to look again: a stall is seen as soon as it counts as one."""
        if self._held is not None:
            return _HELD_LOOK_S
        age_s = 0.0 if self._call is None else self._looked_s - self._since_s
        return min(_LOOK_S, max(_HELD_LOOK_S / 4, self._threshold_s - age_s))

    def look(self, now_s: float) -> None:
        """Look once at what the loop does."""
        with frames_stay:
            frame = sys._current_frames().get(self._thread_id)
            inside = _call_of(frame, self._outside)
            frames = _at_work(frame, inside)
            self._sample(inside, frames, now_s)
        call = self._answer(inside) if self._asks else inside
        # The same frame object, which is kept so that no other can get its address.
        if call is None or call is not self._call:
            self._finish(now_s)
            self._call = call
            self._seen_s = now_s
            self._since_s = self._began_s(now_s)
            self._cpu_s = None if call is None else self._cpu()
        if call is not None:
            self._hold(frames, frame, now_s)
        self._looked_s = now_s

    def _began_s(self, now_s: float) -> float:
        """Return since when the loop is in the call that it is in now, at the latest."""
        runner = self._governor.runner
        # Exactly, where it is a mailbox loop; others were not seen in the look before.
        return now_s if runner is None else max(runner.since, self._looked_s)

    def _hold(
        self, frames: list[FrameType], frame: FrameType | None, now_s: float
    ) -> None:
        """See what the loop is held by, if it is held for long enough."""
        held_s = now_s - self._since_s
        # Once for each call: to describe a deep stack costs more than a sample.
        is_new = self._held is None and held_s >= self._threshold_s
        is_late = not self._is_reported and held_s >= self._still_held_s
        if not is_new and not is_late:
            return
        with frames_stay:
            frames = frames or list(frames_outwards(frame))
            contexts = contexts_of(frames)
            held = describe_frames(frames, self._task(contexts))
        if is_new:
            self._contexts, self._held = contexts, held
        else:
            self._is_reported = True
            self._log.tell_still_held(self._stall(held, now_s), contexts)

    def _sample(
        self, inside: FrameType | None, frames: list[FrameType], now_s: float
    ) -> None:
        """Note of each task what it does or waits for."""
        cpu_s = self._cpu()
        if cpu_s is not None and inside is None:
            is_new = cpu_s - self._cpu_sampled_s >= _NEWS_S
            # Nothing was done since, so that nothing waits for something else. The first
            # look after the last work sees what it has led to: calls, or their limit.
            if not is_new and self._is_settled:
                for looks in list(self.tasks.values()):
                    looks.again(now_s)
                return
            self._is_settled = not is_new
            self._cpu_sampled_s = cpu_s
        contexts = contexts_of(frames)
        # A copy: tasks come and go on the loop meanwhile.
        for task, looks in list(self.tasks.items())[:_TASKS_MAX]:
            kind = _kind_of(task)
            looks.add(now_s, kind, _block_of(task, kind, frames, contexts))

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
        lasted_s, seen_s = now_s - self._since_s, now_s - self._seen_s
        cpu_s, before_s = self._cpu(), self._cpu_s
        return Stall(
            at_ms=self._clock.now_ms(),
            duration_ms=lasted_s * 1000,
            gc_ms=self._garbage.within_s(self._since_s, now_s) * 1000,
            cpu_ms=(
                None
                if cpu_s is None or before_s is None or seen_s < _HELD_LOOK_S / 2
                # It began before it was seen.
                else min(1.0, (cpu_s - before_s) / seen_s) * lasted_s * 1000
            ),
            **asdict(held),
        )

    def _task(self, contexts: list[Any]) -> str:
        """Return the name of the task of ours that runs, or of the asyncio task."""
        for context in contexts:
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

    def _answer(self, inside: FrameType | None) -> Any:
        """Return what stands for a call, None if the loop has answered since."""
        # One question at a time: a loop that is held would collect them.
        if not self._has_turned:
            return self._call or object()
        if inside is None:
            return None
        self._has_turned = False
        with contextlib.suppress(RuntimeError):  # It is closed: the end is near.
            self._loop.call_soon_threadsafe(self._on_turn)
        return object()

    def _on_turn(self) -> None:
        self._has_turned = True


def _call_of(frame: FrameType | None, outside: FrameType | None) -> FrameType | None:
    """Return the frame in which the loop calls what runs now; None if it sleeps."""
    inner = None
    while frame is not None:
        if frame.f_code is _HANDLE:
            return frame
        if frame is outside:
            return inner
        inner, frame = frame, frame.f_back
    return None


def _at_work(frame: FrameType | None, inside: FrameType | None) -> list[FrameType]:
    """Return the frames of what the loop calls, innermost first; none if it sleeps.

    Those that run the loop are the program's, and asyncio's, and not at work now.
    """
    frames: list[FrameType] = []
    if frame is not None and frame.f_code is _COLLECTED:
        # A collection lets other threads in here; it is the work of who it came over.
        frame = frame.f_back
    while inside is not None and frame is not None and frame.f_code is not _HANDLE:
        frames.append(frame)
        frame = None if frame is inside else frame.f_back
    return frames


def _caller_of_loop(loop: asyncio.AbstractEventLoop) -> FrameType | None:
    """Return the frame that runs a loop of other code; called in a task on it."""
    if isinstance(loop, asyncio.BaseEventLoop):
        return None
    task = asyncio.current_task(loop)
    coroutine: Any = None if task is None else task.get_coro()
    frame = getattr(coroutine, "cr_frame", None)
    return None if frame is None else frame.f_back


def _cpu_clock(thread: int) -> int | None:
    find: Callable[[int], int] | None = getattr(time, "pthread_getcpuclockid", None)
    return None if find is None else find(thread)


_STALLS_MAX: Final = 20
_PLACES_MAX: Final = 256
_STACK_SHOWN: Final = 12


class StallLog:
    """The last stalls, and a log of them that does not repeat itself.

    Theory of operation: of each place the first stall is logged, then the second, the
    fourth, the eighth, so that a function that blocks for each record costs few lines.
    """

    def __init__(self) -> None:
        self.last: deque[Stall] = deque(maxlen=_STALLS_MAX)
        self._counts: dict[tuple[str, str], int] = {}

    def add(self, stall: Stall, contexts: list[Any]) -> None:
        """Keep a stall, count it for its operators, and log it if it is time."""
        self.last.append(stall)
        for context in contexts:
            if stall.is_garbage_collection:
                context.metrics.counter("gc_stalls").add()
            else:
                context.metrics.counter("stalls").add()
                context.metrics.counter("stalled_ms").add(int(stall.duration_ms))
        place = (stall.operator, stall.line)
        # Lines may come out of generated code without end.
        if len(self._counts) == _PLACES_MAX and place not in self._counts:
            self._counts.clear()
        count = self._counts[place] = self._counts.get(place, 0) + 1
        # The 1st, 2nd, 4th, 8th … time: the log does not fill, and growth is seen.
        if count & (count - 1) == 0:
            self._write(stall, count, contexts)

    def tell_still_held(self, stall: Stall, contexts: list[Any]) -> None:
        """Log a stall that has not ended yet."""
        self._write(stall, 1, contexts, has_ended=False)

    def _write(
        self,
        stall: Stall,
        count: int,
        contexts: list[Any],
        *,
        has_ended: bool = True,
    ) -> None:
        log = contexts[0].log if len(contexts) == 1 else library_log()
        what = (
            "the event loop was held" if has_ended else "the event loop is still held"
        )
        if stall.is_garbage_collection:
            what += " by a collection of garbage"
            remedy = "call am.tune_collector() at the start"
        elif (imported := stall.imported) is not None:
            remedy = (
                f"a module was imported{imported}: import it where the program starts, "
                "before the job does"
            )
        elif stall.function and stall.operator:
            remedy = 'give it run_in="thread", or await instead of blocking'
        elif stall.function:
            remedy = "run it in a thread, or await instead of blocking"
        elif stall.operator:
            remedy = (
                "no function of yours ran: give one of another library "
                'run_in="thread"; where the operator computes, use am.Processes(n)'
            )
        else:
            remedy = "no function of yours ran: the stack says what the library did"
        about: dict[str, Any] = {"mail": stall.mail} if stall.mail else {}
        if stall.function:
            about["function"] = stall.function
        if stall.line:
            about["line"] = stall.line
        if stall.cpu_ms is not None:
            about["cpu_ms"] = round(stall.cpu_ms)
        if count > 1:
            about["times"] = count
        log.warning(
            what,
            duration_ms=round(stall.duration_ms),
            gc_ms=round(stall.gc_ms),
            **about,
            remedy=remedy,
            stack="\n".join(stall.stack[-_STACK_SHOWN:]),
        )


class _Watched:
    """A loop, how many want it to be watched, and what has held it so far."""

    def __init__(self) -> None:
        self.users = 0
        self.watch: LoopWatch | None = None
        self.log = StallLog()


_watched: WeakKeyDictionary[asyncio.AbstractEventLoop, _Watched] = WeakKeyDictionary()


@contextlib.contextmanager
def watching(task: StreamTask, threshold_s: float | None) -> Iterator[None]:
    """Let the running loop be watched for as long as the block is; all share one watch."""
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
    _looks[task] = watched.watch.tasks[task] = TaskLooks()
    try:
        yield
    finally:
        watched.users -= 1
        watched.watch.tasks.pop(task, None)
        # The last one: no thread is left behind, and none is needed between jobs.
        if not watched.users:
            watched.watch.stop()
            watched.watch = None


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
