"""Says what is meant by a name that the library, or one of its objects, does not have."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Final, NoReturn

from aiomailbox import errors
from aiomailbox.signatures import Unchanging, no_such_name, snake_case


def _by_name(remedies: Mapping[str, str]) -> dict[str, str]:
    """Return what to write for each name, of the names for which one writes it."""
    return {name: meant for meant, names in remedies.items() for name in names.split()}


_KEYED: Final = "key_by(...)."
# Of a key, or of a key in a window: what is computed of all of its records.
_COMPUTED: Final = {
    "sum": "aggregate(am.sum_(field))",
    "min": "aggregate(am.min_(field))",
    "max": "aggregate(am.max_(field))",
    "mean": "aggregate(am.mean(field))",
    "avg": "aggregate(am.mean(field))",
    "agg": "aggregate(am.aggregates(total=am.sum_(field), n=am.count()))",
    "fold": "aggregate(am.sum_(field)), or with an am.AggregateFunction",
    "first": "aggregate(am.first(by=field))",
    "last": "aggregate(am.last(by=field))",
    "collect_list": "aggregate(am.collect_list(field))",
    "count_distinct": "aggregate(am.count_distinct(field))",
}
# What other libraries call it.
_MEANT: Final = {
    **{name: f"{_KEYED}{verb}" for name, verb in _COMPUTED.items()},
    **_by_name(
        {
            "sink_to(print), or `await stream.show()` for the first records": "print pprint",
            "sink_to(...)": "add_sink sink write write_stream write_to",
            'sink_to(am.FileSink(directory, "text"))': "write_as_text",
            'sink_to(am.FileSink(directory, "csv"))': "write_as_csv to_csv",
            'sink_to(am.FileSink(directory, "jsonl"))': "to_json",
            "sink_to(am.ParquetSink(directory))": "to_parquet write_parquet",
            "sink_to(function)": "foreach for_each",
            "batch(size).sink_to(function)": "foreach_batch",
            "key_by(...)": "group_by",
            "filter(...)": "where",
            "with_columns(name=...)": "with_column",
            "rename({old: new})": "with_column_renamed",
            "assign_timestamps_and_watermarks(strategy)": "with_watermark with_timestamp_assigner",
            "select(...)": "project",
            "flat_map(lambda record: record.items)": "explode",
            "flat_map(lambda record: record)": "flatten",
            "map(lambda record: function(*record))": "starmap",
            "full_window_partition().map_partition(function), or "
            "map_batches(function)": "map_partition map_partitions",
            "full_window_partition().sort_partition(field)": "sort_partition",
            "map_async(function, concurrency=...)": "async_wait ordered_wait",
            "map_async(function, ordered=False, concurrency=...)": "unordered_wait",
            "key_by(...).process(function)": (
                "map_with_state flat_map_with_state update_state_by_key "
                "map_groups_with_state flat_map_groups_with_state "
                "apply_in_pandas_with_state transform_with_state "
                "transform_with_state_in_pandas"
            ),
            "key_by(...).reduce(function)": "scan accumulate reduce_by_key",
            "key_by(...).process(function), whose context has the state": "state",
            "key_by(...).deduplicate(ttl=...)": "distinct drop_duplicates",
            "key_by(...).window(am.TumblingEventTimeWindows.of(...))": "time_window tumbling_window",
            "key_by(...).window(am.SlidingEventTimeWindows.of(size, slide))": "sliding_window",
            "key_by(...).window(am.EventTimeSessionWindows.with_gap(...))": "session_window",
            "batch(size)": "chunk",
            "union(other)": "union_all merge concat",
            "rebalance(), or key_by(...)": "repartition",
            "get_side_output(tag)": "side_output",
            "filter(...) once for each part, or get_side_output(tag)": "split",
            "take(n), awaited": "limit head",
            "collect(), awaited": "to_list list execute_and_collect",
            "to_spark(spark), awaited, or arrow_batches()": "to_pandas",
            "to_spark(spark), awaited": "to_df to_table",
            "publish(), and read it with job.subscribe(stream)": "subscribe",
            " records are plain Python objects, so leave it out": "returns",
            " give it where the stream begins: from_source(..., output_type=...)": "output_type",
            " write `await env.execute()`, or `await stream.collect()`": "execute run",
            " write `async with env.start() as job:`": "start",
            " a stream has no loops: call again inside a map_async(...) function": "iterate",
            " if the stream ends, write "
            "full_window_partition().sort_partition(field), or sort the records of a window": "sort order_by",
            " nothing runs twice in one job: use the stream twice": "cache persist",
        }
    ),
}
_MEANT_OF_ENV: Final = _by_name(
    {
        "from_source(...)": "add_source",
        "from_collection([...])": "from_elements from_data from_list parallelize",
        "from_collection(values)": "from_iterable",
        "from_arrow(pyarrow.Table.from_pandas(df))": "from_pandas",
        "from_arrow(df)": "from_polars",
        "from_collection(range(n))": "range from_range from_sequence generate_sequence",
        "from_async_iterable(generator)": "from_generator from_async_generator",
        "from_source(am.Inbox())": "from_queue",
        "from_async_iterable(messages, offset=...)": "from_kafka",
        "from_async_iterable(lines)": "socket_text_stream",
        "from_source(am.SparkSource(df))": "from_dataframe from_spark",
        "from_source(am.SparkStreamSource(df))": "read_stream",
        "from_source(am.FileSource(path))": (
            "read read_text_file read_file from_file from_csv read_csv "
            "from_json read_json from_parquet read_parquet"
        ),
        "explain()": "get_execution_plan",
        "enable_checkpointing(...), whose arguments they are": "get_checkpoint_config",
        "configure(state_backend=am.RocksDBStateBackend())": "set_state_backend state_backend",
        "configure(deployment=am.Processes(4))": "deployment",
        "configure(restart=am.restart.fixed_delay(3))": "set_restart_strategy",
        "configure(buffer_timeout=am.millis(100))": "set_buffer_timeout",
        "configure(operator_chaining=False)": "disable_operator_chaining",
        "config": "get_config",
        "execute(), awaited": "run",
        "execute_async(), awaited": "submit",
        " stop the job: `await job.stop()`": "stop",
        " cancel the job: `await job.cancel()`": "cancel",
        " write am.StreamExecutionEnvironment()": "get_execution_environment",
        " leave it out: event time is there where "
        "records get it, with a watermark strategy": "set_stream_time_characteristic",
        " leave it out: a job of bounded sources ends by itself": "set_runtime_mode",
        " leave it out: nothing here is Java": "add_jars",
        " leave it out: jobs run inside this program": "add_python_file",
    }
)
_GIVEN_WHEN_MADE: Final = ("parallelism", "max_parallelism", "clock", "config")
_DURATION: Final = " write am.minutes(5), am.seconds(5) or another timedelta"
_FUNCTION: Final = " write a function, or a class with __call__"
_NO_TYPES: Final = " records are plain Python objects, so leave it out"
_MESSAGES: Final = (
    " write env.from_async_iterable(messages, offset=...), and sink_to(function)"
)
_MEANT_OF_LIBRARY: Final = _by_name(
    {
        _DURATION: "Time Duration timedelta",
        " write am.millis(...)": "milliseconds ms",
        _NO_TYPES: "Types TypeInformation Row",
        _FUNCTION: "MapFunction FlatMapFunction FilterFunction ReduceFunction",
        f"{_FUNCTION}, or an am.ProcessFunction, which can be opened": "RichMapFunction",
        ' write key_by("field") or key_by(function)': "KeySelector",
        ' write .with_timestamp_assigner("field"), or a function': "TimestampAssigner",
        " write stream.map_async(function, concurrency=...)": "AsyncDataStream",
        " write an `async def`, and stream.map_async(function)": "AsyncFunction",
        " write stream.sink_to(function), or an am.Sink": "SinkFunction",
        " write stream.sink_to(print)": "PrintSink",
        " write env.from_async_iterable(generator), or an am.Source": "SourceFunction",
        " write connected.map(first, second)": "CoMapFunction",
        " write connected.flat_map(first, second)": "CoFlatMapFunction",
        " write an am.ProcessWindowFunction": "ProcessAllWindowFunction",
        " write am.restart.fixed_delay(3, am.seconds(10))": "RestartStrategies RestartStrategy fixed_delay",
        " write am.RocksDBStateBackend()": "EmbeddedRocksDBStateBackend",
        " write am.HeapStateBackend(), the default": "HashMapStateBackend MemoryStateBackend",
        " write am.HeapStateBackend(), and env.enable_checkpointing(...)": "FsStateBackend",
        " write job.snapshot(), or am.progress(job) to show it": "JobProgress",
        " leave it out: event time is there where records get it": "TimeCharacteristic",
        " leave it out: a job of bounded sources ends by itself": "RuntimeExecutionMode",
        _MESSAGES: "KafkaSource KafkaSink KafkaConsumer FlinkKafkaConsumer",
        " write am.SqlSink(url, table)": "JdbcSink",
        ' write am.FileSink(directory, "jsonl")': "StreamingFileSink",
        " write am.JobConfig(...)": "Configuration",
        " write am.StreamExecutionEnvironment()": "Environment StreamTableEnvironment",
        " write am.WatermarkStrategy.for_bounded_out_of_orderness(...)": "Watermark",
        " write am.TumblingEventTimeWindows.of(am.minutes(5))": "TumblingWindow",
        " write am.SlidingEventTimeWindows.of(size, slide)": "SlidingWindow",
        " write am.EventTimeSessionWindows.with_gap(am.minutes(5))": "SessionWindow",
        " write keyed.window(am.TumblingEventTimeWindows.of(am.minutes(5)))": "window",
        ' write the name of the field: "price"': "col",
        " write am.sum_(field)": "sum",
        " write am.min_(field)": "min",
        " write am.max_(field)": "max",
        " write am.mean(field)": "avg",
        " write am.collect_list(field)": "collect_set",
        " write am.count_distinct(field)": "approx_count_distinct",
        " write am.OutputTag(name)": "SideOutput",
        " write am.dead_letter(am.OutputTag(name))": "DeadLetterQueue",
        " write `from aiomailbox import testing`": "testing",
    }
)
OF_WINDOWS: Final = {
    **_COMPUTED,
    "count": "aggregate(am.count())",
    "select": "aggregate(am.aggregates(total=am.sum_(field), n=am.count()))",
    "collect": "aggregate(am.collect_list()).collect(), awaited",
    "to_list": "aggregate(am.collect_list())",
    "lateness": "allowed_lateness(...)",
    "on_error": "aggregate(..., on_error=...), and likewise for the other verbs",
    "get_side_output": "aggregate(...).get_side_output(tag)",
}
OF_PARTITIONS: Final = {
    **_COMPUTED,
    "count": "aggregate(am.count())",
    "apply": "map_partition(function)",
    "process": "map_partition(function)",
    "map": "map_partition(function)",
    "sort": "sort_partition(field)",
    "order_by": "sort_partition(field)",
}


class Unfinished(Unchanging):
    """The base of what leads from streams to a stream, and says how to get there."""

    # So that subclasses may have slots or not.
    __slots__ = ()
    # The way that is left to a stream.
    _left: ClassVar[str]
    # What to write for a name of another library.
    _meant: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Say what comes next.

            Raises:
                AttributeError: Always.
            """
            kind = type(self)
            text = no_such_name(kind, name, kind._called, kind._meant, kind._left)
            raise AttributeError(text, name=name, obj=None)


class Hinting(type):
    """The class of a class that is asked for names of another library."""

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> NoReturn:
            """Say what is meant.

            Raises:
                AttributeError: Always.
            """
            raise AttributeError(no_such_method(cls, name), name=name, obj=None)


def no_such_verb(kind: type, name: str) -> str:
    """Return what to say where a stream has no such attribute.

    Example:
        >>> from aiomailbox.api.stream import DataStream
        >>> from aiomailbox.api.stream import KeyedStream
        >>> no_such_verb(DataStream, "keyBy")
        "'DataStream' object has no attribute 'keyBy'; write stream.key_by(...)"
        >>> no_such_verb(DataStream, "reduce")
        'reduce needs a key: write stream.key_by(...).reduce(...)'
        >>> no_such_verb(KeyedStream, "avg")
        "...has no attribute 'avg'; write stream.aggregate(am.mean(field))"
    """
    snake = snake_case(name)
    subclasses: list[type] = kind.__subclasses__()
    is_verb = not name.startswith("_") and not hasattr(kind, snake)
    if is_verb and any(hasattr(keyed, snake) for keyed in subclasses):
        return f"{name} needs a key: write stream.key_by(...).{snake}(...)"
    meant = _MEANT
    if hasattr(kind, "reduce"):
        # It has its key.
        meant = {other: here.removeprefix(_KEYED) for other, here in meant.items()}
    return no_such_name(kind, name, "stream", meant)


def no_such_method(kind: type, name: str) -> str:
    """Return what to say where an environment has no such attribute.

    Example:
        >>> from aiomailbox.api.environment import StreamExecutionEnvironment
        >>> no_such_method(StreamExecutionEnvironment, "fromCollection")
        "...has no attribute 'fromCollection'; write env.from_collection(...)"
        >>> no_such_method(StreamExecutionEnvironment, "set_parallelism")
        "...; write am.StreamExecutionEnvironment(parallelism=...)"
    """
    setting = snake_case(name).removeprefix("set_")
    if setting in _GIVEN_WHEN_MADE:
        text = f"{kind.__name__!r} object has no attribute {name!r}"
        return f"{text}; write am.{kind.__name__}({setting}=...)"
    return no_such_name(kind, name, "env", _MEANT_OF_ENV)


def no_such_export(name: str, names: list[str]) -> str:
    """Return what to say where the library has no such name.

    Example:
        >>> no_such_export("Time", [])
        "...has no attribute 'Time'; write am.minutes(5), am.seconds(5) or another ..."
        >>> no_such_export("SparkSorce", ["SparkSource"])
        "...has no attribute 'SparkSorce'; is am.SparkSource meant?"
    """
    text = f"module 'aiomailbox' has no attribute {name!r}"
    if name.startswith("_"):
        return text
    if name in _MEANT_OF_LIBRARY:
        return f"{text};{_MEANT_OF_LIBRARY[name]}"
    found = getattr(errors, name, None)
    if isinstance(found, type) and issubclass(found, BaseException):
        return f"{text}; write aiomailbox.errors.{name}"
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
    return f"{text}; is am.{close[0]} meant?" if close else text
