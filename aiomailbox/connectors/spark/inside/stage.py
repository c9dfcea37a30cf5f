"""One task of a pipeline inside a Spark worker.

Theory of operation: Spark calls `run_stage` in the worker's main thread and asks it for
one batch after the other. The event loop has a thread of its own, so that calls in
flight and timers go on between two batches; a third thread reads what Spark gives. Both
ways are bounded. Everything is made for one Spark task and ends with it: workers are
used again.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec
import pyarrow as pa

from aiomailbox.availability import Availability
from aiomailbox.clock import SystemClock
from aiomailbox.connectors.pump import Pump
from aiomailbox.connectors.spark.frame_source import (
    BatchRuns,
    FrameSource,
    hold_watermarks,
)
from aiomailbox.connectors.spark.inside.limits import LimitDoor, RemoteDoor
from aiomailbox.connectors.spark.inside.results import RESULTS
from aiomailbox.connectors.spark.inside.shuffle import (
    ChannelKey,
    Demultiplexer,
    RowWriter,
    ShuffleOutput,
)
from aiomailbox.connectors.spark.inside.wire import (
    JobLevels,
    Outlet,
    Place,
    RowKind,
    WireRow,
    rows_of_batch,
)
from aiomailbox.errors import CorruptStreamError, IllegalStateError
from aiomailbox.exchange.core.contract import OutputPartition
from aiomailbox.exchange.gate import InputChannel, InputGate
from aiomailbox.graph.job_graph import Edge
from aiomailbox.graph.transformation import OperatorFactory
from aiomailbox.ids import PartitionId, TaskId
from aiomailbox.journal.journals import SharedJournals
from aiomailbox.logs import library_log
from aiomailbox.memory.local_pool import LocalBufferPool, NetworkBufferPool
from aiomailbox.metrics.instruments import MetricGroup
from aiomailbox.operators.core.operator import Operator, Pending
from aiomailbox.operators.sources.source import (
    EnumeratorContext,
    InputStatus,
    ReaderContext,
    ReaderOutput,
    SplitReader,
    StaticEnumerator,
)
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.records.run import COLUMN_RUN_LENGTH_MAX, RUN_LENGTH_MAX
from aiomailbox.runtime.builder import (
    AttemptPlan,
    ChannelFactory,
    TaskBuilder,
    total_segments,
)
from aiomailbox.runtime.host import LocalTasks
from aiomailbox.runtime.limiter import LimiterService
from aiomailbox.runtime.peers.record_types import RECORDS_OF_OURS, element_codec
from aiomailbox.runtime.peers.shipping import unpack
from aiomailbox.runtime.services import JobServices
from aiomailbox.scratch import ScratchDirectories
from aiomailbox.supervision import LoopThread
from aiomailbox.task.messages import (
    SplitRequest,
    TaskCancelled,
    TaskEnded,
    TaskEvent,
)

# Batches that Spark gave and the pipeline has not yet taken.
_READ_AHEAD: Final = 2
# How long the loop may take to end once it was asked to.
_END_S: Final = 60.0
_NO_CLOCK: Final = (
    "inside Spark's shuffle a stage runs when the one before it has ended: there is no "
    "live clock for timers in processing time. Use event time, or run the pipeline "
    "embedded."
)


@dataclass(frozen=True, slots=True)
class StagePart:
    """The plan that the tasks of one stage, or of one source of the first, get.

    Attributes:
        payload: The job, as `pack` made it.
        limits: Its rate limits.
        level: The stage.
        vertex: Of the first stage, the source's place in it; else None.
        want: The one output whose batches leave the last stage; None for rows of all.
        door: Where the limits are that all workers share; None if there are none.
        journal: The directory of finished calls; None if none are kept.
    """

    payload: bytes
    limits: list[RateLimit]
    level: int
    vertex: int | None
    want: int | None
    door: LimitDoor | None
    journal: str | None


def run_stage(
    part: StagePart, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run one task; blocks. Called by Spark, once for each partition."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "called outside a Spark task"
    thread: LoopThread[None] = LoopThread("aiomailbox-stage")
    outlet = Outlet(thread.loop)
    task = _StageTask(part, context.partitionId(), context.attemptNumber(), outlet)
    ended = thread.start(lambda: task.run(batches))
    ended.add_done_callback(lambda _: outlet.end(ended.exception()))
    try:
        while (batch := outlet.take()) is not None:
            yield batch
    finally:
        # Spark may have enough: whatever is still under way is cancelled and closed.
        outlet.abandon()
        thread.call(task.cancel)
        thread.wait(_END_S)


class _Feed(Pump[pa.RecordBatch]):
    """Batches from Spark, on the loop."""

    def __init__(self, batches: Iterator[pa.RecordBatch], name: str) -> None:
        self.availability = Availability()
        super().__init__(
            lambda: iter(batches),
            self.availability.set_available,
            depth=_READ_AHEAD,
            name=name,
        )

    async def wait(self) -> pa.RecordBatch | None:
        """Return the next batch; None at the end."""
        while (batch := self.take()) is None and not self.ended:
            self.availability.reset()
            await self.availability.wait()
        return batch


class _StageTask:
    """The one task of a stage's partition, on its loop.

    It is the `Wiring` of the task, and where its results go.
    """

    def __init__(
        self, part: StagePart, partition: int, attempt: int, outlet: Outlet
    ) -> None:
        self.outlet = outlet
        self.room = outlet.room
        self._part = part
        self._partition = partition
        self._attempt = attempt
        self._tasks: LocalTasks | None = None
        self._is_cancelled = False
        self._errors: list[BaseException] = []
        self._main: asyncio.Task[Any] | None = None
        self._changed = Availability()
        shipment = unpack(part.payload, part.limits)
        self._door = None if part.door is None else RemoteDoor(part.door, part.limits)
        self._shipment = shipment
        self._levels = JobLevels(shipment.graph)
        self._is_last = part.level == len(self._levels) - 1
        self._gives_batches = self._is_last and part.want is not None
        self._place = self._find_place()
        self._codec = element_codec(shipment.record_types, has_arrow=shipment.has_arrow)
        producer = (self._place.vertex.id << 32) + partition
        self._writer = RowWriter(outlet, self._levels, part.level, producer)
        self._united: list[list[Edge]] = []
        self._keys: list[ChannelKey] = []
        self._input: Demultiplexer | None = None
        self._drained = Availability(available=True)
        self._metrics = MetricGroup(shipment.graph.name)

    async def run(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Run the task to its end."""
        self._main = asyncio.current_task()
        feed = _Feed(batches, f"aiomailbox-input-{self._partition}")
        feed.start()
        scratch = ScratchDirectories()
        try:
            async with anyio.create_task_group() as group:
                if self._part.level == 0:
                    self._attach(feed)
                else:
                    await self._begin_input(feed, group)
                if self._door is not None:
                    await self._door.connect()
                    group.start_soon(self._door.run)
                self._start(group, scratch)
                await self._until_over()
                group.cancel_scope.cancel()
        finally:
            if self._door is not None:
                self._door.close()
            feed.abandon()
            scratch.remove()
        if self._errors:
            raise self._errors[0]
        if not self._is_cancelled:
            if self._part.want is None:
                self._write_metrics()
            self._writer.flush()

    def cancel(self) -> None:
        """End the task; on its loop."""
        if self._tasks is None:
            self._is_cancelled = True
            if self._main is not None:
                self._main.cancel()
        else:
            self._tasks.cancel()

    @property
    def is_starved(self) -> bool:
        """Whether the consumer of the results has nothing to take."""
        return self.outlet.is_empty

    def offer_result(self, output: int, batch: pa.RecordBatch) -> None:
        """Take results of an output."""
        if self._gives_batches:
            self.outlet.offer(batch)
            return
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        self._writer.write_result(output, RowKind.RESULT, sink.getvalue())

    def _on_event(self, event: TaskEvent) -> None:
        """Take what the task reports."""
        match event:
            case SplitRequest():
                raise IllegalStateError("inside Spark there are no splits to ask for")
            case TaskCancelled():
                self._is_cancelled = True
            case TaskEnded(error=error):
                if error is not None:
                    self._errors.append(error)
                self._changed.set_available()
            case _:
                pass

    def is_here(self, task: TaskId) -> bool:
        """Say whether a task is built here: one is."""
        vertex, subtask_index = self._place
        return task.vertex == vertex.id and task.subtask_index == subtask_index

    def new_partition(
        self,
        edge: Edge,
        partition_id: PartitionId,
        pool: LocalBufferPool,
        count: int,
        remote_channels: list[int],
    ) -> OutputPartition:
        """Return an output towards the shuffle."""
        target = self._levels.targets[id(edge)]
        subtasks = target.subtasks[self._place.subtask_index]
        return ShuffleOutput(
            partition_id, pool, target, subtasks, self._writer, self._codec
        )

    def new_blocking_partition(
        self, edge: Edge, partition_id: PartitionId, pool: LocalBufferPool, count: int
    ) -> OutputPartition:
        """Return an output towards the shuffle, which always is of this kind."""
        return self.new_partition(edge, partition_id, pool, count, [])

    def open_gate(self, owner: str, remote_channels: int) -> ChannelFactory:
        """Note which edges a gate has; its channels are those that Spark brings."""
        edges: list[Edge] = []
        self._united.append(edges)

        def note(edge: Edge, partition_id: PartitionId, index: int) -> InputChannel:
            if edge not in edges:
                edges.append(edge)
            return InputChannel()

        return note

    def new_gate(self, channels: list[InputChannel], name: str) -> InputGate:
        """Return a gate with a channel for each producer that has sent a beginning."""
        numbers = [self._levels.targets[id(edge)].number for edge in self._united[-1]]
        keys = [key for key in self._keys if key.edge in numbers]
        assert self._input is not None, "only later stages have gates"
        return InputGate(self._input.channels(keys), name=name)

    def _find_place(self) -> Place:
        part, levels = self._part, self._levels
        if part.vertex is None:
            return levels.place(part.level, self._partition)
        vertex = levels.vertices[0][part.vertex]
        # Spark may have more partitions than the source has subtasks in name.
        return Place(vertex, self._partition % vertex.parallelism)

    def _repeat_orders(self) -> None:
        """Let results come in an order that a repeated task repeats.

        What follows may deal records by their number: were it not the same, a task that
        Spark repeats would give some records twice and others not at all. Results of the
        last stage leave as ``ordered=`` says: Spark takes those of one attempt.
        """
        if self._is_last:
            return
        for node in self._place.vertex.nodes:
            item = node.transformation
            if item.source is None:
                item.factory = partial(_in_order, item.factory)

    def _attach(self, feed: _Feed) -> None:
        """Let the source read what Spark gives, in runs as long as its chain may have."""
        head, *rest = [node.transformation for node in self._place.vertex.nodes]
        columns = all(each.takes_columns for each in rest)
        run_length = COLUMN_RUN_LENGTH_MAX if columns else RUN_LENGTH_MAX
        head.factory.attach(feed, run_length)  # type: ignore[attr-defined]

    async def _begin_input(self, feed: _Feed, group: anyio.abc.TaskGroup) -> None:
        """Read who produces, which comes first, and leave the rest for later."""
        self._input = Demultiplexer(
            self._codec, self._forward, self._drained.set_available
        )
        vertex = self._place.vertex
        mine = {
            self._levels.targets[id(edge)].number
            for united in vertex.in_edges
            for edge in united
        }
        rest: list[WireRow] = []
        while not rest and (batch := await feed.wait()) is not None:
            for row in rows_of_batch(batch):
                self._check(row)
                if row.kind != RowKind.BEGIN:
                    rest.append(row)
                elif row.edge in mine:
                    self._keys.append(ChannelKey(row.edge, row.producer))
                else:
                    self._forward(row)
        group.start_soon(self._read_input, feed, rest)

    async def _read_input(self, feed: _Feed, rows: list[WireRow]) -> None:
        """Give rows to the task, a batch at a time."""
        demultiplexer = self._input
        assert demultiplexer is not None, "only later stages have rows"
        try:
            while True:
                self._drained.reset()
                demultiplexer.take(rows)
                await self._drained.wait()
                while not self.outlet.room.available:
                    await self.outlet.room.wait()
                batch = await feed.wait()
                if batch is None:
                    break
                rows = [*rows_of_batch(batch)]
            demultiplexer.end()
        except Exception as error:  # noqa: BLE001 -- the task trips over it
            demultiplexer.fail(error)

    def _forward(self, row: WireRow) -> None:
        """Pass on what is for a later stage, or for the consumer of the results."""
        if self._gives_batches:
            with pa.ipc.open_stream(row.payload) as stream:
                for batch in stream:
                    self.outlet.offer(batch)
        else:
            self._writer.forward(row)

    def _check(self, row: WireRow) -> None:
        if row.part != self._partition:
            raise CorruptStreamError(
                f"Spark brought a row for partition {row.part} to partition "
                f"{self._partition}: the plan between two stages was changed"
            )

    def _start(self, group: anyio.abc.TaskGroup, scratch: ScratchDirectories) -> None:
        if self._is_cancelled:
            return
        self._repeat_orders()
        hold_watermarks(self._place.vertex)
        shipment = self._shipment
        services = self._services()
        services.state_backend = shipment.config.state_backend.placed(scratch.below)
        builder = TaskBuilder(
            shipment.graph,
            shipment.config,
            services,
            AttemptPlan(self._attempt),
            self._on_event,
            wiring=self,
        )
        self._tasks = LocalTasks()
        self._tasks.add(builder.build(), self._on_event)
        self._tasks.start(group)

    async def _until_over(self) -> None:
        tasks = self._tasks
        while tasks is not None and not tasks.is_over:
            await self._changed.wait()
            self._changed.reset()

    def _write_metrics(self) -> None:
        """Tell what can be seen of the task, with the results."""
        views = [] if self._tasks is None else self._tasks.views(with_stacks=False)
        self._writer.write_result(0, RowKind.METRICS, msgspec.json.encode(views))

    def _services(self) -> JobServices:
        shipment, clock = self._shipment, SystemClock()
        name, journal = shipment.graph.name, self._part.journal
        classes = (*RECORDS_OF_OURS, *shipment.record_types)
        return JobServices(
            job_name=name,
            execution_id=shipment.job_id.hex(),
            clock=clock,
            # The same in each attempt, another one in each partition.
            seed=shipment.seed + self._partition,
            log=library_log(job=name),
            metrics=self._metrics,
            pool=NetworkBufferPool(total_segments(shipment.graph, shipment.config)),
            limiters=(
                LimiterService(clock) if self._door is None else self._door.limits
            ),
            handovers={RESULTS: self},  # type: ignore[dict-item]
            no_processing_time=_NO_CLOCK,
            job_id=shipment.config.job_id or name,
            state_classes=classes,
            journals=None
            if journal is None
            else SharedJournals(Path(journal), classes),
        )


def _in_order(factory: OperatorFactory) -> Operator:
    made = factory()
    made.repeat_order()
    return made


# The DataFrame's rows as a source inside a Spark worker.


class StageInput(FrameSource):
    """A DataFrame as the source of a stage; picklable until it is attached."""

    _feed: _Feed | None = None
    _run_length = RUN_LENGTH_MAX

    def attach(self, feed: _Feed, run_length: int) -> None:
        """Say where the batches come from, where they do."""
        self._feed, self._run_length = feed, run_length

    def create_enumerator(
        self, context: EnumeratorContext[Any], state: list[Any] | None = None
    ) -> StaticEnumerator[Any]:
        """Refuse: Spark says which task reads what."""
        raise IllegalStateError("inside Spark there are no splits to hand out")

    def create_reader(self, context: ReaderContext) -> _StageReader:
        """Create the reader of the stage's task."""
        if self._feed is None:
            raise IllegalStateError(
                "this pipeline reads the rows of a DataFrame: run it with apply_to(df)"
            )
        return _StageReader(self._feed, self.runs(), self._run_length)


class _StageReader(SplitReader[Any]):
    """Emits the batches in runs whose lengths depend on nothing but the batches.

    A watermark follows each run: were their lengths those that the task wishes for,
    which depend on time, what is late would depend on time.
    """

    def __init__(self, feed: _Feed, runs: BatchRuns, run_length: int) -> None:
        super().__init__()
        self.availability = feed.availability
        self._feed = feed
        self._runs = runs
        self._run_length = run_length
        self._batch: pa.RecordBatch | None = None
        self._offset = 0
        # Rows of the batches before it.
        self._first = 0

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        """Emit the next run."""
        if self._batch is None:
            self._batch, self._offset = self._feed.take(), 0
        batch = self._batch
        if batch is None:
            if self._feed.ended:
                return InputStatus.END_OF_INPUT
            self.availability.reset()
            return InputStatus.NOTHING_AVAILABLE
        run, self._offset = self._runs.cut(
            batch, self._first, self._offset, self._run_length
        )
        if self._offset >= batch.num_rows:
            self._batch = None
            self._first += batch.num_rows
        output.emit_run(run)
        return InputStatus.MORE_AVAILABLE

    def close(self) -> Pending:
        """The feed is not this reader's."""
        self._batch = None
        return None
