"""The code that holds an event loop: where the loop's thread stands."""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Final

import msgspec

from aiomailbox.mailbox.mail import Mail
from aiomailbox.operators.core.user_code import is_own_line, users_line
from aiomailbox.operators.stateless.fused import FusedLoop
from aiomailbox.supervision import frames_stay

# Where a thread stands, seen from another one: task, operator, line.


_STACK_MAX: Final = 30
# The whole has to fit into a heartbeat, and names are as long as users like.
_TEXT_MAX: Final = 400
# A module's own code in a stack, and the file of it.
_BODY: Final = re.compile(r"in <module> \((.*):\d+\)$")


@dataclass(frozen=True, slots=True)
class HeldLoop:
    """The work of a loop's thread at one moment.

    Attributes:
        task: The asyncio task, "" outside of one.
        operator: The name of the operator whose code ran, "" outside of one.
        uid: The operator's uid, None if it has none.
        line: ``file:line`` of the innermost line of the user's own; of the call that
            made the operator if none of it ran, "" if that is not known.
        stack: Where the thread's code stood, outermost call first.
        function: The name of the user's function that this line is in; "" if none ran.
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
    """Return what a loop's thread is doing; None if it has ended."""
    with frames_stay:
        frame = sys._current_frames().get(thread)
        if frame is None:
            return None
        task = asyncio.current_task(loop)
        return describe_frames(
            list(frames_outwards(frame)), "" if task is None else task.get_name()
        )


def describe_frames(frames: list[FrameType], task: str) -> HeldLoop:
    """Return what a thread is doing."""
    contexts = contexts_of(frames)
    operator = " -> ".join(context.operator_name for context in contexts)
    uid = contexts[0].uid if len(contexts) == 1 else None
    summaries = traceback.StackSummary.extract(
        # `lookup_lines=False`: reading sources would take longer than what is measured.
        ((each, each.f_lineno) for each in reversed(frames)),
        lookup_lines=False,
    )
    line = users_line(summaries)
    function = _function_at(frames, line)
    if not line and len(contexts) == 1:
        line = getattr(contexts[0], "line", "")
    return HeldLoop(
        _short(task),
        _short(operator),
        None if uid is None else _short(uid),
        _short(line),
        [
            _short(f"in {each.name} ({each.filename}:{each.lineno})")
            for each in summaries[-_STACK_MAX:]
        ],
        _short(function),
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
        if is_own_line(code.co_filename):
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


# What held an event loop, as values.


class Stall(msgspec.Struct, frozen=True, kw_only=True):
    """An event loop was held: nothing else on it could run.

    Attributes:
        at_ms: When it ended, milliseconds since the epoch.
        duration_ms: How long it was held; right within two looks of the watch.
        gc_ms: Of that, what the garbage collector took.
        cpu_ms: Of that, how long the thread computed. In the rest it waited: in a call
            that blocks, or for a processor. None where the system does not tell.
        task: The asyncio task, "" outside of one.
        operator: The operator whose code ran; several, joined by arrows, where functions
            run as one; "" outside of operators.
        uid: The operator's uid, None if it has none.
        mail: The purpose of the running mail; "" for input.
        function: The user's function that stood there, "" if none did.
        line: ``file:line`` of the innermost line of the user's own; of the call that made
            the operator if no function of the user's stood there.
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

    @property
    def imported(self) -> str | None:
        """The module that was being imported inside of the loop, as far as is known."""
        steps = [n for n, one in enumerate(self.stack) if "asyncio/events.py" in one]
        inside = self.stack[steps[-1] :] if steps else self.stack
        imports = [n for n, one in enumerate(inside) if "<frozen importlib" in one]
        if not imports:
            return None
        bodies = (_BODY.match(one) for one in inside[imports[0] :])
        return next((f" ({body[1]})" for body in bodies if body), "")

    def __str__(self) -> str:
        who = f"operator {self.operator!r}" if self.operator else "code of no operator"
        text = f"{who} held the event loop for {self.duration_ms:.0f} ms"
        if self.function:
            text = f"{text} in {self.function}"
        if self.line:
            text = f"{text} ({self.line})"
        parts = []
        if self.cpu_ms is not None:
            parts.append(f"{self.cpu_ms:.0f} ms of it computed")
        if self.gc_ms >= 1:
            parts.append(f"{self.gc_ms:.0f} ms of it collected garbage")
        return f"{text}: {', '.join(parts)}" if parts else text
