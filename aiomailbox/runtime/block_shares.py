"""What each task waits for, looked at now and then: shares of the last minute.

Theory of operation: what is exact costs something for each record, so this is a sample: a
few times a second each task is asked what it does at that moment. A task whose code runs
is in the frames of the loop's thread; one that awaits something in the middle of a record
stands in the frames of its coroutines; all others wait for input, for room, or for their
turn, which their meters tell. The operator is the innermost one in the frames.
"""

from __future__ import annotations

from collections import deque
from types import FrameType
from typing import Any, Final

import msgspec

from aiomailbox.operators.core.blocked import BlockCause, Blocked
from aiomailbox.operators.core.locate import is_own_line, users_line_of
from aiomailbox.operators.sources.operator import SourceOperator
from aiomailbox.runtime.held_loop import contexts_of
from aiomailbox.supervision import frames_of
from aiomailbox.task.stream_task import StreamTask

__all__ = ["Block", "BlockShare", "TaskShares", "block_of"]

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
