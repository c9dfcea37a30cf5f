"""What every task of a job does or waits for, as text."""

from __future__ import annotations

import asyncio

from aiomailbox.runtime.job import Job


def await_tree(job: Job) -> str:
    """Return the job's tasks with their mailboxes and where their code stands.

    Args:
        job: The job; at any time of its life.
    """
    lines = [f"job {job.graph.name!r}: {job.state.value}"]
    for task in job.tasks:
        lines.append(f"  task {task.name!r}: {task.lifecycle.state.value}")
        lines.append(f"    {task.processor!r}")
        runner = task.runner
        if runner is not None and not runner.done():
            lines += [f"    {line}" for line in _frames(runner)]
    return "\n".join(lines)


def _frames(task: asyncio.Task[None]) -> list[str]:
    """Return where a suspended asyncio task stands, outermost await first."""
    lines = []
    work: object = task.get_coro()
    while work is not None:
        frame = getattr(work, "cr_frame", None) or getattr(work, "ag_frame", None)
        if frame is None:
            break
        code = frame.f_code
        lines.append(f"in {code.co_qualname} ({code.co_filename}:{frame.f_lineno})")
        work = getattr(work, "cr_await", None) or getattr(work, "ag_await", None)
    return lines
