"""The view of a job at one moment, as one value that has a version.

Everything that shows a job reads this and nothing else, so that a job shows the same
wherever its tasks run. It can be written as JSON or MessagePack, and read by a program
that knows its version.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from aiomailbox.errors import CorruptStreamError, InvalidArgumentError, WrongTypeError
from aiomailbox.metrics.catalogue import DECLARED, Metric, MetricScope, MetricValue
from aiomailbox.metrics.instruments import HotKey, KeyTotal
from aiomailbox.operators.core.operator import OpenCalls
from aiomailbox.runtime.bottleneck import Bottleneck
from aiomailbox.runtime.config import JobState
from aiomailbox.runtime.held_loop import Stall
from aiomailbox.runtime.views import TaskView

# Grows with each change that a reader of the one before would misunderstand.
SNAPSHOT_VERSION: Final = 1
# The states of a task after it has opened its functions, unless it has failed.
_OPEN: Final = frozenset({"running", "finishing", "finished"})


class VertexSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A chain of operators that live in one task per subtask.

    Attributes:
        vertex: Its number.
        name: Its name, unique in the job.
        parallelism: Its subtasks.
        operators: The labels of its operators, head first.
        metrics: Those of its tasks, merged.
    """

    vertex: int
    name: str
    parallelism: int
    operators: list[str]
    metrics: dict[str, MetricValue]


class OperatorSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One operator of a job, over all of its subtasks.

    Attributes:
        name: Its label: its name, numbered if another operator has it.
        operator_id: By what its state is found.
        uid: The user's stable name for it, or None.
        vertex: The vertex that it was chained into.
        parallelism: Its subtasks.
        is_source: Whether records begin here.
        is_sink: Whether they end here.
        key_totals: The keys whose calls have used most of their limit, where calls have
            keys; those of all subtasks.
        unit: The unit of their limit; "" without one.
        records_expected: How many records a source has in all, None if it does not know.
        metrics: Its metrics, merged as they are declared.
        num_records_in_per_second: Records that it was given, over the last seconds.
        num_records_out_per_second: Records that it emitted, likewise.
        calls: The asynchronous calls that it has begun, None if it makes none.
        blocked_by: The most frequent reason why it waits, as a sentence; "" before the
            first sample, and in virtual time.
        hot_keys: The keys with the most records, with their share of all; estimated.
    """

    name: str
    operator_id: str
    uid: str | None
    vertex: int
    parallelism: int
    is_source: bool
    is_sink: bool
    metrics: dict[str, MetricValue]
    num_records_in_per_second: float = 0.0
    num_records_out_per_second: float = 0.0
    calls: OpenCalls | None = None
    blocked_by: str = ""
    hot_keys: list[HotKey] = []
    records_expected: int | None = None
    key_totals: list[KeyTotal] = []
    unit: str = ""

    @property
    def num_records_in(self) -> int:
        """How many records it was given: 0 of a source."""
        return self._count("num_records_in")

    @property
    def num_records_out(self) -> int:
        """How many records it emitted: 0 of a sink."""
        return self._count("num_records_out")

    def _count(self, name: str) -> int:
        value = self.metrics.get(name)
        return value if isinstance(value, int) else 0

    @property
    def watermark_ms(self) -> int | None:
        """How far event time is here: milliseconds, None where there is none."""
        for name in ("current_input_watermark", "current_output_watermark"):
            value = self.metrics.get(name)
            if isinstance(value, int):
                return value
        return None


class EdgeSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Records flow from one operator to another one.

    Attributes:
        source: The label of the operator that emits.
        target: The label of the operator that reads.
        input_index: The input of the target, from 0.
        partitioner: How records find their subtask; ``"chained"`` inside of a task.
        side_output: The id of the side output that flows here, None for the main one.
        is_chained: Whether they are called directly; then nothing waits between them.
        queued_buffers: Buffers that wait before the target.
        queued_records: Records in them.
        queued_bytes: Bytes in them, estimated where objects are handed over.
        num_records_per_second: Records that the target took, over the last seconds.
        credits: Buffers that the target has room for, over all channels; None on one
            loop, where none are announced.
        backlog: Buffers that wait at the source, as it said last; None on one loop.
        blocked_by: Which end waits for what, as a sentence; "" before the first look.
    """

    source: str
    target: str
    input_index: int
    partitioner: str
    side_output: str | None = None
    is_chained: bool = False
    queued_buffers: int = 0
    queued_records: int = 0
    queued_bytes: int = 0
    num_records_per_second: float = 0.0
    credits: int | None = None
    backlog: int | None = None
    blocked_by: str = ""


class CheckpointSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A completed checkpoint.

    Attributes:
        checkpoint_id: Its number.
        kind: ``"checkpoint"``, or which savepoint.
        place: Where it is.
        size_bytes: The bytes that were written for it.
        duration_ms: From its trigger until it was complete and committed.
        statistics: Milliseconds and bytes of its parts; see `CheckpointView`.
    """

    checkpoint_id: int
    kind: str
    place: str
    size_bytes: int
    duration_ms: float
    statistics: dict[str, float]


class FailureSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A failure of an attempt, or of the job itself.

    Attributes:
        error: Type and text of the error.
        at_ms: When it happened, milliseconds since the epoch.
        restarts: How often the job had been started again before.
        operator: The operator whose function raised, None if it was none.
        uid: Its uid.
        line: ``file:line`` of the innermost line of the user's.
        record: The record, as text.
        traceback: The end of its traceback, with the user's frames; of the last failure
            only, "" of those before.
    """

    error: str
    at_ms: int
    restarts: int
    operator: str | None = None
    uid: str | None = None
    line: str | None = None
    record: str | None = None
    traceback: str = ""


class JobSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A job at one moment: complete from its start on, and after its end.

    Attributes:
        version: Of this schema.
        job: The job's name.
        job_id: Its identity.
        state: Where it is in its life.
        taken_at_ms: When this was, milliseconds since the epoch.
        duration_s: Seconds since it started, or that it took.
        restarts: How often it was started again.
        vertices: Sources first.
        operators: Sources first.
        edges: Those within tasks, too.
        tasks: The report of each task; empty while there are no tasks.
        checkpoint_metrics: How many checkpoints there were, and the last one; empty for a
            job without.
        checkpoints: The last completed ones, oldest first.
        failures: The last ones, oldest first.
        stalls: The last stalls of the event loops of its tasks, oldest first.
        bottleneck: The operator that holds the job up, None if none does.
        stop_reason: Why its sources were stopped, such as a budget that is exhausted.
        declared: The declarations of metrics that aiomailbox does not declare itself.

    Example:
        >>> import aiomailbox as am
        >>> async def main() -> None:
        ...     env = am.StreamExecutionEnvironment()
        ...     env.from_collection([1, 2]).map(abs).sink_to(print)
        ...     async with env.start() as job:
        ...         print([operator.name for operator in job.snapshot().operators])
        >>> am.run(main())
        ['collection', 'map', 'FunctionSink']
    """

    version: int = SNAPSHOT_VERSION
    job: str
    job_id: str
    state: str
    taken_at_ms: int
    duration_s: float
    restarts: int
    vertices: list[VertexSummary]
    operators: list[OperatorSummary]
    edges: list[EdgeSummary]
    tasks: list[TaskView] = []
    checkpoint_metrics: dict[str, MetricValue] = {}
    checkpoints: list[CheckpointSummary] = []
    failures: list[FailureSummary] = []
    stalls: list[Stall] = []
    bottleneck: Bottleneck | None = None
    stop_reason: str = ""
    declared: list[Metric] = []

    def operator(self, name: str) -> OperatorSummary:
        """Return the operator of a label.

        Raises:
            KeyError: If there is none.
        """
        for operator in self.operators:
            if operator.name == name:
                return operator
        names = ", ".join(operator.name for operator in self.operators)
        raise KeyError(f"there is no operator {name!r}; the job has {names}")

    def metric(self, name: str) -> Metric | None:
        """Return what a metric is, None if it is not declared."""
        own = next((metric for metric in self.declared if metric.name == name), None)
        return DECLARED.get(name, own)

    def to_json(self) -> bytes:
        """Return this as JSON, to be read by `from_json`."""
        return msgspec.json.encode(self)

    @staticmethod
    def from_json(data: bytes | str) -> JobSnapshot:
        """Return what `to_json` wrote.

        Raises:
            CorruptStreamError: If it is none, or of another version.
        """
        try:
            head = msgspec.json.decode(data, type=_Head)
            if head.version != SNAPSHOT_VERSION:
                raise CorruptStreamError(
                    f"a snapshot of version {head.version} cannot be read: "
                    f"this is version {SNAPSHOT_VERSION}"
                )
            return msgspec.json.decode(data, type=JobSnapshot)
        except msgspec.MsgspecError as error:
            raise CorruptStreamError(
                f"this is not a snapshot of a job: {error}"
            ) from error


@dataclass(frozen=True, slots=True)
class JobMetrics:
    """The metrics of a job at one moment.

    Attributes:
        state: Where the job is in its life.
        duration_s: Seconds since it started, or that it took.
        operators: Per operator its metrics over all subtasks, merged as they are
            declared: docs/metrics.md. A name that occurs again is numbered: ``map``,
            ``map #2``. Lists all operators from the start, sources first, with counts
            of 0.
        tasks: Per task its own: milliseconds per second that it was busy, idle and
            backpressured, pool usage, queue lengths, mails; the names are listed in
            docs/concepts/backpressure.md.
        checkpoints: How many checkpoints there were, and id, milliseconds and bytes of
            the last completed one, None before it, under Flink's names; empty for a job
            without.
        is_open: Whether all tasks have opened their functions, which then have declared
            their own metrics.
    """

    state: JobState
    duration_s: float
    operators: dict[str, dict[str, Any]]
    tasks: dict[str, dict[str, Any]]
    checkpoints: dict[str, Any]
    is_open: bool = False

    @staticmethod
    def of(snapshot: JobSnapshot) -> JobMetrics:
        """Return what a snapshot says of numbers."""
        return JobMetrics(
            JobState(snapshot.state),
            snapshot.duration_s,
            {operator.name: operator.metrics for operator in snapshot.operators},
            {task.name: task.metrics for task in snapshot.tasks},
            snapshot.checkpoint_metrics,
            len(snapshot.tasks) >= sum(one.parallelism for one in snapshot.vertices)
            and all(task.state in _OPEN for task in snapshot.tasks),
        )

    if not TYPE_CHECKING:

        def __getitem__(self, name: object) -> NoReturn:
            """Say where the metrics are, which are those of operators and tasks.

            Raises:
                WrongTypeError: Always.
            """
            having = [one for one, found in self.operators.items() if name in found]
            operator = having[0] if having else next(iter(self.operators), "map")
            raise WrongTypeError(
                "metrics",
                f"{name!r} is looked up in the job, and metrics belong to operators and tasks",
                f"Write job.metrics().operators[{operator!r}], a dict of its metrics, or "
                f"job.metrics().total({name!r}) for the sum of all.",
            )

    def total(self, name: str) -> int | float:
        """Return a counter, or a gauge that is a number, summed over all operators.

        It is 0 for a metric of aiomailbox that no operator has, and for one that no
        function has declared yet: until all tasks have opened theirs.

        Raises:
            InvalidArgumentError: If no operator has such a metric, which names the
                nearest ones; if it is one of tasks or of checkpoints; if it is a
                histogram or a text, which have no sum.
        """
        having = {
            operator: metrics[name]
            for operator, metrics in self.operators.items()
            if name in metrics
        }
        if not having:
            self._check_known(name)
        total: int | float = 0
        for operator, value in having.items():
            if isinstance(value, int | float):
                total += value
            elif value is not None:
                is_text = isinstance(value, str)
                place = f"job.metrics().operators[{operator!r}][{name!r}]"
                raise InvalidArgumentError(
                    "name",
                    f"{name!r} is a {'text' if is_text else 'histogram'}, and has no sum",
                    f"Read {place}."
                    if is_text
                    else f"Read {place}, which has count, total, mean and p95.",
                )
        return total

    def _check_known(self, name: str) -> None:
        declared = DECLARED.get(name)
        if declared is not None and declared.scope is MetricScope.OPERATOR:
            return
        if declared is not None:
            of_tasks = declared.scope is MetricScope.TASK
            raise InvalidArgumentError(
                "name",
                f"{name!r} is no metric of operators",
                f"It is in job.metrics().{'tasks' if of_tasks else 'checkpoints'}.",
            )
        found = {each for metrics in self.operators.values() for each in metrics}
        names = {
            *found,
            *(one for one, it in DECLARED.items() if it.scope is MetricScope.OPERATOR),
        }
        close = get_close_matches(name, sorted(names), 3, 0.8)
        if close or self.is_open:
            right = " or ".join(map(repr, close))
            raise InvalidArgumentError(
                "name",
                f"no operator has a metric {name!r}",
                f"Is {right} meant?"
                if close
                else f"The operators have: {', '.join(sorted(found))}.",
            )


class _Head(msgspec.Struct):
    version: int
