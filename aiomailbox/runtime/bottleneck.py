"""The operator that holds a job up, and the reasons for which the others wait.

Theory of operation: a task that waits for room or input waits for another task; one
that waits for its calls or limit, or is in its function, is what others wait for. So
the operator that spends most of its time in causes of its own is the bottleneck. Subtasks
of one process share a loop: what their functions take of it adds up. A source that waits
for what it reads is the bottleneck if it does so more than any operator works, and also
where nobody waits for room and no operator works all the time: the job keeps up with it.
All of it is pure; the numbers may come from other processes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from aiomailbox.metrics.catalogue import MetricValue
from aiomailbox.operators.core.operator import BlockCause
from aiomailbox.runtime.loop_watch import BlockShare
from aiomailbox.runtime.views import TaskView

# An operator that holds others up has something of its own for that part of the time.
_SHARE_MIN: Final = 0.3
# One that works so much of the time cannot do more.
_SATURATED: Final = 0.9
# A task that waits for room so much of the time is held up.
_WAITS: Final = 0.1
_SKEWED: Final = 2.0
_OWN: Final = frozenset(
    {
        BlockCause.LIMIT,
        BlockCause.CALLS,
        BlockCause.RETRY,
        BlockCause.KEY,
        BlockCause.AWAIT,
        BlockCause.FUNCTION,
    }
)


class OperatorPlace(msgspec.Struct, frozen=True):
    """Where an operator is in the job.

    Attributes:
        label: What it is called in the job.
        name: What it is called in its tasks.
        uid: The user's stable name for it, or None.
        vertex: The vertex whose tasks run it.
        readers: The labels of the operators that read what its task emits.
    """

    label: str
    name: str
    uid: str | None
    vertex: int
    readers: tuple[str, ...] = ()


class Bottleneck(msgspec.Struct, frozen=True, kw_only=True):
    """The operator that holds a job up, and why.

    Attributes:
        operator: Its label.
        uid: Its uid, or None.
        cause: The thing that it waits for, or does.
        share: For how much of the time, from 0 to 1.
        observed_s: How long it was looked at, seconds.
        subtask_index: The subtask that does so most, from 0.
        why: All of this as a sentence.
        task: The name of that subtask's task.

    Concept:
        docs/observability.md.
    """

    operator: str
    uid: str | None
    cause: BlockCause
    share: float
    observed_s: float
    subtask_index: int
    why: str
    task: str = ""

    def __str__(self) -> str:
        return self.why


def blocked_sentence(place: OperatorPlace, tasks: Sequence[TaskView]) -> str:
    """Return what an operator waits for most, as a sentence; "" before the first look."""
    mine = [task for task in tasks if task.vertex == place.vertex and task.blocked]
    if not mine:
        return ""
    shares: dict[str, float] = {}
    for task in mine:
        for share in task.blocked:
            text = _text(place, share)
            shares[text] = shares.get(text, 0.0) + share.share / len(mine)
    text = max(shares, key=lambda each: shares[each])
    observed_s = max(share.observed_s for task in mine for share in task.blocked)
    return f"{place.label} {text}, {_of_time(shares[text], observed_s)}"


def find_operator(
    places: Iterable[OperatorPlace], tasks: Sequence[TaskView]
) -> Bottleneck | None:
    """Return the operator that holds the job up; None if none does."""
    working: _Found | None = None
    reading: _Found | None = None
    for place in places:
        for found in _candidates(place, tasks):
            if found.share < _SHARE_MIN:
                continue
            if found.most.cause is BlockCause.SOURCE:
                reading = found if reading is None else max(reading, found, key=_share)
            # `max` keeps the first one of equals.
            working = found if working is None else max(found, working, key=_share)
    named = working
    if reading is not None and working is not None and working.share < _SATURATED:
        waits = (one for task in tasks for one in task.blocked)
        if not any(
            one.cause is BlockCause.OUTPUT and one.share >= _WAITS for one in waits
        ):
            named = reading
    return None if named is None else _bottleneck(named, tasks)


class _Found(NamedTuple):
    """An operator with causes of its own, and the task that has most of them."""

    share: float
    place: OperatorPlace
    task: TaskView
    most: BlockShare


def _share(found: _Found) -> float:
    return found.share


def _candidates(place: OperatorPlace, tasks: Sequence[TaskView]) -> Iterable[_Found]:
    """Yield, for each process and each task, what is an operator's own."""
    loops: dict[int, list[tuple[float, TaskView, BlockShare]]] = {}
    for task in tasks:
        own = _own(place, task) if task.vertex == place.vertex else []
        if not own:
            continue
        most = _most(own)
        yield _Found(_sum(one.share for one in own), place, task, most)
        ran = [one for one in own if one.cause is BlockCause.FUNCTION]
        if ran:
            share = sum(one.share for one in ran)
            loops.setdefault(task.process_id, []).append((share, task, ran[0]))
    for ran_here in loops.values():
        if len(ran_here) > 1:
            _, task, most = max(ran_here, key=lambda each: each[0])
            share = _sum(each for each, _, _ in ran_here)
            yield _Found(share, place, task, most)


def _sum(shares: Iterable[float]) -> float:
    # Rounding alone puts parts of one whole above it.
    return min(1.0, sum(shares))


def _bottleneck(found: _Found, tasks: Sequence[TaskView]) -> Bottleneck:
    share, place, task, most = found
    why = f"{place.label} {_text(place, most)}, {_of_time(share, most.observed_s)}"
    return Bottleneck(
        operator=place.label,
        uid=place.uid,
        cause=most.cause,
        share=share,
        observed_s=most.observed_s,
        task=task.name,
        subtask_index=task.subtask_index,
        why=why + (_skew(place, task, tasks) or _slow_subtask(place, task, tasks)),
    )


def _slow_subtask(
    place: OperatorPlace, worst: TaskView, tasks: Sequence[TaskView]
) -> str:
    """Return what is to be said of a subtask that is slower than its siblings, or ""."""
    shares = {
        task.subtask_index: sum(one.share for one in _own(place, task))
        for task in tasks
        if task.vertex == place.vertex
    }
    mine = shares.pop(worst.subtask_index)
    if not shares or mine < _SKEWED * max(shares.values()):
        return ""
    return (
        f"; subtask {worst.subtask_index + 1} of {len(shares) + 1} alone: the others "
        f"do so {max(shares.values()):.0%} of their time at most"
    )


def _own(place: OperatorPlace, task: TaskView) -> list[BlockShare]:
    """Return what a task does because of an operator."""
    return [
        share
        for share in task.blocked
        if place.name in share.operator.split(" -> ")
        and (share.cause in _OWN or share.cause is BlockCause.SOURCE)
    ]


def _most(shares: list[BlockShare]) -> BlockShare:
    """Return the cause that has most of the time, with its most frequent line."""
    by_cause: dict[BlockCause, float] = {}
    for share in shares:
        by_cause[share.cause] = by_cause.get(share.cause, 0.0) + share.share
    cause = max(by_cause, key=lambda each: by_cause[each])
    return next(share for share in shares if share.cause is cause)


def _skew(place: OperatorPlace, worst: TaskView, tasks: Sequence[TaskView]) -> str:
    """Return what is to be said of uneven subtasks, "" if they are even."""
    counts = {
        task.subtask_index: _records(place, task)
        for task in tasks
        if task.vertex == place.vertex
    }
    total, mine = sum(counts.values()), counts[worst.subtask_index]
    if len(counts) < 2 or not total or mine * len(counts) < _SKEWED * total:
        return ""
    keys = next((one.hot_keys for one in worst.operators if one.name == place.name), [])
    hot = f", most of all {keys[0].key}" if keys else ""
    return (
        f"; subtask {worst.subtask_index + 1} of {len(counts)} has "
        f"{mine / total:.0%} of its records: the keys are skewed{hot}"
    )


def _records(place: OperatorPlace, task: TaskView) -> int:
    """Return how many records a subtask was given, and has waiting."""
    waiting = task.metrics.get("input_queue_records")
    given = next(
        (
            count
            for operator in task.operators
            if operator.name == place.name
            and isinstance(count := operator.metrics.get("num_records_in"), int)
        ),
        0,
    )
    return given + (waiting if isinstance(waiting, int) else 0)


def _of_time(share: float, observed_s: float) -> str:
    return f"{share * 100:.0f} % of the last {max(observed_s, 1.0):.0f} s"


_TEXTS: Final[dict[BlockCause, Callable[[str], str]]] = {
    BlockCause.INPUT: lambda _: "waits for input",
    BlockCause.SOURCE: lambda _: "waits for what it reads",
    BlockCause.LOOP: lambda _: "waits for its turn on the event loop",
    BlockCause.LIMIT: lambda what: (
        f"waits for limiter {what}" if what else "waits for its limiter"
    ),
    BlockCause.CALLS: lambda what: f"waits for its calls ({what})",
    BlockCause.RETRY: lambda _: "waits to retry calls that failed",
    BlockCause.KEY: lambda _: "waits for calls of the same key",
    BlockCause.AWAIT: lambda what: (
        "awaits its function, for one record at a time" + (f" ({what})" if what else "")
    ),
    BlockCause.FUNCTION: lambda what: (
        "runs its function" + (f" ({what})" if what else "")
    ),
}


def _text(place: OperatorPlace, share: BlockShare) -> str:
    if share.cause is BlockCause.OUTPUT:
        readers = " and ".join(place.readers)
        return (
            f"waits for room: {readers} falls behind" if readers else "waits for room"
        )
    if not share.operator and share.cause is BlockCause.FUNCTION:
        return "has its task compute"
    if not share.operator or place.name in share.operator.split(" -> "):
        return _TEXTS[share.cause](share.what)
    return f"waits for {share.operator}"


# How much each task waits for room, as a table.


# Flink's: up to a tenth of the time is fine, above a half is high.
_LOW_ABOVE_MS: Final = 100.0
_HIGH_ABOVE_MS: Final = 500.0


class BackpressureLevel(enum.Enum):
    """How much of its time a task waits for room in its outputs.

    Concept:
        Flink, ``JobVertexBackPressureInfo.VertexBackPressureLevel``.

    Example:
        >>> [BackpressureLevel.of(ms).value for ms in (100, 101, 500, 501)]
        ['OK', 'LOW', 'LOW', 'HIGH']
    """

    OK = "OK"
    LOW = "LOW"
    HIGH = "HIGH"

    @classmethod
    def of(cls, backpressured_ms: float) -> BackpressureLevel:
        """Return the level for so many milliseconds of a second."""
        if backpressured_ms > _HIGH_ABOVE_MS:
            return cls.HIGH
        return cls.LOW if backpressured_ms > _LOW_ABOVE_MS else cls.OK


@dataclass(frozen=True, slots=True)
class TaskPressure:
    """How one task spends its time: milliseconds of each second lately.

    Attributes:
        task: The task's name.
        vertex: The vertex of the job graph that it runs a subtask of.
        subtask_index: The subtask, from 0.
        busy_ms: Processing, or awaiting something inside of it.
        idle_ms: Waiting for input.
        backpressured_ms: Waiting for room in its outputs, soft and hard.
    """

    task: str
    vertex: int
    subtask_index: int
    busy_ms: float
    idle_ms: float
    backpressured_ms: float

    @classmethod
    def of(
        cls,
        task: str,
        vertex: int,
        subtask_index: int,
        metrics: Mapping[str, MetricValue],
    ) -> TaskPressure:
        """Return the pressure that the metrics of a task say; missing figures are 0."""

        def read(name: str) -> float:
            value = metrics.get(f"{name}_time_ms_per_second")
            return float(value) if isinstance(value, int | float) else 0.0

        return cls(
            task,
            vertex,
            subtask_index,
            read("busy"),
            read("idle"),
            read("backpressured"),
        )

    @property
    def level(self) -> BackpressureLevel:
        """How much it waits for room."""
        return BackpressureLevel.of(self.backpressured_ms)


@dataclass(frozen=True, slots=True)
class VertexPressure:
    """The subtasks of one vertex of the job graph.

    Attributes:
        vertex: The vertex.
        name: Its name.
        subtasks: In the order of their indices; at least one.
    """

    vertex: int
    name: str
    subtasks: tuple[TaskPressure, ...]

    @property
    def busy_ms(self) -> float:
        """Of the busiest subtask."""
        return max(each.busy_ms for each in self.subtasks)

    @property
    def idle_ms(self) -> float:
        """Of the subtask that has least to wait for: the smallest."""
        return min(each.idle_ms for each in self.subtasks)

    @property
    def backpressured_ms(self) -> float:
        """Of the subtask that waits most for room."""
        return max(each.backpressured_ms for each in self.subtasks)

    @property
    def level(self) -> BackpressureLevel:
        """That of the subtask that waits most for room, as in Flink."""
        return BackpressureLevel.of(self.backpressured_ms)


@dataclass(frozen=True, slots=True)
class BackpressureReport:
    """Where a job waits, and for which task. Its text is a table.

    Attributes:
        vertices: The vertices whose tasks are known, sources first.
        bottleneck: The task that `JobClient.bottleneck` is about, None if there is none.

    Example:
        >>> tasks = [
        ...     TaskPressure("read (1/1)", 0, 0, 300.0, 0.0, 700.0),
        ...     TaskPressure("write (1/1)", 1, 0, 1000.0, 0.0, 0.0),
        ... ]
        >>> report = report_backpressure(tasks, {0: "read", 1: "write"}, "write (1/1)")
        >>> report.bottleneck.task, report["read"].level.value
        ('write (1/1)', 'HIGH')
        >>> print(report)
        task         level  busy  idle  backpressured
        read (1/1)   HIGH    300     0            700
        write (1/1)  OK     1000     0              0
        bottleneck: write (1/1)
    """

    vertices: tuple[VertexPressure, ...]
    bottleneck: TaskPressure | None

    def __getitem__(self, name: str) -> VertexPressure:
        """Return the vertex of a name.

        Raises:
            KeyError: If there is none.
        """
        for vertex in self.vertices:
            if vertex.name == name:
                return vertex
        raise KeyError(name)

    def __str__(self) -> str:
        tasks = [task for vertex in self.vertices for task in vertex.subtasks]
        width = max([len("task"), *(len(task.task) for task in tasks)])
        lines = [f"{'task':{width}}  level  busy  idle  backpressured"]
        lines += [
            f"{task.task:{width}}  {task.level.value:5}  {task.busy_ms:4.0f}  "
            f"{task.idle_ms:4.0f}  {task.backpressured_ms:13.0f}"
            for task in tasks
        ]
        found = self.bottleneck
        lines.append(f"bottleneck: {found.task if found is not None else 'none'}")
        return "\n".join(lines)


def report_backpressure(
    tasks: Iterable[TaskPressure], names: Mapping[int, str], bottleneck: str | None
) -> BackpressureReport:
    """Return the report on a job."""
    by_vertex: dict[int, list[TaskPressure]] = {vertex: [] for vertex in names}
    for task in tasks:
        by_vertex[task.vertex].append(task)
    vertices = tuple(
        VertexPressure(
            vertex, names[vertex], tuple(sorted(found, key=lambda t: t.subtask_index))
        )
        for vertex, found in by_vertex.items()
        if found
    )
    named = (task for each in vertices for task in each.subtasks)
    return BackpressureReport(
        vertices, next((task for task in named if task.task == bottleneck), None)
    )
