"""Logs what a job waits for when a task does not go on, or a barrier does not arrive.

Theory of operation: now and then, a few times within the time that is allowed, what tasks
count is compared with what they had counted before. So nothing is added to what they do.
A loop in virtual time is not watched: its timers would never end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from aiomailbox.graph.job_graph import JobGraph, Node
from aiomailbox.graph.regions import watermark_makers
from aiomailbox.ids import SubtaskId, VertexId
from aiomailbox.metrics.catalogue import MetricValue
from aiomailbox.operators.core.operator import OpenCalls
from aiomailbox.operators.core.user_code import is_users, shortened
from aiomailbox.runtime.views import PendingCheckpoint, TaskView
from aiomailbox.task.stream_task import TaskState

# Which tasks have something to do and do not go on (pure).
#
# Theory of operation: the views of tasks are compared with those of the look before. A
# task goes on if a count of its operators has grown: records, or attempts of calls. One
# that has not for a while is stuck if it has something to do: calls are open, or it was
# not idle. One that only waits for room is stuck because of those behind it; it is
# named where none of them is.


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
        """Return the tasks that are stuck and were not at the last look."""
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


# Where event time stands still while records come (pure).
#
# Theory of operation: an operator that waits for watermarks emits nothing while the
# slowest of its inputs has none to give. Such an input is no task that is stuck: it may
# have no records. So the watermark of the operator is compared with that of the look
# before, and where it stays, and records come, the sources that are no further are told.


# A vertex, and the name of an operator in its tasks.
_Place = tuple[int, str]


@dataclass(frozen=True, slots=True)
class StandingTime:
    """An operator at which event time has not moved for a while, although records came.

    Attributes:
        operator: Its name.
        line: The user's line.
        since_s: For how long, seconds.
        held_back_by: The operators that give it no later watermark, with their lines.
    """

    operator: str
    line: str
    since_s: float
    held_back_by: list[str]


@dataclass(slots=True)
class _Time:
    watermark_ms: float
    since_s: float
    records: float


class StandingTimes:
    """Remembers when event time has moved last at operators that wait for it.

    Args:
        graph: The job.
        after_s: Told are those where it has not for so long, seconds.
    """

    def __init__(self, graph: JobGraph, after_s: float) -> None:
        self._after_s = after_s
        self._known: dict[tuple[_Place, int], _Time] = {}
        places: dict[int, _Place] = {}
        for vertex in graph.vertices:
            for name, node in vertex.operators:
                places[node.index] = (vertex.id, name)
        self._waiting: dict[_Place, tuple[Node, dict[_Place, Node]]] = {}
        for node in graph.nodes:
            if node.transformation.waits_for_watermarks:
                makers = watermark_makers(node)
                # That one source has none before it ends is known from the beginning.
                if all(one.transformation.watermarks for one in makers):
                    by_place = {places[one.index]: one for one in makers}
                    self._waiting[places[node.index]] = (node, by_place)

    def look(self, views: Sequence[TaskView], now_s: float) -> list[StandingTime]:
        """Return the operators where event time stands, each of them once."""
        found = []
        for view in views:
            for operator in view.operators:
                place = (view.vertex, operator.name)
                if place not in self._waiting or view.state not in _ALIVE:
                    continue
                watermark_ms = _number(operator.metrics.get("current_input_watermark"))
                records = _number(operator.metrics.get("num_records_in"))
                key = (place, view.subtask_index)
                known = self._known.get(key)
                if known is None or known.watermark_ms != watermark_ms:
                    self._known[key] = _Time(watermark_ms, now_s, records)
                elif (
                    now_s - known.since_s >= self._after_s
                    and records > known.records
                    # Otherwise a watermark is on its way.
                    and (held_back_by := self._no_further(place, views, watermark_ms))
                ):
                    node, _ = self._waiting.pop(place)
                    line, since_s = node.transformation.line, now_s - known.since_s
                    found.append(StandingTime(node.name, line, since_s, held_back_by))
        return found

    def _no_further(
        self, place: _Place, views: Sequence[TaskView], watermark_ms: float
    ) -> list[str]:
        """Return whose watermark is not beyond another one, of those that are not idle."""
        _, makers = self._waiting[place]
        found: dict[_Place, str] = {}
        for view in views:
            for operator in view.operators:
                maker = makers.get((view.vertex, operator.name))
                metrics = operator.metrics
                if maker is None or metrics.get("is_idle") == 1:
                    continue
                own = metrics.get("current_output_watermark")
                if own is None:
                    own = metrics.get("current_input_watermark")
                if view.state in _ALIVE and _number(own) <= watermark_ms:
                    line = maker.transformation.line
                    name = f"{maker.name} ({line})" if line else maker.name
                    found[view.vertex, operator.name] = name
        return list(found.values())


# Questions that nobody answers (pure).


class OpenQuestions:
    """Remembers since when the oldest question of each source of questions is open.

    Args:
        graph: The job.
        after_s: Told is one that has been open for so long, seconds; the first of a source.
    """

    def __init__(self, graph: JobGraph, after_s: float) -> None:
        self._after_s = after_s
        nodes = (node for vertex in graph.vertices for node in vertex.nodes)
        # By what such a source has: this floor does not know its class.
        self._sources: list[Any] = [
            node.transformation.source
            for node in nodes
            if hasattr(node.transformation.source, "oldest_question")
        ]
        self._since: dict[int, tuple[int, float]] = {}

    def look(self, now_s: float) -> Iterable[Any]:
        """Yield the values of questions that have been open for too long."""
        for source in list(self._sources):
            question = source.oldest_question
            if question is None:
                continue
            number, since_s = self._since.get(id(source), (-1, now_s))
            if number != question.number:
                self._since[id(source)] = question.number, now_s
            elif now_s - since_s >= self._after_s:
                self._sources.remove(source)
                yield question.value


_LOOKS: Final = 6
_LOOK_S_MAX: Final = 10.0
_NAMED_MAX: Final = 10
_LINES_MAX: Final = 120
_LINE_MAX: Final = 300
_OF_ITS_OWN_JOB: Final = (
    "look at what the function waits for there: if that is its own job, such as room in "
    "the inbox that the job reads, it waits for ever, and a task of its own is to wait"
)


class WatchedJob(Protocol):
    """The job, as its watch sees it."""

    def views(self, *, with_stacks: bool = False) -> list[TaskView]:
        """Return the statistics of every task."""

    def await_tree(self, first: Collection[str] = ()) -> str:
        """Return what every task waits for, those of some names first."""

    @property
    def has_room(self) -> bool:
        """Whether the consumer of its results takes more now."""

    def pending_checkpoints(self) -> list[PendingCheckpoint]:
        """Return the checkpoints that are being taken, oldest first."""


class StuckWatch:
    """Watches one job, from `start` to `stop`.

    Of each task the first time is logged, then the second, the fourth and so on; of each
    checkpoint one line.

    Args:
        job: The job.
        graph: Its graph.
        after_s: How long a task may not go on, event time stand still, and a barrier be on
            its way, seconds.
        log: A structlog logger.
    """

    def __init__(
        self, job: WatchedJob, graph: JobGraph, after_s: float, log: Any
    ) -> None:
        self._job = job
        self._after_s = after_s
        self._log = log
        self._tasks = StuckTasks(after_s)
        self._times = StandingTimes(graph, after_s)
        self._questions = OpenQuestions(graph, after_s)
        # The newest one that was reported, and all before it.
        self._late_id = -1
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to look, on the running loop."""
        loop = asyncio.get_running_loop()
        # Virtual time passes at once.
        if getattr(loop, "clock", None) is not None:
            return
        delay_s = min(self._after_s / _LOOKS, _LOOK_S_MAX)
        self._timer = loop.call_later(delay_s, self._on_timer)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _on_timer(self) -> None:
        self.look(asyncio.get_running_loop().time())
        self.start()

    def look(self, now_s: float) -> None:
        """Look once, and report what is stuck or late since the last look."""
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
        for standing in self._times.look(views, now_s):
            self._log.warning(
                "event time stands still while records come",
                operator=standing.operator,
                line=standing.line,
                for_s=round(standing.since_s, 1),
                held_back_by=standing.held_back_by,
                remedy="if a source may be silent for so long, give its watermark "
                "strategy .with_idleness(am.seconds(30))",
            )
        for value in self._questions.look(now_s):
            self._log.warning(
                "a question has no answer yet",
                question=shortened(value),
                for_s=self._after_s,
                remedy="each question needs its question.answer(...) in the sink "
                "am.Answers(), and job.ask(value, timeout=5) waits no longer than that: "
                "look for a filter, or an error that is skipped, between the two",
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
        views = self._job.views(with_stacks=True)
        lines = waiting_lines(view for view in views if view.name in names)
        if lines:
            facts |= {"lines": lines[:_NAMED_MAX], "remedy": _OF_ITS_OWN_JOB}
        self._log.warning(
            what,
            tasks=list(names[:_NAMED_MAX]),
            count=len(names),
            **facts,
            await_tree=_cut(self._job.await_tree(names)),
        )


def waiting_lines(views: Iterable[TaskView]) -> list[str]:
    """Return the users' lines at which tasks, and calls of their operators, wait."""
    lines: dict[str, None] = {}
    for view in views:
        frames = [text for text in view.stack if text.startswith("in ")]
        places = [text.rpartition(" (")[2].removesuffix(")") for text in frames]
        # The innermost one: what follows is what it waits in.
        lines |= dict.fromkeys([place for place in places if is_users(place)][-1:])
        for operator in view.operators:
            oldest = () if operator.calls is None else operator.calls.oldest
            lines |= dict.fromkeys(call.line for call in oldest if call.line)
    return list(lines)


def _cut(text: str) -> str:
    lines = [
        line if len(line) <= _LINE_MAX else f"{line[: _LINE_MAX - 3]}..."
        for line in text.splitlines()
    ]
    more = len(lines) - _LINES_MAX
    return "\n".join(lines if more <= 0 else [*lines[:_LINES_MAX], f"({more} more)"])


# What every task of a job does or waits for, as text.


def await_tree(job: str, state: str, views: Iterable[TaskView]) -> str:
    """Return a job's tasks, what each waits for, and the calls of its operators."""
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
