"""Streams of records, and the methods that users call on them.

A stream is a description. Nothing runs, and no event loop is touched, until one of
the three verbs is used: ``await stream.collect()`` (or ``await env.execute()``),
``async for record in stream``, ``async with env.start() as job``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    NoReturn,
    Self,
    TypeVar,
    cast,
    overload,
)

from aiomailbox import connectors
from aiomailbox.api.adapted import OnlyProcess, as_object, of_pair
from aiomailbox.api.build import (
    RunIn,
    check_strategy,
    described_key,
    described_origins,
    has_watermarks,
    key_check,
    selected_pairs,
    sink_transformation,
    told_strategy,
    warn_of_misnamed,
)
from aiomailbox.api.calls import Calls
from aiomailbox.api.connected import (
    BroadcastConnectedStream,
    BroadcastStream,
    ConnectedStreams,
)
from aiomailbox.api.definition import (
    JobDefinition,
    derived,
    expression_infos,
    formed,
    key_selector,
    own_copy,
    refuse_ended,
)
from aiomailbox.api.fields import Fields
from aiomailbox.api.joined import CoGroupedWindows, JoinedStreams, JoinedWindows
from aiomailbox.api.keyed import Keyed
from aiomailbox.api.misnamed import no_such_verb
from aiomailbox.api.paced import Paced
from aiomailbox.api.partitioned import PartitionWindowedStream
from aiomailbox.api.placed import Placed
from aiomailbox.api.typed import RecordTypeCheck
from aiomailbox.api.verbs import Results
from aiomailbox.api.windowed import (
    Items,
    WindowedStream,
    counting,
    waits_for_watermarks,
)
from aiomailbox.connectors.inbox import Publication
from aiomailbox.errors import InvalidArgumentError, UsageError, WrongTypeError
from aiomailbox.eventtime.strategy import WatermarkStrategy
from aiomailbox.exchange.writer import (
    BroadcastPartitioner,
    KeyGroupPartitioner,
    Partitioner,
)
from aiomailbox.graph.side_outputs import problem_of_side_output
from aiomailbox.graph.transformation import (
    OperatorFactory,
    Origin,
    known_fields,
    rows_from,
)
from aiomailbox.operators.core.collector import Collector
from aiomailbox.operators.core.fields import RecordFields, is_expression, why_rows
from aiomailbox.operators.core.user_code import (
    ErrorAction,
    OnError,
    caller_location,
    check_function,
    check_on_error,
    describe,
    fail,
    warn_if_resultless,
    warn_if_returned_is_lost,
    warn_of_unopened,
)
from aiomailbox.operators.functions.base import held_back
from aiomailbox.operators.functions.contexts import ProcessContext
from aiomailbox.operators.functions.process import (
    KeyedProcessFunction,
    ProcessFunction,
    ProcessOperator,
)
from aiomailbox.operators.sinks.sink import Sink
from aiomailbox.operators.stateless.fused import StageKind
from aiomailbox.operators.stateless.operators import (
    TimestampsAndWatermarksOperator,
    stateless,
)
from aiomailbox.operators.useful.operators import (
    WithLatestOperator,
)
from aiomailbox.records.events import OutputTag
from aiomailbox.signatures import Unchanging, check_type, explained
from aiomailbox.state.descriptors import MapStateDescriptor
from aiomailbox.typevars import K, T, U, V
from aiomailbox.windowing.assigners import GlobalWindows, WindowAssigner
from aiomailbox.windowing.co_group import SidedKey, mark_first, mark_second
from aiomailbox.windowing.time_window import GlobalWindow
from aiomailbox.windowing.window_join import WindowJoinOperator

if TYPE_CHECKING:
    from typing import TypeGuard

    from typing_extensions import TypeIs

    from aiomailbox.operators.core.fields import Expression

WindowT = TypeVar("WindowT")

# Replaced by the job's own number when the job graph is built.
_ANY_MAX_PARALLELISM = 128
# What is said of an operator behind it.
_OF_OPERATORS: Final = {
    "name": 'it behind the operator: .name("...")',
    "uid": 'it behind the operator: .uid("...")',
    "parallelism": "it behind the operator: .set_parallelism(...)",
}
_OF_CALLS: Final = explained(
    **{
        name: f"map_async(function, {name}=...), with an async def"
        for name in ("retry", "timeout", "concurrency", "limit", "batch", "cache")
    },
    **_OF_OPERATORS,
)


def checked_result(result: Any, name: str, inputs: Iterable[Any]) -> Any:
    """Return what a pipeline has made, if it is a stream that emits something.

    Args:
        result: What it returned.
        name: The pipeline, for messages.
        inputs: What it was given.

    Raises:
        InvalidArgumentError: If it is a stream of another environment.
        UsageError: If it is the end of a stream.
        WrongTypeError: If it is no stream.
    """
    if not isinstance(result, DataStream):
        raise WrongTypeError(
            "pipeline",
            f"{name} returned {type(result).__name__}",
            "Return the stream that results.",
        )
    refuse_ended(result._origins)
    for given in inputs:
        if (
            isinstance(given, DataStream)
            and given._definition is not result._definition
        ):
            raise InvalidArgumentError(
                "pipeline",
                f"{name} returned {result!r}, which belongs to another environment than "
                f"the stream that it was given, {given!r}",
                "Return a stream that is made from the one that it was given.",
            )
    return result


class DataStream(Unchanging, Calls[T], Fields[T], Paced[T], Placed[T], Results[T]):
    """A stream of records of type ``T``.

    Made by a `StreamExecutionEnvironment` and by the methods of other streams.

    Concept:
        Flink, ``DataStream`` and ``SingleOutputStreamOperator``.
    """

    _called = "stream"

    def __init__(self, definition: JobDefinition, origins: list[Origin]) -> None:
        self._definition = definition
        self._origins = origins
        # What a keyed stream is placed by.
        self._key: Callable[[Any], Any] | None = None

    @overload
    def map(
        self,
        function: Callable[[T], Awaitable[U]],
        *,
        output_type: type[U] | None = None,
        on_error: OnError = fail,
    ) -> DataStream[U]: ...

    @overload
    def map(
        self,
        function: Callable[[T], U],
        *,
        output_type: type[U] | None = None,
        on_error: OnError = fail,
        run_in: RunIn = "loop",
    ) -> DataStream[U]: ...

    @_OF_CALLS
    def map(
        self,
        function: Callable[[T], Any],
        *,
        output_type: type[Any] | None = None,
        on_error: OnError = fail,
        run_in: RunIn = "loop",
    ) -> DataStream[Any]:
        """Replace each record by the result of ``function``.

        An ``async def`` function is run one record at a time; see `map_async`.

        Args:
            function: Called with each record. It must not change the record, which other
                operators may share; `JobConfig` ``check_mutations`` finds those that do.
            output_type: If given, the results are checked to be of this type.
            on_error: How to handle a record for which it raises.
            run_in: ``"thread"`` for a function that blocks, such as a synchronous client:
                the event loop stays responsive. Records are processed one at a time and
                in order; a few milliseconds of work are sent to the thread at once.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> am.run(env.from_collection([1, 2]).map(lambda n: n * 10).collect())
            [10, 20]
        """
        stream = self._stateless(StageKind.MAP, function, on_error, run_in)
        warn_if_resultless(function, "map")
        return stream.checked(output_type)

    @overload
    def filter(
        self,
        function: Callable[[T], TypeIs[U]],
        *,
        on_error: OnError = fail,
        run_in: RunIn = "loop",
    ) -> DataStream[U]: ...

    @overload
    def filter(
        self,
        function: Callable[[T], TypeGuard[U]],
        *,
        on_error: OnError = fail,
        run_in: RunIn = "loop",
    ) -> DataStream[U]: ...

    @overload
    def filter(
        self,
        function: Callable[[T], Any],
        *,
        on_error: OnError = fail,
        run_in: RunIn = "loop",
    ) -> DataStream[T]: ...

    @overload
    def filter(
        self, function: Expression, *, on_error: OnError = fail
    ) -> DataStream[T]: ...

    def filter(
        self,
        function: Callable[[T], Any] | Expression,
        *,
        on_error: OnError = fail,
        run_in: RunIn = "loop",
    ) -> DataStream[Any]:
        """Keep the records for which a function or an expression is true.

        Args:
            function: ``function(record)`` → whether to keep it; or an expression of
                `pyarrow.compute` over the records' fields, with which columns stay
                columns. Where the expression is null, the record is dropped.
            on_error: How to handle a record for which it fails.
            run_in: ``"thread"`` for a function that blocks; see `map`.

        Raises:
            InvalidArgumentError: If ``run_in`` is ``"thread"`` for an expression, or that
                needs more than one record.
            RecordTypeError: If the records are known to have no such field.
            WrongTypeError: If it is neither a function nor an expression.

        Example:
            >>> import aiomailbox as am
            >>> import pyarrow.compute as pc
            >>> env = am.StreamExecutionEnvironment()
            >>> orders = env.from_collection([{"price": 2}, {"price": 4}])
            >>> am.run(orders.filter(pc.field("price") > 3).collect())
            [{'price': 4}]
        """
        if is_expression(function):
            if run_in != "loop":
                raise InvalidArgumentError(
                    "run_in", "an expression runs in the event loop", "Leave it out."
                )
            policy = check_on_error(on_error)
            factory = partial(connectors.ExpressionFilter, function, on_error=policy)
            return self._derive("filter", factory, functions=expression_infos(function))
        if not callable(function):
            raise WrongTypeError(
                "function",
                f"{function!r} is neither a function nor an expression of Arrow",
                'Write pyarrow.compute.field("price") > 2, or a function of a record.',
            )
        return self._stateless(StageKind.FILTER, function, on_error, run_in)

    def flat_map(
        self,
        function: Callable[[T], Items[U]],
        *,
        on_error: OnError = fail,
        run_in: RunIn = "loop",
    ) -> DataStream[U]:
        """Replace each record by the items of the iterable that a function returns.

        Text, bytes and dicts are no such iterables: return ``[text]``. The job fails where
        the function returns one for a record of the first batch; for speed, later ones
        are not looked at.
        A generator function is paused between its items while the output is full.
        ``run_in="thread"`` is for a function that blocks, see `map`; all items of a record
        are then collected in the thread.
        """
        warn_if_returned_is_lost(function, "flat_map")
        return self._stateless(StageKind.FLAT_MAP, function, on_error, run_in)

    def process(
        self,
        function: ProcessFunction[T, U]
        | Callable[[T, ProcessContext, Collector[U]], Awaitable[None] | None],
        *,
        on_error: OnError = fail,
    ) -> DataStream[U]:
        """Pass each record to a function that may emit any number, to any output.

        It must change neither the records that it gets nor those that it has emitted. It
        runs in the event loop, where its context and collector are: for work that blocks,
        let an ``async def`` method await ``asyncio.to_thread(...)``, or put a
        ``map(function, run_in="thread")`` before it.

        Args:
            function: A `ProcessFunction`, or a function ``(value, context, out)``, sync or
                ``async def``.
            on_error: How to handle a record for which it raises.

        Example:
            >>> import aiomailbox as am
            >>> def split(text, context, out):
            ...     for word in text.split():
            ...         out.collect(word)
            >>> env = am.StreamExecutionEnvironment()
            >>> am.run(env.from_collection(["to be"]).process(split).collect())
            ['to', 'be']
        """
        given: object = function
        if isinstance(given, KeyedProcessFunction):
            raise WrongTypeError(
                "function",
                f"{given!r} is a KeyedProcessFunction, and the stream has no keys",
                "Write stream.key_by(...).process(...).",
            )
        if not isinstance(function, ProcessFunction):
            function = as_object(OnlyProcess, function, "(value, context, out)", 3)
        warn_of_misnamed(function)
        policy = check_on_error(on_error)
        factory = partial(own_copy, ProcessOperator, function, on_error=policy)
        functions, held = (function.process_element,), held_back(function)
        return self._derive("process", factory, functions=functions, held=held)

    def assign_timestamps_and_watermarks(
        self, strategy: WatermarkStrategy[T], *, on_error: OnError = fail
    ) -> DataStream[T]:
        """Assign event times to the records, and watermarks to the stream, from here on.

        Event times and watermarks from upstream are replaced; only the end of event time
        is passed on.
        ``on_error`` says what to do with a record that has no event time.
        """
        check_strategy(strategy, "strategy", of_source=False)
        policy = check_on_error(on_error)
        factory = partial(TimestampsAndWatermarksOperator, strategy, on_error=policy)
        told = (told_strategy(strategy),)
        return self._derive(
            "timestamps", factory, settings=told, watermarks=has_watermarks(strategy)
        )

    @overload
    def key_by(
        self, key: str, *others: str, on_error: OnError = fail
    ) -> KeyedStream[Any, T]: ...

    @overload
    def key_by(
        self, key: Callable[[T], K], *, on_error: OnError = fail
    ) -> KeyedStream[K, T]: ...

    def key_by(
        self, key: str | Callable[[T], Any], *others: str, on_error: OnError = fail
    ) -> KeyedStream[Any, T]:
        """Send each record to the subtask that owns its key.

        Args:
            key: A field's name, or a function of a record. Keys are int, str, float,
                bool, bytes or tuples of these, all of one type.
            others: The names of further fields; the key is then a tuple of all of them.
            on_error: How to handle a record without a key, or with a key of another type
                than the first one. Dead letters go to a side output. Unless it is
                ``fail``, keys are read twice.
        """
        stream, selector = self, key_selector(key, others, self._origins)
        if check_on_error(on_error).action is not ErrorAction.FAIL:
            asking = why_rows(selector)
            kind: Any = key_check
            if not asking and rows_from(self._origins) is None:
                kind = connectors.ColumnarKeyCheck
            stream = self._derive(
                "key",
                partial(kind, selector, on_error),
                follows_input=True,
                asks_for_rows=asking,
                takes_columns=kind is not key_check,
                record_fields=None,
            )
        return KeyedStream(self._definition, stream._origins, selector)

    def window_all(
        self, assigner: WindowAssigner[WindowT]
    ) -> WindowedStream[None, T, WindowT]:
        """Group all records into time windows, in a single subtask."""
        derive = partial(self._keyed, parallelism_max=1)
        return WindowedStream(None, assigner, derive, self._origins)

    def count_window_all(
        self, size: int, slide: int | None = None
    ) -> WindowedStream[None, T, GlobalWindow]:
        """Group all records into windows of a number of records, in a single subtask.

        See `KeyedStream.count_window`.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> numbers = env.from_collection([1, 2, 3, 4, 5])
            >>> am.run(numbers.count_window_all(2).reduce(lambda a, b: a + b).collect())
            [3, 7]

        Concept:
            Flink, ``DataStream.countWindowAll``.
        """
        return counting(self.window_all(GlobalWindows.create()), size, slide)

    def full_window_partition(self) -> PartitionWindowedStream[Any, T]:
        """Take all records of each subtask as one partition, which ends with the input.

        For bounded streams. For one result of everything, ``set_parallelism(1)`` the
        operator, or key by a constant.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> sales = env.from_collection([{"price": 5}, {"price": 3}])
            >>> total = sales.full_window_partition().aggregate(am.sum_("price"))
            >>> am.run(total.collect())
            [8]

        Concept:
            Flink, ``DataStream.fullWindowPartition``.
        """
        derive = partial(self._keyed, follows_input=True)
        return PartitionWindowedStream(None, derive, self._origins)

    def union(self, *others: DataStream[T]) -> DataStream[T]:
        """Merge this stream and others into one stream."""
        origins = list(self._origins)
        for other in others:
            self._check_joinable(other, "others")
            origins += other._origins
        return DataStream(self._definition, origins)

    @overload
    def connect(self, other: BroadcastStream[U]) -> BroadcastConnectedStream[T, U]: ...

    @overload
    def connect(self, other: DataStream[U]) -> ConnectedStreams[T, U]: ...

    def connect(
        self, other: BroadcastStream[U] | DataStream[U]
    ) -> BroadcastConnectedStream[T, U] | ConnectedStreams[T, U]:
        """Connect two streams, possibly of different types, in one operator.

        Args:
            other: A stream, or what ``broadcast(descriptor)`` returns.
        """
        key = self._key
        if isinstance(other, BroadcastStream):
            self._check_joinable(other._stream, "other")
            return BroadcastConnectedStream(self._connected, other, key)
        self._check_joinable(other, "other")
        other_key = other._key
        keys = None if key is None or other_key is None else (key, other_key)
        return ConnectedStreams(self._connected, other._origins, keys)

    def join(self, other: DataStream[U]) -> JoinedStreams[T, U, JoinedWindows[T, U]]:
        """Join two streams: each pair of records that share a key and a window.

        Next are ``where(...)``, ``equal_to(...)`` and ``window(...)``, then ``select(...)``
        with fields of both sides, which leaves columns what they are, or ``apply(...)``
        with a function.

        Args:
            other: The second stream, possibly of another type.

        Concept:
            Flink, ``DataStream.join``.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> time = am.WatermarkStrategy.for_monotonous_timestamps()
            >>> time = time.with_timestamp_assigner(lambda record: record[1])
            >>> clicks = env.from_collection([("a", 1000), ("b", 2000)], time)
            >>> buys = env.from_collection([("a", 1500), ("a", 9000)], time)
            >>> joined = (
            ...     clicks.join(buys)
            ...     .where(lambda click: click[0])
            ...     .equal_to(lambda buy: buy[0])
            ...     .window(am.TumblingEventTimeWindows.of(am.seconds(5)))
            ...     .apply(lambda click, buy: (click[0], buy[1] - click[1]))
            ... )
            >>> am.run(joined.collect())
            [('a', 500)]
        """
        self._check_joinable(other, "other")
        select = partial(self._selected_windows, other)

        def make(key: SidedKey, assigner: WindowAssigner) -> JoinedWindows[T, U]:
            return JoinedWindows(self._sided(other, key, assigner), select)

        return JoinedStreams(make)

    def co_group(
        self, other: DataStream[U]
    ) -> JoinedStreams[T, U, CoGroupedWindows[T, U]]:
        """Group the records of two streams by key and window, as two lists.

        Args:
            other: The second stream, possibly of another type.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> time = am.WatermarkStrategy.for_monotonous_timestamps()
            >>> time = time.with_timestamp_assigner(lambda record: record[1])
            >>> orders = env.from_collection([("a", 1000), ("b", 2000)], time)
            >>> payments = env.from_collection([("a", 1500)], time)
            >>> unpaid = (
            ...     orders.co_group(payments)
            ...     .where(lambda order: order[0])
            ...     .equal_to(lambda payment: payment[0])
            ...     .window(am.TumblingEventTimeWindows.of(am.seconds(5)))
            ...     .apply(lambda orders, payments: [] if payments else orders)
            ... )
            >>> am.run(unpaid.collect())
            [('b', 2000)]
        """
        self._check_joinable(other, "other")

        def make(key: SidedKey, assigner: WindowAssigner) -> CoGroupedWindows[T, U]:
            return CoGroupedWindows(self._sided(other, key, assigner))

        return JoinedStreams(make)

    @overload
    def with_latest_from(
        self, other: DataStream[V], function: None = None, *, on_error: OnError = fail
    ) -> DataStream[tuple[T, V]]: ...

    @overload
    def with_latest_from(
        self,
        other: DataStream[V],
        function: Callable[[T, V], Awaitable[U]],
        *,
        on_error: OnError = fail,
    ) -> DataStream[U]: ...

    @overload
    def with_latest_from(
        self,
        other: DataStream[V],
        function: Callable[[T, V], U],
        *,
        on_error: OnError = fail,
    ) -> DataStream[U]: ...

    def with_latest_from(
        self,
        other: DataStream[Any],
        function: Callable[[Any, Any], Any] | None = None,
        *,
        on_error: OnError = fail,
    ) -> DataStream[Any]:
        """Combine each record with the latest record of another stream.

        The latest record is the last one that has arrived; `KeyedStream.as_of_join` uses
        event time instead. Records that arrive before the other stream's first one are
        dropped and counted as ``records_without_latest``.

        Args:
            other: The other stream, which is broadcast to every subtask.
            function: ``(record, latest)`` → the result, sync or ``async def``; None for
                a tuple of both.
            on_error: How to handle a pair for which ``function`` raises.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> rates = env.from_collection([10])
            >>> pairs = env.from_collection([1, 2]).with_latest_from(rates)
            >>> set(am.run(pairs.collect())) <= {(1, 10), (2, 10)}
            True
        """
        self._check_joinable(other, "other")
        combine: Any = None
        if function is not None:
            check_function(function, "function", arity=2, gets="record, latest")
            combine = of_pair(function)
        everywhere = [
            replace(origin, partitioner=BroadcastPartitioner())
            for origin in other._origins
        ]
        pairs = self._connected(everywhere, "with_latest_from", WithLatestOperator)
        return pairs if combine is None else pairs.map(combine, on_error=on_error)

    def through(
        self, pipeline: Callable[[DataStream[T]], DataStream[U]]
    ) -> DataStream[U]:
        """Attach a pipeline (see `aiomailbox.pipeline`) and return the resulting stream."""
        check_function(pipeline, "pipeline", arity=1)
        return checked_result(pipeline(self), describe(pipeline), [self])

    def get_side_output(self, tag: OutputTag[U]) -> DataStream[U]:
        """Return the side output ``tag`` of the operator that made this stream.

        Raises:
            InvalidArgumentError: If that operator emits nothing to ``tag``.
            WrongTypeError: If ``tag`` is no `OutputTag`.
        """
        check_type(tag, OutputTag, "tag", "Write am.OutputTag('late').")
        problem = problem_of_side_output(self._operator, tag)
        if problem:
            raise InvalidArgumentError(
                "tag",
                f"{tag.id!r} is no side output of {self._operator.name!r}: {problem}",
                "Ask the stream that is returned by the operator with that tag, before "
                "further operators follow.",
            )
        return DataStream(self._definition, [Origin(self._operator, None, tag)])

    def blocking(self) -> DataStream[T]:
        """Write the records to files, which are read when all are written.

        Operators that read this stream start when those upstream have finished. With a
        restart strategy, a reader that fails reads the files again; the operators upstream
        do not run again. The files are in the job's scratch directory, on the
        disk of the process that writes them, and are removed with the job.

        Only for bounded streams, and for jobs without checkpoints, because there is no time
        at which all tasks run.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> numbers = env.from_collection(range(3)).map(lambda n: n * n).blocking()
            >>> am.run(numbers.map(lambda n: n + 1).collect())
            [1, 2, 5]

        Concept:
            Flink, ``StreamExchangeMode.BATCH`` and ``ResultPartitionType.BLOCKING``.
        """
        return DataStream(
            self._definition,
            [replace(origin, is_blocking=True) for origin in self._origins],
        )

    @overload
    def broadcast(self) -> DataStream[T]: ...

    @overload
    def broadcast(
        self, *descriptors: MapStateDescriptor[Any, Any]
    ) -> BroadcastStream[T]: ...

    def broadcast(
        self, *descriptors: MapStateDescriptor[Any, Any]
    ) -> DataStream[T] | BroadcastStream[T]:
        """Send every record to every subtask.

        Args:
            *descriptors: Broadcast state for the contents of the records, such as
                rules.

        Returns:
            Without descriptors a stream; with them an argument of `DataStream.connect` for
            a `BroadcastProcessFunction`.
        """
        stream = self._partitioned(BroadcastPartitioner())
        return BroadcastStream(stream, descriptors) if descriptors else stream

    @overload
    def checked(self, output_type: None) -> DataStream[T]: ...

    @overload
    def checked(self, output_type: type[U]) -> DataStream[U]: ...

    def checked(self, output_type: type[Any] | None) -> DataStream[Any]:
        """Declare the type of the records; a record of another type fails the job.

        Args:
            output_type: A class, or None to declare nothing.

        Raises:
            WrongTypeError: If ``output_type`` is neither.
        """
        if output_type is None:
            return self
        check = RecordTypeCheck(output_type, self._origins[0].transformation.name)
        stream = self._stateless(StageKind.MAP, check, fail)
        item = stream._origins[0].transformation
        item.asks_for_rows = "the check of their type"
        item.record_fields = RecordFields.of_type(output_type)
        item.follows_input = item.is_part_of_input = True
        return stream

    @explained(retry="map_async(function, retry=...) before the sink", **_OF_OPERATORS)
    def sink_to(
        self,
        sink: Sink | Callable[[T], Any],
        *,
        on_error: OnError = fail,
        run_in: RunIn = "loop",
    ) -> DataStream[T]:
        """End the stream in a sink, or in a function that is called with each record.

        Args:
            sink: The sink, or the function.
            on_error: How to handle a record for which the function raises, or that
                the sink rejects because of its contents. A sink that cannot be written
                fails the job in any case.
            run_in: ``"thread"`` for a function that blocks, such as a synchronous client:
                the event loop stays responsive. Records are written one at a time and in
                order.

        Raises:
            InvalidArgumentError: If ``run_in`` is ``"thread"`` for a sink or an ``async
                def`` function.
            WrongTypeError: If ``sink`` is neither a sink nor a function.

        Returns:
            The sink, so that it can be given a name, a uid or a parallelism, and its dead
            letters can be read.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> sums, refused = [0], am.OutputTag("refused")
            >>> def add(number):
            ...     sums.append(sums[-1] + number)
            >>> numbers = env.from_collection([1, 2, "three", 4])
            >>> sink = numbers.sink_to(add, on_error=am.dead_letter(refused))
            >>> letters = sink.get_side_output(refused)
            >>> am.run(letters.map(lambda letter: letter.record).collect())
            ['three']
            >>> sums
            [0, 1, 3, 7]
        """
        refuse_ended(self._origins)
        item = sink_transformation(
            sink, self._origins, self._definition.sinks, on_error, run_in
        )
        self._definition.end_in(item)
        return DataStream(self._definition, [Origin(item)])

    def publish(self) -> DataStream[T]:
        """Make this stream readable while its job runs; see `JobClient.subscribe`.

        Returns:
            This stream.
        """
        self.sink_to(Publication())
        return self

    def _is_of(self, origins: list[Origin]) -> bool:
        """Say whether this is the stream that comes from there."""
        return [(one.transformation, one.tag) for one in self._origins] == [
            (one.transformation, one.tag) for one in origins
        ]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Name what is missing where a keyed method is used without a key.

            Raises:
                AttributeError: Always.
            """
            raise AttributeError(no_such_verb(type(self), name), name=name, obj=None)

    def __repr__(self) -> str:
        names = described_origins(self._origins)
        key = "" if self._key is None else f" by {described_key(self._key)}"
        return f"<{type(self).__name__} of {names}{key}>"

    def _check_joinable(self, other: Any, parameter: str) -> None:
        """Raise if ``other`` is not a stream, or one of another environment."""
        check_type(other, DataStream, parameter, "Give a DataStream.", "a stream")
        if other._definition is not self._definition:
            raise InvalidArgumentError(
                parameter,
                "the stream belongs to another environment",
                "Make both streams from one StreamExecutionEnvironment.",
            )

    def _stateless(
        self,
        kind: StageKind,
        function: Callable[[T], Any],
        on_error: OnError,
        run_in: RunIn = "loop",
    ) -> DataStream[Any]:
        stream = self._derive(
            kind.value,
            partial(stateless, kind, function, on_error=on_error, run_in=run_in),
            functions=(function,),
            record_fields=(
                known_fields(self._origins) if kind is StageKind.FILTER else None
            ),
        )
        warn_of_unopened(function, kind.value.replace(" ", "_"))
        return stream

    def _derive(
        self, name: str, factory: OperatorFactory, **facts: Any
    ) -> DataStream[Any]:
        item = derived(name, factory, [self._origins], **facts)
        return DataStream(self._definition, self._definition.declare(item))

    def _partitioned(self, partitioner: Partitioner) -> DataStream[T]:
        return DataStream(
            self._definition,
            [replace(origin, partitioner=partitioner) for origin in self._origins],
        )

    def _keyed(
        self,
        name: str,
        factory: OperatorFactory,
        functions: tuple[Any, ...] = (),
        **facts: Any,
    ) -> DataStream[Any]:
        return self._derive(name, factory, functions=functions, is_keyed=True, **facts)

    def _connected(
        self, others: list[Origin], name: str, factory: OperatorFactory, **facts: Any
    ) -> DataStream[Any]:
        item = derived(name, factory, [self._origins, others], **facts)
        return DataStream(self._definition, self._definition.declare(item))

    def _sided(
        self, other: DataStream[Any], key: SidedKey, assigner: WindowAssigner
    ) -> WindowedStream[Any, Any]:
        """Return the windows of both streams, united, each record with its side."""
        key.check(known_fields(self._origins), known_fields(other._origins))
        first, second = (
            stream._derive(name, partial(stateless, StageKind.MAP, mark))
            for stream, name, mark in (
                (self, "first side", mark_first),
                (other, "second side", mark_second),
            )
        )
        return first.union(second).key_by(key).window(assigner)

    def _selected_windows(
        self,
        other: DataStream[Any],
        said: dict[str, Any],
        names: tuple[Any, ...],
        named: Mapping[str, Any],
        on_error: OnError,
    ) -> DataStream[Any]:
        """Return fields of the pairs of both streams' records that meet in windows."""
        keys = tuple(said["key"].of_side(side) for side in range(2))
        first, second = (
            KeyedStream(self._definition, stream._origins, key)
            for stream, key in zip((self, other), keys, strict=True)
        )
        fields = selected_pairs(names, named, keys)
        return first._join_by_key(
            second,
            "window join",
            partial(
                own_copy,
                formed,
                WindowJoinOperator,
                selection=(fields, check_on_error(on_error)),
                on_error=check_on_error(on_error),
                **said,
            ),
            functions=expression_infos(*fields.expressions),
            has_columns=True,
            held="open windows",
            waits_for_watermarks=waits_for_watermarks(said),
        )


# A function that has a key needs one.
# Settings that an operator is given once: each is None before.
_OF_ONE_OPERATOR: Final = frozenset(
    {"uid", "parallelism", "max_parallelism", "slot_sharing_group"}
)


class KeyedStream(Keyed[K, T], DataStream[T]):  # type: ignore[misc]
    """A stream whose records are partitioned by key.

    Made by `DataStream.key_by`. The methods of `DataStream` work here too; their
    results are no longer keyed.

    Concept:
        Flink, ``KeyedStream``.
    """

    def __init__(
        self, definition: JobDefinition, origins: list[Origin], key: Callable[[T], K]
    ) -> None:
        by_key = KeyGroupPartitioner(key, _ANY_MAX_PARALLELISM, line=caller_location())
        super().__init__(
            definition,
            [replace(origin, partitioner=by_key) for origin in origins],
        )
        self._key = key

    @property
    def key(self) -> Callable[[T], K]:
        """The function that gives the key of a record."""
        return cast("Callable[[T], K]", self._key)

    def _changed(self, call: str, **settings: Any) -> Self:
        """Return the stream of a copy of the operator before ``key_by``.

        Raises:
            UsageError: If that has been given such a setting before: the new one is
                meant for the operator behind ``key_by``, which is still to come.
        """
        item = self._operator
        for name in _OF_ONE_OPERATOR & settings.keys():
            earlier = getattr(item, name)
            if earlier is not None and earlier != settings[name]:
                raise UsageError(
                    f"{call} behind key_by would replace {name}={earlier!r} of operator "
                    f"{item.name!r} ({item.line}): key_by is no operator. Write {call} "
                    "behind the operator that it is for, such as "
                    f"`stream.key_by(...).aggregate(...){call}`"
                )
        return super()._changed(call, **settings)

    def blocking(self) -> KeyedStream[K, T]:
        """Keep the records in files; see `DataStream.blocking`."""
        origins = [replace(origin, is_blocking=True) for origin in self._origins]
        return KeyedStream(self._definition, origins, self.key)
