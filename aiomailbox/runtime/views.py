"""One look at a task: its state, its numbers, where its code stands.

A view is a value: it can be taken in one process and looked at in another one.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.exchange.gate import InputGate
from aiomailbox.graph.job_graph import JobGraph
from aiomailbox.ids import SubtaskId
from aiomailbox.metrics.catalogue import DECLARED, Metric, MetricKind, MetricValue
from aiomailbox.metrics.instruments import HotKey, KeyTotal
from aiomailbox.operators.core.operator import OpenCalls
from aiomailbox.operators.sources.operator import SourceOperator
from aiomailbox.records.events import SnapshotType
from aiomailbox.runtime.held_loop import Stall
from aiomailbox.runtime.loop_watch import BlockShare, shares_of, stalls_of
from aiomailbox.signatures import check_type
from aiomailbox.storage import path_of
from aiomailbox.supervision import frames_of
from aiomailbox.task.stream_task import ENDED_TASKS, StreamTask, TaskState
from aiomailbox.task.task_metrics import waits_of

# Of each operator; a worker sends them four times a second.
_CALLS_MAX: Final = 5
_POSITION_MAX: Final = 200
# What becomes of records that reach no sink, by the metrics that count them.
_LOSSES: Final = {
    "late": "num_late_records_dropped",
    "dead_letters": "dead_letters",
    "skipped": "skipped",
}


@dataclass(frozen=True, slots=True)
class OperatorView:
    """The metrics of one operator of a task.

    Attributes:
        name: The operator's name, unique in its task.
        metrics: What it measured so far.
        calls: The asynchronous calls that it has begun, the oldest of them; None if it
            makes none, or if they were not asked for.
        declared: What the metrics are that aiomailbox does not declare itself.
        hot_keys: The keys with the most records, where it has keys.
        key_totals: The keys whose calls have used most of their limit.
    """

    name: str
    metrics: dict[str, MetricValue]
    calls: OpenCalls | None = None
    declared: list[Metric] = field(default_factory=list)
    hot_keys: list[HotKey] = field(default_factory=list)
    key_totals: list[KeyTotal] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ChannelView:
    """The buffers that wait in a channel that a task reads.

    Attributes:
        input_index: The input that it belongs to, from 0.
        queued_buffers: Buffers that have arrived.
        queued_records: Records in them.
        queued_bytes: Bytes in them, estimated on one loop.
        records_total: Records taken from it so far.
        bytes_total: Bytes taken from it so far.
        credit: Buffers that it has room for; None on one loop, where none are announced.
        unannounced_credit: Of those, what was not announced to the producer yet.
        backlog: Buffers that wait at the producer, as it said last; None on one loop.
    """

    input_index: int
    queued_buffers: int
    queued_records: int
    queued_bytes: int
    records_total: int
    bytes_total: int
    credit: int | None = None
    unannounced_credit: int | None = None
    backlog: int | None = None


@dataclass(frozen=True, slots=True)
class TaskView:
    """The view of a task from outside.

    Attributes:
        name: The task's name.
        vertex: The vertex of the job graph that it runs a subtask of.
        subtask_index: The subtask, from 0.
        state: Where the task is in its life.
        metrics: Its own metrics.
        operators: Those of its operators.
        stack: Its mailbox and where its code stands, outermost await first; empty if
            not asked for.
        waits: What it waits for and for how long, in words; empty as the stack, and while
            it works or waits for an operator.
        channels: What it reads, those of its first input first.
        stalls: What has held its event loop lately, in this task or in no operator;
            empty as the stack.
        blocked: What it has waited for in the last seconds, the longest first; empty
            unless it runs.
        positions: Of a source that has ended how far its splits were, by their ids.
        process_id: Of the process that it runs in, as the operating system says.
        unchanged_id: The complete checkpoint that has its state as it is, -1 for none.
    """

    name: str
    vertex: int
    subtask_index: int
    state: str
    metrics: dict[str, MetricValue]
    operators: list[OperatorView]
    stack: list[str]
    waits: list[str]
    channels: list[ChannelView] = field(default_factory=list)
    stalls: list[Stall] = field(default_factory=list)
    blocked: list[BlockShare] = field(default_factory=list)
    positions: dict[str, str] = field(default_factory=dict)
    process_id: int = 0
    unchanged_id: int = -1


def record_totals(graph: JobGraph, views: Iterable[TaskView]) -> dict[str, int]:
    """Return how many records came in and went out, and what became of others.

    Returns:
        ``records_in`` from sources and ``records_out`` to sinks; and, where there were
        any, those that were ``late`` and dropped, ``dead_letters`` and ``skipped``.
    """
    sources, sinks = set(), set()
    for vertex in graph.vertices:
        for name, node in vertex.operators:
            if not node.in_edges:
                sources.add((vertex.id, name))
            if node.transformation.sink is not None:
                sinks.add((vertex.id, name))
    totals = {"records_in": 0, "records_out": 0, **dict.fromkeys(_LOSSES, 0)}
    for view in views:
        for operator in view.operators:
            place = (view.vertex, operator.name)
            if place in sources:
                totals["records_in"] += _count(operator, "num_records_out")
            if place in sinks:
                totals["records_out"] += _count(operator, "num_records_in")
            for name, metric in _LOSSES.items():
                totals[name] += _count(operator, metric)
    return {
        name: count for name, count in totals.items() if count or name not in _LOSSES
    }


def _count(operator: OperatorView, metric: str) -> int:
    value = operator.metrics.get(metric)
    return value if isinstance(value, int) else 0


def positions_of(splits: Iterable[Any]) -> dict[str, str]:
    """Return how far splits are, as text, by their ids.

    Example:
        >>> from types import SimpleNamespace
        >>> positions_of([SimpleNamespace(split_id="a", offset=3)])
        {'a': "namespace(split_id='a', offset=3)"}
    """
    return {split.split_id: repr(split)[:_POSITION_MAX] for split in splits}


def view_of(task: StreamTask, *, with_stack: bool = False) -> TaskView:
    """Return what can be seen of a task now."""
    task_id = task.environment.task_id
    chain = task.chain
    operators = [] if chain is None or not with_stack else chain.operators
    calls = {
        id(operator.context.metrics): operator.open_calls(_CALLS_MAX)
        for operator in operators
    }
    return TaskView(
        task.name,
        task_id.vertex,
        task_id.subtask_index,
        task.lifecycle.state.value,
        task.metrics(),
        [
            OperatorView(
                group.name,
                group.snapshot(),
                calls.get(id(group)),
                group.declared,
                [] if group.hot_keys is None else group.hot_keys.top(),
                [] if group.key_totals is None else group.key_totals.top(),
            )
            for group in task.environment.metrics.children
        ],
        _stack(task) if with_stack else [],
        waits_of(task.processor.metrics, task.plan) if with_stack else [],
        [
            channel
            for index, gate in enumerate(task.plan.gates)
            for channel in _channels(index, gate)
        ],
        stalls_of(task.name) if with_stack else [],
        shares_of(task),
        _positions(task),
        os.getpid(),
        task.unchanged_id,
    )


def view_of_lost(view: TaskView) -> TaskView:
    """Return what is left to be seen of a task whose process is gone.

    What it has counted stays; what it was doing, and held, went with the process. One
    that had ended before is as it was.
    """
    if TaskState(view.state) in ENDED_TASKS:
        return view
    return replace(
        view,
        state=TaskState.FAILED.value,
        metrics={**_counted(view.metrics, []), "state": TaskState.FAILED.value},
        operators=[
            replace(one, metrics=_counted(one.metrics, one.declared), calls=None)
            for one in view.operators
        ],
        stack=[],
        waits=[],
        # Its successor may have changed what it had not.
        unchanged_id=-1,
        channels=[
            replace(
                one,
                queued_buffers=0,
                queued_records=0,
                queued_bytes=0,
                credit=None,
                unannounced_credit=None,
                backlog=None,
            )
            for one in view.channels
        ],
        blocked=[],
    )


# Gauges that add up, as counters do.
_ADDED_UP: Final = frozenset(
    {"units_used", "rows_read", "partitions", "partitions_done"}
)


def _counted(
    metrics: dict[str, MetricValue], declared: list[Metric]
) -> dict[str, MetricValue]:
    """Return the metrics that are no values of a moment that is over."""
    of_moment = {
        metric.name
        for metric in (*DECLARED.values(), *declared)
        if metric.kind is MetricKind.GAUGE
    } - _ADDED_UP
    return {name: value for name, value in metrics.items() if name not in of_moment}


def _positions(task: StreamTask) -> dict[str, str]:
    head = None if task.chain is None else task.chain.head
    return positions_of(head.last_splits) if isinstance(head, SourceOperator) else {}


def _channels(input_index: int, gate: InputGate) -> Iterator[ChannelView]:
    for waiting, credit in zip(gate.statistics(), gate.credits(), strict=True):
        yield ChannelView(
            input_index,
            waiting.queued_buffers,
            waiting.queued_records,
            waiting.queued_bytes,
            waiting.records_total,
            waiting.bytes_total,
            None if credit is None else credit.available,
            None if credit is None else credit.unannounced,
            None if credit is None else credit.backlog,
        )


def _stack(task: StreamTask) -> list[str]:
    runner = task.runner
    frames = [] if runner is None or runner.done() else frames_of(runner)
    return [
        repr(task.processor),
        *(
            f"in {frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"
            for frame in frames
        ),
    ]


# What is said of checkpoints to people and programs: values.


def place_of_savepoint(
    path: str | os.PathLike[str], own_places: Iterable[str] = ()
) -> str:
    """Return where a savepoint is to go, also for workers.

    Raises:
        InvalidArgumentError: If it is empty, among the job's checkpoints, or there are
            files already.
        WrongTypeError: If it is no path.

    Example:
        >>> place_of_savepoint("s3://bucket/savepoint-1", ["s3://bucket/jobs/orders"])
        's3://bucket/savepoint-1'
    """
    check_type(path, str | os.PathLike, "path", "Give a directory.", "a path")
    text = os.fspath(path)
    if not text:
        raise InvalidArgumentError("path", "it is empty", "Give a new directory.")
    wanted = _real(text)
    for place in own_places:
        if f"{wanted}/".startswith(f"{_real(place)}/"):
            # It would be taken for the newest of them, or go with them.
            raise InvalidArgumentError(
                "path",
                f"{text!r} is among the checkpoints of job {place!r}",
                "Give a directory beside them, e.g. one named savepoints.",
            )
    local = path_of(text)
    if local is None:
        return text
    text = os.path.abspath(local)
    # A savepoint is written once: what is there may be the only copy.
    if os.path.lexists(text) and (not os.path.isdir(text) or os.listdir(text)):
        raise InvalidArgumentError(
            "path", f"{text!r} exists already", "Give a new or empty directory."
        )
    return text


def _real(place: str) -> str:
    """Return a path or a URL in the form that all names of one place have."""
    local = path_of(place)
    if local is not None:
        return os.path.realpath(local)
    scheme, _, path = place.partition("://")
    return f"{scheme}://{posixpath.normpath(path)}"


@dataclass(frozen=True, slots=True)
class CompletedCheckpoint:
    """A checkpoint or savepoint from which a job can go on.

    Attributes:
        checkpoint_id: Its number.
        kind: A checkpoint, or one of the savepoints.
        place: Where it is: a path or a URL; ``restore_from=`` takes it.
        size_bytes: The bytes that the tasks have written for it.
    """

    checkpoint_id: int
    kind: SnapshotType
    place: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """The time and size of a completed checkpoint.

    Attributes:
        completed: The checkpoint.
        duration_ms: From its trigger until it was complete and committed.
        statistics: The slowest task's ``start_delay_ms``, ``alignment_ms``, ``sync_ms``
            and ``async_ms``, and ``alignment_bytes`` of all.
    """

    completed: CompletedCheckpoint
    duration_ms: float
    statistics: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PendingCheckpoint:
    """A checkpoint that is being taken.

    Attributes:
        checkpoint_id: Its number.
        age_s: How long ago it was triggered, seconds.
        missing: The tasks that have not acknowledged it; none where it is being written.
    """

    checkpoint_id: int
    age_s: float
    missing: list[SubtaskId]
