"""A pipeline applied to DataFrames: its outputs are DataFrames too."""

from __future__ import annotations

import random
import secrets
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

import msgspec

from aiomailbox.checkpoint.layout import job_directory
from aiomailbox.clock import SystemClock
from aiomailbox.connectors.spark.frame_source import (
    InputFrame,
    input_frame,
    makes_watermarks,
    waits_for_end,
    with_column,
)
from aiomailbox.connectors.spark.inside.limits import LimitDoor, check_limits, open_door
from aiomailbox.connectors.spark.inside.results import (
    DEAD_LETTER_COLUMNS,
    ResultSink,
    dead_letter_origins,
    dead_letter_rows,
)
from aiomailbox.connectors.spark.inside.stage import StageInput, StagePart, run_stage
from aiomailbox.connectors.spark.inside.wire import WIRE_SCHEMA, JobLevels, RowKind
from aiomailbox.connectors.spark.jobs import explained, is_connect
from aiomailbox.connectors.spark.shipped import shipped
from aiomailbox.connectors.spark.types import (
    arrow_columns,
    output_schema,
    spark_schema,
)
from aiomailbox.errors import (
    InvalidArgumentError,
    TargetExistsError,
    UsageError,
    WrongTypeError,
)
from aiomailbox.graph.describe import describe_form
from aiomailbox.graph.job_graph import JobGraph, JobVertex
from aiomailbox.graph.transformation import Origin, Transformation, reachable
from aiomailbox.operators.async_io.settings import share
from aiomailbox.operators.core.operator import Operator
from aiomailbox.operators.sinks.sink import SinkOperator
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.records.events import OutputTag
from aiomailbox.runtime.config import JobConfig
from aiomailbox.runtime.declared import warn_of_copies
from aiomailbox.runtime.job_snapshot import JobMetrics, JobSnapshot
from aiomailbox.runtime.observer import snapshot_after
from aiomailbox.runtime.peers.placement import Placement
from aiomailbox.runtime.peers.shipping import Shipment, pack
from aiomailbox.runtime.views import TaskView
from aiomailbox.signatures import Misnamed

# From a pipeline's graph to a DataFrame: one ``mapInArrow`` a stage.


# Some peer that is not the parent: nothing of the job stays there.
_WORKER: Final = 1
_CONNECT_PARALLELISM_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class ShippedJob:
    """A job as Spark's workers get it.

    Attributes:
        graph: The job.
        levels: Its stages.
        payload: The job in bytes.
        limits: Its rate limits.
        door: Where those are that all workers share; None if there are none.
        journal: The directory of finished calls; None if none are kept.
    """

    graph: JobGraph
    levels: JobLevels
    payload: bytes
    limits: list[RateLimit]
    door: LimitDoor | None
    journal: str | None


def new_input(
    df: Any, name: str = "df", *, records: Any = "namedtuple", order_by: Any = None
) -> InputFrame:
    """Return a DataFrame as the beginning of a pipeline; see `input_frame`."""
    found = input_frame(
        df, name, StageInput, records=records, order_by=order_by, may_stream=True
    )
    if found.order and df.isStreaming:
        raise InvalidArgumentError(
            "order_by",
            f"{name!r} is a streaming DataFrame, which Spark cannot sort",
            "Leave it out.",
        )
    if found.order:
        df = df.sortWithinPartitions(*found.order)
    return replace(found, df=with_column(df))


def default_parallelism(df: Any) -> int:
    """Return how many subtasks operators have that do not say: as many as Spark has cores.

    Spark Connect does not tell; there it is what a shuffle has, and at most 8.
    """
    session = df.sparkSession
    if is_connect(df):
        shuffles = int(session.conf.get("spark.sql.shuffle.partitions"))
        return max(1, min(shuffles, _CONNECT_PARALLELISM_MAX))
    return max(1, int(session.sparkContext.defaultParallelism))


def drawn_seed(config: JobConfig) -> int:
    """Return the seed of a job, drawn by lot if its settings have none."""
    if config.seed is not None:
        return config.seed
    return random.SystemRandom().getrandbits(32)


def packed(
    graph: JobGraph,
    config: JobConfig,
    workers: int,
    seed: int,
    job_id: bytes,
    *,
    for_parent: bool = False,
) -> tuple[bytes, list[RateLimit]]:
    """Return a job as Spark's workers get it, and its rate limits."""
    # Nothing of the job stays in the program of the user.
    peers: dict[int, tuple[int, ...]] = {
        vertex.id: (_WORKER,) * vertex.parallelism for vertex in graph.vertices
    }
    place = Placement(workers, peers)
    shipment = Shipment(graph, config, place, seed, job_id, has_arrow=True)
    _, payload, limits = pack(shipment, for_parent=for_parent)
    return payload, limits


def chained_frames(
    job: ShippedJob, inputs: list[InputFrame], want: int | None, schema: Any
) -> Any:
    """Return the DataFrame of one output, or the rows of all of them."""
    levels = job.levels
    last = len(levels) - 1

    def stage(level: int, vertex: int | None) -> tuple[Any, Any]:
        is_last = level == last
        part = StagePart(
            job.payload, job.limits, level, vertex, want, job.door, job.journal
        )
        final = WIRE_SCHEMA if schema is None else schema
        function = shipped(run_stage, part)
        return function, final if is_last else WIRE_SCHEMA

    frames = []
    for number, vertex in enumerate(levels.vertices[0]):
        frame = next(
            each.df
            for each in inputs
            if each.transformation is vertex.head.transformation
        )
        frames.append(frame.mapInArrow(*stage(0, number)))
    df = reduce(lambda one, other: one.unionAll(other), frames)
    for level in range(1, len(levels)):
        # Each row to the partition that it names, in an order that repeats.
        moved = df.repartitionById(levels.width(level), "part")
        ordered = moved.sortWithinPartitions("wm", "producer", "seq")
        df = ordered.mapInArrow(*stage(level, None))
    return df


# What cannot run over Spark's shuffle, said before Spark starts a job.


_SOURCE: Final = (
    "is a source inside the pipeline: its records would come once in each Spark task. "
    "Pass its data as a DataFrame, by the name of a parameter: left=df, right=other"
)


def check_applicable(outputs: list[Transformation]) -> None:
    """Check that each stage of a pipeline can run when the one before it has ended."""
    for item in reachable(outputs):
        if isinstance(item.factory, StageInput):
            continue
        if item.source is not None:
            _refuse(item, _SOURCE)
        _check_operator(item, item.factory())


def check_stateless(graph: JobGraph) -> None:
    """Check that a pipeline over a stream keeps nothing between records."""
    for vertex in graph.vertices:
        for node in vertex.nodes:
            if node.transformation.is_keyed:
                _refuse(node.transformation, f"keeps state by key. {_MICRO_BATCHES}")
        if vertex.in_edges:
            head = vertex.head.transformation
            _refuse(head, f"is behind an exchange of records. {_MICRO_BATCHES}")


_MICRO_BATCHES: Final = (
    "Over a streaming DataFrame each micro-batch is a run of its own, at whose end state "
    "and event time end, too. Let its rows stream into this program, where they go on: "
    "env.from_source(am.SparkStreamSource(df, checkpoint)).through(pipeline)"
)


def check_runnable(origins: list[Origin], kind: type, inputs: int) -> None:
    """Check that a pipeline can run in a barrier stage."""
    for item in reachable([origin.transformation for origin in origins]):
        if isinstance(item.factory, kind):
            continue
        if item.source is not None:
            _refuse(item, _SOURCE)
        chooses = getattr(item.factory(), "next_selection", None) is not None
        if chooses and inputs > 1:
            _refuse(
                item,
                "chooses the input that it reads next: the rows of several DataFrames "
                "come one behind the other, and the one that it waits for may be behind "
                "those that it does not read. Leave next_selection() out",
            )


def check_no_sinks(sinks: list[Transformation]) -> None:
    """Check that nothing ends inside the pipeline."""
    for sink in sinks:
        _refuse(
            sink,
            "is a sink inside the pipeline: a task that Spark repeats would write again. "
            "Return the stream, and write the DataFrame",
        )


def _check_operator(item: Transformation, operator: Operator) -> None:
    if operator.live_clock_need:
        _refuse(
            item,
            f"has {operator.live_clock_need}, and over Spark's shuffle there is no live "
            "clock: a stage runs when the one before it has ended. Use event time, or "
            "run the pipeline embedded",
        )
    if getattr(operator, "next_selection", None) is not None:
        _refuse(
            item,
            "chooses the input that it reads next: over Spark's shuffle the inputs come "
            "in one order. Leave next_selection() out, or run the pipeline embedded",
        )


def _refuse(item: Transformation, problem: str) -> None:
    uid = "" if item.uid is None else f" (uid {item.uid!r})"
    raise UsageError(f"operator {item.name!r}{uid} {problem}.")


_RESULT: Final = 0
_DEAD_LETTERS: Final = 1
_FIRST_SIDE: Final = 2
# A dead letter may have been sent to a side output that has a name only.
BuildGraph = Callable[[list[Transformation]], JobGraph]


@dataclass(frozen=True, slots=True, eq=False)
class Application:
    """A pipeline, and the DataFrames that it is applied to.

    Attributes:
        name: The pipeline's name.
        build_graph: Makes the job graph of outputs.
        origins: Where the result comes from.
        inputs: The DataFrames.
        sinks: What ends inside the pipeline, which nothing may.
        config: Settings.
        journal: Where finished calls are kept; None if they are not.
    """

    name: str
    build_graph: BuildGraph
    origins: list[Origin]
    inputs: list[InputFrame]
    sinks: list[Transformation]
    config: JobConfig
    journal: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Output:
    number: int
    label: str
    schema: Any
    origins: list[list[Origin]]

    def sinks(self) -> list[Transformation]:
        """Return the ends of the output, one for each place that it comes from."""
        sink = ResultSink(self.number, arrow_columns(self.schema))
        return [
            Transformation(
                f"{self.label}{'' if number == 0 else f' {number + 1}'}",
                partial(SinkOperator, sink),
                [origins],
                follows_input=True,
                takes_columns=True,
                # What it refuses that call has made.
                line=origins[0].transformation.line,
            )
            for number, origins in enumerate(self.origins)
        ]


class Applied(Misnamed):
    """The outputs of a pipeline that runs inside Spark.

    Made by ``pipeline.apply_to(df)``. The DataFrames are lazy, like all of Spark's: each
    action runs the pipeline again, calls to services included. `materialize` runs it
    once, for all outputs.

    Args:
        application: What is applied to what.
        schema: The result's schema; see ``Pipeline.apply_to``.

    Raises:
        UsageError: If an operator cannot run over Spark's shuffle; says why.
        NotShippableError: If a function cannot be sent to Spark's workers.
    """

    _called = "applied"
    _meant: ClassVar = {
        **{name: f"result.{name}(...)" for name in ("collect", "count", "show")},
        **dict.fromkeys(("df", "dataframe", "results", "output"), "result"),
        "to_pandas": "result.toPandas()",
        "write": "result.write",
    }
    # Also of one whose making failed.
    _is_read = True
    # The one that was made as a check may be made anew.
    _is_result_given = False
    _has_told_of_copies = False

    def __init__(self, application: Application, schema: Any = None) -> None:
        self._application = application
        self._session = application.inputs[0].df.sparkSession
        check_no_sinks(application.sinks)
        self._outputs: dict[int, _Output] = {}
        self._sides: dict[OutputTag, int] = {}
        self._frames: dict[int, Any] = {}
        self._seed = drawn_seed(application.config)
        self._job_id = secrets.token_bytes(16)
        result = Transformation("result", _no_operator, [application.origins])
        self._items = reachable([result])[:-1]
        check_applicable(self._items)
        self._journal = _journal_of(application, self._items)
        self._is_streaming = any(each.df.isStreaming for each in application.inputs)
        found = output_schema(schema, application.origins, self._session)
        self._add(_Output(_RESULT, "result", found, [application.origins]))
        letters = [dead_letter_rows([o]) for o in dead_letter_origins(self._items)]
        if letters:
            columns = spark_schema(DEAD_LETTER_COLUMNS)
            self._add(_Output(_DEAD_LETTERS, "dead letters", columns, letters))
        # What cannot be sent is said now.
        self._frame(_RESULT)
        self._is_read = False

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Say what is meant.

            Raises:
                AttributeError: Always.
            """
            self._is_read = True
            super().__getattr__(name)

    def __del__(self) -> None:
        if not self._is_read:
            warnings.warn(
                "a pipeline was applied, and did not run: none of its DataFrames was "
                "read. Write applied.result.collect(), or applied.materialize(path)",
                RuntimeWarning,
                stacklevel=2,
                source=self,
            )

    @property
    def result(self) -> Any:
        """The results of the pipeline, as a DataFrame."""
        self._is_result_given = True
        return self._frame(_RESULT)

    @property
    def dead_letters(self) -> Any:
        """The records that ``on_error=dead_letter(...)`` set aside, as a DataFrame.

        Its columns are ``record`` (as JSON, or as Python shows it), ``timestamp_ms``,
        ``operator``, ``uid``, ``attempts``, ``error_type``, ``error``, ``traceback``.

        Raises:
            UsageError: If no operator has dead letters.
        """
        if _DEAD_LETTERS not in self._outputs:
            raise UsageError(
                f"no operator of pipeline {self._application.name!r} emits dead "
                "letters: pass on_error=am.dead_letter(am.OutputTag('failed'))."
            )
        return self._frame(_DEAD_LETTERS)

    def side(self, tag: OutputTag, schema: Any = None) -> Any:
        """Return a side output as a DataFrame.

        Ask for it before `result`, and before you read other side outputs: an action on a
        DataFrame that was there earlier warns of the records that it drops.

        Args:
            tag: The side output; of whichever operators emit to it.
            schema: Its schema, as for the result.

        Raises:
            WrongTypeError: If ``tag`` is no `OutputTag`.
            InvalidArgumentError: If nothing says the schema.
        """
        if not isinstance(tag, OutputTag):
            raise WrongTypeError(
                "tag", f"{tag!r} is not an OutputTag", "Write am.OutputTag('late')."
            )
        number = self._sides.get(tag)
        if number is None:
            number = _FIRST_SIDE + len(self._sides)
            found = output_schema(schema, [], self._session)
            origins = [[Origin(item, None, tag)] for item in self._items]
            self._add(_Output(number, f"side output {tag.id!r}", found, origins))
            self._sides[tag] = number
            if not self._is_result_given:
                # Made before, it would warn that nothing reads this one.
                self._frames.pop(_RESULT, None)
        return self._frame(number)

    def explain(self) -> str:
        """Return the stages, what each runs, and what is to be known of the order."""
        self._is_read = True
        application = self._application
        job = self._shipped([self._outputs[_RESULT]])
        lines = [f"Pipeline {application.name!r} over Spark's shuffle"]
        for level, vertices in enumerate(job.levels.vertices):
            width = "Spark's" if level == 0 else str(job.levels.width(level))
            lines.append(f"  stage {level + 1}: {width} partitions")
            for vertex in vertices:
                lines.append(f"    {vertex.name}")
                lines += [
                    f"      - {node.name}{form}"
                    for node in vertex.nodes
                    if (form := describe_form(node.transformation))
                ]
        lines += [
            f"  {frame.transformation.name!r} has no order within a partition: a repeated "
            "task may read its rows in another one. Give order_by=."
            for frame in application.inputs
            if not (frame.order or frame.df.isStreaming)
        ]
        lines += [
            f"  {frame.transformation.name!r} is a streaming DataFrame: Spark runs each "
            "micro-batch as one of its own, and opens functions for it."
            for frame in application.inputs
            if frame.df.isStreaming
        ]
        lines += [
            line
            for vertices in job.levels.vertices
            for vertex in vertices
            for line in (*_call_lines(vertex), *_watermark_lines(vertex))
        ]
        for item in self._items:
            if any(each.is_async for each in item.functions) and not item.has_journal:
                lines.append(
                    f"  {item.name!r} calls again in each action on a DataFrame, and in "
                    "each repeated task: materialize(path) runs the pipeline once, and "
                    "map_async(..., journal=True, id=...) with apply_to(journal=PATH) "
                    "keeps the outcomes of calls."
                )
            if item.source is None and not item.factory().repeat_order():
                lines.append(
                    f"  {item.name!r} emits results of different keys in the order in "
                    "which calls end, which a repeated task does not repeat: behind "
                    "rebalance() or shuffle() it may give other tasks other records."
                )
        return "\n".join(lines)

    def materialize(self, path: str | Path) -> Materialized:
        """Run the pipeline once, for all outputs asked for so far, and keep these.

        Args:
            path: A directory that does not exist yet, in storage that all workers see.

        Returns:
            The same outputs, read from there.

        Raises:
            SparkJobError: If it failed; says in which operator, line and record.
            TargetExistsError: If there is something at the path.
            UsageError: If a DataFrame is a streaming one.
        """
        self._is_read = True
        if self._is_streaming:
            raise UsageError(
                "a streaming DataFrame has no end at which its results are complete: "
                "write .result.writeStream, which runs the pipeline once for each "
                "micro-batch."
            )
        outputs = list(self._outputs.values())
        job = self._shipped(outputs)
        application = self._application
        clock = SystemClock()
        begun_s = clock.monotonic()
        rows = chained_frames(job, application.inputs, None, None)
        try:
            rows.select("edge", "kind", "payload").write.parquet(str(path))
        except Exception as error:
            if "PATH_ALREADY_EXISTS" in str(error):
                raise TargetExistsError(
                    f"{str(path)!r} exists already. Give another path, or remove it"
                ) from error
            does = f"runs pipeline {application.name!r}"
            raise explained(error, self._session, does) from error
        return Materialized(
            self._session.read.parquet(str(path)),
            {output.number: output.schema for output in outputs},
            dict(self._sides),
            partial(
                snapshot_after,
                job.graph,
                application.config.job_id or application.name,
                now_ms=clock.now_ms(),
                duration_s=clock.monotonic() - begun_s,
            ),
        )

    def metrics(self) -> dict[str, Any]:
        """Refuse: a lazy DataFrame has run nothing.

        Raises:
            UsageError: Always; says what to do.
        """
        raise UsageError(
            "nothing has run yet: DataFrames are lazy. The result of materialize(path) "
            "has metrics."
        )

    def __repr__(self) -> str:
        return f"<Applied pipeline {self._application.name!r}>"

    def _add(self, output: _Output) -> None:
        self._outputs[output.number] = output

    def _frame(self, number: int) -> Any:
        self._is_read = True
        frame = self._frames.get(number)
        if frame is None:
            output = self._outputs[number]
            job = self._shipped([output])
            if number == _RESULT and not self._has_told_of_copies:
                self._has_told_of_copies = True
                warn_of_copies(job.graph)
            frame = chained_frames(job, self._application.inputs, number, output.schema)
            self._frames[number] = frame
        return frame

    def _shipped(self, outputs: list[_Output]) -> ShippedJob:
        """Return the job of some outputs for Spark's workers."""
        application = self._application
        sinks = [sink for output in outputs for sink in output.sinks()]
        graph = application.build_graph(sinks)
        for node in graph.nodes:
            # Read by actions of their own: what this one drops of them is not lost.
            node.tags_given |= self._sides.keys()
        if self._is_streaming:
            check_stateless(graph)
        payload, limits = packed(graph, application.config, 1, self._seed, self._job_id)
        door = None
        if check_limits(limits, is_connect=is_connect(application.inputs[0].df)):
            host = self._session.conf.get("spark.driver.host", "127.0.0.1")
            door = open_door(host, secrets.token_bytes(16), limits)
        return ShippedJob(graph, JobLevels(graph), payload, limits, door, self._journal)


class Materialized:
    """The outputs of a pipeline that has run, read from where they were kept.

    Made by `Applied.materialize`.
    """

    def __init__(
        self,
        rows: Any,
        schemas: dict[int, Any],
        sides: dict[OutputTag, int],
        snapshot: Callable[[list[TaskView]], JobSnapshot],
    ) -> None:
        self._rows = rows
        self._schemas = schemas
        self._sides = sides
        self._snapshot = snapshot

    @property
    def result(self) -> Any:
        """The results of the pipeline, as a DataFrame."""
        return self._frame(_RESULT)

    @property
    def dead_letters(self) -> Any:
        """The records that were set aside, as a DataFrame; see `Applied.dead_letters`.

        Raises:
            UsageError: If no operator has dead letters.
        """
        return self._frame(_DEAD_LETTERS)

    def side(self, tag: OutputTag) -> Any:
        """Return a side output as a DataFrame.

        Raises:
            InvalidArgumentError: If it was not asked for before it ran.
        """
        if tag not in self._sides:
            raise InvalidArgumentError(
                "tag",
                f"side output {tag.id!r} was not kept",
                "Call applied.side(tag, schema=...) before applied.materialize(path).",
            )
        return self._frame(self._sides[tag])

    def snapshot(self) -> JobSnapshot:
        """Return what can be seen of the job at its end, as `JobClient.snapshot` does."""
        found = self._rows.where(f"kind = {int(RowKind.METRICS)}").select("payload")
        tasks = [
            view
            for row in found.collect()
            for view in msgspec.json.decode(bytes(row[0]), type=list[TaskView])
        ]
        tasks.sort(key=lambda view: (view.vertex, view.subtask_index))
        return self._snapshot(tasks)

    def metrics(self) -> JobMetrics:
        """Return what operators and tasks have counted, as `JobClient.metrics` does."""
        return JobMetrics.of(self.snapshot())

    def _frame(self, number: int) -> Any:
        if number not in self._schemas:
            raise UsageError(
                "no operator of the pipeline emits dead letters: pass "
                "on_error=am.dead_letter(am.OutputTag('failed'))."
            )
        mine = self._rows.where(f"kind = {int(RowKind.RESULT)} and edge = {number}")
        return mine.select("payload").mapInArrow(_unpacker(), self._schemas[number])


def _call_lines(vertex: JobVertex) -> Iterator[str]:
    """Yield how the calls of a vertex are divided over its tasks, and what limits them."""
    for node in vertex.nodes:
        item, tasks = node.transformation, vertex.parallelism
        if item.source is None:
            total = getattr(item.factory(), "concurrency", None)
            if total is not None:
                least, most = share(total, tasks, tasks - 1), share(total, tasks, 0)
                each = f"{most}" if least == most else f"{least} or {most}"
                yield (
                    f"  {item.name!r} has up to {each} calls in flight in each task: "
                    f"concurrency={total} is divided over {tasks} subtasks."
                )
        if item.limit is not None:
            whose = "each task" if item.limit.per_task else "all tasks together"
            yield f"  {item.name!r} has a limit for {whose}: {item.limit!r}."


def _watermark_lines(vertex: JobVertex) -> Iterator[str]:
    """Yield when the event times of a vertex move."""
    for node in vertex.nodes:
        item = node.transformation
        if not makes_watermarks(item):
            continue
        if waits_for_end(vertex, item):
            yield (
                f"  {item.name!r} holds its watermarks to the end of each partition, and "
                "windows fire there: its rows may have any order of time. Give "
                "order_by= the column of event time, or the strategy "
                ".with_watermarks_on_bounded_input()."
            )
        else:
            yield (
                f"  {item.name!r} emits watermarks as its strategy says: rows that come "
                "later than it allows are late."
            )


def _journal_of(application: Application, items: list[Transformation]) -> str | None:
    """Return where finished calls are kept."""
    keeping = [item for item in items if item.has_journal]
    place = application.journal
    if place is None:
        if keeping:
            raise UsageError(
                f"operator {keeping[0].name!r} has journal=True, and the journal "
                "has no directory: pass apply_to(df, journal=PATH), a directory "
                "that all of Spark's workers see."
            )
        return None
    if not keeping:
        raise InvalidArgumentError(
            "journal",
            "no operator has journal=True",
            "Write map_async(..., journal=True, id=...): the id says which call a record "
            "means.",
        )
    if "://" in place:
        raise InvalidArgumentError(
            "journal",
            f"{place!r} is a URL, and finished calls are appended to files",
            "Give a directory that all of Spark's workers see, e.g. a mounted one.",
        )
    run = job_directory(application.config.job_id or application.name)
    return str(Path(place).absolute() / run)


def _no_operator() -> Any:
    raise AssertionError("stands for the result, and is never made")


def _unpacker() -> Callable[[Iterator[Any]], Iterator[Any]]:
    # Nested: sent by value, so that a worker needs pyarrow only.
    def unpack(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            for payload in batch.column(0):
                with pa.ipc.open_stream(payload.as_buffer()) as stream:
                    yield from stream

    return unpack
