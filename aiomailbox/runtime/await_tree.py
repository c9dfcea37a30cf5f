"""What every task of a job does or waits for, as text."""

from __future__ import annotations

from collections.abc import Iterable

from aiomailbox.operators.core.open_calls import OpenCalls
from aiomailbox.runtime.views import TaskView

__all__ = ["await_tree"]


def await_tree(job: str, state: str, views: Iterable[TaskView]) -> str:
    """Return a job's tasks, what each waits for, and the calls of its operators.

    Args:
        job: The job's name.
        state: Where the job is in its life.
        views: Its tasks, with their stacks.
    """
    lines = [f"job {job!r}: {state}"]
    for view in views:
        lines.append(f"  task {view.name!r}: {view.state}")
        lines += [
            f"    {'' if place == 0 else '  '}{line}"
            for place, line in enumerate(view.waits)
        ]
        for operator in view.operators:
            if operator.calls is not None:
                lines += _calls(operator.name, operator.calls)
        lines += [f"    {line}" for line in view.stack]
    return "\n".join(lines)


def _calls(operator: str, calls: OpenCalls) -> list[str]:
    waiting = f"{calls.waiting_for_slot} wait until fewer are"
    lines = [f"    operator {operator!r}: {calls.count} calls are open, {waiting}"]
    if calls.limit:
        lines.append(f"      {calls.limit}")
    for call in calls.oldest:
        at = f" at {call.line}" if call.line else ""
        lines.append(
            f"      attempt {call.attempt} for {call.record} waits "
            f"{call.age_s:.1f} s for {call.waits_for}{at}"
        )
    more = calls.count - len(calls.oldest)
    return [*lines, f"      and {more} later calls"] if more > 0 else lines
