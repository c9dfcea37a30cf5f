"""Jobs out of transformations, run on the test's loop, and checks that nothing stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest

from aiomailbox.eventtime.strategy import WatermarkStrategy
from aiomailbox.exchange.writer import KeyGroupPartitioner, Partitioner
from aiomailbox.graph.job_graph import build_job_graph
from aiomailbox.graph.transformation import ChainingStrategy, Origin, Transformation
from aiomailbox.operators.core.operator import Operator
from aiomailbox.operators.sinks.sink import SinkOperator
from aiomailbox.operators.sources.operator import SourceOperator
from aiomailbox.records.events import OutputTag
from aiomailbox.runtime.config import JobConfig
from aiomailbox.runtime.deployment import new_embedded_job
from aiomailbox.runtime.master import JobMaster
from aiomailbox.runtime.services import PullHandover
from aiomailbox.testing import ScriptedSource


class Recorder(Operator):
    """Passes records on and writes everything down with its subtask."""

    def __init__(self, log: list[Any], hooks: dict[str, Any]) -> None:
        self.log = log
        self.hooks = hooks

    def _call(self, what: str, *args: Any) -> Any:
        hook = self.hooks.get(what)
        return None if hook is None else hook(self, *args)

    def open(self) -> Any:
        return self._call("open")

    def process_run(self, run: Any) -> Any:
        index = self.context.subtask_index
        self.log += [(index, value) for value in run.values]
        if "run" in self.hooks:
            return self._call("run", run)
        return self.output.emit_run(run)

    def process_watermark(self, timestamp_ms: int) -> Any:
        if "watermark" in self.hooks:
            self._call("watermark", timestamp_ms)
        return super().process_watermark(timestamp_ms)

    def finish(self) -> Any:
        return self._call("finish")

    def close(self) -> Any:
        return self._call("close")


class TestCommitter:
    """Writes down what the job asks for."""

    __test__ = False

    def __init__(self, sink: TestSink) -> None:
        self.sink = sink

    def _call(self, what: str) -> Any:
        hook = self.sink.hooks.get(what)
        return None if hook is None else hook()

    def begin(self, *, restored: bool) -> Any:
        self.sink.log.append("begin")
        return self._call("begin")

    def commit(
        self, committables: list[Any], *, checkpoint_id: int, is_final: bool
    ) -> Any:
        assert is_final
        assert checkpoint_id == 0
        self.sink.log.append(f"commit {sorted(committables)}")
        return self._call("commit")

    def end(self, *, succeeded: bool) -> Any:
        self.sink.log.append(f"end {succeeded}")
        return self._call("end")


class TestWriter:
    """Prepares the records it was given."""

    __test__ = False

    def __init__(self, sink: TestSink) -> None:
        self.sink = sink
        self.values: list[Any] = []

    def write_run(self, run: Any) -> Any:
        self.values += run.values

    def flush(self, *, end_of_input: bool) -> Any:
        return None

    def prepare_commit(self) -> list[Any]:
        values, self.values = self.values, []
        return values

    def snapshot(self) -> object:
        return None

    def restore(self, state: object) -> None:
        pass

    def close(self) -> Any:
        self.sink.log.append("close")


class TestSink:
    """A sink with a committer."""

    __test__ = False

    def __init__(self, log: list[str] | None = None, **hooks: Any) -> None:
        self.log: list[str] = [] if log is None else log
        self.hooks = hooks

    def create_writer(self, context: Any) -> TestWriter:
        return TestWriter(self)

    def create_committer(self, context: Any) -> TestCommitter:
        return TestCommitter(self)


class Bench:
    """Describes and runs jobs."""

    sink_type = TestSink

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.jobs: list[JobMaster] = []
        self.handover = PullHandover()

    def source(
        self, *scripts: Any, strategy: Any = None, source: Any = None, **facts: Any
    ) -> Transformation:
        """A source of scripts, one a split."""
        run_length = facts.pop("run_length", 1)
        ends = facts.pop("ends", True)
        found = source or ScriptedSource(
            {str(number): script for number, script in enumerate(scripts)},
            run_length=run_length,
            ends=ends,
        )
        return Transformation(
            "source", partial(SourceOperator, found, strategy), source=found, **facts
        )

    def timed(self) -> WatermarkStrategy[Any]:
        """Event times as they come, without delay."""
        return WatermarkStrategy.for_monotonous_timestamps()

    def operator(
        self,
        upstream: Transformation | list[Origin],
        name: str = "operator",
        *,
        way: Partitioner | None = None,
        tag: OutputTag | None = None,
        log: list[Any] | None = None,
        hooks: dict[str, Any] | None = None,
        **facts: Any,
    ) -> Transformation:
        """An operator that writes down what it is given; it starts a task."""
        origins = (
            upstream if isinstance(upstream, list) else [Origin(upstream, way, tag)]
        )
        kept = self.log if log is None else log
        facts.setdefault("chaining", ChainingStrategy.HEAD)
        return Transformation(
            name, partial(Recorder, kept, hooks or {}), [origins], **facts
        )

    def keyed(self, upstream: Transformation, key: Any, **facts: Any) -> Transformation:
        """An operator behind an exchange by key."""
        return self.operator(
            upstream, way=KeyGroupPartitioner(key, 128), is_keyed=True, **facts
        )

    def sink(
        self, upstream: Transformation, sink: Any, name: str = "sink", **facts: Any
    ) -> Transformation:
        """The end of a stream."""
        return Transformation(
            name, partial(SinkOperator, sink), [[Origin(upstream)]], sink=sink, **facts
        )

    def deploy(
        self,
        *sinks: Transformation,
        parallelism: int = 1,
        chaining: bool = True,
        **config: Any,
    ) -> JobMaster:
        """Start a job."""
        job = self.prepare(*sinks, parallelism=parallelism, chaining=chaining, **config)
        self.jobs.append(job)
        job.start()
        return job

    def prepare(
        self,
        *sinks: Transformation,
        parallelism: int = 1,
        chaining: bool = True,
        **config: Any,
    ) -> JobMaster:
        """Make a job that somebody else starts, in whole or in parts."""
        graph = build_job_graph(
            "job", list(sinks), parallelism=parallelism, chaining=chaining
        )
        return new_embedded_job(
            graph,
            JobConfig(seed=1, **config),
            clock=None,
            handovers={"results": self.handover},
        )

    async def settle(self, turns: int = 100) -> None:
        """Let everything happen that needs no time."""
        for _ in range(turns):
            await asyncio.sleep(0)

    def check_nothing_stays(self) -> None:
        """Check that no asyncio task, permit or partition is left of any job."""
        assert asyncio.all_tasks() <= {asyncio.current_task()}
        for job in self.jobs:
            job.services.pool.check_leaks()
            assert len(job.services.registry) == 0
            for task in job.tasks:
                assert task.lifecycle.is_terminal
                assert not task.processor.mailbox.is_open


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    for job in made.jobs:
        made.handover.abandon()
        job.cancel()
        await job.join()
    await made.settle(3)
    made.check_nothing_stays()


@pytest.fixture
def new_sink() -> Callable[..., TestSink]:
    return TestSink


@pytest.fixture
def new_bench() -> type[Bench]:
    return Bench
