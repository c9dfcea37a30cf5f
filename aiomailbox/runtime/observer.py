"""Takes the snapshots of a job: joins its graph with the views of its tasks.

Theory of operation: the graph says which operators and edges there are, whether or not a
task runs; the views of tasks contain what they measure. Rates are differences between two
snapshots: the current one and an older one of the last seconds. So nothing is counted for
them while no snapshots are taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from aiomailbox.graph.job_graph import Edge, JobGraph, free_name
from aiomailbox.metrics.catalogue import (
    DECLARED,
    Merge,
    Metric,
    MetricKind,
    MetricValue,
    merged,
)
from aiomailbox.metrics.instruments import HotKey, KeyTotal
from aiomailbox.operators.core.operator import OpenCalls
from aiomailbox.operators.sources.source import record_count_of
from aiomailbox.records.events import MAX_TIMESTAMP, MIN_TIMESTAMP
from aiomailbox.runtime.bottleneck import (
    BackpressureReport,
    OperatorPlace,
    TaskPressure,
    blocked_sentence,
    find_operator,
    report_backpressure,
)
from aiomailbox.runtime.builder import producer_targets
from aiomailbox.runtime.config import ENDED, JobState
from aiomailbox.runtime.held_loop import Stall
from aiomailbox.runtime.job_snapshot import (
    CheckpointSummary,
    EdgeSummary,
    JobSnapshot,
    OperatorSummary,
    VertexSummary,
)
from aiomailbox.runtime.master import JobMaster
from aiomailbox.runtime.views import ChannelView, OperatorView, TaskView

_WINDOW_S: Final = 5.0
_SAMPLE_S: Final = 0.5
_CALLS_MAX: Final = 20
_HOT_KEYS_MAX: Final = 5
_ENDED: Final = frozenset(state.value for state in ENDED)
_UNKNOWN: Final = Metric("", MetricKind.GAUGE, "1", Merge.SUM, "")


class Rates:
    """The rates at which counts grow, from their values in earlier snapshots.

    Example:
        >>> rates = Rates()
        >>> rates.add(0.0, {"rows": 0})
        >>> rates.add(2.0, {"rows": 50})
        >>> rates.per_second("rows", 50, 2.0)
        25.0
    """

    def __init__(self) -> None:
        # At most one in half a second, and one that is older than the window.
        self._looks: deque[tuple[float, dict[Any, int]]] = deque()

    def add(self, now_s: float, counts: dict[Any, int]) -> None:
        """Keep the current counts."""
        looks = self._looks
        while len(looks) > 1 and looks[1][0] <= now_s - _WINDOW_S:
            looks.popleft()
        # Frequent snapshots must not push the old ones out.
        if not looks or now_s - looks[-1][0] >= _SAMPLE_S:
            looks.append((now_s, counts))

    def per_second(self, name: Any, count: int, now_s: float) -> float:
        """Return the recent growth per second of a count; 0.0 without an earlier one."""
        for then_s, counts in self._looks:
            elapsed_s = now_s - then_s
            before = counts.get(name, 0)
            # Less than before: its task was restarted, from 0.
            if elapsed_s > 0:
                return (count - before if count >= before else count) / elapsed_s
        return 0.0


class JobObserver:
    """Takes snapshots of one job.

    Args:
        job: The job, in any state.
    """

    def __init__(self, job: JobMaster) -> None:
        self._job = job
        self._graph = _GraphObserver(job.graph, job.services.clock.monotonic())

    def snapshot(self, *, with_stacks: bool) -> JobSnapshot:
        """Return a snapshot of the job."""
        job = self._job
        clock = job.services.clock
        coordinator = job.coordinator
        return self._graph.snapshot(
            job.views(with_stacks=with_stacks),
            clock.monotonic(),
            clock.now_ms(),
            job_id=job.services.job_id,
            state=job.state.value,
            duration_s=job.duration_s,
            restarts=job.restarts,
            checkpoint_metrics={} if coordinator is None else coordinator.metrics(),
            checkpoints=_checkpoints(job),
            failures=list(job.failures),
            stop_reason=job.stop_reason,
        )

    def backpressure(self) -> BackpressureReport:
        """Return how much each task waits for room, and which one holds the job up."""
        seen = self.snapshot(with_stacks=False)
        tasks = [
            TaskPressure.of(view.name, view.vertex, view.subtask_index, view.metrics)
            for view in seen.tasks
        ]
        bottleneck = None if seen.bottleneck is None else seen.bottleneck.task
        return report_backpressure(tasks, self._job.graph.vertex_names, bottleneck)


def snapshot_after(
    graph: JobGraph,
    job_id: str,
    tasks: list[TaskView],
    *,
    now_ms: int,
    duration_s: float,
) -> JobSnapshot:
    """Return the snapshot of a job that has finished without a `JobMaster`."""
    return _GraphObserver(graph, 0.0).snapshot(
        tasks,
        duration_s,
        now_ms,
        job_id=job_id,
        state=JobState.FINISHED.value,
        duration_s=duration_s,
        restarts=0,
    )


class _GraphObserver:
    """Joins a graph with the views of its tasks, snapshot after snapshot."""

    def __init__(self, graph: JobGraph, now_s: float) -> None:
        self._graph = graph
        self._rates = Rates()
        # At the start everything is 0.
        self._rates.add(now_s, {})

    def snapshot(
        self, tasks: list[TaskView], now_s: float, now_ms: int, **facts: Any
    ) -> JobSnapshot:
        """Return a snapshot."""
        graph = self._graph
        look = _Look(graph, tasks)
        # Nothing lags in a job that is over, however long ago its last watermark was.
        is_over = facts["state"] in _ENDED
        operators = [
            self._operator(one, look, now_s, None if is_over else now_ms)
            for one in look.operators.values()
        ]
        said = {one.name: one.blocked_by for one in operators}
        edges = [
            self._edge(edge, look, now_s, said)
            for node in graph.nodes
            for edge in node.out_edges
        ]
        self._rates.add(now_s, look.counts)
        return JobSnapshot(
            job=graph.name,
            taken_at_ms=now_ms,
            vertices=_vertices(graph, look),
            operators=operators,
            edges=edges,
            tasks=tasks,
            stalls=_stalls(tasks),
            bottleneck=find_operator(
                (look.place_of(one) for one in look.operators.values()), tasks
            ),
            declared=list(look.own.values()),
            **facts,
        )

    def _operator(
        self, one: _Operator, look: _Look, now_s: float, now_ms: int | None
    ) -> OperatorSummary:
        metrics = {
            name: merged(look.metric(name), values)
            for name, values in one.values.items()
        }
        node = one.node
        summary = OperatorSummary(
            name=one.label,
            operator_id=str(node.operator_id),
            uid=node.transformation.uid,
            vertex=one.vertex,
            parallelism=node.parallelism,
            is_source=not node.in_edges,
            is_sink=node.transformation.sink is not None,
            metrics=metrics,
            num_records_in_per_second=self._rate(
                look, (one.label, "num_records_in"), metrics, now_s
            ),
            num_records_out_per_second=self._rate(
                look, (one.label, "num_records_out"), metrics, now_s
            ),
            calls=_joined(one.calls),
            blocked_by=blocked_sentence(look.place_of(one), look.tasks),
            hot_keys=one.hot_keys(),
            key_totals=_added(one.key_totals),
            unit=""
            if node.transformation.limit is None
            else node.transformation.limit.unit,
            records_expected=record_count_of(node.transformation.source),
        )
        watermark = summary.watermark_ms
        if watermark is not None:
            is_known = MIN_TIMESTAMP < watermark < MAX_TIMESTAMP
            metrics["watermark_lag"] = (
                now_ms - watermark if is_known and now_ms is not None else None
            )
        return summary

    def _rate(
        self,
        look: _Look,
        key: tuple[str, str],
        metrics: dict[str, MetricValue],
        now_s: float,
    ) -> float:
        count = metrics.get(key[1])
        if not isinstance(count, int):
            return 0.0
        look.counts[key] = count
        return self._rates.per_second(key, count, now_s)

    def _edge(
        self, edge: Edge, look: _Look, now_s: float, said: dict[str, str]
    ) -> EdgeSummary:
        source = look.labels[edge.source.index]
        target = look.labels[edge.target.index]
        tag = None if edge.tag is None else edge.tag.id
        if edge.chained:
            return EdgeSummary(
                source=source,
                target=target,
                input_index=edge.input_index,
                partitioner="chained",
                side_output=tag,
                is_chained=True,
            )
        channels = look.channels_of(edge)
        taken = sum(channel.records_total for channel in channels)
        key = (source, target, edge.input_index, tag)
        look.counts[key] = taken
        return EdgeSummary(
            source=source,
            target=target,
            input_index=edge.input_index,
            partitioner=edge.partitioner.name,
            side_output=tag,
            queued_buffers=sum(channel.queued_buffers for channel in channels),
            queued_records=sum(channel.queued_records for channel in channels),
            queued_bytes=sum(channel.queued_bytes for channel in channels),
            num_records_per_second=self._rates.per_second(key, taken, now_s),
            credits=_sum(channel.credit for channel in channels),
            backlog=_sum(channel.backlog for channel in channels),
            blocked_by=said[source if _is_starved(target, said) else target],
        )


class _Operator:
    """The views that all subtasks give of one operator."""

    def __init__(self, label: str, name: str, vertex: int, node: Any) -> None:
        self.label = label
        self.name = name
        self.vertex = vertex
        self.node = node
        self.values: dict[str, list[MetricValue]] = {}
        self.calls: list[OpenCalls] = []
        self._keys: list[tuple[int, HotKey]] = []
        self.key_totals: list[KeyTotal] = []

    def hot_keys(self) -> list[HotKey]:
        """Return the hottest keys of all subtasks: each key is in one of them."""
        counts = self.values.get("num_records_in", ())
        total = sum(count for count in counts if isinstance(count, int))
        if not total:
            return []
        shares = [
            HotKey(one.key, one.share * count / total) for count, one in self._keys
        ]
        return sorted(shares, key=lambda one: -one.share)[:_HOT_KEYS_MAX]

    def add(self, view: OperatorView) -> None:
        for name, value in view.metrics.items():
            self.values.setdefault(name, []).append(value)
        if view.calls is not None:
            self.calls.append(view.calls)
        self.key_totals += view.key_totals
        count = view.metrics.get("num_records_in")
        if isinstance(count, int):
            self._keys += [(count, one) for one in view.hot_keys]


class _Look:
    """The graph of a job together with one set of views of its tasks."""

    def __init__(self, graph: JobGraph, tasks: list[TaskView]) -> None:
        self._graph = graph
        self.tasks = tasks
        self.own: dict[str, Metric] = {}
        self.counts: dict[Any, int] = {}
        self.operators: dict[tuple[int, str], _Operator] = {}
        self.labels: dict[int, str] = {}
        taken: set[str] = set()
        for vertex in graph.vertices:
            for name, node in vertex.operators:
                # Names are not unique over vertices, and metrics are found by them.
                label = self.labels[node.index] = free_name(name, taken)
                taken.add(label)
                one = _Operator(label, name, vertex.id, node)
                # Known before any task is there.
                one.values["num_records_out"] = [0]
                if node.in_edges:
                    one.values["num_records_in"] = [0]
                self.operators[vertex.id, name] = one
        self._tasks: dict[tuple[int, int], TaskView] = {}
        for task in tasks:
            self._tasks[task.vertex, task.subtask_index] = task
            for view in task.operators:
                operator = self.operators.get((task.vertex, view.name))
                # A task of an earlier attempt may name an operator that no longer exists.
                if operator is not None:
                    operator.add(view)
                self.own.update((metric.name, metric) for metric in view.declared)

    def metric(self, name: str) -> Metric:
        return DECLARED.get(name) or self.own.get(name) or _UNKNOWN

    def place_of(self, one: _Operator) -> OperatorPlace:
        vertex = self._graph.vertex_of(one.node)
        readers = [self.labels[edge.target.index] for edge in vertex.out_edges]
        uid = one.node.transformation.uid
        return OperatorPlace(
            one.label, one.name, uid, one.vertex, tuple(dict.fromkeys(readers))
        )

    def channels_of(self, edge: Edge) -> list[ChannelView]:
        """Return the channels of an edge at all subtasks of its target."""
        vertex = self._graph.vertex_of(edge.target)
        used = [index for index, united in enumerate(vertex.in_edges) if united]
        found = []
        for subtask_index in range(vertex.parallelism):
            task = self._tasks.get((vertex.id, subtask_index))
            if task is None:
                continue
            # Gates exist for inputs that have edges only.
            gate = used.index(edge.input_index)
            channels = [one for one in task.channels if one.input_index == gate]
            edges = [
                each
                for each in vertex.in_edges[edge.input_index]
                for targets in producer_targets(each)
                if subtask_index in targets
            ]
            # The order in which the builder connects them, see
            # `TaskBuilder._producers`.
            found += [
                channel
                for channel, each in zip(channels, edges, strict=False)
                if each is edge
            ]
        return found


def _vertices(graph: JobGraph, look: _Look) -> list[VertexSummary]:
    names, found = graph.vertex_names, []
    for vertex in graph.vertices:
        values: dict[str, list[MetricValue]] = {}
        for task in look.tasks:
            if task.vertex == vertex.id:
                for metric, value in task.metrics.items():
                    values.setdefault(metric, []).append(value)
        found.append(
            VertexSummary(
                vertex=vertex.id,
                name=names[vertex.id],
                parallelism=vertex.parallelism,
                operators=[look.labels[node.index] for node in vertex.nodes],
                metrics={
                    metric: merged(DECLARED.get(metric, _UNKNOWN), known)
                    for metric, known in values.items()
                },
            )
        )
    return found


def _checkpoints(job: JobMaster) -> list[CheckpointSummary]:
    coordinator = job.coordinator
    views = [] if coordinator is None else coordinator.views
    return [
        CheckpointSummary(
            checkpoint_id=view.completed.checkpoint_id,
            kind=view.completed.kind.name.lower(),
            place=view.completed.place,
            size_bytes=view.completed.size_bytes,
            duration_ms=view.duration_ms,
            statistics={
                name: float(value)
                for name, value in view.statistics.items()
                if isinstance(value, int | float)
            },
        )
        for view in views
    ]


def _is_starved(operator: str, said: dict[str, str]) -> bool:
    """Return whether an operator waits for its upstream operators."""
    return said[operator].startswith(f"{operator} waits for input")


def _added(totals: list[KeyTotal]) -> list[KeyTotal]:
    """Return the totals of all subtasks by key, the largest first."""
    units: dict[str, float] = {}
    for total in totals:
        units[total.key] = units.get(total.key, 0.0) + total.units
    return sorted(
        (KeyTotal(key, used) for key, used in units.items()),
        key=lambda total: -total.units,
    )


def _stalls(tasks: list[TaskView]) -> list[Stall]:
    """Return the stalls of all tasks, each once; all tasks report those of no operator."""
    found: dict[tuple[int, str], Stall] = {
        # A loop of many tasks holds up all of them at once.
        (stall.at_ms, stall.line): stall
        for task in tasks
        for stall in task.stalls
    }
    return sorted(found.values(), key=lambda stall: stall.at_ms)


def _joined(calls: list[OpenCalls]) -> OpenCalls | None:
    """Return the calls of all subtasks, the oldest of them first."""
    if not calls:
        return None
    oldest = sorted(
        (call for one in calls for call in one.oldest), key=lambda call: -call.age_s
    )
    return OpenCalls(
        sum(one.count for one in calls),
        oldest[:_CALLS_MAX],
        sum(one.waiting_for_slot for one in calls),
        next((one.limit for one in calls if one.limit), ""),
    )


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
