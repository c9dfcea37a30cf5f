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
import functools
import gc
import inspect
import pathlib
import sys
import threading
import time
import traceback
from asyncio import events
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec

from aiomailbox.clock import Clock, SystemClock
from aiomailbox.logs import library_log
from aiomailbox.mailbox.mail import Mail
from aiomailbox.operators.core.operator import BlockCause, Blocked
from aiomailbox.operators.core.user_code import is_own_line, users_line, users_line_of
from aiomailbox.operators.sources.operator import SourceOperator
from aiomailbox.operators.stateless.fused import FusedLoop
from aiomailbox.supervision import frames_of
from aiomailbox.task.stream_task import StreamTask

# What holds an event loop up, seen from another thread: task, operator, line.


_PACKAGE: Final = str(pathlib.Path(__file__).resolve().parents[1])


_STACK_MAX: Final = 30


# The whole has to fit into a heartbeat, and names are as long as users like.
_TEXT_MAX: Final = 400


@dataclass(frozen=True, slots=True)
class HeldLoop:
    """What the thread of a loop was doing at one moment.

    Attributes:
        task: The asyncio task, "" outside of one.
        operator: The name of the operator whose code ran, "" outside of one.
        uid: The operator's uid, None if it has none.
        line: ``file:line`` of the innermost line of the user's own.
        stack: Where the thread's code stood, outermost call first.
        function: The name of the function that this line is in.
        mail: The mail that was run, "" for none: then it was input, or no task of ours.
    """

    task: str
    operator: str
    uid: str | None
    line: str
    stack: list[str]
    function: str = ""
    mail: str = ""


def look_at_loop(loop: asyncio.AbstractEventLoop, thread: int) -> HeldLoop | None:
    """Return what a loop's thread is doing; None if it has ended.

    Args:
        loop: A loop that runs.
        thread: The identifier of the thread that it runs in.
    """
    frame = sys._current_frames().get(thread)
    if frame is None:
        return None
    task = asyncio.current_task(loop)
    return describe_frames(
        list(frames_outwards(frame)), "" if task is None else task.get_name()
    )


def describe_frames(frames: list[FrameType], task: str) -> HeldLoop:
    """Return what a thread is doing.

    Args:
        frames: Where its code stands, innermost first.
        task: What is called the task that it runs.
    """
    contexts = contexts_of(frames)
    operator = " -> ".join(context.operator_name for context in contexts)
    uid = contexts[0].uid if len(contexts) == 1 else None
    summaries = traceback.StackSummary.extract(
        # `lookup_lines=False`: reading sources would take longer than what is measured.
        ((each, each.f_lineno) for each in reversed(frames)),
        lookup_lines=False,
    )
    line = users_line(summaries)
    return HeldLoop(
        _short(task),
        _short(operator),
        None if uid is None else _short(uid),
        _short(line),
        [
            _short(f"in {each.name} ({each.filename}:{each.lineno})")
            for each in summaries[-_STACK_MAX:]
        ],
        _short(_function_at(frames, line)),
        _short(_mail(frames)),
    )


def _function_at(frames: list[FrameType], line: str) -> str:
    for frame in frames:
        if f"{frame.f_code.co_filename}:{frame.f_lineno}" == line:
            return frame.f_code.co_qualname
    return ""


def _mail(frames: list[FrameType]) -> str:
    """Return what the innermost mail that is being run is for."""
    for frame in frames:
        # Found by a parameter's name, as frames know no more of a function.
        if "mail" in frame.f_code.co_varnames[:2]:
            mail = frame.f_locals.get("mail")
            if type(mail) is Mail:
                return str(mail.description)
    return ""


def _short(text: str) -> str:
    """Return a text, or its beginning and its end, where lines are numbered."""
    if len(text) <= _TEXT_MAX:
        return text
    half = _TEXT_MAX // 2
    return f"{text[: half - 2]} … {text[1 - half :]}"


def frames_outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and those that have called it, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def contexts_of(frames: list[FrameType]) -> list[Any]:
    """Return the context of the innermost operator whose code runs.

    Args:
        frames: Where the code stands, innermost first.

    Returns:
        Several where functions run as one and it cannot be told which; none outside of
        operators.
    """
    inner: set[CodeType] = set()
    for frame in frames:
        code = frame.f_code
        is_method = "self" in code.co_varnames[:1]
        owner: Any = frame.f_locals.get("self") if is_method else None
        # Not isinstance(): it asks the object, which is the user's and may fail.
        kind = type(owner)
        if issubclass(kind, FusedLoop):
            return _stages(owner, inner)
        # So does an attribute, unless the class is ours.
        if code.co_filename.startswith(_PACKAGE):
            context = _context_of(owner)
            if context is not None:
                return [context]
        inner.add(code)
    return []


def _context_of(owner: Any) -> Any:
    """Return the context of an operator, or of a part of one that reports its errors."""
    for part in (owner, getattr(owner, "_failures", None)):
        for name in ("context", "_context"):
            context = getattr(part, name, None)
            if hasattr(context, "operator_name") and hasattr(context, "metrics"):
                return context
    return None


def _stages(loop: FusedLoop, inner: set[CodeType]) -> list[Any]:
    """Return the context of the function that is running; all, if none can be told."""
    stages = loop.stages
    for stage in stages:
        if len(stages) == 1 or _code(stage.function) in inner:
            return [stage.context]
    return [stage.context for stage in stages]


def _code(function: Callable[..., Any]) -> CodeType | None:
    # Partials and wrappers: the code that runs is inside them.
    while isinstance(function, functools.partial):
        function = function.func
    target: Any = inspect.unwrap(function)
    if not hasattr(target, "__code__"):
        target = getattr(target, "__func__", type(target).__call__)
    return getattr(target, "__code__", None)


# What each task waits for, looked at now and then: shares of the last minute.
#
# Theory of operation: what is exact costs something for each record, so this is a
# sample: a few times a second each task is asked what it does at that moment. A task
# whose code runs is in the frames of the loop's thread; one that awaits something in
# the middle of a record stands in the frames of its coroutines; all others wait for
# input, for room, or for their turn, which their meters tell. The operator is the
# innermost one in the frames.


_WINDOW_S: Final = 60.0


_BUCKET_S: Final = 5.0


# Of one bucket: lines are the user's, and as many as there are.
_KINDS_MAX: Final = 32


# Which operator, and what it waits for; "" where it is the whole task.
Block = tuple[str, Blocked]


class BlockShare(msgspec.Struct, frozen=True):
    """How much of the last minute a task waited for one thing.

    Attributes:
        operator: The operator that does, "" if it is the whole task.
        cause: What it waits for, or does.
        what: Which one: the name of a limit, a line.
        share: From 0 to 1.
        observed_s: How long the task has been looked at, at most a minute.
    """

    operator: str
    cause: BlockCause
    what: str
    share: float
    observed_s: float


class TaskShares:
    """Counts what a task waits for, for a minute."""

    def __init__(self) -> None:
        self._buckets: deque[tuple[float, dict[Block, int]]] = deque()
        self._began_s: float | None = None
        self._last_s = 0.0

    def add(self, now_s: float, block: Block) -> None:
        """Count one look.

        Args:
            now_s: The time, seconds.
            block: What the task waits for.
        """
        buckets = self._buckets
        if self._began_s is None:
            self._began_s = now_s
        self._last_s = now_s
        # Whole buckets go: a minute is kept to within five seconds.
        while buckets and buckets[0][0] <= now_s - _WINDOW_S:
            buckets.popleft()
        if not buckets or now_s - buckets[-1][0] >= _BUCKET_S:
            buckets.append((now_s, {}))
        counts = buckets[-1][1]
        # Lines are the user's, and there may be many: the cause alone is kept then.
        if block not in counts and len(counts) == _KINDS_MAX:
            operator, blocked = block
            block = operator, Blocked(blocked.cause)
        counts[block] = counts.get(block, 0) + 1

    def shares(self) -> list[BlockShare]:
        """Return the shares, the largest first."""
        counts: dict[Block, int] = {}
        # It may be counted in another thread meanwhile.
        for _, bucket in list(self._buckets):
            for block, count in list(bucket.items()):
                counts[block] = counts.get(block, 0) + count
        total = sum(counts.values())
        began_s = self._last_s if self._began_s is None else self._began_s
        observed_s = min(_WINDOW_S, self._last_s - began_s)
        return [
            BlockShare(operator, blocked.cause, blocked.what, count / total, observed_s)
            for (operator, blocked), count in sorted(
                counts.items(), key=lambda item: -item[1]
            )
        ]


def block_of(task: StreamTask, running: list[FrameType], contexts: list[Any]) -> Block:
    """Return what a task does or waits for now; from any thread.

    Args:
        task: The task.
        running: The frames of what its loop runs now, innermost first.
        contexts: Those of the operators that stand in them.
    """
    name = task.name
    if (
        contexts
        and getattr(contexts[0], "task_name", name) == name
        and _has(task, contexts[0])
    ):
        operator = " -> ".join(context.metrics.name for context in contexts)
        return operator, Blocked(BlockCause.FUNCTION, _line(running[::-1]))
    metrics = task.processor.metrics
    # In this order: a task that waits for room waits for nothing else.
    if metrics.hard_backpressured.running_s is not None:
        return "", Blocked(BlockCause.OUTPUT)
    if metrics.backpressured.running_s is not None:
        return _full_operator(task) or ("", Blocked(BlockCause.OUTPUT))
    if metrics.idle.running_s is not None:
        head = None if task.chain is None else task.chain.head
        if isinstance(head, SourceOperator):
            return head.context.metrics.name, Blocked(BlockCause.SOURCE)
        return "", Blocked(BlockCause.INPUT)
    return _awaited(task) or ("", Blocked(BlockCause.LOOP))


def _has(task: StreamTask, context: Any) -> bool:
    return any(group is context.metrics for group in task.environment.metrics.children)


def _full_operator(task: StreamTask) -> Block | None:
    """Return the operator that takes no more because of its calls."""
    for operator in () if task.chain is None else task.chain.operators:
        if operator.accepts is not None and not operator.accepts.available:
            blocked = operator.blocked() or Blocked(BlockCause.AWAIT)
            return operator.context.metrics.name, blocked
    return None


def _awaited(task: StreamTask) -> Block | None:
    """Return the operator in which the task awaits something; None if it is ready."""
    runner = task.runner
    # No future to wait for: it is ready, and others have the loop.
    if runner is None or runner.done() or getattr(runner, "_fut_waiter", 0) is None:
        # Private to asyncio: without it a task counts as one that waits for something.
        return None
    frames = frames_of(runner)
    # It waits for its turn on the loop, for which no operator is to blame.
    if frames and frames[-1].f_code.co_name == "next_turn":
        return None
    for context in contexts_of(frames[::-1]):
        for operator in () if task.chain is None else task.chain.operators:
            if operator.context is context:
                blocked = operator.blocked()
                if blocked is not None:
                    return context.metrics.name, blocked
        return context.metrics.name, Blocked(BlockCause.AWAIT, _line(frames))
    return None


def _line(frames: list[FrameType]) -> str:
    """Return the user's line of a stack, outermost first; "" if none of it is theirs."""
    line = users_line_of(frames)
    return "" if is_own_line(line) else line


# What held an event loop, as values, and when that is logged.


_STALLS_MAX: Final = 20


_PLACES_MAX: Final = 256


_STACK_SHOWN: Final = 12


class Stall(msgspec.Struct, frozen=True, kw_only=True):
    """An event loop was held: nothing else on it could run.

    Attributes:
        at_ms: When it ended, milliseconds since the epoch.
        duration_ms: How long it was held; right within two looks of the watch.
        gc_ms: Of that, what the garbage collector took.
        cpu_ms: Of that, how long the thread computed; what is left it waited, in a call
            that blocks or for a processor. None where the system does not tell.
        task: The asyncio task, "" outside of one.
        operator: The operator whose code ran; several, joined by arrows, where functions
            run as one; "" outside of operators.
        uid: The operator's uid, None if it has none.
        mail: What the mail that was run was for; "" if it was input.
        function: The function that stood there.
        line: ``file:line`` of the innermost line of the user's own.
        stack: Where the code stood at that moment, outermost call first.
    """

    at_ms: int
    duration_ms: float
    gc_ms: float
    cpu_ms: float | None
    task: str
    operator: str
    uid: str | None
    mail: str
    function: str
    line: str
    stack: list[str]

    @property
    def is_garbage_collection(self) -> bool:
        """Whether most of the time went into the collection of garbage."""
        return self.gc_ms * 2 > self.duration_ms

    def __str__(self) -> str:
        who = f"operator {self.operator!r}" if self.operator else "code of no operator"
        text = (
            f"{who} held the event loop for {self.duration_ms:.0f} ms "
            f"in {self.function} ({self.line})"
        )
        if self.is_garbage_collection:
            return f"{text}: {self.gc_ms:.0f} ms of it collected garbage"
        return text


class StallLog:
    """The last stalls, and a log of them that does not repeat itself.

    Theory of operation: of each place the first stall is logged, then the second, the
    fourth, the eighth, so that a function that blocks for each record costs few lines.
    """

    def __init__(self) -> None:
        self.last: deque[Stall] = deque(maxlen=_STALLS_MAX)
        self._counts: dict[tuple[str, str], int] = {}

    def add(self, stall: Stall, contexts: list[Any]) -> None:
        """Keep a stall, count it for its operators, and log it if it is time.

        Args:
            stall: The stall.
            contexts: Those of its operators.
        """
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
        """Log a stall that has not ended yet.

        Args:
            stall: The stall so far, with where the code stands now.
            contexts: Those of its operators.
        """
        self._write(stall, 1, contexts, "the event loop is still held")

    def _write(
        self,
        stall: Stall,
        count: int,
        contexts: list[Any],
        what: str = "the event loop was held",
    ) -> None:
        log = contexts[0].log if len(contexts) == 1 else library_log()
        if stall.is_garbage_collection:
            remedy = "garbage was collected: call am.tune_collector() at the start"
        elif stall.operator:
            remedy = 'give it run_in="thread", or await instead of blocking'
        else:
            remedy = "run it in a thread, or await instead of blocking"
        about: dict[str, Any] = {"mail": stall.mail} if stall.mail else {}
        if count > 1:
            about["times"] = count
        log.warning(
            what,
            duration_ms=round(stall.duration_ms),
            gc_ms=round(stall.gc_ms),
            function=stall.function,
            line=stall.line,
            **about,
            remedy=remedy,
            stack="\n".join(stall.stack[-_STACK_SHOWN:]),
        )


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
