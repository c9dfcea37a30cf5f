"""What holds an event loop up, seen from another thread: task, operator, line."""

from __future__ import annotations

import asyncio
import functools
import inspect
import pathlib
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Final

from aiomailbox.mailbox.mail import Mail
from aiomailbox.operators.core.locate import users_line
from aiomailbox.operators.stateless.fused_loop import FusedLoop

__all__ = [
    "HeldLoop",
    "contexts_of",
    "describe_frames",
    "frames_outwards",
    "look_at_loop",
]

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
