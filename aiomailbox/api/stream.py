"""Streams of records: what users call methods on.

A stream is a description. Nothing runs, and no event loop is touched, until one of
the three verbs is used: ``await stream.collect()`` (or ``await env.execute()``),
``async for record in stream``, ``async with env.start() as job``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from copy import copy
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NoReturn,
    Self,
    TypeVar,
    overload,
)

from aiomailbox import connectors
from aiomailbox.api.adapted import (
    OnlyKeyedProcess,
    OnlyProcess,
    as_object,
    itself,
    of_pair,
)
from aiomailbox.api.build import (
    GROWS_WITH_KEYS,
    check_kind,
    check_max_parallelism,
    check_name,
    check_renames,
    check_strategy,
    derived,
    described_key,
    described_origins,
    expression_infos,
    extreme,
    field_names,
    formed,
    function_info,
    key_check,
    key_selector,
    own_copy,
    selected,
    selected_pairs,
    sink_transformation,
    told_strategy,
)
from aiomailbox.api.connected import (
    BroadcastConnectedStream,
    BroadcastStream,
    ConnectedStreams,
)
from aiomailbox.api.definition import JobDefinition
from aiomailbox.api.joined import (
    CoGroupedWindows,
    IntervalJoin,
    JoinedStreams,
    JoinedWindows,
    join_info,
)
from aiomailbox.api.misnamed import no_such_verb
from aiomailbox.api.partitioned import PartitionWindowedStream
from aiomailbox.api.sessions import Session, SessionMaker
from aiomailbox.api.showing import show_records
from aiomailbox.api.typed import RecordTypeCheck
from aiomailbox.api.verbs import (
    Pulled,
    count_results,
    looking_on,
    pull_runs,
    pull_values,
    verb,
)
from aiomailbox.api.windowed import Items, WindowedStream
from aiomailbox.connectors.inbox import Publication
from aiomailbox.durations import pipeline_ms
from aiomailbox.errors import InvalidArgumentError, UsageError, WrongTypeError
from aiomailbox.eventtime.strategy import WatermarkStrategy
from aiomailbox.exchange.writer import (
    BroadcastPartitioner,
    CustomPartitioner,
    ForwardPartitioner,
    GlobalPartitioner,
    KeyGroupPartitioner,
    Partitioner,
    RebalancePartitioner,
    RescalePartitioner,
    ShufflePartitioner,
)
from aiomailbox.graph.describe import rows_from
from aiomailbox.graph.side_outputs import problem_of_side_output
from aiomailbox.graph.transformation import (
    ChainingStrategy,
    FunctionInfo,
    OperatorFactory,
    Origin,
    Transformation,
    known_fields,
)
from aiomailbox.logs import library_log
from aiomailbox.operators.async_io.operator import AsyncMapOperator
from aiomailbox.operators.async_state.function import (
    KeyedAsyncContext,
    KeyedAsyncProcessFunction,
)
from aiomailbox.operators.async_state.operator import KeyedAsyncProcessOperator
from aiomailbox.operators.core.collector import Collector
from aiomailbox.operators.core.failures import (
    ErrorAction,
    OnError,
    check_on_error,
    fail,
)
from aiomailbox.operators.core.fields import RecordFields, is_expression, why_rows
from aiomailbox.operators.core.user_code import check_function
from aiomailbox.operators.functions.base import held_back
from aiomailbox.operators.functions.contexts import KeyedProcessContext, ProcessContext
from aiomailbox.operators.functions.process import (
    KeyedProcessFunction,
    KeyedProcessOperator,
    ProcessFunction,
    ProcessOperator,
)
from aiomailbox.operators.joins.keyed import ProcessJoinFunction, pair
from aiomailbox.operators.joins.lookup import AsOfJoinOperator, LookupJoinOperator
from aiomailbox.operators.keyed.operators import (
    KeyedAggregateOperator,
    KeyedReduceOperator,
)
from aiomailbox.operators.sinks.sink import Sink
from aiomailbox.operators.stateless.fused import StageKind
from aiomailbox.operators.stateless.operators import (
    TimestampsAndWatermarksOperator,
    stateless,
)
from aiomailbox.operators.useful.operators import (
    BatchOperator,
    BufferOperator,
    BufferPolicy,
    DeduplicateOperator,
    SampleOperator,
    WithLatestOperator,
)
from aiomailbox.operators.useful.patterns import Match, MatchOperator, Pattern
from aiomailbox.policies.arguments import check_count
from aiomailbox.policies.batch import Batch
from aiomailbox.policies.cache import Cache
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.policies.retry import Retry
from aiomailbox.records.events import OutputTag
from aiomailbox.signatures import renamed
from aiomailbox.state.descriptors import AggregateFunction, MapStateDescriptor
from aiomailbox.windowing.assigners import (
    EventTimeSessionWindows,
    GlobalWindows,
    WindowAssigner,
)
from aiomailbox.windowing.co_group import SidedKey, mark_first, mark_second
from aiomailbox.windowing.evictors import CountEvictor
from aiomailbox.windowing.time_window import GlobalWindow
from aiomailbox.windowing.triggers import CountTrigger, PurgingTrigger
from aiomailbox.windowing.window_join import WindowJoinOperator

if TYPE_CHECKING:
    from typing import TypeGuard

    from typing_extensions import TypeIs

    from aiomailbox.connectors.spark import DataFrame
    from aiomailbox.operators.core.fields import Expression

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")
K = TypeVar("K")
WindowT = TypeVar("WindowT")

# Replaced by the job's own number when the job graph is built.
_ANY_MAX_PARALLELISM = 128

# As many records take a gigabyte or so.
_COLLECTED_MANY = 1_000_000
# Its older name is also that of a verb.
_CAPACITY = renamed(buffer="capacity=...", key_buffer="key_capacity=...")
# Where a synchronous function runs.
RunIn = Literal["loop", "thread"]


class DataStream(Generic[T]):
    """A stream of records of type ``T``.

    Made by a `StreamExecutionEnvironment` and by the methods of other streams.

    Concept:
        Flink, ``DataStream`` and ``SingleOutputStreamOperator``.
    """

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

    def select(
        self, *names: str, on_error: OnError = fail, **named: str | Expression
    ) -> DataStream[Any]:
        """Keep some fields of the records, and rename or compute others.

        Dicts stay dicts, all other records become NamedTuples. Columns stay columns.

        Args:
            names: The fields to keep, in this order.
            on_error: How to handle a record for which an expression fails.
            named: New names, each with the name of a field or an expression of
                `pyarrow.compute`. They follow the kept fields.

        Raises:
            InvalidArgumentError: If no field is named, two would have the same name, or
                the records cannot have a field of a new name.
            RecordTypeError: If the records are known to have no such field.
            WrongTypeError: If something is neither a name nor an expression.

        Example:
            >>> import aiomailbox as am
            >>> import pyarrow.compute as pc
            >>> env = am.StreamExecutionEnvironment()
            >>> orders = env.from_collection(
            ...     [{"item": "tea", "price": 2.5, "count": 2}]
            ... )
            >>> total = pc.field("price") * pc.field("count")
            >>> am.run(orders.select("item", each="price", total=total).collect())
            [{'item': 'tea', 'each': 2.5, 'total': 5.0}]
        """
        return self._projected(
            "Select", "select", **selected(names, named), on_error=on_error
        )

    def with_columns(
        self, *, on_error: OnError = fail, **computed: Expression
    ) -> DataStream[Any]:
        """Add computed fields and keep the others; a field of the same name is replaced.

        Dicts stay dicts, all other records become NamedTuples. Columns stay columns.

        Args:
            on_error: How to handle a record for which an expression fails.
            computed: Expressions of `pyarrow.compute` by the names of the fields. All
                of them read the fields as they were before.

        Raises:
            RecordTypeError: If the records are known to have no such field.
            InvalidArgumentError: If the records cannot have a field of a new name.
            WrongTypeError: If a computed field is not given as an expression.

        Example:
            >>> import aiomailbox as am
            >>> import pyarrow.compute as pc
            >>> env = am.StreamExecutionEnvironment()
            >>> orders = env.from_collection([{"price": 2.5, "count": 2}])
            >>> total = pc.field("price") * pc.field("count")
            >>> am.run(orders.with_columns(total=total).collect())
            [{'price': 2.5, 'count': 2, 'total': 5.0}]
        """
        field_names(tuple(computed))
        return self._projected(
            "WithColumns", "with_columns", expressions=computed, on_error=on_error
        )

    def map_batches(
        self,
        function: Callable[[Any], Any],
        *,
        form: Literal["arrow", "polars", "pandas", "numpy"] = "arrow",
        run_in: RunIn = "loop",
        timestamps: str | None = None,
    ) -> DataStream[Any]:
        """Replace each batch of records by what a function returns for it.

        Columns stay columns; rows are grouped into batches first. Batches have up to
        16,384 records, and their boundaries carry no meaning. Dicts stay dicts, all other
        records become NamedTuples. If the function raises, the job fails.

        Args:
            function: ``function(batch)`` → a batch, sync or ``async def``. Batches are
                processed one at a time, before the watermark or checkpoint that follows.
            form: The form that the function gets and returns: ``"arrow"`` is a pyarrow
                RecordBatch (it may return a Table), ``"polars"`` and ``"pandas"`` are
                DataFrames, ``"numpy"`` is a dict of arrays of shape ``(n,)`` that are
                read-only.
            run_in: ``"thread"`` for a sync function that blocks: the event loop stays
                responsive.
            timestamps: The column of the result that holds event times: a timestamp with
                a time zone, or integers in milliseconds. None keeps the records' event
                times: if they have any, the function returns as many records as it got.

        Raises:
            InvalidArgumentError: If ``form`` is unknown, or an ``async def`` function is
                to run in a thread.
            MissingExtraError: If the form's library, or pyarrow, is not installed.

        Example:
            >>> import aiomailbox as am
            >>> import pyarrow as pa
            >>> import pyarrow.compute as pc
            >>> def double(batch):
            ...     return pa.record_batch({"n": pc.multiply(batch["n"], 2)})
            >>> env = am.StreamExecutionEnvironment()
            >>> numbers = env.from_arrow(pa.table({"n": [1, 2]}))
            >>> am.run(numbers.map_batches(double).collect())
            [Record(n=2), Record(n=4)]
        """
        factory = partial(
            connectors.MapBatchesOperator,
            function,
            form=form,
            run_in=run_in,
            timestamps=timestamps,
        )
        infos = (function_info(function, serial=False),)
        return self._derive("map_batches", factory, functions=infos)

    def drop(self, *names: str) -> DataStream[Any]:
        """Remove fields of the records and keep all others.

        Dicts stay dicts, all other records become NamedTuples. Columns stay columns.

        Raises:
            RecordTypeError: If the records are known to have no such field.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> orders = env.from_collection([{"item": "tea", "price": 2.5}])
            >>> am.run(orders.drop("price").collect())
            [{'item': 'tea'}]
        """
        names = field_names(names)
        return self._projected("Drop", "drop", names=names, on_error=fail)

    def rename(self, names: Mapping[str, str]) -> DataStream[Any]:
        """Rename fields of the records.

        Dicts stay dicts, all other records become NamedTuples. Columns stay columns.

        Args:
            names: A mapping of the old names to the new ones.

        Raises:
            InvalidArgumentError: If two would be renamed to the same, or the records
                cannot have a field of a new name.
            RecordTypeError: If the records are known to have no such field.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> orders = env.from_collection([{"item": "tea", "price": 2.5}])
            >>> am.run(orders.rename({"price": "euros"}).collect())
            [{'item': 'tea', 'euros': 2.5}]
        """
        renames = check_renames(names)
        return self._projected("Rename", "rename", names=renames, on_error=fail)

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
        return self._stateless(StageKind.FLAT_MAP, function, on_error, run_in)

    @overload
    def map_async(
        self,
        function: Callable[[T], Awaitable[U]],
        *,
        concurrency: int = 16,
        ordered: bool | Literal["key"] = True,
        key: str | Callable[[T], Any] | None = None,
        timeout: timedelta | float | None = None,
        deadline: timedelta | float | None = None,
        retry: Retry | None = None,
        limit: RateLimit | None = None,
        weight: float | Callable[[T], float] | None = None,
        batch: None = None,
        cache: Cache | None = None,
        on_error: OnError = fail,
        capacity: int | None = None,
        key_capacity: int | None = None,
        journal: bool = False,
        id: str | Callable[[T], Any] | None = None,
        into: None = None,
        columns: None = None,
    ) -> DataStream[U]: ...

    @overload
    def map_async(
        self,
        function: Callable[[list[T]], Awaitable[Sequence[U | Exception]]],
        *,
        concurrency: int = 16,
        ordered: bool | Literal["key"] = True,
        key: str | Callable[[T], Any] | None = None,
        timeout: timedelta | float | None = None,
        deadline: timedelta | float | None = None,
        retry: Retry | None = None,
        limit: RateLimit | None = None,
        weight: float | Callable[[T], float] | None = None,
        batch: Batch,
        cache: Cache | None = None,
        on_error: OnError = fail,
        capacity: int | None = None,
        key_capacity: int | None = None,
        journal: bool = False,
        id: str | Callable[[T], Any] | None = None,
        into: None = None,
        columns: None = None,
    ) -> DataStream[U]: ...

    @overload
    def map_async(
        self,
        function: Callable[[Any], Awaitable[Any]],
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
        capacity: int | None = None,
        key_capacity: int | None = None,
        journal: bool = False,
        id: str | Callable[[T], Any] | None = None,
        into: str,
        columns: Sequence[str] | None = None,
    ) -> DataStream[Any]: ...

    @_CAPACITY
    def map_async(
        self,
        function: Callable[[Any], Awaitable[Any]],
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
        capacity: int | None = None,
        key_capacity: int | None = None,
        journal: bool = False,
        id: str | Callable[[T], Any] | None = None,  # noqa: A002 -- the user's word
        into: str | None = None,
        columns: Sequence[str] | None = None,
    ) -> DataStream[Any]:
        """Call an async function for each record, many calls at a time.

        Args:
            function: ``async def function(record)``, or an object whose ``__call__`` is
                that; it can also have ``open``/``close``, or support ``async with``.
            concurrency: The maximum number of concurrent calls in the whole job.
            ordered: True emits results in the order of the records; False as they complete,
                but never across a watermark; ``"key"`` in order per key.
            key: The key for ``ordered="key"``, and for adding up the units of a ``limit``:
                a field's name or a function. A keyed stream uses its own key.
            timeout: The time limit of one attempt: a timedelta or seconds.
            deadline: The time limit of all attempts for a record, including their delays.
            retry: How often, and after which delays, a failed call is repeated.
            limit: A rate limit, shared by all operators that name it.
            weight: How many units of the limit a record uses: a number, or a function.
            batch: Pass several records to one call, which gets and returns a list. An
                exception in that list is the failure of its record alone.
            cache: Make equal calls only once.
            on_error: How to handle a record after the last attempt.
            capacity: The maximum number of records held in the whole job; by default, 4 times
                those that can be in calls.
            key_capacity: With ``ordered="key"``, how many records may wait for their key.
            journal: Record the outcomes of calls, so that no finished call is made again
                after a crash. The job needs a checkpoint directory.
            id: Identifies the call for a record, in the journal and in
                `current_call().idempotency_key <current_call>`: a field's name or a
                function. It gives a str, int, bytes or UUID, or a tuple of these.
            into: Keep the record, and add the result as a field of this name. Columns
                stay columns, except where no column can hold the results. Dicts stay
                dicts, other records become NamedTuples.
            columns: With ``into``, the fields that the function needs; it gets a record
                of these only. By default, those of the record class that its type hint
                names, or else all. Include the fields that ``key``, ``id``, ``weight``
                and ``cache`` read; otherwise whole rows are made of the columns.

        Raises:
            RecordTypeError: If the records are known to have a field ``into`` already, or
                to lack a field named in ``columns``.
            InvalidArgumentError: If an argument has an invalid value.
            WrongTypeError: If an argument has the wrong type.

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
        if ordered == "key" and key is None:
            key = self._key
        kind, added = AsyncMapOperator, dict[str, Any]()
        if into is not None:
            kind = connectors.AsyncColumnOperator
            added = {"into": check_name(into, "into"), "columns": columns}
        elif columns is not None:
            raise InvalidArgumentError(
                "columns",
                "without into= a result replaces the whole record",
                'Add into="name", or write select(...) before.',
            )
        factory = partial(
            own_copy,
            kind,
            function,
            **added,
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
            capacity=capacity,
            key_capacity=key_capacity,
            journal=journal,
            id=id,
            partition_key=self._key,
        )
        # Wrong arguments fail here, where they are written.
        sample = factory()
        return self._derive(
            "map_async",
            factory,
            functions=(function_info(function, serial=False),),
            bound=f"{sample.capacity} records",
            limit=limit,
            has_journal=journal,
        )

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
        info = function_info(function.process_element)
        policy = check_on_error(on_error)
        factory = partial(own_copy, ProcessOperator, function, on_error=policy)
        held = held_back(function)
        return self._derive("process", factory, functions=(info,), held=held)

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
        return self._derive("timestamps", factory, settings=told)

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
        return _counting(self.window_all(GlobalWindows.create()), size, slide)

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
        make = partial(JoinedWindows, select=partial(self._selected_windows, other))
        return JoinedStreams(partial(self._sided, other), make)

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
        return JoinedStreams(partial(self._sided, other), CoGroupedWindows)

    @overload
    def lookup_join(
        self,
        lookup: Callable[[Any], Awaitable[V | None]],
        *,
        key: str | Callable[[T], Any],
        join: None = None,
        left: Literal[False] = False,
        cache: Cache | None = None,
        concurrency: int = 16,
        ordered: bool = True,
        timeout: timedelta | float | None = None,
        deadline: timedelta | float | None = None,
        retry: Retry | None = None,
        limit: RateLimit | None = None,
        batch: Batch | None = None,
        on_error: OnError = fail,
        capacity: int | None = None,
        journal: bool = False,
        id: str | Callable[[T], Any] | None = None,
    ) -> DataStream[tuple[T, V]]: ...

    @overload
    def lookup_join(
        self,
        lookup: Callable[[Any], Awaitable[V]],
        *,
        key: str | Callable[[T], Any],
        join: None = None,
        left: bool,
        cache: Cache | None = None,
        concurrency: int = 16,
        ordered: bool = True,
        timeout: timedelta | float | None = None,
        deadline: timedelta | float | None = None,
        retry: Retry | None = None,
        limit: RateLimit | None = None,
        batch: Batch | None = None,
        on_error: OnError = fail,
        capacity: int | None = None,
        journal: bool = False,
        id: str | Callable[[T], Any] | None = None,
    ) -> DataStream[tuple[T, V | None]]: ...

    @overload
    def lookup_join(
        self,
        lookup: Callable[[Any], Awaitable[Any]],
        *,
        key: str | Callable[[T], Any],
        join: Callable[[T, Any], U],
        left: bool = False,
        cache: Cache | None = None,
        concurrency: int = 16,
        ordered: bool = True,
        timeout: timedelta | float | None = None,
        deadline: timedelta | float | None = None,
        retry: Retry | None = None,
        limit: RateLimit | None = None,
        batch: Batch | None = None,
        on_error: OnError = fail,
        capacity: int | None = None,
        journal: bool = False,
        id: str | Callable[[T], Any] | None = None,
    ) -> DataStream[U]: ...

    @_CAPACITY
    def lookup_join(
        self,
        lookup: Callable[[Any], Awaitable[Any]],
        *,
        key: str | Callable[[T], Any],
        join: Callable[[T, Any], Any] | None = None,
        left: bool = False,
        cache: Cache | None = None,
        concurrency: int = 16,
        ordered: bool = True,
        timeout: timedelta | float | None = None,
        deadline: timedelta | float | None = None,
        retry: Retry | None = None,
        limit: RateLimit | None = None,
        batch: Batch | None = None,
        on_error: OnError = fail,
        capacity: int | None = None,
        journal: bool = False,
        id: str | Callable[[T], Any] | None = None,  # noqa: A002 -- the user's word
    ) -> DataStream[Any]:
        """Join each record with the result of an async function for its key.

        Args:
            lookup: ``async def lookup(key)``, which returns None if it finds nothing.
                Otherwise as the function of `DataStream.map_async`.
            key: A field's name, or a function of a record.
            join: ``(record, found)`` → the result; None for a tuple of both.
            left: Whether records for which nothing was found are kept, joined with None.
            cache: Caches what was found: ``Cache(size=..., ttl=...)``.
            concurrency: The maximum number of concurrent lookups in the whole job.
            ordered: Whether results are emitted in the order of the records.
            timeout: The time limit of one attempt: a timedelta or seconds.
            deadline: The time limit of all attempts for a record, including their delays.
            retry: How often, and after which delays, a failed lookup is repeated.
            limit: A rate limit, shared by all operators that name it.
            batch: Look up several keys in one call, which gets and returns a list.
            on_error: How to handle a record whose lookup or join failed.
            capacity: The maximum number of records held in the whole job.
            journal: Record what lookups found; as in `DataStream.map_async`.
            id: Identifies the lookup for a record: a field's name or a function; as in
                `DataStream.map_async`.

        Example:
            >>> import aiomailbox as am
            >>> async def country_of(city):
            ...     return {"Oslo": "Norway"}.get(city)
            >>> env = am.StreamExecutionEnvironment()
            >>> cities = env.from_collection(["Oslo", "Atlantis", "Oslo"])
            >>> joined = cities.lookup_join(
            ...     country_of, key=str.title, left=True, cache=am.Cache(ttl=60)
            ... )
            >>> am.run(joined.collect())
            [('Oslo', 'Norway'), ('Atlantis', None), ('Oslo', 'Norway')]
        """
        factory = partial(
            own_copy,
            LookupJoinOperator,
            lookup,
            key=key,
            join=join,
            keep_unmatched=left,
            cache=cache,
            concurrency=check_count(concurrency, "concurrency"),
            ordered=ordered,
            timeout=timeout,
            deadline=deadline,
            retry=retry,
            limit=limit,
            batch=batch,
            on_error=check_on_error(on_error),
            capacity=capacity,
            journal=journal,
            id=id,
            partition_key=self._key,
        )
        # Wrong arguments fail here, where they are written.
        sample = factory()
        return self._derive(
            "lookup join",
            factory,
            functions=(function_info(lookup, serial=False),),
            bound=f"{sample.capacity} records",
            limit=limit,
            has_journal=journal,
        )

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
            check_function(function, "function", arity=2)
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
        return pipeline(self)

    def get_side_output(self, tag: OutputTag[U]) -> DataStream[U]:
        """Return the side output ``tag`` of the operator that made this stream.

        Raises:
            InvalidArgumentError: If that operator emits nothing to ``tag``.
            WrongTypeError: If ``tag`` is no `OutputTag`.
        """
        check_kind(tag, OutputTag, "tag", "Write am.OutputTag('late').")
        problem = problem_of_side_output(self._operator, tag)
        if problem:
            raise InvalidArgumentError(
                "tag",
                f"{tag.id!r} is no side output of {self._operator.name!r}: {problem}",
                "Ask the stream that is returned by the operator with that tag, before "
                "further operators follow.",
            )
        return DataStream(self._definition, [Origin(self._operator, None, tag)])

    def batch(
        self, size: int, within: timedelta | float | None = None
    ) -> DataStream[list[T]]:
        """Group records into lists, in their order.

        A list is emitted when it is full, when its first record has waited for
        ``within``, when the stream becomes idle, and at the end. Its event time is the
        latest one of its records; watermarks are held back until the open list is emitted.

        Args:
            size: The maximum number of records in a list.
            within: How long the first record waits for others, in processing time: a
                timedelta or seconds; None for no time limit.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> lists = env.from_collection([1, 2, 3]).batch(2, within=am.seconds(1))
            >>> am.run(lists.collect())
            [[1, 2], [3]]
        """
        factory = partial(BatchOperator, size, within)
        return self._derive(
            "batch", factory, bound=f"{size} records", held="the open list"
        )

    def buffer(self, size: int, policy: BufferPolicy = "drop_oldest") -> DataStream[T]:
        """Accept records as fast as they arrive, and drop some when the consumer is slow.

        For a source that cannot be paused, in front of a consumer that falls behind at
        times. More records wait in the buffers between this operator and the consumer: as
        many as `JobConfig` allows, thousands of small ones by default. Watermarks keep
        their places between records. The metric ``records_dropped`` counts what is dropped.

        Args:
            size: The maximum number of records that wait.
            policy: The behaviour when one more arrives: ``"drop_oldest"`` drops the one
                that has waited longest; ``"latest"`` drops all that wait and keeps the
                new one; ``"error"`` fails the job with `BufferFullError`.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> am.run(env.from_collection([1, 2]).buffer(10).collect())
            [1, 2]
        """
        factory = partial(BufferOperator, size, policy=policy)
        return self._derive(
            "buffer", factory, chaining=ChainingStrategy.NEVER, bound=f"{size} records"
        )

    def sample(self, fraction: float) -> DataStream[T]:
        """Pass on a random part of the records, each with the same probability.

        With ``JobConfig(seed=...)``, running the job again on the same input selects the
        same records.

        Args:
            fraction: The probability, from 0 to 1.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> part = am.run(env.from_collection(range(1000)).sample(0.1).collect())
            >>> 60 < len(part) < 140
            True
        """
        return self._derive("sample", partial(SampleOperator, fraction))

    def rate_limit(
        self,
        limit: RateLimit,
        *,
        weight: float | Callable[[T], float] | None = None,
    ) -> DataStream[T]:
        """Limit how many records pass in any span of time, in their order.

        Excess records wait and hold back the source; none is dropped.

        Args:
            limit: The rate; all operators of the job that name the same limit share it.
            weight: How many units a record uses: a number, or a function; None for 1.

        Raises:
            WrongTypeError: If ``limit`` is not a `RateLimit`.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> slow = env.from_collection([1, 2, 3]).rate_limit(am.RateLimit(1000))
            >>> am.run(slow.collect())
            [1, 2, 3]
        """
        if not isinstance(limit, RateLimit):
            raise WrongTypeError(
                "limit", f"{limit!r} is not a RateLimit", "Write am.RateLimit(100)."
            )
        limited: DataStream[T] = self.map_async(itself, limit=limit, weight=weight)
        limited._operator.asks_for_rows = "rate_limit"
        return limited.name("rate_limit")

    def forward(self) -> DataStream[T]:
        """Keep records in their subtask; the parallelism must be equal."""
        return self._partitioned(ForwardPartitioner())

    def rebalance(self) -> DataStream[T]:
        """Distribute records to all subtasks, round-robin."""
        return self._partitioned(RebalancePartitioner())

    def rescale(self) -> DataStream[T]:
        """Distribute records to nearby subtasks, round-robin."""
        return self._partitioned(RescalePartitioner())

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

    def shuffle(self) -> DataStream[T]:
        """Send each record to a subtask chosen at random."""
        return self._partitioned(ShufflePartitioner())

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

    def global_(self) -> DataStream[T]:
        """Send every record to the first subtask."""
        return self._partitioned(GlobalPartitioner())

    def partition_custom(
        self, partitioner: Callable[[Any, int], int], key: str | Callable[[T], Any]
    ) -> DataStream[T]:
        """Send each record to the subtask that ``partitioner(key, count)`` returns."""
        check_function(partitioner, "partitioner", arity=2)
        selector = key_selector(key, (), self._origins)
        return self._partitioned(CustomPartitioner(partitioner, selector))

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

    def name(self, name: str) -> Self:
        """Return the stream with a name for the operator that made it.

        Streams do not change: the result takes the place of this stream, and a job that
        uses this one too is refused. So are the results of `uid`, `set_parallelism`,
        `set_max_parallelism`, `slot_sharing_group`, `disable_chaining` and
        `start_new_chain`. A sink's result may be dropped: ``sink_to(sink).name("out")``.
        """
        return self._changed(f".name({name!r})", name=check_name(name, "name"))

    def uid(self, uid: str) -> Self:
        """Return the stream with a stable name for the operator that made it.

        By it, the operator's state is found on restore. As for `name`, the result takes
        the place of this stream.
        """
        return self._changed(f".uid({uid!r})", uid=check_name(uid, "uid"))

    def set_parallelism(self, parallelism: int) -> Self:
        """Return the stream with so many subtasks of the operator that made it."""
        return self._changed(
            f".set_parallelism({parallelism!r})",
            parallelism=check_count(parallelism, "parallelism"),
        )

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """Return the stream with so many key groups of the operator that made it."""
        return self._changed(
            f".set_max_parallelism({max_parallelism!r})",
            max_parallelism=check_max_parallelism(max_parallelism),
        )

    def slot_sharing_group(self, name: str) -> Self:
        """Return the stream with a slot sharing group for the operator and what follows.

        Operators of different groups share no task. A deployment over several processes
        gives each group its own workers.

        Args:
            name: The group's name. An operator without one is in the group of its inputs,
                or in ``"default"`` if it has no inputs or they are in several groups.
        """
        return self._changed(
            f".slot_sharing_group({name!r})",
            slot_sharing_group=check_name(name, "name"),
        )

    def disable_chaining(self) -> Self:
        """Return the stream with a task of its own for the operator that made it."""
        return self._changed(".disable_chaining()", chaining=ChainingStrategy.NEVER)

    def start_new_chain(self) -> Self:
        """Return the stream with a new task that begins with the operator."""
        return self._changed(".start_new_chain()", chaining=ChainingStrategy.HEAD)

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
        item = sink_transformation(
            sink, self._origins, self._definition.sinks, on_error, run_in
        )
        self._definition.sinks.append(item)
        return DataStream(self._definition, [Origin(item)])

    def explain(self) -> str:
        """Return the graph that leads to this stream as text, even without a sink.

        Concept:
            See `StreamExecutionEnvironment.explain`.
        """
        return self._explain("text")

    def _repr_html_(self) -> str:
        """Return the graph that leads to this stream as a drawing, for notebooks."""
        return self._explain("svg")

    def _explain(self, form: str) -> str:
        ends = list(dict.fromkeys(one.transformation for one in self._origins))
        return self._definition.explain("stream", ends, form)

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

    def __aiter__(self) -> Pulled[T]:
        """Run the stream and yield its records, at the pace of the consumer.

        Leaving the loop early cancels the job; ``contextlib.aclosing`` (or
        ``stream.take``) waits until the job has ended.
        """
        return pull_values(self._definition, self._origins, "pull")

    @verb
    async def collect(self, job_name: str = "collect") -> list[T]:
        """Return all records as a list; with several subtasks, in no guaranteed order.

        A warning says when the sources have not ended after some seconds, or a million
        records are held: a stream without end is for ``async for``.

        Raises:
            JobFailedError: If the job failed.
        """
        values: list[T] = []
        has_warned = False
        runs = pull_runs(self._definition, self._origins, job_name)

        def look() -> bool:
            return runs.waited_for("collect", records_held=len(values))

        async with aclosing(runs):
            with looking_on(look):
                async for run in runs:
                    values.extend(run.values)
                    if len(values) >= _COLLECTED_MANY and not has_warned:
                        has_warned = True
                        library_log().warning(
                            "collect() holds a million records in memory, and goes on",
                            records=len(values),
                            remedy="use `async for record in stream`, take(count), "
                            "or a sink",
                        )
        return values

    @verb
    async def count(self) -> int:
        """Return how many records there are.

        Raises:
            JobFailedError: If the job failed.
        """
        return await count_results(self._definition, self._origins)

    @verb
    async def take(self, count: int) -> list[T]:
        """Return the first records, then cancel the rest of the job.

        Args:
            count: The maximum number of records, at least 1.

        Raises:
            JobFailedError: If the job failed before.
        """
        check_count(count, "count")
        values: list[T] = []
        records: Pulled[T] = pull_values(self._definition, self._origins, "take")

        def look() -> bool:
            return records.waited_for("take", records=len(values), wanted=count)

        async with aclosing(records):
            with looking_on(look):
                async for value in records:
                    values.append(value)
                    if len(values) == count:
                        break
        return values

    @verb
    async def show(self, count: int = 20, *, truncate: int | None = 40) -> None:
        """Run the stream, print its first records as a table, and cancel the rest.

        A column is a field of the records. A notebook shows an HTML table below the cell.
        Where an event loop is running, as in a notebook, write ``await stream.show()``; in
        a script, write ``am.run(stream.show())``.

        Args:
            count: The maximum number of records, at least 1.
            truncate: The maximum number of characters of a value; None for all of them.

        Raises:
            InvalidArgumentError: If an argument is out of its range.
            JobFailedError: If the job failed before.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> orders = [{"item": "tea", "price": 2.5}, {"item": "jam", "price": 4}]
            >>> am.run(env.from_collection(orders).show())
            +------+-------+
            | item | price |
            +------+-------+
            | tea  |   2.5 |
            | jam  |     4 |
            +------+-------+

        Concept:
            Spark, ``DataFrame.show``.
        """
        if truncate is not None:
            check_count(truncate, "truncate")
        show_records(await self.take(count), count, truncate)

    def arrow_batches(self) -> Pulled[Any]:
        """Run the stream and yield the results as Arrow record batches, as they come.

        All batches have one schema, that of the first: dictionaries become plain values,
        and times are in microseconds, in UTC if they have a zone. Rows are NamedTuples,
        dicts, dataclasses or msgspec Structs; records that are batches already are yielded
        themselves, with this schema.

        Raises:
            MissingExtraError: If pyarrow is not installed.
            JobFailedError: If the job failed.
            RecordTypeError: If a record does not fit the schema.

        Example:
            >>> import aiomailbox as am
            >>> import pyarrow as pa
            >>> async def main():
            ...     env = am.StreamExecutionEnvironment()
            ...     cities = env.from_arrow(pa.table({"city": ["Oslo", "Rome"]}))
            ...     async for batch in cities.arrow_batches():
            ...         print(batch.num_rows, batch.schema)
            >>> am.run(main())
            2 city: string
        """
        from aiomailbox.connectors import record_batches

        return Pulled(
            self._definition, self._origins, "arrow_batches", record_batches()
        )

    @verb
    async def to_spark(
        self, spark: Any, *, schema: Any = None, path: Any = None
    ) -> DataFrame:
        """Run the stream and return its records as a Spark DataFrame.

        A small result stays in memory. A larger one is written to Parquet files, one
        segment at a time, so that memory is bounded.

        Args:
            spark: The SparkSession that gets the data.
            schema: The DataFrame's schema; None infers it from the records.
            path: A directory that does not exist yet, for all records; it appears when
                they are complete. None for files that are removed with this process and
                that only a local session can read.

        Raises:
            MissingExtraError: If pyspark is not installed.
            JobFailedError: If the job failed.
            UsageError: If there is no path, the records do not fit into one message,
                and Spark's executors may be on other machines.
        """
        from aiomailbox.connectors import dataframe_from_runs

        runs: Pulled[Any] = Pulled(
            self._definition, self._origins, "to_spark", lambda run: (run,)
        )
        try:
            return await dataframe_from_runs(
                spark,
                runs,
                schema=schema,
                path=path,
                fields=known_fields(self._origins),
            )
        finally:
            await runs.aclose()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Name what is missing where a keyed method is used without a key.

            Raises:
                AttributeError: Always.
            """
            raise AttributeError(no_such_verb(type(self), name), name=name, obj=self)

        def __iter__(self) -> NoReturn:
            """Say how records are pulled.

            Raises:
                UsageError: Always.
            """
            message = (
                "records come while the job runs: write `async for record in stream`, "
                "or `for record in await stream.collect()`"
            )
            raise UsageError(message)

        def __bool__(self) -> NoReturn:
            """Say how to find out whether there are records.

            Raises:
                UsageError: Always; it would be true whatever its records are.
            """
            message = (
                "a stream is a description, neither true nor false: write "
                "`if await stream.take(1)` to ask whether it has a record, "
                "`if stream is None` to ask whether there is a stream"
            )
            raise UsageError(message)

        def __len__(self) -> NoReturn:
            """Say how records are counted.

            Raises:
                UsageError: Always.
            """
            message = "records come while the job runs: write `await stream.count()`"
            raise UsageError(message)

        def __await__(self) -> NoReturn:
            """Say what can be awaited.

            Raises:
                UsageError: Always.
            """
            message = (
                "a stream is a description, which cannot be awaited: write "
                "`await stream.collect()` for its records, or end it with "
                "stream.sink_to(...) and `await env.execute()`"
            )
            raise UsageError(message)

    def __repr__(self) -> str:
        names = described_origins(self._origins)
        key = "" if self._key is None else f" by {described_key(self._key)}"
        return f"<{type(self).__name__} of {names}{key}>"

    @property
    def _operator(self) -> Transformation:
        origins = self._origins
        while len(origins) == 1 and origins[0].tag is None:
            item = origins[0].transformation
            if not item.is_part_of_input:
                return item
            origins = item.inputs[0]
        message = (
            "this stream is a union or a side output: name, uid and settings "
            "belong to an operator; set them on the stream that an operator made"
        )
        raise UsageError(message)

    def _changed(self, call: str, **settings: Any) -> Self:
        """Return the stream of a copy of its operator with other settings."""
        _ = self._operator
        [origin] = self._origins
        item = self._definition.change(origin.transformation, call, **settings)
        stream = copy(self)
        stream._origins = [replace(origin, transformation=item)]
        return stream

    def _check_joinable(self, other: object, parameter: str) -> None:
        """Raise if ``other`` is not a stream, or one of another environment."""
        if not isinstance(other, DataStream):
            raise WrongTypeError(
                parameter, f"{other!r} is not a stream", "Give a DataStream."
            )
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
        stateless(kind, function, on_error=on_error, run_in=run_in)
        return self._derive(
            kind.value,
            partial(stateless, kind, function, on_error=on_error, run_in=run_in),
            functions=(function_info(function),),
            record_fields=(
                known_fields(self._origins) if kind is StageKind.FILTER else None
            ),
        )

    def _projected(
        self,
        kind: str,
        name: str,
        on_error: OnError = fail,
        expressions: Mapping[str, Any] | None = None,
        **given: Any,
    ) -> DataStream[Any]:
        policy = check_on_error(on_error)
        computed = {
            check_name(name, "name"): connectors.check_expression(value, name)
            for name, value in (expressions or {}).items()
        }
        given = {name: value for name, value in given.items() if value}
        projection = getattr(connectors, kind)(expressions=computed, **given)
        factory = partial(connectors.ProjectionOperator, projection, on_error=policy)
        infos = expression_infos(*computed.values())
        return self._derive(name, factory, functions=infos)

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
        functions: tuple[FunctionInfo, ...] = (),
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
        )


def _counting(
    windows: WindowedStream[K, T, GlobalWindow], size: int, slide: int | None
) -> WindowedStream[K, T, GlobalWindow]:
    """Let windows fire for every so many records, as Flink's count windows do."""
    size = check_count(size, "size")
    if slide is None:
        return windows.trigger(PurgingTrigger.of(CountTrigger.of(size)))
    every = CountTrigger.of(check_count(slide, "slide"))
    return windows.trigger(every).evictor(CountEvictor.of(size))


class KeyedStream(DataStream[T], Generic[K, T]):
    """A stream whose records are partitioned by key.

    Made by `DataStream.key_by`. The methods of `DataStream` work here too; their
    results are no longer keyed.

    Concept:
        Flink, ``KeyedStream``.
    """

    def __init__(
        self, definition: JobDefinition, origins: list[Origin], key: Callable[[T], K]
    ) -> None:
        by_key = KeyGroupPartitioner(key, _ANY_MAX_PARALLELISM)
        super().__init__(
            definition,
            [replace(origin, partitioner=by_key) for origin in origins],
        )
        self.key = self._key = key

    def blocking(self) -> KeyedStream[K, T]:
        """Keep the records in files; see `DataStream.blocking`."""
        origins = [replace(origin, is_blocking=True) for origin in self._origins]
        return KeyedStream(self._definition, origins, self.key)

    def reduce(
        self,
        function: Callable[[T, T], T] | Callable[[T, T], Awaitable[T]],
        *,
        on_error: OnError = fail,
    ) -> DataStream[T]:
        """Fold the records of each key into one, and emit it after every record.

        Args:
            function: ``(reduced, record)`` → a new record. It must change neither of the
                two: the reduced value has already been emitted.
            on_error: How to handle a record for which it raises.

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

    def min_by(
        self,
        field: str | Callable[[T], Any],
        *,
        first: bool = True,
        on_error: OnError = fail,
    ) -> DataStream[T]:
        """Emit after every record the one of its key with the smallest value of a field.

        Args:
            field: A field's name, or a function of a record; no value may be None.
            first: Whether the first of several such records is emitted, not the last.
            on_error: How to handle a record whose value cannot be compared.
        """
        return self._extreme("min_by", field, first, on_error)

    def max_by(
        self,
        field: str | Callable[[T], Any],
        *,
        first: bool = True,
        on_error: OnError = fail,
    ) -> DataStream[T]:
        """Emit after every record the one of its key with the largest value of a field.

        Args:
            field: A field's name, or a function of a record; no value may be None.
            first: Whether the first of several such records is emitted, not the last.
            on_error: How to handle a record whose value cannot be compared.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> bids = env.from_collection([("car", 5), ("car", 9), ("car", 7)])
            >>> highest = bids.key_by(lambda bid: bid[0]).max_by(lambda bid: bid[1])
            >>> am.run(highest.collect())
            [('car', 5), ('car', 9), ('car', 9)]

        Concept:
            Flink, ``KeyedStream.maxBy``.
        """
        return self._extreme("max_by", field, first, on_error)

    def _extreme(
        self, name: str, field: Any, first: bool, on_error: OnError
    ) -> DataStream[T]:
        reduce = extreme(name, field, first, self._origins)
        factory = partial(
            KeyedReduceOperator, self.key, reduce, on_error=check_on_error(on_error)
        )
        infos = (function_info(reduce),)
        return self._keyed(name, factory, infos, unbounded=GROWS_WITH_KEYS)

    @overload
    def aggregate(
        self,
        aggregate: AggregateFunction[T, Any, U],
        *,
        include_key: Literal[False] = False,
        on_error: OnError = fail,
    ) -> DataStream[U]: ...

    @overload
    def aggregate(
        self,
        aggregate: AggregateFunction[T, Any, U],
        *,
        include_key: Literal[True],
        on_error: OnError = fail,
    ) -> DataStream[tuple[K, U]]: ...

    def aggregate(
        self,
        aggregate: AggregateFunction[T, Any, Any],
        *,
        include_key: bool = False,
        on_error: OnError = fail,
    ) -> DataStream[Any]:
        """Aggregate the records of each key, and emit the result after every record.

        Args:
            aggregate: ``am.count()``, ``am.aggregates(...)`` or your own. Several
                named aggregates give records with a field ``key``.
            include_key: Whether a single aggregate emits ``(key, result)``.
            on_error: How to handle a record for which it raises.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> words = env.from_collection(["a", "b", "a"]).key_by(lambda word: word)
            >>> am.run(words.aggregate(am.count(), include_key=True).collect())
            [('a', 1), ('b', 1), ('a', 2)]
            >>> am.run(words.aggregate(am.aggregates(n=am.count())).collect())
            [Result(key='a', n=1), Result(key='b', n=1), Result(key='a', n=2)]
        """
        factory = partial(
            formed,
            KeyedAggregateOperator,
            self.key,
            aggregate=aggregate,
            include_key=include_key,
            on_error=check_on_error(on_error),
        )
        return self._keyed(
            "aggregate", factory, unbounded=GROWS_WITH_KEYS, has_columns=True
        )

    def process(  # type: ignore[override]  # a function that has a key needs one
        self,
        function: KeyedProcessFunction[K, T, U]
        | Callable[[T, KeyedProcessContext[K], Collector[U]], Awaitable[None] | None],
        *,
        on_error: OnError = fail,
    ) -> DataStream[U]:
        """Pass each record to a function with state and timers of its key.

        Args:
            function: A `KeyedProcessFunction`, or a function ``(value, context, out)``,
                sync or ``async def``, if no timer is needed.
            on_error: How to handle a record for which it raises.

        Example:
            >>> import aiomailbox as am
            >>> seen = am.ValueStateDescriptor("seen", int, default=0)
            >>> def number(word, context, out):
            ...     count = context.keyed_state.get_value(seen)
            ...     count.update(count.value() + 1)
            ...     out.collect(f"{word}{count.value()}")
            >>> env = am.StreamExecutionEnvironment()
            >>> words = env.from_collection(["a", "b", "a"]).key_by(lambda word: word)
            >>> am.run(words.process(number).collect())
            ['a1', 'b1', 'a2']
        """
        if not isinstance(function, KeyedProcessFunction):
            function = as_object(OnlyKeyedProcess, function, "(value, context, out)", 3)
        policy = check_on_error(on_error)
        make = partial(own_copy, KeyedProcessOperator, self.key, function)
        make()
        infos = (function_info(function.process_element),)
        held = held_back(function)
        return self._keyed("process", partial(make, on_error=policy), infos, held=held)

    @_CAPACITY
    def process_async(
        self,
        function: KeyedAsyncProcessFunction[K, T, U]
        | Callable[[T, KeyedAsyncContext[K], Collector[U]], Awaitable[None]],
        *,
        concurrency: int = 16,
        timeout: timedelta | float | None = None,
        deadline: timedelta | float | None = None,
        retry: Retry | None = None,
        limit: RateLimit | None = None,
        on_error: OnError = fail,
        capacity: int | None = None,
        key_capacity: int | None = None,
    ) -> DataStream[U]:
        """Pass each record to an async function with state and timers of its key.

        Records of a key are processed one at a time and in order, records of different
        keys concurrently. The results and state changes of a call take effect atomically
        when it returns, or not at all if it raises; a snapshot never contains a part of
        them. Watermarks and timers keep their places between the records of a key.
        Calls are not journalled: after a failure, those since the last checkpoint are made
        again, because state is restored to that checkpoint.

        Args:
            function: A `KeyedAsyncProcessFunction`, or an ``async def`` function
                ``(value, context, out)``.
            concurrency: The maximum number of concurrent calls in the whole job.
            timeout: The time limit of one attempt: a timedelta or seconds.
            deadline: The time limit of all attempts for a record, including their delays.
            retry: How often, and after which delays, a failed call is repeated; each
                attempt begins with the state that the key had before the record.
            limit: A rate limit, shared by all operators that name it.
            on_error: How to handle a record after the last attempt. A timer that
                fails always fails the job.
            capacity: The maximum number of records held in the whole job; by default, 4
                times ``concurrency``.
            key_capacity: How many records may wait for their key, in addition to ``capacity``.

        Example:
            >>> import asyncio
            >>> import aiomailbox as am
            >>> seen = am.ValueStateDescriptor("seen", int, default=0)
            >>> async def number(word, context, out):
            ...     await asyncio.sleep(0.001)
            ...     count = context.keyed_state.get_value(seen)
            ...     count.update(count.value() + 1)
            ...     out.collect(f"{word}{count.value()}")
            >>> env = am.StreamExecutionEnvironment()
            >>> words = env.from_collection(["a", "b", "a"]).key_by(lambda word: word)
            >>> sorted(am.run(words.process_async(number).collect()))
            ['a1', 'a2', 'b1']
        """
        factory = partial(
            KeyedAsyncProcessOperator,
            self.key,
            function,
            concurrency=check_count(concurrency, "concurrency"),
            timeout=timeout,
            deadline=deadline,
            retry=retry,
            limit=limit,
            on_error=check_on_error(on_error),
            capacity=capacity,
            key_capacity=key_capacity,
        )
        # Wrong arguments fail here, where they are written.
        sample = factory()
        process: Any = getattr(function, "process_element", function)
        return self._keyed(
            "process_async",
            factory,
            (function_info(process, serial=False),),
            limit=limit,
            bound=f"{sample.capacity} records",
        )

    def window(
        self, assigner: WindowAssigner[WindowT]
    ) -> WindowedStream[K, T, WindowT]:
        """Group the records of each key into time windows."""
        return WindowedStream(self.key, assigner, self._keyed, self._origins)

    def full_window_partition(self) -> PartitionWindowedStream[K, T]:
        """Take all records of each key as one partition, which ends with the input.

        For bounded streams: it gives one result for each key, where `aggregate` and
        `reduce` give one for each record.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> words = env.from_collection(["tea", "jam", "tea"])
            >>> by_word = words.key_by(lambda word: word).full_window_partition()
            >>> am.run(by_word.aggregate(am.count(), include_key=True).collect())
            [('tea', 2), ('jam', 1)]

        Concept:
            Flink, ``KeyedStream.fullWindowPartition``.
        """
        return PartitionWindowedStream(self.key, self._keyed, self._origins)

    def count_window(
        self, size: int, slide: int | None = None
    ) -> WindowedStream[K, T, GlobalWindow]:
        """Group the records of each key into windows of a number of records.

        Time plays no part. The last records of a key, too few for a window, are never
        emitted; a trigger of your own changes that (`ProcessingTimeoutTrigger`).

        Args:
            size: How many records are in a window.
            slide: After how many records of a key a window is emitted: it has the last
                ``size`` ones, the first windows fewer. None for windows that do not
                overlap.

        Raises:
            InvalidArgumentError: If a number is below 1.
            WrongTypeError: If it is no int.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> words = env.from_collection(["a1", "b1", "a2", "a3", "a4", "b2"])
            >>> by_letter = words.key_by(lambda word: word[0])
            >>> join = lambda key, window, records: ["+".join(records)]
            >>> am.run(by_letter.count_window(2).apply(join).collect())
            ['a1+a2', 'a3+a4', 'b1+b2']
            >>> am.run(by_letter.count_window(3, 2).apply(join).collect())
            ['a1+a2', 'a2+a3+a4', 'b1+b2']

        Concept:
            Flink, ``KeyedStream.countWindow``.
        """
        return _counting(self.window(GlobalWindows.create()), size, slide)

    def sessionise(self, gap: timedelta) -> DataStream[Session[K, T]]:
        """Group the records of each key into sessions, emitted as `Session` records.

        Args:
            gap: A pause in event time that ends a session: a timedelta.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> time = am.WatermarkStrategy.for_monotonous_timestamps()
            >>> time = time.with_timestamp_assigner(lambda click: click[1])
            >>> clicks = env.from_collection([("a", 0), ("a", 900), ("a", 5000)], time)
            >>> sessions = clicks.key_by(lambda c: c[0]).sessionise(am.seconds(1))
            >>> for one in am.run(sessions.collect()):
            ...     print(one.key, one.start.time(), one.end - one.start)
            a 00:00:00 0:00:00.900000
            a 00:00:05 0:00:00
        """
        windows = self.window(EventTimeSessionWindows.with_gap(gap))
        return windows.apply(SessionMaker(pipeline_ms(gap, "gap")))

    def deduplicate(self, ttl: timedelta | None = None) -> DataStream[T]:
        """Pass on the first record of each key and drop the others.

        Args:
            ttl: How long after its first record, in processing time, a key counts
                as new again: a timedelta; None for never, which lets state
                grow with the number of keys.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> words = env.from_collection(["a", "b", "a"]).key_by(lambda word: word)
            >>> am.run(words.deduplicate(ttl=am.hours(1)).collect())
            ['a', 'b']
        """
        factory = partial(DeduplicateOperator, self.key, ttl=ttl)
        unbounded = GROWS_WITH_KEYS if ttl is None else ""
        return self._keyed("deduplicate", factory, unbounded=unbounded)

    def match(
        self, pattern: Pattern, *, partials_max: int = 1000, on_error: OnError = fail
    ) -> DataStream[Match]:
        """Emit a `Match` for records of a key that match a pattern, in event time.

        Records are sorted by event time up to the watermark; late records are dropped and
        counted. Unless the pattern says otherwise (`Pattern.skipping`), a record is part
        of one match only: a match discards all partial matches. Patterns should set
        ``within``; otherwise partial matches are kept forever.

        Args:
            pattern: The pattern, which begins with ``am.pattern(...)``.
            partials_max: The maximum number of partial matches kept per key; beyond it, the
                earliest is dropped and counted as ``partial_matches_dropped``.
            on_error: How to handle a record for which a step's ``where`` raises.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> time = am.WatermarkStrategy.for_monotonous_timestamps()
            >>> time = time.with_timestamp_assigner(lambda payment: payment[2])
            >>> payments = [("ann", 1, 0), ("ann", 5, 10), ("ann", 900, 20)]
            >>> fraud = (
            ...     am.pattern("test", where=lambda payment: payment[1] < 2)
            ...     .followed_by("theft", where=lambda payment: payment[1] > 500)
            ...     .within(am.minutes(5))
            ... )
            >>> stream = env.from_collection(payments, time).key_by(lambda p: p[0])
            >>> for found in am.run(stream.match(fraud).collect()):
            ...     print(found.key, found.events["theft"], found.end - found.start)
            ann ('ann', 900, 20) 0:00:00.020000
        """
        factory = partial(
            MatchOperator,
            self.key,
            pattern,
            partials_max=partials_max,
            on_error=on_error,
        )
        factory()
        infos = tuple(
            function_info(step.where)
            for step in pattern.steps
            if step.where is not None
        )
        unbounded = GROWS_WITH_KEYS if pattern.within_ms is None else ""
        return self._keyed(
            "match",
            factory,
            infos,
            unbounded=unbounded,
            held="records that wait for the watermark",
        )

    def interval_join(self, other: KeyedStream[Any, U]) -> IntervalJoin[T, U]:
        """Join two keyed streams: pairs with equal keys and event times near each other.

        Next is ``between(...)``, then ``select(...)`` with fields of both sides, which
        leaves columns what they are, or ``process(...)`` with a function.

        Args:
            other: The right stream, which must be keyed too.

        Raises:
            UsageError: If the right stream has no key.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> time = am.WatermarkStrategy.for_monotonous_timestamps()
            >>> time = time.with_timestamp_assigner(lambda record: record[1])
            >>> orders = env.from_collection([("a", 1000)], time)
            >>> parcels = env.from_collection([("a", 3000), ("a", 60000)], time)
            >>> joined = (
            ...     orders.key_by(lambda order: order[0])
            ...     .interval_join(parcels.key_by(lambda parcel: parcel[0]))
            ...     .between(am.seconds(0), am.seconds(10))
            ...     .process(lambda order, parcel: (order[0], parcel[1] - order[1]))
            ... )
            >>> am.run(joined.collect())
            [('a', 2000)]
        """
        keys = self.key, self._key_of(other, "interval_join")
        derive = partial(self._join_by_key, other)
        return IntervalJoin(derive, keys, (self._origins, other._origins))

    @overload
    def as_of_join(
        self,
        versions: KeyedStream[Any, V],
        join: None = None,
        *,
        left: Literal[False] = False,
        left_late: OutputTag[T] | None = None,
        on_error: OnError = fail,
    ) -> DataStream[tuple[T, V]]: ...

    @overload
    def as_of_join(
        self,
        versions: KeyedStream[Any, V],
        join: None = None,
        *,
        left: bool,
        left_late: OutputTag[T] | None = None,
        on_error: OnError = fail,
    ) -> DataStream[tuple[T, V | None]]: ...

    @overload
    def as_of_join(
        self,
        versions: KeyedStream[Any, V],
        join: ProcessJoinFunction[T, Any, U],
        *,
        left: bool = False,
        left_late: OutputTag[T] | None = None,
        on_error: OnError = fail,
    ) -> DataStream[U]: ...

    @overload
    def as_of_join(
        self,
        versions: KeyedStream[Any, V],
        join: Callable[[T, Any], Awaitable[U]],
        *,
        left: bool = False,
        left_late: OutputTag[T] | None = None,
        on_error: OnError = fail,
    ) -> DataStream[U]: ...

    @overload
    def as_of_join(
        self,
        versions: KeyedStream[Any, V],
        join: Callable[[T, Any], U],
        *,
        left: bool = False,
        left_late: OutputTag[T] | None = None,
        on_error: OnError = fail,
    ) -> DataStream[U]: ...

    def as_of_join(
        self,
        versions: KeyedStream[Any, Any],
        join: ProcessJoinFunction[T, Any, Any] | Callable[[T, Any], Any] | None = None,
        *,
        left: bool = False,
        left_late: OutputTag[T] | None = None,
        on_error: OnError = fail,
    ) -> DataStream[Any]:
        """Join each record with the latest version that is not newer than the record.

        A record waits until the watermark has reached it. For each key, the latest
        version that the watermark has passed is kept, and all newer ones.

        Args:
            versions: The right stream, keyed too: such as prices, rates or settings.
            join: A `ProcessJoinFunction`, or ``(record, version)`` → the result, sync
                or ``async def``; None for a tuple of both.
            left: Whether records without a version are kept, joined with None.
            left_late: The side output of records that arrive too late.
            on_error: How to handle a pair for which ``join`` raises.

        Raises:
            UsageError: If the right stream has no key.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> time = am.WatermarkStrategy.for_monotonous_timestamps()
            >>> time = time.with_timestamp_assigner(lambda record: record[1])
            >>> orders = env.from_collection([("EUR", 1500), ("EUR", 2500)], time)
            >>> rates = env.from_collection([("EUR", 1000, 2), ("EUR", 2000, 3)], time)
            >>> joined = orders.key_by(lambda order: order[0]).as_of_join(
            ...     rates.key_by(lambda rate: rate[0]),
            ...     lambda order, rate: (order[1], rate[2]),
            ... )
            >>> am.run(joined.collect())
            [(1500, 2), (2500, 3)]
        """
        function = pair if join is None else join
        factory = partial(
            own_copy,
            AsOfJoinOperator,
            self.key,
            self._key_of(versions, "as_of_join"),
            function,
            keep_unmatched=left,
            left_late=left_late,
            on_error=on_error,
        )
        factory()
        infos = () if join is None else (join_info(join),)
        return self._join_by_key(
            versions,
            "as-of join",
            factory,
            functions=infos,
            unbounded=GROWS_WITH_KEYS,
            held="records that wait for the watermark",
        )

    def _key_of(self, other: DataStream[Any], verb: str) -> Callable[[Any], Any]:
        self._check_joinable(other, "other")
        key = other._key
        if key is None:
            message = (
                f"{verb} needs keys on both streams: "
                f"a.key_by(...).{verb}(b.key_by(...))"
            )
            raise UsageError(message)
        return key

    def _join_by_key(
        self,
        other: DataStream[Any],
        name: str,
        factory: OperatorFactory,
        **facts: Any,
    ) -> DataStream[Any]:
        return self._connected(other._origins, name, factory, is_keyed=True, **facts)
