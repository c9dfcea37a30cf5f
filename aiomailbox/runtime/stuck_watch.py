"""Logs what a job waits for when a task does not go on, or a barrier does not arrive.

Theory of operation: now and then, a few times within the time that is allowed, what tasks
count is compared with what they had counted before. So nothing is added to what they do.
A loop in virtual time is not watched: its timers would never end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, Final, Protocol

from aiomailbox.ids import SubtaskId, VertexId
from aiomailbox.runtime.checkpoint_views import PendingCheckpoint
from aiomailbox.runtime.stuck_tasks import StuckTasks
from aiomailbox.runtime.views import TaskView

__all__ = ["StuckWatch", "WatchedJob"]

_LOOKS: Final = 12
_LOOK_S_MAX: Final = 5.0
_NAMED_MAX: Final = 10
_LINES_MAX: Final = 120
_LINE_MAX: Final = 300


class WatchedJob(Protocol):
    """The job, as its watch sees it."""

    def views(self, *, with_stacks: bool = False) -> list[TaskView]:
        """Return the statistics of every task."""
        ...

    def await_tree(self, first: Collection[str] = ()) -> str:
        """Return what every task waits for, those of some names first."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether the consumer of its results takes more now."""
        ...

    def pending_checkpoints(self) -> list[PendingCheckpoint]:
        """Return the checkpoints that are being taken, oldest first."""
        ...


class StuckWatch:
    """Watches one job, from `start` to `stop`.

    Of each task the first time is logged, then the second, the fourth and so on; of each
    checkpoint one line.

    Args:
        job: The job.
        after_s: How long a task may not go on, and a barrier be on its way, seconds; None
            to watch nothing.
        log: A structlog logger.
    """

    def __init__(self, job: WatchedJob, after_s: float | None, log: Any) -> None:
        self._job = job
        self._after_s = after_s
        self._log = log
        self._tasks = None if after_s is None else StuckTasks(after_s)
        # The newest one that was reported, and all before it.
        self._late_id = -1
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to look, on the running loop."""
        loop = asyncio.get_running_loop()
        if self._after_s is None or getattr(loop, "clock", None) is not None:
            return
        delay_s = min(self._after_s / _LOOKS, _LOOK_S_MAX)
        self._timer = loop.call_later(delay_s, self._on_timer)

    def stop(self) -> None:
        """Look no more."""
        self._after_s = None
        if self._timer is not None:
            self._timer.cancel()

    def _on_timer(self) -> None:
        self.look(asyncio.get_running_loop().time())
        self.start()

    def look(self, now_s: float) -> None:
        """Look once, and report what is stuck or late since the last look.

        Args:
            now_s: The time, seconds.
        """
        if self._tasks is None or self._after_s is None:
            return
        views = self._job.views()
        stuck = [
            task
            for task in self._tasks.look(views, now_s, has_room=self._job.has_room)
            # The first, the second, the fourth time.
            if task.times & (task.times - 1) == 0
        ]
        if stuck:
            self._write(
                "tasks make no progress",
                [task.name for task in stuck],
                for_s=round(max(task.since_s for task in stuck), 1),
                times=max(task.times for task in stuck),
            )
        names = {
            SubtaskId(VertexId(view.vertex), view.subtask_index): view.name
            for view in views
        }
        for one in self._job.pending_checkpoints():
            # With no task missing it is being written.
            if (
                one.missing
                and self._late_id < one.checkpoint_id
                and (one.age_s >= self._after_s)
            ):
                self._late_id = one.checkpoint_id
                self._write(
                    "a barrier is late",
                    [names[task] for task in one.missing if task in names],
                    checkpoint_id=one.checkpoint_id,
                    for_s=round(one.age_s, 1),
                )

    def _write(self, what: str, names: Sequence[str], **facts: Any) -> None:
        self._log.warning(
            what,
            tasks=list(names[:_NAMED_MAX]),
            count=len(names),
            **facts,
            await_tree=_cut(self._job.await_tree(names)),
        )


def _cut(text: str) -> str:
    lines = [
        line if len(line) <= _LINE_MAX else f"{line[: _LINE_MAX - 3]}..."
        for line in text.splitlines()
    ]
    more = len(lines) - _LINES_MAX
    return "\n".join(lines if more <= 0 else [*lines[:_LINES_MAX], f"({more} more)"])
