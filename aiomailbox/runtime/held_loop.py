"""What holds an event loop up, seen from another thread: task, operator, line."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Final

from aiomailbox.operators import Operator
from aiomailbox.operators.core.locate import users_line
from aiomailbox.operators.stateless.fused_loop import FusedLoop

__all__ = ["HeldLoop", "look_at_loop"]

_STACK_MAX: Final = 30
# The whole has to fit into a sign of life, and names are as long as users like.
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
    """

    task: str
    operator: str
    uid: str | None
    line: str
    stack: list[str]


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
    frames = list(_outwards(frame))
    operator, uid = _operator(frames)
    summaries = traceback.StackSummary.extract(
        ((each, each.f_lineno) for each in reversed(frames)), lookup_lines=False
    )
    return HeldLoop(
        "" if task is None else _short(task.get_name()),
        _short(operator),
        None if uid is None else _short(uid),
        _short(users_line(summaries)),
        [
            _short(f"in {each.name} ({each.filename}:{each.lineno})")
            for each in summaries[-_STACK_MAX:]
        ],
    )


def _short(text: str) -> str:
    """Return a text, or its beginning and its end, where lines are numbered."""
    if len(text) <= _TEXT_MAX:
        return text
    half = _TEXT_MAX // 2
    return f"{text[: half - 2]} … {text[1 - half :]}"


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _operator(frames: list[FrameType]) -> tuple[str, str | None]:
    """Return name and uid of the innermost operator; frames are innermost first."""
    inner: set[CodeType] = set()
    for frame in frames:
        code = frame.f_code
        is_method = "self" in code.co_varnames[:1]
        owner: Any = frame.f_locals.get("self") if is_method else None
        # Not isinstance(): it asks the object, which is the user's and may fail.
        kind = type(owner)
        if issubclass(kind, FusedLoop):
            return _stage(owner, inner)
        if issubclass(kind, Operator) and hasattr(owner, "context"):
            return owner.context.operator_name, owner.context.uid
        inner.add(code)
    return "", None


def _stage(loop: FusedLoop, inner: set[CodeType]) -> tuple[str, str | None]:
    """Return the stage of a loop whose function is running; all, if none can be told."""
    stages = loop.stages
    for stage in stages:
        if len(stages) == 1 or _code(stage.function) in inner:
            return stage.context.operator_name, stage.context.uid
    return " -> ".join(stage.context.operator_name for stage in stages), None


def _code(function: Callable[..., Any]) -> CodeType | None:
    while isinstance(function, functools.partial):
        function = function.func
    target: Any = inspect.unwrap(function)
    if not hasattr(target, "__code__"):
        target = getattr(target, "__func__", type(target).__call__)
    return getattr(target, "__code__", None)
