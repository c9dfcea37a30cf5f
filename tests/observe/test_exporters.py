"""Metrics for Prometheus and OpenTelemetry, and spans of calls."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from opentelemetry import context as trace_context, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, Counter, start_http_server
from prometheus_client.parser import text_string_to_metric_families

import aiomailbox as am
from aiomailbox.clock import SystemClock

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(180)]


def pipeline(env: am.StreamExecutionEnvironment, name: str = "add") -> None:
    stream = env.from_collection(range(100), name="numbers")
    stream.map(lambda number: number + 1).name(name).uid("a").sink_to(
        lambda number: None
    )


def families_of(port: int) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        text = response.read().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


async def test_a_scrape_shows_declared_metrics_with_labels() -> None:
    registry = CollectorRegistry()
    server, thread = start_http_server(0, "127.0.0.1", registry)
    env = am.StreamExecutionEnvironment(
        config=am.JobConfig(latency_interval=am.millis(1))
    )
    pipeline(env)
    async with env.start("first") as job:
        export = am.observe.prometheus(job, registry)
        await job.result()
        # From the thread of the server.
        families = await asyncio.to_thread(families_of, server.server_port)
        export.close()
        after = await asyncio.to_thread(families_of, server.server_port)
    server.shutdown()
    server.server_close()
    thread.join()
    counted = families["aiomailbox_operator_num_records_in"]
    assert counted.type == "counter"
    values = {sample.labels["operator"]: sample for sample in counted.samples}
    assert values["add"].value == 100
    assert values["add"].labels == {"job": "first", "operator": "add", "uid": "a"}
    states = families["aiomailbox_job_state"].samples
    assert {one.labels["state"] for one in states if one.value} == {"finished"}
    assert "aiomailbox_task_busy_time_ms_per_second" in families
    assert "aiomailbox_task_mailbox_queue_size" in families
    waited = {
        one.name for one in families["aiomailbox_task_mailbox_latency_ms"].samples
    }
    assert "aiomailbox_task_mailbox_latency_ms_count" in waited
    assert not after["aiomailbox_job_state"].samples


async def test_jobs_share_a_registry_and_a_taken_name_is_refused() -> None:
    registry = CollectorRegistry()
    for name in ("one", "two"):
        env = am.StreamExecutionEnvironment()
        pipeline(env, name)
        async with env.start(name) as job:
            am.observe.prometheus(job, registry)
            await job.result()
    names = {
        (sample.labels["job"], sample.labels["operator"])
        for family in registry.collect()
        if family.name == "aiomailbox_operator_num_records_in"
        for sample in family.samples
    }
    assert {("one", "one"), ("two", "two")} <= names
    taken = CollectorRegistry()
    Counter("aiomailbox_operator_calls", "Mine.", registry=taken)
    env = am.StreamExecutionEnvironment()
    pipeline(env)
    async with env.start() as job:
        with pytest.raises(am.InvalidArgumentError, match=r"names already.*calls"):
            am.observe.prometheus(job, taken)
        with pytest.raises(am.InvalidArgumentError, match="namespace"):
            am.observe.prometheus(job, taken, namespace="a b")
        am.observe.prometheus(job, taken, namespace="other")
        await job.result()


async def test_a_job_that_has_ended_gives_way_to_the_next_one_of_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two samples with the same labels would be added up, or refused."""
    registry = CollectorRegistry()
    now_s = 1000.0
    monkeypatch.setattr(SystemClock, "monotonic", lambda _: now_s)

    def counted() -> dict[str, list[float]]:
        nonlocal now_s
        now_s += 1
        found: dict[str, list[float]] = {}
        for family in registry.collect():
            if family.name == "aiomailbox_operator_num_records_in":
                for sample in family.samples:
                    if sample.labels["operator"] == "add":
                        found.setdefault(sample.labels["job"], []).append(sample.value)
        return found

    async def run(name: str) -> None:
        env = am.StreamExecutionEnvironment()
        pipeline(env)
        async with env.start(name) as job:
            am.observe.prometheus(job, registry)
            # Whoever exports it twice has it counted once.
            am.observe.prometheus(job, registry)
            await job.result()

    await run("shop")
    await run("shop")
    await run("other")
    assert counted() == {"shop": [100], "other": [100]}
    # Its last numbers have been scraped by then.
    now_s += 301
    assert counted() == {}


async def test_two_jobs_of_a_name_that_run_are_told_apart() -> None:
    registry, inboxes = CollectorRegistry(), [am.Inbox[int](), am.Inbox[int]()]
    async with AsyncExitStack() as stack:
        for inbox in inboxes:
            env = am.StreamExecutionEnvironment()
            env.from_source(inbox).sink_to(lambda number: None)
            job = await stack.enter_async_context(env.start())
            am.observe.prometheus(job, registry)
        states = [family for family in registry.collect() if "state" in family.name]
        (state,) = [one for one in states if one.name == "aiomailbox_job_state"]
        names = [one.labels["job"] for one in state.samples if one.value]
        for inbox in inboxes:
            inbox.close()
    assert sorted(names) == ["job", "job #2"]


async def test_the_source_of_a_latency_is_a_label() -> None:
    registry, reader = CollectorRegistry(), InMemoryMetricReader()
    provider = MeterProvider([reader])
    env = am.StreamExecutionEnvironment(
        config=am.JobConfig(latency_interval=am.millis(1))
    )
    inbox = am.Inbox[int]()
    env.from_source(inbox, name="numbers").map(abs).name("add").uid("a").sink_to(
        lambda number: None
    )
    async with env.start("late") as job:
        am.observe.prometheus(job, registry)
        am.observe.opentelemetry(job, provider)
        name = "aiomailbox_operator_latency_ms_count"
        labels = {"job": "late", "operator": "add", "uid": "a", "source": "numbers"}
        while not registry.get_sample_value(name, labels):
            await asyncio.sleep(0.01)
        data = reader.get_metrics_data()
        inbox.close()
    provider.shutdown()
    assert data is not None
    metrics = data.resource_metrics[0].scope_metrics[0].metrics
    assert not [one.name for one in metrics if "latency_ms_from" in one.name]
    (p50,) = [one for one in metrics if one.name.endswith("operator.latency_ms.p50")]
    sources = {point.attributes["source"] for point in p50.data.data_points}  # type: ignore[index]
    assert sources == {"numbers"}


class Sizes(am.ProcessFunction[int, int]):
    """Has a histogram of its own."""

    def open(self, context: Any) -> None:
        self.sizes = context.metrics.histogram("sizes", unit="bytes", text="Sizes.")

    def process_element(self, value: int, context: Any, out: Any) -> None:
        self.sizes.observe(value)


async def test_opentelemetry_observes_them_through_its_api() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    env = am.StreamExecutionEnvironment(
        config=am.JobConfig(latency_interval=am.millis(1))
    )
    stream = env.from_collection(range(1, 101)).process(Sizes()).name("sizes")
    stream.sink_to(lambda number: None)
    async with env.start("observed") as job:
        await job.result()
        am.observe.opentelemetry(job, provider)
        am.observe.opentelemetry(job, provider).close()
        data = reader.get_metrics_data()
    provider.shutdown()
    assert data is not None
    metrics = data.resource_metrics[0].scope_metrics[0].metrics
    by_name = {metric.name: metric for metric in metrics}
    counted = by_name["aiomailbox.operator.num_records_in"]
    assert counted.unit == "records"
    points = {
        point.attributes["operator"]: point.value  # type: ignore[index]
        for point in counted.data.data_points
    }
    assert points["sizes"] == 100
    assert "aiomailbox.task.mailbox_queue_size" in by_name
    assert "aiomailbox.task.mailbox_latency_ms.p50" in by_name
    (sizes,) = by_name["aiomailbox.operator.sizes.p50"].data.data_points
    assert sizes.value == pytest.approx(50, rel=0.05)  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    """Give the process a provider, which it can have only once."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Iterator[InMemorySpanExporter]:
    exporter.clear()
    yield exporter
    exporter.clear()


async def test_each_call_is_a_span_with_its_retries_as_events(
    spans: InMemorySpanExporter,
) -> None:
    failed: set[int] = set()

    async def call(number: int) -> int:
        with trace.get_tracer("user").start_as_current_span("request"):
            await asyncio.sleep(0)
        if number == 1 and number not in failed:
            failed.add(number)
            raise ConnectionError("gone")
        if number == 2:
            raise ValueError("never")
        return number

    env = am.StreamExecutionEnvironment(config=am.JobConfig(trace_calls=True))
    retry = am.Retry(attempts=2, initial=0.001, retry_on=ConnectionError)
    stream = env.from_collection([0, 1, 2]).map_async(
        call, concurrency=2, retry=retry, on_error=am.skip
    )
    stream.name("enrich").uid("e").sink_to(lambda number: None)
    with trace.get_tracer("user").start_as_current_span("starts") as started:
        await env.execute("traced")
    found = spans.get_finished_spans()
    calls = [span for span in found if span.name == "enrich"]
    assert len(calls) == 3
    trace_id = started.get_span_context().trace_id
    assert {span.context.trace_id for span in found} == {trace_id}
    attributes = dict(calls[0].attributes or {})
    assert attributes["aiomailbox.operator"] == "enrich"
    assert attributes["aiomailbox.uid"] == "e"
    retried = [span for span in calls if any(e.name == "retry" for e in span.events)]
    assert len(retried) == 1
    event = next(event for event in retried[0].events if event.name == "retry")
    assert "ConnectionError: gone" in str((event.attributes or {})["reason"])
    assert (retried[0].attributes or {})["aiomailbox.attempts"] == 2
    assert [one.name for one in retried[0].events] == ["retry"]
    # An attempt that is made again has not failed, and a failure is told once.
    (wrong,) = (span for span in calls if not span.status.is_ok)
    assert wrong.status.description == "ValueError"
    assert [one.name for one in wrong.events] == ["exception"]
    (right,) = (span for span in calls if span not in {wrong, retried[0]})
    assert right.events == ()
    requests = [span for span in found if span.name == "request"]
    ids = {span.context.span_id for span in calls}
    assert len(requests) == 4
    assert all(span.parent and span.parent.span_id in ids for span in requests)
    assert trace_context.get_current() == {}


async def test_a_result_that_is_asked_for_again_is_shortened_in_its_span(
    spans: InMemorySpanExporter,
) -> None:
    answers = ["x" * 1000, "good"]

    async def call(number: int) -> str:
        return answers.pop(0)

    env = am.StreamExecutionEnvironment(config=am.JobConfig(trace_calls=True))
    retry = am.Retry(attempts=2, initial=0.001, retry_if=lambda text: text != "good")
    assert await env.from_collection([1]).map_async(call, retry=retry).collect() == [
        "good"
    ]
    (span,) = spans.get_finished_spans()
    (event,) = span.events
    reason = str((event.attributes or {})["reason"])
    assert reason.startswith("result: xxx")
    assert len(reason) == 500
    assert "aiomailbox.uid" not in (span.attributes or {})


async def test_a_call_that_never_began_has_no_span(spans: InMemorySpanExporter) -> None:
    async def call(number: int) -> int:
        return number

    env = am.StreamExecutionEnvironment(config=am.JobConfig(trace_calls=True))
    called = env.from_collection([-1, 1]).map_async(
        call,
        limit=am.RateLimit(10),
        weight=lambda number: number,
        on_error=am.skip,
    )
    assert await called.collect() == [1]
    assert len(spans.get_finished_spans()) == 1


async def test_a_call_that_is_cancelled_with_its_job_ends_its_span(
    spans: InMemorySpanExporter,
) -> None:
    called = asyncio.Event()

    async def call(number: int) -> int:
        called.set()
        return await asyncio.get_running_loop().create_future()

    env = am.StreamExecutionEnvironment(config=am.JobConfig(trace_calls=True))
    env.from_collection([1]).map_async(call).sink_to(lambda number: None)
    async with env.start("traced"):
        await called.wait()
    (span,) = spans.get_finished_spans()
    assert (span.attributes or {})["aiomailbox.attempts"] == 1


async def test_without_the_setting_no_call_is_a_span(
    spans: InMemorySpanExporter,
) -> None:
    async def call(number: int) -> int:
        return number

    env = am.StreamExecutionEnvironment()
    await env.from_collection([1]).map_async(call).collect()
    assert spans.get_finished_spans() == ()
