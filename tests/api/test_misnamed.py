"""What a stream says to those who mean something else."""

from __future__ import annotations

import asyncio
import difflib
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pyarrow as pa
import pytest

import aiomailbox as am
from aiomailbox.api import misnamed
from aiomailbox.operators.core.collector import Collector
from aiomailbox.operators.core.failures import Context
from aiomailbox.signatures import Suggesting
from aiomailbox.testing.harness import RecordingOutput


@pytest.fixture
def stream() -> Any:
    return am.StreamExecutionEnvironment().from_collection([1, 2])


def test_a_for_loop_over_a_stream_is_told_of_async_for(stream: Any) -> None:
    with pytest.raises(am.UsageError, match=r"async for record in stream"):
        list(stream)


async def test_whoever_awaits_a_stream_is_told_of_collect(stream: Any) -> None:
    with pytest.raises(am.UsageError, match=r"await stream\.collect\(\)"):
        await stream


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("keyBy", r"stream\.key_by\("),
        ("flatMap", r"stream\.flat_map\("),
        ("getSideOutput", r"stream\.get_side_output\("),
        ("print", r"sink_to\(print\)"),
        ("addSink", r"stream\.sink_to\("),
        ("sum", r"am\.sum_"),
        ("reduce", r"stream\.key_by\(\.\.\.\)\.reduce\("),
        ("processAsync", r"stream\.key_by\(\.\.\.\)\.process_async\("),
        ("fliter", r"stream\.filter"),
    ],
)
def test_a_name_of_elsewhere_leads_to_ours(stream: Any, name: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=meant):
        getattr(stream, name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("deployment", r"write env\.configure\(deployment="),
        ("stateBackend", r"write env\.configure\(state_backend="),
        ("parallelism", r"write am\.StreamExecutionEnvironment\(parallelism="),
    ],
)
def test_a_setting_that_there_is_not_cannot_be_set(name: str, meant: str) -> None:
    env = am.StreamExecutionEnvironment()
    with pytest.raises(AttributeError, match=meant):
        setattr(env, name, 4)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("parallelism", r"is stream\.set_parallelism meant"),
        ("uid", r"is a method and cannot be set; write stream = stream\.uid\("),
        ("key", r"."),
    ],
)
def test_a_setting_of_a_stream_is_not_set_as_an_attribute(name: str, told: str) -> None:
    numbers = am.StreamExecutionEnvironment().from_collection([1])
    for stream in (numbers, numbers.key_by(lambda number: number)):
        with pytest.raises(AttributeError, match=told):
            setattr(stream, name, 4)


def test_a_setting_of_windows_is_not_set_as_an_attribute() -> None:
    numbers = am.StreamExecutionEnvironment().from_collection([1])
    windows = numbers.window_all(am.TumblingEventTimeWindows.of(am.seconds(5)))
    with pytest.raises(AttributeError, match=r"write windows = windows\.trigger\("):
        setattr(windows, "trigger", am.CountTrigger.of(2))  # noqa: B010 -- for mypy


def test_a_class_of_the_users_own_has_settings_of_its_own() -> None:
    class Env(am.StreamExecutionEnvironment):
        pass

    env: Any = Env()
    env.region = "north"
    assert env.region == "north"


async def items() -> AsyncIterator[int]:
    yield 1


class DataFrame:
    """Of pyspark, as far as anybody can tell without it."""

    __module__ = "pyspark.sql.dataframe"

    def __iter__(self) -> Any:
        raise AssertionError


@pytest.mark.parametrize(
    ("values", "remedy"),
    [
        (items(), "from_async_iterable"),
        (items, "from_async_iterable"),
        (DataFrame(), r"am\.SparkSource\(df\)"),
        (pd.DataFrame({"n": [1]}), r"env\.from_arrow\("),
        (pa.table({"n": [1]}), r"env\.from_arrow\("),
        (pa.record_batch({"n": [1]}), r"env\.from_arrow\("),
        ({"n": 1}, r"\[record\]"),
        (lambda: [1], "Call it"),
        ("a b", "splitlines"),
        (7, "Use a list"),
    ],
)
def test_what_is_no_collection_is_sent_to_its_source(values: Any, remedy: str) -> None:
    env = am.StreamExecutionEnvironment()
    with pytest.raises(am.WrongTypeError, match=remedy):
        env.from_collection(values)


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ("orders.csv", r"am\.FileSource\(path\)"),
        (Path("orders.csv"), r"am\.FileSource\(path\)"),
        ([1], r"env\.from_collection"),
        (items(), r"env\.from_async_iterable"),
        (items, r"env\.from_async_iterable"),
        (object(), r"am\.SparkSource\(df\)"),
    ],
)
def test_what_is_no_source_is_sent_to_one(given: Any, remedy: str) -> None:
    env = am.StreamExecutionEnvironment()
    with pytest.raises(am.WrongTypeError, match=remedy):
        env.from_source(given)


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ("out", r"am\.ParquetSink\(path\) or am\.FileSink"),
        ([], r"results\.append"),
        (7, "function of a record"),
    ],
)
def test_what_is_no_sink_is_sent_to_one(stream: Any, given: Any, remedy: str) -> None:
    with pytest.raises(am.WrongTypeError, match=remedy):
        stream.sink_to(given)


def test_what_is_not_asynchronous_is_sent_to_its_source() -> None:
    env = am.StreamExecutionEnvironment()
    with pytest.raises(am.WrongTypeError, match=r"env\.from_collection"):
        env.from_async_iterable([1])  # type: ignore[arg-type]


def test_streams_say_what_they_are(stream: Any) -> None:
    late = am.OutputTag("late")
    assert repr(stream) == "<DataStream of collection>"
    assert repr(stream.map(str).name("text")) == "<DataStream of text>"
    assert repr(stream.union(stream.map(str))) == "<DataStream of collection + map>"
    mapped = stream.map(str, on_error=am.dead_letter(late))
    assert repr(mapped.get_side_output(late)) == "<DataStream of map[late]>"
    assert repr(stream.key_by("n")) == "<KeyedStream of collection by 'n'>"
    keyed = repr(stream.key_by(lambda number: number))
    assert keyed.startswith(f"<KeyedStream of collection by lambda ({__file__}:")
    windowed = stream.key_by("n").window(am.TumblingEventTimeWindows.of(am.seconds(5)))
    assert repr(windowed) == "<WindowedStream by 'n' in TumblingEventTimeWindows>"
    assert repr(am.StreamExecutionEnvironment(2)) == (
        "<StreamExecutionEnvironment parallelism=2, 0 sinks>"
    )


def test_two_streams_say_what_they_are_and_what_comes_next(stream: Any) -> None:
    stream = stream.name("rules")
    keyed = stream.key_by("user")
    rules = stream.broadcast(am.MapStateDescriptor("limits"))
    window = am.TumblingEventTimeWindows.of(am.seconds(1))
    joined = stream.join(stream)
    near = keyed.interval_join(keyed)
    said = {
        repr(stream.connect(stream)): "<ConnectedStreams with rules>",
        repr(
            keyed.connect(keyed)
        ): "<ConnectedStreams with rules by 'user' and 'user'>",
        repr(rules): "<BroadcastStream of <DataStream of rules> into 'limits'>",
        repr(
            keyed.connect(rules)
        ): f"<BroadcastConnectedStream with {rules} by 'user'>",
        repr(joined): "<JoinedStreams; next is where(key)>",
        repr(joined.where("user")): "<JoinedWhere; next is equal_to(key)>",
        repr(
            near
        ): "<IntervalJoin by 'user' and 'user'; next is between(lower, upper)>",
        repr(near.between(am.seconds(-1), am.seconds(2))): (
            "<IntervalJoined by 'user' and 'user', -1000 to 2000 ms apart>"
        ),
    }
    keys = joined.where("user").equal_to("user")
    said[repr(keys)] = "<JoinedKeys; next is window(assigner)>"
    said[repr(keys.window(window))] = "<JoinedWindows in TumblingEventTimeWindows>"
    assert list(said) == list(said.values())


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("fromCollection", r"write env\.from_collection\("),
        ("from_elements", r"write env\.from_collection\("),
        ("addSource", r"write env\.from_source\("),
        ("from_colection", r"is env\.from_collection meant\?"),
    ],
)
def test_a_name_of_another_environment_leads_to_ours(name: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=meant):
        getattr(am.StreamExecutionEnvironment(), name)
    assert not hasattr(am.StreamExecutionEnvironment(), "_private")


async def test_a_job_says_how_it_is() -> None:
    env = am.StreamExecutionEnvironment()
    env.from_collection([1]).sink_to(print)
    async with env.start("numbers") as job:
        assert repr(job).startswith("<JobClient 'numbers' ")
        await asyncio.sleep(0)


class Keyed(am.KeyedProcessFunction):
    def __init__(self, opens: Any, calls: Any) -> None:
        self.opens, self.calls = opens, calls

    def open(self, context: Any) -> None:
        self.opens(context)

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        self.calls(context)


class Asynchronous(am.KeyedAsyncProcessFunction):
    def __init__(self, opens: Any, calls: Any) -> None:
        self.opens, self.calls = opens, calls

    def open(self, context: Any) -> None:
        self.opens(context)

    async def process_element(self, value: Any, context: Any, out: Any) -> None:
        self.calls(context)


class Windowed(am.ProcessWindowFunction):
    def __init__(self, calls: Any) -> None:
        self.calls = calls

    def process(self, key: Any, context: Any, elements: Any, out: Any) -> None:
        self.calls(context)


def nothing(context: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "meant"),
    [
        (Keyed(lambda c: c.get_state(None), nothing), "state.get_value(descriptor)"),
        (Keyed(lambda c: c.getMapState(None), nothing), "state.get_map(descriptor)"),
        (Keyed(lambda c: c.get_index_of_this_subtask(), nothing), "subtask_index"),
        (Keyed(nothing, lambda c: c.state), "write context.keyed_state"),
        (Keyed(nothing, lambda c: c.get_current_key()), "write context.current_key"),
        (Keyed(nothing, lambda c: c.timerService()), "write context.timer_service"),
        (Keyed(nothing, lambda c: c.timer_service()), "write context.timer_service"),
        (Keyed(nothing, lambda c: c.curent_key), "is context.current_key meant?"),
        (
            Keyed(lambda c: c.keyed_state.get_list_state(None), nothing),
            "write context.keyed_state.get_list(descriptor)",
        ),
        (
            Asynchronous(nothing, lambda c: c.keyed_state.get_state(None)),
            "write context.keyed_state.get_value(descriptor)",
        ),
        (Asynchronous(lambda c: c.get_state(None), nothing), "state.get_value"),
        (Keyed(lambda c: c.state, nothing), "write context.keyed_state"),
        (Asynchronous(lambda c: c.state, nothing), "write context.keyed_state"),
        (
            Keyed(nothing, lambda c: c.timer_service.register_timer(1)),
            r"register_event_time_timer(after=...)",
        ),
        (
            Asynchronous(nothing, lambda c: c.timer_service.register_timer(1)),
            r"register_processing_time_timer(after=...)",
        ),
        (Asynchronous(nothing, lambda c: c.state), "write context.keyed_state"),
        (Windowed(lambda c: c.state), "write context.global_state"),
        (Windowed(lambda c: c.get_state(None)), "context.global_state.get_value"),
    ],
)
async def test_a_name_of_elsewhere_leads_to_that_of_the_context(
    stream: Any, function: Any, meant: str
) -> None:
    keyed = stream.key_by(lambda number: number)
    if isinstance(function, Keyed):
        processed = keyed.process(function)
    elif isinstance(function, Asynchronous):
        processed = keyed.process_async(function)
    else:
        processed = (
            keyed.window(am.GlobalWindows())
            .trigger(am.CountTrigger.of(1))
            .process(function)
        )
    with pytest.raises(am.JobFailedError) as caught:
        await processed.collect()
    assert meant in str(caught.value)


def test_a_context_offers_no_name_that_it_does_not_have_itself() -> None:
    class Small(Context):
        pass

    with pytest.raises(AttributeError) as caught:
        Small().get_state  # type: ignore[attr-defined] # noqa: B018
    assert "write" not in str(caught.value)
    with pytest.raises(AttributeError, match=r"no attribute 'element'$"):
        Small().element  # type: ignore[attr-defined] # noqa: B018


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("append", "write out.collect(value)"),
        ("side_output", "write context.output(tag, value)"),
    ],
)
def test_a_collector_says_what_emits(name: str, written: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(written)):
        getattr(Collector(RecordingOutput()), name)
    assert not getattr(Collector, name).__doc__, "the reference does not list it"


Env = am.StreamExecutionEnvironment
Step = Callable[[am.KeyedStream[Any, Any]], Any]


def keyed() -> am.KeyedStream[Any, Any]:
    return Env().from_collection([{"user": "a", "n": 1}]).key_by("user")


def windows(stream: am.KeyedStream[Any, Any]) -> Any:
    return stream.window(am.TumblingEventTimeWindows.of(am.minutes(5)))


def between(stream: am.KeyedStream[Any, Any]) -> Any:
    return stream.interval_join(stream).between(am.seconds(-1), am.seconds(1))


STEPS: dict[str, Step] = {
    "env": lambda s: Env(),
    "class of env": lambda s: Env,
    "stream": lambda s: Env().from_collection([1]),
    "keyed": lambda s: s,
    "windows": windows,
    "interval": lambda s: s.interval_join(s),
    "between": between,
    "join": lambda s: s.join(s),
    "where": lambda s: s.join(s).where("user"),
    "joined": lambda s: s.join(s).where("user").equal_to("user"),
    "joined windows": lambda s: (
        s.join(s)
        .where("user")
        .equal_to("user")
        .window(am.TumblingEventTimeWindows.of(am.minutes(5)))
    ),
    "connected": lambda s: s.connect(s),
    "rules": lambda s: s.broadcast(am.MapStateDescriptor("rules")),
    "library": lambda s: am,
}


@pytest.mark.parametrize(
    ("step", "words", "remedy"),
    [
        (
            "class of env",
            "get_execution_environment",
            "am.StreamExecutionEnvironment()",
        ),
        ("env", "from_sequence fromRange", "env.from_collection(range(n))"),
        ("env", "read_csv readFile from_parquet", "env.from_source(am.FileSource("),
        ("env", "readStream", "env.from_source(am.SparkStreamSource(df))"),
        ("env", "from_kafka socketTextStream", "env.from_async_iterable("),
        ("env", "run", "env.execute(), awaited"),
        ("env", "set_runtime_mode add_jars", "leave it out"),
        ("stream", "where", "stream.filter(...)"),
        ("stream", "withColumn", "stream.with_columns(name=...)"),
        ("stream", "withColumnRenamed", "stream.rename({old: new})"),
        ("stream", "withWatermark", "stream.assign_timestamps_and_watermarks("),
        ("stream", "mean avg", "stream.key_by(...).aggregate(am.mean(field))"),
        ("stream", "timeWindow", "stream.key_by(...).window("),
        ("stream", "countWindow minBy maxBy", "stream.key_by("),
        (
            "stream",
            "distinct dropDuplicates",
            "stream.key_by(...).deduplicate(ttl=...)",
        ),
        ("stream", "unordered_wait", "stream.map_async(function, ordered=False"),
        ("stream", "foreachBatch", "stream.batch(size).sink_to(function)"),
        ("stream", "writeStream write sink", "stream.sink_to(...)"),
        ("stream", "to_parquet", "stream.sink_to(am.ParquetSink(directory))"),
        ("stream", "head limit", "stream.take(n), awaited"),
        ("stream", "explode", "stream.flat_map("),
        ("stream", "orderBy sort", "sort the records of a window"),
        ("stream", "execute run", "`await env.execute()`"),
        ("stream", "iterate", "a stream has no loops"),
        ("keyed", "sum", "stream.aggregate(am.sum_(field))"),
        ("keyed", "timeWindow", "write stream.window("),
        ("keyed", "map_with_state updateStateByKey", "write stream.process(function)"),
        (
            "keyed",
            "mapGroupsWithState transformWithState",
            "write stream.process(function)",
        ),
        ("windows", "count", "windows.aggregate(am.count())"),
        ("windows", "sum", "windows.aggregate(am.sum_(field))"),
        ("windows", "agg select", "windows.aggregate(am.aggregates("),
        ("windows", "allowedLateness lateness", "windows.allowed_lateness(...)"),
        ("windows", "map sink_to name uid", "windows.aggregate(...), reduce(...) or "),
        (
            "interval",
            "process select map",
            "join.between(lower, upper).process(function)",
        ),
        (
            "between",
            "lowerBoundExclusive",
            "between(lower, upper, lower_exclusive=True)",
        ),
        ("between", "map apply", "join.process(function)"),
        ("join", "window on equal_to", "join.where(key).equal_to(key).window("),
        ("where", "window on", "join.equal_to(key).window(assigner).apply(function)"),
        ("joined", "apply map", "join.window(assigner).apply(function)"),
        ("joined windows", "map sink_to", "join.apply(function)"),
        ("connected", "key_by sink_to", "connected.map(first, second), flat_map(...)"),
        ("rules", "process map", "stream.connect(broadcast).process(function)"),
        ("library", "Time Duration", "am.minutes(5), am.seconds(5)"),
        ("library", "Types Row TypeInformation", "leave it out"),
        ("library", "MapFunction FilterFunction", "write a function"),
        ("library", "RestartStrategies", "am.restart.fixed_delay(3, am.seconds(10))"),
        ("library", "EmbeddedRocksDBStateBackend", "am.RocksDBStateBackend()"),
        ("library", "KafkaSource FlinkKafkaConsumer", "env.from_async_iterable("),
        ("library", "sum", "am.sum_(field)"),
        ("library", "TumblingEventTimeWindow", "am.TumblingEventTimeWindows"),
    ],
)
def test_a_word_of_another_library_says_what_to_write(
    step: str, words: str, remedy: str
) -> None:
    owner = STEPS[step](keyed())
    for word in words.split():
        with pytest.raises(AttributeError, match=re.escape(remedy)):
            getattr(owner, word)


@pytest.mark.parametrize("step", STEPS)
def test_what_python_itself_asks_for_is_missing_as_anywhere(step: str) -> None:
    owner = STEPS[step](keyed())
    assert not hasattr(owner, "_ipython_display_")
    assert getattr(owner, "__deepcopy__", None) is None


TABLES = {
    "stream": (am.KeyedStream, misnamed._MEANT),
    "windows": (am.WindowedStream, misnamed.OF_WINDOWS),
    "env": (Env, misnamed._MEANT_OF_ENV),
    "library": (am, misnamed._MEANT_OF_LIBRARY),
}


@pytest.mark.parametrize("table", TABLES)
def test_what_is_said_exists_and_what_was_asked_for_does_not(table: str) -> None:
    owner, meant = TABLES[table]
    has = dir(owner)
    for word, text in meant.items():
        assert word not in has, word
        if not text.startswith(" "):
            assert text.partition("(")[0].split(" ")[0] in has, text
        for name in re.findall(r"\bam\.(\w+)", text):
            assert hasattr(am, name), text
        for name in re.findall(r"\benv\.(\w+)", text):
            assert hasattr(Env, name), text
        for name in re.findall(r"\b(?:stream|keyed)\.(\w+)", text):
            assert hasattr(am.KeyedStream, name), text


async def test_a_second_execute_names_the_job_that_took_the_stream() -> None:
    env = Env()
    with pytest.raises(am.UsageError, match="no stream ends in a sink"):
        await env.execute()
    env.from_collection([1]).sink_to(print)
    await env.execute("first")
    with pytest.raises(
        am.UsageError, match="job 'first' took all streams that end in a sink"
    ):
        await env.execute("second")
    # Pulling takes nothing.
    assert await env.from_collection([1]).collect() == [1]
    env.from_collection([1]).sink_to(print)
    await env.execute("third")
    with pytest.raises(am.UsageError, match="job 'third' took"):
        await env.execute_async()


async def test_no_name_is_guessed_where_nothing_is_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Guessing costs a comparison with each name that there is."""
    asked: list[str] = []

    def guess(word: str, *_: Any, **__: Any) -> list[str]:
        asked.append(word)
        return []

    monkeypatch.setattr(difflib, "get_close_matches", guess)
    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(am.seconds(1), directory=tmp_path)
    words = env.from_collection(["a", "b", "a"]).map(str.upper).key_by(str.lower)

    @dataclass
    class Mine(metaclass=Suggesting):
        _meant: ClassVar[dict[str, str]] = {}
        name_without_default: str

    counts = words.count_window(2).aggregate(am.aggregates(n=am.count()))
    assert [one.n for one in await counts.collect()] == [2]
    assert Mine("a").name_without_default == "a"
    assert asked == []
    with pytest.raises(AttributeError):
        words.colect  # noqa: B018
    assert asked == ["colect"]
