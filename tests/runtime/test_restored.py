"""A job that goes on from a snapshot: other chains, other parallelism, same results."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, NamedTuple

import pytest

import aiomailbox as am
from aiomailbox.checkpoint.restored import (
    SavedJob,
    job_snapshot,
    received,
    restored_tasks,
    sent,
)
from aiomailbox.clock import clock_of
from aiomailbox.errors import StateError
from aiomailbox.eventtime.timers import TimerSnapshot
from aiomailbox.eventtime.valve import ValveSnapshot
from aiomailbox.graph.job_graph import JobGraph, build_job_graph, channel_name
from aiomailbox.ids import OperatorId, VertexId
from aiomailbox.memory.local_pool import NetworkBufferPool
from aiomailbox.metrics.instruments import MetricGroup
from aiomailbox.operators.snapshots.codec import decode_snapshot, encode_snapshot
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.runtime.builder import AttemptPlan, TaskBuilder
from aiomailbox.runtime.config import JobConfig
from aiomailbox.runtime.host import LocalTasks
from aiomailbox.runtime.limiter import LimiterService
from aiomailbox.runtime.services import JobServices
from aiomailbox.runtime.sources import JobSources
from aiomailbox.state.operator_state import OperatorStateSnapshot
from aiomailbox.state.snapshot import KeyedStateSnapshot, StateMeta
from aiomailbox.task.in_flight import TaskSnapshot
from aiomailbox.task.messages import SplitRequest, TaskEvent
from aiomailbox.testing import PAUSE, RecordingLog, ScriptedSource


class Row(NamedTuple):
    key: str
    number: int


def rows(*numbers: int) -> list[Any]:
    return [(Row(key, number), number) for number in numbers for key in "abcde"]


# At each PAUSE event time is behind the first window: 5 and 3 are late in any order.
SCRIPTS = {
    "first": [*rows(1, 4, 12, 16), PAUSE, *rows(18, 5, 21, 33)],
    "second": [*rows(2, 15), PAUSE, *rows(17, 3, 26, 40)],
    "third": [*rows(6, 14), PAUSE, *rows(18, 24)],
}


class Counting(am.KeyedProcessFunction):
    seen = am.ValueStateDescriptor("seen", int, default=0)

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        state = context.keyed_state.get_value(self.seen)
        state.update(state.value() + 1)
        context.timer_service.register_event_time_timer(value.number + 8)
        context.timer_service.register_event_time_timer(1000)

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        seen = (
            context.keyed_state.get_value(self.seen).value()
            if timestamp == 1000
            else None
        )
        out.collect((context.current_key, timestamp, seen))


def pipeline(source: ScriptedSource, results: list[Any]) -> Any:
    env = am.StreamExecutionEnvironment()
    strategy = am.WatermarkStrategy.for_bounded_out_of_orderness(am.seconds(0.003))
    stream = env.from_source(source, strategy, name="rows")
    late = am.OutputTag("late")
    windows = (
        stream.filter(lambda row: row.number % 7 != 0)
        .key_by(lambda row: row.key)
        .window(am.TumblingEventTimeWindows.of(am.seconds(0.01)))
        .side_output_late_data(late)
        .aggregate(am.sum_("number"))
    )
    windows.map(lambda total: ("window", total)).sink_to(results.append)
    windows.get_side_output(late).map(lambda row: ("late", row)).sink_to(results.append)
    counted = stream.key_by(lambda row: row.key).process(Counting())
    counted.sink_to(results.append)
    return list(env._definition.sinks)


class Life:
    """One attempt of a job on this loop, from a snapshot to a snapshot."""

    def __init__(self, graph: JobGraph, kept: SavedJob | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.graph = graph
        services = JobServices(
            job_name="job",
            job_id="job",
            execution_id="0" * 32,
            clock=clock_of(loop),
            seed=1,
            log=RecordingLog(),
            metrics=MetricGroup("job"),
            pool=NetworkBufferPool(4096),
            limiters=LimiterService(clock_of(loop)),
        )
        self.graph = graph
        self.sources = JobSources(self._tell)
        builder = TaskBuilder(
            graph,
            JobConfig(),
            services,
            AttemptPlan(restored={} if kept is None else restored_tasks(kept, graph)),
            self.on_event,
        )
        self.tasks = builder.build()
        self.local = LocalTasks()
        self.local.add(self.tasks, self.on_event)
        self.running = [loop.create_task(task.run()) for task in self.tasks]
        self.sources.prepare(graph, None if kept is None else kept.enumerators)
        self.sources.start()

    def on_event(self, event: TaskEvent) -> None:
        if isinstance(event, SplitRequest):
            self.sources.request_split(event.task)

    def _tell(self, tasks: Any, command: Any) -> None:
        self.local.tell(tasks, command)

    async def snapshot(self) -> SavedJob:
        """Return a snapshot while nothing is in flight, and end."""
        await asyncio.sleep(10)
        found: dict[VertexId, list[TaskSnapshot]] = {}
        for task in self.tasks:
            one = await task.processor.main_executor.submit(task.snapshot)
            found.setdefault(task.environment.task_id.vertex, []).append(one)
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.running)
        heads = {one.id: one.head.operator_id for one in self.graph.vertices}
        vertices = {heads[vertex]: tasks for vertex, tasks in found.items()}
        kept = job_snapshot(vertices, self.sources.snapshot(1))
        return SavedJob(
            {
                name: [*map(through_bytes, each)]
                for name, each in kept.operators.items()
            },
            kept.inputs,
            {name: through_bytes(one) for name, one in kept.enumerators.items()},
        )


def through_bytes(snapshot: Any) -> Any:
    return decode_snapshot(encode_snapshot(snapshot, [Row]), [Row])


def graph_of(source: ScriptedSource, results: list[Any], **options: Any) -> JobGraph:
    sinks = pipeline(source, results)
    return build_job_graph("job", sinks, max_parallelism=128, **options)


WAYS = [
    {"parallelism": 1},
    {"parallelism": 1, "chaining": False},
    {"parallelism": 3},
    {"parallelism": 2, "chaining": False},
]


@pytest.mark.parametrize("after", WAYS, ids=str)
@pytest.mark.parametrize("before", WAYS, ids=str)
async def test_a_job_goes_on_in_other_chains_and_with_other_parallelism(
    before: Any, after: Any
) -> None:
    whole: list[Any] = []
    source = ScriptedSource(SCRIPTS, timed=True)
    life = Life(graph_of(source, whole, **before))
    await asyncio.sleep(10)
    source.resume()
    await asyncio.gather(*life.running)
    assert {"late", "window", "a"} <= {result[0] for result in whole}

    results: list[Any] = []
    source = ScriptedSource(SCRIPTS, timed=True)
    first = Life(graph_of(source, results, **before))
    kept = await first.snapshot()
    assert results
    second = Life(graph_of(source, results, **after), kept)
    await asyncio.sleep(10)
    source.resume()
    await asyncio.gather(*second.running)
    assert Counter(results) == Counter(whole)


def test_state_that_no_operator_has_is_refused_unless_it_may_be_lost() -> None:
    source = ScriptedSource(SCRIPTS, timed=True)
    graph = graph_of(source, [])
    own = OperatorStateSnapshot().with_list("splits", ["a"])
    kept = SavedJob({OperatorId("gone"): [OperatorSnapshot(own=own)]})
    with pytest.raises(StateError, match=r"state of operators \['gone'\].*uid"):
        restored_tasks(kept, graph)
    assert restored_tasks(kept, graph, allow_unmatched=True) == {}
    empty = SavedJob({OperatorId("gone"): [OperatorSnapshot(watermark=3), None]})
    assert restored_tasks(empty, graph) == {}


def test_inputs_go_on_from_the_one_behind_where_there_are_others() -> None:
    graph = graph_of(ScriptedSource(SCRIPTS), [], parallelism=3)
    keyed = next(v for v in graph.vertices if "process" in v.head.name)
    head = keyed.head.operator_id
    times = [
        (ValveSnapshot(stamp, channels=((stamp, True, True),)),) for stamp in (5, 3)
    ]
    found = restored_tasks(SavedJob(inputs={head: times}), graph)
    assert [found[keyed.id, index].inputs[head] for index in range(3)] == [
        (ValveSnapshot(3),)
    ] * 3


def test_another_number_of_key_groups_is_refused_by_the_operators_name() -> None:
    graph = graph_of(ScriptedSource(SCRIPTS), [])
    keyed = next(v for v in graph.vertices if "process" in v.head.name).head
    meta = StateMeta("seen", "value", namespaced=False, ttl=False)
    timers = {"timers": TimerSnapshot(64, {0: [(1, "a", None)]}, {})}
    for one in (
        OperatorSnapshot((KeyedStateSnapshot(64, [meta]),)),
        OperatorSnapshot(timers=timers),
    ):
        kept = SavedJob({keyed.operator_id: [None, one]})
        with pytest.raises(StateError, match=r"process.*max_parallelism 64.*has 128"):
            restored_tasks(kept, graph)
    # One that has no state yet was placed nowhere.
    empty = OperatorSnapshot((KeyedStateSnapshot(64),))
    restored_tasks(SavedJob({keyed.operator_id: [empty]}), graph)


def test_records_in_flight_go_to_who_reads_their_channel_or_nowhere() -> None:
    graph = graph_of(ScriptedSource(SCRIPTS), [], parallelism=2)
    keyed = next(v for v in graph.vertices if "process" in v.head.name)
    edge = keyed.head.in_edges[0][0]
    name = channel_name(edge, 1, 0)
    producer, consumer = edge.source.operator_id, keyed.head.operator_id
    tasks = {
        producer: [
            TaskSnapshot(),
            TaskSnapshot(channel_state={sent(name): (b"b", b"c")}),
        ],
        consumer: [
            TaskSnapshot(channel_state={received(name): (b"a",)}),
            TaskSnapshot(),
        ],
    }
    found = restored_tasks(job_snapshot(tasks), graph)
    # What had arrived comes first: the rest may end an element that begins there.
    state = {received(name): (b"a", b"b", b"c")}
    assert found == {(keyed.id, 0): TaskSnapshot(channel_state=state)}
    wider = graph_of(ScriptedSource(SCRIPTS), [], parallelism=3)
    with pytest.raises(StateError, match=r"in flight.*take a savepoint"):
        restored_tasks(job_snapshot(tasks), wider)
