"""What every task of a job does or waits for, as text."""

from __future__ import annotations

from aiomailbox.runtime.master import JobMaster


def await_tree(job: JobMaster) -> str:
    """Return the job's tasks with their mailboxes and where their code stands.

    Args:
        job: The job; at any time of its life.
    """
    lines = [f"job {job.graph.name!r}: {job.state.value}"]
    for view in job.views(with_stacks=True):
        lines.append(f"  task {view.name!r}: {view.state}")
        lines += [f"    {line}" for line in view.stack]
    return "\n".join(lines)
