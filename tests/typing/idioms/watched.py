"""What shows a running job, and what tests a pipeline. Checked, and never run."""

from __future__ import annotations

import asyncio
from typing import Any, assert_type

import pyarrow.compute as pc
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

import aiomailbox as am
from aiomailbox import testing
from aiomailbox.observe.otel import OpenTelemetryExport
from aiomailbox.observe.prometheus import PrometheusExport
from aiomailbox.windowing.spec import WindowExplanation
from tests.typing.idioms.streams import Order


def pages(job: am.JobClient) -> None:
    assert_type(am.observe.dashboard(job), Starlette)
    assert_type(am.observe.dashboard(job, token="secret"), Starlette)
    assert_type(am.observe.dashboard(allow_remote=True), Starlette)
    seen = am.observe.LatestSnapshot()
    seen(job.snapshot())
    assert_type(am.observe.dashboard(seen), Starlette)


def exporters(job: am.JobClient) -> None:
    registry = CollectorRegistry()
    assert_type(am.observe.prometheus(job, registry), PrometheusExport)
    exported = am.observe.opentelemetry(job)
    assert_type(exported, OpenTelemetryExport)
    exported.close()


async def looks(job: am.JobClient) -> None:
    async with am.progress(job, quiet=True):
        await job.result()
    assert_type(job.bottleneck(), am.Bottleneck | None)
    assert_type(job.backpressure(), am.BackpressureReport)
    assert_type(job.snapshot(), am.JobSnapshot)
    assert_type(job.metrics(), am.JobMetrics)
    assert_type(job.await_tree(), str)


def restarts(env: am.StreamExecutionEnvironment) -> None:
    env.configure(restart=am.restart.none())
    env.configure(restart=am.restart.failure_rate(3, am.minutes(10), 1))
    env.configure(restart=am.restart.exponential_delay(maximum=30))
    env.configure(state_backend=am.HeapStateBackend())


async def called(order: Order) -> str:
    key = am.current_call().idempotency_key
    assert_type(key, str)
    if order.count == 0:
        raise am.RetryLater("busy", retry_after=2.0)
    return key


def events(env: am.StreamExecutionEnvironment, orders: am.DataStream[Order]) -> None:
    strategy = am.WatermarkStrategy.for_bounded_out_of_orderness(am.seconds(5))
    timed = orders.assign_timestamps_and_watermarks(
        strategy.with_timestamp_assigner("at").with_idleness(am.minutes(1))
    )
    assert_type(timed, am.DataStream[Order])
    assert_type(
        orders.with_columns(total=pc.field("price") * pc.field("count")),
        am.DataStream[Any],
    )
    assigner = am.TumblingProcessingTimeWindows.of(am.minutes(1))
    assert_type(am.explain_window(assigner, 61_000), list[WindowExplanation])
    retries = (
        am.pattern("wrong", where=lambda order: order.count == 0)
        .times(3)
        .followed_by("right")
        .within(am.minutes(1))
    )
    assert_type(orders.key_by("user").match(retries), am.DataStream[am.Match])
    recent = am.ValueStateDescriptor("recent", str, ttl=am.StateTtlConfig(am.days(1)))
    assert_type(recent, am.ValueStateDescriptor[str | None])


def tested() -> None:
    with asyncio.Runner(loop_factory=testing.virtual_time_loop_factory()) as runner:
        runner.run(asyncio.sleep(3600))

    def pipeline(env: am.StreamExecutionEnvironment, sink: Any) -> None:
        env.from_source(testing.ScriptedSource([1, testing.CRASH, 2])).sink_to(sink)

    report = testing.simulate(
        pipeline, seeds=range(5), faults=testing.Faults(rescales=0)
    )
    assert_type(report, testing.SimulationReport)
