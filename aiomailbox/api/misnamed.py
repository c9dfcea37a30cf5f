"""Says what is meant by a name that the library, or one of its objects, does not have."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Final, NoReturn

from aiomailbox import errors
from aiomailbox.signatures import no_such_name, snake_case

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
    "print": "sink_to(print), or `await stream.show()` for the first records",
    "pprint": "sink_to(print), or `await stream.show()` for the first records",
    "add_sink": "sink_to(...)",
    "sink": "sink_to(...)",
    "write": "sink_to(...)",
    "write_stream": "sink_to(...)",
    "write_to": "sink_to(...)",
    "write_as_text": 'sink_to(am.FileSink(directory, "text"))',
    "write_as_csv": 'sink_to(am.FileSink(directory, "csv"))',
    "to_csv": 'sink_to(am.FileSink(directory, "csv"))',
    "to_json": 'sink_to(am.FileSink(directory, "jsonl"))',
    "to_parquet": "sink_to(am.ParquetSink(directory))",
    "write_parquet": "sink_to(am.ParquetSink(directory))",
    "foreach": "sink_to(function)",
    "for_each": "sink_to(function)",
    "foreach_batch": "batch(size).sink_to(function)",
    "group_by": "key_by(...)",
    "where": "filter(...)",
    "with_column": "with_columns(name=...)",
    "with_column_renamed": "rename({old: new})",
    "with_watermark": "assign_timestamps_and_watermarks(strategy)",
    "with_timestamp_assigner": "assign_timestamps_and_watermarks(strategy)",
    "project": "select(...)",
    "explode": "flat_map(lambda record: record.items)",
    "flatten": "flat_map(lambda record: record)",
    "starmap": "map(lambda record: function(*record))",
    "map_partition": "full_window_partition().map_partition(function), or "
    "map_batches(function)",
    "map_partitions": "full_window_partition().map_partition(function), or "
    "map_batches(function)",
    "sort_partition": "full_window_partition().sort_partition(field)",
    "async_wait": "map_async(function, concurrency=...)",
    "ordered_wait": "map_async(function, concurrency=...)",
    "unordered_wait": "map_async(function, ordered=False, concurrency=...)",
    "map_with_state": "key_by(...).process(function)",
    "flat_map_with_state": "key_by(...).process(function)",
    "update_state_by_key": "key_by(...).process(function)",
    "map_groups_with_state": "key_by(...).process(function)",
    "flat_map_groups_with_state": "key_by(...).process(function)",
    "apply_in_pandas_with_state": "key_by(...).process(function)",
    "transform_with_state": "key_by(...).process(function)",
    "transform_with_state_in_pandas": "key_by(...).process(function)",
    "scan": "key_by(...).reduce(function)",
    "accumulate": "key_by(...).reduce(function)",
    "reduce_by_key": "key_by(...).reduce(function)",
    "state": "key_by(...).process(function), whose context has the state",
    "distinct": "key_by(...).deduplicate(ttl=...)",
    "drop_duplicates": "key_by(...).deduplicate(ttl=...)",
    "time_window": "key_by(...).window(am.TumblingEventTimeWindows.of(...))",
    "tumbling_window": "key_by(...).window(am.TumblingEventTimeWindows.of(...))",
    "sliding_window": "key_by(...).window(am.SlidingEventTimeWindows.of(size, slide))",
    "session_window": "key_by(...).window(am.EventTimeSessionWindows.with_gap(...))",
    "chunk": "batch(size)",
    "union_all": "union(other)",
    "merge": "union(other)",
    "concat": "union(other)",
    "repartition": "rebalance(), or key_by(...)",
    "side_output": "get_side_output(tag)",
    "split": "filter(...) once for each part, or get_side_output(tag)",
    "limit": "take(n), awaited",
    "head": "take(n), awaited",
    "to_list": "collect(), awaited",
    "list": "collect(), awaited",
    "execute_and_collect": "collect(), awaited",
    "to_pandas": "to_spark(spark), awaited, or arrow_batches()",
    "to_df": "to_spark(spark), awaited",
    "to_table": "to_spark(spark), awaited",
    "subscribe": "publish(), and read it with job.subscribe(stream)",
    "returns": " records are plain Python objects, so leave it out",
    "output_type": " give it where the stream begins: from_source(..., output_type=...)",
    "execute": " write `await env.execute()`, or `await stream.collect()`",
    "run": " write `await env.execute()`, or `await stream.collect()`",
    "start": " write `async with env.start() as job:`",
    "iterate": " a stream has no loops: call again inside a map_async(...) function",
    "sort": " if the stream ends, write "
    "full_window_partition().sort_partition(field), or sort the records of a window",
    "order_by": " if the stream ends, write "
    "full_window_partition().sort_partition(field), or sort the records of a window",
    "cache": " nothing runs twice in one job: use the stream twice",
    "persist": " nothing runs twice in one job: use the stream twice",
}
_MEANT_OF_ENV: Final = {
    "add_source": "from_source(...)",
    "from_elements": "from_collection([...])",
    "from_data": "from_collection([...])",
    "from_list": "from_collection([...])",
    "from_iterable": "from_collection(values)",
    "from_pandas": "from_arrow(pyarrow.Table.from_pandas(df))",
    "from_polars": "from_arrow(df)",
    "parallelize": "from_collection([...])",
    "range": "from_collection(range(n))",
    "from_range": "from_collection(range(n))",
    "from_sequence": "from_collection(range(n))",
    "generate_sequence": "from_collection(range(n))",
    "from_generator": "from_async_iterable(generator)",
    "from_async_generator": "from_async_iterable(generator)",
    "from_queue": "from_source(am.Inbox())",
    "from_kafka": "from_async_iterable(messages, offset=...)",
    "socket_text_stream": "from_async_iterable(lines)",
    "from_dataframe": "from_source(am.SparkSource(df))",
    "from_spark": "from_source(am.SparkSource(df))",
    "read_stream": "from_source(am.SparkStreamSource(df))",
    "read": "from_source(am.FileSource(path))",
    "read_text_file": "from_source(am.FileSource(path))",
    "read_file": "from_source(am.FileSource(path))",
    "from_file": "from_source(am.FileSource(path))",
    "from_csv": "from_source(am.FileSource(path))",
    "read_csv": "from_source(am.FileSource(path))",
    "from_json": "from_source(am.FileSource(path))",
    "read_json": "from_source(am.FileSource(path))",
    "from_parquet": "from_source(am.FileSource(path))",
    "read_parquet": "from_source(am.FileSource(path))",
    "get_execution_plan": "explain()",
    "get_checkpoint_config": "enable_checkpointing(...), whose arguments they are",
    "set_state_backend": "configure(state_backend=am.RocksDBStateBackend())",
    "state_backend": "configure(state_backend=am.RocksDBStateBackend())",
    "deployment": "configure(deployment=am.Processes(4))",
    "set_restart_strategy": "configure(restart=am.restart.fixed_delay(3))",
    "set_buffer_timeout": "configure(buffer_timeout=am.millis(100))",
    "disable_operator_chaining": "configure(operator_chaining=False)",
    "get_config": "config",
    "run": "execute(), awaited",
    "submit": "execute_async(), awaited",
    "stop": " stop the job: `await job.stop()`",
    "cancel": " cancel the job: `await job.cancel()`",
    "get_execution_environment": " write am.StreamExecutionEnvironment()",
    "set_stream_time_characteristic": " leave it out: event time is there where "
    "records get it, with a watermark strategy",
    "set_runtime_mode": " leave it out: a job of bounded sources ends by itself",
    "add_jars": " leave it out: nothing here is Java",
    "add_python_file": " leave it out: jobs run inside this program",
}
_GIVEN_WHEN_MADE: Final = ("parallelism", "max_parallelism", "clock", "config")
_DURATION: Final = " write am.minutes(5), am.seconds(5) or another timedelta"
_FUNCTION: Final = " write a function, or a class with __call__"
_NO_TYPES: Final = " records are plain Python objects, so leave it out"
_MESSAGES: Final = (
    " write env.from_async_iterable(messages, offset=...), and sink_to(function)"
)
_MEANT_OF_LIBRARY: Final = {
    "Time": _DURATION,
    "Duration": _DURATION,
    "timedelta": _DURATION,
    "milliseconds": " write am.millis(...)",
    "ms": " write am.millis(...)",
    "Types": _NO_TYPES,
    "TypeInformation": _NO_TYPES,
    "Row": _NO_TYPES,
    "MapFunction": _FUNCTION,
    "RichMapFunction": f"{_FUNCTION}, or an am.ProcessFunction, which can be opened",
    "FlatMapFunction": _FUNCTION,
    "FilterFunction": _FUNCTION,
    "ReduceFunction": _FUNCTION,
    "KeySelector": ' write key_by("field") or key_by(function)',
    "TimestampAssigner": ' write .with_timestamp_assigner("field"), or a function',
    "AsyncDataStream": " write stream.map_async(function, concurrency=...)",
    "AsyncFunction": " write an `async def`, and stream.map_async(function)",
    "SinkFunction": " write stream.sink_to(function), or an am.Sink",
    "PrintSink": " write stream.sink_to(print)",
    "SourceFunction": " write env.from_async_iterable(generator), or an am.Source",
    "CoMapFunction": " write connected.map(first, second)",
    "CoFlatMapFunction": " write connected.flat_map(first, second)",
    "ProcessAllWindowFunction": " write an am.ProcessWindowFunction",
    "RestartStrategies": " write am.restart.fixed_delay(3, am.seconds(10))",
    "RestartStrategy": " write am.restart.fixed_delay(3, am.seconds(10))",
    "fixed_delay": " write am.restart.fixed_delay(3, am.seconds(10))",
    "EmbeddedRocksDBStateBackend": " write am.RocksDBStateBackend()",
    "HashMapStateBackend": " write am.HeapStateBackend(), the default",
    "MemoryStateBackend": " write am.HeapStateBackend(), the default",
    "FsStateBackend": " write am.HeapStateBackend(), and env.enable_checkpointing(...)",
    "JobProgress": " write job.snapshot(), or am.progress(job) to show it",
    "TimeCharacteristic": " leave it out: event time is there where records get it",
    "RuntimeExecutionMode": " leave it out: a job of bounded sources ends by itself",
    "KafkaSource": _MESSAGES,
    "KafkaSink": _MESSAGES,
    "KafkaConsumer": _MESSAGES,
    "FlinkKafkaConsumer": _MESSAGES,
    "JdbcSink": " write am.SqlSink(url, table)",
    "StreamingFileSink": ' write am.FileSink(directory, "jsonl")',
    "Configuration": " write am.JobConfig(...)",
    "Environment": " write am.StreamExecutionEnvironment()",
    "StreamTableEnvironment": " write am.StreamExecutionEnvironment()",
    "Watermark": " write am.WatermarkStrategy.for_bounded_out_of_orderness(...)",
    "TumblingWindow": " write am.TumblingEventTimeWindows.of(am.minutes(5))",
    "SlidingWindow": " write am.SlidingEventTimeWindows.of(size, slide)",
    "SessionWindow": " write am.EventTimeSessionWindows.with_gap(am.minutes(5))",
    "window": " write keyed.window(am.TumblingEventTimeWindows.of(am.minutes(5)))",
    "col": ' write the name of the field: "price"',
    "sum": " write am.sum_(field)",
    "min": " write am.min_(field)",
    "max": " write am.max_(field)",
    "avg": " write am.mean(field)",
    "collect_set": " write am.collect_list(field)",
    "approx_count_distinct": " write am.count_distinct(field)",
    "SideOutput": " write am.OutputTag(name)",
    "DeadLetterQueue": " write am.dead_letter(am.OutputTag(name))",
    "testing": " write `from aiomailbox import testing`",
}
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


class Unfinished:
    """The base of what leads from streams to a stream, and says how to get there."""

    # So that subclasses may have slots or not.
    __slots__ = ()
    # How users call it, and the way that is left to a stream.
    _called: ClassVar[str]
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

        def __setattr__(self, name: str, value: object) -> None:
            """Set nothing that users would take for a setting.

            Raises:
                AttributeError: If the name is public.
            """
            if not name.startswith("_"):
                refuse_setting(self, name, self._called)
            super().__setattr__(name, value)


class Hinting(type):
    """The class of a class that is asked for names of another library."""

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> NoReturn:
            """Say what is meant.

            Raises:
                AttributeError: Always.
            """
            raise AttributeError(no_such_method(cls, name), name=name, obj=None)


def refuse_setting(owner: object, name: str, called: str) -> NoReturn:
    """Refuse a public attribute of what does not change, where it is set.

    Raises:
        AttributeError: Always. Nothing would ever read it.
    """
    kind = type(owner)
    if callable(getattr(kind, name, None)):
        text = f"{name!r} of {kind.__name__!r} is a method and cannot be set; write "
        text += f"{called} = {called}.{name}(...)"
    else:
        text = no_such_name(kind, name, called, {})
    raise AttributeError(text, name=name, obj=None)


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
