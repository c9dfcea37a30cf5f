"""Which tasks have something to do and do not go on (pure).

Theory of operation: the views of tasks are compared with those of the look before. A task
goes on if a count of its operators has grown: records, or attempts of calls. One that has
not for a while is stuck if it has something to do: calls are open, or it was not idle. One
that only waits for room is stuck because of those behind it; it is named where none of
them is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from aiomailbox.metrics.declared import MetricValue
from aiomailbox.runtime.views import TaskView
from aiomailbox.task.lifecycle import TaskState

__all__ = ["StuckTask", "StuckTasks"]

_ALIVE: Final = frozenset(
    state.value
    for state in (TaskState.RESTORING, TaskState.RUNNING, TaskState.FINISHING)
)
_COUNTED: Final = ("num_records_in", "num_records_out", "calls")
_HELD: Final = ("in_flight", "waiting_for_retry")
# Of the time between two looks: mail is run meanwhile, and what workers say is old.
_MOSTLY: Final = 0.75


@dataclass(frozen=True, slots=True)
class StuckTask:
    """A task that has something to do, and has not gone on for a while.

    Attributes:
        name: Its name.
        since_s: For how long, seconds.
        times: How often it has been stuck so far, this one included.
    """

    name: str
    since_s: float
    times: int


@dataclass(slots=True)
class _Known:
    counts: tuple[object, ...]
    went_on_s: float
    seen_s: float
    idle_ms: float
    room_ms: float
    is_reported: bool = False
    times: int = 0


class StuckTasks:
    """Remembers when each task went on last.

    Args:
        after_s: Stuck are those that have not gone on for so long, seconds.
    """

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._known: dict[str, _Known] = {}

    def look(
        self, views: Iterable[TaskView], now_s: float, *, has_room: bool = True
    ) -> list[StuckTask]:
        """Return the tasks that are stuck and were not at the last look.

        Args:
            views: All tasks of the job.
            now_s: The time, seconds.
            has_room: Whether the caller that takes the job's results takes more now; if
                not, a task that waits for room is not stuck.
        """
        alive = [view for view in views if view.state in _ALIVE]
        self._known = {
            view.name: self._known[view.name]
            for view in alive
            if view.name in self._known
        }
        causes: list[str] = []
        waiting: list[str] = []
        for view in alive:
            kind = self._look_at(view, now_s)
            if kind is not None:
                (waiting if kind == "room" else causes).append(view.name)
        return self._new(causes or (waiting if has_room else []), now_s)

    def _look_at(self, view: TaskView, now_s: float) -> str | None:
        """Return what a stuck task is about: its own work, or room; None if it is not."""
        counts = (view.state, *(_counts(view)))
        idle_ms = _number(view.metrics.get("idle_ms"))
        room_ms = _number(view.metrics.get("backpressured_ms"))
        known = self._known.get(view.name)
        if known is None:
            known = self._known[view.name] = _Known(
                counts, now_s, now_s, idle_ms, room_ms
            )
            return None
        elapsed_ms = (now_s - known.seen_s) * 1000 * _MOSTLY
        was_idle = idle_ms - known.idle_ms >= elapsed_ms
        had_no_room = room_ms - known.room_ms >= elapsed_ms
        known.seen_s, known.idle_ms, known.room_ms = now_s, idle_ms, room_ms
        has_calls = any(
            _number(operator.metrics.get(name)) > 0
            for operator in view.operators
            for name in _HELD
        )
        if counts != known.counts or (was_idle and not has_calls):
            known.counts, known.went_on_s, known.is_reported = counts, now_s, False
            return None
        if now_s - known.went_on_s < self._after_s:
            return None
        return "room" if had_no_room and not has_calls else "work"

    def _new(self, names: Sequence[str], now_s: float) -> list[StuckTask]:
        found = []
        for name in names:
            known = self._known[name]
            if not known.is_reported:
                known.is_reported = True
                known.times += 1
                found.append(StuckTask(name, now_s - known.went_on_s, known.times))
        return found


def _counts(view: TaskView) -> Iterable[MetricValue]:
    for operator in view.operators:
        for name in _COUNTED:
            yield operator.metrics.get(name)


def _number(value: MetricValue) -> float:
    return value if isinstance(value, int | float) else 0.0
