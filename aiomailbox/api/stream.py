"""Streams of records: what users call methods on.

A stream is a description. Nothing runs, and no event loop is touched, until one of
the three verbs is used: ``await stream.collect()`` (or ``await env.execute()``),
``async for record in stream``, ``async with env.start() as job``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from aiomailbox.api.build import (
    GROWS_WITH_KEYS,
    check_count,
    check_kind,
    check_strategy,
    function_info,
    key_check,
    key_selector,
    known_fields,
    own_copy,
    sink_transformation,
)
from aiomailbox.api.connecting import Connecting
from aiomailbox.api.definition import JobDefinition
from aiomailbox.api.joins import Joins, KeyedJoins
from aiomailbox.api.keyed_functions import KeyedFunctions
from aiomailbox.api.partitioning import Partitioning
from aiomailbox.api.results import ResultVerbs
from aiomailbox.api.settings import OperatorSettings
from aiomailbox.api.typed import DeclaredType
from aiomailbox.api.useful import KeyedUseful, Useful
from aiomailbox.api.windowed import WindowedStream
from aiomailbox.errors import WrongTypeError
from aiomailbox.eventtime import WatermarkStrategy
from aiomailbox.exchange import KeyGroupPartitioner, Partitioner
from aiomailbox.graph import FunctionInfo, OperatorFactory, Origin, Transformation
from aiomailbox.operators import (
    AsyncMapOperator,
    ErrorAction,
    KeyedProcessFunction,
    KeyedProcessOperator,
    KeyedReduceOperator,
    OnError,
    ProcessFunction,
    ProcessOperator,
    Sink,
    StageKind,
    TimestampsAndWatermarksOperator,
    check_function,
    check_on_error,
    fail,
    stateless,
)
from aiomailbox.policies import Batch, Cache, RateLimit, Retry
from aiomailbox.records import OutputTag
from aiomailbox.windowing import WindowAssigner

T = TypeVar("T")
U = TypeVar("U")
K = TypeVar("K")

# Replaced by the job's own number when the job graph is built.
_ANY_MAX_PARALLELISM = 128


class DataStream(
    ResultVerbs[T],
    OperatorSettings,
    DeclaredType["DataStream[T]"],
    Partitioning["DataStream[T]"],
    Connecting[T, "DataStream[Any]"],
    Joins["DataStream[Any]"],
    Useful["DataStream[Any]"],
    Generic[T],
):
    """A stream of records of type ``T``.

    Made by a `StreamExecutionEnvironment` and by the methods of other streams.

    Concept:
        Flink, ``DataStream`` and ``SingleOutputStreamOperator``.
    """

    def __init__(self, definition: JobDefinition, origins: list[Origin]) -> None:
        self._definition = definition
        self._origins = origins

    def map(
        self,
        function: Callable[[T], U | Awaitable[U]],
        *,
        output_type: type[U] | None = None,
        on_error: OnError = fail,
    ) -> DataStream[U]:
        """Replace each record by what ``function`` returns for it.

        An ``async def`` function is run one record at a time; see `map_async`.

        Args:
            function: Called with each record, which it must not change: others may have
                the same one. `JobConfig` ``check_mutations`` finds those that do.
            output_type: Its results are checked to be of this type, if given.
            on_error: What to do with a record for which it raises.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> am.run(env.from_collection([1, 2]).map(lambda n: n * 10).collect())
            [10, 20]
        """
        return self._stateless(StageKind.MAP, function, on_error).checked(output_type)

    def filter(
        self,
        function: Callable[[T], bool | Awaitable[bool]],
        *,
        on_error: OnError = fail,
    ) -> DataStream[T]:
        """Keep the records for which ``function`` returns something true."""
        return self._stateless(StageKind.FILTER, function, on_error)

    def flat_map(
        self, function: Callable[[T], Any], *, on_error: OnError = fail
    ) -> DataStream[Any]:
        """Replace each record by the items of the iterable that is returned for it.

        A generator function is paused between its items while the output is full.
        """
        return self._stateless(StageKind.FLAT_MAP, function, on_error)

    def map_async(
        self,
        function: Callable[..., Awaitable[U]],
        *,
        concurrency: int = 16,
        ordered: bool | Literal["key"] = True,
        key: str | Callable[[T], Any] | None = None,
        timeout: timedelta | float | None = None,
        deadline: timedelta | float | None = None,
        retry: Retry | None = None,
        limit: RateLimit | None = None,
        weight: float | Callable[[T], float] | None = None,
        batch: Batch | None = None,
        cache: Cache | None = None,
        on_error: OnError = fail,
        buffer: int | None = None,
        key_buffer: int | None = None,
    ) -> DataStream[U]:
        """Call an async function for each record, many calls at a time.

        Args:
            function: ``async def function(record)``, or an object with that as
                ``__call__`` and, if it likes, ``open``/``close`` or ``async with``.
            concurrency: Calls under way at a time in the whole job.
            ordered: True: results in the order of the records. False: as they come,
                but never across a watermark. ``"key"``: in order per key.
            key: The key for ``ordered="key"``: a field's name or a function; a keyed
                stream has its own.
            timeout: Limit of one attempt, a timedelta or seconds.
            deadline: Limit of all attempts of a record with their waits.
            retry: How often, and after which waits, a failed call is repeated.
            limit: A rate that all who name it keep together.
            weight: What a record costs of the limit: a number, or a function.
            batch: Give several records to one call: it gets and returns a list.
            cache: Answer equal calls once.
            on_error: What to do with a record after the last attempt.
            buffer: Records held in the whole job, 4 times those in calls by default.
            key_buffer: With ``ordered="key"``, records that may wait for their key.

        Example:
            >>> import asyncio
            >>> import aiomailbox as am
            >>> async def double(number):
            ...     await asyncio.sleep(0.001)
            ...     return 2 * number
            >>> env = am.StreamExecutionEnvironment()
            >>> am.run(env.from_collection([1, 2]).map_async(double).collect())
            [2, 4]
        """
        if ordered == "key" and key is None and isinstance(self, KeyedStream):
            key = self.key
        factory = partial(
            own_copy,
            AsyncMapOperator,
            function,
            concurrency=check_count(concurrency, "concurrency"),
            ordered=ordered,
            key=key,
            timeout=timeout,
            deadline=deadline,
            retry=retry,
            limit=limit,
            weight=weight,
            batch=batch,
            cache=cache,
            on_error=check_on_error(on_error),
            buffer=buffer,
            key_buffer=key_buffer,
            partition_key=self.key if isinstance(self, KeyedStream) else None,
        )
        # Wrong arguments fail here, where they are written.
        sample = factory()
        return self._derive(
            "map_async",
            factory,
            functions=(function_info(function, serial=False),),
            bound=f"{sample.buffer} records",
        )

    def process(
        self, function: ProcessFunction, *, on_error: OnError = fail
    ) -> DataStream[Any]:
        """Hand each record to a `ProcessFunction`, which may emit anything anywhere.

        It changes neither the records that it gets nor, afterwards, those that it has
        emitted.
        """
        check_kind(function, ProcessFunction, "function", "Derive a class from it.")
        if isinstance(function, KeyedProcessFunction):
            raise WrongTypeError(
                "function",
                f"{function!r} is a KeyedProcessFunction, and the stream has no keys",
                "Write stream.key_by(...).process(...).",
            )
        info = function_info(function.process_element)
        policy = check_on_error(on_error)
        factory = partial(own_copy, ProcessOperator, function, on_error=policy)
        factory()
        return self._derive("process", factory, functions=(info,))

    def assign_timestamps_and_watermarks(
        self, strategy: WatermarkStrategy, *, on_error: OnError = fail
    ) -> DataStream[T]:
        """Give records event times and the stream watermarks, from here on.

        What upstream said of event time is forgotten, except for its end.
        ``on_error`` says what to do with a record that has no event time.
        """
        check_strategy(strategy, "strategy", of_source=False)
        policy, fields = check_on_error(on_error), known_fields(self._origins)
        factory = partial(TimestampsAndWatermarksOperator, strategy, on_error=policy)
        return self._derive("timestamps", factory, record_fields=fields)

    def key_by(
        self, key: str | Callable[[T], K], *, on_error: OnError = fail
    ) -> KeyedStream[K, T]:
        """Give each record to the subtask that owns its key.

        Args:
            key: A field's name, or a function of a record. Keys are int, str, float,
                bool, bytes or tuples of these, all of one type.
            on_error: What to do with a record without a key, or with one of another type
                than the first; dead letters are a side output. Keys are then read twice.
        """
        stream, selector = self, key_selector(key, self._origins)
        if check_on_error(on_error).action is not ErrorAction.FAIL:
            factory = partial(key_check, selector, on_error)
            stream = self._derive("key", factory, follows_input=True)
        return KeyedStream(self._definition, stream._origins, selector)

    def window_all(
        self, assigner: WindowAssigner
    ) -> WindowedStream[None, T, DataStream[Any]]:
        """Group all records into windows of time, in one subtask."""
        derive = partial(self._keyed, parallelism_max=1)
        return WindowedStream(None, assigner, derive)

    def union(self, *others: DataStream[T]) -> DataStream[T]:
        """Return the records of this stream and of others as one stream."""
        origins = list(self._origins)
        for other in others:
            self._check_joinable(other, "others")
            origins += other._origins
        return DataStream(self._definition, origins)

    def through(
        self, pipeline: Callable[[DataStream[T]], DataStream[U]]
    ) -> DataStream[U]:
        """Attach a pipeline (see `aiomailbox.pipeline`) and return what comes out."""
        check_function(pipeline, "pipeline", arity=1)
        return pipeline(self)

    def get_side_output(self, tag: OutputTag) -> DataStream[Any]:
        """Return the side output ``tag`` of the operator that made this stream."""
        check_kind(tag, OutputTag, "tag", "Write am.OutputTag('late').")
        return DataStream(self._definition, [Origin(self._operator, None, tag)])

    def sink_to(
        self, sink: Sink | Callable[[T], Any], *, on_error: OnError = fail
    ) -> DataStream[T]:
        """End the stream in a sink, or in a function that is called with each record.

        Args:
            sink: The sink, or the function.
            on_error: What to do with a record for which the function raises, or that
                the sink refuses because of what it is. A sink that cannot be written
                fails the job in any case.

        Returns:
            The sink, to give it a name, a uid or a parallelism, and to take its dead
            letters from.

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
        item = sink_transformation(
            sink, self._origins, self._definition.sinks, on_error
        )
        self._definition.sinks.append(item)
        return DataStream(self._definition, [Origin(item)])

    def _stateless(
        self, kind: StageKind, function: Callable[[T], Any], on_error: OnError
    ) -> DataStream[Any]:
        stateless(kind, function, on_error=on_error)
        return self._derive(
            kind.value,
            partial(stateless, kind, function, on_error=on_error),
            functions=(function_info(function),),
            record_fields=(
                known_fields(self._origins) if kind is StageKind.FILTER else None
            ),
        )

    def _derive(
        self, name: str, factory: OperatorFactory, **facts: Any
    ) -> DataStream[Any]:
        item = Transformation(name, factory, [self._origins], **facts)
        return DataStream(self._definition, [Origin(item)])

    def _partitioned(self, partitioner: Partitioner) -> DataStream[T]:
        return DataStream(
            self._definition,
            [
                Origin(origin.transformation, partitioner, origin.tag)
                for origin in self._origins
            ],
        )

    def _keyed(
        self,
        name: str,
        factory: OperatorFactory,
        functions: tuple[FunctionInfo, ...] = (),
        **facts: Any,
    ) -> DataStream[Any]:
        return self._derive(name, factory, functions=functions, is_keyed=True, **facts)

    def _connected(
        self, others: list[Origin], name: str, factory: OperatorFactory, **facts: Any
    ) -> DataStream[Any]:
        item = Transformation(name, factory, [self._origins, others], **facts)
        return DataStream(self._definition, [Origin(item)])


class KeyedStream(
    DataStream[T],
    KeyedJoins["DataStream[Any]"],
    KeyedFunctions["DataStream[Any]"],
    KeyedUseful["DataStream[Any]"],
    Generic[K, T],
):
    """A stream whose records are placed by key.

    Made by `DataStream.key_by`. The methods of `DataStream` work here too; their
    results have no key any more.

    Concept:
        Flink, ``KeyedStream``.
    """

    def __init__(
        self, definition: JobDefinition, origins: list[Origin], key: Callable[[T], K]
    ) -> None:
        by_key = KeyGroupPartitioner(key, _ANY_MAX_PARALLELISM)
        super().__init__(
            definition,
            [Origin(origin.transformation, by_key, origin.tag) for origin in origins],
        )
        self.key = key

    def reduce(
        self, function: Callable[[T, T], T], *, on_error: OnError = fail
    ) -> DataStream[T]:
        """Fold the records of each key into one, and emit it after every record.

        Args:
            function: ``(reduced, record)`` → a new record. It changes neither of both:
                what was reduced has been emitted.
            on_error: What to do with a record for which it raises.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> words = env.from_collection([("a", 1), ("b", 1), ("a", 1)])
            >>> counts = words.key_by(lambda w: w[0]).reduce(
            ...     lambda a, b: (a[0], a[1] + b[1])
            ... )
            >>> am.run(counts.collect())
            [('a', 1), ('b', 1), ('a', 2)]
        """
        check_function(function, "function", arity=2)
        on_error = check_on_error(on_error)
        factory = partial(KeyedReduceOperator, self.key, function, on_error=on_error)
        infos = (function_info(function),)
        return self._keyed("reduce", factory, infos, unbounded=GROWS_WITH_KEYS)

    def process(self, function: Any, *, on_error: OnError = fail) -> DataStream[Any]:
        """Hand each record to a `KeyedProcessFunction` with state and timers of its key."""
        check_kind(
            function, KeyedProcessFunction, "function", "Derive a class from it."
        )
        policy = check_on_error(on_error)
        make = partial(own_copy, KeyedProcessOperator, self.key, function)
        make()
        infos = (function_info(function.process_element),)
        return self._keyed("process", partial(make, on_error=policy), infos)

    def window(self, assigner: WindowAssigner) -> WindowedStream[K, T, DataStream[Any]]:
        """Group the records of each key into windows of time."""
        return WindowedStream(self.key, assigner, self._keyed)
