"""A wrong argument fails where it is written, with the parameter's name."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import aiomailbox as am

Env = am.StreamExecutionEnvironment
Stream = am.DataStream[Any]


async def call(value: Any) -> Any:
    return value


def one(value: Any) -> Any:
    return value


def two(a: Any, b: Any) -> Any:
    return a


async def generate(value: Any) -> Any:
    yield value


TAG = am.OutputTag("tag")
DAY = am.TumblingEventTimeWindows.of(am.days(1))


def keyed(s: Stream) -> Any:
    return s.key_by("key")


def window(s: Stream) -> Any:
    return keyed(s).window(DAY)


def foreign() -> Stream:
    return Env().from_collection([1])


ENVIRONMENT: list[tuple[str, Callable[[], object]]] = [
    ("parallelism", lambda: Env(parallelism=0)),
    ("parallelism", lambda: Env(parallelism="2")),  # type: ignore[arg-type]
    ("parallelism", lambda: Env(parallelism=True)),
    ("max_parallelism", lambda: Env(max_parallelism=0)),
    ("max_parallelism", lambda: Env(max_parallelism=2**15 + 1)),
    ("max_parallelism", lambda: Env(parallelism=8, max_parallelism=4)),
    ("values", lambda: Env().from_collection(3)),  # type: ignore[arg-type]
    ("source", lambda: Env().from_source([1])),  # type: ignore[arg-type]
    ("items|iterable", lambda: Env().from_async_iterable([1])),  # type: ignore[arg-type]
    ("name", lambda: Env().from_collection([1], name="")),
    ("name", lambda: Env().from_collection([1], name=1)),  # type: ignore[arg-type]
    ("watermark_strategy", lambda: Env().from_collection([1], "ts")),  # type: ignore[arg-type]
    ("output_type", lambda: Env().from_collection([1], output_type="int")),  # type: ignore[arg-type]
    ("buffer_timeout", lambda: Env().configure(buffer_timeout=-am.seconds(1))),
    ("buffer_timeout", lambda: Env().configure(buffer_timeout=100)),  # type: ignore[arg-type]
    ("buffer_timeout", lambda: Env().configure(buffer_timeout="1 s")),  # type: ignore[arg-type]
    ("build", lambda: am.pipeline(3)),  # type: ignore[arg-type]
    ("id", lambda: am.OutputTag("")),
    ("count", lambda: am.RateLimit(0)),
    ("per", lambda: am.RateLimit(1, per=0)),
    ("burst", lambda: am.RateLimit(1, burst=2)),
    ("attempts", lambda: am.Retry(0)),
    ("initial", lambda: am.Retry(initial=-1)),
    ("multiplier", lambda: am.Retry(multiplier=0.5)),
    ("jitter", lambda: am.Retry(jitter=2)),
    ("retry_on", lambda: am.Retry(retry_on="ValueError")),  # type: ignore[arg-type]
    ("size", lambda: am.Batch(0)),
    ("within", lambda: am.Batch(1, within=-1)),
    ("size", lambda: am.Cache("key", size=0)),
    ("key", lambda: am.Cache(3)),  # type: ignore[arg-type]
    ("ttl", lambda: am.Cache("key", ttl=0)),
    ("tag", lambda: am.dead_letter("tag")),  # type: ignore[arg-type]
    ("field", lambda: am.mean(3)),  # type: ignore[arg-type]
    ("where", lambda: am.count(where=call)),
    ("named", am.aggregates),
    ("n", lambda: am.aggregates(n=3)),  # type: ignore[arg-type]
    ("named", lambda: am.aggregates(key=am.count())),
    ("size, offset", lambda: am.TumblingEventTimeWindows.of(0)),
    ("size", lambda: am.TumblingEventTimeWindows.of(60)),
    ("offset", lambda: am.TumblingEventTimeWindows.of(am.seconds(10), offset="1 s")),
    (
        "max_out_of_orderness",
        lambda: am.WatermarkStrategy.for_bounded_out_of_orderness(am.seconds(-1)),
    ),
    (
        "timestamp_assigner",
        lambda: am.WatermarkStrategy.no_watermarks().with_timestamp_assigner(call),
    ),
    ("timeout", lambda: am.WatermarkStrategy.no_watermarks().with_idleness(0)),
]

STREAM: list[tuple[str, Callable[[Stream], object]]] = [
    ("function", lambda s: s.map(3)),
    ("function", lambda s: s.map(two)),
    ("function", lambda s: s.map(generate)),
    ("on_error", lambda s: s.map(one, on_error="skip")),
    ("output_type", lambda s: s.map(one, output_type="int")),
    ("function", lambda s: s.filter(None)),
    ("function", lambda s: s.filter(two)),
    ("on_error", lambda s: s.filter(one, on_error=None)),
    ("function", lambda s: s.flat_map("a")),
    ("function", lambda s: s.flat_map(two)),
    ("on_error", lambda s: s.flat_map(one, on_error=ValueError)),
    ("function", lambda s: s.map_async(3)),
    ("function", lambda s: s.map_async(two)),
    ("function", lambda s: s.map_async(generate)),
    ("function", lambda s: s.map_async(dict)),
    ("concurrency", lambda s: s.map_async(call, concurrency=0)),
    ("concurrency", lambda s: s.map_async(call, concurrency=1.5)),
    ("ordered", lambda s: s.map_async(call, ordered="yes")),
    ("key", lambda s: s.map_async(call, ordered="key")),
    ("key", lambda s: s.map_async(call, ordered="key", key=3)),
    ("key", lambda s: s.map_async(call, key="key")),
    ("timeout", lambda s: s.map_async(call, timeout=0)),
    ("timeout", lambda s: s.map_async(call, timeout=-1)),
    ("timeout", lambda s: s.map_async(call, timeout=2_000_000)),
    ("timeout", lambda s: s.map_async(call, timeout=timedelta(seconds=-1))),
    ("deadline", lambda s: s.map_async(call, deadline=0)),
    ("deadline", lambda s: s.map_async(call, deadline="1 s")),
    ("retry", lambda s: s.map_async(call, retry=3)),
    ("limit", lambda s: s.map_async(call, limit=100)),
    ("weight", lambda s: s.map_async(call, weight=2)),
    ("weight", lambda s: s.map_async(call, limit=am.RateLimit(1), weight=2)),
    ("weight", lambda s: s.map_async(call, limit=am.RateLimit(1), weight=call)),
    ("batch", lambda s: s.map_async(call, batch=10)),
    ("cache", lambda s: s.map_async(call, cache=10)),
    ("on_error", lambda s: s.map_async(call, on_error="skip")),
    ("function", lambda s: s.process(one)),
    ("function", lambda s: s.process(am.ProcessFunction)),
    ("function", lambda s: s.process(am.KeyedProcessFunction())),
    ("strategy", lambda s: s.assign_timestamps_and_watermarks("ts")),
    ("key", lambda s: s.key_by(3)),
    ("key", lambda s: s.key_by("")),
    ("key", lambda s: s.key_by(call)),
    ("key", lambda s: s.key_by(two)),
    ("other", lambda s: s.connect([1])),
    ("other", lambda s: s.connect(foreign())),
    ("others", lambda s: s.union(3)),
    ("others", lambda s: s.union(foreign())),
    ("pipeline", lambda s: s.through(3)),
    ("pipeline", lambda s: s.through(am.pipeline(lambda stream: None))),
    ("tag", lambda s: s.get_side_output("late")),
    ("sink", lambda s: s.sink_to(3)),
    ("sink", lambda s: s.sink_to(two)),
    ("name", lambda s: s.name("")),
    ("name", lambda s: s.name(3)),
    ("uid", lambda s: s.uid("")),
    ("parallelism", lambda s: s.set_parallelism(0)),
    ("max_parallelism", lambda s: s.set_max_parallelism(1.5)),
    ("max_parallelism", lambda s: s.set_max_parallelism(2**15 + 1)),
    ("partitioner", lambda s: s.partition_custom(one, "key")),
    ("key", lambda s: s.partition_custom(two, 3)),
    ("first", lambda s: s.connect(s).map(3, one)),
    ("second", lambda s: s.connect(s).map(one, two)),
    ("first", lambda s: s.connect(s).flat_map(two, one)),
    ("second", lambda s: s.connect(s).flat_map(one, None)),
    ("function", lambda s: s.connect(s).process(am.ProcessFunction())),
    ("function", lambda s: keyed(s).reduce(one)),
    ("function", lambda s: keyed(s).reduce(None)),
    ("aggregate", lambda s: keyed(s).aggregate(sum)),
    ("aggregate", lambda s: keyed(s).aggregate(None)),
    ("function", lambda s: keyed(s).process(one)),
    ("assigner", lambda s: keyed(s).window(am.days(1))),
    ("trigger", lambda s: window(s).trigger("count").reduce(two)),
    ("evictor", lambda s: window(s).evictor(3).reduce(two)),
    ("lateness", lambda s: window(s).allowed_lateness(am.seconds(-1))),
    ("lateness", lambda s: window(s).allowed_lateness(600_000)),
    ("tag", lambda s: window(s).side_output_late_data("late")),
    ("function", lambda s: window(s).reduce(one)),
    ("aggregate", lambda s: window(s).aggregate(len)),
    ("function", lambda s: window(s).process(one)),
    ("window_function|function", lambda s: window(s).reduce(two, one)),
]


def text_of(case: Callable[..., object]) -> str:
    """Return the source of a case, as its name."""
    line = inspect.getsource(case).strip()
    return line.partition("lambda")[2].partition(":")[2].strip(" ,)") or line


def names_the_parameter(error: BaseException, parameters: str) -> bool:
    return any(str(error).startswith(f"{name}: ") for name in parameters.split("|"))


@pytest.mark.parametrize(("parameter", "build"), ENVIRONMENT)
def test_a_wrong_value_is_refused_by_name(
    parameter: str, build: Callable[[], object]
) -> None:
    with pytest.raises(am.UsageError) as caught:
        build()
    assert names_the_parameter(caught.value, parameter), f"{parameter}: {caught.value}"
    assert isinstance(caught.value, TypeError | ValueError)


@pytest.mark.parametrize(
    ("parameter", "build"), STREAM, ids=[text_of(build) for _, build in STREAM]
)
def test_a_wrong_argument_of_a_stream_fails_at_build_time(
    env: Env, parameter: str, build: Callable[[Stream], object]
) -> None:
    stream = env.from_collection([{"key": "a"}])
    with pytest.raises(am.UsageError) as caught:
        build(stream)
    assert names_the_parameter(caught.value, parameter), f"{parameter}: {caught.value}"
    assert isinstance(caught.value, TypeError | ValueError)
    # The traceback ends here, not in a job.
    assert any(
        frame.path == __file__ or str(frame.path) == __file__
        for frame in caught.traceback
    )


def test_an_async_function_is_no_surprise_where_it_cannot_be_used(env: Env) -> None:
    stream = env.from_collection([1])
    with pytest.raises(TypeError, match=r"key: call .* gives a coroutine"):
        stream.key_by(call)


def test_watermark_alignment_is_not_accepted_and_then_ignored(env: Env) -> None:
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    aligned = strategy.with_watermark_alignment("group", am.minutes(1))
    with pytest.raises(am.UsageError, match=r"strategy: .*only a source"):
        env.from_collection([1]).assign_timestamps_and_watermarks(aligned)


def test_a_keyed_function_needs_keys(env: Env) -> None:
    stream = env.from_collection([1])
    with pytest.raises(am.UsageError, match="key_by"):
        stream.connect(stream).process(am.KeyedCoProcessFunction())


def test_settings_belong_to_an_operator_and_not_to_a_union(env: Env) -> None:
    stream = env.from_collection([1])
    with pytest.raises(am.UsageError, match="union"):
        stream.union(stream).name("both")
    with pytest.raises(am.UsageError, match="side output"):
        stream.get_side_output(TAG).uid("side")


async def test_verbs_check_their_arguments_too(env: Env) -> None:
    stream = env.from_collection([1])
    with pytest.raises(ValueError, match="count: 0"):
        await stream.take(0)
    stream.sink_to(one)
    with pytest.raises(TypeError, match="job_name: 3"):
        await env.execute(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="job_name: "):
        async with env.start(""):
            pytest.fail("nothing should have started")
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_two_operators_cannot_have_one_uid(env: Env) -> None:
    env.from_collection([1]).map(one).uid("u").map(one).uid("u").sink_to(one)
    with pytest.raises(am.UsageError, match=r"uid.*'u'"):
        env.explain()


def test_forward_needs_equal_parallelism(env: Env) -> None:
    stream = env.from_collection([1, 2]).map(one).set_parallelism(2)
    stream.forward().map(one).set_parallelism(3).sink_to(one)
    with pytest.raises(am.UsageError, match=r"forward|parallelism"):
        env.explain()
