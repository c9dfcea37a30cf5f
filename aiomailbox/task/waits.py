"""What a task waits for, in words; computed on request."""

from __future__ import annotations

from typing import Final

from aiomailbox.mailbox.metrics import MailboxMetrics
from aiomailbox.task.plan import TaskPlan

__all__ = ["waits_of"]

_LINES_MAX: Final = 16


def waits_of(metrics: MailboxMetrics, plan: TaskPlan) -> list[str]:
    """Return what a task waits for and for how long, then each pool or channel.

    Args:
        metrics: What the task's loop measures.
        plan: Its gates and writers.

    Returns:
        Nothing while the task works, or waits for an operator.
    """
    full_s = metrics.hard_backpressured.running_s
    if full_s is None:
        full_s = metrics.backpressured.running_s
    if full_s is not None:
        return [f"waits {full_s:.1f} s for room in its outputs", *_outputs(plan)]
    idle_s = metrics.idle.running_s
    if idle_s is None:
        return []
    what = "input or mail" if plan.gates else "its source or mail"
    return [f"waits {idle_s:.1f} s for {what}", *_inputs(plan)]


def _outputs(plan: TaskPlan) -> list[str]:
    lines = [
        f"pool of {pool.owner}: {pool.used} of {pool.size} buffers used"
        + ("" if pool.available else ", none to be had")
        for pool in (pool.statistics() for pool in plan.pools)
    ]
    return _cut(lines)


def _inputs(plan: TaskPlan) -> list[str]:
    lines = []
    for number, gate in enumerate(plan.gates):
        for channel, credit in enumerate(gate.credits()):
            line = f"input {number} channel {channel}"
            if credit is not None:
                line += f": {credit.available} credits, backlog {credit.backlog}"
            lines.append(line)
    return _cut(lines)


def _cut(lines: list[str]) -> list[str]:
    more = len(lines) - _LINES_MAX
    return lines if more <= 0 else [*lines[:_LINES_MAX], f"and {more} more"]
