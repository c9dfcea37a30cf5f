"""A bench for one task: what feeds it, what reads it, operators that keep a log."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from aiomailbox.clock import clock_of
from aiomailbox.exchange.gate import (
    InputGate,
    LocalInputChannel,
    PartitionRegistry,
)
from aiomailbox.exchange.partition import ResultPartition
from aiomailbox.exchange.writer import ForwardPartitioner, RecordWriter
from aiomailbox.ids import PartitionId, TaskId, VertexId
from aiomailbox.memory.local_pool import NetworkBufferPool
from aiomailbox.metrics.instruments import MetricGroup
from aiomailbox.operators.core.operator import Operator, TwoInputOperator
from aiomailbox.records.events import OutputTag, StopMode, Watermark
from aiomailbox.records.run import ListRun, Run
from aiomailbox.state.operator_state import OperatorStateSnapshot
from aiomailbox.task.environment import (
    JobEnvironment,
    OperatorPlan,
    OutgoingEdge,
    TaskCheckpointing,
    TaskEnvironment,
    TaskPlan,
    TaskSettings,
)
from aiomailbox.task.in_flight import TaskSnapshot
from aiomailbox.task.outputs import SLICE_TARGET_S
from aiomailbox.task.stream_task import StreamTask
from aiomailbox.testing import (
    FreeLimiter,
    MemoryHandover,
    RecordingLog,
)


class LogOperator(Operator):
    """Passes everything on and writes down what is done to it.

    ``hooks`` are called after the entry was written, with the operator and the
    method's arguments; what they return is returned.
    """

    def __init__(self, log: list[str], name: str, hooks: dict[str, Any]) -> None:
        self.log = log
        self.name = name
        self.hooks = hooks

    def _note(self, what: str, *args: Any) -> Any:
        self.log.append(f"{self.name}.{what}")
        hook = self.hooks.get(what)
        return None if hook is None else hook(self, *args)

    def open(self) -> Any:
        return self._note("open")

    def process_run(self, run: Any) -> Any:
        if "run" in self.hooks:
            return self.hooks["run"](self, run)
        return self.output.emit_run(run)

    def end_input(self) -> Any:
        return self._note("end_input")

    def finish(self) -> Any:
        return self._note("finish")

    def close(self) -> Any:
        return self._note("close")

    def restore_own(self, own: OperatorStateSnapshot) -> None:
        (state,) = own.elements("name")
        self._note(f"restore {state}")

    def snapshot_own(self) -> OperatorStateSnapshot:
        return OperatorStateSnapshot().with_list("name", [self.name])


class TwoLogOperator(TwoInputOperator):
    """Writes down the records of both inputs."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log

    def process_input(self, index: int, run: Run) -> Any:
        self.log += [f"{index + 1}:{value}" for value in run.values]
        return self.output.emit_run(ListRun(run.values))

    def input_ended(self, index: int) -> Any:
        self.log.append(f"end {index + 1}")

    def finish(self) -> Any:
        self.log.append("finish")


class Producer:
    """What feeds one channel of a gate."""

    def __init__(self, bench: Bench, number: int, permits: int) -> None:
        pool = bench.memory.create_local_pool(permits, owner="in", subpartitions=1)
        self.partition_id = PartitionId(TaskId(VertexId(100 + number), 0, 0), 0)
        self.partition = ResultPartition(self.partition_id, pool, 1)
        bench.registry.register(self.partition)
        self.writer = RecordWriter(
            self.partition, ForwardPartitioner(), flush_interval_ms=0
        )

    def send(self, *values: Any) -> None:
        self.writer.emit_run(ListRun(list(values)))

    def watermark(self, timestamp_ms: int) -> None:
        self.writer.emit_control(Watermark(timestamp_ms))

    def end(self, mode: StopMode = StopMode.DRAIN) -> None:
        self.writer.notify_end_of_data(mode)
        self.writer.finish()


class Consumer:
    """What reads one output of the task."""

    def __init__(self, gate: InputGate) -> None:
        self.gate = gate
        self.elements: list[Any] = []
        gate.request_partitions()

    def read(self, buffers: int | None = None) -> list[Any]:
        """Take what is there and return the new records and control elements."""
        start = len(self.elements)
        while buffers is None or buffers > 0:
            polled = self.gate.poll_next()
            if polled is None:
                break
            if buffers is not None:
                buffers -= 1
            with polled[1] as buffer:
                if buffer.event is not None:
                    self.elements.append(buffer.event)
                for element in buffer.elements:
                    if isinstance(element, ListRun):
                        self.elements.extend(element.values)
                    else:
                        self.elements.append(element)
        return self.elements[start:]


class Bench:
    """Builds and runs one task."""

    def __init__(self) -> None:
        self.clock = clock_of(asyncio.get_running_loop())
        self.memory = NetworkBufferPool(512)
        self.registry = PartitionRegistry()
        self.log: list[str] = []
        self.plans: list[OperatorPlan] = []
        self.gates: list[InputGate] = []
        self.writers: list[RecordWriter] = []
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        self.task_id = TaskId(VertexId(7), 0, 0)
        self.metrics = MetricGroup("task")
        self.checkpointing: TaskCheckpointing | None = None
        self.cancel_timeout_s = 30.0
        self.slice_target_s = SLICE_TARGET_S
        self.runner: asyncio.Task[None] | None = None

    def input(self, channels: int = 1, permits: int = 8) -> list[Producer]:
        """Add a gate and return what feeds its channels."""
        made = [
            Producer(self, len(self.producers) + index, permits)
            for index in range(channels)
        ]
        self.producers += made
        self.gates.append(
            InputGate(
                [
                    LocalInputChannel(self.registry, each.partition_id, 0)
                    for each in made
                ]
            )
        )
        return made

    def output(
        self,
        operator: int = -1,
        tag: OutputTag | None = None,
        permits: int = 8,
        flush_interval_ms: int | None = 0,
    ) -> Consumer:
        """Add a writer behind an operator and return what reads it."""
        partition_id = PartitionId(self.task_id, len(self.writers))
        pool = self.memory.create_local_pool(
            permits, permits, owner="out", subpartitions=1
        )
        partition = ResultPartition(partition_id, pool, 1)
        self.registry.register(partition)
        writer = RecordWriter(
            partition, ForwardPartitioner(), flush_interval_ms=flush_interval_ms
        )
        self.writers.append(writer)
        self.plans[operator].outgoing.append(OutgoingEdge(writer=writer, tag=tag))
        consumer = Consumer(
            InputGate([LocalInputChannel(self.registry, partition_id, 0)], name="test")
        )
        self.consumers.append(consumer)
        return consumer

    def add(
        self,
        factory: Callable[[], Operator],
        name: str = "operator",
        *,
        after: int | None = None,
        tag: OutputTag | None = None,
        uid: str | None = None,
    ) -> int:
        """Add an operator, chained to an earlier one, and return its index."""
        index = len(self.plans)
        self.plans.append(OperatorPlan(name, uid, factory))
        if after is None and index:
            after = index - 1
        if after is not None:
            self.plans[after].outgoing.append(OutgoingEdge(target=index, tag=tag))
        return index

    def logged(self, name: str, after: int | None = None, **hooks: Any) -> int:
        """Add an operator that writes down its life."""
        return self.add(lambda: LogOperator(self.log, name, hooks), name, after=after)

    def two_inputs(self) -> int:
        """Add a head with two inputs that writes down its records."""
        return self.add(lambda: TwoLogOperator(self.log), "two")

    def build(self, restored: TaskSnapshot | None = None) -> StreamTask:
        """Make the task."""
        job = JobEnvironment(
            job_name="job",
            execution_id="0" * 32,
            job_id="job",
            clock=self.clock,
            seed=1,
            log=RecordingLog(),
            metrics=self.metrics,
            handovers=defaultdict(MemoryHandover),
            slice_target_s=self.slice_target_s,
        )
        environment = TaskEnvironment(
            job=job,
            settings=TaskSettings(cancel_timeout_s=self.cancel_timeout_s),
            task_id=self.task_id,
            task_name="task (1/1)",
            parallelism=1,
            max_parallelism=128,
            log=job.log,
            metrics=self.metrics,
            prepared=lambda operator_id, committables: None,
            limiter=lambda _: FreeLimiter(),
            report=lambda event: None,
            checkpointing=self.checkpointing,
        )
        self.task = StreamTask(
            environment,
            TaskPlan(self.plans, [*self.gates], self.writers),
            restored,
        )
        return self.task

    def start(self, restored: TaskSnapshot | None = None) -> StreamTask:
        """Make the task and run it in the background."""
        task = self.build(restored)
        loop = asyncio.get_running_loop()
        self.runner = loop.create_task(task.run(), name="task")
        return task

    async def settle(self, turns: int = 50) -> None:
        """Let everything happen that needs no time."""
        for _ in range(turns):
            await asyncio.sleep(0)

    async def end(self) -> BaseException | None:
        """Wait for the end of the task and return what it raised."""
        assert self.runner is not None, "start() comes first"
        await asyncio.wait([self.runner])
        if self.runner.cancelled():
            return asyncio.CancelledError()
        return self.runner.exception()

    async def tear_down(self) -> None:
        """End what the test left running, and check that nothing is kept."""
        if self.runner is not None and not self.runner.done():
            self.task.cancel()
            await asyncio.wait([self.runner])
        for consumer in self.consumers:
            consumer.gate.close()
        for producer in self.producers:
            producer.partition.release()
        self.memory.destroy_all_local_pools()
        await self.settle(3)
        if self.runner is not None:
            self.memory.check_leaks()
        assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    await made.tear_down()
